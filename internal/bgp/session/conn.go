package session

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/kernel/contain"
)

// conn is a BGP connection. Its reader runs the receiving side of the protocol from OPEN to the
// end; its writer exists while the session is established.
type conn struct {
	net.Conn
	fsm      *fsm
	outgoing bool // we opened it
	// proceed lets the reader continue after OPEN and after the first KEEPALIVE.
	proceed chan struct{}
	dropped chan struct{} // closed when the session has no more use for the connection
	read    chan struct{} // closed when the reader has returned
	written chan struct{} // closed when the writer has returned; nil before Up

	in reader

	// Used by the goroutine of the session only.
	began     time.Time
	open      message.Open // of the neighbor; valid if opened
	opened    bool
	confirmed bool      // we sent the KEEPALIVE that accepts the OPEN
	heldUntil time.Time // the other connection is preferred if its OPEN arrives by then

	// Set before Up is called.
	established Established
	sendHold    time.Duration
	keepalive   *time.Timer

	// control holds messages that are sent before those of Fill; Session.mu guards it.
	control []byte

	writing sync.Mutex // held while a message is written
	torn    bool       // a message was written in part; writing guards it

	// deadlines guards the deadlines of Conn and ending.
	deadlines sync.Mutex
	ending    atomic.Bool
}

const (
	// sendTimeout limits writes before the session is established. They are small enough for any
	// send buffer.
	sendTimeout = time.Second
	// minSendHold is the least default of the send hold timer (RFC 9687 section 4).
	minSendHold = 8 * time.Minute
)

func newConn(f *fsm, c net.Conn, outgoing bool) *conn {
	return &conn{
		Conn: c, fsm: f, outgoing: outgoing, proceed: make(chan struct{}, 1), dropped: make(chan struct{}), read: make(chan struct{}),
		in: reader{limit: message.MaxLen}, sendHold: sendTimeout,
	}
}

// post makes the goroutine of the session call f, unless the connection was dropped.
func (c *conn) post(f func()) {
	c.fsm.session.post(c.dropped, func() {
		if !c.ending.Load() {
			f()
		}
	})
}

// post makes the goroutine of the session call f. It returns false if the caller was dropped before
// that.
func (s *Session) post(dropped <-chan struct{}, f func()) bool {
	select {
	case s.events <- f:
		return true
	case <-dropped:
		return false
	}
}

// contain returns a panic of run as an error; last returns the message that it is about.
func (c *conn) contain(last func() []byte, run func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = contain.Caught(value, contain.BGPSession, c.fsm.session.conf.Log, last())
		}
	}()
	return run()
}

// errDropped ends the goroutines of a connection that was dropped.
var errDropped = errors.New("the connection was dropped")

// pass waits until the session lets the reader continue.
func (c *conn) pass() error {
	select {
	case <-c.proceed:
		return nil
	case <-c.dropped:
		return errDropped
	}
}

// receive reads until the connection ends, and returns why. The neighbor has the given time to send
// its OPEN, and as much again for its KEEPALIVE, however many bytes it sends.
func (c *conn) receive(patience time.Duration) error {
	// OpenSent
	if err := c.beginRead(patience); err != nil {
		return err
	}
	body, err := c.expect(message.TypeOpen, message.SubcodeInOpenSent)
	if err != nil {
		return err
	}
	open, err := message.ParseOpen(body)
	if err != nil {
		return err
	}
	c.post(func() { c.fsm.opened(c, open) })
	if err := c.pass(); err != nil {
		return err
	}
	// OpenConfirm
	if err := c.beginRead(patience); err != nil {
		return err
	}
	if _, err := c.expect(message.TypeKeepalive, message.SubcodeInOpenConfirm); err != nil {
		return err
	}
	c.post(func() { c.fsm.confirmed(c) })
	if err := c.pass(); err != nil {
		return err
	}
	// Established
	c.in.hold = c.established.HoldTime
	c.in.limit = c.established.MaxLen()
	if c.in.hold == 0 {
		if err := c.beginRead(noTimeout); err != nil {
			return err
		}
	}
	return c.receiveUpdates()
}

// expect reads a message, which must have a type.
func (c *conn) expect(want message.Type, subcode uint8) ([]byte, error) {
	t, body, err := c.next()
	switch {
	case err != nil:
		return nil, err
	case t == message.TypeNotification:
		return nil, received{message.ParseNotification(body)}
	case t != want:
		return nil, unexpected(subcode, t)
	}
	return body, nil
}

// unexpected is the error for a message that the state does not permit (RFC 6608).
func unexpected(subcode uint8, t message.Type) error {
	return &message.Error{
		Notification: message.Notification{Code: message.CodeFSM, Subcode: subcode, Data: []byte{byte(t)}},
		Detail:       fmt.Sprintf("unexpected %s", t),
	}
}

