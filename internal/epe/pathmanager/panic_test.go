package pathmanager

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/mptcp"
)

// TestPanicOfEvent: after an event that panics, all connections are read again, and managed.
func TestPanicOfEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLooped(t)
		l.route(0, RoutePresent)
		l.kernel.connect(1, defaultAt, clientAt)
		l.kernel.mu.Lock()
		l.kernel.fakeKernel.events = nil // it panics in place of this event
		l.kernel.mu.Unlock()
		var armed atomic.Bool
		armed.Store(true)
		stop := contain.Inject(func(b contain.Boundary, _ []byte) {
			if b == contain.PathManager && armed.CompareAndSwap(true, false) {
				panic("BUG: injected")
			}
		})
		defer stop()
		l.events.list <- []mptcp.Event{mptcp.Closed{Token: 99}}
		synctest.Wait()
		// The panic may be that of the loop or of the goroutine that reads events.
		for range 5 {
			time.Sleep(faultPause)
			l.work()
		}
		check(t, l.kernel.on(1), "2001:db8:1::10", "2001:db8:1::a")
		l.end()
	})
}
