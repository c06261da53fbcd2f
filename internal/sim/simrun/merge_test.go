package simrun

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/experiment/result"
)

// grid returns a grid of three delays, two schedulers and two seeds.
func grid(t *testing.T) Grid {
	s := short(t, "reseq-delay")
	return Grid{Spec: s, Case: "d50", Transport: "mptcp", Axes: axes(t, s, "path2.delay=20ms,50ms,100ms", "scheduler=default,lowest-rtt"), Seeds: 2, Seed: 1, Version: "v"}
}

func sweepTo(t *testing.T, g Grid, file string) {
	t.Helper()
	if _, err := Sweep(context.Background(), SweepOptions{Grid: g, File: file}); err != nil {
		t.Fatal(err)
	}
}

// TestMerge checks that merging five shards gives the file that a sweep without shards writes.
func TestMerge(t *testing.T) {
	dir := t.TempDir()
	name := func(s string) string { return filepath.Join(dir, s) }
	sweepTo(t, grid(t), name("whole.csv"))
	var shards []string
	for i := range 5 {
		g := grid(t)
		g.Shard, g.Shards = i, 5
		shards = append(shards, name(fmt.Sprintf("%d.csv", i)))
		sweepTo(t, g, shards[i])
	}
	slices.Reverse(shards)
	rows, err := Merge(name("merged.csv"), shards)
	if err != nil || rows != 12 {
		t.Fatalf("%d rows: %v", rows, err)
	}
	merged, whole := read(t, name("merged.csv")), read(t, name("whole.csv"))
	if !bytes.Equal(merged, whole) {
		t.Errorf("merged:\n%s\nwhole:\n%s", merged, whole)
	}

	write := func(file, text string) string {
		if err := os.WriteFile(name(file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name(file)
	}
	one := string(read(t, shards[0]))
	lines := strings.SplitAfter(one, "\n")
	for want, files := range map[string][]string{
		"shard 0 of 5 is missing": shards[:4],
		"are both shard 4":        {shards[0], write("twice", one)},
		"is not done":             append([]string{write("undone", lines[0]+lines[1])}, shards[1:]...),
		"is cut off":              {write("cut", one[:len(one)-3])},
		"was not written by a sweep with --shard": {name("whole.csv")},
		"has no rows":                         {write("empty", lines[0])},
		"is one of 7 shards, others are of 5": {shards[0], write("seven", strings.ReplaceAll(one, "4/5", "4/7"))},
		`has a row of shard "5/5"`:            {write("outside", strings.ReplaceAll(one, "4/5", "5/5"))},
		`has rows of shards "4/5" and "3/5"`:  {write("mixed", lines[0]+lines[1]+strings.Replace(lines[2], "4/5", "3/5", 1))},
		"has other columns than the rest":     {shards[0], write("columns", strings.Replace(one, "path2.delay", "path1.delay", 1))},
	} {
		if _, err := Merge(name("bad.csv"), files); !errors.Is(err, ErrShards) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := Merge(name("merged.csv"), shards); !errors.Is(err, os.ErrExist) {
		t.Errorf("a file that exists: %v", err)
	}
}

// TestGridExperiment checks that the rows become the runs of an experiment with figures.
func TestGridExperiment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "grid.csv")
	g := grid(t)
	sweepTo(t, g, file)
	spec, r, err := g.Experiment(file, result.Host{})
	if err != nil {
		t.Fatal(err)
	}
	e := spec.Experiment
	if len(r.Runs) != 12 || len(e.Cases) != 3 || len(e.Transports) != 2 || len(e.Figures) != len(sweepFigures) || e.Figures[0].XLabel != "path2.delay" {
		t.Fatalf("%d runs, %d cases, %d transports, figures %+v", len(r.Runs), len(e.Cases), len(e.Transports), e.Figures)
	}
	c, ok := r.Find(result.CellKey{Case: "path2.delay=100ms", Traffic: "bulk", Transport: "mptcp scheduler=lowest-rtt"}, result.Goodput)
	if !ok || c.N != 2 || c.Mean < 3e6 || c.Mean > 7e6 || e.Cases[2].Parameters[xParameter] != (100*time.Millisecond).Seconds() {
		t.Errorf("cell %+v, %v, cases %+v", c, ok, e.Cases)
	}
	g.Seeds = 3
	if _, _, err := g.Experiment(file, result.Host{}); err == nil || !strings.Contains(err.Error(), "has not all rows of the grid") {
		t.Errorf("rows that are not there: %v", err)
	}
}

// TestSweepOfACaseWithoutEvents sweeps a case without events in a scenario in which another case
// has events and the traffic sets their time.
func TestSweepOfACaseWithoutEvents(t *testing.T) {
	s := builtIn(t, "epe-failure")
	quiet := s.Experiment.Cases[0]
	quiet.Name, quiet.Events, quiet.Remaining = "quiet", nil, nil
	s.Experiment.Cases = append(s.Experiment.Cases[:1:1], quiet)
	g := Grid{Spec: s, Case: "quiet", Traffic: "cbr", Transport: "mptcp-epe", Axes: axes(t, s, "duration=1s"), Seeds: 1, Seed: 1}
	if tasks, err := g.tasks(); err != nil || len(tasks) != 1 {
		t.Errorf("%d tasks: %v", len(tasks), err)
	}
	g.Case = "*"
	if _, err := g.tasks(); err == nil || !strings.Contains(err.Error(), `want one case, "*" chooses 2`) {
		t.Errorf("several cases: %v", err)
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
