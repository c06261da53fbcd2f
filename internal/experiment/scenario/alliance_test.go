package scenario

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/gateway"
)

// TestSectionsOfAnAlliance: a lab sets the keys, endpoints and rates that a scenario leaves out.
func TestSectionsOfAnAlliance(t *testing.T) {
	s := read(t, "gateway-alliance")
	up := 757 * unit.KbitPerSecond
	s.Links["line1"].Shape = Shape{Rate: 1514 * unit.KbitPerSecond, Backward: &linkmodel.Change{Rate: &up}}
	home := []gateway.Endpoint{"198.51.100.1:4790"}
	leader := s.SectionsIn(Case{}, "leader").Gateway
	want := gateway.Member{PublicKey: GatewayKey("member1").Public().String(), Endpoints: []gateway.Endpoint{"172.16.0.2:4790"}}
	if diff := cmp.Diff(want, leader.Paths[1].Member); diff != "" {
		t.Errorf("member (-want +got):\n%s", diff)
	}
	if p := leader.Paths[0]; p.Member.PublicKey != "" || p.Rate.Down == 0 {
		t.Errorf("own path %+v", p)
	}
	if p := leader.Paths[1]; p.Rate != (gateway.Rates{}) {
		t.Errorf("the rate of a path over a member is %+v, want what it offers", p.Rate)
	}
	if diff := cmp.Diff(home, leader.Peers[0].Endpoints); diff != "" {
		t.Errorf("home agent (-want +got):\n%s", diff)
	}
	l := s.SectionsIn(Case{}, "member1").Gateway.Leaders[0]
	const mbit = gateway.Rate(unit.MbitPerSecond)
	if l.PublicKey != GatewayKey("leader").Public().String() || !cmp.Equal(l.HomeAgents, home) || l.Rate != (gateway.Rates{Down: mbit * 3 / 2, Up: mbit * 3 / 4}) {
		t.Errorf("leader %+v", l)
	}
	if p := s.SectionsIn(Case{}, "home").Gateway.Peers[0]; len(p.Endpoints) != 0 || p.PublicKey == "" {
		t.Errorf("peer of the home agent %+v", p)
	}
	if g := s.Nodes["member1"].Gateway.Leaders[0]; g.PublicKey != "" || s.Nodes["leader"].Gateway.Paths[1].Member.PublicKey != "" {
		t.Error("the scenario has changed")
	}
}

// TestAllianceInACell: the leader uses the lines of the transport, and the others are as always.
func TestAllianceInACell(t *testing.T) {
	s := read(t, "gateway-alliance")
	for transport, want := range map[string][]string{"own": {"own"}, "two": {"own", "member1"}, "three": {"own", "member1", "member2"}} {
		k := result.CellKey{Case: "steady", Traffic: "bulk", Transport: transport}
		g := s.GatewayIn(k, "leader")
		if got := pathNames(g.Paths); !slices.Equal(got, want) || g.Policy[0].Discipline.Name != s.Experiment.Transports[transport].Gateway.Discipline {
			t.Errorf("%s: paths %v, policy %+v", transport, got, g.Policy)
		}
		for _, node := range s.Gateways() {
			g := s.GatewayIn(k, node)
			if err := g.Check().Err(); err != nil {
				t.Errorf("%s with %s: %v", node, transport, err)
			}
			if got := len(g.Paths); node != "leader" && got != 1 {
				t.Errorf("%s has %d paths with %s", node, got, transport)
			}
		}
	}
}

func TestCheckOfAnAlliance(t *testing.T) {
	s := read(t, "gateway-alliance")
	if err := s.CheckGateways().Err(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Spec){
		"nodes.leader.gateway.paths[1].member.preshared_key: must be left out": func(s *Spec) { s.Nodes["leader"].Gateway.Paths[1].Member.PresharedKey = "x" },
		"nodes.member1.gateway.leaders[0].preshared_key: must be left out":     func(s *Spec) { s.Nodes["member1"].Gateway.Leaders[0].PresharedKey = "x" },
		"nodes.member1.gateway.leaders[0].rate.down: must be a bandwidth":      func(s *Spec) { s.Links["line1"].Shape = Shape{} },
		"nodes.member1.gateway.leaders[0].public_key: want a key":              func(s *Spec) { s.Nodes["member1"].Gateway.Leaders[0].Name = "home" },
		"nodes.leader.address: 10.9.0.2 is not on an interface":                func(s *Spec) { s.Nodes["leader"].Address = s.Nodes["leader"].Address.Next() },
		`nodes.nat0.masquerade: node "nat0" has no link at interface "eth0"`:   func(s *Spec) { s.Nodes["nat0"].Masquerade = "eth0" },
		"nodes.nat0.masquerade: needs forwarding: true":                        func(s *Spec) { s.Nodes["nat0"].Forwarding = false },
		"transports.two.gateway.discipline: is not possible with lines of an alliance": func(s *Spec) {
			*s.Experiment.Transports["two"].Gateway = Gateway{Discipline: "ratio", Ratio: "2:1"}
		},
		"transports.two.gateway.rates: is not possible":  func(s *Spec) { s.Experiment.Transports["two"].Gateway.Rates = []float64{1, 2} },
		"transports.two.gateway.mode: is not possible":   func(s *Spec) { *s.Experiment.Transports["two"].Gateway = Gateway{Discipline: "dq", Mode: "plain"} },
		"transports.two.gateway.probes: is not possible": func(s *Spec) { s.Experiment.Transports["two"].Gateway.Probes = true },
		`transports.own.links[0]: link "line0" is a line of an alliance`: func(s *Spec) {
			s.Experiment.Transports["own"].Gateway = nil
		},
		`transports.own.links[0]: link "lan" must be a path of two gateways, and is one of 0`: func(s *Spec) {
			s.Experiment.Transports["own"].Links = []string{"lan"}
		},
	} {
		s := read(t, "gateway-alliance")
		change(s)
		faults := append(s.Check(), s.CheckGateways()...)
		if err := faults.Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}
