package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/kernel/netns/netnstest"
)

// eventually fails the test unless the condition holds soon. Only a failing test takes long.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func (n *node) waitUp(t testing.TB) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); !n.Status().Up(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("session with %s is not up: %+v", n.conf.Remote, n.Status())
		}
	}
}

func (n *node) waitReason(t testing.TB, want string) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); !strings.Contains(n.Status().Down, want); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("session with %s: reason is %q, want %q", n.conf.Remote, n.Status().Down, want)
		}
	}
}

func testLog() *slog.Logger {
	if os.Getenv("BGP_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.DiscardHandler)
}

func listenOn(t testing.TB, addresses ...netip.Addr) *Listener {
	t.Helper()
	netnstest.NeedIsolation(t)
	l, err := Listen(testLog(), 179, addresses...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// startNode starts a session; it is stopped at the end of the test.
func startNode(t testing.TB, c Config) *node {
	t.Helper()
	netnstest.NeedIsolation(t)
	n := &node{}
	s, err := New(c, n.recorder.handler())
	if err != nil {
		t.Fatal(err)
	}
	n.Session = s
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Stop(cease(message.SubcodeShutdown), "end of the test") })
	return n
}

// between returns the configurations of both ends of a session over TCP.
func between(t testing.TB, a, b netip.Addr) (x, y Config) {
	t.Helper()
	x, y = config(1, 2), config(2, 1)
	x.Local, x.Remote, x.ConnectRetry = a.WithZone(""), netip.AddrPortFrom(b, 179), time.Second
	y.Local, y.Remote, y.ConnectRetry = b.WithZone(""), netip.AddrPortFrom(a, 179), time.Second
	x.Listener, y.Listener = listenOn(t, a), listenOn(t, b)
	return x, y
}

// option returns a socket option of the established session.
func (n *node) option(t *testing.T, o option) int {
	t.Helper()
	n.Session.mu.Lock()
	c := n.current
	n.Session.mu.Unlock()
	raw, err := c.Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var value int
	level, name := unix.IPPROTO_IPV6, o.name6
	if n.conf.Remote.Addr().Is4() {
		level, name = unix.IPPROTO_IP, o.name4
	}
	if err := control(raw, func(fd int) (err error) { value, err = unix.GetsockoptInt(fd, level, name); return err }); err != nil {
		t.Fatal(err)
	}
	return value
}

// TestKindsOfSession establishes sessions over TCP, each opened by either end, and checks the
// socket options of both ends.
func TestKindsOfSession(t *testing.T) {
	parse := netip.MustParseAddr
	for i, c := range []struct {
		name        string
		a, b        netip.Addr
		change      func(x, y *Config)
		least, send int
	}{
		{"ipv6", address(1), address(2), nil, 0, 1},
		{"ipv4", parse("127.0.1.1"), parse("127.0.1.2"), nil, 0, 1},
		{"link-local", parse("fe80::1%lo"), parse("fe80::2%lo"), nil, 0, 1},
		{"password ipv6", address(3), address(4), func(x, y *Config) { x.Password, y.Password = "s3cret", "s3cret" }, 0, 1},
		{"password ipv4", parse("127.0.1.3"), parse("127.0.1.4"), func(x, y *Config) { x.Password, y.Password = "s3cret", "s3cret" }, 0, 1},
		{"password link-local", parse("fe80::1%lo"), parse("fe80::2%lo"), func(x, y *Config) { x.Password, y.Password = "s3cret", "s3cret" }, 0, 1},
		{"gtsm ipv6", address(5), address(6), func(x, y *Config) { x.GTSM, y.GTSM = true, true }, 255, 255},
		{"gtsm ipv4", parse("127.0.1.5"), parse("127.0.1.6"), func(x, y *Config) { x.GTSM, y.GTSM = true, true }, 255, 255},
		{"gtsm over three hops", address(7), address(8), func(x, y *Config) { x.GTSM, y.GTSM, x.Multihop, y.Multihop = true, true, 3, 3 }, 253, 255},
		{"gtsm and password", address(9), address(10), func(x, y *Config) { x.GTSM, y.GTSM, x.Password, y.Password = true, true, "a", "a" }, 255, 255},
		{"multihop", address(11), address(12), func(x, y *Config) { x.Multihop, y.Multihop = 7, 7 }, 0, 7},
		{"internal", address(13), address(14), func(x, y *Config) { x.LocalASN, x.RemoteASN, y.LocalASN, y.RemoteASN = 1, 1, 1, 1 }, 0, 64},
		{"both dial", address(15), address(16), func(x, y *Config) { x.Passive, y.Passive = false, false }, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, y := between(t, c.a, c.b)
			x.Passive, y.Passive = i%2 == 0, i%2 != 0
			if c.change != nil {
				c.change(&x, &y)
			}
			a, b := startNode(t, x), startNode(t, y)
			for _, n := range []*node{a, b} {
				n.waitUp(t)
				if got := n.option(t, minHopLimit); got != c.least {
					t.Errorf("least hop limit %d, want %d", got, c.least)
				}
				if got := n.option(t, hopLimit); got != c.send {
					t.Errorf("hop limit %d, want %d", got, c.send)
				}
				if got := n.option(t, class); got != trafficClass {
					t.Errorf("traffic class %#x", got)
				}
				e := n.Status().Established
				if e.Local.Addr() != n.conf.Local.WithZone(c.a.Zone()) || e.Remote.Addr() != n.conf.Remote.Addr() {
					t.Errorf("addresses %s and %s", e.Local, e.Remote)
				}
			}
		})
	}
}

