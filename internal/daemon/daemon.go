// Package daemon is the common part of tabane's BGP daemons: it runs a BGP speaker, a reconciler
// and the kernel's events in one loop, installs best unicast paths in the main table, takes over
// the kernel state of a previous instance, and removes it at a clean stop.
//
// It decides nothing about SIDs, egress peers or EPE Routes: that is the Machine's part.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/health"
	"github.com/tabane/tabane/internal/netns"
	"github.com/tabane/tabane/internal/route"
)

// Machine decides. All its methods are called from the daemon's loop, one at a time.
type Machine interface {
	// BGP applies events of the speaker, in order, to the desired state.
	BGP(events []bgp.Event)
	// Link applies the state of an interface, also if it is unchanged: up is administratively up
	// with carrier.
	Link(name string, up bool)
	// Settled is called after a part of the desired state was applied to the kernel, for what must
	// follow, such as advertising a route that is installed now; true requests another round soon.
	// The kernel may have rejected some objects: see Kernel.Settled. A large change of the desired
	// state should be made in steps while the daemon is not Busy.
	Settled() (again bool)
}

// Options describe a Daemon.
type Options struct {
	Protocol route.Protocol
	Speaker  bgp.Options
	// Neighbors are added after the initial desired state was applied.
	Neighbors []bgp.Neighbor
	// Keep leaves everything in the kernel at a clean stop.
	Keep bool
	Log  *slog.Logger
}

const (
	// resyncEvery is the longest time until changes of our objects without an event are repaired.
	resyncEvery = 30 * time.Second
	// resyncShare times the duration of a comparison with the kernel is the least pause after it.
	resyncShare = 30
	// resyncBusy is the pause before a comparison is tried again that would compete with changes.
	resyncBusy = time.Second
	// Step is the number of routes that are changed before the loop looks for events: about ten
	// milliseconds' work, most of it the kernel's.
	Step = 2048
	// resolvePause is how long next hops are not resolved again after a change of a link without
	// objects of ours, as containers come and go.
	resolvePause = 100 * time.Millisecond
	// sweepQuiet is how long all sessions must have been up before a restarted daemon deletes stale
	// objects of the previous instance, and sweepAfter when it does so although some are down. With
	// no session up it does not.
	sweepQuiet = 10 * time.Second
	sweepAfter = time.Minute
	// retryFirst and retryMost bound the pause before objects that the kernel rejected are retried.
	retryFirst = 100 * time.Millisecond
	retryMost  = 5 * time.Second
)

// Daemon runs one Machine. Kernel and Speaker are for the machine to use, in its own methods and
// before Run.
type Daemon struct {
	Kernel  *route.Reconciler
	Speaker *bgp.Speaker
	// connect is that of Speaker; it is called when a link has come up.
	connect func()

	options  Options
	conn     *route.Conn
	reader   *route.Conn
	host     host
	unicast  *unicast
	requests chan request
	stopped  chan struct{}

	up      map[string]bool // sessions
	retry   *time.Timer
	pause   time.Duration
	refused string // the last logged error of the kernel
	// unread: objects or links of the kernel could not be read and may differ from what is known.
	unread bool
	// links are those of the kernel, and resolve fires when next hops are to be resolved again.
	links   map[string]route.Link
	resolve *time.Timer
	resync  resync
	// busy: some objects are not applied to the kernel yet. again: another round is requested.
	busy, again bool
}

// resync compares the kernel's objects with those known, in the background and in steps: with a
// hundred thousand routes it takes a second, and nothing may wait for it.
type resync struct {
	kernel dumper
	due    bool        // what has changed since the last one began is unknown
	start  *time.Timer // fires when the next one may begin
	dumped chan dump
	begun  time.Time
	ended  time.Time
	took   time.Duration
	// comparison is not nil while one runs.
	comparison *route.Comparison
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
	resolver
	Links() ([]route.Link, error)
}

// source is a source of kernel events; a route.Watcher is one.
type source interface {
	Events() <-chan route.Event
	// Err is why Events was closed.
	Err() error
}

