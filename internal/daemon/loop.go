package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/tabane/tabane/internal/condition"
	"github.com/tabane/tabane/internal/contain"
	"github.com/tabane/tabane/internal/health"
	"github.com/tabane/tabane/internal/route"
)

const (
	// resyncEvery is the longest time until changes of our objects without an event are repaired.
	resyncEvery = 30 * time.Second
	// resyncShare times the duration of a comparison with the kernel is the least pause after it.
	resyncShare = 10
	// resyncBusy is the pause before a comparison is tried again that would compete with changes.
	resyncBusy = time.Second
	// resyncRest times the duration of reading a part of the kernel's objects is the pause after it: to
	// compare it takes about as long, and what must not wait gets at least half of the CPUs' time.
	resyncRest     = 2
	resyncRestMost = 20 * time.Millisecond
	// resyncLarge is the number of routes from which on a comparison waits until the kernel's tables
	// have not changed for resyncBusy, but no longer than resyncLatest. The kernel continues a dump
	// of a table that has changed with a walk over all routes dumped so far, with the table locked and
	// softirqs disabled: at a million routes that takes 0.1 s for each 32 kB.
	resyncLarge  = 20_000
	resyncLatest = 10 * time.Minute
	// resyncStep is the number of objects that are visited at the end of a comparison before the loop
	// looks for events, half a millisecond's work.
	resyncStep = 10_000
	// Step is the number of routes that are changed before the loop looks for events: about ten
	// milliseconds' work, most of it the kernel's.
	Step = 2048
	// resolvePause is how long next hops are not resolved again after a change of a link without
	// objects of ours, as containers come and go.
	resolvePause = 100 * time.Millisecond
	// resolveFirst and resolveMost bound the pause before next hops without a route are resolved again:
	// the kernel reports a link before it has the routes over it, and routes of others without an event.
	resolveFirst = 10 * time.Millisecond
	resolveMost  = time.Second
	// sweepQuiet is how long all sessions must have been up before a restarted daemon deletes stale
	// objects of the previous instance, and sweepAfter when it does so although some are down. With
	// no session up it does not.
	sweepQuiet = 10 * time.Second
	sweepAfter = time.Minute
	// retryFirst and retryMost bound the pause before objects that the kernel rejected are retried.
	retryFirst = 100 * time.Millisecond
	retryMost  = 5 * time.Second
)

// Reactor decides. All its methods are called from the loop, one at a time.
type Reactor interface {
	// Link applies the state of an interface, also if it is unchanged: up is administratively up
	// with carrier.
	Link(name string, up bool)
	// Settled is called after a part of the desired state was applied to the kernel, for what must
	// follow, such as advertising a route that is installed now; true requests another round soon.
	// The kernel may have rejected some objects: see Kernel.Settled. A large change of the desired
	// state should be made in steps while the loop is not Busy.
	Settled() (again bool)
}

// AddressReactor is a Reactor that depends on addresses of other programs.
type AddressReactor interface {
	Reactor
	// Addresses is called when addresses of links may have changed.
	Addresses()
}

// Conditioned is a Reactor that depends on conditions of the host, which are examined again while it runs.
type Conditioned interface {
	Reactor
	// Conditions returns what is needed of the host now. Their functions are not called from the loop.
	Conditions() []condition.Condition
}

// LoopOptions describe a Loop.
type LoopOptions struct {
	Protocol route.Protocol
	// Keep leaves everything in the kernel at a clean stop.
	Keep bool
	Log  *slog.Logger
}

