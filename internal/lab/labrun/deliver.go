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
	"time"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/experiment/cell"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab"
)

const (
	// interval is the length of a sample.
	interval = 100 * time.Millisecond
	// A run times out after slackFactor times its expected duration, or that of its traffic, plus
	// slack.
	slack       = 30 * time.Second
	slackFactor = 4
	// maxLine bounds a line of the client's output in bytes: a report has some 25 bytes per
	// sample.
	maxLine = 64 << 20
)

// delivery is a job with the case's events: what observes it, and what changes the network
// meanwhile.
type delivery struct {
	*runner
	lab       *lab.Lab
	job       job
	events    []cell.Event
	transport *scenario.Transport
	clock     *runClock

	observers, actors *tasks

	// Nil or empty where the job does not need them.
	readings []reading
	packets  *receiver
	repeated *duplicates
	rivals   *competition
	beside   *arrivals
	counted  linkCounts
	// carried is what each link carried during the delivery, in bytes.
	carried map[string]uint64

	applied, ends []time.Duration // of the events
}

// deliver runs one job with the case's events and adds its metrics to the run. The trace is nil if
// there is an error.
func (r *runner) deliver(ctx context.Context, l *lab.Lab, j job, run *result.Run) (*result.Trace, error) {
	patient := max(slackFactor*j.expected, j.cell.Limit) + slack
	ctx, cancel := context.WithTimeoutCause(ctx, patient, errors.New("took far longer than it should"))
	defer cancel()
	d := &delivery{
		runner: r, lab: l, job: j, events: j.cell.Events, transport: j.cell.Own().Transport, clock: newRunClock(),
		observers: newTasks(ctx), actors: newTasks(ctx),
	}
	defer d.stop()
	if err := d.observe(ctx); err != nil {
		return nil, err
	}
	d.act()
	report, err := d.fetch(ctx)
	acted, observed := d.stop()
	if err != nil {
		if context.Cause(ctx) != nil {
			err = context.Cause(ctx)
		}
		if len(d.events) > 0 {
			run.Metrics[result.ConnectionsLost] = 1
		}
		return nil, errors.Join(err, d.actors.faults())
	}
	if err := errors.Join(acted, observed); err != nil {
		return nil, err
	}
	trace, err := d.measure(report, run)
	if err != nil {
		return nil, err
	}
	return trace, d.checkReport(report)
}

// observe starts what measures beside the client.
func (d *delivery) observe(ctx context.Context) error {
	e := d.Spec.Experiment
	var err error
	if len(d.events) > 0 && d.transport.MPTCP {
		d.observers.await(func(ctx context.Context, begun func()) (err error) {
			d.readings, err = observe(ctx, d.lab, e.Server, serverPort(d.Spec, d.transport), begun)
			return err
		})
	}
	if d.resequences && d.transport.MPTCP {
		if d.packets, err = receive(ctx, d.lab, e.Client); err != nil {
			return err
		}
	}
	if t := d.job.cell.Traffic; d.transport.Gateway != nil && t.Datagram == 0 && !t.Upload {
		if d.repeated, err = countDuplicates(ctx, d.lab, e.Server, d.Spec.Nodes[e.Server].Serve.Port); err != nil {
			return err
		}
	}
	if len(d.job.cell.Beside()) > 0 {
		d.rivals = d.compete(d.lab, d.job, d.clock)
		d.observers.await(d.rivals.watch)
		d.observers.start(d.rivals.run)
	}
	if n := d.job.cell.Traffic.Beside; n > 0 {
		d.beside = newArrivals(n)
	}
	d.counted, err = linkBytes(d.lab, d.Spec.LinkNames())
	return err
}

// stop ends all that runs beside the client, once or more often.
func (d *delivery) stop() (acted, observed error) {
	ended := errors.New("the delivery ended before it")
	acted, observed = d.actors.stop(ended), d.observers.stop(ended)
	if d.packets != nil {
		_ = d.packets.stop() // measure returns the error
	}
	if d.repeated != nil {
		_ = d.repeated.stop() // as above
	}
	return acted, observed
}

// act starts what changes the network: the schedules of links, and the events.
func (d *delivery) act() {
	if len(d.Spec.Scheduled()) > 0 {
		d.actors.start(func(ctx context.Context) error { return play(ctx, d.lab, d.clock) })
	}
	if len(d.events) > 0 {
		d.actors.start(func(ctx context.Context) (err error) {
			d.applied, d.ends, err = act(ctx, d.lab, d.clock, d.events, d.Quick)
			return err
		})
	}
}

