package pathmanager

import (
	"slices"
	"time"
)

// The subflow on the default address follows BGP's best path, which leads to one of the egress
// peers. On a connection that has a subflow to each of them it adds no path but a second subflow on
// one: twice the share of that path's bottleneck (RFC 6356 section 1), and simultaneous losses on
// both. When the path fails, the kernel reinjects what is in flight on it on the others, and this
// subflow then retransmits all of it over the next best path, because nothing makes the kernel drop
// what it has queued.

// warmUp is how long a subflow to an EPE address shares the load with the one on the default
// address: it starts with the initial window when the other has completed slow start.
const warmUp = time.Second

// defaultRedundant reports whether a subflow on the default address is to be a backup: the client
// has, or had, a subflow to every egress peer with a route, and those to at least two of them carry
// data, so that a stall of one shows in the progress of the other. It remains a backup while one is
// left: the failure of the other may have hit the best path too. A client that did not join all
// addresses may need the best path.
func (c *connection) defaultRedundant(s *subflow) bool {
	m := c.machine
	if m.shareDefault {
		return false
	}
	covered := 0
	for i, p := range m.peers {
		state := p.state(c.client)
		if state == RoutePresent && !c.announcements[i].used {
			return false
		}
		if !p.backup && (state == RoutePresent || state == RouteAbsent && !m.complete) && c.replaces(i, s) {
			covered++
		}
	}
	return covered > 1 || s.backup && covered == 1
}

// replaces reports whether a peer's subflow can replace another one from the same address of the
// client.
func (c *connection) replaces(peer int, other *subflow) bool {
	return slices.ContainsFunc(c.subflows, func(s *subflow) bool {
		return s.peer == peer && s.remote.Addr() == other.remote.Addr() && !s.closing && !s.stalled && !s.parked &&
			(other.backup || c.machine.now.Sub(s.since) >= warmUp)
	})
}

// setDefaultPriority sets the priorities of the subflows on the default address.
func (c *connection) setDefaultPriority() {
	for _, s := range c.subflows {
		if s.peer < 0 {
			c.setPriority(s)
		}
	}
}

const (
	// standbyFor is how long a subflow on the default address is on standby: some retransmission
	// timeouts.
	standbyFor = time.Second
	// standbyMore is the extension while it still has data queued.
	standbyMore = 100 * time.Millisecond
)

// standby makes the subflows on the default address that have data queued backups for a while, if
// the connection has a subflow to an egress peer other than the lost one. What withdrew the peer's
// route withdrew BGP's best path too, if that led there, and nothing should be reinjected on a
// subflow that changes its path and has lost its flight. It costs nothing: the next best path leads
// to an egress peer that has a subflow as well.
func (c *connection) standby(lost int) {
	other := func(s *subflow) bool { return s.peer >= 0 && s.peer != lost && !s.closing && !s.backup }
	if !slices.ContainsFunc(c.subflows, other) {
		return
	}
	for _, s := range c.subflows {
		if s.peer < 0 && !s.closing && s.queued > 0 {
			s.standbyUntil = c.machine.now.Add(standbyFor)
			c.setPriority(s)
			c.machine.schedule(c, -1, s.standbyUntil)
		}
	}
}

// onStandby reports whether a subflow remains on standby. What it has queued probes its path: until
// that is acknowledged, new data would wait behind it.
func (c *connection) onStandby(s *subflow) bool {
	now := c.machine.now
	switch {
	case s.standbyUntil.IsZero():
		return false
	case now.Before(s.standbyUntil):
		return true
	case s.queued > 0 && now.Sub(s.sampled) < standbyFor:
		s.standbyUntil = now.Add(standbyMore)
		c.machine.schedule(c, -1, s.standbyUntil)
		return true
	}
	s.standbyUntil = time.Time{}
	return false
}
