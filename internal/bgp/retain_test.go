package bgp

import (
	"testing"
	"time"
)

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
