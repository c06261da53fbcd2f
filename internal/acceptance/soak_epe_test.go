package acceptance

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	labs "github.com/tabane/tabane/internal/lab"
)

const (
	// defaultSoak is how long a plain test disturbs the network. TABANE_SOAK sets another
	// duration, and TABANE_SEED repeats a run.
	defaultSoak = time.Minute
	// bfdTime is how long after a packet that was lost BFD as configured here detects the loss of a
	// neighbor, and some.
	bfdTime = time.Second
	// Downloads of streamTime at streamRate.
	streamTime  = 15
	streamRate  = 1000000 // bit/s
	soakLocator = "fc00::/16"
)

var (
	// soakClients are the networks that are served, soakPrefixes what is advertised to the peers,
	// and soakAlways what all peers advertise, in IPv6 and IPv4.
	soakClients  = []string{"2001:db8:c::/64", "10.12.0.0/24"}
	soakPrefixes = []string{"2001:db8:1::/64", "10.1.0.0/24"}
	soakAlways   = []string{"2001:db8:f0::/48", "10.240.0.0/16"}
	// soakPool are the prefixes that peers advertise and withdraw.
	soakPool = []string{
		"2001:db8:100::/40", "2001:db8:100::/48", "2001:db8:100:1::/64", "2001:db8:101::/48", "2001:db8:200::/48", "2001:db8:200:1::/64",
		"10.100.0.0/16", "10.100.0.0/24", "10.100.1.0/24", "10.101.0.0/24", "10.200.0.0/16", "10.200.1.0/24",
	}
	// soakHijacks are advertised and never believed: space of ours, SIDs, peering links, bogons,
	// what is too long. soakAttractive would draw return traffic away at any provider of the
	// client, so only peers that are none advertise them.
	soakHijacks = []string{
		"2001:db8:1::fe/128", "fc00:1:1::/128", "fc00:2::/32", "fc00::/16", "2001:db8:a1::/64", "2001:db8:a0::1/128", "fd00::/16", "2001:db8:f::/65",
		"10.1.0.254/32", "10.161.0.0/24", "10.160.0.1/32", "240.0.0.1/32", "100.64.0.0/16", "10.15.0.0/25",
	}
	soakAttractive = []string{soakPrefixes[0], "2001:db8:1::11/128", soakPrefixes[1], "10.1.0.17/32"}
)

// soakPeer is an egress peer and what a soak has made of it.
type soakPeer struct {
	egressPeer
	index, asn, id int
	// provider: the client is reached through it. bfd: its sessions have BFD.
	provider, bfd bool
	// running: the peer's router. wan: the link to the border router forwards. isp: that to the
	// client's provider. configured: its border router has it.
	running, wan, isp, configured bool
	// networks are advertised, hijacks as well. withheld are those of soakClients that the client's
	// provider does not advertise to it.
	networks, hijacks, withheld []string
}

// soakBorder is a border router and what a soak has made of it.
type soakBorder struct {
	name, address          string
	running, core, drained bool
}

// soakServer is a server and what a soak has made of it.
type soakServer struct {
	egressServer
	running bool
	without int // the peer that it is configured without, or -1
}

// soakReflector is a reflector; up: it runs, and its link works.
type soakReflector struct {
	name, address string
	up            bool
}

// soakTest is the dual-stack network of a content provider with 3 border routers, 8 egress peers, 2
// reflectors and 2 servers, and the model of what it must do. Each peer has a session in IPv6 and
// one in IPv4.
type soakTest struct {
	*egressJudge
	*soak
	opened     *labs.Lab
	daemons    *daemons
	peers      []*soakPeer
	borders    []*soakBorder
	servers    []*soakServer
	reflectors []*soakReflector
	// reflectorUp is when a reflector, or the sessions of a server with them, were last restored.
	reflectorUp time.Time
	// files are the configuration files as the lab made them, by node.
	files map[string]map[string]section
	// undisturbed is the kernel state of each node without any disturbance.
	undisturbed map[string][]string
	memory      map[*instance]*usage
	streams     streams
	// sessions and opened files of each daemon without any disturbance.
	sessions, files0 map[string]int
}