// New connects to the kernel and starts the speaker, so that a missing privilege or a port in use
// is reported before anything has changed, and reads the objects of a previous instance. Close
// reverts it; Run does so at its end.
func New(ctx context.Context, o Options) (*Daemon, error) {
	o.Speaker.Report |= bgp.ReportUnicast
	o.Speaker.Log = o.Log
	speaker, err := bgp.New(o.Speaker)
	if err != nil {
		return nil, err
	}
	conn, err := route.Dial()
	if err != nil {
		return nil, err
	}
	// The background must not keep the loop from the connection.
	reader, err := route.Dial()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	d := &Daemon{
		Kernel: route.NewReconciler(conn, o.Protocol, o.Log), Speaker: speaker, connect: speaker.Connect,
		options: o, conn: conn, reader: reader, host: conn, requests: make(chan request), stopped: make(chan struct{}),
		up: map[string]bool{}, links: map[string]route.Link{}, resync: resync{kernel: reader, dumped: make(chan dump)},
	}
	d.unicast = newUnicast(d.Kernel, conn)
	for _, n := range o.Neighbors {
		d.up[n.Name] = false
	}
	if err := d.Kernel.Resync(); err != nil {
		return nil, errors.Join(err, d.disconnect())
	}
	if err := speaker.Start(); err != nil {
		return nil, errors.Join(err, d.disconnect())
	}
	return d, nil
}

// Close stops the speaker and disconnects from the kernel without changing it.
func (d *Daemon) Close() error {
	d.Speaker.Stop()
	return d.disconnect()
}

func (d *Daemon) disconnect() error { return errors.Join(d.conn.Close(), d.reader.Close()) }

// Link returns the state of an interface; a missing one is an error that matches fs.ErrNotExist.
func (d *Daemon) Link(name string) (route.Link, error) { return d.conn.Link(name) }

// NexthopTo returns gateway and interface of the kernel's route to dst; no route is an error that
// wraps route.ErrNoRoute.
func (d *Daemon) NexthopTo(dst netip.Addr) (gateway netip.Addr, link string, err error) {
	return d.conn.NexthopTo(dst)
}

// Found reads the objects of this daemon in the kernel, such as those of a previous instance.
func (d *Daemon) Found(each func(route.Object)) error {
	_, err := d.conn.DumpEach(d.options.Protocol, func(objects []route.Object) {
		for _, o := range objects {
			each(o)
		}
	})
	return err
}

// Run runs the machine until ctx ends; then, unless Options.Keep, it removes its objects from the
// kernel.
func (d *Daemon) Run(ctx context.Context, m Machine) (err error) {
	defer close(d.stopped)
	defer func() { err = errors.Join(err, d.disconnect()) }()
	defer d.Speaker.Stop()
	// Two sockets: what overruns one does not delay the other.
	first, err := d.conn.WatchOwned(ctx, d.options.Protocol, route.Links, route.Rules, route.Nexthops)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, first.Close()) }()
	second, err := d.conn.WatchOwned(ctx, d.options.Protocol, route.Addresses, route.Routes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, second.Close()) }()
	d.startTimers(0)
	defer d.stopTimers()
	for d.settle(m); d.busy; d.settle(m) {
	}
	for _, n := range d.options.Neighbors {
		if err := d.Speaker.AddNeighbor(n); err != nil {
			return err
		}
	}
	d.reread(m)
	d.settle(m)
	if err := d.loop(ctx, m, d.Speaker.Events(), first, second); err != nil {
		return err
	}
	return d.leave()
}

func (d *Daemon) startTimers(retry time.Duration) {
	d.retry, d.resync.start, d.resolve = time.NewTimer(retry), time.NewTimer(0), time.NewTimer(0)
}

func (d *Daemon) stopTimers() {
	for _, t := range []*time.Timer{d.retry, d.resync.start, d.resolve} {
		t.Stop()
	}
}

