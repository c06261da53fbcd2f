package judge

import (
	"math"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/unit"
)

// Changes of a path that make earlier results worth less.
const (
	changedRate   = 4                    // by a quarter
	changedJitter = 5 * time.Millisecond // and by a factor of two
	changedLoss   = 2000                 // and by a factor of four
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

// update makes the sets again if a path has changed.
func (j *Judge) update(now time.Duration, paths []Path) {
	usable := len(j.paths) == len(paths)
	differ := !usable
	for i := 0; i < len(paths) && usable; i++ {
		usable = paths[i].usable() == j.paths[i].usable()
		differ = differ || !usable || changed(&paths[i], &j.paths[i])
	}
	if !differ {
		estimate(j.arms, paths)
		return
	}
	first := j.arms == nil
	var use Set
	all := true
	if !first {
		at := j.at
		if j.trial {
			at = j.before
		}
		use, all = j.arms[at].use, at == 0
	}
	j.paths = append(j.paths[:0], paths...)
	j.arms = sets(paths)
	// What was learned does not hold any more, but sets are not tried more often because of that
	// than after a first failure.
	j.rest, j.until = 0, min(j.until, now+FirstRest)
	if !all {
		use &= j.arms[0].use
		all = use == 0
	}
	if all {
		use = j.arms[0].use
	}
	if j.at = slices.IndexFunc(j.arms, func(a arm) bool { return a.use == use }); j.at < 0 {
		j.arms = append(j.arms, arm{use: use})
		j.at = len(j.arms) - 1
		estimate(j.arms, paths)
	}
	j.trial = false
	if !first && usable && use == j.last.Use {
		j.count = 0
		return
	}
	j.restart()
	why := Changed
	switch {
	case use == 0:
		why = NoPath
	case first:
		why = Begin
	}
	j.decide(now, Decision{Reason: why})
}

func (p *Path) usable() bool { return p.Usable && p.Rate > 0 }

// A path alone brings less than its rate where TCP is slow: where packets are lost, and where the round
// trip is long, so that windows grow slowly.
const (
	lossy  = 1000                   // packets lost of a million: half of the rate
	longer = 200 * time.Millisecond // later than the first path: half of the rate
)

// expected returns what a path should bring alone; first is the shortest delay of all.
func (p *Path) expected(first time.Duration) unit.Bandwidth {
	rate := float64(p.Rate) * float64(longer) / float64(longer+p.Delay-first)
	if p.Loss >= lossy {
		rate /= 2
	}
	return unit.Bandwidth(rate)
}

// sets returns the sets of paths that can be used: all, all without the worst one, each alone. Without
// usable paths the only set is empty.
func sets(paths []Path) []arm {
	all := Set(0)
	for i := range paths {
		if paths[i].usable() {
			all |= 1 << i
		}
	}
	arms := []arm{{use: all}}
	n := all.Len()
	if w := worst(paths); n > 2 && w >= 0 {
		arms = append(arms, arm{use: all &^ (1 << w)})
	}
	for i := range paths {
		if n > 1 && all.Has(i) {
			arms = append(arms, arm{use: 1 << i})
		}
	}
	estimate(arms, paths)
	return arms
}

// estimate sets what the sets should bring.
func estimate(arms []arm, paths []Path) {
	first := time.Duration(math.MaxInt64)
	for i := range paths {
		if paths[i].usable() {
			first = min(first, paths[i].Delay)
		}
	}
	for k := range arms {
		a := &arms[k]
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

// worst returns the usable path with the largest jitter or, if no jitter is large enough, with
// the largest loss. It returns -1 if neither is.
func worst(paths []Path) int {
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
