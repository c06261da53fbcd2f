package labrun

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/netns"
	"github.com/tabane/tabane/internal/result"
	"github.com/tabane/tabane/internal/role"
	"github.com/tabane/tabane/internal/scenario"
	"github.com/tabane/tabane/internal/sched"
	"github.com/tabane/tabane/internal/tcp"
	"github.com/tabane/tabane/internal/traffic"
	"github.com/tabane/tabane/internal/unit"
)

// tuning is how the two ends of a delivery behave, in the kernel's terms.
type tuning struct {
	// server and client are settings of their namespaces.
	server, client map[string]string
	// out is what the server's routes say to TCP, back what the client's do, in place of the
	// scenario's own metrics.
	out, back scenario.RouteMetrics
	// notes say where the kernel only has something near to what was asked.
	notes []string
}

// The settings of a namespace that a tuning may change.
const (
	congestionKey = "net.ipv4.tcp_congestion_control"
	recoveryKey   = "net.ipv4.tcp_recovery"
	schedulerKey  = "net.mptcp.scheduler"
	metricsKey    = "net.ipv4.tcp_no_metrics_save"
	receiveKey    = "net.ipv4.tcp_rmem"
)

// kernelNames are what the kernel calls what others call otherwise.
var kernelNames = map[string]string{"newreno": "reno"}

// offers is what the kernel has to choose from.
type offers struct{ congestion, schedulers []string }

// kernelOffers asks the kernel.
func kernelOffers() (offers, error) {
	var o offers
	for key, list := range map[string]*[]string{
		"net.ipv4.tcp_available_congestion_control": &o.congestion, "net.mptcp.available_schedulers": &o.schedulers,
	} {
		names, err := netns.ReadSysctl(key)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return offers{}, err
		}
		*list = strings.Fields(names)
	}
	return o, nil
}

const (
	// tcpOptions is what timestamps take of each segment (RFC 7323 section 3.2), dataSequence what
	// MPTCP does (RFC 8684 section 3.3, with a 64-bit acknowledgement and sequence number).
	tcpOptions, dataSequence = 12, 28
	// headers is what a segment has before its payload, and the room that the kernel leaves before
	// it, shared what it has behind (struct skb_shared_info), and descriptor what describes it
	// (struct sk_buff).
	headers, shared, descriptor = 160, 320, 256
	minReceive                  = 4096
)

// memory is what the kernel's receive buffer must hold so that a window of so many bytes fits in
// it, in segments. It takes segments for no larger in memory than twice their payload
// (TCP_DEFAULT_SCALING_RATIO of include/net/tcp.h). Where they are, it would offer more than it can
// hold, and of several subflows that are full none can take the data that is missing: they stand
// still.
func memory(window int64, segment int) int64 {
	block := 1
	for block < segment+headers+shared {
		block *= 2
	}
	if of := int64(block + descriptor); of > 2*int64(segment) {
		return window * of / int64(segment) * 5 / 4
	}
	return 2 * window
}

// tune says how a kernel does what the settings ask for, of connections with segments of so many
// bytes unless they ask for others. An error says what it has nothing for.
func tune(s scenario.Settings, multipath bool, segment int, o offers) (tuning, error) {
	t := tuning{server: map[string]string{}, client: map[string]string{}}
	var errs []error
	if s.Congestion != "" {
		name := s.Congestion
		if other, differs := kernelNames[name]; differs {
			name = other
		}
		if !slices.Contains(o.congestion, name) {
			errs = append(errs, fmt.Errorf("congestion control %q is not available in this kernel, which has %s", s.Congestion, strings.Join(o.congestion, ", ")))
		}
		t.server[congestionKey] = name
	}
	if multipath && s.Scheduler != "" {
		name, ok := o.scheduler(s.Scheduler)
		if !ok {
			errs = append(errs, fmt.Errorf("scheduler %q is not available in this kernel, which has %s", s.Scheduler, strings.Join(o.schedulers, ", ")))
		} else if name != s.Scheduler {
			t.notes = append(t.notes, fmt.Sprintf("scheduler %s: the kernel's own, %s", s.Scheduler, name))
		}
		t.server[schedulerKey] = name
	}
	if set := s.SchedulerOptions.Set(); multipath && len(set) > 0 {
		errs = append(errs, fmt.Errorf("scheduler_options %s cannot be set: the kernel's schedulers have no parameters; this needs the simulator", strings.Join(set, ", ")))
	}
	if s.Segment > 0 {
		segment = s.Segment
		t.back.AdvMSS = s.Segment + tcpOptions
		if multipath {
			t.back.AdvMSS += dataSequence
		}
	}
	if s.Window > 0 {
		t.out.Cwnd = max(1, int(s.Window)/segment)
	}
	t.out.InitCwnd = s.InitialWindow
	t.back.QuickACK = s.DelayedACK != nil && !*s.DelayedACK
	if s.RACK != nil && !*s.RACK {
		t.server[recoveryKey] = "0"
	}
	receive := s.ReceiveBuffer
	if multipath && s.RBuf > 0 && (receive == 0 || s.RBuf < receive) {
		receive = s.RBuf
		t.notes = append(t.notes, fmt.Sprintf("rbuf %s: a receive buffer of that size", s.RBuf))
	}
	if receive > 0 {
		v := max(minReceive, memory(int64(receive), segment))
		t.client[receiveKey] = fmt.Sprintf("%d %d %d", minReceive, v, v)
		t.back.Window = int(receive)
	}
	return t, errors.Join(errs...)
}

