package session

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
)

// Status is the state of a session for operators.
type Status struct {
	State State
	// Since is when the session last went up or down; zero if it was never up.
	Since time.Time
	Flaps uint64 // how often it went down
	// LastReset is why it last went down; empty if it never did.
	LastReset string
	// Down is why it is not up; empty if it is.
	Down string
	// Sent and Received are the last NOTIFICATION messages; the Code is 0 if there is none.
	Sent, Received message.Notification
	// MessagesSent and MessagesReceived count messages by type.
	MessagesSent, MessagesReceived map[message.Type]uint64
	// Ignored counts ROUTE-REFRESH messages of families and kinds that the session does not have.
	Ignored uint64
	// FlapsInRow is the number of flaps before this session, each a session younger than 10 s, and
	// HeldUntil when the next one may be opened.
	FlapsInRow int
	HeldUntil  time.Time
	// Established describes the session that is up.
	Established Established
}

// Up reports whether the session is up.
func (s Status) Up() bool { return s.State == StateEstablished }

// Status returns the state of the session.
func (s *Session) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &s.history
	st := Status{
		State: h.state, Since: h.changed, Flaps: h.flaps, LastReset: h.reason, Sent: h.sent, Received: h.received,
		MessagesSent: s.counters.sent.read(), MessagesReceived: s.counters.received.read(),
		Ignored: s.counters.ignored.Load(), FlapsInRow: h.inRow, HeldUntil: h.heldUntil,
	}
	if s.current != nil {
		st.Established = s.current.established
	}
	switch {
	case h.state == StateEstablished:
	case h.state == StateIdle && h.reason != "":
		st.Down = h.reason
	case h.opening.text != "":
		st.Down = h.opening.text
	case h.reason != "":
		st.Down = h.reason
	case s.conf.Passive:
		st.Down = "waits for the neighbor to connect"
	default:
		st.Down = "not connected yet"
	}
	return st
}

// counters counts messages.
type counters struct {
	sent, received counter
	ignored        atomic.Uint64
}

// counter counts messages by type.
type counter [message.TypeRouteRefresh + 1]atomic.Uint64

func (c *counter) read() map[message.Type]uint64 {
	m := make(map[message.Type]uint64, len(c))
	for t := message.TypeOpen; int(t) < len(c); t++ {
		m[t] = c[t].Load()
	}
	return m
}

// count counts the messages in b, which are whole and well-formed.
func (c *counter) count(b []byte) {
	for len(b) >= message.HeaderLen {
		t, length := message.Type(b[18]), int(b[16])<<8|int(b[17])
		if int(t) < len(c) {
			c[t].Add(1)
		}
		b = b[min(len(b), max(length, message.HeaderLen)):]
	}
}

// history is what Status reports of the current and the previous sessions. Session.mu guards it.
type history struct {
	state    State
	changed  time.Time
	flaps    uint64
	reason   string // why the session last went down or was disabled
	sent     message.Notification
	received message.Notification
	// opening is why no session is established, and logged the finding that was last logged.
	// failures counts those since then.
	opening, logged finding
	failures        int
	// inRow is the number of flaps in a row, and heldUntil when the next session may be opened.
	inRow     int
	heldUntil time.Time
}

// rank orders findings by precision: the content of a message is more precise than a connection
// error.
type rank uint8

const (
	connecting rank = iota + 1 // an error of TCP
	closed                     // the neighbor closed the connection or was silent
	signature                  // TCP MD5
	notified                   // a NOTIFICATION
)

// findingLife is the time after which a less precise finding replaces one that has not recurred.
const findingLife = 30 * time.Second

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

// found records why a session that is not up could not be opened.
func (s *Session) found(r rank, text string) {
	f := finding{r, text, time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := &s.history; h.state != StateEstablished {
		h.failures++
		if f.supersedes(h.opening) {
			h.opening = f
		}
	}
}

// report logs why the session is not established: a reason that is new, or more precise than the
// one before, and once in flapPause that the neighbor still refuses the session. It is called
// periodically, not for each failure: one of two colliding connections fails too, although the
// session is established a moment later.
func (s *Session) report(now time.Time) {
	s.mu.Lock()
	h := &s.history
	text, failures := h.opening.text, h.failures
	recent := text != "" && now.Sub(h.opening.at) < findingLife
	due := now.Sub(h.logged.at) >= flapPause
	news := recent && (text != h.logged.text && (due || h.opening.rank > h.logged.rank) || due && h.opening.rank >= closed)
	if news {
		h.logged = finding{h.opening.rank, text, now}
		h.failures = 0
	}
	s.mu.Unlock()
	if news {
		s.conf.Log.Info("bgp session does not open", "reason", text, "attempts", failures)
	}
}

// refused records that a connection of the neighbor was not accepted.
func (s *Session) refused(remote netip.AddrPort, err error) {
	s.found(connecting, fmt.Sprintf("connection from %s refused: %s", remote.Addr(), err))
}

// received is the error of a connection on which the neighbor sent a NOTIFICATION.
type received struct{ message.Notification }

func (r received) Error() string { return "NOTIFICATION received: " + r.Notification.String() }

// dialFinding describes a failed attempt to connect.
func (c Config) dialFinding(err error) (rank, string) {
	text := fmt.Sprintf("connection to %s", c.Remote)
	var errno syscall.Errno
	var timeout net.Error // the dialer's own matches no error of os or syscall
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		text += " refused"
	case errors.As(err, &timeout) && timeout.Timeout():
		text += " timed out"
		if c.Password != "" {
			text += ", as with a wrong md5 password"
		}
	case errors.As(err, &errno):
		text += ": " + errno.Error()
		if errno == syscall.EADDRNOTAVAIL && c.Local.IsValid() {
			text += fmt.Sprintf(" (no interface has %s)", c.Local)
		}
	default:
		text += ": " + err.Error()
	}
	return connecting, text
}

// openFinding describes why a connection ended before the session was established.
func (c Config) openFinding(err error) (rank, string) {
	var refusal *message.Error
	var note received
	switch {
	case errors.As(err, &refusal):
		return notified, "NOTIFICATION sent: " + refusal.Error()
	case errors.As(err, &note):
		text := "the neighbor refused the session: " + note.Error()
		if note.Code == message.CodeOpen && note.Subcode == message.SubcodeBadPeerAS {
			text += fmt.Sprintf("; does it have this router as neighbor with as number %d?", c.LocalASN)
		}
		if note.Code == message.CodeOpen && note.Subcode == message.SubcodeRoleMismatch {
			text += fmt.Sprintf("; which role (RFC 9234) does it require? This router has %s", cmp.Or(c.Role, "none"))
		}
		return notified, text
	case errors.Is(err, os.ErrDeadlineExceeded):
		return closed, "the neighbor accepts connections, but does not answer our OPEN"
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return closed, "the neighbor closed the connection before the session was up; " +
			"does it have this address and as number as neighbor?"
	}
	return connecting, fmt.Sprintf("connection with %s: %s", c.Remote.Addr(), err)
}
