package openplane

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/checksum"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	program "github.com/tabane/tabane/internal/gateway/openbpf"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/kernel/afpacket"
	"github.com/tabane/tabane/internal/kernel/bpf/bpftest"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/offload"
)

// gatewayOf is the variable that makes the test's program a gateway of TestNATJudgedByCaptures,
// with the pins; sideOf says which of the two, and ipv6Of that all is over IPv6.
const gatewayOf, sideOf, ipv6Of = "TABANE_TEST_GATEWAY", "TABANE_TEST_SIDE", "TABANE_TEST_IPV6"

// The addresses of the test: hosts of a site, a gateway on a line, and on the link for its records.
func hostOf(ipv6 bool, site, host int) netip.Addr {
	if ipv6 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:%d::%d", site+1, host+1))
	}
	return netip.AddrFrom4([4]byte{10, byte(site + 1), 0, byte(host + 1)})
}

func lineOf(ipv6 bool, side, line int) netip.Addr {
	if ipv6 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:f%d::%d", line, side+1))
	}
	return netip.AddrFrom4([4]byte{192, 168, byte(line), byte(side + 1)})
}

func siteOf(ipv6 bool, site int) netip.Prefix {
	bits := 16
	if ipv6 {
		bits = 48
	}
	return netip.PrefixFrom(hostOf(ipv6, site, 0), bits).Masked()
}

func controlOf(side int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 168, 9, byte(side + 1)}), 5000)
}

// records is a sealed plane that exchanges records about NAT sessions, and has the paths that the
// test says.
type records struct {
	open   dataplane.Open
	plane  *Plane
	socket *net.UDPConn
	taken  chan struct{} // the peer has taken the reset of a gateway that stops
	side   int
	ipv6   bool
}

// taken is the answer to a reset.
const taken = "taken"

func (r *records) Apply(dataplane.State) error { return nil }
func (r *records) Status() dataplane.Status    { return dataplane.Status{} }
func (r *records) Active(string)               {}

func (r *records) SendNATSession(_ string, record tunnel.NATSession) bool {
	b, err := json.Marshal(record)
	if err != nil {
		return false
	}
	// Like a session: what the peer is not there for is lost.
	_, _ = r.socket.WriteToUDPAddrPort(b, controlOf(1-r.side))
	if record.Command == tunnel.CommandReset && r.plane.nat.leaving {
		// On a busy machine the peer may need longer than a gateway that stops waits for it.
		select {
		case <-r.taken:
		case <-time.After(5 * time.Second):
		}
	}
	return true
}

