package bgp

import (
	"context"
	"log/slog"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
)

// faults are the errors in UPDATEs of a neighbor that did not end the session (RFC 7606).
type faults struct {
	count  [message.Actions]uint64
	last   string
	logged time.Time
}

// faultPause is the least interval at which faults of a neighbor are logged as warnings: each of
// its UPDATEs may have one.
const faultPause = time.Minute

// add counts the faults of an UPDATE and logs them. The worst of them is the last fault: it says
// what became of the routes.
func (f *faults) add(log *slog.Logger, found []message.Fault, now time.Time) {
	worst := 0
	for i, one := range found {
		f.count[one.Action]++
		if one.Action > found[worst].Action {
			worst = i
		}
	}
	f.last = found[worst].String()
	for i, one := range found {
		level := slog.LevelDebug
		if i == worst && now.Sub(f.logged) >= faultPause {
			level, f.logged = slog.LevelWarn, now
		}
		log.Log(context.Background(), level, "malformed bgp update", "fault", one.String())
	}
}
