package emulator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/kernel/offload"
	"github.com/tabane/tabane/internal/kernel/realtime"
)

// ErrClosed is wrapped by errors of a link whose Run has ended.
var ErrClosed = errors.New("link is closed")

// Options configure a Link.
type Options struct {
	Config Config
	// Memory limits the memory of frames queued or on the wire in each direction. Default: 64
	// MiB, which is 1.3 s at 400 Mbit/s.
	Memory unit.Size
	Log    *slog.Logger
}

// Link is a relay between two interfaces.
//
// One goroutine moves the frames of both directions, without locks. A link should run in a process
// of its own, at real-time priority: other goroutines and the garbage collector of a busy process
// delay frames. The goroutine is not locked to a thread, because every preemption would then switch
// threads.
type Link struct {
	config Config
	log    *slog.Logger
	start  time.Time
	ends   [2]*port
	ways   [2]*way // forward, backward
	wake   int     // eventfd
	cable  *cable

	realtime atomic.Bool

	mu     sync.Mutex
	state  state
	calls  []func(now time.Duration)
	called atomic.Bool
	stop   atomic.Bool
	// The result of Report after Run has returned.
	last    Report
	lastErr error
}

type state int

const (
	made state = iota
	running
	ended
)

// New opens a link in the network namespace of the calling thread. The link may then be used from
// any thread. On both interfaces New turns off offloads, disables IPv6, so that the namespace sends
// no frames of its own, and sets them up. They must have the same MTU.
func New(o Options) (*Link, error) {
	l, err := open(o)
	if err != nil {
		return nil, fmt.Errorf("open link between %q and %q: %w", o.Config.A, o.Config.B, err)
	}
	return l, nil
}

func open(o Options) (_ *Link, err error) {
	if err := o.Config.Check().Err(); err != nil {
		return nil, err
	}
	if o.Memory < 0 {
		return nil, fmt.Errorf("memory must be > 0, got %s", o.Memory)
	}
	if o.Memory == 0 {
		o.Memory = defaultMemory
	}
	l := &Link{config: o.Config, log: o.Log, start: time.Now(), wake: -1}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.release())
		}
	}()
	var links [2]netlink.Link
	for i, name := range []string{o.Config.A, o.Config.B} {
		if links[i], err = netlink.LinkByName(name); err != nil {
			return nil, fmt.Errorf("find interface %q: %w", name, err)
		}
		if err := silence(name); err != nil {
			return nil, err
		}
		if err := offload.Prepare(name); err != nil {
			return nil, err
		}
	}
	mtu := links[0].Attrs().MTU
	if other := links[1].Attrs().MTU; mtu != other {
		return nil, fmt.Errorf("interfaces must have one MTU, got %d and %d", mtu, other)
	}
	longest := mtu + etherHeader + vlanTag
	for i, link := range links {
		if l.ends[i], err = openPort(link.Attrs().Name, link.Attrs().Index, longest); err != nil {
			return nil, fmt.Errorf("open interface %q: %w", link.Attrs().Name, err)
		}
	}
	for i, profile := range []linkmodel.Profile{o.Config.Forward, o.Config.Backward} {
		a := newArena(longest, o.Memory)
		l.ways[i] = &way{
			from: l.ends[i], to: l.ends[1-i], longest: longest, arena: a, log: l.log, logged: map[string]bool{},
			pipe: linkmodel.NewPipe(profile, unit.Size(longest-vlanTag), o.Config.Seed, uint64(i), a),
		}
	}
	if l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("make event: %w", err)
	}
	if l.cable, err = openCable(l); err != nil {
		return nil, err
	}
	return l, nil
}

// silence disables IPv6 on the interface, so that the kernel sends no frames such as router
// solicitations.
func silence(iface string) error {
	path := filepath.Join("/proc/sys/net/ipv6/conf", iface, "disable_ipv6")
	err := os.WriteFile(path, []byte("1"), 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // no IPv6 in this kernel
	}
	if err != nil {
		return fmt.Errorf("disable IPv6 on interface %q: %w", iface, err)
	}
	return nil
}

