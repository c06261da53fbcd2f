package bgp

import (
	"bytes"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/rib"
	"github.com/tabane/tabane/internal/kernel/contain"
)

// panicIn injects a panic into each call of a function with a route.
func panicIn(t *testing.T, function string, route message.Key) (stop func()) {
	t.Helper()
	stop = contain.Inject(func(b contain.Boundary, text []byte) {
		if b != contain.BGPRoute || string(text) != route.String() {
			return
		}
		pc := make([]uintptr, 16)
		frames := runtime.CallersFrames(pc[:runtime.Callers(0, pc)])
		for {
			f, more := frames.Next()
			if strings.HasSuffix(f.Function, function) {
				panic("BUG: injected into " + function)
			}
			if !more {
				return
			}
		}
	})
	t.Cleanup(stop)
	return stop
}

// TestPanicCostsTheRoute: a route that makes the code panic that advertises or reports it is not
// advertised or reported; the session and other routes go on, also that route once it does not
// panic.
func TestPanicCostsTheRoute(t *testing.T) {
	poison := prefix("2a00:666::/32")
	for _, function := range []string{").take", ").encodeGroup", ").unicast", ").update"} {
		t.Run(strings.Trim(function, ")."), func(t *testing.T) {
			a, b := newRouter(t, 1, 65001), newRouter(t, 2, 65002)
			a.peer(b)
			b.peer(a, passive)
			before := contain.Counts()[contain.BGPRoute]
			stop := panicIn(t, function, message.KeyOf(poison))
			a.must(a.Originate(UnicastRoute{Prefix: poison}))
			a.must(a.Originate(UnicastRoute{Prefix: prefix("2a00:1::/32"), Attributes: Attributes{MED: 1, HasMED: true}}))
			b.wait("the other route", func() bool { return len(b.adjIn["r1"]) > 0 && len(b.unicast) > 0 })
			a.wait("panics", func() bool { return contain.Counts()[contain.BGPRoute] > before })
			b.mu.Lock()
			_, has := b.adjIn["r1"][poison]
			_, best := b.unicast[poison]
			b.mu.Unlock()
			if has && best {
				t.Error("the route was reported")
			}
			stop()
			a.must(a.Withdraw(poison))
			a.must(a.Originate(UnicastRoute{Prefix: poison, Attributes: Attributes{MED: 5, HasMED: true}}))
			b.wait("the route that does not panic any more", func() bool {
				return b.adjIn["r1"][poison].MED == 5 && b.unicast[poison].MED == 5
			})
			b.mu.Lock()
			defer b.mu.Unlock()
			if len(b.downs) > 0 {
				t.Errorf("sessions went down: %v", b.downs)
			}
		})
	}
}

// TestPanicOfPolicy: a route that makes a new import policy panic is rejected, and the speaker goes
// on.
func TestPanicOfPolicy(t *testing.T) {
	a, b := newRouter(t, 1, 65001), newRouter(t, 2, 65002)
	a.peer(b)
	b.peer(a, passive)
	poison, fine := prefix("2a00:666::/32"), prefix("2a00:1::/32")
	a.must(a.Originate(UnicastRoute{Prefix: poison}, UnicastRoute{Prefix: fine}))
	b.wait("both routes", func() bool { return len(b.unicast) == 2 })
	panicIn(t, ").reimport", message.KeyOf(poison))
	b.must(b.SetImport("r1", ImportPolicy{MaxLength: 64}))
	b.wait("the route that panics is withdrawn", func() bool { _, has := b.unicast[poison]; return !has && len(b.unicast) == 1 })
	a.must(a.Originate(UnicastRoute{Prefix: prefix("2a00:2::/32")}))
	b.wait("another route", func() bool { return len(b.unicast) == 2 })
}

