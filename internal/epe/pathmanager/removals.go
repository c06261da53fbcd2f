package pathmanager

import (
	"slices"
	"time"
)

// A client that does not receive REMOVE_ADDR keeps its subflow to the address, and has no slot for
// another address. REMOVE_ADDR is not acknowledged, and the kernel sends it only once, on the first
// subflow: the one on the default address, whose path may be that of the lost peer until BGP has
// another best path. So removals are repeated while an announced address is not joined, although
// the client had as many subflows before. The kernel removes only an address that is announced, so
// each is announced first: a client without a free slot ignores that.

const (
	// removeAfter is how long after an announcement the removals before it are repeated. It
	// doubles; after removeTries, 153 s in all, which is more than BGP's usual hold time, they are
	// not repeated.
	removeAfter = 75 * time.Millisecond
	removeTries = 11
)

// removals is the state of the repetition of removals on a connection.
type removals struct {
	at       time.Time // of the next one; zero: not before the next announcement
	tries    int
	capacity int // the most addresses to which the client had subflows at a time
}

// removed records that the address of subflows that still exist was removed.
func (c *connection) removed(a *announcement) {
	joined := 0
	for i := range c.announcements {
		if c.uses(i) {
			joined++
		}
	}
	a.unconfirmed = true
	c.removals = removals{capacity: max(c.removals.capacity, joined)}
}

// restartRemovals begins again after the path of a subflow was restored.
func (c *connection) restartRemovals() {
	if c.unconfirmed() {
		c.removals.at, c.removals.tries = time.Time{}, 0
		c.refillSoon()
	}
}

func (c *connection) unconfirmed() bool {
	return slices.ContainsFunc(c.announcements, func(a announcement) bool { return a.unconfirmed })
}

// scheduleRemovals schedules the repetition of removals after an announcement.
func (c *connection) scheduleRemovals() {
	r := &c.removals
	if r.at.IsZero() && r.tries < removeTries && c.unconfirmed() {
		r.at = c.machine.now.Add(backoff(removeAfter, time.Minute, r.tries))
		c.machine.schedule(c, -1, r.at)
	}
}

// repeatRemovals repeats the unconfirmed removals, if that is due, and then offers the slots to
// other peers. It ends when the client has as many subflows as before.
func (c *connection) repeatRemovals() {
	m, r := c.machine, &c.removals
	if r.at.IsZero() || m.now.Before(r.at) {
		return
	}
	r.at = time.Time{}
	joined, unjoined, pending := 0, 0, 0
	for i := range c.announcements {
		a := &c.announcements[i]
		switch {
		case c.uses(i):
			joined++
		case m.peers[i].state(c.client) == RoutePresent && (a.announced || a.declined || !m.now.Before(a.notBefore)):
			unjoined++
		}
		if a.unconfirmed && !a.announced {
			pending++
		}
	}
	if joined >= r.capacity {
		for i := range c.announcements {
			c.announcements[i].unconfirmed = false
		}
		return
	}
	if unjoined == 0 || pending == 0 {
		return
	}
	r.tries++
	for i := range c.announcements {
		switch a := &c.announcements[i]; {
		case a.announced && !a.used:
			a.since = m.now // refill repeats it, the best first
		case a.unconfirmed && !a.announced:
			c.requestAnnounce(i)
			c.removeAddress(a)
		}
	}
	c.refillSoon()
}