// release closes the ports and the eventfd.
func (l *Link) release() error {
	var errs []error
	for _, p := range l.ends {
		if p != nil {
			errs = append(errs, p.close())
		}
	}
	if l.wake >= 0 {
		errs = append(errs, unix.Close(l.wake))
	}
	if l.cable != nil {
		errs = append(errs, l.cable.close())
	}
	return errors.Join(errs...)
}

// Close releases a link whose Run was never called. After Run, which releases the link itself,
// Close has no effect.
func (l *Link) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != made {
		return nil
	}
	l.state = ended
	l.last, l.lastErr = l.report()
	return l.release()
}

// Run relays frames until ctx is done, and then returns nil, or until an interface is removed, and
// then returns an error. At the end it sets both interfaces down, so that the nodes lose their
// carrier; frames in flight are lost. It can be called once.
func (l *Link) Run(ctx context.Context) error {
	l.mu.Lock()
	if l.state != made {
		l.mu.Unlock()
		return fmt.Errorf("run link: %w", ErrClosed)
	}
	// Set may have changed the profiles since New.
	if err := l.config.Schedule.Check(l.ways[0].pipe.Profile(), l.ways[1].pipe.Profile()).Err(); err != nil {
		l.mu.Unlock()
		return errors.Join(fmt.Errorf("run link: schedule: %w", err), l.Close())
	}
	l.state = running
	l.ways[0].steps, l.ways[1].steps = begin(l.config.Schedule, l.now())
	l.mu.Unlock()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	undo := context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.stop.Store(true)
		if l.state == running {
			l.ring()
		}
	})
	var watching sync.WaitGroup
	watching.Go(func() {
		if err := l.cable.watch(); err != nil {
			cancel(err)
		}
	})
	relayed := make(chan error)
	go func() { relayed <- l.relay() }()
	err := <-relayed
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		err = cause
	}
	undo()
	l.finish()

	l.cable.stop()
	watching.Wait()
	down := l.cable.down()
	if err != nil {
		down = nil // a removed interface cannot be set down; err has the cause
		err = fmt.Errorf("relay between %q and %q: %w", l.config.A, l.config.B, err)
	}
	return errors.Join(err, down, l.release())
}

// finish answers pending calls after the relay has ended. Later calls return ErrClosed.
func (l *Link) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = ended
	for _, call := range l.calls {
		call(l.now())
	}
	l.calls = nil
	l.last, l.lastErr = l.report()
}

// now returns the time of the relay: the monotonic time since New.
func (l *Link) now() time.Duration { return time.Since(l.start) }

// begin splits a schedule that starts now into one for each direction, with At in the relay's time.
func begin(s linkmodel.Schedule, now time.Duration) (forward, backward linkmodel.Schedule) {
	s = slices.Clone(s)
	for i := range s {
		s[i].At += now
	}
	return s.Split()
}

// lead is how much earlier than the next deadline the relay wakes up, about the latency of a
// wake-up. It spins until the deadline. A longer lead costs CPU time, a shorter one precision.
const lead = 10 * time.Microsecond

const (
	// doze is the longest time for which the relay does not poll the rings although frames may
	// arrive.
	doze = time.Millisecond
	// linger is the longest wait in a raw system call, of which Go's scheduler is not notified.
	// Notifying it costs as much as the rest of moving a frame: sysmon, which retakes the P of
	// a goroutine blocked in a system call and then polls every 20 us, uses a third of a core.
	// In a longer raw system call sysmon would preempt the relay every 10 ms, and an idle link
	// would use CPU time.
	linger = time.Millisecond
)

// relay is the loop that moves frames.
func (l *Link) relay() error {
	l.hurry()
	fds := []unix.PollFd{
		{Fd: int32(l.wake), Events: unix.POLLIN},
		{Fd: int32(l.ends[0].fd), Events: unix.POLLIN},
		{Fd: int32(l.ends[1].fd), Events: unix.POLLIN},
	}
	idle := false
	for !l.stop.Load() {
		if l.called.Load() {
			l.answer()
		}
		t := time.Now()
		now := t.Sub(l.start)
		offset := int64(now) - t.UnixNano()
		more := false
		for _, w := range l.ways {
			if w.take(now, offset) {
				more = true
			}
		}
		for _, w := range l.ways {
			if w.give(l.now) {
				more = true
			}
		}
		if more {
			continue
		}
		now = l.now()
		next := min(l.ways[0].next(), l.ways[1].next())
		if next-now <= lead {
			continue
		}
		woken, err := l.sleep(fds, now, next, idle)
		if err != nil {
			return err
		}
		idle = !woken && next-now > linger
	}
	return nil
}

