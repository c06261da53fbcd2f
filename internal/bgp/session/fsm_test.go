package session

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
)

// recorder is a handler that records its calls.
type recorder struct {
	mu      sync.Mutex
	calls   []string
	out     []byte // for the next call of Fill
	update  func([]byte) error
	changed chan struct{}
}

func (r *recorder) add(format string, args ...any) {
	r.mu.Lock()
	r.calls = append(r.calls, fmt.Sprintf(format, args...))
	r.mu.Unlock()
	signal(r.changed)
}

// log returns the calls since the last call of log.
func (r *recorder) log() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := strings.Join(r.calls, "; ")
	r.calls = nil
	return calls
}

func (r *recorder) handler() Handler {
	r.changed = make(chan struct{}, 1)
	return Handler{
		Up: func(e Established) { r.add("up %s hold %s", e.Families, e.HoldTime) },
		Update: func(b []byte) error {
			r.add("update %d", len(b))
			if r.update != nil {
				return r.update(b)
			}
			return nil
		},
		Flush:   func() error { r.add("flush"); return nil },
		Refresh: func(m message.Refresh) error { r.add("refresh %s", m.Family); return nil },
		Fill: func(b []byte) []byte {
			r.mu.Lock()
			defer r.mu.Unlock()
			b = append(b, r.out...)
			r.out = nil
			return b
		},
		Down: func(reason Reason) { r.add("down: %s", reason.Text) },
	}
}

func address(n int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("fd00::%x", n)) }

// config returns the configuration of router a for a session with router b.
func config(a, b int) Config {
	c := Config{
		Remote: netip.AddrPortFrom(address(b), 179), Local: address(a), LocalASN: uint32(65000 + a), RemoteASN: uint32(65000 + b),
		RouterID: netip.AddrFrom4([4]byte{10, 0, 0, byte(a)}), HoldTime: 9 * time.Second, ConnectRetry: 8 * time.Second,
		Log: slog.New(slog.DiscardHandler),
	}
	c.Families = message.Families(message.IPv6Unicast, message.VPNv6)
	return c
}

// node is a session in memory.
type node struct {
	*Session
	recorder
	dials int
}

// newNode returns a session that has not been started; dial connects it.
func newNode(t *testing.T, conf Config, dial func(ctx context.Context, n *node) (net.Conn, error)) *node {
	t.Helper()
	n := &node{}
	s, err := New(conf, n.recorder.handler())
	if err != nil {
		t.Fatal(err)
	}
	n.Session = s
	s.dial = func(ctx context.Context) (net.Conn, error) { n.dials++; return dial(ctx, n) }
	return n
}

// connected returns two sessions that dial each other.
func connected(t *testing.T, a, b Config) (x, y *node) {
	to := func(other **node) func(context.Context, *node) (net.Conn, error) {
		return func(context.Context, *node) (net.Conn, error) {
			near, far := pipe(1 << 16)
			(*other).offer(far)
			return near, nil
		}
	}
	x, y = newNode(t, a, to(&y)), newNode(t, b, to(&x))
	return x, y
}

func TestEstablish(t *testing.T) {
	for name, change := range map[string]func(a, b *Config){
		"active and passive": func(_, b *Config) { b.Passive = true },
		"passive and active": func(a, _ *Config) { a.Passive = true },
		"both dial":          func(_, _ *Config) {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := config(1, 2), config(2, 1)
				change(&a, &b)
				b.HoldTime = 30 * time.Second
				x, y := connected(t, a, b)
				if err := x.Start(); err != nil {
					t.Fatal(err)
				}
				if err := y.Start(); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				for _, n := range []*node{x, y} {
					if got := n.log(); got != "up ipv6-unicast,vpnv6 hold 9s" {
						t.Errorf("calls: %s", got)
					}
					if s := n.Status(); !s.Up() || s.Down != "" || s.Flaps != 0 {
						t.Errorf("status: %+v", s)
					}
				}
				time.Sleep(time.Minute)
				x.Stop(message.Shutdown(message.SubcodeShutdown, "maintenance"), "stopped")
				synctest.Wait()
				if got := x.log(); got != "down: stopped" {
					t.Errorf("calls after Stop: %s", got)
				}
				const want = `NOTIFICATION received: Cease/Administrative Shutdown (6/2): "maintenance"`
				if got := y.log(); got != "down: "+want {
					t.Errorf("calls after Stop of the neighbor: %s", got)
				}
				y.Stop(message.Notification{}, "stopped")
			})
		})
	}
}
