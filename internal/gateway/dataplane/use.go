package dataplane

import (
	"time"

	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// Use is when packets are sent on a path. The zero value is always.
type Use struct {
	// Backup: only while no other path to the peer can carry them. Full: also while the others are
	// full.
	Backup, Full bool
	// Spent: never, because the quota of a line is used up.
	Spent bool
	// Interval is the time within which a metered path that carries no packets is found dead; 0 is
	// DefaultInterval.
	Interval time.Duration
}

// DefaultInterval is that of Use.Interval.
const DefaultInterval = 30 * time.Second

// Metered reports whether the path is to cost little while it carries no packets.
func (u Use) Metered() bool { return u.Backup || u.Spent }

// With returns the use of a path between two lines, of which each gateway knows that of its own.
func (u Use) With(o Use) Use {
	both := Use{Backup: u.Backup || o.Backup, Spent: u.Spent || o.Spent}
	both.Full = both.Backup && (!u.Backup || u.Full) && (!o.Backup || o.Full)
	if both.Metered() {
		both.Interval = min(u.interval(), o.interval())
	}
	return both
}

// interval returns the interval of a metered line, and the longest one of another line.
func (u Use) interval() time.Duration {
	switch {
	case !u.Metered():
		return tunnel.MaxInterval
	case u.Interval == 0:
		return DefaultInterval
	}
	return u.Interval
}