func (c *conn) next() (message.Type, []byte, error) {
	t, body, err := c.in.next(c)
	if err == nil {
		c.fsm.session.counters.received[t].Add(1)
		contain.Point(contain.BGPSession, body)
	}
	return t, body, err
}

// receiveUpdates passes messages to the handler while the session is established.
func (c *conn) receiveUpdates() error {
	h := c.fsm.session.handler
	for {
		t, body, err := c.next()
		if err != nil {
			return err
		}
		if c.ending.Load() {
			return errDropped
		}
		switch t {
		case message.TypeUpdate:
			err = h.Update(body)
		case message.TypeKeepalive:
		case message.TypeNotification:
			err = received{message.ParseNotification(body)}
		case message.TypeRouteRefresh:
			err = c.refresh(body)
		case message.TypeOpen:
			err = unexpected(message.SubcodeInEstablished, t)
		}
		if err != nil {
			return err
		}
	}
}

func (c *conn) refresh(body []byte) error {
	r, known, err := message.ParseRefresh(body)
	if err != nil {
		return err
	}
	if !known || !c.established.Families.Has(r.Family) || r.Kind != message.RefreshRequest {
		c.fsm.session.counters.ignored.Add(1)
		return nil
	}
	return c.fsm.session.handler.Refresh(r)
}

// reader reads messages into a buffer that grows with the rate at which they arrive.
type reader struct {
	limit int           // of a message
	hold  time.Duration // 0: the caller sets the read deadline
	buf   []byte
	r, w  int // what was read, but not returned
	last  int // where the message that was returned last begins
}

// message returns the message that next returned last, header included.
func (r *reader) message() []byte { return r.buf[min(r.last, r.r):r.r] }

const maxReadBuffer = 128 << 10

// next returns the next message. The body is valid until the next call.
func (r *reader) next(c *conn) (message.Type, []byte, error) {
	if err := r.fill(c, message.HeaderLen); err != nil {
		return 0, nil, err
	}
	t, length, err := message.ParseHeader(r.buf[r.r:r.w], r.limit)
	if err != nil {
		return 0, nil, err
	}
	if err := r.fill(c, length); err != nil {
		return 0, nil, err
	}
	body := r.buf[r.r+message.HeaderLen : r.r+length]
	r.last = r.r
	r.r += length
	return t, body, nil
}

// fill reads until n bytes are in the buffer.
func (r *reader) fill(c *conn, n int) error {
	for r.w-r.r < n {
		if r.r == r.w {
			r.r, r.w = 0, 0
		}
		if size := len(r.buf); size < r.r+n || r.w == size {
			if size == 0 {
				size = message.MaxLen
			} else if r.r == 0 || r.w == size && r.r < size/2 {
				size = min(2*size, maxReadBuffer) // reads fill it
			}
			for size < n {
				size *= 2
			}
			b := r.buf
			if size > len(b) {
				b = make([]byte, size)
			}
			r.w = copy(b, r.buf[r.r:r.w])
			r.r, r.buf = 0, b
		}
		m, err := r.readOnce(c)
		r.w += m
		if err != nil && m == 0 {
			return err
		}
	}
	return nil
}

// lastLook is how long a read may take that finds out whether the hold timer expired because this
// process did not run.
const lastLook = 10 * time.Millisecond

// readOnce reads under the hold timer: any byte restarts it, and so does the time that the handler
// needed, because it starts with the read.
func (r *reader) readOnce(c *conn) (int, error) {
	if r.hold == 0 {
		return c.Read(r.buf[r.w:])
	}
	if err := c.beginRead(r.hold); err != nil {
		return 0, err
	}
	n, err := c.Read(r.buf[r.w:])
	if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	if err := c.beginRead(lastLook); err != nil {
		return 0, err
	}
	return c.Read(r.buf[r.w:])
}

// noTimeout is that of a read that may take any time.
const noTimeout time.Duration = 0

// beginRead sets the read deadline; it returns an error once the connection is ending.
func (c *conn) beginRead(timeout time.Duration) error {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	switch {
	case c.ending.Load():
		return errDropped
	case timeout == noTimeout:
		return c.SetReadDeadline(time.Time{})
	}
	return c.SetReadDeadline(time.Now().Add(timeout))
}

// beginWrite sets the write deadline; it returns an error once the connection is ending.
func (c *conn) beginWrite(timeout time.Duration) error {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	if c.ending.Load() {
		return errDropped
	}
	return c.SetWriteDeadline(time.Now().Add(timeout))
}

// errSendHold is the expiry of the send hold timer (RFC 9687).
var errSendHold = errors.New("send hold timer expired")

