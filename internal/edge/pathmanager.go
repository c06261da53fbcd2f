package edge

import (
	"container/heap"
	"errors"
	"hash/fnv"
	"net/netip"
	"slices"
	"time"

	"github.com/gaissmai/bart"

	"github.com/tabane/tabane/internal/mptcp"
)

const (
	// removeHold lies between withdrawing an address and announcing it again: a client that finds both at once takes up
	// the announcement first, sees a subflow to the address, and then closes that.
	removeHold = 50 * time.Millisecond
	// answerWait is how long an address that the client has used before stays announced without a subflow until the client
	// is told of it afresh, the first time; it doubles up to answerMost, and after answerTries in vain the client is taken
	// for one that does not want it any more.
	answerWait  = time.Second
	answerMost  = time.Minute
	answerTries = 10
	// repeatAfter is how long an address that the client has not used yet stays announced without a subflow until it is
	// announced again, the first time; it doubles, and after repeatTries the kernel's own repetitions have to do. An
	// announcement is easily lost in the very moment in which it is made: a provider may have told its neighbors of a route
	// before its own hardware forwards, and the best path, which carries the announcement, has moved there already.
	repeatAfter = 50 * time.Millisecond
	repeatTries = 3
	// probation is how long an address is not announced after its path swallowed what was sent, the first time; it doubles
	// up to probationMost, and what lasted for probationOver starts anew.
	probation     = time.Second
	probationMost = time.Minute
	probationOver = 30 * time.Second
	// retryAfter is when a request that the kernel refused for reasons of its own is made again.
	retryAfter = 200 * time.Millisecond
)

// routeState is what an egress peer offers for a client.
type routeState uint8

const (
	routeAbsent routeState = iota
	// routeDraining still works but will go: nothing new is to start on it.
	routeDraining
	routePresent
)

// pathManager decides which client hears of which EPE address, and what becomes of the subflows to them. It is fed with
// events, routes and the passing of time, and leaves what to ask of the kernel in requests; it opens nothing itself.
//
// The first subflow of a connection is the client's choice. On the default address it follows BGP's best path, and stays, as a
// backup where the others reach all that it can, see spare; on an EPE address it is like any other there. The last subflow of a
// connection always stays.
type pathManager struct {
	peers []*pathPeer
	// sharing: the subflow on the default address takes its share always.
	sharing   bool
	byAddress map[netip.Addr]int
	conns     map[uint32]*connection
	// clients finds the connections that a route concerns.
	clients  bart.Table[map[*connection]bool]
	timers   timers
	now      time.Time
	requests []mptcp.Request
	subflows int
	counts   PathCounts
	// parked are the connections with parked subflows.
	parked map[*connection]bool
	// settled: all routes are known, so that an address without one has to go. Before, a restarted daemon takes nothing
	// from clients but what was withdrawn before its eyes.
	settled bool
}

// pathPeer is an egress peer as path manager sees it.
type pathPeer struct {
	address netip.Addr
	id      uint8
	backup  bool
	routes  bart.Table[routeState]
}

// connection is one client's. What is offered to it has the peers' indices.
type connection struct {
	token    uint32
	client   netip.Addr
	subflows []*subflow
	offers   []offer
}

// subflow is one of a connection's; peer is -1 on the default address.
type subflow struct {
	local, remote netip.AddrPort
	peer          int
	first         bool
	backup        bool // asked for by us
	unsure        bool // whether the kernel took that
	suspect       bool // swallows what is sent
	dying         bool // asked to be closed
	// drained: as of the last look it was a backup with nothing left to deliver.
	drained bool
	// parked: its route has gone, and it stays as a backup that nobody uses until it can be closed without harm.
	parked bool
	queued uint32    // bytes left to deliver, as of the last look
	looked time.Time // when that was
	aside  time.Time // a backup until then, and until it has nothing to deliver
	since  time.Time
}

// offer is one EPE address towards one connection.
type offer struct {
	id        uint8 // on this connection; the kernel may have chosen another than the peer's
	announced bool
	unsure    bool      // not known to be announced, but may be
	since     time.Time // announced, or without subflow since
	served    bool      // the client has had a subflow to it, or may have had
	unheard   int       // announcements without answer, in a row
	strikes   int       // alarms in a row
	quiet     time.Time // not announced before
	wakes     time.Time // decided again at the latest
}

