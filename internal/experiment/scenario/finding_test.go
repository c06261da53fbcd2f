package scenario

import (
	"math"
	"slices"
	"testing"

	"github.com/tabane/tabane/internal/experiment/result"
)

// TestFindings: published differences are tested in pairs of trials, and corrected for their
// number.
func TestFindings(t *testing.T) {
	one := 1.0
	e := &Experiment{
		Cases: []Case{{Name: "a"}, {Name: "b"}}, Traffic: map[string]*Traffic{"bi": {}}, Transports: map[string]*Transport{"x": {}, "y": {}},
		Expect: []Expectation{
			{Name: "x below y", Source: "Paper Z, Fig. 1", Metric: result.Goodput, Case: "a", Transport: "x", Relative: "transport:y", AtMost: &one},
			{Name: "x above y", Source: "Paper Z, Fig. 1", Metric: result.Goodput, Case: "a", Transport: "x", Relative: "transport:y", AtLeast: &one},
			{Name: "x below y in b", Source: "Paper Z, Fig. 2", Metric: result.Goodput, Case: "b", Transport: "x", Relative: "transport:y", AtMost: &one},
			{Name: "no gaps", Source: "Paper Z, Fig. 3", Metric: result.LongestGap, Case: "a", Transport: "x", Relative: "transport:y", AtMost: &one},
			{Name: "delivers", Metric: result.Goodput, AtLeast: &one},
		},
	}
	var runs []result.Run
	// In case a, y has twice as much as x in each trial, however much these differ. In b the order
	// changes.
	for trial := range 12 {
		level := math.Exp(float64(trial % 5))
		for name, factor := range map[result.CellKey]float64{
			{Case: "a", Traffic: "bi", Transport: "x"}: 1 + 0.01*float64(trial%3), {Case: "a", Traffic: "bi", Transport: "y"}: 2,
			{Case: "b", Traffic: "bi", Transport: "x"}: 1 + 0.5*float64(trial%2), {Case: "b", Traffic: "bi", Transport: "y"}: 1.25,
		} {
			runs = append(runs, result.Run{CellKey: name, Trial: trial, Metrics: map[string]float64{result.Goodput: level * factor, result.LongestGap: 0}})
		}
	}
	r, err := (&Spec{Experiment: e}).Conclude(result.Result{Runs: runs})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Expect) != 1 || r.Expect[0].Name != "delivers" || !r.Holds() {
		t.Errorf("published differences are verdicts: %+v", r.Expect)
	}
	want := []struct {
		pairs   int
		outcome result.Outcome
	}{{12, result.OutcomeReproduced}, {12, result.OutcomeContrary}, {12, result.OutcomeNotSignificant}, {0, result.OutcomeZero}}
	if len(r.Findings) != len(want) {
		t.Fatalf("%d findings: %+v", len(r.Findings), r.Findings)
	}
	for i, f := range r.Findings {
		if f.Pairs != want[i].pairs || f.Outcome != want[i].outcome {
			t.Errorf("%s: %+v, want %+v", f.Name, f, want[i])
		}
	}
	f := r.Findings[0]
	if math.Abs(f.Ratio-0.505) > 0.001 || !(f.Low < f.Ratio && f.Ratio < f.High) || f.Corrected != math.Min(1, 4*f.P) || f.Wilcoxon != math.Pow(2, -11) || f.WilcoxonCorrected != 4*f.Wilcoxon || f.Want != "< 1" {
		t.Errorf("first: %+v", f)
	}

	// A cell that no run is of is not among them.
	part, err := (&Spec{Experiment: e}).Conclude(result.Result{Runs: slices.DeleteFunc(slices.Clone(r.Runs), func(r result.Run) bool { return r.Case == "b" })})
	if err != nil {
		t.Fatal(err)
	}
	if len(part.Findings) != 3 || part.Findings[0].Corrected >= f.Corrected {
		t.Errorf("of a part: %+v", part.Findings)
	}

	// A failed run leaves its pair out, and two pairs are too few.
	for i := range runs {
		if runs[i].Trial >= 3 || runs[i].Trial == 0 && runs[i].Transport == "y" {
			runs[i].Notes = map[string]string{result.NoteError: "reset"}
		}
	}
	if r, err = (&Spec{Experiment: e}).Conclude(result.Result{Runs: runs}); err != nil {
		t.Fatal(err)
	}
	if f := r.Findings[0]; f.Pairs != 2 || f.Outcome != result.OutcomeTooFew || f.Corrected != 1 || f.Ratio != 0 {
		t.Errorf("of two pairs: %+v", f)
	}
}
