package openplane

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/gaissmai/bart"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	program "github.com/tabane/tabane/internal/gateway/openbpf"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/kernel/clock"
	"github.com/tabane/tabane/internal/kernel/contain"
)

// The times of NAT sessions. That of silence is paper C's (section 4).
const (
	natSilence = 3 * time.Minute
	// natForget is when the receiver of a flow ends a session that its sender has not ended.
	natForget = 2 * natSilence
	// natRepeat is when a command without an answer is repeated, natTries how often.
	natRepeat, natTries = 3 * time.Second, 20
	// natConfirm is when NAT is sent again for an open session: the peer may have lost it.
	natConfirm = time.Minute
	// natRefused is how long a refused flow is not asked for again.
	natRefused = time.Minute
	// natScan is the time between two looks at when sessions were used, natRetry between attempts
	// to send what a peer's session had no room for.
	natScan, natRetry = 5 * time.Second, 20 * time.Millisecond
	// natArrived and natWaiting bound the records of a peer that are not taken yet, and those to it
	// that it leaves no room for. Records beyond them are dropped: all but the reset are repeated
	// without an answer.
	natArrived, natWaiting = 1024, 4096
)

// Of the flows that this gateway sends, maxNATSessions have sessions, and of those that peers send:
// the program has room for both.
const maxNATSessions = program.MaxSessions/2 - 1

// natState is that of a session for the sender of its flow.
type natState uint8

const (
	natWanted natState = iota // NAT is sent
	natOpen
	natEnding // FIN is sent
	natDenied
)

// natFlow is a flow without the address of its source, which two sessions may not differ in alone.
// There are many: addresses are in 16 bytes, IPv4 mapped into IPv6.
type natFlow struct {
	destination                 [16]byte
	sourcePort, destinationPort uint16
	protocol                    uint8
	peer                        int16 // that sends it, or program.This
}

func natKey(peer int, f tunnel.Flow) natFlow {
	return natFlow{f.Destination.Addr().As16(), f.Source.Port(), f.Destination.Port(), f.Protocol, int16(peer)}
}

// from returns the flow of a source.
func (k *natFlow) from(source netip.Addr) tunnel.Flow {
	return tunnel.Flow{Protocol: k.protocol, Source: netip.AddrPortFrom(source, k.sourcePort), Destination: netip.AddrPortFrom(k.to(), k.destinationPort)}
}

// to returns the address of the destination.
func (k *natFlow) to() netip.Addr { return netip.AddrFrom16(k.destination).Unmap() }

// natSession is a session.
type natSession struct {
	address [16]byte      // of the host that sends the flow
	since   time.Duration // of the last command, on the clock of nat
	peer    string        // that the flow goes to, or comes from
	state   natState
	tries   uint8
	// evicted: it ends for want of room.
	evicted bool
}

// source returns the address of the host that sends the flow.
func (s *natSession) source() netip.Addr { return netip.AddrFrom16(s.address).Unmap() }

// natHost is a host that sends flows: one behind a peer, or of this gateway.
type natHost struct {
	address [16]byte
	peer    int16 // or program.This
}

func (s natState) String() string {
	return [...]string{natWanted: "wanted", natOpen: "open", natEnding: "ending", natDenied: "denied"}[s]
}

// natKernel is the part of the program that has the sessions.
type natKernel interface {
	SetSession(peer int, f tunnel.Flow, open bool) error
	DeleteSession(peer int, f tunnel.Flow) error
	Sessions(do func(program.Session))
}

// nat agrees with peers on NAT sessions, and has the program translate their flows. Its methods are
// safe for concurrent use.
type nat struct {
	log         *slog.Logger
	kernel      natKernel
	send        func(peer string, r tunnel.NATSession) bool
	maxSessions int // maxNATSessions, fewer in tests
	wake        chan struct{}

	arrivedMu sync.Mutex
	arrived   map[string][]tunnel.NATSession // not yet taken, by peer

	mu    sync.Mutex
	peers map[string]natPeer
	names map[int]string
	lan   []netip.Prefix
	// owners are whose addresses are that flows may come from: those of a peer, by its name, or of
	// nobody.
	owners   *bart.Table[string]
	sessions map[natFlow]*natSession
	// of are the sessions of each peer, so that what a peer does costs nothing for those of others.
	of      map[string]map[natFlow]*natSession
	sending int // sessions of flows that this gateway sends
	// receiving are those of flows that peers send, by peer.
	receiving map[string]int
	hosts     map[natHost]int // sessions of flows that each host sends
	// evicting are those of the last eviction that have not ended, evicted when it was.
	evicting int
	evicted  time.Duration
	waiting  map[string][]tunnel.NATSession
	counted  map[string]*natCounts
	clock    func() time.Duration // monotonic: sessions outlive a step of the wall clock
	leaving  bool                 // no sessions are asked for or granted any more
}

