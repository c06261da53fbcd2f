package sealed

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/checksum"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/gateway/udp"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// uplink is the line of a host with a modem: a network namespace whose program translates addresses
// and ports (symmetric NAT: each peer of the host sees another port) and limits the rate. The host
// has 192.168.n.2 on it; outside it is 198.51.n.1.
type uplink struct {
	namespace string
	number    int
	device    *os.File
	mu        sync.Mutex
	inside    map[[12]byte]uint16 // by addresses and ports of an outgoing packet
	outside   map[uint16][12]byte
	next      uint16
	up, down  chan []byte
}

const (
	lineRate  = 4 * unit.MbitPerSecond
	lineDelay = 10 * time.Millisecond
	lineQueue = 64 // packets
)

// newUplink connects the host with the router of the Internet.
func newUplink(t testing.TB, number int, host, internet string) *uplink {
	t.Helper()
	u := &uplink{
		namespace: netnstest.New(t), number: number, inside: map[[12]byte]uint16{}, outside: map[uint16][12]byte{}, next: 20000 + uint16(number)*1000,
		up: make(chan []byte, lineQueue), down: make(chan []byte, lineQueue),
	}
	netnstest.Do(t, u.namespace, func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		request, err := unix.NewIfreq("nat0")
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			return err
		}
		u.device = os.NewFile(uintptr(fd), "nat0")
		return errors.Join(netns.Sysctl("net.ipv4.ip_forward", "1"), netns.Sysctl("net.ipv4.conf.all.rp_filter", "0"), netns.Sysctl("net.ipv4.conf.default.rp_filter", "0"))
	})
	ip(t, u.namespace, "ip link set nat0 up")
	ip(t, u.namespace, "ip link add in type veth peer name wan netns %s", host)
	ip(t, u.namespace, "ip link add out type veth peer name to%d netns %s", number, internet)
	for _, c := range []string{
		"ip link set in up", "ip link set out up", "ip -4 addr add 192.168.#.1/24 dev in", "ip -4 addr add 203.0.#.2/24 dev out",
		"ip -4 route add default via 203.0.#.1 dev out", "ip -4 route add 198.51.#.1/32 dev nat0", "ip -4 route add default dev nat0 table 100",
	} {
		ip(t, u.namespace, "%s", expand(c, number))
	}
	netnstest.Do(t, u.namespace, func() error {
		rule := netlink.NewRule()
		rule.Family, rule.IifName, rule.Table, rule.Priority = unix.AF_INET, "in", 100, 100
		return netlink.RuleAdd(rule)
	})
	for _, name := range []string{"in", "out", "nat0"} {
		netnstest.Do(t, u.namespace, func() error { return netns.Sysctl("net.ipv4.conf."+name+".rp_filter", "0") })
	}
	ip(t, host, "ip link set wan up")
	ip(t, host, "%s", expand("ip -4 addr add 192.168.#.2/24 dev wan", number))
	ip(t, host, "%s", expand("ip -4 route add 198.18.0.0/24 via 192.168.#.1 dev wan", number))
	ip(t, internet, "ip link set to%d up", number)
	ip(t, internet, "%s", expand("ip -4 addr add 203.0.#.1/24 dev to#", number))
	ip(t, internet, "%s", expand("ip -4 route add 198.51.#.0/24 via 203.0.#.2 dev to#", number))
	done := make(chan struct{})
	var loops sync.WaitGroup
	loops.Go(u.translate)
	for _, queue := range []chan []byte{u.up, u.down} {
		loops.Go(func() { u.carry(queue, done) })
	}
	t.Cleanup(func() {
		close(done)
		u.device.Close()
		loops.Wait()
	})
	return u
}

// expand puts the number of a line in the place of each #.
func expand(command string, number int) string {
	return strings.ReplaceAll(command, "#", strconv.Itoa(number))
}

// forget has the translation begin again, as after the modem's restart.
func (u *uplink) forget() {
	u.mu.Lock()
	defer u.mu.Unlock()
	clear(u.inside)
	clear(u.outside)
}

