package edge

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/epe/belief"
	"github.com/tabane/tabane/internal/epe/capacity"
	"github.com/tabane/tabane/internal/epe/outcome"
	"github.com/tabane/tabane/internal/mptcp"
)

// clientAt is one client of a network for each port.
func clientAt(prefix string, port int) netip.AddrPort {
	a := netip.MustParsePrefix(prefix).Addr().As16()
	a[15] = byte(port)
	return netip.AddrPortFrom(netip.AddrFrom16(a), uint16(port))
}

// reads has connections of a network, by the ports of the client.
func reads(prefix string, sockets map[int]socket) map[netip.Prefix]sample {
	s := sample{}
	for port, c := range sockets {
		s[mptcp.Ends{Local: netip.MustParseAddrPort("[2001:db8:1::10]:80"), Remote: clientAt(prefix, port)}] = c
	}
	return map[netip.Prefix]sample{netip.MustParsePrefix(prefix): s}
}

// unanswered reports that the SYN-ACK of a request is sent again, and has the connections be read
// before and after.
func (a *autoEgress) unanswered(before, after map[int]socket) {
	a.t.Helper()
	if !a.observed([]outcome.Report{a.report(outcome.Unanswered, autoNetwork, 0)}) {
		a.t.Fatal("the network is not suspected")
	}
	a.sampled(reads(autoNetwork, before))
	a.clock = a.clock.Add(2 * unknownRTT)
	if a.sampled(reads(autoNetwork, after)) {
		a.t.Error("the network is suspected still")
	}
}

// request is a connection that is not established, established one that is.
var request, established = socket{requested: true, retried: true}, socket{acked: 1}

// TestUnansweredRequests: with auto, a path on which nothing is established is left once a SYN-ACK
// that was sent again is not answered, and what was measured there stays.
func TestUnansweredRequests(t *testing.T) {
	a := newAutoEgress(t, false)
	rates := map[string]uint64{"none": 1e6, sidA: 1e6, sidB: 2e6, sidA + "*1 " + sidB + "*1": 1.4e6}
	for range 40 {
		a.trial(autoNetwork, rates)
	}
	if a.delivered(autoNetwork) != sidB {
		t.Fatalf("through %s", a.delivered(autoNetwork))
	}
	for name, after := range map[string]map[int]socket{
		"it is established":       {1: established},
		"another one is":          {1: request, 2: established},
		"the client gave up":      {},
		"one is new, and retried": {2: request},
	} {
		if a.unanswered(map[int]socket{1: request}, after); a.delivered(autoNetwork) != sidB {
			t.Errorf("%s: left", name)
		}
	}
	if a.unanswered(map[int]socket{1: {requested: true}}, map[int]socket{1: request}); a.delivered(autoNetwork) != sidB {
		t.Error("left although the SYN-ACK was sent once")
	}
	if a.unanswered(map[int]socket{1: request, 2: {acked: 1, inFlight: 1}}, map[int]socket{1: request, 2: {acked: 2}}); a.delivered(autoNetwork) != sidB {
		t.Error("left although a connection progresses")
	}

	several := map[int]socket{1: request, 2: established, 3: request}
	a.unanswered(several, several)
	s := a.status(autoNetwork)
	if a.delivered(autoNetwork) == sidB || s.Why != "single b made no progress" || a.auto.stalls != 1 {
		t.Fatalf("stays: %+v", s)
	}
	for _, m := range s.Modes {
		if m.Mode == "single b" && (m.Trials == 0 || m.Gain < 50 || m.RestSeconds == 0) {
			t.Errorf("what was measured is forgotten: %+v", m)
		}
	}
	// The client may have gone: the same request is ignored in the next mode.
	before := a.delivered(autoNetwork)
	if a.unanswered(map[int]socket{1: request}, map[int]socket{1: request}); a.delivered(autoNetwork) != before {
		t.Error("a client that has gone is taken for a second path without progress")
	}
	// After the rest, it is the best again.
	a.clock = a.clock.Add(11 * time.Second)
	if a.deliver(netip.MustParsePrefix(autoNetwork)); a.delivered(autoNetwork) != sidB {
		t.Errorf("after the rest: %+v", a.status(autoNetwork))
	}
}

