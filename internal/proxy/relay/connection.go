package relay

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/proxy/header"
	"github.com/tabane/tabane/internal/proxy/request"
)

// state is what a connection waits for.
type state uint8

const (
	// reading: for the client's PROXY header or request.
	reading state = iota
	// routing: for the router.
	routing
	// connecting: for a target.
	connecting
	// relaying: for data, in both directions.
	relaying
	// closing: for the client to read why it was refused.
	closing
	// closed: for nothing.
	closed
)

const (
	// maxTargets bounds the attempts of a connection. Their numbers and that of the client are in
	// the low bits of epoll events.
	maxTargets = 7
	whichBits  = 3
	whichMask  = 1<<whichBits - 1
	whichOwn   = 0 // the client; an attempt has its index + 1

	generationMask = 1<<(32-whichBits) - 1
)

const (
	// readTimeout is the most time for a client to send its request or header.
	readTimeout = 10 * time.Second
	// connectTimeout is the most time for all targets of a connection, names included.
	connectTimeout = 15 * time.Second
	// closeTimeout is the most time for a client to read why it was refused.
	closeTimeout = 2 * time.Second
)

// connection is a client's connection and that to its target. Side 0 is the client, side 1 the
// target; flow 0 goes from the client to the target.
type connection struct {
	state      state
	protocol   request.Protocol
	greeted    bool // the SOCKS5 greeting was answered
	headed     bool // the PROXY header was read
	named      bool // it has addresses
	queued     bool // in the loop's list of ready ones
	probed     bool // a silent target is asked whether it is alive
	slot       int32
	generation uint32
	service    *Service
	sides      [2]side
	flows      [2]flow
	since      time.Time // the state
	active     time.Time // the last data

	peer, client, local netip.AddrPort
	// in is what was read of the client and is not decoded.
	in   []byte
	plan Plan
	dial dial
}

// dial is the attempts of a connection.
type dial struct {
	fds  [maxTargets]int32 // 0: not begun, or failed
	next int8              // the next target
	open int8
	won  int8  // the target of the connection, -1 if none
	wait uint8 // delays until the next attempt
	err  error // of the last one that failed
}

// side is one socket of a connection.
type side struct {
	fd int32
	// readable and writable: no call said otherwise since the last event.
	readable, writable bool
	// ending: the peer has sent FIN, so that reading goes on to the end. ended: it was read.
	ending, ended bool
	// broken: the peer has reset the connection.
	broken bool
	// urgent: there may be urgent data to read.
	urgent bool
	// begun: something was sent. prompt: small segments do not wait for acknowledgments.
	begun, prompt bool
	transport     transport
	// awaited: data may lack its DATA_ACK, for which the loop looks at ackDue, and then again after
	// ackWait.
	awaited bool
	ackDue  time.Time
	ackWait time.Duration
}

// flow is one direction of a connection.
type flow struct {
	pipe *pipe  // has held bytes
	rest []byte // copied bytes that the receiver has not taken
	held int
	// bulk: data comes in large pieces, which are spliced, or copied by large buffers.
	bulk bool
	// copied: the sender is one that the kernel cannot splice from without copying.
	copied bool
	// borrowed: rest is in the loop's buffer. urgent: rest is one urgent byte.
	borrowed, urgent bool
	large            *largeBuffer // has rest
	// done: the end was passed on.
	done    bool
	segment int32 // of the receiver, 0 if unknown
}

// begin begins with a connection that was accepted.
func (l *loop) begin(s *Service, client int, from netip.AddrPort) {
	c := l.take()
	c.service, c.peer, c.client = s, from, from
	c.since, c.active = l.now, l.now
	c.sides[0] = side{fd: int32(client), prompt: true}
	c.sides[1] = side{fd: -1}
	c.dial.won = -1
	l.engine.open.Add(1)
	s.Counts.Active.Add(1)
	keepUrgent(client)
	if s.multipath && multipath(client) {
		c.sides[0].transport = requested
	}
	if errno := l.watch(c, whichOwn, client); errno != 0 {
		l.abort(c)
		return
	}
	if s.Requests || s.Header {
		c.state = reading
		return
	}
	l.route(c, request.Destination{})
}

