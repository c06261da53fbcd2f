package labrun

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/experiment/cell"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/sockdiag"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/role"
)

// tuning is the kernel configuration of the two ends of a transfer.
type tuning struct {
	// server and client are sysctls of their namespaces, proxies those of the nodes with a proxy.
	server, client, proxies map[string]string
	// out are the metrics of the server's routes, back those of the client's, in place of the
	// scenario's own.
	out, back scenario.RouteMetrics
	// use is which subflows carry data; "": as the scenario says.
	use edge.Use
	// recall is how long a download lasts from which the run's connections recall what it learned
	// of paths.
	recall time.Duration
	// notes name settings for which the kernel only has an approximation.
	notes []string
}

// The sysctls of a namespace that a tuning may change.
const (
	congestionKey = "net.ipv4.tcp_congestion_control"
	recoveryKey   = "net.ipv4.tcp_recovery"
	schedulerKey  = "net.mptcp.scheduler"
	metricsKey    = "net.ipv4.tcp_no_metrics_save"
	receiveKey    = "net.ipv4.tcp_rmem"
)

// offers lists the congestion controls and schedulers that the kernel supports.
type offers struct {
	congestion, schedulers []string
	// onlyRACK: with selective acknowledgments, losses are detected by time even with tcp_recovery
	// = 0.
	onlyRACK bool
}

// onlyRACK is the version of Linux from which on offers.onlyRACK is true: RFC 6675 was removed
// ("tcp: remove obsolete and unused RFC3517/RFC6675 loss recovery code").
var onlyRACK = [2]int{6, 17}

// onlyRACKIn reports offers.onlyRACK of a kernel release, such as 6.18.44-amd64.
func onlyRACKIn(release string) bool {
	var major, minor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n < 2 {
		return false
	}
	return major > onlyRACK[0] || major == onlyRACK[0] && minor >= onlyRACK[1]
}

// kernelOffers reads the offers of the running kernel.
func kernelOffers() (offers, error) {
	o := offers{onlyRACK: onlyRACKIn(Host("").Kernel)}
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
	// tcpOptions is the length of the timestamps option in each segment (RFC 7323 section 3.2),
	// dataSequence that of the DSS option with 64-bit numbers (RFC 8684 section 3.3).
	tcpOptions, dataSequence = 12, 28
	// Bytes of a segment in memory: the headroom and headers before its payload, struct
	// skb_shared_info behind it, and struct sk_buff.
	segmentHeaders, sharedInfo, skBuff = 160, 320, 256
	minReceive                         = 4096
)

// memory returns the size of the kernel's receive buffer that holds a window of that many bytes in
// segments. The kernel assumes that a segment takes at most twice its payload in memory
// (TCP_DEFAULT_SCALING_RATIO of include/net/tcp.h). Where it takes more, the kernel advertises a
// window that it cannot hold; when all subflows are full none can receive the missing data, and the
// connection stalls.
func memory(window int64, segment int) int64 {
	block := 1
	for block < segment+segmentHeaders+sharedInfo {
		block *= 2
	}
	if of := int64(block + skBuff); of > 2*int64(segment) {
		return window * of / int64(segment) * 5 / 4
	}
	return 2 * window
}

// tcp2006 are the sysctls of TCP as Linux had it in 2006: selective acknowledgments, DSACK and
// timestamps, a threshold of duplicate acknowledgments that adapts up to 127, and neither tail loss
// probes nor F-RTO. FACK was removed in Linux 4.15, and from 6.17 on losses are always detected by
// time (RFC 8985), whatever tcp_recovery is.
var tcp2006 = map[string]string{
	recoveryKey: "0", "net.ipv4.tcp_early_retrans": "0", "net.ipv4.tcp_reordering": "3", "net.ipv4.tcp_max_reordering": "127",
	"net.ipv4.tcp_sack": "1", "net.ipv4.tcp_dsack": "1", "net.ipv4.tcp_frto": "0", "net.ipv4.tcp_timestamps": "1",
}

