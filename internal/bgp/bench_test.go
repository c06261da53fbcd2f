package bgp

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/tabane/tabane/internal/bgp/vpn"
)

// BenchmarkVPNRoutes advertises VPN routes from an ASBR through a reflector to a server: one
// operation is one route.
func BenchmarkVPNRoutes(b *testing.B) {
	report := func(what Report) func(*Options) { return func(o *Options) { o.Report = what } }
	asbr, rr := newRouterWith(b, 1, 65000, report(0)), newRouterWith(b, 2, 65000, report(0))
	server := newRouterWith(b, 3, 65000, report(ReportBest))
	rr.peer(asbr, client)
	rr.peer(server, client)
	asbr.peer(rr)
	server.peer(rr)
	asbr.wait("session", func() bool { return asbr.up["r2"] })
	server.wait("session", func() bool { return server.up["r2"] })
	rd, err := vpn.Parse("65000:1")
	if err != nil {
		b.Fatal(err)
	}
	structure, err := structure.Transposed()
	if err != nil {
		b.Fatal(err)
	}
	routes := make([]VPNRoute, b.N)
	keys := make([]VPNKey, b.N)
	for i := range routes {
		a := addr("2a00::").As16()
		binary.BigEndian.PutUint32(a[2:], uint32(i))
		p := netip.PrefixFrom(netip.AddrFrom16(a), 48)
		routes[i] = VPNRoute{RD: rd, Prefix: p, NextHop: address(1), RTs: []vpn.ID{rd}, SID: sidA, Structure: structure, Behavior: 18}
		keys[i] = VPNKey{rd, p}
	}
	b.ResetTimer()
	if err := asbr.OriginateVPN(routes); err != nil {
		b.Fatal(err)
	}
	server.wait("routes", func() bool { return len(server.vpn) == b.N })
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "routes/s")
	if err := asbr.WithdrawVPN(keys); err != nil {
		b.Fatal(err)
	}
	server.wait("withdrawals", func() bool { return len(server.vpn) == 0 })
}
