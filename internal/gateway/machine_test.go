package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/nft"
	"github.com/tabane/tabane/internal/kernel/route"
	"github.com/tabane/tabane/internal/testkit/programs"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// fakePlane remembers what it is to do.
type fakePlane struct {
	mu      sync.Mutex
	state   dataplane.State
	refusal error
	status  dataplane.Status
}

func (p *fakePlane) Apply(s dataplane.State) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refusal != nil {
		return p.refusal
	}
	p.state = s
	return nil
}

func (p *fakePlane) Status() dataplane.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// path sets the state of the only path to the only peer.
func (p *fakePlane) path(state string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status.Peers = []dataplane.PeerStatus{{Name: "hq", Links: []dataplane.LinkStatus{{Path: "fiber", State: state}}}}
}

func (p *fakePlane) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (p *fakePlane) refuse(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusal = err
}

// fixedNames resolves names from a map.
type fixedNames struct {
	mu   sync.Mutex
	list map[string]netip.Addr
}

func (n *fixedNames) resolve(_ context.Context, name string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a, ok := n.list[name]; ok {
		return []netip.Addr{a}, nil
	}
	return nil, errors.New("no such name")
}

func (n *fixedNames) set(name, address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list[name] = netip.MustParseAddr(address)
}

// machine is a running gateway in a namespace with the tunnel's interface and eth1.
type machine struct {
	*Gateway
	t     *testing.T
	ns    string
	plane *fakePlane
	dns   *fixedNames
	stop  func()
}

// newMachine makes a gateway that does not run yet.
func newMachine(t *testing.T, c Config) *machine {
	t.Helper()
	m := &machine{t: t, ns: netnstest.New(t), plane: &fakePlane{}}
	for _, name := range []string{"tabane0", "eth1"} {
		m.add(name)
	}
	m.ip("link set eth1 up")
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(keyOf(24).Text()), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Key = key
	netnstest.Do(t, m.ns, func() error {
		if err := errors.Join(netns.Sysctl("net.ipv4.ip_forward", "1"), netns.Sysctl("net.ipv6.conf.all.forwarding", "1")); err != nil {
			return err
		}
		var err error
		m.Gateway, err = New(Options{Config: c, Log: slog.New(slog.DiscardHandler), Plane: func(string, *slog.Logger) (dataplane.Carrier, error) { return m.plane, nil }})
		return err
	})
	m.dns = &fixedNames{list: map[string]netip.Addr{"hq.example": netip.MustParseAddr("192.0.2.9")}}
	m.names = m.dns
	return m
}

func run(t *testing.T, c Config) *machine {
	t.Helper()
	m := newMachine(t, c)
	m.start()
	return m
}

// start runs the gateway until the test ends.
func (m *machine) start() {
	m.t.Helper()
	ctx, cancel := context.WithCancel(m.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- netns.Do(m.ns, func() error { return m.Run(ctx) }) }()
	m.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			m.t.Error(err)
		}
	})
	m.t.Cleanup(m.stop)
}

// add adds an interface that is down, with a carrier when it is up.
func (m *machine) add(name string) {
	m.t.Helper()
	m.ip("link add " + name + " type veth peer name " + name + "x; link set " + name + "x up")
}

func (m *machine) ip(commands string) string {
	m.t.Helper()
	var all strings.Builder
	for command := range strings.SplitSeq(commands, "; ") {
		out, err := netnstest.TryIP(m.t, m.ns, command)
		if err != nil {
			m.t.Fatalf("%s: %v", command, err)
		}
		all.WriteString(out)
	}
	return all.String()
}

func (m *machine) reload(c Config) (lines []string, err error) {
	m.t.Helper()
	netnstest.Do(m.t, m.ns, func() error {
		lines, err = m.Reload(c)
		return nil
	})
	return lines, err
}

// wait waits until the plane has a state that is as wanted.
func (m *machine) wait(what string, ok func(s dataplane.State) bool) {
	m.t.Helper()
	var s dataplane.State
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		m.plane.mu.Lock()
		s = m.plane.state
		m.plane.mu.Unlock()
		if ok(s) {
			return
		}
	}
	m.t.Fatalf("%s: not in time; the plane has %+v", what, s)
}

// routes waits until the table of peers' prefixes of IPv4 has a line for each of these, and no
// other.
func (m *machine) routes(want ...string) {
	m.t.Helper()
	m.shows("-4 route show table 4790", want...)
}