// tune returns the kernel configuration of the settings. segment is the payload of a full segment
// in bytes, where the settings give none. The error names all settings that the kernel cannot
// apply.
func tune(s scenario.Settings, multipath bool, segment int, o offers) (tuning, error) {
	t := tuning{server: map[string]string{}, client: map[string]string{}, recall: s.Recall}
	if multipath {
		t.use = s.Use
	}
	var errs []error
	if s.Congestion != "" {
		name, own := o.control(s)
		if !own && !slices.Contains(o.congestion, name) {
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
	if multipath && s.Begin != "" {
		errs = append(errs, fmt.Errorf("begin %s cannot be set: this needs the simulator", s.Begin))
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
		if o.onlyRACK && s.Era == 0 {
			t.notes = append(t.notes, "rack false: this kernel detects losses by time nevertheless")
		}
	}
	if s.Era == scenario.Era2006 {
		for key, value := range tcp2006 {
			t.server[key], t.client[key] = value, value
		}
		if o.onlyRACK {
			t.notes = append(t.notes, "era 2006: this kernel detects losses by time, not by a number of segments that adapts")
		}
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

// scheduler returns the kernel's scheduler of that name, or its default one where that approximates
// it.
func (o offers) scheduler(name string) (string, bool) {
	switch {
	case slices.Contains(o.schedulers, name):
		return name, true
	case slices.Contains(nearDefault, name) && slices.Contains(o.schedulers, sched.Default):
		return sched.Default, true
	}
	return "", false
}

// OnKernel returns the scenario with the schedulers that this kernel uses in place of the
// configured ones, so that a simulation can be compared with the lab.
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

// nearDefault are the schedulers that the kernel's default approximates, the closest first.
var nearDefault = []string{"blest", "lowest-rtt"}

// restarts reports whether the server must be restarted: its listening socket keeps the settings
// with which it was opened, its receive buffer for uploads.
func (t tuning) restarts(before tuning) bool {
	return slices.ContainsFunc([]string{congestionKey, schedulerKey, receiveKey}, func(key string) bool { return t.server[key] != before.server[key] })
}

// tunings returns those of the experiment's cells, or nil when no cell has settings, and what the
// kernel offers.
func tunings(spec *scenario.Spec) (_ map[result.CellKey]tuning, o offers, _ error) {
	e := spec.Experiment
	all := map[result.CellKey]tuning{}
	asked := false
	bounds := slices.ContainsFunc(spec.Nodes[e.Server].Routes, func(r scenario.StaticRoute) bool { return r.Cwnd > 0 })
	reported := map[string]bool{}
	var errs []error
	cells := cell.New(spec, false)
	for _, k := range e.Cells() {
		c, err := cells.Cell(k)
		if err != nil {
			return nil, o, err
		}
		own := c.Own()
		s := own.Settings
		if (s != (scenario.Settings{}) || bounds) && !asked {
			asked = true
			if o, err = kernelOffers(); err != nil {
				return nil, o, err
			}
		}
		upload := c.Traffic.Upload
		t, err := tune(s, own.Transport.MPTCP, c.MaxSegment(own), o)
		if own.Transport.Proxies {
			// They are the ends of the connections over the links.
			t.server, t.proxies = map[string]string{}, t.server
		}
		if err == nil {
			err = reachable(spec, t, upload)
		}
		if upload {
			t = t.reversed()
		}
		// The same error usually occurs in all cases.
		if err != nil && !reported[k.Transport+err.Error()] {
			reported[k.Transport+err.Error()] = true
			errs = append(errs, fmt.Errorf("case %q with transport %q: %w", k.Case, k.Transport, err))
		}
		all[k] = t
	}
	if !asked {
		return nil, o, nil
	}
	return all, o, errors.Join(errs...)
}

// reversed returns the tuning for data from the client to the server.
func (t tuning) reversed() tuning {
	t.server, t.client = t.client, t.server
	t.out, t.back = t.back, t.out
	return t
}

// reachable refuses a tuning of a download with route metrics where the node has no static routes,
// or of an upload with a bound that the kernel learns from downloads.
func reachable(spec *scenario.Spec, t tuning, upload bool) error {
	sender, receiver := spec.Experiment.Server, spec.Experiment.Client
	if upload {
		sender, receiver = receiver, sender
		if t.out.Cwnd > 0 {
			return errors.New("window cannot be set for an upload: the kernel applies a bound from its TCP metrics cache, which a download fills")
		}
	}
	for _, side := range []struct {
		node    string
		metrics scenario.RouteMetrics
		what    string
	}{{sender, t.out, "window and initial_window"}, {receiver, t.back, "segment, receive_buffer, rbuf and delayed_ack"}} {
		if side.metrics != (scenario.RouteMetrics{}) && len(spec.Nodes[side.node].Routes) == 0 {
			return fmt.Errorf("%s need static routes on node %q: they become metrics of those", side.what, side.node)
		}
	}
	return nil
}

// tune configures the lab's two ends for a job.
func (r *runner) tune(ctx context.Context, u *tuner, j job, run *result.Run) error {
	t := r.Spec.Experiment.Transports[j.Transport]
	if err := u.join(t.Via == "" || !t.MPTCP); err != nil {
		return fmt.Errorf("set up the client: %w", err)
	}
	settings, asked := r.tunings[j.CellKey]
	if r.overflows {
		if err := u.lab.SetUse(ctx, r.Spec.Experiment.Server, settings.use); err != nil {
			return fmt.Errorf("choose the subflows that carry data: %w", err)
		}
	}
	if r.delivers {
		if err := u.lab.SetDelivery(ctx, r.Spec.Experiment.Server, r.Spec.Experiment.Client, t.Delivery); err != nil {
			return fmt.Errorf("choose the delivery: %w", err)
		}
	}
	if !asked {
		return nil
	}
	if len(settings.notes) > 0 {
		run.Notes[NoteKernel] = strings.Join(settings.notes, "; ")
	}
	if err := u.set(ctx, settings); err != nil {
		return fmt.Errorf("set up the two ends: %w", err)
	}
	if err := u.learn(ctx, t); err != nil {
		return err
	}
	return u.explore(ctx, t, settings.recall)
}

// explore downloads for that time over TCP or MPTCP, so that the edge learns of the paths of a
// transport.
func (u *tuner) explore(ctx context.Context, t *scenario.Transport, d time.Duration) error {
	if d == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d+slack, errors.New("took far longer than it should"))
	defer cancel()
	measured := *t
	measured.HTTP3 = false // whose acknowledgments the edge cannot read
	args := append(clientArguments(t), "--limit", d.String(), serverURL(u.lab.Spec(), &measured)+fmt.Sprintf("/bytes/%d", exploreBytes))
	if _, err := fetch(ctx, u.lab, u.lab.Spec().Experiment.Client, args, func(traffic.Sample) {}); err != nil {
		return fmt.Errorf("have the paths learned: %w", err)
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(drained):
		return nil
	}
}

const (
	// exploreBytes are more than are downloaded in that time.
	exploreBytes = int64(1 * unit.TB)
	// drained is how long the run then waits, so that it finds the queues empty, as in the
	// simulator. What is still queued would be in its least round-trip time, and TCP does not count
	// the answer to a tail loss probe with a shorter one (RFC 8985 section 6.2).
	drained = time.Second
)

// overflows reports whether one path of a connection carries data first in some run.
func overflows(spec *scenario.Spec, tunings map[result.CellKey]tuning) bool {
	if n := spec.Nodes[spec.Experiment.Server]; n.Edge != nil && n.Edge.MPTCP.Chooses() {
		return true
	}
	for _, t := range tunings {
		if t.use == edge.UseOverflow {
			return true
		}
	}
	return false
}

// delivers reports whether some transport has a mode of delivery of its own.
func delivers(e *scenario.Experiment) bool {
	for _, t := range e.Transports {
		if !t.Delivery.IsZero() {
			return true
		}
	}
	return false
}

// NoteKernel is the note of a run for which the kernel only had an approximation of a setting.
const NoteKernel = "kernel"

// tuner configures a lab's two ends for one run after the other.
type tuner struct {
	lab    *lab.Lab
	now    tuning
	before map[string]map[string]string // the nodes' original sysctls, by key
	// bound is whether the server's routes bound the congestion window, learned the number of paths
	// for which the kernel has saved the bound.
	bound   bool
	learned int
	// alone is whether the client opens no further subflows.
	alone bool
}

// join sets whether the client opens further subflows.
func (u *tuner) join(allowed bool) error {
	if u.alone == !allowed {
		return nil
	}
	client, err := u.lab.Node(u.lab.Spec().Experiment.Client)
	if err == nil {
		err = client.SetJoining(allowed)
	}
	if err == nil {
		u.alone = !allowed
	}
	return err
}

// set applies a tuning and restarts the server when necessary.
func (u *tuner) set(ctx context.Context, t tuning) error {
	e := u.lab.Spec().Experiment
	if err := u.sysctls(e.Server, u.now.server, t.server); err != nil {
		return err
	}
	if err := u.sysctls(e.Client, u.now.client, t.client); err != nil {
		return err
	}
	if err := u.proxies(ctx, t); err != nil {
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
	// Gateways may be stopped.
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the server is not ready after %s", patience))
	defer cancel()
	return u.lab.Daemons().WaitReady(ctx, e.Server)
}

// proxies changes the sysctls of nodes with a proxy, which then uses them.
func (u *tuner) proxies(ctx context.Context, t tuning) error {
	if maps.Equal(t.proxies, u.now.proxies) {
		return nil
	}
	spec := u.lab.Spec()
	for _, name := range slices.Sorted(maps.Keys(spec.Nodes)) {
		if spec.Nodes[name].Proxy == nil {
			continue
		}
		if err := u.sysctls(name, u.now.proxies, t.proxies); err != nil {
			return err
		}
		if err := u.lab.Daemons().Command(ctx, scenario.Daemon{Node: name, Role: role.Proxy}, http.MethodPost, "/reload"); err != nil {
			return err
		}
	}
	return nil
}

// sysctls changes a node's sysctls and restores those that are not in want.
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

// remember flushes the TCP metrics that a node has saved, and sets whether it saves them.
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
		return errors.Join(netns.Sysctl(metricsKey, value), sockdiag.FlushMetrics())
	})
}

// The connection from which the server's kernel saves the bound lasts long enough for further
// subflows to be established, at a low rate.
const (
	learnRate = 100 * unit.KbitPerSecond
	learnFor  = 2 * time.Second
)

// learn makes a short transfer where the server's kernel has not saved the bound of the window for
// all paths of a transport.
func (u *tuner) learn(ctx context.Context, t *scenario.Transport) error {
	need := 1
	if t.MPTCP {
		need = len(t.Links)
	}
	if !u.bound || u.learned >= need {
		return nil
	}
	e := u.lab.Spec().Experiment
	args := append(clientArguments(t), serverURL(u.lab.Spec(), t)+fmt.Sprintf("/cbr?rate=%s&duration=%s", learnRate, learnFor))
	if _, err := fetch(ctx, u.lab, e.Client, args, func(traffic.Sample) {}); err != nil {
		return fmt.Errorf("bound the window: %w", err)
	}
	n, err := u.lab.Node(e.Server)
	if err != nil {
		return err
	}
	// The server's end of the connection may close a moment later.
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for begun := time.Now(); ; {
		err := n.Do(func() (err error) {
			u.learned, err = sockdiag.CwndMetrics()
			return err
		})
		switch {
		case err != nil:
			return fmt.Errorf("bound the window: %w", err)
		case u.learned >= need:
			return nil
		case time.Since(begun) > patience:
			return fmt.Errorf("bound the window: the kernel has saved it for %d of %d paths", u.learned, need)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}
