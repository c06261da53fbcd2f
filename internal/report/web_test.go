package report

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tabane/tabane/internal/qoe"
	"github.com/tabane/tabane/internal/result"
	"github.com/tabane/tabane/internal/scenario"
)

// madeWeb is a made-up result of three trials, in which lia waits longer than tcp in case a, and of
// which one trial failed.
func madeWeb(t *testing.T) (result.Result, *scenario.Spec) {
	t.Helper()
	spec := &scenario.Spec{
		Name: "webqoe", Title: "Web pages", Nodes: map[string]*scenario.Node{"server": {}, "client": {}},
		Links: map[string]*scenario.Link{"a": {Ends: []scenario.End{{Node: "server"}, {Node: "client"}}}},
		Experiment: &scenario.Experiment{
			Kind: scenario.KindWeb, Server: "server", Client: "client", Baseline: "tcp", Trials: 3,
			Cases:      []scenario.Case{{Name: "env3"}, {Name: "env4"}},
			Traffic:    map[string]*scenario.Traffic{"map": {Title: "Map", Web: &scenario.Web{Service: "map"}}, "shop": {Title: "Shop", Web: &scenario.Web{Service: "shop"}}},
			Transports: map[string]*scenario.Transport{"tcp": {Links: []string{"a"}}, "lia": {MPTCP: true, Links: []string{"a"}}},
			Figures: []scenario.Figure{
				{Name: "waiting", Title: "Waiting", Kind: scenario.FigureBars, Metric: result.Waiting},
				{Name: "mos", Title: "MOS", Kind: scenario.FigureBars, Metric: result.EstimatedMOS},
			},
		},
	}
	r := result.Result{Scenario: "webqoe", Backend: result.BackendLab}
	for _, k := range spec.Experiment.Cells() {
		for trial := range 3 {
			wait := 0.5 + 0.01*float64(trial)
			if k.Case == "env3" && k.Transport == "lia" {
				wait += 2
			}
			mos, err := qoe.Waiting.Estimate(time.Duration(wait * float64(time.Second)))
			if err != nil {
				t.Fatal(err)
			}
			run := result.Run{CellKey: k, Trial: trial, Notes: map[string]string{}, Metrics: map[string]float64{
				result.Waiting: wait, result.TTFB: wait / 10, result.TaskTime: 10 * wait, result.Effectiveness: 3, result.EstimatedMOS: mos.Score(), result.Disturbed: float64(trial),
			}}
			if k.Case == "env4" && trial == 2 {
				run.Notes[result.NoteError] = "the page reported a fault"
			}
			r.Runs = append(r.Runs, run)
		}
	}
	r, err := spec.Conclude(r)
	if err != nil {
		t.Fatal(err)
	}
	return r, spec
}

func TestWriteWeb(t *testing.T) {
	r, spec := madeWeb(t)
	dir := t.TempDir()
	if *keep != "" {
		dir = filepath.Join(*keep, "web")
	}
	if err := Write(dir, r, spec, Extra{}); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	pairs := read("comparisons.csv")
	if n := strings.Count(pairs, "\nwaiting,"); n != 4 || strings.Contains(pairs, "mos") {
		t.Errorf("%d comparisons of waiting times, want 4, and none of a model:\n%s", n, pairs)
	}
	html := read("report.html")
	for _, want := range []string{
		"Of 4 pairs of transports 2 differ significantly: env3 map: tcp and lia", "Means with their 95 % confidence intervals, measured.",
		"Means with their 95 % confidence intervals, model.", "G.1030 fast: 0.67 s to 6 s", "(1 failed)",
	} {
		if !strings.Contains(html, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	var cells []browsertimeCell
	if err := json.Unmarshal([]byte(read("browsertime.json")), &cells); err != nil {
		t.Fatal(err)
	}
	want := browserStatistics{Median: 51, Mean: 51, Min: 50, Max: 52, P90: 51.8, Stddev: 1}
	if diff := cmp.Diff(want, cells[0].Statistics["ttfb"], cmpopts.EquateApprox(1e-9, 0)); len(cells) != 8 || diff != "" {
		t.Errorf("%d cells, first (-want +got):\n%s", len(cells), diff)
	}
}

func TestTableOfWeb(t *testing.T) {
	r, spec := madeWeb(t)
	var b strings.Builder
	if err := Table(&b, r, spec); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"MOS*", "G.1030 fast: 0.67 s to 6 s: of a model, not measured", "3 (1 failed)", "FAILS  Every run delivers"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "GOODPUT") {
		t.Errorf("goodput of pages:\n%s", b.String())
	}
}

// TestModelsAreNotCompared: an estimate is no sample of a test of significance.
func TestModelsAreNotCompared(t *testing.T) {
	r, spec := madeWeb(t)
	if _, err := comparePairs(&spec.Experiment.Figures[1], r, spec.Experiment); err == nil || !strings.Contains(err.Error(), "estimate of a model") {
		t.Errorf("got %v", err)
	}
}