// loop applies events of the first source before anything else.
func (d *Daemon) loop(ctx context.Context, m Machine, learned <-chan []bgp.Event, first, second source) error {
	resync := time.NewTicker(resyncEvery)
	defer resync.Stop()
	latest := time.NewTimer(sweepAfter)
	defer latest.Stop()
	quiet := time.NewTimer(sweepAfter)
	defer quiet.Stop()
	always := make(chan struct{})
	close(always)
	for {
		select {
		case e, ok := <-first.Events():
			if err := d.kernelEvents(ctx, m, first, e, ok); err != nil || ctx.Err() != nil {
				return err
			}
			d.settle(m)
		default:
		}
		// What is desired already is applied before there is more; what is read from the kernel
		// waits until it can be compared.
		var ready chan struct{}
		if d.busy || d.again {
			ready = always
		}
		reports := learned
		if d.busy {
			reports = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case events, ok := <-reports:
			if !ok {
				return errors.New("bgp speaker stopped by itself")
			}
			if d.track(events) {
				quiet.Reset(sweepQuiet)
			}
			d.unicast.update(events)
			m.BGP(events)
		case e, ok := <-first.Events():
			if err := d.kernelEvents(ctx, m, first, e, ok); err != nil || ctx.Err() != nil {
				return err
			}
		case e, ok := <-second.Events():
			if err := d.kernelEvents(ctx, m, second, e, ok); err != nil || ctx.Err() != nil {
				return err
			}
		case <-d.resolve.C:
			d.resolveNextHops()
		case <-d.resync.start.C:
			d.beginResync(ctx)
			continue
		case r := <-d.resync.dumped:
			if !d.compare(r) {
				continue
			}
		case <-ready:
		case <-d.retry.C:
			if d.unread {
				d.reread(m)
			}
		case <-resync.C:
			d.reread(m)
		case <-quiet.C:
			if d.AllUp() {
				d.Kernel.Sweep()
			}
		case <-latest.C:
			if d.noneUp() {
				latest.Reset(sweepAfter) // nobody advertises what is wanted
			} else {
				d.Kernel.Sweep()
			}
		case r := <-d.requests:
			r.run()
			if !r.change {
				continue
			}
		}
		d.settle(m)
	}
}

// track records which sessions are up; it reports whether one changed.
func (d *Daemon) track(events []bgp.Event) (changed bool) {
	for _, e := range events {
		s, ok := e.(bgp.Session)
		if !ok {
			continue
		}
		changed = true
		if _, known := d.up[s.Neighbor]; known { // the session of a removed neighbor ends after that
			d.up[s.Neighbor] = s.Up
		}
	}
	bgp.LogSessions(d.options.Log, events)
	return changed
}

// ChangeNeighbors replaces the neighbors of old by those of now, as Speaker.Change does, outside of the
// daemon's loop: with a full table, a change of policy takes a while.
func (d *Daemon) ChangeNeighbors(ctx context.Context, old, now []bgp.Neighbor) error {
	d.expect(ctx, bgp.Compare(old, now))
	err := d.Speaker.Change(old, now)
	if err != nil {
		d.expect(ctx, bgp.Compare(now, old))
	}
	return err
}

// expect applies a change of neighbors to the sessions that are tracked.
func (d *Daemon) expect(ctx context.Context, c bgp.Changes) {
	d.Do(ctx, func() {
		for _, name := range c.Remove {
			delete(d.up, name)
		}
		for _, n := range slices.Concat(c.Reset, c.Add) {
			d.up[n.Name] = false
		}
	})
}

// noneUp reports whether there are sessions, and none of them is up.
func (d *Daemon) noneUp() bool {
	for _, up := range d.up {
		if up {
			return false
		}
	}
	return len(d.up) > 0
}

// AllUp reports whether all sessions are up.
func (d *Daemon) AllUp() bool {
	for _, up := range d.up {
		if !up {
			return false
		}
	}
	return true
}

// kernelEvents applies an event of the source and those that wait behind it.
func (d *Daemon) kernelEvents(ctx context.Context, m Machine, from source, e route.Event, ok bool) error {
	changed := 0
	for waiting := len(from.Events()); ; waiting-- {
		if !ok {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("watch kernel: %w", from.Err())
		}
		switch e := e.(type) {
		case route.LinkChange:
			d.linkChange(m, e)
		case route.ObjectChange:
			if a, ok := e.Object.(route.Address); ok && e.Deleted && a.Prefix.Addr().Is4() {
				// With the last IPv4 address of a link the kernel deletes the IPv4 routes over
				// it, without events.
				d.requestResync()
			}
			// The following flush restores it: without it, traffic would take another path.
			if d.Kernel.Changed(e) {
				if changed++; changed == 1 {
					d.options.Log.Warn("another program changed kernel objects, restoring them", "object", e.Object)
				}
			}
		case route.Overrun:
			d.options.Log.Warn("netlink receive buffer overrun, reading everything again")
			d.reread(m)
		}
		if waiting == 0 {
			break
		}
		e, ok = <-from.Events()
	}
	if changed > 0 {
		d.requestResync() // it may have changed more than there are events for
	}
	return nil
}

