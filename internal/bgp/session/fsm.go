package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/kernel/contain"
)

const (
	// openTimeout is the time in which the neighbor must send its OPEN, and then its KEEPALIVE.
	// It doubles with each timeout, up to maxOpenTimeout (RFC 4271 section 8.2.2), so that a slow
	// neighbor can establish a session.
	openTimeout    = 5 * time.Second
	maxOpenTimeout = 4 * time.Minute
	// collisionTimeout is how long a connection waits for the OPEN on the preferred one.
	collisionTimeout = time.Second
	// probeTimeout is how long a new connection waits for the established session, whose
	// neighbor may have restarted, to fail.
	probeTimeout = time.Second
	// minDialTimeout and maxDialTimeout limit an attempt to connect, which otherwise has
	// Config.ConnectRetry.
	minDialTimeout, maxDialTimeout = 2 * time.Second, 10 * time.Second
	// diagnosePause is the interval at which findings are logged while the session is not up.
	diagnosePause = time.Second
	// redialAge is the age of an attempt to connect that Session.Connect replaces: its next SYN
	// would be sent after a second.
	redialAge = 20 * time.Millisecond
	// eagerTime is how long after Session.Connect or Enable an attempt that fails is repeated after
	// eagerPause, and abandoned after eagerTimeout, which doubles with each one up to
	// eagerTimeout<<eagerDoublings: the first packets over a link that has come up are lost, and
	// the kernel repeats a SYN, as well as a neighbor solicitation, only after a second.
	eagerTime      = 3 * time.Second
	eagerPause     = 50 * time.Millisecond
	eagerTimeout   = 125 * time.Millisecond
	eagerDoublings = 3
)

// fsm is the state machine of a session. All its methods run in the session's goroutine.
type fsm struct {
	session *Session
	// disabled holds the session down, stopped ends it. leaving: Handler.Down has not returned.
	stopped, disabled, leaving bool

	opening   opening
	up        *conn // of the established session
	upSince   time.Time
	dials     dials
	timeouts  int // of OPEN since the session was last up
	damping   damping
	panics    contain.Backoff
	diagnosis diagnosis
}

// opening is what may become the established session.
type opening struct {
	dialing *attempt // to connect
	in, out *conn    // accepted and connected, at most one of each
	// pending is a connection that arrived while another session was up, or while the session was
	// held down.
	pending      net.Conn
	pendingUntil time.Time
}

// dials is when attempts to connect are made.
type dials struct {
	next     time.Time
	eager    time.Time // until then, Connect or Enable has been called recently
	attempts int       // since then
}

// diagnosis is the last look at why the session is not up.
type diagnosis struct {
	at      time.Time
	dropped signatureErrors
}

// attempt is a connection attempt.
type attempt struct {
	began  time.Time
	eager  bool // before eagerTime has passed
	cancel context.CancelFunc
	done   chan struct{} // closed when it is canceled
}

// jitter shortens an interval by up to a quarter (RFC 4271 section 10).
func jitter(d time.Duration) time.Duration { return d - rand.N(d/4+1) }

// run executes the session until Stop.
func (f *fsm) run() {
	defer close(f.session.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	now := time.Now()
	f.dials.next, f.diagnosis.at, f.diagnosis.dropped = now, now, readSignatureErrorsAfter(now)
	for !f.stopped {
		next := time.Now().Add(diagnosePause)
		f.step(func() {
			next = f.proceed(time.Now())
			f.publish()
		})
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case call := <-f.session.events:
			f.step(call)
		case c := <-f.session.incoming:
			f.step(func() { f.accept(c) })
		case <-f.session.kick:
			f.step(f.execute)
		}
	}
	f.session.conf.Listener.remove(f.session)
	f.session.mu.Lock()
	f.session.ended = true
	f.session.mu.Unlock()
	select {
	case c := <-f.session.incoming:
		_ = c.Close()
	default:
	}
	f.session.background.Wait()
}

// step runs a part of the state machine. After a panic, all connections are closed, and the session
// begins again after a pause.
func (f *fsm) step(part func()) {
	err := contain.Do(contain.BGPSession, f.session.conf.Log, nil, part)
	if err == nil {
		return
	}
	if f.leaving {
		panic(err) // the routes of the session that ended may still be there
	}
	f.backOff(err)
}

