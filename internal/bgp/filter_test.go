package bgp

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/vpn"
)

const (
	testConnected RejectReason = "connected"
	testBogon     RejectReason = "bogon"
)

// TestImportPolicy: each route that the policy rejects is reported with its reason and never
// selected as best path; replacing the policy applies to routes that were received before.
func TestImportPolicy(t *testing.T) {
	r := newRouter(t, 25, 65000)
	conf := Neighbor{
		Name: "peer", Address: address(26), LocalAddress: address(25), ASN: 65001, Families: []Family{IPv6Unicast}, Passive: true,
		Import: ImportPolicy{
			Reject: append(Within(testConnected, prefix("2a00:a::/64")),
				PrefixFilter{Prefix: prefix("2a00:b::/32"), Min: 40, Max: 44, Reason: testBogon}),
			MaxLength: 48, EnforceFirstAS: true,
			NextHops: []netip.Prefix{prefix("fd00::1a/128"), prefix("fd00::19/128")}, OwnAddresses: []netip.Addr{address(25)},
		},
	}
	r.must(r.AddNeighbor(conf))
	p := dialRaw(t, r, 26, 65001)
	ours, blackhole := []byte{0xfd, 0xe8, 0, 7}, []byte{0xff, 0xff, 0x02, 0x9a}
	send := func(to string, hop netip.Addr, path []byte) {
		p.update(rawOrigin, path, attr(0xc0, 8, ours, blackhole, []byte{0xfd, 0xe9, 0, 9}), unicastReach(prefix(to), hop))
	}
	good := rawPath(segment(2, 65001, 64999))
	accepted := []string{"::/0", "2a00:1::/32", "2a00:2::/48", "2a00:b::/32", "2a00:b::/48", "2a00::/16"}
	for _, to := range accepted {
		send(to, address(26), good)
	}
	want := map[netip.Prefix]RejectReason{}
	rejected := func(why RejectReason, to string, hop netip.Addr, path []byte) {
		want[prefix(to)] = why
		send(to, hop, path)
	}
	rejected(RejectMartian, "fe80::/10", address(26), good)
	rejected(RejectLoop, "2a00:3::/32", address(26), rawPath(segment(2, 65001, 65000)))
	rejected(RejectFirstAS, "2a00:4::/32", address(26), rawPath(segment(2, 65002, 65001)))
	rejected(RejectFirstAS, "2a00:5::/32", address(26), rawPath())
	rejected(testConnected, "2a00:a::/64", address(26), good)
	rejected(testConnected, "2a00:a::1/128", address(26), good)
	rejected(testBogon, "2a00:b::/40", address(26), good)
	rejected(RejectTooLong, "2a00:6::/49", address(26), good)
	rejected(RejectOwnNextHop, "2a00:7::/32", address(25), good)
	rejected(RejectForeignNextHop, "2a00:8::/32", address(27), good)
	rejected(RejectForeignNextHop, "2a00:9::/32", addr("fe80::1"), good)

	agree := func(what string, accepted []string) {
		t.Helper()
		r.wait(what, func() bool {
			missing := slices.ContainsFunc(accepted, func(to string) bool {
				_, known := r.adjIn["peer"][prefix(to)]
				_, best := r.unicast[prefix(to)]
				return !known || !best
			})
			return !missing && len(r.adjIn["peer"]) == len(accepted) && len(r.unicast) == len(accepted) && maps.Equal(r.reasons, want)
		})
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, to := range accepted {
			for _, c := range [][]uint32{r.adjIn["peer"][prefix(to)].Communities, r.unicast[prefix(to)].Communities} {
				if !slices.Equal(c, []uint32{65001<<16 | 9}) {
					t.Errorf("%s has communities %x, want only the peer's", to, c)
				}
			}
		}
	}
	agree("the accepted routes", accepted)

	// A new policy applies to received routes without a new UPDATE.
	conf.Import.Reject = Within(testConnected, prefix("2a00:1::/32"))
	r.must(r.SetImport("peer", conf.Import))
	delete(want, prefix("2a00:b::/40"))
	want[prefix("2a00:1::/32")] = testConnected
	// These are rejected for another reason.
	want[prefix("2a00:a::/64")], want[prefix("2a00:a::1/128")] = RejectTooLong, RejectTooLong
	agree("the routes of the other policy", []string{"::/0", "2a00:b::/40", "2a00:2::/48", "2a00:b::/32", "2a00:b::/48", "2a00::/16"})
	r.must(r.SetImport("peer", conf.Import))

	bad := conf.Import
	bad.NextHops = []netip.Prefix{prefix("fd00::1/64")}
	if err := r.SetImport("peer", bad); err == nil {
		t.Error("a policy with host bits was accepted")
	}
}

