package bgp

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/rib"
	"github.com/tabane/tabane/internal/bgp/session"
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
	rr.must(rr.Disable("r22"))
	server.wait("session end", func() bool { return !server.up["r21"] })
	server.wait("the route is kept", func() bool { return len(server.unicast) == 1 })
	if st := server.Neighbors()[0]; st.Retained != 1 {
		t.Errorf("state %+v", st)
	}
	rr.must(rr.Enable("r22"))
	server.wait("session", func() bool { return server.up["r21"] })
	origin.must(origin.Originate(UnicastRoute{Prefix: q, NextHop: address(20)}))
	server.wait("a new route", func() bool { return len(server.unicast) == 2 })
	if st := server.Neighbors()[0]; st.Retained != 0 {
		t.Errorf("state %+v", st)
	}
	server.must(server.Disable("r21"))
	server.wait("our own end of the session", func() bool { return len(server.unicast) == 0 })

	if err := origin.AddNeighbor(Neighbor{
		Name: "x", Address: address(30), ASN: 65000, Families: []Family{IPv6Unicast}, Retain: time.Hour,
	}); err == nil {
		t.Error("a speaker that reports what neighbors announce cannot retain")
	}
}

// offline is a speaker whose sessions have no connections: their functions are called by the test.
type offline struct {
	*Speaker
	t *testing.T
	// unannounced: neighbors have no graceful restart capability. families, unless 0, are those
	// that they have in common with the speaker.
	unannounced bool
	families    message.FamilySet
}

