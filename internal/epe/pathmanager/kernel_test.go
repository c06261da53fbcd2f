package pathmanager

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
	"github.com/tabane/tabane/internal/kernel/tc"
	"github.com/tabane/tabane/internal/mptcp"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// lan is the name of the interface of both hosts of a site.
const lan = "lan"

// site is a server and a client in separate namespaces on one link; the server has all addresses.
type site struct {
	t              testing.TB
	server, client string
	kernel         netlinkKernel
	data           *dataKernel // nil: standstills are not looked for
	listener       net.Listener
	peers          []Peer
	addressing
}

// addressing is how clients reach a server.
type addressing struct {
	listen    string
	defaultAt netip.AddrPort
	onA, onB  netip.Addr
	client    netip.Prefix
	anywhere  netip.Prefix // destination of a default route
}

func addressingIPv6() addressing {
	return addressing{"[::]:80", defaultAt, onA.Addr(), onB.Addr(), netip.MustParsePrefix("2001:db8:1::c/64"), netip.MustParsePrefix("::/0")}
}

func addressingIPv4(listen string) addressing {
	return addressing{
		listen, netip.MustParseAddrPort("192.0.2.16:80"), netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("192.0.2.11"),
		netip.MustParsePrefix("192.0.2.99/24"), netip.MustParsePrefix("0.0.0.0/0"),
	}
}

func newSite(t testing.TB, with addressing) *site {
	t.Helper()
	s := &site{
		t: t, server: netnstest.New(t), client: netnstest.New(t), peers: []Peer{{Address: with.onA}, {Address: with.onB}}, addressing: with,
	}
	s.wire()
	err := netns.Do(s.client, func() error {
		c, err := mptcp.Dial()
		if err != nil {
			return err
		}
		return errors.Join(c.SetLimits(mptcp.Limits{Subflows: 8, AddAddrAccepted: 8}), c.Close())
	})
	if err != nil {
		t.Fatal(err)
	}
	err = netns.Do(s.server, func() (err error) {
		if err := mptcp.SetManager(mptcp.UserManager); err != nil {
			return err
		}
		if s.kernel.Conn, err = mptcp.Dial(); err != nil {
			return err
		}
		if s.kernel.Diag, err = mptcp.DialDiag(); err != nil {
			return err
		}
		lc := net.ListenConfig{}
		lc.SetMultipathTCP(true)
		s.listener, err = lc.Listen(context.Background(), "tcp", s.listen)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.listener.Close(), s.kernel.Conn.Close(), s.kernel.Diag.Close()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *site) wire() {
	s.t.Helper()
	f, err := os.Open("/run/netns/" + s.client)
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	err = netns.Do(s.server, func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: lan}, PeerName: lan, PeerNamespace: netlink.NsFd(int(f.Fd()))})
	})
	if err != nil {
		s.t.Fatal(err)
	}
	for ns, addrs := range map[string][]netip.Addr{
		s.server: {s.defaultAt.Addr(), s.onA, s.onB},
		s.client: {s.addressing.client.Addr()},
	} {
		err := netns.Do(ns, func() error {
			link, err := netlink.LinkByName(lan)
			if err != nil {
				return err
			}
			// Without 127.0.0.1, package net takes IPv4 addresses as a sign that there are no
			// dual-stack sockets, for the rest of the process.
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(lo); err != nil {
				return err
			}
			for _, a := range addrs {
				addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(s.addressing.client.Bits(), a.BitLen())}}
				if a.Is6() {
					addr.Flags = unix.IFA_F_NODAD
				}
				if err := netlink.AddrAdd(link, addr); err != nil {
					return err
				}
			}
			return errors.Join(netns.Sysctl("net.ipv6.conf."+lan+".accept_dad", "0"), netlink.LinkSetUp(link))
		})
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

// connect opens a connection to the default address and sends a byte in each direction.
func (s *site) connect() (client, server net.Conn) {
	s.t.Helper()
	var err, acceptErr error
	var wg sync.WaitGroup
	s.t.Helper()
	if err := s.listener.(*net.TCPListener).SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		s.t.Fatal(err)
	}
	wg.Go(func() { server, acceptErr = s.listener.Accept() })
	err = netns.Do(s.client, func() (err error) {
		d := net.Dialer{Timeout: 10 * time.Second}
		d.SetMultipathTCP(true)
		client, err = d.Dial("tcp", s.defaultAt.String())
		return err
	})
	wg.Wait()
	if err := errors.Join(err, acceptErr); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	exchange(s.t, client, server)
	return client, server
}