// TestNamedModesLeaveStalledPaths: with modes that the configuration names, a network leaves the
// egress peer on which it makes no progress, and no other, for a time that grows.
func TestNamedModesLeaveStalledPaths(t *testing.T) {
	const both = sidA + "*1 " + sidB + "*1"
	a := newAutoEgress(t, false)
	var later []func()
	var pauses []time.Duration
	a.after = func(d time.Duration, f func()) { pauses, later = append(pauses, d), append(later, f) }
	again := func() {
		t.Helper()
		a.clock = a.clock.Add(pauses[len(pauses)-1])
		later[len(later)-1]()
	}
	a.config.Delivery = Delivery{Default: Mode{Single: "b"}}
	a.setDelivery(&a.config.Delivery)
	for a.step(100) {
	}
	if a.delivered(autoNetwork) != sidB {
		t.Fatalf("through %s", a.delivered(autoNetwork))
	}
	a.unanswered(map[int]socket{1: request}, map[int]socket{1: request})
	if s := a.status(autoNetwork); a.delivered(autoNetwork) != "none" || s.State != "no progress through b" || s.Through[0] != "best path" {
		t.Errorf("%s: %+v", a.delivered(autoNetwork), s)
	}
	if a.delivered(otherNetwork) != sidB {
		t.Error("another network left as well")
	}
	if a.observed([]outcome.Report{a.report(outcome.Unanswered, autoNetwork, 0)}) {
		t.Error("the best path is suspected, which a mode that is named does not leave")
	}
	if again(); a.delivered(autoNetwork) != sidB {
		t.Errorf("after %v: %s", pauses, a.delivered(autoNetwork))
	}
	a.unanswered(map[int]socket{2: request}, map[int]socket{2: request})
	if again(); len(pauses) != 2 || pauses[1] != 2*pauses[0] || a.delivered(autoNetwork) != sidB {
		t.Errorf("pauses %v, %s", pauses, a.delivered(autoNetwork))
	}

	a.config.Delivery = Delivery{Default: Mode{Spread: map[string]uint32{"a": 1, "b": 1}}}
	a.setDelivery(&a.config.Delivery)
	for a.step(100) {
	}
	if n, _ := a.delivery.networks.Get(netip.MustParsePrefix(autoNetwork)); a.delivered(autoNetwork) != both || !n.spread() {
		t.Fatalf("through %s", a.delivered(autoNetwork))
	}
	onA, onB := netip.MustParseAddr(sidA), netip.MustParseAddr(sidB)
	at := func(c socket, sid netip.Addr) socket { c.sid = sid; return c }
	unknown := map[int]socket{3: {acked: 1, inFlight: 1}, 4: {acked: 1, inFlight: 1}}
	if a.unanswered(unknown, map[int]socket{3: {acked: 1, inFlight: 1}, 4: {acked: 2}}); a.delivered(autoNetwork) != both {
		t.Error("left although a connection progresses, nobody knows where")
	}
	first := map[int]socket{3: at(socket{acked: 1, inFlight: 1}, onA), 4: at(request, onB), 5: at(socket{acked: 1, inFlight: 1}, onB)}
	a.unanswered(first, map[int]socket{3: at(socket{acked: 9, inFlight: 1}, onA), 4: at(request, onB), 5: at(socket{acked: 1, inFlight: 1}, onB)})
	if s := a.status(autoNetwork); a.delivered(autoNetwork) != sidA || s.State != "no progress through b" {
		t.Errorf("%s: %+v", a.delivered(autoNetwork), s)
	}
	if again(); a.delivered(autoNetwork) != both {
		t.Errorf("after the rest: %s", a.delivered(autoNetwork))
	}
	// One that is sprayed leaves the peer that requests are answered through, as what is established
	// says nothing of it.
	a.startSpraying(plans{}, nil)
	a.config.Delivery = Delivery{Default: Mode{Spray: []string{"a", "b"}}}
	a.setDelivery(&a.config.Delivery)
	for a.step(100) {
	}
	if !a.config.Delivery.observes() || a.observed([]outcome.Report{a.report(outcome.Timeout, autoNetwork, 0)}) {
		t.Error("a network is not observed, or suspected because of a connection that its program sprays")
	}
	waiting := map[int]socket{7: {acked: 1, inFlight: 1}, 8: request}
	for name, after := range map[string]map[int]socket{
		"another one is established":      {7: {acked: 1, inFlight: 1}, 8: request, 9: established},
		"the one requested is":            {7: {acked: 1, inFlight: 1}, 8: established},
		"only what was established waits": {7: {acked: 1, inFlight: 1}},
	} {
		if a.unanswered(waiting, after); len(a.status(autoNetwork).Through) != 2 {
			t.Errorf("sprayed, %s: left", name)
		}
	}
	a.unanswered(waiting, map[int]socket{7: {acked: 2}, 8: request})
	if s := a.status(autoNetwork); s.State != "no progress through a" || !slices.Equal(s.Through, []string{"b"}) {
		t.Errorf("sprayed: %+v", s)
	}
	if again(); !slices.Equal(a.status(autoNetwork).Through, []string{"a", "b"}) {
		t.Errorf("sprayed, after the rest: %q", a.status(autoNetwork).Through)
	}
	// So does one that is sprayed, while one of its peers is left.
	a.announce(2, autoNetwork, false)
	a.unanswered(map[int]socket{6: request}, map[int]socket{6: request})
	if s := a.status(autoNetwork); s.State != "no progress through a" || s.Through[0] != "best path" {
		t.Errorf("with one peer left: %+v", s)
	}
	a.announce(2, autoNetwork, true)
	a.config.Delivery = Delivery{Default: Mode{Single: "b"}, DryRun: true}
	a.setDelivery(&a.config.Delivery)
	for a.step(100) {
	}
	if a.observed([]outcome.Report{a.report(outcome.Unanswered, autoNetwork, 0)}) || a.config.Delivery.observes() {
		t.Error("a dry run suspects a network")
	}
	if a.setDelivery(&Delivery{}); len(a.stalled) > 0 || len(a.lines("metric 4095")) > 0 {
		t.Errorf("left behind: %v, %v", a.stalled, a.lines("metric 4095"))
	}
}

