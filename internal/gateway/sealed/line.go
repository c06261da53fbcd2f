package sealed

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/udp"
)

// line is a path of this gateway: a socket.
type line struct {
	plane  *Plane
	name   string
	device string
	port   uint16
	mark   uint32
	conf   atomic.Pointer[dataplane.Path]

	// socket sends, and receives as the one in place of which it does.
	socket atomic.Pointer[udp.Socket]
	// alive is until when a path of a peer over the line was alive, turned when the port to send from
	// changed, and listening the socket of the configured port while another one sends.
	alive     atomic.Int64
	turned    time.Duration
	listening *udp.Socket
	// source is that of messages to IPv6 addresses, nil for the kernel's choice, varied when it
	// changed. sourced: it is logged.
	source  atomic.Pointer[netip.Addr]
	varied  time.Duration
	sourced bool
	// grant is what the member of the path relays, nil if it does not. proven is when the home
	// agent last answered over it, active when packets were last sent to the home agent.
	grant          atomic.Pointer[grant]
	proven, active atomic.Int64

	ceiling ceiling
	index   int // of the interface that the socket is bound to, 0 for none
	mtu     atomic.Int32
	local   atomic.Pointer[netip.Addr] // an IPv4 address of the interface
	closed  bool

	// heard is when a message last arrived.
	heard          atomic.Int64
	sent, received count
	// carried are the bytes of IP packets in both directions, with all headers.
	carried atomic.Uint64
	// limited is the limit of carried that was reached last.
	limited atomic.Uint64

	mu  sync.Mutex // guards the following
	err string
	// last is the last error of sending or receiving, failed when it was.
	last   error
	failed time.Duration
}

// errorLifetime is for how long an error of a socket counts, and how long after its last message a
// path is known to work: longer than the pause between two handshakes.
const errorLifetime = 10 * time.Second

// openLocked opens the socket if it is not open, or belongs to an interface that is gone. The
// plane's mutex is locked.
func (l *line) openLocked() {
	p := l.plane
	if l.closed || p.ctx == nil {
		return
	}
	index, mtu := 0, 1500
	err := p.enter(func() (err error) {
		if l.device != "" {
			index, mtu, err = udp.Interface(l.device)
		}
		return err
	})
	if err == nil {
		l.mtu.Store(int32(mtu))
		if index != 0 && p.state.Probes.Compatible {
			l.findAddress(index)
		}
	}
	old := l.socket.Load()
	if err == nil && old != nil && index == l.index {
		l.checkError(p.now())
		l.turn(p.now())
		l.vary(p.now())
		return
	}
	l.closeSockets()
	if err != nil {
		l.fail(err)
		return
	}
	if err := l.listen(l.port); err != nil {
		l.fail(err)
		return
	}
	l.index, l.turned, l.varied = index, p.now(), p.now()
	l.source.Store(nil)
	l.fail(nil)
}

// listen opens a socket with a local port, which sends from now on.
func (l *line) listen(port uint16) error {
	p := l.plane
	var s *udp.Socket
	if err := p.enter(func() (err error) {
		s, err = udp.Listen(udp.Options{Local: netip.AddrPortFrom(netip.Addr{}, port), Interface: l.device, Mark: l.mark})
		return err
	}); err != nil {
		return err
	}
	l.socket.Store(s)
	p.loops.Go(func() { p.receive(l, s) })
	return nil
}

// turnAfter is for how long a line behind NAT is dead until it sends from another port, and then
// from the configured one again.
const turnAfter = 20 * time.Second

// turn has a line that is dead send from another port, or from the configured one again. A router
// may have a mapping of NAT of no use, such as to a hotel's login page or with an address that it
// no longer has, which it keeps for as long as packets use it: probes would keep it for ever.
// Messages to the configured port are received all the time.
func (l *line) turn(now time.Duration) {
	p := l.plane
	alive := time.Duration(l.alive.Load())
	if now-max(alive, l.turned) < p.turnAfter || !l.conf.Load().Usable || !p.mayTurn() || !l.translated() {
		return
	}
	first := alive > l.turned
	l.turned = now
	s := l.socket.Load()
	if l.listening != nil {
		l.socket.Store(l.listening)
		l.listening = nil
		s.Close()
		return
	}
	if err := l.listen(0); err != nil {
		p.log.Debug("open another port", "path", l.name, "err", err)
		return
	}
	l.listening = s
	if first {
		p.log.Info("line is dead, sending from other ports, too", "path", l.name)
	}
}

