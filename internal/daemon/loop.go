package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"syscall"
	"time"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/daemon/condition"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/kernel/route"
)

const (
	// resyncEvery is the longest time until changes of our objects without an event are repaired.
	resyncEvery = 30 * time.Second
	// Step is the number of routes that are changed before the loop looks for events: about ten
	// milliseconds' work, most of it the kernel's.
	Step = 2048
	// resolvePause is how long next hops are not resolved again after a change of a link without
	// objects of ours, as containers come and go.
	resolvePause = 100 * time.Millisecond
	// resolveFirst and resolveMost bound the pause before next hops without a route are resolved
	// again: the kernel reports a link before it has the routes over it, and routes of others
	// without an event.
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
	// linkChangeTime is how long the kernel may refuse objects because a link changes before that
	// is logged as an error: a link flaps, and its addresses follow it.
	linkChangeTime = time.Second
	// overrunPause is the least interval between two log lines of missing messages of the kernel:
	// one that cannot be decoded may come again and again.
	overrunPause = time.Minute
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

// Conditioned is a Reactor that depends on conditions of the host, which are examined again while
// it runs.
type Conditioned interface {
	Reactor
	// Conditions returns what is needed of the host now. Their functions are not called from the
	// loop.
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

	options LoopOptions
	reactor Reactor
	more    extension
	// inputs, unless nil, has what apply is called with.
	inputs   <-chan []bgp.Event
	apply    func([]bgp.Event)
	conn     *route.Conn
	reader   *route.Conn
	host     host
	requests chan request
	stopped  chan struct{}

	retry    retry
	nexthops nexthops
	// quiet fires when the desired state may have been complete for long enough.
	quiet  *time.Timer
	links  map[string]route.Link // of the kernel
	resync resync
	// busy: some objects are not applied to the kernel yet. again: another round is requested.
	busy, again bool
	pace        *pace
	overrun     time.Time // when missing messages of the kernel were last logged
	// problems are the conditions of the host that do not hold, and hostChanged has them examined.
	problems    []health.Problem
	hostChanged chan struct{}
}

// retry is when what the kernel rejected, or could not be read, is tried again.
type retry struct {
	timer   *time.Timer
	pause   time.Duration
	since   time.Time // of the first of the errors in a row that pause is for
	refused string    // the last logged error of the kernel
	// unread: objects or links of the kernel could not be read and may differ from what is known.
	unread bool
}

// nexthops is when next hops are resolved again.
type nexthops struct {
	timer *time.Timer
	// lacking is the pause after which what has no route is resolved again, 0 if nothing lacks one.
	lacking time.Duration
}

// extension is the part of a daemon that learns a desired state from others.
type extension interface {
	// start is called once the initial desired state was applied, stop before everything is
	// removed, and once more at the end.
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
	// complete reports whether the desired state is known, so that what a previous instance left
	// can be deleted, and unknown whether nothing of it is.
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
	known := route.NewReconciler(kernel, o.Protocol, o.Log)
	return &Loop{
		Kernel: known, options: o, more: alone{}, host: h,
		requests: make(chan request), stopped: make(chan struct{}), links: map[string]route.Link{},
		hostChanged: make(chan struct{}, 1), pace: newPace(o.Log),
		resync: resync{kernel: d, protocol: o.Protocol, known: known, log: o.Log, dumped: make(chan dump)},
	}
}

// Close disconnects from the kernel without changing it.
func (l *Loop) Close() error { return l.disconnect() }

func (l *Loop) disconnect() error { return errors.Join(l.conn.Close(), l.reader.Close()) }

// Link returns the state of an interface; a missing one is an error that matches fs.ErrNotExist.
func (l *Loop) Link(name string) (route.Link, error) { return l.conn.Link(name) }

// MTU returns that of an interface as last reported, 0 if there is none of this name. The loop
// calls it.
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

// RoutedOn reports whether a route over an interface leads to dst, for packets with a mark that are
// bound to it.
func (l *Loop) RoutedOn(dst netip.Addr, link string, mark uint32) (bool, error) {
	on, err := l.conn.Link(link)
	if err != nil {
		return false, err
	}
	return l.conn.RoutedOn(dst, on.Index, mark)
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
func (l *Loop) Run(ctx context.Context, m Reactor) (err error) {
	l.reactor = m
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
	if c, ok := m.(Conditioned); ok {
		if stopHost, err = l.followHost(ctx, c); err != nil {
			return err
		}
	}
	l.startTimers(0)
	defer l.stopTimers()
	for l.settle(); l.busy; l.settle() {
		l.pace.look()
	}
	if err := l.more.start(); err != nil {
		return errors.Join(err, l.abandon())
	}
	l.reread()
	l.settle()
	if err := l.loop(ctx, first, second); err != nil {
		return err
	}
	return l.leave()
}

func (l *Loop) startTimers(retry time.Duration) {
	l.retry.timer, l.resync.start, l.nexthops.timer = time.NewTimer(retry), time.NewTimer(0), time.NewTimer(0)
	l.quiet = time.NewTimer(sweepAfter)
}

func (l *Loop) stopTimers() {
	for _, t := range []*time.Timer{l.retry.timer, l.resync.start, l.nexthops.timer, l.quiet, l.pace.overdue} {
		t.Stop()
	}
}

// loop applies events of the first source before anything else.
func (l *Loop) loop(ctx context.Context, first, second source) error {
	resync := time.NewTicker(resyncEvery)
	defer resync.Stop()
	latest := time.NewTimer(sweepAfter)
	defer latest.Stop()
	for {
		l.pace.look()
		select {
		case e, ok := <-first.Events():
			if err := l.containEvents(ctx, first, e, ok); err != nil || ctx.Err() != nil {
				return err
			}
			l.settle()
		default:
		}
		// What is desired already is applied before there is more; what is read from the kernel
		// waits until it can be compared.
		waiting := l.inputs
		if l.busy {
			waiting = nil
		}
		dumped, ending := l.resync.input()
		l.pace.look()
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-waiting:
			if !ok {
				return l.more.ended()
			}
			l.pace.begin("BGP events", nil)
			l.apply(e)
		case e, ok := <-first.Events():
			if err := l.containEvents(ctx, first, e, ok); err != nil || ctx.Err() != nil {
				return err
			}
		case e, ok := <-second.Events():
			if err := l.containEvents(ctx, second, e, ok); err != nil || ctx.Err() != nil {
				return err
			}
		case <-l.nexthops.timer.C:
			l.reconcile("resolve next hops", l.resolveAgain)
		case <-l.resync.start.C:
			l.pace.begin("start of a comparison", nil)
			l.resync.begin(ctx, l.busy)
			continue
		case r := <-dumped:
			if !l.compare(r) {
				continue
			}
		case <-when(ending):
			if !l.endResync() {
				continue
			}
		case <-when(l.busy || l.again):
		case <-l.retry.timer.C:
			if l.retry.unread {
				l.reconcile("reread", l.reread)
			}
		case <-resync.C:
			l.reconcile("reread", l.reread)
		case <-l.quiet.C:
			if l.more.complete() {
				l.sweep()
			}
		case <-latest.C:
			if l.more.unknown() {
				latest.Reset(sweepAfter)
			} else {
				l.sweep()
			}
		case r := <-l.requests:
			l.pace.begin("request", r.f)
			r.run()
			if !r.change {
				continue
			}
		}
		l.settle()
	}
}

// always is ready at all times.
var always = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// when returns a channel that is ready if a condition holds.
func when(holds bool) <-chan struct{} {
	if holds {
		return always
	}
	return nil
}

// sweep deletes what a previous instance left and is not desired.
func (l *Loop) sweep() {
	l.pace.begin("sweep", nil)
	l.Kernel.Sweep()
}

// contain runs a part of the loop. After a panic everything is read again after a pause: the kernel
// may differ from what is known.
func (l *Loop) contain(b contain.Boundary, part func()) {
	if err := contain.Do(b, l.options.Log, nil, part); err != nil {
		l.busy, l.again = false, false
		l.unknown(err)
	}
}

// reconcile runs a step of a turn that compares or resolves, inside a boundary.
func (l *Loop) reconcile(step string, f func()) {
	l.pace.begin(step, nil)
	l.contain(contain.Reconcile, f)
}

// containEvents is kernelEvents inside a boundary.
func (l *Loop) containEvents(ctx context.Context, from source, e route.Event, ok bool) (err error) {
	l.pace.begin("kernel events", nil)
	l.contain(contain.KernelEvent, func() { err = l.kernelEvents(ctx, from, e, ok) })
	return err
}

// kernelEvents applies an event of the source and those that wait behind it.
func (l *Loop) kernelEvents(ctx context.Context, from source, e route.Event, ok bool) error {
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
			l.linkChange(e)
		case route.ObjectChange:
			addresses = addresses || e.Object.Key().Class() == route.ClassAddress
			if a, ok := e.Object.(route.Address); ok && e.Deleted && a.Prefix.Addr().Is4() {
				// With the last IPv4 address of a link the kernel deletes the IPv4 routes over
				// it, without events.
				l.resync.request()
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
			l.logOverrun(e, time.Now())
			l.reread()
		}
		if waiting == 0 {
			break
		}
		e, ok = <-from.Events()
	}
	if a, ok := l.reactor.(AddressReactor); ok && addresses {
		a.Addresses()
	}
	if changed > 0 {
		l.resync.request() // it may have changed more than there are events for
	}
	return nil
}