// take returns a connection with a slot.
func (l *loop) take() *connection {
	var c *connection
	if n := len(l.spare); n > 0 {
		c = l.spare[n-1]
		l.spare = l.spare[:n-1]
		*c = connection{}
	} else {
		c = &connection{}
	}
	if n := len(l.free); n > 0 {
		c.slot = l.free[n-1]
		l.free = l.free[:n-1]
	} else {
		c.slot = int32(len(l.connections))
		l.connections = append(l.connections, nil)
	}
	l.connections[c.slot] = c
	l.generation = (l.generation + 1) & generationMask
	c.generation = l.generation
	return c
}

// maxSpare bounds the closed connections that are kept to be used again.
const maxSpare = 1024

// drop releases a connection whose sockets are closed.
func (l *loop) drop(c *connection) {
	for i := range c.flows {
		f := &c.flows[i]
		switch {
		case f.pipe == nil:
		case f.held > 0:
			l.discard(f.pipe)
		default:
			l.putPipe(f.pipe)
		}
		f.pipe, f.held = nil, 0
		l.putLarge(f)
	}
	if c.dial.won >= 0 {
		l.engine.options.Router.Closed(c.target(int(c.dial.won)))
	}
	c.state = closed
	c.service.Counts.Active.Add(-1)
	l.engine.open.Add(-1)
	l.connections[c.slot] = nil
	l.free = append(l.free, c.slot)
	if len(l.spare) < maxSpare && !c.queued {
		l.spare = append(l.spare, c)
	}
}

// target returns a target of the plan with its service.
func (c *connection) target(i int) Target {
	t := c.plan.Targets[i]
	t.Service = c.service
	return t
}

// finish closes both sockets after all data was passed on.
func (l *loop) finish(c *connection) { l.end(c, closeSocket) }

// abort resets both sockets.
func (l *loop) abort(c *connection) { l.end(c, resetSocket) }

func (l *loop) end(c *connection, release func(int)) {
	if c.state == closed {
		return
	}
	l.closeAttempts(c, -1)
	for i := range c.sides {
		if fd := c.sides[i].fd; fd >= 0 {
			release(int(fd))
			c.sides[i].fd = -1
		}
	}
	l.drop(c)
}

// closeAttempts closes the sockets of all attempts but one.
func (l *loop) closeAttempts(c *connection, but int) {
	for i := range c.dial.fds {
		if c.dial.fds[i] > 0 && i != but {
			l.closeAttempt(c, i)
		}
		c.dial.fds[i] = 0
	}
}

func (l *loop) closeAttempt(c *connection, i int) {
	closeSocket(int(c.dial.fds[i]))
	c.dial.fds[i] = 0
	if c.dial.open--; c.dial.open > 0 {
		l.engine.beside.Add(-1)
	}
	l.engine.options.Router.Closed(c.target(i))
}

// event applies an event of a socket.
func (l *loop) event(c *connection, which int, events uint32) {
	if which != whichOwn && c.state == connecting {
		l.attempted(c, which-1, events)
		return
	}
	s := &c.sides[0]
	if which != whichOwn {
		if c.state != relaying || which-1 != int(c.dial.won) {
			return // an attempt that was closed
		}
		s = &c.sides[1]
	}
	s.note(events)
	switch c.state {
	case reading:
		if s.broken {
			l.abort(c)
			return
		}
		l.read(c)
	case routing, connecting:
		if s.broken {
			l.abort(c)
		}
	case relaying:
		l.relay(c)
	case closing:
		l.drain(c)
	case closed:
	}
}