// sourceShare is the part of turnAfter for which a line that is dead sends from one address of IPv6.
const sourceShare = 4

// vary has a line that is dead send from another address of IPv6, if it has several, or from the
// one that the kernel selects again. That may have a prefix that is no more routed to the line: of
// a router that has got another prefix and was started again, nobody withdraws the former one
// (RFC 8978), and the kernel may prefer it until its lifetime ends.
func (l *line) vary(now time.Duration) {
	p, alive, source := l.plane, time.Duration(l.alive.Load()), l.source.Load()
	dead := now-max(alive, l.varied) >= p.turnAfter/sourceShare && l.conf.Load().Usable
	if !dead && source == nil {
		return
	}
	var all []netip.Addr
	for _, a := range l.addresses(l.index) {
		if a.Is6() && a.IsGlobalUnicast() {
			all = append(all, a)
		}
	}
	at := -1
	if source != nil {
		at = slices.Index(all, *source)
	}
	switch {
	case dead && len(all) > 1 && at+1 < len(all):
		l.source.Store(&all[at+1])
	case dead, at < 0:
		l.source.Store(nil)
	default:
		if alive > l.varied && !l.sourced {
			l.sourced = true
			p.log.Info("line was dead, and works from another address than the kernel selects", "path", l.name, "address", *source)
		}
		return
	}
	l.varied, l.sourced = now, false
}

// mayTurn reports whether lines may send from other ports than the configured one: nobody begins a
// session with that port, and no program of the kernel sends from it. The plane's mutex is locked.
func (p *Plane) mayTurn() bool {
	return !p.state.Probes.Compatible && !slices.ContainsFunc(p.state.Peers, func(r dataplane.Peer) bool {
		return len(r.Endpoints) == 0 || r.Mode.Open() || r.Alliance.Role != dataplane.NoRole
	})
}

// sharedSpace is that of NAT of providers (RFC 6598).
var sharedSpace = netip.MustParsePrefix("100.64.0.0/10")

// translated reports whether the packets of a line are translated: it has no public address of
// IPv4, but a private one.
func (l *line) translated() bool {
	private := false
	for _, a := range l.addresses(l.index) {
		switch {
		case !a.Is4():
		case a.IsPrivate() || sharedSpace.Contains(a):
			private = true
		case a.IsGlobalUnicast():
			return false
		}
	}
	return private
}

// addresses returns the addresses of the interface with this index.
func (l *line) addresses(index int) (list []netip.Addr) {
	var all []net.Addr
	if err := l.plane.enter(func() (err error) { all, err = (&net.Interface{Index: index}).Addrs(); return err }); err != nil {
		return nil // the interface is gone
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			list = append(list, p.Addr())
		}
	}
	return list
}

// closeSockets closes the sockets.
func (l *line) closeSockets() {
	if s := l.socket.Swap(nil); s != nil {
		s.Close()
	}
	if l.listening != nil {
		l.listening.Close()
		l.listening = nil
	}
}

// findAddress finds an IPv4 address of the interface with this index.
func (l *line) findAddress(index int) {
	all := l.addresses(index)
	if i := slices.IndexFunc(all, netip.Addr.Is4); i >= 0 {
		l.local.Store(&all[i])
	}
}

// address returns an IPv4 address of the interface, invalid if none is known.
func (l *line) address() netip.Addr {
	if a := l.local.Load(); a != nil {
		return *a
	}
	return netip.Addr{}
}

func (l *line) closeLocked() {
	l.closed = true
	l.closeSockets()
}

// fail records the last error of the socket, nil if it works. Only the change between the two is
// logged: which error it is differs between the addresses of peers.
func (l *line) fail(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	l.mu.Lock()
	before := l.err
	l.err = text
	l.mu.Unlock()
	switch {
	case before == "" && err != nil:
		l.plane.log.Warn("path has an error", "path", l.name, "error", err)
	case before != "" && err == nil:
		l.plane.log.Info("path has no error any more", "path", l.name)
	}
}

// failTransfer records an error of sending or receiving, which passes without a new socket.
func (l *line) failTransfer(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last, l.failed = err, l.plane.now()
}