// lead starts the downloads beside the traffic, if there are any, and waits until they have run for
// a while, unless the traffic itself begins so much later.
func (d *delivery) lead(ctx context.Context) error {
	if d.beside == nil || beginsLater(d.job.cell.Traffic) {
		return nil
	}
	d.observers.start(d.runBeside)
	select {
	case <-time.After(scenario.BesideLead):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// fetch runs the client of the job, and its server if that is not the one of all others.
func (d *delivery) fetch(ctx context.Context) (traffic.Report, error) {
	args := fetchArguments(d.Spec, d.job.cell)
	if d.transport.HTTP3 {
		pin, stop, err := serveHTTP3(ctx, d.lab, d.Spec.Experiment.Server)
		if err != nil {
			return traffic.Report{}, err
		}
		defer stop()
		if d.transport.Chromium {
			args = append(args, "--chromium", pin)
		}
	}
	if err := d.lead(ctx); err != nil {
		return traffic.Report{}, err
	}
	accepted := func() { d.observers.start(d.runBeside) }
	return fetchLater(ctx, d.lab, d.Spec.Experiment.Client, args, accepted, func(s traffic.Sample) {
		d.clock.observe(time.Now(), s.At+interval)
		if d.rivals != nil {
			d.rivals.arrived.add(0, s.Bytes)
		}
		d.report(Event{Kind: RunSample, Lab: d.lab.Name(), CellKey: d.job.CellKey, Trial: d.job.trial, Rate: unit.Size(s.Bytes).Over(interval)})
	})
}

// measure adds the metrics of the delivery to a run. What observed it has ended.
func (d *delivery) measure(report traffic.Report, run *result.Run) (*result.Trace, error) {
	trace := &result.Trace{
		CellKey: d.job.CellKey, Trial: d.job.trial, Interval: interval, Samples: report.Series, Events: d.applied, Ends: d.ends,
		Subflows: subflows(d.readings, subflowNames(d.Spec, d.Spec.Experiment.Server), d.clock.began(), len(report.Series)),
	}
	result.PutDelivery(run.Metrics, report)
	result.Mean(d.job.cell.Phases, report.Duration).Put(run.Metrics)
	trace.Measure(d.job.cell.Phases, run.Metrics)
	if len(d.events) > 0 {
		run.Metrics[result.ConnectionsLost] = 0
	}
	var err error
	if d.carried, err = d.counted.since(d.lab); err != nil {
		return nil, err
	}
	putShare(sharedLinks(d.transport), d.carried, run)
	if d.rivals != nil {
		d.rivals.put(run)
	}
	if t := d.job.cell.Traffic; d.beside != nil && t.Objects == 0 && t.Datagram == 0 {
		d.putBeside(run, report)
	}
	if d.packets != nil {
		bursts, err := d.packets.measure(d.Spec, d.job.CellKey, run)
		if err != nil {
			return nil, err
		}
		if d.Spec.Experiment.DrawsBursts(d.job.CellKey, d.job.trial) {
			trace.Bursts = bursts
		}
	}
	if d.repeated != nil {
		if err := d.repeated.put(run); err != nil {
			return nil, err
		}
	}
	return trace, nil
}

// checkReport returns an error if the delivery was not over what its transport has.
func (d *delivery) checkReport(report traffic.Report) error {
	switch want := d.transport.MPTCP; {
	case d.job.cell.Traffic.Datagram > 0 && report.Bytes > 0: // MPTCP is that of the request
	case want && !report.UsedMPTCP:
		return errors.New("the connection fell back from MPTCP to TCP")
	case !want && report.UsedMPTCP:
		return errors.New("the connection used MPTCP, which its transport does not")
	case report.Bytes == 0:
		return errors.New("not a byte arrived")
	}
	for _, name := range d.transport.Links {
		if len(d.Spec.Links[name].Ends) > 2 {
			return nil // what a switch carries is not counted at one of its ports
		}
	}
	// After a failure it is on those that remain.
	return elsewhere(uint64(report.Bytes), slices.Concat(d.transport.Links, d.job.cell.Case.Remaining), d.carried)
}

// act applies the events at their times, and returns when each was applied first and last.
func act(
	ctx context.Context, l *lab.Lab, clock *runClock, events []cell.Event, quick bool,
) (applied, ends []time.Duration, err error) {
	for i, e := range events {
		now, err := clock.until(ctx, e.At)
		if err == nil {
			var last time.Time
			applied = append(applied, now)
			last, err = apply(ctx, l, e.Event, quick)
			ends = append(ends, max(now, last.Sub(clock.began())))
		}
		if err != nil {
			return applied, ends, fmt.Errorf("event %d of %d, at %s: %w", i+1, len(events), e.At, err)
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

// serverURL returns the URL of the experiment's server for a transport, without a path, with its
// name or with the address of an egress peer.
func serverURL(spec *scenario.Spec, t *scenario.Transport) string {
	host := spec.Experiment.Server
	if t.Via != "" {
		peers := spec.Nodes[host].Edge.Peers
		host = peers[slices.IndexFunc(peers, func(p edge.Peer) bool { return p.Name == t.Via })].Address.String()
	}
	if t.HTTP3 {
		return "https://" + net.JoinHostPort(host, "443")
	}
	return "http://" + strings.TrimSuffix(net.JoinHostPort(host, strconv.Itoa(int(serverPort(spec, t)))), ":80")
}

// fetchArguments returns the arguments of the tabane program for a cell.
func fetchArguments(spec *scenario.Spec, c *cell.Cell) []string {
	t, transport := c.Traffic, c.Own().Transport
	args := clientArguments(transport)
	if transport.HTTP3 {
		args = []string{"http3", "fetch", "--interval", interval.String()}
	}
	if t.Upload {
		args = append(args, "--upload")
	}
	if t.Datagram > 0 {
		args = append(args, "--datagram", strconv.Itoa(t.Datagram))
	}
	if beginsLater(t) {
		args = append(args, "--after", scenario.BesideLead.String())
	}
	if t.Objects > 0 {
		args = append(args, "--objects", strconv.Itoa(t.Objects))
	}
	if t.NewConnections {
		args = append(args, "--new-connections")
	}
	server := serverURL(spec, transport)
	if t.Bytes > 0 {
		if c.Limit > 0 {
			args = append(args, "--limit", c.Limit.String())
		}
		return append(args, server+"/bytes/"+strconv.FormatInt(int64(t.Bytes), 10))
	}
	if t.Live {
		args = append(args, "--limit", c.Limit.String())
	}
	query := url.Values{"rate": {t.Rate.String()}, "duration": {c.Limit.String()}}
	return append(args, server+"/cbr?"+query.Encode())
}

// beginsLater reports whether a traffic is requested before the downloads beside it begin: those of
// a call must not keep its request, as no request is simulated.
func beginsLater(t *scenario.Traffic) bool { return t.Beside > 0 && t.Datagram > 0 && !t.Upload }

// fetch runs tabane's own client on a node and passes its samples to sample.
func fetch(ctx context.Context, l *lab.Lab, node string, args []string, sample func(traffic.Sample)) (traffic.Report, error) {
	return fetchLater(ctx, l, node, args, func() {}, sample)
}

// fetchLater is fetch of datagrams that begin later; accepted is called when the server has
// accepted the request.
func fetchLater(ctx context.Context, l *lab.Lab, node string, args []string, accepted func(), sample func(traffic.Sample)) (report traffic.Report, err error) {
	err = l.Daemons().RunClient(ctx, node, args, func(out io.Reader) error {
		report, err = readLines(out, accepted, sample)
		return err
	})
	if err != nil {
		return traffic.Report{}, err
	}
	return report, nil
}

// serveHTTP3 runs a server of HTTP/3 on a node until stop is called, with a certificate of that
// pin.
func serveHTTP3(ctx context.Context, l *lab.Lab, node string) (pin string, stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	listening, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- l.Daemons().RunClient(ctx, node, []string{"http3", "serve"}, func(out io.Reader) error {
			lines := bufio.NewScanner(out)
			if lines.Scan() { // listening on [::]:443 with the certificate PIN
				listening <- lines.Text()[strings.LastIndexByte(lines.Text(), ' ')+1:]
			}
			for lines.Scan() {
			}
			return lines.Err()
		})
	}()
	stop = func() {
		cancel()
		<-ended // which says that it was killed
	}
	select {
	case pin := <-listening:
		return pin, stop, nil
	case err := <-ended:
		cancel()
		return "", nil, fmt.Errorf("serve HTTP/3 on node %q: %w", node, err)
	}
}

// readLines reads the client's output up to EOF.
func readLines(out io.Reader, accepted func(), sample func(traffic.Sample)) (traffic.Report, error) {
	var report *traffic.Report
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var line traffic.FetchLine
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return traffic.Report{}, fmt.Errorf("the client's output is not understood: %w", err)
		}
		switch {
		case report != nil:
			return traffic.Report{}, errors.New("the client's output continues after its report")
		case line.Report != nil:
			report = line.Report
		case line.Accepted:
			accepted()
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
