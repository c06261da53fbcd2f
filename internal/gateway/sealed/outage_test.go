package sealed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/testkit/published"
)

// stream is numbered datagrams from one gateway to the other, one each millisecond.
type stream struct {
	end  func() // of sending
	sent atomic.Uint32
	got  [1 << 16]atomic.Bool
}

func (g *gateway) stream(to *gateway, size int) *stream {
	g.t.Helper()
	s := new(stream)
	var in, out *net.UDPConn
	from, at := netip.AddrFrom4([4]byte{10, 0, byte(g.number), 1}), netip.AddrFrom4([4]byte{10, 0, byte(to.number), 1})
	if err := errors.Join(
		netns.Do(to.namespace, func() (err error) {
			in, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 0)))
			return err
		}),
		netns.Do(g.namespace, func() (err error) {
			out, err = net.DialUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), in.LocalAddr().(*net.UDPAddr))
			return err
		})); err != nil {
		g.t.Fatal(err)
	}
	raw, err := out.SyscallConn()
	if err != nil {
		g.t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { setNoDiscovery(int(fd)) })
	stop := make(chan struct{})
	s.end = sync.OnceFunc(func() { close(stop) })
	g.t.Cleanup(func() { s.end(); in.Close(); out.Close() })
	go func() {
		for b := make([]byte, 2000); ; {
			n, err := in.Read(b)
			if err != nil {
				return
			}
			if i := binary.BigEndian.Uint32(b); n >= 4 && i < uint32(len(s.got)) {
				s.got[i].Store(true)
			}
		}
	}()
	go func() {
		b := make([]byte, size)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for i := uint32(0); i < uint32(len(s.got)); i++ {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			binary.BigEndian.PutUint32(b, i)
			_, _ = out.Write(b) // without a route while the other gateway does not run
			s.sent.Store(i + 1)
		}
	}()
	return s
}

// outage returns how long after a datagram others were still lost, in datagrams, and the number
// that were.
func (s *stream) outage(from uint32) (time.Duration, int) {
	last, lost := from, 0
	for i := from; i+200 < s.sent.Load(); i++ { // later ones may be under way
		if !s.got[i].Load() {
			last, lost = i+1, lost+1
		}
	}
	return time.Duration(last-from) * time.Millisecond, lost
}

// outages are faults under traffic. Each is applied to gateways with two paths that are up, and
// returns from when on packets are to arrive again.
var outages = []struct {
	name string
	// size is that of datagrams. after is how long later the state is looked at, least how many
	// paths are up then at both gateways.
	size  int
	after time.Duration
	up    int
	// apply makes the fault, of the path that carries most, where it is of one path.
	apply func(a, b *gateway, busy int, mark func())
}{
	{"a path dies in silence", 100, 1500 * time.Millisecond, 1, func(a, b *gateway, busy int, mark func()) {
		mark()
		for _, g := range []*gateway{a, b} {
			g.lose(busy)
		}
	}},
	{"a path becomes one-way", 100, 1500 * time.Millisecond, 1, func(a, b *gateway, busy int, mark func()) {
		mark()
		a.lose(busy)
	}},
	{"a path becomes one-way to the gateway with endpoints", 100, 1500 * time.Millisecond, 1, func(a, b *gateway, busy int, mark func()) {
		mark()
		b.lose(busy)
	}},
	{"an interface goes down", 100, 1500 * time.Millisecond, 1, func(a, _ *gateway, busy int, mark func()) {
		mark()
		ip(a.t, a.namespace, "ip link set p%d down", busy)
	}},
	{"the gateway with endpoints is killed", 100, 2 * time.Second, 2, func(a, _ *gateway, _ int, mark func()) {
		a.crash()
		a.run()
		mark()
	}},
	{"the other gateway is killed", 100, 2 * time.Second, 2, func(_, b *gateway, _ int, mark func()) {
		b.crash()
		b.run()
		mark()
	}},
	{"the gateway with endpoints is away for 3 s", 100, 2 * time.Second, 2, func(a, _ *gateway, _ int, mark func()) {
		a.crash()
		time.Sleep(3 * time.Second)
		a.run()
		mark()
	}},
	{"the other gateway is away for 3 s", 100, 2 * time.Second, 2, func(_, b *gateway, _ int, mark func()) {
		b.crash()
		time.Sleep(3 * time.Second)
		b.run()
		mark()
	}},
	{"a gateway is away for 3 s, and both have endpoints", 100, 2 * time.Second, 2, func(a, b *gateway, _ int, mark func()) {
		for i := range a.state.Paths {
			b.state.Peers[0].Endpoints = append(b.state.Peers[0].Endpoints, netip.MustParseAddrPort(fmt.Sprintf("192.168.%d.1:4790", i)))
		}
		if err := b.plane.Apply(b.state); err != nil {
			b.t.Fatal(err)
		}
		a.crash()
		time.Sleep(3 * time.Second)
		a.run()
		mark()
	}},
	{"all paths go and return", 100, 3 * time.Second, 2, func(a, b *gateway, _ int, mark func()) {
		for _, p := range []string{"p0", "p1"} {
			ip(a.t, a.namespace, "ip link set %s down", p)
		}
		time.Sleep(2 * time.Second)
		for _, p := range []string{"p0", "p1"} {
			ip(a.t, a.namespace, "ip link set %s up", p)
		}
		mark()
	}},
	{"all paths are silent and return", 100, 3 * time.Second, 2, func(a, b *gateway, _ int, mark func()) {
		for i := range 2 {
			a.lose(i)
		}
		time.Sleep(2 * time.Second)
		for i := range 2 {
			a.deliver(i)
		}
		mark()
	}},
	{"the MTU of a path shrinks", 1300, 4 * time.Second, 2, func(_, b *gateway, busy int, mark func()) {
		mark()
		// Longer frames are dropped on their arrival, and nobody says so.
		if err := netns.Do(b.namespace, func() error {
			l, err := netlink.LinkByName(fmt.Sprintf("p%d", busy))
			if err != nil {
				return err
			}
			return netlink.LinkSetMTU(l, 1300)
		}); err != nil {
			b.t.Fatal(err)
		}
	}},
	{"an address roams", 100, 2 * time.Second, 2, func(a, _ *gateway, _ int, mark func()) {
		mark()
		a.roam()
	}},
}

