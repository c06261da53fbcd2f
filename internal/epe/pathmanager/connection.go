package pathmanager

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/epe/selection"
	"github.com/tabane/tabane/internal/mptcp"
)

const (
	// removeHold is the pause between REMOVE_ADDR and the next ADD_ADDR of an address. A client
	// that processes both at once handles the ADD_ADDR first, finds a subflow to the address, and
	// then closes that.
	removeHold = 50 * time.Millisecond
	// answerTimeout is how long an address to which the client has had a subflow stays
	// announced without one before it is withdrawn and announced again. It doubles up to
	// answerTimeoutMax; after answerTries it is not announced to the client again.
	answerTimeout    = time.Second
	answerTimeoutMax = time.Minute
	answerTries      = 10
	// repeatAfter is how long an address to which the client has had no subflow stays announced
	// before the announcement is repeated. It doubles; after repeatTries only the kernel
	// retransmits ADD_ADDR. The first is easily lost: a provider may advertise a route before
	// its hardware forwards, and BGP's best path, on which the announcement is sent, may
	// already use that route.
	repeatAfter = 50 * time.Millisecond
	repeatTries = 3
	// holdDown is how long an address is not announced after a subflow to it stalled. It
	// doubles up to holdDownMax, and is reset to holdDown after a subflow has been established
	// for holdDownReset.
	holdDown      = time.Second
	holdDownMax   = time.Minute
	holdDownReset = 30 * time.Second
)

// connection is an MPTCP connection of a client. Announcements are indexed by peer.
type connection struct {
	machine       *machine
	token         uint32
	client        netip.Addr
	subflows      []*subflow
	announcements []announcement
	watchUntil    time.Time // its subflows are sampled at least until then
	refillAt      time.Time // when a freed slot is offered to other peers; zero: none is
	removals      removals
	since         time.Time // when it became known
	choice        selection.Connection[pathKey]
	socket        socket
	rule          *rule // nil: none applies
}

// subflow is a subflow of a connection; peer is -1 if it is on the default address.
type subflow struct {
	local, remote netip.AddrPort
	peer          int
	initial       bool // opened by MP_CAPABLE (RFC 8684 section 3.1)
	backup        bool // as requested
	uncertain     bool // the kernel may have rejected the priority
	stalled       bool // makes no progress while others do
	closing       bool // destruction was requested
	// drained is set if it was a backup without unacknowledged data in its last sample.
	drained bool
	// parked is set if its route was withdrawn and it is kept as an unused backup until it can
	// be closed without reinjection.
	parked       bool
	queued       uint32    // unacknowledged bytes in the last sample
	sampled      time.Time // time of the last sample
	standbyUntil time.Time // a backup until this time and until nothing is queued
	since        time.Time // established
	dumpRound    uint64    // of the last dump that showed it as known
	number       uint64    // unique among the subflows of the machine
	// path is that of the last decision, and use why it carries data or rests; last is its last
	// sample, and progress the time of the last sample in which more was acknowledged.
	path     pathKey
	use      selection.Reason
	last     mptcp.Subflow
	idled    bool // between the last two samples
	progress time.Time
}

// announcement is the state of one EPE address on one connection.
type announcement struct {
	id         uint8 // address ID on this connection; may differ from the peer's
	announced  bool
	uncertain  bool      // a previous instance may have announced it
	since      time.Time // when it was announced, or when its last subflow was closed
	used       bool      // the client has, had, or may have had a subflow to it
	unanswered int       // consecutive announcements without a subflow
	stalls     int       // consecutive stalls
	notBefore  time.Time // earliest time of the next announcement
	timer      time.Time // next reconciliation, zero if no timer is set
	// declined is set if the client did not join it while others waited for its slot.
	declined bool
	// unconfirmed is set if the client had a subflow to it and may not have received its removal.
	unconfirmed bool
}

