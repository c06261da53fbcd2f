package pathmanager

import (
	"time"

	"github.com/tabane/tabane/internal/mptcp"
)

// dump is the state of a dump of all subflows while it is read. It keeps only subflows that differ
// from what is known, unless events were lost: then more may have happened than the difference
// shows.
type dump struct {
	round     uint64
	lost      bool
	differing map[uint32][]mptcp.Subflow // by token
}

// beginDump starts applying a dump of all subflows; lost means that events were lost before it.
func (m *machine) beginDump(lost bool) {
	m.lastDump = dump{round: m.lastDump.round + 1, lost: lost, differing: map[uint32][]mptcp.Subflow{}}
}

// addDumped applies a subflow of the dump.
func (m *machine) addDumped(l mptcp.Subflow) {
	if c := m.conns[l.Token]; c != nil && !m.lastDump.lost {
		s := c.find(l.Local, l.Remote)
		if s != nil && !s.uncertain && s.initial != l.Joined && s.backup == l.BackupHere {
			s.dumpRound = m.lastDump.round
			return
		}
	}
	m.lastDump.differing[l.Token] = append(m.lastDump.differing[l.Token], l)
}

// endDump ends the dump: connections without subflows are removed, unknown connections are added,
// and those that differ are reconciled.
func (m *machine) endDump(now time.Time) {
	m.now = now
	rest := m.lastDump.differing
	m.lastDump.differing = nil
	for token, c := range m.conns {
		differs := len(rest[token]) > 0 || len(c.subflows) == 0
		for _, s := range c.subflows {
			differs = differs || s.dumpRound != m.lastDump.round
		}
		if !differs {
			continue
		}
		list := rest[token]
		delete(rest, token)
		for _, s := range c.subflows {
			if s.dumpRound == m.lastDump.round {
				list = append(list, mptcp.Subflow{Token: token, Local: s.local, Remote: s.remote, Joined: !s.initial, BackupHere: s.backup})
			}
		}
		if len(list) == 0 {
			m.remove(c)
			continue
		}
		c.resync(list)
		c.reconcileAll()
	}
	for token, list := range rest {
		if !isServer(list) {
			continue
		}
		c := m.connection(token, list[0].Local, list[0].Remote)
		for i := range c.announcements {
			c.announcements[i].uncertain = true
		}
		c.resync(list)
		c.reconcileAll()
	}
}