// Loop runs one Reactor. Kernel is for the reactor to use, in its own methods and before Run.
type Loop struct {
	Kernel *route.Reconciler

	options  LoopOptions
	more     extension
	conn     *route.Conn
	reader   *route.Conn
	host     host
	requests chan request
	stopped  chan struct{}

	retry   *time.Timer
	pause   time.Duration
	refused string // the last logged error of the kernel
	// quiet fires when the desired state may have been complete for long enough.
	quiet *time.Timer
	// unread: objects or links of the kernel could not be read and may differ from what is known.
	unread bool
	// links are those of the kernel, and resolve fires when next hops are to be resolved again.
	links   map[string]route.Link
	resolve *time.Timer
	// lacking is the pause after which what has no route is resolved again, 0 if nothing lacks one.
	lacking time.Duration
	resync  resync
	// applied is the number of operations on the kernel, and changed when it last grew.
	applied uint64
	changed time.Time
	// busy: some objects are not applied to the kernel yet. again: another round is requested.
	busy, again bool
	// problems are the conditions of the host that do not hold, and hostChanged has them examined.
	problems    []health.Problem
	hostChanged chan struct{}
}

// extension is the part of a daemon that learns a desired state from others.
type extension interface {
	// start is called once the initial desired state was applied, stop before everything is removed,
	// and once more at the end.
	start() error
	stop()
	// ended is why there are no more inputs.
	ended() error
	// linkUp is called when a link has come up.
	linkUp()
	// resolve resolves again what depends on routes of others, and step applies a part of what has
	// changed thereby; it reports whether there may be more. unresolved is why something could not
	// be resolved, and unreachable reports whether something has no route.
	resolve() error
	step() (more bool)
	unresolved() error
	unreachable() bool
	// complete reports whether the desired state is known, so that what a previous instance left can
	// be deleted, and unknown whether nothing of it is.
	complete() bool
	unknown() bool
}

// alone is the extension of a loop whose reactor knows the desired state from the start.
type alone struct{}

func (alone) start() error      { return nil }
func (alone) stop()             {}
func (alone) ended() error      { return nil }
func (alone) linkUp()           {}
func (alone) resolve() error    { return nil }
func (alone) step() bool        { return false }
func (alone) unresolved() error { return nil }
func (alone) unreachable() bool { return false }
func (alone) complete() bool    { return true }
func (alone) unknown() bool     { return false }

