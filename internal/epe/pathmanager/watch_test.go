package pathmanager

import (
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tabane/tabane/internal/epe/silence"
	"github.com/tabane/tabane/internal/mptcp"
)

// fakeReports hands out what is put into it.
type fakeReports struct {
	list   chan fakeReport
	closed chan struct{}
}

type fakeReport struct {
	reports []silence.Report
	lost    uint64
	err     error
}

func (f *fakeReports) Receive() ([]silence.Report, uint64, error) {
	select {
	case r := <-f.list:
		return r.reports, r.lost, r.err
	case <-f.closed:
		return nil, 0, os.ErrClosed
	}
}

func (f *fakeReports) Close() error {
	close(f.closed)
	return nil
}

// countingKernel counts the subflows that are read.
type countingKernel struct {
	*lockedKernel
	queried, dumped atomic.Int64
}

func (k *countingKernel) Subflows(family mptcp.Family, f func(mptcp.Subflow)) error {
	k.dumped.Add(1)
	return k.lockedKernel.Subflows(family, f)
}

func (k *countingKernel) Query(at []mptcp.Ends, f func(mptcp.Subflow)) error {
	k.queried.Add(int64(len(at)))
	return k.lockedKernel.Query(at, f)
}

// reporting is a looped path manager with reports, and conns connections of one client each with
// subflows to two peers.
func newReporting(t *testing.T, conns int) (*looped, *fakeReports, *countingKernel) {
	l := &looped{t: t, kernel: &lockedKernel{fakeKernel: newFakeKernel()}, events: newFakeEvents(), ended: make(chan error, 1)}
	reports := &fakeReports{list: make(chan fakeReport), closed: make(chan struct{})}
	kernel := &countingKernel{lockedKernel: l.kernel}
	l.start(kernel, reports)
	l.route(0, RoutePresent)
	l.route(1, RoutePresent)
	for i := range conns {
		client := netip.AddrPortFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 1, 14: byte(i >> 8), 15: byte(i)}), 40000)
		l.connect(uint32(i+1), defaultAt, client)
	}
	time.Sleep(2 * time.Second)
	l.work()
	return l, reports, kernel
}

// move lets time pass in which each subflow of the connection progresses but the first peer's,
// which has data in flight.
func (l *looped) move(token uint32, during time.Duration) {
	for began := time.Now(); time.Since(began) < during; {
		l.kernel.mu.Lock()
		for _, s := range l.kernel.there[token].subflows {
			s.InFlight, s.RTT = 20, 10*time.Millisecond
			if s.Local != onA {
				s.Acked++
			}
		}
		l.kernel.mu.Unlock()
		time.Sleep(5 * time.Millisecond)
		l.work()
	}
}

// report is a report of the subflow of a connection to the first peer.
func (l *looped) report(token uint32, silent time.Duration) silence.Report {
	l.kernel.mu.Lock()
	defer l.kernel.mu.Unlock()
	for _, s := range l.kernel.there[token].subflows {
		if s.Local == onA {
			return silence.Report{Token: token, Local: s.Local, Remote: s.Remote, Silence: silent}
		}
	}
	l.t.Fatal("no subflow to the first peer")
	return silence.Report{}
}

func TestOnlyReportedConnectionsAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, reports, kernel := newReporting(t, 300)
		kernel.queried.Store(0)
		kernel.dumped.Store(0)
		time.Sleep(30 * time.Second)
		if queried, dumped := kernel.queried.Load(), kernel.dumped.Load(); queried+dumped > 0 {
			t.Errorf("idle: %d subflows read, %d dumps", queried, dumped)
		}
		l.move(7, 10*time.Millisecond)
		began := time.Now()
		reports.list <- fakeReport{reports: []silence.Report{l.report(7, 30*time.Millisecond)}}
		l.move(7, 115*time.Millisecond)
		if s := l.loop.Status(); s.Stalls != 0 || s.Watched != 1 {
			t.Errorf("after %v: %+v", time.Since(began), s)
		}
		l.move(7, 10*time.Millisecond)
		check(t, l.kernel.on(7), "2001:db8:1::10*", "2001:db8:1::b")
		if s := l.loop.Status(); s.Stalls != 1 || s.Reports != 1 {
			t.Errorf("status %+v", s)
		}
		l.move(7, 2*time.Second)
		if s := l.loop.Status(); s.Watched != 0 {
			t.Errorf("still watched: %+v", s)
		}
		if queried, dumped := kernel.queried.Load(), kernel.dumped.Load(); queried > 60 || dumped > 0 {
			t.Errorf("%d subflows read, %d dumps", queried, dumped)
		}
		l.end()
	})
}

