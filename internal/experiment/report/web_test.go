package report

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/study/qoe"
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
				{Name: "speed-index", Title: "Speed Index", Kind: scenario.FigureBars, Metric: result.SpeedIndex},
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
	archives := []result.Archive{{CellKey: result.CellKey{Case: "env4", Traffic: "shop", Transport: "lia"}, Trial: 1, HAR: []byte("{}")}}
	if err := Write(dir, r, spec, Extra{Archives: archives}); err != nil {
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
		"Means with their 95 % confidence intervals, model. Estimated MOS, G.1030 fast: 0.67 s to 6 s; of a function of measured times, so nothing is tested.", "G.1030 fast: 0.67 s to 6 s", "(1 failed)",
	} {
		if !strings.Contains(html, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for figure, want := range map[string]string{"waiting": "(s), measured", "mos": "fast: 0.67 s to 6 s, model"} {
		if !strings.Contains(read("figures/"+figure+".svg"), want) {
			t.Errorf("figure %s has no %q", figure, want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "figures", "speed-index.svg")); !os.IsNotExist(err) || strings.Contains(html, "speed-index") {
		t.Errorf("there is a figure of a metric that no run has: %v", err)
	}
	var pages []struct {
		Info struct {
			URL, Alias string
			Extra      map[string]string
		}
		MarkedAsFailure int
		FailureMessages []string
		BrowserScripts  []struct {
			Timings struct {
				TTFB        float64
				PageTimings struct{ BackEndTime float64 }
			}
		}
		GoogleWebVitals []map[string]float64
		Statistics      struct {
			Timings         struct{ TTFB browserStatistics }
			GoogleWebVitals struct{ TTFB browserStatistics }
		}
	}
	if err := json.Unmarshal([]byte(read("browsertime.json")), &pages); err != nil {
		t.Fatal(err)
	}
	if len(pages) != 8 {
		t.Fatalf("%d pages", len(pages))
	}
	first := pages[0]
	sd := math.Sqrt(2.0 / 3)
	want := browserStatistics{Median: 51, Mean: 51, Mdev: sd / math.Sqrt(3), RSD: 100 * sd / 51, Stddev: sd, Min: 50, P10: 50, P90: 52, P99: 52, Max: 52}
	if diff := cmp.Diff(want, first.Statistics.Timings.TTFB, cmpopts.EquateApprox(1e-9, 0)); diff != "" || first.Statistics.GoogleWebVitals.TTFB != first.Statistics.Timings.TTFB {
		t.Errorf("statistics (-want +got):\n%s", diff)
	}
	if first.Info.URL != "https://server/map/" || first.Info.Alias != "env3 map lia" && first.Info.Alias != "env3 map tcp" || first.Info.Extra["case"] != "env3" || first.MarkedAsFailure != 0 {
		t.Errorf("page: %+v", first)
	}
	if runs := first.BrowserScripts; len(runs) != 3 || math.Abs(runs[1].Timings.TTFB-51) > 1e-9 || runs[1].Timings.PageTimings.BackEndTime != runs[1].Timings.TTFB || first.GoogleWebVitals[1]["ttfb"] != runs[1].Timings.TTFB {
		t.Errorf("trials: %+v, %v", runs, first.GoogleWebVitals)
	}
	if last := pages[7]; last.MarkedAsFailure != 1 || len(last.FailureMessages) != 1 || !strings.Contains(last.FailureMessages[0], "a fault") || len(last.BrowserScripts) != 2 {
		t.Errorf("a failed trial: %+v", last)
	}
	if got := read("pages/env4-shop-lia-1/webpage.har"); got != "{}" || !strings.Contains(read("runs.csv"), "pages/env4-shop-lia-1/webpage.har") {
		t.Errorf("requests: %q", got)
	}
}

// TestWriteFindings: published differences have a table, a file and lines on the terminal, and are
// read again.
func TestWriteFindings(t *testing.T) {
	r, spec := madeWeb(t)
	one := 1.0
	spec.Experiment.Expect = []scenario.Expectation{
		{Name: "Users of lia wait", Source: "Paper E, Fig. 7", Metric: result.Waiting, Case: "env3", Traffic: "map", Transport: "lia", Relative: "transport:tcp", AtLeast: &one},
		{Name: "Users of lia do not wait", Source: "Paper E, Fig. 8", Metric: result.Waiting, Case: "env4", Traffic: "map", Transport: "lia", Relative: "transport:tcp", AtMost: &one},
	}
	r, err := spec.Conclude(r)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if *keep != "" {
		dir = filepath.Join(*keep, "findings")
	}
	if err := Write(dir, r, spec, Extra{}); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := Table(&text, r, spec, 0); err != nil {
		t.Fatal(err)
	}
	read := map[string]string{"text": text.String()}
	for _, name := range []string{"report.html", "findings.csv", "result.json"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		read[name] = string(data)
	}
	for name, want := range map[string]string{
		"text":         "reproduced  Users of lia wait (Paper E, Fig. 7): env3 map lia / transport:tcp 4.92 (",
		"report.html":  "1 of 2 published differences are reproduced",
		"findings.csv": "Users of lia do not wait,\"Paper E, Fig. 8\",waiting_s,env4,map,lia,transport:tcp,< 1,2,,,,1,1,,,too few trials",
	} {
		if !strings.Contains(read[name], want) {
			t.Errorf("%s has no %q:\n%s", name, want, read[name])
		}
	}
	again, err := result.Decode(strings.NewReader(read["result.json"]))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r.Findings, again.Findings); diff != "" {
		t.Errorf("read again (-want +got):\n%s", diff)
	}
}

// TestHatched: transports with fewer paths than others have hatched bars where the metric is a mean
// over paths, and a note.
func TestHatched(t *testing.T) {
	r, spec := madeWeb(t)
	e := spec.Experiment
	e.Transports["lia"].Links = []string{"a", "b"}
	for i := range r.Runs {
		r.Runs[i].Metrics[result.PathThroughput] = 1e6 * (1 + r.Runs[i].Metrics[result.Waiting])
	}
	r, err := spec.Conclude(r)
	if err != nil {
		t.Fatal(err)
	}
	note := "one of 2 paths, whose sum is 2 times as large; the hatched ones are of transports with fewer paths"
	for metric, want := range map[string]bool{result.PathThroughput: true, result.Waiting: false} {
		f, err := barFigure(&scenario.Figure{Name: "x", Title: "x", Kind: scenario.FigureBars, Metric: metric}, r, e)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(f.caption, "tcp and lia"); got == want {
			t.Errorf("%s: one path is compared with a mean over two: %q", metric, f.caption)
		}
		if got := strings.Contains(f.caption, note); got != want {
			t.Errorf("%s: caption %q", metric, f.caption)
		}
		plain, err := barFigure(&scenario.Figure{Name: "x", Title: "x", Kind: scenario.FigureBars, Metric: metric, Transports: []string{"lia"}}, r, e)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(plain.caption, "hatched") {
			t.Errorf("%s of lia alone: caption %q", metric, plain.caption)
		}
	}
}

// TestStatisticsOfBrowsertime: as browsertime 27 computes them, with fast-stats 0.0.7.
func TestStatisticsOfBrowsertime(t *testing.T) {
	want := browserStatistics{Median: 14, Mean: 15.3, Mdev: 2.0300, RSD: 41.9575, Stddev: 6.4195, Min: 8, P10: 10, P90: 32, P99: 32, Max: 32}
	got := statisticsOf([]float64{10, 11, 15, 8, 13, 12, 19, 32, 17, 16})
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-4)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := statisticsOf([]float64{7}); got != (browserStatistics{Median: 7, Mean: 7, Min: 7, P10: 7, P90: 7, P99: 7, Max: 7}) {
		t.Errorf("of one value: %+v", got)
	}
}