// logOverrun logs that messages of the kernel are missing, at most once in overrunPause.
func (l *Loop) logOverrun(o route.Overrun, now time.Time) {
	if now.Sub(l.overrun) >= overrunPause {
		l.overrun = now
		l.options.Log.Warn("messages of the kernel are missing, reading everything again", "reason", o.Reason)
	}
}

// linkChange applies a change of a link. Most messages repeat the state.
func (l *Loop) linkChange(c route.LinkChange) {
	link := c.Link
	if c.Deleted {
		link.Admin, link.Up = false, false
	}
	was, known := l.links[link.Name]
	if known && was == link && !c.Deleted {
		return
	}
	l.examineSoon()
	l.renamed(link)
	if l.links[link.Name] = link; c.Deleted {
		delete(l.links, link.Name)
	}
	switch {
	case l.applyLink(c):
		l.resync.request()
		l.nexthops.timer.Reset(0)
	case link.Up && l.more.unreachable():
		l.nexthops.timer.Reset(0)
	default:
		l.nexthops.timer.Reset(resolvePause)
	}
	l.nexthops.lacking = resolveFirst
	if link.Up && !was.Up {
		l.more.linkUp()
	}
}

// renamed deletes a link that has another name now: the kernel reports only the new one, and rules
// for the old name no longer match its packets.
func (l *Loop) renamed(link route.Link) {
	for name, old := range l.links {
		if old.Index == link.Index && name != link.Name {
			l.options.Log.Warn("link was renamed; what is configured for its old name has no effect", "link", name, "now", link.Name)
			delete(l.links, name)
			l.applyLink(route.LinkChange{Link: old, Deleted: true})
		}
	}
}

