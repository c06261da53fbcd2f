package edge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/mptcp"
)

const (
	// watchBusy and watchIdle lie between two looks at the subflows while something is in flight on a connection with
	// several, and otherwise; one in watchShare of a core is what looking may cost, so that it is rarer with very many.
	watchBusy  = 40 * time.Millisecond
	watchIdle  = 100 * time.Millisecond
	watchShare = 5
	// watchEach is how many subflows are looked at one by one. For more it is cheaper to walk all sockets, which takes 1.3 ms
	// and 2 us for each subflow, where a single one takes 6 us.
	watchEach = 256
	// resyncFirst and resyncMost bound the pause before connections that could not be read are read again.
	resyncFirst = 100 * time.Millisecond
	resyncMost  = 5 * time.Second
	// reviewEvery is how often all connections are read although nothing was lost: the kernel does not tell of the end of one
	// that its client resets (MP_FASTCLOSE).
	reviewEvery = time.Minute
)

// pathKernel is what a pathLoop asks and reads; *kernelPaths is one.
type pathKernel interface {
	Request(mptcp.Request) error
	Subflows(mptcp.Family, func(mptcp.Subflow)) error
	Look([]mptcp.Ends, func(mptcp.Subflow)) error
}

// kernelPaths is the kernel as a pathLoop sees it.
type kernelPaths struct {
	*mptcp.Conn
	*mptcp.Diag
}

// pathEvents is where a pathLoop hears of connections; *mptcp.Events is one.
type pathEvents interface {
	// Receive returns an error that matches os.ErrClosed after Close.
	Receive() ([]mptcp.Event, error)
	Close() error
}

// pathLoop runs a pathManager and a stallWatch against the kernel.
type pathLoop struct {
	manager *pathManager
	watch   *stallWatch
	kernel  pathKernel
	log     *slog.Logger

	mu     sync.Mutex
	inbox  []func(now time.Time) error
	status PathStatus
	posted chan struct{}

	look   time.Time // when to look at the subflows next; zero: not at all
	resync time.Time // when to read all connections anew; zero: not needed
	review time.Time // when to do so at the latest; zero: there are none
	pause  time.Duration
	failed map[string]bool // refusals that were logged
}

// PathStatus says what the path manager manages and did.
type PathStatus struct {
	Manager PathManager `json:"manager"`
	// Connections counts those of clients, Subflows theirs on any address; both only with the path manager in user space.
	Connections int `json:"connections"`
	Subflows    int `json:"subflows"`
	// Parked counts connections that keep a subflow whose route has gone, unused, until it can be closed without harm.
	Parked int `json:"parked"`
	PathCounts
}

func newPathLoop(m *pathManager, kernel pathKernel, log *slog.Logger) *pathLoop {
	return &pathLoop{
		manager: m, watch: newStallWatch(), kernel: kernel, log: log,
		status: PathStatus{Manager: UserPathManager}, posted: make(chan struct{}, 1), failed: map[string]bool{},
	}
}

// post has f called in the loop, after all that was posted before.
func (l *pathLoop) post(f func(now time.Time) error) {
	l.mu.Lock()
	l.inbox = append(l.inbox, f)
	l.mu.Unlock()
	select {
	case l.posted <- struct{}{}:
	default:
	}
}

// Status is as of the last thing that happened.
func (l *pathLoop) Status() PathStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status
}

// run manages connections until ctx ends, and closes events. What it offered to clients stays offered.
func (l *pathLoop) run(ctx context.Context, events pathEvents) (err error) {
	var receiving sync.WaitGroup
	receiving.Go(func() { l.receive(events) })
	defer func() {
		err = errors.Join(err, events.Close())
		receiving.Wait()
	}()
	l.resync = time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.posted:
		case <-timer.C:
		}
		if err := l.step(); err != nil {
			return err
		}
		timer.Stop()
		if at := l.next(); !at.IsZero() {
			timer.Reset(time.Until(at))
		}
	}
}

// leave takes everything from clients; the connections go on over their first subflows.
func (l *pathLoop) leave() {
	l.manager.leave(time.Now())
	l.execute()
}

// receive empties the kernel's buffer, however long the loop takes for what came before.
func (l *pathLoop) receive(events pathEvents) {
	for {
		list, err := events.Receive()
		if errors.Is(err, os.ErrClosed) {
			return
		}
		l.post(func(now time.Time) error {
			for _, e := range list {
				l.event(now, e)
			}
			return err
		})
		if err != nil {
			return
		}
	}
}

func (l *pathLoop) event(now time.Time, e mptcp.Event) {
	o, lost := e.(mptcp.Overrun)
	if !lost {
		l.manager.event(now, e)
		return
	}
	l.manager.counts.Overruns++
	l.log.Warn("mptcp events were lost, reading all connections again", "err", o.Reason)
	l.resync = now
}

