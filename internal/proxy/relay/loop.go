package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/contain"
)

const (
	// maxEvents is how many sockets a loop asks for at once.
	maxEvents = 256
	// acceptAtOnce bounds the connections that are accepted before other events have their turn.
	acceptAtOnce = 64
	// scanEvery is how often a loop looks for connections that have been idle for too long.
	scanEvery = time.Second
	// pauseFor is the time after which a loop that has paused tries to accept again.
	pauseFor = 100 * time.Millisecond
	// attemptDelay is the time after which the next address is tried beside the ones before (RFC
	// 8305 section 5: Connection Attempt Delay).
	attemptDelay = 250 * time.Millisecond
	// copySize is the size in bytes of the buffer for small pieces of data, which are cheaper to
	// copy than to splice.
	copySize = 16 << 10
)

// The slots of epoll events that are of no connection.
const (
	slotListener = -1
	slotWake     = -2
)

// loop carries some of an engine's connections, in one goroutine.
type loop struct {
	engine   *Engine
	epoll    int
	wake     int // eventfd
	events   [maxEvents]unix.EpollEvent
	now      time.Time // of the current round
	services []*Service
	buffer   [copySize]byte
	pipes    []*pipe        // empty ones
	larges   []*largeBuffer // unused ones

	connections []*connection // by slot; nil is free
	free        []int32       // slots
	spare       []*connection // closed ones, to use again
	generation  uint32
	ready       []*connection // those with data left when their turn was over
	attempts    queue
	awaited     []sent // sockets with data that may lack a DATA_ACK

	paused      bool
	resume      time.Time
	scan        time.Time
	acks        time.Time   // when DATA_ACKs are looked for next; zero: never
	current     *connection // whose event is being processed
	at, reached int         // the next event, and their number

	mu     sync.Mutex // of what follows, and of closing wake
	posted []func()
}

// queue has the connections whose next attempt is due, in order: the delay is the same for all.
type queue struct {
	list []due
	head int
}

type due struct {
	at         time.Time
	slot       int32
	generation uint32
}

func (q *queue) push(d due) { q.list = append(q.list, d) }

func (q *queue) next() (due, bool) {
	if q.head == len(q.list) {
		return due{}, false
	}
	return q.list[q.head], true
}

func (q *queue) pop() {
	if q.head++; q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
	} else if q.head > 1024 && q.head > len(q.list)/2 {
		q.list, q.head = append(q.list[:0], q.list[q.head:]...), 0
	}
}

func newLoop(e *Engine) (*loop, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open eventfd: %w", err), unix.Close(epoll))
	}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: slotWake}); err != nil {
		return nil, errors.Join(fmt.Errorf("watch eventfd: %w", err), unix.Close(epoll), unix.Close(wake))
	}
	return &loop{engine: e, epoll: epoll, wake: wake}, nil
}

// close releases a loop that does not run.
func (l *loop) close() {
	for _, p := range l.pipes {
		l.discard(p)
	}
	l.pipes = nil
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoll >= 0 {
		closeSocket(l.epoll)
		closeSocket(l.wake)
	}
	l.epoll, l.wake = -1, -1
}

// post has the loop call f, unless it is closed. It may be called from any goroutine.
func (l *loop) post(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wake < 0 {
		return // a late answer: another file may have the descriptor
	}
	l.posted = append(l.posted, f)
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(l.wake), uintptr(unsafe.Pointer(&one)), 8) // a full counter wakes as well
}

// run processes events until ctx ends, and then resets all connections.
func (l *loop) run(ctx context.Context) {
	for ctx.Err() == nil {
		l.wait()
		l.contain(l.timers)
		for l.at < l.reached || len(l.ready) > 0 {
			if !l.contain(l.process) {
				continue
			}
			break // what is ready goes on after the next events
		}
	}
	for _, c := range l.connections {
		if c != nil {
			l.abort(c)
		}
	}
	l.runPosted()
}

// contain calls f, and reports whether it has ended without a panic, whose connection it resets.
func (l *loop) contain(f func()) bool {
	l.current = nil
	err := contain.Do(contain.ProxyConnection, l.engine.log, nil, f)
	if err != nil {
		l.recover()
	}
	return err == nil
}

// recover resets the connection of a panic, and gives the others that were ready their turn again.
func (l *loop) recover() {
	if l.current != nil {
		l.abort(l.current)
	}
	l.ready = l.ready[:0]
	for _, c := range l.connections {
		if c != nil && c.queued {
			l.ready = append(l.ready, c)
		}
	}
}

// wait waits for events.
func (l *loop) wait() {
	l.at, l.reached = 0, 0
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(l.epoll), uintptr(unsafe.Pointer(&l.events)), maxEvents, 0, 0, 0)
	if errno == 0 && n == 0 && len(l.ready) == 0 {
		m, err := unix.EpollWait(l.epoll, l.events[:], l.timeout())
		if err != nil {
			m = 0 // a signal
		}
		n = uintptr(m)
	}
	if errno == 0 {
		l.reached = int(n)
	}
	l.now = time.Now()
}

// timeout returns the time until something is due, in milliseconds.
func (l *loop) timeout() int {
	left := scanEvery
	if d, ok := l.attempts.next(); ok {
		left = min(left, time.Until(d.at))
	}
	if l.paused {
		left = min(left, pauseFor)
	}
	if !l.acks.IsZero() {
		left = min(left, time.Until(l.acks))
	}
	return max(int((left+time.Millisecond-1)/time.Millisecond), 0)
}

