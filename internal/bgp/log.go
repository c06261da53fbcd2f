package bgp

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"
)

// repeatAfter is how long the same warning about the same neighbor stays out of the log. A neighbor
// that sends nothing but nonsense would fill it otherwise.
const repeatAfter = time.Minute

// handler makes GoBGP's log fit into ours: what it calls information (a state of a session, a policy that
// was set) is detail to the operator, who learns of sessions from the daemon that owns the speaker; and
// repeated warnings are detail too.
//
// It also hears of the end of a session: GoBGP logs that at once and tells its watchers when it has dropped what the neighbor
// announced, which takes seconds with a full table.
type handler struct {
	next     slog.Handler
	scope    string     // attributes of the logger, which tell whom a message is about
	neighbor netip.Addr // the one of them that is its address
	ended    func(netip.Addr)
	seen     *seen
}

// What GoBGP logs in the goroutine of a session, before anything of the session's end is done, and the attribute that names the
// neighbor. Another version may do otherwise; then the end is heard of with all others. TestEndIsToldFirst would show it.
const (
	endMessage  = "Peer Down"
	neighborKey = "Key"
)

// seen is when each warning was logged last.
type seen struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// newHandler makes a handler that calls ended, in the goroutine of the session, for each session that ends.
func newHandler(next slog.Handler, ended func(netip.Addr)) slog.Handler {
	return handler{next: next, ended: ended, seen: &seen{last: map[string]time.Time{}}}
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
	return l == slog.LevelInfo || h.next.Enabled(ctx, demote(l))
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == endMessage && h.neighbor.IsValid() {
		h.ended(h.neighbor)
	}
	r.Level = demote(r.Level)
	if !h.next.Enabled(ctx, r.Level) {
		return nil
	}
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
		if a.Key == neighborKey {
			h.neighbor, _ = netip.ParseAddr(a.Value.String()) // something else is not a neighbor
		}
		h.scope += a.String() + " "
	}
	return h
}

func (h handler) WithGroup(name string) slog.Handler {
	h.next = h.next.WithGroup(name)
	return h
}
