package labrun

import (
	"testing"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// TestRunMeasuresResequencing checks the resequencing metrics over two paths of equal rate, one
// with 40 ms more delay.
func TestRunMeasuresResequencing(t *testing.T) {
	o := runOptions(t, "reseq")
	o.Spec, o.Resequencing = paths(), true
	e := o.Spec.Experiment
	e.Cases[0].Links = map[string]scenario.Shape{"c2": {Rate: 50e6, Delay: 40e6}}
	e.Transports["tcp"] = &scenario.Transport{Links: []string{"c1"}}
	e.Transports["mptcp"].Settings = scenario.Settings{Segment: 1000}
	outcome, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range outcome.Runs {
		m := r.Metrics
		if r.Err() != nil || r.Notes[NotePackets] != "" {
			t.Errorf("%s: %v, notes %v", r.CellKey, r.Err(), r.Notes)
		}
		if _, measured := m[result.ReseqDelayMax]; measured != (r.Transport == "mptcp") {
			t.Errorf("%s: %v", r.CellKey, m)
		}
		if r.Transport != "mptcp" {
			continue
		}
		after, goodput := m[result.ThroughputAfter], m[result.Goodput]/100e6
		// The goodput counts the time until the connection is there, on a busy machine a tenth of
		// the transfer.
		if after < 0.95*goodput || after > 1.3*goodput || m[result.ThroughputBefore] < after {
			t.Errorf("throughput %v before and %v after, goodput %v of the rates", m[result.ThroughputBefore], after, goodput)
		}
		// Data that arrived over the shorter path waited for earlier data on the longer
		// one.
		if m[result.ReseqDelayMax] < 0.01 || m[result.BurstMax] < 2 || m[result.BufferMax] < 1000 {
			t.Errorf("resequencing: %v", m)
		}
	}
}
