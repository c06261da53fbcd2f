package edge

import (
	"slices"
	"time"
)

// The subflow on the default address follows BGP's best path, which leads to one of the egress peers. Where the connection has
// a subflow to each of them, that adds no path but a second subflow on one: twice that path's share of a bottleneck (RFC 6356
// section 1), and losses on both at the same time. When the path fails, the kernel sends what it held over the others, and
// that subflow sends all of it once more over the path that BGP found, since nothing makes the kernel drop what it has queued.

// warmUp is how long subflows to EPE addresses share with the one on the default address: they begin with an initial window
// when that has had its slow start.
const warmUp = time.Second

// spare says whether a subflow on the default address is to carry nothing as long as others do: to every egress peer with a
// route the client has, or had, a subflow of its own, and those to two of them carry data, so that one that falls silent is
// seen by the other's progress. It stays so when only one is left: what took the other took the best path too, perhaps. A
// client that did not take up all addresses may need the best path.
func (m *pathManager) spare(c *connection, s *subflow) bool {
	if m.sharing {
		return false
	}
	carry := 0
	for i, p := range m.peers {
		state := p.state(c.client)
		if state == routePresent && !c.offers[i].served {
			return false
		}
		if !p.backup && (state == routePresent || state == routeAbsent && !m.settled) && m.carries(c, i, s) {
			carry++
		}
	}
	return carry > 1 || s.backup && carry == 1
}

// carries says whether a peer's subflow can take the place of another, from the same address of the client.
func (m *pathManager) carries(c *connection, peer int, other *subflow) bool {
	return slices.ContainsFunc(c.subflows, func(s *subflow) bool {
		return s.peer == peer && s.remote.Addr() == other.remote.Addr() && !s.dying && !s.suspect && !s.parked &&
			(other.backup || m.now.Sub(s.since) >= warmUp)
	})
}

// prioritizeDefault makes the priorities of the subflows on the default address what they should be.
func (m *pathManager) prioritizeDefault(c *connection) {
	for _, s := range c.subflows {
		if s.peer < 0 {
			m.prioritize(c, s)
		}
	}
}

const (
	// asideFor is how long a subflow on the default address steps aside: some retransmission timeouts.
	asideFor = time.Second
	// asideMore is for how much longer when it still has something to deliver then.
	asideMore = 100 * time.Millisecond
)

// stepAside makes busy subflows on the default address backups for a while, where the connection has one to another egress
// peer. What took a peer's route took BGP's best path too, if that led there, and what is sent again must not go on a
// subflow that changes its path and has lost what it had in flight. Nothing is lost by it: whatever the best path is now,
// it leads to an egress peer, to which there is a subflow as well.
func (m *pathManager) stepAside(c *connection, lost int) {
	other := func(s *subflow) bool { return s.peer >= 0 && s.peer != lost && !s.dying && !s.backup }
	if !slices.ContainsFunc(c.subflows, other) {
		return
	}
	for _, s := range c.subflows {
		if s.peer < 0 && !s.dying && s.queued > 0 {
			s.aside = m.now.Add(asideFor)
			m.prioritize(c, s)
			m.wake(c, -1, s.aside)
		}
	}
}

// stillAside says whether a subflow that stepped aside is to stay there. What it holds is its probe: as long as that is not
// delivered, new data would wait behind it.
func (m *pathManager) stillAside(c *connection, s *subflow) bool {
	switch {
	case s.aside.IsZero():
		return false
	case m.now.Before(s.aside):
		return true
	case s.queued > 0 && m.now.Sub(s.looked) < asideFor:
		s.aside = m.now.Add(asideMore)
		m.wake(c, -1, s.aside)
		return true
	}
	s.aside = time.Time{}
	return false
}