// newSoak returns the network as it starts.
func newSoak() *soakTest {
	s := &soakTest{files: map[string]map[string]section{}, undisturbed: map[string][]string{}, memory: map[*instance]*usage{}, reflectorUp: time.Now(), sessions: map[string]int{}, files0: map[string]int{}}
	for k := range 3 {
		s.borders = append(s.borders, &soakBorder{name: fmt.Sprint("asbr", k+1), address: fmt.Sprint("2001:db8:1::", k+1), running: true, core: true})
	}
	for j, address := range []string{"2001:db8:1::fd", "2001:db8:1::fe"} {
		s.reflectors = append(s.reflectors, &soakReflector{name: fmt.Sprint("reflector", j+1), address: address, up: true})
	}
	for m := range 2 {
		s.servers = append(s.servers, &soakServer{egressServer: egressServer{name: fmt.Sprint("server", m+1), address: fmt.Sprintf("2001:db8:1::1%d", m+1), address4: fmt.Sprint("10.1.0.", 17+m)}, running: true, without: -1})
	}
	ids := map[int]int{}
	for i, border := range []int{0, 0, 1, 1, 2, 2, 0, 1} {
		ids[border]++
		letter := string(rune('a' + i))
		p := &soakPeer{
			egressPeer: egressPeer{
				name: "transit-" + letter, border: s.borders[border].name, link: "wan-" + letter, lan: fmt.Sprintf("2001:db8:a%d::/64", i),
				lan4: fmt.Sprintf("10.%d.0.0/24", 0xa0+i), sid: fmt.Sprintf("fc00:%d:%d::", border+1, ids[border]), sid4: fmt.Sprintf("fc00:%d:10%d::", border+1, ids[border]),
				direct: i%3 == 1,
			},
			index: i, asn: 65001 + i, id: ids[border], provider: i < 6, bfd: border == 0,
			running: true, wan: true, isp: true, configured: true,
			networks: slices.Concat(soakAlways, []string{soakPool[i%6], soakPool[(i+2)%6], soakPool[6+(i+1)%6], soakPool[6+(i+4)%6]}),
		}
		for m := range s.servers {
			host := 0x20*(m+1) + i
			p.epe, p.epe4 = append(p.epe, fmt.Sprintf("2001:db8:1::%x", host)), append(p.epe4, fmt.Sprint("10.1.0.", host))
		}
		s.peers = append(s.peers, p)
	}
	return s
}

// net is the network as the judge of packets sees it.
func (s *soakTest) egressNet() egressNet {
	n := egressNet{
		inside: "reflector2", insideAddress: netip.MustParseAddr("2001:db8:1::fe"), insideAddress4: netip.MustParseAddr("10.1.0.254"),
		own: []netip.Prefix{netip.MustParsePrefix(soakPrefixes[0]), netip.MustParsePrefix(soakPrefixes[1]), netip.MustParsePrefix(soakLocator)},
		targets: []string{
			"2001:db8:110::1", "2001:db8:100::1", "2001:db8:100:1::1", "2001:db8:101::1", "2001:db8:200::1", "2001:db8:200:1::1",
			"2001:db8:f0::1", "2001:db8:eeee::1", "2001:db8:1::77", "fc00:2:9::1", "2001:db8:c::77",
			"10.100.9.1", "10.100.0.1", "10.100.1.1", "10.101.0.1", "10.200.9.1", "10.200.1.1",
			"10.240.0.1", "10.77.0.1", "10.1.0.77", "240.0.0.1", "10.12.0.77",
		},
	}
	for _, p := range s.peers {
		n.peers = append(n.peers, p.egressPeer)
	}
	for _, m := range s.servers {
		n.servers = append(n.servers, m.egressServer)
	}
	return n
}

