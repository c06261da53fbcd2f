package edge

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/daemon"
	"github.com/tabane/tabane/internal/epe/pathmanager"
)

func locator(prefix string, there bool) bgp.UnicastPath {
	return bgp.UnicastPath{Prefix: netip.MustParsePrefix(prefix), NextHop: netip.MustParseAddr("2001:db8:1::1"), Withdrawn: !there}
}

func TestLostLocatorRemovesRoutes(t *testing.T) {
	e, w := newTestEgress(testConfig())
	var reported []string
	e.routeChanged = func(peer int, prefix netip.Prefix, r pathmanager.Route) {
		reported = append(reported, fmt.Sprint(peer, prefix, r.State))
	}
	e.locator(locator("fc00:1::/32", true))
	e.locator(locator("fc00:2::/32", true))
	for _, p := range []bgp.VPNPath{vpnPath("10.0.0.1:1", "fc00:1:1::", "65000:101"), vpnPath("10.0.0.2:1", "fc00:2:1::", "65000:102")} {
		if err := e.update(p); err != nil {
			t.Fatal(err)
		}
	}
	full := w.lines("")
	reported = nil
	e.locator(locator("fc00:1::/32", false))
	if n, m := len(w.lines("fc00:1:1::")), len(w.lines("table 101 nhid")); n != 0 || m != 0 {
		t.Errorf("left: %q", w.lines(""))
	}
	if n, m := len(w.lines("fc00:2:1::")), len(w.lines("table 102 nhid")); n != 1 || m != 1 {
		t.Errorf("the other ASBR's: %q", w.lines(""))
	}
	e.locator(locator("fc00:1::/32", false))
	e.locator(locator("fc00:1::/32", true))
	check(t, w.lines(""), full...)
	lost := locator("fc00:1::/32", true)
	lost.Communities = []uint32{bgp.Blackhole}
	e.locator(lost)
	if n, m := len(w.lines("fc00:1:1::")), len(w.lines("table 101 nhid")); n != 0 || m != 0 {
		t.Errorf("left after the reflector's word: %q", w.lines(""))
	}
	e.locator(locator("fc00:1::/32", true))
	check(t, w.lines(""), full...)
	absent, present := fmt.Sprint(0, client, pathmanager.RouteAbsent), fmt.Sprint(0, client, pathmanager.RoutePresent)
	check(t, reported, absent, present, absent, present)

	// A route withdrawn while its locator is lost is not restored; a route received in that
	// time is pending.
	e.locator(locator("fc00:1::/32", false))
	gone := vpnPath("10.0.0.1:1", "fc00:1:1::", "65000:101")
	gone.Withdrawn = true
	late := vpnPath("10.0.0.1:1", "fc00:1:7::", "65000:101")
	late.Prefix = netip.MustParsePrefix("2001:db8:d::/64")
	for _, p := range []bgp.VPNPath{gone, late} {
		if err := e.update(p); err != nil {
			t.Fatal(err)
		}
	}
	check(t, w.lines("table 101 nhid"))
	e.locator(locator("fc00:1::/32", true))
	if got := w.lines("table 101 nhid"); len(got) != 1 || len(w.lines("segs fc00:1:7::")) != 1 || len(w.lines("segs fc00:1:1::")) != 0 {
		t.Errorf("got %q", w.lines(""))
	}
}

// TestLocatorFromAnotherAS: a route to a locator or SID that was received from another AS has no
// effect on reachability.
func TestLocatorFromAnotherAS(t *testing.T) {
	foreign := func(prefix string, there bool, communities ...uint32) bgp.UnicastPath {
		p := locator(prefix, there)
		p.ASPath, p.Communities = message.MakeASPath(65001), communities
		return p
	}
	e, w := newTestEgress(testConfig())
	e.locator(locator("fc00:1::/32", true))
	if err := e.update(vpnPath("10.0.0.1:1", "fc00:1:1::", "65000:101")); err != nil {
		t.Fatal(err)
	}
	full := w.lines("")
	for _, prefix := range []string{"fc00:1:1::/128", "fc00:1::/32"} {
		e.locator(foreign(prefix, true, bgp.Blackhole))
		check(t, w.lines(""), full...)
	}
	e.locator(locator("fc00:1::/32", false))
	e.locator(foreign("fc00:1::/32", true))
	if routes := w.lines("table 101 nhid"); len(routes) > 0 {
		t.Errorf("another AS restored the locator: %q", routes)
	}
}