// natPeer is a peer with NAT.
type natPeer struct {
	number   int
	prefixes []netip.Prefix
	allow    []netip.Prefix // destinations that it may reach; none: all of the LAN
	// reset: its sessions were reset, or have been taken over.
	reset bool
}

// natCounts are the counters of a peer.
type natCounts struct{ refused, declined, evicted, full uint64 }

func (n *nat) counts(peer string) *natCounts {
	c := n.counted[peer]
	if c == nil {
		c = &natCounts{}
		n.counted[peer] = c
	}
	return c
}

func newNAT(kernel natKernel, log *slog.Logger) *nat {
	return &nat{
		log: log, kernel: kernel, maxSessions: maxNATSessions, wake: make(chan struct{}, 1), peers: map[string]natPeer{}, names: map[int]string{},
		sessions: map[natFlow]*natSession{}, of: map[string]map[natFlow]*natSession{},
		arrived: map[string][]tunnel.NATSession{}, waiting: map[string][]tunnel.NATSession{}, counted: map[string]*natCounts{}, receiving: map[string]int{}, hosts: map[natHost]int{}, clock: clock.Monotonic,
	}
}

// configure replaces the peers, whose addresses are whose, and the LAN. Sessions that they do not
// permit any more end.
func (n *nat) configure(peers map[string]natPeer, owners *bart.Table[string], lan []netip.Prefix) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	names := map[int]string{}
	for name, p := range peers {
		p.reset = n.peers[name].reset
		peers[name], names[p.number] = p, name
	}
	n.peers, n.names, n.owners, n.lan = peers, names, owners, lan
	gone := func(name string) bool { _, ok := peers[name]; return !ok }
	maps.DeleteFunc(n.waiting, func(name string, _ []tunnel.NATSession) bool { return gone(name) })
	maps.DeleteFunc(n.counted, func(name string, _ *natCounts) bool { return gone(name) })
	var errs []error
	for k, s := range n.sessions {
		p, ok := peers[s.peer]
		if !ok || k.peer != program.This && int(k.peer) != p.number || !n.belongs(s.peer, &p, &k, s.source()) {
			errs = append(errs, n.drop(k))
		}
	}
	return errors.Join(errs...)
}

// belongs reports whether a flow is from the LAN to a peer's prefixes, or the reverse and
// permitted.
func (n *nat) belongs(peer string, p *natPeer, k *natFlow, source netip.Addr) bool {
	to := k.to()
	if k.peer == program.This {
		return within(p.prefixes, to)
	}
	owner, _ := n.owners.Lookup(source)
	return owner == peer && within(n.lan, to) && (len(p.allow) == 0 || within(p.allow, to))
}

func within(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// takeOver keeps the sessions that a previous instance has left. It is called once, after
// configure.
func (n *nat) takeOver() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	left := 0
	n.kernel.Sessions(func(s program.Session) {
		left++
		k := natKey(s.Peer, s.Flow)
		name, ok := n.names[s.Peer]
		if s.Peer == program.This {
			name, ok = n.towards(s.Flow.Destination.Addr())
		}
		p := n.peers[name]
		if !ok || !n.belongs(name, &p, &k, s.Flow.Source.Addr()) || s.Peer == program.This && !s.Open {
			errs = append(errs, n.kernel.DeleteSession(s.Peer, s.Flow))
			return
		}
		n.add(k, &natSession{address: s.Flow.Source.Addr().As16(), peer: name, state: natOpen, since: n.clock()})
	})
	if left > 0 {
		for name, p := range n.peers {
			p.reset = true
			n.peers[name] = p
		}
	}
	return errors.Join(errs...)
}

