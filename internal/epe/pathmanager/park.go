package pathmanager

import (
	"slices"
	"time"
)

// A parked subflow has lost its route after it was drained, as during maintenance of a border
// router: it was made a backup, all of its data was acknowledged, and only then was the route
// withdrawn. It is kept unused, and closed when that causes no reinjection.

// routeLost withdraws an address whose route is gone. If data may be in flight, its subflows are
// closed at once, and the kernel reinjects everything that the client has not acknowledged at the
// MPTCP level. That is right after a failure, but where nothing was lost it stalls the application
// for as long as all queues of the connection are. So a subflow that was drained before is parked,
// and closed when the connection is idle (see closeParked). REMOVE_ADDR makes the client close it,
// so the address remains announced until then.
func (c *connection) routeLost(peer int) {
	here, elsewhere := c.subflowsOn(peer)
	busy := func(s *subflow) bool { return !s.drained }
	if len(here) == 0 || !elsewhere || slices.ContainsFunc(here, busy) {
		if len(here) > 0 && elsewhere {
			c.standby(peer)
		}
		c.withdraw(peer)
		return
	}
	for _, s := range here {
		s.parked = true
	}
	c.machine.parked[c], c.machine.watched[c] = true, true
}

// closeParked closes the parked subflows of connections that had nothing queued in the samples
// taken at that time, and those that the kernel uses nevertheless because no other is left.
func (m *machine) closeParked(now time.Time) {
	m.now = now
	for c := range m.parked {
		busy := func(s *subflow) bool { return !s.sampled.Equal(now) || s.queued > 0 }
		idle := !slices.ContainsFunc(c.subflows, busy)
		c.unpark(func(s *subflow) bool { return idle || !s.drained })
	}
}

// unpark closes the parked subflows for which the function returns true.
func (c *connection) unpark(which func(*subflow) bool) {
	for _, s := range c.subflows {
		if s.parked && !s.closing && which(s) {
			c.withdraw(s.peer)
		}
	}
	if !slices.ContainsFunc(c.subflows, func(s *subflow) bool { return s.parked && !s.closing }) {
		delete(c.machine.parked, c)
	}
}
