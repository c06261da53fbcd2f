// Package daemon is what every BGP daemon of tabane does around its own decisions: it keeps a BGP speaker, a reconciler
// and the kernel's events in one loop, mirrors best unicast paths into the main table, takes over what a former life
// left in the kernel, and removes it at a clean stop.
//
// It decides nothing about SIDs, egress peers or EPE Routes: that is the Machine's part.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/netns"
	"github.com/tabane/tabane/internal/route"
)

// Machine decides. All its methods are called from the daemon's loop, one at a time.
type Machine interface {
	// BGP takes what the speaker learned, in order, and changes what is wanted.
	BGP(events []bgp.Event)
	// Link takes the state of an interface, again and again: up is administratively and down to the wire.
	Link(name string, up bool)
	// Settled is called when the kernel has been brought what is wanted. What must come after that is done here, such as
	// announcing a route that works now; true asks for another round. The kernel may have refused some of it, by the
	// fault of one route: Kernel.Settled tells for each object.
	Settled() (again bool)
}

// Options is what a Daemon is made of.
type Options struct {
	Protocol route.Protocol
	Speaker  bgp.Options
	// Neighbors are added once the kernel has what the machine wants from the start.
	Neighbors []bgp.Neighbor
	// Keep leaves everything in the kernel at a clean stop.
	Keep bool
	Log  *slog.Logger
}

const (
	// resyncEvery bounds for how long a foreign change of our objects goes unrepaired.
	resyncEvery = 30 * time.Second
	// sweepQuiet is how long all sessions must have been up before a restarted daemon deletes what nobody wants any
	// more, and sweepAfter when it does so although some are not. Without any session it does not.
	sweepQuiet = 10 * time.Second
	sweepAfter = time.Minute
	// retryFirst and retryMost bound the pause before what the kernel refused is tried again.
	retryFirst = 100 * time.Millisecond
	retryMost  = 5 * time.Second
)

// Daemon runs one Machine. Kernel and Speaker are the machine's to use, from its own methods and before Run.
type Daemon struct {
	Kernel  *route.Reconciler
	Speaker *bgp.Speaker

	options  Options
	conn     *route.Conn
	host     host
	unicast  *unicast
	requests chan request
	stopped  chan struct{}

	up      map[string]bool // sessions
	retry   *time.Timer
	pause   time.Duration
	refused string // the last error of the kernel that was logged
	// unread: what the kernel has, or what its links are, could not be read; until it is, it may differ from what we take
	// it for.
	unread bool
}

// host is what a daemon asks of its host beside the objects that it owns; a route.Conn is one.
type host interface {
	resolver
	Links() ([]route.Link, error)
}

// source tells what happens; a route.Watcher is one.
type source interface {
	Events() <-chan route.Event
	// Err says why Events was closed.
	Err() error
}

// New opens the kernel and starts the speaker, so that a missing privilege or a taken port is known before anything has
// changed, and reads what a former life left behind. Close undoes it; Run does so at its end.
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
	d := &Daemon{
		Kernel: route.NewReconciler(conn, o.Protocol, o.Log), Speaker: speaker,
		options: o, conn: conn, host: conn, requests: make(chan request), stopped: make(chan struct{}), up: map[string]bool{},
	}
	d.unicast = newUnicast(d.Kernel, conn)
	for _, n := range o.Neighbors {
		d.up[n.Name] = false
	}
	if err := d.Kernel.Resync(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if err := speaker.Start(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return d, nil
}

// Close gives up the speaker and the kernel without changing anything there.
func (d *Daemon) Close() error {
	d.Speaker.Stop()
	return d.conn.Close()
}

// Link says how an interface is now; one that is not there is an error that matches fs.ErrNotExist.
func (d *Daemon) Link(name string) (route.Link, error) { return d.conn.Link(name) }

// NexthopTo returns gateway and interface of the kernel's route to dst; no route is an error that wraps
// route.ErrNoRoute.
func (d *Daemon) NexthopTo(dst netip.Addr) (gateway netip.Addr, link string, err error) {
	return d.conn.NexthopTo(dst)
}

// Found reads what the owner has in the kernel, such as a former life's objects.
func (d *Daemon) Found() ([]route.Object, error) { return d.conn.Dump(d.options.Protocol) }

// Run does what the machine decides until ctx ends; then, unless told to keep it, it removes everything that it put into
// the kernel.
func (d *Daemon) Run(ctx context.Context, m Machine) (err error) {
	defer close(d.stopped)
	defer func() { err = errors.Join(err, d.conn.Close()) }()
	defer d.Speaker.Stop()
	watcher, err := route.Watch(ctx, route.Links, route.Rules)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, watcher.Close()) }()
	d.retry = time.NewTimer(0)
	defer d.retry.Stop()
	d.settle(m)
	for _, n := range d.options.Neighbors {
		if err := d.Speaker.AddNeighbor(ctx, n); err != nil {
			return err
		}
	}
	d.reread(m)
	d.settle(m)
	if err := d.loop(ctx, m, d.Speaker.Events(), watcher); err != nil {
		return err
	}
	return d.leave()
}

