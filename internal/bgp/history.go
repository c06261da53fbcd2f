package bgp

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"
)

// history describes the current and the previous sessions with a neighbor.
type history struct {
	changed  time.Time // when the session last went up or down; zero if it was never up
	flaps    uint64    // how often the session went down
	sent     Notification
	received Notification
	// ending is why an established session is about to end; GoBGP's reason is less precise.
	ending string
	// opening is why no session is established, and logged the finding that was last logged.
	opening finding
	logged  string
}

// rank orders findings by precision: the content of a message is more precise than a connection
// error.
type rank uint8

const (
	connecting  rank = iota + 1 // an error of TCP
	closed                      // the neighbor closed the connection
	refused                     // the neighbor sent a message that cannot open a session
	signature                   // TCP MD5
	notified                    // a NOTIFICATION that we sent
	findingLife = 30 * time.Second
)

// finding is why an attempt to open a session failed.
type finding struct {
	rank rank
	text string
	at   time.Time
}

// supersedes reports whether f replaces old: attempts fail in several ways at once, and a less
// precise finding replaces a more precise one only if that has not recurred for a while.
func (f finding) supersedes(old finding) bool {
	return f.rank >= old.rank || f.at.Sub(old.at) > findingLife
}

// diagnosis maintains the history of each neighbor from GoBGP's log records and counters. It
// implements observer.
type diagnosis struct{ *sessions }

func (d *diagnosis) ended(key netip.Addr) { (&failover{sessions: d.sessions}).sessionEnded(key) }

// notification records a NOTIFICATION that was sent or received.
func (d *diagnosis) notification(key netip.Addr, sent bool, msg Notification) {
	d.mu.Lock()
	n := d.byAddr[key]
	if n == nil {
		d.mu.Unlock()
		return
	}
	text := "NOTIFICATION received: " + msg.String()
	if sent {
		n.history.sent = msg
		text = "NOTIFICATION sent: " + msg.String()
	} else {
		n.history.received = msg
	}
	up := n.up
	switch {
	case up && msg.Code == holdTimerExpired && sent:
		n.history.ending = "hold timer expired"
	case up:
		n.history.ending = text
	case msg.Code == openError && msg.Subcode == badPeerAS && sent:
		text += fmt.Sprintf(": the neighbor's OPEN has another as number than %d", n.ASN)
	}
	deleting := n.deleting
	d.mu.Unlock()
	switch {
	case deleting:
	case up:
		d.log.Info("bgp "+text, "neighbor", n.Name)
	case sent && msg.Code == stateError:
		d.found(n, attemptRejected.finding(n.Neighbor, d.opt.ASN))
	default:
		d.found(n, finding{rank: notified, text: text})
	}
}

// attemptFailed records why an attempt to open a session failed.
func (d *diagnosis) attemptFailed(key netip.Addr, why attemptFailure) {
	d.mu.Lock()
	n := d.byAddr[key]
	d.mu.Unlock()
	if n != nil {
		d.found(n, why.finding(n.Neighbor, d.opt.ASN))
	}
}

// found records a finding about a session that is not up.
func (d *diagnosis) found(n *neighbor, f finding) {
	f.at = time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !n.up && !n.deleting && f.supersedes(n.history.opening) {
		n.history.opening = f
	}
}

// report logs why a session is not established, unless that was logged already. The watchdog's poll
// calls it, not each failure: one of two colliding connections fails too, although the session is
// established a moment later.
func (d *diagnosis) report(n *neighbor) {
	d.mu.Lock()
	h := &n.history
	text := h.opening.text
	news := !n.up && text != h.logged && time.Since(h.opening.at) < findingLife
	if news {
		h.logged = text
	}
	d.mu.Unlock()
	if news {
		d.log.Info("bgp session does not open", "neighbor", n.Name, "reason", text)
	}
}

// attemptFailure is how an attempt to open a session failed, in GoBGP's words.
type attemptFailure string

// Failures of attempts. Other values are error texts of the kernel.
const (
	attemptTimedOut attemptFailure = "i/o timeout"
	attemptRefused  attemptFailure = "connection refused"
	attemptClosed   attemptFailure = "read-failed"
	// attemptRejected means a message that cannot open a session: in practice a NOTIFICATION,
	// whose code and subcode GoBGP does not report before the session is established.
	attemptRejected attemptFailure = "invalid-msg"
)

// finding describes the failure. own is our AS number.
func (a attemptFailure) finding(n Neighbor, own uint32) finding {
	peer := netip.AddrPortFrom(n.Address, cmp.Or(n.Port, DefaultPort))
	switch a {
	case attemptTimedOut:
		text := fmt.Sprintf("connection to %s timed out", peer)
		if n.Password != "" {
			text += ", as with a wrong md5 password"
		}
		return finding{rank: connecting, text: text}
	case attemptRefused:
		return finding{rank: connecting, text: fmt.Sprintf("connection to %s refused", peer)}
	case attemptRejected:
		return finding{rank: refused, text: fmt.Sprintf("the neighbor refused the session, its log says why; "+
			"does it have this router as neighbor with as number %d?", own)}
	case attemptClosed:
		return finding{rank: closed, text: "the neighbor closed the connection before the session was up; " +
			"does it have this address and as number as neighbor?"}
	}
	return finding{rank: connecting, text: fmt.Sprintf("connection to %s: %s", peer, string(a))}
}

// downReason returns why a session is down; it is empty if the session is up.
func (n *neighbor) downReason() string {
	switch {
	case n.up:
		return ""
	case n.disabled:
		return n.reason
	case n.history.opening.text != "":
		return n.history.opening.text
	case n.reason != "":
		return n.reason
	case n.Passive:
		return "waits for the neighbor to connect"
	}
	return "not connected yet"
}
