// Package relay carries connections: it accepts them, reads what their clients request, connects to
// where its Router says, and moves data in both directions with splice(2), without copying.
//
// Loops, one for each processor, wait for all sockets of their connections with epoll. An idle
// connection is two sockets and less than a kilobyte: pipes belong to the loops, and a connection
// has one only while data waits in it. The package does not resolve names and decides about no
// destination.
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/proxy/request"
)

// Router decides where connections go. Its methods are called from the loops, several at a time,
// and must not block.
type Router interface {
	// Route returns the plan for a connection. If it takes time it returns false, and later calls
	// answer once, from any goroutine.
	Route(q Query, answer func(Plan)) (Plan, bool)
	// Tried reports the outcome of an attempt to connect.
	Tried(Outcome)
	// Began reports that an attempt to connect to t has begun; it counts until Closed.
	Began(t Target)
	// Closed reports the end of an attempt to t, or of the connection that it has become.
	Closed(t Target)
}

// Query is a connection to be routed.
type Query struct {
	Service *Service
	// Peer is the other end of the socket. Client is the same, or what a PROXY header says, which
	// the peer may have made up.
	Peer, Client netip.AddrPort
	// Local is where the client has connected to, if the service asks for it or a PROXY header says
	// so (Headed).
	Local  netip.AddrPort
	Headed bool
	// Protocol and Asked are what the client requests; the protocol is None without a request.
	Protocol request.Protocol
	Asked    request.Destination
}

// Plan is what to do with a connection.
type Plan struct {
	// Targets are tried in order; each next one when the one before failed, or after its delay. The
	// first connection that succeeds is used. They are not changed.
	Targets []Target
	// First is sent to the target before what the client sends.
	First []byte
	// Err is why the connection is refused, and Failure what the client is answered.
	Err     error
	Failure request.Failure
}

// Target is one address to connect to.
type Target struct {
	Address   netip.AddrPort
	Multipath bool
	// Delay is the time after the attempt before, at the latest after which this one begins, in
	// units of attemptDelay; 0 is one unit.
	Delay uint8
	// Upstream is the router's own.
	Upstream int32
	// Service is the service of the connection; the engine sets it.
	Service *Service
}

// Outcome is the outcome of an attempt to connect.
type Outcome struct {
	Target Target
	// Err is nil if the attempt has succeeded.
	Err error
	// Fallback: the target was asked for MPTCP, and answered with TCP. Silent: it did not answer to
	// MPTCP within the delay, and did to TCP.
	Fallback, Silent bool
	// Late are the addresses that were tried before this one and have not answered yet.
	Late []netip.AddrPort
}

// ServiceOptions describe a Service.
type ServiceOptions struct {
	// Name is that of the listener in logs.
	Name string
	// Sockets are file descriptors of listening sockets, which the engine closes.
	Sockets []int
	// Requests: each client sends a SOCKS5 or CONNECT request first.
	Requests bool
	// Header: each client sends a PROXY header first.
	Header bool
	// Local: the router needs where clients have connected to.
	Local bool
	// Allow reports whether a client may connect; nil: all may.
	Allow func(netip.Addr) bool
	// Idle is how long a connection may have no data.
	Idle time.Duration
	// Pace is the most bytes per second to each client, or Smooth, or 0 for no pacing.
	Pace uint64
	// Tag is the router's own.
	Tag any
}

// Smooth as a pacing rate bounds nothing: the kernel paces at the rate of the congestion control.
const Smooth = ^uint64(0) - 1

// Service is a listener with its counters.
type Service struct {
	ServiceOptions
	Counts Counts

	multipath bool // a listening socket accepts MPTCP
}

// close closes the listening sockets.
func (s *Service) close() {
	for _, fd := range s.Sockets {
		closeSocket(fd)
	}
}

// Counts count connections since the start; all but Active only increase.
type Counts struct {
	Accepted, Denied, Refused, Failed, Malformed, Idle, Reset atomic.Uint64
	// Stripped are those that lost MPTCP's options after they had carried data, and were reset.
	Stripped atomic.Uint64
	Active   atomic.Int64
	// ToTarget and ToClient are bytes.
	ToTarget, ToClient atomic.Uint64
	// ToClientBursts and ToTargetBursts are the lengths of bursts.
	ToClientBursts, ToTargetBursts Bursts
}

// Options describe an Engine.
type Options struct {
	// Loops is the number of loops.
	Loops int
	// Connections is the most connections at a time; accepting pauses at them.
	Connections int
	Router      Router
	Log         *slog.Logger
}

// Engine carries the connections of a process.
type Engine struct {
	options Options
	log     *slog.Logger
	loops   []*loop
	pipes   atomic.Int32
	larges  atomic.Int32
	open    atomic.Int64
	beside  atomic.Int64 // attempts beyond the first of each connection
	paused  atomic.Int32 // loops that do not accept
	pauses  logLimit
	strips  logLimit
	control atomic.Pointer[string] // congestion control of MPTCP connections; nil: that of the host

	mu       sync.Mutex
	services []*Service
}