// shows waits until the output of a command has a line for each of these, and no other.
func (m *machine) shows(command string, want ...string) {
	m.t.Helper()
	var got string
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		got = m.ip(command)
		lines := strings.FieldsFunc(got, func(r rune) bool { return r == '\n' })
		if len(lines) == len(want) && !slices.ContainsFunc(want, func(w string) bool {
			return !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, w) })
		}) {
			return
		}
	}
	m.t.Errorf("%s:\n%swant:\n%s", command, got, strings.Join(want, "\n"))
}

func usable(s dataplane.State) (list []bool) {
	for _, p := range s.Paths {
		list = append(list, p.Usable)
	}
	return list
}

func TestMachine(t *testing.T) {
	c := site()
	c.Peers = c.Peers[:1]
	c.Peers[0].Prefixes = c.Peers[0].Prefixes[:1]
	m := run(t, c)
	m.wait("the name is resolved", func(s dataplane.State) bool {
		return len(s.Peers) == 1 && slices.Equal(s.Peers[0].Endpoints, []netip.AddrPort{netip.MustParseAddrPort("192.0.2.9:4790")})
	})
	m.wait("eth1 is up, wwan0 is missing", func(s dataplane.State) bool { return slices.Equal(usable(s), []bool{true, false}) && s.MTU == 1500-92 })
	m.add("wwan0")
	netnstest.Do(t, m.ns, func() error {
		link, err := netlink.LinkByName("wwan0")
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(link, 1400)
	})
	m.ip("link set wwan0 up")
	m.wait("a modem appears", func(s dataplane.State) bool { return slices.Equal(usable(s), []bool{true, true}) && s.MTU == 1400-92 })
	m.ip("link set eth1 down")
	m.wait("a cable is pulled", func(s dataplane.State) bool { return slices.Equal(usable(s), []bool{false, true}) })
	both := []string{"10.2.0.0/16 dev tabane0", "unreachable 10.2.0.0/16"}
	m.routes(both...)

	// What the plane refuses changes nothing.
	now := c
	now.Key = m.config.Key
	now.Peers = slices.Clone(c.Peers)
	now.Peers[0].Prefixes = []netip.Prefix{netip.MustParsePrefix("10.7.0.0/16")}
	m.plane.refuse(errors.New("no memory"))
	if _, err := m.reload(now); err == nil || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("reload: %v", err)
	}
	m.routes(both...)
	m.plane.refuse(nil)
	other := now
	other.Listen, other.Tunnel.Interface = 99, "tun9"
	if _, err := m.reload(other); err == nil || !strings.Contains(err.Error(), "listen: cannot change") || !strings.Contains(err.Error(), "tunnel.interface: cannot change") {
		t.Errorf("reload: %v", err)
	}
	m.routes(both...)
	if lines, err := m.reload(now); err != nil || !slices.Equal(lines, []string{`peer "hq" replaced`}) {
		t.Errorf("reload: %q, %v", lines, err)
	}
	m.wait("the prefix has changed", func(s dataplane.State) bool { return s.Peers[0].Prefixes[0] == now.Peers[0].Prefixes[0] })
	m.routes("10.7.0.0/16 dev tabane0", "unreachable 10.7.0.0/16")

	// Another program deletes a route: it is restored.
	m.ip("route del 10.7.0.0/16 dev tabane0 metric 16 table 4790")
	m.routes("10.7.0.0/16 dev tabane0", "unreachable 10.7.0.0/16")

	m.stop()
	m.routes()
	if s := m.Status().(Status); s.Ready || s.Reason != "not running" {
		t.Errorf("after the end: %+v", s.Status)
	}
}