// towards returns the peer that an address is behind.
func (n *nat) towards(a netip.Addr) (string, bool) {
	for name, p := range n.peers {
		if within(p.prefixes, a) {
			return name, true
		}
	}
	return "", false
}

func (n *nat) add(k natFlow, s *natSession) {
	n.sessions[k] = s
	if n.of[s.peer] == nil {
		n.of[s.peer] = map[natFlow]*natSession{}
	}
	n.of[s.peer][k] = s
	n.hosts[natHost{s.address, k.peer}]++
	if k.peer == program.This {
		n.sending++
	} else {
		n.receiving[s.peer]++
	}
}

// drop forgets a session.
func (n *nat) drop(k natFlow) error {
	s := n.sessions[k]
	if k.peer == program.This {
		n.sending--
	} else if n.receiving[s.peer]--; n.receiving[s.peer] == 0 {
		delete(n.receiving, s.peer)
	}
	if s.evicted {
		n.evicting--
	}
	host := natHost{s.address, k.peer}
	if n.hosts[host]--; n.hosts[host] == 0 {
		delete(n.hosts, host)
	}
	delete(n.sessions, k)
	if delete(n.of[s.peer], k); len(n.of[s.peer]) == 0 {
		delete(n.of, s.peer)
	}
	return n.kernel.DeleteSession(int(k.peer), k.from(s.source()))
}

// up is called when there is a path to a peer, and resets its sessions once: this gateway knows
// none.
func (n *nat) up(peer string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, ok := n.peers[peer]
	if !ok || p.reset {
		return
	}
	p.reset = true
	n.peers[peer] = p
	// Before what has been waiting.
	n.waiting[peer] = slices.Insert(n.waiting[peer], 0, tunnel.NATSession{Command: tunnel.CommandReset})
	n.flush()
}

// leave ends all sessions, at a clean stop: packets of this gateway's flows are left, and peers
// have theirs end, because nobody restores them any more. Those that arrive until then are still
// restored. It reports whether there are peers.
func (n *nat) leave() (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leaving = true
	var errs []error
	for k := range n.sessions {
		if k.peer == program.This {
			errs = append(errs, n.drop(k))
		}
	}
	for peer := range n.peers {
		n.waiting[peer] = []tunnel.NATSession{{Command: tunnel.CommandReset}}
	}
	n.flush()
	return len(n.peers) > 0, errors.Join(errs...)
}

// receive has a record taken by run, because the sealed plane may not wait for this one.
func (n *nat) receive(peer string, r tunnel.NATSession) {
	n.arrivedMu.Lock()
	defer n.arrivedMu.Unlock()
	list := n.arrived[peer]
	if r.Command == tunnel.CommandReset {
		list = list[:0] // it ends what they are about
	}
	if len(list) < natArrived {
		n.arrived[peer] = append(list, r)
	}
	n.kick()
}

// takeArrived takes the records that have arrived.
func (n *nat) takeArrived() {
	n.arrivedMu.Lock()
	arrived := n.arrived
	n.arrived = map[string][]tunnel.NATSession{}
	n.arrivedMu.Unlock()
	for peer, list := range arrived {
		for _, r := range list {
			if err := n.take(peer, r); err != nil {
				n.log.Error("NAT sessions are not up to date", "peer", peer, "err", err)
			}
		}
	}
}

func (n *nat) kick() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// want asks for a session for a flow to a peer.
func (n *nat) want(number int, f tunnel.Flow) {
	n.mu.Lock()
	defer n.mu.Unlock()
	k := natKey(program.This, f)
	name, ok := n.names[number]
	if !ok || n.leaving || n.sessions[k] != nil {
		return
	}
	if n.sending >= n.maxSessions {
		n.evict()
	}
	if n.sending >= n.maxSessions {
		n.counts(name).full++
		return // until the peers have ended those of the eviction
	}
	if err := n.kernel.SetSession(program.This, f, false); err != nil {
		n.log.Error("NAT session is not asked for", "err", err)
		return
	}
	n.add(k, &natSession{address: f.Source.Addr().As16(), peer: name, since: n.clock()})
	n.queue(name, tunnel.CommandNAT, f)
}

