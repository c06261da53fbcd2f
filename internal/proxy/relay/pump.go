package relay

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// pumpTurns bounds the pieces of data of a direction before other connections have their turn.
	pumpTurns = 16
	// spliceSize is the most bytes that are spliced at once.
	spliceSize = pipeSize
	// bulkEnds is the size in bytes of a piece below which data is copied again.
	bulkEnds = 4 << 10
)

// relay moves data in both directions until nothing is left or the turn is over.
func (l *loop) relay(c *connection) {
	more := false
	for d := range c.flows {
		again, errno := l.pump(c, d)
		if errno != 0 {
			l.failed(c, errno)
			return
		}
		more = more || again
	}
	switch {
	case c.flows[0].done && c.flows[1].done:
		l.finish(c)
	case more && !c.queued:
		c.queued = true
		l.ready = append(l.ready, c)
	}
}

// failed ends a connection for an error of one side. A reset is passed on to the other one.
func (l *loop) failed(c *connection, errno syscall.Errno) {
	if errno == errStripped {
		c.service.Counts.Stripped.Add(1)
		l.engine.logStripped(c)
	} else {
		c.service.Counts.Reset.Add(1)
	}
	l.abort(c)
}

// pump moves data of a direction. It returns whether there may be more to move now, and the error
// of a socket.
func (l *loop) pump(c *connection, d int) (again bool, errno syscall.Errno) {
	f, from, to := &c.flows[d], &c.sides[d], &c.sides[1-d]
	if f.done {
		if from.broken {
			return false, brokenBy(from)
		}
		return false, 0
	}
	moved := 0
	defer func() { l.account(c, d, moved) }()
	for range pumpTurns {
		n, errno := l.push(f, to)
		moved += n
		if errno != 0 {
			return false, errno
		}
		if f.held > 0 || len(f.rest) > 0 {
			// The receiver is slower. A reset of the sender does not wait for it.
			if from.broken {
				return false, brokenBy(from)
			}
			return false, 0
		}
		if from.ended {
			f.done = true
			if !c.flows[1-d].done {
				shutdownWrite(int(to.fd))
			}
			return false, 0
		}
		if !from.readable || !to.writable {
			return false, 0
		}
		if errno = l.pull(f, from); errno != 0 {
			return false, errno
		}
		if len(f.rest) > 0 || f.held > 0 || from.ended {
			if errno = from.confirm(); errno != 0 {
				return false, errno
			}
		}
	}
	// What was taken last may be in the loop's buffer, which the next connection uses.
	n, errno := l.push(f, to)
	moved += n
	return errno == 0, errno
}

// brokenBy returns the error of a socket with an event of one.
func brokenBy(s *side) syscall.Errno {
	if err, ok := pending(int(s.fd)).(syscall.Errno); ok {
		return err
	}
	s.broken = false
	return 0
}

// pull takes the next piece from a sender.
func (l *loop) pull(f *flow, from *side) syscall.Errno {
	if from.urgent {
		return l.pullUrgent(f, from)
	}
	if f.bulk && f.copied {
		if l.takeLarge(f) {
			n, errno := receive(int(from.fd), f.large[:])
			f.rest = f.large[:max(n, 0)]
			f.bulk = errno != 0 || n >= bulkEnds
			return from.took(n, errno, n < len(f.large))
		}
	} else if f.bulk {
		if f.pipe == nil {
			f.pipe = l.pipe()
		}
		if f.pipe != nil {
			n, errno := splice(int(from.fd), f.pipe.write, spliceSize)
			if errno == unix.EINVAL { // not a kind of socket that can be spliced
				f.bulk = false
				return 0
			}
			f.held = max(n, 0)
			if errno == 0 && n == 0 {
				from.urgent = true // or it is the end, which the next read returns
				return 0
			}
			if errno == 0 && n < bulkEnds {
				f.bulk = false
			}
			return from.took(n, errno, false)
		}
	}
	n, errno := receive(int(from.fd), l.buffer[:])
	if errno == 0 && n > 0 {
		f.rest, f.borrowed = l.buffer[:n], true
		if f.bulk = n == len(l.buffer); f.bulk {
			f.copied = !spliceable(int(from.fd))
		}
	}
	return from.took(n, errno, n < len(l.buffer))
}

