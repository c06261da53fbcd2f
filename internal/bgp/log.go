package bgp

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// repeatAfter is how long the same warning about the same neighbour stays out of the log. A neighbour
// that sends nothing but nonsense would fill it otherwise.
const repeatAfter = time.Minute

// handler makes GoBGP's log fit into ours: what it calls information (a state of a session, a policy that
// was set) is detail to the operator, who learns of sessions from the daemon that owns the speaker; and
// repeated warnings are detail too.
type handler struct {
	next  slog.Handler
	scope string // attributes of the logger, which tell whom a message is about
	seen  *seen
}

// seen is when each warning was logged last.
type seen struct {
	mu   sync.Mutex
	last map[string]time.Time
}

func newHandler(next slog.Handler) slog.Handler {
	return handler{next: next, seen: &seen{last: map[string]time.Time{}}}
}

// repeated tells whether a warning was logged not long ago, and remembers it otherwise.
func (s *seen) repeated(key string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.last[key]; ok && now.Sub(last) < repeatAfter {
		return true
	}
	s.last[key] = now
	return false
}

// demote lowers everything below a warning.
func demote(l slog.Level) slog.Level {
	if l >= slog.LevelWarn {
		return l
	}
	return l - (slog.LevelInfo - slog.LevelDebug)
}

func (h handler) Enabled(ctx context.Context, l slog.Level) bool {
	return h.next.Enabled(ctx, demote(l))
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = demote(r.Level)
	if r.Level == slog.LevelWarn && h.seen.repeated(h.scope+r.Message, r.Time) {
		r.Level = slog.LevelDebug
		if !h.next.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return h.next.Handle(ctx, r)
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.next = h.next.WithAttrs(attrs)
	for _, a := range attrs {
		h.scope += a.String() + " "
	}
	return h
}

func (h handler) WithGroup(name string) slog.Handler {
	h.next = h.next.WithGroup(name)
	return h
}