// joined records that the client has a subflow to the address.
func (a *announcement) joined(id uint8) {
	if id != 0 {
		a.id = id
	}
	a.announced, a.used, a.unanswered, a.notBefore = true, true, 0, time.Time{}
	a.unconfirmed = false
}

// timeout returns how long an announcement may remain unanswered.
func (a *announcement) timeout() time.Duration {
	return backoff(answerTimeout, answerTimeoutMax, a.unanswered)
}

// backoff returns first doubled n times, at most most.
func backoff(first, most time.Duration, n int) time.Duration {
	return min(most, first<<min(n, 16))
}

func (c *connection) find(local, remote netip.AddrPort) *subflow {
	for _, s := range c.subflows {
		if s.local == local && s.remote == remote {
			return s
		}
	}
	return nil
}

// add returns the subflow and adds it if it is unknown.
func (c *connection) add(local, remote netip.AddrPort) *subflow {
	if s := c.find(local, remote); s != nil {
		return s
	}
	c.machine.added++
	s := &subflow{local: local, remote: remote, peer: -1, since: c.machine.now, number: c.machine.added}
	if i, ok := c.machine.byAddress[local.Addr()]; ok {
		s.peer = i
	}
	c.subflows = append(c.subflows, s)
	c.machine.subflows++
	return s
}

// subflowClosed removes a subflow. If the client closed it although the route is present, its
// address is announced again after a delay, unless the whole connection is closed.
func (c *connection) subflowClosed(local, remote netip.AddrPort) {
	m := c.machine
	for i, s := range c.subflows {
		if s.local != local || s.remote != remote {
			continue
		}
		c.subflows = append(c.subflows[:i], c.subflows[i+1:]...)
		m.subflows--
		if s.peer < 0 {
			return
		}
		if a := &c.announcements[s.peer]; a.announced || a.uncertain {
			a.since = m.now
			m.schedule(c, s.peer, m.now.Add(a.timeout()))
		}
		c.slotFreed()
		return
	}
}

// addresses returns the number of addresses announced to the client, and the number of these to
// which it has a subflow. Addresses without a subflow that were announced less than answerTimeout
// ago are not counted.
func (c *connection) addresses() (joined, announced int) {
	for i := range c.announcements {
		switch a := &c.announcements[i]; {
		case !a.announced:
		case c.uses(i):
			joined++
			announced++
		case c.machine.now.Sub(a.since) >= answerTimeout:
			announced++
		}
	}
	return joined, announced
}

// unjoined returns where a client would join the addresses that addresses counts as not joined.
func (c *connection) unjoined() (all []netip.AddrPort) {
	if len(c.subflows) == 0 {
		return nil
	}
	// A client joins at the port of the connection (RFC 8684 section 3.4.1).
	port := c.subflows[0].local.Port()
	for i := range c.announcements {
		if a := &c.announcements[i]; a.announced && !c.uses(i) && c.machine.now.Sub(a.since) >= answerTimeout {
			all = append(all, netip.AddrPortFrom(c.machine.peers[i].address, port))
		}
	}
	return all
}

func (c *connection) reconcileAll() {
	c.decide()
	c.repeatRemovals()
	c.refill()
	for _, i := range c.ranking() {
		c.reconcile(i)
	}
	c.setPriorities()
}

