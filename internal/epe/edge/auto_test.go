package edge

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/epe/belief"
	"github.com/tabane/tabane/internal/epe/outcome"
	"github.com/tabane/tabane/internal/epe/pathmanager"
	"github.com/tabane/tabane/internal/mptcp"
)

// autoEgress is an egress with mode auto and a clock.
type autoEgress struct {
	*egress
	wanted
	t     testing.TB
	clock time.Time
	// states are what the path manager was told last.
	states map[peerPrefix]pathmanager.RouteState
}

const autoNetwork, otherNetwork = "2001:db8:c::/64", "2001:db8:d::/64"

func newAutoEgress(t testing.TB, dry bool) *autoEgress {
	config := dualStack()
	config.Delivery = Delivery{Default: Mode{named: modeAuto}, Explore: "50%", DryRun: dry}
	if err := config.Check().Err(); err != nil {
		t.Fatal(err)
	}
	e, w := newTestEgress(config)
	a := &autoEgress{e, w, t, time.Unix(1_800_000_000, 0), map[peerPrefix]pathmanager.RouteState{}}
	e.now = func() time.Time { return a.clock }
	e.auto.multipath = true
	e.routeChanged = func(peer int, prefix netip.Prefix, r pathmanager.Route) { a.states[peerPrefix{peer, prefix}] = r.State }
	for _, peer := range []int{1, 2} {
		a.announce(peer, autoNetwork, true)
		a.announce(peer, otherNetwork, true)
	}
	return a
}

func (a *autoEgress) announce(peer int, prefix string, there bool) {
	a.t.Helper()
	p := vpnPath(fmt.Sprintf("10.0.0.%d:1", peer), fmt.Sprintf("fc00:%d:1::", peer), fmt.Sprint("65000:10", peer))
	p.Prefix, p.ASPath, p.Withdrawn = netip.MustParsePrefix(prefix), message.MakeASPath(64500), !there
	if err := a.update(p); err != nil {
		a.t.Fatal(err)
	}
}

// report is a report of a connection of a network.
func (a *autoEgress) report(kind outcome.Kind, prefix string, acked uint64) outcome.Report {
	return outcome.Report{
		Kind: kind, Local: netip.MustParseAddrPort("[2001:db8:1::10]:80"), Remote: netip.AddrPortFrom(netip.MustParsePrefix(prefix).Addr().Next(), 40000),
		Acked: acked, Carried: acked, Duration: 10 * time.Second, Busy: 10 * time.Second, RTT: 20 * time.Millisecond, MinRTT: 10 * time.Millisecond, Sent: 1000,
	}
}

// samples has one connection of a network.
func (a *autoEgress) samples(prefix string, acked uint64, inFlight uint32) map[netip.Prefix]sample {
	r := a.report(outcome.Bulk, prefix, 0)
	return map[netip.Prefix]sample{netip.MustParsePrefix(prefix): {
		mptcp.Ends{Local: r.Local, Remote: r.Remote}: {acked: acked, delivered: uint32(acked / 1000), inFlight: inFlight},
	}}
}

// trial has a bulk connection, during which a mode is tried, and what it carries in each mode that
// leads through these SIDs, in bytes/s. It returns where packets went while another mode was tried.
func (a *autoEgress) trial(prefix string, rates map[string]uint64) (tried string) {
	a.t.Helper()
	before := a.delivered(prefix)
	if !a.observed([]outcome.Report{a.report(outcome.Closed, prefix, 1<<30), a.report(outcome.Bulk, prefix, 1<<30)}) {
		return ""
	}
	acked := uint64(1 << 20)
	for busy := true; busy; {
		if busy = a.sampled(a.samples(prefix, acked, 10)); !busy {
			break
		}
		if now := a.delivered(prefix); now != before {
			tried = now
		}
		a.clock = a.clock.Add(sampleEvery)
		acked += uint64(float64(rates[a.delivered(prefix)]) * sampleEvery.Seconds())
	}
	return tried
}

func (a *autoEgress) status(prefix string) NetworkStatus {
	a.t.Helper()
	list := a.networks(netip.MustParsePrefix(prefix), 10).List
	if len(list) != 1 {
		a.t.Fatalf("%d networks", len(list))
	}
	return list[0]
}

