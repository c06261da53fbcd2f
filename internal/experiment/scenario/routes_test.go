package scenario

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func routes(t testing.TB) *Spec { return read(t, "epe-routes") }

func TestCheckRoutes(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Spec)
		want   string
	}{
		{"as shipped", func(*Spec) {}, ""},
		{"no routes", func(s *Spec) { s.Experiment.Routes = nil }, "experiment.routes: must say which route changes, and at which peer"},
		{"wrong change", func(s *Spec) { s.Experiment.Cases[0].Change = "flap" }, `experiment.cases[0].change: must be one of announce, withdraw, got "flap"`},
		{"events", func(s *Spec) {
			s.Experiment.Cases[1].Events = []Event{{Set: &LinkSet{Link: "a", Shape: Shape{Rate: 1e6}}}}
			s.Experiment.Traffic["cbr"].EventAt = 2 * time.Second
		}, "experiment.cases[1].events: is for experiments of kind delivery: here the change is the event"},
		{"bulk", func(s *Spec) { *s.Experiment.Traffic["cbr"] = Traffic{Bytes: 1e6, Quick: 1e9} },
			"experiment.traffic.cbr: must be a constant bit rate, which shows when a path is used"},
		{"tcp over nothing", func(s *Spec) {
			s.Experiment.Transports["frr"].MPTCP, s.Experiment.Transports["frr"].Routers = false, "bird"
		},
			`experiment.transports.frr.routers: must be one of embedded, frr, got "bird"
experiment.transports.frr.mptcp: must be true: the server uses an egress peer by MPTCP alone`},
		{"prefix", func(s *Spec) { s.Experiment.Routes.Prefix = prefix("2001:db8:c::1/64") },
			"experiment.routes.prefix: must be an IPv6 prefix without host bits, got 2001:db8:c::1/64"},
		{"denied from the start", func(s *Spec) {
			s.Nodes["client-isp"].Router.Neighbors[0].Deny = append(s.Nodes["client-isp"].Router.Neighbors[0].Deny, prefix("2001:db8:c::/64"))
		}, `experiment.routes.prefix: is in deny of neighbor "transit-a": the network starts with the prefix announced`},
		{"router", func(s *Spec) { s.Experiment.Routes.Router = "client" }, `experiment.routes.router: node "client" has no router section`},
		{"no such router", func(s *Spec) { s.Experiment.Routes.Router = "isp" }, `experiment.routes.router: node "isp" is not in nodes`},
		{"neighbor", func(s *Spec) { s.Experiment.Routes.Neighbor = "transit-c" }, `experiment.routes.neighbor: "transit-c" is not a neighbor of router "client-isp"`},
		{"peer", func(s *Spec) { s.Experiment.Routes.Peer = "transit-c" }, `experiment.routes.peer: must be a peer of the server's edge whose rt an asbr has, got "transit-c"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := routes(t)
			tt.change(s)
			if diff := cmp.Diff(tt.want, s.Check().Error()); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEgressPeer(t *testing.T) {
	s := routes(t)
	server, node, border, ok := s.EgressPeer()
	if !ok || server.Address != addr("2001:db8:1::a") || node != "asbr1" || border.Address != addr("2001:db8:a::2") {
		t.Errorf("got %v %q %v %v", server, node, border, ok)
	}
	s.Nodes["asbr1"].ASBR.Peers = nil
	if _, _, _, ok := s.EgressPeer(); ok {
		t.Error("a peer that no asbr has was found")
	}
}

func TestWithRouters(t *testing.T) {
	s := routes(t)
	for _, tt := range []struct {
		kinds           []string
		transports      []string
		baseline        string
		expected, cells int
	}{
		{[]string{RoutersEmbedded}, []string{"embedded"}, "embedded", 4, 2},
		{[]string{RoutersFRR}, []string{"frr"}, "", 2, 2},
		{[]string{RoutersFRR, RoutersEmbedded}, []string{"embedded", "frr"}, "embedded", 5, 4},
	} {
		got := s.WithRouters(tt.kinds)
		e := got.Experiment
		if !slices.Equal(e.TransportNames(), tt.transports) || e.Baseline != tt.baseline || len(e.Expect) != tt.expected || len(e.Cells()) != tt.cells {
			t.Errorf("%v: transports %v, baseline %q, %d expectations, %d cells", tt.kinds, e.TransportNames(), e.Baseline, len(e.Expect), len(e.Cells()))
		}
		if err := got.Check().Err(); err != nil {
			t.Errorf("%v: %v", tt.kinds, err)
		}
	}
	if len(s.Experiment.Transports) != 2 || len(s.Experiment.Expect) != 5 {
		t.Error("the scenario itself has changed")
	}
	if d := steady(t).WithRouters([]string{RoutersFRR}); len(d.Experiment.Transports) != 2 || len(d.Experiment.Expect) == 0 {
		t.Errorf("a delivery has changed: %v", d.Experiment)
	}
	alone := steady(t)
	alone.Experiment = nil
	if alone.WithRouters(nil) != alone {
		t.Error("a network alone has changed")
	}
}
