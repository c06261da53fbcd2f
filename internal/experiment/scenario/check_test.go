package scenario

import (
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/bgp/vpn"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario/scenariotest"
	"github.com/tabane/tabane/scenarios"
)

// steady is a scenario that is shipped.
func steady(t testing.TB) *Spec { return read(t, "epe-steady") }

func read(t testing.TB, name string) *Spec {
	t.Helper()
	var s Spec
	if err := yaml.UnmarshalWithOptions(scenariotest.Text(t, name), &s, yaml.Strict(), scenariotest.Modes()); err != nil {
		t.Fatal(err)
	}
	return &s
}

func TestCheckAcceptsBuiltinScenarios(t *testing.T) {
	if len(scenarios.Names()) == 0 {
		t.Fatal("there are none")
	}
	for _, name := range scenarios.Names() {
		if err := read(t, name).Check().Err(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCheckAcceptsNetworkOnly(t *testing.T) {
	s := steady(t)
	s.Experiment = nil
	if err := s.Check().Err(); err != nil {
		t.Error(err)
	}
}

func TestCheckEmptySpec(t *testing.T) {
	want := `name: must be lower-case letters, digits and inner hyphens, start with a letter and have at most 63 characters, got ""
nodes: must name at least one node`
	if diff := cmp.Diff(want, (&Spec{}).Check().Error()); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

func id(t *testing.T, s string) vpn.ID {
	t.Helper()
	id, err := vpn.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestCheck(t *testing.T) {
	ptr := func(f float64) *float64 { return &f }
	for _, tt := range []struct {
		name  string
		spoil func(*Spec)
		// want are the faults, one per line; "..." at the end stands for the rest of a
		// line.
		want string
	}{
		{"name with a slash", func(s *Spec) { s.Name = "../x" }, `name: must be lower-case letters...`},
		{"sysctl outside net", func(s *Spec) { s.Sysctls["kernel.hostname"] = "x" },
			`sysctls.kernel.hostname: must be a key under net.: a network namespace has no other settings of its own, got "kernel.hostname"`},
		{"sysctl climbing out", func(s *Spec) { s.Sysctls["net/../kernel/hostname"] = "x" }, `sysctls."net/../kernel/hostname": must be a key under net...`},
		{"sysctl without value", func(s *Spec) {
			s.Nodes["client"].Sysctls["net.ipv4.tcp_rmem"], s.Nodes["server"].Sysctls["net.ipv4.tcp_rmem"] = "", ""
		},
			"nodes.client.sysctls.net.ipv4.tcp_rmem: must be a value on one line, got \"\"\nnodes.server.sysctls.net.ipv4.tcp_rmem: must be..."},
		{"neighbor in another AS than it says", func(s *Spec) { s.Nodes["asbr1"].ASBR.Peers[0].ASN = 65010 },
			`nodes.asbr1.asbr.peers[0].asn: node "transit-a" with address 2001:db8:a::2 is in AS 65001 (nodes.transit-a.router.asn), not in AS 65010`},
		{"reflector of another AS", func(s *Spec) { s.Nodes["reflector"].Reflector.ASN = 64999 },
			`nodes.asbr1.asbr.reflectors[0].address: node "reflector" with address 2001:db8:1::fe is in AS 64999...
nodes.asbr2.asbr.reflectors[0].address: node "reflector" with address 2001:db8:1::fe is in AS 64999...
nodes.reflector.reflector.clients[0].address: node "server" with address 2001:db8:1::10 is in AS 65000...
nodes.reflector.reflector.clients[1].address: node "asbr1" with address 2001:db8:1::1 is in AS 65000...
nodes.reflector.reflector.clients[2].address: node "asbr2" with address 2001:db8:1::2 is in AS 65000...
nodes.server.edge.reflectors[0].address: node "reflector" with address 2001:db8:1::fe is in AS 64999...`},
		{"node name in capitals", func(s *Spec) {
			s.Nodes["Extra"] = &Node{}
			s.Links["access"].Ends = append(s.Links["access"].Ends, End{Node: "Extra", Interface: "x"})
		},
			`nodes.Extra: name must be lower-case...`},
		{"numeric node name", func(s *Spec) { s.Nodes["10"] = &Node{} },
			"nodes.10: name must be lower-case...\nnodes.10: is not connected to a link"},
		{"localhost", func(s *Spec) { s.Nodes["localhost"] = &Node{} },
			"nodes.localhost: name must not be \"localhost\", which resolves to the loopback address on every node\nnodes.localhost: is not connected to a link"},
		{"hostile node name", func(s *Spec) { s.Nodes["a\x1b[31m"] = nil },
			`nodes."a\x1b[31m": name must be lower-case...
nodes."a\x1b[31m": is empty: write {} for a host without settings`},
		{"node address elsewhere", func(s *Spec) { s.Nodes["client"].Address = addr("2001:db8::1") },
			"nodes.client.address: 2001:db8::1 is not on an interface of this node"},
		{"unknown node", func(s *Spec) { s.Links["access"].Ends[1].Node = "clinet" },
			`nodes.client: is not connected to a link
nodes.client.routes[0].via: 2001:db8:c::1 is on no network of this node
links.access.ends[1].node: node "clinet" is not in nodes`},
		{"published values", func(s *Spec) {
			s.Experiment.Cases[0].Published = []Published{
				{Metric: "goodput_bps", Traffic: "bi", Value: 1, Source: "x"}, {Metric: "goodput_bps", Value: -1}, {Metric: "speed", Traffic: "x", Transport: "y", Value: 1, Source: "x"},
			}
		}, `experiment.cases[0].published[1].value: must be > 0, got -1
experiment.cases[0].published[1].source: must name the publication
experiment.cases[0].published[1]: is about the same as published[0]
experiment.cases[0].published[2].metric: must be one of...
experiment.cases[0].published[2].traffic: traffic "x" is not in traffic
experiment.cases[0].published[2].transport: transport "y" is not in transports`},
		{"one end", func(s *Spec) { s.Links["extra"] = &Link{Ends: []End{{Node: "client", Interface: "x"}}} },
			"links.extra.ends: must be at least 2, got 1"},
		{"empty link", func(s *Spec) { s.Links["extra"] = nil }, "links.extra: is empty: must have ends"},
		{"link name", func(s *Spec) { s.Links["a b"] = s.Links["access"]; delete(s.Links, "access") },
			`links."a b": name must be lower-case...`},
		{"interface twice", func(s *Spec) { s.Links["a"].Ends[1].Interface = "access" },
			"nodes.client-isp.router.neighbors[0].interface: node \"client-isp\" has no link at interface \"link-a\"\n" +
				"links.access.ends[0].interface: is the second \"access\" of node \"client-isp\""},
		{"interface too long", func(s *Spec) { s.Links["access"].Ends[0].Interface = "sixteen-byte-nam" },
			`links.access.ends[0].interface: must have at most 15 bytes, got "sixteen-byte-nam" (16)`},
		{"interface with slash", func(s *Spec) { s.Links["access"].Ends[0].Interface = "a/b" },
			`links.access.ends[0].interface: must be letters, digits, dots, underscores and hyphens and start with a letter or digit, got "a/b"`},
		{"interface lo", func(s *Spec) { s.Links["access"].Ends[0].Interface = "lo" },
			`links.access.ends[0].interface: must not be "lo", which exists on every node`},
		{"address twice", func(s *Spec) { s.Links["peering-b"].Ends[0].Addresses[0] = prefix("2001:db8:a::1/64") },
			"links.peering-b.ends[0].addresses[0]: 2001:db8:a::1 is already given in links.peering-a.ends[0].addresses[0]"},
		{"multicast address", func(s *Spec) { s.Links["peering-b"].Ends[0].Addresses[0] = prefix("ff02::1/64") },
			"links.peering-b.ends[0].addresses[0]: must be a unicast address of one host, got ff02::1"},
		{"no address", func(s *Spec) { s.Links["peering-b"].Ends[0].Addresses[0] = netip.Prefix{} },
			"links.peering-b.ends[0].addresses[0]: must be an address"},
		{"negative rate", func(s *Spec) { s.Links["a"].Rate = -1 }, "links.a.rate: must not be negative, got -1bit/s"},
		{"negative queue", func(s *Spec) { s.Links["a"].Queue = -time.Second }, "links.a.queue: must not be negative, got -1s"},
		{"queue without rate", func(s *Spec) { s.Links["access"].Queue = time.Second },
			"links.access.queue: needs a rate: nothing waits on a link without one"},
		{"delay and jitter", func(s *Spec) {
			s.Links["a"].Delay, s.Links["a"].Jitter = time.Millisecond, &linkmodel.Jitter{Kind: linkmodel.Uniform, Amount: 2 * time.Millisecond}
		},
			"links.a.jitter.amount: must not be more than the delay, 1ms: nothing arrives before it is sent; got 2ms"},
		{"loss of no kind", func(s *Spec) { s.Links["a"].Loss = &linkmodel.Loss{P: 0.1} }, "links.a.loss.kind: must be random or gilbert-elliott when there is loss"},
		{"queue and buffer", func(s *Spec) {
			s.Links["a"].Queue, s.Links["a"].Buffer = time.Second, &linkmodel.Queue{Limit: linkmodel.Limit{Packets: 1}}
		},
			"links.a.buffer: must have no limit where queue is given: queue is a limit too"},
		{"impossible buffer", func(s *Spec) { s.Links["a"].Buffer = &linkmodel.Queue{Discipline: "fq"} }, `links.a.buffer.discipline: must be drop-tail, red or codel, got "fq"`},
		{"a direction that says nothing", func(s *Spec) { s.Links["a"].Backward = &linkmodel.Change{} },
			"links.a.backward: is empty: give at least one of rate, burst, delay, jitter, slot, loss, duplicate, queue, load"},
		{"an impossible direction", func(s *Spec) { d := -time.Second; s.Links["a"].Forward = &linkmodel.Change{Delay: &d} },
			"links.a.forward.delay: must be from 0s to 1m0s, got -1s"},
		{"impossible delay in a case", func(s *Spec) { s.Experiment.Cases[0].Links["a"] = Shape{Delay: -1} },
			"experiment.cases[0].links.a.delay: must be from 0s to 1m0s, got -1ns"},
		{"an emulated switch", func(s *Spec) { s.Links["csp"].Delay = time.Millisecond },
			"links.csp.ends: must be 2 on a link with more than a rate and a queue, got 4"},
		{"a seed of nothing", func(s *Spec) { s.Links["b"].Seed = 7 }, "links.b.seed: has no effect: nothing is random on this link"},
		{"an emulated link", func(s *Spec) {
			s.Links["a"].Emulate, s.Links["a"].Seed = true, 7
			s.Experiment.Cases[0].Links["b"] = Shape{Rate: unit.MbitPerSecond, Delay: time.Second, Buffer: &linkmodel.Queue{Limit: linkmodel.Limit{Packets: 100}, Discipline: linkmodel.DisciplineCoDel}}
		}, ""},
		{"another wire", func(s *Spec) { s.Links["a"].Wire = "token ring" }, `links.a.wire: must be ethernet or veth, got "token ring"`},
		{"a long trailer", func(s *Spec) { s.Links["a"].Trailer = 65 }, "links.a.trailer: must be 0 to 64 bytes, got 65"},
		{"a negative trailer", func(s *Spec) { s.Links["a"].Trailer = -1 }, "links.a.trailer: must be 0 to 64 bytes, got -1"},
		{"a trailer on veth", func(s *Spec) { s.Links["a"].Wire, s.Links["a"].Trailer = WireVeth, 4 }, "links.a.trailer: has no effect with wire: veth"},
		{"a tag on veth", func(s *Spec) { s.Links["a"].Wire, s.Links["a"].Tagged = WireVeth, true }, "links.a.tagged: has no effect with wire: veth"},
		{"offloads of an emulator", func(s *Spec) {
			on := true
			s.Links["a"].Emulate, s.Links["a"].Offloads = true, &on
		}, "links.a.offloads: must not be true on an emulated link: it carries frames"},
		{"small mtu", func(s *Spec) { s.Links["a"].MTU = 1279 }, "links.a.mtu: must be 1280 to 65535 bytes, got 1279"},
		{"route with host bits", func(s *Spec) { s.Nodes["client"].Routes[0].Dst = prefix("2001:db8::1/32") },
			"nodes.client.routes[0].dst: has host bits set: write 2001:db8::/32 for 2001:db8::1/32"},
		{"route twice", func(s *Spec) { n := s.Nodes["client"]; n.Routes = append(n.Routes, n.Routes[0]) },
			"nodes.client.routes[1].dst: ::/0 is already nodes.client.routes[0].dst"},
		{"route via nowhere", func(s *Spec) { s.Nodes["client"].Routes[0] = StaticRoute{} },
			"nodes.client.routes[0].dst: must be a prefix\nnodes.client.routes[0].via: must be an address"},
		{"route via itself", func(s *Spec) { s.Nodes["client"].Routes[0].Via = addr("2001:db8:c::10") },
			"nodes.client.routes[0].via: 2001:db8:c::10 is this node itself"},
		{"route of two families", func(s *Spec) { s.Nodes["client"].Routes[0].Via = addr("192.0.2.1") },
			"nodes.client.routes[0].via: must be IPv6 for ::/0, got 192.0.2.1"},
		{"mptcp limits", func(s *Spec) { s.Nodes["client"].MPTCP.Subflows = 9 }, "nodes.client.mptcp.subflows: must be at most 8, got 9"},
		{"mptcp beside edge", func(s *Spec) { s.Nodes["server"].MPTCP = &MPTCP{} },
			"nodes.server.mptcp: must be left out: edge sets the limits of this node in edge.mptcp"},
		{"exec of two lines", func(s *Spec) { s.Nodes["transit-a"].Exec = "a\nb" }, `nodes.transit-a.exec: must be a command on one line, got "a\nb"`},
		{"exec of nothing", func(s *Spec) { s.Nodes["transit-a"].Exec = " " }, `nodes.transit-a.exec: must be a command on one line, got " "`},
		{"files without exec", func(s *Spec) { s.Nodes["transit-a"].Files = map[string]string{"a.conf": ""} }, "nodes.transit-a.files: has no effect without exec"},
		{"file elsewhere", func(s *Spec) { n := s.Nodes["transit-a"]; n.Exec, n.Files = "x", map[string]string{"../a": ""} },
			`nodes.transit-a.files."../a": name must be 1 to 64 letters, digits, dots, underscores and hyphens and start with a letter or digit, got "../a"`},
		{"large file", func(s *Spec) {
			n := s.Nodes["transit-a"]
			n.Exec, n.Files = "x", map[string]string{"a": strings.Repeat("x", 1<<20+1)}
		},
			"nodes.transit-a.files.a: must have at most 1048576 bytes, got 1048577"},
		{"server is not waited for", func(s *Spec) { no := false; s.Nodes["server"].Ready = &no }, `experiment.server: node "server" has ready: false, but the experiment has to wait for it`},
		{"nothing is waited for", func(s *Spec) { no := false; s.Nodes["client"].Ready = &no }, "nodes.client.ready: has no effect: the node runs nothing that a lab waits for"},
		{"serve without port", func(s *Spec) { s.Nodes["server"].Serve.Port = 0 }, "nodes.server.serve.port: must be > 0, got 0"},
		{"daemon's own fault", func(s *Spec) { s.Nodes["server"].Edge.Peers[0].RT = vpn.ID{} }, "nodes.server.edge.peers[0].rt: must be given..."},
		{"every daemon is asked", func(s *Spec) {
			s.Nodes["asbr1"].ASBR.ASN, s.Nodes["reflector"].Reflector.ASN, s.Nodes["transit-a"].Router.ASN = 0, 0, 0
		}, "nodes.asbr1.asbr.asn: must be > 0, got 0\nnodes.reflector.reflector.asn: must be > 0, got 0\nnodes.transit-a.router.asn: must be > 0, got 0"},
		{"daemon's interface", func(s *Spec) {
			s.Nodes["server"].Edge.Interface, s.Nodes["asbr1"].ASBR.Peers[0].Interface = "eth0", "eth1"
		},
			"nodes.asbr1.asbr.peers[0].interface: node \"asbr1\" has no link at interface \"eth1\"\n" +
				"nodes.server.edge.interface: node \"server\" has no link at interface \"eth0\""},
		{"daemon's address", func(s *Spec) {
			s.Nodes["reflector"].Reflector.Address, s.Nodes["asbr1"].ASBR.Address = addr("2001:db8:1::fd"), addr("2001:db8:1::3")
		},
			"nodes.asbr1.asbr.address: 2001:db8:1::3 is not on an interface of node \"asbr1\"\n" +
				"nodes.reflector.reflector.address: 2001:db8:1::fd is not on an interface of node \"reflector\""},
		{"locators overlap", func(s *Spec) { s.Nodes["asbr2"].ASBR.Locator.Prefix = prefix("fc00:1:8000::/33") },
			"nodes.asbr2.asbr.locator.prefix: fc00:1:8000::/33 overlaps fc00:1::/32 of nodes.asbr1.asbr.locator.prefix"},
		{"route target twice", func(s *Spec) { s.Nodes["asbr2"].ASBR.Peers[0].RT = s.Nodes["asbr1"].ASBR.Peers[0].RT },
			"nodes.asbr2.asbr.peers[0].rt: 65000:101 is already used in nodes.asbr1.asbr.peers[0].rt: servers could not distinguish the peers"},
		{"route distinguisher of another's default", func(s *Spec) { s.Nodes["asbr2"].ASBR.Peers[0].RD = id(t, "10.0.0.1:1") },
			"nodes.asbr2.asbr.peers[0].rd: 10.0.0.1:1 is already used in nodes.asbr1.asbr.peers[0].rd: reflectors would keep one peer's routes only"},
		{"router ID twice in an AS", func(s *Spec) { s.Nodes["server"].Edge.RouterID = addr("10.0.0.254") },
			"nodes.server.edge.router_id: 10.0.0.254 in AS 65000 is already nodes.reflector.reflector.router_id"},
		{"router ID twice in two ASes", func(s *Spec) { s.Nodes["transit-b"].Router.RouterID = addr("10.0.0.254") }, ""},
		{"EPE address twice", func(s *Spec) {
			other := *s.Nodes["server"].Edge
			other.RouterID, other.Interface = addr("10.0.0.11"), "lan"
			s.Nodes["reflector"].Edge = &other
		}, "nodes.server.edge.peers[0].address: 2001:db8:1::a is already used in nodes.reflector.edge.peers[0].address\n" +
			"nodes.server.edge.peers[1].address: 2001:db8:1::b is already used in nodes.reflector.edge.peers[1].address"},
		{"EPE address of an interface", func(s *Spec) { s.Nodes["server"].Edge.Peers[1].Address = addr("2001:db8:1::2") },
			"nodes.server.edge.peers[1].address: 2001:db8:1::2 is already given in links.csp.ends[3].addresses[0]: an EPE address belongs to edge alone"},

		{"empty experiment", func(s *Spec) { s.Experiment = &Experiment{} }, `experiment.server: must name a node
experiment.client: must name a node
experiment.trials: must be at least 1, got 0
experiment.cases: must have at least one case
experiment.traffic: must name at least one kind of traffic
experiment.transports: must name at least one transport`},
		{"unknown kind", func(s *Spec) { s.Experiment.Kind, s.Experiment.Trials = "route", 0 },
			`experiment.kind: must be one of delivery, routes, web, got "route"`},
		{"delivery with parts of routes", func(s *Spec) {
			s.Experiment.Routes, s.Experiment.Cases[1].Change, s.Experiment.Transports["tcp"].Routers = &Routes{}, ChangeAnnounce, RoutersFRR
		}, `experiment.routes: is for experiments of kind routes
experiment.cases[1].change: is for experiments of kind routes
experiment.transports.tcp.routers: is for experiments of kind routes`},
		{"server serves nothing", func(s *Spec) { s.Experiment.Server = "asbr1" }, `experiment.server: node "asbr1" serves nothing: give it serve`},
		{"client is server", func(s *Spec) { s.Experiment.Client = "server" }, `experiment.client: must be another node than the server, got "server"`},
		{"case names", func(s *Spec) { s.Experiment.Cases[0].Name, s.Experiment.Cases[3].Name = "a/b", "1.2" },
			"experiment.cases[0].name: must be letters, digits...\nexperiment.cases[3].name: 1.2 is already experiment.cases[1].name"},
		{"case links", func(s *Spec) { s.Experiment.Cases[0].Links["c"] = Shape{Queue: 1} },
			"experiment.cases[0].links.c: link \"c\" is not in links\nexperiment.cases[0].links.c.queue: needs a rate..."},
		{"neither bulk nor cbr", func(s *Spec) { s.Experiment.Traffic["bi"].Bytes = 0 }, "experiment.traffic.bi: must have bytes, or rate and duration"},
		{"bulk and cbr", func(s *Spec) { s.Experiment.Traffic["cbr"].Bytes = 1 },
			"experiment.traffic.cbr: must have either bytes or rate, got both"},
		{"cbr without duration", func(s *Spec) { s.Experiment.Traffic["cbr"].Duration = 0 }, "experiment.traffic.cbr.duration: must be given with rate"},
		{"cbr without rate", func(s *Spec) { s.Experiment.Traffic["cbr"].Rate = 0 }, "experiment.traffic.cbr.rate: must be given with duration, or bytes"},
		{"negative traffic", func(s *Spec) {
			*s.Experiment.Traffic["bi"] = Traffic{Bytes: -1, Quick: -1}
			*s.Experiment.Traffic["cbr"] = Traffic{Rate: -1, Duration: -1, Quick: 1}
		}, "experiment.traffic.bi.bytes: must not be negative, got -1B\nexperiment.traffic.bi.quick: must be > 0, got -1ns\n" +
			"experiment.traffic.cbr.rate: must not be negative, got -1bit/s\nexperiment.traffic.cbr.duration: must not be negative, got -1ns"},
		{"empty traffic and transport", func(s *Spec) { s.Experiment.Traffic["bi"], s.Experiment.Transports["tcp"] = nil, nil },
			"experiment.traffic.bi: is empty: must have bytes, or rate and duration\nexperiment.transports.tcp: is empty: must have links"},
		{"transport links", func(s *Spec) {
			s.Experiment.Transports["tcp"].Links = nil
			s.Experiment.Transports["mptcp-epe"].Links = []string{"a", "a", "z"}
		}, "experiment.transports.mptcp-epe.links[1]: link \"a\" is named twice\nexperiment.transports.mptcp-epe.links[2]: link \"z\" is not in links\n" +
			"experiment.transports.tcp.links: must name at least one link that a connection can use: no nodes with forwarding lead from server to client, so that none is chosen"},
		{"baseline", func(s *Spec) { s.Experiment.Baseline = "udp" }, `experiment.baseline: transport "udp" is not in transports`},
		{"expectation of nothing", func(s *Spec) { s.Experiment.Expect = []Expectation{{}} },
			"experiment.expect[0].name: must say what is expected\nexperiment.expect[0].metric: must be one of goodput_bps...\n" +
				"experiment.expect[0]: must have at_least or at_most"},
		{"expectations that could not hold", func(s *Spec) {
			x := s.Experiment.Expect
			x[0] = Expectation{Name: "x", Metric: result.BestPath, AtLeast: ptr(2)}
			x[1] = Expectation{Name: "y", Metric: result.TimeToLimit, Case: "1.2", AtMost: ptr(2)}
			x[2] = Expectation{Name: "z", Metric: result.ReseqDelayMax, Transport: "tcp", Relative: result.OwnPart, AtMost: ptr(2)}
		}, `experiment.expect[0].metric: best_path_s is for experiments of kind routes
experiment.expect[1].metric: time_to_limit_s needs events, and case "1.2" has none
experiment.expect[2].metric: reseq_delay_max_s is for transports with mptcp, and "tcp" has none
experiment.expect[2].relative: own_part_s is for experiments of kind routes`},
		{"expectation of the unknown", func(s *Spec) {
			s.Experiment.Expect[0] = Expectation{Name: "x", Metric: "speed", Case: "2.1", Traffic: "web", Transport: "udp", Stat: "p99",
				Relative: "transport:udp", AtLeast: ptr(math.NaN())}
			s.Experiment.Expect[1] = Expectation{Name: "x", Metric: result.Goodput, Transport: "tcp", Relative: "transport:tcp", AtLeast: ptr(2), AtMost: ptr(1)}
			s.Experiment.Expect[2] = Expectation{Name: "y", Metric: result.Goodput, Relative: "speed", AtLeast: ptr(2)}
			s.Experiment.Expect[3] = Expectation{Name: "z", Metric: result.Goodput, Relative: result.Goodput, AtLeast: ptr(2)}
		}, `experiment.expect[0].metric: must be one of...
experiment.expect[0].case: case "2.1" is not in cases
experiment.expect[0].traffic: traffic "web" is not in traffic
experiment.expect[0].transport: transport "udp" is not in transports
experiment.expect[0].stat: must be one of median, min, max, mean, q1, q3, got "p99"
experiment.expect[0].relative: transport "udp" is not in transports
experiment.expect[0].at_least: must be a finite number, got NaN
experiment.expect[1].name: x is already experiment.expect[0].name
experiment.expect[1].relative: must be another transport than the expectation's own, got "tcp"
experiment.expect[1].at_most: must be at least at_least (2), got 1
experiment.expect[2].relative: must be transport:NAME, case:NAME or one of...
experiment.expect[3].relative: must be another metric than the expectation's own, got "goodput_bps"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := steady(t)
			tt.spoil(s)
			got := strings.Split(s.Check().Error(), "\n")
			want := strings.Split(tt.want, "\n")
			for i := range min(len(got), len(want)) {
				if head, cut := strings.CutSuffix(want[i], "..."); cut && strings.HasPrefix(got[i], head) {
					got[i] = want[i]
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}
