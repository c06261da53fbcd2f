package sched

import (
	"math"
	"math/bits"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// Queues are the virtual queues of paths (docs/papers.md, paper D, equation 1): what was sent on a
// path and, by the path's rate, has not left yet.
//
//	Q_i(t) = max(0, Q_i(tau) - B_i (t - tau)) + S
//
// B_i is Path.Rate and S the size of a packet. A queue is stored as the time at which it becomes
// empty, so that nothing has to be drained; a change of Rate does not change the time of packets
// already queued. Schedulers that send over the same paths share one Queues (Options.Queues). The
// arithmetic is in integers of 64 bits, so that a program in the kernel can repeat it. The zero
// value has empty queues. It is not safe for concurrent use.
type Queues struct {
	queue [MaxPaths]virtual
}

// virtual is the virtual queue of a path.
type virtual struct {
	empty time.Duration // when it becomes empty
	rate  unit.Bandwidth
	// perByte is the time that a byte takes at that rate, in 2^-16 ns.
	perByte uint64
}

const (
	perByteBits = 16
	// maxPerByte bounds perByte, so that the time of a packet of 64 KiB fits 63 bits. It is that
	// of 7.5 bit/s.
	maxPerByte = 1 << 46
	// tooLong bounds the wait, so that arrival times can be compared without overflow.
	tooLong = 24 * time.Hour
)

// timePerByte returns the time that a byte takes at a positive rate.
func (v *virtual) timePerByte(rate unit.Bandwidth) uint64 {
	if v.rate != rate {
		v.rate = rate
		v.perByte = min((8*uint64(time.Second)<<perByteBits+uint64(rate)/2)/uint64(rate), maxPerByte)
	}
	return v.perByte
}

// transmissionTime returns the transmission time of a packet at a positive rate.
func (v *virtual) transmissionTime(rate unit.Bandwidth, size int) time.Duration {
	return transmissionTime(size, v.timePerByte(rate))
}

// transmissionTime returns the transmission time of size bytes, at most a little more than tooLong.
func transmissionTime(size int, perByte uint64) time.Duration {
	hi, lo := bits.Mul64(uint64(max(size, 0)), perByte)
	if hi>>perByteBits != 0 {
		return tooLong + 1
	}
	return time.Duration(min(hi<<(64-perByteBits)|lo>>perByteBits, uint64(tooLong+1)))
}

// Wait returns the time until a packet that is sent now has left its path, without its own
// transmission time. Directly after Next or Add, it is the wait Q/B of that packet with its
// transmission time, which the packet's delay has to be reduced by to get that of the path.
func (q *Queues) Wait(path int, now time.Duration) time.Duration {
	return max(0, q.queue[path].empty-now)
}

// Add adds a packet that a scheduler of these queues did not choose the path of, such as a probe.
// With a Rate of 0 or less it has no effect.
func (q *Queues) Add(path int, p *Path, now time.Duration, size int) {
	if p.Rate <= 0 {
		return
	}
	v := &q.queue[path]
	v.add(p, now, v.transmissionTime(p.Rate, size))
}

// add adds a packet with that transmission time.
func (v *virtual) add(p *Path, now, line time.Duration) {
	wait := min(max(0, v.empty-now)+line, tooLong)
	if p.Buffer > 0 {
		wait = min(wait, max(p.Buffer, line))
	}
	v.empty = now + wait
}

// Set replaces what is known of a queue by what is measured, such as the real queue in front of the
// path: it will be empty after wait.
func (q *Queues) Set(path int, now, wait time.Duration) {
	q.queue[path].empty = now + max(wait, 0)
}

// Lag returns how much later than on a path a packet arrives on the latest of the other paths that
// auto may use: the path has to be busy for that long before all others are used (package pacer).
// Paths that are later by more than the bound are ignored. For a path of a higher rate the bound is
// multiplied by the ratio of the rates, up to maxLagFactor, because the first path alone would be
// the slower one.
func Lag(paths []Path, path int, bound time.Duration) time.Duration {
	lag := time.Duration(0)
	may := notResting(paths)
	for i := range paths {
		factor := min(max(float64(paths[i].Rate)/float64(max(paths[path].Rate, 1)), 1), maxLagFactor)
		if d := paths[i].late() - paths[path].late(); may.Has(i) && paths[i].Rate > 0 && d <= time.Duration(factor*float64(bound)) {
			lag = max(lag, d)
		}
	}
	return lag
}

// maxLagFactor is the largest factor of the bound of Lag.
var maxLagFactor = 4.

// jitterFactor is how many times the jitter of RFC 3550, which is 1.13 standard deviations if
// delays have a normal distribution, auto adds to the mean delay of a path: with 3, one packet in
// 3000 is later. On a path with very much jitter it adds maxJitterDelay: with more, two paths of
// 384 kbit/s would be used without the third.
var (
	jitterFactor   time.Duration = 3
	maxJitterDelay               = 100 * time.Millisecond
)

// Latest returns the delay that few packets exceed on the latest of the usable paths, and false if
// none is usable. When a packet has left the queue of its path, few of those before it arrive later
// than this: auto fills the queue of another path only until a packet there arrives as late as a
// late one here.
func Latest(paths []Path) (latest time.Duration, any bool) {
	for i := range paths {
		if p := &paths[i]; p.Usable && (!any || p.late() > latest) {
			latest, any = p.late(), true
		}
	}
	return latest, any
}

// late returns the delay that few packets on the path exceed.
func (p *Path) late() time.Duration {
	return p.Delay + min(jitterFactor*min(p.Jitter, tooLong), maxJitterDelay)
}

// repaired returns late with the mean time that it takes to retransmit a packet until the path does
// not lose it: a round trip each time.
func (p *Path) repaired() time.Duration {
	share := min(float64(p.Loss)/1e6, maxLoss)
	return p.late() + time.Duration(share/(1-share)*float64(p.SRTT))
}

// maxLoss bounds the share of lost packets that counts.
const maxLoss = 0.9

// First returns the usable path where a packet of that size arrives first that is sent after what
// is in the path's queue, with the time that it takes to retransmit it if the path loses it, or -1.
// The path except is not considered; -1: all are.
func (q *Queues) First(paths []Path, now time.Duration, size, except int) int {
	first, earliest := -1, time.Duration(math.MaxInt64)
	for i := range paths {
		p := &paths[i]
		if i == except || !p.Usable || p.Rate <= 0 {
			continue
		}
		v := &q.queue[i]
		if at := max(0, v.empty-now) + v.transmissionTime(p.Rate, size) + p.repaired(); at < earliest {
			first, earliest = i, at
		}
	}
	return first
}