// applyLink has the reactor react before anything else. It reports whether the link has objects.
func (l *Loop) applyLink(c route.LinkChange) (used bool) {
	l.reactor.Link(c.Link.Name, c.Link.Up && !c.Deleted)
	return l.Kernel.Link(c)
}

// reread reads everything again: links, our objects, routes to next hops.
func (l *Loop) reread() {
	l.retry.unread = false
	l.examineSoon()
	l.rereadLinks()
	if a, ok := l.reactor.(AddressReactor); ok {
		a.Addresses()
	}
	l.resync.request()
	l.resolveAgain()
}

func (l *Loop) rereadLinks() {
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
		l.applyLink(route.LinkChange{Link: link})
	}
	for _, link := range before {
		l.applyLink(route.LinkChange{Link: link, Deleted: true})
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
		l.nexthops.lacking = 0
		return
	}
	l.nexthops.lacking = min(max(2*l.nexthops.lacking, resolveFirst), resolveMost)
	l.nexthops.timer.Reset(l.nexthops.lacking)
}

// compare compares a part of the kernel's objects; it reports whether reading them failed.
func (l *Loop) compare(part dump) (failed bool) {
	if part.err != nil {
		l.resync.abandon() // unknown schedules the next one
		l.unknown(fmt.Errorf("read kernel state: %w", part.err))
		return true
	}
	l.reconcile("comparison", func() { l.resync.add(part) })
	return false
}