// recovered bounds an outage in tests; BenchmarkOutage measures it.
const recovered = 3 * time.Second

// TestOutages: after any fault packets arrive again in both directions, and both gateways know
// which paths are left.
func TestOutages(t *testing.T) {
	t.Parallel()
	for _, o := range outages {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			for i, v := range disturb(t, o.size, o.after, o.up, o.apply) {
				t.Logf("from gateway %d: %v", i+1, v)
				if v > recovered {
					t.Errorf("from gateway %d: packets were lost for %v", i+1, v)
				}
			}
		})
	}
}

func disturb(t testing.TB, size int, after time.Duration, up int, apply func(a, b *gateway, busy int, mark func())) (lost [2]time.Duration) {
	a, b := pair(t, 2)
	a.run()
	b.run()
	a.up(2)
	b.up(2)
	all := [2]*stream{a.stream(b, size), b.stream(a, size)}
	time.Sleep(time.Second)
	var from [2]uint32
	for i, s := range all {
		if _, n := s.outage(100); n > 20 {
			t.Fatalf("from gateway %d: %d datagrams were lost before the fault", i+1, n)
		}
	}
	apply(a, b, a.busiest(), func() {
		for i, s := range all {
			from[i] = s.sent.Load()
		}
	})
	time.Sleep(after)
	a.up(up)
	b.up(up)
	time.Sleep(300 * time.Millisecond)
	for i, s := range all {
		lost[i], _ = s.outage(from[i])
	}
	return lost
}

// busiest returns the path that has carried most.
func (g *gateway) busiest() (path int) {
	links := g.plane.Status().Peers[0].Links
	for i, l := range links {
		if l.Sent.Packets > links[path].Sent.Packets {
			path = i
		}
	}
	return path
}

// BenchmarkOutage measures for how long packets are lost by faults, the worse of both directions.
func BenchmarkOutage(b *testing.B) {
	var rows []string
	runs := 0
	for _, o := range outages {
		b.Run(o.name, func(b *testing.B) {
			var worst time.Duration
			for b.Loop() {
				v := disturb(b, o.size, o.after, o.up, o.apply)
				worst = max(worst, v[0], v[1])
			}
			b.ReportMetric(float64(worst.Milliseconds()), "ms-lost")
			b.ReportMetric(0, "ns/op")
			rows, runs = append(rows, published.Row(o.name, strconv.FormatInt(worst.Milliseconds(), 10))), b.N
		})
	}
	if !*writeTables || b.Failed() {
		return
	}
	table, err := published.Read("docs/gateway-measured.md", "outages", "make bench-outages")
	if err == nil {
		lines := append([]string{fmt.Sprintf("The worst of %d runs each, on %s:", runs, published.Machine()), ""}, published.Head("failure", "lost for at most, ms")...)
		err = table.Write(append(lines, rows...))
	}
	if err != nil {
		b.Fatal(err)
	}
}
