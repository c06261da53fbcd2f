package bgp

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/tabane/tabane/internal/srv6"
	"github.com/tabane/tabane/internal/vpn"
)

// Event is one of Session, Update, UnicastPath, VPNPath and EndOfRIB.
type Event interface{ event() }

// Session tells that a session came up or went down.
type Session struct {
	Neighbor string
	Up       bool
	Reason   string // why it went down
}

// Attributes of a route that say nothing of where packets go.
type Attributes struct {
	LocalPref   uint32 // 0: not given
	MED         uint32
	HasMED      bool
	ASPath      []uint32 // nearest AS first; AS sets are flattened
	Communities []uint32
}

// Update tells what one neighbor of another AS announces, after the import policy: a new or changed IPv6 unicast
// route, or that it announces the route no more. The end of the session withdraws every route one by one.
type Update struct {
	Neighbor string
	Prefix   netip.Prefix
	NextHop  netip.Addr // with zone when it is link-local
	Attributes
	// Withdrawn: nothing but Neighbor and Prefix has a meaning.
	Withdrawn bool
	// Rejected, a *RejectedError, says why the route cannot be used; it counts as withdrawn then.
	Rejected error
}

// UnicastPath tells that the best path to an IPv6 prefix changed.
type UnicastPath struct {
	Prefix  netip.Prefix
	NextHop netip.Addr // with zone when it is link-local; unspecified for our own routes that have none
	Attributes
	Neighbor string // where it was learned; empty for what this speaker originates
	Local    bool   // this speaker originates it
	// Withdrawn: there is no path any more; nothing but Prefix has a meaning.
	Withdrawn bool
	// Rejected, a *RejectedError, says why the best path cannot be used; it counts as withdrawn then.
	Rejected error
}

// VPNPath tells that the best path to a VPN-IPv6 destination, which is an RD and a prefix, changed.
type VPNPath struct {
	RD      vpn.ID
	Prefix  netip.Prefix
	NextHop netip.Addr
	RTs     []vpn.ID
	// SID is whole, whether or not it traveled transposed (RFC 9252 section 4).
	SID       netip.Addr
	Structure srv6.Structure // all zero when there was none
	Behavior  uint16         // as received; some reflectors change it, so it decides nothing
	Attributes
	Neighbor string // where it was learned; empty for what this speaker originates
	Local    bool   // this speaker originates it
	// Withdrawn: there is no path any more; nothing but RD and Prefix has a meaning.
	Withdrawn bool
	// Rejected, a *RejectedError, says why the best path cannot be used; it counts as withdrawn then.
	Rejected error
}

// EndOfRIB tells that the neighbor has sent all it had at the start of the session. It is sent by
// neighbors of our own AS that know RFC 4724, which all speakers of this package do. A reflector that has
// itself just started knows less than it will.
type EndOfRIB struct {
	Neighbor string
	Family   Family
}

func (Session) event()     {}
func (Update) event()      {}
func (UnicastPath) event() {}
func (VPNPath) event()     {}
func (EndOfRIB) event()    {}

// queueKey names what only the newest event is worth keeping of: the route of a neighbor, or a best path.
type queueKey struct {
	neighbor string
	best     bool
	rd       vpn.ID
	prefix   netip.Prefix
}

// maxBatch keeps a reader that does one thing per batch responsive.
const maxBatch = 4096

// queue holds events until the reader has time. It never blocks the writer, and it never grows beyond
// twice the number of routes plus the events of sessions.
type queue struct {
	mu      sync.Mutex
	events  []Event // nil: overtaken by a newer event about the same
	newest  map[queueKey]int
	dropped int // nils in events
	wake    chan struct{}
}

func newQueue() *queue {
	return &queue{newest: map[queueKey]int{}, wake: make(chan struct{}, 1)}
}

