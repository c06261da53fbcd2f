package acceptance

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/afpacket"
)

const (
	// propagation is how long packets may still leave to a peer after it withdrew a route: the
	// peer's reload, its UPDATE, the decision of the border router and the change in its
	// kernel. Nothing waits for a timer on that way, so it takes milliseconds; the rest is for
	// a machine on which other work delays every process.
	propagation = 500 * time.Millisecond
	// staleAfterRestart is how long the next instance of a killed border router keeps the routes
	// that it found in the kernel, as a router that restarts gracefully (RFC 4724 section 4.1)
	// does: until all sessions have been up for 10 s. It knows of withdrawals from sessionTime on.
	staleAfterRestart = 20 * time.Second
	sessionTime       = 5 * time.Second
)

// egressNet is a content provider's network with its egress peers.
type egressNet struct {
	peers   []egressPeer
	servers []egressServer
	// inside is a host on the link lan that is neither a server nor a border router, with an
	// address of it.
	inside                        string
	insideAddress, insideAddress4 netip.Addr
	// own is space that no packet may leave for, whatever the peers advertise.
	own []netip.Prefix
	// targets are the destinations of packets.
	targets []string
}

// egressPeer is an egress peer: its node, whose link to the border router is csp, the border router
// with its link to the peer, the prefix of that link, the peer's EPE address on each server, and
// its SID. What ends in 4 is of IPv4. direct: its SIDs are End.DX6 and End.DX4, so that its border
// router sends it whatever arrives for them, without a lookup of the destination.
type egressPeer struct {
	name, border, link string
	lan, lan4          string
	epe, epe4          []string
	sid, sid4          string
	direct             bool
}

type egressServer struct{ name, address, address4 string }

// of returns the first or the second of two values, for IPv6 or IPv4.
func of[V any](family netip.Addr, v6, v4 V) V {
	if family.Is4() {
		return v4
	}
	return v6
}

// kind is how a packet was sent.
type kind byte

const (
	other     kind = iota // not by the test: errors of ICMPv6 and all else
	fromEPE               // by a server, from the EPE address of a peer
	toSID                 // by a host inside, encapsulated, to the SID of a peer
	best                  // by a server, from its default address
	forgedEPE             // by a host inside, from an EPE address, to a border router
	intruding             // by a peer
	kinds
)

func (k kind) String() string {
	return [...]string{"other", "from an EPE address", "to a SID", "by the best path", "forged inside", "from a peer"}[k]
}

// sighting is a packet on its way to a peer.
type sighting struct {
	at       time.Time
	peer     int
	kind     kind
	origin   int // the peer of the EPE address or SID, or that sent the packet
	src, dst netip.Addr
	next     byte // the upper layer of a packet that is none of the test's
}

// interval is when something was so; a zero end is not yet.
type interval struct{ from, to time.Time }

// egressJudge captures what arrives at each egress peer and compares it with what the peers
// advertised: no packet may arrive at a peer that did not advertise its destination.
type egressJudge struct {
	*lab
	net egressNet
	// history is when each peer advertised each prefix, down when the daemon of a border router or
	// of a server was not running, frozen when that of a server was stopped, unguarded when packets
	// from peers were not filtered, by border router, or by peer. released is when a peer's EPE
	// address was none of a server's.
	history   []map[string][]interval
	down      map[string][]interval
	frozen    map[string][]interval
	unguarded map[string][]interval
	released  map[int][]interval

	mu   sync.Mutex
	seen []sighting
	sent [kinds]atomic.Int64

	machine *machineLoad
	// delivers: packets from the default addresses of servers are delivered through egress peers.
	delivers bool
}

// judge captures what arrives at the egress peers until the test ends.
func (l *lab) judge(n egressNet) *egressJudge {
	l.t.Helper()
	j := &egressJudge{lab: l, net: n, machine: watchMachine(l.t), down: map[string][]interval{}, frozen: map[string][]interval{}, unguarded: map[string][]interval{}, released: map[int][]interval{}}
	for i := range n.peers {
		j.history = append(j.history, map[string][]interval{})
		j.capture(l.t, i)
	}
	return j
}

// advertises notes what a peer advertises from some time on.
func (j *egressJudge) advertises(peer int, prefixes []string, from time.Time) {
	history := j.history[peer]
	for prefix, h := range history {
		if last := &h[len(h)-1]; last.to.IsZero() && !slices.Contains(prefixes, prefix) {
			last.to = from
		}
	}
	for _, prefix := range prefixes {
		if h := history[prefix]; len(h) == 0 || !h[len(h)-1].to.IsZero() {
			history[prefix] = append(h, interval{from: from})
		}
	}
}

