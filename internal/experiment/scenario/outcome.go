package scenario

import (
	"fmt"
	"slices"

	"github.com/tabane/tabane/internal/experiment/result"
)

// Conclude completes a result that has its runs: it sorts, relates and summarizes them, evaluates
// the expectations, tests published differences, and adds a verdict if runs failed. Errors wrap
// stat.ErrNotFinite.
func (s *Spec) Conclude(r result.Result) (result.Result, error) {
	e := s.Experiment
	r.Schema = result.Schema
	e.order(r.Runs)
	if err := s.relate(r.Runs); err != nil {
		return result.Result{}, err
	}
	cells, err := result.Summarize(r.Runs)
	if err != nil {
		return result.Result{}, err
	}
	judged := *e
	judged.Expect, r.NotJudged = e.judged(r, cells)
	tested := slices.Clone(judged.Expect)
	tested = slices.DeleteFunc(tested, func(x Expectation) bool { return !x.published() })
	judged.Expect = slices.DeleteFunc(judged.Expect, Expectation.published)
	if r.Findings, err = findings(tested, e.Cells(), r.Runs); err != nil {
		return result.Result{}, err
	}
	r.Summary, r.Expect = cells, Evaluate(&judged, cells, r.Runs)
	if v, failed := verdict(r.Runs); failed {
		r.Expect = append(r.Expect, v)
	}
	return r, nil
}

// judged returns the expectations that a result can be checked against, and the others with the
// reason. cells summarize its runs.
func (e *Experiment) judged(r result.Result, cells []result.Cell) (expect []Expectation, not []result.NotJudged) {
	const notRun = "it needs cells that were not run"
	for _, x := range e.notRun {
		not = append(not, result.NotJudged{Name: x.Name, Want: x.want(), Why: notRun})
	}
	backend, keys, ran := r.Backend, e.Cells(), map[result.CellKey]bool{}
	for _, run := range r.Runs {
		ran[run.CellKey] = true
	}
	for _, x := range e.Expect {
		lacks := ""
		for _, name := range []string{x.Metric, x.Relative} {
			if m, ok := result.MetricNamed(name); ok && backend != "" && !m.Measures(backend) {
				lacks = name
			}
		}
		switch {
		case backend != "" && x.Backend != "" && x.Backend != backend:
			not = append(not, result.NotJudged{Name: x.Name, Want: x.want(), Why: "it is for backend " + x.Backend})
		case !x.published() && slices.ContainsFunc(keys, func(k result.CellKey) bool { return x.needs(k) && (!ran[k] || !ran[x.against(k)]) }):
			not = append(not, result.NotJudged{Name: x.Name, Want: x.want(), Why: notRun})
		case lacks == "" && x.unsettled(cells) != "":
			not = append(not, result.NotJudged{Name: x.Name, Want: x.want(), Why: x.unsettled(cells)})
		case lacks == "":
			expect = append(expect, x)
		default:
			not = append(not, result.NotJudged{Name: x.Name, Want: x.want(), Why: backend + " does not measure " + lacks})
		}
	}
	return expect, not
}

// order sorts runs by cell, in the order of Cells, then by trial.
func (e *Experiment) order(runs []result.Run) {
	position := map[result.CellKey]int{}
	for i, k := range e.Cells() {
		position[k] = i
	}
	slices.SortFunc(runs, func(a, b result.Run) int {
		if d := position[a.CellKey] - position[b.CellKey]; d != 0 {
			return d
		}
		return a.Trial - b.Trial
	})
}

// verdict returns a verdict that does not hold if runs failed, whether or not an expectation covers
// them.
func verdict(runs []result.Run) (result.Verdict, bool) {
	var failed []result.Run
	for _, r := range runs {
		if r.Err() != nil {
			failed = append(failed, r)
		}
	}
	if len(failed) == 0 {
		return result.Verdict{}, false
	}
	return result.Verdict{
		Name: "Every run delivers", Want: "no run fails",
		Got: fmt.Sprintf("%d of %d failed, first %s trial %d: %s", len(failed), len(runs), failed[0].CellKey, failed[0].Trial, failed[0].Err()),
	}, true
}
