package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// held is a retention and the events that passed it.
type held struct {
	*retention
	got []string
}

func newHeld(neighbors ...Neighbor) *held {
	h := &held{}
	h.retention = newRetention(func(e Event) {
		switch e := e.(type) {
		case UnicastPath:
			h.got = append(h.got, fmt.Sprintf("%s withdrawn=%t", e.Prefix, e.Withdrawn))
		case VPNPath:
			h.got = append(h.got, fmt.Sprintf("vpn %s withdrawn=%t", e.Prefix, e.Withdrawn))
		case Session:
			h.got = append(h.got, fmt.Sprintf("%s up=%t", e.Neighbor, e.Up))
		}
	})
	for _, n := range neighbors {
		h.add(n)
	}
	return h
}

// take returns the events that passed since the last call, sorted.
func (h *held) take() []string {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	got := h.got
	h.got = nil
	slices.Sort(got)
	return got
}

func (h *held) want(t *testing.T, what string, want ...string) {
	t.Helper()
	if got := h.take(); !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

var (
	kept1 = UnicastPath{Prefix: netip.MustParsePrefix("2a00:1::/32"), Neighbor: "rr"}
	kept2 = VPNPath{Prefix: netip.MustParsePrefix("2a00:2::/32"), Neighbor: "rr"}
)

func gone(e Event) Event {
	switch e := e.(type) {
	case UnicastPath:
		e.Withdrawn = true
		return e
	case VPNPath:
		e.Withdrawn = true
		return e
	}
	panic("BUG: not a path")
}

// up establishes a session with both routes, and lose closes it.
func (h *held) up() {
	h.event(Session{Neighbor: "rr", Up: true})
	h.event(kept1)
	h.event(kept2)
	h.event(EndOfRIB{"rr", IPv6Unicast})
	h.event(EndOfRIB{"rr", VPNv6})
}

func (h *held) lose(paths ...Event) {
	h.sessionEnding("rr")
	for _, p := range paths {
		h.event(gone(p))
	}
	h.event(Session{Neighbor: "rr"})
}

var reflector = Neighbor{Name: "rr", Families: []Family{IPv6Unicast, VPNv6}, Retain: time.Hour}

func TestRoutesOutliveTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeld(reflector)
		h.up()
		h.take()
		h.lose(kept1, kept2)
		h.want(t, "session ends", "rr up=false")
		if n := h.stale("rr"); n != 2 {
			t.Errorf("%d routes are kept", n)
		}
		time.Sleep(reflector.Retain - time.Second)
		h.want(t, "shortly before the time is up")
		time.Sleep(2 * time.Second)
		h.want(t, "the time is up", "2a00:1::/32 withdrawn=true", "vpn 2a00:2::/32 withdrawn=true")
		time.Sleep(2 * reflector.Retain)
		h.want(t, "once only")
	})
}

func TestRetainedRouteNotAdvertisedAgainIsWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeld(reflector)
		h.up()
		h.lose(kept1, kept2)
		time.Sleep(time.Minute)
		h.take()
		h.event(Session{Neighbor: "rr", Up: true})
		h.event(kept1)
		h.event(EndOfRIB{"rr", IPv6Unicast})
		time.Sleep(time.Minute)
		h.want(t, "one family's marker is missing", "2a00:1::/32 withdrawn=false", "rr up=true")
		h.event(EndOfRIB{"rr", VPNv6})
		time.Sleep(retainSettle - time.Millisecond)
		h.want(t, "just after the markers")
		time.Sleep(2 * time.Millisecond)
		h.want(t, "settled", "vpn 2a00:2::/32 withdrawn=true")
		h.event(gone(kept1))
		h.want(t, "a withdrawal in the session", "2a00:1::/32 withdrawn=true")
	})
}

func TestRetentionContinuesAfterASecondLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeld(reflector)
		h.up()
		h.lose(kept1, kept2)
		h.event(Session{Neighbor: "rr", Up: true})
		h.event(kept1)
		h.event(EndOfRIB{"rr", IPv6Unicast})
		h.event(EndOfRIB{"rr", VPNv6})
		h.take()
		time.Sleep(retainSettle / 2)
		h.lose(kept1)
		h.want(t, "again", "rr up=false")
		time.Sleep(reflector.Retain / 2)
		h.want(t, "kept")
		if n := h.stale("rr"); n != 2 {
			t.Errorf("%d routes are kept", n)
		}
	})
}

func TestRouteOfAnotherNeighborReplacesRetained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := reflector
		other.Name = "rr2"
		h := newHeld(reflector, other)
		h.up()
		h.lose(kept1, kept2)
		h.take()
		better := kept1
		better.Neighbor = "rr2"
		h.event(better)
		h.want(t, "the other's route", "2a00:1::/32 withdrawn=false")
		h.event(gone(better))
		h.want(t, "which it withdraws", "2a00:1::/32 withdrawn=true")
		time.Sleep(2 * reflector.Retain)
		h.want(t, "the rest", "vpn 2a00:2::/32 withdrawn=true")
	})
}

func TestClosedSessionRetainsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeld(reflector)
		h.up()
		h.take()
		h.remove("rr")
		h.lose(kept1, kept2)
		h.want(t, "a session that we end", "2a00:1::/32 withdrawn=true", "rr up=false", "vpn 2a00:2::/32 withdrawn=true")
		h.add(reflector)
		h.up()
		h.lose(kept1)
		h.take()
		h.remove("rr")
		h.want(t, "a neighbor that is deleted while it is away", "2a00:1::/32 withdrawn=true")
		h.stop()
	})
}

func TestRetainIsOffByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeld(Neighbor{Name: "rr", Families: reflector.Families})
		h.up()
		h.take()
		h.lose(kept1)
		h.want(t, "lost", "2a00:1::/32 withdrawn=true", "rr up=false")
	})
}

// TestRoutesAreRetainedAfterNotification uses real sessions: the reflector closes one with a
// NOTIFICATION and establishes it again.
func TestRoutesAreRetainedAfterNotification(t *testing.T) {
	origin, rr := newRouter(t, 20, 65000), newRouter(t, 21, 65000)
	server := newRouterWith(t, 22, 65000, func(o *Options) { o.Report = ReportBest })
	rr.peer(origin, client)
	rr.peer(server, client)
	origin.peer(rr)
	server.peer(rr, func(n *Neighbor) { n.Retain = time.Hour })
	p, q := prefix("2a00:1::/32"), prefix("2a00:2::/32")
	origin.must(origin.Originate(UnicastRoute{Prefix: p, NextHop: address(20)}, UnicastRoute{Prefix: q, NextHop: address(20)}))
	server.wait("routes", func() bool { return len(server.unicast) == 2 })
	origin.must(origin.Withdraw(q))
	server.wait("a withdrawal in the session", func() bool { return len(server.unicast) == 1 })

	// Stopping the reflector would first withdraw the routes of each client from the others.
	rr.must(rr.Disable(t.Context(), "r22"))
	server.wait("session end", func() bool { return !server.up["r21"] })
	server.wait("the route is kept", func() bool { return len(server.unicast) == 1 })
	if st := server.Neighbors()[0]; st.Retained != 1 {
		t.Errorf("state %+v", st)
	}
	rr.must(rr.Enable(t.Context(), "r22"))
	server.wait("session", func() bool { return server.up["r21"] })
	origin.must(origin.Originate(UnicastRoute{Prefix: q, NextHop: address(20)}))
	server.wait("a new route", func() bool { return len(server.unicast) == 2 })
	if st := server.Neighbors()[0]; st.Retained != 0 {
		t.Errorf("state %+v", st)
	}
	server.must(server.Disable(t.Context(), "r21"))
	server.wait("our own end of the session", func() bool { return len(server.unicast) == 0 })

	if err := origin.AddNeighbor(t.Context(), Neighbor{
		Name: "x", Address: address(30), ASN: 65000, Families: []Family{IPv6Unicast}, Retain: time.Hour,
	}); err == nil {
		t.Error("a speaker that reports what neighbors announce cannot retain")
	}
}
