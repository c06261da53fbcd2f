package pathmanager

import (
	"container/heap"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/gaissmai/bart"

	"github.com/tabane/tabane/internal/epe/selection"
	"github.com/tabane/tabane/internal/mptcp"
)

// retryAfter is the delay of the next reconciliation after the kernel rejected a request.
const retryAfter = 200 * time.Millisecond

// RouteState is the state of an egress peer's route to a prefix.
type RouteState uint8

// The states of a route.
const (
	RouteAbsent RouteState = iota
	// RouteDraining still forwards but is about to be withdrawn (RFC 8326): existing subflows
	// become backups, and the address is not announced to other clients.
	RouteDraining
	RoutePresent
)

// Route is an egress peer's route to a prefix. LocalPref, PathLength, the length of its AS path,
// and Origin, the value of ORIGIN, rank the peers for a client that more of them reach than a
// connection has slots.
type Route struct {
	LocalPref  uint32
	PathLength uint16
	Origin     uint8
	State      RouteState
}

// machine is the state machine of the path manager: its inputs are events, routes, samples and
// time, its outputs are requests to the kernel. It does no I/O and is not safe for concurrent use.
//
// The client chooses the initial subflow. On the default address it follows BGP's best path and is
// kept, as a backup once the others cover all egress peers (see connection.defaultRedundant); on an
// EPE address it is treated as any other subflow on that address. The last subflow of a connection
// is never closed.
type machine struct {
	peers []*peer
	// shareDefault disables making the subflow on the default address a backup when it is
	// redundant.
	shareDefault bool
	// overflow makes all paths of a connection but the first backups until that is saturated,
	// unless a rule has another policy. memory is what connections learned of paths.
	overflow bool
	rules    []*rule
	// noChoice is why the paths of connections cannot be chosen, "" if they can.
	noChoice string
	// inCgroup reports whether a cgroup has that path or is beneath it.
	inCgroup func(cgroup uint64, path string) bool
	// source returns what the application has written to a connection, false if that is not known.
	source func(token uint32) (selection.Source, bool)
	// epoch is when the first connection became known; sampleSoon is set when one was added whose
	// first sample decides on its rule, or when a subflow joined one whose paths are chosen.
	epoch      time.Time
	sampleSoon bool
	memory     *selection.Memory
	broken     []broken // not logged yet
	added      uint64   // subflows
	byAddress  map[netip.Addr]int
	conns      map[uint32]*connection
	// clients indexes the connections by client address, to find those that a route covers.
	clients   bart.Table[map[*connection]bool]
	timers    timers
	scheduled uint64
	now       time.Time
	requests  []mptcp.Request
	subflows  int
	counts    Counts
	// parked are the connections with parked subflows.
	parked   map[*connection]bool
	lastDump dump
	// watched are the connections whose subflows are sampled.
	watched map[*connection]bool
	// young are the connections that are not worth announcements yet, and when each is looked at
	// next.
	young map[*connection]time.Time
	// sharers counts the subflows that saturated each path in the last samples.
	sharers map[pathKey]int
	// complete is set once all routes are known; then an address without a route is withdrawn.
	// Before that, after a restart, an address is withdrawn only when its route is withdrawn.
	complete bool
}

// peer is an egress peer with its EPE address and its routes.
type peer struct {
	address netip.Addr
	id      uint8
	backup  bool
	routes  bart.Table[Route]
}

func (p *peer) route(client netip.Addr) Route {
	r, _ := p.routes.Lookup(client)
	return r
}

func (p *peer) state(client netip.Addr) RouteState { return p.route(client).State }

// newMachine returns a machine for the peers. Subflows on retired addresses, those of peers that
// are no longer configured, are closed.
func newMachine(peers []Peer, retired []netip.Addr) *machine {
	m := &machine{
		byAddress: map[netip.Addr]int{}, conns: map[uint32]*connection{}, parked: map[*connection]bool{}, watched: map[*connection]bool{},
		young: map[*connection]time.Time{}, sharers: map[pathKey]int{},
		memory: &selection.Memory{}, inCgroup: func(uint64, string) bool { return false },
		source: func(uint32) (selection.Source, bool) { return selection.Source{}, false },
	}
	for _, p := range peers {
		m.addPeer(p)
	}
	for _, a := range retired {
		if _, ok := m.byAddress[a]; !ok {
			m.addPeer(Peer{Address: a})
		}
	}
	return m
}

