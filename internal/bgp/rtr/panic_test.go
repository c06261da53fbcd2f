package rtr

import (
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/tabane/tabane/internal/bgp/policy"
	"github.com/tabane/tabane/internal/kernel/contain"
)

// TestPanicCostsTheConnection: an answer that panics ends the connection to its cache, which is
// asked for everything after the retry interval; the data of before is used meanwhile, and so are
// other caches.
func TestPanicCostsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := play(t, single())
		defer w.stop()
		c := w.cache(0)
		c.full(1, one)
		w.want(one)
		before := contain.Counts()[contain.RPKI]
		var armed atomic.Bool
		armed.Store(true)
		defer contain.Inject(func(b contain.Boundary, _ []byte) {
			if b == contain.RPKI && armed.CompareAndSwap(true, false) {
				panic("BUG: injected")
			}
		})()
		c.conn.Close() // the next connection panics
		c = w.cache(0)
		if typ, _, _ := c.query(); typ != typeResetQuery {
			t.Errorf("query of type %d, want one for everything", typ)
		}
		if armed.Load() || contain.Counts()[contain.RPKI] != before+1 {
			t.Errorf("%d panics", contain.Counts()[contain.RPKI]-before)
		}
		w.unchanged()
		c.response()
		c.prefix(one, 1)
		c.prefix(two, 1)
		c.end(2)
		w.want(one, two)
	})
}

// TestPanicOfCallback: data that the daemon panics with costs no other data.
func TestPanicOfCallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := play(t, single())
		defer w.stop()
		next := w.options.Changed
		w.options.Changed = func(v *policy.VRPs) {
			if v.Len() == 1 {
				panic("BUG: injected")
			}
			next(v)
		}
		c := w.cache(0)
		c.full(1, one)
		w.unchanged()
		c.conn.Close()
		c = w.cache(0)
		c.query()
		c.response()
		c.prefix(two, 1)
		c.end(2)
		w.want(one, two)
	})
}