// TestHostIsRestored: what another program does to the tunnel's interface is restored, and what
// belongs to the host is reported with the command that mends it.
func TestHostIsRestored(t *testing.T) {
	c := site()
	c.Peers = c.Peers[:1]
	c.Peers[0].Prefixes = c.Peers[0].Prefixes[:1]
	m := run(t, c)
	routes := []string{"10.2.0.0/16 dev tabane0", "unreachable 10.2.0.0/16"}
	m.routes(routes...)
	tunnel := func() (up bool, mtu int) {
		netnstest.Do(t, m.ns, func() error {
			link, err := netlink.LinkByName("tabane0")
			if err != nil {
				return err
			}
			up, mtu = link.Attrs().Flags&net.FlagUp != 0, link.Attrs().MTU
			return nil
		})
		return up, mtu
	}
	for _, change := range []string{"link set tabane0 down", "link set tabane0 mtu 1300", "link set tabane0 mtu 1000", "link set tabane0 mtu 9000; link set tabane0 down"} {
		m.ip(change)
		m.soon(change, func() (bool, string) {
			up, mtu := tunnel()
			return up && mtu == 1500-92, fmt.Sprintf("up %t, MTU %d", up, mtu)
		})
		m.routes(routes...)
	}
	for key, values := range map[string][2]string{
		"net.ipv4.ip_forward":              {"0", "this host does not forward IPv4, as a router must: sysctl -w net.ipv4.ip_forward=1"},
		"net.ipv4.conf.tabane0.forwarding": {"0", `interface "tabane0" does not forward IPv4, as a router must: sysctl -w net.ipv4.conf.tabane0.forwarding=1`},
		"net.ipv4.conf.eth1.rp_filter":     {"1", `interface "eth1" drops IPv4 packets whose best return path is another: sysctl -w net.ipv4.conf.eth1.rp_filter=2`},
	} {
		var before string
		netnstest.Do(t, m.ns, func() (err error) {
			before, err = netns.ReadSysctl(key)
			return errors.Join(err, netns.Sysctl(key, values[0]))
		})
		reports := func(want bool) func() (bool, string) {
			return func() (bool, string) {
				s := m.Status().(Status)
				return strings.Contains(s.Reason, values[1]) == want, s.Reason
			}
		}
		m.soon(key+" is reported", reports(true))
		netnstest.Do(t, m.ns, func() error { return netns.Sysctl(key, before) })
		m.soon(key+" is reported no more", reports(false))
	}
}

// soon waits until a condition holds, at most for as long as a change of the host may go unnoticed.
func (m *machine) soon(what string, ok func() (bool, string)) {
	m.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		good, got := ok()
		if good {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("%s: not in time: %s", what, got)
		}
	}
}

// TestSecondGateway: a second gateway in the same network namespace is refused, and one after the
// first has stopped is not.
func TestSecondGateway(t *testing.T) {
	netnstest.Need(t)
	m := run(t, site())
	again := func() (*Gateway, error) {
		var g *Gateway
		err := netns.Do(m.ns, func() (err error) {
			g, err = New(Options{Config: m.config, Log: slog.New(slog.DiscardHandler), Plane: func(string, *slog.Logger) (dataplane.Carrier, error) { return &fakePlane{}, nil }})
			return err
		})
		return g, err
	}
	if _, err := again(); err == nil || !strings.Contains(err.Error(), "another gateway runs in this network namespace") {
		t.Errorf("second gateway: %v", err)
	}
	m.stop()
	g, err := again()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := netns.Do(m.ns, func() error { return g.Run(ctx) }); err != nil {
		t.Error(err)
	}
}

// TestPeerMoves: a peer with dynamic DNS has another address. Its name is resolved again when a
// path is dead, not before.
func TestPeerMoves(t *testing.T) {
	c := site()
	c.Paths, c.Peers = c.Paths[:1], c.Peers[:1]
	m := run(t, c)
	at := func(address string) func(dataplane.State) bool {
		return func(s dataplane.State) bool {
			return len(s.Peers) == 1 && slices.Equal(s.Peers[0].Endpoints, []netip.AddrPort{netip.MustParseAddrPort(address)})
		}
	}
	m.plane.path(stateUp)
	m.wait("the name is resolved", at("192.0.2.9:4790"))
	m.dns.set("hq.example", "192.0.2.77")
	time.Sleep(100 * time.Millisecond)
	m.wait("nothing has changed", at("192.0.2.9:4790"))
	m.plane.path(stateDead)
	m.wait("the peer has moved", at("192.0.2.77:4790"))
}