// PathCounts says what a path manager did.
type PathCounts struct {
	// Announced, Removed and Destroyed count addresses announced and withdrawn and subflows closed, Backup priorities
	// changed.
	Announced uint64 `json:"announced"`
	Removed   uint64 `json:"removed"`
	Destroyed uint64 `json:"destroyed"`
	Backup    uint64 `json:"backup"`
	// Alarms counts subflows that swallowed what was sent while others of the connection went on.
	Alarms uint64 `json:"alarms"`
	// Unknown counts requests for what had gone meanwhile, Failed those that the kernel refused otherwise; these are made
	// again.
	Unknown uint64 `json:"unknown"`
	Failed  uint64 `json:"failed"`
	// Overruns counts losses of kernel events, each followed by reading all connections anew.
	Overruns uint64 `json:"overruns"`
}

// newPathManager manages the peers' addresses. Connections keep no subflow to those that are retired: EPE addresses of
// a former configuration.
func newPathManager(peers []Peer, retired []netip.Addr) *pathManager {
	m := &pathManager{byAddress: map[netip.Addr]int{}, conns: map[uint32]*connection{}, parked: map[*connection]bool{}}
	used := map[uint8]bool{0: true}
	add := func(address netip.Addr, backup bool) {
		m.byAddress[address] = len(m.peers)
		m.peers = append(m.peers, &pathPeer{address: address, id: addressID(address, used), backup: backup})
	}
	for _, p := range peers {
		add(p.Address, p.Backup)
	}
	for _, a := range retired {
		if _, ok := m.byAddress[a]; !ok {
			add(a, false)
		}
	}
	return m
}

// addressID derives an address's ID from the address, so that a restarted daemon announces it under the same one.
func addressID(a netip.Addr, used map[uint8]bool) uint8 {
	h := fnv.New32a()
	b := a.As16()
	_, _ = h.Write(b[:])
	id := uint8(h.Sum32())
	for used[id] {
		id++
	}
	used[id] = true
	return id
}

// take returns the requests that came up, and forgets them.
func (m *pathManager) take() []mptcp.Request {
	r := m.requests
	m.requests = nil
	return r
}

func (m *pathManager) ask(r mptcp.Request) { m.requests = append(m.requests, r) }

// event takes what happened to a connection.
func (m *pathManager) event(now time.Time, e mptcp.Event) {
	m.now = now
	switch e := e.(type) {
	case mptcp.Established:
		if e.ServerSide {
			c := m.connection(e.Token, e.Remote.Addr())
			m.add(c, e.Local, e.Remote).first = true
			m.settleAll(c)
		}
	case mptcp.SubEstablished:
		m.joined(e)
	case mptcp.SubClosed:
		if c := m.conns[e.Token]; c != nil {
			m.closed(c, e.Local, e.Remote)
		}
	case mptcp.Closed:
		if c := m.conns[e.Token]; c != nil {
			m.forget(c)
		}
	}
}

func (m *pathManager) joined(e mptcp.SubEstablished) {
	peer, ours := m.byAddress[e.Local.Addr()]
	c := m.conns[e.Token]
	if c == nil {
		// One whose beginning was not seen, such as when its first subflow had ended before the daemon started.
		if !ours {
			return
		}
		c = m.connection(e.Token, e.Remote.Addr())
	}
	m.add(c, e.Local, e.Remote)
	if ours {
		c.offers[peer].taken(e.LocalID)
		m.wake(c, -1, m.now.Add(warmUp))
	}
	// All of them: the connection may have waited for another subflow to give up one whose route has gone.
	m.settleAll(c)
}

// taken notes that the client has a subflow to the address. Whatever path it came over, it works.
func (o *offer) taken(id uint8) {
	if id != 0 {
		o.id = id
	}
	o.announced, o.served, o.unheard, o.quiet = true, true, 0, time.Time{}
}

func (m *pathManager) connection(token uint32, client netip.Addr) *connection {
	if c := m.conns[token]; c != nil {
		return c
	}
	c := &connection{token: token, client: client, offers: make([]offer, len(m.peers))}
	for i := range c.offers {
		c.offers[i].id = m.peers[i].id
	}
	m.conns[token] = c
	m.clients.Modify(host(client), func(same map[*connection]bool, ok bool) (map[*connection]bool, bool) {
		if !ok {
			same = map[*connection]bool{}
		}
		same[c] = true
		return same, false
	})
	return c
}