// addPeer adds a peer without routes, or sets the priority of the one with that address.
func (m *machine) addPeer(p Peer) {
	if i, known := m.byAddress[p.Address]; known {
		m.peers[i].backup = p.Backup
		return
	}
	used := map[uint8]bool{0: true}
	for _, other := range m.peers {
		used[other.id] = true
	}
	added := &peer{address: p.Address, id: addressID(p.Address, used), backup: p.Backup}
	m.byAddress[p.Address] = len(m.peers)
	m.peers = append(m.peers, added)
	for _, c := range m.conns {
		c.announcements = append(c.announcements, announcement{id: added.id})
		for _, s := range c.subflows {
			if s.local.Addr() == p.Address {
				s.peer = len(m.peers) - 1
			}
		}
	}
}

// removePeer withdraws the address of a peer from all connections and removes its routes.
func (m *machine) removePeer(now time.Time, peer int) {
	m.now = now
	m.peers[peer].routes = bart.Table[Route]{}
	for _, c := range m.conns {
		c.withdraw(peer)
		c.setDefaultPriority()
	}
}

// addressID derives the address ID (RFC 8684 section 3.4.1) from the address, so that it is the
// same after a restart.
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

// takeRequests returns the pending requests and clears them.
func (m *machine) takeRequests() []mptcp.Request {
	r := m.requests
	m.requests = nil
	return r
}

func (m *machine) request(r mptcp.Request) { m.requests = append(m.requests, r) }

// event applies an event of the kernel.
func (m *machine) event(now time.Time, e mptcp.Event) {
	m.now = now
	switch e := e.(type) {
	case mptcp.Established:
		if e.ServerSide {
			c := m.connection(e.Token, e.Local, e.Remote)
			c.add(e.Local, e.Remote).initial = true
			c.awaitWorth()
			c.reconcileAll()
		}
	case mptcp.SubEstablished:
		m.subflowEstablished(e)
	case mptcp.SubClosed:
		if c := m.conns[e.Token]; c != nil {
			c.subflowReset(e)
			c.subflowClosed(e.Local, e.Remote)
		}
	case mptcp.Closed:
		if c := m.conns[e.Token]; c != nil {
			m.remove(c)
		}
	}
}

func (m *machine) subflowEstablished(e mptcp.SubEstablished) {
	i, ours := m.byAddress[e.Local.Addr()]
	c := m.conns[e.Token]
	if c == nil {
		// No event of its establishment was received: the initial subflow was closed before
		// this process started.
		if !ours {
			return
		}
		c = m.connection(e.Token, e.Local, e.Remote)
	}
	s := c.add(e.Local, e.Remote)
	if ours {
		// It was announced as a backup, which not every kernel supports.
		s.backup, s.uncertain = c.chooses(), c.chooses()
		c.announcements[i].joined(e.LocalID)
		m.schedule(c, -1, m.now.Add(warmUp))
	}
	m.sampleSoon = m.sampleSoon || c.chooses()
	// Reconcile all addresses: a subflow without a route may have been kept only because it was
	// the last one.
	c.reconcileAll()
}

// connection returns the connection with the token and adds it if it is unknown.
func (m *machine) connection(token uint32, local, remote netip.AddrPort) *connection {
	if c := m.conns[token]; c != nil {
		return c
	}
	client := remote.Addr()
	c := &connection{machine: m, token: token, client: client, since: m.now, announcements: make([]announcement, len(m.peers))}
	if m.epoch.IsZero() {
		m.epoch = m.now
	}
	c.socket.port = local.Port()
	m.sampleSoon = m.sampleSoon || m.needsSockets()
	c.rule = m.ruleFor(c.socket)
	c.resetChoice()
	for i := range c.announcements {
		c.announcements[i].id = m.peers[i].id
	}
	m.conns[token] = c
	m.clients.Modify(hostPrefix(client), func(same map[*connection]bool, ok bool) (map[*connection]bool, bool) {
		if !ok {
			same = map[*connection]bool{}
		}
		same[c] = true
		return same, false
	})
	return c
}

func (m *machine) remove(c *connection) {
	delete(m.conns, c.token)
	delete(m.parked, c)
	delete(m.watched, c)
	delete(m.young, c)
	m.subflows -= len(c.subflows)
	m.clients.Modify(hostPrefix(c.client), func(same map[*connection]bool, _ bool) (map[*connection]bool, bool) {
		delete(same, c)
		return same, len(same) == 0
	})
}

func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// changeRoute changes a peer's route and returns the connections of the clients for which its state
// changes. The caller passes them to routeChanged.
func (m *machine) changeRoute(now time.Time, peer int, prefix netip.Prefix, r Route) (affected []*connection) {
	m.now = now
	p := m.peers[peer]
	if old, _ := p.routes.Get(prefix); old.State == r.State && r.State != RouteAbsent {
		p.routes.Insert(prefix, r)
		return nil
	}
	if r.State == RouteAbsent {
		p.routes.Delete(prefix)
	} else {
		p.routes.Insert(prefix, r)
	}
	for _, same := range m.clients.Subnets(prefix) {
		affected = slices.AppendSeq(affected, maps.Keys(same))
	}
	return affected
}

