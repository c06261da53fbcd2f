package pathmanager

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/epe/selection"
	"github.com/tabane/tabane/internal/mptcp"
)

func newOverflowing() *managed {
	m := newManaged(false)
	m.machine.overflow = true
	m.setRoute(0, "::/0", RoutePresent)
	m.setRoute(1, "::/0", RoutePresent)
	return m
}

// carry samples the subflows of all connections for some time, those that carry data in the state
// of busy, and lets the machine decide.
func (m *managed) carry(d time.Duration, busy mptcp.Subflow) {
	for end := m.now.Add(d); m.now.Before(end); {
		m.pass(selection.Interval)
		m.delivered += busy.Delivered
		for _, s := range m.all() {
			l := s
			l.RTT, l.SegmentSize, l.Window, l.SendWindow = 10*time.Millisecond, 1400, 10, 1<<24
			if !s.BackupHere {
				l.InFlight, l.NotSent, l.Delivered = busy.InFlight, busy.NotSent, m.delivered
				l.Acked = uint64(m.delivered) * 1400
			}
			m.machine.sample(m.now, l)
		}
		m.machine.decideAll(m.now)
		m.work()
	}
}

// helped has an earlier connection of the client at clientAt have used both paths, that of a first.
func (m *managed) helped() {
	for peer, rate := range []float64{2e6, 1e6} {
		m.machine.memory.Learn(m.now, m.machine.key(pathKey{peer, clientAt.Addr()}), selection.Past{Rate: rate})
	}
}

var (
	idle      = mptcp.Subflow{}
	light     = mptcp.Subflow{InFlight: 1, Delivered: 5}
	moderate  = mptcp.Subflow{InFlight: 5, Delivered: 20}
	saturated = mptcp.Subflow{InFlight: 10, NotSent: 1000, Delivered: 40}
	silent    = mptcp.Subflow{InFlight: 20, NotSent: 1000}
)

func TestOverflow(t *testing.T) {
	m := newOverflowing()
	m.helped()
	m.open(1, defaultAt, clientAt)
	// Those that join are backups from the start.
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a*", "2001:db8:1::b*")
	m.carry(500*time.Millisecond, moderate)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a*", "2001:db8:1::b*")
	// The best path leads to a, so b is another one.
	m.carry(400*time.Millisecond, saturated)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a*", "2001:db8:1::b")
	uses := map[string]int{}
	for _, s := range m.list(1) {
		uses[s.Use]++
	}
	if uses["first"] != 1 || uses["overflow"] != 1 || uses["unused"] != 1 {
		t.Errorf("uses %v", uses)
	}
	// The one on the default address, which has completed slow start, goes on.
	m.carry(2*time.Second, saturated)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a*", "2001:db8:1::b")
	m.carry(2*time.Second, light)
	if on := strings.Join(m.on(1), " "); strings.Count(on, "*") != 2 || !strings.Contains(on, "::a*") {
		t.Errorf("with less to send than one path carries: %s", on)
	}
	// A stall of the first opens the other.
	m.carry(600*time.Millisecond, silent)
	if on := strings.Join(m.on(1), " "); strings.Count(on, "*") != 1 || strings.Contains(on, "::b*") {
		t.Errorf("the first is silent: %s", on)
	}

	m.withdrawAll(m.now)
	m.work()
	check(t, m.on(1), "2001:db8:1::10")
}

// TestStreamCatchesUp: b rests while a delivers more than the application writes, and carries data
// as soon as the application has to wait.
func TestStreamCatchesUp(t *testing.T) {
	m := newOverflowing()
	m.helped()
	full := false
	m.machine.source = func(token uint32) (selection.Source, bool) {
		return selection.Source{Written: uint64(m.now.Sub(start).Seconds() * 1.3e6), Full: full}, token == 1
	}
	m.open(1, defaultAt, clientAt)
	m.carry(2*time.Second, saturated) // 1.4 MB/s
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a*", "2001:db8:1::b*")
	full = true
	m.carry(400*time.Millisecond, saturated)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a*", "2001:db8:1::b")
}

