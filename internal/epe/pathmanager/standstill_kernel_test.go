package pathmanager

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/tc"
	"github.com/tabane/tabane/internal/mptcp"
)

// slow is the link that what the server sends from the second peer's address takes.
const slow = "slow"

// newOverrunSite returns a site whose clients acknowledge data that they drop: their window is
// small, and something on the way enlarges it.
func newOverrunSite(t testing.TB) *site {
	t.Helper()
	s := newSite(t, addressingIPv6())
	client, err := os.Open("/run/netns/" + s.client)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	err = netns.Do(s.server, func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: slow}, PeerName: slow, PeerNamespace: netlink.NsFd(int(client.Fd()))})
	})
	if err != nil {
		t.Fatal(err)
	}
	for namespace, commands := range map[string]string{
		s.client: "address add 2001:db8:2::c/64 dev slow nodad; link set slow up",
		s.server: "address add 2001:db8:2::1/64 dev slow nodad; link set slow up; route add default via 2001:db8:2::c dev slow table 7; rule add from " + onB.Addr().String() + " lookup 7",
	} {
		if _, err := netnstest.TryIP(t, namespace, commands); err != nil {
			t.Fatal(err)
		}
	}
	err = netns.Do(s.server, func() error {
		if err := tc.SetRate(lan, tc.Rate{Rate: 50e6, Burst: 5000, Queue: 50 * time.Millisecond}); err != nil {
			return err
		}
		if err := tc.SetRate(slow, tc.Rate{Rate: 1e6, Burst: 5000, Queue: 500 * time.Millisecond}); err != nil {
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = netns.Do(s.client, func() error { return netns.Sysctl("net.ipv4.tcp_rmem", "4096 1000000 1000000") })
	if err != nil {
		t.Fatal(err)
	}
	err = netns.Do(s.server, func() (err error) { s.data, err = openData(s.kernel.Diag); return err })
	if err != nil {
		t.Fatal(err)
	}
	data := s.data
	t.Cleanup(func() {
		if err := data.counters.Close(); err != nil {
			t.Error(err)
		}
	})
	s.enlargeWindows(true)
	return s
}

// enlargeWindows sets the window of each TCP segment from the client to a multiple of what it is,
// or ends that.
func (s *site) enlargeWindows(on bool) {
	s.t.Helper()
	err := netns.Do(s.server, func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		table := &nftables.Table{Name: "window", Family: nftables.TableFamilyIPv6}
		if !on {
			c.DelTable(table)
			return c.Flush()
		}
		table = c.AddTable(table)
		chain := c.AddChain(&nftables.Chain{
			Name: "in", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw,
		})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
			&expr.Immediate{Register: 1, Data: []byte{0x40, 0}}, // 2 MiB, with the client's window scale
			&expr.Payload{
				OperationType: expr.PayloadWrite, SourceRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 14, Len: 2,
				CsumType: expr.CsumTypeInet, CsumOffset: 16,
			},
		}})
		return c.Flush()
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// TestStandstillInTheKernel downloads with a window that is larger than the client's: it
// acknowledges data and drops it, and the kernel would reinject that by a timer.
func TestStandstillInTheKernel(t *testing.T) {
	s := newOverrunSite(t)
	l, stop := s.watching()
	defer stop()
	s.offerAll(l, 0, RoutePresent)
	s.offerAll(l, 1, RoutePresent)
	client, server := s.connect()
	s.until(0, 1)
	s.until(1, 1)
	received, stopDownload := s.download(client, server, func() {})
	defer stopDownload()
	eventually(t, "a connection that stood still is found", func() bool { return l.Status().Standstills > 0 })
	if n := s.beyondWindow(); n == 0 {
		t.Error("it is found although the client dropped nothing")
	}
	s.enlargeWindows(false)
	// From here on the timer alone would need one reinjection for each 32 KiB, and 13 s in all.
	before, from := received.Load(), s.reinjections()
	const most = 2 << 20
	eventually(t, "what was dropped is reinjected", func() bool { return received.Load()-before >= most })
	if n := s.reinjections() - from; n > most/(32<<10)/2 {
		t.Errorf("the timer reinjected %d fragments", n)
	}
}

// TestSlowReaderInTheKernel: a client that reads little by little does not stand still.
func TestSlowReaderInTheKernel(t *testing.T) {
	s := newOverrunSite(t)
	s.enlargeWindows(false)
	l, stop := s.watching()
	defer stop()
	s.offerAll(l, 0, RoutePresent)
	s.offerAll(l, 1, RoutePresent)
	client, server := s.connect()
	s.until(0, 1)
	s.until(1, 1)
	received, stopDownload := s.download(client, server, func() { time.Sleep(150 * time.Millisecond) })
	defer stopDownload()
	eventually(t, "the client has read for two seconds", func() bool { return received.Load() >= 15*slowRead })
	// On a busy machine the kernel's own windows may be overrun too, and the connection stand
	// still.
	if got := l.Status(); got.Standstills > 0 && s.beyondWindow() == 0 {
		t.Errorf("%d standstills, and the client dropped nothing", got.Standstills)
	}
}

// BenchmarkStandstill downloads for 5 s, with a window that is larger than the client's, from a
// path manager that looks for connections that stand still and from one that does not.
func BenchmarkStandstill(b *testing.B) {
	for name, on := range map[string]bool{"ended": true, "left": false} {
		b.Run(name, func(b *testing.B) {
			carried := int64(0)
			for range b.N {
				s := newOverrunSite(b)
				if !on {
					s.data = nil
				}
				l, stop := s.watching()
				s.offerAll(l, 0, RoutePresent)
				s.offerAll(l, 1, RoutePresent)
				client, server := s.connect()
				s.until(0, 1)
				s.until(1, 1)
				received, stopDownload := s.download(client, server, func() {})
				time.Sleep(5 * time.Second)
				carried += received.Load()
				stopDownload()
				stop()
				b.Logf("%d bytes; the client dropped %d times, %d reinjections, %d standstills", received.Load(), s.beyondWindow(), s.reinjections(), l.Status().Standstills)
			}
			b.ReportMetric(float64(carried)/float64(b.N)*8/5/1e6, "Mbit/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// slowRead is what a client reads at once.
const slowRead = 16 << 10

// download sends as much as the client takes, which waits before each read, until stop is called.
func (s *site) download(client, server net.Conn, wait func()) (received *atomic.Int64, stop func()) {
	received = &atomic.Int64{}
	var running sync.WaitGroup
	running.Go(func() {
		for b := make([]byte, 256<<10); ; {
			if _, err := server.Write(b); err != nil {
				return
			}
		}
	})
	running.Go(func() {
		for b := make([]byte, slowRead); ; {
			wait()
			n, err := client.Read(b)
			if received.Add(int64(n)); err != nil {
				return
			}
		}
	})
	return received, func() {
		_ = errors.Join(server.Close(), client.Close())
		running.Wait()
	}
}

// beyondWindow returns how often the client dropped what it had acknowledged.
func (s *site) beyondWindow() uint64 { return s.counters(s.client).BeyondWindow }

// reinjections returns how many fragments timers reinjected.
func (s *site) reinjections() uint64 { return s.counters(s.server).Reinjected }

func (s *site) counters(namespace string) (c mptcp.Counters) {
	s.t.Helper()
	if err := netns.Do(namespace, func() (err error) { c, err = mptcp.ReadCounters(); return err }); err != nil {
		s.t.Fatal(err)
	}
	return c
}
