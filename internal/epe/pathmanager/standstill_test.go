package pathmanager

import (
	"testing"
	"time"

	"github.com/tabane/tabane/internal/mptcp"
)

// TestStandstills plays what a connection's counters do after its timer began to reinject.
func TestStandstills(t *testing.T) {
	const fragment = 32 << 10
	const ms = time.Millisecond
	// play returns the state of the connection and what a subflow has queued and acknowledged, so
	// long after the dump that found the first reinjection.
	type play func(at time.Duration) (c mptcp.Connection, queued uint32, acked uint64)
	// reinjections is the number of reinjections by then, one in 200 ms and the first at the dump.
	reinjections := func(at time.Duration) uint64 { return 1 + uint64(at/(200*ms)) }
	// lost is what the client dropped 2 MB of, while a path carries a rate of bytes per ms.
	lost := func(outstanding uint64, queued uint32, rate uint64) play {
		return func(at time.Duration) (mptcp.Connection, uint32, uint64) {
			acked := (reinjections(at) - 1) * fragment // of the last one after a round trip
			if at%(200*ms) >= 20*ms {
				acked += fragment
			}
			return mptcp.Connection{Acked: 1e6 + acked, Outstanding: outstanding - acked, Reinjected: reinjections(at) * fragment}, queued, rate * uint64(at/ms)
		}
	}
	for name, tt := range map[string]struct {
		play  play
		found time.Duration // 0: never
	}{
		"nothing queued":      {lost(2e6, 0, 0), 120 * ms},
		"a path is busy":      {lost(2e6, 40e3, 1000), 240 * ms},
		"a slow path is busy": {lost(2e6, 40e3, 125), 320 * ms},
		"a path does not end": {lost(2e6, 400e3, 125), 840 * ms},
		"little is lost": {func(at time.Duration) (mptcp.Connection, uint32, uint64) {
			c, _, _ := lost(2e6, 0, 0)(at)
			c.Outstanding = 50e3
			return c, 0, 0
		}, 0},
		"it was behind a slow path": {func(at time.Duration) (mptcp.Connection, uint32, uint64) {
			c := mptcp.Connection{Acked: 1e6, Outstanding: 2e6, Reinjected: reinjections(at) * fragment}
			if at >= 240*ms { // two fragments, and what was received after them
				c.Acked, c.Outstanding, c.Reinjected = 3e6, 1e6, 2*fragment
			}
			return c, 200e3, 0
		}, 0},
		// What a slow path carries is reinjected before it arrives there.
		"it is on a slow path": {func(at time.Duration) (mptcp.Connection, uint32, uint64) {
			const sent = 60e3
			carried := min(125*uint64(at/ms), sent)
			c, _, _ := lost(400e3, 0, 0)(at)
			if carried == sent {
				c.Acked, c.Outstanding, c.Reinjected = 1.3e6, 100e3, 3*fragment
			}
			return c, uint32(sent - carried), carried
		}, 0},
		"a slow client": {func(at time.Duration) (mptcp.Connection, uint32, uint64) {
			return mptcp.Connection{Acked: 1e6, Outstanding: 2e6, Reinjected: reinjections(at) * fragment}, 0, 0
		}, 0},
		"all of it arrives": {func(at time.Duration) (mptcp.Connection, uint32, uint64) {
			return mptcp.Connection{Acked: 3e6, Reinjected: fragment}, 0, 0
		}, 0},
	} {
		var d standstills
		state := func(at time.Duration) (mptcp.Connection, *subflow) {
			c, queued, acked := tt.play(at)
			c.Token, c.Counted = 1, true
			return c, &subflow{queued: queued, last: mptcp.Subflow{Acked: acked}}
		}
		first, _ := state(0)
		before := first
		before.Reinjected = 0
		anyone := func(uint32) bool { return true }
		if got := d.addDump(start, []mptcp.Connection{before}, anyone); len(got) != 0 {
			t.Errorf("%s: %d suspects before the first reinjection", name, len(got))
		}
		if got := d.addDump(start, []mptcp.Connection{first}, anyone); len(got) != 1 && first.Outstanding > 0 {
			t.Errorf("%s: %d suspects", name, len(got))
		}
		found := time.Duration(0)
		for at := time.Duration(0); at < 6*time.Second && d.suspects[1] != nil && found == 0; at += 40 * ms {
			if c, f := state(at); d.update(start.Add(at), c, []*subflow{f}) {
				found = at
			}
		}
		if found != tt.found {
			t.Errorf("%s: found after %s, want %s", name, found, tt.found)
		}
	}
}

// TestStandstillForgets: a connection that reinjects no longer is not looked at, and one that ended
// neither.
func TestStandstillForgets(t *testing.T) {
	var d standstills
	c := mptcp.Connection{Token: 1, Counted: true, Acked: 1, Outstanding: 1e6, Reinjected: 1}
	d.addDump(start, []mptcp.Connection{c}, func(uint32) bool { return true })
	for at := time.Duration(0); at <= standstillWatch; at += 40 * time.Millisecond {
		d.update(start.Add(at), c, nil)
	}
	if len(d.suspects) != 0 {
		t.Error("it is still looked at")
	}
	if got := d.addDump(start, []mptcp.Connection{c}, func(uint32) bool { return true }); len(got) != 0 {
		t.Error("it is looked at again without another reinjection")
	}
	c.Reinjected++
	if got := d.addDump(start, []mptcp.Connection{c}, func(uint32) bool { return false }); len(got) != 0 {
		t.Error("it is looked at although no subflow can be closed")
	}
}

// TestStoodStill closes the subflow with the longest queue, and holds its address down.
func TestStoodStill(t *testing.T) {
	m := newManaged(false)
	m.setRoute(0, "::/0", RoutePresent)
	m.setRoute(1, "::/0", RoutePresent)
	m.open(1, defaultAt, clientAt)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a", "2001:db8:1::b")
	m.machine.conns[1].subflows[1].queued = 1
	if s := m.machine.closeStandstill(m.now, 1); s == nil || s != m.machine.conns[1].subflows[1] {
		t.Fatalf("closed %+v", s)
	}
	m.work()
	if on := m.on(1); len(on) != 2 || m.machine.counts.Standstills != 1 {
		t.Errorf("left: %s", on)
	}
	m.pass(holdDown + 2*warmUp)
	m.work()
	check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::a", "2001:db8:1::b")
	// Without another subflow nothing can be closed.
	m.open(2, defaultAt, elsewhereAt)
	m.machine.conns[2].subflows = m.machine.conns[2].subflows[:1]
	if m.machine.mayStandStill(2) || m.machine.closeStandstill(m.now, 2) != nil || m.machine.closeStandstill(m.now, 99) != nil {
		t.Error("the only subflow is closed")
	}
}