// TestPanicOfUpdate: an UPDATE that panics costs its session, whose routes are withdrawn; other
// sessions and their routes go on.
func TestPanicOfUpdate(t *testing.T) {
	a, b, c := newRouter(t, 1, 65001), newRouter(t, 2, 65002), newRouter(t, 3, 65003)
	a.peer(b)
	c.peer(b)
	b.peer(a, passive)
	b.peer(c, passive)
	fine := prefix("2a00:1::/32")
	a.must(a.Originate(UnicastRoute{Prefix: fine}))
	c.must(c.Originate(UnicastRoute{Prefix: prefix("2a00:3::/32")}))
	b.wait("routes of both", func() bool { return len(b.adjIn["r1"]) == 1 && len(b.adjIn["r3"]) == 1 })
	t.Cleanup(contain.Inject(func(at contain.Boundary, body []byte) {
		if at == contain.BGPSession && bytes.Contains(body, []byte{0x2a, 0x00, 0x06, 0x66}) {
			panic("BUG: injected")
		}
	}))
	a.must(a.Originate(UnicastRoute{Prefix: prefix("2a00:666::/32")}))
	b.wait("the session is down and its routes are withdrawn", func() bool {
		return b.downs["r1"] == "BUG: injected" && len(b.adjIn["r1"]) == 0
	})
	a.wait("NOTIFICATION", func() bool { return strings.Contains(a.downs["r2"], "Cease") })
	c.must(c.Originate(UnicastRoute{Prefix: prefix("2a00:4::/32")}))
	b.wait("another route of the other session", func() bool { return len(b.adjIn["r3"]) == 2 && b.downs["r3"] == "" })
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.unicast) != 2 {
		t.Errorf("best paths %v", b.unicast)
	}
}

// unlocked fails the test if a function leaves mu locked when it panics.
func unlocked(t *testing.T, s *Speaker, what string, f func()) {
	t.Helper()
	if contain.Do(contain.Request, nil, nil, f) == nil {
		t.Errorf("%s: no panic", what)
	}
	// Others lock the speaker too, for a moment.
	poll(t, what+": the speaker unlocked", s.mu.TryLock)
	s.mu.Unlock()
}

// TestPanicOfRequest: a panic while routes are dumped or advertised again costs the request, and a
// route at which the policy has panicked is dumped without it.
func TestPanicOfRequest(t *testing.T) {
	defer contain.Acknowledge()
	o := newOffline(t, Neighbor{Name: "a", Families: []Family{IPv6Unicast}})
	o.up("a", nil, kept1)
	n := o.neighbors["a"]
	stop := panicIn(t, ").reimport", message.KeyOf(kept1))
	n.reimport()
	stop()
	importer, consumers := n.importer, n.feed.consumers
	n.importer = nil // it panics
	if got, want := dumped(t, o.Speaker, Filter{View: ReceivedRoutes}), "2a00:1::/32  a refused "+errPanic.Error(); len(got) != 1 || got[0] != want {
		t.Errorf("dumped %q, want %q", got, want)
	}
	n.importer = importer
	o.mu.Lock()
	n.conf.Import.Reject = Within(RejectConnected, kept1)
	n.importer = o.newImporter(n)
	o.mu.Unlock()
	n.reimport()
	n.importer = nil
	unlocked(t, o.Speaker, "dump", func() { _ = o.Dump(Filter{View: ReceivedRoutes}, func(RouteEntry) error { return nil }) })
	n.importer = importer
	n.feed.consumers[IPv6Unicast] = new(rib.Consumer) // it panics
	unlocked(t, o.Speaker, "clear", func() { n.resend() })
	n.feed.consumers = consumers
}

// TestPanicOfEstablished: the end of a session that has panicked before it had a source leaves the
// routes of this speaker alone.
func TestPanicOfEstablished(t *testing.T) {
	for _, retain := range []time.Duration{0, time.Hour} {
		o := newOffline(t, Neighbor{Name: "a", Families: []Family{IPv6Unicast}, Retain: retain})
		if err := o.Originate(UnicastRoute{Prefix: kept1, NextHop: address(1)}); err != nil {
			t.Fatal(err)
		}
		n := o.neighbors["a"]
		n.ended, n.keep = make(chan struct{}), retain > 0 // of the session before
		n.terminated(connection)
		o.mu.Lock()
		if all, _ := o.rib.Received(IPv6Unicast, rib.Local); all != 1 || o.rib.Stale(rib.Local) != 0 {
			t.Errorf("retain %s: %d routes of this speaker, %d of them stale", retain, all, o.rib.Stale(rib.Local))
		}
		o.mu.Unlock()
	}
}