// TestDefaultPeer: a peer that all other networks are reached through, on a host where other
// programs change routes and rules.
func TestDefaultPeer(t *testing.T) {
	c := site()
	c.Paths = c.Paths[:1]
	c.Peers = c.Peers[:1]
	c.Peers[0].Prefixes = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	m := run(t, c)
	m.add("eth0")
	m.ip("link set eth0 up; link set tabane0 up; link set lo up; addr add 10.1.0.1/24 dev eth0; addr add 192.0.2.2/24 dev eth1; addr add 2001:db8:9::2/64 dev eth1 nodad")
	m.ip("-4 route add default via 192.0.2.1 dev eth1; -6 route add default via 2001:db8:9::1 dev eth1; -4 route add 10.77.0.0/16 via 10.1.0.9 dev eth0")
	rules := func(family string) {
		t.Helper()
		list := []string{"0:\tfrom all lookup local", "4791:\tnot from all fwmark 0x12b6 lookup main suppress_prefixlength 0 proto 115",
			"4792:\tfrom all oif eth1 lookup main proto 115", "4793:\tnot from all fwmark 0x12b6 lookup 4791 proto 115", "32766:\tfrom all lookup main"}
		if family == "-4" {
			list = append(list, "32767:\tfrom all lookup default")
		}
		m.shows(family+" rule show", list...)
	}
	rules("-4")
	rules("-6")
	m.shows("-4 route show table 4791", "default dev tabane0", "unreachable default", "unreachable 10.1.0.0/16")
	for dst, want := range map[string]string{
		"198.51.100.1": "dev tabane0", "10.1.0.7": "dev eth0", "10.77.0.1": "via 10.1.0.9 dev eth0", "192.0.2.1": "dev eth1",
		"2001:db8:77::1": "dev tabane0", "2001:db8:9::7": "dev eth1",
	} {
		if got := m.ip("route get " + dst); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", dst, got, want)
		}
	}
	if got, err := netnstest.TryIP(m.t, m.ns, "route get 10.1.9.9"); err == nil {
		t.Errorf("a part of the LAN's prefix that no route has: %s", got)
	}
	// A socket with the mark, and one that is bound to the path's interface, do not use the tunnel.
	for name, set := range map[string]func(fd int) error{
		"mark":  func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, SocketMark) },
		"bound": func(fd int) error { return unix.BindToDevice(fd, "eth1") },
		"none":  func(int) error { return nil },
	} {
		netnstest.Do(t, m.ns, func() error {
			for to, path := range map[string]string{"198.51.100.1:9": "192.0.2.2", "[2001:db8:77::1]:9": "2001:db8:9::2"} {
				d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
					return errors.Join(c.Control(func(fd uintptr) { err = set(int(fd)) }), err)
				}}
				conn, err := d.Dial("udp", to)
				if err != nil {
					t.Errorf("%s to %s: %v", name, to, err)
					continue
				}
				local := netip.MustParseAddrPort(conn.LocalAddr().String()).Addr().String()
				if err := conn.Close(); err != nil {
					return err
				}
				// The tunnel has no address: the kernel takes one of another interface, IPv4's
				// first.
				if name != "none" && local != path {
					t.Errorf("%s to %s from %s, want %s", name, to, local, path)
				}
			}
			return nil
		})
	}

	// Another program deletes the gateway's rules: they are restored, at once.
	start := time.Now()
	m.ip("-4 rule del priority 4793 fwmark 4790 lookup 4791; -6 rule del priority 4791 fwmark 4790 lookup main")
	rules("-4")
	rules("-6")
	t.Logf("restored after %s", time.Since(start).Round(time.Millisecond))
	// A rule of another program precedes them: the status says so.
	m.ip("-4 rule add priority 3000 lookup main")
	if s := m.Status().(Status); !s.Degraded && s.Ready || len(s.Conflicts) != 1 || !strings.Contains(s.Conflicts[0], `packets to 0.0.0.0/0 of peer "hq" leave by "eth1"`) {
		t.Errorf("conflicts: %+v", s)
	}
	m.ip("-4 rule del priority 3000 lookup main")
	if s := m.Status().(Status); len(s.Conflicts) != 0 {
		t.Errorf("conflicts: %q", s.Conflicts)
	}
	// The tunnel is gone, as after a crash: nothing leaves in clear.
	m.ip("link del tabane0")
	for _, dst := range []string{"198.51.100.1", "2001:db8:77::1"} {
		if got, err := netnstest.TryIP(m.t, m.ns, "route get "+dst); err == nil {
			t.Errorf("%s without the tunnel: %s", dst, got)
		}
	}
	m.stop()
	for _, family := range []string{"-4", "-6"} {
		for _, command := range []string{" rule show", " route show table all"} {
			if got := m.ip(family + command); strings.Contains(got, "115") || strings.Contains(got, "479") {
				t.Errorf("left behind:\n%s", got)
			}
		}
	}
}

// TestForeignRoutes: neither a better route of another program nor a network at a path takes
// packets out of the tunnel; networks of the LAN stay where they are.
func TestForeignRoutes(t *testing.T) {
	c := site()
	c.Paths = c.Paths[:1]
	c.Peers = c.Peers[:1]
	c.Peers[0].Prefixes = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")}
	m := run(t, c)
	m.add("eth0")
	m.ip("link set eth0 up; link set tabane0 up; link set lo up; addr add 192.0.2.2/24 dev eth1")
	m.ip("-4 route add 10.0.0.0/8 via 192.0.2.1 dev eth1; addr add 10.9.0.1/24 dev eth1; addr add 10.200.0.1/24 dev eth0; addr add 2001:db8:200::1/64 dev eth0 nodad")
	m.shows("-4 route show table 4790", "10.0.0.0/8 dev tabane0", "unreachable 10.0.0.0/8", "throw 10.1.0.0/16", "throw 10.200.0.0/24")
	m.shows("-6 route show table 4790", "2001:db8::/32 dev tabane0", "unreachable 2001:db8::/32", "throw 2001:db8:1::/48", "throw 2001:db8:200::/64")
	for dst, want := range map[string]string{
		"10.5.0.1": "dev tabane0", "10.9.0.7": "dev tabane0", "10.200.0.7": "dev eth0", "192.0.2.9": "dev eth1",
		"2001:db8:5::1": "dev tabane0", "2001:db8:200::7": "dev eth0",
	} {
		if got := m.ip("route get " + dst); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", dst, got, want)
		}
	}
	if s := m.Status().(Status); len(s.Conflicts) != 0 {
		t.Errorf("conflicts: %q", s.Conflicts)
	}
	m.ip("addr del 10.200.0.1/24 dev eth0")
	m.shows("-4 route show table 4790", "10.0.0.0/8 dev tabane0", "unreachable 10.0.0.0/8", "throw 10.1.0.0/16")
}

