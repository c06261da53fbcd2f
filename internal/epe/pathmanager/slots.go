package pathmanager

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// A Linux client accepts at most eight addresses, and opens at most eight subflows besides the
// initial one (MPTCP_PM_ADDR_MAX in net/mptcp/protocol.h); the server's path manager has no such
// limit. So a connection has eight slots. If more egress peers have a route to the client, the best
// ones get the slots when the connection is established, in the order of their announcements,
// because a client with a lower limit accepts those that arrive first. A slot whose subflow is lost
// goes to the best of the others; one that is in use is not taken from it for a better one, because
// closing a subflow makes the kernel reinject its data.

// MaxSlots is the number of egress peers that a connection uses at most.
const MaxSlots = 8

// compare orders peers by their preference for a client, as BGP does (RFC 4271 section 9.1.2.2),
// but backups last. MEDs of different neighbor ASes are not comparable.
func (p *peer) compare(other *peer, route, otherRoute Route) int {
	if p.backup != other.backup {
		if other.backup {
			return -1
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(otherRoute.LocalPref, route.LocalPref),
		cmp.Compare(route.PathLength, otherRoute.PathLength),
		cmp.Compare(route.Origin, otherRoute.Origin),
	)
}

// ranking returns the indexes of all peers, best first for this client. Equal ones are in the order
// of the configuration.
func (c *connection) ranking() []int {
	if n := len(c.machine.peers); n <= MaxSlots {
		order := make([]int, n)
		for i := range order {
			order[i] = i
		}
		return order
	}
	return c.ordered(func(*peer, Route) bool { return true })
}

// ordered returns some of the peers, by their routes to the client, in the order of preference.
func (c *connection) ordered(some func(*peer, Route) bool) (order []int) {
	peers := c.machine.peers
	routes := make([]Route, len(peers))
	for i, p := range peers {
		if routes[i] = p.route(c.client); some(p, routes[i]) {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return peers[a].compare(peers[b], routes[a], routes[b]) })
	return order
}

// holdsSlot reports whether a peer's address is announced, or has a subflow that the client opened
// because it was.
func (c *connection) holdsSlot(peer int) bool {
	return c.announcements[peer].announced ||
		slices.ContainsFunc(c.subflows, func(s *subflow) bool { return s.peer == peer && !s.initial && !s.closing })
}

// freeSlots returns the number of slots that are not held.
func (c *connection) freeSlots() int {
	free := MaxSlots
	for i := range c.announcements {
		if c.holdsSlot(i) {
			free--
		}
	}
	return free
}

// mayAnnounce reports whether a peer without a slot gets one now: one is free, and no better peer
// is ready to take it.
func (c *connection) mayAnnounce(peer int) bool {
	m := c.machine
	if len(m.peers) <= MaxSlots {
		return true
	}
	if c.announcements[peer].declined {
		return false
	}
	free := c.freeSlots()
	for _, i := range c.ranking() {
		switch {
		case i == peer:
			return free > 0
		case c.ready(i):
			free--
		}
	}
	return false
}

// ready reports whether a peer without a slot could be announced now or within removeHold, so that
// no other takes a slot from a peer that is announced again.
func (c *connection) ready(peer int) bool {
	a := &c.announcements[peer]
	return !a.declined && !c.uses(peer) && !c.holdsSlot(peer) && !c.machine.now.Add(removeHold).Before(a.notBefore) &&
		c.machine.peers[peer].state(c.client) == RoutePresent
}

// waits reports whether a peer with a route to the client has no slot because others hold them.
func (c *connection) waits(peer int) bool {
	return len(c.machine.peers) > MaxSlots && c.ready(peer) && !c.mayAnnounce(peer) ||
		c.announcements[peer].declined && !c.holdsSlot(peer)
}

// takeBackSlot withdraws the address of a peer that the client does not join, if another peer waits
// for its slot.
func (c *connection) takeBackSlot(peer int) {
	m, a := c.machine, &c.announcements[peer]
	if len(m.peers) <= MaxSlots || !slices.ContainsFunc(c.ranking(), c.ready) {
		return
	}
	if at := a.since.Add(answerTimeout); m.now.Before(at) {
		m.schedule(c, peer, at)
		return
	}
	a.declined = true
	c.removeAddress(a)
	m.schedule(c, -1, a.notBefore)
}

// slotFreed offers the slot of a lost subflow to the other peers. A client that processes an
// announcement together with the removal has no slot for it yet.
func (c *connection) slotFreed() {
	m := c.machine
	if joined, announced := c.addresses(); len(m.peers) <= MaxSlots && joined == announced {
		return
	}
	c.refillSoon()
}

func (c *connection) refillSoon() {
	c.refillAt = c.machine.now.Add(removeHold)
	c.machine.schedule(c, -1, c.refillAt)
}

// refill makes a freed slot available to all peers that the client did not join.
func (c *connection) refill() {
	if c.refillAt.IsZero() || c.machine.now.Before(c.refillAt) {
		return
	}
	c.refillAt = time.Time{}
	for i := range c.announcements {
		a := &c.announcements[i]
		if a.declined = false; !c.uses(i) {
			a.unanswered = 0 // announce it again
		}
	}
}

// Waiting describes the connections to whose client more egress peers have a route than they have
// slots.
type Waiting struct {
	Connections int `json:"connections"`
	// Client is the client with the most peers, Peers their number, and Slots the number of those
	// that its connection uses.
	Client netip.Addr `json:"client,omitzero"`
	Peers  int        `json:"peers"`
	Slots  int        `json:"slots"`
	// Meaning is a one-line explanation.
	Meaning string `json:"meaning"`
}

// waiting counts the connections with more peers than slots.
func (m *machine) waiting() (w Waiting) {
	if len(m.peers) <= MaxSlots {
		return w
	}
	for _, c := range m.conns {
		peers, slots := 0, 0
		for i, p := range m.peers {
			if p.state(c.client) != RoutePresent {
				continue
			}
			peers++
			if c.holdsSlot(i) {
				slots++
			}
		}
		if peers <= MaxSlots {
			continue
		}
		if w.Connections++; peers > w.Peers {
			w.Client, w.Peers, w.Slots = c.client, peers, slots
		}
	}
	if w.Connections > 0 {
		w.Meaning = fmt.Sprintf("%d egress peers reach the client, which joins at most %d: the best by LOCAL_PREF, AS path and ORIGIN", w.Peers, MaxSlots)
	}
	return w
}
