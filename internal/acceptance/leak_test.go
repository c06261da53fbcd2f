package acceptance

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/packet"
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
	// repairTime is how long after the start of a daemon no rule is deleted: before it watches the
	// kernel, it cannot repair.
	repairTime = 5 * time.Second
	// defaultSequences is how many sequences a plain test runs. TABANE_SEQUENCES sets another
	// number, and TABANE_SEED repeats a run.
	defaultSequences = 50
)

// neighborhood is what the border routers have around them in testdata/three-peers.yaml.
var (
	leakPeers = []leakPeer{
		{name: "transit-a", border: "asbr1", link: "wan-a", lan: "2001:db8:a::/64", epe: "2001:db8:1::a", sid: "fc00:1:1::"},
		{name: "transit-b", border: "asbr1", link: "wan-b", lan: "2001:db8:b::/64", epe: "2001:db8:1::b", sid: "fc00:1:2::"},
		{name: "transit-c", border: "asbr2", link: "wan-c", lan: "2001:db8:c::/64", epe: "2001:db8:1::c", sid: "fc00:2:1::"},
	}
	// leakPool are the prefixes that peers advertise and withdraw: alone, nested, and all.
	leakPool = []string{
		"2001:db8:100::/40", "2001:db8:100::/48", "2001:db8:100:1::/64", "2001:db8:101::/48",
		"2001:db8:200::/48", "2001:db8:200:1::/64", "2001:db8:300::/48", "::/0",
	}
	// leakForbidden are advertised too and never believed.
	leakForbidden = []string{"2001:db8:1::/64", "2001:db8:1::fe/128", "fc00:2:1::/128", "fc00::/16"}
	// leakAlways is advertised by all peers all the time.
	leakAlways = "2001:db8:f0::/48"
	// leakInside is space that no packet may leave for, whatever the peers advertise.
	leakInside = []netip.Prefix{netip.MustParsePrefix("2001:db8:1::/64"), netip.MustParsePrefix("fc00::/16")}
	// leakTargets are the destinations of packets: in each prefix, in none, and our own.
	leakTargets = []string{
		"2001:db8:110::1", "2001:db8:100::1", "2001:db8:100:1::1", "2001:db8:101::1", "2001:db8:200::1", "2001:db8:200:1::1",
		"2001:db8:300::1", "2001:db8:f0::1", "2001:db8:eeee::1", "2001:db8:1::77", "fc00:2:9::1",
	}
)

type leakPeer struct{ name, border, link, lan, epe, sid string }

// kind is how a packet was sent.
type kind byte

const (
	other     kind = iota // not by the test: errors of ICMPv6 and all else
	fromEPE               // by the server, from the EPE address of a peer
	toSID                 // by a host inside, encapsulated, to the SID of a peer
	best                  // by the server, from its default address
	forgedEPE             // by a host inside, from an EPE address, to a border router
	intruding             // by a peer
	kinds
)

func (k kind) String() string {
	return [...]string{"other", "from an EPE address", "to a SID", "by the best path", "forged inside", "from a peer"}[k]
}

// sighting is a packet on its way to a peer.
type sighting struct {
	at     time.Time
	peer   int
	kind   kind
	origin int // the peer of the EPE address or SID, or that sent the packet
	dst    netip.Addr
}

// interval is when something was so; a zero end is not yet.
type interval struct{ from, to time.Time }

// leakTest is a lab under random changes.
type leakTest struct {
	*lab
	random *rand.Rand
	log    []string
	// networks are what each peer's file says, history when each was advertised.
	networks []map[string]bool
	history  []map[string][]interval
	// pids are the daemons as they run now, started when, down when a border router was killed
	// until its next instance started.
	pids    map[string]int
	waits   map[string]func()
	started map[string]time.Time
	down    map[string][]interval
	// unguarded are deletions of rules for packets from peers, by border router.
	unguarded map[string][]time.Time

	mu   sync.Mutex
	seen []sighting
	sent [kinds]atomic.Int64
}

