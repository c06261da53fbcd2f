package result

import (
	"errors"
	"slices"

	"github.com/tabane/tabane/internal/base/stat"
)

// Change is how a metric changed from one result to another.
type Change string

// The changes. Higher and Lower are for metrics for which neither is better.
const (
	Better       Change = "better"
	Worse        Change = "worse"
	Higher       Change = "higher"
	Lower        Change = "lower"
	NoDifference Change = "no difference shown"
	TooFew       Change = "too few trials"
	// Untested is for the metrics of models: an estimate is no sample of a test.
	Untested Change = "of a model, not tested"
)

// significance is the significance level of the tests.
const significance = 0.05

// Difference is one metric of one cell in two results, A and B.
type Difference struct {
	CellKey
	Metric string
	// A and B are the metric over the trials of each result.
	A, B stat.Summary
	// Ratio is the ratio of the means, B to A, with its confidence interval. RatioKnown is
	// false if the mean of A is 0, IntervalKnown if the interval is not bounded or a result has
	// one trial.
	Ratio                     stat.Ratio
	RatioKnown, IntervalKnown bool
	Change                    Change
}

// Differences compares the cells that both results have, in the order of a: the given metrics, or
// all that can be better or worse if none is given. A difference is shown if the 95 % confidence
// interval of the ratio of the means (stat.RatioOfMeans) excludes 1 or, if there is no such
// interval, by Welch's test at 5 %. Each row is tested alone, so one of 20 rows without a
// difference is expected to show one. Failed runs are ignored, and metrics of models are not
// tested.
func Differences(a, b Result, names []string) []Difference {
	var list []Difference
	for _, k := range a.Cells() {
		for _, m := range metrics {
			if len(names) == 0 && m.Better == 0 || len(names) > 0 && !slices.Contains(names, m.Name) {
				continue
			}
			va, vb := a.Values(k, m.Name), b.Values(k, m.Name)
			if len(va) == 0 || len(vb) == 0 {
				continue
			}
			if d, err := differ(va, vb, m.Better); err == nil {
				if m.Model {
					d.Change, d.IntervalKnown, d.Ratio = Untested, false, stat.Ratio{Value: d.Ratio.Value}
				}
				d.CellKey, d.Metric = k, m.Name
				list = append(list, d)
			}
		}
	}
	return list
}

// Cells returns the cells that have runs, in the order of their first runs.
func (r Result) Cells() []CellKey {
	var list []CellKey
	seen := map[CellKey]bool{}
	for _, run := range r.Runs {
		if !seen[run.CellKey] {
			seen[run.CellKey] = true
			list = append(list, run.CellKey)
		}
	}
	return list
}

// differ compares the values of one metric. A value that is not finite is an error.
func differ(a, b []float64, better int) (d Difference, err error) {
	if d.A, err = stat.Summarize(a); err != nil {
		return d, err
	}
	if d.B, err = stat.Summarize(b); err != nil {
		return d, err
	}
	up := d.B.Mean > d.A.Mean
	shown := false
	switch d.Ratio, err = stat.RatioOfMeans(b, a); {
	case err == nil:
		d.RatioKnown, d.IntervalKnown = true, true
		shown = d.Ratio.Low > 1 || d.Ratio.High < 1
		if d.A.Mean < 0 {
			up = d.Ratio.Value < 1
		}
	case errors.Is(err, stat.ErrTooFew):
		d.Change = TooFew
	default:
		w, testErr := stat.WelchTest(a, b)
		shown = testErr == nil && w.P < significance || errors.Is(testErr, stat.ErrNoSpread) && d.A.Mean != d.B.Mean
	}
	if !d.RatioKnown && d.A.Mean != 0 {
		d.RatioKnown = true
		d.Ratio = stat.Ratio{Value: d.B.Mean / d.A.Mean}
	}
	switch {
	case d.Change == TooFew:
	case !shown:
		d.Change = NoDifference
	case better == 0 && up:
		d.Change = Higher
	case better == 0:
		d.Change = Lower
	case up == (better > 0):
		d.Change = Better
	default:
		d.Change = Worse
	}
	return d, nil
}