func (r *records) Run(ctx context.Context) error {
	read := make(chan struct{})
	go func() {
		defer close(read)
		for b := make([]byte, 1<<16); ; {
			n, _, err := r.socket.ReadFromUDPAddrPort(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			var record tunnel.NATSession
			if err == nil && string(b[:n]) == taken {
				r.taken <- struct{}{}
				continue
			}
			if err == nil && json.Unmarshal(b[:n], &record) == nil {
				r.open.NATSession("far", record)
				if record.Command == tunnel.CommandReset {
					r.plane.nat.takeArrived()
					_, _ = r.socket.WriteToUDPAddrPort([]byte(taken), controlOf(1-r.side))
				}
			}
		}
	}()
	<-ctx.Done()
	err := r.socket.Close()
	<-read
	return err
}

// measured says which of both paths can be used.
func (r *records) measured(usable string) {
	paths := make([]dataplane.Measured, 2)
	for i := range paths {
		name := fmt.Sprint("p", i)
		paths[i] = dataplane.Measured{
			Path: sched.Path{Usable: usable[i] == '1', Rate: unit.Bandwidth(1e9), Room: 1 << 20}, Name: name, Interface: name,
			Remote: netip.AddrPortFrom(lineOf(r.ipv6, 1-r.side, i), 4790), MTU: 1500,
		}
	}
	r.open.Measured("far", paths, 0)
}

// older are the sessions of a kernel, which have been idle for longer than they have.
type older struct {
	natKernel
	by atomic.Int64
}

func (o *older) Sessions(do func(program.Session)) {
	o.natKernel.Sessions(func(s program.Session) {
		s.Idle += time.Duration(o.by.Load())
		do(s)
	})
}

// runGateway runs a plane until SIGTERM, and does what the lines on its standard input say.
func runGateway(pins string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	r := &records{taken: make(chan struct{}, 100), ipv6: os.Getenv(ipv6Of) != ""}
	fmt.Sscan(os.Getenv(sideOf), &r.side)
	var err error
	if r.socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(controlOf(r.side))); err != nil {
		return err
	}
	p, err := New(Options{Pins: func() (string, error) { return pins, nil }, Sealed: func(o dataplane.Open) (Sealed, error) { r.open = o; return r, nil }})
	if err != nil {
		return err
	}
	if p.unpinned != "" {
		return errors.New(p.unpinned)
	}
	r.plane = p
	aged := &older{natKernel: p.nat.kernel}
	p.nat.kernel = aged
	apply := func(discipline string) error {
		d := dataplane.Discipline{Name: discipline}
		if discipline == dataplane.Ratio {
			d.Ratio = []int{2, 1}
		}
		s := dataplane.State{
			LAN:    dataplane.LAN{Interfaces: []string{"lan"}, Prefixes: []netip.Prefix{siteOf(r.ipv6, r.side)}},
			Peers:  []dataplane.Peer{{Name: "far", Mode: dataplane.NAT, Prefixes: []netip.Prefix{siteOf(r.ipv6, 1-r.side)}}},
			Policy: dataplane.Policy{{Discipline: d}},
		}
		for i := range 2 {
			s.Paths = append(s.Paths, dataplane.Path{Name: fmt.Sprint("p", i), Interface: fmt.Sprint("p", i), Usable: true})
		}
		return p.Apply(s)
	}
	if err := apply("dq"); err != nil {
		return err
	}
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			verb, argument, _ := strings.Cut(in.Text(), " ")
			var err error
			switch verb {
			case "paths":
				r.measured(argument)
				err = p.update(false)
			case "policy":
				err = apply(argument)
			case "age": // of the flows that this gateway sends: FIN
				aged.by.Store(int64(natSilence + time.Second))
				err = p.nat.scan()
				aged.by.Store(0)
				p.nat.kick()
			case "lie": // records of the peer about flows that are not its own, and answers to nothing
				for _, record := range lies(r.ipv6, r.side) {
					r.open.NATSession("far", record)
				}
			}
			fmt.Println(verb, err)
		}
	}()
	return p.Run(ctx)
}

// lies are records that a peer may not send to a gateway.
func lies(ipv6 bool, side int) (list []tunnel.NATSession) {
	flow := func(from, to netip.Addr) tunnel.Flow {
		return tunnel.Flow{Protocol: unix.IPPROTO_UDP, Source: netip.AddrPortFrom(from, 7), Destination: netip.AddrPortFrom(to, 1001)}
	}
	mine, theirs := hostOf(ipv6, side, 0), hostOf(ipv6, 1-side, 0)
	for _, c := range []tunnel.Command{tunnel.CommandNAT, tunnel.CommandOK, tunnel.CommandFIN, tunnel.CommandFINOK, tunnel.CommandRefused, 99} {
		for _, f := range []tunnel.Flow{flow(lineOf(ipv6, 1-side, 0), mine), flow(mine, theirs), flow(theirs, theirs), flow(mine, mine)} {
			list = append(list, tunnel.NATSession{Command: c, Flows: []tunnel.Flow{f}})
		}
	}
	return list
}

