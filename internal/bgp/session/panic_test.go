package session

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/kernel/contain"
)

// TestPanicCostsTheSession: wherever the code of a session panics, that session is closed with
// Cease and returns after a pause that grows, while another one goes on.
func TestPanicCostsTheSession(t *testing.T) {
	none := []byte(nil)
	refresh := raw(message.TypeRouteRefresh, 0, 2, 0, 1)
	for name, c := range map[string]struct {
		arm   func(h *Handler, armed *atomic.Bool)
		open  bool   // it panics before the session is up
		send  []byte // what makes it panic
		calls string
	}{
		"update": {arm: func(h *Handler, armed *atomic.Bool) {
			next := h.Update
			h.Update = func(body []byte) error { fault(armed); return next(body) }
		}, send: emptyUpdate(), calls: "down: BUG: runtime error: index out of range [3] with length 0"},
		"refresh": {arm: func(h *Handler, armed *atomic.Bool) {
			next := h.Refresh
			h.Refresh = func(r message.Refresh) error { fault(armed); return next(r) }
		}, send: refresh, calls: "down: BUG"},
		"fill": {arm: func(h *Handler, armed *atomic.Bool) {
			next := h.Fill
			h.Fill = func(b []byte) []byte { fault(armed); return next(b) }
		}, send: none, calls: "down: BUG"},
		"up": {arm: func(h *Handler, armed *atomic.Bool) {
			next := h.Up
			h.Up = func(e Established) { fault(armed); next(e) }
		}, open: true, calls: "down: BUG"},
		"message": {arm: func(_ *Handler, armed *atomic.Bool) {
			t.Cleanup(contain.Inject(func(b contain.Boundary, body []byte) {
				if b == contain.BGPSession && len(body) > 20 { // the OPEN
					fault(armed)
				}
			}))
		}, open: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var logged strings.Builder
				conf := config(1, 2)
				conf.Passive, conf.RouteRefresh = true, true
				conf.Log = slog.New(slog.NewTextHandler(&logged, nil))
				b, other := newBench(t, conf), newBench(t, config(1, 2))
				defer other.stop()
				stopped := false
				defer func() {
					if !stopped {
						b.stop()
					}
				}()
				b.their.RouteRefresh = true
				there := other.establish(<-other.dials)
				var armed atomic.Bool
				c.arm(&b.Session.handler, &armed)
				before := contain.Counts()[contain.BGPSession]
				for round := range 2 {
					w := b.connect()
					if c.open {
						armed.Store(true)
						w.expect("OPEN")
						w.write(openOf(b.their, nil), keepalive)
					} else {
						b.establish(w)
						armed.Store(true)
						if c.send != nil {
							w.write(c.send)
						} else {
							b.Wake()
						}
					}
					w.expect("NOTIFICATION 6/0")
					if c.calls != "" {
						b.waitCalls(c.calls)
					}
					synctest.Wait()
					if got := contain.Counts()[contain.BGPSession] - before; got != uint64(round+1) {
						t.Fatalf("%d panics counted, want %d", got, round+1)
					}
					if s := b.Status(); s.State != StateActive || !strings.Contains(s.Down, "BUG: runtime error: index out of range [3] with length 0; closed for "+[]string{"10s", "20s"}[round]) {
						t.Errorf("state %s, reason %q", s.State, s.Down)
					}
					if round == 0 {
						there.write(emptyUpdate())
						if log := other.waitCalls("update"); strings.Contains(log, "down") {
							t.Errorf("the other session: %s", log)
						}
					}
					refused := b.connect()
					refused.expect("NOTIFICATION 6/5")
					time.Sleep([]time.Duration{10 * time.Second, 20 * time.Second}[round])
				}
				b.establish(b.connect())
				b.stop()
				stopped = true
				if n := strings.Count(logged.String(), "panic contained"); n > 1 || c.send != nil && n == 1 && !strings.Contains(logged.String(), "message=ffffffff") {
					t.Errorf("%d panics logged in half a minute: %s", n, logged.String())
				}
			})
		})
	}
}

// fault panics if it is armed, once.
func fault(armed *atomic.Bool) {
	if armed.CompareAndSwap(true, false) {
		var none []int
		none[3]++
	}
}

// TestActiveSessionBacksOff: after a panic, the session does not connect before the pause is over,
// even if its link comes up.
func TestActiveSessionBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, config(1, 2))
		defer b.stop()
		var armed atomic.Bool
		next := b.Session.handler.Update
		b.Session.handler.Update = func(body []byte) error { fault(&armed); return next(body) }
		w := b.establish(<-b.dials)
		armed.Store(true)
		w.write(emptyUpdate())
		w.expect("NOTIFICATION 6/0")
		began := time.Now()
		b.Connect()
		b.establish(<-b.dials)
		if after := time.Since(began); after != 10*time.Second {
			t.Errorf("connected after %s", after)
		}
	})
}
