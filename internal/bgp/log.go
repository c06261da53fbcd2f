package bgp

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"
)

// repeatAfter is the least interval between equal warnings about one neighbor: malformed messages
// must not flood the log.
const repeatAfter = time.Minute

// handler adapts GoBGP's log: info becomes debug, as the daemon that owns the speaker logs sessions
// itself, and so do repeated warnings.
//
// It also detects the end of a session: GoBGP logs it at once, but calls its watchers only after it
// dropped the neighbor's routes, which takes seconds with a full table.
type handler struct {
	next     slog.Handler
	scope    string     // attributes of the logger, which identify the neighbor
	neighbor netip.Addr // the address among them
	ended    func(netip.Addr)
	seen     *seen
}

// What GoBGP logs in the goroutine of a session before it processes the session's end, and the
// attribute with the neighbor's address. TestLossIsAdvertisedFirst fails if another version logs
// something else.
const (
	endMessage  = "Peer Down"
	neighborKey = "Key"
)

// seen is the time at which each warning was logged last.
type seen struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// newHandler returns a handler that calls ended, in the goroutine of the session, for each session
// that ends.
func newHandler(next slog.Handler, ended func(netip.Addr)) slog.Handler {
	return handler{next: next, ended: ended, seen: &seen{last: map[string]time.Time{}}}
}

// repeated reports whether a warning was logged within repeatAfter, and records it otherwise.
func (s *seen) repeated(key string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.last[key]; ok && now.Sub(last) < repeatAfter {
		return true
	}
	s.last[key] = now
	return false
}

// demote lowers levels below warning by one.
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
			h.neighbor, _ = netip.ParseAddr(a.Value.String()) // invalid: not a neighbor
		}
		h.scope += a.String() + " "
	}
	return h
}

func (h handler) WithGroup(name string) slog.Handler {
	h.next = h.next.WithGroup(name)
	return h
}
