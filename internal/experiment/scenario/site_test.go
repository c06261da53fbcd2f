package scenario

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/gateway"
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

// TestModeInACell: packets are carried as the transport says, which the limit and the daemons
// follow.
func TestModeInACell(t *testing.T) {
	s := read(t, "gateway-pair")
	for name, tt := range map[string]struct {
		mode, seal string
		overhead   int
	}{
		"sealed": {"", "", 92},
		"all":    {"tunnel", "all", 92},
		"none":   {"", "none", 72},
		"plain":  {"plain", "", 0},
	} {
		tr := &Transport{Links: []string{"path1", "path2"}, Gateway: &Gateway{Discipline: "dq", Mode: tt.mode, Seal: tt.seal}}
		s.Experiment.Transports[name] = tr
		if err := s.Check().Err(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		p := s.GatewayIn(result.CellKey{Case: s.Experiment.Cases[0].Name, Transport: name}, "site1").Peers[0]
		if _, auto := tr.Gateway.Hold(); p.Mode != tt.mode || p.Seal != tt.seal || s.Overhead(tr).Tunnel != tt.overhead || auto != (tt.overhead == 92) {
			t.Errorf("%s: mode %q, seal %q, %+v, held %t", name, p.Mode, p.Seal, s.Overhead(tr), auto)
		}
	}
	s.Nodes["site1"].Gateway.Peers[0].Mode = "plain"
	if err := s.Check().Err(); err == nil || !strings.Contains(err.Error(), "nodes.site1.gateway.peers[0].mode: must be left out") {
		t.Errorf("a peer's own mode: %v", err)
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

// TestSweep: the simulator runs what it can, and gateways have wrong rates where the transport says
// so.
func TestSweep(t *testing.T) {
	s := read(t, "gateway-sweep")
	simulated := s.ForSimulator()
	if err := simulated.Check().Err(); err != nil {
		t.Fatal(err)
	}
	for name, transport := range s.Experiment.Transports {
		if _, has := simulated.Experiment.Transports[name]; has != (transport.Congestion != "bbr") {
			t.Errorf("%s is simulated: %v", name, has)
		}
	}
	rates := func(transport string) (list []gateway.Rate) {
		for _, p := range s.GatewayIn(result.CellKey{Case: "fiber-fiber", Traffic: "bulk", Transport: transport}, "site1").Paths {
			list = append(list, p.Rate.Up)
		}
		return list
	}
	right, wrong := rates("auto-cubic"), rates("mixed-cubic")
	if len(wrong) != 2 || wrong[0] != right[0]/10*13 && wrong[0]-right[0]*13/10 > 1 || wrong[1] >= wrong[0]/13*7+10 {
		t.Errorf("gateways have %v instead of %v", wrong, right)
	}
	for text, rates := range map[string][]float64{
		"must have one number for each of the 2 links, got 1": {1}, "[1]: must be from 0.01 to 100, got 0": {1, 0},
	} {
		s := read(t, "gateway-sweep")
		s.Experiment.Transports["mixed-cubic"].Gateway.Rates = rates
		if err := s.Check().Err(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v: %v, want %q", rates, err, text)
		}
	}
}

// TestRoutesAround: without gateways, packets take the link of the transport, in both directions.
func TestRoutesAround(t *testing.T) {
	s := read(t, "gateway-pair")
	s.Experiment.Transports["plain"] = &Transport{Links: []string{"path2"}}
	around := func(transport string) map[string][]StaticRoute {
		return s.RoutesAround(result.CellKey{Case: "equal", Traffic: "bulk", Transport: transport})
	}
	want := map[string][]StaticRoute{
		"site1": {{Dst: netip.MustParsePrefix("2001:db8:2::/64"), Via: netip.MustParseAddr("2001:db8:f2::2")}},
		"site2": {{Dst: netip.MustParsePrefix("2001:db8:1::/64"), Via: netip.MustParseAddr("2001:db8:f2::1")}},
	}
	if got := around("plain"); !reflect.DeepEqual(got, want) {
		t.Errorf("routes %v, want %v", got, want)
	}
	if got := around("dq"); got != nil {
		t.Errorf("routes around gateways that are used: %v", got)
	}
	s.Experiment.Transports["plain"].Links = []string{"lan1"}
	if got := around("plain"); got != nil {
		t.Errorf("routes around gateways over another link: %v", got)
	}
	s.Experiment.Transports["plain"].Links = []string{"path1", "path2"}
	if err := s.CheckGateways().Err(); err == nil || !strings.Contains(err.Error(), `experiment.transports.plain.links[0]: link "path1" is a path of gateways`) {
		t.Errorf("two links without gateways: %v", err)
	}
	proxies := &Transport{Links: []string{"path2", "path1"}, Proxies: true}
	s.Experiment.Transports["plain"] = proxies
	if got := around("plain"); !reflect.DeepEqual(got, want) || s.CheckGateways().Err() != nil {
		t.Errorf("beside proxies: routes %v, want %v, %v", got, want, s.CheckGateways())
	}
	proxies.MPTCP = true
	if err := s.Check().Err(); err == nil || !strings.Contains(err.Error(), "experiment.transports.plain.proxies: is for") {
		t.Errorf("proxies beside MPTCP of the hosts: %v", err)
	}
}

// TestTranslateGateways: with family ipv4, gateways have the addresses of the network.
func TestTranslateGateways(t *testing.T) {
	s := read(t, "gateway-pair")
	g := s.Nodes["site1"].Gateway
	g.Peers[0].Endpoints = []gateway.Endpoint{"[2001:db8:f1::2]:4790", "hq.example:4790"}
	g.Paths[0].Via = []netip.Addr{netip.MustParseAddr("2001:db8:f1::2")}
	s.Family = FamilyIPv4
	if faults := s.Translate(); len(faults) > 0 {
		t.Fatal(faults)
	}
	if g.LAN.Prefixes[0].String() != "10.1.0.0/24" || g.Peers[0].Prefixes[0].String() != "10.2.0.0/24" || g.Paths[0].Via[0].String() != "10.241.0.2" ||
		!slices.Equal(g.Peers[0].Endpoints, []gateway.Endpoint{"10.241.0.2:4790", "hq.example:4790"}) {
		t.Errorf("%+v", g)
	}
	if got := s.SectionsIn(Case{}, "site2").Gateway.Peers[0].Endpoints[1]; got != "10.242.0.1:4790" {
		t.Errorf("endpoint %s", got)
	}
}