func TestWrongPassword(t *testing.T) {
	x, y := between(t, address(17), address(18))
	x.Password, y.Password, y.Passive = "right", "wrong", true
	a, b := startNode(t, x), startNode(t, y)
	x, y = between(t, address(19), address(20))
	x.Password, y.Passive = "secret", true
	c, d := startNode(t, x), startNode(t, y)
	a.waitReason(t, "md5 password differs from the neighbor's (TCPMD5Failure)")
	b.waitReason(t, "md5 password differs from the neighbor's (TCPMD5Failure)")
	c.waitReason(t, "md5 password") // the counters are those of both sessions
	d.waitReason(t, "the neighbor has an md5 password (TCPMD5Unexpected)")
}

// TestFarNeighbor: a neighbor whose packets may have crossed a router is refused with GTSM, whether
// it connects or accepts.
func TestFarNeighbor(t *testing.T) {
	x, y := between(t, address(21), address(22))
	x.GTSM, x.Passive = true, true
	y.Multihop = 254 // its packets seem to come from two hops away
	a := startNode(t, x)
	startNode(t, y)
	a.waitReason(t, "refused: with hop limit 254, but gtsm needs at least 255")

	// The kernel drops the SYN-ACKs of a listener with an ordinary hop limit.
	x, y = between(t, address(23), address(24))
	x.GTSM, y.Passive = true, true
	raw, err := y.Listener.sockets[0].SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := control(raw, func(fd int) error { return hopLimit.set(fd, false, 64) }); err != nil {
		t.Fatal(err)
	}
	startNode(t, x).waitReason(t, "timed out")
}

func TestWhyDown(t *testing.T) {
	t.Run("refused", func(t *testing.T) {
		x, _ := between(t, address(25), address(26))
		x.Remote = netip.AddrPortFrom(address(26), 1790)
		startNode(t, x).waitReason(t, "connection to [fd00::1a]:1790 refused")
	})
	t.Run("timeout", func(t *testing.T) {
		d := net.Dialer{Deadline: time.Unix(1, 0)}
		_, late := d.Dial("tcp", "[fd00::1]:179")
		c := Config{Remote: netip.MustParseAddrPort("[fd00::1]:179"), Password: "secret"}
		for _, err := range []error{late, &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, os.NewSyscallError("connect", syscall.ETIMEDOUT)} {
			if _, got := c.dialFinding(err); got != "connection to [fd00::1]:179 timed out, as with a wrong md5 password" {
				t.Errorf("%v: got %q", err, got)
			}
		}
	})
	t.Run("unreachable", func(t *testing.T) {
		x, _ := between(t, address(27), address(28))
		x.Remote = netip.MustParseAddrPort("[2001:db8::1]:179")
		startNode(t, x).waitReason(t, "connection to [2001:db8::1]:179: network is unreachable")
	})
	t.Run("no such local address", func(t *testing.T) {
		x, _ := between(t, address(29), address(30))
		x.Local = netip.MustParseAddr("2001:db8::1")
		startNode(t, x).waitReason(t, "(no interface has 2001:db8::1)")
	})
	t.Run("not configured there", func(t *testing.T) {
		x, _ := between(t, address(31), address(32))
		startNode(t, x).waitReason(t, "the neighbor closed the connection before the session was up")
	})
	t.Run("to another local address", func(t *testing.T) {
		x, y := between(t, address(33), address(34))
		y.Local, y.Passive = address(35), true
		startNode(t, x)
		startNode(t, y).waitReason(t, "refused: to local address fd00::22, not fd00::23")
	})
	t.Run("itself", func(t *testing.T) {
		x, _ := between(t, address(36), address(37))
		x.Remote, x.RemoteASN = netip.AddrPortFrom(address(36), 179), x.LocalASN
		startNode(t, x).waitReason(t, "the neighbor's OPEN has our own router id 10.0.0.1")
	})
}