// A report of a subflow that progresses ends after a few samples.
func TestReportedSubflowProgresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, reports, _ := newReporting(t, 1)
		l.kernel.mu.Lock()
		for _, s := range l.kernel.there[1].subflows {
			s.InFlight = 20
		}
		l.kernel.mu.Unlock()
		reports.list <- fakeReport{reports: []silence.Report{l.report(1, 60*time.Millisecond)}}
		for range 10 {
			l.kernel.mu.Lock()
			for _, s := range l.kernel.there[1].subflows {
				s.Acked++
			}
			l.kernel.mu.Unlock()
			time.Sleep(sampleBusy)
			l.work()
		}
		if s := l.loop.Status(); s.Stalls != 0 || s.Watched != 0 || s.Reports != 1 {
			t.Errorf("status %+v", s)
		}
		// Unknown connections and subflows are ignored.
		reports.list <- fakeReport{reports: []silence.Report{{Token: 99, Local: onA, Remote: clientAt}, {Token: 1, Local: onB, Remote: clientAt}}}
		l.work()
		if s := l.loop.Status(); s.Watched != 0 || s.Reports != 3 {
			t.Errorf("status %+v", s)
		}
		l.end()
	})
}

// A subflow stalls without a report, because that was lost or the source failed.
func TestLostReports(t *testing.T) {
	for name, r := range map[string]fakeReport{"overflow": {lost: 3}, "failure": {err: errNoMemory}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, reports, kernel := newReporting(t, 3)
				l.move(2, 20*time.Millisecond)
				reports.list <- r
				l.move(2, 300*time.Millisecond)
				check(t, l.kernel.on(2), "2001:db8:1::10*", "2001:db8:1::b")
				s := l.loop.Status()
				if s.ReportsLost != r.lost || s.Watch.Method == WatchSamples != (r.err != nil) {
					t.Errorf("status %+v", s)
				}
				time.Sleep(5 * time.Second)
				l.work()
				kernel.queried.Store(0)
				time.Sleep(5 * time.Second)
				if queried := kernel.queried.Load(); queried > 0 != (r.err != nil) {
					t.Errorf("%d subflows read later", queried)
				}
				l.end()
			})
		})
	}
}

// What is queued is read before the subflow of a withdrawn route is closed or parked.
func TestQueuesAreReadBeforeAWithdrawal(t *testing.T) {
	for _, queued := range []uint32{0, 5000} {
		synctest.Test(t, func(t *testing.T) {
			l, _, kernel := newReporting(t, 100)
			l.route(0, RouteDraining)
			l.kernel.mu.Lock()
			for _, c := range l.kernel.there {
				for _, s := range c.subflows {
					if s.Local == onA {
						s.Queued = queued
					} else {
						s.Queued = 1 // busy, so that a parked subflow remains
					}
				}
			}
			l.kernel.mu.Unlock()
			kernel.queried.Store(0)
			l.route(0, RouteAbsent)
			s := l.loop.Status()
			if want := map[uint32]int{0: 100, 5000: 0}[queued]; s.Parked != want || s.Watched != 100 {
				t.Errorf("queued %d: %d parked, %+v", queued, s.Parked, s.Watch)
			}
			if queried := kernel.queried.Load(); queried < 200 {
				t.Errorf("%d subflows read", queried)
			}
			l.end()
		})
	}
}
