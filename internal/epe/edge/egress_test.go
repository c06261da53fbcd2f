package edge

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/vpn"
	"github.com/tabane/tabane/internal/epe/pathmanager"
	"github.com/tabane/tabane/internal/kernel/route"
)

// wanted is a fake of desired that stores the desired objects.
type wanted map[route.Key]route.Object

func (w wanted) Set(o route.Object)     { w[o.Key()] = o }
func (w wanted) SetRoute(r route.Route) { w.Set(r) }
func (w wanted) Delete(k route.Key)     { delete(w, k) }
func (w wanted) Hasten(route.Key)       {}
func (w wanted) Suspend(k route.Key)    { delete(w, k) }

// Settled implements desired; prefixes in 2001:db8:bad::/48 are never settled.
func (w wanted) Settled(k route.Key) bool { return !strings.Contains(k.String(), "2001:db8:bad:") }

// Outdated implements desired: the fake has what is desired.
func (w wanted) Outdated(route.Key) bool { return false }

func (w wanted) lines(contains string) []string {
	var lines []string
	for o := range maps.Values(w) {
		if s := o.String(); strings.Contains(s, contains) {
			lines = append(lines, s)
		}
	}
	slices.Sort(lines)
	return lines
}

func id(s string) vpn.ID {
	parsed, err := vpn.Parse(s)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return parsed
}

func testConfig() Config {
	return Config{
		ASN: 65000, RouterID: netip.MustParseAddr("10.0.0.10"), Interface: "lan",
		Address: netip.MustParseAddr("2001:db8:1::10"), Prefix: netip.MustParsePrefix("2001:db8:1::/64"),
		Reflectors: []Reflector{{Address: netip.MustParseAddr("2001:db8:1::fe")}},
		Locators:   []netip.Prefix{netip.MustParsePrefix("fc00::/16")},
		Peers: []Peer{
			{Name: "a", RT: id("65000:101"), Address: netip.MustParseAddr("2001:db8:1::a"), Table: 101},
			{Name: "b", RT: id("65000:102"), Address: netip.MustParseAddr("2001:db8:1::b"), Table: 102},
		},
	}
}

// dualStack is testConfig with an IPv4 address for each peer.
func dualStack() Config {
	c := testConfig()
	c.Addresses = []Address{{Address: netip.MustParsePrefix("192.0.2.20/24")}}
	for _, p := range testConfig().Peers {
		p.Name, p.Address = p.Name+"-ipv4", netip.AddrFrom4([4]byte{192, 0, 2, p.Address.As16()[15]})
		c.Peers = append(c.Peers, p)
	}
	return c
}