// TestNoPacketLeavesUnannounced applies random sequences of advertisements, withdrawals, link
// flaps, kills and deleted rules while packets of all kinds are sent, and captures what arrives at
// each peer. No packet may arrive at a peer that did not advertise its destination.
func TestNoPacketLeavesUnannounced(t *testing.T) {
	sequences, seed := number(t, "TABANE_SEQUENCES", defaultSequences), number(t, "TABANE_SEED", int(time.Now().UnixNano()&0xffffff))
	t.Logf("TABANE_SEQUENCES=%d TABANE_SEED=%d", sequences, seed)
	l := &leakTest{
		lab: up(t, "testdata/three-peers.yaml"), random: rand.New(rand.NewPCG(uint64(seed), 0)),
		pids: map[string]int{}, waits: map[string]func(){}, started: map[string]time.Time{}, down: map[string][]interval{},
		unguarded: map[string][]time.Time{},
	}
	now := time.Now()
	for i := range leakPeers {
		l.networks = append(l.networks, map[string]bool{leakAlways: true})
		l.history = append(l.history, map[string][]interval{leakAlways: {{from: now.Add(-time.Hour)}}})
		l.capture(t, i)
	}
	for _, d := range []string{"server edge", "reflector reflector", "asbr1 asbr", "asbr2 asbr", "transit-a router", "transit-b router", "transit-c router"} {
		node, role, _ := strings.Cut(d, " ")
		l.pids[d], l.started[d] = l.process(node, role).PID, now.Add(-time.Hour)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last changes:\n%s", strings.Join(l.log[max(0, len(l.log)-50):], "\n"))
		}
	})
	stop := l.traffic(t, uint64(seed))
	for n := range sequences {
		for range 3 + l.random.IntN(4) {
			l.step(n)
			time.Sleep(time.Duration(20+l.random.IntN(130)) * time.Millisecond)
		}
	}
	l.converged()
	time.Sleep(propagation)
	stop()
	l.judge(t)
}

func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		t.Fatalf("%s must be a number, got %q", name, text)
	}
	return n
}