// TestOneCarries: the subflow to a takes over from that on the default address once this rests, not
// before. While all are backups, the scheduler gives data to any of them.
func TestOneCarries(t *testing.T) {
	m := newOverflowing()
	m.open(1, defaultAt, clientAt)
	m.carry(2*time.Second, moderate)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a*", "2001:db8:1::b*")
	m.machine.memory.Learn(m.now, selection.KeyOf(onA.Addr(), clientAt.Addr()), selection.Past{Rate: 1e6})
	m.machine.memory.Learn(m.now, selection.KeyOf(onB.Addr(), clientAt.Addr()), selection.Past{Rate: 2e6})
	m.open(2, defaultAt, netip.AddrPortFrom(clientAt.Addr(), 40001))
	m.carry(selection.Interval, light)
	check(t, m.on(2), "2001:db8:1::10*", "2001:db8:1::a*", "2001:db8:1::b")
	m.carry(2*time.Second, saturated)
	check(t, m.on(2), "2001:db8:1::10*", "2001:db8:1::a", "2001:db8:1::b")
	if m.allBackups > 0 {
		t.Errorf("all subflows were backups %d times", m.allBackups)
	}
}

// TestOverflowRestart is killed while a path is judged. The next instance has all subflows carry
// data, or goes on.
func TestOverflowRestart(t *testing.T) {
	for _, on := range []bool{false, true} {
		m := newOverflowing()
		m.helped()
		m.open(1, defaultAt, clientAt)
		m.carry(400*time.Millisecond, saturated)
		check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a*", "2001:db8:1::b")

		next := newMachine(testPeers(), nil)
		next.overflow, next.complete = on, true
		m.machine = next
		m.setRoute(0, "::/0", RoutePresent)
		m.setRoute(1, "::/0", RoutePresent)
		next.beginDump(true)
		for _, s := range m.all() {
			next.addDumped(s)
		}
		next.endDump(m.now)
		m.work()
		m.carry(2*time.Second, idle)
		if on {
			if on := strings.Join(m.on(1), " "); strings.Count(on, "*") != 2 {
				t.Errorf("after a restart: %s", on)
			}
			continue
		}
		check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::a", "2001:db8:1::b")
	}
}

// TestOverflowLeavesNone ends before the subflow on the default address is redundant: it is no
// backup then.
func TestOverflowLeavesNone(t *testing.T) {
	m := newOverflowing()
	m.open(1, onB, clientAt)
	m.open(2, defaultAt, clientAt)
	m.machine.conns[2].find(defaultAt, clientAt).use = selection.Slow
	for _, s := range m.machine.conns[2].subflows {
		m.machine.conns[2].setPriority(s)
	}
	m.work()
	check(t, m.on(2), "2001:db8:1::10*", "2001:db8:1::a*", "2001:db8:1::b*")
	m.withdrawAll(m.now)
	m.work()
	check(t, m.on(2), "2001:db8:1::10")
}

// TestPropertyOverflow changes routes and loads: a connection with a usable subflow always has one
// that is no backup.
func TestPropertyOverflow(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newOverflowing()
		m.open(1, rapid.SampledFrom([]netip.AddrPort{defaultAt, onA}).Draw(rt, "first"), clientAt)
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			switch rapid.IntRange(0, 2).Draw(rt, "kind") {
			case 0:
				m.setRoute(rapid.IntRange(0, 1).Draw(rt, "peer"), "::/0", rapid.SampledFrom([]RouteState{RouteAbsent, RoutePresent, RouteDraining}).Draw(rt, "state"))
			default:
				load := rapid.SampledFrom([]mptcp.Subflow{idle, moderate, saturated, silent}).Draw(rt, "load")
				m.carry(time.Duration(rapid.IntRange(40, 3000).Draw(rt, "ms"))*time.Millisecond, load)
			}
		}
		m.carry(100*time.Millisecond, idle)
		c := m.machine.conns[1]
		if c == nil {
			return
		}
		usable, _ := c.usable()
		carries := 0
		for _, s := range c.subflows {
			if !s.backup {
				carries++
			}
		}
		if len(usable) > 0 && carries == 0 {
			rt.Fatalf("of %v none carries data", m.on(1))
		}
	})
}