func TestDualStack(t *testing.T) {
	c := dualStack()
	c.Peers[3].Interface = "lo"
	e, w := newTestEgress(c)
	for _, prefix := range []string{"2001:db8:c::/64", "198.51.100.0/24"} {
		p := vpnPath("10.0.0.1:1", "fc00:1:1::", "65000:101")
		p.Prefix = netip.MustParsePrefix(prefix)
		if err := e.update(p); err != nil {
			t.Fatal(err)
		}
	}
	check := func(contains string, want ...string) {
		t.Helper()
		if got := w.lines(contains); !slices.Equal(got, want) {
			t.Errorf("%s:\n\t%s\nwant\n\t%s", contains, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
		}
	}
	nexthop := fmt.Sprint("nhid ", e.newID(netip.MustParseAddr("fc00:1:1::").AsSlice())-1)
	check("table 101",
		"198.51.100.0/24 table 101 "+nexthop+" metric 20 mtu 1524", "2001:db8:c::/64 table 101 "+nexthop+" metric 20 mtu 1524",
		"priority 1000 from 2001:db8:1::a/128 table 101", "priority 1004 from 192.0.2.10/32 table 101",
		"unreachable 0.0.0.0/0 table 101 metric 4294967295", "unreachable default table 101 metric 4294967295")
	check("192.0.2.11",
		"192.0.2.11/32 dev lo scope link", "priority 1006 from 192.0.2.11/32 table 102", "priority 1007 from 192.0.2.11/32 unreachable")
	check("priority 999", "priority 999 from 0.0.0.0/0 to 192.0.2.0/24 table main", "priority 999 from all to 2001:db8:1::/64 table main")
	if states := [2]int{e.peers[0].states[pathmanager.RoutePresent], e.peers[2].states[pathmanager.RoutePresent]}; states != [2]int{1, 1} {
		t.Errorf("routes of each IP version: %v", states)
	}
}

var client = netip.MustParsePrefix("2001:db8:c::/64")

func vpnPath(rd, sid string, rts ...string) bgp.VPNPath {
	p := bgp.VPNPath{RD: id(rd), Prefix: client, SID: netip.MustParseAddr(sid)}
	for _, rt := range rts {
		p.RTs = append(p.RTs, id(rt))
	}
	return p
}

func newTestEgress(config Config) (*egress, wanted) {
	w := wanted{}
	return newEgress(&config, 1500, w), w
}

func check(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestEachPeerHasItsAddressRuleAndEndOfTable(t *testing.T) {
	_, w := newTestEgress(testConfig())
	check(t, w.lines(""),
		"2001:db8:1::a/128 dev lan nodad preferred_lft 0",
		"2001:db8:1::b/128 dev lan nodad preferred_lft 0",
		"priority 1000 from 2001:db8:1::a/128 table 101",
		"priority 1001 from 2001:db8:1::a/128 unreachable",
		"priority 1002 from 2001:db8:1::b/128 table 102",
		"priority 1003 from 2001:db8:1::b/128 unreachable",
		"priority 999 from all to 2001:db8:1::/64 table main",
		"unreachable default table 101 metric 4294967295",
		"unreachable default table 102 metric 4294967295",
	)
}

// After a restart with other tables, the rules of the previous instance would route an EPE address
// through the wrong peer.
func TestMovedTables(t *testing.T) {
	a, b := host(netip.MustParseAddr("2001:db8:1::a")), host(netip.MustParseAddr("2001:db8:1::b"))
	lookup := func(from netip.Prefix, table uint32) route.Rule {
		return route.Rule{Priority: ruleBase, From: from, Table: table}
	}
	in := func(table uint32) route.Route {
		return route.Route{Table: table, Dst: client, Metric: epeMetric, Kind: route.Unicast, NexthopID: nexthopBase}
	}
	end := route.Route{Table: 101, Dst: bgp.IPv6.Anywhere(), Metric: unreachableMetric, Kind: route.Unreachable}
	main := route.Route{Table: route.MainTable, Dst: client, Kind: route.Unicast, NexthopID: nexthopBase}
	gone := host(netip.MustParseAddr("2001:db8:1::77"))
	for _, tt := range []struct {
		name        string
		found, want []route.Object
	}{
		{"nothing", nil, nil},
		{"the same", []route.Object{lookup(a, 101), lookup(b, 102), unreachableRule(a.Addr(), 0), in(101), in(102), end, main}, nil},
		{"swapped", []route.Object{lookup(a, 102), lookup(b, 101), unreachableRule(a.Addr(), 0), in(101), in(102), end, main},
			[]route.Object{lookup(a, 102), lookup(b, 101), in(101), in(102)}},
		{"moved to a new table", []route.Object{lookup(a, 201), in(201), lookup(b, 102), in(102)}, []route.Object{lookup(a, 201), in(201)}},
		{"the table of a peer that is gone", []route.Object{lookup(gone, 101), in(101)}, []route.Object{lookup(gone, 101), in(101)}},
		{"a peer that is gone with its table", []route.Object{lookup(gone, 301), in(301)}, nil},
	} {
		config := testConfig()
		rules, tables := staleRules(&config, tt.found)
		var got []route.Object
		for _, r := range rules {
			got = append(got, r)
		}
		for _, o := range tt.found {
			if r, ok := o.(route.Route); ok && r.Kind == route.Unicast && tables[fib{r.Table, bgp.IPOf(r.Dst.Addr())}] {
				got = append(got, r)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestRejectedRouteIsNotAnnounced(t *testing.T) {
	e, _ := newTestEgress(testConfig())
	if !e.fixedSettled() || !e.installed(0, client) || e.installed(0, netip.MustParsePrefix("2001:db8:bad:1::/64")) {
		t.Error("a refused route counts as working, or another one does not")
	}
	config := testConfig()
	config.Peers[1].Address = netip.MustParseAddr("2001:db8:bad::b")
	if e, _ := newTestEgress(config); e.fixedSettled() {
		t.Error("a refused address counts as working")
	}
}

func TestRoutesOfAPeerShareOneNexthop(t *testing.T) {
	e, w := newTestEgress(testConfig())
	p := vpnPath("10.0.0.1:1", "fc00:1:1::", "65000:101")
	for _, prefix := range []string{"2001:db8:c::/64", "2001:db8:d::/64"} {
		p.Prefix = netip.MustParsePrefix(prefix)
		if err := e.update(p); err != nil {
			t.Fatal(err)
		}
	}
	nexthops := w.lines("encap seg6")
	if len(nexthops) != 1 || !strings.Contains(nexthops[0], "mode encap.red segs fc00:1:1:: via fe80::7ab5:") {
		t.Fatalf("nexthops %q", nexthops)
	}
	number := strings.Fields(nexthops[0])[1]
	check(t, w.lines("nhid"),
		"2001:db8:c::/64 table 101 nhid "+number+" metric 20 mtu 1524",
		"2001:db8:d::/64 table 101 nhid "+number+" metric 20 mtu 1524")

	p.Withdrawn = true
	if err := e.update(p); err != nil {
		t.Fatal(err)
	}
	if got := w.lines("encap seg6"); len(got) != 1 {
		t.Errorf("the nexthop went with the first of two routes: %q", got)
	}
	p.Prefix = client
	if err := e.update(p); err != nil {
		t.Fatal(err)
	}
	if got := w.lines("lan"); len(got) != 2 {
		t.Errorf("left beside the addresses: %q", got)
	}
}

func TestFullEncapsulationLeavesTheMTUToTheKernel(t *testing.T) {
	config := testConfig()
	config.Encap = EncapFull
	e, w := newTestEgress(config)
	if err := e.update(vpnPath("10.0.0.1:1", "fc00:1:1::", "65000:101")); err != nil {
		t.Fatal(err)
	}
	if got := w.lines("mtu"); len(got) != 0 {
		t.Errorf("routes with an MTU: %q", got)
	}
	if got := w.lines("mode encap segs"); len(got) != 1 {
		t.Errorf("nexthops %q", w.lines("encap"))
	}
}

func TestRouteIsRejected(t *testing.T) {
	malformed := vpnPath("10.0.0.1:1", "fc00:1:1::", "65000:101")
	malformed.Rejected = &bgp.RejectedError{Reason: bgp.RejectStructure}
	for name, tc := range map[string]struct {
		path    bgp.VPNPath
		refused bool
	}{
		"sid from elsewhere":      {vpnPath("10.0.0.1:1", "fd00:1:1::", "65000:101"), true},
		"malformed":               {malformed, true},
		"another service's route": {vpnPath("10.0.0.1:1", "fd00:1:1::", "65000:999"), false},
	} {
		t.Run(name, func(t *testing.T) {
			e, w := newTestEgress(testConfig())
			good := vpnPath("10.0.0.1:1", "fc00:1:1::", "65000:101")
			if err := e.update(good); err != nil {
				t.Fatal(err)
			}
			err := e.update(tc.path)
			if (err != nil) != tc.refused {
				t.Errorf("error %v", err)
			}
			if got := w.lines("nhid"); len(got) != 0 {
				t.Errorf("the route before is still there: %q", got)
			}
		})
	}
	e, _ := newTestEgress(testConfig())
	if err := e.update(vpnPath("10.0.0.1:1", "fd00:1:1::", "65000:101")); !errors.Is(err, errForeignSID) {
		t.Errorf("error %v", err)
	}
}

func TestPeerAtTwoASBRsSurvivesOne(t *testing.T) {
	e, w := newTestEgress(testConfig())
	one := vpnPath("10.0.0.1:1", "fc00:1:1::", "65000:101")
	two := vpnPath("10.0.0.2:1", "fc00:2:1::", "65000:101")
	for _, p := range []bgp.VPNPath{two, one} {
		if err := e.update(p); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.lines("encap seg6"); len(got) != 1 || !strings.Contains(got[0], "fc00:1:1::") {
		t.Fatalf("nexthops %q", got)
	}
	one.Withdrawn = true
	if err := e.update(one); err != nil {
		t.Fatal(err)
	}
	if got := w.lines("encap seg6"); len(got) != 1 || !strings.Contains(got[0], "fc00:2:1::") {
		t.Errorf("nexthops %q", got)
	}
	if got := w.lines("nhid"); len(got) != 1 {
		t.Errorf("routes %q", got)
	}
}

func TestPreferredASBRIsUsed(t *testing.T) {
	e, w := newTestEgress(testConfig())
	one := vpnPath("10.0.0.1:1", "fc00:1:1::", "65000:101")
	two := vpnPath("10.0.0.2:1", "fc00:2:1::", "65000:101")
	for _, tt := range []struct {
		pref uint32
		sid  string
	}{{0, "fc00:1:1::"}, {200, "fc00:2:1::"}, {50, "fc00:1:1::"}} {
		two.LocalPref = tt.pref
		for _, p := range []bgp.VPNPath{two, one} {
			if err := e.update(p); err != nil {
				t.Fatal(err)
			}
		}
		if got := w.lines("encap seg6"); len(got) != 1 || !strings.Contains(got[0], tt.sid) {
			t.Errorf("with LOCAL_PREF %d nexthops %q, want %s", tt.pref, got, tt.sid)
		}
	}
	if got := w.lines("nhid"); len(got) != 1 {
		t.Errorf("routes %q", got)
	}
}

// TestPropertyRoutesFollowUpdates: the desired objects depend only on the current routes, not on
// the order of updates.
func TestPropertyRoutesFollowUpdates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e, got := newTestEgress(testConfig())
		last := map[pathKey]bgp.VPNPath{}
		for range rapid.IntRange(0, 40).Draw(t, "changes") {
			p := vpnPath(
				rapid.SampledFrom([]string{"10.0.0.1:1", "10.0.0.2:1", "10.0.0.2:2"}).Draw(t, "rd"),
				rapid.SampledFrom([]string{"fc00:1:1::", "fc00:2:1::", "fd00::1"}).Draw(t, "sid"),
				rapid.SliceOfN(rapid.SampledFrom([]string{"65000:101", "65000:102", "65000:9"}), 1, 3).Draw(t, "rts")...)
			p.LocalPref = rapid.Uint32Range(0, 101).Draw(t, "preference")
			p.Prefix = rapid.SampledFrom([]netip.Prefix{client, netip.MustParsePrefix("2001:db8:d::/64")}).Draw(t, "prefix")
			p.Withdrawn = rapid.Bool().Draw(t, "withdrawn")
			_ = e.update(p)
			last[pathKey{p.RD, p.Prefix}] = p
		}
		fresh, want := newTestEgress(testConfig())
		for _, p := range last {
			_ = fresh.update(p)
		}
		if g, w := got.lines(""), want.lines(""); !slices.Equal(g, w) {
			t.Errorf("after the history:\n  %s\nfresh:\n  %s", strings.Join(g, "\n  "), strings.Join(w, "\n  "))
		}
	})
}

// The reported state of a peer's route combines the routes of all its ASBRs.
func TestEgressReportsRouteChanges(t *testing.T) {
	e, _ := newTestEgress(testConfig())
	var got []string
	e.routeChanged = func(peer int, prefix netip.Prefix, r pathmanager.Route) {
		got = append(got, fmt.Sprintf("%d %v %d", peer, prefix, r.State))
	}
	one, two := vpnPath("10.0.0.1:1", "fc00:1:1::", "65000:101"), vpnPath("10.0.0.2:1", "fc00:2:1::", "65000:101")
	drained := one
	drained.Communities = []uint32{1, bgp.GracefulShutdown}
	gone := func(p bgp.VPNPath) bgp.VPNPath { p.Withdrawn = true; return p }
	for _, p := range []bgp.VPNPath{one, two, gone(one), two, one, drained, gone(two), one, drained, gone(one)} {
		if err := e.update(p); err != nil {
			t.Fatal(err)
		}
	}
	check(t, got,
		"0 2001:db8:c::/64 2",
		"0 2001:db8:c::/64 1", // only the draining path remains
		"0 2001:db8:c::/64 2", "0 2001:db8:c::/64 1", "0 2001:db8:c::/64 0")
}

func TestDrainedRouteIsLeastPreferred(t *testing.T) {
	e, w := newTestEgress(testConfig())
	drained := vpnPath("10.0.0.1:1", "fc00:1:1::", "65000:101")
	drained.Communities = []uint32{bgp.GracefulShutdown}
	for _, p := range []bgp.VPNPath{drained, vpnPath("10.0.0.2:1", "fc00:2:1::", "65000:101")} {
		if err := e.update(p); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.lines("encap seg6"); len(got) != 1 || !strings.Contains(got[0], "fc00:2:1::") {
		t.Errorf("nexthops %q", got)
	}
}
