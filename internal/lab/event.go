package lab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/netns"
	"github.com/tabane/tabane/internal/role"
	"github.com/tabane/tabane/internal/route"
	"github.com/tabane/tabane/internal/scenario"
	"github.com/tabane/tabane/internal/tc"
)

// bgpPort is where BGP listens (RFC 4271 section 8.2.1).
const bgpPort = 179

// Happen lets an event happen now, whatever its time, and says when it did so for the last time: a flap repeats. It returns
// when it has happened, or when ctx ends: a daemon that is started need not be ready by then. quick asks for as few
// repetitions as the event knows.
func (l *Lab) Happen(ctx context.Context, e scenario.Event, quick bool) (last time.Time, err error) {
	last = time.Now()
	switch {
	case e.Set != nil:
		err = l.SetLink(e.Set.Link, e.Set.Shape)
	case e.Down != nil:
		err = l.setCarrier(*e.Down, false)
	case e.Up != nil:
		err = l.setCarrier(*e.Up, true)
	case e.Blackhole != nil:
		err = l.blackhole(*e.Blackhole)
	case e.Clear != nil:
		err = l.clear(*e.Clear)
	case e.Kill != nil:
		err = l.endDaemon(ctx, *e.Kill, syscall.SIGKILL)
	case e.Stop != nil:
		err = l.endDaemon(ctx, *e.Stop, syscall.SIGTERM)
	case e.Start != nil:
		err = l.restartDaemon(*e.Start)
	case e.Drain != nil:
		err = l.drain(ctx, *e.Drain)
	case e.Flap != nil:
		last, err = l.flap(ctx, *e.Flap, quick)
	default:
		err = errors.New("it is of no kind")
	}
	if err != nil {
		return last, fmt.Errorf("let an event happen in lab %q: %w", l.name, err)
	}
	return last, nil
}

// setCarrier takes an interface down or brings it back with the node's static routes, which the kernel forgets.
func (l *Lab) setCarrier(at scenario.Port, up bool) error {
	n, err := l.plan.node(at.Node)
	if err != nil {
		return err
	}
	return netns.Do(n.netns, func() error {
		c, err := route.Dial()
		if err != nil {
			return err
		}
		if err := errors.Join(c.SetLinkUp(at.Interface, up), c.Close()); err != nil || !up {
			return err
		}
		return n.addRoutes()
	})
}

// blackhole lets packets vanish where they would be sent: at the interface itself, and at the far end of its wire.
func (l *Lab) blackhole(h scenario.Hole) error {
	k, near, far, err := l.plan.port(h.Port())
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, side := range []struct {
		port
		direction scenario.Direction
	}{{near, scenario.Out}, {far, scenario.In}} {
		if !h.Direction.Has(side.direction) {
			continue
		}
		l.holes[side.spot()] = true
		gate := k.gate(side.port)
		if err := netns.Do(gate.netns, func() error { return tc.Block(gate.iface) }); err != nil {
			return err
		}
	}
	return nil
}

// clear ends what blackhole began.
func (l *Lab) clear(at scenario.Port) error {
	k, near, far, err := l.plan.port(at)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.holes, near.spot())
	delete(l.holes, far.spot())
	s, changed := l.shapes[k.name]
	if !changed {
		s = k.shape
	}
	return k.setShape(s, l.holes)
}

// errNotOurs is for what takes the parent of a lab's daemons.
var errNotOurs = errors.New("only the process that made the lab can do that")

// endDaemon ends a daemon and waits until it has.
func (l *Lab) endDaemon(ctx context.Context, at scenario.Daemon, sig syscall.Signal) error {
	d, err := l.plan.daemon(at)
	if err != nil {
		return err
	}
	if l.state == nil {
		return errNotOurs
	}
	c := l.forget(d)
	if c == nil {
		return fmt.Errorf("%s does not run", d)
	}
	if err := c.signal(sig); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%s is still there %s after %s", d, patience, sig))
	defer cancel()
	select {
	case <-c.exited:
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), c.signal(syscall.SIGKILL))
	}
	return l.writeProcesses()
}

// forget takes a daemon off the list of those that are to run, and returns it.
func (l *Lab) forget(d daemon) *child {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.children, func(c *child) bool { return c.daemon == d })
	if i < 0 {
		return nil
	}
	c := l.children[i]
	l.children = slices.Delete(l.children, i, i+1)
	return c
}

func (l *Lab) restartDaemon(at scenario.Daemon) error {
	d, err := l.plan.daemon(at)
	if err != nil {
		return err
	}
	if l.state == nil {
		return errNotOurs
	}
	c, err := l.startDaemon(d)
	if c != nil {
		l.mu.Lock()
		l.children = append(l.children, c)
		l.mu.Unlock()
	}
	return errors.Join(err, l.writeProcesses())
}

// writeProcesses writes down which daemons run. What others have put into the lab stays written.
func (l *Lab) writeProcesses() error {
	unlock, err := lock(context.Background(), l.name, false)
	if err != nil {
		return err
	}
	defer unlock()
	written, err := readState(l.name)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mergeState(written)
	l.state.Processes = l.foreignRelays(written)
	for _, c := range l.children {
		l.state.Processes = append(l.state.Processes, c.process)
	}
	return l.state.write(l.name)
}

// drainPath is where a border router is asked to leave service (POST), or to return to it (DELETE).
const drainPath = "/drain"

