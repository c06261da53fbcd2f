package edge

import (
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/epe/outcome"
	"github.com/tabane/tabane/internal/epe/pathmanager"
)

// over is a report of a subflow of a network on the address of an egress peer, or of a connection
// on the default address.
func (a *autoEgress) over(peer, prefix string, rtt time.Duration, acked uint64) outcome.Report {
	r := a.report(outcome.Closed, prefix, acked)
	r.MinRTT, r.RTT, r.Duration, r.Busy = rtt, rtt, time.Second, time.Second
	for _, p := range a.peers {
		if p.Name == peer {
			r.Local = netip.AddrPortFrom(p.Address, 80)
		}
	}
	return r
}

// TestBegin: with multipath, connections begin where short transfers arrive first by what subflows
// measured, in their network alone, and all subflows are offered as before.
func TestBegin(t *testing.T) {
	const ms = time.Millisecond
	a := newAutoEgress(t, false)
	network := netip.MustParsePrefix(autoNetwork)
	preferred := map[int]bool{}
	report := a.routeChanged
	a.egress.routeChanged = func(peer int, prefix netip.Prefix, r pathmanager.Route) {
		report(peer, prefix, r)
		if prefix == network {
			preferred[peer] = r.LocalPref == math.MaxUint32
		}
	}
	closed := func(after time.Duration, reports ...outcome.Report) string {
		t.Helper()
		a.clock = a.clock.Add(after)
		a.observed(reports)
		return a.delivered(autoNetwork)
	}
	if got := closed(10*time.Second, a.over("", autoNetwork, 40*ms, 1<<10)); got != "none" {
		t.Errorf("one path is known: through %s", got)
	}
	if got := closed(2*time.Second, a.over("a", autoNetwork, 39*ms, 1<<10), a.over("b", autoNetwork, 10*ms, 1<<10), a.over("", autoNetwork, 40*ms, 1<<10)); got != "none" {
		t.Errorf("considered again at once: through %s", got)
	}
	if got := closed(2*time.Second, a.over("b", autoNetwork, 10*ms, 1<<10)); got != sidB {
		t.Fatalf("through %s", got)
	}
	// Its round trips are longer than the least one: it has jitter.
	jitter := a.over("b", autoNetwork, 10*ms, 1<<10)
	jitter.RTT = 80 * ms
	if got := closed(beginFor, jitter); got != sidA {
		t.Errorf("with jitter, through %s", got)
	}
	steady := a.over("b", autoNetwork, 10*ms, 1<<10)
	closed(0, slices.Repeat([]outcome.Report{steady}, 9)...)
	if got := closed(beginFor, steady); got != sidB {
		t.Fatalf("through %s once there is no more jitter", got)
	}
	s := a.status(autoNetwork)
	if s.Mode != "auto: multipath" || len(s.Through) != 1 || s.Through[0] != "b" || a.delivered(otherNetwork) != "none" {
		t.Errorf("%+v, the other network through %s", s, a.delivered(otherNetwork))
	}
	if a.states[peerPrefix{0, network}] != pathmanager.RoutePresent || a.states[peerPrefix{1, network}] != pathmanager.RoutePresent || preferred[0] || !preferred[1] {
		t.Errorf("the path manager has routes %v, preferred %v", a.states, preferred)
	}
	// It carries little: 64 KiB take longer than the round trip saves.
	slow := a.over("b", autoNetwork, 10*ms, 1<<20)
	slow.Busy, slow.Duration = 10*time.Second, 10*time.Second
	fast := a.over("a", autoNetwork, 39*ms, 32<<20)
	if got := closed(2*time.Second, slow, fast); got != sidB {
		t.Errorf("left again after 2 s, through %s", got)
	}
	if got := closed(beginFor, slow, fast); got != sidA || !preferred[0] || preferred[1] {
		t.Errorf("through %s, preferred %v", got, preferred)
	}
	// Nothing progresses any more.
	a.observed([]outcome.Report{a.report(outcome.Timeout, autoNetwork, 0)})
	a.sampled(a.samples(autoNetwork, 3000, 10))
	a.clock = a.clock.Add(suspectFor)
	a.sampled(a.samples(autoNetwork, 3000, 10))
	if s := a.status(autoNetwork); s.Mode != "auto: multipath" || a.delivered(autoNetwork) != "none" || preferred[0] {
		t.Errorf("after a stall: %+v through %s, preferred %v", s, a.delivered(autoNetwork), preferred)
	}
	if got := closed(500*ms, fast); got != "none" {
		t.Errorf("what was established before the stall counts: through %s", got)
	}
	if got := closed(beginFor, a.over("a", autoNetwork, ms, 32<<20)); got != sidA {
		t.Errorf("after %s: through %s", beginFor, got)
	}
	a.announce(1, autoNetwork, false)
	if got := a.delivered(autoNetwork); got != "none" {
		t.Errorf("after its peer withdrew: through %s", got)
	}
}

// TestBeginWithoutMeasurement: connections that only the default address has say nothing of other
// paths, and a dry run changes nothing.
func TestBeginWithoutMeasurement(t *testing.T) {
	for _, dry := range []bool{false, true} {
		a := newAutoEgress(t, dry)
		for range 20 {
			a.clock = a.clock.Add(beginFor)
			a.observed([]outcome.Report{a.over("", autoNetwork, 40*time.Millisecond, 1<<10)})
			if dry {
				a.observed([]outcome.Report{a.over("b", autoNetwork, time.Millisecond, 1<<10)})
			}
		}
		if lines := a.lines("metric 4095"); len(lines) > 0 {
			t.Errorf("dry run %v: %v", dry, lines)
		}
	}
}
