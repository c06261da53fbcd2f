package daemon

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/kernel/route"
)

const (
	// resyncPauseFactor times the duration of a comparison with the kernel is the least pause after
	// it.
	resyncPauseFactor = 10
	// resyncBusyPause is the pause before a comparison is tried again that would compete with
	// changes.
	resyncBusyPause = time.Second
	// resyncReadPauseFactor times the duration of reading a part of the kernel's objects is the
	// pause after it, at most resyncReadPauseMax: to compare it takes about as long, and what must
	// not wait gets at least half of the CPUs' time.
	resyncReadPauseFactor = 2
	resyncReadPauseMax    = 20 * time.Millisecond
	// resyncLargeRoutes is the number of routes from which on a comparison waits until the kernel's
	// tables have not changed for resyncBusyPause, but no longer than resyncMaxDelay. The kernel
	// continues a dump of a table that has changed with a walk over all routes dumped so far, with
	// the table locked and softirqs disabled: at a million routes that takes 0.1 s for each 32 kB.
	resyncLargeRoutes = 20_000
	resyncMaxDelay    = 10 * time.Minute
	// resyncStepObjects is the number of objects that are visited at the end of a comparison before
	// the loop looks for events, half a millisecond's work.
	resyncStepObjects = 10_000
)

// resyncState is what a resync does.
type resyncState uint8

const (
	// resyncIdle: no comparison runs.
	resyncIdle resyncState = iota
	// resyncReading: parts of a dump of the kernel's objects are read and compared.
	resyncReading
	// resyncEnding: everything was read, and the objects known are visited in steps.
	resyncEnding
)

// resync compares the kernel's objects with those known, in the background and in steps: with a
// hundred thousand routes it takes a second, and nothing may wait for it. Its methods are called
// from the loop.
type resync struct {
	kernel   dumper
	protocol route.Protocol
	known    *route.Reconciler
	log      *slog.Logger
	activity activity

	start *time.Timer // fires when the next comparison may begin
	due   bool        // what has changed since the last one began is unknown
	since time.Time   // when it became due

	state      resyncState
	comparison *route.Comparison // nil if resyncIdle
	dumped     chan dump
	consistent bool // what the kernel says of the dump, if resyncEnding
	begun      time.Time
	ended      time.Time
	took       time.Duration // by the last one
}

// activity is when operations were last applied to the kernel.
type activity struct {
	applied uint64 // their number
	changed time.Time
}

// dumper reads the objects of an owner; a route.Conn is one.
type dumper interface {
	DumpEach(p route.Protocol, each func([]route.Object)) (consistent bool, err error)
}

// dump is a part of a dump, about a millisecond's work.
type dump struct {
	objects    []route.Object
	last       bool
	consistent bool
	err        error // of the last part
}

// request has the kernel's objects compared soon.
func (r *resync) request() {
	if !r.due && r.state == resyncIdle {
		r.since = time.Now()
		r.start.Reset(time.Until(r.ended.Add(resyncPauseFactor * r.took)))
	}
	r.due = true
}

// begin begins a comparison that is due. busy: objects are being applied to the kernel.
func (r *resync) begin(ctx context.Context, busy bool) {
	switch {
	case !r.due || r.state != resyncIdle:
		return
	case busy, r.disturbed():
		r.start.Reset(resyncBusyPause)
		return
	}
	r.state, r.comparison = resyncReading, r.known.Compare()
	r.due, r.begun = false, time.Now()
	go r.read(ctx, r.kernel)
}

// read reads the kernel's objects in a goroutine of its own, and passes them to the loop.
func (r *resync) read(ctx context.Context, kernel dumper) {
	began := time.Now()
	pass := func(part dump) {
		rest := min(resyncReadPauseFactor*time.Since(began), resyncReadPauseMax)
		select {
		case r.dumped <- part:
		case <-ctx.Done():
		}
		select {
		case <-time.After(rest):
		case <-ctx.Done():
		}
		began = time.Now()
	}
	var consistent bool
	var err error
	if fault := contain.Do(contain.Reconcile, r.log, nil, func() {
		consistent, err = kernel.DumpEach(r.protocol, func(objects []route.Object) { pass(dump{objects: slices.Clone(objects)}) })
	}); fault != nil {
		err = fault
	}
	pass(dump{last: true, consistent: consistent, err: err})
}

// observe records that operations were applied to the kernel.
func (r *resync) observe() {
	if n := r.known.Applied(); n != r.activity.applied {
		r.activity = activity{n, time.Now()}
	}
}

// disturbed reports whether a dump has to wait because the kernel's tables change.
func (r *resync) disturbed() bool {
	return r.known.Counts()[route.ClassRoute].Have >= resyncLargeRoutes &&
		time.Since(r.activity.changed) < resyncBusyPause && time.Since(r.since) < resyncMaxDelay
}

// input returns where the next part of the kernel's objects comes from, nil while it has to wait,
// and whether the end of the comparison can be continued instead.
func (r *resync) input() (parts <-chan dump, ending bool) {
	if r.state == resyncReading && r.disturbed() {
		r.start.Reset(resyncBusyPause)
		return nil, false
	}
	return r.dumped, r.state == resyncEnding
}

// add compares a part of the kernel's objects.
func (r *resync) add(part dump) {
	if part.last {
		r.state, r.consistent = resyncEnding, part.consistent
	}
	r.comparison.Add(part.objects)
}

// abandon ends a comparison whose objects could not be read. It requests no other one.
func (r *resync) abandon() { r.state, r.comparison, r.due = resyncIdle, nil, false }

// endPart continues the end of a comparison, which visits all objects, and reports whether there is
// more.
func (r *resync) endPart() (more bool) { return r.comparison.EndPart(r.consistent, resyncStepObjects) }

// finish ends a comparison, and requests the next one if it is due.
func (r *resync) finish() {
	r.state, r.comparison, r.ended = resyncIdle, nil, time.Now()
	r.took = r.ended.Sub(r.begun)
	if r.due {
		r.due = false
		r.request()
	}
}
