package pathmanager

import (
	"testing"

	"github.com/tabane/tabane/internal/mptcp"
)

// look has the manager see what there is to deliver on a subflow: so many bytes by address.
func (m *managed) look(queued map[string]uint32) {
	for _, c := range m.there {
		for _, s := range c.subflows {
			s.Queued = queued[s.Local.Addr().String()]
		}
	}
	for _, s := range m.all() {
		m.sample(m.now, s)
	}
	m.closeParked(m.now)
	m.work()
}

const addressA, addressB, addressDefault = "2001:db8:1::a", "2001:db8:1::b", "2001:db8:1::10"

// newLeaving is a connection whose subflow to A is drained, while data flows on the others.
func newLeaving() *managed {
	m := newManaged(false)
	m.setRoute(0, "::/0", RoutePresent)
	m.setRoute(1, "::/0", RoutePresent)
	m.open(1, defaultAt, clientAt)
	m.setRoute(0, "::/0", RouteDraining)
	m.look(map[string]uint32{addressB: 100_000, addressDefault: 100_000})
	return m
}

func TestADrainedSubflowIsParked(t *testing.T) {
	m := newLeaving()
	m.fakeKernel.log = nil
	m.setRoute(0, "::/0", RouteAbsent)
	m.look(map[string]uint32{addressB: 100_000})
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a*", "2001:db8:1::b")
	check(t, m.fakeKernel.log)
	if len(m.parked) != 1 {
		t.Errorf("%d connections have parked subflows", len(m.parked))
	}
	// Nothing that has it decided again makes anything of it.
	m.resync(m.now, m.all())
	m.setRoute(1, "2001:db8:c::/64", RoutePresent)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a*", "2001:db8:1::b")

	m.look(nil)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::b")
	if len(m.parked) != 0 || m.counts.Removed != 1 {
		t.Errorf("%d parked, %+v", len(m.parked), m.counts)
	}
}

func TestABusySubflowIsNotParked(t *testing.T) {
	m := newLeaving()
	m.look(map[string]uint32{addressA: 1})
	m.setRoute(0, "::/0", RouteAbsent)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::b")
	// Nor one of which nothing is known since it became a backup.
	m.setRoute(0, "::/0", RoutePresent)
	m.pass(removeHold)
	m.look(nil)
	m.setRoute(0, "::/0", RouteDraining)
	m.setRoute(0, "::/0", RouteAbsent)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::b")
	// Nor one that was none any more.
	m = newLeaving()
	m.look(nil)
	m.setRoute(0, "::/0", RoutePresent)
	m.setRoute(0, "::/0", RouteAbsent)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::b")
}

func TestAParkedSubflowOfAConnectionThatEnds(t *testing.T) {
	m := newLeaving()
	m.setRoute(0, "::/0", RouteAbsent)
	m.disconnect(1)
	m.work()
	if len(m.parked) != 0 {
		t.Errorf("%d parked", len(m.parked))
	}
}

func TestAParkedSubflowComesBack(t *testing.T) {
	m := newLeaving()
	m.setRoute(0, "::/0", RouteAbsent)
	m.fakeKernel.log = nil
	m.setRoute(0, "::/0", RoutePresent)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a", "2001:db8:1::b")
	check(t, m.fakeKernel.log, "set backup false on subflow [2001:db8:1::a]:80 to [2001:db8:c::10]:50001 of connection 00000001")
	m.look(nil)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a", "2001:db8:1::b")
	if len(m.parked) != 0 {
		t.Errorf("%d parked", len(m.parked))
	}
}

func TestAParkedSubflowThatIsUsedIsClosed(t *testing.T) {
	m := newLeaving()
	m.setRoute(0, "::/0", RouteAbsent)
	m.look(map[string]uint32{addressA: 1400, addressB: 100_000})
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::b")
}

// TestAlarmClosesParkedSubflows: the suspect is a backup from then on, and the parked one would be
// as good.
func TestAlarmClosesParkedSubflows(t *testing.T) {
	m := newLeaving()
	m.setRoute(0, "::/0", RouteAbsent)
	m.stalled(m.now, 1, []mptcp.Ends{{Local: defaultAt, Remote: clientAt}}, nil)
	m.work()
	check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::b")
}

func TestParkedSubflowCarriesNothing(t *testing.T) {
	m := newLeaving()
	m.setRoute(0, "::/0", RouteAbsent)
	// The client closes its first subflow, and then the other path goes: its subflow is all that
	// works, perhaps.
	m.drop(m.there[1], func(s *mptcp.Subflow) bool { return !s.Joined })
	m.work()
	m.setRoute(1, "::/0", RouteAbsent)
	check(t, m.on(1), "2001:db8:1::a*", "2001:db8:1::b")
}
