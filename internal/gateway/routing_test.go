package gateway

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/kernel/route"
	"github.com/tabane/tabane/internal/kernel/route/routetest"
)

// TestUnlisted: interfaces with addresses of the LAN that are none of it are found, such as its
// VLANs. Without open peers they are as good as others.
func TestUnlisted(t *testing.T) {
	c := site()
	c.LAN.Interfaces, c.LAN.Prefixes = []string{"eth0"}, []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	address := func(link, prefix string) route.Address {
		return route.Address{Link: link, Prefix: netip.MustParsePrefix(prefix)}
	}
	connected := []route.Address{
		address("eth0", "10.1.0.1/24"), address("eth0.100", "10.1.1.1/24"), address("eth0.100", "10.1.2.1/24"), address("lo", "10.1.9.1/24"),
		address("dummy0", "10.1.9.2/32"), address("eth9", "192.0.2.1/24"), address(c.Paths[0].Interface, "10.1.3.1/24"), address(c.tunnelName(), "10.1.4.1/24"),
	}
	if got := c.unlisted(connected); got != nil {
		t.Errorf("without open peers: %q", got)
	}
	c.Peers[0].Mode = dataplane.Plain.String()
	if got := c.unlisted(connected); !slices.Equal(got, []string{"eth0.100"}) {
		t.Errorf("got %q", got)
	}
	c.LAN.Interfaces = append(c.LAN.Interfaces, "eth0.100")
	if got := c.unlisted(connected); got != nil {
		t.Errorf("all are listed: %q", got)
	}
}

// TestSource: packets of this host to peers, ICMP errors above all, have an address that peers accept.
func TestSource(t *testing.T) {
	c := site()
	c.LAN.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("2001:db8:1::/48")}
	address := func(link, prefix string) route.Address {
		return route.Address{Link: link, Prefix: netip.MustParsePrefix(prefix)}
	}
	line := []route.Address{address(c.Paths[0].Interface, "192.0.2.1/24"), address(c.Paths[0].Interface, "2001:db8:f1::1/64"), address("eth0", "fe80::1/64")}
	tentative := address("eth0", "2001:db8:1::9/64")
	tentative.Deprecated = true
	line = append(line, tentative)
	lan := append(slices.Clone(line), address("eth0", "10.1.0.1/24"), address("eth0.100", "10.1.1.1/24"), address("eth0", "2001:db8:1::1/64"))
	own := append(slices.Clone(lan), address(c.tunnelName(), "10.79.0.2/32"))
	for _, tt := range []struct {
		name         string
		connected    []route.Address
		want4, want6 string
	}{
		{"lines alone", line, "invalid IP", "invalid IP"}, {"a LAN", lan, "10.1.0.1", "2001:db8:1::1"}, {"an address of the tunnel", own, "10.79.0.2", "2001:db8:1::1"},
	} {
		c.Peers[0].Prefixes = []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16"), netip.MustParsePrefix("2001:db8:2::/48")}
		got := map[bgp.IP]string{}
		for _, o := range kernelObjects(&c, tt.connected) {
			if r, ok := o.(route.Route); ok && r.Link == c.tunnelName() {
				got[bgp.IPOf(r.Dst.Addr())] = r.PrefSrc.String()
			}
		}
		if got[bgp.IPv4] != tt.want4 || got[bgp.IPv6] != tt.want6 {
			t.Errorf("%s: sources %q, want %q and %q", tt.name, got, tt.want4, tt.want6)
		}
	}
}

