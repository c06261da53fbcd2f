package asbr

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/kernel/route"
	"github.com/tabane/tabane/internal/kernel/route/routetest"
)

// neighborhood is an ASBR with three peers in which packets are forwarded as the desired state
// says.
type neighborhood struct {
	config Config
	peers  []*peer
	worlds []*world // with one kernel
	// advertised is what each peer has advertised in its session, closed that a drain closed it.
	advertised []map[netip.Prefix]bool
	closed     []bool
}

func newNeighborhood(t *rapid.T, family bgp.IP, address func(peer int) netip.Addr) *neighborhood {
	n := &neighborhood{config: testConfig()}
	n.config.Prefixes = append(n.config.Prefixes, netip.MustParsePrefix("192.0.2.0/24"))
	n.config.Peers[0].Address, n.config.Peers[0].Family = address(0), family
	for i, name := range []string{"transit-b", "transit-c"} {
		p := n.config.Peers[0]
		p.Name, p.Interface, p.ID, p.Table, p.RT = name, fmt.Sprint("wan", i), uint32(2+i), uint32(102+i), id(fmt.Sprint("65000:", 102+i))
		p.Address = address(1 + i)
		n.config.Peers = append(n.config.Peers, p)
	}
	if err := n.config.Check().Err(); err != nil {
		t.Fatal(err)
	}
	kernel := map[route.Key]route.Object{}
	for _, o := range n.config.guards(nil) {
		kernel[o.Key()] = o
	}
	for i := range n.config.Peers {
		p, err := newPeer(&n.config, &n.config.Peers[i])
		if err != nil {
			t.Fatal(err)
		}
		w := &world{kernel: kernel, routes: map[netip.Prefix]bgp.VPNRoute{}}
		p.kernel, p.announcer = w, w
		n.peers, n.worlds = append(n.peers, p), append(n.worlds, w)
		n.advertised = append(n.advertised, map[netip.Prefix]bool{})
	}
	n.closed = make([]bool, len(n.peers))
	return n
}

// forward returns the peer that a packet for a SID leaves to, or nil if it is dropped.
func (n *neighborhood) forward(sid, dst netip.Addr) *peer {
	kernel := maps.Values(n.worlds[0].kernel)
	r, ok := routetest.Decapsulate(kernel, sid, dst)
	if !ok {
		return nil
	}
	for _, p := range n.peers {
		if p.Interface == r.Link && p.Address == r.Gateway {
			return p
		}
	}
	return nil
}

// may reports whether a packet may leave to a peer.
func (n *neighborhood) may(peer int, dst netip.Addr) bool {
	p := n.peers[peer]
	if !p.session || !p.link || n.closed[peer] {
		return false
	}
	for prefix := range n.advertised[peer] {
		if prefix.Contains(dst) {
			return true
		}
	}
	return false
}

// TestNoPacketLeavesUnannounced: after each of many random changes, before the daemon has done
// anything else, a packet for a SID leaves to the peer of that SID if the peer has advertised its
// destination, and is dropped if it has not. A packet from a peer leaves to none. A route is
// advertised to servers only while packets for it leave.
func TestNoPacketLeavesUnannounced(t *testing.T) {
	prefixes, addresses := []netip.Prefix{}, []netip.Addr{}
	for _, p := range []string{"::/0", "2001:db8:100::/40", "2001:db8:100::/48", "2001:db8:100:1::/64", "2001:db8:200::/48"} {
		prefixes = append(prefixes, netip.MustParsePrefix(p))
	}
	for _, a := range []string{"2001:db8:100::1", "2001:db8:100:1::1", "2001:db8:110::1", "2001:db8:200::1", "2001:db8:eeee::1"} {
		addresses = append(addresses, netip.MustParseAddr(a))
	}
	inside := []netip.Addr{netip.MustParseAddr("2001:db8:1::77"), netip.MustParseAddr("fc00:2:1::"), netip.MustParseAddr("fc00:1:9::")}
	testNoPacketLeaves(t, prefixes, addresses, inside, func(peer int) netip.Addr {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:%x::2", 0xa+peer))
	})
}

