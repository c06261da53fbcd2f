package session

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
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
	up      func()
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
		Up: func(e Established) {
			r.add("up %s hold %s", e.Families, e.HoldTime)
			if r.up != nil {
				r.up()
			}
		},
		Update: func(b []byte) error {
			r.add("update %d", len(b))
			if r.update != nil {
				return r.update(b)
			}
			return nil
		},
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
func newNode(t testing.TB, conf Config, dial func(ctx context.Context, n *node) (net.Conn, error)) *node {
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

// TestHoldTimer: the session ends when nothing was received for the hold time, whatever its handler
// does; any byte restarts the timer.
func TestHoldTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, config(1, 2))
		defer b.stop()
		w := b.establish(<-b.dials)
		big := raw(message.TypeUpdate, make([]byte, 100)...)
		for _, octet := range big[:20] { // slowly
			time.Sleep(8 * time.Second)
			w.write([]byte{octet})
		}
		began := time.Now()
		w.expect("NOTIFICATION 4/0", "EOF")
		if got := time.Since(began).Round(time.Second); got != 9*time.Second {
			t.Errorf("hold timer expired after %s", got)
		}
		if calls := b.waitCalls("down"); calls != "down: hold timer expired" {
			t.Errorf("calls: %s", calls)
		}
	})
}

// TestBusyHandler: while the handler does not return, KEEPALIVEs are sent, the hold timer does not
// expire, and the neighbor's messages are not lost.
func TestBusyHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, config(1, 2))
		defer b.stop()
		release := make(chan struct{})
		b.recorder.up = func() { time.Sleep(time.Minute) }
		b.update = func([]byte) error { <-release; return nil }
		w := b.establish(<-b.dials)
		w.write(emptyUpdate())
		for range 30 {
			before := time.Now()
			w.expect("KEEPALIVE")
			if got := time.Since(before); got > 3*time.Second {
				t.Fatalf("no KEEPALIVE for %s", got)
			}
			w.write(keepalive)
		}
		w.write(emptyUpdate(), emptyUpdate())
		close(release)
		synctest.Wait()
		if calls := b.log(); calls != "update 4; update 4; update 4" {
			t.Errorf("calls: %s", calls)
		}
		if !b.Status().Up() {
			t.Errorf("status: %+v", b.Status())
		}
	})
}

// late is a connection whose deadline expires once although there are bytes to read, as after this
// process was stopped for longer than the hold time.
type late struct {
	net.Conn
	reads int
}

func (l *late) Read(b []byte) (int, error) {
	if l.reads++; l.reads == 5 {
		time.Sleep(1500 * time.Millisecond)
		return 0, os.ErrDeadlineExceeded
	}
	return l.Conn.Read(b)
}

// TestStoppedProcess: the hold timer does not expire while there are bytes of the neighbor to read.
func TestStoppedProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := config(1, 2)
		conf.Passive = true
		b := newBench(t, conf)
		defer b.stop()
		near, far := pipe(1 << 16)
		conn := &late{Conn: near}
		b.offer(conn)
		w := b.establish(&wire{t, far})
		for range 5 {
			time.Sleep(time.Second)
			w.write(keepalive)
		}
		synctest.Wait()
		if s := b.Status(); !s.Up() || conn.reads < 6 {
			t.Errorf("after %d reads: %+v", conn.reads, s)
		}
	})
}

// TestSendHoldTimer: a neighbor that sends KEEPALIVEs but accepts nothing is disconnected.
func TestSendHoldTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := config(1, 2)
		conf.SendHoldTime = 20 * time.Second
		b := newBench(t, conf)
		defer b.stop()
		b.out = bytes.Repeat(emptyUpdate(), 10000) // beyond the send buffer
		w := b.establish(<-b.dials)
		began := time.Now()
		var writer sync.WaitGroup
		writer.Go(func() {
			for {
				time.Sleep(time.Second)
				if _, err := w.Write(keepalive); err != nil {
					return
				}
			}
		})
		if calls := b.waitCalls("down"); calls != "down: send hold timer expired" {
			t.Errorf("calls: %s", calls)
		}
		if got := time.Since(began).Round(time.Second); got < 20*time.Second || got > 40*time.Second {
			t.Errorf("send hold timer expired after %s", got)
		}
		_ = w.Close()
		writer.Wait()
	})
}

