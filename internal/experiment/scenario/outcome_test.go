package scenario

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/experiment/result"
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

func TestCellOrder(t *testing.T) {
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

func TestNotJudged(t *testing.T) {
	s := steady(t)
	least := 1.0
	s.Experiment.Expect = append(s.Experiment.Expect, Expectation{Name: "timeouts", Metric: result.Timeouts, AtLeast: &least},
		Expectation{Name: "simulated", Backend: result.BackendSim, Metric: result.Goodput, AtLeast: &least})
	chosen, err := s.Select(Selection{Transports: []string{"mptcp-epe"}})
	if err != nil {
		t.Fatal(err)
	}
	var runs []result.Run
	for _, k := range chosen.Experiment.Cells() {
		runs = append(runs, result.Run{CellKey: k, Metrics: map[string]float64{result.Goodput: 1}})
	}
	r, err := chosen.Conclude(result.Result{Backend: result.BackendLab, Runs: runs})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, n := range r.NotJudged {
		got = append(got, n.Name+": "+n.Why)
	}
	want := []string{"MPTCP EPE never falls below TCP: it needs cells that were not run", "timeouts: lab does not measure timeouts", "simulated: it is for backend sim"}
	if !slices.Equal(got, want) || len(r.Expect) != 3 {
		t.Errorf("not judged %q, %d judged; want %q", got, len(r.Expect), want)
	}
	if r, err = chosen.Conclude(result.Result{Backend: result.BackendSim, Runs: runs}); err != nil || len(r.NotJudged) != 1 || len(r.Expect) != 5 {
		t.Errorf("sim: %+v, %v", r.NotJudged, err)
	}
	if len(s.Experiment.notRun) != 0 {
		t.Error("the scenario itself was changed")
	}
}
