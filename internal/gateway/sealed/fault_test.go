package sealed

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/testkit/programs"
)

// datagrams carries numbered datagrams from one gateway to the other, one each millisecond, and
// records which arrive.
type datagrams struct {
	in, out *net.UDPConn
	arrived chan uint32
}

func (g *gateway) datagrams(to *gateway) *datagrams {
	g.t.Helper()
	d := &datagrams{arrived: make(chan uint32, 1<<16)}
	a, b := netip.MustParseAddrPort("10.0.1.1:0"), netip.MustParseAddrPort("10.0.2.1:0")
	if g.number == 2 {
		a, b = b, a
	}
	if err := errors.Join(
		netns.Do(to.namespace, func() (err error) { d.in, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(b)); return err }),
		netns.Do(g.namespace, func() (err error) {
			d.out, err = net.DialUDP("udp4", net.UDPAddrFromAddrPort(a), d.in.LocalAddr().(*net.UDPAddr))
			return err
		})); err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { d.in.Close(); d.out.Close() })
	go func() {
		for b := make([]byte, 2000); ; {
			n, err := d.in.Read(b)
			if err != nil {
				return
			}
			if n >= 4 {
				d.arrived <- be32(b)
			}
		}
	}()
	return d
}

func be32(b []byte) uint32 {
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

// until sends datagrams until one that was sent from now on arrives, and returns how long it took.
func (d *datagrams) until(t testing.TB, from uint32, limit time.Duration) time.Duration {
	t.Helper()
	start := time.Now()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i := from; time.Since(start) < limit; i++ {
		d.out.Write([]byte{byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i), 0, 0, 0, 0})
		select {
		case n := <-d.arrived:
			if n >= from {
				return time.Since(start)
			}
		case <-tick.C:
		}
	}
	t.Fatalf("nothing arrived within %v", limit)
	return 0
}

// crash ends the plane as kill -9 does: without a word to the peer.
func (g *gateway) crash() {
	g.plane.mu.Lock()
	for _, r := range g.plane.peers {
		r.mu.Lock()
		r.session.sending = nil
		r.mu.Unlock()
	}
	g.plane.mu.Unlock()
	g.stop()
}

// Whichever gateway is killed and started again, and whichever has the endpoints, packets go on.
func TestGatewayRestarts(t *testing.T) {
	a, b := pair(t, 2)
	a.run()
	b.run()
	a.up(2)
	b.up(2)
	there, next := a.datagrams(b), uint32(0)
	there.until(t, next, 5*time.Second)
	for _, g := range []*gateway{a, b} {
		g.crash()
		g.run()
		next += 1 << 20
		// Measured from when the new process runs.
		took := there.until(t, next, 10*time.Second)
		t.Logf("gateway %d: resumed after %v", g.number, took)
	}
	a.stop() // says goodbye
	s := b.plane.Status().Peers[0]
	for end := time.Now().Add(5 * time.Second); s.Up && time.Now().Before(end); s = b.plane.Status().Peers[0] {
		time.Sleep(5 * time.Millisecond)
	}
	if s.Up {
		t.Error("the peer's goodbye was not taken")
	}
}

func TestAddressRoams(t *testing.T) {
	a, b := pair(t, 1)
	a.run()
	b.run()
	a.up(1)
	b.up(1)
	d := b.datagrams(a)
	d.until(t, 0, 5*time.Second)
	a.roam()
	d.until(t, 1<<20, 10*time.Second)
	// While p0 has no address, the kernel sends from another one.
	eventually(t, "the peer is at its new address", func() bool {
		return b.plane.Status().Peers[0].Links[0].Endpoint.Addr() == netip.MustParseAddr(roamed)
	})
}

// TestProbeToSeveralAddresses: a dead path comes back although the peer is at one of its addresses
// only.
func TestProbeToSeveralAddresses(t *testing.T) {
	a, b := pair(t, 2)
	a.run()
	b.run()
	a.up(2)
	p := a.plane
	p.mu.Lock()
	r := p.peers[b.key.Public()]
	p.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	l, now := &r.links[0], p.now()
	for range 3 {
		l.probing.alive.Missed()
	}
	l.probing.sent, l.probing.due = sentProbes{}, now
	r.prober.probe(newBatch(p, 1<<16), r.session.sending, 0, now)
	open := 0
	for _, s := range l.probing.sent.ring {
		if s.state == probeOpen && !s.quiet {
			open++
		}
	}
	if open != 1 || len(l.addresses()) != 2 {
		t.Errorf("%d probes to %d addresses await answers, want 1 to 2", open, len(l.addresses()))
	}
}

