package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/bgp/bfd"
)

// TestBFDEndsSessions uses real speakers. Packets to an address that was removed are lost without
// an error.
func TestBFDEndsSessions(t *testing.T) {
	a, b := newRouter(t, 23, 65000), newRouter(t, 24, 65000)
	withBFD := func(n *Neighbor) { n.BFD = bfd.Config{Interval: 50 * time.Millisecond} }
	a.peer(b, withBFD, passive)
	b.peer(a, withBFD)
	p := prefix("2a00:1::/32")
	b.must(b.Originate(UnicastRoute{Prefix: p, NextHop: address(24)}))
	a.wait("route", func() bool { return len(a.unicast) == 1 })
	watching := func(r *router) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); r.Sessions()[0].BFD != "up"; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("BFD never up: %+v", r.Sessions())
			}
		}
	}
	watching(a)
	watching(b)

	began := time.Now()
	moveAddress(t, address(24), false)
	a.wait("the end of the session", func() bool { return !a.up["r24"] && len(a.unicast) == 0 })
	t.Logf("found after %v", time.Since(began))
	b.wait("the end of the session", func() bool { return !b.up["r23"] })
	if a.downs["r24"] != bfdReason && b.downs["r23"] != bfdReason {
		t.Errorf("reasons %q and %q", a.downs["r24"], b.downs["r23"])
	}
	moveAddress(t, address(24), true)
	a.wait("the session again", func() bool { return a.up["r24"] && len(a.unicast) == 1 })
	watching(a)

	// A neighbor that is stopped or disabled properly is not reported as down by BFD.
	b.must(b.Disable("r23"))
	a.wait("the end of the session", func() bool { return !a.up["r24"] })
	if a.downs["r24"] == bfdReason {
		t.Error("a session that was ended in order was ended by BFD")
	}
	b.must(b.Enable("r23"))
	a.wait("the session again", func() bool { return a.up["r24"] })
	watching(a)
	a.must(a.DeleteNeighbor("r24"))
	b.wait("the end of the session", func() bool { return !b.up["r23"] })
}

// TestLostLocatorIsAdvertisedFirst: when BFD of a neighbor goes down, its locator is advertised as
// lost first, and withdrawn with the other routes.
func TestLostLocatorIsAdvertisedFirst(t *testing.T) {
	asbr, rr := newRouter(t, 25, 65000), newRouter(t, 26, 65000)
	server := newRouterWith(t, 27, 65000, func(o *Options) { o.Report = ReportBest })
	l := prefix("fc00:1::/32")
	config := bfd.Config{Interval: 50 * time.Millisecond}
	rr.peer(asbr, client, func(n *Neighbor) { n.BFD, n.Locators = config, []netip.Prefix{l} })
	rr.peer(server, client)
	asbr.peer(rr, func(n *Neighbor) { n.BFD = config })
	server.peer(rr)
	routes := []UnicastRoute{{Prefix: l, NextHop: address(25)}}
	for i := range 2000 {
		routes = append(routes, UnicastRoute{Prefix: prefix(fmt.Sprintf("2a00:%x::/32", i)), NextHop: address(25)})
	}
	asbr.must(asbr.Originate(routes...))
	server.wait("routes", func() bool { return len(server.unicast) == len(routes) })
	for end := time.Now().Add(10 * time.Second); rr.Sessions()[0].BFD != "up"; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never watched: %+v", rr.Sessions())
		}
	}
	atLoss := make(chan int, 1) // how many routes there were when the locator was lost
	go func() {
		server.wait("the loss of the locator", func() bool {
			u, there := server.unicast[l]
			return !there || slices.Contains(u.Communities, Blackhole)
		})
		server.mu.Lock()
		defer server.mu.Unlock()
		atLoss <- len(server.unicast)
	}()
	moveAddress(t, address(25), false)
	t.Logf("%d of %d routes were there when the locator was lost", <-atLoss, len(routes))
	server.wait("the rest goes, the locator too", func() bool { return len(server.unicast) == 0 })
	moveAddress(t, address(25), true)
	server.wait("all of it again", func() bool {
		return len(server.unicast) == len(routes) && server.unicast[l].NextHop == address(25)
	})
}