func (m *pathManager) forget(c *connection) {
	delete(m.conns, c.token)
	delete(m.parked, c)
	m.subflows -= len(c.subflows)
	m.clients.Modify(host(c.client), func(same map[*connection]bool, _ bool) (map[*connection]bool, bool) {
		delete(same, c)
		return same, len(same) == 0
	})
}

func (c *connection) find(local, remote netip.AddrPort) *subflow {
	for _, s := range c.subflows {
		if s.local == local && s.remote == remote {
			return s
		}
	}
	return nil
}

func (m *pathManager) add(c *connection, local, remote netip.AddrPort) *subflow {
	if s := c.find(local, remote); s != nil {
		return s
	}
	s := &subflow{local: local, remote: remote, peer: -1, since: m.now}
	if i, ok := m.byAddress[local.Addr()]; ok {
		s.peer = i
	}
	c.subflows = append(c.subflows, s)
	m.subflows++
	return s
}

// closed takes note that a subflow has ended. One that the client closed, and whose route is there, is offered again
// after a while, unless the whole connection ends.
func (m *pathManager) closed(c *connection, local, remote netip.AddrPort) {
	for i, s := range c.subflows {
		if s.local != local || s.remote != remote {
			continue
		}
		c.subflows = append(c.subflows[:i], c.subflows[i+1:]...)
		m.subflows--
		if s.peer >= 0 && (c.offers[s.peer].announced || c.offers[s.peer].unsure) {
			c.offers[s.peer].since = m.now
			m.wake(c, s.peer, m.now.Add(c.offers[s.peer].patience()))
		}
		return
	}
}

// choices are the subflows of connections that have several.
func (m *pathManager) choices() []mptcp.Ends {
	var all []mptcp.Ends
	for _, c := range m.conns {
		if len(c.subflows) < 2 {
			continue
		}
		for _, s := range c.subflows {
			all = append(all, mptcp.Ends{Local: s.local, Remote: s.remote})
		}
	}
	return all
}

// route takes what a peer offers for a prefix.
func (m *pathManager) route(now time.Time, peer int, prefix netip.Prefix, state routeState) {
	m.now = now
	p := m.peers[peer]
	if state == routeAbsent {
		p.routes.Delete(prefix)
	} else {
		p.routes.Insert(prefix, state)
	}
	for _, same := range m.clients.Subnets(prefix) {
		for c := range same {
			if p.state(c.client) == routeAbsent {
				m.retire(c, peer)
			} else {
				m.settle(c, peer)
			}
			m.prioritizeDefault(c)
		}
	}
}

func (p *pathPeer) state(client netip.Addr) routeState {
	state, _ := p.routes.Lookup(client)
	return state
}

// allRoutesKnown has addresses without a route withdrawn from now on.
func (m *pathManager) allRoutesKnown(now time.Time) {
	m.now = now
	if m.settled {
		return
	}
	m.settled = true
	for _, c := range m.conns {
		m.settleAll(c)
	}
}

// leave withdraws everything.
func (m *pathManager) leave(now time.Time) {
	m.now = now
	for _, c := range m.conns {
		for i := range m.peers {
			m.withdraw(c, i)
		}
	}
}

func (m *pathManager) settleAll(c *connection) {
	for i := range m.peers {
		m.settle(c, i)
	}
	for _, s := range c.subflows {
		m.prioritize(c, s)
	}
}

// settle brings what is offered to a connection in line with the peer's routes.
func (m *pathManager) settle(c *connection, peer int) {
	p, o := m.peers[peer], &c.offers[peer]
	state := p.state(c.client)
	if state == routeAbsent {
		if m.settled {
			m.retire(c, peer)
		}
		return
	}
	live := false
	for _, s := range c.subflows {
		if s.peer == peer && !s.dying {
			live, s.parked = true, false
			m.prioritize(c, s)
		}
	}
	switch {
	case live || state == routeDraining:
	case o.announced && !o.served:
		m.repeat(c, peer)
	case o.announced && o.unheard >= answerTries:
	case o.announced && m.now.Before(o.since.Add(o.patience())):
		m.wake(c, peer, o.since.Add(o.patience()))
	case o.announced:
		// The client did not hear that its last subflow is closed, and so finds the address in use; or it did not hear of
		// the address.
		o.unheard++
		m.remove(c, o)
		m.wake(c, peer, o.quiet)
	case m.now.Before(o.quiet):
		m.wake(c, peer, o.quiet)
	default:
		m.ask(mptcp.Announce{Token: c.token, ID: o.id, Address: p.address})
		o.served = o.served || o.unsure
		o.announced, o.unsure, o.since = true, false, m.now
		if o.served {
			m.wake(c, peer, m.now.Add(o.patience()))
		} else {
			o.unheard = 0
			m.repeat(c, peer)
		}
	}
}

