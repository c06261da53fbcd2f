package bfd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/contain"
)

const (
	// port and the range of source ports are those of RFC 5881 section 4.
	port       = 3784
	sourceLow  = 49152
	sourceHigh = 65535
	// hopLimit is sent, and required of received packets (GTSM, RFC 5881 section 5, RFC 5082).
	hopLimit = 255
	// trafficClass is CS6, network control (RFC 4594 section 3.1).
	trafficClass = 0xc0

	// rxBacklog is how many received packets a session may have pending; more are dropped.
	rxBacklog = 16
	// graceTime is how long the loop waits once more after the detection time expired, so that a
	// packet that is already in the socket counts.
	graceTime = 2 * time.Millisecond
	// maxLateness is how late a loop may wake before its own delay, a stopped process or host,
	// explains the silence; the detection time then begins again. Half an interval counts where
	// that is longer.
	maxLateness = 10 * time.Millisecond
)

// engine runs the sessions over UDP sockets. It is safe for concurrent use.
type engine struct {
	// report is called by the session's loop, which it must not block, fault with a panic, and
	// ignored, unless it is nil, with the reason why packets of a neighbor are ignored.
	report  func(neighbor string, t transition)
	fault   func(error)
	ignored func(neighbor, reason string)

	mu        sync.Mutex
	listeners map[netip.Addr]*listener // by local address
	peers     map[string]*peer         // by name
	// all are the values of peers, for the helpers, which must not wait for mu.
	all atomic.Pointer[[]*peer]

	dead atomic.Bool // neighbors of sessions that end learn that this end is dead
}

func newEngine(report func(string, transition), fault func(error)) *engine {
	return &engine{report: report, fault: fault, listeners: map[netip.Addr]*listener{}, peers: map[string]*peer{}}
}

// Neighbor is one neighbor to monitor.
type Neighbor struct {
	Name string // unique
	// Local and Remote are addresses of one family, link-local ones with zone. An invalid Local is
	// any address.
	Local, Remote netip.Addr
	Config
}

// listener receives for all sessions of one local address.
type listener struct {
	local netip.Addr
	conn  *net.UDPConn
	fault func(error)
	done  chan struct{}

	mu      sync.Mutex
	peers   map[netip.Addr]*peer // by remote address
	ignored func(neighbor, reason string)
}

// peer is a session and its loop.
type peer struct {
	name          string
	local, remote netip.Addr // remote with zone
	packets       chan packet
	stop, done    chan struct{}
	out           sender
	// warned is when it was last reported that packets are ignored. Its listener has it.
	warned time.Time
}

// add starts a session.
func (e *engine) add(n Neighbor) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.peers[n.Name] != nil {
		return fmt.Errorf("neighbor %q has a bfd session", n.Name)
	}
	local := n.Local
	switch {
	case local.IsValid():
	case n.Remote.Is4():
		local = netip.IPv4Unspecified()
	default:
		local = netip.IPv6Unspecified()
	}
	l := e.listeners[local]
	if l == nil {
		var err error
		if l, err = listen(local, e.fault); err != nil {
			return err
		}
		e.listeners[local] = l
	}
	p := &peer{
		name: n.Name, local: local, remote: n.Remote, packets: make(chan packet, rxBacklog),
		stop: make(chan struct{}), done: make(chan struct{}), out: sender{local: local, remote: n.Remote},
	}
	e.peers[n.Name] = p
	e.publish()
	l.mu.Lock()
	l.peers[n.Remote], l.ignored = p, e.ignored
	l.mu.Unlock()
	go p.run(n.Config, e)
	return nil
}

// publish sets all. Callers hold mu.
func (e *engine) publish() {
	all := slices.Collect(maps.Values(e.peers))
	e.all.Store(&all)
}

// remove ends a session, which it signals to the neighbor as AdminDown. Unknown names are ignored.
func (e *engine) remove(name string) {
	e.mu.Lock()
	p := e.peers[name]
	var unused *listener
	if p != nil {
		delete(e.peers, name)
		e.publish()
		l := e.listeners[p.local]
		l.mu.Lock()
		delete(l.peers, p.remote)
		if len(l.peers) == 0 {
			delete(e.listeners, p.local)
			unused = l
		}
		l.mu.Unlock()
	}
	e.mu.Unlock()
	if p != nil {
		close(p.stop)
		<-p.done
	}
	if unused != nil {
		unused.close()
	}
}