// translate reads the packets of the device, which are IPv4 and UDP, and queues them translated.
func (u *uplink) translate() {
	public := [4]byte{198, 51, byte(u.number), 1}
	for b := make([]byte, 1<<16); ; {
		n, err := u.device.Read(b)
		if err != nil {
			return
		}
		m := append([]byte(nil), b[:n]...)
		if n < 28 || m[0] != 0x45 || m[9] != unix.IPPROTO_UDP {
			continue
		}
		be := binary.BigEndian
		queue := u.up
		u.mu.Lock()
		if [4]byte(m[16:20]) == public {
			flow, known := u.outside[be.Uint16(m[22:])]
			// Only from whom the packets went to.
			if !known || [4]byte(flow[4:8]) != [4]byte(m[12:16]) || be.Uint16(flow[10:]) != be.Uint16(m[20:]) {
				u.mu.Unlock()
				continue
			}
			copy(m[16:20], flow[0:4])
			copy(m[22:24], flow[8:10])
			queue = u.down
		} else {
			flow := [12]byte(append(append([]byte(nil), m[12:20]...), m[20:24]...))
			port, known := u.inside[flow]
			if !known {
				port = u.next
				u.next++
				u.inside[flow], u.outside[port] = port, flow
			}
			copy(m[12:16], public[:])
			be.PutUint16(m[20:], port)
		}
		u.mu.Unlock()
		be.PutUint16(m[26:], 0) // a UDP checksum is optional over IPv4
		be.PutUint16(m[10:], 0)
		be.PutUint16(m[10:], checksum.Of(m[:20]))
		select {
		case queue <- m:
		default: // the queue is full
		}
	}
}

// carry sends the packets of a queue at the line's rate, and a delay later.
func (u *uplink) carry(queue chan []byte, done chan struct{}) {
	type packet struct {
		b  []byte
		at time.Time
	}
	late := make(chan packet, 4096)
	var end sync.WaitGroup
	end.Go(func() {
		for p := range late {
			time.Sleep(time.Until(p.at))
			u.device.Write(p.b)
		}
	})
	defer end.Wait()
	defer close(late)
	free := time.Now()
	for {
		select {
		case <-done:
			return
		case b := <-queue:
			if now := time.Now(); free.Before(now.Add(-time.Millisecond)) {
				free = now
			}
			free = free.Add(time.Duration(len(b)) * 8 * time.Second / time.Duration(lineRate))
			time.Sleep(time.Until(free))
			select {
			case late <- packet{b, free.Add(lineDelay)}:
			default:
			}
		}
	}
}

// host is a namespace with a plane.
type host struct {
	t         testing.TB
	name      string
	namespace string
	key       handshake.PrivateKey
	state     dataplane.State
	plane     *Plane
	stop      func()
	setUp     []string // commands when the device is there
}

func newHost(t testing.TB, name string) *host {
	t.Helper()
	h := &host{t: t, name: name, namespace: netnstest.New(t)}
	ip(t, h.namespace, "ip link set lo up")
	netnstest.Do(t, h.namespace, func() error {
		return errors.Join(netns.Sysctl("net.ipv4.conf.all.rp_filter", "0"), netns.Sysctl("net.ipv4.conf.default.rp_filter", "0"), netns.Sysctl("net.ipv4.ip_forward", "1"))
	})
	var err error
	if h.key, err = handshake.GenerateKey(rand.Reader); err != nil {
		t.Fatal(err)
	}
	h.state = dataplane.State{Key: h.key, Port: 4790, MTU: 1400, Policy: dataplane.Policy{{Discipline: dataplane.Discipline{Name: "dq"}}}}
	return h
}

func (h *host) run() {
	h.t.Helper()
	o := Options{Interface: "tun0"}
	if testing.Verbose() {
		o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("host", h.name)
	}
	var err error
	if h.plane, err = newPlane(o, func(f func() error) error { return netns.Do(h.namespace, f) }); err != nil {
		h.t.Fatal(err)
	}
	if err := h.plane.Apply(h.state); err != nil {
		h.t.Fatal(err)
	}
	ip(h.t, h.namespace, "ip link set tun0 up")
	for _, c := range h.setUp {
		ip(h.t, h.namespace, "%s", c)
	}
	ctx, cancel := context.WithCancel(h.t.Context())
	done := make(chan error, 1)
	go func() { done <- h.plane.Run(ctx) }()
	h.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			h.t.Error(err)
		}
	})
	h.t.Cleanup(func() { h.stop() })
}