func TestHealth(t *testing.T) {
	status := func(change func(*Status)) Status {
		s := Status{
			Lines: []Line{{Name: "a", Interface: "eth1", Up: true}, {Name: "b", Interface: "eth2", Up: true}},
			Peers: []PeerStatus{{Name: "hq", Up: true}},
			Paths: []PathStatus{{Peer: "hq", Path: "a", State: stateUp, Up: true}, {Peer: "hq", Path: "b", State: stateUp, Up: true}},
		}
		change(&s)
		return s
	}
	for name, tt := range map[string]struct {
		change          func(*Status)
		ready, degraded bool
		reason          string
	}{
		"well":       {func(*Status) {}, true, false, ""},
		"no session": {func(s *Status) { s.Peers[0] = PeerStatus{Name: "hq", Reason: "no response"} }, false, false, `peer "hq" has no session: no response`},
		"one of two": {func(s *Status) { s.Peers = append(s.Peers, PeerStatus{Name: "x"}) }, true, true, `peer "x" has no session`},
		"no peace":   {func(s *Status) { s.Peers[0].Reason = "begins again" }, true, true, `peer "hq": begins again`},
		"line down":  {func(s *Status) { s.Lines[0].Up, s.Paths[0].State = false, stateDown }, true, true, `interface "eth1" of path "a" is down`},
		"port taken": {func(s *Status) { s.Lines[0].Error = "address already in use" }, true, true, `line "a": address already in use`},
		"path dead":  {func(s *Status) { s.Paths[1].State = "dead" }, true, true, `path "b" to peer "hq" is dead: the peer does not answer over it any more`},
		"no answer": {func(s *Status) {
			for i := range s.Paths {
				s.Paths[i].State, s.Paths[i].Up = "dead", false
			}
		}, false, false, `peer "hq" answers over no path; path "a" to peer "hq" is dead: the peer does not answer over it any more; path "b" to peer "hq" is dead: the peer does not answer over it any more`},
		"not in time": {func(s *Status) { s.Pending = 2 }, true, true, "2 objects are not in the kernel"},
	} {
		s := status(tt.change)
		if h := s.health(nil, nil); h.Ready != tt.ready || h.Degraded != tt.degraded || h.Reason != tt.reason {
			t.Errorf("%s: %+v", name, h)
		}
	}
	s := status(func(s *Status) { s.Paths[1].Up = false })
	s.explain([]dataplane.PathStatus{{Name: "a", Error: "x"}, {Name: "b", Error: "y"}})
	if s.Lines[0].Error != "" || s.Lines[1].Error != "y" {
		t.Errorf("errors of lines: %+v", s.Lines)
	}
}

