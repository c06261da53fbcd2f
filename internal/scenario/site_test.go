package scenario

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/result"
	"github.com/tabane/tabane/internal/unit"
)

func pathNames(paths []gateway.Path) (list []string) {
	for _, p := range paths {
		list = append(list, p.Name)
	}
	return list
}

func TestSectionsOfGateways(t *testing.T) {
	s := read(t, "gateway-pair")
	s.Links["path1"].Shape = Shape{Rate: 1514 * unit.KbitPerSecond}
	s.Links["path2"].Shape = Shape{}
	g := s.SectionsIn(Case{}, "site1").Gateway
	if got, want := g.Paths[0].Rate, gateway.Rate(1500*unit.KbitPerSecond); got.Up != want || got.Down != want {
		t.Errorf("rate %+v, want %v", got, want)
	}
	if got := g.Paths[1].Rate; got.Up != gateway.RateAuto {
		t.Errorf("rate of a link without one: %+v", got)
	}
	if diff := cmp.Diff([]gateway.Endpoint{"[2001:db8:f1::2]:4790", "[2001:db8:f2::2]:4790"}, g.Peers[0].Endpoints); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
	if g.Peers[0].PublicKey != GatewayKey("site2").Public().String() {
		t.Errorf("public key %s", g.Peers[0].PublicKey)
	}
	if s.Nodes["site1"].Gateway.Paths[0].Rate != (gateway.Rates{}) {
		t.Error("the scenario has changed")
	}
}

func TestGatewayInACell(t *testing.T) {
	s := read(t, "gateway-pair")
	e := s.Experiment
	e.Transports["back"] = &Transport{Links: []string{"path2", "path1"}, Gateway: &Gateway{Discipline: "ratio", Ratio: "3:1", Replies: "path2", Resequence: "20ms"}}
	section := func(transport, node string) *gateway.Config {
		return s.GatewayIn(result.CellKey{Case: "fourone", Traffic: "bulk", Transport: transport}, node)
	}
	if g := section("path2", "site1"); !cmp.Equal(pathNames(g.Paths), []string{"path2"}) || !cmp.Equal(g.Peers[0].Endpoints, []gateway.Endpoint{"[2001:db8:f2::2]:4790"}) || g.Policy[0].Discipline.Name != "best" {
		t.Errorf("one path: %+v", g)
	}
	sender, receiver := section("back", "site1"), section("back", "site2")
	if !cmp.Equal(pathNames(sender.Paths), []string{"path2", "path1"}) || sender.Policy[0].Discipline.Ratio != "3:1" {
		t.Errorf("sender: %+v", sender)
	}
	if receiver.Policy[0].Discipline.Ratio != "1:0" || receiver.Policy[0].Resequence.Bound == 0 {
		t.Errorf("receiver: %+v", receiver.Policy)
	}
	for _, node := range s.Gateways() {
		for _, transport := range e.TransportNames() {
			if err := section(transport, node).Check().Err(); err != nil {
				t.Errorf("%s with %s: %v", node, transport, err)
			}
		}
	}
}

func TestCheckOfGateways(t *testing.T) {
	for want, change := range map[string]func(*Spec){
		"nodes.site1.gateway.key: must be left out":                       func(s *Spec) { s.Nodes["site1"].Gateway.Key = "x" },
		"nodes.site1.gateway.peers[0].preshared_key: must be left out":    func(s *Spec) { s.Nodes["site1"].Gateway.Peers[0].PresharedKey = "x" },
		"nodes.site1.gateway: needs forwarding: true":                     func(s *Spec) { s.Nodes["site1"].Forwarding = false },
		"nodes.site1.gateway.peers[0].public_key: want a key":             func(s *Spec) { s.Nodes["site1"].Gateway.Peers[0].Name = "site3" },
		`nodes.site1.gateway.paths[0].interface: node "site1" has no lin`: func(s *Spec) { s.Nodes["site1"].Gateway.Paths[0].Interface = "x" },
	} {
		s := read(t, "gateway-pair")
		change(s)
		if err := s.Check().Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	s := read(t, "gateway-pair")
	if err := s.CheckGateways().Err(); err != nil {
		t.Error(err)
	}
	s.Experiment.Transports["dq"].Links = []string{"path1", "lan1"}
	if err := s.CheckGateways().Err(); err == nil || !strings.Contains(err.Error(), `experiment.transports.dq.links[1]: link "lan1" must be a path of two gateways`) {
		t.Errorf("got %v", err)
	}
}
