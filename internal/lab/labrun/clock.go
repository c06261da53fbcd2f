package labrun

import (
	"context"
	"sync"
	"time"
)

// runClock estimates the start time of a run from its samples. A sample is reported at the end of
// its interval or later.
type runClock struct {
	mu    sync.Mutex
	start time.Time
	// started is closed by the first sample.
	started chan struct{}
}

func newRunClock() *runClock { return &runClock{started: make(chan struct{})} }

// observe records a sample that was reported at now and whose interval ended at end, relative to
// the run's start. The earliest start of all samples is kept.
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

// began returns the estimated start of the run, zero before the first sample.
func (c *runClock) began() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.start
}

// until waits until the time at of the run and returns the actual time of the run.
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