func TestFailoverToAnotherASBR(t *testing.T) {
	e, w := newTestEgress(testConfig())
	e.locator(locator("fc00:1::/32", true))
	e.locator(locator("fc00:2::/32", true))
	for _, p := range []bgp.VPNPath{vpnPath("10.0.0.1:1", "fc00:1:1::", "65000:101"), vpnPath("10.0.0.2:1", "fc00:2:1::", "65000:101")} {
		if err := e.update(p); err != nil {
			t.Fatal(err)
		}
	}
	if len(w.lines("segs fc00:1:1::")) != 1 || len(w.lines("segs fc00:2:1::")) != 0 {
		t.Fatalf("got %q", w.lines("segs"))
	}
	e.locator(locator("fc00:1::/32", false))
	if len(w.lines("segs fc00:1:1::")) != 0 || len(w.lines("segs fc00:2:1::")) != 1 || len(w.lines("table 101 nhid")) != 1 {
		t.Errorf("got %q", w.lines(""))
	}
	e.locator(locator("fc00:1::/32", true))
	if len(w.lines("segs fc00:1:1::")) != 1 || len(w.lines("segs fc00:2:1::")) != 0 {
		t.Errorf("got %q", w.lines("segs"))
	}
}

func TestOnlyLocatorLossRemovesRoutes(t *testing.T) {
	e, w := newTestEgress(testConfig())
	if err := e.update(vpnPath("10.0.0.1:1", "fc00:1:1::", "65000:101")); err != nil {
		t.Fatal(err)
	}
	there := func(what string) {
		t.Helper()
		if len(w.lines("segs fc00:1:1::")) != 1 {
			t.Errorf("%s: the route is gone", what)
		}
	}
	e.locator(locator("fc00:1::/32", false))
	there("a withdrawal of what was never announced")
	for _, p := range []string{"::/0", "2001:db8::/32", "fc00:2::/32", "fc00:1:2::/48"} {
		e.locator(locator(p, true))
		e.locator(locator(p, false))
		there(p)
	}
	e.locator(locator("fc00:1::/32", true))
	e.locator(locator("fc00:1:1::/48", true))
	e.locator(locator("fc00:1::/32", false))
	there("another route to the SID")
	e.locator(locator("fc00:1:1::/48", false))
	if len(w.lines("segs")) != 0 {
		t.Errorf("the last one: %q", w.lines("segs"))
	}
}

func TestDrainedASBRIsLeastPreferred(t *testing.T) {
	c := testConfig()
	c.Peers[1].Backup = true
	e, _ := newTestEgress(c)
	edge := &Edge{config: c, egress: e}
	want := func(what string, backup ...bool) {
		t.Helper()
		var got []bool
		for _, endpoint := range edge.endpoints() {
			got = append(got, endpoint.Backup)
		}
		if !slices.Equal(got, backup) {
			t.Errorf("%s: backup %v, want %v", what, got, backup)
		}
	}
	stays := vpnPath("10.0.0.1:1", "fc00:1:1::", "65000:101")
	other := stays
	other.Prefix = netip.MustParsePrefix("2001:db8:d::/64")
	leaves := func(p bgp.VPNPath) bgp.VPNPath { p.Communities = []uint32{bgp.GracefulShutdown}; return p }
	gone := func(p bgp.VPNPath) bgp.VPNPath { p.Withdrawn = true; return p }
	for _, step := range []struct {
		what   string
		path   bgp.VPNPath
		backup bool
	}{
		{"present", stays, false},
		{"both present", other, false},
		{"one leaves", leaves(stays), false},
		{"both leave", leaves(other), true},
		{"one gone", gone(stays), true},
		{"both gone", gone(other), true},
		{"back", stays, false},
		{"gone at once", gone(stays), false},
	} {
		if err := e.update(step.path); err != nil {
			t.Fatal(err)
		}
		want(step.what, step.backup, true)
	}
}

