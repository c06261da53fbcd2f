package quality

import (
	"math"
	"time"

	"github.com/tabane/tabane/internal/unit"
)

// lossMemory is the weight of Loss's exponential average: a packet counts for 1/256.
const lossMemory = 256

// Loss estimates the share of packets that a path loses. Until it has seen as many packets as it
// remembers, it is the plain share. Its zero value has seen nothing.
type Loss struct {
	// Share is from 0 to 1.
	Share float64
	// Sent and Lost are the packets counted so far.
	Sent, Lost uint64
}

// Update counts packets that were sent and of which it is now known whether they arrived, and how
// many of them did not. Numbers that cannot be are no sample: lost more than sent, or none sent.
func (l *Loss) Update(sent, lost uint64) {
	if sent == 0 || lost > sent {
		return
	}
	l.Sent += sent
	l.Lost += lost
	// The weight of all these packets together: that of one after the other, evenly lost.
	weight := float64(sent) / float64(l.Sent)
	if l.Sent > lossMemory {
		weight = max(weight, 1-math.Pow(1-1./lossMemory, float64(sent)))
	}
	l.Share += (float64(lost)/float64(sent) - l.Share) * weight
}

// rateMemory is the time constant of Rate.
const rateMemory = time.Second

// Rate estimates how much a path carries by exponential averaging over the time between packets
// (Stoica, Shenker, Zhang: Core-Stateless Fair Queueing, SIGCOMM 1998, equation 5), which does not
// depend on the sizes of packets. Its zero value has seen nothing.
type Rate struct {
	bits  float64 // per second
	last  time.Duration
	due   float64 // bits that came at the instant last
	begun bool
}

// Update counts bytes that arrived at now, which is monotonic.
func (r *Rate) Update(now time.Duration, bytes int) {
	if !r.begun {
		// What arrives first was sent before anybody measured.
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