// A path that goes down, with its interface or in silence, takes nothing with it, and is used
// again.
func TestPathsComeAndGo(t *testing.T) {
	a, b := pair(t, 2)
	a.run()
	b.run()
	a.up(2)
	b.up(2)
	d, next := a.datagrams(b), uint32(0)
	for _, c := range []struct {
		name     string
		down, up func()
	}{
		{"interface down", func() { ip(t, a.namespace, "ip link set p0 down") }, func() { ip(t, a.namespace, "ip link set p0 up") }},
		{"silence", func() { a.lose(1) }, func() { a.deliver(1) }},
	} {
		c.down()
		next += 1 << 20
		t.Logf("%s: went on after %v", c.name, d.until(t, next, 5*time.Second))
		a.up(1)
		c.up()
		a.up(2)
	}
	// The interface is another one with the same name.
	ip(t, a.namespace, "ip link del p0")
	a.up(1)
	ip(t, a.namespace, "ip link add p0 type veth peer name p0 netns %s", b.namespace)
	for _, g := range []*gateway{a, b} {
		ip(t, g.namespace, "ip link set p0 up")
		ip(t, g.namespace, "ip -4 addr add 192.168.0.%d/24 dev p0", g.number)
	}
	a.up(2)
	b.up(2)
}

// What strangers send is counted, and has no other effect.
func TestHostileMessages(t *testing.T) {
	a, b := pair(t, 1)
	a.run()
	b.run()
	a.up(1)
	b.up(1)
	d := a.datagrams(b)
	d.until(t, 0, 5*time.Second)

	// A message that a could have sent, with a packet from an address behind it or not.
	a.plane.mu.Lock()
	r := a.plane.peers[b.key.Public()]
	a.plane.mu.Unlock()
	seal := func(src byte) []byte {
		r.mu.Lock()
		defer r.mu.Unlock()
		k := r.session.sending
		buf := make([]byte, tunnel.Offset+28, 200)
		copy(buf[tunnel.Offset:], []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, src, 1, 10, 0, 2, 1, 0, 1, 0, 2, 0, 8})
		lane := uint8(200)
		k.counters[0]++
		return bytes.Clone(k.send.Seal(buf, tunnel.Header{Type: tunnel.Data, Receiver: k.Remote, Counter: k.counters[0] - 1}, k.number.Stamp(lane, k.number.Assign(lane), 0, false)))
	}
	var attacker *net.UDPConn
	if err := netns.Do(a.namespace, func() (err error) {
		attacker, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.168.0.2:4790")))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer attacker.Close()
	good, spoofed := seal(1), seal(9)
	forged := seal(1)
	forged[len(forged)-1] ^= 1
	wrongPath := slices.Clone(good)
	wrongPath[8] ^= 0xf0
	stranger := make([]byte, handshake.InitiationLen)
	stranger[0] = 1
	unknown := slices.Clone(good)
	unknown[4] ^= 1
	// What b sent to a, sent back to b.
	b.plane.mu.Lock()
	back := b.plane.peers[a.key.Public()]
	b.plane.mu.Unlock()
	back.mu.Lock()
	reflected := slices.Clone(back.session.sending.send.Seal(make([]byte, tunnel.Offset+28, 200), tunnel.Header{Type: tunnel.Data, Receiver: back.session.sending.Remote, Counter: 1 << 20}, tunnel.Stamp{}))
	back.mu.Unlock()

	handshakes, before := b.plane.Status().Peers[0].Epoch, b.plane.Status().Dropped
	b.plane.keysMu.RLock()
	sessions := len(b.plane.keys)
	b.plane.keysMu.RUnlock()
	for i, m := range []struct {
		message []byte
		reason  reason
	}{
		{good[:20], dropTruncated}, {[]byte{4}, dropTruncated}, {[]byte{99, 1, 2, 3}, dropTruncated}, {forged, dropForged},
		{wrongPath, dropForged}, {unknown, dropUnknownSession}, {reflected, dropUnknownSession}, {stranger, dropStranger},
		{stranger[:60], dropStranger}, {append([]byte{99}, make([]byte, handshake.CookieLen)...), dropTruncated}, {spoofed, dropSource}, {good, reasons}, {good, dropReplayed},
		{bytes.Repeat(good, 30), dropReplayed}, {append([]byte{3, 0, 0, 0}, make([]byte, handshake.CookieLen-4)...), dropHandshake},
	} {
		if _, err := attacker.Write(m.message); err != nil {
			t.Fatal(err)
		}
		if m.reason == reasons {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		name := reasonNames[m.reason]
		for end := time.Now().Add(5 * time.Second); b.plane.Status().Dropped[name] == before[name]; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("message %d: not counted as %q: %v", i, name, b.plane.Status().Dropped)
			}
		}
		before = b.plane.Status().Dropped
	}
	attacker.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := attacker.Read(make([]byte, 2000)); err == nil && n > handshake.ResponseLen {
		// The message that was authentic may be taken for the peer's new address.
		t.Logf("%d bytes came back", n)
	}
	b.plane.keysMu.RLock()
	if n := len(b.plane.keys); n != sessions {
		t.Errorf("%d sessions, want %d", n, sessions)
	}
	b.plane.keysMu.RUnlock()
	d.until(t, 1<<20, 5*time.Second)
	if n := b.plane.Status().Peers[0].Epoch; n != handshakes {
		t.Errorf("%d handshakes, want %d", n, handshakes)
	}
}