// process processes the rest of the events, and then gives the ready connections another turn.
func (l *loop) process() {
	for l.at < l.reached {
		e := l.events[l.at]
		l.at++
		l.current = nil
		switch {
		case e.Fd == slotWake:
			var b [8]byte
			_, _ = receive(l.wake, b[:]) // another thread may have read it
			l.runPosted()
		case e.Fd == slotListener:
			if i := int(e.Pad); i < len(l.services) && l.services[i] != nil && !l.paused {
				l.accept(l.services[i])
			}
		default:
			which := int(uint32(e.Pad) & whichMask)
			if c := l.find(e.Fd, uint32(e.Pad)>>whichBits); c != nil {
				l.current = c
				l.event(c, which, e.Events)
			}
		}
	}
	l.current = nil
	ready := l.ready
	l.ready = nil
	for _, c := range ready {
		c.queued = false
		if c.state == relaying {
			l.current = c
			l.relay(c)
		}
	}
	l.current = nil
}

// find returns the connection of a slot, or nil if it is another one meanwhile.
func (l *loop) find(slot int32, generation uint32) *connection {
	if slot < 0 || int(slot) >= len(l.connections) {
		return nil
	}
	if c := l.connections[slot]; c != nil && c.generation == generation {
		return c
	}
	return nil
}

func (l *loop) runPosted() {
	l.mu.Lock()
	posted := l.posted
	l.posted = nil
	l.mu.Unlock()
	for _, f := range posted {
		l.contain(f)
	}
}

// timers does what is due.
func (l *loop) timers() {
	for {
		d, ok := l.attempts.next()
		if !ok || l.now.Before(d.at) {
			break
		}
		l.attempts.pop()
		if c := l.find(d.slot, d.generation); c != nil && c.state == connecting {
			l.current = c
			l.attemptDue(c)
		}
	}
	if l.paused && !l.now.Before(l.resume) && !l.engine.full() {
		l.paused = false
		l.engine.paused.Add(-1)
		for i, s := range l.services {
			if s != nil {
				l.listen(i, s)
			}
		}
	}
	l.acknowledged()
	if l.now.Before(l.scan) {
		return
	}
	l.scan = l.now.Add(scanEvery)
	for _, c := range l.connections {
		if c != nil {
			l.current = c
			l.expire(c)
		}
	}
	l.trimPipes()
}

// serve begins to accept connections of a service.
func (l *loop) serve(s *Service) {
	i := 0
	for i < len(l.services) && l.services[i] != nil {
		i++
	}
	if i == len(l.services) {
		l.services = append(l.services, nil)
	}
	l.services[i] = s
	if !l.paused {
		l.listen(i, s)
	}
}

// listen watches the sockets of a service. Of the loops that wait, the kernel wakes one.
func (l *loop) listen(i int, s *Service) {
	for _, fd := range s.Sockets {
		e := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLEXCLUSIVE, Fd: slotListener, Pad: int32(i)}
		if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &e); err != nil {
			l.engine.log.Error("listener is not watched", "listener", s.Name, "err", err)
		}
	}
}

func (l *loop) unlisten(s *Service) {
	for _, fd := range s.Sockets {
		_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, fd, nil) // it is not watched while accepting pauses
	}
}

// leave stops accepting connections of a service.
func (l *loop) leave(s *Service) {
	for i, other := range l.services {
		if other == s {
			l.services[i] = nil
			l.unlisten(s)
		}
	}
}

// pause stops accepting for a while: the queues of the listening sockets keep what comes.
func (l *loop) pause(reason string) {
	l.resume = l.now.Add(pauseFor)
	if l.paused {
		return
	}
	l.paused = true
	l.engine.paused.Add(1)
	for _, s := range l.services {
		if s != nil {
			l.unlisten(s)
		}
	}
	l.engine.logPause(reason)
}

// accept accepts the connections that wait at the sockets of a service.
func (l *loop) accept(s *Service) {
	for _, fd := range s.Sockets {
		for range acceptAtOnce {
			if l.engine.full() {
				l.pause("limit of connections, see the limit of descriptors in tabane doctor")
				return
			}
			client, from, errno := accept(fd)
			switch errno {
			case 0:
			case unix.ECONNABORTED, unix.EINTR:
				continue // the client is gone
			default:
				if Local(errno) {
					l.pause(errno.Error())
					return
				}
				errno = unix.EAGAIN
			}
			if errno == unix.EAGAIN {
				break
			}
			s.Counts.Accepted.Add(1)
			if s.Allow != nil && !s.Allow(from.Addr()) {
				s.Counts.Denied.Add(1)
				resetSocket(client)
				continue
			}
			l.begin(s, client, from)
		}
	}
}

// connectionEvents are those that sockets of connections are watched for, once each.
const connectionEvents = unix.EPOLLIN | unix.EPOLLPRI | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET&(1<<32-1)

// watch watches a socket of a connection.
func (l *loop) watch(c *connection, which, fd int) syscall.Errno {
	e := unix.EpollEvent{Events: connectionEvents, Fd: c.slot, Pad: int32(c.generation<<whichBits | uint32(which))}
	_, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(l.epoll), unix.EPOLL_CTL_ADD, uintptr(fd), uintptr(unsafe.Pointer(&e)), 0, 0)
	return errno
}
