package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/vpn"
)

// TestSetExport changes what is advertised to one of two neighbors while both sessions stay up.
func TestSetExport(t *testing.T) {
	origin, a, b := newRouter(t, 1, 65003), newRouter(t, 2, 65001), newRouter(t, 3, 65002)
	wide, inside, other := prefix("2a00:1::/32"), prefix("2a00:1:2::/48"), prefix("2a00:2::/32")
	origin.must(origin.Originate(UnicastRoute{Prefix: wide}, UnicastRoute{Prefix: inside}, UnicastRoute{Prefix: other}))
	origin.peer(a, passive, func(n *Neighbor) { n.Export.Reject = []netip.Prefix{other} })
	origin.peer(b, passive)
	a.peer(origin)
	b.peer(origin)
	receives := func(r *router, want ...netip.Prefix) {
		t.Helper()
		r.wait("exactly "+fmt.Sprint(want), func() bool {
			if len(r.adjIn["r1"]) != len(want) {
				return false
			}
			return !slices.ContainsFunc(want, func(p netip.Prefix) bool { _, ok := r.adjIn["r1"][p]; return !ok })
		})
	}
	receives(a, wide, inside)
	receives(b, wide, inside, other)

	set := func(reject ...netip.Prefix) {
		t.Helper()
		origin.must(origin.SetExport("r2", ExportPolicy{Reject: reject}))
	}
	set(wide)
	receives(a, other)
	set(other, inside)
	receives(a, wide)
	set()
	receives(a, wide, inside, other)
	set(prefix("::/0"))
	receives(a)

	// The policy applies to later routes and to the next session too.
	late := prefix("2a00:3::/32")
	set(late)
	receives(a, wide, inside, other)
	origin.must(origin.Originate(UnicastRoute{Prefix: late}))
	receives(b, wide, inside, other, late)
	receives(a, wide, inside, other)
	a.mu.Lock()
	if slices.Contains(a.log, "r1 up=false") {
		t.Errorf("the session did not stay up: %s", strings.Join(a.log, "; "))
	}
	a.mu.Unlock()
	origin.must(origin.Disable("r2"))
	a.wait("session end", func() bool { return !a.up["r1"] })
	set(inside)
	origin.must(origin.Enable("r2"))
	receives(a, wide, other, late)

	b.mu.Lock()
	if n := strings.Count(strings.Join(b.log, "\n"), "withdrawn=true"); n > 0 || len(b.adjIn["r1"]) != 4 {
		t.Errorf("the other neighbor received changes: %d withdrawals: %s", n, strings.Join(b.log, "; "))
	}
	b.mu.Unlock()

	if err := origin.SetExport("r2", ExportPolicy{Reject: []netip.Prefix{prefix("2a00:1::1/32")}}); err == nil {
		t.Error("a prefix with host bits was accepted")
	}
	if err := origin.SetExport("r9", ExportPolicy{}); err == nil {
		t.Error("an unknown neighbor was accepted")
	}
}

// TestAdmit: the updates reported for a neighbor match the best paths.
func TestAdmit(t *testing.T) {
	r, other := newRouter(t, 30, 65000), newRouter(t, 31, 65001)
	other.peer(r, passive)
	r.peer(other, func(n *Neighbor) { n.LocalPref, n.Import.Reject = 300, Within(RejectMartian, ownSpace) })
	path := func(asns ...uint32) Attributes { return Attributes{ASPath: message.MakeASPath(asns...)} }
	other.must(other.Originate(
		UnicastRoute{Prefix: prefix("2a00:1::/32"), Attributes: path(64999)},
		UnicastRoute{Prefix: prefix("2a00:2::/32"), Attributes: Attributes{Communities: []uint32{GracefulShutdown}}},
		UnicastRoute{Prefix: prefix("::/0"), Attributes: path(65001, 64999)},
		UnicastRoute{Prefix: prefix("2a00:3::/32"), Attributes: path(64999, 65000)},
		UnicastRoute{Prefix: prefix("2001:db8:5::/48")},
		UnicastRoute{Prefix: ownSpace},
		UnicastRoute{Prefix: prefix("2001::/16")},
		UnicastRoute{Prefix: prefix("fe80:1::/32")},
		UnicastRoute{Prefix: prefix("ff02::/16")},
		UnicastRoute{Prefix: prefix("::1/128")},
		UnicastRoute{Prefix: prefix("2a00:4::/32")}, // the last one sent
	))
	want := map[string]uint32{"2a00:1::/32": 300, "2a00:2::/32": lowestPref, "::/0": 300, "2001::/16": 300, "2a00:4::/32": 300}
	r.wait("routes", func() bool { return len(r.adjIn["r31"]) == len(want) && len(r.unicast) == len(want) })
	r.mu.Lock()
	for p, pref := range want {
		u, best := r.adjIn["r31"][prefix(p)], r.unicast[prefix(p)]
		if u.LocalPref != pref || best.LocalPref != pref || u.ASPath != best.ASPath || u.NextHop != best.NextHop {
			t.Errorf("%s: reported as %+v, best path %+v", p, u, best)
		}
	}
	r.mu.Unlock()
	// A route that is no longer accepted is withdrawn.
	other.must(other.Originate(UnicastRoute{Prefix: prefix("2a00:1::/32"), Attributes: path(65000)}))
	r.wait("withdrawal", func() bool { return len(r.adjIn["r31"]) == len(want)-1 && len(r.unicast) == len(want)-1 })
}

// TestRejectVPN: a speaker that only originates VPN routes accepts only unicast routes.
func TestRejectVPN(t *testing.T) {
	rr, asbr, other := newRouter(t, 25, 65000), newRouter(t, 26, 65000), newRouter(t, 27, 65000)
	rr.peer(asbr, client)
	rr.peer(other, client)
	asbr.peer(rr, func(n *Neighbor) { n.Import.RejectVPN = true })
	other.peer(rr)
	vpnRoute := func(rd string, r *router) VPNRoute {
		return VPNRoute{RD: id(t, rd), Prefix: prefix("2a00:1::/32"), NextHop: address(r.n), RTs: []vpn.ID{id(t, "65000:1")},
			SID: sidA, Structure: structure, Behavior: 18}
	}
	asbr.must(asbr.OriginateVPN([]VPNRoute{vpnRoute("65000:1", asbr)}))
	other.must(other.OriginateVPN([]VPNRoute{vpnRoute("65000:2", other)}))
	other.must(other.Originate(UnicastRoute{Prefix: prefix("2a00:1::/32"), NextHop: address(27)}))
	other.wait("both vpn routes", func() bool { return len(other.vpn) == 2 })
	rr.wait("both vpn routes", func() bool { return len(rr.vpn) == 2 })
	asbr.wait("unicast route", func() bool { return len(asbr.unicast) == 1 })
	asbr.wait("end of rib", func() bool { return asbr.ended[EndOfRIB{"r25", VPNv6}] == 1 })
	asbr.mu.Lock()
	defer asbr.mu.Unlock()
	if len(asbr.vpn) != 1 || !asbr.vpn[VPNKey{id(t, "65000:1"), prefix("2a00:1::/32")}].Local {
		t.Errorf("vpn routes: %v", asbr.vpn)
	}
}