// endResync continues the end of a comparison; it reports whether it is complete.
func (l *Loop) endResync() (complete bool) {
	more := false // after a panic, the next comparison begins again
	if l.reconcile("end of a comparison", func() { more = l.resync.endPart() }); more {
		return false
	}
	l.resync.finish()
	return true
}

// unknown schedules another read: the kernel may differ from what is known.
func (l *Loop) unknown(err error) {
	l.retry.unread = true
	l.retryLater(err)
}

// retryLater logs an error once and schedules a retry after a growing pause.
func (l *Loop) retryLater(err error) {
	now := time.Now()
	if l.retry.pause == 0 {
		l.retry.since = now
	}
	if now.Sub(l.retry.since) >= linkChangeTime || !linkChanging(err) {
		if err.Error() != l.retry.refused {
			l.options.Log.Error("kernel update failed, retrying", "err", err)
		}
		l.retry.refused = err.Error()
	}
	l.retry.pause = min(max(2*l.retry.pause, retryFirst), retryMost)
	l.retry.timer.Reset(l.retry.pause)
}

// linkChanging reports whether the kernel refused objects because a link is down, or up and still
// without its addresses. That is no error unless it lasts for linkChangeTime: the event is still to
// come.
func linkChanging(err error) bool {
	return errors.Is(err, syscall.ENETDOWN) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}

// settle applies a part of the desired state; what the kernel rejects is retried after a pause.
func (l *Loop) settle() {
	l.contain(contain.Reconcile, func() {
		l.again = false
		if !l.busy {
			l.pace.begin("routes of next hops", nil)
			l.again = l.more.step()
		}
		l.pace.begin("flush", nil)
		l.flush()
		l.pace.begin("settled", nil)
		l.again = l.reactor.Settled() || l.again
	})
}

// Busy reports whether objects are being applied to the kernel.
func (l *Loop) Busy() bool { return l.busy }

func (l *Loop) flush() {
	var err error
	l.busy, err = l.Kernel.FlushPart(Step)
	l.resync.observe()
	if err := l.more.unresolved(); err != nil && !l.retry.unread {
		l.unknown(err)
	}
	if l.nexthops.lacking == 0 {
		l.awaitRoutes()
	}
	switch {
	case err != nil:
		l.retryLater(err)
	case !l.retry.unread && !l.busy:
		l.retry.refused, l.retry.pause = "", 0
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

// abandon removes what a start that failed has applied: rules and unreachable routes of a daemon
// that does not run would drop packets until somebody removes them. After a previous instance that
// was killed they stay: its other objects do, and the next start takes over all of them.
func (l *Loop) abandon() error {
	l.more.stop()
	if err := l.Kernel.Resync(); err != nil {
		return fmt.Errorf("remove kernel state: %w", err)
	}
	if l.Kernel.Inherited() {
		return nil
	}
	return l.leave()
}

// KeepState leaves the kernel's state in place at the end of Run, as LoopOptions.Keep does: another
// process has taken it over, or will. The loop calls it.
func (l *Loop) KeepState() { l.options.Keep = true }

// Do runs f in the daemon's loop, where the reactor's state can be read. It reports whether f ran:
// not before or after Run. A panic of f is one of the caller, whose boundary it reaches; the loop
// goes on.
func (l *Loop) Do(ctx context.Context, f func()) bool { return l.request(ctx, false, f) }

// Change runs f like Do and then applies the desired state.
func (l *Loop) Change(ctx context.Context, f func()) bool { return l.request(ctx, true, f) }

// request is a function to run in the daemon's loop: f, inside its boundary.
type request struct {
	f, run func()
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
	case l.requests <- request{f, run, change}:
		<-done
		contain.Again(fault)
		return true
	case <-l.stopped:
		return false
	case <-ctx.Done():
		return false
	}
}
