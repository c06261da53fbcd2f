package sealed

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// limitedLog is the log of a peer. A peer can have addresses, registrations and paths change as
// often as it likes, so that what it causes to be logged is bounded: to logMost messages in
// logTime.
type limitedLog struct {
	slog.Handler
	now func() time.Duration

	mu    sync.Mutex
	since time.Duration
	count int
}

// logMost is enough for 16 paths that go and return.
const logMost, logTime = 100, time.Minute

// Handle implements slog.Handler.
func (l *limitedLog) Handle(ctx context.Context, r slog.Record) error {
	l.mu.Lock()
	now := l.now()
	if now-l.since >= logTime {
		l.since, l.count = now, 0
	}
	l.count++
	n := l.count
	l.mu.Unlock()
	switch {
	case n > logMost:
		return nil
	case n == logMost:
		r.Add("more", "not logged for a minute")
	}
	return l.Handler.Handle(ctx, r)
}
