package relay

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/proxy/header"
)

// patience bounds how long a test waits for what it expects.
const patience = 10 * time.Second

// stub is a router that gives each connection the same plan.
type stub struct {
	plan    Plan
	queries chan Query
	tried   func(Outcome)
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

func (s *stub) Closed(Target) {}

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
