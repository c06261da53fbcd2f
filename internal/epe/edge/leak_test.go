package edge

import (
	"fmt"
	"iter"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/kernel/route"
	"github.com/tabane/tabane/internal/kernel/route/routetest"
)

// TestNoPacketLeavesUnannounced: after each of many random changes, with all policy rules and with
// any one of them or of the routes deleted by another program, a packet from an EPE address is
// dropped or encapsulated to a SID of a route of that address's peer to the destination. Only
// packets to on-link destinations use the main table. The peers have an address of each IP version,
// and the same route target and table number for both.
func TestNoPacketLeavesUnannounced(t *testing.T) {
	config := dualStack()
	if err := config.Check().Err(); err != nil {
		t.Fatal(err)
	}
	var mainTable []route.Object
	for _, p := range config.onLink() {
		mainTable = append(mainTable, route.Route{Table: route.MainTable, Dst: p, Link: config.Interface},
			route.Route{Table: route.MainTable, Dst: bgp.IPOf(p.Addr()).Anywhere(), Gateway: netip.MustParseAddr("2001:db8:1::1"), Link: config.Interface})
	}
	prefixes := []netip.Prefix{
		bgp.IPv6.Anywhere(), netip.MustParsePrefix("2001:db8:100::/40"), netip.MustParsePrefix("2001:db8:100::/48"), client,
		bgp.IPv4.Anywhere(), netip.MustParsePrefix("198.51.0.0/16"), netip.MustParsePrefix("198.51.100.0/24"),
	}
	addresses := []netip.Addr{
		netip.MustParseAddr("2001:db8:c::10"), netip.MustParseAddr("2001:db8:100::1"), netip.MustParseAddr("2001:db8:110::1"),
		netip.MustParseAddr("2001:db8:eeee::1"), netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.1.1"), netip.MustParseAddr("8.8.8.8"),
	}
	neighbors := []netip.Addr{netip.MustParseAddr("2001:db8:1::fe"), netip.MustParseAddr("192.0.2.254")}
	rapid.Check(t, func(t *rapid.T) {
		e, w := newTestEgress(config)
		advertised := map[pathKey]bgp.VPNPath{}
		lost := map[netip.Prefix]bool{}
		may := func(p *peer, sid, dst netip.Addr) bool {
			for _, path := range advertised {
				if path.SID == sid && path.Prefix.Contains(dst) && path.RTs[0] == p.RT {
					return true
				}
			}
			return false
		}
		// verify checks all packets in a kernel from which one object was deleted.
		verify := func(without route.Key) {
			kernel := iter.Seq[route.Object](func(yield func(route.Object) bool) {
				for _, o := range mainTable {
					if !yield(o) {
						return
					}
				}
				for k, o := range w {
					if k != without && !yield(o) {
						return
					}
				}
			})
			for _, p := range e.peers {
				for _, dst := range addresses {
					if dst.Is4() != p.Address.Is4() {
						continue
					}
					r, ok := routetest.Lookup(kernel, routetest.Packet{Src: p.Address, Dst: dst})
					if !ok {
						continue
					}
					object, ok := w[route.Nexthop{ID: r.NexthopID}.Key()].(route.Nexthop)
					if !ok || !may(p, object.SID, dst) || lost[netip.PrefixFrom(object.SID, 32).Masked()] {
						t.Fatalf("without %s: a packet from the address of %s to %s takes %s", without, p.Name, dst, r)
					}
				}
				for i, prefix := range config.onLink() {
					dst := neighbors[i]
					if dst.Is4() != p.Address.Is4() || without == (route.Rule{Priority: onLinkRule, To: prefix, Table: route.MainTable}).Key() {
						continue
					}
					if r, ok := routetest.Lookup(kernel, routetest.Packet{Src: p.Address, Dst: dst}); !ok || r.Dst != prefix {
						t.Fatalf("without %s: a packet to the link takes %s", without, r)
					}
				}
			}
		}
		sids := []string{"fc00:1:1::", "fc00:1:2::", "fc00:2:1::"}
		for range rapid.IntRange(1, 25).Draw(t, "changes") {
			if rapid.IntRange(0, 3).Draw(t, "kind") == 0 {
				l := netip.PrefixFrom(netip.MustParseAddr(rapid.SampledFrom(sids).Draw(t, "locator")), 32).Masked()
				lost[l] = !lost[l]
				e.locator(locator(l.String(), true)) // only a known locator can be lost
				e.locator(locator(l.String(), !lost[l]))
			} else {
				i := rapid.IntRange(0, len(sids)-1).Draw(t, "route")
				p := vpnPath(fmt.Sprint("10.0.0.1:", 1+i), sids[i], rapid.SampledFrom([]string{"65000:101", "65000:102"}).Draw(t, "rt"))
				p.Prefix = rapid.SampledFrom(prefixes).Draw(t, "prefix")
				p.Withdrawn = rapid.Bool().Draw(t, "withdrawn")
				if delete(advertised, pathKey{p.RD, p.Prefix}); !p.Withdrawn {
					advertised[pathKey{p.RD, p.Prefix}] = p
				}
				if err := e.update(p); err != nil {
					t.Fatal(err)
				}
			}
			verify(route.Key{})
		}
		for k := range w {
			if k.Class() == route.ClassRule || k.Class() == route.ClassRoute {
				verify(k)
			}
		}
	})
}