// die ends all sessions, whose neighbors learn that this end is dead.
func (e *engine) die() {
	e.dead.Store(true)
	e.mu.Lock()
	names := slices.Collect(maps.Keys(e.peers))
	e.mu.Unlock()
	for _, name := range names {
		e.remove(name)
	}
}

// options are how the sockets of a family send and receive.
type options struct {
	network string
	// level is that of the others: to receive hop limits, to set them, and the traffic class. hops
	// is the type of the control message with the hop limit of a received packet.
	level, receive, hops, send, class int
}

// optionsOf returns those of the address's family. An IPv6 socket receives no IPv4 packets.
func optionsOf(a netip.Addr) options {
	if a.Is4() {
		return options{"udp4", unix.IPPROTO_IP, unix.IP_RECVTTL, unix.IP_TTL, unix.IP_TTL, unix.IP_TOS}
	}
	return options{"udp6", unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, unix.IPV6_HOPLIMIT, unix.IPV6_UNICAST_HOPS, unix.IPV6_TCLASS}
}

func listen(local netip.Addr, fault func(error)) (*listener, error) {
	o := optionsOf(local)
	config := net.ListenConfig{Control: onSocket(func(fd int) error {
		// Another daemon of this host may listen on another address, or on all of them.
		return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.SetsockoptInt(fd, o.level, o.receive, 1))
	})}
	conn, err := config.ListenPacket(context.Background(), o.network, netip.AddrPortFrom(local, port).String())
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		err = fmt.Errorf("%w: no interface has this address yet; add the address to an interface first", err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen for bfd: %w", err)
	}
	l := &listener{local: local, conn: conn.(*net.UDPConn), fault: fault, done: make(chan struct{}), peers: map[netip.Addr]*peer{}}
	go l.run()
	return l, nil
}

// onSocket turns a function of the file descriptor into the Control of a dialer or listener.
func onSocket(f func(fd int) error) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = f(int(fd)) }); e != nil {
			return e
		}
		return err
	}
}

func (l *listener) close() {
	_ = l.conn.Close() // unblocks the read
	<-l.done
}

// run passes packets to the sessions. What belongs to none of them is dropped silently: anybody may
// send it.
func (l *listener) run() {
	defer close(l.done)
	b, control := make([]byte, 256), make([]byte, 128)
	for {
		n, nc, _, from, err := l.conn.ReadMsgUDPAddrPort(b, control)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		if err := contain.Do(contain.BFD, faults, b[:n], func() { l.take(b[:n], control[:nc], from.Addr()) }); err != nil {
			l.fault(err)
		}
	}
}

// warnAgain is the least time between two reports that packets of a neighbor are ignored.
const warnAgain = 10 * time.Minute

// take passes a packet to its session.
func (l *listener) take(b, control []byte, from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.peers[from]
	if p == nil {
		p = l.peers[from.WithZone("")]
	}
	if p == nil {
		return
	}
	packet, err := decode(b)
	if hops := optionsOf(l.local).receivedHopLimit(control); hops != hopLimit {
		err = fmt.Errorf("the hop limit is %d instead of %d: they were forwarded", hops, hopLimit)
	}
	if err != nil {
		if now := time.Now(); l.ignored != nil && now.Sub(p.warned) > warnAgain {
			p.warned = now
			l.ignored(p.name, err.Error())
		}
		return
	}
	select {
	case p.packets <- packet:
	default:
	}
}

// faults logs the panics of this process where the daemon logs.
var faults = slog.New(slog.NewTextHandler(os.Stderr, nil))

