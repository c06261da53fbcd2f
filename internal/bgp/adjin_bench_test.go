package bgp

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/tabane/tabane/internal/bgp/message"
)

// BenchmarkAdjIn advertises routes from an egress peer to an ASBR: one operation is one route.
// Groups of the given size share their attributes, as in a full table, where each origin has a few
// prefixes.
func BenchmarkAdjIn(b *testing.B) {
	for _, c := range []struct {
		name  string
		group int
	}{{"one-origin", 1 << 30}, {"three-each", 3}, {"all-different", 1}} {
		b.Run(c.name, func(b *testing.B) {
			transit := newRouterWith(b, 1, 65001, func(o *Options) { o.Report = 0 })
			asbr := newRouterWith(b, 2, 65000, func(o *Options) { o.Report = ReportBest | ReportAdjIn })
			asbr.peer(transit, passive)
			transit.peer(asbr)
			asbr.wait("session", func() bool { return asbr.up["r1"] })
			transit.wait("session", func() bool { return transit.up["r2"] })
			routes := make([]UnicastRoute, b.N)
			for i := range routes {
				a := addr("2a00::").As16()
				binary.BigEndian.PutUint32(a[2:], uint32(i))
				routes[i] = UnicastRoute{
					Prefix:     netip.PrefixFrom(netip.AddrFrom16(a), 48),
					Attributes: Attributes{ASPath: message.MakeASPath(uint32(i/c.group)+1e6, 65010)},
				}
			}
			b.ResetTimer()
			if err := transit.Originate(routes...); err != nil {
				b.Fatal(err)
			}
			asbr.wait("routes", func() bool { return len(asbr.adjIn["r1"]) == b.N })
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "routes/s")
		})
	}
}
