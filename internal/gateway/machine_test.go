package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/iproute"
	"github.com/tabane/tabane/internal/netns"
	"github.com/tabane/tabane/internal/netns/netnstest"
	"github.com/tabane/tabane/internal/plane"
	"github.com/tabane/tabane/internal/session"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// fakePlane remembers what it is to do.
type fakePlane struct {
	mu      sync.Mutex
	state   plane.State
	refusal error
	status  plane.Status
}

func (p *fakePlane) Apply(s plane.State) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refusal != nil {
		return p.refusal
	}
	p.state = s
	return nil
}

func (p *fakePlane) Status() plane.Status { return p.status }

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
type fixedNames map[string]netip.Addr

func (n fixedNames) resolve(_ context.Context, name string) (netip.Addr, error) {
	if a, ok := n[name]; ok {
		return a, nil
	}
	return netip.Addr{}, errors.New("no such name")
}

// machine is a running gateway in a namespace with the tunnel's interface and eth1.
type machine struct {
	*Gateway
	t     *testing.T
	ns    string
	plane *fakePlane
	stop  func()
}

func run(t *testing.T, c Config) *machine {
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
		m.Gateway, err = New(Options{Config: c, Log: slog.New(slog.DiscardHandler), Plane: func(string, *slog.Logger) (Plane, error) { return m.plane, nil }})
		return err
	})
	m.names = fixedNames{"hq.example": netip.MustParseAddr("192.0.2.9")}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- netns.Do(m.ns, func() error { return m.Run(ctx) }) }()
	m.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(m.stop)
	return m
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
		out, err := iproute.In(m.ns, command)
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
func (m *machine) wait(what string, ok func(s plane.State) bool) {
	m.t.Helper()
	var s plane.State
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

// routes waits until the main table of IPv4 has a line for each of these, and no other.
func (m *machine) routes(want ...string) {
	m.t.Helper()
	var got string
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		got = m.ip("-4 route show")
		if lines := strings.Split(strings.TrimSpace(got), "\n"); len(lines) == len(want) && slices.EqualFunc(lines, want, strings.HasPrefix) || len(want) == 0 && strings.TrimSpace(got) == "" {
			return
		}
	}
	m.t.Errorf("routes:\n%swant:\n%s", got, strings.Join(want, "\n"))
}

func usable(s plane.State) (list []bool) {
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
	m.wait("the name is resolved", func(s plane.State) bool {
		return len(s.Peers) == 1 && slices.Equal(s.Peers[0].Endpoints, []netip.AddrPort{netip.MustParseAddrPort("192.0.2.9:4790")})
	})
	m.wait("eth1 is up, wwan0 is missing", func(s plane.State) bool { return slices.Equal(usable(s), []bool{true, false}) && s.MTU == 1500-92 })
	m.add("wwan0")
	netnstest.Do(t, m.ns, func() error {
		link, err := netlink.LinkByName("wwan0")
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(link, 1400)
	})
	m.ip("link set wwan0 up")
	m.wait("a modem appears", func(s plane.State) bool { return slices.Equal(usable(s), []bool{true, true}) && s.MTU == 1400-92 })
	m.ip("link set eth1 down")
	m.wait("a cable is pulled", func(s plane.State) bool { return slices.Equal(usable(s), []bool{false, true}) })
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
	m.wait("the prefix has changed", func(s plane.State) bool { return s.Peers[0].Prefixes[0] == now.Peers[0].Prefixes[0] })
	m.routes("10.7.0.0/16 dev tabane0", "unreachable 10.7.0.0/16")

	// Another program deletes a route: it is restored.
	m.ip("route del 10.7.0.0/16 dev tabane0 metric 16")
	m.routes("10.7.0.0/16 dev tabane0", "unreachable 10.7.0.0/16")

	m.stop()
	m.routes()
	if s := m.Status().(Status); s.Ready || s.Reason != "not running" {
		t.Errorf("after the end: %+v", s.Status)
	}
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
		"well":        {func(*Status) {}, true, false, ""},
		"no session":  {func(s *Status) { s.Peers[0] = PeerStatus{Name: "hq", Reason: "no response"} }, false, false, `peer "hq" has no session: no response`},
		"one of two":  {func(s *Status) { s.Peers = append(s.Peers, PeerStatus{Name: "x"}) }, true, true, `peer "x" has no session`},
		"line down":   {func(s *Status) { s.Lines[0].Up, s.Paths[0].State = false, stateDown }, true, true, `interface "eth1" of path "a" is down`},
		"path dead":   {func(s *Status) { s.Paths[1].State = "dead" }, true, true, `path "b" to peer "hq" is dead`},
		"not in time": {func(s *Status) { s.Pending = 2 }, true, true, "2 objects are not in the kernel"},
	} {
		s := status(tt.change)
		if h := s.health(nil); h.Ready != tt.ready || h.Degraded != tt.degraded || h.Reason != tt.reason {
			t.Errorf("%s: %+v", name, h)
		}
	}
	s := status(func(s *Status) { s.Paths[1].Up = false })
	s.explain([]plane.PathStatus{{Name: "a", Error: "x"}, {Name: "b", Error: "y"}})
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
	s := stateOf(&c, k, 1400, nil, nil)
	if s.Peers[0].Preshared != (session.PresharedKey{}) || s.Peers[1].Preshared != session.PresharedKey(keyOf(32)) || s.Key != keyOf(24) || s.Port != 4790 {
		t.Error("the keys are not those of the files")
	}
}