// checkError decides whether the last error is one of the path. While messages arrive it is not: a
// peer that is reached over other paths need not have an address on this one.
func (l *line) checkError(now time.Duration) {
	l.mu.Lock()
	err := l.last
	if now-l.failed > errorLifetime || now-time.Duration(l.heard.Load()) < errorLifetime && l.heard.Load() > 0 {
		err = nil
	}
	l.mu.Unlock()
	l.fail(err)
}

// fragmentOverhead is at most what a second fragment adds: a header of IPv6, and one of fragments
// in both.
const fragmentOverhead = inet.V6Len + 2*8

// send sends datagrams.
func (l *line) send(all []udp.Datagram) {
	s := l.socket.Load()
	if s == nil {
		l.plane.counts.drop(dropNoPath, uint64(len(all)))
		return
	}
	failed, err := s.Send(all)
	if err != nil {
		if errors.Is(err, fs.ErrClosed) {
			l.plane.counts.drop(dropNoPath, uint64(failed))
			return
		}
		l.plane.counts.drop(dropSend, uint64(failed))
		if failed > 0 && failed == len(all) { // else other addresses, or shorter messages, are sent
			l.failTransfer(err)
		}
	}
	bytes, headers, lost := 0, 0, 0
	for i := range all {
		header := ipUDP(all[i].To)
		if all[i].Fragment {
			header += fragmentOverhead
		}
		bytes, headers = bytes+len(all[i].Data), headers+header
		if all[i].Failed {
			lost += len(all[i].Data) + header
		}
	}
	l.sent.add(len(all), bytes)
	l.carry(bytes + headers - lost)
	if rate := l.strict(); rate > 0 {
		l.ceiling.charge(l.plane.now(), rate.TimeFor(unit.Size(bytes+headers)))
	}
}

// carry counts bytes of IP packets.
func (l *line) carry(bytes int) {
	carried, limit := l.carried.Add(uint64(bytes)), l.conf.Load().Limit
	if limit.Carried == 0 || carried < limit.Carried || l.limited.Load() == limit.Carried || l.limited.Swap(limit.Carried) == limit.Carried {
		return
	}
	select {
	case limit.Reached <- struct{}{}:
	default:
	}
}

// ipUDP returns the length of the headers of IP and UDP between this gateway and an address.
func ipUDP(a netip.AddrPort) int {
	if a.Addr().Unmap().Is4() {
		return inet.UDP4Len
	}
	return inet.UDP6Len
}

// strict returns the rate from this gateway that is never to be exceeded, 0 if there is none.
func (l *line) strict() unit.Bandwidth {
	if c := l.conf.Load(); c.Strict && !c.Up.Estimated {
		return c.Up.Bandwidth
	}
	return 0
}

// free returns from when on packets of queues may be sent on the line: with a strict rate, the
// packets of all peers, control messages and what is relayed add up to it.
func (l *line) free() time.Duration {
	if l == nil || l.strict() == 0 {
		return 0
	}
	return l.ceiling.at()
}

// ceiling accounts for all that is sent on a line with a strict rate.
type ceiling struct {
	sync.Mutex
	free time.Duration // when the line has sent all that it was given
}

// ceilingBurst is how much time of the rate is not lost when packets are sent late.
const ceilingBurst = 2 * time.Millisecond

// charge accounts for messages that take the line so long.
func (c *ceiling) charge(now, took time.Duration) {
	c.Lock()
	defer c.Unlock()
	c.free = max(c.free, now-ceilingBurst) + took
}

func (c *ceiling) at() time.Duration {
	c.Lock()
	defer c.Unlock()
	return c.free
}

// careOf returns the address of the line that a peer may know it by: the first global one of its
// interface, unspecified if there is none.
func (l *line) careOf(v4 bool) netip.AddrPort {
	found := netip.IPv6Unspecified()
	s := l.socket.Load()
	if s == nil {
		return netip.AddrPortFrom(found, 0)
	}
	// An error leaves the address unspecified.
	_ = l.plane.enter(func() error {
		device, err := net.InterfaceByName(l.device)
		if err != nil {
			return err
		}
		list, err := device.Addrs()
		for _, a := range list {
			p, parsed := netip.ParsePrefix(a.String())
			if parsed == nil && p.Addr().Is4() == v4 && p.Addr().IsGlobalUnicast() {
				found = p.Addr()
				break
			}
		}
		return err
	})
	return netip.AddrPortFrom(found, s.Local().Port())
}
