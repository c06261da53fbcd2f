package bgp

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/rib"
	"github.com/tabane/tabane/internal/bgp/srv6"
)

// advertiseAs advertises a route with its own attributes.
func (o *offline) advertiseAs(name string, k message.NLRI, f message.Fields) {
	o.t.Helper()
	if !f.NextHop.IsValid() {
		f.NextHop = address(9)
	}
	f.LocalPref, f.HasLocalPref = 100, true
	e := message.NewEncoder(message.Negotiated{FourOctetAS: true, ExtendedNextHop: message.Families(IPv4Unicast, VPNv4)})
	b, _, err := e.Announce(nil, o.interner.Intern(f), []message.NLRI{k})
	if err != nil {
		o.t.Fatal(err)
	}
	o.receive(name, b)
}

// checkSum compares the counts of a session with each other.
func checkSum(t *testing.T, s SessionStatus) {
	t.Helper()
	sum := s.Accepted
	for _, m := range []map[RejectReason]int{s.Refused, s.Unused} {
		for _, n := range m {
			sum += n
		}
	}
	if received := s.Prefixes + s.VPNRoutes; sum != received {
		t.Errorf("%d routes received, but %d accepted, refused %v, unused %v", received, s.Accepted, s.Refused, s.Unused)
	}
}

// TestEveryRouteIsCounted: each received route is accepted, or refused or unused for a reason, also
// after it has changed and after another policy.
func TestEveryRouteIsCounted(t *testing.T) {
	all := []Family{IPv4Unicast, IPv6Unicast, VPNv4, VPNv6}
	policy := ImportPolicy{
		Reject:   Within(RejectConnected, prefix("2a00:c::/32")),
		Services: &Services{Targets: []Target{{id(t, "65000:101"), IPv6}}, Locators: []netip.Prefix{prefix("fc00::/16")}},
	}
	o := newOffline(t, Neighbor{Name: "rr", Families: all, Import: policy})
	o.up("rr", nil)
	sid := func(text string) string {
		s, _, err := message.NewService(addr(text), srv6.Structure{Block: 32, Node: 16, Function: 16}, 18)
		if err != nil {
			t.Fatal(err)
		}
		return s.PrefixSID()
	}
	target := func(text string) []uint64 { return []uint64{id(t, text).Target()} }
	good := message.Fields{Extended: target("65000:101"), PrefixSID: sid("fc00:1:1::")}
	change := func(f message.Fields, by func(*message.Fields)) message.Fields { by(&f); return f }
	sent := 0
	send := func(k message.Key, f message.Fields) {
		sent++
		o.advertiseAs("rr", message.NLRI{Key: k, Label: message.ImplicitNull}, f)
	}
	route := func(n int, p string) message.Key {
		return message.KeyOfVPN(id(t, fmt.Sprintf("65000:%d", n)), prefix(p))
	}
	for n, f := range []message.Fields{
		good, good,
		// RFC 4659 section 3.2.1.1.
		change(good, func(f *message.Fields) { f.NextHop = addr("::ffff:192.0.2.1") }),
		change(good, func(f *message.Fields) { f.NextHop = addr("::ffff:127.0.0.1") }),
		change(good, func(f *message.Fields) { f.Extended = target("65000:999") }),
		change(good, func(f *message.Fields) { f.Extended, f.PrefixSID = target("65000:999"), "" }),
		change(good, func(f *message.Fields) { f.Extended = nil }),
		change(good, func(f *message.Fields) { f.PrefixSID = "" }),
		change(good, func(f *message.Fields) { f.PrefixSID = sid("fd00:1:1::") }),
		change(good, func(f *message.Fields) { f.ASPath = message.MakeASPath(65000) }),
		change(good, func(f *message.Fields) { f.OriginatorID = addr("10.0.0.1") }),
	} {
		send(route(n, "2a00:1::/32"), f)
	}
	send(route(1, "192.0.2.0/24"), good) // no IPv4 peer has the target
	send(route(1, "2a00:c:1::/48"), good)
	send(message.KeyOf(prefix("2a00:2::/32")), message.Fields{})
	send(message.KeyOf(prefix("2a00:3::/32")), message.Fields{NextHop: addr("::ffff:192.0.2.1")})
	send(message.KeyOf(prefix("198.51.100.0/24")), message.Fields{NextHop: addr("::ffff:192.0.2.1")})
	send(message.KeyOf(prefix("2a00:4::/32")), message.Fields{NextHop: addr("ff02::1")})

	check := func(accepted int, refused, unused map[RejectReason]int) {
		t.Helper()
		s := o.Sessions()[0]
		checkSum(t, s)
		if s.Prefixes+s.VPNRoutes != sent || s.Prefixes != 4 || s.Accepted != accepted || !maps.Equal(s.Refused, refused) || !maps.Equal(s.Unused, unused) {
			t.Errorf("%d of %d accepted, refused %v, unused %v; want %d, %v, %v", s.Accepted, s.Prefixes+s.VPNRoutes, s.Refused, s.Unused, accepted, refused, unused)
		}
	}
	check(5, map[RejectReason]int{
		RejectNextHop: 3, RejectNoTarget: 1, RejectNoPrefixSID: 1, RejectForeignSID: 1, RejectLoop: 2, RejectConnected: 1,
	}, map[RejectReason]int{RejectNoPeer: 3})

	// The same routes with another policy, and one route with another fault.
	policy.Reject = nil
	policy.Services = &Services{Targets: []Target{{id(t, "65000:101"), IPv4}, {id(t, "65000:999"), IPv6}}, Locators: policy.Services.Locators}
	if err := o.SetImport("rr", policy); err != nil {
		t.Fatal(err)
	}
	check(4, map[RejectReason]int{
		RejectNextHop: 3, RejectNoTarget: 1, RejectNoPrefixSID: 1, RejectLoop: 2,
	}, map[RejectReason]int{RejectNoPeer: 6})
	sent--
	send(route(4, "2a00:1::/32"), message.Fields{PrefixSID: good.PrefixSID})
	check(3, map[RejectReason]int{
		RejectNextHop: 3, RejectNoTarget: 2, RejectNoPrefixSID: 1, RejectLoop: 2,
	}, map[RejectReason]int{RejectNoPeer: 6})
	o.neighbors["rr"].terminated(connection)
	sent = 0
	if s := o.Sessions()[0]; s.Accepted+s.Prefixes+s.VPNRoutes+len(s.Refused)+len(s.Unused) != 0 {
		t.Errorf("after the session: %+v", s)
	}
}

