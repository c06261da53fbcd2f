package edge

import (
	"encoding/binary"
	"io"
	"log/slog"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/daemon"
	"github.com/tabane/tabane/internal/epe/belief"
	"github.com/tabane/tabane/internal/epe/outcome"
	"github.com/tabane/tabane/internal/kernel/clock"
	"github.com/tabane/tabane/internal/kernel/route"
	"github.com/tabane/tabane/internal/testkit/heap"
)

// accepting is a kernel that accepts everything at no cost.
type accepting struct{}

func (accepting) Apply(ops []route.Op) []error { return make([]error, len(ops)) }
func (accepting) DumpEach(route.Protocol, func([]route.Object)) (bool, error) {
	return true, nil
}

// BenchmarkMillionRoutes applies a million EPE Routes to the desired state and to a kernel without
// cost, as the daemon's loop does; then their ASBR fails and returns.
func BenchmarkMillionRoutes(b *testing.B) {
	const routes = 1_000_000
	var memory uint64
	for b.Loop() {
		before := heap.InUse()
		kernel := route.NewReconciler(accepting{}, route.Edge, slog.New(slog.NewTextHandler(io.Discard, nil)))
		config := testConfig()
		e := newEgress(&config, 1500, kernel)
		flush := func() {
			for more := true; more; {
				var err error
				if more, err = kernel.FlushPart(daemon.Step); err != nil {
					b.Fatal(err)
				}
			}
		}
		e.locator(locator("fc00:1::/32", true))
		path := vpnPath("10.0.0.1:1", "fc00:1:1::", "65000:101")
		a := netip.MustParseAddr("2a00::").As16()
		for i := range uint32(routes) {
			binary.BigEndian.PutUint32(a[2:], i)
			path.Prefix = netip.PrefixFrom(netip.AddrFrom16(a), 48)
			path.Attributes = bgp.Attributes{ASPath: message.MakeASPath(make([]uint32, 1+i%5)...), LocalPref: 100}
			if err := e.update(path); err != nil {
				b.Fatal(err)
			}
			if i%daemon.Step == 0 {
				flush()
			}
		}
		flush()
		memory += heap.InUse() - before
		for _, there := range []bool{false, true} {
			e.locator(locator("fc00:1::/32", there))
			for e.step(daemon.Step) {
				flush()
			}
			flush()
		}
		if p := e.peers[0]; p.reachable() != routes || kernel.Pending() != 0 {
			b.Fatalf("%d routes, %d pending", p.reachable(), kernel.Pending())
		}
		runtime.KeepAlive(e)
	}
	b.ReportMetric(float64(memory)/float64(b.N)/routes, "B/route")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(3*routes), "ns/change")
}

// BenchmarkDelivery spreads flows to 100,000 networks over two egress peers that both cover each;
// then one of them withdraws the route that covers all, and announces it again. It is without the
// time of a kernel.
func BenchmarkDelivery(b *testing.B) {
	const networks = 100_000
	var memory uint64
	var left, suspended time.Duration
	for b.Loop() {
		kernel := route.NewReconciler(accepting{}, route.Edge, slog.New(slog.NewTextHandler(io.Discard, nil)))
		config := testConfig()
		config.Delivery.Default = Mode{Spread: map[string]uint32{"a": 2, "b": 1}}
		e := newEgress(&config, 1500, kernel)
		announce := func(peer string, prefix netip.Prefix, there bool) {
			path := vpnPath("10.0.0."+peer+":1", "fc00:"+peer+":1::", "65000:10"+peer)
			path.Prefix, path.Withdrawn = prefix, !there
			if err := e.update(path); err != nil {
				b.Fatal(err)
			}
		}
		flush := func() {
			if err := kernel.Flush(); err != nil {
				b.Fatal(err)
			}
		}
		all := netip.MustParsePrefix("2a00::/12")
		announce("2", all, true)
		a := netip.MustParseAddr("2a00::").As16()
		before := heap.InUse()
		for i := range uint32(networks) {
			binary.BigEndian.PutUint32(a[2:], i)
			announce("1", netip.PrefixFrom(netip.AddrFrom16(a), 48), true)
		}
		flush()
		memory += heap.InUse() - before
		begun := time.Now()
		e.flushNow = func(routes int) {
			if _, err := kernel.FlushPart(routes); err != nil {
				b.Fatal(err)
			}
			suspended += time.Since(begun)
		}
		announce("2", all, false)
		left += time.Since(begun)
		for e.step(daemon.Step) {
		}
		e.flushNow = nil
		flush()
		if len(e.delivery.groups) != 1 {
			b.Fatalf("%d groups, want that of one peer", len(e.delivery.groups))
		}
		announce("2", all, true)
		flush()
		if n := e.delivery.networks.Size(); n != networks+1 || kernel.Pending() != 0 {
			b.Fatalf("%d networks, %d pending", n, kernel.Pending())
		}
	}
	b.ReportMetric(float64(memory)/float64(b.N)/networks, "B/network")
	b.ReportMetric(left.Seconds()*1000/float64(b.N), "ms/withdrawal")
	b.ReportMetric(suspended.Seconds()*1000/float64(b.N), "ms/suspension")
}

// BenchmarkObserved applies reports of closed connections, each to one of 100,000 client networks.
func BenchmarkObserved(b *testing.B) {
	const networks, part = 100_000, 1000
	a := newAutoEgress(b, false)
	var reports []outcome.Report
	for i := range uint32(networks) {
		at := netip.MustParseAddr("2a00::").As16()
		binary.BigEndian.PutUint32(at[2:], i)
		p := netip.PrefixFrom(netip.AddrFrom16(at), 48).String()
		a.announce(1, p, true)
		a.announce(2, p, true)
		reports = append(reports, a.report(outcome.Closed, p, belief.Bulk))
	}
	a.observed(reports) // they become known
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	n := 0
	begun := clock.Thread()
	for b.Loop() {
		a.clock = a.clock.Add(time.Minute) // they are on their path for longer than they last
		at := n * part % networks
		a.observed(reports[at : at+part])
		n++
	}
	b.ReportMetric(float64((clock.Thread()-begun).Nanoseconds())/float64(n*part), "cpu-ns/connection")
}
