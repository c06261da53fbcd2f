package scenario

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/experiment/result"
)

// TestInOrder checks the bound: the best set of paths, of which a slow one may not be part.
func TestInOrder(t *testing.T) {
	for name, c := range map[string]struct {
		paths  []path
		window float64
		want   float64
	}{
		"no window":              {[]path{{50e6, 0.01}, {50e6, 0.2}}, 0, 100e6},
		"large window":           {[]path{{50e6, 0.01}, {50e6, 0.2}}, 128e6, 100e6},
		"the window limits both": {[]path{{50e6, 0.01}, {50e6, 0.2}}, 12e6, 60e6},
		"better alone":           {[]path{{50e6, 0.01}, {50e6, 0.2}}, 8e6, 50e6},
		"neither":                {[]path{{50e6, 0.1}, {50e6, 0.2}}, 1e6, 10e6},
		"three":                  {[]path{{50e6, 0.01}, {20e6, 0.02}, {50e6, 1}}, 8e6, 70e6},
	} {
		if got := inOrder(c.paths, c.window); math.Abs(got-c.want) > 1 {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestShares(t *testing.T) {
	s, err := read(t, "epe-unequal").Select(Selection{Cases: []string{"p3-1mb"}})
	if err != nil {
		t.Fatal(err)
	}
	var runs []result.Run
	for _, k := range s.Experiment.Cells() {
		rate := map[string]float64{"mptcp-a": 46e6, "mptcp-b": 38e6, "mptcp-epe": 23e6, "tcp-a": 46.92e6, "tcp-b": 39e6}[k.Transport]
		runs = append(runs, result.Run{CellKey: k, Metrics: map[string]float64{result.Goodput: rate, result.LimitRate: 1e9}})
	}
	r, err := s.Conclude(result.Result{Backend: result.BackendLab, Runs: runs})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		transport, traffic, metric string
		want                       float64
	}{
		{"mptcp-epe", "bi", result.ShareOfBest, 0.5}, {"mptcp-epe", "kept", result.ShareOfBest, 0.5}, {"tcp-a", "bi", result.ShareOfBest, 1.02},
		// 1 MB in 200 ms is 40 Mbit/s, less than 46 Mbit/s.
		{"mptcp-epe", "bi", result.ShareOfBound, 0.5},
		{"mptcp-epe", "kept", result.ShareOfBound, -1}, {"mptcp-a", "bi", result.ShareOfBound, -1}, {"tcp-a", "bi", result.ShareOfBound, -1},
	} {
		c, ok := r.Find(result.CellKey{Case: "p3-1mb", Traffic: x.traffic, Transport: x.transport}, x.metric)
		if ok != (x.want > 0) || ok && math.Abs(c.Median-x.want) > 1e-9 {
			t.Errorf("%s %s %s: %v %v, want %v", x.transport, x.traffic, x.metric, c.Median, ok, x.want)
		}
	}
	if s, err = read(t, "epe-unequal").Select(Selection{Transports: []string{"mptcp-epe", "mptcp-a"}}); err != nil {
		t.Fatal(err)
	}
	if len(s.Experiment.BestOf) != 0 || len(s.Experiment.Figures) != 0 || len(s.Experiment.Expect) != 0 {
		t.Errorf("without one of the paths: %v, %d figures, %d expectations", s.Experiment.BestOf, len(s.Experiment.Figures), len(s.Experiment.Expect))
	}
}

// TestUnequalFaults checks the refusals of what these scenarios have new.
func TestUnequalFaults(t *testing.T) {
	for want, change := range map[string]func(s *Spec, e *Experiment){
		`experiment.best_of[0]: must use one link, and transport "mptcp-epe" uses 2`:   func(_ *Spec, e *Experiment) { e.BestOf = []string{"mptcp-epe"} },
		`experiment.best_of[1]: transport "mptcp-a" is named twice`:                    func(_ *Spec, e *Experiment) { e.BestOf = []string{"mptcp-a", "mptcp-a"} },
		`experiment.best_of[0]: transport "x" is not in transports`:                    func(_ *Spec, e *Experiment) { e.BestOf = []string{"x"} },
		`experiment.expect[0].metric: share_of_best needs best_of`:                     func(_ *Spec, e *Experiment) { e.BestOf = nil },
		`experiment.transports.tcp-a.via: must be an egress peer of the server's edge`: func(_ *Spec, e *Experiment) { e.Transports["tcp-a"].Via = "x" },
		`experiment.transports.mptcp-epe.via: is for transports with one link`:         func(_ *Spec, e *Experiment) { e.Transports["mptcp-epe"].Via = "transit-a" },
		`experiment.transports.mptcp-a.via: of a transport with mptcp needs mptcp`:     func(s *Spec, _ *Experiment) { s.Nodes["client"].MPTCP = nil },
		`experiment.traffic.cbr.objects: needs bytes`:                                  func(_ *Spec, e *Experiment) { e.Traffic["cbr"].Objects = 2 },
		`experiment.traffic.kept.objects: must be from 1 to 10000`:                     func(_ *Spec, e *Experiment) { e.Traffic["kept"].Objects = -1 },
		`experiment.traffic.bi.new_connections: needs objects`:                         func(_ *Spec, e *Experiment) { e.Traffic["bi"].NewConnections = true },
		`experiment.cases[0].rates.bi: traffic "bi" has no rate`:                       func(_ *Spec, e *Experiment) { e.Cases[0].Rates = map[string]unit.Bandwidth{"bi": 1} },
		`experiment.transports.mptcp-overflow.use: must be "all" or "overflow"`:        func(_ *Spec, e *Experiment) { e.Transports["mptcp-overflow"].Use = "x" },
		`experiment.transports.tcp-a.use: is for transports with mptcp`:                func(_ *Spec, e *Experiment) { e.Transports["tcp-a"].Use = edge.UseAll },
		`experiment.transports.mptcp-overflow.recall: must be from 0 to 1m0s`:          func(_ *Spec, e *Experiment) { e.Transports["mptcp-overflow"].Recall = time.Hour },
		`experiment.transports.mptcp-epe.begin: needs recall if it is best`:            func(_ *Spec, e *Experiment) { e.Transports["mptcp-epe"].Begin = BeginBest },
		`experiment.transports.mptcp-epe.recall: needs use: overflow, or a delivery`:   func(_ *Spec, e *Experiment) { e.Transports["mptcp-epe"].Recall = time.Second },
		`experiment.transports.mptcp-overflow.use: needs an edge`:                      func(s *Spec, _ *Experiment) { s.Nodes["server"].Edge.MPTCP.PathManager = edge.KernelPathManager },
		`experiment.figures[0]: shows cases`:                                           func(_ *Spec, e *Experiment) { e.Cases[1].Parameters = e.Cases[0].Parameters },
		`experiment.figures[0].transports: must be one, got 10`:                        func(_ *Spec, e *Experiment) { e.Figures[0].Transports = nil },
		`experiment.figures[0]: selects no case`:                                       func(_ *Spec, e *Experiment) { e.Figures[0].Y = "" },
		`experiment.figures[0].y: is for figures of kind heat`:                         func(_ *Spec, e *Experiment) { e.Figures[0].Kind = FigureLines },
	} {
		s := read(t, "epe-unequal")
		change(s, s.Experiment)
		if err := s.Check().Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestDeliveryOfTransports: a mode that the server's edge cannot have is refused, and the simulator
// is not given transports with one.
func TestDeliveryOfTransports(t *testing.T) {
	s := read(t, "epe-clients")
	if left := s.ForSimulator().Experiment.TransportNames(); strings.Join(left, " ") != "tcp-a tcp-b tcp-c" {
		t.Errorf("the simulator has %v", left)
	}
	for want, change := range map[string]func(*Spec, *Transport){
		`single: must be the name of an egress peer, got "transit-x"`: func(_ *Spec, x *Transport) { x.Delivery = edge.Mode{Single: "transit-x"} },
		"spray: must have 1 to 4 egress peers, got 0":                 func(_ *Spec, x *Transport) { x.Delivery = edge.Mode{Spray: []string{}} },
		"is for transports without via, gateway and proxies":          func(_ *Spec, x *Transport) { x.Via, x.Links = "transit-b", []string{"b"} },
		`needs an edge on node "client-isp"`:                          func(s *Spec, _ *Transport) { s.Experiment.Server = "client-isp" },
		"needs the SIDs of egress peers":                              func(s *Spec, _ *Transport) { s.Nodes["server"].Edge.Routes = edge.KernelRoutes },
	} {
		s := read(t, "epe-clients")
		change(s, s.Experiment.Transports["tcp-single"])
		if err := s.Check().Err(); err == nil || !strings.Contains(err.Error(), "tcp-single.delivery") || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// TestChromiumOfTransports: a browser that fetches over anything but HTTP/3 is refused.
func TestChromiumOfTransports(t *testing.T) {
	s := read(t, "epe-clients")
	s.Experiment.Transports["tcp"].Chromium = true
	if err := s.Check().Err(); err == nil || !strings.Contains(err.Error(), "transports.tcp.chromium: is for transports with http3") {
		t.Errorf("%v", err)
	}
}

// TestHTTP3OfTransports: what is not measured over HTTP/3 is refused.
func TestHTTP3OfTransports(t *testing.T) {
	for want, change := range map[string]func(*Spec, *Transport){
		"is for transports without mptcp, proxies and port": func(_ *Spec, x *Transport) { x.MPTCP = true },
		`traffic "bulk" is no download`:                     func(s *Spec, _ *Transport) { s.Experiment.Traffic["bulk"].Upload = true },
	} {
		s := read(t, "epe-clients")
		change(s, s.Experiment.Transports["http3-single"])
		if err := s.Check().Err(); err == nil || !strings.Contains(err.Error(), "http3-single.http3: "+want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}