// note records an event.
func (s *side) note(events uint32) {
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		s.readable = true
	}
	if events&unix.EPOLLOUT != 0 {
		s.writable = true
	}
	if events&unix.EPOLLPRI != 0 {
		s.urgent = true
	}
	if events&(unix.EPOLLRDHUP|unix.EPOLLHUP) != 0 {
		s.ending = true
	}
	if events&unix.EPOLLERR != 0 {
		s.broken = true
	}
}

// read reads a PROXY header and a request.
func (l *loop) read(c *connection) {
	s := &c.sides[0]
	for c.state == reading && s.readable {
		// More than a request is not read before the target takes it.
		n, errno := receive(int(s.fd), l.buffer[:max(request.MaxLength-len(c.in), 1)])
		switch {
		case errno == unix.EAGAIN:
			s.readable = false
			return
		case errno == unix.EINTR:
			continue
		case errno != 0:
			l.abort(c)
			return
		case n == 0:
			// A client that ends without a request has none; what it began is not one.
			s.ended = true
			if len(c.in) > 0 {
				l.malformed(c, errors.New("client ended within its request"))
				return
			}
			l.finish(c)
			return
		}
		c.in = append(c.in, l.buffer[:n]...)
		l.decode(c)
	}
}

// decode decodes what was read, as far as it goes.
func (l *loop) decode(c *connection) {
	if c.service.Header && !c.headed {
		h, n, err := header.Decode(c.in)
		if errors.Is(err, header.ErrShort) {
			return
		}
		if err != nil {
			l.malformed(c, err)
			return
		}
		c.in, c.headed = c.in[n:], true
		if h.Source.IsValid() {
			c.client, c.local, c.named = h.Source, h.Destination, true
		}
	}
	if !c.service.Requests {
		l.route(c, request.Destination{})
		return
	}
	if len(c.in) == 0 {
		return
	}
	if c.protocol == request.None {
		p, err := request.DetectProtocol(c.in[0])
		if err != nil {
			l.malformed(c, err)
			return
		}
		c.protocol = p
	}
	if c.protocol == request.SOCKS5 && !c.greeted {
		answer, n, err := request.DecodeGreeting(c.in)
		if errors.Is(err, request.ErrShort) {
			return
		}
		if len(answer) > 0 {
			if _, errno := send(int(c.sides[0].fd), answer); errno != 0 {
				l.abort(c)
				return
			}
		}
		if err != nil {
			l.refuse(c, nil, err)
			return
		}
		c.in, c.greeted = c.in[n:], true
	}
	decode := request.DecodeConnect
	if c.protocol == request.SOCKS5 {
		decode = request.DecodeSOCKS
	}
	d, n, err := decode(c.in)
	if errors.Is(err, request.ErrShort) {
		if len(c.in) >= request.MaxLength {
			l.malformed(c, fmt.Errorf("request has more than %d bytes", request.MaxLength))
		}
		return
	}
	var fault *request.Error
	if errors.As(err, &fault) {
		c.service.Counts.Malformed.Add(1)
		l.refuse(c, c.protocol.Failed(fault.Failure), err)
		return
	}
	c.in = c.in[n:]
	l.route(c, d)
}

// malformed refuses a client whose request or header cannot be decoded.
func (l *loop) malformed(c *connection, err error) {
	c.service.Counts.Malformed.Add(1)
	l.refuse(c, c.protocol.Failed(request.Malformed), err)
}

// refuse ends a connection that has no target. Without an answer, and without a protocol, it is
// reset, as a target that refuses does.
func (l *loop) refuse(c *connection, answer []byte, err error) {
	l.engine.log.Debug("connection refused", "listener", c.service.Name, "client", c.client, "err", err)
	if c.protocol == request.None {
		l.abort(c)
		return
	}
	if len(answer) > 0 {
		_, _ = send(int(c.sides[0].fd), answer) // it is in the socket's buffer, or the client is gone
	}
	l.closeAttempts(c, -1)
	shutdownWrite(int(c.sides[0].fd))
	c.state, c.since, c.in = closing, l.now, nil
	l.drain(c)
}