// reconcile announces or withdraws a peer's address according to its route.
func (c *connection) reconcile(peer int) {
	m, a := c.machine, &c.announcements[peer]
	state := m.peers[peer].state(c.client)
	if state == RouteAbsent {
		if m.complete {
			c.routeLost(peer)
		}
		return
	}
	live := false
	for _, s := range c.subflows {
		if s.peer == peer && !s.closing {
			live, s.parked = true, false
		}
	}
	if live {
		c.setPriorities()
	}
	switch {
	case live || state == RouteDraining:
	case a.announced && !a.used:
		c.repeat(peer)
		c.takeBackSlot(peer)
	case a.announced && a.unanswered >= answerTries:
	case a.announced && m.now.Before(a.since.Add(a.timeout())):
		m.schedule(c, peer, a.since.Add(a.timeout()))
	case a.announced:
		// Either the client did not receive the close of its last subflow, and considers
		// the address in use, or it did not receive the ADD_ADDR.
		a.unanswered++
		c.removeAddress(a)
		m.schedule(c, -1, a.notBefore) // a better peer may be waiting for its slot
	case m.now.Before(a.notBefore):
		m.schedule(c, peer, a.notBefore)
	case !c.brokenUntil(peer).IsZero():
		m.schedule(c, peer, c.brokenUntil(peer))
	case !c.announces(): // until it is worth it
	case !c.mayAnnounce(peer): // until another subflow is lost
	default:
		c.announce(peer)
		a.used = a.used || a.uncertain
		a.announced, a.uncertain, a.since = true, false, m.now
		if a.used {
			m.schedule(c, peer, m.now.Add(a.timeout()))
		} else {
			a.unanswered = 0
			c.repeat(peer)
		}
	}
}

func (c *connection) announce(peer int) {
	c.requestAnnounce(peer)
	c.scheduleRemovals()
}

func (c *connection) requestAnnounce(peer int) {
	c.machine.request(mptcp.Announce{
		Token: c.token, ID: c.announcements[peer].id, Address: c.machine.peers[peer].address, Backup: c.chooses(),
	})
}

// repeat announces an address again, which the client may not have received.
func (c *connection) repeat(peer int) {
	m, a := c.machine, &c.announcements[peer]
	if a.unanswered >= repeatTries {
		return
	}
	at := a.since.Add(backoff(repeatAfter, answerTimeoutMax, a.unanswered))
	if m.now.Before(at) {
		m.schedule(c, peer, at)
		return
	}
	a.unanswered++
	a.since = m.now
	c.announce(peer)
	c.repeat(peer)
}

// mustBackUp reports whether a subflow is a backup whatever the others carry.
func (c *connection) mustBackUp(s *subflow) bool {
	if s.stalled || s.parked {
		return true
	}
	if s.peer < 0 {
		return c.onStandby(s) || c.defaultRedundant(s)
	}
	p := c.machine.peers[s.peer]
	return p.backup || p.state(c.client) == RouteDraining
}

// setPriorities requests the desired priorities of all subflows. Those that are to carry data come
// first: while all are backups, the scheduler sends data on any of them, however slow.
func (c *connection) setPriorities() {
	for _, backup := range []bool{false, true} {
		for _, s := range c.subflows {
			if c.wantsBackup(s) == backup {
				c.setPriority(s)
			}
		}
	}
}

// wantsBackup reports whether a subflow should be a backup.
func (c *connection) wantsBackup(s *subflow) bool { return c.mustBackUp(s) || c.rests(s) }

// setPriority requests the desired priority of a subflow, unless the subflow already has it.
func (c *connection) setPriority(s *subflow) {
	backup := c.wantsBackup(s)
	if s.closing || backup == s.backup && !s.uncertain {
		return
	}
	s.backup, s.uncertain, s.drained = backup, false, false
	c.machine.request(mptcp.SetBackup{Token: c.token, Local: s.local, Remote: s.remote, Backup: backup})
}

func (c *connection) removeAddress(a *announcement) {
	c.machine.request(mptcp.RemoveAddress{Token: c.token, ID: a.id})
	a.used = a.used || a.uncertain
	a.announced, a.uncertain = false, false
	if hold := c.machine.now.Add(removeHold); hold.After(a.notBefore) {
		a.notBefore = hold
	}
}

// uses reports whether the connection has a subflow on a peer's address.
func (c *connection) uses(peer int) bool {
	return slices.ContainsFunc(c.subflows, func(s *subflow) bool { return s.peer == peer && !s.closing })
}