// linkChange applies a change of a link. Most messages repeat the state.
func (d *Daemon) linkChange(m Machine, c route.LinkChange) {
	l := c.Link
	if c.Deleted {
		l.Admin, l.Up = false, false
	}
	was, known := d.links[l.Name]
	if known && was == l && !c.Deleted {
		return
	}
	if d.links[l.Name] = l; c.Deleted {
		delete(d.links, l.Name)
	}
	if d.applyLink(m, c) {
		d.requestResync()
		d.resolve.Reset(0)
	} else {
		d.resolve.Reset(resolvePause)
	}
	if l.Up && !was.Up {
		d.connect()
	}
}

// applyLink has the machine react before anything else. It reports whether the link has objects.
func (d *Daemon) applyLink(m Machine, c route.LinkChange) (used bool) {
	m.Link(c.Link.Name, c.Link.Up && !c.Deleted)
	return d.Kernel.Link(c)
}

// reread reads everything again: links, our objects, routes to next hops.
func (d *Daemon) reread(m Machine) {
	d.unread = false
	d.rereadLinks(m)
	d.requestResync()
	d.resolveNextHops()
}

func (d *Daemon) rereadLinks(m Machine) {
	links, err := d.host.Links()
	if err != nil {
		d.unknown(fmt.Errorf("read links: %w", err))
		return
	}
	before := d.links
	d.links = make(map[string]route.Link, len(links))
	for _, l := range links {
		d.links[l.Name] = l
		delete(before, l.Name)
		d.applyLink(m, route.LinkChange{Link: l})
	}
	for _, l := range before {
		d.applyLink(m, route.LinkChange{Link: l, Deleted: true})
	}
}

func (d *Daemon) resolveNextHops() {
	if err := d.unicast.resolve(); err != nil {
		d.unknown(fmt.Errorf("resolve next hops: %w", err))
	}
}

// requestResync has the kernel's objects compared soon.
func (d *Daemon) requestResync() {
	if !d.resync.due && d.resync.comparison == nil {
		d.resync.start.Reset(time.Until(d.resync.ended.Add(resyncShare * d.resync.took)))
	}
	d.resync.due = true
}

func (d *Daemon) beginResync(ctx context.Context) {
	r := &d.resync
	switch {
	case !r.due || r.comparison != nil:
		return
	case d.busy:
		r.start.Reset(resyncBusy)
		return
	}
	r.due, r.begun, r.comparison = false, time.Now(), d.Kernel.Compare()
	pass := func(part dump) {
		select {
		case r.dumped <- part:
		case <-ctx.Done():
		}
	}
	go func(k dumper, p route.Protocol) {
		consistent, err := k.DumpEach(p, func(objects []route.Object) { pass(dump{objects: slices.Clone(objects)}) })
		pass(dump{last: true, consistent: consistent, err: err})
	}(r.kernel, d.options.Protocol)
}

// compare compares a part of the kernel's objects; it reports whether it was the last.
func (d *Daemon) compare(part dump) (last bool) {
	r := &d.resync
	if part.err != nil {
		r.comparison, r.due = nil, false // unknown schedules the next one
		d.unknown(fmt.Errorf("read kernel state: %w", part.err))
		return true
	}
	r.comparison.Add(part.objects)
	if !part.last {
		return false
	}
	r.comparison.End(part.consistent)
	r.comparison, r.ended = nil, time.Now()
	r.took = r.ended.Sub(r.begun)
	if r.due {
		r.due = false
		d.requestResync()
	}
	return true
}

// unknown schedules another read: the kernel may differ from what is known.
func (d *Daemon) unknown(err error) {
	d.unread = true
	d.retryLater(err)
}

// retryLater logs an error once and schedules a retry after a growing pause.
func (d *Daemon) retryLater(err error) {
	if err.Error() != d.refused {
		d.options.Log.Error("kernel update failed, retrying", "err", err)
	}
	d.refused = err.Error()
	d.pause = min(max(2*d.pause, retryFirst), retryMost)
	d.retry.Reset(d.pause)
}