// gateway is the process of one.
type gateway struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// sites are two with hosts and gateways, and two lines between these.
type sites struct {
	t         *testing.T
	ipv6      bool
	root      string
	host, way [2]string
	gateways  [2]*gateway
	sockets   map[netip.AddrPort]*net.UDPConn
	flows     uint16 // that gateways had to agree on

	mu sync.Mutex
	// wanted are the datagrams that have not arrived, by their numbers.
	wanted map[uint64]datagram
	next   uint64
	wrong  []string
	// seen are packets on the lines: translated ones, and others between hosts.
	translated, others int
}

// datagram is one of the test: its own payload says where it belongs.
type datagram struct {
	From, To netip.AddrPort
	when     string
}

const datagramMagic = 0x7461_6261_6e65_3132

func (s *sites) ip(ns, command string, args ...any) {
	s.t.Helper()
	if _, err := netnstest.TryIP(s.t, ns, fmt.Sprintf(command, args...)); err != nil {
		s.t.Fatalf(command+": %v", append(args, err)...)
	}
}

func (s *sites) up(ns, link string, a netip.Addr, bits int) {
	s.t.Helper()
	s.ip(ns, "ip link set %s up", link)
	if a.Is4() {
		s.ip(ns, "ip -4 addr add %v/%d dev %s", a, bits, link)
	} else {
		s.ip(ns, "ip -6 addr add %v/%d dev %s nodad", a, bits, link)
	}
}

const hostsOfSite = 3

// newSites makes them. Their kernels forward over the first line what no gateway takes.
func newSites(t *testing.T, root string, ipv6 bool) *sites {
	s := &sites{t: t, ipv6: ipv6, root: root, sockets: map[netip.AddrPort]*net.UDPConn{}, wanted: map[uint64]datagram{}}
	version, bits, lineBits := "-4", 16, 24
	if ipv6 {
		version, bits, lineBits = "-6", 48, 64
	}
	for i := range 2 {
		s.host[i], s.way[i] = netnstest.New(t), netnstest.New(t)
		for _, ns := range []string{s.host[i], s.way[i]} {
			// Until its link-local address is checked, an interface asks for no neighbor of what it
			// forwards.
			netnstest.Do(t, ns, func() error { return netns.Sysctl("net.ipv6.conf.default.accept_dad", "0") })
		}
		s.ip(s.host[i], "ip link set lo up")
		s.ip(s.way[i], "ip link set lo up")
		s.ip(s.way[i], "ip link add lan type veth peer name lan netns %s", s.host[i])
		router := hostOf(ipv6, i, 253)
		s.up(s.way[i], "lan", router, bits)
		for h := range hostsOfSite {
			s.up(s.host[i], "lan", hostOf(ipv6, i, h), bits)
		}
		s.ip(s.host[i], "ip %s route add default via %v", version, router)
	}
	for _, line := range []string{"p0", "p1", "control"} {
		s.ip(s.way[0], "ip link add %s type veth peer name %s netns %s", line, line, s.way[1])
	}
	for i, ns := range s.way {
		for line := range 2 {
			s.up(ns, fmt.Sprint("p", line), lineOf(ipv6, i, line), lineBits)
		}
		s.up(ns, "control", controlOf(i).Addr(), 24)
		netnstest.Do(t, ns, func() error {
			errs := []error{
				netns.Sysctl("net.ipv4.ip_forward", "1"), netns.Sysctl("net.ipv6.conf.all.forwarding", "1"), netns.Sysctl("net.ipv4.conf.all.rp_filter", "0"),
			}
			for _, name := range []string{"lan", "p0", "p1"} {
				errs = append(errs, offload.Prepare(name)) // so that captures have whole checksums
			}
			return errors.Join(errs...)
		})
		s.ip(ns, "ip %s route add %v via %v", version, siteOf(ipv6, 1-i), lineOf(ipv6, 1-i, 0))
	}
	for i := range 2 {
		s.capture(s.host[i], "lan", func(p afpacket.Packet) { s.judgeHost(i, p) })
		for line := range 2 {
			s.capture(s.way[i], fmt.Sprint("p", line), func(p afpacket.Packet) { s.judgeLine(i, line, p) })
		}
		s.start(i)
	}
	return s
}