// Packets of all kinds and sizes pass; those that do not fit are answered or split.
func TestPacketSizes(t *testing.T) {
	a, b := pair(t, 2)
	for _, g := range []*gateway{a, b} {
		g.state.MTU = 1500
	}
	a.run()
	b.run()
	s := a.up(2)
	b.up(2)
	for end := time.Now().Add(5 * time.Second); s.Links[0].MTU < 1428 || s.Links[1].MTU < 1428; s = a.up(2) {
		if time.Now().After(end) {
			t.Fatalf("MTUs are not found: %+v", s.Links)
		}
		time.Sleep(5 * time.Millisecond)
	}
	for _, to := range []string{"10.0.2.1", "fd00:2::1"} {
		for _, payload := range []int{0, 100, 1360} {
			if e, err := netnstest.Echo(a.namespace, netip.MustParseAddr(to), 3, payload); err != nil || e.Received != 3 {
				t.Errorf("%s, %d bytes: %+v %v", to, payload, e, err)
			}
		}
	}
	// 1470 bytes do not fit, and may not be split: the host learns it and says so.
	if _, err := netnstest.Echo(a.namespace, netip.MustParseAddr("10.0.2.1"), 3, 1442); err == nil {
		t.Log("the first packets beyond the MTU were lost without an error at the socket")
	}
	if n := a.plane.Status().Dropped[reasonNames[dropTooBig]]; n == 0 {
		t.Error("no packet was too big")
	}
	// Datagrams that may be split: by the host to 1500, and by the gateway to what fits.
	d := a.datagrams(b)
	raw, _ := d.out.SyscallConn()
	raw.Control(func(fd uintptr) { setNoDiscovery(int(fd)) })
	start := time.Now()
	for time.Since(start) < 5*time.Second {
		d.out.Write(append([]byte{1, 0, 0, 0}, make([]byte, 1460)...))
		select {
		case <-d.arrived:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
	t.Errorf("no datagram of two fragments arrived: %+v", a.plane.Status())
}

// TestOnePathOfLeastMTU: where one path drops long packets without an error, the shortest that IPv6
// hosts send are sent over the path that carries them whole.
func TestOnePathOfLeastMTU(t *testing.T) {
	nft := programs.Need(t, "nft")
	a, b := pair(t, 2)
	for _, g := range []*gateway{a, b} {
		netnstest.Do(t, g.namespace, func() error {
			const rules = "add table netdev m; add chain netdev m i { type filter hook ingress device p0 priority 0; }; add rule netdev m i meta length > 1280 drop"
			out, err := exec.Command(nft, rules).CombinedOutput()
			if err != nil {
				t.Logf("%s", out)
			}
			return err
		})
	}
	a.run()
	b.run()
	a.up(2)
	b.up(2)
	echo := func(packets int) int {
		e, err := netnstest.Echo(a.namespace, netip.MustParseAddr("fd00:2::1"), packets, inet.MinMTU6-inet.V6Len-8)
		if err != nil {
			t.Fatal(err)
		}
		return e.Received
	}
	// Until the MTUs are known, packets as long as those of the interfaces permit are sent over both.
	for end := time.Now().Add(10 * time.Second); echo(4) < 4; {
		if time.Now().After(end) {
			t.Fatalf("packets of 1280 bytes do not arrive: %+v", a.plane.Status())
		}
	}
	const packets = 40
	if n := echo(packets); n != packets {
		t.Errorf("%d of %d packets of 1280 bytes were answered", n, packets)
	}
}

// TestLeastMTU: packets of 1280 bytes of IPv6, which hosts send whatever an error says, pass a path
// that carries no more than that, in fragments of their messages. Longer ones are answered.
func TestLeastMTU(t *testing.T) {
	for _, version := range []string{"-4", "-6"} {
		t.Run(version, func(t *testing.T) { overLeastMTU(t, version) })
	}
}

// overLeastMTU is TestLeastMTU with the version of IP outside, as ip has it.
func overLeastMTU(t *testing.T, version string) {
	// The second link of the path is that with the small MTU: what is longer is fragmented there,
	// or answered.
	a, b := pair(t, 0)
	r := netnstest.New(t)
	netnstest.Do(t, r, func() error {
		return errors.Join(netns.Sysctl("net.ipv4.ip_forward", "1"), netns.Sysctl("net.ipv6.conf.all.forwarding", "1"))
	})
	address, bits := func(n, host int) string { return fmt.Sprintf("192.168.%d.%d", n, host) }, 24
	if version == "-6" {
		address, bits = func(n, host int) string { return fmt.Sprintf("fd00:f%d::%d", n, host) }, 64
	}
	const router = 9
	for _, g := range []*gateway{a, b} {
		n := g.number
		ip(t, g.namespace, "ip link add p0 type veth peer name p%d netns %s", n, r)
		if g == b {
			ip(t, r, "ip link set p2 mtu 1280")
			ip(t, b.namespace, "ip link set p0 mtu 1280")
		}
		ip(t, r, "ip link set p%d up", n)
		ip(t, g.namespace, "ip link set p0 up")
		for _, at := range []struct {
			namespace, link string
			host            int
		}{{r, fmt.Sprint("p", n), router}, {g.namespace, "p0", n}} {
			if version == "-6" {
				ip(t, at.namespace, "ip -6 addr add %s/%d dev %s nodad", address(n, at.host), bits, at.link)
			} else {
				ip(t, at.namespace, "ip -4 addr add %s/%d dev %s", address(n, at.host), bits, at.link)
			}
		}
		ip(t, g.namespace, "ip %s route add default via %s", version, address(n, router))
		g.state.Paths = []dataplane.Path{{Name: "path0", Interface: "p0", Usable: true, Up: dataplane.Rate{Bandwidth: unit.GbitPerSecond}, Down: dataplane.Rate{Bandwidth: unit.GbitPerSecond}}}
	}
	a.state.Peers[0].Endpoints = []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(address(2, 2)), 4790)}
	a.run()
	b.run()
	a.up(1)
	echo := func(size int) int {
		e, err := netnstest.Echo(a.namespace, netip.MustParseAddr("fd00:2::1"), 3, size-inet.V6Len-8)
		if err != nil {
			t.Logf("%d bytes: %v", size, err)
		}
		return e.Received
	}
	// Until the MTU is known, packets as long as that of the interface permits are sent whole.
	for end := time.Now().Add(8 * time.Second); echo(1280) < 3; {
		if time.Now().After(end) {
			t.Fatalf("packets of 1280 bytes do not arrive: %+v", a.plane.Status())
		}
	}
	for _, size := range []int{1180, 1200, 1210, 1240, 1279, 1280} {
		if n := echo(size); n != 3 {
			t.Errorf("%d of 3 packets of %d bytes arrive", n, size)
		}
	}
	before := a.plane.Status().Dropped[reasonNames[dropTooBig]]
	if n := echo(1281); n != 0 {
		t.Errorf("%d packets of 1281 bytes arrive", n)
	}
	if n := a.plane.Status().Dropped[reasonNames[dropTooBig]]; n == before {
		t.Error("packets of 1281 bytes are not counted")
	}
	// Probes are not fragmented.
	for _, g := range []*gateway{a, b} {
		if m := g.plane.Status().Peers[0].Links[0].MTU; m > largest(1280, version == "-4") {
			t.Errorf("gateway %d takes the path to carry %d bytes", g.number, m)
		}
	}
}