// TestBarsOfManyCells: eight transports in eight cases have room for their values.
func TestBarsOfManyCells(t *testing.T) {
	_, spec := madeWeb(t)
	e := spec.Experiment
	e.Cases, e.Transports = nil, map[string]*scenario.Transport{}
	for _, name := range []string{"env1", "env2", "env3", "env4", "env3-h2", "env4-h2", "env3-heavy", "env4-heavy"} {
		e.Cases = append(e.Cases, scenario.Case{Name: name})
	}
	for name, title := range map[string]string{
		"tcp": "TCP: NewReno over one path", "lia": "LIA", "vegas": "Vegas on each subflow", "newreno": "NewReno on each subflow", "olia": "OLIA", "balia": "BALIA", "wvegas": "wVegas", "cubic": "CUBIC on each subflow",
	} {
		e.Transports[name] = &scenario.Transport{Title: title, MPTCP: true, Links: []string{"a"}}
	}
	e.Figures = append(e.Figures, scenario.Figure{Name: "throughput", Title: "Throughput", Kind: scenario.FigureBars, Metric: result.PathThroughput, Divide: 1e6, YLabel: "Throughput (Mbit/s)"})
	r := result.Result{Scenario: "webqoe", Backend: result.BackendLab}
	for i, k := range e.Cells() {
		for trial := range 3 {
			x := float64(1+i*7%13) + 0.3*float64(trial*i%5)
			r.Runs = append(r.Runs, result.Run{CellKey: k, Trial: trial, Notes: map[string]string{}, Metrics: map[string]float64{
				result.Waiting: x / 10, result.PathThroughput: 1e6 * x, result.EstimatedMOS: 1 + x/4, result.TTFB: x / 100, result.Disturbed: 0,
			}})
		}
	}
	r, err := spec.Conclude(r)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if *keep != "" {
		dir = filepath.Join(*keep, "many")
	}
	if err := Write(dir, r, spec, Extra{}); err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(filepath.Join(dir, "figures", "waiting.svg"))
	if err != nil {
		t.Fatal(err)
	}
	// Each bar has its value, and there is a color for each transport.
	if n := strings.Count(string(svg), "rotate(-90)") + strings.Count(string(svg), "rotate(90)"); n < 2*64 {
		t.Errorf("%d upright texts, want a value for each of 128 bars", n)
	}
	colors := map[string]bool{}
	for i := range 8 {
		r, g, b, _ := colorOf(i).RGBA()
		colors[fmt.Sprint(r, g, b)] = true
	}
	if len(colors) != 8 {
		t.Errorf("%d colors for 8 transports", len(colors))
	}
}

func TestTableOfWeb(t *testing.T) {
	r, spec := madeWeb(t)
	var b strings.Builder
	if err := Table(&b, r, spec, 0); err != nil {
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

// TestFolded: a label that is longer than its axis has two lines, which are not.
func TestFolded(t *testing.T) {
	s := style(9.5, ink)
	for _, label := range []string{"Mean congestion window of a path (segments), measured", "Estimated MOS, G.1030 fast: 0.67 s to 6 s, model"} {
		lines := strings.Split(folded(label, s, panelHeight-60), "\n")
		if len(lines) != 2 || strings.Join(lines, " ") != label {
			t.Errorf("%q has the lines %q", label, lines)
		}
		for _, line := range lines {
			if s.Width(line) > panelHeight-60 {
				t.Errorf("%q is longer than its axis", line)
			}
		}
	}
	for _, label := range []string{"Speed Index (s), measured", strings.Repeat("x", 200)} {
		if got := folded(label, s, panelHeight-60); got != label {
			t.Errorf("%q became %q", label, got)
		}
	}
}
