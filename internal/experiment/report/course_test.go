package report

import (
	"bytes"
	"encoding/csv"
	"image/png"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// changed is a made-up result of two cases with events and what was measured in them.
func changed(t testing.TB) (result.Result, *scenario.Spec, []result.Trace) {
	t.Helper()
	r, spec, _ := made(t, 1)
	e := spec.Experiment
	e.Traffic["bi"].EventAt, e.Traffic["cbr"].EventAt = 9*time.Second, 4*time.Second
	set := func(link string, rate unit.Bandwidth) []scenario.Event {
		return []scenario.Event{{Set: &scenario.LinkSet{Link: link, Shape: scenario.Shape{Rate: rate}}}}
	}
	e.Cases = e.Cases[:2]
	e.Cases[0].Events, e.Cases[1].Events = set("a", 15e6), set("b", 30e6)
	r.Runs = nil
	var traces []result.Trace
	for i, k := range e.Cells() {
		phases, err := spec.Phases(k)
		if err != nil {
			t.Fatal(err)
		}
		at := e.Traffic[k.Traffic].EventAt + 2*time.Millisecond
		trace := result.Trace{CellKey: k, Interval: 100 * time.Millisecond, Events: []time.Duration{at}}
		if k.Transport == "mptcp-epe" {
			trace.Subflows = []result.Subflow{{Name: "best path"}, {Name: "transit-a"}, {Name: "transit-b"}}
		}
		for j := range 150 {
			s := traffic.Sample{At: time.Duration(j) * trace.Interval}
			rate := phases[0].Links
			if s.At > at {
				rate = phases[len(phases)-1].Links
			}
			s.Bytes = int64(rate / 80 * (1 + 0.3*math.Sin(float64(i+j))))
			trace.Samples = append(trace.Samples, s)
			for f := range trace.Subflows {
				trace.Subflows[f].Bytes = append(trace.Subflows[f].Bytes, int64(rate/80*float64(f+1)/6))
			}
		}
		run := result.Run{CellKey: k, Metrics: map[string]float64{result.ConnectionsLost: 0, result.LongestGap: 0.02}}
		limits := result.Mean(phases, 15*time.Second)
		limits.Put(run.Metrics)
		run.Metrics[result.Goodput] = math.Round(0.99 * limits.Links)
		trace.Samples[130].Gap = time.Duration(10+i) * time.Millisecond
		trace.Measure(phases, run.Metrics)
		r.Runs, traces = append(r.Runs, run), append(traces, trace)
	}
	judge(t, &r, spec)
	return r, spec, traces
}

func TestTableWithEvents(t *testing.T) {
	r, spec, _ := changed(t)
	r.Runs[2].Notes = map[string]string{result.NoteError: "connection reset"}
	r.Runs[2].Metrics = map[string]float64{result.ConnectionsLost: 1}
	judge(t, &r, spec)
	want, err := os.ReadFile("testdata/table-change.txt")
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

func TestCourseFigures(t *testing.T) {
	r, spec, traces := changed(t)
	// A panel without a run stays empty; a run may be short of subflow readings.
	traces = append(traces[:2], traces[3:]...)
	traces[1].Subflows[0].Bytes = traces[1].Subflows[0].Bytes[:50]
	dir := write(t, r, spec, Extra{Series: traces})
	for _, name := range []string{"course-bi", "course-cbr"} {
		svg := read(t, dir, "figures/"+name+".svg")
		wellFormed(t, name, svg)
		for _, text := range []string{">sum<", ">goodput<", ">subflow best path<", ">subflow transit-b<", ">limit after all headers<", ">event<", ":  mean "} {
			if !bytes.Contains(svg, []byte(text)) {
				t.Errorf("%s.svg does not say %s", name, text)
			}
		}
		img, err := png.Decode(bytes.NewReader(read(t, dir, "figures/"+name+".png")))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if n := count(img, colorOf(i)); n < 500 {
				t.Errorf("%s.png has %d pixels of the color of subflow %d", name, n, i)
			}
		}
		if n := count(img, backdrop); n < 500 {
			t.Errorf("%s.png has %d pixels of goodput", name, n)
		}
	}
	lines, err := csv.NewReader(bytes.NewReader(read(t, dir, "series/1.1-bi-mptcp-epe-0.csv"))).ReadAll()
	if err != nil || len(lines) != 151 || strings.Join(lines[0], " ") != "start_s bytes best path transit-a transit-b" || lines[100][2] != "" || lines[100][3] == "" {
		t.Errorf("series has %d lines, %q, %q, %v", len(lines), lines[0], lines[100], err)
	}
	html := string(read(t, dir, "report.html"))
	for _, want := range []string{"Longest pause (ms)", "Connections lost", "Subflows over time, BI", "Mean goodput in Mbit/s: 1.1 TCP"} {
		if !strings.Contains(html, want) {
			t.Errorf("report.html does not have %q", want)
		}
	}
	balanced(t, html)
	if *keep != "" {
		if err := Write(*keep+"/change", r, spec, Extra{Series: traces}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCourseAfterPathLoss(t *testing.T) {
	_, spec, traces := changed(t)
	e := spec.Experiment
	e.Cases[0].Events = []scenario.Event{{Down: &scenario.Port{Node: "x", Interface: "y"}}}
	e.Cases[0].Remaining = []string{"b"}
	all := []series{{traces[0]}, {traces[1]}}
	tcp, err := newCourse(all, spec, traces[0].CellKey)
	if err != nil {
		t.Fatal(err)
	}
	if len(tcp.limit) != 1 || tcp.limit[0][1].X != 9.002 {
		t.Errorf("the limit of TCP is %v: it ends with the event", tcp.limit)
	}
	multipath, err := newCourse(all, spec, traces[1].CellKey)
	if err != nil {
		t.Fatal(err)
	}
	if len(multipath.limit) != 1 || len(multipath.limit[0]) != 4 || multipath.limit[0][2].X != 9.002 || multipath.limit[0][3].X != 15 {
		t.Errorf("the limit of MPTCP is %v: it falls with the event", multipath.limit)
	}
}
