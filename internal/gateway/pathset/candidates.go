package pathset

import (
	"math"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// Changes of a path that invalidate earlier results.
var (
	changedRate   unit.Bandwidth = 4                    // by a quarter
	changedJitter                = 5 * time.Millisecond // and by a factor of two
	changedLoss                  = 2000                 // and by a factor of four
)

// changed reports whether the quality of a path differs much.
func changed(a, b *Path) bool {
	rate := a.Rate - b.Rate
	low, high := min(a.Jitter, b.Jitter), max(a.Jitter, b.Jitter)
	less, more := min(a.Loss, b.Loss), max(a.Loss, b.Loss)
	return max(rate, -rate) > min(a.Rate, b.Rate)/changedRate ||
		high-low > changedJitter && high > 2*low ||
		more-less > changedLoss && more > 4*less
}

// updatePaths computes the candidates again if a path has changed.
func (s *Selector) updatePaths(now time.Duration, paths []Path) {
	usable := len(s.lastPaths) == len(paths)
	differ := !usable
	for i := 0; i < len(paths) && usable; i++ {
		usable = paths[i].usable() == s.lastPaths[i].usable()
		differ = differ || !usable || changed(&paths[i], &s.lastPaths[i])
	}
	if !differ {
		estimateRates(s.candidates, paths)
		return
	}
	first := s.candidates == nil
	var use Set
	all := true
	if !first {
		at := s.inUse
		if s.trying {
			at = s.previous
		}
		use, all = s.candidates[at].use, at == 0
	}
	s.lastPaths = append(s.lastPaths[:0], paths...)
	s.candidates = candidatesOf(paths)
	// What was measured is no longer valid, but that does not make trials more frequent than after
	// a first failure.
	s.restFor, s.restUntil = 0, min(s.restUntil, now+RestMin)
	if !all {
		use &= s.candidates[0].use
		all = use == 0
	}
	if all {
		use = s.candidates[0].use
	}
	if s.inUse = slices.IndexFunc(s.candidates, func(a candidate) bool { return a.use == use }); s.inUse < 0 {
		s.candidates = append(s.candidates, candidate{use: use})
		s.inUse = len(s.candidates) - 1
		estimateRates(s.candidates, paths)
	}
	s.trying = false
	if !first && usable && use == s.last.Use {
		s.windowCount = 0
		return
	}
	s.resetWindows()
	why := Changed
	switch {
	case use == 0:
		why = NoPath
	case first:
		why = Begin
	}
	s.decide(now, Decision{Reason: why})
}

func (p *Path) usable() bool { return p.Usable && p.Rate > 0 }

// A path alone carries less than its rate where TCP is slow: where packets are lost, and where the
// round trip is long, so that windows grow slowly.
var (
	lossyFrom    = 1000                   // packets lost in a million: half of the rate
	delayHalving = 200 * time.Millisecond // behind the first path: half of the rate
)

// expected returns the rate that a path should carry alone; first is the shortest delay of all.
func (p *Path) expected(first time.Duration) unit.Bandwidth {
	rate := float64(p.Rate) * float64(delayHalving) / float64(delayHalving+p.Delay-first)
	if p.Loss >= lossyFrom {
		rate /= 2
	}
	return unit.Bandwidth(rate)
}

// candidatesOf returns the sets of paths that can be used: all, all without the worst one, each
// alone. Without usable paths the only set is empty.
func candidatesOf(paths []Path) []candidate {
	all := Set(0)
	for i := range paths {
		if paths[i].usable() {
			all |= 1 << i
		}
	}
	list := []candidate{{use: all}}
	n := all.Len()
	if w := worstOf(paths); n > 2 && w >= 0 {
		list = append(list, candidate{use: all &^ (1 << w)})
	}
	for i := range paths {
		if n > 1 && all.Has(i) {
			list = append(list, candidate{use: 1 << i})
		}
	}
	estimateRates(list, paths)
	return list
}

// estimateRates sets the expected rates of candidates.
func estimateRates(list []candidate, paths []Path) {
	first := time.Duration(math.MaxInt64)
	for i := range paths {
		if paths[i].usable() {
			first = min(first, paths[i].Delay)
		}
	}
	for k := range list {
		a := &list[k]
		a.rate = 0
		for i := range paths {
			switch {
			case !a.use.Has(i):
			case a.use.Len() == 1:
				a.rate = paths[i].expected(first)
			default:
				a.rate += paths[i].Rate
			}
		}
	}
}

// worstOf returns the usable path with the largest jitter or, if no jitter is large enough, with
// the largest loss. It returns -1 if neither is.
func worstOf(paths []Path) int {
	jitter, loss := -1, -1
	for i := range paths {
		p := &paths[i]
		if !p.usable() {
			continue
		}
		if jitter < 0 || p.Jitter > paths[jitter].Jitter {
			jitter = i
		}
		if loss < 0 || p.Loss > paths[loss].Loss {
			loss = i
		}
	}
	switch {
	case jitter >= 0 && paths[jitter].Jitter > changedJitter:
		return jitter
	case loss >= 0 && paths[loss].Loss > changedLoss:
		return loss
	}
	return -1
}