// fullSegment is the payload of a full segment over the transport's links, in bytes.
func fullSegment(spec *scenario.Spec, k result.CellKey) int {
	t := spec.Experiment.Transports[k.Transport]
	mtu := scenario.DefaultMTU
	for _, name := range t.Links {
		if l := spec.Links[name]; l.MTU != 0 {
			mtu = min(mtu, l.MTU)
		}
	}
	return traffic.Overhead{MPTCP: t.MPTCP}.MaxSegment(mtu)
}

// scheduler is what the kernel does the work of that scheduler with: itself, or its default one
// where that is near.
func (o offers) scheduler(name string) (string, bool) {
	switch {
	case slices.Contains(o.schedulers, name):
		return name, true
	case slices.Contains(nearDefault, name) && slices.Contains(o.schedulers, sched.Default):
		return sched.Default, true
	}
	return "", false
}

// OnKernel returns the scenario with the schedulers that this kernel uses in place of those that it
// asks for: what a simulation has to do to be held against the lab.
func OnKernel(spec *scenario.Spec) (*scenario.Spec, error) {
	o, err := kernelOffers()
	if err != nil {
		return nil, fmt.Errorf("ask the kernel for its schedulers: %w", err)
	}
	return o.instead(spec), nil
}

// instead is OnKernel of a kernel that offers o.
func (o offers) instead(spec *scenario.Spec) *scenario.Spec {
	return spec.WithSchedulers(func(asked string) string {
		if name, ok := o.scheduler(asked); ok {
			return name
		}
		return asked
	})
}

// nearDefault are the schedulers that the kernel's own is like, the nearest first.
var nearDefault = []string{"blest", "lowest-rtt"}

// restarts reports whether the server must be restarted: its listening socket keeps what it was
// opened with.
func (t tuning) restarts(before tuning) bool {
	return t.server[congestionKey] != before.server[congestionKey] || t.server[schedulerKey] != before.server[schedulerKey]
}

// tunings are those of the experiment's cells, or nil when none is asked for.
func tunings(spec *scenario.Spec) (map[result.CellKey]tuning, error) {
	e := spec.Experiment
	var o offers
	all := map[result.CellKey]tuning{}
	asked := false
	bounds := slices.ContainsFunc(spec.Nodes[e.Server].Routes, func(r scenario.StaticRoute) bool { return r.Cwnd > 0 })
	reported := map[string]bool{}
	var errs []error
	for _, k := range e.Cells() {
		s := e.Settings(k)
		if (s != (scenario.Settings{}) || bounds) && !asked {
			asked = true
			var err error
			if o, err = kernelOffers(); err != nil {
				return nil, err
			}
		}
		multipath := e.Transports[k.Transport].MPTCP
		t, err := tune(s, multipath, fullSegment(spec, k), o)
		if err == nil {
			err = reachable(spec, t)
		}
		// The same holds of all cases, as a rule.
		if err != nil && !reported[k.Transport+err.Error()] {
			reported[k.Transport+err.Error()] = true
			errs = append(errs, fmt.Errorf("case %q with transport %q: %w", k.Case, k.Transport, err))
		}
		all[k] = t
	}
	if !asked {
		return nil, nil
	}
	return all, errors.Join(errs...)
}

// reachable wants static routes where a tuning has something to say to TCP.
func reachable(spec *scenario.Spec, t tuning) error {
	e := spec.Experiment
	for _, side := range []struct {
		node    string
		metrics scenario.RouteMetrics
		what    string
	}{{e.Server, t.out, "window and initial_window"}, {e.Client, t.back, "segment, receive_buffer, rbuf and delayed_ack"}} {
		if side.metrics != (scenario.RouteMetrics{}) && len(spec.Nodes[side.node].Routes) == 0 {
			return fmt.Errorf("%s need static routes on node %q: the kernel takes them from there", side.what, side.node)
		}
	}
	return nil
}

// tune makes the lab's two ends as the job wants them.
func (r *runner) tune(ctx context.Context, u *tuner, j job, run *result.Run) error {
	t, asked := r.tunings[j.CellKey]
	if !asked {
		return nil
	}
	if len(t.notes) > 0 {
		run.Notes[NoteKernel] = strings.Join(t.notes, "; ")
	}
	if err := u.set(ctx, t); err != nil {
		return fmt.Errorf("set up the two ends: %w", err)
	}
	return u.learn(ctx, r.Spec.Experiment.Transports[j.Transport])
}