// repeat announces an address again that the client may not have heard of.
func (m *pathManager) repeat(c *connection, peer int) {
	o := &c.offers[peer]
	if o.unheard >= repeatTries {
		return
	}
	at := o.since.Add(backoff(repeatAfter, answerMost, o.unheard))
	if m.now.Before(at) {
		m.wake(c, peer, at)
		return
	}
	o.unheard++
	o.since = m.now
	m.ask(mptcp.Announce{Token: c.token, ID: o.id, Address: m.peers[peer].address})
	m.repeat(c, peer)
}

// patience is how long an announcement may stay without answer.
func (o *offer) patience() time.Duration { return backoff(answerWait, answerMost, o.unheard) }

func backoff(first, most time.Duration, n int) time.Duration {
	return min(most, first<<min(n, 16))
}

// prioritize makes a subflow's priority what it should be.
func (m *pathManager) prioritize(c *connection, s *subflow) {
	backup := s.suspect || s.parked
	if s.peer >= 0 {
		p := m.peers[s.peer]
		backup = backup || p.backup || p.state(c.client) == routeDraining
	} else {
		backup = backup || m.stillAside(c, s) || m.spare(c, s)
	}
	if s.dying || backup == s.backup && !s.unsure {
		return
	}
	s.backup, s.unsure, s.drained = backup, false, false
	m.ask(mptcp.SetBackup{Token: c.token, Local: s.local, Remote: s.remote, Backup: backup})
}

func (m *pathManager) remove(c *connection, o *offer) {
	m.ask(mptcp.RemoveAddress{Token: c.token, ID: o.id})
	o.served = o.served || o.unsure
	o.announced, o.unsure = false, false
	o.quiet = m.now.Add(removeHold)
}

// on returns the subflows that a connection has to a peer, and whether it has others to go on with.
func (c *connection) on(peer int) (here []*subflow, elsewhere bool) {
	for _, s := range c.subflows {
		switch {
		case s.dying:
		case s.peer == peer:
			here = append(here, s)
		case !s.parked:
			elsewhere = true
		}
	}
	return here, elsewhere
}

// withdraw takes an address and its subflows from a connection, unless they are all that it has: without any it would end.
// The address goes first: destroying a subflow makes the kernel forget it.
func (m *pathManager) withdraw(c *connection, peer int) {
	o := &c.offers[peer]
	here, elsewhere := c.on(peer)
	if len(here) > 0 && !elsewhere {
		return
	}
	joined := false
	for _, s := range here {
		joined = joined || !s.first
	}
	if o.announced || o.unsure || joined {
		m.remove(c, o)
	}
	for _, s := range here {
		if s.first {
			m.ask(mptcp.RemoveAddress{Token: c.token})
		}
		s.dying = true
		m.ask(mptcp.DestroySubflow{Token: c.token, Local: s.local, Remote: s.remote})
	}
}