func (q *queue) put(events ...Event) {
	q.mu.Lock()
	for _, e := range events {
		q.add(e)
	}
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// add appends one event. Callers hold mu.
func (q *queue) add(e Event) {
	var key queueKey
	switch e := e.(type) {
	case Update:
		key = queueKey{neighbor: e.Neighbor, prefix: e.Prefix}
	case UnicastPath:
		key = queueKey{best: true, prefix: e.Prefix}
	case VPNPath:
		key = queueKey{best: true, rd: e.RD, prefix: e.Prefix}
	}
	if key != (queueKey{}) {
		if i, ok := q.newest[key]; ok {
			q.events[i] = nil
			q.dropped++
		}
		q.newest[key] = len(q.events)
	}
	q.events = append(q.events, e)
	if q.dropped > len(q.events)/2 && len(q.events) > maxBatch {
		q.compact()
	}
}

// compact removes the overtaken events.
func (q *queue) compact() {
	moved := make([]int, len(q.events))
	n := 0
	for i, e := range q.events {
		if e != nil {
			q.events[n] = e
			moved[i] = n
			n++
		}
	}
	clear(q.events[n:])
	q.events = q.events[:n]
	for key, i := range q.newest {
		q.newest[key] = moved[i]
	}
	q.dropped = 0
}

// take removes and returns all events in order.
func (q *queue) take() []Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) == 0 {
		return nil
	}
	q.compact()
	events := q.events
	q.events = nil
	q.newest = map[queueKey]int{}
	return events
}

// deliver moves events from the queue to the reader until Stop.
func (s *Speaker) deliver() {
	for {
		select {
		case <-s.queue.wake:
		case <-s.done:
			return
		}
		for events := s.queue.take(); len(events) > 0; {
			n := min(len(events), maxBatch)
			select {
			case s.events <- events[:n:n]:
			case <-s.done:
				return
			}
			events = events[n:]
		}
	}
}

// watch subscribes to the BGP server. One subscription for everything keeps the order of the events.
func (s *Speaker) watch() error {
	ctx, cancel := context.WithCancel(context.Background())
	opts := []server.WatchOption{server.WatchPeer(), server.WatchEor(false), server.WatchAdjInWithdraw()}
	onUpdate := s.onUpdate
	if s.opt.Report&ReportAdjIn != 0 {
		// After the policy there would be an event for each route, which GoBGP makes a copy of its whole configuration of the
		// neighbor for; before it there is one for each message.
		opts = append(opts, server.WatchUpdate(false, "", ""))
	} else {
		onUpdate = s.onDropped
	}
	if s.opt.Report&ReportBest != 0 {
		opts = append(opts, server.WatchBestPath(false))
	}
	err := s.server.WatchEvent(ctx, server.WatchEventMessageCallbacks{
		OnPeerUpdate: s.onPeer,
		OnPathUpdate: onUpdate,
		OnBestPath:   s.onBest,
		OnPathEor:    s.onEndOfRIB,
	}, opts...)
	s.unwatch = cancel
	return err
}

func (s *Speaker) onPeer(e *apiutil.WatchEventMessage_PeerEvent, _ time.Time) {
	if e.Type != apiutil.PEER_EVENT_STATE {
		return
	}
	s.mu.Lock()
	n := s.byAddr[e.Peer.State.NeighborAddress]
	if n == nil {
		s.mu.Unlock()
		return
	}
	state, reason := e.Peer.State.SessionState, e.Peer.State.DisconnectMessage
	// GoBGP gives no reason for the end of a session that we deleted.
	n.idle = state == gobgp.BGP_FSM_IDLE && reason != ""
	idle := n.idle
	var event Event
	switch up := state == gobgp.BGP_FSM_ESTABLISHED; {
	case up && !n.up:
		n.up = true
		event = Session{Neighbor: n.Name, Up: true}
	case !up && n.up:
		n.up = false
		if reason != "" {
			n.reason = explain(reason)
		}
		event = Session{Neighbor: n.Name, Reason: n.reason}
	}
	s.mu.Unlock()
	if event != nil {
		s.retention.event(event)
		if kept := s.retention.stale(n.Name); kept > 0 && state != gobgp.BGP_FSM_ESTABLISHED {
			s.log.Warn("routes are kept although the session is down", "neighbor", n.Name, "routes", kept, "for", n.Retain)
		}
	}
	if idle {
		go s.restartIdle(n)
	}
}

