package sealed

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// pairsPerProcessor is how many parallel tests run side by side for each processor. Those of faults
// mostly wait: for a silence to be noticed, for what was cut to return.
const pairsPerProcessor = 3

func TestMain(m *testing.M) {
	// The command line is parsed later, so that its -parallel holds.
	if err := flag.Set("test.parallel", strconv.Itoa(pairsPerProcessor*runtime.NumCPU())); err != nil {
		panic("BUG: " + err.Error())
	}
	netnstest.Main(m)
}

// gateway is a namespace with a plane: host and gateway in one.
type gateway struct {
	network   string // that the lines of a mesh are in
	t         testing.TB
	namespace string
	key       handshake.PrivateKey
	number    int
	plane     *Plane
	stop      func()
	state     dataplane.State
	// log is that of the plane, if set; prepare changes a plane before its first state.
	log     slog.Handler
	prepare func(*Plane)
}

func ip(t testing.TB, namespace, command string, args ...any) {
	t.Helper()
	command = fmt.Sprintf(command, args...)
	if _, err := netnstest.TryIP(t, namespace, command); err != nil {
		t.Fatalf("%s: %v", command, err)
	}
}

// pair makes two gateways with links between them. Link i has 192.168.i.1 and .2; the hosts are
// 10.0.n.1 and fd00:n::1.
func pair(t testing.TB, links int) (a, b *gateway) {
	t.Helper()
	a, b = &gateway{t: t, number: 1}, &gateway{t: t, number: 2}
	for _, g := range []*gateway{a, b} {
		g.namespace = netnstest.New(t)
		ip(t, g.namespace, "ip link set lo up")
		var err error
		if g.key, err = handshake.GenerateKey(rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	for i := range links {
		ip(t, a.namespace, "ip link add p%d type veth peer name p%d netns %s", i, i, b.namespace)
		for _, g := range []*gateway{a, b} {
			ip(t, g.namespace, "ip link set p%d up", i)
			ip(t, g.namespace, "ip -4 addr add 192.168.%d.%d/24 dev p%d", i, g.number, i)
		}
	}
	for _, g := range []*gateway{a, b} {
		other := b
		if g == b {
			other = a
		}
		g.state = dataplane.State{Key: g.key, Port: 4790, MTU: 1400, Policy: dataplane.Policy{{Discipline: dataplane.Discipline{Name: "dq"}}}}
		for i := range links {
			g.state.Paths = append(g.state.Paths, dataplane.Path{
				Name: fmt.Sprintf("path%d", i), Interface: fmt.Sprintf("p%d", i), Usable: true,
				Up: dataplane.Rate{Bandwidth: unit.GbitPerSecond}, Down: dataplane.Rate{Bandwidth: unit.GbitPerSecond},
			})
		}
		peer := dataplane.Peer{
			Name: "other", Public: other.key.Public(),
			Prefixes: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.0.%d.0/24", other.number)), netip.MustParsePrefix(fmt.Sprintf("fd00:%d::/64", other.number))},
		}
		if g == a {
			for i := range links {
				peer.Endpoints = append(peer.Endpoints, netip.MustParseAddrPort(fmt.Sprintf("192.168.%d.2:4790", i)))
			}
		}
		g.state.Peers = []dataplane.Peer{peer}
	}
	return a, b
}

// run starts the plane with its state, and gives the device addresses and routes.
func (g *gateway) run() {
	g.t.Helper()
	g.open("tun0", g.state)
	ip(g.t, g.namespace, "ip link set tun0 up")
	ip(g.t, g.namespace, "ip -4 addr add 10.0.%d.1/32 dev tun0", g.number)
	ip(g.t, g.namespace, "ip -6 addr add fd00:%d::1/128 dev tun0 nodad", g.number)
	ip(g.t, g.namespace, "ip -4 route add 10.0.%d.0/24 dev tun0 src 10.0.%d.1", 3-g.number, g.number)
	ip(g.t, g.namespace, "ip -6 route add fd00:%d::/64 dev tun0", 3-g.number)
}

// open starts the plane with a state.
func (g *gateway) open(device string, state dataplane.State) {
	g.t.Helper()
	o := Options{Interface: device}
	if testing.Verbose() {
		o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("gateway", g.number)
	}
	if g.log != nil {
		o.Log = slog.New(g.log)
	}
	var err error
	g.plane, err = newPlane(o, func(f func() error) error { return netns.Do(g.namespace, f) })
	if err != nil {
		g.t.Fatal(err)
	}
	if g.prepare != nil {
		g.prepare(g.plane)
	}
	if err := g.plane.Apply(state); err != nil {
		g.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(g.t.Context())
	done := make(chan error, 1)
	go func() { done <- g.plane.Run(ctx) }()
	stopped := false
	g.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			g.t.Error(err)
		}
	}
	g.t.Cleanup(g.stop)
}

// up waits until n paths to the peer are up.
func (g *gateway) up(n int) dataplane.PeerStatus {
	g.t.Helper()
	for end := time.Now().Add(10 * time.Second); !g.ready(n); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			g.t.Fatalf("gateway %d: no %d paths: %+v", g.number, n, g.plane.Status())
		}
	}
	return g.plane.Status().Peers[0]
}

