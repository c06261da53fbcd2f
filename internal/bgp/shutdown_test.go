package bgp

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/tabane/tabane/internal/bgp/vpn"
)

// TestGracefulShutdown takes one of two ASBRs out of service: routers with another path select it
// while the first is still advertised (RFC 8326 section 4.2); others keep the first until it is
// withdrawn.
func TestGracefulShutdown(t *testing.T) {
	a, b, rr := newRouter(t, 1, 65000), newRouter(t, 2, 65000), newRouter(t, 3, 65000)
	server, transit := newRouterWith(t, 4, 65000, func(o *Options) { o.Report = ReportBest }), newRouter(t, 5, 65001)
	p, own := prefix("2a00:1::/32"), prefix("2001:db8:8000::/33")
	for _, asbr := range []*router{a, b} {
		rr.peer(asbr, client)
		asbr.peer(rr, func(n *Neighbor) { n.NextHopSelf = true })
	}
	rr.peer(server, client)
	server.peer(rr)
	transit.peer(a, passive)
	a.peer(transit, func(n *Neighbor) { n.ExportLocalOnly, n.LocalPref = true, 200 })
	transit.must(transit.Originate(UnicastRoute{Prefix: p}))
	b.must(b.Originate(UnicastRoute{Prefix: p, NextHop: address(2)}))
	a.must(a.Originate(UnicastRoute{Prefix: own, NextHop: address(1)}))
	rd, rt := id(t, "65000:1"), id(t, "65000:101")
	a.must(a.OriginateVPN([]VPNRoute{{RD: rd, Prefix: p, NextHop: address(1), RTs: []vpn.ID{rt}, SID: sidA, Structure: structure, Behavior: 18}}))
	key := VPNKey{rd, p}
	server.wait("the better path", func() bool { return server.unicast[p].NextHop == address(1) && server.vpn[key].SID == sidA })
	transit.wait("our prefix", func() bool { return len(transit.adjIn["r1"]) == 1 })

	leaving := func(c []uint32) bool { return slices.Contains(c, GracefulShutdown) }
	for _, name := range []string{"r3", "r5"} {
		a.must(a.SetExport(name, ExportPolicy{Shutdown: true}))
	}
	server.wait("the other path", func() bool { return server.unicast[p].NextHop == address(2) })
	server.wait("the vpn route that is about to go", func() bool { v := server.vpn[key]; return v.SID == sidA && leaving(v.Communities) })
	server.wait("what has no other path", func() bool { u := server.unicast[own]; return u.NextHop == address(1) && leaving(u.Communities) })
	transit.wait("our prefix as the last choice", func() bool {
		u := transit.adjIn["r1"][own]
		return leaving(u.Communities) && u.LocalPref == lowestPref
	})
	a.mu.Lock()
	if u := a.adjIn["r5"][p]; u.LocalPref != 200 || leaving(u.Communities) {
		t.Errorf("what we learn has changed: %+v", u)
	}
	a.mu.Unlock()

	for _, name := range []string{"r3", "r5"} {
		a.must(a.SetExport(name, ExportPolicy{}))
	}
	server.wait("the better path again", func() bool { return server.unicast[p].NextHop == address(1) })
	server.wait("the vpn route again", func() bool { v := server.vpn[key]; return v.SID == sidA && !leaving(v.Communities) })
	transit.wait("our prefix again", func() bool { u := transit.adjIn["r1"][own]; return u.Prefix == own && !leaving(u.Communities) })

	a.must(a.SetExport("r3", ExportPolicy{Shutdown: true, Reject: []netip.Prefix{prefix("::/0")}}))
	server.wait("unicast gone", func() bool { return server.unicast[p].NextHop == address(2) && server.unicast[own].Prefix != own })
}