// send writes whole messages.
func (c *conn) send(b []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.write(b)
}

// write is send. Callers hold writing. The send hold timer restarts when it expires after the
// neighbor has accepted some bytes, so that it ends the session after at most twice its time.
func (c *conn) write(b []byte) error {
	for left := b; len(left) > 0; {
		if err := c.beginWrite(c.sendHold); err != nil {
			c.torn = c.torn || len(left) < len(b)
			return err
		}
		n, err := c.Write(left)
		left = left[n:]
		if err == nil || n > 0 && errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		c.torn = c.torn || len(left) < len(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = errSendHold
		}
		return err
	}
	c.fsm.session.counters.sent.count(b)
	return nil
}

// sendKeepalive sends a KEEPALIVE, unless another message is just being sent, which has the same
// effect.
func (c *conn) sendKeepalive() error {
	if !c.writing.TryLock() {
		return nil
	}
	defer c.writing.Unlock()
	return c.write(message.AppendKeepalive(nil))
}

// sendKeepalives runs in a goroutine of its timer, so that KEEPALIVEs do not wait for the handler.
func (c *conn) sendKeepalives() {
	if err := c.contain(noMessage, c.sendKeepalive); err != nil {
		c.post(func() { c.fsm.lost(c, err) })
		return
	}
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	if !c.ending.Load() {
		c.keepalive.Reset(jitter(c.established.HoldTime / 3))
	}
}

// noMessage is the message of a panic that is not about a received one.
func noMessage() []byte { return nil }

// buffers holds buffers for Fill; they are in use only while there is something to send.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 64<<10); return &b }}

// transmit sends what the handler has, until the connection ends.
func (c *conn) transmit() {
	defer close(c.written)
	for {
		select {
		case <-c.fsm.session.wake:
		case <-c.dropped:
			return
		}
		if err := c.contain(noMessage, c.drainHandler); err != nil {
			c.post(func() { c.fsm.lost(c, err) })
			return
		}
	}
}

// drainHandler sends until the handler has nothing more to send.
func (c *conn) drainHandler() error {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for !c.ending.Load() {
		c.fsm.session.mu.Lock()
		b := append((*buf)[:0], c.control...)
		c.control = c.control[:0]
		c.fsm.session.mu.Unlock()
		b = c.fsm.session.handler.Fill(b)
		if len(b) == 0 {
			return nil
		}
		if err := c.send(b); err != nil {
			return err
		}
	}
	return nil
}

// finalTimeout limits the write of the last NOTIFICATION: if the send buffer is full, it is not
// sent.
const finalTimeout = 20 * time.Millisecond

// discardTime limits how long a connection is read from after that.
const discardTime = 10 * time.Millisecond

// end closes the connection, with a NOTIFICATION unless its Code is 0, and returns when its
// goroutines have returned. It reports whether the NOTIFICATION was sent.
func (c *conn) end(n message.Notification) (sent bool) {
	close(c.dropped)
	c.deadlines.Lock()
	c.ending.Store(true)
	if c.keepalive != nil {
		c.keepalive.Stop()
	}
	_ = c.SetWriteDeadline(time.Now()) // of the message that is being sent; the neighbor does not read
	c.deadlines.Unlock()
	if c.written != nil {
		<-c.written
	}
	c.writing.Lock() // of sendKeepalives
	if n.Code != 0 && !c.torn {
		sent = writeLast(c.Conn, n)
		if sent {
			c.fsm.session.counters.sent[message.TypeNotification].Add(1)
		}
	}
	c.writing.Unlock()
	_ = c.SetReadDeadline(time.Now())
	<-c.read
	if sent {
		c.fsm.discard(c.Conn)
	} else {
		_ = c.Close()
	}
	return sent
}

// writeLast sends a NOTIFICATION and then no more.
func writeLast(c net.Conn, n message.Notification) bool {
	_ = c.SetWriteDeadline(time.Now().Add(finalTimeout))
	if _, err := c.Write(n.Append(nil)); err != nil {
		return false
	}
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	return true
}

// discard closes a connection after it has read what was received already: if it were unread, the
// kernel would send a RST, which overtakes the NOTIFICATION at some neighbors.
func (f *fsm) discard(c net.Conn) {
	f.session.background.Go(func() {
		_ = c.SetReadDeadline(time.Now().Add(discardTime))
		_, _ = io.CopyN(io.Discard, c, maxReadBuffer)
		_ = c.Close()
	})
}

// refuse closes a connection that the session does not use.
func (f *fsm) refuse(c net.Conn, n message.Notification) {
	if writeLast(c, n) {
		f.discard(c)
	} else {
		_ = c.Close()
	}
}
