package relay

import (
	"golang.org/x/sys/unix"
)

const (
	// pipeSize is the capacity of a pipe in bytes: what the kernel permits to all users.
	pipeSize = 1 << 20
	// maxPipes bounds the pipes of an engine, of two descriptors each. Each connection whose
	// receiver is slower than its sender holds one; further ones are copied.
	maxPipes = 32
	// keptPipes is the number of empty pipes, and of large buffers, that a loop keeps from one
	// second to the next.
	keptPipes = 2
	// largeSize is the size in bytes of a large buffer, and maxLarges bounds those of an engine.
	largeSize = 256 << 10
	maxLarges = 32
)

// pipe is the two ends of a pipe. One that no connection holds is empty.
type pipe struct{ read, write int }

// pipe returns an empty pipe, or nil if there are too many or no descriptors.
func (l *loop) pipe() *pipe {
	if n := len(l.pipes); n > 0 {
		p := l.pipes[n-1]
		l.pipes = l.pipes[:n-1]
		return p
	}
	if l.engine.pipes.Add(1) > maxPipes {
		l.engine.pipes.Add(-1)
		return nil
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		l.engine.pipes.Add(-1)
		return nil
	}
	// Beyond a limit for all of their pipes, users without privileges have small ones, which work
	// too.
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeSize)
	return &pipe{read: fds[0], write: fds[1]}
}

// putPipe takes an empty pipe back.
func (l *loop) putPipe(p *pipe) { l.pipes = append(l.pipes, p) }

// discard closes a pipe with what it has.
func (l *loop) discard(p *pipe) {
	closeSocket(p.read)
	closeSocket(p.write)
	l.engine.pipes.Add(-1)
}

// largeBuffer is for bulk data that is copied. One that no connection holds is unused.
type largeBuffer [largeSize]byte

// takeLarge gives a direction a large buffer, unless it has one, and reports whether it has: there
// may be too many.
func (l *loop) takeLarge(f *flow) bool {
	if f.large != nil {
		return true
	}
	if n := len(l.larges); n > 0 {
		f.large = l.larges[n-1]
		l.larges = l.larges[:n-1]
		return true
	}
	if l.engine.larges.Add(1) > maxLarges {
		l.engine.larges.Add(-1)
		return false
	}
	f.large = new(largeBuffer)
	return true
}

// putLarge takes the large buffer of a direction back, if it has one.
func (l *loop) putLarge(f *flow) {
	if f.large != nil {
		l.larges = append(l.larges, f.large)
		f.large = nil
	}
}

// trimPipes closes the empty pipes that were not needed in the last second, and drops such buffers.
func (l *loop) trimPipes() {
	for len(l.pipes) > keptPipes {
		n := len(l.pipes) - 1
		l.discard(l.pipes[n])
		l.pipes = l.pipes[:n]
	}
	if n := len(l.larges) - keptPipes; n > 0 {
		l.engine.larges.Add(-int32(n))
		clear(l.larges[keptPipes:])
		l.larges = l.larges[:keptPipes]
	}
}
