package labrun

import (
	"context"
	"sync"
	"time"
)

// runClock knows when a run began, by what is heard of it: a sample is told when its interval is over, or later.
type runClock struct {
	mu    sync.Mutex
	start time.Time
	// heard is closed with the first sample.
	heard chan struct{}
}

func newRunClock() *runClock { return &runClock{heard: make(chan struct{})} }

// hear takes a sample that was told at a time and ended at the run's time end. The least late one counts.
func (c *runClock) hear(now time.Time, end time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	begun := now.Add(-end)
	if c.start.IsZero() {
		close(c.heard)
	} else if !begun.Before(c.start) {
		return
	}
	c.start = begun
}

// began is when the run began, as far as is known; it is zero before a sample was heard.
func (c *runClock) began() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.start
}

// until waits for a time of the run, and returns what time it is then.
func (c *runClock) until(ctx context.Context, at time.Duration) (time.Duration, error) {
	select {
	case <-c.heard:
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
