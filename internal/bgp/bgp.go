// Package bgp is an embedded BGP speaker: it maintains the sessions with the neighbors, advertises
// IPv6 unicast and VPN-IPv6 routes with SRv6 SIDs (RFC 4271, 4364, 4659, 9252), applies import and
// export policy, and reports what it receives as batches of typed events.
//
// It is the only package that imports GoBGP, and no exported type is a GoBGP type. It neither
// selects the use of a route nor changes the kernel's routing tables. Sessions and routes are IPv6
// only.
package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"syscall"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/server"
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
	// Listen holds the local addresses that accept passive sessions. If it is empty, all IPv6
	// addresses accept them.
	Listen []netip.Addr
	// NoListen makes every session active: no port is opened.
	NoListen bool
	Port     uint16 // listening port; 0 is DefaultPort
	Report   Report
	Log      *slog.Logger
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
		if !a.Is6() || a.Is4In6() || a.Zone() != "" {
			return fmt.Errorf("listen address %s is not an IPv6 address without zone; for link-local sessions listen on all addresses (::)", a)
		}
	}
	return nil
}

// instance is the embedded BGP server, which the parts of a Speaker share.
type instance struct {
	opt    Options
	log    *slog.Logger
	server *server.BgpServer // set by Start
	done   chan struct{}     // closed by Stop

	// calls serializes changes of neighbors, Start and Stop, each including its checks.
	calls            sync.Mutex
	running, stopped bool
}

// usable returns an error unless neighbors and routes can be changed now. Callers hold calls.
func (i *instance) usable() error {
	if !i.running || i.stopped {
		return errors.New("bgp speaker is not running")
	}
	return nil
}

// Speaker is one BGP router. It is safe for concurrent use.
type Speaker struct {
	*sessions
	*originated
	instance *instance
	received *received
	queue    *queue
	events   chan []Event
	pump     sync.WaitGroup
}

// New returns a Speaker that has not been started.
func New(opt Options) (*Speaker, error) {
	if err := opt.check(); err != nil {
		return nil, fmt.Errorf("create bgp speaker: %w", err)
	}
	if opt.Port == 0 {
		opt.Port = DefaultPort
	}
	i := &instance{opt: opt, log: opt.Log, done: make(chan struct{})}
	q := newQueue()
	o := &originated{instance: i}
	s := newSessions(i, o, q)
	return &Speaker{
		sessions: s, originated: o, instance: i, received: &received{sessions: s}, queue: q,
		events: make(chan []Event),
	}, nil
}

// BestVPN calls f for the current best path to each VPN-IPv6 destination. Stale routes that are
// retained for a lost session are not included.
func (s *Speaker) BestVPN(f func(VPNPath)) error { return s.received.bestVPN(f) }

// Events returns batches of events for one reader; the channel is closed by Stop.
//
// Events are delivered in the order in which they occurred, with one exception: while the reader is
// busy, an event replaces an older one about the same route (and neighbor, for Update) and is
// queued last, so that the queue of a slow reader is never longer than the number of routes. An Up
// precedes all updates of that session, and all withdrawals caused by its end precede the Down. A
// route may be reported as withdrawn without having been reported as present.
func (s *Speaker) Events() <-chan []Event { return s.events }

// Start opens the listening sockets and accepts neighbors and routes from then on. If another
// process uses an address or port, the error wraps syscall.EADDRINUSE, and everything opened is
// closed.
func (s *Speaker) Start(ctx context.Context) error {
	i := s.instance
	i.calls.Lock()
	defer i.calls.Unlock()
	if i.running || i.stopped {
		return errors.New("start bgp speaker: already started")
	}
	i.server = server.NewBgpServer(server.LoggerOption(slog.New(newHandler(i.log.Handler(), &diagnosis{s.sessions})), nil))
	go i.server.Serve()
	err := i.start(ctx)
	if err == nil {
		err = s.received.watch()
	}
	if err != nil {
		i.server.Stop()
		return fmt.Errorf("start bgp speaker: %w", err)
	}
	i.running = true
	s.pump.Go(s.deliver)
	go (&openWatch{s.sessions}).run()
	return nil
}

// start configures the server with the listening sockets and empty policies.
func (i *instance) start(ctx context.Context) error {
	global := &api.Global{
		Asn:        i.opt.ASN,
		RouterId:   i.opt.RouterID.String(),
		ListenPort: int32(i.opt.Port),
		Families:   []uint32{familyIndexUnicast, familyIndexVPN},
		// By default the older of two equal routes is preferred, so that a restart could
		// change the best path.
		RouteSelectionOptions: &api.RouteSelectionOptionsConfig{ExternalCompareRouterId: true},
	}
	switch {
	case i.opt.NoListen:
		global.ListenPort = -1
	case len(i.opt.Listen) == 0:
		global.ListenAddresses = []string{"::"}
	default:
		for _, a := range i.opt.Listen {
			global.ListenAddresses = append(global.ListenAddresses, a.String())
		}
	}
	if err := i.server.StartBgp(ctx, &api.StartBgpRequest{Global: global}); err != nil {
		return i.explainListen(err)
	}
	if err := i.server.SetPolicies(ctx, policies(nil)); err != nil {
		return err
	}
	for _, a := range assignments() {
		if err := i.server.AddPolicyAssignment(ctx, &api.AddPolicyAssignmentRequest{Assignment: a}); err != nil {
			return err
		}
	}
	return nil
}

// explainListen adds a remedy to the errors that an operator can resolve.
func (i *instance) explainListen(err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w: another BGP speaker uses port %d (find it with: ss -ltnp 'sport = :%d'); stop it or choose another port",
			err, i.opt.Port, i.opt.Port)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Errorf("%w: port %d needs root or CAP_NET_BIND_SERVICE", err, i.opt.Port)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%w: no interface has this address yet", err)
	}
	return err
}

// Stop closes all sessions with a NOTIFICATION, frees the port and closes Events. Withdrawals
// caused by the end of the sessions are not reported.
func (s *Speaker) Stop() {
	i := s.instance
	i.calls.Lock()
	defer i.calls.Unlock()
	if i.stopped {
		return
	}
	i.stopped = true
	close(i.done)
	s.retention.stop()
	s.bfd.Close()
	if i.running {
		i.server.Stop()
		s.received.unwatch()
	}
	s.pump.Wait()
	close(s.events)
}

// deliver passes events from the queue to the reader until Stop.
func (s *Speaker) deliver() {
	for {
		select {
		case <-s.queue.wake:
		case <-s.instance.done:
			return
		}
		for events := s.queue.take(); len(events) > 0; {
			n := min(len(events), maxBatch)
			select {
			case s.events <- events[:n:n]:
			case <-s.instance.done:
				return
			}
			events = events[n:]
		}
	}
}
