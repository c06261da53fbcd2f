package edge

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

// TestBypass: where another peer has routes to all networks but few, deliveries through a peer that
// withdraws a part of its routes follow those at once, and the few leave it. They return when that
// has ended.
func TestBypass(t *testing.T) {
	const networks, few = 4 * fewInBurst, 3
	start := func() (e *egress, w wanted, later *[]func()) {
		config := dualStack()
		config.Delivery.Default = Mode{Single: "b"}
		e, w = newTestEgress(config)
		e.startMarking()
		later = &[]func(){}
		e.after = func(_ time.Duration, f func()) { *later = append(*later, f) }
		e.locator(locator("fc00:1::/32", true))
		e.locator(locator("fc00:2::/32", true))
		for i := range networks {
			if i >= few {
				e.announce(t, 1, many(i), false)
			}
			e.announce(t, 2, many(i), false)
		}
		return e, w, later
	}
	const rule = "priority 2 from all fwmark 0x7ab50001 table 101"
	check := func(t *testing.T, e *egress, w wanted, bypassed bool, delivered func(i int) bool) {
		t.Helper()
		if got := slices.Contains(w.lines("fwmark"), rule); got != bypassed {
			t.Errorf("bypass: %t, rules %q", got, w.lines("fwmark"))
		}
		for i := range networks {
			_, got := w[e.deliveredRoute(netip.MustParsePrefix(many(i)), nil).Key()]
			if got != delivered(i) {
				t.Fatalf("network %d is delivered: %t", i, got)
			}
		}
	}
	settle := func(e *egress) {
		for e.step(networks) {
		}
	}
	t.Run("withdrawals", func(t *testing.T) {
		e, w, later := start()
		gone := func(i int) bool { return i >= networks-fewInBurst-1 }
		for i := range networks {
			if gone(i) {
				e.announce(t, 2, many(i), true)
			}
		}
		settle(e)
		check(t, e, w, true, func(i int) bool { return i >= few && !gone(i) })
		for range 2 {
			if len(*later) == 0 {
				t.Fatal("the end is not awaited")
			}
			f := (*later)[0]
			*later = (*later)[1:]
			f()
		}
		settle(e)
		check(t, e, w, false, func(i int) bool { return !gone(i) })
		if len(*later) > 0 || e.delivery.suspended.active {
			t.Errorf("%d callbacks, %+v", len(*later), e.delivery.suspended)
		}
	})
	t.Run("a network outside flaps", func(t *testing.T) {
		e, _, _ := start()
		for i := range fewInBurst + 1 {
			e.announce(t, 2, many(networks-1-i), true)
		}
		for range 10 {
			e.announce(t, 2, many(0), true)
			e.announce(t, 2, many(0), false)
		}
		settle(e)
		if n := len(e.delivery.suspended.outside); n != few {
			t.Errorf("%d networks are noted, want %d", n, few)
		}
	})
	t.Run("networks outside leave first", func(t *testing.T) {
		e, w, _ := start()
		there := func() (n int) {
			for i := range few {
				if _, ok := w[e.deliveredRoute(netip.MustParsePrefix(many(i)), nil).Key()]; ok {
					n++
				}
			}
			return n
		}
		left := false // in the kernel
		e.flushNow = func(routes int) {
			if slices.Contains(w.lines("fwmark"), rule) && !left {
				t.Error("their packets follow a table that has no route to them")
			}
			if routes > few {
				t.Errorf("%d routes are applied before the rule, %d networks leave", routes, few)
			}
			left = left || routes > 0 && there() == 0
		}
		for i := range fewInBurst + 1 {
			e.announce(t, 2, many(networks-1-i), true)
		}
		if !left {
			t.Error("they have not left")
		}
	})
	t.Run("withdrawals of both", func(t *testing.T) {
		e, w, _ := start()
		for peer := 2; peer > 0; peer-- {
			for i := range 2*fewInBurst + 1 {
				e.announce(t, peer, many(networks-1-i), true)
			}
		}
		if got := w.lines("priority 2 "); len(got) > 0 {
			t.Errorf("rules %q", got)
		}
	})
	t.Run("the session of its stand-in ends", func(t *testing.T) {
		e, w, _ := start()
		for i := range fewInBurst + 1 {
			e.announce(t, 2, many(networks-1-i), true)
		}
		e.locator(locator("fc00:1::/32", false))
		if got := w.lines("priority 2 "); len(got) > 0 {
			t.Errorf("rules %q", got)
		}
	})
	t.Run("session", func(t *testing.T) {
		e, w, _ := start()
		e.locator(locator("fc00:2::/32", false))
		settle(e)
		check(t, e, w, false, func(int) bool { return false })
		e.locator(locator("fc00:2::/32", true))
		settle(e)
		check(t, e, w, false, func(int) bool { return true })
	})
}
