package scenario

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/result"
)

func webqoe(t *testing.T) *Spec { return read(t, "webqoe") }

func TestCheckWeb(t *testing.T) {
	if err := webqoe(t).Check().Err(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		spoil func(*Spec)
		want  string
	}{
		{"no site", func(s *Spec) { s.Nodes["server"].Site = nil }, `experiment.server: node "server" serves no pages: give it site`},
		{"no web", func(s *Spec) { s.Experiment.Traffic["map"].Web = nil }, `experiment.traffic.map.web: must be given`},
		{"service", func(s *Spec) { s.Experiment.Traffic["map"].Web.Service = "mail" }, `experiment.traffic.map.web.service: must be one of [map shop], got "mail"`},
		{"http", func(s *Spec) { s.Experiment.Traffic["map"].Web.HTTP = "3" }, `experiment.traffic.map.web.http: must be one of 1.1, 2, got "3"`},
		{"think", func(s *Spec) { s.Experiment.Traffic["map"].Web.Think = -1 }, `experiment.traffic.map.web.think: must not be negative`},
		{"sessions", func(s *Spec) { s.Experiment.Traffic["map"].Web.Sessions = 65 }, `experiment.traffic.map.web.sessions: must be from 0 to 64, got 65`},
		{"seed", func(s *Spec) { s.Experiment.Traffic["map"].Web.Seed = 1 << 63 }, `experiment.traffic.map.web.seed: must be at most`},
		{"duration", func(s *Spec) { s.Experiment.Traffic["map"].Duration = 0 }, `experiment.traffic.map.duration: must be > 0`},
		{"quick", func(s *Spec) { s.Experiment.Traffic["map"].Quick = 0 }, `experiment.traffic.map.quick: must be > 0`},
		{"bytes", func(s *Spec) { s.Experiment.Traffic["map"].Bytes = 1 }, `experiment.traffic.map.bytes: cannot be given in an experiment of kind web`},
		{"events", func(s *Spec) { s.Experiment.Cases[0].Events = []Event{{}} }, `experiment.cases[0].events: cannot be given`},
		{"settings of a case", func(s *Spec) { s.Experiment.Cases[0].Settings.Window = 100000 }, `experiment.cases[0].settings: cannot be given`},
		{"settings of a transport", func(s *Spec) { s.Experiment.Transports["tcp"].InitialWindow = 4 }, `experiment.transports.tcp: must have no settings but congestion, pace and lowat`},
		{"load", func(s *Spec) { s.Experiment.Cases[0].Load = 1 }, `experiment.cases[0].load: must be from 0 to 0.95, got 1`},
		{"load of nothing", func(s *Spec) { s.Experiment.Visitors = nil }, `experiment.cases[0].load: needs a link with a rate between server and client`},
		{"load without a rate", func(s *Spec) { s.Links["path2"].Rate = 0 }, `experiment.cases[0].load: needs a rate of each link of visitors.sites`},
		{"visitors from nowhere", func(s *Spec) { s.Experiment.Visitors.Node = "x" }, `experiment.visitors.node: node "x" is not in nodes`},
		{"visitors to nowhere", func(s *Spec) { s.Experiment.Visitors.Sites = nil }, `experiment.visitors.sites: must name at least one link`},
		{"visitors over nothing", func(s *Spec) { s.Experiment.Visitors.Sites["x"] = netip.MustParseAddr("2001:db8:1:3::1") }, `experiment.visitors.sites.x: link "x" is not in links`},
		{"visitors of a site with TLS", func(s *Spec) { s.Nodes["visited"].Site.Listen[0].Certificate = "x" }, `experiment.visitors.sites.path1: must be an address of a node with a site that has a listener without certificate, got 2001:db8:1:3::1`},
		{"visitors of another kind", func(s *Spec) { s.Experiment.Kind = KindDelivery }, `experiment.visitors: is for experiments of kind web`},
		{"http of a case", func(s *Spec) { s.Experiment.Cases[0].Web.HTTP = "3" }, `experiment.cases[0].web.http: must be one of 1.1, 2, got "3"`},
		{"published without a cell to compare with", func(s *Spec) { s.Experiment.Expect[3].Relative = "" }, `experiment.expect[3].relative: must be transport:NAME or case:NAME with source, got ""`},
		{"published by two bounds", func(s *Spec) { s.Experiment.Expect[3].AtLeast = s.Experiment.Expect[3].AtMost }, `experiment.expect[3]: must have either at_least or at_most with source`},
		{"published of a model", func(s *Spec) { s.Experiment.Expect[3].Metric = result.EstimatedMOS }, `experiment.expect[3].metric: estimated_mos is an estimate of a model`},
		{"published statistic", func(s *Spec) { s.Experiment.Expect[3].Stat = "min" }, `experiment.expect[3].stat: must not be given with source`},
		{"cases of a figure", func(s *Spec) { s.Experiment.Figures[0].Cases = []string{"x*"} }, `experiment.figures[0].cases[0]: case "x*" is not in cases`},
		{"quick of nothing", func(s *Spec) { s.Experiment.Quick.Transports = []string{"tcp", "reno*"} }, `experiment.quick.transports[1]: matches none of tcp, balia`},
		{"form of another kind", func(s *Spec) {
			s.Experiment.Kind = KindDelivery
			s.Experiment.Cases[0].Web.Heavy = true
		}, `experiment.cases[0].web: is for experiments of kind web`},
		{"via", func(s *Spec) { s.Experiment.Transports["tcp"].Via = "x" }, `experiment.transports.tcp.via: cannot be given`},
		{"metric of another kind", func(s *Spec) { s.Experiment.Expect[0].Metric = result.Goodput }, `experiment.expect[0].metric: goodput_bps is for experiments of kind delivery`},
		{"web metric of another kind", func(s *Spec) {
			s.Experiment.Kind = KindDelivery
			s.Experiment.Traffic["map"].Web = nil
		}, `experiment.expect[0].metric: waiting_s is for experiments of kind web`},
		{"web of another kind", func(s *Spec) { s.Experiment.Kind = KindDelivery }, `experiment.traffic.map.web: is for experiments of kind web`},
		{"bars over a parameter", func(s *Spec) { s.Experiment.Figures[0].X = "loss" }, `experiment.figures[0].x: is for figures of kind lines`},
		{"bars of another kind", func(s *Spec) { s.Experiment.Figures[0].Metric = result.Goodput }, `experiment.figures[0].metric: goodput_bps is for experiments of kind delivery`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := webqoe(t)
			tt.spoil(s)
			if got := s.Check().Error(); !strings.Contains(got, tt.want) {
				t.Errorf("got %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestThinkTimes(t *testing.T) {
	for _, tt := range []struct {
		think, quick, sum time.Duration
		inQuick           bool
		want              float64
	}{
		{0, 1, 20, false, 1},
		{10, 1, 20, false, 0.5},
		{30, 1, 20, false, 1},
		{10, 2, 20, true, 0.1},
		{0, 2, 20, true, 0.1},
		{2, 10, 20, true, 0.1}, // a quick pass is never longer
		{10, 2, 0, true, 1},
	} {
		traffic := Traffic{Quick: tt.quick, Web: &Web{Think: tt.think}}
		if got := traffic.ThinkTimes(tt.sum, tt.inQuick); got != tt.want {
			t.Errorf("%+v: got %v", tt, got)
		}
	}
}

func TestLoadsIn(t *testing.T) {
	s := webqoe(t)
	got := s.LoadsIn(s.Experiment.Case("env2"))
	if want := (Load{"visitors", "path2", 9 * unit.MbitPerSecond, "http://[2001:db8:2:3::1]:80", 1}); len(got) != 4 || got[1] != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := s.LoadsIn(s.Experiment.Case("env3")); got != nil {
		t.Errorf("without load: %+v", got)
	}
	// Without visitors of its own: over the links between server and client.
	s.Experiment.Visitors = nil
	s.Links["direct"] = &Link{Shape: Shape{Rate: 8 * unit.MbitPerSecond}, Ends: []End{
		{Node: "client", Addresses: []netip.Prefix{netip.MustParsePrefix("2001:db8:9::2/64")}},
		{Node: "server", Addresses: []netip.Prefix{netip.MustParsePrefix("2001:db8:9::1/64")}},
	}}
	got = s.LoadsIn(s.Experiment.Case("env2"))
	if want := (Load{"client", "direct", 7_200_000, "http://[2001:db8:9::1]:80", 1}); len(got) != 1 || got[0] != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestSelectBars: a figure of all traffic keeps the selected ones.
func TestSelectBars(t *testing.T) {
	s, err := webqoe(t).Select(Selection{Traffic: []string{"shop"}})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.Experiment.Figures); n == 0 || s.Experiment.Figures[0].Traffic != "" {
		t.Errorf("figures: %+v", s.Experiment.Figures)
	}
	if err := s.Check().Err(); err != nil {
		t.Error(err)
	}
}

// TestSelectCasesOfBars: a figure of some cases keeps those that are left, and goes with the last.
func TestSelectCasesOfBars(t *testing.T) {
	s, err := webqoe(t).Select(Selection{Cases: []string{"env1", "env3-h2"}})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string][]string{}
	for _, f := range s.Experiment.Figures {
		for _, c := range f.CasesOf(s.Experiment) {
			names[f.Name] = append(names[f.Name], c.Name)
		}
	}
	if got := strings.Join(names["window"], " ") + ", " + strings.Join(names["window-h2"], " ") + ", " + strings.Join(names["least-path"], " "); got != "env1, env3-h2, env1 env3-h2" || names["window-heavy"] != nil {
		t.Errorf("figures show %v", names)
	}
	if err := s.Check().Err(); err != nil {
		t.Error(err)
	}
}

// TestSelectLines: a figure over a parameter goes with the last case that has its values.
func TestSelectLines(t *testing.T) {
	s := read(t, "webqoe-load")
	quick, err := s.Select(s.Experiment.Quick)
	if err != nil {
		t.Fatal(err)
	}
	if err := quick.Check().Err(); err != nil {
		t.Error(err)
	}
	if n := len(quick.Experiment.Figures); n != 2 || quick.Experiment.Figures[0].Name != "waiting-map-1" {
		t.Errorf("%d figures: %+v", n, quick.Experiment.Figures)
	}
}

// TestFormOfCase: a case changes the form of pages, and not that of the traffic itself.
func TestFormOfCase(t *testing.T) {
	e := webqoe(t).Experiment
	if got := e.TrafficIn(e.Case("env3-heavy"), "map").Web; got.HTTP != HTTP2 || !got.Heavy || got.Service != "map" {
		t.Errorf("got %+v", got)
	}
	if got := e.TrafficIn(e.Case("env3"), "map").Web; got.HTTP == HTTP2 || got.Heavy {
		t.Errorf("the traffic has changed: %+v", got)
	}
}

// TestSelectQuick: a quick pass has the cells that its scenario selects, or those of the caller.
func TestSelectQuick(t *testing.T) {
	s := webqoe(t)
	quick, err := s.Select(s.Experiment.Quick)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(quick.Experiment.Cells()); got != 4*2*4 {
		t.Errorf("%d cells, want those of the paper", got)
	}
	if err := quick.Check().Err(); err != nil {
		t.Error(err)
	}
	if one, err := s.Select(Selection{Cases: []string{"env3-h2"}, Transports: []string{"olia"}}); err != nil || one.Check().Err() != nil {
		t.Errorf("cells that no quick pass has: %v, %v", err, one.Check())
	}
	own := Selection{Transports: []string{"olia"}}.Or(s.Experiment.Quick)
	if len(own.Cases) != 4 || len(own.Transports) != 1 || own.Transports[0] != "olia" {
		t.Errorf("got %+v", own)
	}
}
