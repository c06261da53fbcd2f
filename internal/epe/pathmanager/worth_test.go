package pathmanager

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tabane/tabane/internal/mptcp"
)

// TestShortConnections: nothing is announced to a connection with little data before it is worthAge
// old, and at once to one with more.
func TestShortConnections(t *testing.T) {
	m := newManaged(false)
	m.setRoute(0, "::/0", RoutePresent)
	for token := uint32(1); token <= 3; token++ {
		m.connect(token, defaultAt, clientAt)
		m.work()
	}
	weigh := func(token uint32, acked uint64, queued uint32) {
		m.machine.weigh(m.now, mptcp.Subflow{Token: token, Acked: acked, Queued: queued})
		m.work()
	}
	weigh(1, 10e3, worthBytes-10e3-1)
	weigh(2, 20e3, worthBytes-20e3)
	check(t, m.on(1), "2001:db8:1::10")
	check(t, m.on(2), "2001:db8:1::10", "2001:db8:1::a")
	m.disconnect(3)
	m.pass(worthAge - time.Millisecond)
	weigh(3, worthBytes, 0) // closed meanwhile
	check(t, m.on(1), "2001:db8:1::10")
	if len(m.young) != 1 {
		t.Errorf("%d connections are looked at, want 1", len(m.young))
	}
	m.pass(time.Millisecond)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a")
	if len(m.young) != 0 || m.counts.Announced != 2 {
		t.Errorf("%d connections are looked at, %d addresses announced, want 0 and 2", len(m.young), m.counts.Announced)
	}
}

// TestLookedAt: the loop looks at a connection 40 ms after it was established, and at doubled ages.
func TestLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLooped(t)
		l.route(0, RoutePresent)
		first := netip.AddrPortFrom(clientAt.Addr(), clientAt.Port()+1)
		l.kernel.connect(1, defaultAt, clientAt)
		l.kernel.connect(2, defaultAt, first)
		l.kernel.there[2].subflows[0].Acked = worthBytes
		l.work()
		check(t, l.kernel.on(2), "2001:db8:1::10")
		time.Sleep(worthFirst + time.Millisecond)
		l.work()
		check(t, l.kernel.on(1), "2001:db8:1::10")
		check(t, l.kernel.on(2), "2001:db8:1::10", "2001:db8:1::a")
		l.kernel.mu.Lock()
		l.kernel.there[1].subflows[0].Acked = worthBytes
		l.kernel.mu.Unlock()
		time.Sleep(worthFirst)
		l.work()
		check(t, l.kernel.on(1), "2001:db8:1::10", "2001:db8:1::a")
		if l.loop.schedule.isSet(weighDue) {
			t.Error("the loop looks at no connection")
		}
		l.end()
	})
}