// goesDown and comesUp note when the daemon of a border router or of a server does not run.
func (j *egressJudge) goesDown(node string) {
	j.down[node] = append(j.down[node], interval{from: time.Now()})
}

func (j *egressJudge) comesUp(node string) {
	d := j.down[node]
	d[len(d)-1].to = time.Now()
}

// destination returns that of an IPv4 or IPv6 packet, and what follows the header if that is no
// upper layer.
func destination(b []byte) (dst netip.Addr, text []byte, ok bool) {
	switch {
	case len(b) >= 40 && b[0]>>4 == 6:
		dst = netip.AddrFrom16([16]byte(b[24:40]))
		if b[6] == unix.IPPROTO_NONE {
			text = b[40:min(len(b), 40+int(binary.BigEndian.Uint16(b[4:])))] // a wire pads short frames
		}
	case len(b) >= 20 && b[0] == 0x45:
		dst = netip.AddrFrom4([4]byte(b[16:20]))
		if b[9] == unix.IPPROTO_NONE {
			text = b[20:max(20, min(len(b), int(binary.BigEndian.Uint16(b[2:]))))]
		}
	}
	return dst, text, dst.IsValid()
}

// capture records the packets that arrive at a peer until the test ends.
func (j *egressJudge) capture(t *testing.T, peer int) {
	t.Helper()
	p := j.net.peers[peer]
	lans := []netip.Prefix{netip.MustParsePrefix(p.lan)}
	if p.lan4 != "" {
		lans = append(lans, netip.MustParsePrefix(p.lan4))
	}
	var socket *afpacket.Socket
	j.in(t, p.name, func() error {
		link, err := net.InterfaceByName("csp")
		if err != nil {
			return err
		}
		socket, err = afpacket.Open(afpacket.Options{Interface: link.Index, Cooked: true})
		return err
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- socket.Run(ctx, afpacket.Handler{Packet: func(q afpacket.Packet) error {
			dst, text, ok := destination(q.Data)
			if q.Sent || !ok || dst.IsMulticast() || dst.IsLinkLocalUnicast() ||
				slices.ContainsFunc(lans, func(lan netip.Prefix) bool { return lan.Contains(dst) }) {
				return nil // of the link: neighbor discovery, BGP
			}
			s := sighting{at: q.At, peer: peer, dst: dst}
			if text, ok := bytes.CutPrefix(text, marker); ok && len(text) == 2 {
				s.kind, s.origin = kind(text[0]), int(text[1])
			}
			if s.src, s.next = netip.AddrFrom4([4]byte(q.Data[12:16])), q.Data[9]; dst.Is6() {
				s.src, s.next = netip.AddrFrom16([16]byte(q.Data[8:24])), q.Data[6]
			}
			j.mu.Lock()
			defer j.mu.Unlock()
			j.seen = append(j.seen, s)
			return nil
		}})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		if n := socket.Dropped(); n > 0 {
			t.Errorf("the capture at %s lost %d packets", p.name, n)
		}
		if err := socket.Close(); err != nil {
			t.Error(err)
		}
	})
}

// sender sends packets from a node.
type sender func(b []byte, dst netip.Addr) error

// raw returns a sender of packets without upper layer from an address of a node, which the node
// routes itself.
func (j *egressJudge) raw(t *testing.T, node, src string) sender {
	t.Helper()
	socketAddress := func(a netip.Addr) unix.Sockaddr {
		if a.Is4() {
			return &unix.SockaddrInet4{Addr: a.As4()}
		}
		return &unix.SockaddrInet6{Addr: a.As16()}
	}
	var fd int
	from := netip.MustParseAddr(src)
	j.in(t, node, func() (err error) {
		if fd, err = unix.Socket(of(from, unix.AF_INET6, unix.AF_INET), unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_NONE); err != nil {
			return err
		}
		return unix.Bind(fd, socketAddress(from))
	})
	t.Cleanup(func() { unix.Close(fd) })
	return func(b []byte, dst netip.Addr) error {
		err := unix.Sendto(fd, b, 0, socketAddress(dst))
		for _, unroutable := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EAGAIN, unix.ENOBUFS} {
			if errors.Is(err, unroutable) {
				return nil
			}
		}
		return err
	}
}