func (d *Daemon) loop(ctx context.Context, m Machine, learned <-chan []bgp.Event, watcher source) error {
	resync := time.NewTicker(resyncEvery)
	defer resync.Stop()
	latest := time.NewTimer(sweepAfter)
	defer latest.Stop()
	quiet := time.NewTimer(sweepAfter)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case events, ok := <-learned:
			if !ok {
				return errors.New("bgp speaker stopped by itself")
			}
			if d.track(events) {
				quiet.Reset(sweepQuiet)
			}
			d.unicast.update(events)
			m.BGP(events)
		case e, ok := <-watcher.Events():
			if !ok {
				if ctx.Err() != nil {
					return nil
				}
				return fmt.Errorf("watch kernel: %w", watcher.Err())
			}
			d.kernelEvent(m, e)
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
				latest.Reset(sweepAfter) // whoever knows what is wanted is away too
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

// track keeps which sessions are up; it reports whether one changed.
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

// AddNeighbor starts to keep one more session, from the daemon's loop.
func (d *Daemon) AddNeighbor(n bgp.Neighbor) error {
	if err := d.Speaker.AddNeighbor(context.Background(), n); err != nil {
		return err
	}
	d.up[n.Name] = false
	return nil
}

// RemoveNeighbor ends a session for good, from the daemon's loop.
func (d *Daemon) RemoveNeighbor(name string) error {
	if err := d.Speaker.DeleteNeighbor(context.Background(), name); err != nil {
		return err
	}
	delete(d.up, name)
	return nil
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

func (d *Daemon) kernelEvent(m Machine, e route.Event) {
	switch e := e.(type) {
	case route.LinkChange:
		m.Link(e.Link.Name, e.Link.Up && !e.Deleted)
		// The kernel drops what depends on a link that went down, some of it silently.
		d.resync()
	case route.RuleChange:
		// Without its rule, traffic would take another table. The following flush restores it.
		if e.Deleted && e.Protocol == d.options.Protocol {
			d.Kernel.Deleted(e.Rule)
		}
	case route.Overrun:
		d.options.Log.Warn("kernel events were lost, reading everything again")
		d.reread(m)
	}
}

// reread asks the kernel for everything: links, our objects, the ways to next hops.
func (d *Daemon) reread(m Machine) {
	d.unread = false
	d.links(m)
	d.resync()
}

func (d *Daemon) links(m Machine) {
	links, err := d.host.Links()
	if err != nil {
		d.unknown(fmt.Errorf("links are unknown: %w", err))
		return
	}
	for _, l := range links {
		m.Link(l.Name, l.Up)
	}
}

func (d *Daemon) resync() {
	if err := d.Kernel.Resync(); err != nil {
		d.unknown(fmt.Errorf("kernel state is unknown: %w", err))
	}
	if err := d.unicast.resolve(); err != nil {
		d.unknown(fmt.Errorf("ways to next hops are unknown: %w", err))
	}
}

// unknown has the kernel asked again soon: what it has may differ from what we take it for.
func (d *Daemon) unknown(err error) {
	d.unread = true
	d.again(err)
}

// again logs what went wrong, once, and tries again after a pause that grows.
func (d *Daemon) again(err error) {
	if err.Error() != d.refused {
		d.options.Log.Error("kernel refused, trying again", "err", err)
	}
	d.refused = err.Error()
	d.pause = min(max(2*d.pause, retryFirst), retryMost)
	d.retry.Reset(d.pause)
}

// settle brings what is wanted to the kernel, and what the kernel refuses back after a pause.
func (d *Daemon) settle(m Machine) {
	for again := true; again; again = m.Settled() {
		d.flush()
	}
}

func (d *Daemon) flush() {
	err := d.Kernel.Flush()
	if u := d.unicast.unsure; u != nil && !d.unread {
		d.unknown(u)
	}
	switch {
	case err != nil:
		d.again(err)
	case !d.unread:
		d.refused, d.pause = "", 0
	}
}

// leave removes everything at a clean stop. The sessions end first, so that others stop sending here.
func (d *Daemon) leave() error {
	d.Speaker.Stop()
	if d.options.Keep {
		return nil
	}
	d.Kernel.Clear()
	if err := d.Kernel.Flush(); err != nil {
		return fmt.Errorf("leave the kernel as it was: %w", err)
	}
	return nil
}

// Do runs f in the daemon's loop, where the machine's state can be read. It reports whether f ran: not before Run has
// begun or after it has ended.
func (d *Daemon) Do(ctx context.Context, f func()) bool { return d.request(ctx, false, f) }

// Change runs f like Do. What it wants of the kernel is brought there next, and the machine is told.
func (d *Daemon) Change(ctx context.Context, f func()) bool { return d.request(ctx, true, f) }

// request is something to be done in the daemon's loop.
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

// FollowLink makes a session follow the link that it runs over: it ends at once when the link does, without waiting for
// the hold timer, and is tried again when the link is back.
func (d *Daemon) FollowLink(neighbor, link string, up bool) {
	change, state := d.Speaker.Enable, "up"
	if !up {
		change, state = d.Speaker.Disable, "down"
	}
	d.options.Log.Info("link is "+state, "link", link, "neighbor", neighbor)
	if err := change(context.Background(), neighbor); err != nil {
		d.options.Log.Error("session does not follow its link", "err", err)
	}
}

// CheckForwarding says what to do when this host does not forward IPv6.
func CheckForwarding() error {
	const key = "net.ipv6.conf.all.forwarding"
	value, err := netns.ReadSysctl(key)
	if err != nil {
		return err
	}
	if value == "0" {
		return fmt.Errorf("this host does not forward IPv6, as a router must: sysctl -w %s=1", key)
	}
	return nil
}