// alarm takes subflows of a connection that swallow what is sent, while others go on. Those to EPE addresses are
// destroyed, which makes the kernel send again on the others what all of them swallowed, and not offered for a while. The
// first one becomes a backup until it moves again. Where it is the only one, a subflow that is idle is destroyed in its
// place and offered again at once: nothing else makes the kernel send again soon.
func (m *pathManager) alarm(now time.Time, token uint32, stalled, idle []mptcp.Ends) {
	m.now = now
	c := m.conns[token]
	if c == nil {
		return
	}
	var peers []int
	suspects := 0
	// The backup flags come first, so that nothing is sent again on a subflow that swallows it.
	for _, ends := range stalled {
		s := c.find(ends.Local, ends.Remote)
		if s == nil || s.dying || s.suspect {
			continue
		}
		m.counts.Alarms++
		if s.peer < 0 || s.first {
			s.suspect = true
			suspects++
			m.prioritize(c, s)
			continue
		}
		if slices.Contains(peers, s.peer) {
			continue
		}
		peers = append(peers, s.peer)
		if now.Sub(s.since) > probationOver {
			c.offers[s.peer].strikes = 0
		}
	}
	for _, peer := range peers {
		o := &c.offers[peer]
		m.withdraw(c, peer)
		o.quiet = now.Add(backoff(probation, probationMost, o.strikes))
		o.strikes++
		m.wake(c, peer, o.quiet)
	}
	if suspects == 0 && len(peers) == 0 {
		return
	}
	// What is parked is a backup like the suspects, and would be used beside them.
	parked := m.parked[c]
	m.unpark(c, func(*subflow) bool { return true })
	if len(peers) == 0 && !parked {
		m.sacrifice(c, idle)
	}
}

// sacrifice destroys one of the idle subflows, if there is any to an EPE address.
func (m *pathManager) sacrifice(c *connection, idle []mptcp.Ends) {
	for _, ends := range idle {
		s := c.find(ends.Local, ends.Remote)
		if s == nil || s.dying || s.first || s.peer < 0 {
			continue
		}
		m.withdraw(c, s.peer)
		m.wake(c, s.peer, c.offers[s.peer].quiet)
		return
	}
}

// moved takes subflows that were stalled and move again. A path is back, perhaps that of addresses on probation too.
func (m *pathManager) moved(now time.Time, token uint32, ends mptcp.Ends) {
	m.now = now
	c := m.conns[token]
	if c == nil {
		return
	}
	s := c.find(ends.Local, ends.Remote)
	if s == nil || !s.suspect {
		return
	}
	s.suspect = false
	m.prioritize(c, s)
	for i := range c.offers {
		if o := &c.offers[i]; o.strikes > 0 {
			o.quiet, o.unheard = m.now, 0
			m.settle(c, i)
		}
	}
}

// resync takes the subflows that there are. Connections without any are gone; those that were not known are managed
// from now on.
func (m *pathManager) resync(now time.Time, all []mptcp.Subflow) {
	m.now = now
	byToken := map[uint32][]mptcp.Subflow{}
	for _, s := range all {
		byToken[s.Token] = append(byToken[s.Token], s)
	}
	for token, c := range m.conns {
		if byToken[token] == nil {
			m.forget(c)
		}
	}
	for token, list := range byToken {
		if c := m.conns[token]; c == nil && !m.isServer(list) {
			continue
		}
		known := m.conns[token] != nil
		c := m.connection(token, list[0].Remote.Addr())
		for i := range c.offers {
			c.offers[i].unsure = c.offers[i].unsure || !known
		}
		m.resyncOne(c, list)
		m.settleAll(c)
	}
}

// isServer says whether a connection is one that a client opened to an address of ours.
func (m *pathManager) isServer(list []mptcp.Subflow) bool {
	for _, s := range list {
		if s.Active {
			return false
		}
	}
	return true
}

func (m *pathManager) resyncOne(c *connection, list []mptcp.Subflow) {
	there := map[mptcp.Ends]bool{}
	for _, s := range list {
		there[mptcp.Ends{Local: s.Local, Remote: s.Remote}] = true
		own := c.find(s.Local, s.Remote)
		if own == nil {
			own = m.add(c, s.Local, s.Remote)
			own.since = time.Time{} // nobody saw when, so long ago
		}
		own.first, own.backup, own.unsure = !s.Joined, s.BackupHere, false
		if own.peer >= 0 && s.Joined && !own.dying {
			c.offers[own.peer].taken(s.LocalID)
		}
	}
	for i := len(c.subflows) - 1; i >= 0; i-- {
		if s := c.subflows[i]; !there[mptcp.Ends{Local: s.local, Remote: s.remote}] {
			m.closed(c, s.local, s.remote)
		}
	}
	for i := range c.offers {
		// A subflow may have come and gone unseen.
		if o := &c.offers[i]; o.announced && !o.served {
			o.served = true
			m.wake(c, i, m.now.Add(o.patience()))
		}
	}
}

