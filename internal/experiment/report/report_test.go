package report

import (
	"bytes"
	"encoding/csv"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

var keep = flag.String("keep", "", "also write the report of the tests to this directory, to look at")

// made is a made-up result of the size of epe-steady, with so many trials.
func made(t testing.TB, trials int) (result.Result, *scenario.Spec, []result.Trace) {
	t.Helper()
	shapes := func(a, b unit.Bandwidth) map[string]scenario.Shape {
		return map[string]scenario.Shape{"a": {Rate: a * unit.MbitPerSecond}, "b": {Rate: b * unit.MbitPerSecond}}
	}
	atLeast := func(f float64) *float64 { return &f }
	spec := &scenario.Spec{
		Name: "epe-steady", Title: "Content over every egress path, steady quality",
		Question: "Does a content server that uses every egress path at once deliver more than one that follows BGP's best path?",
		Nodes:    map[string]*scenario.Node{"server": {}, "asbr1": {}, "asbr2": {}, "transit-a": {}, "transit-b": {}, "client": {}},
		Links: map[string]*scenario.Link{
			"lan":    {Ends: []scenario.End{{Node: "server"}, {Node: "asbr1"}, {Node: "asbr2"}}},
			"access": {Ends: []scenario.End{{Node: "client"}, {Node: "transit-a"}, {Node: "transit-b"}}},
			"a":      {Ends: []scenario.End{{Node: "asbr1"}, {Node: "transit-a"}}}, "b": {Ends: []scenario.End{{Node: "asbr2"}, {Node: "transit-b"}}},
		},
		Experiment: &scenario.Experiment{
			Server: "server", Client: "client", Baseline: "tcp", Trials: trials,
			Cases: []scenario.Case{
				{Name: "1.1", Title: "high / high", Links: shapes(30, 30)}, {Name: "1.2", Title: "high / low", Links: shapes(30, 15)},
				{Name: "1.3", Title: "low / high", Links: shapes(15, 30)}, {Name: "1.4", Title: "low / low", Links: shapes(15, 15)},
			},
			Traffic: map[string]*scenario.Traffic{
				"bi":  {Title: "BI: GET of 100 MB", Bytes: 100 * unit.MB},
				"cbr": {Title: "CBR: 25 Mbit/s for 30 s", Rate: 25 * unit.MbitPerSecond, Duration: 30 * time.Second},
			},
			Transports: map[string]*scenario.Transport{
				"tcp": {Title: "TCP", Links: []string{"a"}}, "mptcp-epe": {Title: "MPTCP EPE", MPTCP: true, Links: []string{"a", "b"}},
			},
			Expect: []scenario.Expectation{
				{Name: "BI over MPTCP EPE fills the links", Metric: result.Goodput, Traffic: "bi", Transport: "mptcp-epe", Relative: result.LimitRate, AtLeast: atLeast(0.97)},
				{Name: "CBR over MPTCP EPE arrives at its rate", Metric: result.Goodput, Traffic: "cbr", Transport: "mptcp-epe", Relative: result.OfferedRate, AtLeast: atLeast(0.99), AtMost: atLeast(1.01)},
				{Name: "MPTCP EPE never falls below TCP", Metric: result.Goodput, Transport: "mptcp-epe", Relative: "transport:tcp", AtLeast: atLeast(0.995)},
			},
		},
	}
	e := spec.Experiment
	random := rand.New(rand.NewPCG(1, 2))
	r := result.Result{Schema: result.Schema, Scenario: "epe-steady", Backend: "lab", Seconds: 612.4, Host: result.Host{Kernel: "6.1.0-18-amd64", CPUs: 4, Commit: "1234567"}}
	var series []result.Trace
	for _, k := range e.Cells() {
		phases, err := spec.Phases(k)
		if err != nil {
			t.Fatal(err)
		}
		for trial := range trials {
			m := map[string]float64{result.FirstByte: 0.0412, result.EmptyIntervals: 0, result.LongestGap: 0.011}
			limits := phases[0].Limits
			limits.Put(m)
			m[result.Goodput] = math.Round(limits.Links * (0.974 + 0.02*random.Float64()))
			if limits.Offered > 0 && limits.Links == limits.Offered {
				m[result.Goodput] = 25e6 - math.Round(9000*random.Float64())
			}
			m[result.Duration], m[result.Bytes] = 8e8/m[result.Goodput], 1e8
			if limits.Offered > 0 {
				m[result.Duration], m[result.Bytes] = 30, m[result.Goodput]*30/8
				s := result.Trace{CellKey: k, Trial: trial, Interval: 100 * time.Millisecond}
				for i := range 300 {
					n := m[result.Goodput] / 80 * (0.96 + 0.08*random.Float64())
					if k.Transport == "tcp" && k.Case == "1.3" && i > 120 && i < 126 {
						n = 0
					}
					s.Samples = append(s.Samples, traffic.Sample{At: time.Duration(i) * s.Interval, Bytes: int64(n)})
				}
				series = append(series, s)
			}
			r.Runs = append(r.Runs, result.Run{CellKey: k, Trial: trial, Metrics: m})
		}
	}
	judge(t, &r, spec)
	return r, spec, series
}

func judge(t testing.TB, r *result.Result, spec *scenario.Spec) {
	t.Helper()
	var err error
	if r.Summary, err = result.Summarize(r.Runs); err != nil {
		t.Fatal(err)
	}
	r.Expect = scenario.Evaluate(spec.Experiment, r.Summary, r.Runs)
}

func TestTable(t *testing.T) {
	r, spec, _ := made(t, 1)
	// Two cells that are not as they should be.
	r.Runs[2].Metrics[result.Goodput] = 3e6
	r.Runs[5].Notes = map[string]string{result.NoteError: "read: connection reset\x1b[2J"}
	r.Runs = r.Runs[:len(r.Runs)-1]
	judge(t, &r, spec)
	want, err := os.ReadFile("testdata/table.txt")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := Table(&b, r, spec, 0); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestTableShowsRangeOfTrials(t *testing.T) {
	r, spec, _ := made(t, 3)
	var b strings.Builder
	if err := Table(&b, r, spec, 0); err != nil {
		t.Fatal(err)
	}
	if header, _, _ := strings.Cut(b.String(), "\n"); !strings.Contains(header, "MIN TO MAX") {
		t.Errorf("header is %q", header)
	}
}

func TestTableWithoutBaselineAndLimits(t *testing.T) {
	r, spec, _ := made(t, 1)
	spec.Experiment.Baseline = ""
	for i := range r.Runs {
		delete(r.Runs[i].Metrics, result.LimitRate)
	}
	judge(t, &r, spec)
	var b strings.Builder
	if err := Table(&b, r, spec, 0); err != nil {
		t.Fatal(err)
	}
	if header, _, _ := strings.Cut(b.String(), "\n"); header != "PATTERN  TRAFFIC  TRANSPORT  GOODPUT (Mbit/s)" {
		t.Errorf("header is %q", header)
	}
}

func TestTableWithoutExperiment(t *testing.T) {
	r, spec, _ := made(t, 1)
	spec.Experiment = nil
	if err := Table(io.Discard, r, spec, 0); err == nil {
		t.Error("a network alone has a table")
	}
	if err := Write(t.TempDir(), r, spec, Extra{}); err == nil {
		t.Error("a network alone has a report")
	}
}

func write(t *testing.T, r result.Result, spec *scenario.Spec, extra Extra) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "new")
	if err := Write(dir, r, spec, extra); err != nil {
		t.Fatal(err)
	}
	return dir
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, _ := filepath.Rel(dir, path)
			names = append(names, filepath.ToSlash(name))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func read(t *testing.T, dir, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestWrite(t *testing.T) {
	r, spec, series := made(t, 2)
	extra := Extra{Series: series[:1], Command: "sudo tabane lab run epe-steady --trials 2"}
	dir := write(t, r, spec, extra)
	want := []string{
		"figures/goodput-bi.png", "figures/goodput-bi.svg", "figures/goodput-cbr.png", "figures/goodput-cbr.svg", "figures/goodput.png", "figures/goodput.svg",
		"figures/series-cbr.png", "figures/series-cbr.svg", "figures/topology.png", "figures/topology.svg", "report.html", "result.json", "runs.csv", "series/1.1-cbr-tcp-0.csv", "summary.csv",
	}
	if diff := cmp.Diff(want, files(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}

	got, err := result.Decode(bytes.NewReader(read(t, dir, "result.json")))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(got.Runs, func(run result.Run) bool { return run.Notes != nil })
	if i < 0 || got.Runs[i].CellKey != series[0].CellKey || got.Runs[i].Notes[result.NoteSeries] != "series/1.1-cbr-tcp-0.csv" {
		t.Fatalf("run %d names the series", i)
	}
	if r.Runs[i].Notes != nil {
		t.Error("the caller's result has changed")
	}
	got.Runs[i].Notes = nil
	if diff := cmp.Diff(r, got); diff != "" {
		t.Errorf("result.json (-want +got):\n%s", diff)
	}

	runs, err := csv.NewReader(bytes.NewReader(read(t, dir, "runs.csv"))).ReadAll()
	if err != nil || len(runs) != 1+len(r.Runs) {
		t.Fatalf("runs.csv has %d lines, %v", len(runs), err)
	}
	if diff := cmp.Diff([]string{"case", "traffic", "transport", "trial", "bytes", "duration_s", "empty_intervals", "first_byte_s", "goodput_bps",
		"limit_bps", "limit_tcp_bps", "longest_gap_s", "offered_bps", "series"}, runs[0]); diff != "" {
		t.Errorf("header of runs.csv (-want +got):\n%s", diff)
	}
	summary, err := csv.NewReader(bytes.NewReader(read(t, dir, "summary.csv"))).ReadAll()
	if err != nil || len(summary) != 1+len(r.Summary) {
		t.Errorf("summary.csv has %d lines, %v", len(summary), err)
	}
	if text := string(read(t, dir, "series/1.1-cbr-tcp-0.csv")); !strings.HasPrefix(text, "start_s,bytes\n0,") || strings.Count(text, "\n") != 301 {
		t.Errorf("series file starts with %.30q and has %d lines", text, strings.Count(text, "\n"))
	}
	if *keep != "" {
		if err := Write(*keep, r, spec, Extra{Series: series, Command: extra.Command}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWriteIsDeterministic(t *testing.T) {
	r, spec, series := made(t, 2)
	one, other := write(t, r, spec, Extra{Series: series}), write(t, r, spec, Extra{Series: series})
	for _, name := range files(t, one) {
		if !bytes.Equal(read(t, one, name), read(t, other, name)) {
			t.Errorf("%s differs", name)
		}
	}
}

func TestWriteReplacesOnlyItsFiles(t *testing.T) {
	r, spec, _ := made(t, 1)
	dir := t.TempDir()
	for _, name := range []string{"result.json", "mine.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Write(dir, r, spec, Extra{}); err != nil {
		t.Fatal(err)
	}
	if string(read(t, dir, "mine.txt")) != "old" || len(read(t, dir, "result.json")) < 100 {
		t.Error("not the report's own files changed")
	}
}

func TestFailedWriteChangesNothing(t *testing.T) {
	for name, spoil := range map[string]func(r *result.Result, dir string, extra *Extra){
		"not finite":          func(r *result.Result, _ string, _ *Extra) { r.Runs[0].Metrics["x"] = math.Inf(1) },
		"series of no run":    func(_ *result.Result, _ string, x *Extra) { x.Series[0].Trial = 99 },
		"series without time": func(_ *result.Result, _ string, x *Extra) { x.Series[0].Interval = 0 },
		"series climbing out": func(r *result.Result, _ string, x *Extra) {
			r.Runs[0].Case, x.Series[0].CellKey = "../../../x", r.Runs[0].CellKey
			x.Series[0].Case = "../../../x"
		},
		"directory in a file's place": func(_ *result.Result, dir string, _ *Extra) {
			if err := os.Mkdir(filepath.Join(dir, "figures", "goodput.svg"), 0o755); err != nil {
				panic(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, spec, series := made(t, 1)
			extra := Extra{Series: series}
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, "figures"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "result.json"), []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			spoil(&r, dir, &extra)
			if err := Write(dir, r, spec, extra); err == nil || !strings.Contains(err.Error(), dir) {
				t.Fatalf("error is %v", err)
			}
			if string(read(t, dir, "result.json")) != "old" {
				t.Error("result.json has changed")
			}
			for _, name := range files(t, dir) {
				if strings.HasPrefix(filepath.Base(name), ".") {
					t.Errorf("%s is left behind", name)
				}
			}
		})
	}
}

func TestFigures(t *testing.T) {
	r, spec, series := made(t, 3)
	dir := write(t, r, spec, Extra{Series: series})
	for name, size := range map[string]image.Point{"goodput": {1800, 896}, "goodput-bi": {1800, 896}, "goodput-cbr": {1800, 896}, "series-cbr": {1800, 1056}} {
		img, err := png.Decode(bytes.NewReader(read(t, dir, "figures/"+name+".png")))
		if err != nil {
			t.Fatalf("%s.png: %v", name, err)
		}
		if got := img.Bounds().Size(); got != size {
			t.Errorf("%s.png is %v, want %v", name, got, size)
		}
		for i := range 2 {
			if n := count(img, colorOf(i)); n < 1000 {
				t.Errorf("%s.png has %d pixels of the color of transport %d", name, n, i)
			}
		}
		// Nothing may touch the edge: it would be cut off.
		b := img.Bounds()
		for x := range b.Max.X {
			for _, y := range []int{0, b.Max.Y - 1} {
				if img.At(x, y) != color.Color(paper) {
					t.Fatalf("%s.png is drawn on at its edge (%d, %d)", name, x, y)
				}
			}
		}
		for y := range b.Max.Y {
			for _, x := range []int{0, b.Max.X - 1} {
				if img.At(x, y) != color.Color(paper) {
					t.Fatalf("%s.png is drawn on at its edge (%d, %d)", name, x, y)
				}
			}
		}
		svg := read(t, dir, "figures/"+name+".svg")
		wellFormed(t, name+".svg", svg)
		for _, text := range []string{">TCP<", ">MPTCP EPE<", ">L7 goodput (Mbit/s)<", ">1.1<|>Pattern 1.1  high / high<"} {
			if !slices.ContainsFunc(strings.Split(text, "|"), func(s string) bool { return bytes.Contains(svg, []byte(s)) }) {
				t.Errorf("%s.svg does not say %s", name, text)
			}
		}
	}
}

func count(img image.Image, c color.Color) int {
	n := 0
	b := img.Bounds()
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			if img.At(x, y) == c {
				n++
			}
		}
	}
	return n
}

// wellFormed checks that the text is XML as far as tags and entities go.
func wellFormed(t *testing.T, name string, text []byte) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(text))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

func TestFiguresOfUnusualResults(t *testing.T) {
	for name, spoil := range map[string]func(*result.Result, *scenario.Spec){
		"no run": func(r *result.Result, _ *scenario.Spec) { r.Runs = nil },
		"failed run": func(r *result.Result, _ *scenario.Spec) {
			r.Runs[0].Notes = map[string]string{result.NoteError: "x"}
		},
		"one case":    func(_ *result.Result, s *scenario.Spec) { s.Experiment.Cases = s.Experiment.Cases[:1] },
		"one traffic": func(_ *result.Result, s *scenario.Spec) { delete(s.Experiment.Traffic, "bi") },
		"many transports": func(_ *result.Result, s *scenario.Spec) {
			for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
				s.Experiment.Transports[name] = &scenario.Transport{Title: "a transport with a rather long name"}
			}
		},
		"all zero": func(r *result.Result, _ *scenario.Spec) {
			for i := range r.Runs {
				r.Runs[i].Metrics = map[string]float64{result.Goodput: 0}
			}
		},
		"huge and tiny": func(r *result.Result, _ *scenario.Spec) {
			r.Runs[0].Metrics[result.Goodput], r.Runs[1].Metrics[result.Goodput] = 1e300, 1e-300
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, spec, series := made(t, 1)
			spoil(&r, spec)
			judge(t, &r, spec)
			if r.Runs == nil {
				series = nil
			}
			dir := write(t, r, spec, Extra{Series: series})
			if *keep != "" {
				if err := Write(filepath.Join(*keep, strings.ReplaceAll(name, " ", "-")), r, spec, Extra{Series: series}); err != nil {
					t.Fatal(err)
				}
			}
			wellFormed(t, "goodput.svg", read(t, dir, "figures/goodput.svg"))
		})
	}
}

func TestPageEscapesText(t *testing.T) {
	const hostile = `<script>alert("x")</script>&'` + "\x00\x1b[31m"
	r, spec, series := made(t, 1)
	e := spec.Experiment
	spec.Title, spec.Question, r.Scenario, r.Backend = hostile, hostile, hostile, hostile
	r.Host.Kernel, r.Host.Commit = hostile, hostile
	e.Cases[0].Title, e.Traffic["bi"].Title, e.Transports["tcp"].Title = hostile, hostile, hostile
	e.Traffic["cbr"].Title = hostile
	e.Expect[0].Name = hostile
	r.Runs[0].Notes = map[string]string{result.NoteError: hostile, "other": hostile}
	judge(t, &r, spec)
	dir := write(t, r, spec, Extra{Series: series, Command: hostile})
	html := string(read(t, dir, "report.html"))
	for _, bad := range []string{"<script", "alert(\"x\")</", "\x00", "\x1b"} {
		if strings.Contains(html, bad) {
			t.Errorf("report.html has %q", bad)
		}
	}
	if n := strings.Count(html, "&lt;script&gt;"); n < 12 {
		t.Errorf("report.html shows the texts %d times", n)
	}
	for _, name := range []string{"goodput", "series-cbr"} {
		wellFormed(t, name, read(t, dir, "figures/"+name+".svg"))
	}
}

func TestPageIsSelfContained(t *testing.T) {
	r, spec, series := made(t, 3)
	html := string(read(t, write(t, r, spec, Extra{Series: series, Command: "sudo tabane lab run epe-steady --trials 3"}), "report.html"))
	for _, bad := range []string{"src=", "url(", "@import", "<link", "<script", "ZgotmplZ", "<?xml"} {
		if strings.Contains(html, bad) {
			t.Errorf("report.html has %q", bad)
		}
	}
	for _, want := range []string{"<!DOCTYPE html>", `<html lang="en">`, "All 3 expectations hold.", `role="img"`, `aria-label="Grouped bars of goodput in Mbit/s. BI: GET of 100 MB: 1.1 TCP `,
		"sudo tabane lab run epe-steady --trials 3", "6.1.0-18-amd64", "<details>", "All 48 runs", "fill:var(--ink)"} {
		if !strings.Contains(html, want) {
			t.Errorf("report.html does not have %q", want)
		}
	}
	balanced(t, html)
}

// TestPageLinks: what the page links to is written beside it.
func TestPageLinks(t *testing.T) {
	r, spec, series := made(t, 2)
	dir := write(t, r, spec, Extra{Series: series})
	there := files(t, dir)
	links := regexp.MustCompile(`href="([^"]*)"`).FindAllStringSubmatch(string(read(t, dir, "report.html")), -1)
	for _, m := range links {
		if !slices.Contains(there, m[1]) {
			t.Errorf("report.html links to %q, which is not in the result", m[1])
		}
	}
	if len(links) < 3+2*len(r.Runs)/4 {
		t.Errorf("report.html has %d links", len(links))
	}
}

// TestPageAbout: when, with what, how often, and the scenario.
func TestPageAbout(t *testing.T) {
	r, spec, series := made(t, 1)
	r.Backend = result.BackendSim
	spec.Experiment.Cases[0].Published = []scenario.Published{{Metric: result.Goodput, Traffic: "bi", Transport: "mptcp-epe", Value: 54e6, Source: "Paper A"}}
	dir := write(t, r, spec, Extra{Series: series, Made: time.Date(2026, 11, 22, 8, 30, 0, 0, time.UTC), Quick: true, Seed: 7, Text: "name: epe-steady # <text>\n"})
	html := string(read(t, dir, "report.html"))
	for _, want := range []string{"2026-11-22 08:30 UTC", "tabane 1234567", "<dd>quick, 1 trial</dd>", "<dd>7</dd>", "name: epe-steady # &lt;text&gt;", "(quick, 1 trial)",
		"In every row: Trials 1.", "published 54.0", `<a href="figures/goodput.svg">`, "Nodes and links: asbr1 to transit-a, client to link access, transit-a to link access,"} {
		if !strings.Contains(html, want) {
			t.Errorf("report.html does not have %q", want)
		}
	}
	for _, bad := range []string{"Min to max", ">Trials</th>"} {
		if strings.Contains(html, bad) {
			t.Errorf("report.html has %q, which says nothing", bad)
		}
	}
	if svg := string(read(t, dir, "figures/goodput.svg")); !strings.Contains(svg, ">published<") {
		t.Error("the figure has no entry for what was published")
	}
}

// TestLongTableFollowsFigures: a table that fills the screen does not hide the figures.
func TestLongTableFollowsFigures(t *testing.T) {
	for _, tt := range []struct {
		cases int
		first string
	}{{4, "<h2>Result"}, {6, "<h2>Figures"}} {
		r, spec, _ := made(t, 1)
		for len(spec.Experiment.Cases) < tt.cases {
			spec.Experiment.Cases = append(spec.Experiment.Cases, scenario.Case{Name: fmt.Sprint("x", len(spec.Experiment.Cases))})
		}
		topology, err := topologyFigure(spec)
		if err != nil {
			t.Fatal(err)
		}
		page, err := writePage(r, spec, Extra{}, rows(r, spec.Experiment), nil, topology, nil)
		if err != nil {
			t.Fatal(err)
		}
		html := string(page)
		result, figures := strings.Index(html, "<h2>Result"), strings.Index(html, "<h2>Figures")
		if (result < figures) != (tt.first == "<h2>Result") {
			t.Errorf("with %d rows %s is not first", 4*tt.cases, tt.first)
		}
	}
}

// balanced checks that every element that needs an end has it, in order.
func balanced(t *testing.T, html string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(html))
	d.Strict, d.AutoClose, d.Entity = false, []string{"meta", "br"}, xml.HTMLEntity
	var open []string
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("report.html: %v", err)
		}
		switch x := token.(type) {
		case xml.StartElement:
			open = append(open, x.Name.Local)
		case xml.EndElement:
			if len(open) == 0 || open[len(open)-1] != x.Name.Local {
				t.Fatalf("report.html: </%s> inside %v", x.Name.Local, open)
			}
			open = open[:len(open)-1]
		}
	}
	if len(open) > 0 {
		t.Errorf("report.html: %v not closed", open)
	}
}