// BenchmarkLostLocator: an ASBR with 100,000 routes fails. One operation is the withdrawal of its
// locator, with the updates of all routes.
func BenchmarkLostLocator(b *testing.B) {
	const routes = 100_000
	for b.Loop() {
		b.StopTimer()
		e, _ := newTestEgress(testConfig())
		e.locator(locator("fc00:1::/32", true))
		for i := range uint32(routes) {
			p := vpnPath("10.0.0.1:1", "fc00:1:1::", "65000:101")
			a := p.Prefix.Addr().As16()
			binary.BigEndian.PutUint32(a[4:], i)
			p.Prefix = netip.PrefixFrom(netip.AddrFrom16(a), 64)
			if err := e.update(p); err != nil {
				b.Fatal(err)
			}
		}
		b.StartTimer()
		e.locator(locator("fc00:1::/32", false))
		for e.step(daemon.Step) {
		}
	}
}

// TestLostLocatorIsUrgent: packets to the SID are discarded before routes are updated.
func TestLostLocatorIsUrgent(t *testing.T) {
	e, w := newTestEgress(testConfig())
	e.locator(locator("fc00:1::/32", true))
	e.locator(locator("fc00:2::/32", true))
	for _, p := range []bgp.VPNPath{vpnPath("10.0.0.1:1", "fc00:1:1::", "65000:101"), vpnPath("10.0.0.2:1", "fc00:2:1::", "65000:102")} {
		if err := e.update(p); err != nil {
			t.Fatal(err)
		}
	}
	urgent := 0
	e.flushNow = func(int) {
		urgent++
		if discards, routes := w.lines("unreachable fc00:"), len(w.lines("table 101 nhid")); routes != 1 ||
			!slices.Equal(discards, []string{"unreachable fc00:1:1::/128 table main metric 1"}) {
			t.Errorf("%q and %d routes are wanted, want one discard route and one route", discards, routes)
		}
		if others := len(w.lines("fc00:2:1::")); others != 1 {
			t.Errorf("%d nexthop objects of the other ASBR, want 1", others)
		}
	}
	e.locator(locator("fc00:3::/32", true)) // not a locator of any route
	e.locator(locator("fc00:3::/32", false))
	e.locator(locator("fc00:1::/32", false))
	e.locator(locator("fc00:1::/32", false))
	if urgent != 1 {
		t.Errorf("urgent %d times, want once", urgent)
	}
}

// TestLostSID: an ASBR withdraws one of its SIDs and advertises it again. Its other SIDs remain
// reachable.
func TestLostSID(t *testing.T) {
	e, w := newTestEgress(testConfig())
	e.locator(locator("fc00:1::/32", true))
	for _, p := range []bgp.VPNPath{vpnPath("10.0.0.1:1", "fc00:1:1::", "65000:101"), vpnPath("10.0.0.1:2", "fc00:1:2::", "65000:102")} {
		if err := e.update(p); err != nil {
			t.Fatal(err)
		}
	}
	full := w.lines("")
	there := func(what string, first, second int) {
		t.Helper()
		if a, b := len(w.lines("table 101 nhid")), len(w.lines("table 102 nhid")); a != first || b != second {
			t.Errorf("%s: %d and %d routes, want %d and %d", what, a, b, first, second)
		}
	}
	lost := locator("fc00:1:1::/128", true)
	lost.Communities = []uint32{bgp.Blackhole}
	back := locator("fc00:1:1::/128", false)
	e.locator(back)
	there("taken back before it was said", 1, 1)
	for range 2 {
		e.locator(lost)
		there("lost", 0, 1)
	}
	// Routes received while the SID is lost are pending.
	more := vpnPath("10.0.0.1:1", "fc00:1:1::", "65000:101")
	more.Prefix = netip.MustParsePrefix("2001:db8:d::/64")
	if err := e.update(more); err != nil {
		t.Fatal(err)
	}
	there("lost, with one more", 0, 1)
	e.locator(back)
	there("back", 2, 1)
	more.Withdrawn = true
	if err := e.update(more); err != nil {
		t.Fatal(err)
	}
	check(t, w.lines(""), full...)
	// A SID is lost with its locator, and is reachable again only when both have a route.
	e.locator(lost)
	e.locator(locator("fc00:1::/32", false))
	there("all lost", 0, 0)
	e.locator(back)
	there("the locator is lost", 0, 0)
	e.locator(lost)
	e.locator(locator("fc00:1::/32", true))
	there("the SID is lost", 0, 1)
	e.locator(back)
	check(t, w.lines(""), full...)
	// The withdrawal of a more specific route of the locator has no effect.
	e.locator(locator("fc00:1:1::/48", true))
	e.locator(locator("fc00:1:1::/48", false))
	there("the locator's route is there", 1, 1)
}
