package scenario

import (
	"math"

	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/study/qoe"
)

// leastPairs is the number of trials from which a finding is tested.
const leastPairs = 3

// published reports whether the expectation is a published difference, which is tested.
func (x Expectation) published() bool { return x.Source != "" }

// bound returns the bound of a published difference, and whether the ratio is published to be below
// it.
func (x Expectation) bound() (at float64, below bool) {
	if x.AtMost != nil {
		return *x.AtMost, true
	}
	return *x.AtLeast, false
}

// findings tests published differences in the runs. The trials of two cells with the same number
// are pairs: they have the same seeds and tasks. Cells that no run is of, as in parts of an
// experiment, have no findings. Errors wrap stat.ErrNotFinite.
func findings(expect []Expectation, keys []result.CellKey, runs []result.Run) ([]result.Finding, error) {
	values, ran := map[result.CellKey]map[int]result.Run{}, map[result.CellKey]bool{}
	for _, r := range runs {
		ran[r.CellKey] = true
		if r.Err() != nil {
			continue
		}
		if values[r.CellKey] == nil {
			values[r.CellKey] = map[int]result.Run{}
		}
		values[r.CellKey][r.Trial] = r
	}
	var all []result.Finding
	var family [][]float64
	var of []Expectation
	for _, x := range expect {
		at, under := x.bound()
		for _, k := range keys {
			other := x.against(k)
			if !x.selects(k) || other == k || !ran[k] || !ran[other] {
				continue
			}
			f := result.Finding{Name: x.Name, Source: x.Source, Metric: x.Metric, CellKey: k, Relative: x.Relative, Want: "> " + plain(at), Outcome: result.OutcomeTooFew}
			if under {
				f.Want = "< " + plain(at)
			}
			var logs []float64
			for trial := range len(runs) {
				a, own := values[k][trial].Metrics[x.Metric]
				b, theirs := values[other][trial].Metrics[x.Metric]
				if !own || !theirs {
					continue
				}
				if a <= 0 || b <= 0 {
					f.Outcome, logs = result.OutcomeZero, nil
					break
				}
				logs = append(logs, math.Log(a/b)-math.Log(at))
			}
			if f.Pairs = len(logs); f.Pairs < leastPairs {
				logs = nil
			}
			all, family, of = append(all, f), append(family, logs), append(of, x)
		}
	}
	compared, err := stat.ComparePaired(family, qoe.Significance)
	if err != nil {
		return nil, err
	}
	for i, c := range compared {
		f := &all[i]
		if f.P, f.Corrected = 1, 1; len(family[i]) == 0 {
			continue
		}
		s, err := stat.Summarize(family[i])
		if err != nil {
			return nil, err
		}
		at, under := of[i].bound()
		f.Ratio, f.Low, f.High = at*math.Exp(s.Mean), at*math.Exp(s.Mean-s.CI95), at*math.Exp(s.Mean+s.CI95)
		if c.Student.DF > 0 {
			f.P, f.Corrected = c.Student.P, c.StudentCorrected
		}
		if c.Judged {
			f.Wilcoxon, f.WilcoxonCorrected = c.P, c.Corrected
		}
		switch {
		case f.Corrected > qoe.Significance:
			f.Outcome = result.OutcomeNotSignificant
		case (s.Mean < 0) == under:
			f.Outcome = result.OutcomeReproduced
		default:
			f.Outcome = result.OutcomeContrary
		}
	}
	return all, nil
}