// TestAuto: the mode that measured best is used, for its network alone, until it makes no progress
// or its peer withdraws.
func TestAuto(t *testing.T) {
	a := newAutoEgress(t, false)
	if s := a.status(autoNetwork); s.Mode != "auto: multipath" || a.delivered(autoNetwork) != "none" || a.states[peerPrefix{0, netip.MustParsePrefix(autoNetwork)}] != pathmanager.RoutePresent {
		t.Fatalf("at the start: %+v through %s, %v", s, a.delivered(autoNetwork), a.states)
	}
	rates := map[string]uint64{"none": 1e6, sidA: 1e6, sidB: 2e6, sidA + "*1 " + sidB + "*1": 1.4e6}
	tried := map[string]bool{}
	for range 40 {
		tried[a.trial(autoNetwork, rates)] = true
	}
	if !tried[sidA] && !tried[sidB] || !tried[sidA+"*1 "+sidB+"*1"] {
		t.Errorf("tried %v", tried)
	}
	s := a.status(autoNetwork)
	if s.Mode != "auto: single" || a.delivered(autoNetwork) != sidB || !strings.HasPrefix(s.Why, "measured +") || s.Modes[0].Mode != "single b" || s.Modes[0].Gain < 50 || s.Modes[0].Trials == 0 {
		t.Fatalf("%+v", s)
	}
	if got := a.states[peerPrefix{0, netip.MustParsePrefix(autoNetwork)}]; got != pathmanager.RouteDraining {
		t.Errorf("the subflows over EPE addresses do not rest: state %d", got)
	}
	if got := a.status(otherNetwork); got.Mode != "auto: multipath" || a.delivered(otherNetwork) != "none" {
		t.Errorf("the other network: %+v", got)
	}

	// A connection timed out, while another one progresses: the path is alive.
	a.observed([]outcome.Report{a.report(outcome.Timeout, autoNetwork, 0)})
	a.sampled(a.samples(autoNetwork, 1000, 10))
	a.clock = a.clock.Add(time.Second)
	if a.sampled(a.samples(autoNetwork, 2000, 10)); a.delivered(autoNetwork) != sidB {
		t.Error("left although a connection progresses")
	}
	// Nothing progresses.
	if !a.observed([]outcome.Report{a.report(outcome.Timeout, autoNetwork, 0)}) {
		t.Fatal("a timeout is ignored")
	}
	a.sampled(nil) // connections were being read already, or cannot be
	a.sampled(a.samples(autoNetwork, 3000, 10))
	a.clock = a.clock.Add(suspectFor)
	if a.sampled(a.samples(autoNetwork, 3000, 10)); a.delivered(autoNetwork) == sidB || a.auto.stalls != 1 {
		t.Errorf("stays on a path without progress: %+v", a.status(autoNetwork))
	}
	if s := a.status(autoNetwork); !strings.HasSuffix(s.Why, "made no progress") {
		t.Errorf("%+v", s)
	}
	// If the same connection makes none in the next mode either, its client has gone.
	a.observed([]outcome.Report{a.report(outcome.Timeout, autoNetwork, 0)})
	a.sampled(a.samples(autoNetwork, 3000, 10))
	a.clock = a.clock.Add(suspectFor)
	if a.sampled(a.samples(autoNetwork, 3000, 10)) || a.auto.stalls != 1 {
		t.Errorf("a client that has gone is taken for a second path without progress: %+v", a.status(autoNetwork))
	}
	for range 5 {
		if a.trial(autoNetwork, rates) == sidB {
			t.Error("is tried while it rests")
		}
	}

	a.announce(1, autoNetwork, false)
	a.announce(2, autoNetwork, false)
	if a.delivered(autoNetwork) != "none" {
		t.Errorf("after both withdraw: %s", a.delivered(autoNetwork))
	}
	a.setDelivery(&Delivery{})
	if lines := a.lines("metric 4095"); len(lines) > 0 || a.delivery.networks.Size() > 0 || a.auto.busy() || a.states[peerPrefix{0, netip.MustParsePrefix(otherNetwork)}] != pathmanager.RoutePresent {
		t.Errorf("left behind: %v, %v", lines, a.states)
	}
}