// TestStalledPathAmongManyConnections: of a network with many connections, which idle or progress,
// the egress peer is left on which the others wait, and none if one progresses there.
func TestStalledPathAmongManyConnections(t *testing.T) {
	prefix := netip.MustParsePrefix(autoNetwork)
	local, own := netip.MustParseAddrPort("[2001:db8:1::10]:80"), netip.MustParseAddrPort("[2001:db8:1::a]:80")
	onA, onB := netip.MustParseAddr(sidA), netip.MustParseAddr(sidB)
	for name, tt := range map[string]struct {
		idle, progressing int
		alive             bool // some of those progress through b
		own               int  // connections to an own address, which progress
		left              bool
		lookups           int // at most
	}{
		"many idle":        {idle: 5000, progressing: 20, left: true, lookups: 30},
		"many progress":    {progressing: 20_000, left: true, lookups: mostLookups},
		"some through b":   {progressing: 20_000, alive: true, lookups: 500},
		"few through both": {idle: 5000, progressing: 20, alive: true, lookups: 30},
		"subflows":         {own: 5000, progressing: 20, left: true, lookups: 30},
	} {
		a := newAutoEgress(t, false)
		a.config.Delivery = Delivery{Default: Mode{Spread: map[string]uint32{"a": 1, "b": 1}}}
		a.setDelivery(&a.config.Delivery)
		for a.step(100) {
		}
		first, at := sample{}, sample{}
		add := func(local netip.AddrPort, before, now socket) {
			ends := mptcp.Ends{Local: local, Remote: netip.AddrPortFrom(clientAt(autoNetwork, 1).Addr(), uint16(1+len(at)))}
			first[ends], at[ends] = before, now
		}
		// The first ports are those of connections through b that wait.
		for range 10 {
			add(local, socket{acked: 1, inFlight: 1}, socket{acked: 1, inFlight: 1})
		}
		for range tt.progressing {
			add(local, socket{acked: 1, inFlight: 1}, socket{acked: 2, inFlight: 1})
		}
		for range tt.idle {
			add(local, socket{acked: 1}, socket{acked: 1})
		}
		for range tt.own {
			add(own, socket{acked: 1, inFlight: 1}, socket{acked: 2, inFlight: 1})
		}
		lookups := 0
		sidOf := func(_, remote netip.AddrPort) (netip.Addr, error) {
			lookups++
			if remote.Port() <= 10 || tt.alive && remote.Port()%3 == 0 {
				return onB, nil
			}
			return onA, nil
		}
		a.observed([]outcome.Report{a.report(outcome.Timeout, autoNetwork, 0)})
		a.sampled(map[netip.Prefix]sample{prefix: first})
		n := a.active()[0]
		if err := readPaths(sidOf, at, n.since, n.own); err != nil {
			t.Fatal(err)
		}
		a.clock = a.clock.Add(2 * unknownRTT)
		a.sampled(map[netip.Prefix]sample{prefix: at})
		if left := a.delivered(autoNetwork) == sidA; left != tt.left || lookups > tt.lookups {
			t.Errorf("%s: left %v (%s), %d lookups", name, left, a.delivered(autoNetwork), lookups)
		}
	}
}