// pullUrgent takes the next piece from a sender of urgent data. Of that only one byte is urgent,
// which is passed on by itself; reading ends before it, so that a short piece is not all.
func (l *loop) pullUrgent(f *flow, from *side) syscall.Errno {
	b := l.buffer[:]
	at := atUrgent(int(from.fd))
	if at {
		b = b[:1]
	}
	n, errno := receive(int(from.fd), b)
	f.bulk = false
	if errno == 0 && n > 0 {
		f.rest, f.borrowed, f.urgent = b[:n], true, at
	}
	if at && errno == 0 || errno == unix.EAGAIN {
		from.urgent = false
	}
	return from.took(n, errno, false)
}

// took applies the result of reading from a socket. all means that the socket had no more; what
// comes later is an event.
func (s *side) took(n int, errno syscall.Errno, all bool) syscall.Errno {
	switch {
	case errno == unix.EAGAIN:
		s.readable = false
		return 0
	case errno == unix.EINTR:
		return 0
	case errno != 0:
		return errno
	case n == 0:
		s.ended, s.readable = true, false
	case all && !s.ending:
		s.readable = false
	}
	return 0
}

// push gives the receiver what was taken, and returns the bytes that it has taken. What remains of
// the loop's buffer is copied.
func (l *loop) push(f *flow, to *side) (moved int, errno syscall.Errno) {
	if n := f.held + len(f.rest); n > 0 && to.writable && !to.prompt {
		to.sends(n)
	}
	for f.held > 0 && to.writable {
		n, errno := splice(f.pipe.read, int(to.fd), f.held)
		switch errno {
		case 0:
			f.held -= n
			moved += n
		case unix.EAGAIN:
			to.writable = false
		case unix.EINTR:
		default:
			return moved, errno
		}
	}
	if f.held == 0 && f.pipe != nil {
		l.putPipe(f.pipe)
		f.pipe = nil
	}
	var flags uintptr
	if f.urgent {
		flags = unix.MSG_OOB
	}
	for len(f.rest) > 0 && to.writable {
		n, errno := sendWith(int(to.fd), f.rest, flags)
		switch errno {
		case 0:
			f.rest = f.rest[n:]
			moved += n
		case unix.EAGAIN:
			to.writable = false
		case unix.EINTR:
		default:
			return moved, errno
		}
	}
	switch {
	case len(f.rest) == 0:
		f.rest, f.urgent = nil, false
		l.putLarge(f)
	case f.borrowed:
		f.rest = append([]byte(nil), f.rest...)
	}
	f.borrowed = false
	return moved, 0
}

// sends prepares a socket for sending n bytes. What is sent first goes at once if it is one
// segment, so that many short connections need no option; anything after it, or the rest of a
// segment, would wait for an acknowledgment.
func (s *side) sends(n int) {
	if s.begun || n > leastSegment {
		s.prompt = true
		_ = sendAtOnce(int(s.fd)) // sending to a broken one fails
	}
	s.begun = true
}

// account counts what was moved at once in a direction.
func (l *loop) account(c *connection, d, moved int) {
	if moved == 0 {
		return
	}
	c.active = l.now
	l.await(c, 1-d)
	f := &c.flows[d]
	if f.segment == 0 && moved > leastSegment {
		f.segment = int32(segment(int(c.sides[1-d].fd)))
	}
	size := int(f.segment)
	if size == 0 {
		size = defaultSegment
	}
	counts := &c.service.Counts
	if d == 0 {
		counts.ToTarget.Add(uint64(moved))
		counts.ToTargetBursts.add(moved, size)
	} else {
		counts.ToClient.Add(uint64(moved))
		counts.ToClientBursts.add(moved, size)
	}
}