func newOffline(t *testing.T, neighbors ...Neighbor) *offline {
	t.Helper()
	s, err := New(Options{ASN: 65000, RouterID: addr("10.0.0.1"), NoListen: true, Report: ReportBest, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	o := &offline{Speaker: s, t: t}
	for i, conf := range neighbors {
		conf.Address, conf.ASN = address(i+2), 65000
		n, err := newNeighbor(s, conf)
		if err != nil {
			t.Fatal(err)
		}
		s.neighbors[conf.Name] = n
	}
	t.Cleanup(s.Stop)
	return o
}

// up establishes a session, in which the neighbor advertises routes and then End-of-RIB of some
// families.
func (o *offline) up(name string, markers []Family, prefixes ...netip.Prefix) {
	o.t.Helper()
	n := o.neighbors[name]
	e := session.Established{Open: message.Open{RouterID: addr("10.0.0.2")}}
	e.Families = message.Families(n.conf.Families...)
	if o.families != 0 {
		e.Families = o.families
	}
	e.FourOctetAS, e.EndOfRIB, e.ExtendedNextHopIn = true, !o.unannounced, message.Families(IPv4Unicast, VPNv4)
	e.Local = netip.AddrPortFrom(address(1), DefaultPort)
	n.established(e)
	o.advertise(name, prefixes...)
	for _, f := range markers {
		o.receive(name, message.AppendEndOfRIB(nil, f))
	}
}

// TestEndOfRIBFlood: End-of-RIB markers that wait for the reader of events do not accumulate.
func TestEndOfRIBFlood(t *testing.T) {
	o := newOffline(t, Neighbor{Name: "a", Families: []Family{IPv6Unicast}})
	o.up("a", nil, prefix("2a00::/32"))
	time.Sleep(10 * time.Millisecond) // the first batch waits for a reader
	for range 1000 {
		o.receive("a", message.AppendEndOfRIB(nil, IPv6Unicast))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.reader.notices); n > 3 {
		t.Errorf("%d events wait", n)
	}
}

// TestRefreshOnce: a neighbor whose number of prefixes crosses the limit again and again is asked
// for its routes once in a while.
func TestRefreshOnce(t *testing.T) {
	limit := PrefixLimit{Limit: 1, Action: LimitDiscard}
	o := newOffline(t, Neighbor{Name: "a", Families: []Family{IPv6Unicast}, Import: ImportPolicy{MaxPrefixes: limit}})
	o.up("a", nil)
	var first *time.Timer
	for range 3 {
		o.advertise("a", prefix("2a00::/32"), prefix("2a01::/32"))
		b, _ := message.NewEncoder(message.Negotiated{}).Withdraw(nil, []message.Key{message.KeyOf(prefix("2a00::/32"))})
		o.receive("a", b)
		o.mu.Lock()
		timer := o.neighbors["a"].limit.refresh[IPv6Unicast]
		o.mu.Unlock()
		if first == nil {
			first = timer
		}
		if timer == nil || timer != first {
			t.Fatalf("timer %p, want %p", timer, first)
		}
	}
}

// TestSourceInUse: the source of a session whose end is being processed is not freed, even if it
// has no paths: its paths are removed by it.
func TestSourceInUse(t *testing.T) {
	o := newOffline(t, Neighbor{Name: "a", Families: []Family{IPv6Unicast}})
	o.up("a", nil)
	n := o.neighbors["a"]
	o.mu.Lock()
	defer o.mu.Unlock()
	n.up = false
	if n.freeSource(); n.source == rib.Local {
		t.Error("freed")
	}
}

func (o *offline) receive(name string, b []byte) {
	o.t.Helper()
	for len(b) > 0 {
		_, size, err := message.ParseHeader(b, message.MaxLen)
		if err == nil {
			err = o.neighbors[name].receive(b[message.HeaderLen:size])
		}
		if err != nil {
			o.t.Fatal(err)
		}
		b = b[size:]
	}
}

func (o *offline) advertise(name string, prefixes ...netip.Prefix) {
	o.t.Helper()
	o.reflect(name, netip.Addr{}, prefixes...)
}

// reflect has a neighbor advertise routes of a router; if that is invalid, its own.
func (o *offline) reflect(name string, originator netip.Addr, prefixes ...netip.Prefix) {
	o.t.Helper()
	e := message.NewEncoder(message.Negotiated{FourOctetAS: true})
	a := o.interner.Intern(message.Fields{NextHop: address(9), LocalPref: 100, HasLocalPref: true, OriginatorID: originator})
	for _, p := range prefixes {
		b, _, err := e.Announce(nil, a, []message.NLRI{{Key: message.KeyOf(p)}})
		if err != nil {
			o.t.Fatal(err)
		}
		o.receive(name, b)
	}
}

func (o *offline) withdraw(name string, p netip.Prefix) {
	o.t.Helper()
	b, _ := message.NewEncoder(message.Negotiated{}).Withdraw(nil, []message.Key{message.KeyOf(p)})
	o.receive(name, b)
}

// want compares the events since the last call, sorted.
func (o *offline) want(what string, want ...string) {
	o.t.Helper()
	var got []string
	for {
		synctest.Wait()
		select {
		case batch := <-o.Events():
			for _, e := range batch {
				switch e := e.(type) {
				case UnicastPath:
					got = append(got, fmt.Sprintf("%s %t", e.Prefix, !e.Withdrawn))
				case Session:
					got = append(got, fmt.Sprintf("%s %t", e.Neighbor, e.Up))
				}
			}
			continue
		default:
		}
		break
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		o.t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func (o *offline) retained(name string) int {
	for _, st := range o.Neighbors() {
		if st.Name == name {
			return st.Retained
		}
	}
	return -1
}

var (
	kept1, kept2 = prefix("2a00:1::/32"), prefix("2a00:2::/32")
	reflector    = Neighbor{Name: "rr", Families: []Family{IPv6Unicast, VPNv6}, Retain: time.Hour}
	allMarkers   = []Family{IPv6Unicast, VPNv6}
	connection   = session.Reason{Text: "connection lost"}
)

func TestRoutesOutliveTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffline(t, reflector)
		o.up("rr", allMarkers, kept1, kept2)
		o.want("session", "rr true", "2a00:1::/32 true", "2a00:2::/32 true")
		o.neighbors["rr"].terminated(connection)
		o.want("session ends", "rr false")
		if n := o.retained("rr"); n != 2 {
			t.Errorf("%d routes are kept", n)
		}
		time.Sleep(reflector.Retain - time.Second)
		o.want("shortly before the time is up")
		time.Sleep(2 * time.Second)
		o.want("the time is up", "2a00:1::/32 false", "2a00:2::/32 false")
		time.Sleep(2 * reflector.Retain)
		o.want("once only")
		if o.neighbors["rr"].source != rib.Local {
			t.Error("the source is not freed")
		}
	})
}

func TestRetainedRouteNotAdvertisedAgainIsWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffline(t, reflector)
		o.up("rr", allMarkers, kept1, kept2)
		o.neighbors["rr"].terminated(connection)
		time.Sleep(time.Minute)
		o.want("a session", "rr true", "2a00:1::/32 true", "2a00:2::/32 true", "rr false")
		o.up("rr", []Family{IPv6Unicast}, kept1)
		time.Sleep(time.Minute)
		o.want("one family's marker is missing", "rr true")
		o.receive("rr", message.AppendEndOfRIB(nil, VPNv6))
		time.Sleep(retainSettle - time.Millisecond)
		o.want("just after the markers")
		time.Sleep(2 * time.Millisecond)
		o.want("settled", "2a00:2::/32 false")
		o.withdraw("rr", kept1)
		o.want("a withdrawal in the session", "2a00:1::/32 false")
	})
}