// sleep waits until the time next and reports whether a frame or a call ended the wait. If a frame
// that arrives now could have to be sent before next, it also returns when a frame arrives. Unless
// idle, it waits at most linger.
func (l *Link) sleep(fds []unix.PollFd, now, next time.Duration, idle bool) (bool, error) {
	wait := linkmodel.Never
	if next != linkmodel.Never {
		wait = next - now - lead
		// A frame that arrives during the wait and cannot be sent before its end need not
		// wake the relay, because it has a timestamp. This saves every other wake-up of a
		// busy link.
		if wait <= doze && next <= now+min(l.ways[0].least(), l.ways[1].least()) {
			fds = fds[:1]
		}
	}
	for i := range fds {
		fds[i].Revents = 0
	}
	n, err := poll(fds, wait, idle)
	if err != nil {
		return false, fmt.Errorf("wait for frames: %w", err)
	}
	for i, fd := range fds[1:] {
		if fd.Revents&unix.POLLERR == 0 {
			continue
		}
		// The socket receives again by itself once the interface is up again.
		if err := l.ends[i].clear(); err != nil && !errors.Is(err, unix.ENETDOWN) {
			return false, fmt.Errorf("receive from %q: %w", l.ends[i].name, err)
		}
	}
	return n > 0, nil
}

// poll waits for at most wait until a file is ready, and returns the number of ready files. It
// returns early, without an error, when a signal interrupts it.
func poll(fds []unix.PollFd, wait time.Duration, idle bool) (int, error) {
	if wait > linger && idle {
		var timeout *unix.Timespec
		if wait != linkmodel.Never {
			ts := unix.NsecToTimespec(int64(wait))
			timeout = &ts
		}
		n, err := unix.Ppoll(fds, timeout, nil)
		if errors.Is(err, unix.EINTR) {
			return 0, nil
		}
		return n, err
	}
	ts := unix.NsecToTimespec(int64(min(wait, linger)))
	n, _, e := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), uintptr(len(fds)), uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	switch e {
	case 0:
		return int(n), nil
	case unix.EINTR:
		return 0, nil
	default:
		return 0, e
	}
}

// hurry sets the timer slack of a thread without real-time priority to the minimum, so that it
// wakes up in time.
func (l *Link) hurry() {
	if realtime.Thread() {
		l.realtime.Store(true)
		return
	}
	l.log.Warn("link has no real-time priority: its delays suffer when the machine is busy")
	// The kernel's default slack of 50 us would be added to every delay. The goroutine may move
	// to another thread, but only in a busy process, in which timers are late anyway.
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		l.log.Warn("timers of the link are late: slack not changed", "err", err)
	}
}

// ring wakes the relay. The caller holds the lock, so that the event is not closed meanwhile.
func (l *Link) ring() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	// It fails only if the counter is full, and then the relay wakes up anyway.
	_, _ = unix.Write(l.wake, one[:])
}

// answer runs the pending calls.
func (l *Link) answer() {
	var count [8]byte
	_, _ = unix.Read(l.wake, count[:]) // resets the eventfd; the calls are in the list
	l.mu.Lock()
	calls := l.calls
	l.calls = nil
	l.called.Store(false)
	l.mu.Unlock()
	now := l.now()
	for _, call := range calls {
		call(now)
	}
}

// do calls f on the relay's goroutine, or directly before Run, so that f may access the relay's
// state. After Run it returns ErrClosed.
func (l *Link) do(f func(now time.Duration)) error {
	l.mu.Lock()
	switch l.state {
	case made:
		defer l.mu.Unlock()
		f(l.now())
		return nil
	case ended:
		l.mu.Unlock()
		return ErrClosed
	case running:
	}
	done := make(chan struct{})
	l.calls = append(l.calls, func(now time.Duration) {
		f(now)
		close(done)
	})
	l.called.Store(true)
	l.ring()
	l.mu.Unlock()
	<-done
	return nil
}
