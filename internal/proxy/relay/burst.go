package relay

import (
	"math/bits"
	"sync/atomic"
)

// burstClasses is the number of classes of bursts: 1 segment, 2, 3 to 4, 5 to 8, and so on; the
// last one has all longer ones.
const burstClasses = 12

// Bursts count bursts by length. A burst is what is given to a socket at once, in segments. It is
// safe for concurrent use.
type Bursts struct {
	classes  [burstClasses]atomic.Uint64
	segments atomic.Uint64
	longest  atomic.Int64
}

// add counts a burst of bytes.
func (b *Bursts) add(bytes, segment int) {
	n := max((bytes+segment-1)/segment, 1)
	b.classes[classOf(n)].Add(1)
	b.segments.Add(uint64(n))
	for {
		most := b.longest.Load()
		if int64(n) <= most || b.longest.CompareAndSwap(most, int64(n)) {
			return
		}
	}
}

func classOf(segments int) int { return min(bits.Len(uint(segments-1)), burstClasses-1) }

// BurstSummary describes the bursts of a direction, in segments.
type BurstSummary struct {
	Bursts   uint64 `json:"bursts"`
	Segments uint64 `json:"segments"`
	// Median and P95 are upper ends of the classes that have them.
	Median  int `json:"median"`
	P95     int `json:"p95"`
	Longest int `json:"longest"`
}

// Summary returns what was counted so far.
func (b *Bursts) Summary() BurstSummary {
	var counts [burstClasses]uint64
	s := BurstSummary{Segments: b.segments.Load(), Longest: int(b.longest.Load())}
	for i := range counts {
		counts[i] = b.classes[i].Load()
		s.Bursts += counts[i]
	}
	quantile := func(percent uint64) int {
		if s.Bursts == 0 {
			return 0
		}
		var passed uint64
		for i, n := range counts {
			if passed += n; passed*100 >= s.Bursts*percent {
				return min(1<<i, s.Longest)
			}
		}
		return s.Longest
	}
	s.Median, s.P95 = quantile(50), quantile(95)
	return s
}
