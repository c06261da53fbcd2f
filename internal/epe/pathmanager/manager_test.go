package pathmanager

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tabane/tabane/internal/epe/selection"
	"github.com/tabane/tabane/internal/mptcp"
)

// fakeEvents hands out what is put into it.
type fakeEvents struct {
	list   chan []mptcp.Event
	failed chan error
	closed chan struct{}
}

func newFakeEvents() *fakeEvents {
	return &fakeEvents{list: make(chan []mptcp.Event), failed: make(chan error), closed: make(chan struct{})}
}

func (f *fakeEvents) Receive() ([]mptcp.Event, error) {
	select {
	case list := <-f.list:
		return list, nil
	case err := <-f.failed:
		return nil, err
	case <-f.closed:
		return nil, os.ErrClosed
	}
}

func (f *fakeEvents) Close() error {
	close(f.closed)
	return nil
}

// lockedKernel is a fakeKernel that loop and test may use at once.
type lockedKernel struct {
	mu sync.Mutex
	*fakeKernel
	unreadable error
}

func (k *lockedKernel) Request(r mptcp.Request) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fakeKernel.Request(r)
}

func (k *lockedKernel) Subflows(family mptcp.Family, f func(mptcp.Subflow)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.unreadable != nil {
		return k.unreadable
	}
	return k.fakeKernel.Subflows(family, f)
}

func (k *lockedKernel) Query(at []mptcp.Ends, f func(mptcp.Subflow)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fakeKernel.Query(at, f)
}

func (k *lockedKernel) connect(token uint32, local, remote netip.AddrPort) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fakeKernel.connect(token, local, remote)
}

func (k *lockedKernel) on(token uint32) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fakeKernel.on(token)
}

// looped is a path manager in its loop, in a bubble.
type looped struct {
	t      *testing.T
	loop   *Manager
	kernel *lockedKernel
	events *fakeEvents
	ended  chan error
	stop   context.CancelFunc
}

func newLooped(t *testing.T) *looped {
	l := &looped{t: t, kernel: &lockedKernel{fakeKernel: newFakeKernel()}, events: newFakeEvents(), ended: make(chan error, 1)}
	l.start(l.kernel, nil)
	return l
}

// start runs the path manager with the kernel's reports, if any.
func (l *looped) start(k kernel, reports reportSource) {
	l.loop = newManager(Options{Peers: testPeers(), Log: slog.New(slog.DiscardHandler)}, k)
	if reports != nil {
		l.loop.reports, l.loop.watch = reports, Watch{Method: WatchReports}
	}
	ctx, stop := context.WithCancel(l.t.Context())
	l.stop = stop
	go func() { l.ended <- l.loop.run(ctx, l.events) }()
	synctest.Wait()
}

// work lets events and requests go back and forth.
func (l *looped) work() {
	for l.deliver() {
	}
}

// connect opens a connection that is worth announcements.
func (l *looped) connect(token uint32, local, remote netip.AddrPort) {
	l.kernel.connect(token, local, remote)
	l.deliver()
	l.earn(token)
	l.work()
}

// earn has a connection be worth announcements.
func (l *looped) earn(token uint32) {
	l.loop.post(func(now time.Time) error {
		l.loop.machine.weigh(now, mptcp.Subflow{Token: token, Acked: worthBytes})
		return nil
	})
	synctest.Wait()
}

// deliver delivers the events so far and lets the loop react. It reports whether there were any.
func (l *looped) deliver() bool {
	synctest.Wait()
	l.kernel.mu.Lock()
	list := l.kernel.events
	l.kernel.events = nil
	l.kernel.mu.Unlock()
	if len(list) == 0 {
		return false
	}
	l.events.list <- list
	synctest.Wait()
	return true
}

func (l *looped) end() {
	l.t.Helper()
	l.stop()
	if err := <-l.ended; err != nil {
		l.t.Error(err)
	}
}

func (l *looped) route(peer int, state RouteState) {
	l.loop.post(func(now time.Time) error {
		l.loop.setRoute(now, peer, netip.MustParsePrefix("::/0"), Route{State: state})
		return nil
	})
	l.work()
}

func TestTheLoopManagesConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLooped(t)
		l.route(0, RoutePresent)
		l.connect(1, defaultAt, clientAt)
		check(t, l.kernel.on(1), "2001:db8:1::10", "2001:db8:1::a")
		l.route(0, RouteAbsent)
		check(t, l.kernel.on(1), "2001:db8:1::10")
		l.route(0, RoutePresent)
		time.Sleep(time.Second)
		l.work()
		s := l.loop.Status()
		if s.Connections != 1 || s.Subflows != 2 || s.Announced != 2 || s.Removed != 1 {
			t.Errorf("status %+v", s)
		}
		l.end()
		l.loop.withdrawAll()
		check(t, l.kernel.on(1), "2001:db8:1::10")
	})
}

func TestOverrunRereadsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLooped(t)
		l.route(0, RoutePresent)
		l.kernel.connect(1, defaultAt, clientAt)
		l.kernel.mu.Lock()
		l.kernel.fakeKernel.events = nil // the event is lost
		l.kernel.unreadable = errNoMemory
		l.kernel.mu.Unlock()
		l.events.list <- []mptcp.Event{mptcp.Overrun{Reason: errNoMemory}}
		l.work()
		check(t, l.kernel.on(1), "2001:db8:1::10")
		l.kernel.mu.Lock()
		l.kernel.unreadable = nil
		l.kernel.mu.Unlock()
		time.Sleep(resyncFirst)
		l.work()
		check(t, l.kernel.on(1), "2001:db8:1::10", "2001:db8:1::a")
		if s := l.loop.Status(); s.Overruns != 1 {
			t.Errorf("status %+v", s)
		}
		l.end()
	})
}

func TestRejectedRequestsAreRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLooped(t)
		refusals := 3
		l.kernel.mu.Lock()
		l.kernel.refuse = func(mptcp.Request) error {
			if refusals--; refusals >= 0 {
				return errNoMemory
			}
			return nil
		}
		l.kernel.mu.Unlock()
		l.route(0, RoutePresent)
		l.connect(1, defaultAt, clientAt)
		check(t, l.kernel.on(1), "2001:db8:1::10")
		time.Sleep(4 * retryAfter)
		l.work()
		check(t, l.kernel.on(1), "2001:db8:1::10", "2001:db8:1::a")
		if s := l.loop.Status(); s.Failed != 3 {
			t.Errorf("status %+v", s)
		}
		l.end()
	})
}

func TestLoopClosesStalledSubflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLooped(t)
		l.route(0, RoutePresent)
		l.route(1, RoutePresent)
		l.connect(1, defaultAt, clientAt)
		began := time.Now()
		for time.Since(began) < 2*sampleIdle+selection.StallMin+3*sampleBusy {
			l.kernel.mu.Lock()
			for _, s := range l.kernel.there[1].subflows {
				s.InFlight, s.RTT = 20, 10*time.Millisecond
				if s.Local == onB {
					s.Acked++
				}
			}
			l.kernel.mu.Unlock()
			time.Sleep(5 * time.Millisecond)
			l.work()
		}
		check(t, l.kernel.on(1), "2001:db8:1::10*", "2001:db8:1::b")
		if s := l.loop.Status(); s.Stalls != 2 {
			t.Errorf("status %+v", s)
		}
		l.end()
	})
}

// TestLoopSamplesJoined: the next data goes over the shorter path as soon as the client has joined
// it.
func TestLoopSamplesJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLooped(t)
		l.loop.SetUse(true, nil)
		l.route(0, RoutePresent)
		l.route(1, RoutePresent)
		l.kernel.connect(1, defaultAt, clientAt)
		l.deliver()
		l.earn(1)
		l.kernel.mu.Lock()
		for _, s := range l.kernel.there[1].subflows {
			s.RTT, s.SegmentSize, s.Window = 100*time.Millisecond, 1400, 10
			if s.Local == onB {
				s.RTT = 10 * time.Millisecond
			}
		}
		l.kernel.mu.Unlock()
		l.work()
		check(t, l.kernel.on(1), "2001:db8:1::10*", "2001:db8:1::a*", "2001:db8:1::b")
		l.end()
	})
}

func TestLoopEndsWithEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLooped(t)
		l.events.failed <- errNoMemory
		if err := <-l.ended; !errors.Is(err, errNoMemory) {
			t.Errorf("ended with %v", err)
		}
	})
}
