package scenario

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tabane/tabane/internal/result"
)

func TestVerdict(t *testing.T) {
	good := result.Run{}
	bad := result.Run{CellKey: result.CellKey{Case: "c", Traffic: "t", Transport: "x"}, Trial: 1, Notes: map[string]string{result.NoteError: "boom"}}
	if _, failed := verdict([]result.Run{good}); failed {
		t.Error("a good run fails")
	}
	v, failed := verdict([]result.Run{good, bad, bad})
	if want := "2 of 3 failed, first c t x trial 1: boom"; !failed || v.Holds || v.Got != want {
		t.Errorf("got %+v, want %q", v, want)
	}
}

func TestOrder(t *testing.T) {
	e := steady(t).Experiment
	var runs []result.Run
	for _, k := range e.Cells() {
		runs = append(runs, result.Run{CellKey: k}, result.Run{CellKey: k, Trial: 1})
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

func TestCellsAreInScenarioOrder(t *testing.T) {
	e := &Experiment{
		Cases:      []Case{{Name: "2"}, {Name: "1"}},
		Traffic:    map[string]*Traffic{"web": {}, "bi": {}},
		Transports: map[string]*Transport{"tcp": {}, "mptcp": {}, "a": {}},
		Baseline:   "tcp",
	}
	var got []string
	for _, k := range e.Cells() {
		got = append(got, k.String())
	}
	want := "2 bi tcp,2 bi a,2 bi mptcp,2 web tcp,2 web a,2 web mptcp,1 bi tcp,1 bi a,1 bi mptcp,1 web tcp,1 web a,1 web mptcp"
	if diff := cmp.Diff(want, strings.Join(got, ",")); diff != "" {
		t.Errorf("cells (-want +got):\n%s", diff)
	}
}