// resync compares the kernel's objects with those known, in the background and in steps: with a
// hundred thousand routes it takes a second, and nothing may wait for it.
type resync struct {
	kernel dumper
	due    bool        // what has changed since the last one began is unknown
	since  time.Time   // when it became due
	start  *time.Timer // fires when the next one may begin
	dumped chan dump
	begun  time.Time
	ended  time.Time
	took   time.Duration
	// comparison is not nil while one runs. ending: everything was read, and consistent is what the
	// kernel says of it.
	comparison         *route.Comparison
	ending, consistent bool
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

// host is what a daemon reads from the kernel beside the objects that it owns; a route.Conn is one.
type host interface {
	Links() ([]route.Link, error)
}

// source is a source of kernel events; a route.Watcher is one.
type source interface {
	Events() <-chan route.Event
	// Err is why Events was closed.
	Err() error
}

// NewLoop connects to the kernel, so that a missing privilege is reported before anything has
// changed, and reads the objects of a previous instance. Close reverts it; Run does so at its end.
func NewLoop(o LoopOptions) (*Loop, error) {
	conn, err := route.Dial()
	if err != nil {
		return nil, err
	}
	// The background must not keep the loop from the connection.
	reader, err := route.Dial()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	l := newLoop(o, conn, conn, reader)
	l.conn, l.reader = conn, reader
	if err := l.Kernel.Resync(); err != nil {
		return nil, errors.Join(err, l.disconnect())
	}
	return l, nil
}

func newLoop(o LoopOptions, kernel route.Kernel, h host, d dumper) *Loop {
	return &Loop{
		Kernel: route.NewReconciler(kernel, o.Protocol, o.Log), options: o, more: alone{}, host: h,
		requests: make(chan request), stopped: make(chan struct{}), links: map[string]route.Link{},
		hostChanged: make(chan struct{}, 1), resync: resync{kernel: d, dumped: make(chan dump)},
	}
}

// Close disconnects from the kernel without changing it.
func (l *Loop) Close() error { return l.disconnect() }

func (l *Loop) disconnect() error { return errors.Join(l.conn.Close(), l.reader.Close()) }

// Link returns the state of an interface; a missing one is an error that matches fs.ErrNotExist.
func (l *Loop) Link(name string) (route.Link, error) { return l.conn.Link(name) }

// MTU returns that of an interface as last reported, 0 if there is none of this name. The loop calls it.
func (l *Loop) MTU(name string) int { return l.links[name].MTU }

// SetLink sets an interface up, with an MTU in bytes.
func (l *Loop) SetLink(name string, mtu int) error {
	return errors.Join(l.conn.SetLinkMTU(name, mtu), l.conn.SetLinkUp(name, true))
}

// Addresses returns the IP addresses of all links.
func (l *Loop) Addresses() ([]route.Address, error) { return l.conn.Addresses() }

// NexthopTo returns gateway and interface of the kernel's route to dst; no route is an error that
// wraps route.ErrNoRoute.
func (l *Loop) NexthopTo(dst netip.Addr) (gateway netip.Addr, link string, err error) {
	return l.conn.NexthopTo(dst)
}

// Found reads the objects of this loop in the kernel, such as those of a previous instance.
func (l *Loop) Found(each func(route.Object)) error {
	_, err := l.conn.DumpEach(l.options.Protocol, func(objects []route.Object) {
		for _, o := range objects {
			each(o)
		}
	})
	return err
}

// Run runs the reactor until ctx ends; then, unless LoopOptions.Keep, it removes its objects from
// the kernel.
func (l *Loop) Run(ctx context.Context, m Reactor) error { return serve[struct{}](ctx, l, m, nil, nil) }

// serve is Run that also has apply called with what comes from inputs.
func serve[E any](ctx context.Context, l *Loop, m Reactor, inputs <-chan E, apply func(E)) (err error) {
	stopHost := func() {}
	defer func() { stopHost() }() // it may wait for the loop until that has stopped
	defer close(l.stopped)
	defer func() { err = errors.Join(err, l.disconnect()) }()
	defer l.more.stop()
	// Two sockets: what overruns one does not delay the other.
	first, err := l.conn.WatchOwned(ctx, l.options.Protocol, route.Links, route.Rules, route.Nexthops, route.Parameters)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, first.Close()) }()
	second, err := l.conn.WatchOwned(ctx, l.options.Protocol, route.Addresses, route.Routes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, second.Close()) }()
	if c, ok := any(m).(Conditioned); ok {
		if stopHost, err = l.followHost(ctx, c); err != nil {
			return err
		}
	}
	l.startTimers(0)
	defer l.stopTimers()
	for l.settle(m); l.busy; l.settle(m) {
	}
	if err := l.more.start(); err != nil {
		return err
	}
	l.reread(m)
	l.settle(m)
	if err := loop(ctx, l, m, inputs, apply, first, second); err != nil {
		return err
	}
	return l.leave()
}

func (l *Loop) startTimers(retry time.Duration) {
	l.retry, l.resync.start, l.resolve = time.NewTimer(retry), time.NewTimer(0), time.NewTimer(0)
	l.quiet = time.NewTimer(sweepAfter)
}

func (l *Loop) stopTimers() {
	for _, t := range []*time.Timer{l.retry, l.resync.start, l.resolve, l.quiet} {
		t.Stop()
	}
}

