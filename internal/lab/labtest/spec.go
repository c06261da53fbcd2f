package labtest

import (
	"net/netip"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/epe/router"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// End is the end of a link with its addresses, which are separated by spaces.
func End(node, iface, addresses string) scenario.End {
	e := scenario.End{Node: node, Interface: iface}
	for _, a := range strings.Fields(addresses) {
		e.Addresses = append(e.Addresses, netip.MustParsePrefix(a))
	}
	return e
}

// Plain is a network without a daemon: a and b on a wire, and both with c on a switch.
func Plain() *scenario.Spec {
	return &scenario.Spec{
		Name: "plain",
		Nodes: map[string]*scenario.Node{
			"a": {Sysctls: map[string]string{"net.ipv6.conf.wire.hop_limit": "77", "net.ipv4.tcp_congestion_control": "reno"}},
			"b": {Forwarding: true},
			"c": {Routes: []scenario.StaticRoute{{Dst: netip.MustParsePrefix("::/0"), Via: netip.MustParseAddr("2001:db8:2::b")}}},
		},
		Links: map[string]*scenario.Link{
			"lan": {Ends: []scenario.End{
				End("a", "lan", "2001:db8:2::a/64 192.0.2.1/24"), End("b", "lan", "2001:db8:2::b/64 192.0.2.2/24"), End("c", "lan", "2001:db8:2::c/64"),
			}},
			"wire": {
				Shape: scenario.Shape{Rate: 10e6}, MTU: 1400,
				Ends: []scenario.End{End("a", "wire", "2001:db8:1::a/64"), End("b", "wire", "2001:db8:1::b/64")},
			},
		},
	}
}

// Routed is a network with one daemon, on node b.
func Routed() *scenario.Spec {
	s := Plain()
	s.Nodes["b"].Router = &router.Config{
		ASN: 65001, RouterID: netip.MustParseAddr("10.0.0.1"), Networks: []netip.Prefix{netip.MustParsePrefix("2001:db8:2::/64")},
		Neighbors: []router.Neighbor{{Name: "a", ASN: 65002, Address: netip.MustParseAddr("2001:db8:1::a"), Interface: "wire"}},
	}
	return s
}

// Experiment is a network with an experiment: b serves a over the wire.
func Experiment() *scenario.Spec {
	s := Plain()
	s.Nodes["b"].Address = netip.MustParseAddr("2001:db8:1::b")
	s.Nodes["b"].Serve = &traffic.Config{Port: 8080}
	zero, one := 0.0, 1.0
	s.Experiment = &scenario.Experiment{
		Server: "b", Client: "a", Trials: 2, Baseline: "tcp",
		Cases: []scenario.Case{
			{Name: "slow", Links: map[string]scenario.Shape{"wire": {Rate: 10e6}}},
			{Name: "fast", Links: map[string]scenario.Shape{"wire": {Rate: 40e6}}},
		},
		Traffic: map[string]*scenario.Traffic{
			"bulk": {Bytes: 300_000, Quick: 200 * time.Millisecond},
			"cbr":  {Rate: 2e6, Duration: 300 * time.Millisecond, Quick: 200 * time.Millisecond},
		},
		Transports: map[string]*scenario.Transport{
			"tcp":   {Links: []string{"wire"}},
			"mptcp": {Links: []string{"wire"}, MPTCP: true},
		},
		Expect: []scenario.Expectation{{Name: "delivers", Metric: result.Bytes, AtLeast: &one}, {Name: "fast enough", Metric: result.EmptyIntervals, AtLeast: &zero}},
	}
	return s
}
