package sealed

import (
	"context"
	"math"
	"sync/atomic"
	"time"
)

// deadline wakes a loop at the time that is set, or earlier.
type deadline struct {
	wake chan struct{}
	at   atomic.Int64
}

func newDeadline() *deadline { return &deadline{wake: make(chan struct{}, 1)} }

// set has the loop wake at that time at the latest.
func (a *deadline) set(at time.Duration) {
	if int64(at) >= a.at.Load() {
		return
	}
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// run calls due, which returns when it is to be called again, until the context ends.
func (a *deadline) run(ctx context.Context, p *Plane, due func(now time.Duration) time.Duration) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-a.wake:
		}
		a.at.Store(math.MaxInt64) // what is set meanwhile may be earlier
		now := p.now()
		next := due(now)
		a.at.Store(int64(next))
		timer.Reset(next - now)
	}
}