// routeChanged applies the changed route of a peer to connections.
func (m *machine) routeChanged(now time.Time, peer int, affected []*connection) {
	m.now = now
	for _, c := range affected {
		if m.peers[peer].state(c.client) == RouteAbsent {
			c.routeLost(peer)
		} else {
			c.reconcile(peer)
		}
		c.setDefaultPriority()
	}
}

// routesComplete withdraws the addresses that have no route, now and from now on.
func (m *machine) routesComplete(now time.Time) {
	m.now = now
	if m.complete {
		return
	}
	m.complete = true
	for _, c := range m.conns {
		c.reconcileAll()
	}
}

// withdrawAll withdraws all addresses from all connections.
func (m *machine) withdrawAll(now time.Time) {
	m.now = now
	for _, c := range m.conns {
		for i := range m.peers {
			c.withdraw(i)
		}
		m.clearBackups(c)
	}
}

// clearBackups clears the backup flag of all subflows of a connection.
func (m *machine) clearBackups(c *connection) {
	for _, s := range c.subflows {
		if s.backup && !s.closing {
			s.backup = false
			m.request(mptcp.SetBackup{Token: c.token, Local: s.local, Remote: s.remote})
		}
	}
}

// stalled applies a stall: the stalled subflows of a connection make no progress while others do.
// Those on EPE addresses are closed, which makes the kernel reinject their data in flight, and
// their addresses are held down. The initial subflow becomes a backup until it makes progress
// again. If it is the only one that stalled, an idle subflow is closed in its place and announced
// again at once, because nothing else makes the kernel reinject soon.
func (m *machine) stalled(now time.Time, token uint32, stalled, idle []mptcp.Ends) {
	m.now = now
	c := m.conns[token]
	if c == nil {
		return
	}
	var peers []int
	backups := 0
	// Backup flags are set first, so that nothing is reinjected on a stalled subflow.
	for _, ends := range stalled {
		s := c.find(ends.Local, ends.Remote)
		if s == nil || s.closing || s.stalled {
			continue
		}
		m.counts.Stalls++
		if !s.initial && s.peer >= 0 && s.last.InFlight > 0 && !s.carried() {
			c.leaveBroken(s, "no answer to data")
		}
		c.rememberStall(s)
		if s.peer < 0 || s.initial {
			s.stalled = true
			m.watched[c] = true
			backups++
			c.setPriority(s)
			continue
		}
		if slices.Contains(peers, s.peer) {
			continue
		}
		peers = append(peers, s.peer)
		if now.Sub(s.since) > holdDownReset {
			c.announcements[s.peer].stalls = 0
		}
	}
	for _, i := range peers {
		c.holdDown(i)
	}
	if backups == 0 && len(peers) == 0 {
		return
	}
	// A parked subflow is a backup too, and would be used beside the stalled ones.
	parked := m.parked[c]
	c.unpark(func(*subflow) bool { return true })
	if len(peers) == 0 && !parked {
		c.closeIdle(idle)
	}
}

// holdDown withdraws a peer's address for a while, each time longer.
func (c *connection) holdDown(peer int) {
	a := &c.announcements[peer]
	c.withdraw(peer)
	a.notBefore = c.machine.now.Add(backoff(holdDown, holdDownMax, a.stalls))
	a.stalls++
	c.machine.schedule(c, peer, a.notBefore)
}

// recovered applies the end of a stall. The hold-down of addresses ends, because their paths may
// work again too.
func (m *machine) recovered(now time.Time, token uint32, ends mptcp.Ends) {
	m.now = now
	c := m.conns[token]
	if c == nil {
		return
	}
	s := c.find(ends.Local, ends.Remote)
	if s == nil || !s.stalled {
		return
	}
	s.stalled = false
	c.setPriority(s)
	c.restartRemovals()
	for i := range c.announcements {
		if a := &c.announcements[i]; a.stalls > 0 {
			a.notBefore, a.unanswered = m.now, 0
			c.reconcile(i)
		}
	}
}

// isServer reports whether all subflows of a connection were opened by the client.
func isServer(list []mptcp.Subflow) bool {
	return !slices.ContainsFunc(list, func(s mptcp.Subflow) bool { return s.Active })
}