func (h *host) apply() {
	h.t.Helper()
	if err := h.plane.Apply(h.state); err != nil {
		h.t.Fatal(err)
	}
}

// link returns the status of a path to a peer.
func (h *host) link(peer, path string) dataplane.LinkStatus {
	for _, p := range h.plane.Status().Peers {
		for _, l := range p.Links {
			if p.Name == peer && l.Path == path {
				return l
			}
		}
	}
	return dataplane.LinkStatus{}
}

// until waits until a condition holds, and returns how long it took.
func until(t testing.TB, what string, limit time.Duration, f func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !f() {
		if time.Since(start) > limit {
			t.Fatalf("not within %v: %s", limit, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
	return time.Since(start)
}

// alliance is a home agent with a correspondent behind it, a leader, and two members on its short
// link. Each line has a NAT.
type alliance struct {
	t                              testing.TB
	home, leader                   *host
	members                        [2]*host
	lines                          [3]*uplink // of the leader and the members
	correspondent, internet, radio string
}

const (
	homeAgentAddress = "198.18.0.1"
	homeAddress      = "10.9.0.1"
	farAddress       = "10.8.0.2"
)

func newAlliance(t testing.TB) *alliance {
	t.Helper()
	a := &alliance{t: t, internet: netnstest.New(t), correspondent: netnstest.New(t), radio: netnstest.New(t)}
	a.home, a.leader = newHost(t, "home"), newHost(t, "leader")
	a.members = [2]*host{newHost(t, "member1"), newHost(t, "member2")}
	netnstest.Do(t, a.internet, func() error {
		return errors.Join(netns.Sysctl("net.ipv4.ip_forward", "1"), netns.Sysctl("net.ipv4.conf.all.rp_filter", "0"), netns.Sysctl("net.ipv4.conf.default.rp_filter", "0"))
	})
	// The short link is an Ethernet of the leader and the members.
	netnstest.Do(t, a.radio, func() error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
		bridge.Name = "air"
		return errors.Join(netlink.LinkAdd(bridge), netlink.LinkSetUp(bridge))
	})
	for i, h := range []*host{a.leader, a.members[0], a.members[1]} {
		a.lines[i] = newUplink(t, i+1, h.namespace, a.internet)
		ip(t, a.radio, "ip link add port%d type veth peer name wlan0 netns %s", i, h.namespace)
		netnstest.Do(t, a.radio, func() error {
			port, err := netlink.LinkByName(fmt.Sprintf("port%d", i))
			if err != nil {
				return err
			}
			bridge, err := netlink.LinkByName("air")
			if err != nil {
				return err
			}
			return errors.Join(netlink.LinkSetMaster(port, bridge), netlink.LinkSetUp(port))
		})
		ip(t, h.namespace, "ip link set wlan0 up")
		ip(t, h.namespace, "ip -4 addr add 172.16.0.%d/24 dev wlan0", i+1)
	}
	ip(t, a.home.namespace, "ip link add wan type veth peer name home netns %s", a.internet)
	ip(t, a.home.namespace, "ip link add lan type veth peer name eth0 netns %s", a.correspondent)
	for _, c := range []struct{ namespace, command string }{
		{a.internet, "ip link set home up"}, {a.internet, "ip -4 addr add 198.18.0.254/24 dev home"},
		{a.home.namespace, "ip link set wan up"}, {a.home.namespace, "ip -4 addr add 198.18.0.1/24 dev wan"},
		{a.home.namespace, "ip -4 route add 198.51.0.0/16 via 198.18.0.254 dev wan"},
		{a.home.namespace, "ip link set lan up"}, {a.home.namespace, "ip -4 addr add 10.8.0.1/24 dev lan"},
		{a.correspondent, "ip link set eth0 up"}, {a.correspondent, "ip -4 addr add 10.8.0.2/24 dev eth0"},
		{a.correspondent, "ip -4 route add default via 10.8.0.1 dev eth0"},
	} {
		ip(t, c.namespace, "%s", c.command)
	}
	rate := dataplane.Rate{Bandwidth: lineRate}
	line := func(name, device string) dataplane.Path {
		return dataplane.Path{Name: name, Interface: device, Up: rate, Down: rate, Usable: true}
	}
	home, leader := a.home.key.Public(), a.leader.key.Public()
	a.home.state.Paths = []dataplane.Path{{Name: "wan", Interface: "wan", Up: dataplane.Rate{Bandwidth: unit.GbitPerSecond}, Down: dataplane.Rate{Bandwidth: unit.GbitPerSecond}, Usable: true}}
	a.home.state.Peers = []dataplane.Peer{{
		Name: "leader", Public: leader, Prefixes: []netip.Prefix{netip.MustParsePrefix(homeAddress + "/32")},
		Alliance: dataplane.Alliance{Role: dataplane.Registrant, Lifetime: time.Minute, CareOf: 3},
	}}
	a.home.setUp = []string{"ip -4 route add 10.9.0.0/24 dev tun0"}
	a.leader.setUp = []string{"ip -4 addr add 10.9.0.1/32 dev tun0", "ip -4 route add 10.8.0.0/24 dev tun0 src 10.9.0.1"}
	a.leader.state.Paths = []dataplane.Path{line("own", "wan")}
	a.leader.state.Peers = []dataplane.Peer{{
		Name: "home", Public: home, Endpoints: []netip.AddrPort{netip.MustParseAddrPort(homeAgentAddress + ":4790")},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.8.0.0/24")}, Alliance: dataplane.Alliance{Role: dataplane.HomeAgent, Lifetime: 30 * time.Second},
	}}
	for _, m := range a.members {
		m.state.Paths = []dataplane.Path{line("line", "wan"), {Name: "radio", Interface: "wlan0", Usable: true, Short: true, Up: rate, Down: rate}}
		m.state.Peers = []dataplane.Peer{{
			Name: "leader", Public: leader,
			Alliance: dataplane.Alliance{
				Role: dataplane.Leader, Lifetime: 30 * time.Second, Path: "line", Up: rate, Down: rate,
				HomeAgents: []netip.AddrPort{netip.MustParseAddrPort(homeAgentAddress + ":4790")},
			},
		}}
	}
	return a
}

// join adds a member to the leader's configuration.
func (a *alliance) join(i int) {
	name := fmt.Sprintf("member%d", i+1)
	s := &a.leader.state
	s.Paths = append(s.Paths, dataplane.Path{Name: name, Interface: "wlan0", Member: name, Usable: true, Up: dataplane.Rate{Estimated: true}, Down: dataplane.Rate{Estimated: true}})
	s.Peers = append(s.Peers, dataplane.Peer{
		Name: name, Public: a.members[i].key.Public(), Endpoints: []netip.AddrPort{netip.MustParseAddrPort(fmt.Sprintf("172.16.0.%d:4790", i+2))},
		Alliance: dataplane.Alliance{Role: dataplane.Member, Lifetime: 30 * time.Second},
	})
	if a.leader.plane != nil {
		a.leader.apply()
	}
}

// up waits until a path carries packets in both directions.
func (a *alliance) up(path string) time.Duration {
	a.t.Helper()
	return until(a.t, "path "+path+" is up at both ends", 10*time.Second, func() bool {
		l, h := a.leader.link("home", path), a.home.link("leader", path)
		return l.State == "up" && l.Lifetime > 0 && h.State == "up" && h.Lifetime > 0
	})
}

// download begins one of the leader from the correspondent, without an end.
func (a *alliance) download() net.Conn {
	a.t.Helper()
	var l net.Listener
	netnstest.Do(a.t, a.correspondent, func() (err error) {
		l, err = net.Listen("tcp4", farAddress+":0")
		return err
	})
	go func() {
		c, err := l.Accept()
		l.Close()
		if err != nil {
			return
		}
		defer c.Close()
		for b := make([]byte, 1<<16); err == nil; {
			_, err = c.Write(b)
		}
	}()
	var c net.Conn
	netnstest.Do(a.t, a.leader.namespace, func() (err error) {
		c, err = net.DialTimeout("tcp4", l.Addr().String(), 5*time.Second)
		return err
	})
	a.t.Cleanup(func() { c.Close() })
	return c
}

// over downloads until each of the paths has carried a part of it.
func (a *alliance) over(paths ...string) {
	a.t.Helper()
	const part = 200_000
	c := a.download()
	defer c.Close()
	carried := func(path string) uint64 { return a.leader.link("home", path).Received.Bytes }
	before := map[string]uint64{}
	for _, path := range paths {
		before[path] = carried(path)
	}
	until(a.t, fmt.Sprintf("a download uses %q", paths), time.Minute, func() bool {
		c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if _, err := io.Copy(io.Discard, c); !errors.Is(err, os.ErrDeadlineExceeded) {
			a.t.Fatalf("download: %v", err)
		}
		return !slices.ContainsFunc(paths, func(path string) bool { return carried(path) < before[path]+part })
	})
}

const beatInterval = 4 * time.Millisecond

// beat sends a numbered datagram each beatInterval from the correspondent to the home address, and
// records when they arrive.
type beat struct {
	in, out *net.UDPConn
	sent    atomic.Uint64
	mu      sync.Mutex
	arrived []time.Time
	// latest is the highest number that has arrived. wrong counts datagrams that arrived before, or
	// whose length or content differs.
	latest uint64
	wrong  int
	seen   map[uint64]bool
}

// datagram is what a beat sends as its number n.
func (*beat) datagram(n uint64) []byte {
	return bytes.Repeat(binary.BigEndian.AppendUint64(nil, n), 125)
}

// receive records a datagram.
func (s *beat) receive(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := uint64(0)
	if len(b) >= 8 {
		n = binary.BigEndian.Uint64(b)
	}
	if s.seen[n] || !bytes.Equal(b, s.datagram(n)) {
		s.wrong++
	}
	s.seen[n] = true
	s.latest = max(s.latest, n)
	s.arrived = append(s.arrived, time.Now())
}

// follows waits until a datagram arrives that is sent a second from now, once an event has had its
// effect.
func (s *beat) follows(t *testing.T, what string) {
	t.Helper()
	from := s.sent.Load()
	until(t, "the stream goes on: "+what, 30*time.Second, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.latest > from+uint64(time.Second/beatInterval)
	})
}

func (a *alliance) beat() *beat {
	a.t.Helper()
	s := &beat{seen: map[uint64]bool{}}
	netnstest.Do(a.t, a.leader.namespace, func() (err error) {
		s.in, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(homeAddress+":9000")))
		return err
	})
	netnstest.Do(a.t, a.correspondent, func() (err error) {
		s.out, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(homeAddress+":9000")))
		return err
	})
	go func() {
		for b := make([]byte, 2000); ; {
			n, err := s.in.Read(b)
			if err != nil {
				return
			}
			s.receive(b[:n])
		}
	}()
	done := make(chan struct{})
	go func() {
		for tick := time.NewTicker(beatInterval); ; {
			select {
			case <-done:
				tick.Stop()
				return
			case <-tick.C:
				s.out.Write(s.datagram(s.sent.Add(1)))
			}
		}
	}()
	a.t.Cleanup(func() {
		close(done)
		s.in.Close()
		s.out.Close()
	})
	return s
}