// drain discards what a refused client sends: with unread data, closing would reset the connection
// before the client has the answer.
func (l *loop) drain(c *connection) {
	s := &c.sides[0]
	for range pumpTurns {
		n, errno := receive(int(s.fd), l.buffer[:])
		switch {
		case errno == unix.EAGAIN:
			return
		case errno != 0 || n == 0:
			l.finish(c)
			return
		}
	}
	l.abort(c) // it does not listen
}

// route asks the router for targets.
func (l *loop) route(c *connection, d request.Destination) {
	c.state, c.since = routing, l.now
	if c.service.Local && !c.local.IsValid() {
		c.local = LocalAddress(int(c.sides[0].fd))
	}
	slot, generation := c.slot, c.generation
	plan, ok := l.engine.options.Router.Route(Query{Service: c.service, Peer: c.peer, Client: c.client, Local: c.local, Headed: c.named, Protocol: c.protocol, Asked: d}, func(p Plan) {
		l.post(func() {
			if c := l.find(slot, generation); c != nil && c.state == routing {
				l.current = c
				l.routed(c, p)
			}
		})
	})
	if ok {
		l.routed(c, plan)
	}
}

// routed begins to connect.
func (l *loop) routed(c *connection, p Plan) {
	if p.Err == nil && len(p.Targets) == 0 {
		p.Err, p.Failure = errors.New("there is no address to connect to"), request.HostUnreachable
	}
	if p.Err != nil {
		c.service.Counts.Refused.Add(1)
		l.refuse(c, c.protocol.Failed(p.Failure), p.Err)
		return
	}
	if len(p.Targets) > maxTargets {
		p.Targets = p.Targets[:maxTargets]
	}
	c.plan, c.state = p, connecting
	if l.attempt(c); c.state == connecting && int(c.dial.next) < len(p.Targets) {
		l.attempts.push(due{l.now.Add(attemptDelay), c.slot, c.generation})
	}
}

// Local reports whether an error is of this host's lack of descriptors or memory, and says nothing
// of the other one.
func Local(err error) bool {
	return slices.ContainsFunc([]error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM}, func(lack error) bool { return errors.Is(err, lack) })
}

// attempt begins to connect to the next target; one that fails at once is followed by another. What
// this host lacks the means for is begun later.
func (l *loop) attempt(c *connection) {
	for int(c.dial.next) < len(c.plan.Targets) {
		if c.dial.open > 0 && l.engine.full() {
			return
		}
		i := int(c.dial.next)
		c.dial.next++
		if int(c.dial.next) < len(c.plan.Targets) {
			c.dial.wait = c.plan.Targets[c.dial.next].Delay
		}
		t := &c.plan.Targets[i]
		fd, err := socket(t.Address.Addr(), t.Multipath)
		if err == nil {
			if name := l.engine.control.Load(); t.Multipath && name != nil {
				_ = congest(fd, *name) // it was unloaded: that of the host is as good
			}
			keepUrgent(fd)
			if err = connect(fd, t.Address); err == nil {
				if errno := l.watch(c, i+1, fd); errno != 0 {
					err = errno
				}
			}
			if err != nil {
				closeSocket(fd)
			}
		}
		if err == nil {
			c.dial.fds[i] = int32(fd)
			if c.dial.open++; c.dial.open > 1 {
				l.engine.beside.Add(1)
			}
			l.engine.options.Router.Began(c.target(i))
			return
		}
		if Local(err) {
			c.dial.next, c.dial.wait = int8(i), 0
			l.pause(err.Error())
			return
		}
		l.attemptFailed(c, i, err)
	}
	if c.dial.open == 0 {
		l.unreachable(c)
	}
}

// attemptFailed records that an attempt failed.
func (l *loop) attemptFailed(c *connection, i int, err error) {
	c.dial.err = err
	l.engine.options.Router.Tried(Outcome{Target: c.target(i), Err: err})
}