// The keys of a peer that is not replaced stay with it.
func TestPresharedKeys(t *testing.T) {
	dir := t.TempDir()
	c := site()
	for name, text := range map[string]string{"gw.key": keyOf(24).Text(), "psk": keyOf(32).Text()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.Peers[1].PresharedKey = "psk"
	if err := c.Files(dir).Err(); err != nil {
		t.Fatal(err)
	}
	k, err := readKeys(&c)
	if err != nil {
		t.Fatal(err)
	}
	s := planeState(&c, k, 1400, nil, nil, nil)
	if s.Peers[0].Preshared != (handshake.PresharedKey{}) || s.Peers[1].Preshared != handshake.PresharedKey(keyOf(32)) || s.Key != keyOf(24) || s.Port != 4790 {
		t.Error("the keys are not those of the files")
	}
}

// TestLocal: addresses of the host and networks that are connected are local, but for those of
// paths, which a stranger assigns.
func TestLocal(t *testing.T) {
	c := Config{Paths: []Path{{Name: "wan", Interface: "wan0"}}, ShortLinks: []string{"wlan0"}}
	address := func(link, prefix string) route.Address {
		return route.Address{Link: link, Prefix: netip.MustParsePrefix(prefix)}
	}
	got := c.local([]route.Address{
		address("wan0", "198.51.100.7/24"), address("lan0", "10.1.0.1/24"), address("tabane0", "10.9.0.1/16"), address("wlan0", "192.168.0.9/24"),
		address("mgmt", "2001:db8::1/64"), address("mgmt", "fe80::1/64"), address("lan0", "10.1.0.1/24"),
	})
	var want []netip.Prefix
	for _, p := range []string{"10.1.0.0/24", "10.1.0.1/32", "10.9.0.1/32", "192.168.0.9/32", "198.51.100.7/32", "2001:db8::/64", "2001:db8::1/128", "fe80::/64", "fe80::1/128"} {
		want = append(want, netip.MustParsePrefix(p))
	}
	if !slices.Equal(got, want) {
		t.Errorf("local: %v, want %v", got, want)
	}
	s := planeState(&c, keys{}, 1400, nil, nil, []route.Address{address("lan0", "10.1.0.1/24")})
	if !slices.Equal(s.Local, want[:2]) {
		t.Errorf("of the plane: %v", s.Local)
	}
}

// TestMasqueradeLinks: packets that leave by a path are masqueraded, those to leaders are not; of a
// LAN that is hidden, packets of IPv4 into the tunnel are.
func TestMasqueradeLinks(t *testing.T) {
	c := Config{Masquerade: true, Paths: []Path{{Name: "wan", Interface: "wan0"}}, ShortLinks: []string{"wlan0"}}
	if links := c.translation().Links; !slices.Equal(links, []string{"wan0"}) {
		t.Errorf("packets that leave by %q are masqueraded", links)
	}
	c = site()
	c.LAN.Masquerade = true
	if n := c.translation(); !slices.Equal(n.Links, []string{"tabane0"}) || !slices.Equal(n.Sources, c.LAN.Prefixes[:1]) {
		t.Errorf("packets of the LAN: %+v", n)
	}
}

// TestPassages: a site's hosts reach the tunnel, and peers reach them unless the Internet is behind
// these; a VPS forwards to the Internet alone, and answers; the port is open where peers begin.
func TestPassages(t *testing.T) {
	prefixes := func(texts ...string) (list []netip.Prefix) {
		for _, text := range texts {
			list = append(list, netip.MustParsePrefix(text))
		}
		return list
	}
	site := Config{LAN: LAN{Interfaces: []string{"lan"}, Prefixes: prefixes("10.1.0.0/16")}, Paths: []Path{{Name: "a", Interface: "wan"}}, Peers: []Peer{{Name: "b", Endpoints: []Endpoint{"192.0.2.1:4790"}, Prefixes: prefixes("10.2.0.0/16")}}}
	internet := site
	internet.Peers = []Peer{{Name: "b", Endpoints: []Endpoint{"192.0.2.1:4790"}, Prefixes: prefixes("0.0.0.0/0")}}
	hidden := site
	hidden.LAN.Masquerade = true
	vps := Config{Masquerade: true, Paths: site.Paths, Peers: []Peer{{Name: "b", Prefixes: prefixes("10.1.0.0/16", "fd01::/64")}}}
	for name, tt := range map[string]struct {
		c    Config
		want string
	}{
		"site to site": {site, "ip iifname lan oifname tabane0 accept; ip iifname tabane0 oifname lan accept"},
		"internet":     {internet, "ip iifname lan oifname tabane0 accept; ip iifname tabane0 oifname lan ct state established,related accept"},
		"hidden":       {hidden, "ip iifname lan oifname tabane0 accept; ip iifname tabane0 oifname lan ct state established,related accept"},
		"VPS": {vps, "ip iifname tabane0 oifname wan accept; ip iifname wan oifname tabane0 ct state established,related accept; " +
			"ip6 iifname tabane0 oifname wan accept; ip6 iifname wan oifname tabane0 ct state established,related accept; ip iifname wan udp dport 4790 accept"},
		"member": {Config{Role: RoleMember, Paths: site.Paths, ShortLinks: []string{"wlan0"}}, "ip iifname wlan0 udp dport 4790 accept; ip iifname wan udp dport 4790 accept"},
	} {
		var got []string
		for _, p := range tt.c.passages(func(_ string, v bgp.IP) bool { return v == bgp.IPv4 }) {
			got = append(got, p.Version+" "+p.String())
		}
		if strings.Join(got, "; ") != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, strings.Join(got, "; "), tt.want)
		}
	}
}

