package simrun

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/ablation"
	"github.com/tabane/tabane/internal/epe/selection"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/worlds"
	"github.com/tabane/tabane/internal/gateway/pacer"
	"github.com/tabane/tabane/internal/gateway/pathset"
	"github.com/tabane/tabane/internal/gateway/quality"
	"github.com/tabane/tabane/internal/gateway/repair"
	"github.com/tabane/tabane/internal/gateway/sched"
)

// Constants returns the constants of the decisions in worlds of a kind.
func Constants(k worlds.Kind) []ablation.Constant {
	if k == worlds.EPE {
		return selection.Constants()
	}
	return slices.Concat(sched.Constants(), pathset.Constants(), pacer.Constants(), quality.Constants(), repair.Constants())
}

// Ablation is what another value of a constant changes in worlds.
type Ablation struct {
	// Name and Value are those of the constant; Variant says how it was changed, to Changed. The
	// first one of a list has none: it is what the others are compared with.
	Name, Value, Variant, Changed string
	// Misses is in how many worlds, of each measure, the goal was missed.
	Misses int
	// Better and Worse are in how many the measure changed by more than 5 %, 30 ms or 0.05 points.
	Better, Worse int
}

// Ablate simulates the worlds of o with half of each of the constants, twice as much, and without
// it, and compares them with the paths alone as they are, which are simulated once. Nothing else may
// be simulated meanwhile.
func Ablate(ctx context.Context, o WorldsOptions, of []ablation.Constant) ([]Ablation, error) {
	progress, done := o.Progress, 0
	var variants []ablation.Variant
	for _, c := range of {
		variants = append(variants, c.Variants()...)
	}
	begun := time.Now()
	step := func() ([]Judged, error) {
		o.Progress = nil
		judged, err := Worlds(ctx, o)
		if done++; progress != nil {
			elapsed := time.Since(begun)
			progress(done, len(variants)+1, elapsed, remaining(elapsed, done, len(variants)+1))
		}
		return judged, err
	}
	alone, decided := map[int][]result.Run{}, worlds.Judged(o.Draw.Kind)
	o.keep = func(number int, runs []result.Run) {
		alone[number] = slices.DeleteFunc(slices.Clone(runs), func(r result.Run) bool { return slices.Contains(decided, r.Transport) })
	}
	base, err := step()
	if err != nil {
		return nil, err
	}
	o.keep, o.known = nil, alone
	all := []Ablation{{Misses: misses(base)}}
	for _, v := range variants {
		a := Ablation{Name: v.Name, Value: v.Constant.Text(), Variant: v.Title, Changed: v.Text()}
		restore := v.Apply()
		judged, err := step()
		restore()
		if err != nil {
			return nil, err
		}
		a.Misses = misses(judged)
		for i := range judged {
			better, worse := changes(base[i], judged[i])
			a.Better, a.Worse = a.Better+better, a.Worse+worse
		}
		all = append(all, a)
	}
	return all, nil
}

// misses counts the goals that worlds miss.
func misses(judged []Judged) (n int) {
	for _, j := range judged {
		for _, m := range worlds.Measures(j.Kind) {
			if v, ok := j.Values[m.Name]; ok && m.Beyond(v) > 0 {
				n++
			}
		}
	}
	return n
}

// changes counts the measures of a world that became better or worse.
func changes(before, after Judged) (better, worse int) {
	for _, m := range worlds.Measures(before.Kind) {
		was, known := before.Values[m.Name]
		is, still := after.Values[m.Name]
		if !known || !still || math.IsNaN(m.Goal) {
			continue
		}
		switch by := m.Beyond(is) - m.Beyond(was); {
		case by > m.Noise():
			worse++
		case by < -m.Noise():
			better++
		}
	}
	return better, worse
}
