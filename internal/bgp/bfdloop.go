package bgp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// bfdPort and the range of source ports are RFC 5881 section 4's.
	bfdPort       = 3784
	bfdSourceLow  = 49152
	bfdSourceHigh = 65535
	// bfdHops is what a neighbor on the link sends with; whoever is farther away cannot (RFC 5881 section 5, RFC 5082).
	bfdHops = 255
	// bfdClass is CS6, network control (RFC 4594 section 3.1).
	bfdClass = 0xc0

	// bfdPending is how many packets wait for a session's loop; a neighbor that sends more loses some.
	bfdPending = 16
	// bfdLastLook is how long a silent neighbor is given once its time is up, so that what is in the socket already counts.
	bfdLastLook = 2 * time.Millisecond
	// bfdLate is how late a loop may run before it takes the neighbor's silence for its own: the process, or the whole
	// host, stood still. It then gives the neighbor its full time again. Half an interval counts where that is longer.
	bfdLate = 10 * time.Millisecond
)

// bfdWatch runs the BFD sessions of a speaker.
type bfdWatch struct {
	log  *slog.Logger
	lost func(neighbor string)

	mu        sync.Mutex
	listeners map[netip.Addr]*bfdListener // by local address
	peers     map[string]*bfdPeer         // by the neighbor's name
}

func newBFDWatch(log *slog.Logger, lost func(string)) *bfdWatch {
	return &bfdWatch{log: log, lost: lost, listeners: map[netip.Addr]*bfdListener{}, peers: map[string]*bfdPeer{}}
}

// bfdListener receives for all sessions of one local address.
type bfdListener struct {
	local netip.Addr
	conn  *net.UDPConn
	done  chan struct{}

	mu    sync.Mutex
	peers map[netip.Addr]*bfdPeer // by remote address
}

// bfdPeer is a session and its loop.
type bfdPeer struct {
	name          string
	local, remote netip.Addr // remote with zone
	packets       chan bfdPacket
	stop, done    chan struct{}
	up            atomic.Bool
}

// add begins to watch a neighbor that asks for it.
func (w *bfdWatch) add(n *neighbor) error {
	if n.BFD == (BFD{}) {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.peers[n.Name] != nil {
		return nil
	}
	local := netip.IPv6Unspecified()
	if n.LocalAddress.IsValid() {
		local = n.LocalAddress.WithZone(n.Interface)
	}
	l := w.listeners[local]
	if l == nil {
		var err error
		if l, err = listenBFD(local); err != nil {
			return err
		}
		w.listeners[local] = l
	}
	p := &bfdPeer{
		name: n.Name, local: local, remote: n.key, packets: make(chan bfdPacket, bfdPending),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	w.peers[n.Name] = p
	l.mu.Lock()
	l.peers[n.key] = p
	l.mu.Unlock()
	session := newBFDSession(n.BFD, rand.Uint32N(1<<32-1)+1, rand.Float64)
	go p.run(session, w)
	return nil
}

// remove stops to watch a neighbor, and tells it so.
func (w *bfdWatch) remove(name string) {
	w.mu.Lock()
	p := w.peers[name]
	var l *bfdListener
	if p != nil {
		delete(w.peers, name)
		l = w.listeners[p.local]
		l.mu.Lock()
		delete(l.peers, p.remote)
		last := len(l.peers) == 0
		l.mu.Unlock()
		if last {
			delete(w.listeners, p.local)
		} else {
			l = nil
		}
	}
	w.mu.Unlock()
	if p != nil {
		close(p.stop)
		<-p.done
	}
	if l != nil {
		l.close()
	}
}

func (w *bfdWatch) stop() {
	w.mu.Lock()
	var names []string
	for name := range w.peers {
		names = append(names, name)
	}
	w.mu.Unlock()
	for _, name := range names {
		w.remove(name)
	}
}

func (w *bfdWatch) isUp(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.peers[name]
	return p != nil && p.up.Load()
}

func listenBFD(local netip.Addr) (*bfdListener, error) {
	config := net.ListenConfig{Control: onSocket(func(fd int) error {
		// Another daemon of this host may listen on another address, or on all of them.
		return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1))
	})}
	conn, err := config.ListenPacket(context.Background(), "udp6", netip.AddrPortFrom(local, bfdPort).String())
	if err != nil {
		return nil, fmt.Errorf("listen for bfd: %w", err)
	}
	l := &bfdListener{local: local, conn: conn.(*net.UDPConn), done: make(chan struct{}), peers: map[netip.Addr]*bfdPeer{}}
	go l.run()
	return l, nil
}

// onSocket makes a dialer's or listener's Control of a function of the file descriptor.
func onSocket(f func(fd int) error) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = f(int(fd)) }); e != nil {
			return e
		}
		return err
	}
}