func exchange(t testing.TB, a, b net.Conn) {
	t.Helper()
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		if _, err := way[0].Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(way[1], make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
}

// manage runs a path manager that samples all connections until stop is called.
func (s *site) manage() (l *Manager, stop func()) { return s.run(nil) }

// run runs a path manager with the kernel's reports, if any, until stop is called.
func (s *site) run(reports reportSource) (l *Manager, stop func()) {
	s.t.Helper()
	var events *mptcp.Events
	l = newManager(Options{Peers: s.peers, Restarted: true, Log: slog.New(slog.DiscardHandler)}, s.kernel)
	err := netns.Do(s.server, func() (err error) {
		if l.evidence, err = openEvidence(s.kernel.Diag); err != nil {
			return err
		}
		events, err = mptcp.Subscribe()
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	if reports != nil {
		l.reports, l.watch = reports, Watch{Method: WatchReports}
	}
	if s.data != nil {
		l.standstills.data = s.data
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.run(ctx, events) }()
	return l, func() {
		cancel()
		if err := errors.Join(<-ended, l.evidence.counters.Close()); err != nil {
			s.t.Error(err)
		}
	}
}

func (s *site) offerAll(l *Manager, peer int, state RouteState) {
	l.post(func(now time.Time) error {
		l.setRoute(now, peer, s.anywhere, Route{State: state})
		return nil
	})
}

// until waits until the number of subflows on the peer's address equals want.
func (s *site) until(peer, want int) {
	s.t.Helper()
	got := 0
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		got = 0
		for _, family := range families {
			err := s.kernel.Subflows(family, func(sub mptcp.Subflow) {
				if sub.Local.Addr() == s.peers[peer].Address {
					got++
				}
			})
			if err != nil {
				s.t.Fatal(err)
			}
		}
		if got == want {
			return
		}
	}
	s.t.Fatalf("%d subflows on peer %d, want %d", got, peer, want)
}

// look checks that subflows can be queried one by one, not only by a dump.
func (s *site) look() {
	s.t.Helper()
	var all []mptcp.Ends
	found := 0
	for _, family := range families {
		err := s.kernel.Subflows(family, func(sub mptcp.Subflow) { all = append(all, mptcp.Ends{Local: sub.Local, Remote: sub.Remote}) })
		if err != nil {
			s.t.Fatal(err)
		}
	}
	if err := s.kernel.Query(all, func(mptcp.Subflow) { found++ }); err != nil || found != len(all) || found < 3 {
		s.t.Errorf("found %d of %d subflows, %v", found, len(all), err)
	}
}

func TestPathsInTheKernel(t *testing.T) {
	for name, with := range map[string]addressing{
		"IPv6": addressingIPv6(), "IPv4 on a dual-stack listener": addressingIPv4("[::]:80"), "IPv4": addressingIPv4("0.0.0.0:80"),
	} {
		t.Run(name, func(t *testing.T) { testPaths(newSite(t, with)) })
	}
}

func testPaths(s *site) {
	t := s.t
	first, stop := s.manage()
	s.offerAll(first, 0, RoutePresent)
	client, server := s.connect()
	s.until(0, 1)
	s.offerAll(first, 1, RoutePresent)
	s.until(1, 1)
	// With a subflow to each peer, that on the default address becomes a backup.
	eventually(t, "backup", func() bool { return first.Status().Backup > 0 && first.Status().Failed+first.Status().Unknown == 0 })
	s.look()
	s.offerAll(first, 0, RouteAbsent)
	s.until(0, 0)
	exchange(t, client, server)
	s.offerAll(first, 0, RoutePresent)
	s.until(0, 1)
	stop()

	// Kill the manager and start another without routes: existing connections continue and are
	// managed again.
	second, stop := s.manage()
	defer stop()
	client2, server2 := s.connect()
	exchange(t, client, server)
	s.offerAll(second, 0, RoutePresent)
	s.until(0, 2)
	s.until(1, 1)
	second.post(func(now time.Time) error { second.machine.routesComplete(now); return nil })
	s.until(1, 0)
	s.offerAll(second, 0, RouteAbsent)
	s.until(0, 0)
	exchange(t, client, server)
	exchange(t, client2, server2)
}

// TestMaintenanceInTheKernel withdraws an egress peer's routes in two steps, as a border router
// before maintenance, while a download fills the link.
func TestMaintenanceInTheKernel(t *testing.T) {
	s := newSite(t, addressingIPv6())
	err := netns.Do(s.server, func() error {
		// In a shorter queue a busy machine loses whole flights, which count as stalls, and a
		// stalled subflow is closed instead of parked.
		return tc.SetRate(lan, tc.Rate{Rate: 20e6, Burst: 5000, Queue: 100 * time.Millisecond})
	})
	if err != nil {
		t.Fatal(err)
	}
	l, stop := s.manage()
	defer stop()
	s.offerAll(l, 0, RoutePresent)
	s.offerAll(l, 1, RoutePresent)
	client, server := s.connect()
	s.until(0, 1)
	s.until(1, 1)
	var sent, received atomic.Int64
	var enough atomic.Bool
	var writer, reader sync.WaitGroup
	writer.Go(func() {
		for b := make([]byte, 64<<10); !enough.Load(); {
			n, err := server.Write(b)
			if sent.Add(int64(n)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	reader.Go(func() {
		n, err := io.Copy(io.Discard, client)
		if received.Store(n); err != nil {
			t.Error(err)
		}
	})
	defer reader.Wait()
	defer writer.Wait()
	defer server.Close()
	defer enough.Store(true)
	// on returns a condition on the path manager's state of the subflow to the first peer.
	on := func(ok func(*subflow) bool) func() bool {
		return func() bool {
			answer := make(chan bool)
			l.post(func(time.Time) error {
				found := false
				for _, c := range l.machine.conns {
					for _, sub := range c.subflows {
						found = found || sub.peer == 0 && ok(sub)
					}
				}
				answer <- found
				return nil
			})
			return <-answer
		}
	}
	eventually(t, "the subflow carries data", on(func(sub *subflow) bool { return sub.queued > 0 }))
	s.offerAll(l, 0, RouteDraining)
	eventually(t, "the subflow is a backup without data", on(func(sub *subflow) bool { return sub.drained }))
	s.offerAll(l, 0, RouteAbsent)
	eventually(t, "the subflow is parked", func() bool { return l.Status().Parked == 1 })
	// It is established again when the route is advertised again.
	s.offerAll(l, 0, RoutePresent)
	eventually(t, "the subflow carries data again", on(func(sub *subflow) bool { return !sub.backup && sub.queued > 0 }))
	s.offerAll(l, 0, RouteDraining)
	eventually(t, "the subflow is a backup without data", on(func(sub *subflow) bool { return sub.drained }))
	s.offerAll(l, 0, RouteAbsent)
	eventually(t, "the subflow is parked", func() bool { return l.Status().Parked == 1 })
	s.until(0, 1)
	if got := l.Status(); got.Removed+got.Destroyed+got.Unknown+got.Failed != 0 {
		t.Errorf("while data flows: %+v", got)
	}
	enough.Store(true)
	writer.Wait()
	s.until(0, 0)
	eventually(t, "nothing is parked", func() bool { return l.Status().Parked == 0 })
	if err := server.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	reader.Wait()
	if sent.Load() != received.Load() {
		t.Errorf("%d bytes arrived of %d", received.Load(), sent.Load())
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not so: %s", what)
		}
	}
}

// BenchmarkKernelWithdrawal withdraws an address from a thousand connections.
func BenchmarkKernelWithdrawal(b *testing.B) {
	const conns = 1000
	s := newSite(b, addressingIPv6())
	l, stop := s.manage()
	defer stop()
	s.offerAll(l, 0, RoutePresent)
	for range conns {
		s.connect()
	}
	s.until(0, conns)
	looking := time.Now()
	if err := s.kernel.Subflows(mptcp.IPv6, func(mptcp.Subflow) {}); err != nil {
		b.Fatal(err)
	}
	look := time.Since(looking)
	b.ResetTimer()
	for range b.N {
		s.offerAll(l, 0, RouteAbsent)
		for want := l.Status().Removed + conns; l.Status().Removed < want; {
			time.Sleep(time.Millisecond)
		}
		b.StopTimer()
		s.until(0, 0)
		s.offerAll(l, 0, RoutePresent)
		s.until(0, conns)
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/withdrawal")
	b.ReportMetric(look.Seconds()*1000, "ms/look")
	b.Logf("%+v", l.Status())
}