// TestSlowReader: the send hold timer does not expire while the neighbor accepts data.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := config(1, 2)
		conf.SendHoldTime = 20 * time.Second
		b := newBench(t, conf)
		defer b.stop()
		const messages = 5000
		b.out = bytes.Repeat(emptyUpdate(), messages)
		w := b.establish(<-b.dials)
		for updates := 0; updates < messages; {
			for range 500 {
				if w.read() == "UPDATE" {
					updates++
				}
			}
			time.Sleep(8 * time.Second)
			w.write(keepalive)
		}
		if s := b.Status(); !s.Up() || s.MessagesSent[message.TypeUpdate] != messages {
			t.Errorf("status: %+v", s)
		}
	})
}

// TestCollision: of two connections, both ends keep that of the router with the higher router ID,
// in whichever order the messages arrive.
func TestCollision(t *testing.T) {
	collision := "NOTIFICATION 6/7"
	for name, c := range map[string]struct {
		id  byte // of the session; the neighbor's is 2
		run func(b *bench, out, in *wire, open []byte)
	}{
		"higher, open on ours first": {9, func(_ *bench, out, in *wire, open []byte) {
			out.write(open)
			in.expect(collision, "EOF")
			out.write(keepalive)
		}},
		"lower, open on theirs first": {1, func(_ *bench, out, in *wire, open []byte) {
			in.write(open)
			out.expect(collision, "EOF")
			in.write(keepalive)
		}},
		"higher, open on theirs first": {9, func(_ *bench, out, in *wire, open []byte) {
			in.write(open)
			out.write(open)
			in.expect(collision, "EOF")
			out.write(keepalive)
		}},
		"lower, open on ours first": {1, func(_ *bench, out, in *wire, open []byte) {
			out.write(open)
			in.write(open)
			out.expect(collision, "EOF")
			in.write(keepalive)
		}},
		"higher, ours is not answered": {9, func(_ *bench, out, in *wire, open []byte) {
			in.write(open)
			out.expect(collision, "EOF")
			in.write(keepalive)
		}},
		"lower, theirs is not used": {1, func(_ *bench, out, in *wire, open []byte) {
			out.write(open)
			in.expect(collision, "EOF")
			out.write(keepalive)
		}},
		"higher, ours is closed":  {9, func(_ *bench, out, in *wire, open []byte) { in.write(open); _ = out.Close(); in.write(keepalive) }},
		"lower, theirs is closed": {1, func(_ *bench, out, in *wire, open []byte) { out.write(open); _ = in.Close(); out.write(keepalive) }},
		"the neighbor closes ours by collision": {9, func(_ *bench, out, in *wire, open []byte) {
			in.write(open)
			out.write(message.Notification{Code: 6, Subcode: 7}.Append(nil))
			in.write(keepalive)
		}},
		"established before the other open": {9, func(_ *bench, out, in *wire, open []byte) {
			out.write(open, keepalive)
			in.expect(collision, "EOF")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conf := config(1, 2)
				conf.RouterID = netip.AddrFrom4([4]byte{10, 0, 0, c.id})
				b := newBench(t, conf)
				defer b.stop()
				out, in := <-b.dials, b.connect()
				out.expect("OPEN")
				in.expect("OPEN")
				began := time.Now()
				c.run(b, out, in, openOf(b.their, nil))
				b.waitCalls("up")
				if waited := time.Since(began); waited > collisionTimeout {
					t.Errorf("established after %s", waited)
				}
				if s := b.Status(); !s.Up() || s.Flaps > 0 {
					t.Errorf("status: %+v", s)
				}
			})
		})
	}
}