// receivedHopLimit returns the hop limit of a received packet, -1 if the kernel did not report it.
func (o options) receivedHopLimit(control []byte) int {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return -1
	}
	for _, m := range messages {
		if int(m.Header.Level) == o.level && int(m.Header.Type) == o.hops && len(m.Data) >= 4 {
			return int(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return -1
}

// run runs a session until stop. One that panics is down, and begins again after a pause.
func (p *peer) run(conf Config, e *engine) {
	defer close(p.done)
	for {
		err := contain.Do(contain.BFD, faults, nil, func() {
			p.session(newSession(conf, rand.Uint32N(1<<32-1)+1, rand.Float64), e)
		})
		if err == nil {
			return
		}
		e.fault(err)
		e.report(p.name, wentDown)
		select {
		case <-p.stop:
			return
		case <-time.After(restartPause):
		}
	}
}

// session is a session's loop until stop.
func (p *peer) session(s *session, e *engine) {
	out := &p.out
	defer out.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var grace bool // the detection time expired, graceTime runs
	wake := time.Now()
	for {
		var replies []packet
		var changes []transition
		receive := func(in packet) {
			change, reply := s.receive(time.Now(), in)
			changes, grace = append(changes, change), false
			if reply {
				replies = append(replies, s.packet(time.Now(), in.poll))
			}
		}
		select {
		case <-p.stop:
			if e.dead.Load() {
				out.send(s.fail(time.Now()))
			} else {
				out.send(s.disable(time.Now()))
			}
			return
		case in := <-p.packets:
			contain.PointAt(contain.BFD, p.remote)
			receive(in)
		case <-timer.C:
		}
		for pending := true; pending; {
			select {
			case in := <-p.packets:
				receive(in)
			default:
				pending = false
			}
		}
		now := time.Now()
		if now.Sub(wake) > max(s.interval/2, maxLateness) {
			s.restartDetection(now)
		}
		switch deadline := s.deadline(); {
		case deadline.IsZero() || now.Before(deadline):
			grace = false
		case grace:
			changes, grace = append(changes, s.expire(now)), false
		default:
			grace = true
		}
		out.every = s.every()
		for _, r := range replies {
			out.send(r)
		}
		if due := s.nextSend(); !due.IsZero() && !now.Before(due) {
			out.send(s.packet(now, false))
		}
		for _, t := range changes { // each of them: the session may have come up again
			if t != unchanged {
				e.report(p.name, t)
			}
		}
		wake = nextWake(s, now, grace)
		timer.Reset(time.Until(wake))
	}
}

// nextWake is when the loop has to run again at the latest.
func nextWake(s *session, now time.Time, grace bool) time.Time {
	wake := now.Add(slowInterval)
	if due := s.nextSend(); !due.IsZero() && due.Before(wake) {
		wake = due
	}
	deadline := s.deadline()
	if grace {
		deadline = now.Add(graceTime)
	}
	if !deadline.IsZero() && deadline.Before(wake) {
		wake = deadline
	}
	return wake
}

// sender sends to one neighbor. It opens its socket with the first packet, and again after an
// error: the address or the route may come later.
type sender struct {
	local, remote netip.Addr
	conn          net.Conn
	beat          beat
	every         time.Duration // between packets; 0: the neighbor wants none
}

func (o *sender) send(p packet) {
	if o.conn == nil {
		// A port that is in use is replaced by another one with the next packet.
		source := netip.AddrPortFrom(o.local, uint16(sourceLow+rand.IntN(sourceHigh-sourceLow+1)))
		family := optionsOf(o.remote)
		dialer := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(source), Control: onSocket(func(fd int) error {
			return errors.Join(unix.SetsockoptInt(fd, family.level, family.send, hopLimit),
				unix.SetsockoptInt(fd, family.level, family.class, trafficClass))
		})}
		conn, err := dialer.Dial(family.network, netip.AddrPortFrom(o.remote, port).String())
		if err != nil {
			return
		}
		o.conn = conn
	}
	// A neighbor without BFD answers with an ICMP error, which says nothing about the next packet.
	o.beat.set(o.conn, p, o.every, time.Now())
	if _, err := o.conn.Write(p.encode()); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
		o.close() // the source address may have changed
	}
}

func (o *sender) close() {
	o.beat.clear()
	if o.conn != nil {
		_ = o.conn.Close()
		o.conn = nil
	}
}