// backOff closes all connections after a panic, and opens none before a pause.
func (f *fsm) backOff(err error) {
	now := time.Now()
	f.panics.Panicked(now)
	f.endAll(command{notification: cease(0), reason: err.Error()})
	if c := f.opening.pending; c != nil {
		f.opening.pending = nil
		f.refuse(c, cease(message.SubcodeRejected))
	}
	f.session.found(notified, fmt.Sprintf("%v; closed for %s", err, f.panics.Until().Sub(now).Round(time.Second)))
}

// proceed does what is due, and returns when it must be called again at the latest.
func (f *fsm) proceed(now time.Time) (next time.Time) {
	next = now.Add(time.Hour)
	wait := func(until time.Time) bool {
		if now.Before(until) {
			if until.Before(next) {
				next = until
			}
			return true
		}
		return false
	}
	if c := f.opening.pending; c != nil && !wait(f.opening.pendingUntil) {
		f.opening.pending = nil
		if f.up != nil {
			f.refuse(c, cease(message.SubcodeCollision))
		} else {
			f.accept(c)
		}
	}
	if f.up != nil && f.damping.hidden && !wait(f.upSince.Add(stableAfter)) {
		f.damping.stable(f.session.conf.Log)
	}
	for _, c := range []*conn{f.opening.in, f.opening.out} {
		// The preferred connection is silent.
		if c != nil && !c.heldUntil.IsZero() && !wait(c.heldUntil) {
			f.confirm(c)
		}
	}
	if f.up != nil || f.disabled {
		return next
	}
	o := &f.opening
	idle := !f.session.conf.Passive && o.dialing == nil && o.out == nil
	if idle && !(o.in != nil && (o.in.opened || wait(o.in.began.Add(collisionTimeout)))) &&
		!wait(later(f.dials.next, f.damping.until)) && !wait(f.panics.Until()) {
		f.connect(now)
	}
	if diagnose := f.diagnosis.at.Add(diagnosePause); !wait(diagnose) {
		f.diagnose(now)
		wait(f.diagnosis.at.Add(diagnosePause))
	}
	return next
}

// diagnose records a finding from counters, and logs why the session is not up.
func (f *fsm) diagnose(now time.Time) {
	before := f.diagnosis.dropped
	f.diagnosis.dropped, f.diagnosis.at = readSignatureErrorsAfter(f.diagnosis.at), now
	if text := f.diagnosis.dropped.explain(before, f.session.conf.Password != ""); text != "" {
		f.session.found(signature, text)
	}
	f.session.report(now)
}

// publish makes the state visible to Status.
func (f *fsm) publish() {
	s := StateActive
	switch confirmed := func(c *conn) bool { return c != nil && c.confirmed }; {
	case f.up != nil:
		s = StateEstablished
	case f.disabled:
		s = StateIdle
	case confirmed(f.opening.in) || confirmed(f.opening.out):
		s = StateOpenConfirm
	case f.opening.in != nil || f.opening.out != nil:
		s = StateOpenSent
	case f.opening.dialing != nil:
		s = StateConnect
	}
	f.session.mu.Lock()
	f.session.history.state, f.session.history.inRow, f.session.history.heldUntil = s, f.damping.inRow, f.damping.until
	f.session.mu.Unlock()
}