// largest returns the host with the most flows of those that a peer or This sends, if those are
// more than a 64th of all: its sessions make room first, so that no host keeps others from theirs.
// Else it returns false.
func (n *nat) largest(peer int) (h natHost, ok bool) {
	most := n.maxSessions / 64
	for other, count := range n.hosts {
		if int(other.peer) == peer && (count > most || ok && count == most && bytes.Compare(other.address[:], h.address[:]) < 0) {
			h, most, ok = other, count, true
		}
	}
	return h, ok
}

// natVictim is a session that may end for want of room.
type natVictim struct {
	key  natFlow
	idle time.Duration
}

// victims returns a 64th of all sessions, at most most: of those that may end, the ones that have
// been idle for longest.
func (n *nat) victims(most int, may func(natFlow, *natSession) bool) []natVictim {
	most = min(most, max(n.maxSessions/64, 1))
	var list []natVictim
	longest := func(a, b natVictim) int { return cmp.Compare(b.idle, a.idle) }
	n.kernel.Sessions(func(held program.Session) {
		k := natKey(held.Peer, held.Flow)
		if s := n.sessions[k]; s != nil && s.source() == held.Flow.Source.Addr() && may(k, s) {
			if list = append(list, natVictim{k, held.Idle}); len(list) >= 4*most {
				slices.SortFunc(list, longest)
				list = list[:most]
			}
		}
	})
	slices.SortFunc(list, longest)
	return list[:min(len(list), most)]
}

// evict ends a 64th of the sessions, those that have been idle for longest, of the largest host if
// there is one. It reads them all, so it does nothing until those of the last time have ended, or
// their peers have had the time to answer.
func (n *nat) evict() {
	now := n.clock()
	if n.evicting > 0 && now-n.evicted < natRepeat {
		return
	}
	host, one := n.largest(program.This)
	list := n.victims(n.maxSessions, func(k natFlow, s *natSession) bool {
		return k.peer == program.This && s.state != natEnding && (!one || s.address == host.address)
	})
	n.evicted = now
	for i := range list {
		k := list[i].key
		switch s := n.sessions[k]; {
		case s.state != natOpen: // the peer has agreed to nothing
			if err := n.drop(k); err != nil {
				n.log.Error("NAT session does not end", "err", err)
			}
		case n.end(k.from(s.source()), s):
			s.evicted = true
			n.evicting++
			n.counts(s.peer).evicted++
		}
	}
}

// makeRoom ends sessions of flows that peers send, those that have been idle for longest. If the
// peer of a new flow has fewer than its share, they are of the peer that has the most, but not
// below its share. Else they are of the largest host behind the same peer, if the new flow is of
// another one. So neither a peer nor a host keeps the others from theirs.
func (n *nat) makeRoom(peer string, from netip.Addr) error {
	share, largest := n.maxSessions/max(len(n.peers), 1), peer
	for other, count := range n.receiving {
		if count > n.receiving[largest] || count == n.receiving[largest] && other < largest {
			largest = other
		}
	}
	more := n.receiving[largest] - share
	number := n.peers[largest].number
	host, one := natHost{}, false
	if n.receiving[peer] >= share || more <= 0 {
		number, more = n.peers[peer].number, n.maxSessions
		if host, one = n.largest(number); !one || host.address == from.As16() {
			return nil
		}
		largest = peer
	}
	list := n.victims(more, func(k natFlow, s *natSession) bool {
		return int(k.peer) == number && (!one || s.address == host.address)
	})
	var errs []error
	for i := range list {
		k := list[i].key
		n.counts(largest).evicted++
		n.queue(largest, tunnel.CommandRefused, k.from(n.sessions[k].source()))
		errs = append(errs, n.drop(k))
	}
	return errors.Join(errs...)
}

// end has packets of a flow left to the kernel, and asks the peer to end the session. It reports
// whether it could.
func (n *nat) end(f tunnel.Flow, s *natSession) bool {
	if err := n.kernel.SetSession(program.This, f, false); err != nil {
		n.log.Error("NAT session does not end", "err", err)
		return false
	}
	s.state, s.since, s.tries = natEnding, n.clock(), 0
	n.queue(s.peer, tunnel.CommandFIN, f)
	return true
}