// TestLocatorIsLostOnAllReflectorsOnly: one reflector that lost an ASBR does not override another
// one.
func TestLocatorIsLostOnAllReflectorsOnly(t *testing.T) {
	asbr, rr1, rr2 := newRouter(t, 21, 65000), newRouter(t, 22, 65000), newRouter(t, 23, 65000)
	server := newRouterWith(t, 24, 65000, func(o *Options) { o.Report = ReportBest })
	l := prefix("fc00:1::/32")
	asbr.must(asbr.Originate(UnicastRoute{Prefix: l, NextHop: address(21)}))
	for _, rr := range []*router{rr1, rr2} {
		rr.peer(asbr, client)
		asbr.peer(rr)
		rr.wait("the locator", func() bool { return len(rr.unicast) == 1 })
	}
	// Only now, so that the end-of-RIB marker of each reflector follows the locator.
	for _, rr := range []*router{rr1, rr2} {
		rr.peer(server, client)
		server.peer(rr)
	}
	server.wait("the locator from both", func() bool {
		return len(server.unicast) == 1 && server.ended[EndOfRIB{"r22", IPv6Unicast}] == 1 && server.ended[EndOfRIB{"r23", IPv6Unicast}] == 1
	})
	lost := func() bool { return slices.Contains(server.unicast[l].Communities, Blackhole) }
	// A later route of the same reflector shows that the loss has been received.
	next := UnicastRoute{Prefix: prefix("2a00::/32"), NextHop: address(22)}
	rr1.must(rr1.SetBlackhole(true, l))
	rr1.must(rr1.Originate(next))
	server.wait("the next route", func() bool { return len(server.unicast) == 2 })
	server.mu.Lock()
	if lost() || server.unicast[l].NextHop != address(21) {
		t.Errorf("the loss at one reflector was believed: %+v", server.unicast[l])
	}
	server.mu.Unlock()
	rr2.must(rr2.SetBlackhole(true, l))
	server.wait("the loss", lost)
	rr2.must(rr2.SetBlackhole(false, l))
	server.wait("the locator again", func() bool { return !lost() && server.unicast[l].NextHop == address(21) })
}

// TestLossIsAdvertisedFirst: when an external neighbor closes the session, the speaker advertises
// the loss of its locators; not when this side closes it.
func TestLossIsAdvertisedFirst(t *testing.T) {
	border, rr, peer := newRouter(t, 28, 65000), newRouterWith(t, 29, 65000, func(o *Options) { o.Report = ReportBest }), newRouter(t, 30, 65001)
	sid := prefix("fc00:1:1::/128")
	rr.peer(border, client)
	border.peer(rr)
	border.peer(peer, func(n *Neighbor) { n.Locators = []netip.Prefix{sid} })
	peer.peer(border)
	peer.must(peer.Originate(UnicastRoute{Prefix: prefix("2a00::/32"), NextHop: address(30)}))
	rr.wait("routes", func() bool { return len(rr.unicast) == 1 })
	// A session closed by this side is not a loss: the caller withdraws the routes.
	border.must(border.Disable("r30"))
	rr.wait("no routes", func() bool { return len(rr.unicast) == 0 })
	border.must(border.Enable("r30"))
	border.wait("the session", func() bool { return border.up["r30"] })
	rr.wait("routes again", func() bool { return len(rr.unicast) == 1 })

	peer.must(peer.Disable("r28"))
	rr.wait("word of what is lost", func() bool { return slices.Contains(rr.unicast[sid].Communities, Blackhole) })
	border.wait("the end of the session", func() bool { return !border.up["r30"] })
	peer.must(peer.Enable("r28"))
	border.wait("the session", func() bool { return border.up["r30"] })
	border.must(border.SetBlackhole(false, sid))
	rr.wait("all as before", func() bool { return len(rr.unicast) == 1 })
}

// moveAddress removes an address from the loopback interface, or adds it.
func moveAddress(t *testing.T, a netip.Addr, there bool) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netlink.ParseAddr(fmt.Sprintf("%s/128", a))
	if err != nil {
		t.Fatal(err)
	}
	addr.Flags = unix.IFA_F_NODAD
	change := netlink.AddrDel
	if there {
		change = netlink.AddrAdd
	}
	if err := change(lo, addr); err != nil {
		t.Fatal(err)
	}
}

// TestStatusDoesNotWaitForChanges: the deletion of a neighbor with a full table takes a while.
func TestStatusDoesNotWaitForChanges(t *testing.T) {
	a, b := newRouter(t, 27, 65000), newRouter(t, 28, 65000)
	a.peer(b)
	a.calls.Lock()
	defer a.calls.Unlock()
	states := make(chan int)
	go func() { states <- len(a.Sessions()) }()
	select {
	case n := <-states:
		if n != 1 {
			t.Errorf("%d sessions, want 1", n)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the status waits for a change of neighbors")
	}
}