// connect starts an attempt to connect.
func (f *fsm) connect(now time.Time) {
	timeout := min(max(f.session.conf.ConnectRetry, minDialTimeout), maxDialTimeout)
	eager := now.Before(f.dials.eager)
	if eager {
		timeout = eagerTimeout << min(f.dials.attempts, eagerDoublings)
		f.dials.attempts++
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	a := &attempt{began: now, eager: eager, cancel: cancel, done: make(chan struct{})}
	f.opening.dialing, f.dials.next = a, now.Add(jitter(f.session.conf.ConnectRetry))
	f.session.background.Go(func() {
		defer cancel()
		var c net.Conn
		var err error
		if fault := contain.Do(contain.BGPSession, f.session.conf.Log, nil, func() {
			c, err = f.session.dial(ctx)
			if err != nil && eager && f.session.conf.Unreached != nil && !errors.Is(err, syscall.ECONNREFUSED) {
				f.session.conf.Unreached(f.session.conf.Remote.Addr())
			}
		}); fault != nil {
			err = fault
		}
		if !f.session.post(a.done, func() { f.connected(a, c, err) }) && err == nil {
			_ = c.Close()
		}
	})
}

// connected is called when an attempt to connect has ended.
func (f *fsm) connected(a *attempt, c net.Conn, err error) {
	switch {
	case f.opening.dialing != a: // canceled meanwhile
		if err == nil {
			_ = c.Close()
		}
	case err != nil:
		f.opening.dialing = nil
		if now := time.Now(); now.Before(f.dials.eager) {
			f.dials.next = now.Add(eagerPause)
		}
		f.session.found(f.session.conf.dialFinding(err))
	default:
		f.opening.dialing = nil
		f.start(c, true)
	}
}

// cancelAttempt ends an attempt to connect.
func (f *fsm) cancelAttempt() {
	if f.opening.dialing != nil {
		close(f.opening.dialing.done)
		f.opening.dialing.cancel()
		f.opening.dialing = nil
	}
}

// accept starts a connection of the neighbor.
func (f *fsm) accept(c net.Conn) {
	switch {
	case f.disabled, time.Now().Before(f.panics.Until()):
		f.refuse(c, cease(message.SubcodeRejected))
	case f.up != nil:
		// If the neighbor has restarted, it does not know our connection, and answers the
		// KEEPALIVE with a RST. Otherwise the new connection is refused (RFC 4271 section 6.8).
		if f.opening.pending != nil { // the neighbor has abandoned it
			f.refuse(f.opening.pending, cease(message.SubcodeCollision))
		}
		f.opening.pending, f.opening.pendingUntil = c, time.Now().Add(probeTimeout)
		if err := f.up.sendKeepalive(); err != nil {
			f.lost(f.up, err)
		}
	case time.Until(f.damping.until) > heldMost:
		f.refuse(c, cease(message.SubcodeRejected))
	case time.Until(f.damping.until) > 0:
		if f.opening.pending != nil { // the neighbor has abandoned it
			_ = f.opening.pending.Close()
		}
		f.opening.pending, f.opening.pendingUntil = c, f.damping.until
	default:
		if f.opening.in != nil { // the neighbor has abandoned it
			f.drop(f.opening.in, message.Notification{})
		}
		f.start(c, false)
	}
}

// start sends OPEN on a new connection.
func (f *fsm) start(nc net.Conn, outgoing bool) {
	c := newConn(f, nc, outgoing)
	c.began = time.Now()
	if outgoing {
		f.opening.out = c
	} else {
		f.opening.in = c
	}
	patience := min(openTimeout<<min(f.timeouts, 10), maxOpenTimeout)
	go func() {
		defer close(c.read)
		err := c.contain(c.in.message, func() error { return c.receive(patience) })
		c.post(func() { f.lost(c, err) })
	}()
	if err := c.send(f.session.conf.open().Append(nil)); err != nil {
		f.lost(c, err)
	}
}

// other returns the second of two connections that are being opened, or nil.
func (f *fsm) other(c *conn) *conn {
	if c == f.opening.in {
		return f.opening.out
	}
	return f.opening.in
}

// opened is called when the neighbor's OPEN was received. If there is another connection, the one
// that was opened by the router with the higher router ID is kept (RFC 4271 section 6.8). The other
// one is only closed when the neighbor has sent its OPEN on the preferred one too: a neighbor may
// have accepted a connection without noticing it.
func (f *fsm) opened(c *conn, o message.Open) {
	if err := f.session.conf.examine(o); err != nil {
		f.lost(c, err)
		return
	}
	c.open, c.opened = o, true
	other := f.other(c)
	preferred := f.session.conf.preferOutgoing(o) == c.outgoing
	switch {
	case other == nil || preferred:
		f.confirm(c)
	case other.opened:
		f.drop(c, cease(message.SubcodeCollision))
	default:
		c.heldUntil = time.Now().Add(collisionTimeout)
	}
}

// confirm accepts the neighbor's OPEN, and closes the other connection.
func (f *fsm) confirm(c *conn) {
	if other := f.other(c); other != nil {
		f.drop(other, cease(message.SubcodeCollision))
	}
	f.cancelAttempt()
	c.heldUntil, c.confirmed = time.Time{}, true
	if err := c.send(message.AppendKeepalive(nil)); err != nil {
		f.lost(c, err)
		return
	}
	c.proceed <- struct{}{}
}

// confirmed is called when the neighbor's KEEPALIVE was received: the session is established.
func (f *fsm) confirmed(c *conn) {
	now := time.Now()
	f.cancelAttempt()
	if other := f.other(c); other != nil {
		f.drop(other, cease(message.SubcodeCollision))
	}
	f.opening.in, f.opening.out, f.up = nil, nil, c
	f.upSince, f.timeouts = now, 0
	e := Established{Negotiated: message.Negotiate(f.session.conf.open(), c.open), Open: c.open}
	e.Local, e.Remote = addresses(c.Conn)
	e.HoldTime = time.Duration(min(f.session.conf.open().HoldTime, c.open.HoldTime)) * time.Second
	c.established = e
	c.sendHold = f.session.conf.SendHoldTime
	if c.sendHold == 0 {
		c.sendHold = max(minSendHold, 2*e.HoldTime)
	}
	if err := limitBuffers(c.Conn); err != nil {
		f.session.conf.Log.Debug("limit bgp buffers", "err", err)
	}
	f.session.mu.Lock()
	h := &f.session.history
	h.state, h.changed, h.opening, h.logged.text, h.failures = StateEstablished, now, finding{}, "", 0
	f.session.current = c
	f.session.mu.Unlock()
	if e.HoldTime > 0 {
		c.deadlines.Lock() // the timer uses c.keepalive
		c.keepalive = time.AfterFunc(jitter(e.HoldTime/3), c.sendKeepalives)
		c.deadlines.Unlock()
	}
	f.damping.up(f.session.conf.Log)
	f.session.handler.Up(e)
	c.written = make(chan struct{})
	go c.transmit()
	f.session.Wake()
	c.proceed <- struct{}{}
}

// cease returns the NOTIFICATION Cease with a subcode (RFC 4486).
func cease(subcode uint8) message.Notification {
	return message.Notification{Code: message.CodeCease, Subcode: subcode}
}

// notificationOf returns the NOTIFICATION that reports an error to the neighbor; its Code is 0 if
// there is none.
func notificationOf(err error, established bool) message.Notification {
	var refusal *message.Error
	var note received
	switch {
	case errors.As(err, &refusal):
		return refusal.Notification
	case errors.As(err, &note), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return message.Notification{}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return message.Notification{Code: message.CodeHoldTimer}
	case errors.Is(err, errSendHold):
		return message.Notification{Code: message.CodeSendHoldTimer}
	}
	var network net.Error
	if errors.As(err, &network) || !established {
		return message.Notification{}
	}
	return cease(0) // an error of the handler
}

// lost is called when a connection has failed, or has received a message that ends it.
func (f *fsm) lost(c *conn, err error) {
	if fault := (*contain.Error)(nil); errors.As(err, &fault) {
		f.backOff(err)
		return
	}
	n := notificationOf(err, c == f.up)
	var note received
	if errors.As(err, &note) {
		f.session.mu.Lock()
		f.session.history.received = note.Notification
		f.session.mu.Unlock()
	}
	if c == f.up {
		f.endSession(n, Reason{Text: endText(err, n), Received: note.Notification})
		return
	}
	other := f.other(c)
	f.drop(c, n)
	if note.Code != message.CodeCease || note.Subcode != message.SubcodeCollision {
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			f.timeouts++
		case !c.outgoing && other == nil:
			f.damping.refused(f.session.conf, time.Now())
		}
		f.session.found(f.session.conf.openFinding(err))
	}
	// A neighbor whose end of the link is not up yet, or that starts, refuses.
	refused := note.Code == message.CodeCease || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
	if now := time.Now(); c.outgoing && refused && now.Before(f.dials.eager) {
		f.dials.next = now.Add(eagerPause)
	}
	if other != nil && !other.heldUntil.IsZero() {
		f.confirm(other)
	}
}