// loop applies events of the first source before anything else.
func loop[E any](ctx context.Context, l *Loop, m Reactor, inputs <-chan E, apply func(E), first, second source) error {
	resync := time.NewTicker(resyncEvery)
	defer resync.Stop()
	latest := time.NewTimer(sweepAfter)
	defer latest.Stop()
	always := make(chan struct{})
	close(always)
	for {
		select {
		case e, ok := <-first.Events():
			if err := l.containEvents(ctx, m, first, e, ok); err != nil || ctx.Err() != nil {
				return err
			}
			l.settle(m)
		default:
		}
		// What is desired already is applied before there is more; what is read from the kernel
		// waits until it can be compared.
		var ready chan struct{}
		if l.busy || l.again {
			ready = always
		}
		waiting := inputs
		if l.busy {
			waiting = nil
		}
		dumped := l.resync.dumped
		var ending chan struct{}
		switch {
		case l.resync.ending:
			ending = always
		case l.resync.comparison != nil && l.disturbed():
			dumped = nil
			l.resync.start.Reset(resyncBusy)
		}
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-waiting:
			if !ok {
				return l.more.ended()
			}
			apply(e)
		case e, ok := <-first.Events():
			if err := l.containEvents(ctx, m, first, e, ok); err != nil || ctx.Err() != nil {
				return err
			}
		case e, ok := <-second.Events():
			if err := l.containEvents(ctx, m, second, e, ok); err != nil || ctx.Err() != nil {
				return err
			}
		case <-l.resolve.C:
			l.contain(contain.Reconcile, l.resolveAgain)
		case <-l.resync.start.C:
			l.beginResync(ctx)
			continue
		case r := <-dumped:
			if !l.compare(r) {
				continue
			}
		case <-ending:
			if !l.endResync() {
				continue
			}
		case <-ready:
		case <-l.retry.C:
			if l.unread {
				l.contain(contain.Reconcile, func() { l.reread(m) })
			}
		case <-resync.C:
			l.contain(contain.Reconcile, func() { l.reread(m) })
		case <-l.quiet.C:
			if l.more.complete() {
				l.Kernel.Sweep()
			}
		case <-latest.C:
			if l.more.unknown() {
				latest.Reset(sweepAfter)
			} else {
				l.Kernel.Sweep()
			}
		case r := <-l.requests:
			r.run()
			if !r.change {
				continue
			}
		}
		l.settle(m)
	}
}

// contain runs a part of the loop. After a panic everything is read again after a pause: the kernel may
// differ from what is known.
func (l *Loop) contain(b contain.Boundary, part func()) {
	if err := contain.Do(b, l.options.Log, nil, part); err != nil {
		l.busy, l.again = false, false
		l.unknown(err)
	}
}

// containEvents is kernelEvents inside a boundary.
func (l *Loop) containEvents(ctx context.Context, m Reactor, from source, e route.Event, ok bool) (err error) {
	l.contain(contain.KernelEvent, func() { err = l.kernelEvents(ctx, m, from, e, ok) })
	return err
}

// kernelEvents applies an event of the source and those that wait behind it.
func (l *Loop) kernelEvents(ctx context.Context, m Reactor, from source, e route.Event, ok bool) error {
	changed, addresses := 0, false
	for waiting := len(from.Events()); ; waiting-- {
		if !ok {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("watch kernel: %w", from.Err())
		}
		switch e := e.(type) {
		case route.LinkChange:
			l.linkChange(m, e)
		case route.ObjectChange:
			addresses = addresses || e.Object.Key().Class() == route.ClassAddress
			if a, ok := e.Object.(route.Address); ok && e.Deleted && a.Prefix.Addr().Is4() {
				// With the last IPv4 address of a link the kernel deletes the IPv4 routes over
				// it, without events.
				l.requestResync()
			}
			// The following flush restores it: without it, traffic would take another path.
			if l.Kernel.Changed(e) {
				if changed++; changed == 1 {
					l.options.Log.Warn("another program changed kernel objects, restoring them", "object", e.Object)
				}
			}
		case route.ParameterChange:
			l.examineSoon()
		case route.Overrun:
			l.options.Log.Warn("messages of the kernel are missing, reading everything again", "reason", e.Reason)
			l.reread(m)
		}
		if waiting == 0 {
			break
		}
		e, ok = <-from.Events()
	}
	if a, ok := m.(AddressReactor); ok && addresses {
		a.Addresses()
	}
	if changed > 0 {
		l.requestResync() // it may have changed more than there are events for
	}
	return nil
}

// linkChange applies a change of a link. Most messages repeat the state.
func (l *Loop) linkChange(m Reactor, c route.LinkChange) {
	link := c.Link
	if c.Deleted {
		link.Admin, link.Up = false, false
	}
	was, known := l.links[link.Name]
	if known && was == link && !c.Deleted {
		return
	}
	l.examineSoon()
	l.renamed(m, link)
	if l.links[link.Name] = link; c.Deleted {
		delete(l.links, link.Name)
	}
	switch {
	case l.applyLink(m, c):
		l.requestResync()
		l.resolve.Reset(0)
	case link.Up && l.more.unreachable():
		l.resolve.Reset(0)
	default:
		l.resolve.Reset(resolvePause)
	}
	l.lacking = resolveFirst
	if link.Up && !was.Up {
		l.more.linkUp()
	}
}