// TestNeighborRestarts: a neighbor that connects again while the session is up, because it has lost
// its state, gets a new session at once; otherwise its connection is refused.
func TestNeighborRestarts(t *testing.T) {
	for name, restarted := range map[string]bool{"restarted": true, "alive": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conf := config(1, 2)
				conf.Passive = true
				b := newBench(t, conf)
				defer b.stop()
				old := b.establish(b.connect())
				first := b.connect()
				synctest.Wait()
				again := b.connect()
				first.expect("NOTIFICATION 6/7", "EOF")
				old.expect("KEEPALIVE")
				if !restarted {
					again.expect("NOTIFICATION 6/7", "EOF")
					if s := b.Status(); !s.Up() || s.Flaps > 0 {
						t.Errorf("status: %+v", s)
					}
					return
				}
				began := time.Now()
				_ = old.Close() // as a RST that answers the KEEPALIVE
				b.establish(again)
				if time.Since(began) > 0 {
					t.Errorf("established after %s", time.Since(began))
				}
			})
		})
	}
}

// TestLinkUpWhileNeighborRestarts: another link that comes up does not refuse the connection of a
// neighbor that may have restarted.
func TestLinkUpWhileNeighborRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := config(1, 2)
		conf.Passive = true
		b := newBench(t, conf)
		defer b.stop()
		old := b.establish(b.connect())
		again := b.connect()
		synctest.Wait()
		b.Connect()
		synctest.Wait()
		_ = old.Close()
		b.establish(again)
	})
}

// TestRedial: the times of the attempts to connect.
func TestRedial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var begun []time.Duration
		start := time.Now()
		n := newNode(t, config(1, 2), func(context.Context, *node) (net.Conn, error) {
			begun = append(begun, time.Since(start))
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		})
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Second)
		n.Connect()
		synctest.Wait()
		at := time.Since(start)
		before := len(begun)
		if begun[0] != 0 || begun[before-1] != at {
			t.Errorf("attempts at %v; the first must be at once, the last at %s", begun, at)
		}
		// After Connect there are more attempts for a while.
		time.Sleep(eagerTime + 7*time.Second)
		n.Stop(message.Notification{}, "stopped")
		if more := begun[before:]; len(more) < int(eagerTime/eagerPause) || len(more) > int(eagerTime/eagerPause)+1 || more[0]-at != eagerPause {
			t.Errorf("after Connect at %s: attempts at %v", at, more)
		}
		begun = begun[:before]
		for i := 1; i < len(begun)-1; i++ {
			if d := begun[i] - begun[i-1]; d < 6*time.Second || d > 8*time.Second {
				t.Errorf("%s between attempts, want 6 to 8 s", d)
			}
		}
		if len(begun) < 13 {
			t.Errorf("%d attempts in 100 s", len(begun))
		}
	})
}

// TestSilentNeighborIsRedialed: after Enable, as after Connect, an attempt without an answer is
// soon replaced by another one, and the neighbor is resolved again before that.
func TestSilentNeighborIsRedialed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var begun, unreached []time.Duration
		start := time.Now()
		conf := config(1, 2)
		conf.Unreached = func(remote netip.Addr) {
			if remote != conf.Remote.Addr() {
				t.Errorf("unreached %s", remote)
			}
			unreached = append(unreached, time.Since(start))
		}
		n := newNode(t, conf, func(ctx context.Context, _ *node) (net.Conn, error) {
			begun = append(begun, time.Since(start))
			<-ctx.Done()
			return nil, ctx.Err()
		})
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
		n.Disable(message.Notification{}, "link down")
		synctest.Wait()
		begun, start = nil, time.Now()
		n.Enable()
		synctest.Wait()
		n.Connect() // of the same link; the attempt is as good as another one
		time.Sleep(time.Second)
		n.Stop(message.Notification{}, "stopped")
		ms := time.Millisecond
		if want := []time.Duration{0, 175 * ms, 350 * ms, 650 * ms}; !slices.Equal(begun, want) {
			t.Errorf("attempts at %v, want %v", begun, want)
		}
		if want := []time.Duration{125 * ms, 300 * ms, 600 * ms}; !slices.Equal(unreached[:min(3, len(unreached))], want) {
			t.Errorf("unreached at %v, want %v", unreached, want)
		}
	})
}