// TestInternalSignals: communities that have a meaning inside our AS do not enter it.
func TestInternalSignals(t *testing.T) {
	for _, own := range []uint32{65000, 70000} { // only the first is that of a community
		a := message.NewInterner().Intern(message.Fields{
			NextHop: address(26), ASPath: message.MakeASPath(65001),
			Communities: []uint32{65000<<16 | 7, Blackhole, 65001<<16 | 9},
			Large:       []message.LargeCommunity{{65000, 1, 2}, {70000, 1, 2}, {65001, 3, 4}},
		})
		for _, internal := range []bool{false, true} {
			m := importer{Neighbor: Neighbor{ASN: 65001}, own: Options{ASN: own, RouterID: netip.MustParseAddr("10.0.0.1")}, internal: internal}
			c := m.classify(IPv6Unicast, a)
			f := m.apply(a, c.change)
			communities, large := []uint32{65000<<16 | 7, Blackhole, 65001<<16 | 9}, []message.LargeCommunity{{65000, 1, 2}, {70000, 1, 2}, {65001, 3, 4}}
			if !internal {
				communities = slices.DeleteFunc(communities, func(c uint32) bool { return c == Blackhole || c>>16 == own })
				large = slices.DeleteFunc(large, func(c message.LargeCommunity) bool { return c[0] == own })
			}
			if c.err != nil || !slices.Equal(f.Communities, communities) || !slices.Equal(f.Large, large) {
				t.Errorf("AS %d, internal %t: %v, communities %x and %v, want %x and %v", own, internal, c.err, f.Communities, f.Large, communities, large)
			}
		}
	}
}

// TestMartians: no neighbor, a reflector neither, has a route to what no router forwards to
// accepted, in any family, or such a next hop. Default routes and their halves are none.
func TestMartians(t *testing.T) {
	for _, internal := range []bool{false, true} {
		s := &Speaker{opt: Options{ASN: 65000}}
		m := s.newImporter(&neighbor{conf: Neighbor{Name: "reflector", Address: addr("2001:db8::1"), ASN: 65000}, internal: internal})
		rejected := func(p netip.Prefix) bool {
			t.Helper()
			n := 0
			for _, k := range []message.Key{message.KeyOf(p), message.KeyOfVPN(vpn.ID{}, p)} {
				_, err := m.evaluate(class{}, k, 0)
				var r *message.RejectedError
				if errors.As(err, &r) && r.Reason == RejectMartian {
					n++
				} else if err != nil {
					t.Errorf("%v: %v", k, err)
				}
			}
			if n == 1 {
				t.Errorf("%s is rejected in one of two families", p)
			}
			return n > 0
		}
		for _, p := range []string{
			"ff00::/8", "ff02::1/128", "fe80::/10", "fe80::/64", "febf::/16", "::/128", "::1/128", "::/96", "::ffff:0:0/96",
			"0.0.0.0/8", "0.1.0.0/16", "127.0.0.0/8", "127.0.0.1/32", "169.254.0.0/16", "224.0.0.0/4", "239.1.0.0/16", "240.0.0.0/4", "255.255.255.255/32",
		} {
			if !rejected(prefix(p)) {
				t.Errorf("%s is accepted, internal %t", p, internal)
			}
		}
		for _, p := range []string{"0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1", "::/0", "::/1", "10.0.0.0/8", "126.0.0.0/8", "2001:db8::/32", "64:ff9b::/96", "fc00::/7", "223.0.0.0/8"} {
			if rejected(prefix(p)) {
				t.Errorf("%s is rejected, internal %t", p, internal)
			}
		}
		for _, a := range []string{"ff02::1", "::", "::1", "::2", "0.0.0.0", "0.0.0.1", "127.0.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"} {
			if m.isHost(addr(a)) {
				t.Errorf("%s is a next hop, internal %t", a, internal)
			}
		}
		for _, a := range []string{"192.0.2.1", "10.0.0.1", "2001:db8::2", "fd00::1"} {
			if !m.isHost(addr(a)) {
				t.Errorf("%s is no next hop, internal %t", a, internal)
			}
		}
		for _, a := range []string{"fe80::1", "169.254.1.1"} {
			if m.isHost(addr(a)) == internal {
				t.Errorf("%s is a next hop: %t, internal %t", a, !internal, internal)
			}
		}
		m.Address = addr("fe80::1%eth0")
		if !m.isHost(addr("fe80::1")) {
			t.Errorf("the neighbor itself is no next hop, internal %t", internal)
		}
	}
}
