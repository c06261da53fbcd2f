package acceptance

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// ipv4 brings the network of epe-steady up in IPv4, with pieces of its scenario replaced.
func ipv4(t *testing.T, replace ...string) *lab {
	t.Helper()
	l := epe(t, append([]string{"name: epe-steady", "name: epe-steady\nfamily: ipv4"}, replace...)...)
	for _, table := range []string{"101", "102"} {
		l.eventually("a route in table "+table, 10*time.Second, l.shows(true, "10.12.0.0/24 nhid", "server", "-4 route show table "+table))
	}
	return l
}

// carries checks that a download over MPTCP uses both limited links.
func (l *lab) carries(t *testing.T, url string) {
	t.Helper()
	before := [2]int{l.sentTo("a"), l.sentTo("b")}
	if r := l.fetch("--mptcp", "--limit", "2s", url); !r.UsedMPTCP || r.Bytes == 0 {
		t.Errorf("report %+v", r)
	}
	for i, path := range []string{"a", "b"} {
		if n := l.sentTo(path) - before[i]; n < 2e6 {
			t.Errorf("link %s carried %d bytes", path, n)
		}
	}
}

// sentTo is what a transit sent toward the client, in bytes.
func (l *lab) sentTo(path string) int {
	l.t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(l.must("transit-"+path, "cat", "/sys/class/net/link-"+path+"/statistics/tx_bytes")))
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}

