// Package bgp is a BGP speaker inside the process: it keeps the sessions with the neighbors, announces
// IPv6 unicast and VPN-IPv6 routes with SRv6 SIDs (RFC 4271, 4364, 4659, 9252), and reports what it
// learns as batches of typed events.
//
// It is the only package that knows GoBGP, and no type of it shows. It refuses to decide what a route is
// good for and to touch the kernel's tables; sessions run over IPv6 only, routes are IPv6 only.
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

	"github.com/tabane/tabane/internal/bfd"
)

// DefaultPort is the port of BGP (RFC 4271 section 8.2.1).
const DefaultPort = 179

// Report selects the events beyond those of sessions, which are always given.
type Report uint8

const (
	// ReportUnicast asks for a UnicastPath event for each change of a best path.
	ReportUnicast Report = 1 << iota
	// ReportVPN asks for a VPNPath event for each change of a best path.
	ReportVPN
	// ReportAdjIn asks for an Update event for each change of what a neighbor of another AS announces.
	ReportAdjIn

	// ReportBest asks for every change of a best path.
	ReportBest = ReportUnicast | ReportVPN
)

// Options describe a speaker.
type Options struct {
	ASN      uint32
	RouterID netip.Addr // IPv4, unique among all speakers of the network
	// Listen holds the addresses for sessions that neighbors open. Empty: every IPv6 address.
	Listen []netip.Addr
	// NoListen makes the speaker open all its sessions itself and take no port.
	NoListen bool
	Port     uint16 // to listen on; 0 is DefaultPort
	Report   Report
	Log      *slog.Logger
}

func (o Options) check() error {
	if err := CheckIdentity(o.ASN, o.RouterID).Err(); err != nil {
		return err
	}
	if o.NoListen && len(o.Listen) > 0 {
		return errors.New("listen addresses are given, but listening is off")
	}
	if o.Log == nil {
		return errors.New("logger is missing")
	}
	for _, a := range o.Listen {
		if !a.Is6() || a.Is4In6() || a.Zone() != "" {
			return fmt.Errorf("listen address %s is not an IPv6 address without zone; for link-local ones listen on all addresses (::)", a)
		}
	}
	return nil
}

// Speaker is one BGP router. Its methods may be called from several goroutines.
type Speaker struct {
	opt     Options
	log     *slog.Logger
	server  *server.BgpServer
	queue   *queue
	events  chan []Event
	done    chan struct{} // closed by Stop
	unwatch context.CancelFunc
	pump    sync.WaitGroup
	// retention stands between the BGP server's events and the queue.
	retention *retention
	// bfd is used instead of GoBGP's own, which pauses by itself for a silent neighbor and whose resets hit
	// later sessions.
	bfd *bfd.Detector

	// calls serializes the changes of neighbors, from check to effect.
	calls     sync.Mutex
	neighbors map[string]*neighbor // by name
	running   bool
	stopped   bool

	// mu guards what the callbacks of the BGP server read. No BGP server call is made under it.
	mu     sync.Mutex
	byAddr map[netip.Addr]*neighbor
}

// New returns a speaker that does nothing yet.
func New(opt Options) (*Speaker, error) {
	if err := opt.check(); err != nil {
		return nil, fmt.Errorf("make bgp speaker: %w", err)
	}
	if opt.Port == 0 {
		opt.Port = DefaultPort
	}
	q := newQueue()
	s := &Speaker{
		opt:       opt,
		log:       opt.Log,
		queue:     q,
		retention: newRetention(func(e Event) { q.put(e) }),
		events:    make(chan []Event),
		done:      make(chan struct{}),
		neighbors: map[string]*neighbor{},
		byAddr:    map[netip.Addr]*neighbor{},
	}
	s.bfd = bfd.New(opt.Log, s.bfdDown)
	return s, nil
}

// Events gives batches of what happened, for one reader; it is closed by Stop.
//
// Events arrive in the order in which they happened, with one exception: while the reader is busy, only
// the newest event about the same route (and neighbor, for Update) is kept, in its newest place, so
// that a slow reader never makes the queue longer than the number of routes. An Up precedes all
// updates of that session, and all withdrawals caused by its end precede the Down. A route reported as
// withdrawn need not have been reported as present before.
func (s *Speaker) Events() <-chan []Event { return s.events }

// Start listens and is ready for neighbors and routes. An address or port that is taken by another
// process is an error that wraps syscall.EADDRINUSE; nothing is left behind then.
func (s *Speaker) Start(ctx context.Context) error {
	s.calls.Lock()
	defer s.calls.Unlock()
	if s.running || s.stopped {
		return errors.New("start bgp speaker: already started")
	}
	s.server = server.NewBgpServer(server.LoggerOption(slog.New(newHandler(s.log.Handler(), s.sessionEnds)), nil))
	go s.server.Serve()
	if err := s.start(ctx); err != nil {
		s.server.Stop()
		return fmt.Errorf("start bgp speaker: %w", err)
	}
	s.running = true
	s.pump.Go(s.deliver)
	go s.watchOpening()
	return nil
}

func (s *Speaker) start(ctx context.Context) error {
	global := &api.Global{
		Asn:        s.opt.ASN,
		RouterId:   s.opt.RouterID.String(),
		ListenPort: int32(s.opt.Port),
		Families:   []uint32{familyIndexUnicast, familyIndexVPN},
		// Without it, the older of two equal routes wins, so that a restart may change the best path.
		RouteSelectionOptions: &api.RouteSelectionOptionsConfig{ExternalCompareRouterId: true},
	}
	switch {
	case s.opt.NoListen:
		global.ListenPort = -1
	case len(s.opt.Listen) == 0:
		global.ListenAddresses = []string{"::"}
	default:
		for _, a := range s.opt.Listen {
			global.ListenAddresses = append(global.ListenAddresses, a.String())
		}
	}
	if err := s.server.StartBgp(ctx, &api.StartBgpRequest{Global: global}); err != nil {
		return s.explainListen(err)
	}
	if err := s.server.SetPolicies(ctx, policies(nil)); err != nil {
		return err
	}
	for _, a := range assignments() {
		if err := s.server.AddPolicyAssignment(ctx, &api.AddPolicyAssignmentRequest{Assignment: a}); err != nil {
			return err
		}
	}
	return s.watch()
}

// explainListen says what to do about the failures that an operator can mend.
func (s *Speaker) explainListen(err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w: another BGP speaker has port %d (find it with: ss -ltnp 'sport = :%d'); stop it or choose another port",
			err, s.opt.Port, s.opt.Port)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Errorf("%w: port %d needs root or CAP_NET_BIND_SERVICE", err, s.opt.Port)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%w: no interface has this address yet", err)
	}
	return err
}

// Stop ends all sessions with a notification to the neighbors, frees the port and closes Events. The
// withdrawals that the end of the sessions causes are not reported.
func (s *Speaker) Stop() {
	s.calls.Lock()
	defer s.calls.Unlock()
	if s.stopped {
		return
	}
	s.stopped = true
	close(s.done)
	s.retention.stop()
	s.bfd.Close()
	if s.running {
		s.server.Stop()
		s.unwatch()
	}
	s.pump.Wait()
	close(s.events)
}

// usable reports why neighbors and routes cannot be changed now. Callers hold calls.
func (s *Speaker) usable() error {
	if !s.running || s.stopped {
		return errors.New("bgp speaker is not running")
	}
	return nil
}