func TestHeadline(t *testing.T) {
	for _, tt := range []struct {
		holds []bool
		want  string
	}{
		{nil, "This scenario has no expectations."},
		{[]bool{true}, "The expectation holds."},
		{[]bool{true, true}, "All 2 expectations hold."},
		{[]bool{true, false}, "1 of 2 expectations does not hold."},
		{[]bool{false, false}, "2 of 2 expectations do not hold."},
	} {
		r, spec, _ := made(t, 1)
		r.Expect = nil
		for _, holds := range tt.holds {
			r.Expect = append(r.Expect, result.Verdict{Name: "x", Holds: holds})
		}
		if html := string(read(t, write(t, r, spec, Extra{}), "report.html")); !strings.Contains(html, "<strong>"+tt.want+"</strong>") {
			t.Errorf("%v: report.html does not say %q", tt.holds, tt.want)
		}
	}
}

// TestBusyHost: a result that fails on a busy host says so; the page says so always.
func TestBusyHost(t *testing.T) {
	for _, tt := range []struct {
		name        string
		late        float64
		holds       bool
		text, paged bool
	}{
		{"idle", result.BusyHost, false, false, false},
		{"busy", 0.1204, false, true, true},
		{"busy, and holds", 0.1204, true, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, spec, _ := made(t, 1)
			r.Expect = []result.Verdict{{Name: "x", Holds: tt.holds}}
			r.Runs[1].Metrics[result.WakeDelay] = tt.late
			note := fmt.Sprintf("in 1 of %d runs a thread that slept woke more than 50 ms late, by up to 120 ms.", len(r.Runs))
			var text strings.Builder
			if err := Table(&text, r, spec, 0); err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(text.String(), note); got != tt.text {
				t.Errorf("table has the note: %t, want %t:\n%s", got, tt.text, text.String())
			}
			if got := strings.Contains(string(read(t, write(t, r, spec, Extra{}), "report.html")), note); got != tt.paged {
				t.Errorf("page has the note: %t, want %t", got, tt.paged)
			}
		})
	}
}