// capture has packets of an interface judged until the test ends.
func (s *sites) capture(ns, name string, judge func(afpacket.Packet)) {
	s.t.Helper()
	var socket *afpacket.Socket
	netnstest.Do(s.t, ns, func() error {
		l, err := net.InterfaceByName(name)
		if err == nil {
			socket, err = afpacket.Open(afpacket.Options{Interface: l.Index, Cooked: true})
		}
		return err
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- socket.Run(ctx, afpacket.Handler{Packet: func(p afpacket.Packet) error {
			if !p.Sent {
				judge(p)
			}
			return nil
		}})
	}()
	s.t.Cleanup(func() {
		stop()
		if err := errors.Join(<-done, socket.Close()); err != nil && !errors.Is(err, context.Canceled) {
			s.t.Error(err)
		}
	})
}

// parsed is what the judges read of a packet.
type parsed struct {
	from, to netip.Addr
	protocol byte
	payload  []byte // of IP
	data     []byte // of a datagram of the test
	checksum bool   // all are right
}

func parse(b []byte) (p parsed, ok bool) {
	p.checksum = true
	switch {
	case len(b) >= 20 && b[0] == 0x45:
		length := int(binary.BigEndian.Uint16(b[2:]))
		if length < 20 || length > len(b) {
			return p, false
		}
		p.from, p.to, p.protocol, p.payload = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20])), b[9], b[20:length]
		p.checksum = checksum.Of(b[:20]) == 0
	case len(b) >= 40 && b[0]>>4 == 6:
		length := 40 + int(binary.BigEndian.Uint16(b[4:]))
		if length > len(b) {
			return p, false
		}
		p.from, p.to, p.protocol, p.payload = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), b[6], b[40:length]
	default:
		return p, false
	}
	pseudo := uint64(0)
	switch p.protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMPV6:
		pseudo = checksum.Pseudo(b, p.protocol, len(p.payload))
	case unix.IPPROTO_ICMP:
	default:
		return p, false
	}
	if len(p.payload) < 8 {
		return p, false
	}
	p.checksum = p.checksum && checksum.Fold(checksum.Sum(p.payload, pseudo)) == 0xffff
	const head = 8 + 8 + 8
	if d := p.payload[8:]; p.protocol == unix.IPPROTO_UDP && len(d) >= head-8 && binary.BigEndian.Uint64(d) == datagramMagic {
		p.data = d
	}
	return p, true
}

func (s *sites) fault(format string, args ...any) {
	if len(s.wrong) < 20 {
		s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
	}
}

// isHost reports whether an address is one of a site's hosts.
func (s *sites) isHost(site int, a netip.Addr) bool {
	for h := range hostsOfSite {
		if a == hostOf(s.ipv6, site, h) {
			return true
		}
	}
	return false
}

// judgeHost judges a packet that arrives at the hosts of a site: it must be from a host of the
// other one, and a datagram of the test from where its number says.
func (s *sites) judgeHost(site int, captured afpacket.Packet) {
	p, ok := parse(captured.Data)
	if !ok || p.to.IsMulticast() || p.from.IsLinkLocalUnicast() || p.to.IsLinkLocalUnicast() || s.control(p) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isHost(1-site, p.from) || !s.isHost(site, p.to) {
		s.fault("a packet from %v to %v arrives at hosts of site %d", p.from, p.to, site+1)
	}
	if !p.checksum {
		s.fault("a packet of protocol %d from %v to %v arrives with a wrong checksum", p.protocol, p.from, p.to)
	}
	if p.data == nil {
		return
	}
	n := binary.BigEndian.Uint64(p.data[8:])
	d, ok := s.wanted[n]
	from := netip.AddrPortFrom(p.from, binary.BigEndian.Uint16(p.payload))
	to := netip.AddrPortFrom(p.to, binary.BigEndian.Uint16(p.payload[2:]))
	switch {
	case !ok:
		s.fault("datagram %d from %v to %v arrives twice, or was never sent", n, from, to)
	case d.From != from || d.To != to:
		s.fault("datagram %d from %v to %v arrives as one from %v to %v", n, d.From, d.To, from, to)
	}
	delete(s.wanted, n)
}

