package edge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/gaissmai/bart"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/daemon/condition"
	"github.com/tabane/tabane/internal/epe/belief"
	"github.com/tabane/tabane/internal/epe/outcome"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/kernel/route"
	"github.com/tabane/tabane/internal/mptcp"
)

// observer receives what connections achieve, and reads the connections of networks that are
// compared.
type observer struct {
	watcher *outcome.Watcher
	diag    *mptcp.Diag
	routes  *route.Conn
	ended   chan struct{}
	// stop ends the writing of what is known of networks, stopped says that it has ended.
	stop    context.CancelFunc
	stopped chan struct{}
	// due: some networks are to be read.
	due chan struct{}
	// silenced are the connections that another program has switched off the reports of.
	silenced counted
}

// counted is a count that is examined now and then. It is for one goroutine.
type counted struct {
	n    uint64
	grew time.Time
}

// countedFor is for how long it is a problem that a count grew.
const countedFor = time.Minute

// recent applies what the count is now, and reports whether it grew in the last minute.
func (c *counted) recent(n uint64) bool {
	if n > c.n {
		c.grew = time.Now()
	}
	c.n = n
	return !c.grew.IsZero() && time.Since(c.grew) < countedFor
}

// startObserver starts reporting connections if a mode of the delivery follows from what they do.
// Where that is not possible, networks keep the mode that they begin with; it returns why. The
// daemon must run from then on: what is started waits for it.
func (e *Edge) startObserver() (reason string) {
	if !e.config.Delivery.observes() || e.observer != nil {
		return ""
	}
	o := &observer{ended: make(chan struct{}, 2), due: make(chan struct{}, 1)}
	err := e.namespace.Do(func() (err error) {
		if o.watcher, err = outcome.New(outcome.Options{Bulk: belief.Bulk, Groups: e.groups, Links: e.config.links(), Fits: e.quicLimit()}); err != nil {
			return err
		}
		if o.diag, err = mptcp.DialDiag(); err != nil {
			return err
		}
		o.routes, err = route.Dial()
		return err
	})
	if err != nil {
		if o.watcher != nil {
			err = errors.Join(err, o.watcher.Close())
		}
		if o.diag != nil {
			err = errors.Join(err, o.diag.Close())
		}
		e.log.Warn("connections are not observed: networks keep the mode that they have", "err", err)
		return err.Error()
	}
	if err := o.watcher.Unwatched(); err != nil {
		e.log.Warn("flows of UDP are not read: a path that fails for QUIC alone is not left, and QUIC connections may carry nothing once they are moved", "err", err)
	}
	e.observer = o
	var ctx context.Context
	ctx, o.stop = context.WithCancel(context.Background())
	o.stopped = make(chan struct{})
	contain.Go(contain.Reconcile, e.log, func() { e.storeNetworks(ctx, o.stopped) })
	e.startSharing()
	contain.Go(contain.Reconcile, e.log, func() { defer func() { o.ended <- struct{}{} }(); e.receiveOutcomes(o) })
	contain.Go(contain.Reconcile, e.log, func() { defer func() { o.ended <- struct{}{} }(); e.sampleNetworks(o) })
	return ""
}

// quicLimit returns the bytes of a packet of QUIC, beyond which it is dropped where it has no SID; 0:
// packets are left alone.
func (e *Edge) quicLimit() int {
	if e.egress.delivery.rules.dry {
		return 0
	}
	return max(e.egress.fits(), 0)
}

// limitQUIC applies the limit after a change.
func (e *Edge) limitQUIC() {
	if e.observer == nil {
		return
	}
	if err := e.observer.watcher.SetFits(e.quicLimit()); err != nil {
		e.log.Warn("QUIC connections may carry nothing once they are moved to another path", "err", err)
	}
}

// stopObserver stops what startObserver started.
func (e *Edge) stopObserver() error {
	o := e.observer
	if o == nil {
		return nil
	}
	e.observer = nil
	e.stopSharing()
	err := o.watcher.Close()
	<-o.ended
	close(o.due)
	<-o.ended
	o.stop()
	<-o.stopped
	return errors.Join(err, o.diag.Close(), o.routes.Close())
}

// conditions are that connections are reported, which other programs can end.
func (o *observer) conditions() []condition.Condition {
	return []condition.Condition{{
		Name: "reports of connections", Good: "the program that reports connections is at the root of control groups",
		Examine: func() ([]health.Problem, error) {
			detached, err := o.watcher.Detached()
			if err != nil || !detached {
				return nil, err
			}
			return []health.Problem{{
				Text:   "connections are not observed: the program that reports them was detached from the root of control groups",
				Remedy: "have other programs leave it (bpftool cgroup tree), and restart edge",
			}}, nil
		},
		Restore: o.watcher.Attach,
	}, {
		Name: "flows of UDP", Good: "flows of UDP are read on all interfaces",
		Examine: func() (problems []health.Problem, err error) {
			links, err := o.watcher.Unread()
			for _, l := range links {
				problems = append(problems, health.Problem{
					Text:   fmt.Sprintf("flows of UDP are not read on %q: a path that fails for QUIC alone is not left, and QUIC connections may carry nothing once they are moved", l),
					Remedy: "have other programs leave the tc filters of tabane, and restart edge",
				})
			}
			return problems, err
		},
		Restore: o.watcher.Read,
	}, {
		Name: "callbacks of sockets", Good: "no other program switches off the reports of connections",
		Examine: func() ([]health.Problem, error) {
			n, err := o.watcher.Silenced()
			if err != nil || !o.silenced.recent(n) {
				return nil, err
			}
			return []health.Problem{{
				Text:   "timeouts of connections are not observed: another sock_ops program switches off their callbacks",
				Remedy: "have that program (bpftool cgroup tree) set its flags beside those that a socket has, or be attached before edge starts",
			}}, nil
		},
	}}
}

