package bgp

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// repeatAfter is the minimum interval between equal warnings about one neighbor, so that malformed
// messages cannot flood the log.
const repeatAfter = time.Minute

// handler adapts GoBGP's log: it lowers info to debug, since the daemon itself logs sessions, and
// lowers repeated warnings too.
//
// It also passes to its observer what GoBGP reports only in its log, or earlier there: GoBGP logs
// the end of a session immediately, but calls its watchers only after dropping the neighbor's
// routes, which takes seconds with a full table.
type handler struct {
	next     slog.Handler
	scope    string       // attributes of the logger, which identify the neighbor
	neighbor netip.Addr   // address in these attributes
	up       *atomic.Bool // the neighbor's session is up; nil without neighbor
	observer observer
	seen     *seen
}

// observer is called in the goroutine that logs.
type observer interface {
	// ended reports that an established session ended; its routes are dropped after the call.
	ended(neighbor netip.Addr)
	// notification reports a NOTIFICATION that was sent, or that was received in an established
	// session.
	notification(neighbor netip.Addr, sent bool, msg Notification)
	// attemptFailed reports that a connection for a session failed.
	attemptFailed(neighbor netip.Addr, why attemptFailure)
}

// Messages that GoBGP logs in the goroutine of a session, and the attribute with the neighbor's
// address. TestLossIsAdvertisedFirst and TestWhyDown fail if another version changes them.
const (
	upMessage       = "Peer Up"
	endMessage      = "Peer Down" // before it processes the session's end
	sentMessage     = "sent notification"
	receivedMessage = "received notification"
	connectMessage  = "failed to connect"
	ioMessage       = "outgoing connection IO error"
	stateMessage    = "state changed"
	neighborKey     = "Key"
)

// seen holds the time at which each warning was last logged.
type seen struct {
	mu   sync.Mutex
	last map[string]time.Time
}

func newHandler(next slog.Handler, o observer) slog.Handler {
	return handler{next: next, observer: o, seen: &seen{last: map[string]time.Time{}}}
}

// repeated reports whether a warning was logged within repeatAfter; if not, it records the warning.
func (s *seen) repeated(key string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.last[key]; ok && now.Sub(last) < repeatAfter {
		return true
	}
	s.last[key] = now
	return false
}

// demote lowers levels below warning by one step.
func demote(l slog.Level) slog.Level {
	if l >= slog.LevelWarn {
		return l
	}
	return l - (slog.LevelInfo - slog.LevelDebug)
}

// Enabled reports whether the record is logged or observed. Failed attempts have level debug. That
// level is disabled while a session is up, because GoBGP logs each UPDATE with it.
func (h handler) Enabled(ctx context.Context, l slog.Level) bool {
	return l == slog.LevelInfo || h.up != nil && !h.up.Load() || h.next.Enabled(ctx, demote(l))
}

// observe passes a record about a neighbor to the observer.
func (h handler) observe(r slog.Record) {
	switch r.Message {
	case upMessage:
		h.up.Store(true)
	case endMessage:
		h.up.Store(false)
		h.observer.ended(h.neighbor)
	case sentMessage, receivedMessage:
		a := attributes(r)
		msg := Notification{Code: octet(a["Code"]), Subcode: octet(a["Subcode"])}
		if v, ok := a["Communicated-Reason"]; ok {
			msg.Communication = v.String()
		}
		h.observer.notification(h.neighbor, r.Message == sentMessage, msg)
	case connectMessage:
		// "dial tcp LOCAL->REMOTE: connect: connection refused"
		text := attributes(r)["Error"].String()
		h.observer.attemptFailed(h.neighbor, attemptFailure(strings.TrimSpace(text[strings.LastIndex(text, ": ")+1:])))
	case ioMessage:
		h.observer.attemptFailed(h.neighbor, attemptFailure(attributes(r)["reason"].String()))
	case stateMessage:
		why := attemptFailure(attributes(r)["reason"].String())
		if !h.up.Load() && (why == attemptClosed || why == attemptRejected) {
			h.observer.attemptFailed(h.neighbor, why)
		}
	}
}

func attributes(r slog.Record) map[string]slog.Value {
	m := make(map[string]slog.Value, r.NumAttrs())
	r.Attrs(func(a slog.Attr) bool {
		m[a.Key] = a.Value
		return true
	})
	return m
}

// octet returns the value of an attribute with an 8-bit number; 0 for other attributes.
func octet(v slog.Value) uint8 {
	if v.Kind() != slog.KindInt64 || v.Int64() < 0 || v.Int64() > 0xff {
		return 0
	}
	return uint8(v.Int64())
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	if h.neighbor.IsValid() {
		h.observe(r)
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
			if h.neighbor, _ = netip.ParseAddr(a.Value.String()); h.neighbor.IsValid() {
				h.up = new(atomic.Bool)
			}
		}
		h.scope += a.String() + " "
	}
	return h
}

func (h handler) WithGroup(name string) slog.Handler {
	h.next = h.next.WithGroup(name)
	return h
}