// setNoDiscovery has the kernel send datagrams without the don't-fragment bit.
func setNoDiscovery(fd int) {
	unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
}

// TestFewOfManyPaths: of 16 paths 12 have no carrier or no interface any more. The others carry
// what they can, the gateway neither spins nor floods its log, its status says which is which, and
// the paths come back.
func TestFewOfManyPaths(t *testing.T) {
	const rate = 10 * unit.MbitPerSecond
	a, b := pair(t, dataplane.MaxPaths)
	logs := map[*gateway]*logged{}
	for _, g := range []*gateway{a, b} {
		logs[g] = &logged{count: map[string]int{}}
		g.log = logs[g]
		g.auto(rate)
		g.run()
	}
	a.up(dataplane.MaxPaths)
	b.up(dataplane.MaxPaths)
	lines := func() (n int) {
		for _, l := range logs {
			l.mu.Lock()
			for message, c := range l.count {
				if message != "auto selects paths" { // those are of the traffic
					n += c
				}
			}
			l.mu.Unlock()
		}
		return n
	}
	f := a.flow(b)
	time.Sleep(time.Second)
	before := lines()
	for i := range 6 {
		ip(t, b.namespace, "ip link set p%d down", 4+i)
		ip(t, a.namespace, "ip link del p%d", 10+i)
	}
	a.up(4)
	b.up(4)
	time.Sleep(time.Second)
	if n := lines() - before; n > 4*2*12 {
		t.Errorf("%d messages were logged for 12 paths that went", n)
	}
	before = lines()
	carried, sent := f.bytes.Load(), a.plane.Status().Peers[0].Links
	eventually(t, "6 MB over the four paths", func() bool { return f.bytes.Load() > carried+6e6 })
	for i, l := range a.plane.Status().Peers[0].Links[:4] {
		if n := l.Sent.Bytes - sent[i].Sent.Bytes; n < 100e3 {
			t.Errorf("path %d carried %d bytes of more than 6 MB", i, n)
		}
	}
	if n := lines() - before; n > 4 {
		t.Errorf("%d messages were logged while nothing changed: %v %v", n, logs[a].count, logs[b].count)
	}
	for i, l := range a.plane.Status().Peers[0].Links {
		if up := l.State == "up"; up != (i < 4) || i >= 10 && l.State != "down" {
			t.Errorf("path %d is %s", i, l.State)
		}
	}
	f.stop()
	time.Sleep(2 * time.Second) // no more is under way, and probes are slow
	idle := netnstest.CostNow()
	time.Sleep(2 * time.Second)
	if used := netnstest.CostNow().Since(idle).CPU.Seconds() / 2; used > 0.5 {
		t.Errorf("both gateways use %.2f of a processor without traffic", used)
	} else {
		t.Logf("both gateways use %.3f of a processor without traffic", used)
	}
	for i := range 6 {
		ip(t, b.namespace, "ip link set p%d up", 4+i)
		ip(t, a.namespace, "ip link add p%d type veth peer name p%d netns %s", 10+i, 10+i, b.namespace)
		for _, g := range []*gateway{a, b} {
			ip(t, g.namespace, "ip link set p%d up", 10+i)
			ip(t, g.namespace, "ip -4 addr add 192.168.%d.%d/24 dev p%d", 10+i, g.number, 10+i)
		}
	}
	a.up(dataplane.MaxPaths)
	b.up(dataplane.MaxPaths)
}