// TestOverflowMemory: the next connection of the client, also after a restart, begins with what the
// first learned. A path that stalls is first no longer, however fast it was.
func TestOverflowMemory(t *testing.T) {
	m := newOverflowing()
	m.open(1, defaultAt, clientAt)
	m.open(2, defaultAt, elsewhereAt)
	key := selection.KeyOf(onB.Addr(), clientAt.Addr())
	// b is fast, and a, BGP's best path, is slow.
	m.machine.memory.Learn(m.now, key, selection.Past{Rate: 12e6})
	m.machine.memory.Learn(m.now, selection.KeyOf(onA.Addr(), clientAt.Addr()), selection.Past{Rate: 1e5})
	m.open(3, defaultAt, netip.AddrPortFrom(clientAt.Addr(), 40001))
	m.carry(3*selection.Interval, light)
	check(t, m.on(3), "2001:db8:1::10*", "2001:db8:1::a*", "2001:db8:1::b")
	check(t, m.on(2), "2001:db8:1::10", "2001:db8:1::a*", "2001:db8:1::b*") // another client

	text, err := selection.Encode(m.machine.memory.Entries(m.now))
	if err != nil {
		t.Fatal(err)
	}
	next := newMachine(testPeers(), nil)
	next.overflow, next.complete = true, true
	if err := next.memory.Load(m.now, text); err != nil {
		t.Fatal(err)
	}
	m.machine = next
	m.setRoute(0, "::/0", RoutePresent)
	m.setRoute(1, "::/0", RoutePresent)
	m.open(4, defaultAt, netip.AddrPortFrom(clientAt.Addr(), 40002))
	m.carry(3*selection.Interval, light)
	check(t, m.on(4), "2001:db8:1::10*", "2001:db8:1::a*", "2001:db8:1::b")

	m.machine.stalled(m.now, 4, []mptcp.Ends{{Local: onB, Remote: m.remoteOn(4, onB)}}, nil)
	m.work()
	if p := m.machine.memory.Recall(m.now, key); p.Verdict != selection.Stalled || p.Rate != 0 || p.Rest == 0 {
		t.Errorf("after a stall: %+v", p)
	}
	m.open(5, defaultAt, netip.AddrPortFrom(clientAt.Addr(), 40003))
	m.carry(3*selection.Interval, light)
	check(t, m.on(5), "2001:db8:1::10", "2001:db8:1::a*", "2001:db8:1::b*")
}

// TestBroken: a path that carries handshakes and no data is left by all connections of the network,
// and tried again after an hour. One that has carried data is not broken.
func TestBroken(t *testing.T) {
	const sameNetwork, other = 2, 3
	reset := func(m *managed, e mptcp.SubClosed) {
		e.Token, e.Local, e.Remote = 1, onB, m.remoteOn(1, onB)
		m.machine.event(m.now, e)
		m.work()
	}
	stall := func(m *managed) {
		m.machine.stalled(m.now, 1, []mptcp.Ends{{Local: onB, Remote: m.remoteOn(1, onB)}}, nil)
		m.work()
	}
	waits := mptcp.Subflow{Token: 1, Local: onB, InFlight: 10, SegmentSize: 1400}
	for name, tt := range map[string]struct {
		sample *mptcp.Subflow
		age    time.Duration
		find   func(*managed)
		broken bool
	}{
		"options removed": {nil, time.Minute, func(m *managed) {
			reset(m, mptcp.SubClosed{Error: unix.ECONNRESET, WasReset: true, ResetReason: resetMiddlebox})
		}, true},
		"reset at once":          {nil, 0, func(m *managed) { reset(m, mptcp.SubClosed{Error: unix.ECONNRESET}) }, true},
		"reset with data":        {&waits, time.Minute, func(m *managed) { reset(m, mptcp.SubClosed{Error: unix.ECONNRESET}) }, true},
		"reset later":            {nil, time.Minute, func(m *managed) { reset(m, mptcp.SubClosed{Error: unix.ECONNRESET}) }, false},
		"reset by the client":    {&waits, 0, func(m *managed) { reset(m, mptcp.SubClosed{Error: unix.ECONNRESET, WasReset: true, ResetReason: 2}) }, false},
		"closed":                 {nil, 0, func(m *managed) { reset(m, mptcp.SubClosed{}) }, false},
		"stalled":                {&waits, time.Minute, stall, true},
		"stalled after its data": {&mptcp.Subflow{Token: 1, Local: onB, InFlight: 10, SegmentSize: 1400, Acked: 1400}, time.Minute, stall, false},
	} {
		m := newManaged(false)
		m.setRoute(0, "::/0", RoutePresent)
		m.setRoute(1, "::/0", RoutePresent)
		m.open(1, defaultAt, clientAt)
		m.open(sameNetwork, defaultAt, netip.AddrPortFrom(clientAt.Addr(), 40001))
		m.open(other, defaultAt, elsewhereAt)
		m.pass(tt.age)
		if s := tt.sample; s != nil {
			s.Remote = m.remoteOn(1, onB)
			m.machine.sample(m.now, *s)
		}
		tt.find(m)
		if m.pass(holdDownMax); (m.counts.Broken == 1) != tt.broken || len(m.machine.broken) != int(m.counts.Broken) {
			t.Errorf("%s: %d broken paths, %d to be logged", name, m.counts.Broken, len(m.machine.broken))
		}
		uses := func(token uint32) bool {
			return slices.ContainsFunc(m.on(token), func(at string) bool { return strings.HasPrefix(at, onB.Addr().String()) })
		}
		if !uses(other) || uses(sameNetwork) == tt.broken {
			t.Errorf("%s: used by another network: %v, by this one: %v", name, uses(other), uses(sameNetwork))
		}
		if !tt.broken {
			continue
		}
		m.pass(time.Hour - 2*holdDownMax)
		m.open(4, defaultAt, netip.AddrPortFrom(clientAt.Addr(), 40002))
		if uses(1) || uses(sameNetwork) || uses(4) {
			t.Errorf("%s: used within the hour", name)
		}
		if m.pass(2 * holdDownMax); !uses(sameNetwork) || !uses(4) {
			t.Errorf("%s: not used after an hour", name)
		}
	}
}