// TestIPv4 delivers over every egress path to IPv4 clients. Deleted rules, routes, nexthop objects
// and addresses of IPv4 are restored at once, and no packet leaves through the wrong peer
// meanwhile.
func TestIPv4(t *testing.T) {
	t.Parallel()
	l := ipv4(t)
	cmd := l.command("client", program, "fetch", "--mptcp", "--limit", "20s", "http://server/bytes/1000000000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// The listener is IPv6, and the addresses of its connections are IPv4-mapped.
	for address, pmtu := range map[string]uint32{"10.1.0.16": 1500, "10.1.0.10": 1460, "10.1.0.11": 1460} {
		l.eventually(fmt.Sprintf("a path MTU of %d on %s", pmtu, address), 5*time.Second, func() (bool, string) {
			sockets, text := l.sockets("server", netnstest.Established)
			return slices.ContainsFunc(sockets, func(s netnstest.Socket) bool {
				return s.Local.Addr().Unmap().String() == address && s.PathMTU == pmtu
			}), text
		})
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // ends by the signal
	l.carries(t, "http://server/bytes/100000000")
	if r := l.fetch("http://server/bytes/1000000"); r.Bytes != 1e6 || r.UsedMPTCP {
		t.Errorf("over TCP: %+v", r)
	}

	for node, role := range map[string]string{"server": "edge", "asbr1": "asbr"} {
		if out := l.must(node, program, "status", "routes", "10.12.0.16", role); !strings.Contains(out, "10.12.0.0/24") || !strings.Contains(out, "fc00:1:1::") {
			t.Errorf("routes of %s:\n%s", role, out)
		}
	}

	sent := l.directed(t, "10.1.0.10", "10.1.0.11")
	wait := l.stream("8s", 8)
	l.restores(t, []deletion{
		{"server", "-4 rule", `(?m)^(\d+):.*from 10.1.0.10 lookup 101`, "-4 rule del pref $1"},
		{"server", "-4 rule", `(?m)^(\d+):.*from 10.1.0.11 unreachable`, "-4 rule del pref $1"},
		{"server", "-4 route show table 101", `(?m)^(10.12.0.0/24) `, "-4 route del $1 table 101"},
		{"server", "-4 route show table 102", `(?m)^unreachable (default)`, "-4 route del unreachable $1 table 102 metric 4294967295"},
		// The IPv4 routes of a nexthop object are deleted with it, without events.
		{"server", "-4 route show table 101; nexthop", `(?m)^id (\d+) .*seg6.* fc00:1:`, "nexthop del id $1"},
		{"server", "addr", `inet (10.1.0.11/\d+)`, "address del $1 dev lan"},
		{"asbr1", "-4 rule", `(?m)^(901):.*from all iif \S+ unreachable`, "-4 rule del pref $1"},
		{"asbr1", "-4 rule", `(?m)^(899):`, "-4 rule del pref $1"},
		{"asbr1", "-4 route", `(?m)^(240.0.0.1) .*encap`, "-4 route del $1"},
		{"asbr1", "-4 route show table 101", `(?m)^(10.12.0.0/24) `, "-4 route del $1 table 101"},
	})
	wait()
	sent.check(t)

	// A link that goes down takes the routes with it, and its peer's loss is advertised at once.
	l.ip("transit-a", "link set csp down")
	l.eventually("the server's EPE Route goes", 4*time.Second, l.shows(false, "10.12.0.0/24", "server", "-4 route show table 101"))
	if out, err := netnstest.TryIP(t, l.namespace("server"), "route get 10.12.0.16 from 10.1.0.10"); err == nil {
		t.Errorf("a packet from the EPE address of transit-a would go: %s", out)
	}
	l.eventually("the best path moves to transit-b", 4*time.Second, l.shows(true, "10.12.0.0/24 via inet6 2001:db8:1::2", "server", "-4 route"))
	l.ip("transit-a", "link set csp up")
	l.eventually("the EPE Route is back", 15*time.Second, l.shows(true, "10.12.0.0/24", "server", "-4 route show table 101"))
	l.ip("server", "link set lan down")
	l.ip("server", "link set lan up")
	l.eventually("the server's routes are back", 15*time.Second, l.shows(true, "10.12.0.0/24 nhid", "server", "-4 route show table 102"))

	l.end("server", "edge", syscall.SIGTERM)
	state := l.ip("server", "-4 rule; -4 route show table all; addr show dev lan; nexthop")
	for _, trace := range []string{"lookup 101", "nhid", "seg6", "10.1.0.10", "10.1.0.11", "proto 117"} {
		if strings.Contains(state, trace) {
			t.Errorf("%q is left in:\n%s", trace, state)
		}
	}
	l.end("asbr1", "asbr", syscall.SIGTERM)
	if routes := l.ip("asbr1", "-4 route show table all proto 116"); routes != "" {
		t.Errorf("left on asbr1:\n%s", routes)
	}
}

// TestIPv4Leaks: what arrives from a peer is not forwarded to another one, what a peer has not
// advertised does not leave to it, and an EPE address follows no default route for our own space.
func TestIPv4Leaks(t *testing.T) {
	t.Parallel()
	// 10.153.0.0/24, which transit-a does not learn, and two that are rejected.
	const networks = "      networks: [\"2001:db8:99::/64\", \"2001:db8:1::/64\", \"2001:db8:98::80/121\"]\n"
	l := ipv4(t, "      router_id: 10.2.0.1\n", "      router_id: 10.2.0.1\n"+networks,
		"interface: link-a, local_pref: 200}", `interface: link-a, local_pref: 200, deny: ["2001:db8:99::/64"]}`)
	l.eventually("the route arrives", 10*time.Second, l.shows(true, "10.153.0.0/24 nhid", "server", "-4 route show table 102"))
	atA, atB := l.watch(t, "transit-a", "csp"), l.watch(t, "transit-b", "csp")
	server, epeB := netip.MustParseAddr("10.1.0.16"), netip.MustParseAddr("10.1.0.11")
	outside, client := netip.MustParseAddr("10.153.0.1"), netip.MustParseAddr("10.12.0.16")
	toSID := func(sid string, dst netip.Addr) []byte {
		return inIP6(netip.MustParseAddr("2001:db8:1::10"), netip.MustParseAddr(sid), marked(server, dst))
	}
	none := func(what string, seen *atomic.Int64) {
		t.Helper()
		time.Sleep(300 * time.Millisecond) // nothing must come: there is nothing to wait for
		if n := seen.Swap(0); n > 0 {
			t.Errorf("%s: %d packets left", what, n)
		}
	}
	some := func(what string, seen *atomic.Int64, send func()) {
		t.Helper()
		l.eventually(what, 5*time.Second, func() (bool, string) {
			send()
			return seen.Swap(0) > 0, l.ip("asbr1", "-4 rule; -4 route show table all")
		})
	}
	// Each SID has the table of its peer.
	some("a packet for the SID of transit-b to what it has advertised leaves there", atB, func() { l.inject(t, "reflector", "lan", "asbr2", "lan", toSID("fc00:2:1::", outside)) })
	some("a packet for the SID of transit-a to the client leaves there", atA, func() { l.inject(t, "reflector", "lan", "asbr1", "lan", toSID("fc00:1:1::", client)) })
	l.inject(t, "reflector", "lan", "asbr1", "lan", toSID("fc00:1:1::", outside))
	l.inject(t, "reflector", "lan", "asbr2", "lan", toSID("fc00:2:1::", netip.MustParseAddr("10.1.0.77")))
	none("a packet for the SID of transit-a to what it has not advertised", atA)
	none("a packet for the SID of transit-b to our own space", atB)
	// From a peer: transit, plain and in SRv6.
	time.Sleep(100 * time.Millisecond)
	atA.Store(0)
	for _, attack := range [][]byte{
		marked(outside, client),
		inIP6(netip.MustParseAddr("2001:db8:b::2"), netip.MustParseAddr("fc00:1:1::"), marked(outside, client)),
	} {
		l.inject(t, "transit-b", "csp", "asbr2", "wan", attack)
	}
	none("transit from transit-b", atA)
	// On-link hosts are reached from an EPE address whatever the peer advertises.
	if out := l.ip("server", "route get 10.1.0.254 from "+epeB.String()); !strings.Contains(out, "dev lan") || strings.Contains(out, "encap") {
		t.Errorf("a host on the link: %s", out)
	}
	// Routes that no peer may advertise.
	for _, reason := range []string{"own-prefix", "too-long"} {
		l.eventually("a route is rejected: "+reason, 5*time.Second, l.contains(true, `"`+reason+`":`, "asbr2", program, "status", "--json", "asbr"))
	}
	l.ip("transit-b", "link set link-b down")
	l.eventually("transit-b loses the client", 5*time.Second, l.shows(false, "10.12.0.0/24 nhid", "server", "-4 route show table 102"))
	if routes := l.ip("transit-b", "-4 route"); strings.Contains(routes, "10.12.0.0/24") {
		t.Errorf("traffic between peers would go through us:\n%s", routes)
	}
}

// TestIPv4OverIPv6Core: the core and one border router have no IPv4 at all, the session with one
// peer is IPv6 (RFC 8950), the other peer is reached by End.DX4, and the server's addresses are on
// lo.
func TestIPv4OverIPv6Core(t *testing.T) {
	t.Parallel()
	l := up(t, "testdata/ipv6-core.yaml", "server.edge.log", "asbr1.asbr.log", "asbr2.asbr.log")
	for _, table := range []string{"101", "102"} {
		l.eventually("a route in table "+table, 10*time.Second, l.shows(true, "10.12.0.0/24 nhid", "server", "-4 route show table "+table))
	}
	if out := l.ip("asbr1", "-4 route show table 101"); !strings.Contains(out, "10.12.0.0/24 via inet6 2001:db8:a::2 dev wan") {
		t.Errorf("asbr1:\n%s", out)
	}
	if out := l.ip("asbr2", "-4 route"); !strings.Contains(out, "240.0.0.1 via 10.11.0.2 dev wan") {
		t.Errorf("asbr2:\n%s", out)
	}
	l.eventually("the client reaches the server", 5*time.Second, func() (bool, string) {
		out, err := l.try("client", program, "fetch", "--limit", "1s", "http://10.1.0.16/bytes/1000")
		return err == nil, fmt.Sprint(out, err)
	})
	l.carries(t, "http://10.1.0.16/bytes/100000000")
}

// TestDualStack: clients of both IP versions use every egress path, with one route target and one
// table number for both.
func TestDualStack(t *testing.T) {
	t.Parallel()
	l := epe(t, "name: epe-steady", "name: epe-steady\nfamily: dual")
	for _, client := range []string{"2001:db8:c::/64", "10.12.0.0/24"} {
		for _, table := range []string{"101", "102"} {
			family := map[bool]string{true: "-6", false: "-4"}[strings.Contains(client, ":")]
			l.eventually(client+" in table "+table, 10*time.Second, l.shows(true, client+" nhid", "server", family+" route show table "+table))
		}
	}
	l.carries(t, "http://server/bytes/100000000")
	l.carries(t, "http://10.1.0.16/bytes/100000000")
}

// TestIPv4FRR: FRR runs all routers and the reflector in IPv4.
func TestIPv4FRR(t *testing.T) {
	t.Parallel()
	programs.Need(t, "vtysh")
	needLab(t)
	l := &lab{t: t, name: labPrefix() + "frr4"}
	t.Cleanup(func() { _ = exec.Command(program, "lab", "down", l.name).Run() })
	if out, err := exec.Command(program, "lab", "up", "epe-steady", "--name", l.name, "--family", "ipv4", "--routers", "frr").CombinedOutput(); err != nil {
		t.Fatalf("lab up: %v\n%s", err, out)
	}
	for _, table := range []string{"101", "102"} {
		l.eventually("a route in table "+table, 20*time.Second, l.shows(true, "10.12.0.0/24 nhid", "server", "-4 route show table "+table))
	}
	l.carries(t, "http://server/bytes/100000000")
	l.link(t, "transit-a", "link-a", false)
	l.eventually("the route in table 101 is withdrawn", 10*time.Second, l.shows(false, "10.12.0.0/24", "server", "-4 route show table 101"))
	if r := l.fetch("--mptcp", "http://server/bytes/1000000"); r.Bytes != 1e6 {
		t.Errorf("over the other path: %+v", r)
	}
}