// scenario writes the scenario of the network and returns its file.
func (s *soakTest) scenario(t *testing.T) string {
	t.Helper()
	const bfd = "bfd: {interval: 100ms, multiplier: 3}"
	var b strings.Builder
	list := func(prefixes []string) string { return `["` + strings.Join(prefixes, `", "`) + `"]` }
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("name: soak\nfamily: dual\nnodes:")
	for m, server := range s.servers {
		line("  %s:\n    edge:\n      asn: 65000\n      router_id: 10.0.0.1%d\n      interface: lan\n      address: %s\n      prefix: %s", server.name, m, server.address, soakPrefixes[0])
		line("      reflectors: [{address: 2001:db8:1::fd, %s}, {address: 2001:db8:1::fe, %s}]\n      locators: [%s]\n      peers:", bfd, bfd, soakLocator)
		for i, p := range s.peers {
			line("        - {name: %s, rt: \"65000:%d\", address: \"%s\", table: %d}", p.name, 101+i, p.epe[m], 101+i)
		}
		line("    serve: {port: 80}")
	}
	for j, r := range s.reflectors {
		line("  %s:\n    reflector:\n      asn: 65000\n      router_id: 10.0.0.25%d\n      address: %s\n      clients:", r.name, j+1, r.address)
		for _, server := range s.servers {
			line("        - {name: %s, address: \"%s\", %s}", server.name, server.address, bfd)
		}
		for _, border := range s.borders {
			line("        - {name: %s, address: \"%s\", %s}", border.name, border.address, bfd)
		}
	}
	var lans []string
	for _, p := range s.peers {
		lans = append(lans, p.lan)
	}
	for k, border := range s.borders {
		line("  %s:\n    forwarding: true\n    asbr:\n      asn: 65000\n      router_id: 10.0.0.%d\n      address: %s", border.name, k+1, border.address)
		line("      locator: {prefix: \"fc00:%d::/32\", block: 16}\n      prefixes: [%s]", k+1, soakPrefixes[0])
		line("      import: {max_length: 64, allow_bogons: [\"2001:db8::/32\", 10.0.0.0/8], deny: %s}", list(lans))
		line("      reflectors: [{address: 2001:db8:1::fd, %s}, {address: 2001:db8:1::fe, %s}]\n      peers:", bfd, bfd)
		for _, p := range s.peers {
			if p.border == border.name {
				line("        - {name: %s, asn: %d, address: \"%s\", interface: %s, id: %d, table: %d, rt: \"65000:%d\", local_pref: %d%s%s}", p.name, p.asn,
					p.address(2), p.link, p.id, 101+p.index, 101+p.index, 200-p.index, map[bool]string{true: ", " + bfd}[p.bfd],
					map[bool]string{true: ", behavior: end.dx6"}[p.direct])
			}
		}
	}
	for i, p := range s.peers {
		line("  %s:\n    forwarding: true\n    router:\n      asn: %d\n      router_id: 10.%d.0.1\n      networks: %s\n      neighbors:", p.name, p.asn, i+1, list(soakAlways[:1]))
		line("        - {name: %s, asn: 65000, address: \"%s\", interface: csp%s}", p.border, p.address(1), map[bool]string{true: ", " + bfd}[p.bfd])
		if p.provider {
			// What it originates and what it hijacks is for the border router alone.
			line("        - {name: client-isp, asn: 65100, address: \"2001:db8:b%d::2\", interface: isp, deny: %s}", i,
				list(slices.Concat(soakAlways[:1], soakPool, soakHijacks)))
		}
	}
	line("  client-isp:\n    forwarding: true\n    router:\n      asn: 65100\n      router_id: 10.100.0.1\n      networks: [%s]\n      neighbors:", soakClients[0])
	for i, p := range s.peers {
		if p.provider {
			line("        - {name: %s, asn: %d, address: \"2001:db8:b%d::1\", interface: link-%d, deny: [\"%s\"]}", p.name, p.asn, i, i, soakPrefixes[0])
		}
	}
	line("  client:\n    routes: [{dst: \"::/0\", via: \"2001:db8:c::1\"}]\n    mptcp: {subflows: 8, add_addr_accepted: 8}\nlinks:\n  csp:\n    ends:")
	for _, server := range s.servers {
		line("      - {node: %s, interface: lan, addresses: [\"%s/64\"]}", server.name, server.address)
	}
	for _, r := range s.reflectors {
		line("      - {node: %s, interface: lan, addresses: [\"%s/64\"]}", r.name, r.address)
	}
	for _, border := range s.borders {
		line("      - {node: %s, interface: lan, addresses: [\"%s/64\"]}", border.name, border.address)
	}
	for i, p := range s.peers {
		line("  peering-%d:\n    ends:\n      - {node: %s, interface: %s, addresses: [\"%s/64\"]}\n      - {node: %s, interface: csp, addresses: [\"%s/64\"]}",
			i, p.border, p.link, p.address(1), p.name, p.address(2))
		if p.provider {
			line("  isp-%d:\n    ends:\n      - {node: %s, interface: isp, addresses: [\"2001:db8:b%d::1/64\"]}\n      - {node: client-isp, interface: link-%d, addresses: [\"2001:db8:b%d::2/64\"]}",
				i, p.name, i, i, i)
		}
	}
	line("  access:\n    ends:\n      - {node: client-isp, interface: access, addresses: [\"2001:db8:c::1/64\"]}\n      - {node: client, interface: isp, addresses: [\"2001:db8:c::10/64\"]}")
	file := filepath.Join(t.TempDir(), "soak.yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// address returns an address on the link to the border router, whose is 1; the peer's is 2.
func (p *egressPeer) address(host int) string {
	return strings.Replace(p.lan, "::/64", fmt.Sprint("::", host), 1)
}

// addresses are the IPv6 and the IPv4 address of a host on the link to the border router.
func (p *egressPeer) addresses(host int) [2]string {
	return [2]string{p.address(host), strings.Replace(p.lan4, ".0/24", fmt.Sprint(".", host), 1)}
}

// soakFlags select IPv6 and IPv4 in commands of iproute2.
var soakFlags = [2]string{"-6", "-4"}

// soakLength returns how long a soak takes, by what bounds are multiplied, since other tests run
// beside a plain one, and the seed.
func soakLength(t *testing.T, plain time.Duration) (duration, patience time.Duration, seed int) {
	t.Helper()
	seed = number(t, "TABANE_SEED", int(time.Now().UnixNano()&0xffffff))
	duration, patience = plain, 5
	if text := os.Getenv("TABANE_SOAK"); text != "" {
		var err error
		if duration, err = time.ParseDuration(text); err != nil {
			t.Fatalf("TABANE_SOAK: %v", err)
		}
		patience = 1
	}
	t.Logf("TABANE_SOAK=%s TABANE_SEED=%d", duration, seed)
	return duration, patience, seed
}

// ofFamily returns the prefixes and addresses of the list that are of the family of a flag.
func ofFamily(flag string, list []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(x string) bool { return strings.Contains(x, ":") != (flag == "-6") })
}

// named returns the name in a file without what distinguishes the IPv4 part of a dual-stack peer.
func named(x any) string { return strings.TrimSuffix(x.(map[string]any)["name"].(string), "-ipv4") }

// TestSoak disturbs the network at random under traffic. Throughout, no packet arrives at a peer
// that did not advertise its destination, no connection is lost, all routes, SIDs and rules are
// what they must be within 2 s, and no daemon keeps memory or files. At the end nothing is left.
func TestSoak(t *testing.T) {
	duration, patience, seed := soakLength(t, defaultSoak)
	s := newSoak()
	lab := up(t, s.scenario(t))
	opened, err := labs.Open(lab.name)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	s.opened, s.egressJudge = opened, lab.judge(s.egressNet())
	s.soak = &soak{t: t, machine: s.egressJudge.machine, patience: patience, seed: uint64(seed), parts: s.partsOf, permits: s.permits, missing: s.missing, ready: s.ready, each: s.measure, whole: s.checkWhole}
	s.soak.table = s.disturbances()
	names := []string{"client-isp router"}
	for _, r := range s.reflectors {
		names = append(names, r.name+" reflector")
	}
	for _, x := range s.servers {
		names = append(names, x.name+" edge")
	}
	for _, x := range s.borders {
		names = append(names, x.name+" asbr")
	}
	for _, p := range s.peers {
		names = append(names, p.name+" router")
		s.advertises(p.index, p.advertised(), time.Now().Add(-time.Hour))
	}
	s.daemons = lab.daemons(names...)
	s.soak.thoughts = func() string {
		var text strings.Builder
		for _, server := range s.servers {
			fmt.Fprintf(&text, "%s:\n%s\n", server.name, strings.Join(s.state(server.name), "\n"))
		}
		return text.String() + s.daemons.thoughts()
	}
	for _, name := range names {
		node, _, _ := strings.Cut(name, " ")
		b, err := os.ReadFile(s.file(node))
		if err == nil {
			var f map[string]section
			err = json.Unmarshal(b, &f)
			s.files[node] = f
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range s.peers {
		s.originate(p) // some of it has no counterpart in the other family, unlike what a scenario names
	}
	stop := s.traffic(t, uint64(seed))
	s.startStreams()
	s.soak.run(duration)
	s.endStreams()
	time.Sleep(propagation)
	stop()
	s.verdict(t)
	s.judgeMemory()
	s.checkLogs()
	s.checkStop()
}

func (s *soakTest) file(node string) string {
	return filepath.Join("/run/tabane/lab", s.lab.name, node+".yaml")
}

// The model.

// session reports whether the peer has a session with its border router, if that is running.
func (p *soakPeer) session() bool { return p.running && p.wan && p.configured }

// advertised are the routes that the peer advertises to its border router and that are accepted.
func (p *soakPeer) advertised() []string {
	if !p.session() {
		return nil
	}
	routes := slices.Clone(p.networks)
	for _, client := range soakClients {
		if p.provider && p.isp && !slices.Contains(p.withheld, client) {
			routes = append(routes, client)
		}
	}
	slices.Sort(routes)
	return routes
}

func (s *soakTest) border(p *soakPeer) *soakBorder {
	return s.borders[slices.IndexFunc(s.borders, func(b *soakBorder) bool { return b.name == p.border })]
}

// served are the routes of the peer that servers use.
func (s *soakTest) served(p *soakPeer) []string {
	if b := s.border(p); !b.running || !b.core || b.drained {
		return nil
	}
	return p.advertised()
}

// change changes the model and the network, and notes what each peer advertises before and after.
// Border routers detect what is withdrawn within the given time.
func (s *soakTest) change(detected time.Duration, model, network func()) {
	s.lab.t.Helper()
	now := time.Now()
	before := make([][]string, len(s.peers))
	for i, p := range s.peers {
		before[i] = p.advertised()
	}
	model()
	for i, p := range s.peers {
		s.advertises(i, slices.Concat(before[i], p.advertised()), now)
	}
	network()
	for i, p := range s.peers {
		s.advertises(i, p.advertised(), time.Now().Add(detected))
	}
}

// missing returns how the kernels differ from the model.
func (s *soakTest) missing() string {
	var faults strings.Builder
	compare := func(node, what string, got, want []string) {
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			fmt.Fprintf(&faults, "%s: %s: has %v, want %v\n", node, what, got, want)
		}
	}
	for _, server := range s.servers {
		if !server.running {
			continue
		}
		var all []string // of the main table, with the border router
		for i, p := range s.peers {
			want := s.served(p)
			if i == server.without {
				want = nil
			}
			for _, flag := range soakFlags {
				compare(server.name, "routes through "+p.name, s.routes(server.name, fmt.Sprintf("%s route show table %d", flag, 101+i), " nhid "), ofFamily(flag, want))
			}
		}
		best := map[string]bool{}
		for _, p := range s.peers { // the best first
			for _, route := range s.served(p) {
				if !best[route] {
					best[route] = true
					all = append(all, route+" via "+s.border(p).address)
				}
			}
		}
		compare(server.name, "best paths", s.vias(server.name, "route show proto 117; -4 route show proto 117"), all)
		compare(server.name, "EPE addresses in use", s.rules(server.name), s.addresses(server))
	}
	for _, b := range s.borders {
		if !b.running {
			continue
		}
		var sids []string
		for _, p := range s.peers {
			if p.border != b.name {
				continue
			}
			want := p.advertised()
			if b.drained {
				want = nil
			}
			if p.session() && !b.drained {
				sids = append(sids, p.sid, p.sid4)
			}
			for i, flag := range soakFlags {
				compare(b.name, "routes of "+p.name, s.routes(b.name, fmt.Sprintf("%s route show table %d", flag, 101+p.index), " dev "+p.link+" "), ofFamily(flag, want))
				_, theirs, _ := strings.Cut(s.ip(p.name, flag+" route show "+soakPrefixes[i]), " via "+p.addresses(1)[i]+" ")
				if has, want := theirs != "", p.session() && b.core && !b.drained && !slices.Contains(p.hijacks, soakPrefixes[i]); p.running && has != want {
					fmt.Fprintf(&faults, "%s: has %s from %s: %t, want %t\n", p.name, soakPrefixes[i], b.name, has, want)
				}
			}
		}
		compare(b.name, "SIDs", s.routes(b.name, "route show proto 116", " seg6local "), sids)
	}
	return faults.String()
}

// ready returns which sessions are to come up.
func (s *soakTest) ready() string {
	var down []string
	check := func(node string, want map[string]string) { // names, by address
		sockets, _ := s.sockets(node, netnstest.Established)
		for address, name := range want {
			if !slices.ContainsFunc(sockets, func(x netnstest.Socket) bool {
				return x.Remote.Addr().Unmap().String() == address && (x.Remote.Port() == 179 || x.Local.Port() == 179)
			}) {
				down = append(down, node+" with "+name+" at "+address)
			}
		}
	}
	reflectors := map[string]string{}
	for _, r := range s.reflectors {
		if r.up {
			reflectors[r.address] = r.name
		}
	}
	for _, x := range s.servers {
		if x.running {
			check(x.name, reflectors)
		}
	}
	for _, b := range s.borders {
		want := map[string]string{}
		if b.core {
			maps.Copy(want, reflectors)
		}
		for _, p := range s.peers {
			if p.border == b.name && p.session() {
				for _, address := range p.addresses(2) {
					want[address] = p.name
				}
			}
		}
		if b.running {
			check(b.name, want)
		}
	}
	for i, p := range s.peers {
		if p.provider && p.running && p.isp {
			check(p.name, map[string]string{fmt.Sprintf("2001:db8:b%d::2", i): "client-isp", fmt.Sprintf("10.%d.0.2", 0xb0+i): "client-isp"})
		}
	}
	return strings.Join(down, ", ")
}

// routes are the destinations of the routes that a command shows with this text.
func (s *soakTest) routes(node, command, with string) []string {
	list := []string{}
	for line := range strings.Lines(s.ip(node, command)) {
		if fields := strings.Fields(line); len(fields) > 0 && strings.Contains(line, with) {
			list = append(list, fields[0])
		}
	}
	return list
}

// vias are the routes that a command shows through another router, each with that.
func (s *soakTest) vias(node, command string) []string {
	list := []string{}
	for _, found := range regexp.MustCompile(`(?m)^((?:2001:db8:|10\.)\S+) (?:nhid \d+ )?via (?:inet6 )?(\S+)`).FindAllStringSubmatch(s.ip(node, command), -1) {
		list = append(list, found[1]+" via "+found[2])
	}
	return list
}

// rules are the addresses that policy rules give a table.
func (s *soakTest) rules(node string) []string {
	list := []string{}
	for _, found := range regexp.MustCompile(`from ((?:2001:db8:1::|10\.1\.0\.)\S+) lookup 1\d\d`).FindAllStringSubmatch(s.ip(node, "rule; -4 rule"), -1) {
		list = append(list, found[1])
	}
	return list
}

// addresses are the EPE addresses of a server.
func (s *soakTest) addresses(server *soakServer) []string {
	m := slices.Index(s.servers, server)
	var list []string
	for i, p := range s.peers {
		if i != server.without {
			list = append(list, p.epe[m], p.epe4[m])
		}
	}
	return list
}

// partsOf returns what a disturbance of a target affects: a border router has its peers.
func (s *soakTest) partsOf(target string) []string {
	parts := []string{target}
	if strings.HasPrefix(target, "reflector") {
		return []string{"reflectors"} // one of them at a time
	}
	for _, p := range s.peers {
		if p.border == target {
			parts = append(parts, p.name)
		}
	}
	return parts
}

// permits reports whether two ways to the client are left.
func (s *soakTest) permits(without map[string]bool) bool {
	left := 0
	for _, p := range s.peers {
		if p.provider && !without[p.name] {
			left++
		}
	}
	return left >= 2
}
