package judge

import (
	"slices"
	"time"
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

// sets returns the sets of paths that can be used: all, all without the worst one, each alone. Without
// usable paths the only set is empty.
func sets(paths []Path) []arm {
	arms := []arm{{}}
	all := &arms[0]
	for i := range paths {
		if paths[i].usable() {
			all.use |= 1 << i
			all.rate += paths[i].Rate
		}
	}
	n := all.use.Len()
	if n < 2 {
		return arms
	}
	use, rate := all.use, all.rate
	if w := worst(paths); n > 2 && w >= 0 {
		arms = append(arms, arm{use: use &^ (1 << w), rate: rate - paths[w].Rate})
	}
	for i := range paths {
		if use.Has(i) {
			arms = append(arms, arm{use: 1 << i, rate: paths[i].Rate})
		}
	}
	return arms
}

// worst returns the usable path with the largest jitter or, if jitter does not tell, with the largest
// loss. It returns -1 if neither does.
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
