package edge

import (
	"slices"
	"time"

	"github.com/tabane/tabane/internal/mptcp"
)

// A subflow that is parked has lost its route after all traffic had left it, as in the maintenance of a border router:
// first it was made a backup, then nothing was left to deliver on it, then the route went. It stays, unused, and is
// closed when that harms nobody.

// retire takes an address whose route has gone from a connection. Where data may be on its way to the hole, the subflows
// are closed at once: the kernel then sends everything again that the client has not acknowledged on any subflow. That
// is right after a failure, but a pause of the application where nothing was lost, long as all queues of the connection
// together. So a subflow that was drained before its route went is parked, and closed when the connection falls silent,
// see release. The client's closing it has the same effect, so the address stays announced as long.
func (m *pathManager) retire(c *connection, peer int) {
	here, elsewhere := c.on(peer)
	busy := func(s *subflow) bool { return !s.drained }
	if len(here) == 0 || !elsewhere || slices.ContainsFunc(here, busy) {
		if len(here) > 0 && elsewhere {
			m.stepAside(c, peer)
		}
		m.withdraw(c, peer)
		return
	}
	for _, s := range here {
		s.parked = true
	}
	m.parked[c] = true
}

// observe takes what a look found of a subflow.
func (m *pathManager) observe(now time.Time, found mptcp.Subflow) {
	c := m.conns[found.Token]
	if c == nil {
		return
	}
	if s := c.find(found.Local, found.Remote); s != nil {
		s.queued, s.looked = found.Queued, now
		s.drained = s.backup && found.BackupHere && found.Queued == 0
	}
}

// release closes the parked subflows of connections on which the look at that time found nothing to deliver, so that
// nothing is sent again, and those that the kernel uses after all, having nothing better.
func (m *pathManager) release(now time.Time) {
	m.now = now
	for c := range m.parked {
		busy := func(s *subflow) bool { return !s.looked.Equal(now) || s.queued > 0 }
		silent := !slices.ContainsFunc(c.subflows, busy)
		m.unpark(c, func(s *subflow) bool { return silent || !s.drained })
	}
}

// unpark closes those parked subflows of a connection for which which says so.
func (m *pathManager) unpark(c *connection, which func(*subflow) bool) {
	for _, s := range c.subflows {
		if s.parked && !s.dying && which(s) {
			m.withdraw(c, s.peer)
		}
	}
	if !slices.ContainsFunc(c.subflows, func(s *subflow) bool { return s.parked && !s.dying }) {
		delete(m.parked, c)
	}
}
