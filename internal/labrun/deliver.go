package labrun

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/edge"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/result"
	"github.com/tabane/tabane/internal/scenario"
	"github.com/tabane/tabane/internal/traffic"
	"github.com/tabane/tabane/internal/unit"
)

const (
	// interval is the length of a sample.
	interval = 100 * time.Millisecond
	// A run times out after slackFactor times its expected duration, or that of its traffic, plus slack.
	slack       = 30 * time.Second
	slackFactor = 4
	// maxLine bounds a line of the client's output in bytes: a report has some 25 bytes per
	// sample.
	maxLine = 64 << 20
)

// FetchLine is one line of the output of `tabane fetch --progress json`: a sample for each
// interval, and the report as the last line. Exactly one of the fields is set.
type FetchLine struct {
	Sample *traffic.Sample `json:"sample,omitempty"`
	Report *traffic.Report `json:"report,omitempty"`
}

// deliver runs one job with the case's events and adds its metrics to the run. The trace is nil if
// there is an error.
func (r *runner) deliver(ctx context.Context, l *lab.Lab, j job, run *result.Run) (*result.Trace, error) {
	e := r.Spec.Experiment
	c := e.Case(j.Case)
	patient := max(slackFactor*j.expected, e.TrafficIn(c, j.Traffic).TimeLimit(r.Quick)) + slack
	ctx, cancel := context.WithTimeoutCause(ctx, patient, errors.New("took far longer than it should"))
	defer cancel()

	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	var (
		readings  []reading
		watchErr  error
		observers sync.WaitGroup
		begun     = make(chan struct{})
	)
	if len(c.Events) > 0 && e.Transports[j.Transport].MPTCP {
		observers.Go(func() {
			readings, watchErr = observe(watching, l, e.Server, serverPort(r.Spec, e.Transports[j.Transport]), begun)
		})
		<-begun
	}
	var packets *receiver
	if r.resequences && e.Transports[j.Transport].MPTCP {
		var err error
		if packets, err = receive(ctx, l, e.Client); err != nil {
			return nil, err
		}
		defer func() { _ = packets.stop() }()
	}
	var repeated *duplicates
	if t := e.Traffic[j.Traffic]; e.Transports[j.Transport].Gateway != nil && t.Datagram == 0 && !t.Upload {
		var err error
		if repeated, err = countDuplicates(ctx, l, e.Server, r.Spec.Nodes[e.Server].Serve.Port); err != nil {
			return nil, err
		}
		defer func() { _ = repeated.stop() }()
	}
	clock := newRunClock()
	var (
		rivals      *competition
		competeErr  error
		watchingErr error
	)
	if len(c.Connections) > 0 {
		rivals = r.compete(l, j, clock)
		begun := make(chan struct{})
		observers.Go(func() { watchingErr = rivals.watch(watching, begun) })
		<-begun
		observers.Go(func() { competeErr = rivals.run(watching) })
	}
	acting, stopActing := context.WithCancelCause(ctx)
	defer stopActing(nil)
	var (
		actors  sync.WaitGroup
		applied []time.Duration
		ends    []time.Duration
		actErr  error
		playErr error
	)
	if len(r.Spec.Scheduled()) > 0 {
		actors.Go(func() { playErr = play(acting, l, clock) })
	}
	if len(c.Events) > 0 {
		actors.Go(func() {
			applied, ends, actErr = act(acting, l, clock, e.Traffic[j.Traffic].EventAt, c.Events, r.Quick)
		})
	}

	carried, err := linkBytes(l, sharedLinks(e.Transports[j.Transport]))
	if err != nil {
		return nil, err
	}
	report, err := fetch(ctx, l, e.Client, fetchArguments(r.Spec, j, r.Quick), func(s traffic.Sample) {
		clock.observe(time.Now(), s.At+interval)
		if rivals != nil {
			rivals.sample(0, int64(s.Bytes))
		}
		r.report(Event{Kind: RunSample, Lab: l.Name(), CellKey: j.CellKey, Trial: j.trial, Rate: unit.Size(s.Bytes).Over(interval)})
	})
	stopActing(errors.New("the delivery ended before it"))
	stopWatching()
	actors.Wait()
	observers.Wait()
	if err != nil {
		if context.Cause(ctx) != nil {
			err = context.Cause(ctx)
		}
		if len(c.Events) > 0 {
			run.Metrics[result.ConnectionsLost] = 1
		}
		return nil, errors.Join(err, notCanceled(acting, actErr), notCanceled(acting, playErr))
	}
	if err := errors.Join(actErr, playErr, watchErr, competeErr, watchingErr); err != nil {
		return nil, err
	}
	trace := &result.Trace{CellKey: j.CellKey, Trial: j.trial, Interval: interval, Samples: report.Series, Events: applied, Ends: ends}
	trace.Subflows = subflows(readings, subflowNames(r.Spec, e.Server), clock.began(), len(report.Series))
	result.PutDelivery(run.Metrics, report)
	result.Mean(j.phases, report.Duration).Put(run.Metrics)
	trace.Measure(j.phases, run.Metrics)
	if len(c.Events) > 0 {
		run.Metrics[result.ConnectionsLost] = 0
	}
	if err := carried.put(l, run); err != nil {
		return nil, err
	}
	if rivals != nil {
		rivals.put(run)
	}
	if packets != nil {
		bursts, err := packets.measure(r.Spec, j.CellKey, run)
		if err != nil {
			return nil, err
		}
		if e.DrawsBursts(j.CellKey, j.trial) {
			trace.Bursts = bursts
		}
	}
	if repeated != nil {
		if err := repeated.put(run); err != nil {
			return nil, err
		}
	}
	switch want := e.Transports[j.Transport].MPTCP; {
	case e.Traffic[j.Traffic].Datagram > 0 && report.Bytes > 0: // MPTCP is that of the request
	case want && !report.UsedMPTCP:
		return nil, errors.New("the connection fell back from MPTCP to TCP")
	case !want && report.UsedMPTCP:
		return nil, errors.New("the connection used MPTCP, which its transport does not")
	case report.Bytes == 0:
		return nil, errors.New("not a byte arrived")
	}
	return trace, nil
}