// TestRouting: whatever routes other programs have in the main table, and with or without the
// tunnel's interface, a packet to a peer leaves through the tunnel or not at all, unless it is the
// gateway's own, to an exception, or to something that is more specific than a default route.
func TestRouting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		address := func(name string) netip.Addr { // few, so that prefixes contain each other
			return netip.AddrFrom4([4]byte{rapid.SampledFrom([]byte{10, 192}).Draw(t, name), rapid.ByteRange(0, 3).Draw(t, name), rapid.ByteRange(0, 3).Draw(t, name), 9})
		}
		prefix := func(name string, bits ...int) netip.Prefix {
			return netip.PrefixFrom(address(name), rapid.SampledFrom(bits).Draw(t, name)).Masked()
		}
		c := site()
		c.LAN.Prefixes = []netip.Prefix{prefix("lan", 24)}
		c.Peers = c.Peers[:2]
		c.Peers[0].Prefixes, c.Peers[1].Prefixes = nil, nil
		var all []netip.Prefix
		for range rapid.IntRange(1, 4).Draw(t, "prefixes") {
			p := prefix("peer", 0, 8, 16, 32)
			// As checkOverlaps has it: a default route may contain others.
			if !slices.ContainsFunc(all, func(o netip.Prefix) bool { return o == p || o.Bits() > 0 && p.Bits() > 0 && o.Overlaps(p) }) {
				all = append(all, p)
				r := &c.Peers[rapid.IntRange(0, 1).Draw(t, "whose")]
				r.Prefixes = append(r.Prefixes, p)
			}
		}
		var connected []route.Address
		var list []route.Object
		for range rapid.IntRange(0, 3).Draw(t, "addresses") {
			link := rapid.SampledFrom([]string{"eth0", "eth1"}).Draw(t, "link")
			a := netip.PrefixFrom(address("address"), 24)
			connected = append(connected, route.Address{Link: link, Prefix: a})
			list = append(list, route.Route{Dst: a.Masked(), Link: link})
		}
		list = append(list, kernelObjects(&c, connected)...)
		for range rapid.IntRange(0, 4).Draw(t, "routes") {
			list = append(list, route.Route{Dst: prefix("foreign", 0, 8, 16, 24, 32), Link: "eth1"})
		}
		alive := rapid.Bool().Draw(t, "alive")
		present := func(yield func(route.Object) bool) {
			for _, o := range list {
				if r, ok := o.(route.Route); ok && r.Link == c.tunnelName() && !alive {
					continue
				}
				if !yield(o) {
					return
				}
			}
		}
		src, dst := netip.MustParseAddr("172.16.0.1"), address("dst")
		got, ok := routetest.Lookup(present, routetest.Packet{Src: src, Dst: dst, Iif: "eth0"})
		in := func(list []netip.Prefix) bool {
			return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(dst) })
		}
		peers := slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return p.Bits() == 0 })
		byDefault := len(peers) < len(all)
		excepted := in(c.exceptions(bgp.IPv4, connected))
		switch {
		case in(peers) && !excepted, byDefault && !in(c.LAN.Prefixes) && !slices.ContainsFunc(list, func(o route.Object) bool {
			r, ok := o.(route.Route)
			return ok && r.Table == 0 && r.Dst.Bits() > 0 && r.Dst.Contains(dst)
		}):
			if ok != alive || ok && got.Link != c.tunnelName() {
				t.Fatalf("a packet to the peer takes %v, %v", got, ok)
			}
		case excepted || in(c.LAN.Prefixes):
			if ok && got.Link == c.tunnelName() {
				t.Fatalf("a packet to the LAN takes %v", got)
			}
		}
		for _, p := range []routetest.Packet{{Src: src, Dst: dst, Mark: SocketMark}, {Src: src, Dst: dst, Mark: SocketMark, Oif: "eth1"}} {
			if got, ok := routetest.Lookup(present, p); ok && got.Link == c.tunnelName() {
				t.Fatalf("the tunnel's own packet takes %v", got)
			}
			want, is := routetest.LookupTable(func(yield func(route.Object) bool) {
				for o := range present {
					if r, ok := o.(route.Route); ok && (p.Oif == "" || r.Link == p.Oif) && !yield(o) {
						return
					}
				}
			}, route.MainTable, dst)
			if got, ok := routetest.Lookup(present, p); ok != is || got.Dst != want.Dst {
				t.Fatalf("the tunnel's own packet takes %v, %v, want %v, %v", got, ok, want, is)
			}
		}
	})
}