// queue adds a command about a flow to what is to be sent.
func (n *nat) queue(peer string, c tunnel.Command, f tunnel.Flow) {
	list := n.waiting[peer]
	if last := len(list) - 1; last >= 0 && list[last].Command == c && len(list[last].Flows) < tunnel.MaxFlows {
		list[last].Flows = append(list[last].Flows, f)
	} else if len(list) >= natWaiting {
		return // whichever end needs it asks again
	} else {
		list = append(list, tunnel.NATSession{Command: c, Flows: []tunnel.Flow{f}})
	}
	n.waiting[peer] = list
	n.kick()
}

// flush sends what waits, as much as there is room for, and reports whether more is left.
func (n *nat) flush() (more bool) {
	for peer, list := range n.waiting {
		for len(list) > 0 && n.send(peer, list[0]) {
			list = list[1:]
		}
		if n.waiting[peer] = list; len(list) == 0 {
			delete(n.waiting, peer)
		}
		more = more || len(list) > 0
	}
	return more
}

// take applies a record of a peer.
func (n *nat) take(peer string, r tunnel.NATSession) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, ok := n.peers[peer]
	if !ok {
		return nil
	}
	var errs []error
	if r.Command == tunnel.CommandReset {
		for k := range n.of[peer] {
			errs = append(errs, n.drop(k))
		}
		return errors.Join(errs...)
	}
	for _, f := range r.Flows {
		errs = append(errs, n.takeFlow(peer, &p, r.Command, f))
	}
	return errors.Join(errs...)
}

func (n *nat) takeFlow(peer string, p *natPeer, c tunnel.Command, f tunnel.Flow) error {
	switch c {
	case tunnel.CommandNAT:
		return n.wanted(peer, p, f)
	case tunnel.CommandFIN:
		k := natKey(p.number, f)
		n.queue(peer, tunnel.CommandFINOK, f)
		if s := n.sessions[k]; s != nil && s.source() == f.Source.Addr() {
			return n.drop(k)
		}
		return nil
	default:
		return n.answered(peer, c, f)
	}
}

// wanted begins a session that a peer wants, or refuses it.
func (n *nat) wanted(peer string, p *natPeer, f tunnel.Flow) error {
	k := natKey(p.number, f)
	old := n.sessions[k]
	if n.leaving {
		return nil
	}
	refuse := func() {
		n.counts(peer).declined++
		n.queue(peer, tunnel.CommandRefused, f)
	}
	if old != nil && old.source() != f.Source.Addr() || !n.belongs(peer, p, &k, f.Source.Addr()) {
		refuse() // before it ends sessions of others
		return nil
	}
	full := func() bool { return old == nil && len(n.sessions)-n.sending >= n.maxSessions }
	if full() {
		if err := n.makeRoom(peer, f.Source.Addr()); err != nil {
			return err
		}
	}
	if full() {
		n.counts(peer).full++
		refuse()
		return nil
	}
	if err := n.kernel.SetSession(p.number, f, true); err != nil {
		refuse()
		return err
	}
	if old == nil {
		n.add(k, &natSession{address: f.Source.Addr().As16(), peer: peer, state: natOpen, since: n.clock()})
	}
	n.queue(peer, tunnel.CommandOK, f)
	return nil
}

// answered takes what a peer answers to a command of this gateway.
func (n *nat) answered(peer string, c tunnel.Command, f tunnel.Flow) error {
	k := natKey(program.This, f)
	s := n.sessions[k]
	if s == nil || s.peer != peer || s.source() != f.Source.Addr() {
		return nil
	}
	switch {
	case c == tunnel.CommandOK && s.state == natWanted:
		s.state, s.since = natOpen, n.clock()
		return n.kernel.SetSession(program.This, f, true)
	case c == tunnel.CommandFINOK && s.state == natEnding, c == tunnel.CommandRefused && s.state == natOpen:
		return n.drop(k)
	case c == tunnel.CommandRefused && s.state == natWanted:
		n.counts(peer).refused++
		s.state, s.since = natDenied, n.clock()
	}
	return nil
}

// scan ends sessions that are not used, and repeats commands without an answer.
func (n *nat) scan() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	full := map[string]bool{} // peers without a session, or without room
	for peer, list := range n.waiting {
		full[peer] = len(list) > 0
	}
	var errs []error
	n.kernel.Sessions(func(held program.Session) {
		k := natKey(held.Peer, held.Flow)
		if s := n.sessions[k]; s != nil && s.source() == held.Flow.Source.Addr() {
			errs = append(errs, n.examine(k, s, held.Idle, full[s.peer]))
		} // else it has changed meanwhile
	})
	return errors.Join(errs...)
}