// gap returns the longest time without a datagram since a time, until now.
func (s *beat) gap(since time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	longest, last := time.Duration(0), since
	for _, at := range append(s.arrived, time.Now()) {
		if at.After(since) {
			longest, last = max(longest, at.Sub(last)), at
		}
	}
	return longest
}

// crash ends the plane as kill -9 does: without a word to the peers.
func (h *host) crash() {
	h.plane.mu.Lock()
	for _, r := range h.plane.peers {
		r.mu.Lock()
		r.session.sending = nil
		r.mu.Unlock()
	}
	h.plane.mu.Unlock()
	h.stop()
}

// A leader downloads over its own line and those of two members, all behind NAT. Members come and
// go, the home agent is killed, and addresses change. BenchmarkAlliance measures the goodput.
func TestAlliance(t *testing.T) {
	t.Parallel()
	a := newAlliance(t)
	for _, h := range []*host{a.home, a.leader, a.members[0], a.members[1]} {
		h.run()
	}
	a.up("own")
	a.over("own")
	for i, name := range []string{"member1", "member2"} {
		a.join(i)
		t.Logf("%s joined after %v", name, a.up(name))
	}
	a.over("own", "member1", "member2")
	for _, m := range a.members {
		s := m.plane.Status()
		if r := s.Relays[0]; r.Down.Bytes < 100_000 || r.Up.Packets == 0 || r.HomeAgent.String() != homeAgentAddress+":4790" || r.Lifetime <= 0 {
			t.Errorf("%s relays %+v", m.name, r)
		}
		if s.Delivered.Packets != 0 {
			t.Errorf("%s has delivered %d packets of the leader", m.name, s.Delivered.Packets)
		}
	}
	l := a.leader.link("home", "member1")
	if l.Seen.Addr() != netip.MustParseAddr("198.51.2.1") || l.CareOf != l.Seen {
		t.Errorf("path over member1 is seen at %v, registered %v", l.Seen, l.CareOf)
	}
	if got := a.home.link("leader", "member1").CareOf.Addr(); got != netip.MustParseAddr("192.168.2.2") {
		t.Errorf("the care-of address is %v, want that of the member's line", got)
	}

	s := a.beat()
	time.Sleep(1200 * time.Millisecond) // probes are frequent while there is traffic
	// event has the stream go on after an event. What that costs depends on the machine, and is
	// logged.
	event := func(name string, f func()) {
		t.Helper()
		start := time.Now()
		f()
		s.follows(t, name)
		t.Logf("%s: longest gap %v", name, s.gap(start))
	}
	event("member vanishes from the short link", func() { ip(t, a.radio, "ip link set port1 down") })
	event("member returns", func() {
		ip(t, a.radio, "ip link set port1 up")
		a.up("member1")
	})
	event("member is killed", a.members[0].crash)
	event("member is started again", func() {
		a.members[0].run()
		t.Logf("after %v", a.up("member1"))
	})
	event("member's line goes down", func() { ip(t, a.lines[2].namespace, "ip link set out down") })
	ip(t, a.lines[2].namespace, "ip link set out up")
	ip(t, a.lines[2].namespace, "ip -4 route add default via 203.0.3.1 dev out")
	a.up("member2")
	event("leader's NAT forgets", func() {
		a.lines[0].forget()
		a.up("own")
	})
	event("leader's address on the short link changes", func() {
		ip(t, a.leader.namespace, "ip -4 addr del 172.16.0.1/24 dev wlan0")
		ip(t, a.leader.namespace, "ip -4 addr add 172.16.0.77/24 dev wlan0")
		time.Sleep(500 * time.Millisecond)
		t.Logf("after %v", a.up("member1"))
	})
	event("home agent is killed and started again", func() {
		a.home.crash()
		a.home.run()
		t.Logf("registered again after %v", a.up("own"))
	})
	for _, path := range []string{"own", "member1", "member2"} {
		a.up(path)
	}
	event("member says goodbye", a.members[1].stop)
	s.mu.Lock()
	if s.wrong > 0 {
		t.Errorf("%d datagrams arrived twice or changed", s.wrong)
	}
	s.mu.Unlock()
	until(t, "the path over a member that has gone is down", 10*time.Second, func() bool {
		l := a.leader.link("home", "member2")
		return l.State != "up" && l.Lifetime == 0
	})
}