// TestRefusalAfterEnable: the neighbor's end of the link is not up yet, so it refuses the session.
// The next attempt follows soon, but not for longer than after a link has come up.
func TestRefusalAfterEnable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, config(1, 2))
		defer b.stop()
		refuse := func() (waited time.Duration) {
			began := time.Now()
			w := <-b.dials
			waited = time.Since(began)
			w.expect("OPEN")
			n := cease(message.SubcodeRejected)
			w.write(n.Append(nil))
			_ = w.Close()
			return waited
		}
		refuse()
		if waited := refuse(); waited < b.conf.ConnectRetry/2 {
			t.Errorf("without a link that came up, the next attempt after %s", waited)
		}
		synctest.Wait()
		b.Enable()
		if first, second := refuse(), refuse(); first != 0 || second != eagerPause {
			t.Errorf("attempts after %s and %s", first, second)
		}
	})
}

// TestFlapsAreDamped: after a session that lasted the next one is dialed at once; after sessions
// that did not, later and later.
func TestFlapsAreDamped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, config(1, 2))
		defer b.stop()
		lost := func() time.Duration {
			began := time.Now()
			w := <-b.dials
			b.establish(w)
			waited := time.Since(began)
			_ = w.Close()
			b.waitCalls("down")
			return waited
		}
		var waits []time.Duration
		for range 7 {
			waits = append(waits, lost())
		}
		want := []time.Duration{0, 0, 1 * time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 8 * time.Second}
		if !slices.Equal(waits, want) {
			t.Errorf("waited %v, want %v", waits, want)
		}
		w := b.establish(<-b.dials)
		for range 5 {
			time.Sleep(3 * time.Second)
			w.write(keepalive)
		}
		_ = w.Close()
		b.waitCalls("down")
		if got := lost(); got != 0 {
			t.Errorf("after a session that lasted: waited %s", got)
		}
		if s := b.Status(); s.Flaps != 9 {
			t.Errorf("%d flaps", s.Flaps)
		}
		// A reset by the operator is no flap.
		b.establish(<-b.dials)
		for range 20 {
			began := time.Now()
			b.Reset(message.Shutdown(message.SubcodeReset, ""), "reset")
			b.waitCalls("down: reset")
			b.establish(<-b.dials)
			if got := time.Since(began); got > 0 {
				t.Fatalf("after a reset: waited %s", got)
			}
		}
	})
}

// TestDisable: a disabled session refuses connections and does not dial.
func TestDisable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, config(1, 2))
		defer b.stop()
		w := b.establish(<-b.dials)
		b.Disable(message.Shutdown(message.SubcodeShutdown, "upgrade"), "disabled")
		b.Disable(message.Shutdown(message.SubcodeShutdown, "upgrade"), "disabled")
		w.expect("NOTIFICATION 6/2", "EOF")
		if calls := b.waitCalls("down"); calls != "down: disabled" {
			t.Errorf("calls: %s", calls)
		}
		b.connect().expect("NOTIFICATION 6/5", "EOF")
		b.Reset(message.Notification{}, "")
		b.Connect()
		time.Sleep(time.Minute)
		if s := b.Status(); s.State != StateIdle || s.Down != "disabled" || len(b.dials) > 0 {
			t.Errorf("status %+v, %d attempts", s, len(b.dials))
		}
		b.Enable()
		b.establish(<-b.dials)
	})
}