// ready reports whether there are a session and exactly so many paths that are up.
func (g *gateway) ready(n int) bool {
	s := g.plane.Status().Peers[0]
	for _, l := range s.Links {
		if l.State == "up" {
			n--
		}
	}
	return s.Up && n == 0
}

// auto has all packets sent by auto, over paths of a rate in both directions.
func (g *gateway) auto(rate unit.Bandwidth) {
	g.state.Policy = dataplane.Policy{{Discipline: dataplane.Discipline{Name: dataplane.Auto}}}
	for i := range g.state.Paths {
		g.state.Paths[i].Up.Bandwidth, g.state.Paths[i].Down.Bandwidth = rate, rate
	}
}

// lose has a link lose what the gateway sends, in silence, until deliver: whichever address of the
// peer it is for.
func (g *gateway) lose(i int) {
	for j := range g.state.Paths {
		ip(g.t, g.namespace, "ip neighbor replace 192.168.%d.%d lladdr 02:00:00:00:00:99 dev p%d", j, 3-g.number, i)
	}
}

func (g *gateway) deliver(i int) {
	for j := range g.state.Paths {
		ip(g.t, g.namespace, "ip neighbor del 192.168.%d.%d dev p%d", j, 3-g.number, i)
	}
}

// roamed is the address of the first gateway on link 0 after roam.
const roamed = "192.168.0.77"

func (g *gateway) roam() {
	ip(g.t, g.namespace, "ip -4 addr del 192.168.0.1/24 dev p0")
	ip(g.t, g.namespace, "ip -4 addr add %s/24 dev p0", roamed)
}

// listen accepts a connection in the gateway's namespace.
func (g *gateway) listen(address string) net.Listener {
	g.t.Helper()
	var l net.Listener
	if err := netns.Do(g.namespace, func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	}); err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { l.Close() })
	return l
}

// transfer sends data over a TCP connection from one gateway to the other.
func transfer(t testing.TB, from, to *gateway, address string, data []byte) {
	t.Helper()
	l := to.listen(address)
	defer l.Close()
	failed := make(chan error, 1)
	go func() {
		failed <- netns.Do(from.namespace, func() error {
			c, err := net.DialTimeout("tcp", l.Addr().String(), 5*time.Second)
			if err != nil {
				l.Close()
				return err
			}
			_, err = c.Write(data)
			return errors.Join(err, c.Close())
		})
	}()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err, <-failed)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d of %d bytes: %v", len(got), len(data), err)
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}

func TestTCPOverTwoPaths(t *testing.T) {
	a, b := pair(t, 2)
	a.run()
	b.run()
	a.up(2)
	b.up(2)
	data := bytes.Repeat([]byte("0123456789abcdef!"), 1<<20/17*8)
	transfer(t, a, b, "10.0.2.1:0", data)
	transfer(t, b, a, "[fd00:1::1]:0", data)
	for _, g := range []*gateway{a, b} {
		s := g.plane.Status()
		t.Logf("%+v", s)
		for _, l := range s.Peers[0].Links {
			if l.Sent.Packets == 0 || l.Received.Packets == 0 {
				t.Errorf("path %s carried %+v and %+v", l.Path, l.Sent, l.Received)
			}
		}
		for reason, n := range s.Dropped {
			if reason == reasonNames[dropHandshake] || reason == reasonNames[dropBusy] {
				continue // initiations from before the peer ran
			}
			t.Errorf("%d packets dropped: %s", n, reason)
		}
	}
}

// TestReasonsAreDocumented: docs/gateway-operations.md explains each reason in dropped.
func TestReasonsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/gateway-operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range reasonNames {
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("docs/gateway-operations.md does not explain %q", name)
		}
	}
}