// BenchmarkAlliance measures the goodput of a leader over its own line and those of its members.
func BenchmarkAlliance(b *testing.B) {
	a := newAlliance(b)
	for _, h := range []*host{a.home, a.leader, a.members[0], a.members[1]} {
		h.run()
	}
	a.up("own")
	for lines := 1; lines <= 3; lines++ {
		if lines > 1 {
			a.join(lines - 2)
			a.up(fmt.Sprintf("member%d", lines-1))
		}
		b.Run(fmt.Sprintf("%d lines of %v", lines, lineRate), func(b *testing.B) {
			const begin, length = time.Second, 2 * time.Second
			total := int64(0)
			for b.Loop() {
				c := a.download()
				n := int64(0)
				for _, d := range []time.Duration{begin, length} {
					c.SetReadDeadline(time.Now().Add(d))
					n, _ = io.Copy(io.Discard, c)
				}
				total += n
				c.Close()
			}
			b.ReportMetric(float64(total)*8/1e6/length.Seconds()/float64(b.N), "Mbit/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// A member relays for leaders that it knows, to home agents that it allows, at the rate that it
// offers, and for nobody else.
func TestMemberIsNoOpenRelay(t *testing.T) {
	a := newAlliance(t)
	m, leader := a.members[0], a.leader
	a.join(0)
	a.home.run()
	leader.run()
	alliance := &m.state.Peers[0].Alliance
	alliance.HomeAgents = []netip.AddrPort{netip.MustParseAddrPort("198.18.0.99:4790")}
	m.run()
	reason := func() string { return leader.link("member1", "member1").Reason }
	until(t, "another home agent is refused", 5*time.Second, func() bool { return reason() == tunnel.MemberProhibited.String() })
	if s := m.plane.Status().Relays[0]; s.HomeAgent.IsValid() || s.Up.Packets != 0 {
		t.Errorf("relays %+v", s)
	}

	const offered = unit.MbitPerSecond
	m.stop()
	alliance.HomeAgents, alliance.Up, alliance.Down = nil, dataplane.Rate{Bandwidth: offered}, dataplane.Rate{Bandwidth: offered}
	m.run()
	a.up("member1")
	if got := leader.link("home", "member1").Rate; got != offered {
		t.Errorf("the path has %v, the member offers %v", got, offered)
	}
	if got := a.home.link("leader", "member1").Rate; got != offered {
		t.Errorf("the home agent sends at %v, the member offers %v", got, offered)
	}

	// Messages of others on the short link, from another port of the leader, and of the Internet.
	before := m.plane.Status().Relays[0]
	junk := make([]byte, 200)
	junk[0] = byte(tunnel.Data)
	send := func(namespace, to string, times int) {
		t.Helper()
		netnstest.Do(t, namespace, func() error {
			c, err := net.Dial("udp4", to)
			if err != nil {
				return err
			}
			for range times {
				c.Write(junk)
			}
			return c.Close()
		})
	}
	send(a.members[1].namespace, "172.16.0.2:4790", 100)
	send(leader.namespace, "172.16.0.2:4790", 100)
	until(t, "messages of strangers are dropped", 5*time.Second, func() bool { return m.plane.Status().Dropped["unknown session"] >= 200 })
	after := m.plane.Status().Relays[0]
	if n := after.Up.Bytes - before.Up.Bytes; n > 200*100 {
		t.Errorf("%d bytes of strangers were relayed", n)
	}

	// The leader sends more than the rate that it was offered.
	r := leader.plane.peers[a.home.key.Public()]
	r.mu.Lock()
	var at *link
	for i := range r.links {
		if l := &r.links[i]; l.line != nil && l.title() == "member1" {
			at = l
		}
	}
	socket, to := at.line.socket.Load(), at.address.remote
	r.mu.Unlock()
	before = m.plane.Status().Relays[0]
	flood(t, socket, to, 2000)
	until(t, "what exceeds the rate is dropped", 5*time.Second, func() bool { return m.plane.Status().Relays[0].Dropped > before.Dropped+1000 })
	if n := m.plane.Status().Relays[0].Up.Bytes - before.Up.Bytes; n > 2*policerMinBurst+1<<19 {
		t.Errorf("%d bytes were relayed at once", n)
	}
	until(t, "the home agent drops what nobody has sealed", 5*time.Second, func() bool { return a.home.plane.Status().Dropped["unknown session"] > 0 })
}

// flood sends messages of the tunnel that nobody has made.
func flood(t *testing.T, s *udp.Socket, to netip.AddrPort, n int) {
	t.Helper()
	m := make([]byte, 1000)
	m[0] = byte(tunnel.Data)
	for range n / 20 {
		all := make([]udp.Datagram, 20)
		for i := range all {
			all[i] = udp.Datagram{Data: m, To: to}
		}
		if _, err := s.Send(all); err != nil {
			t.Fatal(err)
		}
	}
}
