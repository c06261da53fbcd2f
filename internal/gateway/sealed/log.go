package sealed

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// limitedLog is the log of a peer. A peer can have addresses, registrations and paths change as
// often as it likes, so that what it causes to be logged is bounded: to maxLogged messages in
// logWindow.
type limitedLog struct {
	slog.Handler
	now func() time.Duration

	mu    sync.Mutex
	since time.Duration
	count int
}

// maxLogged is enough for 16 paths that go and return.
const maxLogged, logWindow = 100, time.Minute

// Handle implements slog.Handler.
func (l *limitedLog) Handle(ctx context.Context, r slog.Record) error {
	now := l.now()
	l.mu.Lock()
	if now-l.since >= logWindow {
		l.since, l.count = now, 0
	}
	l.count++
	n := l.count
	l.mu.Unlock()
	switch {
	case n > maxLogged:
		return nil
	case n == maxLogged:
		r.Add("more", "not logged for a minute")
	}
	return l.Handler.Handle(ctx, r)
}