// TestAbsentRouter: routes of a router that the reflector has no session with yet, or does not
// advertise yet, are kept longer than those that a router does not advertise again.
func TestAbsentRouter(t *testing.T) {
	near, far := addr("10.0.0.7"), addr("10.0.0.8")
	again := prefix("2a00:3::/32")
	synctest.Test(t, func(t *testing.T) {
		o := newOffline(t, reflector)
		o.up("rr", nil)
		o.reflect("rr", near, kept1, again)
		o.reflect("rr", far, kept2)
		o.neighbors["rr"].terminated(connection)
		o.want("a session", "rr true", "2a00:1::/32 true", "2a00:2::/32 true", "2a00:3::/32 true", "rr false")
		o.up("rr", nil)
		o.reflect("rr", near, again)
		for _, f := range allMarkers {
			o.receive("rr", message.AppendEndOfRIB(nil, f))
		}
		time.Sleep(retainSettle + time.Second)
		o.want("settled", "rr true", "2a00:1::/32 false")
		if s := o.Sessions()[0]; s.Retained != 1 || s.RetainedSeconds < 140 || !strings.Contains(s.Retention, "routers that are not back") {
			t.Errorf("status %+v", s)
		}
		time.Sleep(40 * time.Second)
		o.reflect("rr", far, kept2)
		time.Sleep(2 * absentLatest)
		o.want("it is back, and nothing has changed")

		o.neighbors["rr"].terminated(connection)
		o.want("the session ends", "rr false")
		o.up("rr", nil)
		o.reflect("rr", near, again)
		for _, f := range allMarkers {
			o.receive("rr", message.AppendEndOfRIB(nil, f))
		}
		time.Sleep(retainSettle + absentLatest - time.Second)
		o.want("shortly before", "rr true")
		time.Sleep(2 * time.Second)
		o.want("it does not come back", "2a00:2::/32 false")
	})
}

// TestRestartsInTurn: reflectors that are restarted one after the other, as in maintenance, cost no
// route of a router that has a session with neither for a while.
func TestRestartsInTurn(t *testing.T) {
	far := addr("10.0.0.8")
	synctest.Test(t, func(t *testing.T) {
		second := reflector
		second.Name = "rr2"
		o := newOffline(t, reflector, second)
		o.up("rr", nil)
		o.reflect("rr", far, kept1)
		o.up("rr2", nil)
		o.reflect("rr2", far, kept1)
		time.Sleep(time.Hour)
		o.want("sessions", "rr true", "rr2 true", "2a00:1::/32 true")
		o.neighbors["rr"].terminated(connection)
		o.want("a session ends", "rr false", "2a00:1::/32 true") // that of the other one
		o.up("rr", allMarkers)
		time.Sleep(retainSettle + time.Second)
		o.neighbors["rr2"].terminated(connection)
		o.want("the other one ends", "rr true", "rr2 false")
		o.up("rr2", allMarkers)
		time.Sleep(time.Minute)
		o.want("both are back", "rr2 true")
		o.reflect("rr", far, kept1)
		time.Sleep(time.Hour)
		o.want("the router is back", "2a00:1::/32 true")
	})
}

