package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/proxy/header"
)

// patience bounds how long a test waits for what it expects.
const patience = 10 * time.Second

// stub is a router that gives each connection the same plan.
type stub struct {
	plan    Plan
	queries chan Query
	tried   func(Outcome)
	active  atomic.Int32
}

func (s *stub) Route(q Query, _ func(Plan)) (Plan, bool) {
	if s.queries != nil {
		s.queries <- q
	}
	return s.plan, true
}

func (s *stub) Tried(o Outcome) {
	if s.tried != nil {
		s.tried(o)
	}
}

func (s *stub) Began(Target)  { s.active.Add(1) }
func (s *stub) Closed(Target) { s.active.Add(-1) }

// start runs an engine with one service until the test ends.
func start(t *testing.T, r Router, o ServiceOptions) (*Engine, *Service, netip.AddrPort) {
	t.Helper()
	e, err := New(Options{Loops: 1, Connections: 100, Router: r, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	fd, err := OpenSocket(SocketOptions{At: netip.MustParseAddrPort("127.0.0.1:0")})
	if err != nil {
		t.Fatal(err)
	}
	o.Sockets = []int{fd}
	o.Idle = time.Hour
	s, err := e.Add(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return e, s, LocalAddress(fd)
}

func enter(t *testing.T, to netip.AddrPort) *net.TCPConn {
	t.Helper()
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestPeer: the router learns who sent a PROXY header beside what it says.
func TestPeer(t *testing.T) {
	r := &stub{queries: make(chan Query, 1)}
	_, _, at := start(t, r, ServiceOptions{Header: true})
	c := enter(t, at)
	said := header.Header{Source: netip.MustParseAddrPort("192.0.2.1:7"), Destination: netip.MustParseAddrPort("192.0.2.2:80")}
	_, _ = c.Write(said.Append(nil, header.V1)) // reading notices
	_, _ = io.ReadAll(c)                        // it is refused
	q := <-r.queries
	if q.Peer.String() != c.LocalAddr().String() || q.Client != said.Source {
		t.Errorf("peer %v, client %v, of a connection from %v", q.Peer, q.Client, c.LocalAddr())
	}
}

// TestLocal: an attempt for which this host has no descriptor is repeated, and is not one that
// failed.
func TestLocal(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	var failed atomic.Int32
	r := &stub{queries: make(chan Query)}
	r.plan.Targets = []Target{{Address: netip.MustParseAddrPort(server.Addr().String())}}
	r.tried = func(o Outcome) {
		if o.Err != nil {
			failed.Add(1)
		}
	}
	e, _, at := start(t, r, ServiceOptions{})
	client := enter(t, at)
	// The connection is accepted, and its loop waits for the test.
	settle(t, "not accepted", func() bool { return e.Open() == 1 })
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	few := limit
	few.Cur = 3
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	<-r.queries
	time.Sleep(2 * attemptDelay) // it fails meanwhile, and again
	active := r.active.Load()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if active != 0 {
		t.Errorf("%d attempts without descriptors", active)
	}
	c, err := server.Accept()
	if err != nil {
		t.Fatal(err)
	}
	settle(t, "the attempt is not counted", func() bool { return r.active.Load() == 1 })
	_, _ = c.Close(), client.Close()
	settle(t, "the attempt stays", func() bool { return r.active.Load() == 0 })
	if n := failed.Load(); n != 0 {
		t.Errorf("%d attempts failed", n)
	}
}

func settle(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// TestPanic: a panic of what is posted or due resets its connection, and everything else goes on.
func TestPanic(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	r := &stub{}
	to := Target{Address: netip.MustParseAddrPort(server.Addr().String())}
	// The first attempt is refused, and reporting it panics.
	r.plan.Targets = []Target{{Address: netip.AddrPortFrom(to.Address.Addr(), 0)}, to}
	r.tried = func(Outcome) { panic("a test") }
	e, s, at := start(t, r, ServiceOptions{})
	if c, err := net.Dial("tcp", at.String()); err == nil { // else it is reset already
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err := io.ReadAll(c); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("the connection of a panic ends with %v", err)
		}
		_ = c.Close()
	}
	l := e.loops[0]
	ran := make(chan bool, 1)
	l.post(func() { // both are posted when the loop looks next
		l.post(func() { panic("a test") })
		l.post(func() { ran <- true })
	})
	select {
	case <-ran:
	case <-time.After(patience):
		t.Fatal("a panic has lost what was posted after it")
	}
	e.Remove(s)
}

// TestFull: attempts beside the first of a connection take room as well.
func TestFull(t *testing.T) {
	silent, err := OpenSocket(SocketOptions{At: netip.MustParseAddrPort("127.0.0.1:0")})
	if err != nil {
		t.Fatal(err)
	}
	defer closeSocket(silent)
	c := &connection{plan: Plan{Targets: make([]Target, 3)}, service: &Service{}}
	for i := range c.plan.Targets {
		c.plan.Targets[i].Address = LocalAddress(silent)
	}
	e, err := New(Options{Loops: 1, Connections: 2, Router: &stub{}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	e.open.Store(1)
	for range 3 {
		e.loops[0].attempt(c)
	}
	if c.dial.open != 2 || !e.full() {
		t.Errorf("%d attempts of 3, full %v", c.dial.open, e.full())
	}
	if e.loops[0].closeAttempts(c, -1); e.full() || e.beside.Load() != 0 {
		t.Errorf("after their end %d are counted", e.beside.Load())
	}
}

// TestCopiedDataStaysApart: connections of a loop that has no pipe left share its buffer, and yet
// each client gets what its own server sends.
func TestCopiedDataStaysApart(t *testing.T) {
	const downloads, size = 6, 16 << 20
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for i := byte(1); ; i++ {
			c, err := l.Accept()
			if err != nil {
				return // the test ends
			}
			go func() {
				_, _ = c.Write(bytes.Repeat([]byte{i}, size)) // the client counts
				_ = c.Close()
			}()
		}
	}()
	e, _, at := start(t, &stub{plan: Plan{Targets: []Target{{Address: l.Addr().(*net.TCPAddr).AddrPort()}}}}, ServiceOptions{})
	e.pipes.Store(maxPipes)
	defer e.pipes.Store(0)
	var running sync.WaitGroup
	for range downloads {
		c := enter(t, at)
		if err := c.SetDeadline(time.Now().Add(6 * patience)); err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			got, err := io.ReadAll(c)
			if err != nil || len(got) != size {
				t.Errorf("%d bytes of %d arrived: %v", len(got), size, err)
				return
			}
			if n := bytes.Count(got, got[:1]); n != size {
				t.Errorf("%d bytes are of other connections", size-n)
			}
		})
	}
	running.Wait()
}

// TestOptions: the socket of a target sends small pieces after the first at once, and a target that
// stays is asked whether it is alive.
func TestOptions(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, _, at := start(t, &stub{plan: Plan{Targets: []Target{{Address: l.Addr().(*net.TCPAddr).AddrPort()}}}}, ServiceOptions{})
	client := enter(t, at)
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	target := connectedTo(t, l.Addr().(*net.TCPAddr).AddrPort())
	piece := []byte("a piece")
	for n := range 2 {
		if _, err := client.Write(piece); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(server, make([]byte, len(piece))); err != nil {
			t.Fatal(err)
		}
		if got, err := unix.GetsockoptInt(target, unix.IPPROTO_TCP, unix.TCP_NODELAY); err != nil || got != n {
			t.Errorf("after %d pieces TCP_NODELAY is %d, %v", n+1, got, err)
		}
	}
	settle(t, "the target is not asked whether it is alive", func() bool {
		on, err := unix.GetsockoptInt(target, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
		return err == nil && on == 1
	})
}

// connectedTo returns the descriptor of this process that is connected to an address.
func connectedTo(t *testing.T, peer netip.AddrPort) int {
	t.Helper()
	for fd := range 1 << 10 {
		other, err := unix.Getpeername(fd)
		if four, ok := other.(*unix.SockaddrInet4); err == nil && ok && netip.AddrPortFrom(netip.AddrFrom4(four.Addr), uint16(four.Port)) == peer {
			return fd
		}
	}
	t.Fatalf("no socket is connected to %v", peer)
	return -1
}