// TestListener: addresses in use, groups, unknown addresses.
func TestListener(t *testing.T) {
	l := listenOn(t, address(40), netip.MustParseAddr("127.0.1.40"))
	t.Run("address in use", func(t *testing.T) {
		_, err := Listen(testLog(), 179, address(41), address(40))
		if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "[fd00::28]:179") {
			t.Errorf("got %v", err)
		}
		listenOn(t, address(41)) // was closed
	})
	t.Run("address in use by a session", func(t *testing.T) {
		c := config(40, 42)
		c.Passive, c.Listener = true, l
		startNode(t, c)
		s, err := New(c, Handler{})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(); err == nil || !strings.Contains(err.Error(), "fd00::2a has a session already") {
			t.Errorf("got %v", err)
		}
		s.Stop(message.Notification{}, "")
	})
	t.Run("group", func(t *testing.T) {
		created := make(chan *node, 10)
		err := l.AddGroup(netip.MustParsePrefix("fd00::50/124"), "members", func(local, remote netip.Addr) *Session {
			if remote == address(0x5f) {
				return nil // full
			}
			c := config(40, 0x50)
			c.Local, c.Remote, c.Passive, c.Listener, c.Password = local, netip.AddrPortFrom(remote, 179), true, l, "members"
			n := startNode(t, c)
			created <- n
			return n.Session
		})
		if err != nil {
			t.Fatal(err)
		}
		member := func(i int, password string) *node {
			c := config(0x50, 40)
			c.Local, c.Password, c.ConnectRetry = address(i), password, time.Second
			return startNode(t, c)
		}
		a, b := member(0x50, "members"), member(0x51, "members")
		a.waitUp(t)
		b.waitUp(t)
		(<-created).waitUp(t)
		(<-created).waitUp(t)
		member(0x5f, "members").waitReason(t, "closed the connection")
		// The last one: the counters of wrong signatures are those of all sessions.
		member(0x52, "other").waitReason(t, "md5 password")
		if n := len(created); n > 0 {
			t.Errorf("%d more sessions were created", n)
		}
		l.RemoveGroup(netip.MustParsePrefix("fd00::50/124"))
	})
	t.Run("flood", func(t *testing.T) {
		l := listenOn(t, address(48)) // without connections of the sessions above
		count := func() uint64 {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.rejected
		}
		before := runtime.NumGoroutine()
		const connections = 500
		for i := range connections {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: address(1 + i%8).AsSlice()}}
			c, err := d.DialContext(t.Context(), "tcp", "[fd00::30]:179")
			if err != nil { // it was reset already
				continue
			}
			t.Cleanup(func() { _ = c.Close() })
			_, _ = c.Write(make([]byte, 100))
			if more := runtime.NumGoroutine() - before; more > 5 {
				t.Fatalf("%d goroutines after %d connections", more, i+1)
			}
		}
		eventually(t, "all connections are rejected", func() bool { return count() == connections })
	})
}