// drain asks a border router to leave service; it takes the time it was given.
func (l *Lab) drain(ctx context.Context, x scenario.Drain) error {
	d, err := l.plan.daemon(scenario.Daemon{Node: x.Node, Role: role.ASBR})
	if err != nil {
		return err
	}
	url := "http://" + d.status.String() + drainPath
	if x.Wait > 0 {
		url += "?wait=" + x.Wait.String()
	}
	_, err = ask(ctx, d.netns, http.MethodPost, url, nil)
	return err
}

// undrain brings a border router back into service; one that is in service stays so.
func (l *Lab) undrain(ctx context.Context, x scenario.Drain) error {
	d, err := l.plan.daemon(scenario.Daemon{Node: x.Node, Role: role.ASBR})
	if err != nil {
		return err
	}
	_, err = ask(ctx, d.netns, http.MethodDelete, "http://"+d.status.String()+drainPath, nil)
	var answer *answerError
	if errors.As(err, &answer) && answer.code == http.StatusConflict {
		return nil
	}
	return err
}

// flap fails and heals again and again. It says when it failed last.
func (l *Lab) flap(ctx context.Context, f scenario.Flap, quick bool) (last time.Time, err error) {
	if f.Interface != "" {
		return l.flapInterface(ctx, f, quick)
	}
	return l.flapSession(ctx, f, quick)
}

// flapInterface leaves the interface up.
func (l *Lab) flapInterface(ctx context.Context, f scenario.Flap, quick bool) (last time.Time, err error) {
	tick := time.NewTicker(f.Every / 2)
	defer tick.Stop()
	at := scenario.Port{Node: f.Node, Interface: f.Interface}
	for range f.Repeats(quick) {
		last = time.Now()
		for _, up := range []bool{false, true} {
			if err := errors.Join(l.setCarrier(at, up), next(ctx, tick)); err != nil {
				return last, err
			}
		}
	}
	return last, nil
}

// comeBack bounds the wait for a session that was cut. A router tries again after some seconds, or after a minute when it
// has lost the session often.
const comeBack = 90 * time.Second

// flapSession cuts a session that works, each time: it waits until both ends say that all is well again, and then a while in
// which traffic returns to what was lost.
func (l *Lab) flapSession(ctx context.Context, f scenario.Flap, quick bool) (last time.Time, err error) {
	tick := time.NewTicker(f.Every)
	defer tick.Stop()
	for i := range f.Repeats(quick) {
		if last, err = l.flapOnce(ctx, f, tick, i > 0); err != nil {
			return last, fmt.Errorf("flap %d of %d: %w", i+1, f.Repeats(quick), err)
		}
	}
	tick.Reset(f.Every)
	return last, next(ctx, tick)
}

// flapOnce cuts a session that works, and has for a while if it is to stay so long, and says when.
func (l *Lab) flapOnce(ctx context.Context, f scenario.Flap, tick *time.Ticker, stay bool) (at time.Time, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, comeBack, fmt.Errorf("%s has no BGP connection to %s that could be cut, not after %s",
		f.Node, f.Neighbor, comeBack))
	defer cancel()
	for cut := 0; cut == 0; stay = true { // a session that is about to end may still say that it is ready
		if err := l.ready(ctx, f.Node, f.Neighbor); err != nil {
			return at, err
		}
		if stay {
			tick.Reset(f.Every)
			if err := next(ctx, tick); err != nil {
				return at, err
			}
		}
		at = time.Now()
		if cut, err = l.cutSessions(f.Node, f.Neighbor); err != nil {
			return at, err
		}
	}
	return at, nil
}

// ready waits until the daemons of the nodes are ready.
func (l *Lab) ready(ctx context.Context, nodes ...string) error {
	for _, d := range l.plan.daemons() {
		w := l.condition(d)
		if w == nil || !slices.Contains(nodes, d.node) {
			continue
		}
		if err := w.wait(ctx); err != nil {
			return fmt.Errorf("%s: %w: %w", w.what, context.Cause(ctx), err)
		}
	}
	return nil
}

// next waits for the next tick.
func next(ctx context.Context, tick *time.Ticker) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-tick.C:
		return nil
	}
}

// cutSessions ends the TCP connections of BGP between two nodes with a reset, as a router does that has lost its mind, and
// says how many there were.
func (l *Lab) cutSessions(name, neighbor string) (cut int, err error) {
	n, err := l.plan.node(name)
	if err != nil {
		return 0, err
	}
	theirs := map[netip.Addr]bool{}
	for _, k := range l.spec.Links {
		for _, e := range k.Ends {
			for _, a := range e.Addresses {
				if e.Node == neighbor {
					theirs[a.Addr()] = true
				}
			}
		}
	}
	err = netns.Do(n.netns, func() error {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			sockets, err := netlink.SocketDiagTCP(family)
			if err != nil {
				return fmt.Errorf("list connections: %w", err)
			}
			for _, s := range sockets {
				remote, _ := netip.AddrFromSlice(s.ID.Destination)
				if !theirs[remote.Unmap()] || s.ID.SourcePort != bgpPort && s.ID.DestinationPort != bgpPort {
					continue
				}
				// It may have ended in between.
				if err := destroy(s); err != nil && !errors.Is(err, unix.ENOENT) {
					return fmt.Errorf("cut connection to %s: %w", neighbor, err)
				}
				if s.State == netlink.TCP_ESTABLISHED {
					cut++
				}
			}
		}
		return nil
	})
	return cut, err
}
