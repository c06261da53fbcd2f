package scenario

import (
	"slices"
	"testing"
)

func TestVerdict(t *testing.T) {
	good := Run{}
	bad := Run{CellKey: CellKey{Case: "c", Traffic: "t", Transport: "x"}, Trial: 1, Notes: map[string]string{NoteError: "boom"}}
	if _, failed := verdict([]Run{good}); failed {
		t.Error("a good run fails")
	}
	v, failed := verdict([]Run{good, bad, bad})
	if want := "2 of 3 failed, first c t x trial 1: boom"; !failed || v.Holds || v.Got != want {
		t.Errorf("got %+v, want %q", v, want)
	}
}

func TestOrder(t *testing.T) {
	e := steady(t).Experiment
	var runs []Run
	for _, k := range e.Cells() {
		runs = append(runs, Run{CellKey: k}, Run{CellKey: k, Trial: 1})
	}
	mixed := slices.Clone(runs)
	slices.Reverse(mixed)
	e.order(mixed)
	for i := range runs {
		if runs[i].CellKey != mixed[i].CellKey || runs[i].Trial != mixed[i].Trial {
			t.Fatalf("run %d is %s %d, want %s %d", i, mixed[i].CellKey, mixed[i].Trial, runs[i].CellKey, runs[i].Trial)
		}
	}
}