// run runs a program of programs.Need in the network namespace, and returns what it prints.
func (m *machine) run(program string, arguments ...string) (text string) {
	m.t.Helper()
	netnstest.Do(m.t, m.ns, func() error {
		b, err := exec.Command("sh", append([]string{"-c", `exec "$@"`, "sh", program}, arguments...)...).CombinedOutput()
		if text = string(b); err != nil {
			return fmt.Errorf("%q: %w: %s", arguments, err, b)
		}
		return nil
	})
	return text
}

// TestFirewallManagedForOpenPeers: chains that drop accept packets of open peers by their mark, until
// the gateway stops.
func TestFirewallManagedForOpenPeers(t *testing.T) {
	program := programs.Need(t, "nft")
	c := site()
	c.Firewall, c.Policy, c.Peers = FirewallManage, []Rule{{Discipline: Discipline{Name: "dq"}}}, slices.Clone(c.Peers)
	c.Paths = c.Paths[:1]
	for i := range c.Peers {
		c.Peers[i].Mode = "plain"
	}
	m := newMachine(t, c)
	m.run(program, `table inet fw { chain f { type filter hook forward priority 0; policy drop; tcp dport 22 accept; }; }`)
	before := m.run(program, "list", "ruleset")
	m.start()
	m.soon("the rule", func() (bool, string) {
		text := m.run(program, "list", "ruleset")
		return strings.Contains(text, `meta mark & 0x0000ffff == 0x000012b7`) && strings.Contains(text, "tcp dport 22 accept"), text
	})
	m.stop()
	if after := m.run(program, "list", "ruleset"); after != before {
		t.Errorf("a clean stop left\n%s", after)
	}
}

// TestFirewallManaged: the gateway's rules are in chains that drop, come back, follow the
// configuration, and are gone after a clean stop; those of a previous instance are removed. Without
// them, the status has the command.
func TestFirewallManaged(t *testing.T) {
	program := programs.Need(t, "nft")
	c := site()
	c.LAN, c.Masquerade, c.Paths, c.Firewall = LAN{}, true, c.Paths[:1], FirewallManage
	c.Peers = slices.Clone(c.Peers)
	c.Peers[0].Endpoints = nil
	m := newMachine(t, c)
	m.ip("addr add 192.0.2.1/24 dev eth1")
	nftables := func(arguments ...string) string { return m.run(program, arguments...) }
	const fw = `table inet fw { chain f { type filter hook forward priority 0; policy drop; iifname docker0 tcp dport 22 accept; }; chain i { type filter hook input priority 0; policy drop; iifname "lo" accept; }; }`
	nftables(fw)
	before := nftables("list", "table", "inet", "fw")
	// What an instance that was killed would have left.
	nftables(`insert rule inet fw i tcp dport 1 accept comment "tabane-gateway tcp dport 1 accept"`)
	m.start()
	has := func(what string, parts ...string) {
		t.Helper()
		m.soon(what, func() (bool, string) {
			text := nftables("list", "ruleset")
			return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(text, p) }) && !strings.Contains(text, "dport 1 "), text
		})
	}
	ours := []string{`iifname "tabane0" oifname "tabane0"`, `iifname "tabane0" oifname "eth1"`, `iifname "eth1" oifname "tabane0" ct state established,related`, `iifname "eth1" udp dport 4790`, "tcp dport 22 accept"}
	has("rules", ours...)
	if reason := m.Status().(Status).Reason; strings.Contains(reason, "chain") {
		t.Errorf("the status says %s", reason)
	}
	nftables("flush chain inet fw f; flush chain inet fw i; add rule inet fw f iifname docker0 tcp dport 22 accept; add rule inet fw i iifname lo accept")
	has("rules after a flush", ours...)
	without := m.config
	without.Firewall = ""
	if lines, err := m.reload(without); err != nil || !slices.Contains(lines, "firewall replaced") {
		t.Errorf("reload: %q, %v", lines, err)
	}
	if after := nftables("list", "table", "inet", "fw"); after != before {
		t.Errorf("the reload left\n%s", after)
	}
	m.soon("the status names the chains", func() (bool, string) {
		reason := m.Status().(Status).Reason
		return strings.Contains(reason, `chain "inet fw f" drops the packets that this host forwards: nft insert rule inet fw f iifname tabane0 oifname eth1 accept`) &&
			strings.Contains(reason, "nft insert rule inet fw i iifname eth1 udp dport 4790 accept"), reason
	})
	managed := m.config
	managed.Firewall = FirewallManage
	if _, err := m.reload(managed); err != nil {
		t.Error(err)
	}
	has("rules after a reload", ours...)
	m.stop()
	if after := nftables("list", "ruleset"); after != before {
		t.Errorf("a clean stop left\n%s", after)
	}
}

