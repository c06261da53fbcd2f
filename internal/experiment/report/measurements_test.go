package report

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/analysis/measure"
	"github.com/tabane/tabane/internal/experiment/measurement"
)

// measured returns a measurement whose modes have these ratios to the first.
func measured(t testing.TB, name string, trials int, ratios map[string]float64, modes ...string) Network {
	t.Helper()
	p := measurement.Plan{Name: name, Server: "http://server/", Modes: modes, Trials: trials, Load: measure.Load{Time: time.Second}, Seed: 1}
	r := rand.New(rand.NewPCG(uint64(len(name)), 1))
	n := Network{}
	for block := range trials {
		for _, mode := range modes {
			bps := 50e6 * ratios[mode] * (1 + 0.02*r.NormFloat64())
			n.Rows = append(n.Rows, measurement.Row{Block: block, Mode: mode, Trial: measure.Trial{Bytes: int64(bps / 8), Duration: time.Second, GoodputBps: bps, Loaded: measure.Latency{Count: 3, P50: time.Millisecond, P95: 2 * time.Millisecond, RPM: 60000}}})
		}
	}
	var err error
	if n.Analysis, err = measurement.Analyze(p, n.Rows); err != nil {
		t.Fatal(err)
	}
	return n
}

func networks(t testing.TB) Measurements {
	modes := []string{"tcp", "multipath", "single:transit-b", "parallel:3", "parallel:12"}
	return Measurements{Command: "tabane measure report a b", Version: "1", Networks: []Network{
		measured(t, "isp-<a>", 10, map[string]float64{"tcp": 1, "multipath": 1.66}, "tcp", "multipath"),
		measured(t, "isp-e", 10, map[string]float64{"tcp": 1, "multipath": 0.8, "single:transit-b": 0.5, "parallel:3": 0.9, "parallel:12": 0.7}, modes...),
		measured(t, "isp-new", 3, map[string]float64{"tcp": 1, "multipath": 1}, "tcp", "multipath"),
	}}
}

// TestMeasurements: the page says which networks have a better mode, has the figures, names of
// networks as text, and needs nothing from elsewhere; the same measurements have the same files.
func TestMeasurements(t *testing.T) {
	m := networks(t)
	dir := t.TempDir()
	if err := WriteMeasurements(dir, m); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	page := read("report.html")
	for _, want := range []string{
		"multipath is better than tcp in 1 of 3 networks (by 6", ", worse in 1 (by ", "; in 1 that is not shown. single:transit-b is better than tcp in 0 of 1 networks, worse in 1 (by 5", "yardstick: -",
		"isp-&lt;a&gt;: multipath is better than tcp by 6", "isp-e: BGP&#39;s best path was already best: multipath is worse than tcp by ",
		"isp-new: Too few trials: 3 trials, and 6 are needed.", "prefers-color-scheme: dark", "figures/modes.svg", "figures/parallel-2.svg",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(page, "isp-<a>") || strings.Contains(page, "parallel-1") {
		t.Error("a name is markup, or a figure has no data")
	}
	if outside := regexp.MustCompile(`(src|href)="(https?:)?//|@import|url\(`).FindString(page); outside != "" {
		t.Errorf("the page needs %q", outside)
	}
	modes := read("modes.csv")
	if n := strings.Count(modes, "\n"); n != 10 || !strings.Contains(modes, "isp-e,parallel:12,bulk,10,") || !strings.Contains(modes, ",order statistics,yardstick\n") {
		t.Errorf("modes.csv:\n%s", modes)
	}
	if trials := read("trials.csv"); strings.Count(trials, "name,block") != 1 || strings.Count(trials, "\n") != 1+20+50+6 {
		t.Errorf("trials.csv has %d lines", strings.Count(trials, "\n"))
	}
	again, err := networks(t).assemble()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range again {
		if read(f.name) != string(f.data) {
			t.Errorf("%s is different the second time", f.name)
		}
	}
}

func TestMeasurementsOfNothing(t *testing.T) {
	if err := WriteMeasurements(t.TempDir(), Measurements{}); err == nil {
		t.Error("no error")
	}
	// A measurement that has just begun has a page without figures.
	begun := Measurements{Networks: []Network{measured(t, "isp", 1, map[string]float64{"tcp": 1, "multipath": 1}, "tcp", "multipath")}}
	begun.Networks[0].Rows = nil
	var err error
	if begun.Networks[0].Analysis, err = measurement.Analyze(begun.Networks[0].Plan, nil); err != nil {
		t.Fatal(err)
	}
	if err := WriteMeasurements(t.TempDir(), begun); err != nil {
		t.Error(err)
	}
}

// BenchmarkMeasurements reads 1,000 trials from their store, analyzes them and writes the report, in at
// most 5 s each time.
func BenchmarkMeasurements(b *testing.B) {
	n := measured(b, "isp", 200, map[string]float64{"tcp": 1, "multipath": 1.5, "single:a": 1, "single:b": 0.5, "parallel:3": 0.9}, "tcp", "multipath", "single:a", "single:b", "parallel:3")
	store, err := measurement.Create(b.Context(), filepath.Join(b.TempDir(), "isp"), n.Plan)
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	for i := range n.Rows {
		n.Rows[i].Series = slices.Repeat([]int64{n.Rows[i].Bytes / 100}, 100)
	}
	if err := store.Add(b.Context(), n.Rows...); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		rows, err := store.Rows(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		a, err := measurement.Analyze(n.Plan, rows)
		if err != nil {
			b.Fatal(err)
		}
		if err := WriteMeasurements(b.TempDir(), Measurements{Networks: []Network{{a, rows}}}); err != nil {
			b.Fatal(err)
		}
	}
	if each := b.Elapsed() / time.Duration(b.N); each > 5*time.Second {
		b.Errorf("the report of %d trials takes %s", len(n.Rows), each)
	}
}
