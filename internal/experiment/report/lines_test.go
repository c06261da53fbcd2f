package report

import (
	"bytes"
	"image/png"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/gateway/reseq"
)

// swept is a result over a parameter, with a place for none and for all, and with bursts.
func swept(t testing.TB) (result.Result, *scenario.Spec, []result.Trace) {
	t.Helper()
	e := &scenario.Experiment{
		Server: "server", Client: "client", Trials: 3,
		Cases: []scenario.Case{
			{Name: "none", Parameters: map[string]float64{"loss": 0}}, {Name: "some", Parameters: map[string]float64{"loss": 0.0005}},
			{Name: "more", Parameters: map[string]float64{"loss": 0.01}}, {Name: "all"},
		},
		Traffic: map[string]*scenario.Traffic{"bulk": {Bytes: 1000, Quick: time.Second}},
		Transports: map[string]*scenario.Transport{
			"mptcp": {Title: "No limit", MPTCP: true, Links: []string{"a"}}, "mptcp-260": {Title: "260 kB", MPTCP: true, Links: []string{"a"}},
		},
		Figures: []scenario.Figure{
			{Name: "delay", Title: "Delay", X: "loss", XLabel: "Loss", Metric: result.ReseqDelayMean, Divide: 0.001, YLabel: "Delay (ms)", Log: true, Zero: "no loss", Without: "all <lost>",
				References: []scenario.Reference{{Title: "published", Y: new(70.0)}}},
			{Name: "both", Title: "Before and after", X: "loss", Metrics: []string{result.ThroughputBefore, result.ThroughputAfter}, LogY: true, Transports: []string{"mptcp"}},
			{Name: "bursts", Title: "Bursts", Kind: scenario.FigureBursts, Case: "some", To: 2 * time.Second},
		},
	}
	spec := &scenario.Spec{Name: "swept", Experiment: e}
	r := result.Result{Scenario: "swept", Backend: "sim"}
	var traces []result.Trace
	for i, k := range e.Cells() {
		for trial := range 3 {
			r.Runs = append(r.Runs, result.Run{CellKey: k, Trial: trial, Metrics: map[string]float64{
				result.Goodput: 5e6, result.ReseqDelayMean: 0.01*float64(i+1) + 0.002*float64(trial), result.BurstMax: 30,
				result.ThroughputBefore: 0.9 / float64(i+1), result.ThroughputAfter: 0.9 / float64(i+1),
			}})
		}
		trace := result.Trace{CellKey: k, Interval: 100 * time.Millisecond, Samples: []traffic.Sample{{Bytes: 100}, {At: 100 * time.Millisecond, Bytes: 7}}}
		if e.DrawsBursts(k, 0) {
			for n := range 3000 {
				trace.Bursts = append(trace.Bursts, reseq.Burst{At: time.Duration(n) * time.Millisecond, Segments: 1 + n%200/199*40, Bytes: 100})
			}
		}
		traces = append(traces, trace)
	}
	r, err := spec.Conclude(r)
	if err != nil {
		t.Fatal(err)
	}
	return r, spec, traces
}

func TestOwnFigures(t *testing.T) {
	r, spec, traces := swept(t)
	dir := write(t, r, spec, Extra{Series: traces})
	want := []string{
		"figures/both.png", "figures/both.svg", "figures/bursts.png", "figures/bursts.svg", "figures/delay.png", "figures/delay.svg",
		"figures/topology.png", "figures/topology.svg", "report.html", "result.json", "runs.csv",
		"series/all-bulk-mptcp-0.csv", "series/all-bulk-mptcp-260-0.csv", "series/more-bulk-mptcp-0.csv", "series/more-bulk-mptcp-260-0.csv",
		"series/none-bulk-mptcp-0.csv", "series/none-bulk-mptcp-260-0.csv",
		"series/some-bulk-mptcp-0-bursts.csv", "series/some-bulk-mptcp-0.csv", "series/some-bulk-mptcp-260-0-bursts.csv", "series/some-bulk-mptcp-260-0.csv",
		"summary.csv",
	}
	if diff := cmp.Diff(want, files(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if got := string(read(t, dir, "series/some-bulk-mptcp-0-bursts.csv")); !strings.HasPrefix(got, "time_s,segments,bytes\n0,1,100\n0.001,1,100\n") || !strings.Contains(got, "\n0.199,41,100\n") {
		t.Errorf("bursts: %.100s", got)
	}
	for _, name := range want[:6] {
		data := read(t, dir, name)
		if strings.HasSuffix(name, ".png") {
			if _, err := png.Decode(bytes.NewReader(data)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		// Of 2000 impulses those remain that can be distinguished.
		if n := len(data); n > 300_000 {
			t.Errorf("%s has %d bytes", name, n)
		}
	}
	for name, texts := range map[string][]string{
		"figures/delay.svg":  {">no loss<", ">5e-4<", ">1e-2<", ">all &lt;lost&gt;<", ">Loss<", ">Delay (ms)<", ">No limit<", ">260 kB<", ">published<", ">standard deviation<"},
		"figures/both.svg":   {">throughput before resequencing<", ">throughput after resequencing<", ">5e-4<"},
		"figures/bursts.svg": {">Time (s)<", ">Burst (segments)<", ">No limit<", ">260 kB<"},
		"report.html":        {"Resequencing delay (ms)", ">12.00<", "Delay (ms) over Loss. No limit: none 12, some 32, more 52, all 72. 260 kB: none 22"},
	} {
		data := string(read(t, dir, name))
		for _, text := range texts {
			if !strings.Contains(data, text) {
				t.Errorf("%s has no %q", name, text)
			}
		}
	}
	var b strings.Builder
	if err := Table(&b, r, spec, 0); err != nil || !strings.Contains(b.String(), "RESEQ DELAY (ms)  MAX BURST") {
		t.Errorf("table: %v\n%s", err, b.String())
	}
}

func TestOwnFiguresWithoutRuns(t *testing.T) {
	r, spec, _ := swept(t)
	r.Runs = nil
	r, err := spec.Conclude(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := Write(t.TempDir(), r, spec, Extra{}); err != nil {
		t.Error(err)
	}
}

func TestScale(t *testing.T) {
	_, spec, _ := swept(t)
	e := spec.Experiment
	s := newScale(&e.Figures[0], e.Cases)
	var last float64
	for i, c := range e.Cases {
		x, offAxis := s.at(&e.Figures[0], c)
		if i > 0 && x <= last || x <= s.from || x >= s.to {
			t.Errorf("case %s is at %v, after %v, of %v to %v", c.Name, x, last, s.from, s.to)
		}
		if offAxis != (i == 0 || i == 3) {
			t.Errorf("case %s offAxis: %v", c.Name, offAxis)
		}
		last = x
	}
	one := newScale(&scenario.Figure{X: "loss"}, e.Cases[1:2])
	if !(one.from < 0.0005 && one.to > 0.0005) {
		t.Errorf("the axis of one value is from %v to %v", one.from, one.to)
	}
}