func (l *bfdListener) close() {
	_ = l.conn.Close() // ends the read
	<-l.done
}

// run hands packets to the sessions. What is not for one of them is dropped without a word: anybody may send it.
func (l *bfdListener) run() {
	defer close(l.done)
	b, control := make([]byte, 256), make([]byte, 128)
	for {
		n, nc, _, from, err := l.conn.ReadMsgUDPAddrPort(b, control)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || hopLimit(control[:nc]) != bfdHops {
			continue
		}
		packet, err := decodeBFD(b[:n])
		if err != nil {
			continue
		}
		l.mu.Lock()
		p := l.peers[from.Addr()]
		if p == nil {
			p = l.peers[from.Addr().WithZone("")]
		}
		l.mu.Unlock()
		if p == nil {
			continue
		}
		select {
		case p.packets <- packet:
		default:
		}
	}
}

// hopLimit is what the packet arrived with; -1 when the kernel does not say.
func hopLimit(control []byte) int {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return -1
	}
	for _, m := range messages {
		if m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_HOPLIMIT && len(m.Data) >= 4 {
			return int(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return -1
}

// run is a session's loop until stop.
func (p *bfdPeer) run(s *bfdSession, w *bfdWatch) {
	defer close(p.done)
	out := &bfdSender{local: p.local, remote: p.remote}
	defer out.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var looked bool // once more, after the neighbor's time was up
	wake := time.Now()
	for {
		var answers []bfdPacket
		change := bfdSame
		take := func(packet bfdPacket) {
			c, answer := s.receive(time.Now(), packet)
			change, looked = max(change, c), false
			if answer {
				answers = append(answers, s.packet(time.Now(), packet.poll))
			}
		}
		select {
		case <-p.stop:
			out.send(s.farewell(time.Now()))
			return
		case packet := <-p.packets:
			take(packet)
		case <-timer.C:
		}
		for pending := true; pending; {
			select {
			case packet := <-p.packets:
				take(packet)
			default:
				pending = false
			}
		}
		now := time.Now()
		if now.Sub(wake) > max(s.interval/2, bfdLate) {
			s.missed(now)
		}
		switch d := s.deadline(); {
		case d.IsZero() || now.Before(d):
			looked = false
		case looked:
			change, looked = max(change, s.expire(now)), false
		default:
			looked = true
		}
		for _, a := range answers {
			out.send(a)
		}
		if due := s.due(); !due.IsZero() && !now.Before(due) {
			out.send(s.packet(now, false))
		}
		p.tell(change, s, w)
		wake = next(s, now, looked)
		timer.Reset(time.Until(wake))
	}
}

// tell says what has become of the neighbor.
func (p *bfdPeer) tell(change bfdChange, s *bfdSession, w *bfdWatch) {
	p.up.Store(s.state == bfdUp)
	switch change {
	case bfdCame:
		w.log.Info("bfd watches neighbor", "neighbor", p.name)
	case bfdLeft:
		w.log.Info("neighbor switched bfd off", "neighbor", p.name)
	case bfdLost:
		// The speaker may be busy, or waiting for this loop to end.
		go w.lost(p.name)
	}
}

// next is when the loop has something to do at the latest.
func next(s *bfdSession, now time.Time, looked bool) time.Time {
	wake := now.Add(bfdSlow)
	if due := s.due(); !due.IsZero() && due.Before(wake) {
		wake = due
	}
	d := s.deadline()
	if looked {
		d = now.Add(bfdLastLook)
	}
	if !d.IsZero() && d.Before(wake) {
		wake = d
	}
	return wake
}

// bfdSender sends to one neighbor. It opens its socket when it can: the address or the route may come later.
type bfdSender struct {
	local, remote netip.Addr
	conn          net.Conn
}

func (b *bfdSender) send(p bfdPacket) {
	if b.conn == nil {
		// Any port of the range will do; one that is taken is tried again with the next packet.
		source := netip.AddrPortFrom(b.local, uint16(bfdSourceLow+rand.IntN(bfdSourceHigh-bfdSourceLow+1)))
		dialer := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(source), Control: onSocket(func(fd int) error {
			return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, bfdHops),
				unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, bfdClass))
		})}
		conn, err := dialer.Dial("udp6", netip.AddrPortFrom(b.remote, bfdPort).String())
		if err != nil {
			return
		}
		b.conn = conn
	}
	// A neighbor without BFD answers with an ICMP error, which says nothing of the next packet.
	if _, err := b.conn.Write(p.encode()); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
		b.close() // the source address may have changed
	}
}

func (b *bfdSender) close() {
	if b.conn != nil {
		_ = b.conn.Close()
		b.conn = nil
	}
}
