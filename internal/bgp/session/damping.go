package session

import (
	"log/slog"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
)

const (
	// stableAfter is the age at which a session is no flap.
	stableAfter = 10 * time.Second
	// leastHold is how long a session is held down after the second of several flaps. It doubles
	// with each one, up to Config.ConnectRetry, or up to mostHold if one end ended the session by a
	// NOTIFICATION, as it will probably do again; a lost connection says nothing of the next one.
	leastHold = time.Second
	mostHold  = 30 * time.Second
	// heldMost is how long a connection of the neighbor waits for that time to pass, less than
	// neighbors wait for our OPEN. With more to wait, it is refused.
	heldMost = 4 * time.Second
	// flapPause is the least interval between two log lines of a session that keeps flapping.
	flapPause = time.Minute
)

// damping holds a session down that does not stay up, whoever opens the connection
// (DampPeerOscillations and IdleHoldTimer of RFC 4271 sections 8.1.1 and 8.2.2), and bounds what is
// logged about it. The goroutine of the session uses it.
type damping struct {
	until time.Time // no connection is opened or accepted before
	inRow int       // flaps, each younger than stableAfter
	// decided: one end has ended the last session because of an error.
	decided bool
	// opening is how many of the neighbor's connections in a row were not established.
	opening int

	logged  time.Time // when flaps were last logged
	counted int       // flaps since then, which were not logged
	hidden  bool      // the last change of the state was not logged
}

// hold returns how long a session is held down after n flaps in a row.
func hold(n int, most time.Duration) time.Duration {
	if n < 2 {
		return 0
	}
	return min(leastHold<<min(n-2, 16), most)
}

// up logs that the session is up, unless it flaps.
func (d *damping) up(log *slog.Logger) {
	d.opening = 0
	if d.hidden = d.inRow >= 2; !d.hidden {
		log.Info("bgp session up")
	}
}

// stable is called when a session has been up for stableAfter.
func (d *damping) stable(log *slog.Logger) {
	log.Info("bgp session up", "flaps before", d.inRow)
	d.hidden, d.inRow, d.counted = false, 0, 0
}

// down logs the end of a session of an age, and holds the session down unless it was ended here.
func (d *damping) down(conf Config, r Reason, now time.Time, age time.Duration) {
	d.until, d.hidden, d.decided = time.Time{}, false, r.decided()
	if age >= stableAfter {
		d.inRow = 0
		conf.Log.Warn("bgp session down", "reason", r.Text)
		return
	}
	d.inRow++
	most := min(conf.ConnectRetry, mostHold)
	if d.decided {
		most = mostHold
	}
	if !r.Local {
		d.until = now.Add(hold(d.inRow, most))
	}
	if d.inRow == 1 {
		conf.Log.Warn("bgp session down", "reason", r.Text)
		return
	}
	if d.counted++; now.Sub(d.logged) >= flapPause {
		conf.Log.Warn("bgp session flaps", "reason", r.Text, "flaps", d.counted, "in a row", d.inRow)
		d.logged, d.counted = now, 0
	}
}

// reachable ends the time that the session is held down, unless it is for an error: a lost
// connection says nothing of the next one over a link that has come up.
func (d *damping) reachable() {
	if !d.decided {
		d.until = time.Time{}
	}
}

// refused delays the next of the neighbor's connections after one that was not established.
func (d *damping) refused(conf Config, now time.Time) {
	d.opening++
	d.until = later(d.until, now.Add(hold(d.opening, min(conf.ConnectRetry, mostHold))))
}

// decided reports whether one end has ended the session by a NOTIFICATION that is neither about a
// lost connection nor by an operator.
func (r Reason) decided() bool {
	return slices.ContainsFunc([]message.Notification{r.Sent, r.Received}, func(n message.Notification) bool {
		switch n.Code {
		case 0, message.CodeHoldTimer, message.CodeSendHoldTimer:
			return false
		case message.CodeCease:
			return slices.Contains(recurring, n.Subcode)
		}
		return true
	})
}

// recurring are the subcodes of Cease whose cause is likely to be there again (RFC 4486 section 4).
var recurring = []uint8{0, message.SubcodeMaxPrefixes, message.SubcodeDeconfigured, message.SubcodeRejected, message.SubcodeOutOfResources}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
