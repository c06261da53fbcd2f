package scenario

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/result"
)

// loss returns a scenario whose cases have a parameter for an axis.
func loss(t testing.TB) *Spec { return read(t, "reseq-loss") }

func TestCheckFiguresAndSettings(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(*Experiment)
		want  string
	}{
		{"figure without name", func(e *Experiment) { e.Figures[0].Name = "" }, `experiment.figures[0].name: must be letters`},
		{"name of another", func(e *Experiment) { e.Figures[1].Name = e.Figures[0].Name }, `experiment.figures[1].name: "throughput-loss" is another figure's name`},
		{"name of the report's own", func(e *Experiment) { e.Figures[0].Name = "goodput" }, `experiment.figures[0].name: "goodput" is another figure's name`},
		{"no title", func(e *Experiment) { e.Figures[0].Title = "" }, `experiment.figures[0].title: must say`},
		{"kind", func(e *Experiment) { e.Figures[0].Kind = "pie" }, `experiment.figures[0].kind: must be one of lines, heat, bursts, bars, got "pie"`},
		{"metric", func(e *Experiment) { e.Figures[0].Metric = "speed" }, `experiment.figures[0]: must be one of`},
		{"metric and metrics", func(e *Experiment) { e.Figures[0].Metrics = []string{result.Goodput} }, `experiment.figures[0]: must have either metric or metrics`},
		{"x", func(e *Experiment) { e.Figures[0].X = "los" }, `experiment.figures[0].x: must be a parameter of cases, got "los"`},
		{"where", func(e *Experiment) { e.Figures[0].Where = map[string]float64{"rate": 1} }, `experiment.figures[0].where.rate: is not a parameter of any case`},
		{"selects nothing", func(e *Experiment) { e.Figures[0].Where = map[string]float64{"loss": 7} }, `experiment.figures[0]: selects no case`},
		{"zero on a logarithmic axis", func(e *Experiment) { e.Figures[0].Zero = "" }, `experiment.cases[0].parameters.loss: is 0, which the logarithmic axis of figure "throughput-loss" cannot show`},
		{"negative on a logarithmic axis", func(e *Experiment) { e.Cases[1].Parameters["loss"] = -1 }, `experiment.cases[1].parameters.loss: must not be negative`},
		{"zero without one", func(e *Experiment) { e.Figures[0].Log = false }, `experiment.figures[0].zero: is for a logarithmic axis`},
		{"transport", func(e *Experiment) { e.Figures[0].Transports[0] = "ns3" }, `experiment.figures[0].transports[0]: transport "ns3" is not in transports`},
		{"traffic", func(e *Experiment) { e.Figures[0].Traffic = "cbr" }, `experiment.figures[0].traffic: traffic "cbr" is not in traffic`},
		{"reference", func(e *Experiment) { e.Figures[0].References = []Reference{{Y: new(math.NaN())}} }, "experiment.figures[0].references[0].title: must say what it is\nexperiment.figures[0].references[0].y: must be a finite number"},
		{"bursts of lines", func(e *Experiment) {
			e.Figures = []Figure{{Name: "b", Title: "b", Kind: FigureBursts, Case: "p7", From: 2, To: 1, X: "loss"}}
		}, "experiment.figures[0].x: is for figures of kind lines\nexperiment.figures[0].case: case \"p7\" is not in cases\nexperiment.figures[0].to: must be after from, 2ns, got 1ns"},
		{"lines of bursts", func(e *Experiment) { e.Figures[0].To = time.Second }, `experiment.figures[0].to: is for figures of kind bursts`},
		{"parameter name", func(e *Experiment) { e.Cases[0].Parameters["Loss of it"] = 1 }, `experiment.cases[0].parameters."Loss of it": name must be lower-case`},
		{"parameter", func(e *Experiment) { e.Cases[0].Parameters["loss"] = math.Inf(1) }, `experiment.cases[0].parameters.loss: must be a finite number`},
		{"scheduler", func(e *Experiment) { e.Transports["mptcp"].Scheduler = "best" }, `experiment.transports.mptcp.scheduler: must be one of default, ratio`},
		{"beta", func(e *Experiment) { e.Cases[0].Settings.SchedulerOptions.Beta = 2 }, `experiment.cases[0].settings.scheduler_options.beta: must be from 0 to 1, got 2`},
		{"ratio", func(e *Experiment) { e.Transports["mptcp"].SchedulerOptions.Ratio = "3:x" }, `experiment.transports.mptcp.scheduler_options.ratio: must be numbers from 1 to 10000 like 3:1, one for each link, got "3:x"`},
		{"ratios", func(e *Experiment) {
			e.Transports["mptcp"].Scheduler, e.Transports["mptcp"].SchedulerOptions.Ratio = "ratio", "3:1:1:1:1"
		}, `experiment.transports.mptcp.scheduler_options.ratio: must have one number for each of the 2 links, got "3:1:1:1:1"`},
		{"another scheduler's", func(e *Experiment) { e.Transports["mptcp"].SchedulerOptions.Overtaken = 2 }, `experiment.transports.mptcp.scheduler_options.overtaken: is not a parameter of scheduler`},
		{"congestion", func(e *Experiment) { e.Cases[0].Settings.Congestion = "reno" }, `experiment.cases[0].settings.congestion: must be one of newreno`},
		{"window", func(e *Experiment) { e.Transports["mptcp"].Window = 100 }, `experiment.transports.mptcp.window: must hold at least one segment, 536 bytes, got 100B`},
		{"rbuf", func(e *Experiment) { e.Cases[0].Settings.RBuf = -1 }, `experiment.cases[0].settings.rbuf: must not be negative`},
		{"segment", func(e *Experiment) { e.Transports["mptcp"].Segment = 70_000 }, `experiment.transports.mptcp.segment: must be 88 to 65475 bytes, got 70000`},
		{"initial window", func(e *Experiment) { e.Transports["mptcp"].InitialWindow = -1 }, `experiment.transports.mptcp.initial_window: must be 1 to 1000 segments, got -1`},
		{"model", func(e *Experiment) { e.Transports["ns2"].Model = &Model{} }, `experiment.transports.ns2.model: is empty`},
		{"header", func(e *Experiment) { e.Transports["ns2"].Model.Header = -40 }, `experiment.transports.ns2.model.header: must be 1 to 1000 bytes, got -40`},
		{"single path", func(e *Experiment) { e.Transports["mptcp-260"].MPTCP = false }, "experiment.transports.mptcp-260.scheduler: is for transports with mptcp: there is only one path\nexperiment.transports.mptcp-260.rbuf: is for transports with mptcp"},
		{"relative to no case", func(e *Experiment) { e.Expect[2].Relative = "case:p7" }, `experiment.expect[2].relative: case "p7" is not in cases`},
		{"relative to itself", func(e *Experiment) { e.Expect[2].Relative = "case:p1e-3" }, `experiment.expect[2].relative: must be another case than the expectation's own`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := loss(t)
			tt.spoil(s.Experiment)
			if got := s.Check().Error(); !strings.Contains(got, tt.want) {
				t.Errorf("got %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestCellSettings(t *testing.T) {
	s := loss(t)
	off := false
	s.Experiment.Cases[0].Settings = Settings{RBuf: 65 * unit.KB, RACK: &off}
	got := s.Experiment.Settings(result.CellKey{Case: "p0", Traffic: "bulk", Transport: "mptcp-260"})
	if got.RBuf != 65*unit.KB || got.Window != 53600 || got.Segment != 536 || *got.DelayedACK {
		t.Errorf("got %+v", got)
	}
}

// TestForLab checks that a lab runs no transport that only the simulator has.
func TestForLab(t *testing.T) {
	s := loss(t)
	transports, drawn := len(s.Experiment.Transports), len(s.Experiment.Figures[0].Transports)
	lab := s.ForLab()
	if err := lab.Check().Err(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"mptcp", "mptcp-260"}, lab.Experiment.TransportNames()); diff != "" {
		t.Error(diff)
	}
	for _, f := range lab.Experiment.Figures {
		if diff := cmp.Diff(lab.Experiment.TransportNames(), f.TransportsOf(lab.Experiment)); diff != "" {
			t.Errorf("figure %s: %s", f.Name, diff)
		}
	}
	if len(s.Experiment.Transports) != transports || len(s.Experiment.Figures[0].Transports) != drawn {
		t.Error("the scenario itself has changed")
	}
}

// TestLimitSmallSegments checks that the limit counts the headers of each segment.
func TestLimitSmallSegments(t *testing.T) {
	for transport, want := range map[string]float64{"mptcp": 10e6 * 536 / 650, "ns2": 10e6 * 536 / 576} {
		got, err := limit(loss(t), result.CellKey{Case: "p0", Traffic: "bulk", Transport: transport})
		if err != nil || math.Abs(got.Links-want) > 1 {
			t.Errorf("%s: %v, %v, want %v", transport, got.Links, err, want)
		}
	}
}

func TestExpectationByCase(t *testing.T) {
	e := &Experiment{
		Cases:      []Case{{Name: "a-1"}, {Name: "a-2"}, {Name: "b-2"}},
		Traffic:    map[string]*Traffic{"bulk": {}},
		Transports: map[string]*Transport{"mptcp": {}},
	}
	var runs []result.Run
	for i, c := range e.Cases {
		runs = append(runs, result.Run{CellKey: result.CellKey{Case: c.Name, Traffic: "bulk", Transport: "mptcp"}, Metrics: map[string]float64{result.BurstMax: float64(10 * (i + 1))}})
	}
	cells, err := result.Summarize(runs)
	if err != nil {
		t.Fatal(err)
	}
	bound := func(f float64) *float64 { return &f }
	for _, tt := range []struct {
		x    Expectation
		want result.Verdict
	}{
		{Expectation{Metric: result.BurstMax, Case: "b-2", Relative: "case:a-2", AtLeast: bound(1.4)},
			result.Verdict{Want: "median longest burst / that of case a-2 >= 1.4 in case b-2, every traffic, every transport", Got: "1.5 (b-2 bulk mptcp)", Holds: true}},
		// The case that others are compared with is not compared with itself.
		{Expectation{Metric: result.BurstMax, Relative: "case:a-1", AtLeast: bound(2)},
			result.Verdict{Want: "median longest burst / that of case a-1 >= 2 in every case, every traffic, every transport", Got: "2 (worst: a-2 bulk mptcp)", Holds: true}},
		{Expectation{Metric: result.BurstMax, Case: "a-*", AtMost: bound(19)},
			result.Verdict{Want: "median longest burst <= 19 in case a-*, every traffic, every transport", Got: "20 segments (worst: a-2 bulk mptcp)"}},
		{Expectation{Metric: result.BurstMax, Case: "*-2", AtLeast: bound(20)},
			result.Verdict{Want: "median longest burst >= 20 in case *-2, every traffic, every transport", Got: "20 segments (worst: a-2 bulk mptcp)", Holds: true}},
		{Expectation{Metric: result.BurstMax, Case: "a-*-1", AtLeast: bound(20)},
			result.Verdict{Want: "median longest burst >= 20 in case a-*-1, every traffic, every transport", Got: "selects no cell"}},
	} {
		e.Expect = []Expectation{tt.x}
		if diff := cmp.Diff([]result.Verdict{tt.want}, Evaluate(e, cells, runs)); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", tt.x, diff)
		}
	}
}