// TestExchange: messages of both directions in an established session.
func TestExchange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := config(1, 2)
		conf.ExtendedMessage, conf.RouteRefresh = true, true
		b := newBench(t, conf)
		defer b.stop()
		b.their.ExtendedMessage, b.their.RouteRefresh = true, true
		b.out = emptyUpdate()
		w := b.establish(<-b.dials)
		w.expect("UPDATE")
		b.SendRefresh(message.Refresh{Family: message.IPv6Unicast})
		w.expect("ROUTE-REFRESH")
		w.write(message.Refresh{Family: message.VPNv6}.Append(nil), message.Refresh{Family: message.VPNv4}.Append(nil),
			raw(message.TypeUpdate, make([]byte, message.MaxExtended-message.HeaderLen)...), emptyUpdate())
		synctest.Wait()
		if calls := b.log(); calls != "refresh vpnv6; update 65516; update 4" {
			t.Errorf("calls: %s", calls)
		}
		b.recorder.mu.Lock()
		b.out = bytes.Repeat(emptyUpdate(), 3)
		b.recorder.mu.Unlock()
		b.Wake()
		w.expect("UPDATE", "UPDATE", "UPDATE")
		s := b.Status()
		if s.MessagesSent[message.TypeUpdate] != 4 || s.MessagesReceived[message.TypeUpdate] != 2 || s.MessagesReceived[message.TypeRouteRefresh] != 2 {
			t.Errorf("messages sent %v, received %v", s.MessagesSent, s.MessagesReceived)
		}
	})
}

// TestHoldTimeZero: without hold timer no KEEPALIVE is sent or needed.
func TestHoldTimeZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, config(1, 2))
		defer b.stop()
		b.their.HoldTime = 0
		b.establish(<-b.dials)
		time.Sleep(24 * time.Hour)
		if s := b.Status(); !s.Up() || s.MessagesSent[message.TypeKeepalive] != 1 {
			t.Errorf("status: %+v", s)
		}
	})
}

// TestHandlerResets: functions of the handler may reset and disable the session.
func TestHandlerResets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, config(1, 2))
		defer b.stop()
		b.update = func([]byte) error { b.Disable(cease(message.SubcodeMaxPrefixes), "too many"); return nil }
		w := b.establish(<-b.dials)
		w.write(bytes.Repeat(emptyUpdate(), 100))
		w.expect("NOTIFICATION 6/1", "EOF")
		b.waitCalls("down: too many")
	})
}

func TestConfig(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no remote":               func(c *Config) { c.Remote = netip.AddrPort{} },
		"no port":                 func(c *Config) { c.Remote = netip.AddrPortFrom(address(2), 0) },
		"mapped":                  func(c *Config) { c.Remote = netip.MustParseAddrPort("[::ffff:1.2.3.4]:179") },
		"no zone":                 func(c *Config) { c.Remote = netip.MustParseAddrPort("[fe80::1]:179") },
		"zone":                    func(c *Config) { c.Remote = netip.MustParseAddrPort("[fd00::1%lo]:179") },
		"local of another family": func(c *Config) { c.Local = netip.MustParseAddr("192.0.2.1") },
		"as":                      func(c *Config) { c.RemoteASN = 0 },
		"router id":               func(c *Config) { c.RouterID = address(1) },
		"families":                func(c *Config) { c.Families = 0 },
		"hold time":               func(c *Config) { c.HoldTime = 2 * time.Second },
		"odd hold time":           func(c *Config) { c.HoldTime = 3500 * time.Millisecond },
		"retry":                   func(c *Config) { c.ConnectRetry = 0 },
		"password":                func(c *Config) { c.Password = strings.Repeat("x", 81) },
		"log":                     func(c *Config) { c.Log = nil },
		"multihop, internal":      func(c *Config) { c.RemoteASN, c.Multihop = c.LocalASN, 2 },
	} {
		c := config(1, 2)
		if _, err := New(c, Handler{}); err != nil {
			t.Fatal(err)
		}
		change(&c)
		if _, err := New(c, Handler{}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
