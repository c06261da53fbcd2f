package validate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/experiment/scenario/scenariotest"
	"github.com/tabane/tabane/internal/testkit/accessor"
)

// TestQuick runs all comparisons in their quick form: the simulator has to agree with theory, and
// with ns-2 if it is installed.
func TestQuick(t *testing.T) {
	calls, last := 0, 0
	r, err := Run(context.Background(), Options{Quick: true, Progress: func(done, all int) {
		if calls++; done != calls || all < done {
			t.Errorf("progress says %d of %d at call %d", done, all, calls)
		}
		last = all
	}})
	if err != nil {
		t.Fatal(err)
	}
	if calls != last {
		t.Errorf("progress says %d of %d in the end", calls, last)
	}
	for _, p := range r.Parts {
		if p.Missing == "" && len(p.Claims) == 0 {
			t.Errorf("the part %q claims nothing", p.Title)
		}
		for _, c := range p.Claims {
			if !c.Holds {
				t.Errorf("%s: %s: got %s", p.Title, c.Text, c.Got)
			}
		}
		for _, table := range p.Tables {
			for _, row := range table.Rows {
				if len(row) != len(table.Head) {
					t.Errorf("table %q has a row of %d cells, and %d columns", table.Caption, len(row), len(table.Head))
				}
			}
		}
	}
	page := r.Markdown()
	for _, want := range []string{"# Validation\n", "**Quick run**", "Result: all ", "## 1. One TCP on a lossy path", "**Not compared**: no measurement was given"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
}

// TestFormulas has figures worked out by hand: at a loss of 1 % and 100 ms a segment takes 1448 * 8
// bits.
func TestFormulas(t *testing.T) {
	for _, tt := range []struct {
		name      string
		got, want float64
	}{
		{"Mathis with a constant of 1: ten segments a round trip", rateOfMathis(1, 0.01, 100*time.Millisecond), 1.1584},
		// 0.1 √(0.02/3) + 0.3 * 3 √(0.03/8) * 0.01 * 1.0032 = 0.0081650 + 0.0005529
		{"Padhye", rateOfPadhye(0.01, 100*time.Millisecond), 1448 * 8 / 1e6 / (0.0081650 + 0.0005529)},
		{"LIA in scenario A: z + z²/(1 + 2z²) = 1", root(func(z float64) float64 { return z + z*z/(1+2*z*z) }), 0.7390},
		{"LIA in scenario C: z³ + z² + z = 1", root(func(z float64) float64 { return z*z*z + z*z + z }), 0.5437},
		{"a TCP beside it", lingering(0.5437), 0.7044},
		{"LIA in scenario B, blue before", first(fixedPointB(false)), 2.552},
		{"red before", second(fixedPointB(false)), 1.648},
		{"blue after", first(fixedPointB(true)), 1.983},
		{"red after", second(fixedPointB(true)), 1.611},
	} {
		if math.Abs(tt.got/tt.want-1) > 1e-3 {
			t.Errorf("%s: %g, want %g", tt.name, tt.got, tt.want)
		}
	}
}

func first(x, _ float64) float64  { return x }
func second(_, x float64) float64 { return x }

func TestSample(t *testing.T) {
	s := &sample{values: []float64{1, 2, 3, 4}}
	if got := s.String(); got != "2.50 ± 1.29" {
		t.Errorf("1 to 4 are %s", got)
	}
	if got := s.standardError(); math.Abs(got-0.6455) > 1e-4 {
		t.Errorf("their standard error is %g", got)
	}
	if got := (&sample{values: []float64{3}}).deviation(); got != 0 {
		t.Errorf("of one value the deviation is %g", got)
	}
	for x, want := range map[float64]string{0: "0", 0.0123456: "0.0123", 1.234: "1.23", 12.34: "12.3", 1234.5: "1234", -0.5: "-0.500", 1e-9: "0.000000"} {
		if got := digits(x); got != want {
			t.Errorf("%g is printed as %s, want %s", x, got, want)
		}
	}
}

func TestRunFails(t *testing.T) {
	broken := errors.New("broken")
	b := &bench{jobs: []job{func(context.Context) error { return nil }, func(context.Context) error { return broken }}}
	if err := b.run(context.Background(), 1, nil); !errors.Is(err, broken) {
		t.Errorf("a run that fails says %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, Options{Quick: true}); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted run says %v", err)
	}
}

func TestMarkdown(t *testing.T) {
	r := Report{Parts: []Part{
		{Title: "First", Question: "Q?", Method: "M.", Answer: "A.", Claims: []Claim{{Text: "x | y", Got: "1", Holds: true}, {Text: "z", Got: "2"}},
			Tables: []Table{{Caption: "T", Head: []string{"a", "b"}, Rows: [][]string{{"1", "2\n3"}}}}},
		{Title: "Second", Missing: "it is not there"},
	}}
	if r.Holds() || r.Verdict() != "1 of 2 claims do not hold" {
		t.Errorf("the verdict is %q", r.Verdict())
	}
	page := r.Markdown()
	for _, want := range []string{
		"**Result: 1 of 2 claims do not hold.**", "| 1 | x \\| y | 1 | yes |", "| 1 | z | 2 | **no** |", "| 2 | Second | not compared: it is not there | – |",
		"## 1. First\n\nQ?\n\nM.\n\nT:\n\n| a | b |\n|---|---|\n| 1 | 2 3 |\n\nA.\n", "**Not compared**: it is not there.",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q:\n%s", want, page)
		}
	}
}