func TestRoundTicks(t *testing.T) {
	for _, tt := range []struct {
		to   float64
		want string
	}{
		{60, "0 10 20 30 40 50 60"}, {30, "0 5 10 15 20 25 30"}, {27.5, "0 5 10 15 20 25"}, {1.1, "0.0 0.2 0.4 0.6 0.8 1.0"}, {0.03, "0.000 0.005 0.010 0.015 0.020 0.025 0.030"}, {1000, "0 200 400 600 800 1000"},
	} {
		var got []string
		for _, tick := range (roundTicks{}).Ticks(0, tt.to) {
			got = append(got, tick.Label)
		}
		if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("ticks to %v (-want +got):\n%s", tt.to, diff)
		}
	}
}

// TestBands: parts of a table fit, begin with the names, and have each other column once.
func TestBands(t *testing.T) {
	lines := [][]string{{"PATTERN", "GOODPUT", "A LONG COLUMN", "B"}, {"1.1", "20", "1", "2"}}
	for width, want := range map[int]string{
		0:  "PATTERN GOODPUT A LONG COLUMN B;1.1 20 1 2",
		34: "PATTERN GOODPUT A LONG COLUMN B;1.1 20 1 2",
		33: "PATTERN GOODPUT A LONG COLUMN;1.1 20 1|PATTERN B;1.1 2",
		25: "PATTERN GOODPUT;1.1 20|PATTERN A LONG COLUMN B;1.1 1 2",
		1:  "PATTERN GOODPUT;1.1 20|PATTERN A LONG COLUMN;1.1 1|PATTERN B;1.1 2",
	} {
		var parts []string
		for _, part := range Bands(lines, 1, width) {
			parts = append(parts, strings.Join(part[0], " ")+";"+strings.Join(part[1], " "))
		}
		if got := strings.Join(parts, "|"); got != want {
			t.Errorf("width %d: got %q, want %q", width, got, want)
		}
	}
}