// renamed deletes a link that has another name now: the kernel reports only the new one, and rules for the
// old name no longer match its packets.
func (l *Loop) renamed(m Reactor, link route.Link) {
	for name, old := range l.links {
		if old.Index == link.Index && name != link.Name {
			l.options.Log.Warn("link was renamed; what is configured for its old name has no effect", "link", name, "now", link.Name)
			delete(l.links, name)
			l.applyLink(m, route.LinkChange{Link: old, Deleted: true})
		}
	}
}

// applyLink has the machine react before anything else. It reports whether the link has objects.
func (l *Loop) applyLink(m Reactor, c route.LinkChange) (used bool) {
	m.Link(c.Link.Name, c.Link.Up && !c.Deleted)
	return l.Kernel.Link(c)
}

// reread reads everything again: links, our objects, routes to next hops.
func (l *Loop) reread(m Reactor) {
	l.unread = false
	l.examineSoon()
	l.rereadLinks(m)
	if a, ok := m.(AddressReactor); ok {
		a.Addresses()
	}
	l.requestResync()
	l.resolveAgain()
}

func (l *Loop) rereadLinks(m Reactor) {
	links, err := l.host.Links()
	if err != nil {
		l.unknown(fmt.Errorf("read links: %w", err))
		return
	}
	before := l.links
	l.links = make(map[string]route.Link, len(links))
	for _, link := range links {
		l.links[link.Name] = link
		delete(before, link.Name)
		l.applyLink(m, route.LinkChange{Link: link})
	}
	for _, link := range before {
		l.applyLink(m, route.LinkChange{Link: link, Deleted: true})
	}
}

// resolveAgain has the extension resolve what depends on routes of others.
func (l *Loop) resolveAgain() {
	if err := l.more.resolve(); err != nil {
		l.unknown(err)
	}
	l.awaitRoutes()
}

// awaitRoutes has what lacks a route resolved again after a pause.
func (l *Loop) awaitRoutes() {
	if !l.more.unreachable() {
		l.lacking = 0
		return
	}
	l.lacking = min(max(2*l.lacking, resolveFirst), resolveMost)
	l.resolve.Reset(l.lacking)
}

// requestResync has the kernel's objects compared soon.
func (l *Loop) requestResync() {
	if !l.resync.due && l.resync.comparison == nil {
		l.resync.since = time.Now()
		l.resync.start.Reset(time.Until(l.resync.ended.Add(resyncShare * l.resync.took)))
	}
	l.resync.due = true
}