// TestMasqueradeNotStarted: a gateway that cannot start leaves no table behind.
func TestMasqueradeNotStarted(t *testing.T) {
	c := site()
	c.LAN, c.Masquerade, c.Paths = LAN{}, true, c.Paths[:1]
	m := newMachine(t, c)
	m.plane.refuse(errors.New("refused"))
	netnstest.Do(t, m.ns, func() error {
		if err := m.config.translation().Set(); err != nil {
			return err
		}
		if err := m.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("ended with %v", err)
		}
		if there, err := nft.Exists(natTable); there || err != nil {
			t.Errorf("the table exists: %t, %v", there, err)
		}
		return nil
	})
}

// TestKeepState: what is kept at the end, on request, is the table of nftables and the routes.
func TestKeepState(t *testing.T) {
	c := site()
	c.LAN, c.Masquerade, c.Paths = LAN{}, true, c.Paths[:1]
	for _, keep := range []bool{false, true} {
		m := run(t, c)
		routes := func() string { return m.ip("-4 route show table 4790") }
		m.soon("routes", func() (bool, string) { return routes() != "", "none" })
		if keep {
			m.KeepState()
		}
		m.stop()
		netnstest.Do(t, m.ns, func() error {
			if there, err := nft.Exists(natTable); there != keep || err != nil {
				t.Errorf("keep %t: the table exists: %t, %v", keep, there, err)
			}
			return nil
		})
		if left := routes(); (left != "") != keep {
			t.Errorf("keep %t: routes %q", keep, left)
		}
	}
}

// TestMasquerade: the table of nftables follows the configuration, is restored, and is gone after a
// clean stop; one of a previous instance is removed.
func TestMasquerade(t *testing.T) {
	program := programs.Need(t, "nft")
	c := site()
	c.LAN, c.Masquerade, c.Paths = LAN{}, true, c.Paths[:1]
	m := run(t, c)
	list := func() (text string) {
		netnstest.Do(t, m.ns, func() error {
			b, err := exec.Command(program, "list", "ruleset").CombinedOutput()
			text = string(b)
			return err
		})
		return text
	}
	wait := func(what string, ok func(text string) bool) {
		t.Helper()
		var text string
		for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if text = list(); ok(text) {
				return
			}
		}
		t.Fatalf("%s: not in time; nftables has\n%s", what, text)
	}
	has := func(parts ...string) func(string) bool {
		return func(text string) bool {
			return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(text, p) })
		}
	}
	wait("rules", has("table inet tabane-gateway", `oifname "eth1" jump sources`, "ip saddr @sources4 masquerade", "10.2.0.0-10.4.255.255"))
	condition := m.masquerading()
	// What others flush is back long before the host is examined again, each time.
	deadline := time.Now().Add(9 * time.Second)
	for range 5 {
		netnstest.Do(t, m.ns, func() error { return exec.Command(program, "flush", "ruleset").Run() })
		wait("restored rules", has("10.2.0.0-10.4.255.255"))
	}
	if time.Now().After(deadline) {
		t.Error("rules were restored only when the host was examined")
	}
	c = m.config
	without := c
	without.Masquerade = false
	if lines, err := m.reload(without); err != nil || !slices.Contains(lines, "masquerade replaced") {
		t.Errorf("reload: %q, %v", lines, err)
	}
	wait("no table", func(text string) bool { return !strings.Contains(text, "tabane") })
	// A table that could not be deleted then is deleted later.
	netnstest.Do(t, m.ns, func() error {
		if err := exec.Command(program, "add", "table", "inet", natTable).Run(); err != nil {
			return err
		}
		if problems, err := condition.Examine(); len(problems) != 1 || err != nil {
			t.Errorf("a table without masquerade: %v, %v", problems, err)
		}
		return condition.Restore()
	})
	wait("no table", func(text string) bool { return !strings.Contains(text, "tabane") })
	if _, err := m.reload(c); err != nil {
		t.Error(err)
	}
	wait("a table again", has("10.2.0.0-10.4.255.255"))
	m.stop()
	if left := list(); strings.Contains(left, "tabane") {
		t.Errorf("left behind:\n%s", left)
	}
	// After the end, nothing is deleted that Keep has left.
	netnstest.Do(t, m.ns, func() error {
		if err := exec.Command(program, "add", "table", "inet", natTable).Run(); err != nil {
			return err
		}
		return condition.Restore()
	})
	if !strings.Contains(list(), natTable) {
		t.Error("a stopped gateway deleted the table")
	}
}
