package pathmanager

import (
	"net/netip"
	"testing"
)

// TestPeersChange adds a peer, removes one and adds it again while a connection is open.
func TestPeersChange(t *testing.T) {
	m := newManaged(false)
	m.setRoute(0, "::/0", RoutePresent)
	m.setRoute(1, "::/0", RoutePresent)
	m.open(1, defaultAt, clientAt)
	m.machine.addPeer(Peer{Address: netip.MustParseAddr("2001:db8:1::c")})
	m.setRoute(2, "::/0", RoutePresent)
	check(t, withoutMarks(m.on(1)), "2001:db8:1::10", "2001:db8:1::a", "2001:db8:1::b", "2001:db8:1::c")

	m.machine.removePeer(m.now, 1)
	m.work()
	m.pass(holdDownMax)
	check(t, withoutMarks(m.on(1)), "2001:db8:1::10", "2001:db8:1::a", "2001:db8:1::c")
	m.open(2, defaultAt, elsewhereAt)
	check(t, withoutMarks(m.on(2)), "2001:db8:1::10", "2001:db8:1::a", "2001:db8:1::c")

	m.machine.addPeer(Peer{Address: onB.Addr(), Backup: true})
	m.setRoute(1, "::/0", RoutePresent)
	m.pass(holdDownMax)
	check(t, withoutMarks(m.on(1)), "2001:db8:1::10", "2001:db8:1::a", "2001:db8:1::b", "2001:db8:1::c")
	for _, s := range m.there[1].subflows {
		if s.Local.Addr() == onB.Addr() && !s.BackupHere {
			t.Error("the subflow is not a backup")
		}
	}
	ids := map[uint8]bool{}
	for _, p := range m.machine.peers {
		ids[p.id] = true
	}
	if len(m.machine.peers) != 3 || len(ids) != 3 {
		t.Errorf("%d peers with %d address IDs", len(m.machine.peers), len(ids))
	}
}

// withoutMarks drops the marks of backups.
func withoutMarks(on []string) []string {
	plain := make([]string, len(on))
	for i, name := range on {
		plain[i] = name
		if last := len(name) - 1; name[last] == '*' {
			plain[i] = name[:last]
		}
	}
	return plain
}