// done takes the kernel's answer to a request.
func (m *pathManager) done(now time.Time, r mptcp.Request, err error) {
	m.now = now
	switch {
	case err == nil:
		switch r.(type) {
		case mptcp.Announce:
			m.counts.Announced++
		case mptcp.RemoveAddress:
			m.counts.Removed++
		case mptcp.DestroySubflow:
			m.counts.Destroyed++
		case mptcp.SetBackup:
			m.counts.Backup++
		}
	case errors.Is(err, mptcp.ErrUnknownConnection):
		m.counts.Unknown++
		if c := m.conns[token(r)]; c != nil {
			m.forget(c)
		}
	case errors.Is(err, mptcp.ErrUnknownSubflow):
		m.counts.Unknown++
		local, remote := ends(r)
		if c := m.conns[token(r)]; c != nil {
			m.closed(c, local, remote)
		}
	case errors.Is(err, mptcp.ErrUnknownAddress):
		m.counts.Unknown++
	default:
		m.counts.Failed++
		m.undo(r)
	}
}

// undo takes back what a refused request would have changed, and has it decided again.
func (m *pathManager) undo(r mptcp.Request) {
	c := m.conns[token(r)]
	if c == nil {
		return
	}
	again := m.now.Add(retryAfter)
	local, remote := ends(r)
	s := c.find(local, remote)
	switch r := r.(type) {
	case mptcp.Announce:
		if i, ok := m.byAddress[r.Address]; ok {
			// A removal before it may have been refused too.
			c.offers[i].announced, c.offers[i].unsure, c.offers[i].quiet = false, true, again
			m.wake(c, i, again)
		}
	case mptcp.RemoveAddress:
		for i := range c.offers {
			if o := &c.offers[i]; r.ID != 0 && o.id == r.ID {
				o.announced, o.since = true, m.now
				m.wake(c, i, again)
			}
		}
	case mptcp.DestroySubflow:
		if s != nil && s.peer >= 0 {
			s.dying = false
			m.wake(c, s.peer, again)
		}
	case mptcp.SetBackup:
		if s != nil {
			s.unsure = true
			m.wake(c, s.peer, again)
		}
	}
}

func token(r mptcp.Request) uint32 {
	switch r := r.(type) {
	case mptcp.Announce:
		return r.Token
	case mptcp.RemoveAddress:
		return r.Token
	case mptcp.DestroySubflow:
		return r.Token
	case mptcp.SetBackup:
		return r.Token
	}
	return 0
}

func ends(r mptcp.Request) (local, remote netip.AddrPort) {
	switch r := r.(type) {
	case mptcp.DestroySubflow:
		return r.Local, r.Remote
	case mptcp.SetBackup:
		return r.Local, r.Remote
	}
	return netip.AddrPort{}, netip.AddrPort{}
}

// timer has an offer decided again; peer is -1 for the priorities of the connection's subflows.
type timer struct {
	at    time.Time
	token uint32
	peer  int
}

type timers []timer

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].at.Before(t[j].at) }
func (t timers) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *timers) Push(x any)        { *t = append(*t, x.(timer)) }
func (t *timers) Pop() any {
	last := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	return last
}

func (m *pathManager) wake(c *connection, peer int, at time.Time) {
	if peer >= 0 {
		o := &c.offers[peer]
		if !o.wakes.IsZero() && !o.wakes.After(at) {
			return // and again then, if need be
		}
		o.wakes = at
	}
	heap.Push(&m.timers, timer{at, c.token, peer})
}

// next is when tick has something to do; false when it has not.
func (m *pathManager) next() (time.Time, bool) {
	if len(m.timers) == 0 {
		return time.Time{}, false
	}
	return m.timers[0].at, true
}

// tick decides what is due.
func (m *pathManager) tick(now time.Time) {
	m.now = now
	for len(m.timers) > 0 && !m.timers[0].at.After(now) {
		t := heap.Pop(&m.timers).(timer)
		c := m.conns[t.token]
		switch {
		case c == nil:
		case t.peer >= 0:
			if o := &c.offers[t.peer]; o.wakes.Equal(t.at) {
				o.wakes = time.Time{}
			}
			m.settle(c, t.peer)
			m.prioritizeDefault(c)
		default:
			m.settleAll(c)
		}
	}
}
