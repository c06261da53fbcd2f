package labrun

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"github.com/tabane/tabane/internal/fault"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/role"
	"github.com/tabane/tabane/internal/scenario"
	"github.com/tabane/tabane/internal/tcp"
)

// bgpPort is where BGP listens (RFC 4271 section 8.2.1).
const bgpPort = 179

// applier applies an event, and returns when it did so for the last time where it repeats.
type applier func(ctx context.Context, l *lab.Lab, e scenario.Event, quick bool) (last time.Time, err error)

// once is the applier of events that do not repeat.
func once(apply func(ctx context.Context, l *lab.Lab, e scenario.Event) error) applier {
	return func(ctx context.Context, l *lab.Lab, e scenario.Event, _ bool) (time.Time, error) {
		at := time.Now()
		return at, apply(ctx, l, e)
	}
}

// appliers has every kind of event.
var appliers = map[scenario.EventKind]applier{
	scenario.EventSet: once(func(_ context.Context, l *lab.Lab, e scenario.Event) error {
		return l.Links().Set(e.Set.Link, e.Set.Shape)
	}),
	scenario.EventDown: once(func(_ context.Context, l *lab.Lab, e scenario.Event) error {
		return l.Links().SetUp(*e.Down, false)
	}),
	scenario.EventUp: once(func(_ context.Context, l *lab.Lab, e scenario.Event) error {
		return l.Links().SetUp(*e.Up, true)
	}),
	scenario.EventBlackhole: once(func(_ context.Context, l *lab.Lab, e scenario.Event) error {
		return l.Links().Blackhole(*e.Blackhole)
	}),
	scenario.EventClear: once(func(_ context.Context, l *lab.Lab, e scenario.Event) error {
		return l.Links().Clear(*e.Clear)
	}),
	scenario.EventKill: once(func(ctx context.Context, l *lab.Lab, e scenario.Event) error {
		return l.Daemons().Stop(ctx, *e.Kill, syscall.SIGKILL)
	}),
	scenario.EventStop: once(func(ctx context.Context, l *lab.Lab, e scenario.Event) error {
		return l.Daemons().Stop(ctx, *e.Stop, syscall.SIGTERM)
	}),
	scenario.EventStart: once(func(_ context.Context, l *lab.Lab, e scenario.Event) error {
		return l.Daemons().Start(*e.Start)
	}),
	scenario.EventDrain: once(func(ctx context.Context, l *lab.Lab, e scenario.Event) error {
		return drain(ctx, l, *e.Drain)
	}),
	scenario.EventAdvertise: once(func(_ context.Context, l *lab.Lab, e scenario.Event) error {
		return l.Originate(*e.Advertise, true)
	}),
	scenario.EventFlap: func(ctx context.Context, l *lab.Lab, e scenario.Event, quick bool) (time.Time, error) {
		return flap(ctx, l, *e.Flap, quick)
	},
}

// Check returns what a lab cannot run of an otherwise valid scenario, with paths as
// scenario.Spec.Check has them.
func Check(spec *scenario.Spec) fault.List {
	return spec.CheckEvents(func(x scenario.Event) string {
		if appliers[x.Kind()] == nil {
			return "a lab cannot apply events of this kind"
		}
		return ""
	})
}

// apply applies an event now, whatever its time, and returns when it did so for the last time: a
// flap repeats. It does not wait until a daemon that is started is ready. quick asks for as few
// repetitions as the event allows.
func apply(ctx context.Context, l *lab.Lab, e scenario.Event, quick bool) (last time.Time, err error) {
	apply := appliers[e.Kind()]
	if apply == nil {
		return time.Now(), fmt.Errorf("apply event %q in lab %q: a lab cannot apply events of this kind", e.Kind(), l.Name())
	}
	if last, err = apply(ctx, l, e, quick); err != nil {
		return last, fmt.Errorf("apply event %q in lab %q: %w", e.Kind(), l.Name(), err)
	}
	return last, nil
}

// drainPath is where a border router is asked to leave service (POST), or to return to it (DELETE).
const drainPath = "/drain"

// drain asks a border router to leave service; it takes the time it was given.
func drain(ctx context.Context, l *lab.Lab, x scenario.Drain) error {
	path := drainPath
	if x.Wait > 0 {
		path += "?wait=" + x.Wait.String()
	}
	return command(ctx, l, x.Node, http.MethodPost, path)
}