// receiveOutcomes applies reports until the watcher is closed.
func (e *Edge) receiveOutcomes(o *observer) {
	for {
		reports, lost, err := o.watcher.Receive()
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			e.log.Error("delivery mode auto measures nothing more", "err", err)
			e.daemon.Do(context.Background(), func() { e.egress.auto.reason = err.Error() })
			return
		}
		if lost > 0 {
			e.log.Warn("lost reports of connections", "reports", lost)
		}
		busy := false
		e.daemon.Change(context.Background(), func() { busy = e.egress.observed(reports) })
		if busy {
			select {
			case o.due <- struct{}{}:
			default:
			}
		}
	}
}

// sampleNetworks reads the connections of active networks, as long as there are some.
func (e *Edge) sampleNetworks(o *observer) {
	for range o.due {
		for busy := true; busy; {
			var active []activeNetwork
			e.daemon.Do(context.Background(), func() { active = e.egress.active() })
			samples, err := readSamples(o.diag, o.routes, o.watcher.Flows, active)
			if err != nil {
				e.log.Error("read connections of networks", "err", err)
				samples = nil // some may be missing
			}
			var suspected []netip.Prefix
			for _, n := range active {
				if n.suspected {
					suspected = append(suspected, n.prefix)
				}
			}
			best := e.bestLinks(context.Background(), suspected)
			busy = false
			e.daemon.Change(context.Background(), func() {
				e.egress.auto.best = best
				busy = e.egress.sampled(samples)
			})
			if busy {
				time.Sleep(sampleEvery)
			}
		}
	}
}

// readSamples reads the connections of networks, and flows of UDP where one path may be left.
func readSamples(diag *mptcp.Diag, routes *route.Conn, flows func(func(outcome.Flow)) error, active []activeNetwork) (map[netip.Prefix]sample, error) {
	samples := map[netip.Prefix]sample{}
	var networks, single bart.Table[sample]
	is4, is6, suspected := false, false, false
	for _, n := range active {
		s := sample{}
		samples[n.prefix] = s
		networks.Insert(n.prefix, s)
		is4, is6 = is4 || n.prefix.Addr().Is4(), is6 || n.prefix.Addr().Is6()
		suspected = suspected || n.suspected
		if n.suspected && !n.spread {
			single.Insert(n.prefix, s)
		}
	}
	each := func(s *mptcp.Socket) {
		if in, ok := networks.Lookup(s.Remote.Addr()); ok {
			in[mptcp.Ends{Local: s.Local, Remote: s.Remote}] = socket{
				token: s.Token, acked: s.Acked, delivered: s.Delivered, inFlight: s.InFlight, limited: s.AppLimited && s.NotSent == 0, window: s.WindowLimited + s.BufferLimited,
			}
		}
	}
	request := func(r mptcp.Pending) {
		if in, ok := networks.Lookup(r.Remote.Addr()); ok {
			in[r.Ends] = socket{requested: true, retried: r.Retransmitted > 0}
		}
	}
	var errs []error
	for _, version := range []struct {
		family mptcp.Family
		read   bool
	}{{mptcp.IPv4, is4}, {mptcp.IPv6, is6 || is4}} { // sockets of IPv6 have IPv4 clients too
		if version.read {
			errs = append(errs, diag.Sockets(version.family, each))
			if suspected {
				errs = append(errs, diag.Pending(version.family, request))
			}
		}
	}
	if single.Size() > 0 {
		errs = append(errs, flows(func(f outcome.Flow) {
			if in, ok := single.Lookup(f.Remote.Addr()); ok {
				s := socket{datagrams: true, acked: uint64(f.Progress)}
				if f.Waits {
					s.inFlight = 1
				}
				in[mptcp.Ends{Local: f.Local, Remote: f.Remote}] = s
			}
		}))
	}
	for _, n := range active {
		if n.since != nil {
			errs = append(errs, readPaths(routes.SIDOf, samples[n.prefix], n.since, n.own))
		}
	}
	return samples, errors.Join(errs...)
}

// mostLookups bounds the connections of a network whose egress peer is looked up at a time.
const mostLookups = 4096

// readPaths looks up which egress peer the packets of connections leave through: of those that wait
// since a first sample, and of those that progress until one does on each path that others wait on.
// Connections to the own addresses do not count if they are not in the first sample.
func readPaths(sidOf func(local, remote netip.AddrPort) (netip.Addr, error), s, first sample, own []netip.Addr) error {
	waits, left := map[netip.Addr]bool{}, mostLookups
	for _, progressing := range []bool{false, true} {
		for ends, c := range s {
			before, there := first[ends]
			progressed, waiting := c.since(before, there)
			if progressing && (!progressed || !there && slices.Contains(own, ends.Local.Addr())) || !progressing && !waiting {
				continue
			}
			if left--; left < 0 || progressing && len(waits) == 0 {
				return nil
			}
			sid, err := sidOf(ends.Local, ends.Remote)
			if err != nil {
				return err
			}
			c.sid = sid
			s[ends] = c
			if progressing {
				delete(waits, sid)
			} else if waits[sid] = true; left <= mostLookups-mostWaiting {
				break
			}
		}
	}
	return nil
}

// mostWaiting is how many of mostLookups are of connections that wait.
const mostWaiting = mostLookups / 4