// explain puts GoBGP's reasons for the end of a session into words.
func explain(reason string) string {
	switch reason {
	case "read-failed", "write-failed", "graceful-restart":
		return "connection lost"
	case "hold-timer-expired":
		return "nothing heard within the hold time"
	}
	return reason
}

// learnedFrom finds the neighbor that sent a path, nil for our own paths.
func (s *Speaker) learnedFrom(p *apiutil.Path) *neighbor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byAddr[p.PeerAddress]
}

// onDropped is told of what the BGP server drops because a session ends, before the best paths change.
func (s *Speaker) onDropped(paths []*apiutil.Path, _ time.Time) {
	if len(paths) > 0 {
		if n := s.learnedFrom(paths[0]); n != nil {
			s.retention.ending(n.Name)
		}
	}
}

// onUpdate is told of what one neighbor announced in one message, before the import policy, or of all that the BGP server
// drops because its session ends.
func (s *Speaker) onUpdate(paths []*apiutil.Path, _ time.Time) {
	if len(paths) == 0 {
		return
	}
	n := s.learnedFrom(paths[0])
	if n == nil || n.ASN == s.opt.ASN {
		return
	}
	events := make([]Event, 0, len(paths))
	for _, p := range paths {
		if u, ok := readUnicast(p, n.Interface); ok {
			events = append(events, n.rules.admit(Update{
				Neighbor: n.Name, Prefix: u.Prefix, NextHop: u.NextHop, Attributes: u.Attributes,
				Withdrawn: u.Withdrawn, Rejected: u.Rejected,
			}))
		}
	}
	s.count(n, events)
	s.queue.put(events...)
}

// count keeps the set of what a neighbor announces, and warns when it is large.
func (s *Speaker) count(n *neighbor, updates []Event) {
	s.mu.Lock()
	for _, e := range updates {
		if u, ok := e.(Update); ok && !u.Withdrawn && u.Rejected == nil {
			n.adjIn[u.Prefix] = struct{}{}
		} else if ok {
			delete(n.adjIn, u.Prefix)
		}
	}
	limit := n.Import.WarnPrefixes
	beyond := limit > 0 && len(n.adjIn) > limit
	warn := beyond && !n.warned
	n.warned = beyond
	s.mu.Unlock()
	if warn {
		s.log.Warn("neighbor announces more routes than expected", "neighbor", n.Name, "expected", limit)
	}
}

func (s *Speaker) onBest(paths []*apiutil.Path, _ time.Time) {
	for _, p := range paths {
		if !s.reported(p.Family) {
			continue
		}
		var name, zone string
		if n := s.learnedFrom(p); n != nil {
			name, zone = n.Name, n.Interface
		}
		if u, ok := readUnicast(p, zone); ok {
			u.Neighbor = name
			s.retention.event(u)
		} else if v, ok := readVPN(p); ok {
			v.Neighbor = name
			s.retention.event(v)
		}
	}
}

// reported tells whether somebody wants to know of best paths of a family.
func (s *Speaker) reported(f gobgp.Family) bool {
	switch f {
	case gobgp.RF_IPv6_UC:
		return s.opt.Report&ReportUnicast != 0
	case gobgp.RF_IPv6_VPN:
		return s.opt.Report&ReportVPN != 0
	default:
		return false
	}
}

func (s *Speaker) onEndOfRIB(p *apiutil.Path, _ time.Time) {
	if n := s.learnedFrom(p); n != nil {
		switch p.Family {
		case gobgp.RF_IPv6_UC:
			s.retention.event(EndOfRIB{Neighbor: n.Name, Family: IPv6Unicast})
		case gobgp.RF_IPv6_VPN:
			s.retention.event(EndOfRIB{Neighbor: n.Name, Family: VPNv6})
		default: // not reported
		}
	}
}