// settle applies a part of the desired state; what the kernel rejects is retried after a pause.
func (d *Daemon) settle(m Machine) {
	d.again = false
	d.flush()
	if !d.busy {
		d.again = d.unicast.step(Step)
	}
	d.again = m.Settled() || d.again
}

// Busy reports whether objects are being applied to the kernel.
func (d *Daemon) Busy() bool { return d.busy }

func (d *Daemon) flush() {
	var err error
	d.busy, err = d.Kernel.FlushPart(Step)
	if u := d.unicast.unsure; u != nil && !d.unread {
		d.unknown(u)
	}
	switch {
	case err != nil:
		d.retryLater(err)
	case !d.unread && !d.busy:
		d.refused, d.pause = "", 0
	}
}

// leave removes everything at a clean stop. The sessions close first, so that others stop sending
// here.
func (d *Daemon) leave() error {
	d.Speaker.Stop()
	if d.options.Keep {
		return nil
	}
	d.Kernel.Clear()
	if err := d.Kernel.Flush(); err != nil {
		return fmt.Errorf("remove kernel state: %w", err)
	}
	return nil
}

// Do runs f in the daemon's loop, where the machine's state can be read. It reports whether f ran:
// not before or after Run.
func (d *Daemon) Do(ctx context.Context, f func()) bool { return d.request(ctx, false, f) }

// Change runs f like Do and then applies the desired state.
func (d *Daemon) Change(ctx context.Context, f func()) bool { return d.request(ctx, true, f) }

// request is a function to run in the daemon's loop.
type request struct {
	run    func()
	change bool
}

func (d *Daemon) request(ctx context.Context, change bool, f func()) bool {
	done := make(chan struct{})
	select {
	case d.requests <- request{func() { f(); close(done) }, change}:
		<-done
		return true
	case <-d.stopped:
		return false
	case <-ctx.Done():
		return false
	}
}

// FollowLink applies the state of a link to the session over it: it closes at once when the link
// goes down, without waiting for the hold timer, and is enabled when the link is up.
func (d *Daemon) FollowLink(neighbor, link string, up bool) {
	change, state := d.Speaker.Enable, "up"
	if !up {
		change, state = d.Speaker.Disable, "down"
	}
	d.options.Log.Info("link is "+state, "link", link, "neighbor", neighbor)
	if err := change(neighbor); err != nil {
		d.options.Log.Error("apply link state to session", "err", err)
	}
}

// CheckForwarding returns an error with what to do if this host does not forward packets of one of
// the versions.
func CheckForwarding(versions ...bgp.IP) error {
	for _, v := range versions {
		name, key := "IPv6", "net.ipv6.conf.all.forwarding"
		if v == bgp.IPv4 {
			name, key = "IPv4", "net.ipv4.ip_forward"
		}
		value, err := netns.ReadSysctl(key)
		if err != nil {
			return err
		}
		if value == "0" {
			return fmt.Errorf("this host does not forward %s, as a router must: sysctl -w %s=1", name, key)
		}
	}
	return nil
}

// CheckReversePath returns an error with what to do if an interface drops IPv4 packets by strict
// reverse path filtering (RFC 3704 section 2.2), because the best path to their source is through
// another. The larger of the two settings applies.
func CheckReversePath(link string) error {
	const strict = "1"
	effective := ""
	for _, name := range []string{"all", link} {
		value, err := netns.ReadSysctl("net.ipv4.conf." + name + ".rp_filter")
		if err != nil {
			return err
		}
		effective = max(effective, value)
	}
	if effective == strict {
		return fmt.Errorf("interface %q drops IPv4 packets whose best return path is another: sysctl -w net.ipv4.conf.%s.rp_filter=2", link, link)
	}
	return nil
}

// NotRunning is the health of a daemon before and after Run.
var NotRunning = health.Status{Reason: "not running"}

// Health returns how many objects the kernel does not have as desired, and the sessions. It reports
// the former as a problem; what the sessions mean is the caller's decision. The daemon's loop calls
// it.
func (d *Daemon) Health(r *health.Report) (pending int, sessions []bgp.SessionStatus) {
	if pending = d.Kernel.Pending(); pending > 0 {
		r.Degrade("%d objects are not in the kernel", pending)
	}
	return pending, d.Speaker.Sessions()
}
