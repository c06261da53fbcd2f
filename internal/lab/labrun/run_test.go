package labrun

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/lab/labtest"
)

// runOptions returns the options of a run in labs for this test.
func runOptions(t *testing.T, name string) RunOptions {
	t.Helper()
	labtest.NeedMPTCP(t)
	labtest.NeedRoot(t)
	return RunOptions{
		Name: labtest.Prefix() + name, Spec: labtest.Experiment(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

func TestRun(t *testing.T) {
	o := runOptions(t, "run")
	var events []Event
	o.Progress = func(e Event) { events = append(events, e) }
	o.Commit = "abc"
	o.Parallel = 3 // more than there are cases
	outcome, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if !outcome.Holds() || outcome.Scenario != "plain" || outcome.Backend != "lab" || outcome.Host.Commit != "abc" || outcome.Host.CPUs == 0 || outcome.Host.Kernel == "" || outcome.Seconds <= 0 {
		t.Errorf("result %+v", outcome)
	}
	var want, got []string
	for _, k := range o.Spec.Experiment.Cells() {
		want = append(want, fmt.Sprint(k, 0), fmt.Sprint(k, 1))
	}
	for _, r := range outcome.Runs {
		got = append(got, fmt.Sprint(r.CellKey, r.Trial))
		if r.Err() != nil {
			t.Errorf("%s: %v", r.CellKey, r.Err())
		}
		for _, metric := range []string{result.Goodput, result.LimitRate, result.FirstByte, result.Duration, result.Bytes} {
			if r.Metrics[metric] <= 0 {
				t.Errorf("%s: %s is %v", r.CellKey, metric, r.Metrics[metric])
			}
		}
		bytes := map[string]float64{"bulk": 300_000, "cbr": 75_000}[r.Traffic]
		if r.Metrics[result.Bytes] != bytes {
			t.Errorf("%s: %v bytes, want %v", r.CellKey, r.Metrics[result.Bytes], bytes)
		}
		// The link has the rate of the case, which limits the goodput.
		if r.Traffic == "bulk" && r.Case == "slow" && r.Metrics[result.Goodput] > 20e6 {
			t.Errorf("%s: %v bit/s through 10 Mbit/s and a bucket of 32 KiB", r.CellKey, r.Metrics[result.Goodput])
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("runs %q, want %q", got, want)
	}

	count := map[EventKind]int{}
	labs := map[string]bool{}
	for _, e := range events {
		count[e.Kind]++
		if e.Lab != "" {
			labs[e.Lab] = true
		}
		if e.Total != len(want) || e.ETA < 0 || e.Elapsed <= 0 || e.Kind == RunDone && (e.Run == nil || e.Run.CellKey != e.CellKey) {
			t.Errorf("event %+v", e)
		}
		if e.Kind != RunDone {
			continue
		}
		sum := 0.0
		for _, s := range e.Trace.Samples {
			sum += float64(s.Bytes)
		}
		if e.Trace.CellKey != e.CellKey || e.Trace.Trial != e.Trial || e.Trace.Interval != interval || sum != e.Run.Metrics[result.Bytes] {
			t.Errorf("trace %+v of run %+v", e.Trace, e.Run)
		}
	}
	if count[LabStarting] != 3 || count[LabReady] != 3 || count[RunStarted] != 16 || count[RunDone] != 16 || count[RunSample] == 0 || count[LabsRemoving] != 1 {
		t.Errorf("events %v", count)
	}
	if last := events[len(events)-1]; last.Kind != LabsRemoving || last.Done != 16 || last.ETA != 0 {
		t.Errorf("last event %+v", last)
	}
	if !labs[o.Name+".1"] || !labs[o.Name+".2"] || !labs[o.Name+".3"] || len(labs) != 3 {
		t.Errorf("labs %v", labs)
	}
	for l := range labs {
		labtest.NothingLeft(t, l)
	}
}

func TestRunQuickInOneLab(t *testing.T) {
	o := runOptions(t, "quick")
	o.Quick, o.Parallel = true, 1
	o.Spec.Experiment.Traffic["bulk"].Bytes = 100_000_000 // far more than it has time for
	outcome, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(outcome.Runs) != 8 || !outcome.Holds() {
		t.Errorf("result %+v", outcome)
	}
	for _, r := range outcome.Runs {
		if got := r.Metrics[result.Duration]; got >= 0.3 {
			t.Errorf("%s: lasted %v s, as without --quick", r.CellKey, got)
		}
	}
	labtest.NothingLeft(t, o.Name)
}

func TestRunKeep(t *testing.T) {
	o := runOptions(t, "keep")
	o.Quick, o.Parallel, o.Keep = true, 1, true
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	l, err := lab.Open(o.Name)
	if err != nil {
		t.Fatal(err)
	}
	labtest.Run(t, l, "a", "true")
	if err := l.Down(t.Context()); err != nil {
		t.Error(err)
	}
	labtest.NothingLeft(t, o.Name)
}

// A failed run is recorded, the others count, and the result does not hold although all
// expectations do.
func TestRunFails(t *testing.T) {
	for how, want := range map[string]string{
		"fail":    "the client failed (exit status 2): the fake fetch fails",
		"garbage": "the client's output is not understood",
	} {
		t.Run(how, func(t *testing.T) {
			t.Setenv(fakeFetch, how)
			o := runOptions(t, "fails")
			o.Quick = true
			o.Spec.Experiment.Expect = nil
			outcome, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range outcome.Runs {
				if fails := how == "garbage" || r.Transport == "mptcp"; (r.Err() != nil) != fails {
					t.Errorf("%s: %v", r.CellKey, r.Err())
				} else if fails && !strings.Contains(r.Err().Error(), want) {
					t.Errorf("%s: %v, want %q", r.CellKey, r.Err(), want)
				}
			}
			if outcome.Holds() || len(outcome.Expect) != 1 || !strings.Contains(outcome.Expect[0].Got, "of 8 failed, first slow") {
				t.Errorf("verdicts %+v", outcome.Expect)
			}
		})
	}
}

// When a daemon exits, the remaining runs of its lab fail without a timeout.
func TestRunWithoutServer(t *testing.T) {
	o := runOptions(t, "dead")
	o.Quick, o.Parallel = true, 1
	killed := false
	o.Progress = func(e Event) {
		if e.Kind != RunStarted || killed {
			return
		}
		killed = true
		recorded, err := lab.Processes(o.Name)
		if err != nil || len(recorded) != 1 {
			t.Errorf("recorded %+v, %v", recorded, err)
			return
		}
		if err := syscall.Kill(recorded[0].PID, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		for err == nil && recorded[0].Running {
			recorded, err = lab.Processes(o.Name)
		}
	}
	outcome, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if outcome.Holds() || len(outcome.Runs) != 8 {
		t.Errorf("result %+v", outcome)
	}
	for _, r := range outcome.Runs {
		if r.Err() == nil || !strings.Contains(r.Err().Error(), "b (serve) ended: signal: killed") {
			t.Errorf("%s: %v", r.CellKey, r.Err())
		}
	}
	labtest.NothingLeft(t, o.Name)
}

func TestRunCancel(t *testing.T) {
	t.Setenv(fakeFetch, "hang")
	for _, kind := range []EventKind{LabStarting, LabReady, RunStarted} {
		o := runOptions(t, "cancel")
		ctx, cancel := context.WithCancel(t.Context())
		o.Progress = func(e Event) {
			if e.Kind == kind {
				cancel()
			}
		}
		if _, err := Run(ctx, o); !errors.Is(err, context.Canceled) {
			t.Errorf("cancel at %s: got %v", kind, err)
		}
		for _, l := range []string{".1", ".2"} {
			labtest.NothingLeft(t, o.Name+l)
		}
	}
}

// TestRunEndsEarly: the runs that were done before a run is interrupted are kept, and the first is
// saved at once, as the process may be killed.
func TestRunEndsEarly(t *testing.T) {
	o := runOptions(t, "early")
	ctx, cancel := context.WithCancel(t.Context())
	done := 0
	o.Progress = func(e Event) {
		if e.Kind == RunDone {
			if done++; done == 3 {
				cancel()
			}
		}
	}
	var saved []result.Result
	o.Save = func(r result.Result) { saved = append(saved, r) }
	outcome, err := Run(ctx, o)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	// Another lab may have ended a run at the same time.
	if len(saved) != 1 || len(saved[0].Runs) < 1 || len(saved[0].Runs) > 2 || saved[0].Planned != 16 || !saved[0].Holds() {
		t.Errorf("saved are %+v", saved)
	}
	if len(outcome.Runs) != done || outcome.Planned != 16 || outcome.Schema != result.Schema {
		t.Errorf("%d runs of %d, after %d events", len(outcome.Runs), outcome.Planned, done)
	}
	for _, r := range outcome.Runs {
		if r.Err() != nil || r.Metrics[result.Goodput] == 0 {
			t.Errorf("%s: %v, %v", r.CellKey, r.Err(), r.Metrics)
		}
	}
	if !outcome.Holds() {
		t.Errorf("expectations on cells that were not run are judged: %+v", outcome.Expect)
	}
	for _, l := range []string{".1", ".2"} {
		labtest.NothingLeft(t, o.Name+l)
	}
}

func TestRunPanic(t *testing.T) {
	o := runOptions(t, "panic")
	o.Progress = func(e Event) {
		if e.Kind == RunStarted {
			panic("fake panic")
		}
	}
	func() {
		defer func() {
			if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), "fake panic") {
				t.Errorf("got %v", p)
			}
		}()
		_, err := Run(t.Context(), o)
		t.Errorf("no panic, but %v", err)
	}()
	for _, l := range []string{".1", ".2"} {
		labtest.NothingLeft(t, o.Name+l)
	}
}

func TestRunRefuses(t *testing.T) {
	for want, change := range map[string]func(*RunOptions){
		"no scenario given":     func(o *RunOptions) { o.Spec = nil },
		"has no experiment":     func(o *RunOptions) { o.Spec = labtest.Plain() },
		"trials must be >= 0":   func(o *RunOptions) { o.Trials = -1 },
		"parallel must be >= 0": func(o *RunOptions) { o.Parallel = -1 },
		"check scenario":        func(o *RunOptions) { o.Spec.Name = "" },
		"serves nothing":        func(o *RunOptions) { o.Spec.Nodes["b"].Serve = nil },
	} {
		o := RunOptions{Spec: labtest.Experiment()}
		change(&o)
		if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestRunFollowsTheSchedule: each run starts with the link's initial shape.
func TestRunFollowsTheSchedule(t *testing.T) {
	o := runOptions(t, "sched")
	e := o.Spec.Experiment
	e.Cases, e.Trials, e.Traffic = e.Cases[1:], 2, map[string]*scenario.Traffic{"cbr": {Rate: 8e6, Duration: 1500 * time.Millisecond, Quick: time.Second}}
	delete(e.Transports, "mptcp")
	slow := 2 * unit.MbitPerSecond
	o.Spec.Links["wire"].Schedule = linkmodel.Schedule{{At: time.Second, Change: linkmodel.Change{Rate: &slow}}}
	outcome, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range outcome.Runs {
		before, after := r.Metrics[result.GoodputBefore], r.Metrics[result.GoodputAfter]
		if r.Err() != nil || after <= 0 || after > 4e6 {
			t.Errorf("trial %d: %.0f bit/s after the step to 2 Mbit/s, %v", r.Trial, after, r.Err())
		}
		if first := r.Metrics[result.FirstByte]; first > 0.5 {
			t.Errorf("trial %d: before the step %.0f bit/s, first byte after %.2f s", r.Trial, before, first)
		}
	}
	if len(outcome.Runs) != 2 {
		t.Errorf("runs %+v", outcome.Runs)
	}
}