// sample applies the sampled state of a subflow.
func (m *machine) sample(now time.Time, sample mptcp.Subflow) {
	c := m.conns[sample.Token]
	if c == nil {
		return
	}
	if s := c.find(sample.Local, sample.Remote); s != nil {
		s.progressed(now, sample)
		s.queued, s.sampled = sample.Queued, now
		s.drained = s.backup && sample.BackupHere && sample.Queued == 0
		m.now = now
		c.sampledSocket(sample.Mark, sample.Cgroup)
	}
}

// done applies the kernel's answer to a request.
func (m *machine) done(now time.Time, r mptcp.Request, err error) {
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
			m.remove(c)
		}
	case errors.Is(err, mptcp.ErrUnknownSubflow):
		m.counts.Unknown++
		local, remote := ends(r)
		if c := m.conns[token(r)]; c != nil {
			c.subflowClosed(local, remote)
		}
	case errors.Is(err, mptcp.ErrUnknownAddress):
		m.counts.Unknown++
	case errors.Is(err, mptcp.ErrAddressTaken):
		// The event of the client's subflow brings the kernel's ID for the address.
		m.counts.Unknown++
		if c := m.conns[token(r)]; c != nil {
			c.undo(r)
		}
	default:
		m.counts.Failed++
		if c := m.conns[token(r)]; c != nil {
			c.undo(r)
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

// timer triggers the reconciliation of an announcement; peer is -1 for the whole connection and the
// priorities of its subflows.
type timer struct {
	at    time.Time
	token uint32
	peer  int
	order uint64 // of scheduling: the best peer is scheduled first
}

type timers []timer

func (t timers) Len() int { return len(t) }
func (t timers) Less(i, j int) bool {
	if t[i].at.Equal(t[j].at) {
		return t[i].order < t[j].order
	}
	return t[i].at.Before(t[j].at)
}
func (t timers) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *timers) Push(x any)   { *t = append(*t, x.(timer)) }
func (t *timers) Pop() any {
	last := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	return last
}

func (m *machine) schedule(c *connection, peer int, at time.Time) {
	if peer >= 0 {
		a := &c.announcements[peer]
		if !a.timer.IsZero() && !a.timer.After(at) {
			return // it schedules the next timer if necessary
		}
		a.timer = at
	}
	m.scheduled++
	heap.Push(&m.timers, timer{at, c.token, peer, m.scheduled})
}

// nextTimer returns when the next timer expires; false when there is none.
func (m *machine) nextTimer() (time.Time, bool) {
	if len(m.timers) == 0 {
		return time.Time{}, false
	}
	return m.timers[0].at, true
}

// runTimers handles the timers that have expired.
func (m *machine) runTimers(now time.Time) {
	m.now = now
	for len(m.timers) > 0 && !m.timers[0].at.After(now) {
		t := heap.Pop(&m.timers).(timer)
		c := m.conns[t.token]
		switch {
		case c == nil:
		case t.peer >= 0:
			if a := &c.announcements[t.peer]; a.timer.Equal(t.at) {
				a.timer = time.Time{}
			}
			c.reconcile(t.peer)
			c.setDefaultPriority()
		default:
			c.reconcileAll()
		}
	}
}

// unjoined counts the connections whose client joined fewer addresses than were announced to it. Of
// these it describes the one with the most, first of those whose subflows this host resets: answer
// is what it answers to a subflow.
func (m *machine) unjoined(now time.Time, answer func(netip.AddrPort) mptcp.Answer) Unjoined {
	m.now = now
	var u Unjoined
	var reset netip.AddrPort // in the connection that is described
	answers := map[netip.AddrPort]mptcp.Answer{}
	for _, c := range m.conns {
		joined, announced := c.addresses()
		if joined == announced {
			continue
		}
		u.Connections++
		var here netip.AddrPort
		for _, at := range c.unjoined() {
			if _, known := answers[at]; !known {
				answers[at] = answer(at)
			}
			if answers[at] != mptcp.JoinAccepted {
				here = at
				break
			}
		}
		if u.Reset && !here.IsValid() || u.Reset == here.IsValid() && announced-joined <= u.Announced-u.Joined {
			continue
		}
		u.Client, u.Joined, u.Announced, reset = c.client, joined, announced, here
		u.Reset = here.IsValid()
	}
	switch {
	case u.Reset:
		text, remedy := answers[reset].Problem(reset)
		u.Meaning = fmt.Sprintf("client has %d of %d addresses: %s; %s", u.Joined, u.Announced, text, remedy)
	case u.Connections > 0:
		u.Meaning = fmt.Sprintf("client took %d of %d addresses; on the client: ip mptcp limits set subflows 8 add_addr_accepted 8", u.Joined, u.Announced)
	}
	return u
}