// TestRetentionWithoutEndOfRIB: what a neighbor without the graceful restart capability does not
// advertise again is withdrawn seconds after it has advertised everything, however long that takes.
func TestRetentionWithoutEndOfRIB(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffline(t, reflector)
		o.unannounced = true
		o.up("rr", nil, kept1, kept2)
		o.neighbors["rr"].terminated(connection)
		o.want("a session", "rr true", "2a00:1::/32 true", "2a00:2::/32 true", "rr false")
		if s := o.Sessions()[0]; s.Retained != 2 || s.RetainedSeconds < 3598 || s.Retention != "the session is down" {
			t.Errorf("status %+v", s)
		}
		time.Sleep(time.Minute)
		o.up("rr", nil)
		time.Sleep(quietTime - time.Second)
		o.advertise("rr", kept1)
		if s := o.Sessions()[0]; s.Retained != 1 || !strings.Contains(s.Retention, "no End-of-RIB") {
			t.Errorf("status %+v", s)
		}
		time.Sleep(quietTime + retainSettle - time.Second)
		o.want("shortly before", "rr true")
		if s := o.Sessions()[0]; s.Retained != 1 || s.RetainedSeconds > 1 || !strings.Contains(s.Retention, "all routes are advertised") {
			t.Errorf("status %+v", s)
		}
		time.Sleep(2 * time.Second)
		o.want("quiet and settled", "2a00:2::/32 false")

		// Another neighbor that never becomes quiet.
		o.neighbors["rr"].terminated(connection)
		o.want("lost", "rr false")
		o.up("rr", nil)
		began := time.Now()
		for time.Since(began) < floodLatest+retainSettle-time.Second {
			o.advertise("rr", kept2)
			time.Sleep(time.Second)
		}
		o.want("shortly before", "rr true", "2a00:2::/32 true")
		time.Sleep(2 * time.Second)
		o.want("it still sends", "2a00:1::/32 false")
	})
}

// TestEndOfRIBThatNeverComes: markers that were announced are awaited for a limited time, and only
// those of the families of the session.
func TestEndOfRIBThatNeverComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffline(t, reflector)
		o.up("rr", allMarkers, kept1, kept2)
		o.neighbors["rr"].terminated(connection)
		o.want("a session", "rr true", "2a00:1::/32 true", "2a00:2::/32 true", "rr false")
		o.up("rr", allMarkers[:1], kept1)
		if s := o.Sessions()[0]; s.Retention != "waits for End-of-RIB of vpnv6" {
			t.Errorf("status %+v", s)
		}
		time.Sleep(markerLatest + retainSettle - time.Second)
		o.want("shortly before", "rr true")
		time.Sleep(2 * time.Second)
		o.want("the marker is missing", "2a00:2::/32 false")

		o.neighbors["rr"].terminated(connection)
		o.families = message.Families(IPv6Unicast)
		o.up("rr", allMarkers[:1])
		time.Sleep(retainSettle - time.Second)
		o.want("one family", "rr false", "rr true")
		time.Sleep(2 * time.Second)
		o.want("its marker", "2a00:1::/32 false")
	})
}

// TestAnotherNeighborWithoutEndOfRIB: once it was quiet, what it does not advertise is not
// retained.
func TestAnotherNeighborWithoutEndOfRIB(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := reflector
		other.Name = "rr2"
		o := newOffline(t, reflector, other)
		o.unannounced = true
		o.up("rr", nil, kept1, kept2)
		o.up("rr2", nil, kept1)
		o.want("sessions", "rr true", "rr2 true", "2a00:1::/32 true", "2a00:2::/32 true")
		time.Sleep(quietTime + retainSettle + time.Second)
		o.neighbors["rr"].terminated(connection)
		o.want("lost", "rr false", "2a00:1::/32 true", "2a00:2::/32 false")
	})
}

func TestRetentionContinuesAfterASecondLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffline(t, reflector)
		o.up("rr", allMarkers, kept1, kept2)
		o.neighbors["rr"].terminated(connection)
		o.want("a session", "rr true", "2a00:1::/32 true", "2a00:2::/32 true", "rr false")
		o.up("rr", allMarkers, kept1)
		time.Sleep(retainSettle / 2)
		o.neighbors["rr"].terminated(connection)
		o.want("again", "rr true", "rr false")
		time.Sleep(reflector.Retain / 2)
		o.want("kept")
		if n := o.retained("rr"); n != 2 {
			t.Errorf("%d routes are kept", n)
		}
	})
}

func TestRouteOfAnotherNeighborReplacesRetained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := reflector
		other.Name = "rr2"
		o := newOffline(t, reflector, other)
		o.up("rr", allMarkers, kept1, kept2)
		o.neighbors["rr"].terminated(connection)
		o.want("a session", "rr true", "2a00:1::/32 true", "2a00:2::/32 true", "rr false")
		o.up("rr2", allMarkers, kept1)
		o.want("the other's route", "rr2 true", "2a00:1::/32 true")
		o.withdraw("rr2", kept1)
		o.want("which it withdraws", "2a00:1::/32 false")
		time.Sleep(2 * reflector.Retain)
		o.want("the rest", "2a00:2::/32 false")
	})
}