// subflowsOn returns the subflows on a peer's address, and whether the connection has other
// subflows that can carry data.
func (c *connection) subflowsOn(peer int) (here []*subflow, elsewhere bool) {
	for _, s := range c.subflows {
		switch {
		case s.closing:
		case s.peer == peer:
			here = append(here, s)
		case !s.parked:
			elsewhere = true
		}
	}
	return here, elsewhere
}

// withdraw removes a peer's address from a connection and closes the subflows on it, unless the
// connection has no others. The address is removed first, because the kernel deletes its ID when a
// subflow is destroyed.
func (c *connection) withdraw(peer int) {
	a := &c.announcements[peer]
	here, elsewhere := c.subflowsOn(peer)
	if len(here) > 0 && !elsewhere {
		return
	}
	joined := false
	for _, s := range here {
		joined = joined || !s.initial
	}
	if a.announced || a.uncertain || joined {
		c.removeAddress(a)
		if joined || a.unconfirmed {
			c.removed(a)
		}
		c.slotFreed()
	}
	for _, s := range here {
		if s.initial {
			c.machine.request(mptcp.RemoveAddress{Token: c.token})
		}
		s.closing = true
		c.machine.request(mptcp.DestroySubflow{Token: c.token, Local: s.local, Remote: s.remote})
	}
}

// closeIdle closes one of the idle subflows on EPE addresses, if any.
func (c *connection) closeIdle(idle []mptcp.Ends) {
	for _, ends := range idle {
		s := c.find(ends.Local, ends.Remote)
		if s == nil || s.closing || s.initial || s.peer < 0 {
			continue
		}
		c.withdraw(s.peer)
		c.machine.schedule(c, s.peer, c.announcements[s.peer].notBefore)
		return
	}
}

// resync applies a dump of the connection's subflows.
func (c *connection) resync(list []mptcp.Subflow) {
	m := c.machine
	for _, l := range list {
		s := c.find(l.Local, l.Remote)
		if s == nil {
			s = c.add(l.Local, l.Remote)
			s.since = time.Time{} // unknown; treated as long established
		}
		s.initial, s.backup, s.uncertain = !l.Joined, l.BackupHere, false
		if s.peer >= 0 && l.Joined && !s.closing {
			c.announcements[s.peer].joined(l.LocalID)
		}
	}
	for i := len(c.subflows) - 1; i >= 0; i-- {
		s := c.subflows[i]
		if !slices.ContainsFunc(list, func(l mptcp.Subflow) bool { return l.Local == s.local && l.Remote == s.remote }) {
			c.subflowClosed(s.local, s.remote)
		}
	}
	for i := range c.announcements {
		// A subflow may have been established and closed between dumps, unseen.
		if a := &c.announcements[i]; a.announced && !a.used && m.lastDump.lost {
			a.used = true
			m.schedule(c, i, m.now.Add(a.timeout()))
		}
	}
}

// undo reverts the state change of a rejected request, and schedules a reconciliation.
func (c *connection) undo(r mptcp.Request) {
	m := c.machine
	at := m.now.Add(retryAfter)
	local, remote := ends(r)
	s := c.find(local, remote)
	switch r := r.(type) {
	case mptcp.Announce:
		if i, ok := m.byAddress[r.Address]; ok {
			// A preceding RemoveAddress may have been rejected too.
			a := &c.announcements[i]
			a.announced, a.uncertain, a.notBefore = false, true, at
			m.schedule(c, i, at)
		}
	case mptcp.RemoveAddress:
		for i := range c.announcements {
			if a := &c.announcements[i]; r.ID != 0 && a.id == r.ID {
				a.announced, a.since = true, m.now
				m.schedule(c, i, at)
			}
		}
	case mptcp.DestroySubflow:
		if s != nil && s.peer >= 0 {
			s.closing = false
			m.schedule(c, s.peer, at)
		}
	case mptcp.SetBackup:
		if s != nil {
			s.uncertain = true
			m.schedule(c, s.peer, at)
		}
	}
}
