package labrun

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/kernel/sockdiag"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/role"
)

// bgpPort is the TCP port of BGP (RFC 4271 section 8.2.1).
const bgpPort = 179

// applier applies an event, and returns when it did so, for repeated events the last time.
type applier func(ctx context.Context, l *lab.Lab, e scenario.Event, quick bool) (last time.Time, err error)

// once is the applier of events that do not repeat.
func once(apply func(ctx context.Context, l *lab.Lab, e scenario.Event) error) applier {
	return func(ctx context.Context, l *lab.Lab, e scenario.Event, _ bool) (time.Time, error) {
		at := time.Now()
		return at, apply(ctx, l, e)
	}
}

// appliers has an applier for every kind of event.
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

// Check returns the faults of a valid scenario that a lab cannot run, with paths as in
// scenario.Spec.Check.
func Check(spec *scenario.Spec) fault.List {
	faults := spec.CheckEvents(func(x scenario.Event) string {
		if appliers[x.Kind()] == nil {
			return "a lab cannot apply events of this kind"
		}
		return ""
	})
	faults = append(faults, spec.CheckGateways()...)
	if e := spec.Experiment; e != nil {
		faults = append(faults, checkDirections(e)...)
	}
	return faults
}

// checkDirections returns the faults of traffic that a lab has not, or for which its observers are
// at the other end.
func checkDirections(e *scenario.Experiment) fault.List {
	var faults fault.List
	for _, name := range slices.Sorted(maps.Keys(e.Traffic)) {
		if t := e.Traffic[name]; t.Datagram == 0 && !t.Upload && t.Beside == 0 {
			continue
		}
		for _, transport := range slices.Sorted(maps.Keys(e.Transports)) {
			t := e.Transports[transport]
			switch {
			case e.Traffic[name].Beside > 0 && t.HTTP3:
				faults.Add("experiment.traffic."+name+".beside", "are downloads over TCP, and transport %s has HTTP/3", transport)
			case !t.MPTCP:
			case e.Traffic[name].Datagram > 0:
				faults.Add("experiment.traffic."+name+".datagram", "cannot be carried by MPTCP, which transport %s has", transport)
			case !e.HasEvents() && !resequences(e):
			case e.Traffic[name].Upload:
				faults.Add("experiment.traffic."+name+".upload", "cannot be observed with MPTCP, which transport %s has: events, bursts and resequencing need a download", transport)
			default:
				faults.Add("experiment.traffic."+name+".beside", "cannot be observed with MPTCP, which transport %s has: events, bursts and resequencing need a download alone", transport)
			}
		}
	}
	return faults
}

// apply applies an event immediately, whatever its time, and returns when it did so, for a flap the
// last time. It does not wait until a started daemon is ready. quick reduces repetitions to the
// event's minimum.
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

// drainPath takes a border router out of service (POST) or back into it (DELETE).
const drainPath = "/drain"

// drain takes a border router out of service, with the wait of the event.
func drain(ctx context.Context, l *lab.Lab, x scenario.Drain) error {
	path := drainPath
	if x.Wait > 0 {
		path += "?wait=" + x.Wait.String()
	}
	return command(ctx, l, x.Node, http.MethodPost, path)
}

// undrain brings a border router back into service. It has no effect on one that is in service.
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

// flap takes an interface or a session down and up repeatedly, and returns when it last went down.
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

// comeBack bounds the wait for a closed session to be established again. A router retries after
// some seconds, or after a minute if the session has failed often.
const comeBack = 90 * time.Second

// flapSession resets an established session several times. Before each reset it waits until both
// ends are ready, and then for the interval, so that traffic returns to the session's routes.
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

// flapOnce waits until the session is ready, if stay is set also for the interval of tick, resets
// it and returns when.
func flapOnce(ctx context.Context, l *lab.Lab, f scenario.Flap, tick *time.Ticker, stay bool) (at time.Time, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, comeBack, fmt.Errorf("%s has no BGP connection to %s that could be cut, not after %s",
		f.Node, f.Neighbor, comeBack))
	defer cancel()
	// A daemon may still be ready although its session is about to close.
	for cut := 0; cut == 0; stay = true {
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

// cutSessions resets the TCP connections of BGP between two nodes, and returns the number of
// established ones.
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
		all, err := sockdiag.Connections()
		if err != nil {
			return err
		}
		for _, c := range all {
			if !theirs[c.Remote.Addr()] || c.Local.Port() != bgpPort && c.Remote.Port() != bgpPort {
				continue
			}
			// The connection may have been closed in the meantime.
			if err := c.Destroy(); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("cut the session with %q: %w", neighbor, err)
			}
			if c.Established {
				cut++
			}
		}
		return nil
	})
	return cut, err
}