// TestRouteOfAnotherNeighborIsPreferredToStale: nothing is retained that another neighbor has.
func TestRouteOfAnotherNeighborIsPreferredToStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := reflector
		other.Name = "rr2"
		o := newOffline(t, reflector, other)
		o.up("rr", allMarkers, kept1, kept2)
		o.up("rr2", allMarkers, kept1, kept2)
		o.want("sessions", "rr true", "rr2 true", "2a00:1::/32 true", "2a00:2::/32 true")
		o.neighbors["rr"].terminated(connection)
		if n := o.retained("rr"); n != 0 {
			t.Errorf("%d routes are kept", n)
		}
		o.want("the other's routes", "rr false", "2a00:1::/32 true", "2a00:2::/32 true")
	})
}

func TestClosedSessionRetainsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffline(t, reflector)
		o.up("rr", allMarkers, kept1, kept2)
		o.want("session", "rr true", "2a00:1::/32 true", "2a00:2::/32 true")
		n := o.neighbors["rr"]
		n.release(func() { n.terminated(session.Reason{Text: "reset", Local: true}) })
		o.want("a session that we end", "2a00:1::/32 false", "rr false", "2a00:2::/32 false")
		o.up("rr", allMarkers, kept1)
		n.terminated(connection)
		o.want("a session that is lost", "2a00:1::/32 true", "rr true", "rr false")
		n.release(func() {})
		o.want("a neighbor that is reset while it is away", "2a00:1::/32 false")
	})
}

func TestRetainIsOffByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffline(t, Neighbor{Name: "rr", Families: reflector.Families})
		o.up("rr", allMarkers, kept1)
		o.want("session", "rr true", "2a00:1::/32 true")
		o.neighbors["rr"].terminated(connection)
		o.want("lost", "rr false", "2a00:1::/32 false")
	})
}

// TestBlackholeIsNotRetained: the session on which it could be withdrawn has ended.
func TestBlackholeIsNotRetained(t *testing.T) {
	origin, rr := newRouter(t, 20, 65000), newRouter(t, 21, 65000)
	server := newRouterWith(t, 22, 65000, func(o *Options) { o.Report = ReportBest })
	rr.peer(origin, client)
	rr.peer(server, client)
	origin.peer(rr)
	server.peer(rr, func(n *Neighbor) { n.Retain = time.Hour })
	locator, sid := prefix("fc00:1::/32"), prefix("fc00:1:1::/128")
	origin.must(origin.Originate(UnicastRoute{Prefix: locator, NextHop: address(20)}))
	origin.must(origin.SetBlackhole(true, sid))
	server.wait("routes", func() bool { return len(server.unicast) == 2 })
	rr.must(rr.Disable("r22"))
	server.wait("the locator alone is kept", func() bool {
		_, kept := server.unicast[locator]
		return !server.up["r21"] && kept && len(server.unicast) == 1
	})
	if st := server.Neighbors()[0]; st.Retained != 1 {
		t.Errorf("state %+v", st)
	}
}

// TestAnotherReflectorReplacesRetainedRoutes: what another reflector does not advertise is not
// retained, once that one has advertised all of its routes for so long that none of a router is
// absent.
func TestAnotherReflectorReplacesRetainedRoutes(t *testing.T) {
	for _, settled := range []bool{false, true} {
		t.Run(fmt.Sprintf("settled=%t", settled), func(t *testing.T) {
			origin, one, two := newRouter(t, 20, 65000), newRouter(t, 21, 65000), newRouter(t, 23, 65000)
			server := newRouterWith(t, 22, 65000, func(o *Options) { o.Report = ReportBest })
			retaining := func(n *Neighbor) { n.Retain = time.Hour }
			for _, rr := range []*router{one, two} {
				rr.peer(server, client)
				server.peer(rr, retaining)
			}
			one.peer(origin, client)
			origin.peer(one)
			both, withdrawn := prefix("2a00:1::/32"), prefix("2a00:2::/32")
			origin.must(origin.Originate(UnicastRoute{Prefix: both, NextHop: address(20)}, UnicastRoute{Prefix: withdrawn, NextHop: address(20)}))
			two.must(two.Originate(UnicastRoute{Prefix: both, NextHop: address(20)}))
			complete := func() bool {
				server.Speaker.mu.Lock()
				defer server.Speaker.mu.Unlock()
				n := server.neighbors["r23"]
				if n.stale.settled.IsZero() {
					return false
				}
				if settled {
					n.stale.settled = time.Now().Add(-absentLatest) // instead of retainSettle later
				}
				return true
			}
			server.wait("routes", func() bool { return len(server.unicast) == 2 })
			server.wait("End-of-RIB of the other reflector", complete)
			one.must(one.Disable("r22"))
			want := 2
			if settled {
				want = 1
			}
			server.wait(fmt.Sprintf("%d routes after the end of the session", want), func() bool {
				_, kept := server.unicast[both]
				return !server.up["r21"] && kept && len(server.unicast) == want
			})
		})
	}
}