// control reports whether a packet is neighbor discovery, or an error of a router.
func (s *sites) control(p parsed) bool {
	const firstOfDiscovery = 130
	return p.protocol == unix.IPPROTO_ICMPV6 && p.payload[0] >= firstOfDiscovery
}

// judgeLine judges a packet that arrives at a gateway from a line: its source is the other
// gateway's address on this line, or a host's own if the kernel sends it.
func (s *sites) judgeLine(side, line int, captured afpacket.Packet) {
	p, ok := parse(captured.Data)
	if !ok || !s.isHost(side, p.to) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case p.from == lineOf(s.ipv6, 1-side, line):
		s.translated++
	case s.isHost(1-side, p.from) && line == 0:
		s.others++
	default:
		s.fault("a packet from %v to %v is on line %d", p.from, p.to, line)
	}
	if !p.checksum {
		s.fault("a packet of protocol %d from %v to %v is on line %d with a wrong checksum", p.protocol, p.from, p.to, line)
	}
}

// start starts a gateway.
func (s *sites) start(side int) {
	s.t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), gatewayOf+"="+filepath.Join(s.root, fmt.Sprint("gateway-", side+1)), fmt.Sprint(sideOf, "=", side))
	if s.ipv6 {
		c.Env = append(c.Env, ipv6Of+"=1")
	}
	c.Stderr = os.Stderr
	g := &gateway{Cmd: c}
	var out io.Reader
	var errs [3]error
	g.in, errs[0] = c.StdinPipe()
	out, errs[1] = c.StdoutPipe()
	errs[2] = netns.Do(s.way[side], c.Start)
	if err := errors.Join(errs[:]...); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { // of a test that fails
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	g.out = bufio.NewScanner(out)
	s.gateways[side] = g
	s.say(side, "paths 11")
}

// say has a gateway do something.
func (s *sites) say(side int, line string) {
	s.t.Helper()
	g := s.gateways[side]
	_, err := fmt.Fprintln(g.in, line)
	verb, _, _ := strings.Cut(line, " ")
	if err != nil || !g.out.Scan() || g.out.Text() != verb+" <nil>" {
		s.t.Fatalf("gateway %d, %s: %q %v", side+1, line, g.out.Text(), err)
	}
}

// end ends a gateway by a signal.
func (s *sites) end(side int, sig syscall.Signal) {
	s.t.Helper()
	g := s.gateways[side]
	if err := g.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
	if err := g.Wait(); err != nil && sig != syscall.SIGKILL {
		s.t.Errorf("gateway %d: %v", side+1, err)
	}
}

// socket returns a socket of a host.
func (s *sites) socket(site int, at netip.AddrPort) *net.UDPConn {
	s.t.Helper()
	c := s.sockets[at]
	if c == nil {
		if err := netns.Do(s.host[site], func() (err error) { c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)); return err }); err != nil {
			s.t.Fatal(err)
		}
		s.sockets[at] = c
		s.t.Cleanup(func() { c.Close() })
	}
	return c
}

// send sends a datagram of a host to one of the other site.
func (s *sites) send(site int, from, to netip.AddrPort, length int, when string) {
	s.t.Helper()
	out := s.socket(site, from)
	s.socket(1-site, to)
	s.mu.Lock()
	n := s.next
	s.next++
	s.wanted[n] = datagram{from, to, when}
	s.mu.Unlock()
	b := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, datagramMagic), n)
	if _, err := out.WriteToUDPAddrPort(append(b, make([]byte, length)...), to); err != nil {
		s.t.Fatal(err)
	}
}

