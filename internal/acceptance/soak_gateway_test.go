package acceptance

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/afpacket"
)

const (
	// defaultGatewaySoak is how long a plain test disturbs gateways.
	defaultGatewaySoak = 20 * time.Second
	// soakPath is the shape of a path without any disturbance.
	soakPath = "rate=20Mbit/s delay=10ms"
	// returns bounds the time until a path is used again: a socket is opened each second if its
	// interface was away, and three probes have to be answered, 250 ms apart.
	returns = 4 * time.Second
	// tunnelPort is that of the gateways.
	tunnelPort = 4790
)

// gatewaySoak is a site with two lines to a second one and one to a third, and the model of what
// their gateways must do.
type gatewaySoak struct {
	*soakTest
	// off are the paths that carry nothing, in one direction at least.
	off map[string]bool

	mu sync.Mutex
	// recorded are messages to site2.
	recorded [][]byte
	// leaks are packets that were where they must not be.
	leaks     []string
	flows     []*numberedFlow
	downloads atomic.Int64
}

// gatewayScenario writes the scenario and returns its file.
func gatewayScenario(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("name: soak-gateway\nnodes:")
	for i, host := range []string{"server", "client", "other"} {
		line("  %s:\n    routes: [{dst: \"2001:db8::/46\", via: \"2001:db8:%d::fe\"}]\n    serve: {port: 80}", host, i+1)
	}
	paths := []string{"path1, path2, path3", "path1, path2", "path3"}
	for i, peers := range [][]int{{2, 3}, {1}, {1}} {
		line("  site%d:\n    forwarding: true\n    gateway:\n      lan: {interfaces: [lan], prefixes: [\"2001:db8:%d::/64\"]}\n      paths:", i+1, i+1)
		for _, p := range strings.Split(paths[i], ", ") {
			line("        - {name: %s, interface: %s}", p, p)
		}
		line("      peers:")
		for _, p := range peers {
			line("        - {name: site%d, prefixes: [\"2001:db8:%d::/64\"]}", p, p)
		}
	}
	line("links:")
	for i, host := range []string{"server", "client", "other"} {
		line("  lan%d:\n    ends:\n      - {node: %s, interface: lan, addresses: [\"2001:db8:%d::1/64\"]}\n      - {node: site%d, interface: lan, addresses: [\"2001:db8:%d::fe/64\"]}", i+1, host, i+1, i+1, i+1)
	}
	for i, far := range []int{2, 2, 3} {
		line("  path%d:\n    rate: 20Mbit/s\n    delay: 10ms\n    emulate: true\n    ends:", i+1)
		for _, site := range []int{1, far} {
			line("      - {node: site%d, interface: path%d, addresses: [\"2001:db8:f%d::%d/64\"]}", site, i+1, i+1, site)
		}
	}
	file := filepath.Join(t.TempDir(), "soak-gateway.yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestSoakGateway disturbs gateways at random under traffic. Throughout, no datagram arrives twice,
// no packet arrives at a site without its prefix or leaves in clear, no connection is lost, and
// after each disturbance the gateways have the paths that they must have, within a bound. No daemon
// keeps memory or files.
func TestSoakGateway(t *testing.T) {
	duration, patience, seed := soakLength(t, defaultGatewaySoak)
	l := up(t, gatewayScenario(t), "site1.gateway.log", "site2.gateway.log", "site3.gateway.log")
	g := &gatewaySoak{off: map[string]bool{}, soakTest: &soakTest{
		egressJudge: &egressJudge{lab: l}, daemons: l.daemons("site1 gateway", "site2 gateway", "site3 gateway"),
		undisturbed: map[string][]string{}, memory: map[*instance]*usage{}, sessions: map[string]int{}, files0: map[string]int{},
	}}
	g.soak = &soak{
		t: t, machine: watchMachine(t), patience: patience, seed: uint64(seed), parts: func(target string) []string { return []string{target} },
		permits: func(without map[string]bool) bool { return !without["path1"] || !without["path2"] },
		missing: g.missing, thoughts: g.thoughts, ready: func() string { return "" }, each: g.measure, whole: g.whole, table: g.disturbances(),
	}
	g.watch(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var traffic sync.WaitGroup
	for i, f := range [][2]string{{"server", "client"}, {"client", "server"}, {"server", "other"}} {
		g.flow(t, ctx, &traffic, uint16(7000+i), f[0], f[1])
	}
	for _, host := range []string{"client", "other"} {
		traffic.Go(func() {
			for ctx.Err() == nil {
				g.download(ctx, host)
			}
		})
	}
	g.soak.run(duration)
	cancel()
	traffic.Wait()
	for _, f := range g.flows {
		t.Logf("%s: %d datagrams sent, %d arrived", f.name, f.sent.Load(), f.arrived.Load())
		if n := f.twice.Load(); n > 0 {
			t.Errorf("%s: %d datagrams arrived twice", f.name, n)
		}
		least := f.sent.Load() / 2
		if f.onePath {
			least /= 5 // few seeds leave a third: both gateways and the path take turns
		}
		if f.arrived.Load() < least {
			t.Errorf("%s: too many datagrams were lost: the soak shows nothing", f.name)
		}
	}
	t.Logf("%d downloads", g.downloads.Load())
	g.mu.Lock()
	for _, leak := range g.leaks[:min(len(g.leaks), 10)] {
		t.Errorf("leaked: %s", leak)
	}
	g.mu.Unlock()
	g.judgeMemory()
	g.checkLogs()
	for name := range g.daemons.all {
		g.daemons.end(name, syscall.SIGTERM)
		node, _, _ := strings.Cut(name, " ")
		if text := g.ip(node, "link; route show table all; rule"); strings.Contains(text, "tabane0") || strings.Contains(text, "proto 115") {
			t.Errorf("left on %s:\n%s", node, text)
		}
	}
}

// thoughts adds what the kernels know of the paths.
func (g *gatewaySoak) thoughts() string {
	var text strings.Builder
	for _, node := range []string{"site1", "site2", "site3"} {
		fmt.Fprintf(&text, "%s:\n%s\n", node, g.ip(node, "link; addr; route show table all; neigh; rule"))
	}
	return text.String() + g.daemons.thoughts()
}

// watch records messages, and looks for packets that are where they must not be.
func (g *gatewaySoak) watch(t *testing.T) {
	t.Helper()
	inside, third := netip.MustParsePrefix("2001:db8::/46"), netip.MustParsePrefix("2001:db8:3::/64")
	for node, paths := range map[string][]string{"site2": {"path1", "path2"}, "site3": {"path3"}} {
		for _, path := range paths {
			g.lab.each(t, node, path, func(p afpacket.Packet) {
				if len(p.Data) < 48 {
					return
				}
				if inside.Contains(source(p.Data)) {
					g.leak("in clear on %s: %x", path, p.Data[:40])
				}
				const udp = 17
				if node == "site2" && p.Data[6] == udp && binary.BigEndian.Uint16(p.Data[42:]) == tunnelPort && !p.Sent && p.Length == len(p.Data) {
					g.mu.Lock()
					if len(g.recorded) < 512 || rand.IntN(8) == 0 {
						g.recorded = append(g.recorded[max(0, len(g.recorded)-511):], bytes.Clone(p.Data[48:]))
					}
					g.mu.Unlock()
				}
			})
		}
	}
	g.lab.each(t, "other", "lan", func(p afpacket.Packet) {
		to := netip.AddrFrom16([16]byte(p.Data[24:40]))
		if !third.Contains(to) && !third.Contains(source(p.Data)) && !to.IsMulticast() && !to.IsLinkLocalUnicast() {
			g.leak("for %v at site3", to)
		}
	})
}

func (g *gatewaySoak) leak(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leaks = append(g.leaks, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// numberedFlow is datagrams from one host to another, one each 5 ms.
type numberedFlow struct {
	name                 string
	onePath              bool
	sent, arrived, twice atomic.Int64
}

func (g *gatewaySoak) flow(t *testing.T, ctx context.Context, traffic *sync.WaitGroup, port uint16, from, to string) {
	t.Helper()
	f := &numberedFlow{name: from + " to " + to, onePath: to == "other"}
	g.flows = append(g.flows, f)
	prefix := map[string]int{"server": 1, "client": 2, "other": 3}[to]
	address := netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("2001:db8:%d::1", prefix)), port)
	var in, out *net.UDPConn
	g.in(t, to, func() (err error) { in, err = net.ListenUDP("udp6", net.UDPAddrFromAddrPort(address)); return err })
	g.in(t, from, func() (err error) {
		out, err = net.DialUDP("udp6", nil, net.UDPAddrFromAddrPort(address))
		return err
	})
	stop := context.AfterFunc(ctx, func() { in.Close(); out.Close() })
	t.Cleanup(func() { stop(); in.Close(); out.Close() })
	traffic.Go(func() {
		seen := map[uint64]bool{}
		for b := make([]byte, 2000); ; {
			n, err := in.Read(b)
			if ctx.Err() != nil {
				return
			}
			if err != nil || n < 8 {
				continue // an ICMP error
			}
			i := binary.BigEndian.Uint64(b)
			if seen[i] {
				f.twice.Add(1)
			}
			seen[i] = true
			f.arrived.Add(1)
		}
	})
	traffic.Go(func() {
		b := make([]byte, 400)
		for i := uint64(0); ctx.Err() == nil; i++ {
			binary.BigEndian.PutUint64(b, i)
			if _, err := out.Write(b); err == nil {
				f.sent.Add(1)
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
}

// download downloads once at a constant rate.
func (g *gatewaySoak) download(ctx context.Context, host string) {
	const seconds, rate = 10, 1_000_000
	cmd := g.command(host, program, "fetch", "--json", "--limit=60s", fmt.Sprintf("http://[2001:db8:1::1]/cbr?rate=%dbit/s&duration=%ds", rate, seconds))
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	err := cmd.Run()
	var r report
	if e := json.Unmarshal(out.Bytes(), &r); err != nil || e != nil || r.Bytes != seconds*rate/8 {
		if strings.Contains(diag.String(), "connect") || strings.Contains(diag.String(), "dial") {
			return // while a gateway does not run, its peer's prefix is unreachable
		}
		g.soak.t.Errorf("%s: a download of %s is lost: %v %+v %s", time.Now().Format("15:04:05.000"), host, err, r, &diag)
		return
	}
	g.downloads.Add(1)
}

// missing returns how the gateways differ from the model.
func (g *gatewaySoak) missing() string {
	want := map[string]bool{}
	for _, path := range []string{"path1", "path2"} {
		if !g.off[path] {
			want["site2 "+path] = true
		}
	}
	want["site3 path3"] = true
	var faults strings.Builder
	for _, node := range []string{"site1", "site2", "site3"} {
		var s struct {
			Peers []struct {
				Name string
				Up   bool
			}
			Paths []struct{ Peer, Path, State string }
		}
		text, err := g.try(node, program, "status", "--json", "gateway") // fails while degraded
		if e := json.Unmarshal([]byte(text), &s); e != nil {
			return fmt.Sprint(node, ": ", err)
		}
		for _, p := range s.Peers {
			if !p.Up {
				fmt.Fprintf(&faults, "%s: no session with %s\n", node, p.Name)
			}
		}
		var got, expected []string
		for _, p := range s.Paths {
			if p.State == "up" {
				got = append(got, p.Peer+" "+p.Path)
			}
		}
		for name := range want {
			peer, path, _ := strings.Cut(name, " ")
			switch node {
			case "site1":
				expected = append(expected, name)
			case peer:
				expected = append(expected, "site1 "+path)
			}
		}
		slices.Sort(got)
		slices.Sort(expected)
		if !slices.Equal(got, expected) {
			fmt.Fprintf(&faults, "%s: paths %v are up of %v, want %v\n", node, got, s.Paths, expected)
		}
	}
	return faults.String()
}

// whole checks the gateways without any disturbance: datagrams arrive, and the kernels' state is as
// before the first one.
func (g *gatewaySoak) whole() {
	for _, f := range g.flows {
		before := f.arrived.Load()
		g.eventually("datagrams from "+f.name, stateBack*g.soak.patience, func() (bool, string) { return f.arrived.Load() > before+20, "" })
	}
	g.checkWhole()
}

// disturbances is what a soak does to gateways.
func (g *gatewaySoak) disturbances() []disturbance {
	paths, sites := []string{"path1", "path2"}, []string{"site1", "site2", "site3"}
	return []disturbance{
		{name: "interface down at site1", weight: 2, targets: paths, apply: g.down("site1"), back: returns},
		{name: "interface down at site2", targets: paths, apply: g.down("site2"), back: returns},
		{name: "path flaps", targets: paths, apply: g.flap, within: returns},
		// Round-trip times that a frozen gateway has made long delay the timeouts of probes.
		{name: "path drops everything", weight: 2, targets: paths, apply: g.dead("loss=100%"), within: returns, back: returns},
		{name: "path is one-way, from site1", targets: paths, apply: g.dead("backward.loss=100%"), within: returns, back: returns},
		{name: "path is one-way, to site1", targets: paths, apply: g.dead("forward.loss=100%"), within: returns, back: returns},
		{name: "path changes", weight: 3, targets: []string{"path1", "path2", "path3"}, apply: g.worse},
		{name: "address roams", weight: 2, targets: paths, apply: g.roam, within: returns, back: returns},
		{name: "gateway killed", weight: 2, targets: sites, apply: g.restart(syscall.SIGKILL), within: returns},
		{name: "gateway stopped", targets: sites, apply: g.restart(syscall.SIGTERM), within: returns},
		{name: "gateway frozen", targets: sites, apply: g.frozen, within: returns},
		{name: "forged and replayed messages", weight: 2, targets: []string{"site2"}, apply: g.flood},
		{name: "messages of spoofed sources", weight: 2, targets: []string{"site2"}, apply: g.spoof},
		{name: "MTU of an interface steps", weight: 2, targets: paths, apply: g.smaller, within: faultBack, back: faultBack},
		{name: "tunnel's interface down", targets: sites, apply: g.tunnelDown, within: faultBack},
		{name: "another policy", targets: sites, apply: g.policy},
	}
}

// away changes the model: nothing passes over a path.
func (g *gatewaySoak) away(path string, apply, undo func()) func() {
	g.off[path] = true
	apply()
	return func() {
		undo()
		delete(g.off, path)
	}
}

func (g *gatewaySoak) down(node string) func(string, *rand.Rand) func() {
	return func(path string, _ *rand.Rand) func() {
		return g.away(path, func() { g.ip(node, "link set "+path+" down") }, func() { g.ip(node, "link set "+path+" up") })
	}
}

func (g *gatewaySoak) flap(path string, random *rand.Rand) func() {
	for range 1 + random.IntN(5) {
		g.ip("site1", "link set "+path+" down")
		time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
		g.ip("site1", "link set "+path+" up")
	}
	return nil
}

// shape replaces the shape of a path.
func (g *gatewaySoak) shape(path, shape string) {
	g.must("client", append([]string{program, "lab", "set", "--lab", g.lab.name, path}, strings.Fields(shape)...)...)
}

func (g *gatewaySoak) dead(shape string) func(string, *rand.Rand) func() {
	return func(path string, _ *rand.Rand) func() {
		return g.away(path, func() { g.shape(path, soakPath+" "+shape) }, func() { g.shape(path, soakPath) })
	}
}

func (g *gatewaySoak) worse(path string, random *rand.Rand) func() {
	g.shape(path, fmt.Sprintf("rate=%dMbit/s delay=%dms jitter=normal:%dms:reorder loss=%.1f%% duplicate=1%%", 5+random.IntN(30), 60+random.IntN(40), 1+random.IntN(19), float64(random.IntN(30))/10))
	return func() { g.shape(path, soakPath) }
}

// roam gives site2 another address on a path, which its peer is not configured with.
func (g *gatewaySoak) roam(path string, random *rand.Rand) func() {
	network := "2001:db8:f" + strings.TrimPrefix(path, "path") + "::"
	before, now := network+"2", fmt.Sprint(network, 100+random.IntN(800))
	move := func(from, to string) {
		g.ip("site2", fmt.Sprintf("addr add %s/64 dev %s nodad; addr del %s/64 dev %s", to, path, from, path))
	}
	move(before, now)
	return func() { move(now, before) }
}

func (g *gatewaySoak) restart(sig syscall.Signal) func(string, *rand.Rand) func() {
	return func(site string, random *rand.Rand) func() {
		g.daemons.end(site+" gateway", sig)
		time.Sleep(time.Duration(random.IntN(500)) * time.Millisecond)
		g.daemons.running(site + " gateway")
		return nil
	}
}

func (g *gatewaySoak) frozen(site string, random *rand.Rand) func() {
	g.daemons.signal(site+" gateway", syscall.SIGSTOP)
	time.Sleep(time.Duration(200+random.IntN(1500)) * time.Millisecond)
	g.daemons.signal(site+" gateway", syscall.SIGCONT)
	return nil
}

// flood sends recorded messages again to site2, as they were, changed, shortened, and as other
// types, from another port.
func (g *gatewaySoak) flood(_ string, random *rand.Rand) func() {
	g.mu.Lock()
	recorded := slices.Clone(g.recorded)
	g.mu.Unlock()
	path := 1 + random.IntN(2)
	if g.off[fmt.Sprint("path", path)] {
		path = 3 - path // without its interface, nothing can be sent at all
	}
	var c net.Conn
	g.in(g.soak.t, "site1", func() (err error) {
		c, err = net.Dial("udp", netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("2001:db8:f%d::2", path)), tunnelPort).String())
		return err
	})
	defer c.Close()
	for n := range 2000 {
		if len(recorded) == 0 {
			break
		}
		m := bytes.Clone(recorded[random.IntN(len(recorded))])
		switch random.IntN(4) {
		case 1:
			m[random.IntN(len(m))] ^= byte(1 + random.IntN(255))
		case 2:
			m = m[:1+random.IntN(len(m))]
		case 3:
			m[0] = byte(random.IntN(8))
		}
		_, _ = c.Write(m) // without a way, while the path is away
		if n%20 == 0 {
			time.Sleep(5 * time.Millisecond)
		}
	}
	return nil
}

// spoof sends messages of all types to site2, from addresses that nobody has.
func (g *gatewaySoak) spoof(_ string, random *rand.Rand) func() {
	path := 1 + random.IntN(2)
	if g.off[fmt.Sprint("path", path)] {
		path = 3 - path // without its interface, nothing can be sent at all
	}
	g.mu.Lock()
	recorded := slices.Clone(g.recorded)
	g.mu.Unlock()
	if len(recorded) == 0 {
		return nil
	}
	to := netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("2001:db8:f%d::2", path)), tunnelPort).String()
	for range 40 {
		dialer := net.Dialer{
			LocalAddr: &net.UDPAddr{IP: net.ParseIP(fmt.Sprintf("2001:db8:bad::%x", 1+random.IntN(0xffff)))},
			Control: func(_, _ string, c syscall.RawConn) (err error) {
				if e := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_FREEBIND, 1) }); e != nil {
					return e
				}
				return err
			},
		}
		var c net.Conn
		g.in(g.soak.t, "site1", func() (err error) { c, err = dialer.Dial("udp", to); return err })
		for range 50 {
			m := bytes.Clone(recorded[random.IntN(len(recorded))])
			if random.IntN(2) == 0 {
				m[0] = byte(random.IntN(8))
			}
			_, _ = c.Write(m) // without a way, while the path is away
		}
		_ = c.Close()
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// smaller lowers the MTU of a path's interface at site1.
func (g *gatewaySoak) smaller(path string, random *rand.Rand) func() {
	set := func(mtu int) { g.ip("site1", fmt.Sprintf("link set %s mtu %d", path, mtu)) }
	set(1300 + random.IntN(200))
	return func() { set(1500) }
}

// tunnelDown takes the interface of the tunnel down, as another program may.
func (g *gatewaySoak) tunnelDown(site string, _ *rand.Rand) func() {
	g.ip(site, "link set tabane0 down")
	g.eventually("the tunnel of "+site+" is up", faultBack*g.soak.patience, func() (bool, string) {
		up := false
		g.in(g.soak.t, site, func() error {
			i, err := net.InterfaceByName("tabane0")
			up = err == nil && i.Flags&net.FlagUp != 0
			return err
		})
		return up, "it is down"
	})
	return nil
}

func (g *gatewaySoak) policy(site string, random *rand.Rand) func() {
	g.edit(site, "gateway", func(s section) {
		s["policy"] = []any{map[string]any{
			"discipline": []string{"auto", "dq", "dqj", "redundant", "best"}[random.IntN(5)],
			"resequence": []string{"auto", "off", "20ms"}[random.IntN(3)],
		}}
	})
	g.must(site, program, "reload", "gateway")
	return nil
}