// drop closes a connection that is being opened.
func (f *fsm) drop(c *conn, n message.Notification) {
	switch c {
	case f.opening.in:
		f.opening.in = nil
	case f.opening.out:
		f.opening.out = nil
	}
	f.end(c, n)
}

// end closes a connection and records the NOTIFICATION.
func (f *fsm) end(c *conn, n message.Notification) (sent message.Notification) {
	if !c.end(n) {
		return message.Notification{}
	}
	f.session.mu.Lock()
	defer f.session.mu.Unlock()
	f.session.history.sent = n
	return n
}

// endSession ends the established session with a NOTIFICATION, unless its Code is 0.
func (f *fsm) endSession(n message.Notification, r Reason) {
	now := time.Now()
	r.Sent = f.end(f.up, n)
	f.up = nil
	f.session.mu.Lock()
	h := &f.session.history
	h.state, h.changed, h.reason = StateActive, now, r.Text
	h.flaps++
	f.session.current = nil
	f.session.mu.Unlock()
	f.damping.down(f.session.conf, r, now, now.Sub(f.upSince))
	f.leaving = true
	f.session.handler.Down(r)
	f.leaving = false
	f.dials.next = now
	if c := f.opening.pending; c != nil {
		f.opening.pending = nil
		f.accept(c)
	}
}