func (l *leakTest) note(format string, args ...any) {
	l.log = append(l.log, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// step applies one random change.
func (l *leakTest) step(sequence int) {
	i := l.random.IntN(len(leakPeers))
	p := leakPeers[i]
	switch n := l.random.IntN(100); {
	case n < 70:
		for range 1 + l.random.IntN(3) {
			prefix := leakPool[l.random.IntN(len(leakPool))]
			if l.random.IntN(10) == 0 {
				prefix = leakForbidden[l.random.IntN(len(leakForbidden))]
			}
			l.networks[i][prefix] = !l.networks[i][prefix]
		}
		l.note("%d: %s advertises %s", sequence, p.name, l.advertised(i))
		l.advertise(i)
	case n < 80:
		node := []string{"server edge", "asbr1 asbr", "asbr2 asbr"}[l.random.IntN(3)]
		if time.Since(l.started[node]) > repairTime {
			l.deleteRule(sequence, strings.Fields(node)[0])
		}
	case n < 90:
		l.note("%d: link to %s flaps", sequence, p.name)
		l.link(l.t, p.border, p.link, false)
		l.withdrawn(i)
		time.Sleep(time.Duration(20+l.random.IntN(200)) * time.Millisecond)
		l.announced(i)
		l.link(l.t, p.border, p.link, true)
	case n < 96:
		l.kill(sequence, p.name, "router", func() { l.withdrawn(i) }, func() { l.announced(i) })
	default:
		switch node := []string{"server edge", "asbr1 asbr", "asbr2 asbr", "reflector reflector"}[l.random.IntN(4)]; node {
		case "server edge", "reflector reflector":
			name, role, _ := strings.Cut(node, " ")
			l.kill(sequence, name, role, func() {}, func() {})
		default:
			if time.Since(l.started[node]) < 2*staleAfterRestart {
				return // most of the time, every withdrawal counts
			}
			name, role, _ := strings.Cut(node, " ")
			l.kill(sequence, name, role,
				func() { l.down[name] = append(l.down[name], interval{from: time.Now()}) },
				func() { l.down[name][len(l.down[name])-1].to = time.Now() })
		}
	}
}

func (l *leakTest) advertised(peer int) []string {
	list := []string{}
	for prefix, on := range l.networks[peer] {
		if on {
			list = append(list, prefix)
		}
	}
	slices.Sort(list)
	return list
}

// advertise writes a peer's file and has it reload it.
func (l *leakTest) advertise(peer int) {
	l.t.Helper()
	p := leakPeers[peer]
	file := filepath.Join("/run/tabane/lab", l.name, p.name+".yaml")
	b, err := os.ReadFile(file)
	if err != nil {
		l.t.Fatal(err)
	}
	var config struct {
		Router map[string]any `json:"router"`
	}
	if err := json.Unmarshal(b, &config); err != nil {
		l.t.Fatal(err)
	}
	config.Router["networks"] = l.advertised(peer)
	if b, err = json.Marshal(config); err != nil {
		l.t.Fatal(err)
	}
	if err := os.WriteFile(file, b, 0o600); err != nil {
		l.t.Fatal(err)
	}
	l.announced(peer)
	if err := syscall.Kill(l.pids[p.name+" router"], syscall.SIGHUP); err != nil {
		l.t.Fatal(err)
	}
}

// announced notes that a peer may advertise from now on what its file says, and no more.
func (l *leakTest) announced(peer int) {
	now := time.Now()
	for _, prefix := range append(slices.Clone(leakPool), leakAlways) {
		h := l.history[peer][prefix]
		open := len(h) > 0 && h[len(h)-1].to.IsZero()
		switch on := l.networks[peer][prefix]; {
		case on && !open:
			l.history[peer][prefix] = append(h, interval{from: now})
		case !on && open:
			h[len(h)-1].to = now
		}
	}
}

// withdrawn notes that a peer's session ends.
func (l *leakTest) withdrawn(peer int) {
	now := time.Now()
	for _, h := range l.history[peer] {
		if len(h) > 0 && h[len(h)-1].to.IsZero() {
			h[len(h)-1].to = now
		}
	}
}

// kill kills a daemon and starts the next instance soon after.
func (l *leakTest) kill(sequence int, node, role string, killed, starts func()) {
	l.t.Helper()
	d := node + " " + role
	l.note("%d: %s is killed", sequence, d)
	killed()
	if err := syscall.Kill(l.pids[d], syscall.SIGKILL); err != nil {
		l.t.Fatal(err)
	}
	if wait := l.waits[d]; wait != nil {
		wait()
	} else {
		pid := l.pids[d]
		l.eventually(d+" ends", 10*time.Second, func() (bool, string) {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
			return errors.Is(err, os.ErrNotExist) || strings.Contains(string(b), ") Z ") && len(threads) <= 1, string(b)
		})
	}
	time.Sleep(time.Duration(l.random.IntN(300)) * time.Millisecond)
	cmd := l.command(node, program, role, "-c", filepath.Join("/run/tabane/lab", l.name, node+".yaml"))
	var diag bytes.Buffer
	cmd.Stderr = &diag
	starts()
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	done := sync.OnceFunc(func() { _ = cmd.Wait() })
	l.pids[d], l.waits[d], l.started[d] = cmd.Process.Pid, done, time.Now()
	l.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		done()
		if text := diag.String(); l.t.Failed() {
			l.t.Logf("%s, an instance that was started again:\n%s", d, text[max(0, len(text)-2000):])
		}
	})
	// Until it handles signals, SIGHUP would end it.
	l.eventually(d+" answers", 10*time.Second, l.contains(true, `"role"`, node, program, "status", "--json", role))
}

// deleteRule deletes one of a daemon's policy rules, as another program would.
func (l *leakTest) deleteRule(sequence int, node string) {
	l.in(l.t, node, func() error {
		rules, err := netlink.RuleList(netlink.FAMILY_V6)
		if err != nil {
			return err
		}
		rules = slices.DeleteFunc(rules, func(r netlink.Rule) bool { return r.Priority < 900 || r.Priority > 2000 })
		if len(rules) == 0 {
			return fmt.Errorf("%s has no policy rules", node)
		}
		r := rules[l.random.IntN(len(rules))]
		l.note("%d: %s loses rule %s", sequence, node, r)
		if node != "server" {
			l.unguarded[node] = append(l.unguarded[node], time.Now())
		}
		if err := netlink.RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		return nil
	})
}

