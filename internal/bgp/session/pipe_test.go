package session

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// pipe returns the ends of a connection in memory. Unlike those of net.Pipe, they have send
// buffers, of a size in bytes.
func pipe(size int) (a, b *end) {
	var mu sync.Mutex
	a, b = &end{mu: &mu, size: size, changed: make(chan struct{})}, &end{mu: &mu, size: size, changed: make(chan struct{})}
	a.peer, b.peer = b, a
	return a, b
}

// end is one end of a pipe. mu, of both ends, guards everything.
type end struct {
	mu   *sync.Mutex
	peer *end
	size int

	buf                 []byte // sent by the peer
	closed, writeClosed bool
	reading, writing    time.Time     // deadlines
	changed             chan struct{} // closed at each change of either end
}

func (e *end) notify() {
	for _, x := range []*end{e, e.peer} {
		close(x.changed)
		x.changed = make(chan struct{})
	}
}

// wait waits for a change, or the deadline. The caller holds mu.
func (e *end) wait(deadline time.Time) error {
	changed := e.changed
	var timer <-chan time.Time
	if !deadline.IsZero() {
		d := time.Until(deadline)
		if d <= 0 {
			return os.ErrDeadlineExceeded
		}
		t := time.NewTimer(d)
		defer t.Stop()
		timer = t.C
	}
	e.mu.Unlock()
	defer e.mu.Lock()
	select {
	case <-changed:
	case <-timer:
	}
	return nil
}

func (e *end) Read(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		switch {
		case e.closed:
			return 0, net.ErrClosed
		case len(e.buf) > 0:
			n := copy(b, e.buf)
			e.buf = e.buf[n:]
			e.notify()
			return n, nil
		case e.peer.closed || e.peer.writeClosed:
			return 0, io.EOF
		}
		if err := e.wait(e.reading); err != nil {
			return 0, err
		}
	}
}

func (e *end) Write(b []byte) (n int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		if e.closed || e.writeClosed {
			return n, net.ErrClosed
		}
		if e.peer.closed {
			return n, io.ErrClosedPipe
		}
		if room := min(e.size-len(e.peer.buf), len(b)); room > 0 {
			e.peer.buf = append(e.peer.buf, b[:room]...)
			b = b[room:]
			n += room
			e.notify()
		}
		if len(b) == 0 {
			return n, nil
		}
		if err := e.wait(e.writing); err != nil {
			return n, err
		}
	}
}

func (e *end) change(f func()) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
	e.notify()
	return nil
}

func (e *end) Close() error                       { return e.change(func() { e.closed = true }) }
func (e *end) CloseWrite() error                  { return e.change(func() { e.writeClosed = true }) }
func (e *end) SetReadDeadline(t time.Time) error  { return e.change(func() { e.reading = t }) }
func (e *end) SetWriteDeadline(t time.Time) error { return e.change(func() { e.writing = t }) }
func (e *end) SetDeadline(t time.Time) error {
	return e.change(func() { e.reading, e.writing = t, t })
}
func (e *end) LocalAddr() net.Addr  { return &net.TCPAddr{} }
func (e *end) RemoteAddr() net.Addr { return &net.TCPAddr{} }
