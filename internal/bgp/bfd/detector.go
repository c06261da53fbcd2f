package bfd

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/kernel/contain"
)

// A Detector runs the BFD sessions of a daemon, in a process of its own: see Process. It starts
// that with the first session, in the network namespace of the calling thread, and again if it
// ends. It is safe for concurrent use.
type Detector struct {
	log      *slog.Logger
	up, down func(neighbor string)

	// calls serializes requests to the process. It is locked before mu.
	calls   sync.Mutex
	process *process // nil: it is not running
	closed  bool

	mu        sync.Mutex
	neighbors map[string]*monitored // by name
}

// monitored is a neighbor with a session.
type monitored struct {
	Neighbor
	up bool
}

// restartPause is the time from the end of a process that should be running to the start of
// another.
const restartPause = time.Second

var errClosed = errors.New("bfd is closed")

// New returns a Detector without sessions. It calls up for each session that comes up, and down for
// each that goes down by failure, not for one that either side disables, in goroutines of their
// own.
func New(log *slog.Logger, up, down func(neighbor string)) *Detector {
	return &Detector{log: log, up: up, down: down, neighbors: map[string]*monitored{}}
}

// Add starts a session unless BFD is disabled for the neighbor or it has one already.
func (d *Detector) Add(n Neighbor) error {
	if !n.Enabled() {
		return nil
	}
	d.calls.Lock()
	defer d.calls.Unlock()
	d.mu.Lock()
	known := d.neighbors[n.Name] != nil
	d.mu.Unlock()
	switch {
	case d.closed:
		return errClosed
	case known:
		return nil
	case d.process == nil:
		if err := d.start(); err != nil {
			return err
		}
	}
	d.mu.Lock()
	d.neighbors[n.Name] = &monitored{Neighbor: n} // its session may come up at once
	d.mu.Unlock()
	err := d.process.call(request{Add: &n})
	if err != nil {
		d.mu.Lock()
		delete(d.neighbors, n.Name)
		d.mu.Unlock()
	}
	return err
}

// Remove ends a session, which it signals to the neighbor as AdminDown. Unknown names are ignored.
func (d *Detector) Remove(name string) {
	d.calls.Lock()
	defer d.calls.Unlock()
	d.remove(name)
}

// remove is Remove for callers that hold calls.
func (d *Detector) remove(name string) {
	d.mu.Lock()
	known := d.neighbors[name] != nil
	delete(d.neighbors, name)
	d.mu.Unlock()
	if known && d.process != nil {
		// If the process has ended, so has the session.
		_ = d.process.call(request{Remove: name})
	}
}

// Close ends all sessions.
func (d *Detector) Close() {
	d.calls.Lock()
	defer d.calls.Unlock()
	d.closed = true
	d.mu.Lock()
	names := slices.Collect(maps.Keys(d.neighbors))
	d.mu.Unlock()
	for _, name := range names {
		d.remove(name)
	}
	if d.process != nil {
		d.process.close()
		d.process = nil
	}
}

// Up reports whether a session is up.
func (d *Detector) Up(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.neighbors[name]
	return n != nil && n.up
}

// start starts the process. Callers hold calls.
func (d *Detector) start() error {
	p, err := startProcess(d.report)
	if err != nil {
		return fmt.Errorf("start bfd: %w", err)
	}
	d.process = p
	go func() {
		<-p.ended
		d.lost(p)
	}()
	return nil
}

// lost starts a process again that has ended, with the sessions that it had.
func (d *Detector) lost(p *process) {
	d.calls.Lock()
	defer d.calls.Unlock()
	if d.process != p {
		return // it was closed
	}
	d.process = nil
	d.mu.Lock()
	for _, n := range d.neighbors {
		n.up = false
	}
	d.mu.Unlock()
	d.log.Error("bfd process ended, starting it again", "pid", p.pid, "err", p.err)
	time.AfterFunc(restartPause, d.restart)
}

func (d *Detector) restart() {
	d.calls.Lock()
	defer d.calls.Unlock()
	if d.closed || d.process != nil {
		return
	}
	if err := d.start(); err != nil {
		d.log.Error("bfd process not started", "err", err)
		time.AfterFunc(restartPause, d.restart)
		return
	}
	d.mu.Lock()
	list := make([]Neighbor, 0, len(d.neighbors))
	for _, n := range d.neighbors {
		list = append(list, n.Neighbor)
	}
	d.mu.Unlock()
	for _, n := range list {
		if err := d.process.call(request{Add: &n}); err != nil {
			d.log.Error("bfd session not started", "neighbor", n.Name, "err", err)
		}
	}
}

// report applies what the process reports.
func (d *Detector) report(r reply) {
	if r.Notice != "" {
		d.log.Info("bfd process has normal priority", "reason", r.Notice)
		return
	}
	if r.Panic != "" {
		contain.Count(contain.BFD, r.Panic)
		return
	}
	if r.Ignored != "" {
		d.log.Warn("bfd packets of the neighbor are ignored", "neighbor", r.Neighbor, "reason", r.Ignored)
		return
	}
	d.mu.Lock()
	n := d.neighbors[r.Neighbor]
	if n != nil {
		n.up = r.Transition == cameUp
	}
	d.mu.Unlock()
	switch {
	case n == nil: // it was removed meanwhile
	case r.Transition == cameUp:
		d.log.Info("bfd session up", "neighbor", r.Neighbor)
		contain.Go(contain.BFD, d.log, func() { d.up(r.Neighbor) }) // as below
	case r.Transition == adminDown:
		d.log.Info("bfd session down", "neighbor", r.Neighbor, "reason", "administratively down at the neighbor")
	case r.Transition == wentDown:
		// The caller may be busy, or waiting for the session to be removed.
		contain.Go(contain.BFD, d.log, func() { d.down(r.Neighbor) })
	}
}