// frames returns a sender of whole packets to the link-layer address of a neighbor.
func (j *egressJudge) frames(t *testing.T, node, link, to, toLink string) sender {
	t.Helper()
	at := &unix.SockaddrLinklayer{Halen: 6}
	j.in(t, to, func() error {
		link, err := net.InterfaceByName(toLink)
		if err == nil {
			copy(at.Addr[:], link.HardwareAddr)
		}
		return err
	})
	var fd int
	j.in(t, node, func() error {
		link, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		at.Ifindex = link.Index
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	})
	t.Cleanup(func() { unix.Close(fd) })
	return func(b []byte, _ netip.Addr) error {
		protocol := []byte{0x86, 0xdd}
		if b[0]>>4 == 4 {
			protocol = []byte{0x08, 0x00}
		}
		at.Protocol = binary.NativeEndian.Uint16(protocol)
		err := unix.Sendto(fd, b, 0, at)
		if errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENXIO) {
			return nil // the link flaps
		}
		return err
	}
}

// traffic sends packets of all kinds until the function that it returns is called.
func (j *egressJudge) traffic(t *testing.T, seed uint64) (stop func()) {
	t.Helper()
	var server, server4, toBorder, fromPeer []sender
	epe, epe4 := make([][]sender, len(j.net.peers)), make([][]sender, len(j.net.peers))
	for i, p := range j.net.peers {
		for m, s := range j.net.servers {
			epe[i] = append(epe[i], j.raw(t, s.name, p.epe[m]))
			if p.epe4 != nil {
				epe4[i] = append(epe4[i], j.raw(t, s.name, p.epe4[m]))
			}
		}
		toBorder = append(toBorder, j.frames(t, j.net.inside, "lan", p.border, "lan"))
		fromPeer = append(fromPeer, j.frames(t, p.name, "csp", p.border, p.link))
	}
	for _, s := range j.net.servers {
		server = append(server, j.raw(t, s.name, s.address))
		if s.address4 != "" {
			server4 = append(server4, j.raw(t, s.name, s.address4))
		}
	}
	random := rand.New(rand.NewPCG(seed, 1))
	address := func(list []string) netip.Addr { return netip.MustParseAddr(list[random.IntN(len(list))]) }
	send := func() error {
		i, dst := random.IntN(len(j.net.peers)), address(j.net.targets)
		p := j.net.peers[i]
		k := fromEPE + kind(random.IntN(int(kinds-fromEPE)))
		text := append(slices.Clone(marker), byte(k), byte(i))
		m, forged := random.IntN(len(server)), j.net.peers[random.IntN(len(j.net.peers))]
		j.sent[k].Add(1)
		switch k {
		case fromEPE:
			return of(dst, epe, epe4)[i][m](text, dst)
		case toSID:
			inner := bare(of(dst, j.net.insideAddress, j.net.insideAddress4), dst, text)
			return toBorder[i](inIP6(j.net.insideAddress, netip.MustParseAddr(of(dst, p.sid, p.sid4)), inner), dst)
		case best:
			return of(dst, server, server4)[m](text, dst)
		case forgedEPE:
			return toBorder[i](bare(netip.MustParseAddr(of(dst, forged.epe, forged.epe4)[m]), dst, text), dst)
		default:
			sources := []string{of(dst, p.epe, p.epe4)[m], of(dst, j.net.servers[m].address, j.net.servers[m].address4)}
			for _, target := range j.net.targets {
				if netip.MustParseAddr(target).Is4() == dst.Is4() {
					sources = append(sources, target)
				}
			}
			src := address(sources)
			plain := bare(src, dst, text)
			if random.IntN(2) == 0 {
				plain = inIP6(of(dst, src, j.net.insideAddress), netip.MustParseAddr(of(dst, forged.sid, forged.sid4)), plain)
			}
			return fromPeer[i](plain, dst)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := send(); err != nil {
				t.Errorf("send: %v", err)
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		cancel()
		<-done
		time.Sleep(100 * time.Millisecond) // what was sent arrives
	})
}

// keepers returns the nodes whose daemons have to follow a withdrawal before a packet no longer
// arrives: the border router of the peer, and the server alone if that does not look up
// destinations.
func (j *egressJudge) keepers(s sighting) []string {
	p := j.net.peers[s.peer]
	nodes := []string{p.border}
	for m, server := range j.net.servers {
		if own := of(s.src, server.address, server.address4); p.direct && (s.src.String() == of(s.src, p.epe, p.epe4)[m] || j.delivers && s.src.String() == own) {
			nodes = append(nodes, server.name)
		}
	}
	return nodes
}

// kept returns until when nodes may have a route that was withdrawn. Routes that are withdrawn
// while a daemon is down are kept by its next instance, see staleAfterRestart; a frozen one applies
// withdrawals when it runs again.
func (j *egressJudge) kept(nodes []string, withdrawn time.Time) time.Time {
	end := withdrawn
	for _, node := range nodes {
		for _, d := range j.down[node] {
			if stale := d.to.Add(staleAfterRestart); withdrawn.Add(propagation).After(d.from) && withdrawn.Before(d.to.Add(sessionTime)) && stale.After(end) {
				end = stale
			}
		}
		for _, f := range j.frozen[node] {
			if withdrawn.Add(propagation).After(f.from) && f.to.After(end) {
				end = f.to
			}
		}
	}
	return end
}

// lateness returns how long after the last withdrawal of all prefixes of a peer that cover an
// address a packet was seen, or after the withdrawn route was no longer kept: 0 until then. Time
// during which the machine stalled does not count.
func (j *egressJudge) lateness(s sighting) (late time.Duration, advertised bool) {
	late = 1 << 62
	for prefix, history := range j.history[s.peer] {
		if !netip.MustParsePrefix(prefix).Contains(s.dst) {
			continue
		}
		for _, h := range history {
			if s.at.Before(h.from) {
				continue
			}
			advertised = true
			end := h.to
			if end.IsZero() {
				return 0, true
			}
			end = j.kept(j.keepers(s), end)
			if s.at.Before(end) {
				return 0, true
			}
			late = min(late, s.at.Sub(end)-j.machine.stalled(end, s.at))
		}
	}
	return late, advertised
}

// within reports whether a time is in one of the intervals, or shortly after it. Time during which the
// machine stalled does not count.
func (j *egressJudge) within(intervals []interval, at time.Time) bool {
	return slices.ContainsFunc(intervals, func(i interval) bool {
		return !at.Before(i.from) && (i.to.IsZero() || at.Sub(i.to)-j.machine.stalled(i.to, at) < propagation)
	})
}

// addressed reports whether a packet was sent to the SID of a peer that gets whatever is sent
// there, by a host inside, or by a peer while its packets were not filtered.
func (j *egressJudge) addressed(s sighting) bool {
	if !j.net.peers[s.peer].direct {
		return false
	}
	return s.kind == toSID && s.origin == s.peer || s.kind == intruding && j.unfiltered(s)
}

// unfiltered reports whether packets from the peer that sent one were not filtered.
func (j *egressJudge) unfiltered(s sighting) bool {
	p := j.net.peers[s.origin]
	return j.within(j.unguarded[p.border], s.at) || j.within(j.unguarded[p.name], s.at)
}

// fault returns why a packet should not have left, or "".
func (j *egressJudge) fault(s sighting) string {
	if j.addressed(s) {
		return ""
	}
	for _, p := range j.net.own {
		if p.Contains(s.dst) {
			return "is for our own space"
		}
	}
	late, advertised := j.lateness(s)
	switch {
	case !advertised:
		return "its destination was never advertised by this peer"
	case late > propagation:
		return fmt.Sprintf("its destination was withdrawn %s before", late.Round(time.Millisecond))
	case (s.kind == fromEPE && !j.within(j.released[s.origin], s.at) || s.kind == toSID) && s.origin != s.peer:
		return "is for " + j.net.peers[s.origin].name
	case s.kind == intruding && !j.unfiltered(s):
		return "is transit"
	}
	return ""
}

// verdict fails the test for each packet that should not have arrived at a peer.
func (j *egressJudge) verdict(t *testing.T) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	var arrived, arrived4 [kinds]int
	var lates []time.Duration
	faults := 0
	for _, s := range j.seen {
		arrived[s.kind]++
		if s.dst.Is4() {
			arrived4[s.kind]++
		}
		if late, ok := j.lateness(s); ok && late > 0 && !j.addressed(s) {
			lates = append(lates, late)
		}
		if why := j.fault(s); why != "" {
			if faults++; faults <= 10 {
				kind := fmt.Sprintf("%s (%s)", s.kind, j.net.peers[s.origin].name)
				if s.kind == other {
					kind = fmt.Sprintf("of protocol %d from %s", s.next, s.src)
				}
				t.Errorf("%s: %s got a packet %s to %s: %s", s.at.Format("15:04:05.000"), j.net.peers[s.peer].name, kind, s.dst, why)
			}
		}
	}
	t.Logf("%d packets judged, %d faults", len(j.seen), faults)
	for k := fromEPE; k < kinds; k++ {
		t.Logf("%s: %d sent, %d arrived at peers, %d of them IPv4", k, j.sent[k].Load(), arrived[k], arrived4[k])
	}
	if len(lates) > 0 {
		slices.Sort(lates)
		t.Logf("%d arrived after the withdrawal, half of them within %s, the last %s after it",
			len(lates), lates[len(lates)/2], lates[len(lates)-1])
	}
	for _, k := range []kind{fromEPE, toSID, best, forgedEPE} {
		if arrived[k] == 0 || arrived4[k] == 0 && j.net.insideAddress4.IsValid() {
			t.Errorf("no packet %s arrived at any peer, in all or in IPv4: the test shows nothing", k)
		}
	}
}