// connect transfers data both ways over a connection.
func (s *sites) connect(site int, from, to netip.AddrPort, size int) {
	s.t.Helper()
	var l net.Listener
	if err := netns.Do(s.host[1-site], func() (err error) { l, err = net.Listen("tcp", to.String()); return err }); err != nil {
		s.t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			// Not by splice, whose pipes the runtime keeps open until it collects garbage.
			_, _ = io.Copy(struct{ io.Writer }{c}, c)
			c.Close()
		}
	}()
	if err := netns.Do(s.host[site], func() error {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(from), Timeout: 20 * time.Second, Control: func(_, _ string, raw syscall.RawConn) (err error) {
			return errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }), err)
		}}
		c, err := d.Dial("tcp", to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			return err
		}
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(i * 7)
		}
		go func() {
			_, _ = c.Write(data)
			_ = c.(*net.TCPConn).CloseWrite()
		}()
		back, err := io.ReadAll(c)
		if err == nil && string(back) != string(data) {
			err = fmt.Errorf("%d bytes come back, %d were sent", len(back), len(data))
		}
		// Closed by a reset: the next connection may have the same ports.
		return errors.Join(err, c.(*net.TCPConn).SetLinger(0))
	}); err != nil {
		s.t.Fatalf("connection from %v to %v: %v", from, to, err)
	}
}

// forge sends packets to hosts that no gateway has agreed on, with the address of a gateway on a
// line, and the texts of paper C.
func (s *sites) forge(r *rand.Rand, side int) {
	s.t.Helper()
	to := netip.AddrPortFrom(hostOf(s.ipv6, side, r.IntN(hostsOfSite)), uint16(3000+r.IntN(10)))
	if r.IntN(2) == 0 {
		to = netip.AddrPortFrom(lineOf(s.ipv6, side, 0), 4790)
	}
	err := netns.Do(s.way[1-side], func() error {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(lineOf(s.ipv6, 1-side, 0), 0)))
		if err != nil {
			return err
		}
		defer c.Close()
		for _, text := range []string{"NAT 10.1.0.1 10.2.0.1", "+OK", "FIN", strings.Repeat("x", 1+r.IntN(1000))} {
			// A gateway may refuse what arrives there.
			if _, err := c.WriteToUDPAddrPort([]byte(text), to); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// counted returns how many translated packets were on the lines.
func (s *sites) counted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.translated
}

// settled waits until all datagrams have arrived.
func (s *sites) settled(doing string) {
	s.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		s.mu.Lock()
		left, wrong := len(s.wanted), s.wrong
		var one datagram
		for _, one = range s.wanted {
			break
		}
		s.mu.Unlock()
		if len(wrong) > 0 {
			s.t.Fatalf("%s:\n%s", doing, strings.Join(wrong, "\n"))
		}
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: %d datagrams do not arrive, one from %v to %v, sent at: %s", doing, left, one.From, one.To, one.when)
		}
	}
}

var (
	natSteps = flag.Int("nat-steps", 40, "how many steps TestNATJudgedByCaptures has over each IP version")
	natSeed  = flag.Uint64("nat-seed", 12, "the seed of TestNATJudgedByCaptures")
)

// TestNATJudgedByCaptures: in random sequences of datagrams, connections and echoes of many hosts,
// of sessions that end, gateways that are killed or stopped and start again, paths that go down,
// changes of policy, and what strangers and a lying peer send, captures see no packet with a wrong
// source, destination or checksum on the lines or at the hosts, and every datagram arrives once.
func TestNATJudgedByCaptures(t *testing.T) {
	netnstest.Need(t)
	for _, ipv6 := range []bool{false, true} {
		name := map[bool]string{false: "ipv4", true: "ipv6"}[ipv6]
		t.Run(name, func(t *testing.T) {
			s := newSites(t, bpftest.Mount(t), ipv6)
			r := rand.New(rand.NewPCG(*natSeed, 12))
			done := map[string]int{}
			for step := range *natSteps {
				what := s.step(r, fmt.Sprint("step ", step))
				done[what]++
				s.settled(fmt.Sprintf("step %d of %s, %s", step, name, what))
			}
			s.end(0, syscall.SIGTERM)
			s.end(1, syscall.SIGKILL)
			s.mu.Lock()
			defer s.mu.Unlock()
			t.Logf("%d datagrams; on the lines %d translated packets and %d others; %v", s.next, s.translated, s.others, done)
			if s.translated < *natSteps || s.others == 0 {
				t.Errorf("on the lines are %d translated packets and %d others", s.translated, s.others)
			}
		})
	}
}

