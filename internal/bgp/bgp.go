// Package bgp is a BGP speaker: it maintains the sessions with the neighbors, receives and
// advertises unicast routes and VPN routes with SRv6 SIDs (RFC 4271, 4364, 4456, 4659, 9252),
// applies import and export policy, selects the best paths, and reports what changes as batches of
// typed events.
//
// Sessions are in package session, the wire format is in message, and the tables are in rib; this
// package connects them. It changes no routing table of the kernel.
package bgp

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/tabane/tabane/internal/bgp/bfd"
	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/rib"
	"github.com/tabane/tabane/internal/bgp/session"
)

// DefaultPort is the port of BGP (RFC 4271 section 8.2.1).
const DefaultPort = 179

// Report selects the reported events. Session events are always reported.
type Report uint8

const (
	// ReportUnicast selects a UnicastPath event for each change of a best path.
	ReportUnicast Report = 1 << iota
	// ReportVPN selects a VPNPath event for each change of a best path.
	ReportVPN
	// ReportAdjIn selects an Update event for each change in the Adj-RIB-In of an external
	// neighbor.
	ReportAdjIn

	// ReportBest selects every change of a best path.
	ReportBest = ReportUnicast | ReportVPN
)

// Options describe a speaker.
type Options struct {
	ASN      uint32
	RouterID netip.Addr // IPv4, unique among all speakers of the network
	// Listen holds the local addresses that accept passive sessions. If it is empty, all
	// addresses accept them.
	Listen []netip.Addr
	// NoListen makes every session active: no port is opened.
	NoListen bool
	Port     uint16 // listening port; 0 is DefaultPort
	Report   Report
	// Unreached, unless nil, is called when a neighbor did not answer soon after Connect or Enable,
	// before the next attempt to connect. It may block.
	Unreached func(neighbor netip.Addr)
	Log       *slog.Logger
}

func (o Options) check() error {
	if err := CheckIdentity(o.ASN, o.RouterID).Err(); err != nil {
		return err
	}
	if o.NoListen && len(o.Listen) > 0 {
		return errors.New("listen addresses contradict NoListen")
	}
	if o.Log == nil {
		return errors.New("logger is missing")
	}
	for _, a := range o.Listen {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" || a.IsLinkLocalUnicast() {
			return fmt.Errorf("listen address %s is not an address without zone; for link-local sessions listen on all addresses (::)", a)
		}
	}
	return nil
}

// Speaker is one BGP router. It is safe for concurrent use.
type Speaker struct {
	opt      Options
	log      *slog.Logger
	interner *message.Interner
	bfd      *bfd.Detector
	events   chan []Event
	done     chan struct{} // closed by Stop
	wg       sync.WaitGroup

	// calls serializes changes of neighbors, Start and Stop, each including its checks.
	calls            sync.Mutex
	running, stopped bool
	listener         *session.Listener // nil with NoListen
	groups           map[string]*openGroup

	// mu guards what follows, and the routes of each neighbor. It is held for at most about a
	// millisecond at a time: longer work is done in slices.
	mu        sync.Mutex
	serving   bool // routes can be changed: between Start and Stop
	rib       *rib.RIB
	neighbors map[string]*neighbor
	sources   []*neighbor // by rib.Source; nil for Local
	reader    reader
	// ending has, by the neighbor's name, a channel for a session whose end has not been
	// delivered to the reader of events yet. It is closed then.
	ending map[string]chan struct{}
	// reasons are those of rejected routes, by number; the first one is none.
	reasons []RejectReason
	// policies counts the import policies, each of which has a number of its own.
	policies uint64
	local    credit // of routes that this speaker originates
}

// New returns a Speaker that has not been started.
func New(opt Options) (*Speaker, error) {
	if err := opt.check(); err != nil {
		return nil, fmt.Errorf("create bgp speaker: %w", err)
	}
	if opt.Port == 0 {
		opt.Port = DefaultPort
	}
	s := &Speaker{
		opt: opt, log: opt.Log, interner: message.NewInterner(), events: make(chan []Event), done: make(chan struct{}),
		rib: rib.New(), neighbors: map[string]*neighbor{}, groups: map[string]*openGroup{}, sources: []*neighbor{nil}, reasons: []RejectReason{""}, ending: map[string]chan struct{}{},
	}
	s.reader = newReader(s)
	s.bfd = bfd.New(s.log, s.bfdUp, s.bfdDown)
	return s, nil
}

// usable returns an error unless neighbors and routes can be changed now. Callers hold calls.
func (s *Speaker) usable() error {
	if !s.running || s.stopped {
		return errors.New("bgp speaker is not running")
	}
	return nil
}

// Events returns batches of events for one reader; the channel is closed by Stop. It must be read:
// a session that has ended is not established again before its Down has been read.
//
// An event has the state of its route when the batch is formed: a reader that is busy misses
// intermediate states, and each route is reported once, however often it changed meanwhile. The
// order of the routes is that in which they changed only while the reader keeps up. An Up precedes
// all updates of that session, and all withdrawals caused by its end precede the Down.
func (s *Speaker) Events() <-chan []Event { return s.events }

// Start opens the listening sockets and accepts neighbors and routes from then on. If another
// process uses an address or port, the error wraps syscall.EADDRINUSE, and everything opened is
// closed.
func (s *Speaker) Start() error {
	s.calls.Lock()
	defer s.calls.Unlock()
	if s.running || s.stopped {
		return errors.New("start bgp speaker: already started")
	}
	if !s.opt.NoListen {
		addresses := s.opt.Listen
		if len(addresses) == 0 {
			addresses = []netip.Addr{netip.IPv6Unspecified(), netip.IPv4Unspecified()}
		}
		l, err := session.Listen(s.log, s.opt.Port, addresses...)
		if err != nil {
			return fmt.Errorf("start bgp speaker: %w", s.explainListen(err))
		}
		s.listener = l
	}
	s.running = true
	s.mu.Lock()
	s.serving = true
	s.mu.Unlock()
	s.wg.Go(s.deliver)
	return nil
}

// explainListen adds a remedy to the errors that an operator can resolve.
func (s *Speaker) explainListen(err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w: another BGP speaker uses port %d (find it with: ss -ltnp 'sport = :%d'); stop it, or set another `port`",
			err, s.opt.Port, s.opt.Port)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Errorf("%w: port %d needs root or CAP_NET_BIND_SERVICE", err, s.opt.Port)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%w: no interface has this address yet", err)
	}
	return err
}

// Stop closes all sessions with a NOTIFICATION, frees the port and closes Events. Withdrawals
// caused by the end of the sessions are not reported.
func (s *Speaker) Stop() {
	s.calls.Lock()
	defer s.calls.Unlock()
	if s.stopped {
		return
	}
	s.stopped = true
	close(s.done)
	s.mu.Lock()
	s.serving = false
	s.mu.Unlock()
	s.bfd.Close()
	if s.listener != nil {
		s.listener.Close()
	}
	var ending sync.WaitGroup
	for _, n := range s.all() {
		ending.Go(func() {
			n.stop(message.Notification{Code: message.CodeCease, Subcode: message.SubcodeShutdown}, "stopped")
		})
	}
	ending.Wait()
	s.wg.Wait()
	close(s.events)
}

// all returns the neighbors.
func (s *Speaker) all() []*neighbor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.neighbors))
}

// slice is the number of routes that are processed with mu held.
const slice = 1000