// attemptDue begins the next attempt when the ones before take long.
func (l *loop) attemptDue(c *connection) {
	if int(c.dial.next) >= len(c.plan.Targets) {
		return
	}
	if c.dial.wait > 1 {
		c.dial.wait--
	} else {
		l.attempt(c)
	}
	if c.state == connecting {
		l.attempts.push(due{l.now.Add(attemptDelay), c.slot, c.generation})
	}
}

// attempted applies an event of an attempt.
func (l *loop) attempted(c *connection, i int, events uint32) {
	fd := int(c.dial.fds[i])
	if fd == 0 {
		return
	}
	if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		err := pending(fd)
		if err == nil {
			err = syscall.ECONNRESET
		}
		l.closeAttempt(c, i)
		l.attemptFailed(c, i, err)
		l.attempt(c)
		return
	}
	if events&unix.EPOLLOUT == 0 {
		return
	}
	t := c.target(i)
	o := Outcome{Target: t}
	if t.Multipath {
		o.Fallback = !multipath(fd)
	}
	for j := range i {
		switch other := &c.plan.Targets[j]; {
		case c.dial.fds[j] == 0: // it has failed
		case other.Address != t.Address:
			o.Late = append(o.Late, other.Address)
		case other.Multipath && !t.Multipath:
			o.Silent = true
		}
	}
	l.closeAttempts(c, i)
	c.dial.won = int8(i)
	c.sides[1] = side{fd: int32(fd)}
	if t.Multipath && !o.Fallback {
		c.sides[1].transport = requested
	}
	c.sides[1].note(events)
	l.engine.options.Router.Tried(o)
	c.state, c.since, c.active = relaying, l.now, l.now
	if first := c.plan.First; len(first)+len(c.in) > 0 {
		c.flows[0].rest = append(append(make([]byte, 0, len(first)+len(c.in)), first...), c.in...)
	}
	c.in = nil
	if c.protocol != request.None {
		c.flows[1].rest = c.protocol.Succeeded(LocalAddress(fd))
	}
	l.relay(c)
}

// failureOf returns what a client is answered for an error of connecting.
func failureOf(err error) request.Failure {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return request.Refused
	case errors.Is(err, unix.ENETUNREACH):
		return request.NetworkUnreachable
	case errors.Is(err, unix.EHOSTUNREACH):
		return request.HostUnreachable
	case errors.Is(err, unix.ETIMEDOUT):
		return request.TimedOut
	default:
		return request.General
	}
}

// unreachable ends a connection all of whose targets have failed.
func (l *loop) unreachable(c *connection) {
	c.service.Counts.Failed.Add(1)
	l.refuse(c, c.protocol.Failed(failureOf(c.dial.err)), fmt.Errorf("connect to %v: %w", c.plan.Targets[0].Address, c.dial.err))
}

// expire ends a connection whose time is over.
func (l *loop) expire(c *connection) {
	switch waited := l.now.Sub(c.since); c.state {
	case reading:
		if waited >= readTimeout {
			l.malformed(c, errors.New("client sends no request in time"))
		}
	case routing, connecting:
		if waited >= connectTimeout {
			for i, fd := range c.dial.fds {
				if fd > 0 {
					l.attemptFailed(c, i, unix.ETIMEDOUT)
				}
			}
			c.service.Counts.Failed.Add(1)
			l.refuse(c, c.protocol.Failed(request.TimedOut), errors.New("no target answers in time"))
		}
	case relaying:
		if !c.probed {
			// Short connections do without.
			c.probed = true
			if err := probe(int(c.sides[1].fd), detect); err != nil {
				l.engine.log.Debug("target is not asked whether it is alive", "target", c.target(int(c.dial.won)).Address, "err", err)
			}
		}
		if l.now.Sub(c.active) >= c.service.Idle {
			c.service.Counts.Idle.Add(1)
			l.abort(c)
		}
	case closing:
		if waited >= closeTimeout {
			l.abort(c)
		}
	case closed:
	}
}
