package pathmanager

import (
	"time"

	"github.com/tabane/tabane/internal/mptcp"
)

// review is a dump of all subflows while it is read. Only subflows that differ from what is known are
// kept, unless events were lost: then more may have happened than the difference shows.
type review struct {
	round uint64
	lost  bool
	rest  map[uint32][]mptcp.Subflow // by token
}

// beginReview starts applying a dump of all subflows; lost means that events were lost before it.
func (m *machine) beginReview(lost bool) {
	m.review = review{round: m.review.round + 1, lost: lost, rest: map[uint32][]mptcp.Subflow{}}
}

// reviewed applies a subflow of the dump.
func (m *machine) reviewed(l mptcp.Subflow) {
	if c := m.conns[l.Token]; c != nil && !m.review.lost {
		s := c.find(l.Local, l.Remote)
		if s != nil && !s.uncertain && s.initial != l.Joined && s.backup == l.BackupHere {
			s.reviewed = m.review.round
			return
		}
	}
	m.review.rest[l.Token] = append(m.review.rest[l.Token], l)
}

// endReview ends the dump: connections without subflows are removed, unknown connections are added, and
// those that differ are reconciled.
func (m *machine) endReview(now time.Time) {
	m.now = now
	rest := m.review.rest
	m.review.rest = nil
	for token, c := range m.conns {
		differs := len(rest[token]) > 0 || len(c.subflows) == 0
		for _, s := range c.subflows {
			differs = differs || s.reviewed != m.review.round
		}
		if !differs {
			continue
		}
		list := rest[token]
		delete(rest, token)
		for _, s := range c.subflows {
			if s.reviewed == m.review.round {
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
