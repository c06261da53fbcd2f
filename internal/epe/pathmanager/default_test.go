package pathmanager

import (
	"net/netip"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/mptcp"
)

// newReached returns a path manager and a connection with a subflow to each of two peers.
func newReached(backupB bool) *managed {
	m := newManaged(backupB)
	m.setRoute(0, "::/0", RoutePresent)
	m.setRoute(1, "::/0", RoutePresent)
	m.open(1, defaultAt, clientAt)
	return m
}

func TestTheBestPathIsABackupWhereAllPeersAreReached(t *testing.T) {
	m := newReached(false)
	m.fakeKernel.log = nil
	m.pass(warmUp - time.Millisecond)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a", "2001:db8:1::b")
	m.pass(time.Millisecond)
	check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::a", "2001:db8:1::b")

	// It remains a backup while one of the others is lost and restored, by routes or by a
	// stall.
	m.setRoute(0, "::/0", RouteAbsent)
	m.pass(time.Minute)
	check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::b")
	m.setRoute(0, "::/0", RoutePresent)
	m.pass(time.Minute)
	a := m.conns[1].subflows[2]
	m.stalled(m.now, 1, []mptcp.Ends{{Local: a.local, Remote: a.remote}}, nil)
	m.work()
	check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::b")
	m.pass(time.Minute)
	check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::a", "2001:db8:1::b")
	if m.counts.Backup != 1 {
		t.Errorf("%d priorities changed, want 1", m.counts.Backup)
	}

	// It carries data when all others are backups.
	m.setRoute(0, "::/0", RouteDraining)
	check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::a*", "2001:db8:1::b")
	m.setRoute(1, "::/0", RouteDraining)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a*", "2001:db8:1::b*")
	m.setRoute(0, "::/0", RouteAbsent)
	m.setRoute(1, "::/0", RouteAbsent)
	m.look(nil)
	check(t, m.on(1), "2001:db8:1::10")
}

func TestTheBestPathSharesWhereItMayAddAPath(t *testing.T) {
	t.Run("asked for", func(t *testing.T) {
		m := newManaged(false)
		m.shareDefault = true
		m.setRoute(0, "::/0", RoutePresent)
		m.setRoute(1, "::/0", RoutePresent)
		m.open(1, defaultAt, clientAt)
		m.pass(time.Minute)
		check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a", "2001:db8:1::b")
	})
	t.Run("one peer alone", func(t *testing.T) {
		m := newManaged(false)
		m.setRoute(0, "::/0", RoutePresent)
		m.open(1, defaultAt, clientAt)
		m.pass(time.Minute)
		check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a")
	})
	t.Run("the other peer is a backup", func(t *testing.T) {
		m := newReached(true)
		m.pass(time.Minute)
		check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a", "2001:db8:1::b*")
	})
	t.Run("an address that the client did not take up", func(t *testing.T) {
		m := newManaged(false)
		third := Peer{Address: netip.MustParseAddr("2001:db8:1::77")}
		m.machine = newMachine(append(testPeers(), third), nil)
		m.machine.complete = true
		m.setRoute(0, "::/0", RoutePresent)
		m.setRoute(1, "::/0", RoutePresent)
		m.open(1, defaultAt, clientAt)
		m.pass(time.Minute)
		check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::a", "2001:db8:1::b")
		m.lose = 1 << 30
		m.setRoute(2, "::/0", RoutePresent)
		m.pass(time.Minute)
		check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::a", "2001:db8:1::b")
	})
	t.Run("another address of the client", func(t *testing.T) {
		m := newReached(false)
		second := netip.MustParseAddrPort("[2001:db8:f::10]:41000")
		m.there[1].subflows = append(m.there[1].subflows, &mptcp.Subflow{Token: 1, Local: defaultAt, Remote: second, Joined: true})
		m.fakeKernel.events = append(m.fakeKernel.events, mptcp.SubEstablished{Token: 1, Local: defaultAt, Remote: second})
		m.pass(time.Minute)
		check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::10*", "2001:db8:1::a", "2001:db8:1::b")
	})
}

// TestDefaultSubflowStandsBy: BGP's best path may have been withdrawn as well, so data must not be
// reinjected on its subflow.
func TestDefaultSubflowStandsBy(t *testing.T) {
	m := newReached(false)
	m.shareDefault = true
	busy := map[string]uint32{addressA: 100_000, addressB: 100_000, addressDefault: 100_000}
	m.look(busy)
	m.fakeKernel.log = nil
	m.setRoute(0, "::/0", RouteAbsent)
	check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::b")
	check(t, m.fakeKernel.log[:1], "set backup true on subflow [2001:db8:1::10]:80 to [2001:db8:c::10]:40000 of connection 00000001")
	m.pass(standbyFor - time.Millisecond)
	check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::b")
	// It still has data queued, for example data that a blackhole drops.
	for range 30 {
		m.look(busy)
		m.pass(standbyExtension)
		check(t, m.on(1), "2001:db8:1::10*", "2001:db8:1::b")
	}
	m.look(map[string]uint32{addressB: 100_000})
	m.pass(standbyExtension)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::b")
	// There is no standby if no other subflow is left, or if nothing is in flight.
	m.look(busy)
	m.setRoute(1, "::/0", RouteAbsent)
	check(t, m.on(1), "2001:db8:1::10")
	for peer := range 2 {
		m.setRoute(peer, "::/0", RoutePresent)
	}
	m.pass(time.Second)
	m.look(map[string]uint32{addressA: 100_000})
	m.setRoute(0, "::/0", RouteAbsent)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::b")
}

// TestStandbyEndsWithoutSamples: a single subflow is not sampled, so its progress is unknown.
func TestStandbyEndsWithoutSamples(t *testing.T) {
	m := newReached(false)
	m.shareDefault = true
	m.look(map[string]uint32{addressDefault: 100_000})
	m.setRoute(0, "::/0", RouteAbsent)
	m.pass(standbyFor)
	check(t, m.on(1), "2001:db8:1::10", "2001:db8:1::b")
}