// TestKilledWhileComparing: an instance that was killed while it compared modes leaves the route of
// the other mode; what it stored until then has the next one begin in the mode of before.
func TestKilledWhileComparing(t *testing.T) {
	a := newAutoEgress(t, false)
	rates := map[string]uint64{"none": 1e6, sidA: 1e6, sidB: 2e6, sidA + "*1 " + sidB + "*1": 1.4e6}
	for range 40 {
		a.trial(autoNetwork, rates)
	}
	stored := func() *bytes.Buffer {
		var file bytes.Buffer
		records := a.auto.table.RecordsOf(a.auto.table.Prefixes())
		if err := belief.Write(&file, func(yield func(*belief.Record) bool) {
			for i := range records {
				if !yield(&records[i]) {
					return
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
		return &file
	}
	if a.delivered(autoNetwork) != sidB {
		t.Fatalf("through %s before", a.delivered(autoNetwork))
	}
	acked := uint64(1 << 20)
	for range 1000 {
		if a.delivered(autoNetwork) != sidB {
			break
		}
		if !a.auto.busy() {
			a.observed([]outcome.Report{a.report(outcome.Closed, autoNetwork, 1<<30), a.report(outcome.Bulk, autoNetwork, 1<<30)})
		}
		a.sampled(a.samples(autoNetwork, acked, 10))
		a.clock = a.clock.Add(sampleEvery)
		acked += uint64(2e6 * sampleEvery.Seconds())
	}
	if a.delivered(autoNetwork) == sidB || a.status(autoNetwork).Trying == "" {
		t.Fatal("no other mode is tried")
	}
	next := newAutoEgress(t, false)
	next.clock = a.clock
	if _, err := next.auto.table.Read(next.clock, stored()); err != nil {
		t.Fatal(err)
	}
	next.setDelivery(&Delivery{})
	next.setDelivery(&Delivery{Default: Mode{named: modeAuto}})
	if s := next.status(autoNetwork); next.delivered(autoNetwork) != sidB || s.Trying != "" || s.Mode != "auto: single" {
		t.Errorf("the next instance has %s, %+v", next.delivered(autoNetwork), s)
	}
}

// TestChallengerWithdrawn: a comparison ends when the egress peer of the mode that is tried withdraws,
// and what is carried meanwhile is measured of no mode.
func TestChallengerWithdrawn(t *testing.T) {
	a, p := newAutoEgress(t, false), netip.MustParsePrefix(autoNetwork)
	for range 20 { // until the mode of a single peer is tried
		a.observed([]outcome.Report{a.report(outcome.Closed, autoNetwork, 1<<30), a.report(outcome.Bulk, autoNetwork, 1<<30)})
		trial := a.auto.trials[p]
		if trial == nil {
			continue
		}
		acked := uint64(0)
		for a.delivered(autoNetwork) == "none" && a.auto.trials[p] != nil {
			a.sampled(a.samples(autoNetwork, acked, 10))
			a.clock = a.clock.Add(sampleEvery)
			acked += 1 << 20
		}
		peer := slices.Index([]belief.Mode{"single a", "single b"}, trial.challenger) + 1
		if peer == 0 {
			a.endTrial(p, trial)
			a.deliver(p)
			continue
		}
		before := a.auto.compared
		a.announce(peer, autoNetwork, false)
		if a.auto.trials[p] != nil || a.delivered(autoNetwork) != "none" {
			t.Fatalf("goes on to try %s, through %s", trial.challenger, a.delivered(autoNetwork))
		}
		if a.sampled(a.samples(autoNetwork, acked, 10)); a.auto.compared != before {
			t.Error("something was measured")
		}
		return
	}
	t.Fatal("no mode of a single peer was tried")
}

// TestAutoDryRun: nothing changes, but status says what connections achieve.
func TestAutoDryRun(t *testing.T) {
	a := newAutoEgress(t, true)
	for range 20 {
		a.trial(autoNetwork, map[string]uint64{"none": 1e6})
	}
	s := a.status(autoNetwork)
	if a.auto.busy() || len(a.lines("metric 4095")) > 0 || s.State != "dry run" || len(s.Modes) == 0 {
		t.Errorf("%+v, %v", s, a.lines("metric 4095"))
	}
	i := slices.IndexFunc(s.Modes, func(m NetworkMode) bool { return m.Mode == modeMultipath })
	if m := s.Modes[i]; m.Connections != 20 || m.Bytes != 20<<30 || m.MinRTT != 10*time.Millisecond || m.Goodput == 0 {
		t.Errorf("%+v", m)
	}
}

// TestAutoOnlyAnnounced: whatever connections report, packets leave only through peers that have a
// route to their network.
func TestAutoOnlyAnnounced(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		a := newAutoEgress(t, false)
		there := map[string]bool{sidA: true, sidB: true}
		acked := uint64(0)
		for range 60 {
			switch rapid.IntRange(0, 4).Draw(r, "event") {
			case 0:
				peer := rapid.IntRange(1, 2).Draw(r, "peer")
				sid := []string{sidA, sidB}[peer-1]
				there[sid] = rapid.Bool().Draw(r, "there")
				a.announce(peer, autoNetwork, there[sid])
			case 1:
				a.observed([]outcome.Report{a.report(rapid.SampledFrom([]outcome.Kind{outcome.Closed, outcome.Bulk, outcome.Timeout, outcome.Unanswered}).Draw(r, "kind"), autoNetwork, rapid.Uint64Max(1<<40).Draw(r, "acked"))})
			case 2:
				acked += rapid.Uint64Max(1<<24).Draw(r, "more")
				a.sampled(a.samples(autoNetwork, acked, uint32(rapid.IntRange(0, 10).Draw(r, "in flight"))))
			case 3:
				a.clock = a.clock.Add(time.Duration(rapid.IntRange(-1000, 5000).Draw(r, "ms")) * time.Millisecond)
			case 4:
				_ = a.auto.table.Learn(a.clock, netip.MustParsePrefix(autoNetwork), belief.Pair{Challenger: "single b", Incumbent: belief.Best, Ratio: 1e9, Bytes: 1})
				a.deliver(netip.MustParsePrefix(autoNetwork))
			}
			through := a.delivered(autoNetwork)
			for sid, announced := range there {
				if !announced && strings.Contains(through, sid) {
					r.Fatalf("through %s, and %s has no route", through, sid)
				}
			}
		}
	})
}

func TestParseShare(t *testing.T) {
	for text, want := range map[string]float64{"": 0.1, "0%": 0, "0": 0, "5%": 0.05, "50%": 0.5, "0.5%": 0.005} {
		if got, err := parseShare(text); got != want || err != nil {
			t.Errorf("%q: %g, %v", text, got, err)
		}
	}
	for _, text := range []string{"51%", "-1%", "x", "10", "NaN%", "%", "1e9%"} {
		if got, err := parseShare(text); err == nil {
			t.Errorf("%q: %g", text, got)
		}
	}
}

// TestHistory: changes of modes are listed, the latest first, and networks are counted in the mode
// that they have.
func TestHistory(t *testing.T) {
	a := newAutoEgress(t, false)
	if s := a.deliveryStatus(); s.Modes["multipath"] != 2 || s.Changes != 0 {
		t.Fatalf("at the start: %+v", s)
	}
	rates := map[string]uint64{"none": 1e6, sidA: 1e6, sidB: 2e6, sidA + "*1 " + sidB + "*1": 1.4e6}
	for range 20 {
		a.trial(autoNetwork, rates)
	}
	s, n := a.deliveryStatus(), a.networks(netip.MustParsePrefix(autoNetwork), 10)
	if s.Modes["single b"] != 1 || s.Modes["multipath"] != 1 || len(s.Modes) != 2 || s.Known != 1 || s.Comparisons == 0 || s.Changes == 0 || uint64(len(n.Changes)) != min(s.Changes, 10) {
		t.Errorf("%+v, %d changes", s, len(n.Changes))
	}
	last := n.Changes[0]
	if last.To != "single b" || !strings.HasPrefix(last.Why, "measured +") || last.From == last.To || last.Seconds < 0 {
		t.Errorf("the last change: %+v", last)
	}
	if n := a.networks(netip.MustParsePrefix(otherNetwork), 10); len(n.Changes) > 0 {
		t.Errorf("changes of another network: %+v", n.Changes)
	}
	if n := a.networks(netip.Prefix{}, 1); len(n.Changes) != 1 {
		t.Errorf("%d changes, want 1", len(n.Changes))
	}
	a.announce(1, autoNetwork, false)
	a.announce(2, autoNetwork, false)
	if s := a.deliveryStatus(); s.Modes["multipath"] != 1 || len(s.Modes) != 1 {
		t.Errorf("after a withdrawal: %+v", s.Modes)
	}
}