// TestFlapsDoNotProlongRetention: routes that a flapping neighbor does not advertise again are kept
// for Retain after the first end of its session, whether it says that it has advertised all or not.
func TestFlapsDoNotProlongRetention(t *testing.T) {
	for name, markers := range map[string][]Family{"before End-of-RIB": nil, "after End-of-RIB": allMarkers} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOffline(t, reflector)
				o.up("rr", allMarkers, kept1, kept2)
				o.neighbors["rr"].terminated(connection)
				o.want("a session", "rr true", "2a00:1::/32 true", "2a00:2::/32 true", "rr false")
				began := time.Now()
				for time.Since(began) < reflector.Retain-10*time.Minute {
					time.Sleep(5 * time.Minute)
					o.up("rr", markers, kept1)
					time.Sleep(retainSettle / 2)
					o.neighbors["rr"].terminated(connection)
					o.want("again", "rr true", "rr false")
				}
				time.Sleep(reflector.Retain - time.Since(began) - time.Nanosecond)
				o.want("kept")
				time.Sleep(time.Nanosecond)
				o.want("withdrawn", "2a00:1::/32 false", "2a00:2::/32 false")
			})
		})
	}
}

// TestRetentionBeginsAgain: routes that were all advertised again are kept for Retain again.
func TestRetentionBeginsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffline(t, reflector)
		for _, changes := range [][]string{{"2a00:1::/32 true", "2a00:2::/32 true"}, nil} {
			o.up("rr", allMarkers, kept1, kept2)
			o.neighbors["rr"].terminated(connection)
			time.Sleep(reflector.Retain - time.Second)
			o.want("a session", append(changes, "rr true", "rr false")...)
			if n := o.retained("rr"); n != 2 {
				t.Errorf("%d routes are kept", n)
			}
		}
	})
}

// TestLostReplacementDoesNotProlongRetention: the session with the neighbor that was to replace
// routes ends, so that these are kept for the rest of Retain.
func TestLostReplacementDoesNotProlongRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := reflector
		other.Name = "rr2"
		o := newOffline(t, reflector, other)
		o.up("rr", allMarkers, kept1)
		o.neighbors["rr"].terminated(connection)
		o.want("a session", "rr true", "2a00:1::/32 true", "rr false")
		began := time.Now()
		time.Sleep(reflector.Retain / 2)
		o.up("rr2", allMarkers)
		time.Sleep(retainSettle / 2)
		o.neighbors["rr2"].terminated(connection)
		o.want("the other's session", "rr2 true", "rr2 false")
		time.Sleep(reflector.Retain - time.Since(began) - time.Nanosecond)
		o.want("kept")
		time.Sleep(time.Nanosecond)
		o.want("withdrawn", "2a00:1::/32 false")
	})
}

// TestNextSessionDoesNotProlongRetention: stale routes are withdrawn when Retain is over, although
// the next session is up, if it has not advertised them.
func TestNextSessionDoesNotProlongRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOffline(t, reflector)
		o.up("rr", allMarkers, kept1, kept2)
		o.neighbors["rr"].terminated(connection)
		o.want("a session", "rr true", "2a00:1::/32 true", "2a00:2::/32 true", "rr false")
		time.Sleep(reflector.Retain - time.Minute)
		o.up("rr", nil, kept1)
		time.Sleep(time.Minute)
		o.want("the next one", "rr true", "2a00:2::/32 false")
	})
}
