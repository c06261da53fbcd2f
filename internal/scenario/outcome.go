package scenario

import (
	"fmt"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/traffic"
	"github.com/tabane/tabane/internal/unit"
)

// Lasts is how long a delivery lasts if something other than its last byte ends it: its duration, or the bound of a quick
// pass. 0 means that only the last byte ends it.
func (t *Traffic) Lasts(quick bool) time.Duration {
	if quick && t.Quick > 0 && (t.Duration == 0 || t.Quick < t.Duration) {
		return t.Quick
	}
	return t.Duration
}

// Through is how long the limits take to let so much through, if they are known.
func Through(bytes unit.Size, phases []Phase) (took time.Duration, known bool) {
	for i, p := range phases {
		if p.Links == 0 {
			return 0, false
		}
		rate := unit.Bandwidth(p.Links)
		need := rate.TimeFor(bytes)
		if i+1 == len(phases) || p.At+need <= phases[i+1].At {
			return p.At + need, true
		}
		bytes -= rate.SizeIn(phases[i+1].At - p.At)
	}
	return 0, false
}

// PutDelivery adds to a run's metrics what the receiver measured.
func PutDelivery(metrics map[string]float64, r traffic.Report) {
	metrics[Goodput] = r.GoodputBps
	metrics[Bytes] = float64(r.Bytes)
	metrics[FirstByte] = r.FirstByte.Seconds()
	metrics[Duration] = r.Duration.Seconds()
	metrics[EmptyIntervals] = float64(r.EmptyIntervals)
	metrics[LongestGap] = r.LongestGap.Seconds()
}

// Conclude completes a result that has its runs: it puts them in order, summarizes them, and says for each expectation whether
// it holds, and that runs failed where some did. Errors wrap stat.ErrNotFinite.
func (e *Experiment) Conclude(r Result) (Result, error) {
	r.Schema = Schema
	e.order(r.Runs)
	cells, err := Summarize(r.Runs)
	if err != nil {
		return Result{}, err
	}
	r.Summary, r.Expect = cells, Evaluate(e, cells, r.Runs)
	if v, failed := verdict(r.Runs); failed {
		r.Expect = append(r.Expect, v)
	}
	return r, nil
}

// order sorts runs as a result has them: the experiment's cells, the trials of each in order.
func (e *Experiment) order(runs []Run) {
	position := map[CellKey]int{}
	for i, k := range e.Cells() {
		position[k] = i
	}
	slices.SortFunc(runs, func(a, b Run) int {
		if d := position[a.CellKey] - position[b.CellKey]; d != 0 {
			return d
		}
		return a.Trial - b.Trial
	})
}

// verdict is what the result says when runs failed, whether or not an expectation asks for them.
func verdict(runs []Run) (Verdict, bool) {
	var failed []Run
	for _, r := range runs {
		if r.Err() != nil {
			failed = append(failed, r)
		}
	}
	if len(failed) == 0 {
		return Verdict{}, false
	}
	return Verdict{
		Name: "Every run delivers", Want: "no run fails",
		Got: fmt.Sprintf("%d of %d failed, first %s trial %d: %s", len(failed), len(runs), failed[0].CellKey, failed[0].Trial, failed[0].Err()),
	}, true
}
