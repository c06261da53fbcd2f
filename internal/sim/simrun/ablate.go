package simrun

import (
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/ablation"
	"github.com/tabane/tabane/internal/base/stat"
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

// Ablation is what another value of a constant changes in worlds, or other random numbers do.
type Ablation struct {
	// Name and Value are those of the constant, and Changed is its other value, or Removed. The
	// first two of a list have no Name: all constants as they are, which the others are compared
	// with, and the same with other random numbers, which is what chance does.
	Name, Value, Changed string
	// Misses is in how many worlds, of each measure, the goal was missed.
	Misses int
	// Better and Worse are in how many the measure changed by more than 5 %, 30 ms or 0.05 points.
	Better, Worse int
	// Gain is by how much measures became better, as worlds.Measure.Beyond compares them: the mean
	// of the worlds, of each the mean of its measures. Within is half of its 95 % interval.
	Gain, Within float64
	// Low is the 5 % of the first measure of the worlds that has a goal.
	Low string
}

// What Ablation.Changed has besides other values.
const (
	Removed      = "removed"
	OtherNumbers = "other random numbers"
)

// Ablate simulates the worlds of o with half of each of the constants, twice as much, and without
// it, and compares them with the paths alone as they are, which are simulated once. Nothing else may
// be simulated meanwhile.
//
// A world in which the removal of a constant changes nothing is not simulated with values in
// between, which cannot either.
func Ablate(ctx context.Context, o WorldsOptions, of []ablation.Constant) ([]Ablation, error) {
	a := ablating{ctx: ctx, o: o, decided: worlds.Judged(o.Draw.Kind), total: 2, begun: time.Now()}
	for _, c := range of {
		a.total += len(c.Variants())
	}
	a.o.Progress = nil
	base, asTheyAre, err := a.simulate(o.Progress)
	if err != nil {
		return nil, err
	}
	a.o.alone = map[int][]result.Run{}
	for number, runs := range asTheyAre {
		a.o.alone[number] = slices.DeleteFunc(slices.Clone(runs), a.decides)
	}
	a.o.otherNumbers = true
	chance, _, err := a.simulate(o.Progress)
	a.o.otherNumbers = false
	if err != nil {
		return nil, err
	}
	list := []Ablation{{}, {Changed: OtherNumbers}}
	for i, judged := range [][]Judged{base, chance} {
		if err := list[i].compare(base, judged); err != nil {
			return nil, err
		}
	}
	for _, c := range of {
		variants := c.Variants()
		rows := make([]Ablation, len(variants))
		without, same := variants[len(variants)-1], map[int][]result.Run{}
		for i, v := range slices.Backward(variants) {
			row := &rows[i]
			*row = Ablation{Name: v.Name, Value: v.Constant.Text(), Changed: v.Text()}
			if a.o.done = nil; i < len(variants)-1 && v.Within(without) {
				a.o.done = same
			}
			restore := v.Apply()
			judged, runs, err := a.simulate(o.Progress)
			restore()
			if err == nil {
				err = row.compare(base, judged)
			}
			if err != nil {
				return nil, err
			}
			if i < len(variants)-1 {
				continue
			}
			row.Changed = Removed
			for number, before := range asTheyAre {
				if a.same(before, runs[number]) {
					same[number] = before
				}
			}
		}
		list = append(list, rows...)
	}
	return list, nil
}

// ablating is what Ablate simulates worlds with.
type ablating struct {
	ctx context.Context
	o   WorldsOptions
	// decided are the transports that constants change.
	decided     []string
	done, total int
	begun       time.Time
}

// simulate simulates the worlds, and returns what they are judged to be and the runs of each.
func (a *ablating) simulate(progress func(done, total int, elapsed, eta time.Duration)) ([]Judged, map[int][]result.Run, error) {
	all := map[int][]result.Run{}
	a.o.keep = func(number int, runs []result.Run) { all[number] = runs }
	judged, err := Worlds(a.ctx, a.o)
	if a.done++; progress != nil {
		elapsed := time.Since(a.begun)
		progress(a.done, a.total, elapsed, remaining(elapsed, a.done, a.total))
	}
	return judged, all, err
}

// decides reports whether a run is of a transport that constants change.
func (a *ablating) decides(r result.Run) bool { return slices.Contains(a.decided, r.Transport) }

// same reports whether all that was measured in runs that constants change is the same.
func (a *ablating) same(before, after []result.Run) bool {
	others := func(r result.Run) bool { return !a.decides(r) }
	return slices.EqualFunc(slices.DeleteFunc(slices.Clone(before), others), slices.DeleteFunc(slices.Clone(after), others), func(x, y result.Run) bool {
		return x.CellKey == y.CellKey && x.Trial == y.Trial && maps.Equal(x.Metrics, y.Metrics) && maps.Equal(x.Notes, y.Notes)
	})
}

// compare completes an ablation with what changes from the worlds before to those after.
func (a *Ablation) compare(before, after []Judged) error {
	a.Misses = misses(after)
	var gains []float64
	for i := range after {
		better, worse, gain, any := changes(before[i], after[i])
		if a.Better, a.Worse = a.Better+better, a.Worse+worse; any {
			gains = append(gains, gain)
		}
	}
	if len(gains) == 0 {
		return nil // no world has this traffic
	}
	mean, err := stat.Summarize(gains)
	if err != nil {
		return err
	}
	a.Gain, a.Within = mean.Mean, mean.CI95
	list, err := worlds.Distribute(after[0].Kind, Values(after))
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(list, func(d worlds.Distribution) bool { return !math.IsNaN(d.Goal) }); i >= 0 {
		a.Low = list[i].Text(list[i].P5)
	}
	return nil
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

// mostChange bounds what one measure of a world counts, to a factor of two: one transfer that fails
// would hide what happens in all other worlds.
const mostChange = math.Ln2

// changes counts the measures of a world that became better or worse, and returns by how much they
// became better in the mean; false if there are none.
func changes(before, after Judged) (better, worse int, gain float64, any bool) {
	n := 0
	for _, m := range worlds.Measures(before.Kind) {
		was, known := before.Values[m.Name]
		is, still := after.Values[m.Name]
		if !known || !still || math.IsNaN(m.Goal) {
			continue
		}
		n++
		if is == was {
			continue
		}
		by := min(max(m.Beyond(is)-m.Beyond(was), -mostChange), mostChange)
		gain -= by
		switch {
		case by > m.Noise():
			worse++
		case by < -m.Noise():
			better++
		}
	}
	return better, worse, gain / float64(max(n, 1)), n > 0
}