// TestFloodFromNeighbor: a neighbor that opens connections and sends nothing holds one of them.
func TestFloodFromNeighbor(t *testing.T) {
	c := config(40, 43)
	c.Listener, c.Passive = listenOn(t, address(40)), true
	startNode(t, c)
	before := runtime.NumGoroutine()
	alive := make(chan error, 200)
	for range cap(alive) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: address(43).AsSlice()}}
		c, err := d.DialContext(t.Context(), "tcp", "[fd00::28]:179")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		go func() { _, err := io.Copy(io.Discard, c); alive <- err }()
	}
	for range cap(alive) - 1 {
		<-alive
	}
	eventually(t, "no more than one reader", func() bool { return runtime.NumGoroutine()-before <= 1+1 })
}

// TestManyBothDial: neighbors that connect to each other at the same time establish a session.
func TestManyBothDial(t *testing.T) {
	const pairs = 60
	parse := netip.MustParseAddr
	nodes := make([]*node, 0, 2*pairs)
	began := time.Now()
	for i := range pairs {
		x, y := between(t, parse(fmt.Sprintf("127.1.0.%d", i+1)), parse(fmt.Sprintf("127.2.0.%d", i+1)))
		x.RouterID, y.RouterID = y.RouterID, x.RouterID
		nodes = append(nodes, startNode(t, x), startNode(t, y))
	}
	for _, n := range nodes {
		n.waitUp(t)
	}
	flaps := uint64(0)
	for _, n := range nodes {
		flaps += n.Status().Flaps
	}
	t.Logf("%d sessions up after %s, %d flaps", pairs, time.Since(began), flaps)
}

// TestStopLeavesNothing: Stop closes everything in each state.
func TestStopLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("stop", func(t *testing.T) {
		x, y := between(t, address(44), address(45))
		startNode(t, x).waitUp2(t, startNode(t, y))
		x, _ = between(t, address(46), address(47)) // open without an answer
		startNode(t, x)
	})
	eventually(t, "all goroutines have returned", func() bool { return runtime.NumGoroutine() <= before })
}

func (n *node) waitUp2(t *testing.T, other *node) {
	t.Helper()
	n.waitUp(t)
	other.waitUp(t)
}

// TestCanceledDial: Stop does not wait for a connection that is not answered.
func TestCanceledDial(t *testing.T) {
	c := config(1, 2)
	s, err := New(c, Handler{})
	if err != nil {
		t.Fatal(err)
	}
	s.dial = func(ctx context.Context) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.Stop(message.Notification{}, "stopped")
}

// BenchmarkSessions establishes sessions in this process, both ends of each, and measures the time
// and the memory of one.
func BenchmarkSessions(b *testing.B) {
	netnstest.NeedIsolation(b)
	const sessions = 2000
	parse := netip.MustParseAddr
	hub, spokes := parse("127.3.0.1"), make([]netip.Addr, sessions)
	for i := range spokes {
		spokes[i] = parse(fmt.Sprintf("127.3.%d.%d", 1+i/250, 1+i%250))
	}
	inUse := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	for b.Loop() {
		l, err := Listen(testLog(), 179, hub)
		if err != nil {
			b.Fatal(err)
		}
		before, goroutines := inUse(), runtime.NumGoroutine()
		nodes := make([]*Session, 0, 2*sessions)
		for i := range spokes {
			x, y := config(1, 2), config(2, 1)
			x.Local, x.Remote, x.Passive, x.Listener = hub, netip.AddrPortFrom(spokes[i], 179), true, l
			y.Local, y.Remote = spokes[i], netip.AddrPortFrom(hub, 179)
			for _, c := range []Config{x, y} {
				s, err := New(c, Handler{Up: func(Established) {}, Down: func(Reason) {}, Fill: func(b []byte) []byte { return b }})
				if err != nil {
					b.Fatal(err)
				}
				if err := s.Start(); err != nil {
					b.Fatal(err)
				}
				nodes = append(nodes, s)
			}
		}
		for _, s := range nodes {
			for !s.Status().Up() {
				time.Sleep(time.Millisecond)
			}
		}
		b.StopTimer()
		b.ReportMetric(float64(inUse()-before)/float64(len(nodes)), "B/session")
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/float64(len(nodes)), "goroutines/session")
		for _, s := range nodes {
			s.Stop(message.Notification{}, "")
		}
		l.Close()
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*2*sessions), "us/session")
}