// step does what is due.
func (l *pathLoop) step() error {
	l.mu.Lock()
	inbox := l.inbox
	l.inbox = nil
	l.mu.Unlock()
	for _, f := range inbox {
		if err := f(time.Now()); err != nil {
			return fmt.Errorf("manage paths: %w", err)
		}
	}
	now := time.Now()
	if due(l.resync, now) || due(l.review, now) {
		l.execute() // what is read is to have what was decided
		l.readAll(now)
	}
	l.manager.tick(now)
	l.execute()
	if due(l.look, now) {
		l.lookAt()
		l.execute()
	}
	if len(l.manager.conns) == 0 {
		l.look, l.review = time.Time{}, time.Time{}
	} else {
		if l.look.IsZero() {
			l.look = now.Add(watchIdle)
		}
		if l.review.IsZero() {
			l.review = now.Add(reviewEvery)
		}
	}
	l.mu.Lock()
	l.status.PathCounts, l.status.Parked = l.manager.counts, len(l.manager.parked)
	l.status.Connections, l.status.Subflows = len(l.manager.conns), l.manager.subflows
	l.mu.Unlock()
	return nil
}

// due tells whether a time that was set has come.
func due(at, now time.Time) bool { return !at.IsZero() && !now.Before(at) }

// next is when step has something to do again, zero when nothing is foreseen.
func (l *pathLoop) next() time.Time {
	next, ok := l.manager.next()
	if !ok {
		next = time.Time{}
	}
	for _, at := range []time.Time{l.look, l.resync, l.review} {
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// execute brings requests to the kernel. One that it refuses for a reason of its own, such as no memory, is decided again,
// on the ground of what is really there.
func (l *pathLoop) execute() {
	for {
		requests := l.manager.take()
		if len(requests) == 0 {
			return
		}
		for _, r := range requests {
			err := l.kernel.Request(r)
			now, failed := time.Now(), l.manager.counts.Failed
			l.manager.done(now, r, err)
			if l.manager.counts.Failed == failed {
				continue
			}
			if kind := fmt.Sprintf("%T", r); !l.failed[kind] {
				l.failed[kind] = true
				l.log.Error("the kernel refused a request, trying again; more of the kind are only counted", "err", err)
			}
			if l.resync.IsZero() {
				l.resync = now.Add(retryAfter)
			}
		}
	}
}

// readAll reads all connections and has them managed.
func (l *pathLoop) readAll(now time.Time) {
	var all []mptcp.Subflow
	for _, family := range []mptcp.Family{mptcp.IPv6, mptcp.IPv4} {
		if err := l.kernel.Subflows(family, func(s mptcp.Subflow) { all = append(all, s) }); err != nil {
			if l.pause == 0 {
				l.log.Error("connections are unknown, trying again", "err", err)
			}
			l.pause = min(max(2*l.pause, resyncFirst), resyncMost)
			l.resync, l.review = now.Add(l.pause), time.Time{}
			return
		}
	}
	l.pause, l.resync, l.review = 0, time.Time{}, time.Time{}
	l.manager.resync(now, all)
}

// lookAt watches the progress of subflows. EPE addresses are of IPv6, so connections that have a choice are too.
func (l *pathLoop) lookAt() {
	began := time.Now()
	l.watch.begin()
	sample := func(s mptcp.Subflow) {
		l.watch.sample(began, s)
		l.manager.observe(began, s)
	}
	var err error
	if at := l.manager.choices(); len(at) <= watchEach {
		err = l.kernel.Look(at, sample)
	} else {
		err = l.kernel.Subflows(mptcp.IPv6, sample)
	}
	took := time.Since(began)
	every := watchIdle
	switch {
	case err != nil:
		if !l.failed["look"] {
			l.failed["look"] = true
			l.log.Error("progress of subflows is unknown", "err", err)
		}
	default:
		stalls := l.watch.end(began)
		for _, s := range stalls {
			for _, ends := range s.moving {
				l.manager.moved(began, s.token, ends)
			}
			if len(s.stalled) > 0 {
				l.manager.alarm(began, s.token, s.stalled, s.idle)
			}
		}
		l.manager.release(began)
		l.logStalls(stalls)
		if l.watch.busy && l.watch.paths {
			every = watchBusy
		}
	}
	l.look = began.Add(max(every, watchShare*took))
}

// logStalls tells of one connection for all.
func (l *pathLoop) logStalls(stalls []stall) {
	count := 0
	var example stall
	for _, s := range stalls {
		if len(s.stalled) > 0 {
			count++
			example = s
		}
	}
	if count > 0 {
		l.log.Warn("a path swallows data", "connections", count,
			"example", fmt.Sprintf("%08x", example.token), "from", example.stalled[0].Local, "to", example.stalled[0].Remote,
			"silence", example.silence, "in_flight", example.inFlight)
	}
}
