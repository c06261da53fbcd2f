package bgp

import (
	"context"
	"log/slog"
)

// handler makes GoBGP's log fit into ours: what it calls information (a state of a session, a policy that
// was set) is detail to the operator, who learns of sessions from the daemon that owns the speaker.
type handler struct{ next slog.Handler }

func newHandler(next slog.Handler) slog.Handler { return handler{next} }

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
	return h.next.Handle(ctx, r)
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler { return handler{h.next.WithAttrs(attrs)} }
func (h handler) WithGroup(name string) slog.Handler       { return handler{h.next.WithGroup(name)} }
