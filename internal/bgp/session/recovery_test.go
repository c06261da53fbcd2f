package session

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// across returns sessions over a cable: a in the namespace of the tests, b in another.
func across(t testing.TB, link string, change func(a, b *Config)) (a, b *node, namespace string) {
	t.Helper()
	namespace = foreignLink(t, link)
	x, y := config(1, 2), config(2, 1)
	x.Local, x.Remote = netip.MustParseAddr("2001:db8:1::10"), netip.MustParseAddrPort("[2001:db8:1::2]:179")
	y.Local, y.Remote = netip.MustParseAddr("2001:db8:1::2"), netip.MustParseAddrPort("[2001:db8:1::10]:179")
	x.ConnectRetry, y.ConnectRetry = 2*time.Second, 2*time.Second
	x.Listener = listenOn(t, x.Local)
	netnstest.Do(t, namespace, func() error { y.Listener = listenOn(t, y.Local); return nil })
	if change != nil {
		change(&x, &y)
	}
	a = startNode(t, x)
	b = newNode(t, y, func(ctx context.Context, n *node) (c net.Conn, err error) {
		netnstest.Do(t, namespace, func() error { c, err = y.dial(ctx); return nil })
		return c, err
	})
	if err := b.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Stop(cease(message.SubcodeShutdown), "end of the test") })
	a.waitUp(t)
	b.waitUp(t)
	return a, b, namespace
}

// setCable plugs or pulls the cable at the end of b: that of a loses its carrier.
func setCable(t testing.TB, link, namespace string, plugged bool) {
	t.Helper()
	netnstest.Do(t, namespace, func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		if plugged {
			if err := netlink.LinkSetUp(l); err != nil {
				return err
			}
			// Linux has deleted them.
			for _, a := range []string{"2001:db8:1::2/64", "fe80::12/64"} {
				addr, err := netlink.ParseAddr(a)
				if err != nil {
					return err
				}
				addr.Flags = 0x02 // no DAD
				if err := netlink.AddrReplace(l, addr); err != nil {
					return err
				}
			}
			return nil
		}
		return netlink.LinkSetDown(l)
	})
}

// connectOnCarrier calls Connect when an interface of the calling thread's namespace comes up, as
// daemons do.
func connectOnCarrier(t testing.TB, link string, n *node) {
	t.Helper()
	updates, done := make(chan netlink.LinkUpdate, 100), make(chan struct{})
	if err := netlink.LinkSubscribe(updates, done); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		up := true
		for u := range updates {
			if u.Attrs().Name != link {
				continue
			}
			was := up
			if up = u.IfInfomsg.Flags&unix.IFF_LOWER_UP != 0; up && !was {
				n.Connect()
			}
		}
	})
	t.Cleanup(func() { close(done); wg.Wait() })
}

// cable is a session over a cable, at whose ends Connect is called when it is plugged in.
type cable struct {
	t         testing.TB
	namespace string
	a, b      *node
}

const cableName = "cable0"

func newCable(t testing.TB) *cable {
	t.Helper()
	a, b, namespace := across(t, cableName, func(a, b *Config) { a.ConnectRetry, b.ConnectRetry = time.Hour, time.Hour })
	connectOnCarrier(t, cableName, a)
	netnstest.Do(t, namespace, func() error { connectOnCarrier(t, cableName, b); return nil })
	return &cable{t, namespace, a, b}
}

// cut pulls the cable and, as BFD does, resets the session.
func (c *cable) cut() {
	c.t.Helper()
	setCable(c.t, cableName, c.namespace, false)
	for _, n := range []*node{c.a, c.b} {
		n.Reset(cease(message.SubcodeBFDDown), "bfd down")
	}
	eventually(c.t, "sessions are down", func() bool { return !c.a.Status().Up() && !c.b.Status().Up() })
}

// plugIn returns when the session is up again.
func (c *cable) plugIn() {
	c.t.Helper()
	setCable(c.t, cableName, c.namespace, true)
	c.a.waitUp(c.t)
	c.b.waitUp(c.t)
}

// TestCable: when the cable is plugged in again, the session is established without waiting for the
// next attempt to connect.
func TestCable(t *testing.T) {
	c := newCable(t)
	c.cut()
	c.plugIn()
}

// BenchmarkCable measures the time from plugging in the cable to the session. The kernel may need a
// second longer, if the first neighbor solicitation is lost.
func BenchmarkCable(b *testing.B) {
	for _, outage := range []time.Duration{100 * time.Millisecond, time.Second, 4 * time.Second} {
		b.Run(outage.String(), func(b *testing.B) {
			c := newCable(b)
			var times []float64
			for range b.N {
				c.cut()
				time.Sleep(outage)
				began := time.Now()
				c.plugIn()
				times = append(times, float64(time.Since(began).Microseconds())/1000)
			}
			slices.Sort(times)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(times[len(times)/2], "median-ms")
			b.ReportMetric(times[len(times)-1], "max-ms")
		})
	}
}

// TestResetStorm: sessions that are reset again and again, by one end, by both, or by a lost
// connection, are established again each time.
func TestResetStorm(t *testing.T) {
	const flaps = 6
	reset := message.Shutdown(message.SubcodeReset, "")
	for i, c := range []struct {
		name string
		flap func(a, b *node)
	}{
		{"one end", func(a, _ *node) { a.Reset(reset, "reset") }},
		{"both ends", func(a, b *node) { a.Reset(reset, "reset"); b.Reset(reset, "reset") }},
		{"the neighbor", func(_, b *node) { b.Reset(reset, "reset") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, y := between(t, address(0x70+2*i), address(0x71+2*i))
			x.ConnectRetry, y.ConnectRetry = time.Second, time.Second
			a, b := startNode(t, x), startNode(t, y)
			a.waitUp(t)
			b.waitUp(t)
			began := time.Now()
			for range flaps {
				before := a.Status().Flaps + b.Status().Flaps
				c.flap(a, b)
				eventually(t, "both ends went down", func() bool { return a.Status().Flaps+b.Status().Flaps >= before+2 })
				a.waitUp(t)
				b.waitUp(t)
			}
			t.Logf("%d flaps in %s", flaps, time.Since(began))
		})
	}
}