// NoteKernel says where a run's kernel only had something near to what the scenario asks for.
const NoteKernel = "kernel"

// tuner keeps a lab's two ends as the next run wants them.
type tuner struct {
	lab    *lab.Lab
	now    tuning
	before map[string]map[string]string // what nodes had, by key
	// bound is whether the server's routes bound the window, learned on how many paths it knows
	// that.
	bound   bool
	learned int
}

// set makes the lab so.
func (u *tuner) set(ctx context.Context, t tuning) error {
	e := u.lab.Spec().Experiment
	if err := u.sysctls(e.Server, u.now.server, t.server); err != nil {
		return err
	}
	if err := u.sysctls(e.Client, u.now.client, t.client); err != nil {
		return err
	}
	server, err := u.lab.Node(e.Server)
	if err != nil {
		return err
	}
	bound, err := server.SetRouteMetrics(t.out)
	if err != nil {
		return err
	}
	client, err := u.lab.Node(e.Client)
	if err != nil {
		return err
	}
	if _, err := client.SetRouteMetrics(t.back); err != nil {
		return err
	}
	if bound != u.bound || t.out.Cwnd != u.now.out.Cwnd {
		if err := u.remember(e.Server, bound); err != nil {
			return err
		}
		u.bound, u.learned = bound, 0
	}
	restart := t.restarts(u.now)
	u.now = t
	if !restart {
		return nil
	}
	serve := scenario.Daemon{Node: e.Server, Role: role.Serve}
	if err := u.lab.Daemons().Stop(ctx, serve, syscall.SIGTERM); err != nil {
		return err
	}
	if err := u.lab.Daemons().Start(serve); err != nil {
		return err
	}
	return u.lab.WaitReady(ctx, patience)
}

// sysctls changes a node's settings, and gives those back that are no longer asked for.
func (u *tuner) sysctls(name string, was, want map[string]string) error {
	n, err := u.lab.Node(name)
	if err != nil {
		return err
	}
	if u.before == nil {
		u.before = map[string]map[string]string{}
	}
	if u.before[name] == nil {
		u.before[name] = map[string]string{}
	}
	had := u.before[name]
	return n.Do(func() error {
		for _, key := range slices.Sorted(maps.Keys(want)) {
			if _, known := had[key]; !known {
				value, err := netns.ReadSysctl(key)
				if err != nil {
					return err
				}
				had[key] = value
			}
			if err := netns.Sysctl(key, want[key]); err != nil {
				return err
			}
		}
		for _, key := range slices.Sorted(maps.Keys(was)) {
			if _, kept := want[key]; kept {
				continue
			}
			if err := netns.Sysctl(key, had[key]); err != nil {
				return err
			}
		}
		return nil
	})
}

// remember lets a node keep what it learns of connections, from nothing, or keep nothing.
func (u *tuner) remember(name string, keep bool) error {
	n, err := u.lab.Node(name)
	if err != nil {
		return err
	}
	return n.Do(func() error {
		value := "1"
		if keep {
			value = "0"
		}
		return errors.Join(netns.Sysctl(metricsKey, value), tcp.FlushMetrics())
	})
}

// The connection that teaches the server its bound lasts long enough for further subflows to be
// opened, and is no burden.
const (
	learnRate = 100 * unit.KbitPerSecond
	learnFor  = 2 * time.Second
)

// learn delivers something where the server does not yet know the bound of its window on all paths
// of a transport.
func (u *tuner) learn(ctx context.Context, t *scenario.Transport) error {
	need := 1
	if t.MPTCP {
		need = len(t.Links)
	}
	if !u.bound || u.learned >= need {
		return nil
	}
	e := u.lab.Spec().Experiment
	args := append(clientArguments(t), serverURL(u.lab.Spec())+fmt.Sprintf("/cbr?rate=%s&duration=%s", learnRate, learnFor))
	if _, err := fetch(ctx, u.lab, e.Client, args, func(traffic.Sample) {}); err != nil {
		return fmt.Errorf("bound the window: %w", err)
	}
	n, err := u.lab.Node(e.Server)
	if err != nil {
		return err
	}
	// The server's end of the connection may take a moment more to end.
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for begun := time.Now(); ; {
		err := n.Do(func() (err error) {
			u.learned, err = tcp.CwndMetrics()
			return err
		})
		switch {
		case err != nil:
			return fmt.Errorf("bound the window: %w", err)
		case u.learned >= need:
			return nil
		case time.Since(begun) > patience:
			return fmt.Errorf("bound the window: the kernel has learned it on %d of %d paths", u.learned, need)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}