// capture records the IPv6 packets that arrive at a peer until the test ends.
func (l *leakTest) capture(t *testing.T, peer int) {
	t.Helper()
	p := leakPeers[peer]
	lan := netip.MustParsePrefix(p.lan)
	var socket *packet.Socket
	l.in(t, p.name, func() error {
		link, err := net.InterfaceByName("csp")
		if err != nil {
			return err
		}
		socket, err = packet.Open(packet.Options{Interface: link.Index, Cooked: true})
		return err
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- socket.Run(ctx, packet.Handler{Packet: func(q packet.Packet) error {
			if q.Sent || len(q.Data) < 40 || q.Data[0]>>4 != 6 {
				return nil
			}
			s := sighting{at: q.At, peer: peer, dst: netip.AddrFrom16([16]byte(q.Data[24:40]))}
			if s.dst.IsMulticast() || s.dst.IsLinkLocalUnicast() || lan.Contains(s.dst) {
				return nil // of the link: neighbor discovery, BGP
			}
			if text, ok := bytes.CutPrefix(q.Data[40:], marker); ok && q.Data[6] == unix.IPPROTO_NONE && len(text) == 2 {
				s.kind, s.origin = kind(text[0]), int(text[1])
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.seen = append(l.seen, s)
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

// raw returns a sender of packets without upper layer from an address of the server, which the
// server routes itself.
func (l *leakTest) raw(t *testing.T, src string) sender {
	t.Helper()
	var fd int
	l.in(t, "server", func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_NONE); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrInet6{Addr: netip.MustParseAddr(src).As16()})
	})
	t.Cleanup(func() { unix.Close(fd) })
	return func(b []byte, dst netip.Addr) error {
		err := unix.Sendto(fd, b, 0, &unix.SockaddrInet6{Addr: dst.As16()})
		for _, unroutable := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EAGAIN, unix.ENOBUFS} {
			if errors.Is(err, unroutable) {
				return nil
			}
		}
		return err
	}
}

// frames returns a sender of whole packets to the link-layer address of a neighbor.
func (l *leakTest) frames(t *testing.T, node, link, to, toLink string) sender {
	t.Helper()
	at := &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16([]byte{0x86, 0xdd}), Halen: 6}
	l.in(t, to, func() error {
		link, err := net.InterfaceByName(toLink)
		if err == nil {
			copy(at.Addr[:], link.HardwareAddr)
		}
		return err
	})
	var fd int
	l.in(t, node, func() error {
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
		err := unix.Sendto(fd, b, 0, at)
		if errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENXIO) {
			return nil // the link flaps
		}
		return err
	}
}

// traffic sends packets of all kinds until the function that it returns is called.
func (l *leakTest) traffic(t *testing.T, seed uint64) (stop func()) {
	t.Helper()
	var epe, toBorder, fromPeer []sender
	for _, p := range leakPeers {
		epe = append(epe, l.raw(t, p.epe))
		toBorder = append(toBorder, l.frames(t, "reflector", "lan", p.border, "lan"))
		fromPeer = append(fromPeer, l.frames(t, p.name, "csp", p.border, p.link))
	}
	server := l.raw(t, "2001:db8:1::10")
	random := rand.New(rand.NewPCG(seed, 1))
	address := func(list []string) netip.Addr { return netip.MustParseAddr(list[random.IntN(len(list))]) }
	send := func() error {
		i, dst := random.IntN(len(leakPeers)), address(leakTargets)
		p := leakPeers[i]
		k := fromEPE + kind(random.IntN(int(kinds-fromEPE)))
		text := append(slices.Clone(marker), byte(k), byte(i))
		inside := netip.MustParseAddr("2001:db8:1::fe")
		l.sent[k].Add(1)
		switch k {
		case fromEPE:
			return epe[i](text, dst)
		case toSID:
			inner := ip6(inside, dst, unix.IPPROTO_NONE, text)
			return toBorder[i](ip6(inside, netip.MustParseAddr(p.sid), unix.IPPROTO_IPV6, inner), dst)
		case best:
			return server(text, dst)
		case forgedEPE:
			return toBorder[i](ip6(netip.MustParseAddr(leakPeers[random.IntN(len(leakPeers))].epe), dst, unix.IPPROTO_NONE, text), dst)
		default:
			src := address(append([]string{p.epe, "2001:db8:1::10"}, leakTargets...))
			plain := ip6(src, dst, unix.IPPROTO_NONE, text)
			if random.IntN(2) == 0 {
				plain = ip6(src, netip.MustParseAddr(leakPeers[random.IntN(len(leakPeers))].sid), unix.IPPROTO_IPV6, plain)
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

// converged waits until the server's tables have what the peers advertise, so that the changes
// had an effect.
func (l *leakTest) converged() {
	l.t.Helper()
	for i, p := range leakPeers {
		want := slices.DeleteFunc(l.advertised(i), func(prefix string) bool { return slices.Contains(leakForbidden, prefix) })
		l.eventually("the server has the routes of "+p.name, 40*time.Second, func() (bool, string) {
			got := []string{}
			for line := range strings.Lines(l.ip("server", fmt.Sprintf("route show table %d", 101+i))) {
				if fields := strings.Fields(line); len(fields) > 1 && fields[1] == "nhid" {
					got = append(got, strings.Replace(fields[0], "default", "::/0", 1))
				}
			}
			slices.Sort(got)
			return slices.Equal(got, want), fmt.Sprintf("has %v, want %v", got, want)
		})
	}
}

// lateness returns how long after the last withdrawal of all prefixes of a peer that cover an
// address a packet was seen: 0 while one is advertised. Routes that are withdrawn while the border
// router is down are kept by its next instance, see staleAfterRestart.
func (l *leakTest) lateness(s sighting) (late time.Duration, advertised bool) {
	late = 1 << 62
	for prefix, history := range l.history[s.peer] {
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
			for _, d := range l.down[leakPeers[s.peer].border] {
				if stale := d.to.Add(staleAfterRestart); end.Add(propagation).After(d.from) && end.Before(d.to.Add(sessionTime)) {
					end = stale
				}
			}
			if s.at.Before(end) {
				return 0, true
			}
			late = min(late, s.at.Sub(end))
		}
	}
	return late, advertised
}

// fault returns why a packet should not have left, or "".
func (l *leakTest) fault(s sighting) string {
	for _, p := range leakInside {
		if p.Contains(s.dst) {
			return "is for our own space"
		}
	}
	late, advertised := l.lateness(s)
	switch {
	case !advertised:
		return "its destination was never advertised by this peer"
	case late > propagation:
		return fmt.Sprintf("its destination was withdrawn %s before", late.Round(time.Millisecond))
	case (s.kind == fromEPE || s.kind == toSID) && s.origin != s.peer:
		return "is for " + leakPeers[s.origin].name
	case s.kind == intruding && !slices.ContainsFunc(l.unguarded[leakPeers[s.origin].border], func(at time.Time) bool {
		return !s.at.Before(at) && s.at.Before(at.Add(propagation))
	}):
		return "is transit"
	}
	return ""
}

// judge checks each packet that arrived at a peer.
func (l *leakTest) judge(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var arrived [kinds]int
	var lates []time.Duration
	faults := 0
	for _, s := range l.seen {
		arrived[s.kind]++
		if late, ok := l.lateness(s); ok && late > 0 {
			lates = append(lates, late)
		}
		if why := l.fault(s); why != "" {
			if faults++; faults <= 10 {
				t.Errorf("%s: %s got a packet %s (%s) to %s: %s", s.at.Format("15:04:05.000"),
					leakPeers[s.peer].name, s.kind, leakPeers[s.origin].name, s.dst, why)
			}
		}
	}
	t.Logf("%d packets judged, %d faults", len(l.seen), faults)
	for k := fromEPE; k < kinds; k++ {
		t.Logf("%s: %d sent, %d arrived at peers", k, l.sent[k].Load(), arrived[k])
	}
	if len(lates) > 0 {
		slices.Sort(lates)
		t.Logf("%d arrived after the withdrawal, half of them within %s, the last %s after it",
			len(lates), lates[len(lates)/2], lates[len(lates)-1])
	}
	for _, k := range []kind{fromEPE, toSID, best, forgedEPE} {
		if arrived[k] == 0 {
			t.Errorf("no packet %s arrived at any peer: the test shows nothing", k)
		}
	}
}