func (l *Loop) beginResync(ctx context.Context) {
	r := &l.resync
	switch {
	case !r.due || r.comparison != nil:
		return
	case l.busy, l.disturbed():
		r.start.Reset(resyncBusy)
		return
	}
	r.due, r.begun, r.comparison = false, time.Now(), l.Kernel.Compare()
	began := time.Now()
	pass := func(part dump) {
		rest := min(resyncRest*time.Since(began), resyncRestMost)
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
	go func(k dumper, p route.Protocol) {
		var consistent bool
		var err error
		if fault := contain.Do(contain.Reconcile, l.options.Log, nil, func() {
			consistent, err = k.DumpEach(p, func(objects []route.Object) { pass(dump{objects: slices.Clone(objects)}) })
		}); fault != nil {
			err = fault
		}
		pass(dump{last: true, consistent: consistent, err: err})
	}(r.kernel, l.options.Protocol)
}

// disturbed reports whether a dump has to wait because the kernel's tables change.
func (l *Loop) disturbed() bool {
	return l.Kernel.Counts()[route.ClassRoute].Have >= resyncLarge &&
		time.Since(l.changed) < resyncBusy && time.Since(l.resync.since) < resyncLatest
}

// compare compares a part of the kernel's objects; it reports whether reading them failed.
func (l *Loop) compare(part dump) (failed bool) {
	r := &l.resync
	if part.err != nil {
		r.comparison, r.due = nil, false // unknown schedules the next one
		l.unknown(fmt.Errorf("read kernel state: %w", part.err))
		return true
	}
	l.contain(contain.Reconcile, func() { r.comparison.Add(part.objects) })
	r.ending, r.consistent = part.last, part.consistent
	return false
}

// endResync continues the end of a comparison, which visits all objects; it reports whether it is
// complete.
func (l *Loop) endResync() (complete bool) {
	r := &l.resync
	more := false // after a panic, the next comparison begins again
	if l.contain(contain.Reconcile, func() { more = r.comparison.EndPart(r.consistent, resyncStep) }); more {
		return false
	}
	r.comparison, r.ending, r.ended = nil, false, time.Now()
	r.took = r.ended.Sub(r.begun)
	if r.due {
		r.due = false
		l.requestResync()
	}
	return true
}

// unknown schedules another read: the kernel may differ from what is known.
func (l *Loop) unknown(err error) {
	l.unread = true
	l.retryLater(err)
}

// retryLater logs an error once and schedules a retry after a growing pause.
func (l *Loop) retryLater(err error) {
	// That a link is down is no error unless it lasts: the event is still to come.
	if l.pause > 0 || !errors.Is(err, syscall.ENETDOWN) {
		if err.Error() != l.refused {
			l.options.Log.Error("kernel update failed, retrying", "err", err)
		}
		l.refused = err.Error()
	}
	l.pause = min(max(2*l.pause, retryFirst), retryMost)
	l.retry.Reset(l.pause)
}

// settle applies a part of the desired state; what the kernel rejects is retried after a pause.
func (l *Loop) settle(m Reactor) {
	l.contain(contain.Reconcile, func() {
		l.again = false
		if !l.busy {
			l.again = l.more.step()
		}
		l.flush()
		l.again = m.Settled() || l.again
	})
}

// Busy reports whether objects are being applied to the kernel.
func (l *Loop) Busy() bool { return l.busy }

func (l *Loop) flush() {
	var err error
	l.busy, err = l.Kernel.FlushPart(Step)
	if n := l.Kernel.Applied(); n != l.applied {
		l.applied, l.changed = n, time.Now()
	}
	if err := l.more.unresolved(); err != nil && !l.unread {
		l.unknown(err)
	}
	if l.lacking == 0 {
		l.awaitRoutes()
	}
	switch {
	case err != nil:
		l.retryLater(err)
	case !l.unread && !l.busy:
		l.refused, l.pause = "", 0
	}
}

// leave removes everything at a clean stop. The extension stops first, so that others stop sending
// here.
func (l *Loop) leave() error {
	l.more.stop()
	if l.options.Keep {
		return nil
	}
	l.Kernel.Clear()
	if err := l.Kernel.Flush(); err != nil {
		return fmt.Errorf("remove kernel state: %w", err)
	}
	return nil
}

// Do runs f in the daemon's loop, where the machine's state can be read. It reports whether f ran:
// not before or after Run. A panic of f is one of the caller, whose boundary it reaches; the loop goes on.
func (l *Loop) Do(ctx context.Context, f func()) bool { return l.request(ctx, false, f) }

// Change runs f like Do and then applies the desired state.
func (l *Loop) Change(ctx context.Context, f func()) bool { return l.request(ctx, true, f) }

// request is a function to run in the daemon's loop.
type request struct {
	run    func()
	change bool
}

func (l *Loop) request(ctx context.Context, change bool, f func()) bool {
	done := make(chan struct{})
	var fault error
	run := func() {
		defer close(done)
		fault = contain.Do(contain.Request, l.options.Log, nil, f)
	}
	select {
	case l.requests <- request{run, change}:
		<-done
		contain.Again(fault)
		return true
	case <-l.stopped:
		return false
	case <-ctx.Done():
		return false
	}
}