func TestNS2Missing(t *testing.T) {
	b := &bench{}
	if p := ns2(b, Options{NS2: "/nonexistent/ns"})(); p.Missing == "" || len(b.jobs) != 0 {
		t.Errorf("without ns-2 the part is %+v, with %d runs", p, len(b.jobs))
	}
}

func TestParseNS2(t *testing.T) {
	if got, err := parseNS2(strings.Repeat("3750000\n", ns2Runs)); err != nil || len(got) != ns2Runs || got[0] != 1 {
		t.Errorf("3.75 MB in 30 s are %v, %v", got, err)
	}
	for _, out := range []string{"", "1\n2\n", strings.Repeat("x ", ns2Runs), strings.Repeat("NaN ", ns2Runs), strings.Repeat("-1 ", ns2Runs), strings.Repeat("1e300 ", ns2Runs)} {
		if got, err := parseNS2(out); err == nil {
			t.Errorf("%q is read as %v", out, got)
		}
	}
}

const goodComparison = `{"schema": 1, "scenario": "reseq-rate", "cells": [
	{"case": "r5", "traffic": "bulk", "transport": "mptcp", "metric": "goodput_bps", "lab": 8.2e6, "sim": 1, "error": 1, "lab_n": 3, "sim_n": 12},
	{"case": "r5", "traffic": "bulk", "transport": "mptcp", "metric": "reseq_delay_mean_s", "lab": 0.01, "lab_range": [0.005, 0.02], "lab_n": 3},
	{"case": "r5", "traffic": "bulk", "transport": "mptcp", "metric": "burst_max_segments", "lab": 0, "lab_n": 3},
	{"case": "r7", "traffic": "bulk", "transport": "mptcp", "metric": "goodput_bps", "lab": 1e6, "lab_n": 3},
	{"case": "r5", "traffic": "bulk", "transport": "mptcp", "metric": "timeouts", "lab": 1, "lab_n": 3}]}`

func TestKernel(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, comparisonFile), []byte(goodComparison), 0o600); err != nil {
		t.Fatal(err)
	}
	builtIn := func(name, _ string) (*scenario.Spec, error) {
		var s scenario.Spec
		return &s, yaml.UnmarshalWithOptions(scenariotest.Text(t, name), &s, yaml.Strict())
	}
	var before string
	for _, path := range []string{dir, filepath.Join(dir, comparisonFile), filepath.Join(dir, "result.json")} {
		b := &bench{}
		finish := kernel(b, Options{Quick: true, Kernel: []string{path}, Scenario: builtIn})
		if len(b.faults) != 0 {
			t.Fatal(b.faults)
		}
		if before == "" {
			if err := b.run(t.Context(), 1, nil); err != nil {
				t.Fatal(err)
			}
			p := finish()
			before = fmt.Sprint(p.Tables[0].Rows, p.Claims)
		}
	}
	for _, want := range []string{"goodput, Mbit/s 3 / 3 8.20 8.12", "-1.0 % yes", "mean resequencing delay, ms 3 / 3 10.0 (5.00 to 20.0) 2", "longest burst, segments 3 / 3 0 1", " – –",
		"{goodput is within 5 % of the kernel's in each cell 1 of 1, median error 1.0 %, largest 1.0 % true}", "{the simulator measures what the lab measured missing: goodput_bps of reseq-rate: r7 bulk mptcp false}"} {
		if !strings.Contains(before, want) {
			t.Errorf("the part has no %q:\n%s", want, before)
		}
	}
	if strings.Contains(before, "timeouts") {
		t.Errorf("the part shows a metric without an aim:\n%s", before)
	}
	if _, err := Run(t.Context(), Options{Quick: true, Kernel: []string{filepath.Join(dir, "none")}}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there says %v", err)
	}
	broken := errors.New("broken")
	if _, err := Run(t.Context(), Options{Quick: true, Kernel: []string{dir}, Scenario: func(string, string) (*scenario.Spec, error) { return nil, broken }}); !errors.Is(err, broken) {
		t.Errorf("a scenario that is not there says %v", err)
	}
}

func FuzzComparison(f *testing.F) {
	for _, s := range []string{goodComparison, "", "{}", `{"schema":2}`, `{"schema":1,"scenario":"x","cells":[{"error":null}]}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := decodeComparison(strings.NewReader(s))
		accessor.Call(t, c)
		if err == nil && (c.Scenario == "" || c.Schema != 1) {
			t.Errorf("took %q for a comparison", s)
		}
	})
}