// execute executes the commands that were queued.
func (f *fsm) execute() {
	f.session.mu.Lock()
	commands := f.session.commands
	f.session.commands = nil
	f.session.mu.Unlock()
	for _, c := range commands {
		switch c.verb {
		case stopSession:
			f.stopped, f.disabled = true, true
			f.endAll(c)
		case disableSession:
			if !f.disabled {
				f.disabled = true
				f.endAll(c)
				f.session.mu.Lock()
				f.session.history.reason = c.reason
				f.session.mu.Unlock()
			}
		case resetSession:
			f.endAll(c)
			f.damping.until = time.Time{}
			f.dials.next = time.Now()
			f.opening.pendingUntil = f.dials.next
		case enableSession:
			f.disabled = f.stopped
			f.damping.until = time.Time{}
			f.hurry()
		case connectNow:
			f.damping.reachable()
			f.hurry()
		}
	}
}

// hurry connects at once, and soon again if that fails.
func (f *fsm) hurry() {
	if f.opening.dialing != nil && (!f.opening.dialing.eager || time.Since(f.opening.dialing.began) > redialAge) {
		f.cancelAttempt()
	}
	f.dials.next = time.Now()
	if f.up == nil { // otherwise, the pending connection waits for a sign that the neighbor has restarted
		f.opening.pendingUntil = f.dials.next
	}
	f.dials.eager, f.dials.attempts = f.dials.next.Add(eagerTime), 0
}

// endAll ends the session and all attempts to open one.
func (f *fsm) endAll(c command) {
	f.cancelAttempt()
	for _, opening := range []*conn{f.opening.in, f.opening.out} {
		if opening != nil {
			f.drop(opening, c.notification)
		}
	}
	if f.up != nil {
		f.endSession(c.notification, Reason{Text: c.reason, Local: true})
	}
	if f.disabled && f.opening.pending != nil {
		f.refuse(f.opening.pending, c.notification)
		f.opening.pending = nil
	}
}

// examine returns why a session with a neighbor that sent this OPEN is refused.
func (c Config) examine(o message.Open) error {
	refuse := func(subcode uint8, data []byte, format string, args ...any) error {
		return &message.Error{
			Notification: message.Notification{Code: message.CodeOpen, Subcode: subcode, Data: data}, Detail: fmt.Sprintf(format, args...),
		}
	}
	switch common := message.Negotiate(c.open(), o).Families; {
	case o.ASN != c.RemoteASN:
		return refuse(message.SubcodeBadPeerAS, nil, "the neighbor's OPEN has another as number than %d: %d", c.RemoteASN, o.ASN)
	case c.internal() && o.RouterID == c.RouterID: // RFC 6286 section 2.2
		return refuse(message.SubcodeBadIdentifier, nil, "the neighbor's OPEN has our own router id %s", o.RouterID)
	case c.Role != "" && o.Role != "" && !c.Role.Fits(o.Role): // RFC 9234 section 4.2
		return refuse(message.SubcodeRoleMismatch, nil, "this router has the role %s, and the neighbor the role %s", c.Role, o.Role)
	case common == 0:
		var missing []byte // RFC 5492 section 5
		for f := range c.Families.All() {
			missing = append(missing, 1, 4, 0, byte(f.AFI()), 0, f.SAFI())
		}
		theirs := o.Families.String()
		if theirs == "" {
			theirs = "none that this router knows"
		}
		return refuse(message.SubcodeCapability, missing, "no common address family: ours are %s, the neighbor's %s", c.Families, theirs)
	}
	return nil
}

// preferOutgoing reports which of two connections is kept: that of the router with the higher
// router ID or, if these are equal, AS number (RFC 4271 section 6.8, RFC 6286 section 2.3).
func (c Config) preferOutgoing(o message.Open) bool {
	if order := c.RouterID.Compare(o.RouterID); order != 0 {
		return order > 0
	}
	return c.LocalASN > o.ASN
}

// endText describes why an established session ended.
func endText(err error, n message.Notification) string {
	var refusal *message.Error
	var note received
	switch {
	case errors.As(err, &note):
		return note.Error()
	case errors.As(err, &refusal):
		return "NOTIFICATION sent: " + refusal.Error()
	case n.Code == message.CodeHoldTimer:
		return "hold timer expired"
	case n.Code == message.CodeSendHoldTimer:
		return errSendHold.Error()
	case n.Code == message.CodeCease:
		return err.Error()
	}
	return "connection lost"
}