// TestSetUse changes it while connections run.
func TestSetUse(t *testing.T) {
	m := newOverflowing()
	m.open(1, defaultAt, clientAt)
	m.carry(2*time.Second, saturated)
	m.machine.setUse(m.now, false, nil)
	m.work()
	check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::a", "2001:db8:1::b")
	if n := m.machine.memory.Len(); n > 0 {
		t.Errorf("%d paths are remembered", n)
	}
	m.machine.setUse(m.now, true, nil)
	m.work()
	m.carry(2*selection.Interval, light)
	if on := strings.Join(m.on(1), " "); strings.Count(on, "*") != 2 {
		t.Errorf("with overflow again: %s", on)
	}
}

// remoteOn returns the client's end of a connection's subflow.
func (m *managed) remoteOn(token uint32, local netip.AddrPort) netip.AddrPort {
	for _, s := range m.there[token].subflows {
		if s.Local == local {
			return s.Remote
		}
	}
	return netip.AddrPort{}
}

// TestOverflowLearns: what a saturated path carries is remembered.
func TestOverflowLearns(t *testing.T) {
	m := newOverflowing()
	m.open(1, defaultAt, clientAt)
	full := saturated
	full.Threshold = 5
	m.carry(3*time.Second, full)
	p := m.machine.memory.Recall(m.now, selection.KeyOf(onA.Addr(), clientAt.Addr()))
	if want := 40 * 1400 / selection.Interval.Seconds(); p.Rate < want*0.9 || p.Rate > want*1.1 {
		t.Errorf("learned %+v, want %.0f bytes/s", p, want)
	}
}

// TestSharedRate: a rate that one of several connections of a client measures is remembered as that
// of the path; another client of the same prefix has a line of its own.
func TestSharedRate(t *testing.T) {
	const one = 40 * 1400 * float64(time.Second/selection.Interval) // bytes/s, see carry
	full := saturated
	full.Threshold = 5 // not in slow start
	for name, tt := range map[string]struct {
		step uint16 // between the ports of the connections
		next bool   // whether each has another client
		want float64
	}{"one client": {1, false, 4 * one}, "four clients": {0, true, one}} {
		m := newOverflowing()
		at := clientAt
		for token := uint32(1); token <= 4; token++ {
			m.open(token, onA, at)
			if at = netip.AddrPortFrom(at.Addr(), at.Port()+tt.step); tt.next {
				at = netip.AddrPortFrom(at.Addr().Next(), at.Port())
			}
		}
		m.carry(3*time.Second, full)
		p := m.machine.memory.Recall(m.now, selection.KeyOf(onA.Addr(), clientAt.Addr()))
		if p.Rate < 0.9*tt.want || p.Rate > 1.3*tt.want {
			t.Errorf("%s: learned %.0f bytes/s, want %.0f", name, p.Rate, tt.want)
		}
	}
}