// TestMappedNextHop: an IPv4-mapped next hop of IPv4 routes is the IPv4 address, and that of
// VPN-IPv6 routes is reflected as it is.
func TestMappedNextHop(t *testing.T) {
	a := message.NewInterner().Intern(message.Fields{NextHop: addr("::ffff:192.0.2.1")})
	for f, want := range map[Family]string{IPv4Unicast: "192.0.2.1", VPNv4: "192.0.2.1", VPNv6: "::ffff:192.0.2.1", IPv6Unicast: "::ffff:192.0.2.1"} {
		if got := nextHop(f, a, address(9)); got != addr(want) {
			t.Errorf("%s: next hop %s", f, got)
		}
		x := exporter{own: Options{RouterID: addr("10.0.0.1")}, internal: true, self: address(1), extended: message.Families(IPv4Unicast, VPNv4)}
		fields, ok := x.fields(f, a, origin{source: 1, peer: rib.Peer{RouterID: addr("10.0.0.2")}}, 0)
		if !ok || fields.NextHop != addr(want) {
			t.Errorf("%s: advertised with %s", f, fields.NextHop)
		}
	}
	policy := ImportPolicy{OwnAddresses: []netip.Addr{addr("192.0.2.1")}}
	for own, want := range map[bool]bool{false: true, true: false} {
		m := importer{Neighbor: Neighbor{ASN: 65000}, own: Options{ASN: 65000, RouterID: addr("10.0.0.1")}, internal: true}
		if own {
			m.Import = policy
		}
		if c := m.classify(IPv4Unicast, a); (c.err == nil) != want {
			t.Errorf("own address %t: %v", own, c.err)
		}
	}
}
