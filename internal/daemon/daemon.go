// Package daemon is the common part of tabane's daemons. A Loop runs a reconciler and the kernel's
// events, takes over the kernel state of a previous instance, and removes it at a clean stop. A
// Daemon is a Loop with a BGP speaker, which also installs best unicast paths in the main table.
//
// It decides nothing about SIDs, egress peers, EPE Routes or gateways: that is the part of a
// Machine or Reactor.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/route"
)

// Machine is a Reactor that learns from BGP.
type Machine interface {
	Reactor
	// BGP applies events of the speaker, in order, to the desired state.
	BGP(events []bgp.Event)
}

// Options describe a Daemon.
type Options struct {
	Protocol route.Protocol
	Speaker  bgp.Options
	// Neighbors are added after the initial desired state was applied.
	Neighbors []bgp.Neighbor
	// Installs, unless nil, reports whether the best path to a unicast prefix is installed; it is
	// called for each change of one.
	Installs func(netip.Prefix) bool
	// Keep leaves everything in the kernel at a clean stop.
	Keep bool
	Log  *slog.Logger
}

// Daemon runs one Machine. Kernel and Speaker are for the machine to use, in its own methods and
// before Run.
type Daemon struct {
	*Loop
	Speaker *bgp.Speaker

	namespaceLock io.Closer
	neighbors     []bgp.Neighbor
	// connect is that of Speaker; it is called when a link has come up.
	connect func()
	unicast *unicast
	up      map[string]bool // sessions
}

// New connects to the kernel and starts the speaker, so that a missing privilege or a port in use
// is reported before anything has changed, and reads the objects of a previous instance. Close
// reverts it; Run does so at its end.
func New(ctx context.Context, o Options) (*Daemon, error) {
	o.Speaker.Report |= bgp.ReportUnicast
	o.Speaker.Log = o.Log
	var l *Loop
	o.Speaker.Unreached = func(neighbor netip.Addr) {
		if err := l.conn.ResolveAgain(neighbor); err != nil {
			o.Log.Debug("resolve neighbor again", "err", err)
		}
	}
	speaker, err := bgp.New(o.Speaker)
	if err != nil {
		return nil, err
	}
	// Two would replace each other's routes and rules, and the first to stop would remove those of the
	// other.
	lock, err := netns.Lock(fmt.Sprintf("@tabane-protocol-%d", o.Protocol), ErrRunning)
	if err != nil {
		return nil, err
	}
	l, err = NewLoop(LoopOptions{Protocol: o.Protocol, Keep: o.Keep, Log: o.Log})
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	d := extend(l, l.conn)
	d.namespaceLock = lock
	d.unicast.installs = o.Installs
	d.Speaker, d.connect, d.neighbors = speaker, speaker.Connect, o.Neighbors
	for _, n := range o.Neighbors {
		d.up[n.Name] = false
	}
	if err := speaker.Start(); err != nil {
		return nil, errors.Join(err, l.disconnect(), lock.Close())
	}
	return d, nil
}

// ErrRunning is the error of a second daemon with the same route protocol in a network namespace.
var ErrRunning = errors.New("another one runs in this network namespace; stop it first")

// extend returns a daemon of a loop, without a speaker.
func extend(l *Loop, r resolver) *Daemon {
	d := &Daemon{Loop: l, up: map[string]bool{}, unicast: newUnicast(l.Kernel, r)}
	l.more = (*extended)(d)
	return d
}

// Close stops the speaker and disconnects from the kernel without changing it.
func (d *Daemon) Close() error {
	d.Speaker.Stop()
	return errors.Join(d.disconnect(), d.namespaceLock.Close())
}

// Run runs the machine until ctx ends; then, unless Options.Keep, it removes its objects from the
// kernel.
func (d *Daemon) Run(ctx context.Context, m Machine) error {
	d.inputs, d.apply = d.Speaker.Events(), d.learner(m)
	return errors.Join(d.Loop.Run(ctx, m), d.namespaceLock.Close())
}

// learner returns the function that applies events of the speaker.
func (d *Daemon) learner(m Machine) func([]bgp.Event) {
	return func(events []bgp.Event) {
		if d.track(events) {
			d.quiet.Reset(sweepQuiet)
		}
		apply := func(events []bgp.Event) error {
			return contain.Do(contain.BGPRoute, d.options.Log, nil, func() {
				d.unicast.update(events)
				m.BGP(events)
			})
		}
		if apply(events) == nil {
			return
		}
		// Which of them panicked is unknown. Each has the state of its route, so that it may be
		// applied again; that of a route that panics is withdrawn.
		for _, e := range events {
			if err := apply([]bgp.Event{e}); err != nil {
				if withdrawn, ok := bgp.WithdrawalOf(e); ok {
					err = apply([]bgp.Event{withdrawn})
				}
				if err != nil {
					panic(err) // routes that nobody advertises may stay in the kernel
				}
			}
		}
	}
}

// extended is a Daemon as the loop sees it.
type extended Daemon

func (e *extended) start() error {
	for _, n := range e.neighbors {
		if err := e.Speaker.AddNeighbor(n); err != nil {
			return err
		}
	}
	return nil
}

func (e *extended) stop()        { e.Speaker.Stop() }
func (e *extended) ended() error { return errors.New("bgp speaker stopped by itself") }
func (e *extended) linkUp()      { e.connect() }

func (e *extended) resolve() error {
	if err := e.unicast.resolve(); err != nil {
		return fmt.Errorf("resolve next hops: %w", err)
	}
	return nil
}

func (e *extended) step() bool { return e.unicast.step(Step) }

func (e *extended) unresolved() error { return e.unicast.unsure }
func (e *extended) unreachable() bool { return e.unicast.unreachable }

func (e *extended) complete() bool { return (*Daemon)(e).AllUp() }

// unknown: with no session up, nobody advertises what is wanted.
func (e *extended) unknown() bool { return (*Daemon)(e).noneUp() }

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
	return changed
}

// ChangeNeighbors replaces the neighbors of old by those of now, as Speaker.Change does, outside of
// the daemon's loop: with a full table, a change of policy takes a while.
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

// Unresolved returns the number of best paths of unicast routes that are not installed because
// their next hop has no route. The daemon's loop calls it.
func (d *Daemon) Unresolved() int { return d.unicast.unresolved() }

// NotRunning is the health of a daemon before and after Run.
var NotRunning = health.Status{Reason: "not running"}

// NexthopMTU returns the least MTU in bytes of the links that the next hops of best paths are reached
// over; 0 if there are none. It is called in the loop.
func (d *Daemon) NexthopMTU() (least int) {
	for _, way := range d.unicast.via {
		if mtu := d.MTU(way.link); mtu > 0 && (least == 0 || mtu < least) {
			least = mtu
		}
	}
	return least
}

// Health returns how many objects the kernel does not have as desired, which it reports as a
// problem like those of the host and panics, and the sessions, which the caller judges. The
// daemon's loop calls it.
func (d *Daemon) Health(r *health.Report) (pending int, sessions []bgp.SessionStatus) {
	if pending = d.Kernel.Pending(); pending > 0 {
		r.Degrade("%d objects are not in the kernel", pending)
	}
	r.Lack(d.problems...)
	contain.Report(r)
	return pending, d.Speaker.Sessions()
}
