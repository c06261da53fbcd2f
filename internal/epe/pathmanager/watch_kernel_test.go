package pathmanager

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/tc"
	"github.com/tabane/tabane/internal/mptcp"
)

// watching runs a path manager with the kernel's reports until stop is called.
func (s *site) watching() (l *Manager, stop func()) {
	s.t.Helper()
	var reports reportSource
	err := netns.Do(s.server, func() (err error) { reports, err = NewReports(); return err })
	if errors.Is(err, errors.ErrUnsupported) {
		s.t.Skip(err)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return s.run(reports)
}

// hole makes the client drop all packets from the address, or ends that.
func (s *site) hole(from netip.Addr, open bool) {
	s.t.Helper()
	err := netns.Do(s.client, func() error {
		rule := func(priority, table int) *netlink.Rule {
			r := netlink.NewRule()
			r.Family, r.Priority, r.Table = unix.AF_INET6, priority, table
			if from.Is4() {
				r.Family = unix.AF_INET
			}
			return r
		}
		drop := rule(10, 0)
		drop.Src, drop.Type = &net.IPNet{IP: from.AsSlice(), Mask: net.CIDRMask(from.BitLen(), from.BitLen())}, unix.FR_ACT_BLACKHOLE
		if !open {
			return netlink.RuleDel(drop)
		}
		// The rule for local addresses is the first one; it must come after.
		_ = netlink.RuleAdd(rule(20, unix.RT_TABLE_LOCAL))
		_ = netlink.RuleDel(rule(0, unix.RT_TABLE_LOCAL))
		return netlink.RuleAdd(drop)
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// download sends to the client at a rate until stop is called; 0 is as fast as possible.
func download(server, client net.Conn, bytesPerSecond int) (stop func()) {
	ended := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		b := make([]byte, 32<<10)
		pause := time.Duration(0)
		if bytesPerSecond > 0 {
			pause = time.Duration(len(b)) * time.Second / time.Duration(bytesPerSecond)
		}
		for {
			select {
			case <-ended:
				return
			case <-time.After(pause):
			}
			if _, err := server.Write(b); err != nil {
				return
			}
		}
	})
	running.Go(func() { _, _ = io.Copy(io.Discard, client) })
	return func() {
		close(ended)
		_ = errors.Join(server.Close(), client.Close())
		running.Wait()
	}
}

// newSlowSite returns a site whose link has a queue, so that a connection uses all of its subflows.
func newSlowSite(t testing.TB, with addressing) *site {
	t.Helper()
	s := newSite(t, with)
	err := netns.Do(s.server, func() error {
		return tc.SetRate(lan, tc.Rate{Rate: 50e6, Burst: 5000, Queue: 20 * time.Millisecond})
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// busy waits until the subflow on the first peer's address has data in flight.
func (s *site) busy() {
	s.t.Helper()
	eventually(s.t, "data is in flight on the first peer", func() bool {
		found := false
		for _, family := range families {
			err := s.kernel.Subflows(family, func(sub mptcp.Subflow) {
				found = found || sub.Local.Addr() == s.onA && sub.InFlight > 0
			})
			if err != nil {
				s.t.Fatal(err)
			}
		}
		return found
	})
}

// findHole opens a hole on the first peer's path during a download and returns the time until the
// subflow counts as stalled.
func findHole(t testing.TB, with addressing, manage func(*site) (*Manager, func()), bytesPerSecond int) (time.Duration, Status) {
	t.Helper()
	s := newSlowSite(t, with)
	l, stop := manage(s)
	defer stop()
	s.offerAll(l, 0, RoutePresent)
	s.offerAll(l, 1, RoutePresent)
	client, server := s.connect()
	s.until(0, 1)
	s.until(1, 1)
	defer download(server, client, bytesPerSecond)()
	eventually(t, "the default subflow is a backup", func() bool { return l.Status().Backup > 0 })
	time.Sleep(500 * time.Millisecond)
	s.busy()
	before := l.Status()
	s.hole(s.onA, true)
	began := time.Now()
	eventually(t, "the subflow over the hole is stalled", func() bool { return l.Status().Stalls > before.Stalls })
	took := time.Since(began)
	s.hole(s.onA, false)
	s.until(0, 1)
	return took, l.Status()
}

// The kernel's reports find a hole without samples of other connections.
func TestReportedStallInTheKernel(t *testing.T) {
	for name, with := range map[string]addressing{
		"IPv6": addressingIPv6(), "IPv4 to a dual-stack listener": addressingIPv4("[::]:80"),
	} {
		t.Run(name, func(t *testing.T) {
			took, status := findHole(t, with, (*site).watching, 0)
			t.Logf("found after %v", took)
			if status.Watch.Method != WatchReports || status.Reports == 0 || status.ReportsLost > 0 {
				t.Errorf("status %+v", status)
			}
		})
	}
}

// An idle connection is not sampled.
func TestIdleConnectionIsNotSampled(t *testing.T) {
	s := newSite(t, addressingIPv6())
	l, stop := s.watching()
	defer stop()
	s.offerAll(l, 0, RoutePresent)
	client, server := s.connect()
	s.until(0, 1)
	exchange(t, client, server)
	if status := l.Status(); status.Watched != 0 {
		t.Errorf("status %+v", status)
	}
}

// BenchmarkHole measures the time until a hole is found in a download that fills the link, and in
// one that does not.
func BenchmarkHole(b *testing.B) {
	for _, method := range []struct {
		name   string
		manage func(*site) (*Manager, func())
	}{{WatchReports, (*site).watching}, {WatchSamples, (*site).manage}} {
		for name, rate := range map[string]int{"full": 0, "4MBps": 4e6} {
			b.Run(method.name+"/"+name, func(b *testing.B) {
				var all []float64
				for range b.N {
					took, _ := findHole(b, addressingIPv6(), method.manage, rate)
					all = append(all, took.Seconds()*1000)
				}
				slices.Sort(all)
				b.ReportMetric(all[len(all)/2], "ms-median")
				b.ReportMetric(all[len(all)-1], "ms-max")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
