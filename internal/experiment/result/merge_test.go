package result

import (
	"errors"
	"reflect"
	"testing"
)

func TestMerge(t *testing.T) {
	one, two := CellKey{"a", "bulk", "tcp"}, CellKey{"b", "bulk", "tcp"}
	part := func(commit string, runs ...Run) Result {
		return Result{Scenario: "s", Backend: BackendLab, Seconds: 2, Host: Host{Kernel: "6.18", CPUs: 2, Commit: commit}, Runs: runs}
	}
	run := func(k CellKey, trial int, v float64) Run {
		return Run{k, trial, map[string]float64{Goodput: v}, map[string]string{NoteSeries: "series/x.csv", "kept": "yes"}}
	}
	first := part("c1", run(one, 0, 1), run(one, 1, 2))
	got, err := Merge([]Result{first, part("c1", run(one, 0, 3)), part("c2", run(two, 0, 4))})
	if err != nil {
		t.Fatal(err)
	}
	want := []Run{{one, 0, map[string]float64{Goodput: 1}, nil}, {one, 1, map[string]float64{Goodput: 2}, nil}, {one, 2, map[string]float64{Goodput: 3}, nil}, {two, 0, map[string]float64{Goodput: 4}, nil}}
	for i := range want {
		want[i].Notes = map[string]string{"kept": "yes"}
	}
	if !reflect.DeepEqual(got.Runs, want) || got.Host.Commit != "c1, c2" || got.Seconds != 6 || got.Scenario != "s" || got.Backend != BackendLab {
		t.Errorf("%+v", got)
	}
	got.Runs[0].Metrics[Goodput] = 7
	if first.Runs[0].Metrics[Goodput] != 1 || first.Runs[0].Notes[NoteSeries] == "" {
		t.Errorf("a part was changed: %+v", first.Runs[0])
	}

	for _, tt := range []struct {
		change func(*Result)
		want   error
	}{
		{func(r *Result) { r.Scenario = "other" }, ErrOtherScenario},
		{func(r *Result) { r.Backend = BackendSim }, ErrOtherScenario},
		{func(r *Result) { r.Host.Kernel = "6.1" }, ErrOtherHost},
		{func(r *Result) { r.Host.CPUs = 8 }, ErrOtherHost},
		{func(r *Result) { r.Runs = nil }, ErrNoRuns},
	} {
		other := part("c1", run(two, 0, 1))
		tt.change(&other)
		if _, err := Merge([]Result{first, other}); !errors.Is(err, tt.want) {
			t.Errorf("%v, want %v", err, tt.want)
		}
	}
}

func TestPublished(t *testing.T) {
	k := CellKey{"a", "bulk", "tcp"}
	r := Result{Runs: []Run{{CellKey: k}}, Summary: []Cell{{CellKey: k, Metric: Goodput}, {CellKey: k, Metric: LimitRate}}}
	if got := r.Published([]string{LimitRate}); len(got.Runs) != 0 || len(got.Summary) != 1 || got.Summary[0].Metric != LimitRate {
		t.Errorf("%+v", got)
	}
	if got := r.Published(nil); len(got.Runs) != 0 || len(got.Summary) != 2 || len(r.Runs) != 1 || len(r.Summary) != 2 {
		t.Errorf("%+v of %+v", got, r)
	}
}
