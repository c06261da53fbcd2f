package session

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
)

// TestNeighborThatReconnects: a neighbor that opens the next connection whenever one ends gets few
// sessions, and few lines in the log, however a session ends.
func TestNeighborThatReconnects(t *testing.T) {
	const minutes = 10
	badAS := config(2, 1)
	badAS.LocalASN = 64999
	for name, c := range map[string]struct {
		most  int // sessions or, if none is established, connections whose OPEN is answered
		flap  func(b *bench, w *wire)
		words string // in the log
	}{
		"OPEN refused":         {minutes * 60 * 2, func(b *bench, w *wire) { w.write(openOf(badAS, nil)) }, "session does not open"},
		"NOTIFICATION in OPEN": {minutes * 60 * 2, func(b *bench, w *wire) { w.write(openOf(b.their, nil), cease(message.SubcodeRejected).Append(nil)) }, "session does not open"},
		"closed before OPEN":   {minutes * 60 * 2, func(*bench, *wire) {}, "session does not open"},
		"NOTIFICATION when up": {40, func(b *bench, w *wire) {
			w.write(openOf(b.their, nil), keepalive, message.Notification{Code: message.CodeUpdate, Subcode: 3}.Append(nil))
		}, "session flaps"},
		"bad UPDATE": {40, func(b *bench, w *wire) {
			w.write(openOf(b.their, nil), keepalive, make([]byte, message.HeaderLen))
		}, "session flaps"},
		"administrative reset": {minutes*60 + 2, func(b *bench, w *wire) {
			w.write(openOf(b.their, nil), keepalive, cease(message.SubcodeReset).Append(nil))
		}, "session flaps"},
		"max-prefix": {40, func(b *bench, w *wire) {
			w.write(openOf(b.their, nil), keepalive, cease(message.SubcodeMaxPrefixes).Append(nil))
		}, "session flaps"},
		"TCP reset": {minutes*60 + 2, func(b *bench, w *wire) { w.write(openOf(b.their, nil), keepalive) }, "session flaps"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				conf := config(1, 2)
				conf.Passive, conf.ConnectRetry, conf.Log = true, time.Second, slog.New(slog.NewTextHandler(&log, nil))
				b := newBench(t, conf)
				answered := 0
				for began := time.Now(); time.Since(began) < minutes*time.Minute; {
					w := b.connect()
					switch first := w.read(); first {
					case "OPEN":
						answered++
						c.flap(b, w)
						synctest.Wait()
					case "NOTIFICATION 6/5":
					default:
						t.Fatalf("answer %q", first)
					}
					_ = w.Close()
					time.Sleep(50 * time.Millisecond) // as long as a neighbor needs to connect
				}
				b.stop()
				synctest.Wait()
				if answered > c.most || answered < 10 {
					t.Errorf("%d connections answered, want at most %d", answered, c.most)
				}
				lines := strings.Count(log.String(), "\n")
				if lines > minutes+6 || lines < minutes/2 || !strings.Contains(log.String(), c.words) {
					t.Errorf("%d lines:\n%s", lines, log.String())
				}
			})
		})
	}
}

// TestHeldConnectionIsServed: a connection that arrives while a session is held down waits, and is
// served then, without another attempt of the neighbor.
func TestHeldConnectionIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := config(1, 2)
		conf.Passive, conf.ConnectRetry = true, time.Second
		b := newBench(t, conf)
		defer b.stop()
		for range 2 {
			_ = b.establish(b.connect()).Close()
			b.waitCalls("down")
		}
		began := time.Now()
		b.establish(b.connect())
		if got := time.Since(began); got != leastHold {
			t.Errorf("served after %s, want %s", got, leastHold)
		}
	})
}

// TestStableAfterFlaps: once a session that flapped stays up, that is logged, and the next end of
// it is no flap.
func TestStableAfterFlaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		conf := config(1, 2)
		conf.Passive, conf.ConnectRetry, conf.HoldTime, conf.Log = true, time.Second, 0, slog.New(slog.NewTextHandler(&log, nil))
		b := newBench(t, conf)
		b.their.HoldTime = 0
		for range 5 {
			_ = b.establish(b.connect()).Close()
			b.waitCalls("down")
		}
		w := b.establish(b.connect())
		time.Sleep(stableAfter + time.Second)
		_ = w.Close()
		b.waitCalls("down")
		began := time.Now()
		b.establish(b.connect())
		if got := time.Since(began); got != 0 {
			t.Errorf("held down for %s", got)
		}
		b.stop()
		var got []string
		for line := range strings.Lines(log.String()) {
			_, text, _ := strings.Cut(line, "msg=")
			got = append(got, strings.TrimSpace(text))
		}
		want := fmt.Sprint([]string{
			`"bgp session up"`, `"bgp session down" reason="connection lost"`, `"bgp session up"`,
			`"bgp session flaps" reason="connection lost" flaps=1 "in a row"=2`,
			`"bgp session up" "flaps before"=5`, `"bgp session down" reason="connection lost"`,
			`"bgp session up"`, `"bgp session down" reason="end of the test"`,
		})
		if fmt.Sprint(got) != want {
			t.Errorf("log:\n%s\nwant:\n%s", strings.Join(got, "\n"), want)
		}
	})
}

// TestOperatorEndsDamping: a reset by the operator connects at once, or serves the connection that
// waits, although the session is held down.
func TestOperatorEndsDamping(t *testing.T) {
	for _, passive := range []bool{false, true} {
		t.Run(fmt.Sprintf("passive=%t", passive), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conf := config(1, 2)
				conf.Passive = passive
				b := newBench(t, conf)
				defer b.stop()
				next := func() *wire {
					if passive {
						return b.connect()
					}
					return <-b.dials
				}
				for range 3 {
					_ = b.establish(next()).Close()
					b.waitCalls("down")
				}
				var waiting *wire
				if passive {
					waiting = b.connect()
				}
				synctest.Wait()
				if !b.Status().HeldUntil.After(time.Now()) {
					t.Fatal("not held down")
				}
				began := time.Now()
				b.Reset(cease(message.SubcodeReset), "reset")
				if !passive {
					waiting = next()
				}
				b.establish(waiting)
				if got := time.Since(began); got != 0 {
					t.Errorf("established after %s", got)
				}
			})
		})
	}
}

// TestLinkUpAndDamping: a link that comes up ends the time that a session is held down for lost
// connections, but not for errors.
func TestLinkUpAndDamping(t *testing.T) {
	for name, c := range map[string]struct {
		last []byte // message of each session
		want time.Duration
	}{
		"lost connections": {nil, 0},
		"errors":           {message.Notification{Code: message.CodeUpdate, Subcode: 3}.Append(nil), 2 * leastHold},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, config(1, 2))
				defer b.stop()
				for range 3 {
					w := b.establish(<-b.dials)
					if c.last != nil {
						w.write(c.last)
					}
					_ = w.Close()
					b.waitCalls("down")
				}
				synctest.Wait()
				began := time.Now()
				b.Connect()
				b.establish(<-b.dials)
				if got := time.Since(began); got != c.want {
					t.Errorf("established after %s, want %s", got, c.want)
				}
			})
		})
	}
}