// notCanceled returns err, or nil if err is the cause of ctx's end.
func notCanceled(ctx context.Context, err error) error {
	if errors.Is(err, context.Cause(ctx)) {
		return nil
	}
	return err
}

// act applies the events at their times, and returns when each was applied first and last.
func act(
	ctx context.Context, l *lab.Lab, clock *runClock, from time.Duration, events []scenario.Event, quick bool,
) (applied, ends []time.Duration, err error) {
	for i, e := range events {
		now, err := clock.until(ctx, from+e.After)
		if err == nil {
			var last time.Time
			applied = append(applied, now)
			last, err = apply(ctx, l, e, quick)
			ends = append(ends, max(now, last.Sub(clock.began())))
		}
		if err != nil {
			return applied, ends, fmt.Errorf("event %d of %d, at %s: %w", i+1, len(events), from+e.After, err)
		}
	}
	return applied, ends, nil
}

// play starts the schedules of the lab's links relative to the start of the run.
func play(ctx context.Context, l *lab.Lab, clock *runClock) error {
	elapsed, err := clock.until(ctx, 0)
	if err != nil {
		return fmt.Errorf("start the schedules of the links: %w", err)
	}
	for _, name := range l.Spec().Scheduled() {
		steps := slices.Clone(l.Spec().Links[name].Schedule)
		for i := range steps {
			steps[i].At = max(0, steps[i].At-elapsed)
		}
		if err := l.Links().Play(ctx, name, steps); err != nil {
			return fmt.Errorf("start the schedule of link %q: %w", name, err)
		}
	}
	return nil
}

// clientArguments returns the arguments that run the tabane program as a client, without the URL.
func clientArguments(t *scenario.Transport) []string {
	args := []string{"fetch", "--progress", "json", "--interval", interval.String()}
	if t.MPTCP {
		args = append(args, "--mptcp")
	}
	return args
}

// serverPort returns the port of the experiment's server for a transport.
func serverPort(spec *scenario.Spec, t *scenario.Transport) uint16 {
	return cmp.Or(t.Port, spec.Nodes[spec.Experiment.Server].Serve.Port)
}

// serverURL returns the URL of the experiment's server for a transport, without a path, with its name or
// with the address of an egress peer.
func serverURL(spec *scenario.Spec, t *scenario.Transport) string {
	host := spec.Experiment.Server
	if t.Via != "" {
		peers := spec.Nodes[host].Edge.Peers
		host = peers[slices.IndexFunc(peers, func(p edge.Peer) bool { return p.Name == t.Via })].Address.String()
	}
	return "http://" + strings.TrimSuffix(net.JoinHostPort(host, strconv.Itoa(int(serverPort(spec, t)))), ":80")
}

// fetchArguments returns the arguments of the tabane program for a job.
func fetchArguments(spec *scenario.Spec, j job, quick bool) []string {
	e := spec.Experiment
	t := e.TrafficIn(e.Case(j.Case), j.Traffic)
	args := clientArguments(e.Transports[j.Transport])
	if t.Upload {
		args = append(args, "--upload")
	}
	if t.Datagram > 0 {
		args = append(args, "--datagram", strconv.Itoa(t.Datagram))
	}
	if t.Objects > 0 {
		args = append(args, "--objects", strconv.Itoa(t.Objects))
	}
	if t.NewConnections {
		args = append(args, "--new-connections")
	}
	server := serverURL(spec, e.Transports[j.Transport])
	lasts := t.TimeLimit(quick)
	if t.Bytes > 0 {
		if lasts > 0 {
			args = append(args, "--limit", lasts.String())
		}
		return append(args, server+"/bytes/"+strconv.FormatInt(int64(t.Bytes), 10))
	}
	if t.Live {
		args = append(args, "--limit", lasts.String())
	}
	query := url.Values{"rate": {t.Rate.String()}, "duration": {lasts.String()}}
	return append(args, server+"/cbr?"+query.Encode())
}

// fetch runs tabane's own client on a node and passes its samples to sample.
func fetch(ctx context.Context, l *lab.Lab, node string, args []string, sample func(traffic.Sample)) (report traffic.Report, err error) {
	err = l.Daemons().RunClient(ctx, node, args, func(out io.Reader) error {
		report, err = readLines(out, sample)
		return err
	})
	if err != nil {
		return traffic.Report{}, err
	}
	return report, nil
}

// readLines reads the client's output up to EOF.
func readLines(out io.Reader, sample func(traffic.Sample)) (traffic.Report, error) {
	var report *traffic.Report
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var line FetchLine
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return traffic.Report{}, fmt.Errorf("the client's output is not understood: %w", err)
		}
		switch {
		case report != nil:
			return traffic.Report{}, errors.New("the client's output continues after its report")
		case line.Report != nil:
			report = line.Report
		case line.Sample != nil:
			sample(*line.Sample)
		}
	}
	if err := lines.Err(); err != nil {
		return traffic.Report{}, fmt.Errorf("read the client's output: %w", err)
	}
	if report == nil {
		return traffic.Report{}, errors.New("the client ended without a report")
	}
	return *report, nil
}
