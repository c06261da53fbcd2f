package pathmanager

import (
	"slices"
	"time"
)

// The subflow on the default address follows BGP's best path, which leads to one of the egress
// peers. On a connection that has a subflow to each of them it adds no path, only a second subflow
// on one path: twice the share of that path's bottleneck (RFC 6356 section 1), and simultaneous
// losses on both. When the path fails, the kernel reinjects its data in flight on the other
// subflows, and this subflow then also retransmits all of it over the next best path, because the
// kernel does not drop its send queue.

// warmUp is how long a subflow to an EPE address shares the load with the one on the default
// address: it starts with the initial window, whereas the other has completed slow start. A backup
// does not share the load, so with Options.Overflow the subflow on the default address keeps its
// path until it is to rest itself.
const warmUp = time.Second

// defaultRedundant reports whether a subflow on the default address should be a backup: the client
// has, or had, a subflow to every egress peer with a route, and those to at least two of them carry
// data, so that a stall of one is detected by the progress of the other. It remains a backup while
// one of them is left, because the failure of the other may also affect the best path. A client
// that did not join all addresses may need the best path.
func (c *connection) defaultRedundant(s *subflow) bool {
	m := c.machine
	if m.shareDefault {
		return false
	}
	covered := 0
	for i, p := range m.peers {
		state := p.state(c.client)
		if state == RoutePresent && !c.announcements[i].used && !c.waits(i) {
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
			(other.backup || !s.backup && c.machine.now.Sub(s.since) >= warmUp)
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
	// standbyFor is how long a subflow on the default address is on standby: several
	// retransmission timeouts.
	standbyFor = time.Second
	// standbyExtension is the extension while it still has data queued.
	standbyExtension = 100 * time.Millisecond
)

// standby temporarily makes the subflows on the default address that have data queued backups, if
// the connection has a subflow to an egress peer other than the lost one. If BGP's best path used
// the lost peer, it was withdrawn with the peer's route, and no data should be reinjected on a
// subflow that changes its path and has lost its data in flight. Throughput is not reduced: the
// next best path uses an egress peer that has a subflow as well.
func (c *connection) standby(lost int) {
	other := func(s *subflow) bool { return s.peer >= 0 && s.peer != lost && !s.closing && !s.backup }
	if !slices.ContainsFunc(c.subflows, other) {
		return
	}
	for _, s := range c.subflows {
		if s.peer < 0 && !s.closing && s.queued > 0 {
			s.standbyUntil = c.machine.now.Add(standbyFor)
			c.machine.watched[c] = true
			c.setPriority(s)
			c.machine.schedule(c, -1, s.standbyUntil)
		}
	}
}

// onStandby reports whether a subflow remains on standby. Its queued data probes the path: until it
// is acknowledged, new data would be queued behind it.
func (c *connection) onStandby(s *subflow) bool {
	now := c.machine.now
	switch {
	case s.standbyUntil.IsZero():
		return false
	case now.Before(s.standbyUntil):
		return true
	case s.queued > 0 && now.Sub(s.sampled) < standbyFor:
		s.standbyUntil = now.Add(standbyExtension)
		c.machine.schedule(c, -1, s.standbyUntil)
		return true
	}
	s.standbyUntil = time.Time{}
	return false
}
