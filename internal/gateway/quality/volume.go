package quality

import (
	"math"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// lossMemory is the memory of Loss's exponential average in packets: a packet has the weight 1/256.
const lossMemory = 256

// Loss estimates the share of packets that a path loses. For the first lossMemory packets it is the
// plain share. The zero value has no samples.
type Loss struct {
	// Share is from 0 to 1.
	Share float64
	// Sent and Lost count the packets so far.
	Sent, Lost uint64
}

// Update adds a sample: a number of sent packets whose fate is known, and how many of them were
// lost. A sample with sent 0 or lost > sent is ignored.
func (l *Loss) Update(sent, lost uint64) {
	if sent == 0 || lost > sent {
		return
	}
	l.Sent += sent
	l.Lost += lost
	// The combined weight of these packets, as if counted one by one with evenly spread losses.
	weight := float64(sent) / float64(l.Sent)
	if l.Sent > lossMemory {
		weight = max(weight, 1-math.Pow(1-1./lossMemory, float64(sent)))
	}
	l.Share += (float64(lost)/float64(sent) - l.Share) * weight
}

// LossMeter takes the samples of a Loss from the counters that the receiver of a path reports. The
// zero value is ready for counters that begin with 0.
type LossMeter struct {
	Loss
	next, lost uint64 // as of the last report
	sure       uint64 // lost before that
	known      uint64 // number of packets of which sure are lost
	since      uint64 // packets before it are ignored
}

// AddReport adds a report of the receiver: next packets were sent so far and lost of them have not
// arrived. Reports that are older than an earlier one are ignored. It returns how many packets more
// are lost. A report also counts packets that are only late, so a loss counts when the next report
// has it too. Those of the first report of a numbering do not count: the receiver may not have had
// the keys.
func (m *LossMeter) AddReport(next, lost uint64) (more uint64) {
	if next <= m.next {
		return 0
	}
	sure := max(m.sure, min(lost, m.lost))
	if more = min(sure-m.sure, m.next-m.known); m.known > 0 && m.known >= m.since {
		m.Update(m.next-m.known, more)
	}
	m.known, m.sure, m.next, m.lost = m.next, sure, next, lost
	return more
}

// Restart forgets the estimate, because the path has come up: what was lost before the packet with
// number next is not meaningful.
func (m *LossMeter) Restart(next uint64) { m.Loss, m.since = Loss{}, next }

// Renumber has the counters begin with 0 again. The estimate remains.
func (m *LossMeter) Renumber() { *m = LossMeter{Loss: m.Loss} }

// rateMemory is the time constant of Rate.
const rateMemory = time.Second

// Rate estimates the rate of arriving data by exponential averaging over the time between packets
// (Stoica, Shenker, Zhang: Core-Stateless Fair Queueing, SIGCOMM 1998, equation 5), which does not
// depend on the sizes of packets. The zero value has no samples.
type Rate struct {
	bits  float64 // per second
	last  time.Duration
	due   float64 // bits that arrived at the time last
	begun bool
}

// Update counts bytes that arrived at the time now on a monotonic clock.
func (r *Rate) Update(now time.Duration, bytes int) {
	if !r.begun {
		// The first packet only starts the measurement: the interval before it is unknown.
		r.begun, r.last = true, now
		return
	}
	r.due += 8 * float64(bytes)
	gap := now - r.last
	if gap <= 0 {
		return
	}
	kept := math.Exp(-gap.Seconds() / rateMemory.Seconds())
	r.bits = (1-kept)*r.due/gap.Seconds() + kept*r.bits
	r.last, r.due = now, 0
}

// Value returns the estimate at now, which decays while nothing arrives.
func (r *Rate) Value(now time.Duration) unit.Bandwidth {
	gap := max(now-r.last, 0)
	return unit.Bandwidth(math.Min(r.bits*math.Exp(-gap.Seconds()/rateMemory.Seconds()), math.MaxInt64/2))
}