// step does something at random.
func (s *sites) step(r *rand.Rand, when string) string {
	s.t.Helper()
	site := r.IntN(2)
	host := func(site int) netip.Addr { return hostOf(s.ipv6, site, r.IntN(hostsOfSite)) }
	burst := func(n int) {
		from, to := netip.AddrPortFrom(host(site), uint16(1000+r.IntN(4))), netip.AddrPortFrom(host(1-site), uint16(2000+r.IntN(2)))
		for range n {
			if r.IntN(3) == 0 {
				s.send(1-site, to, from, r.IntN(1400), when)
			} else {
				s.send(site, from, to, r.IntN(1400), when)
			}
		}
	}
	// agreed has datagrams of a flow to the site sent until the gateways have agreed on its
	// session, and returns how to send another.
	agreed := func() func() {
		// A port of its own, because flows that differ in the source alone share one session.
		s.flows++
		from, to := netip.AddrPortFrom(host(1-site), 10_000+s.flows), netip.AddrPortFrom(host(site), 2500)
		more := func() { s.send(1-site, from, to, 100, when) }
		for before := s.counted(); s.counted() == before; {
			more()
			s.settled(when)
		}
		return more
	}
	switch n := r.IntN(100); {
	default:
		burst(1 + r.IntN(20))
		return "burst"
	case n < 15:
		s.connect(site, netip.AddrPortFrom(host(site), uint16(4000+r.IntN(3))), netip.AddrPortFrom(host(1-site), 80), 1+r.IntN(100_000))
		return "connection"
	case n < 20:
		if e, err := netnstest.Echo(s.host[site], host(1-site), 3, r.IntN(1200)); err != nil || e.Received != 3 || e.Duplicates > 0 {
			s.t.Fatalf("%s: echoes %+v, %v", when, e, err)
		}
		return "echo"
	case n < 26:
		s.say(site, "age")
		burst(10)
		return "silence"
	case n < 36:
		s.forge(r, site)
		return "forge"
	case n < 40:
		s.say(site, "lie")
		burst(10)
		return "lie"
	case n < 46:
		burst(5)
		s.say(site, "policy "+[]string{"dq", "dqj", dataplane.Ratio, "best", dataplane.Flow}[r.IntN(5)])
		burst(10)
		return "policy"
	case n < 52:
		// Both gateways know before the line is dead. The first one is also the kernel's.
		for side := range 2 {
			s.say(side, "paths 10")
		}
		s.ip(s.way[site], "ip link set p1 down")
		burst(10)
		s.ip(s.way[site], "ip link set p1 up")
		s.settled(when)
		if s.ipv6 {
			for side := range 2 { // the kernel removes addresses of lines that are down
				_, _ = netnstest.TryIP(s.t, s.way[side], fmt.Sprintf("ip -6 addr add %v/64 dev p1 nodad", lineOf(true, side, 1)))
			}
		}
		for side := range 2 {
			s.say(side, "paths 11")
		}
		burst(10)
		return "line"
	case n < 60:
		signal, name := syscall.SIGKILL, "kill"
		if n >= 57 {
			signal, name = syscall.SIGTERM, "stop"
		}
		more := agreed()
		s.end(site, signal)
		more()
		burst(10)
		s.start(site)
		burst(10)
		return name
	}
}