// As above, in IPv4, where each peer has an address of either family.
func TestNoIPv4PacketLeavesUnannounced(t *testing.T) {
	prefixes, addresses := []netip.Prefix{}, []netip.Addr{}
	for _, p := range []string{"0.0.0.0/0", "198.51.0.0/16", "198.51.100.0/22", "198.51.100.0/24", "203.0.113.0/24"} {
		prefixes = append(prefixes, netip.MustParsePrefix(p))
	}
	for _, a := range []string{"198.51.100.1", "198.51.101.1", "198.51.1.1", "203.0.113.1", "8.8.8.8"} {
		addresses = append(addresses, netip.MustParseAddr(a))
	}
	testNoPacketLeaves(t, prefixes, addresses, []netip.Addr{netip.MustParseAddr("192.0.2.77")}, func(peer int) netip.Addr {
		if peer == 1 {
			return netip.MustParseAddr("2001:db8:b::2") // next hops of RFC 8950
		}
		return netip.MustParseAddr(fmt.Sprintf("100.64.%d.2", peer))
	})
}

func testNoPacketLeaves(t *testing.T, prefixes []netip.Prefix, addresses, inside []netip.Addr, address func(peer int) netip.Addr) {
	family := bgp.IPOf(addresses[0])
	rapid.Check(t, func(t *rapid.T) {
		n := newNeighborhood(t, family, address)
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			i := rapid.IntRange(0, len(n.peers)-1).Draw(t, "peer")
			p := n.peers[i]
			switch change := rapid.SampledFrom([]string{"advertise", "advertise", "advertise", "withdraw", "reject", "session", "link", "hide", "close", "settle"}).
				Draw(t, "change"); change {
			case "advertise", "withdraw", "reject":
				if !p.session {
					continue // no UPDATE arrives without one
				}
				u := bgp.Update{Neighbor: p.Name, Prefix: rapid.SampledFrom(prefixes).Draw(t, "prefix"), NextHop: p.Address}
				u.Withdrawn = change == "withdraw"
				if change == "reject" {
					u.Rejected = &bgp.RejectedError{Reason: RejectDenied}
				}
				if delete(n.advertised[i], u.Prefix); change == "advertise" {
					n.advertised[i][u.Prefix] = true
				}
				p.update(u)
			case "session":
				if p.session {
					// All withdrawals precede the end of a session.
					for prefix := range n.advertised[i] {
						p.update(bgp.Update{Neighbor: p.Name, Prefix: prefix, Withdrawn: true})
					}
					clear(n.advertised[i])
				}
				p.session = !p.session
				p.refresh()
			case "link":
				p.link = !p.link
				p.refresh()
			case "hide":
				p.hide(!p.hidden)
			case "close":
				n.closed[i] = !n.closed[i]
				p.close(n.closed[i])
			case "settle":
				if err := n.settle(p); err != nil {
					t.Fatal(err)
				}
			}
			for i, p := range n.peers {
				for _, dst := range addresses {
					got := n.forward(p.sid, dst)
					if want := n.may(i, dst); want != (got == p) || !want && got != nil {
						t.Fatalf("a packet for the SID of %s to %s: it may leave is %t, leaves is %t", p.Name, dst, want, got != nil)
					}
				}
				for _, dst := range inside {
					if got := n.forward(p.sid, dst); got != nil {
						t.Fatalf("a packet for the SID of %s to %s, our own space, leaves to %s", p.Name, dst, got.Name)
					}
				}
				n.checkGuards(t, p, addresses)
			}
		}
		for i, p := range n.peers {
			if err := n.settle(p); err != nil {
				t.Fatal(err)
			}
			for prefix := range n.worlds[i].routes {
				if !n.may(i, prefix.Addr()) || p.hidden || !n.advertised[i][prefix] {
					t.Fatalf("%s is advertised to servers through %s", prefix, p.Name)
				}
			}
			if up := p.session && p.link && !n.closed[i] && !p.hidden; up && len(n.worlds[i].routes) != len(n.advertised[i]) {
				t.Fatalf("%s: %d of %d routes are advertised to servers", p.Name, len(n.worlds[i].routes), len(n.advertised[i]))
			}
		}
	})
}

// settle does what the daemon does after each event.
func (n *neighborhood) settle(p *peer) error {
	if err := p.withdraw(); err != nil {
		return err
	}
	for again := true; again; again = p.retire() {
		if _, err := p.announce(); err != nil {
			return err
		}
	}
	return nil
}

// checkGuards checks that packets from a peer are forwarded neither to a SID nor to another peer.
func (n *neighborhood) checkGuards(t *rapid.T, from *peer, addresses []netip.Addr) {
	kernel := maps.Values(n.worlds[0].kernel)
	for _, p := range n.peers {
		for _, dst := range append([]netip.Addr{p.sid}, addresses...) {
			if r, ok := routetest.Lookup(kernel, routetest.Packet{Src: from.Address, Dst: dst, Iif: from.Interface}); ok {
				t.Fatalf("a packet from %s to %s takes %s", from.Name, dst, r)
			}
		}
	}
}