// undrain brings a border router back into service; one that is in service stays so.
func undrain(ctx context.Context, l *lab.Lab, x scenario.Drain) error {
	err := command(ctx, l, x.Node, http.MethodDelete, drainPath)
	var answer *lab.ResponseError
	if errors.As(err, &answer) && answer.Code == http.StatusConflict {
		return nil
	}
	return err
}

// command sends a request to the control socket of a border router's daemon.
func command(ctx context.Context, l *lab.Lab, node, method, path string) error {
	return l.Daemons().Command(ctx, scenario.Daemon{Node: node, Role: role.ASBR}, method, path)
}

// flap fails and heals again and again. It says when it failed last.
func flap(ctx context.Context, l *lab.Lab, f scenario.Flap, quick bool) (last time.Time, err error) {
	if f.Interface != "" {
		return flapInterface(ctx, l, f, quick)
	}
	return flapSession(ctx, l, f, quick)
}

// flapInterface leaves the interface up.
func flapInterface(ctx context.Context, l *lab.Lab, f scenario.Flap, quick bool) (last time.Time, err error) {
	tick := time.NewTicker(f.Every / 2)
	defer tick.Stop()
	at := scenario.Port{Node: f.Node, Interface: f.Interface}
	for range f.Count(quick) {
		last = time.Now()
		for _, up := range []bool{false, true} {
			if err := errors.Join(l.Links().SetUp(at, up), next(ctx, tick)); err != nil {
				return last, err
			}
		}
	}
	return last, nil
}

// comeBack bounds the wait for a session that was cut. A router tries again after some seconds, or
// after a minute when it has lost the session often.
const comeBack = 90 * time.Second

// flapSession cuts a session that works, each time: it waits until both ends say that all is well
// again, and then a while in which traffic returns to what was lost.
func flapSession(ctx context.Context, l *lab.Lab, f scenario.Flap, quick bool) (last time.Time, err error) {
	tick := time.NewTicker(f.Every)
	defer tick.Stop()
	for i := range f.Count(quick) {
		if last, err = flapOnce(ctx, l, f, tick, i > 0); err != nil {
			return last, fmt.Errorf("flap %d of %d: %w", i+1, f.Count(quick), err)
		}
	}
	tick.Reset(f.Every)
	return last, next(ctx, tick)
}

// flapOnce cuts a session that works, and has for a while if it is to stay so long, and says when.
func flapOnce(ctx context.Context, l *lab.Lab, f scenario.Flap, tick *time.Ticker, stay bool) (at time.Time, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, comeBack, fmt.Errorf("%s has no BGP connection to %s that could be cut, not after %s",
		f.Node, f.Neighbor, comeBack))
	defer cancel()
	for cut := 0; cut == 0; stay = true { // a session that is about to end may still say that it is ready
		if err := l.Daemons().WaitReady(ctx, f.Node, f.Neighbor); err != nil {
			return at, err
		}
		if stay {
			tick.Reset(f.Every)
			if err := next(ctx, tick); err != nil {
				return at, err
			}
		}
		at = time.Now()
		if cut, err = cutSessions(l, f.Node, f.Neighbor); err != nil {
			return at, err
		}
	}
	return at, nil
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

// cutSessions ends the TCP connections of BGP between two nodes with a reset, as a router does that
// has lost its mind, and says how many there were.
func cutSessions(l *lab.Lab, name, neighbor string) (cut int, err error) {
	n, err := l.Node(name)
	if err != nil {
		return 0, err
	}
	theirs := map[netip.Addr]bool{}
	for _, k := range l.Spec().Links {
		for _, e := range k.Ends {
			for _, a := range e.Addresses {
				if e.Node == neighbor {
					theirs[a.Addr()] = true
				}
			}
		}
	}
	err = n.Do(func() error {
		all, err := tcp.Connections()
		if err != nil {
			return err
		}
		for _, c := range all {
			if !theirs[c.Remote.Addr()] || c.Local.Port() != bgpPort && c.Remote.Port() != bgpPort {
				continue
			}
			// It may have ended in between.
			if err := c.Destroy(); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("cut the session with %s: %w", neighbor, err)
			}
			if c.Established {
				cut++
			}
		}
		return nil
	})
	return cut, err
}