// logLimit limits how often something is logged. It is safe for concurrent use.
type logLimit struct {
	mu   sync.Mutex
	last time.Time
}

// logEvery is the least time between two log lines of the same event.
const logEvery = time.Minute

// due reports whether the event is to be logged.
func (l *logLimit) due() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Sub(l.last) < logEvery {
		return false
	}
	l.last = now
	return true
}

// New makes an engine. Run and Close release what it has opened.
func New(o Options) (*Engine, error) {
	e := &Engine{options: o, log: o.Log}
	for range o.Loops {
		l, err := newLoop(e)
		if err != nil {
			return nil, errors.Join(err, e.Close())
		}
		e.loops = append(e.loops, l)
	}
	return e, nil
}

// Close releases an engine that is not running.
func (e *Engine) Close() error {
	for _, l := range e.loops {
		l.close()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.services {
		s.close()
	}
	e.services = nil
	return nil
}

// Run carries connections until ctx ends. It then resets those that are left, and closes
// everything.
func (e *Engine) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, l := range e.loops {
		running.Go(func() { l.run(ctx) })
	}
	<-ctx.Done()
	for _, l := range e.loops {
		l.post(func() {})
	}
	running.Wait()
	return e.Close()
}

// Add begins to accept connections of a service. It closes the sockets if it fails.
func (e *Engine) Add(o ServiceOptions) (*Service, error) {
	s := &Service{ServiceOptions: o}
	for _, fd := range s.Sockets {
		s.multipath = s.multipath || !spliceable(fd)
		err := errors.Join(sendAtOnce(fd), probe(fd, detect))
		if err == nil {
			err = pace(fd, o.Pace)
		}
		if err != nil {
			s.close()
			return nil, fmt.Errorf("set options of listener %q: %w", o.Name, err)
		}
	}
	e.mu.Lock()
	e.congest(s)
	e.services = append(e.services, s)
	e.mu.Unlock()
	for _, l := range e.loops {
		l.post(func() { l.serve(s) })
	}
	return s, nil
}

// Congest sets the congestion control of new MPTCP connections.
func (e *Engine) Congest(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.control.Store(&name)
	for _, s := range e.services {
		e.congest(s)
	}
}

// congest sets the congestion control of what is accepted from MPTCP sockets. The caller has locked
// mu.
func (e *Engine) congest(s *Service) {
	name := e.control.Load()
	if name == nil {
		return
	}
	for _, fd := range s.Sockets {
		if spliceable(fd) {
			continue // TCP
		}
		if err := congest(fd, *name); err != nil {
			e.log.Warn("connections have the congestion control of the host", "listener", s.Name, "wanted", *name, "err", err)
		}
	}
}

// Remove stops accepting connections of a service and closes its sockets. Those that were accepted
// go on. The engine must be running.
func (e *Engine) Remove(s *Service) {
	var left sync.WaitGroup
	for _, l := range e.loops {
		left.Add(1)
		l.post(func() {
			defer left.Done()
			l.leave(s)
		})
	}
	left.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.services = slices.DeleteFunc(e.services, func(other *Service) bool { return other == s })
	s.close()
}

// full reports whether there is no room for another connection, or attempt beside others. Two of
// these have the descriptors of a connection.
func (e *Engine) full() bool {
	return e.open.Load()+(e.beside.Load()+1)/2 >= int64(e.options.Connections)
}

// Open returns the number of connections.
func (e *Engine) Open() int { return int(e.open.Load()) }

// Most returns the most connections at a time.
func (e *Engine) Most() int { return e.options.Connections }

// Paused reports whether connections are not accepted because there are too many.
func (e *Engine) Paused() bool { return e.paused.Load() > 0 }

// Pipes returns the number of pipes.
func (e *Engine) Pipes() int { return int(e.pipes.Load()) }

// logPause logs that accepting pauses.
func (e *Engine) logPause(reason string) {
	if e.pauses.due() {
		e.log.Warn("accepting pauses, new connections wait", "reason", reason, "connections", e.Open())
	}
}

// logStripped logs that a connection has lost MPTCP's options.
func (e *Engine) logStripped(c *connection) {
	if e.strips.due() {
		e.log.Warn("a router removes MPTCP's options from connections that carry data, which corrupts them; they are reset",
			"listener", c.service.Name, "client", c.peer, "target", c.target(int(c.dial.won)).Address)
	}
}

// DescriptorLimit returns the most file descriptors that this process may have.
func DescriptorLimit() (uint64, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read limit of file descriptors: %w", err)
	}
	return limit.Max, nil
}

// reservedDescriptors are those that are not of connections: pipes, listeners, loops, names that
// are resolved, and the control and status sockets with their clients.
const reservedDescriptors = 2*maxPipes + 136

// maxConnections bounds the connections of a process whatever its limit of descriptors.
const maxConnections = 500_000

// ConnectionsWithin returns how many connections, of two descriptors each, fit into a limit of
// descriptors.
func ConnectionsWithin(limit uint64) int {
	if limit <= reservedDescriptors+2 {
		return 1
	}
	return int(min((limit-reservedDescriptors)/2, maxConnections))
}
