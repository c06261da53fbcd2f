package labrun

import (
	"context"
	"sync"
	"time"
)

// runClock estimates when a run started from its samples: each is reported when its interval is
// over, or later.
type runClock struct {
	mu    sync.Mutex
	start time.Time
	// started is closed with the first sample.
	started chan struct{}
}

func newRunClock() *runClock { return &runClock{started: make(chan struct{})} }

// observe takes a sample that was reported at now and whose interval ended at the run's time end.
// The earliest start that follows from any sample is kept.
func (c *runClock) observe(now time.Time, end time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	begun := now.Add(-end)
	if c.start.IsZero() {
		close(c.started)
	} else if !begun.Before(c.start) {
		return
	}
	c.start = begun
}

// began is the estimated start of the run; it is zero before the first sample.
func (c *runClock) began() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.start
}

// until waits for a time of the run, and returns what time it is then.
func (c *runClock) until(ctx context.Context, at time.Duration) (time.Duration, error) {
	select {
	case <-c.started:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	for {
		now := time.Since(c.began())
		if now >= at {
			return now, nil
		}
		select {
		case <-time.After(at - now):
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}