// TestStalledPathsAreBounded: whatever connections of clients do, what is kept is bounded.
func TestStalledPathsAreBounded(t *testing.T) {
	a := newAutoEgress(t, false)
	for i := range mostStalled + 10 {
		a.leavePath(a.clock, networkPath{netip.MustParsePrefix(autoNetwork), netip.MustParseAddr(fmt.Sprintf("fc00::%x", i))})
	}
	if len(a.stalled) != mostStalled {
		t.Errorf("%d paths are kept", len(a.stalled))
	}
	a.clock = a.clock.Add(time.Hour)
	if a.leavePath(a.clock, networkPath{netip.MustParsePrefix(otherNetwork), netip.MustParseAddr(sidA)}); len(a.stalled) != 1 {
		t.Errorf("%d paths are kept after their time", len(a.stalled))
	}
	// The clock is set back.
	a.clock = a.clock.Add(-24 * time.Hour)
	if a.left(netip.MustParsePrefix(otherNetwork), netip.MustParseAddr(sidA)) {
		t.Error("a path is left for a day")
	}
	if got := a.usualRTT(a.clock, netip.MustParsePrefix(otherNetwork), belief.Best); got != unknownRTT {
		t.Errorf("round trip %s", got)
	}
	if got := strings.TrimSpace(a.leftPeers(netip.MustParsePrefix(otherNetwork), newDeliveryRule("x", Mode{Single: "a"}))); got != "" {
		t.Errorf("left %q", got)
	}
}

// TestLeavesBestPath: a network without MPTCP that leaves the best path goes to an egress peer, not to
// another mode that leads over the best path, and not to the peer behind it.
func TestLeavesBestPath(t *testing.T) {
	for _, known := range []bool{false, true} {
		a := newAutoEgress(t, false)
		p, want := netip.MustParsePrefix(autoNetwork), sidA
		if known {
			want = sidB
			a.loads.links = map[netip.Addr]capacity.Link{netip.MustParseAddr(sidA): {Router: netip.MustParseAddr("2001:db8:1::1")}}
			a.auto.best = map[netip.Prefix]capacity.Link{p: a.loads.links[netip.MustParseAddr(sidA)]}
		}
		a.observed([]outcome.Report{a.report(outcome.Timeout, autoNetwork, 0)})
		a.sampled(a.samples(autoNetwork, 3000, 10))
		a.clock = a.clock.Add(suspectFor)
		if a.sampled(a.samples(autoNetwork, 3000, 10)); a.delivered(autoNetwork) != want {
			t.Errorf("link of the best path known %v: through %s, want %s: %+v", known, a.delivered(autoNetwork), want, a.status(autoNetwork))
		}
	}
}

// TestQUICWithoutAcknowledgments: a flow of UDP whose sender gets no acknowledgments is as a
// connection without progress, unless another one in the network progresses.
func TestQUICWithoutAcknowledgments(t *testing.T) {
	a := newAutoEgress(t, false)
	p := netip.MustParsePrefix(autoNetwork)
	r := outcome.Report{Kind: outcome.Unacknowledged, Local: netip.MustParseAddrPort("[2001:db8:1::10]:443"), Remote: netip.MustParseAddrPort("[2001:db8:c::1]:40000")}
	other := mptcp.Ends{Local: r.Local, Remote: netip.MustParseAddrPort("[2001:db8:c::2]:40000")}
	flows := func(progress uint64, waits uint32) map[netip.Prefix]sample {
		return map[netip.Prefix]sample{p: {
			mptcp.Ends{Local: r.Local, Remote: r.Remote}: {datagrams: true, acked: 7, inFlight: waits},
			other: {datagrams: true, acked: progress},
		}}
	}
	suspect := func(first, then map[netip.Prefix]sample) string {
		a.observed([]outcome.Report{r})
		a.sampled(first)
		a.clock = a.clock.Add(mostSuspectFor)
		a.sampled(then)
		return a.delivered(autoNetwork)
	}
	if got := suspect(flows(1, 1), flows(2, 1)); got != "none" {
		t.Errorf("another flow progresses, and yet the network leaves to %s", got)
	}
	began := flows(1, 1)
	delete(began[p], other)
	if got := suspect(flows(1, 0), flows(1, 0)); got != "none" {
		t.Errorf("no flow waits, and yet the network leaves to %s", got)
	}
	if got := suspect(began, flows(1, 1)); got == "none" || a.auto.stalls != 1 {
		t.Error("the network stays where a flow gets no acknowledgments, though one that began is no progress")
	}
}