// examine ends a session that is not used, and repeats its command without an answer, unless its
// peer has no room.
func (n *nat) examine(k natFlow, s *natSession, idle time.Duration, full bool) error {
	now, f := n.clock(), k.from(s.source())
	switch {
	case k.peer != program.This:
		if idle > natForget {
			n.queue(s.peer, tunnel.CommandRefused, f)
			return n.drop(k)
		}
	case s.state == natOpen:
		if idle > natSilence {
			n.end(f, s)
		} else if now-s.since > natConfirm && !full {
			s.since = now
			n.queue(s.peer, tunnel.CommandNAT, f)
		}
	case s.state == natDenied:
		if now-s.since > natRefused {
			return n.drop(k)
		}
	case now-s.since > natRepeat:
		if s.tries++; s.tries > natTries {
			return n.drop(k)
		}
		if full {
			return nil
		}
		s.since = now
		command := tunnel.CommandNAT
		if s.state == natEnding {
			command = tunnel.CommandFIN
		}
		n.queue(s.peer, command, f)
	}
	return nil
}

// exchange applies what arrived, and sends what is queued; it reports whether there is more than
// room for it.
func (n *nat) exchange() (more bool) {
	n.takeArrived()
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.flush()
}

// run asks for sessions until the context ends.
func (n *nat) run(ctx context.Context, wants interface {
	Next() (int, tunnel.Flow, error)
	Close() error
}) {
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			number, f, err := wants.Next()
			if err != nil {
				return
			}
			_ = contain.Do(contain.GatewayPacket, n.log, nil, func() { n.want(number, f) }) // it is logged
		}
	})
	every := time.NewTicker(natScan)
	defer every.Stop()
	for retry := (<-chan time.Time)(nil); ; {
		select {
		case <-ctx.Done():
			_ = wants.Close()
			reader.Wait()
			return
		case <-n.wake:
		case <-retry:
		case <-every.C:
			_ = contain.Do(contain.GatewayTimer, n.log, nil, func() { // it is logged
				if err := n.scan(); err != nil {
					n.log.Error("NAT sessions are not up to date", "err", err)
				}
			})
		}
		more := false
		if contain.Do(contain.GatewayTimer, n.log, nil, func() { more = n.exchange() }) != nil {
			more = true
		}
		if retry = nil; more {
			retry = time.After(natRetry)
		}
	}
}

// count returns the sessions with each peer.
func (n *nat) count() map[string]dataplane.NATSessions {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := map[string]dataplane.NATSessions{}
	for peer, c := range n.counted {
		all[peer] = dataplane.NATSessions{Refused: c.refused, Declined: c.declined, Evicted: c.evicted, Full: c.full}
	}
	for peer, sessions := range n.of {
		c := all[peer]
		for k, s := range sessions {
			switch {
			case k.peer != program.This:
				c.Receiving++
			case s.state == natOpen:
				c.Sending++
			case s.state == natWanted:
				c.Wanted++
			case s.state == natEnding:
				c.Ending++
			case s.state == natDenied:
				c.Denied++
			}
		}
		all[peer] = c
	}
	return all
}

// list returns the sessions whose last packets are most recent, at most so many, and the number of
// all.
func (n *nat) list(most int) (sessions []dataplane.NATFlow, all int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	recent := func(a, b dataplane.NATFlow) int { return cmp.Compare(a.Idle, b.Idle) }
	n.kernel.Sessions(func(h program.Session) {
		s := n.sessions[natKey(h.Peer, h.Flow)]
		if s == nil || s.source() != h.Flow.Source.Addr() {
			return // it has changed meanwhile
		}
		all++
		sessions = append(sessions, dataplane.NATFlow{Peer: s.peer, Received: h.Peer != program.This, Flow: h.Flow, State: s.state.String(), Idle: h.Idle})
		if len(sessions) >= 4*max(most, 1) {
			slices.SortFunc(sessions, recent)
			sessions = sessions[:most]
		}
	})
	slices.SortFunc(sessions, recent)
	return sessions[:min(len(sessions), most)], all
}
