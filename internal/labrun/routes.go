package labrun

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/result"
	"github.com/tabane/tabane/internal/scenario"
	"github.com/tabane/tabane/internal/traffic"
	"github.com/tabane/tabane/internal/unit"
)

const (
	// quickRoutes is how often each case of an experiment of scenario.KindRoutes is run in a quick
	// pass.
	quickRoutes = 10
	// routesQuiet is how long nothing must have changed for the network to have settled. Routers
	// that batch hold a change for some 50 ms each; the longest way here is three of them.
	routesQuiet = 500 * time.Millisecond
	// routesPatience is how long a change may take to reach the server, and subflowPatience how
	// long it may take from there until the path is used: a client tries again after 1, 3 and 7 s.
	routesPatience  = 15 * time.Second
	subflowPatience = 8 * time.Second
	// subflowQuiet is how long nothing must have been sent on a subflow for its last packet to have
	// been seen.
	subflowQuiet = 300 * time.Millisecond
	// warmUp is how long a connection has before something changes: its slow start is not to be in
	// the way.
	warmUp = 300 * time.Millisecond
	// routesExpected is how long a trial takes when all goes well.
	routesExpected = 1400 * time.Millisecond
)

// newRoutesRunner is newRunner for an experiment of scenario.KindRoutes; the options are checked.
func newRoutesRunner(o RunOptions) *runner {
	e := o.Spec.Experiment
	var jobs []job
	// One network after the other, and in each one trial after the other: nothing else may be in
	// the way of a change. The cases take turns, so that one leaves the network as another needs
	// it; the first is one that can begin at once.
	for _, transport := range e.TransportNames() {
		for trial := range o.Trials {
			for _, c := range withdrawFirst(e.Cases) {
				for _, t := range e.TrafficNames() {
					jobs = append(jobs, job{
						CellKey: result.CellKey{Case: c.Name, Traffic: t, Transport: transport}, trial: trial, expected: routesExpected,
					})
				}
			}
		}
	}
	return &runner{
		RunOptions: o, names: []string{o.Name}, left: [][]job{jobs}, started: make([]time.Time, 1), labs: make([]*lab.Lab, 1), total: len(jobs),
	}
}

func withdrawFirst(cases []scenario.Case) []scenario.Case {
	var first, second []scenario.Case
	for _, c := range cases {
		if c.Change == scenario.ChangeWithdraw {
			first = append(first, c)
		} else {
			second = append(second, c)
		}
	}
	return append(first, second...)
}

// runRoutes does all jobs, in a lab for each kind of routers.
func (r *runner) runRoutes(ctx context.Context) error {
	for len(r.left[0]) > 0 {
		if r.labs[0] != nil {
			if err := r.labs[0].Down(ctx); err != nil {
				return err
			}
		}
		transport := r.left[0][0].Transport
		r.report(Event{Kind: LabStarting, Lab: r.Name})
		l, err := lab.Up(ctx, lab.Options{
			Name: r.Name, Spec: r.Spec, Routers: r.Spec.Experiment.Transports[transport].Routers, Binary: r.Binary, Detach: r.Keep, Log: r.Log,
		})
		if err != nil {
			return err
		}
		r.labs[0] = l
		r.report(Event{Kind: LabReady, Lab: r.Name})
		if err := r.workRoutes(ctx, l, transport); err != nil {
			return err
		}
	}
	return nil
}

// workRoutes does the jobs of one transport.
func (r *runner) workRoutes(ctx context.Context, l *lab.Lab, transport string) (err error) {
	w, stop, err := watchRoutes(ctx, l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	announced := true
	var broken error
	for len(r.left[0]) > 0 && r.left[0][0].Transport == transport {
		j := r.left[0][0]
		r.mu.Lock()
		r.started[0] = time.Now()
		r.mu.Unlock()
		r.report(Event{Kind: RunStarted, Lab: l.Name(), CellKey: j.CellKey, Trial: j.trial})
		run := result.Run{CellKey: j.CellKey, Trial: j.trial, Metrics: map[string]float64{}, Notes: map[string]string{}}
		if err := broken; err == nil {
			announced, err = r.tryRoutes(ctx, l, w, j, announced, &run)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			broken = l.Daemons().Exited()
			fail(&run, errors.Join(err, broken))
		} else {
			fail(&run, fmt.Errorf("not run: %w", broken))
		}
		if err := run.Err(); err != nil {
			r.Log.Warn("run failed", "lab", l.Name(), "cell", j.CellKey.String(), "trial", j.trial, "error", err)
		}
		r.mu.Lock()
		r.runs = append(r.runs, run)
		r.left[0] = r.left[0][1:]
		r.started[0] = time.Time{}
		r.mu.Unlock()
		r.report(Event{Kind: RunDone, Lab: l.Name(), CellKey: j.CellKey, Trial: j.trial, Run: &run})
	}
	return nil
}

// fail notes in a run why it failed, if it did.
func fail(run *result.Run, err error) {
	if err != nil {
		run.Notes[result.NoteError] = strings.ReplaceAll(err.Error(), "\n", "; ") // a note is one line in tables
	}
}

// tryRoutes does one job and returns whether the prefix is announced after it.
func (r *runner) tryRoutes(ctx context.Context, l *lab.Lab, w *watch, j job, announced bool, run *result.Run) (bool, error) {
	change := r.Spec.Experiment.Case(j.Case).Change
	if before := change == scenario.ChangeWithdraw; announced != before {
		// An experiment with one case only, or a trial that failed.
		if _, err := r.changeRoutes(ctx, l, w, opposite(change)); err != nil {
			return before, fmt.Errorf("prepare the network: %w", err)
		}
		announced = before
	}
	w.follow()
	transfer, err := r.transfer(ctx, l, j)
	if err != nil {
		return announced, err
	}
	defer transfer.stop()
	if err := sleep(ctx, warmUp); err != nil {
		return announced, err
	}
	// What is to end must be in use.
	if change == scenario.ChangeWithdraw {
		begun := time.Now()
		err := poll(ctx, subflowPatience, func() bool { return w.lastPacket().After(begun) })
		if err != nil {
			return announced, fmt.Errorf("the subflow over the peer is not used: %w", err)
		}
	}
	t0, err := r.changeRoutes(ctx, l, w, change)
	announced = !announced // also when it was not followed: the policy is what it is
	if err != nil {
		return announced, err
	}
	if change == scenario.ChangeAnnounce {
		err = poll(ctx, subflowPatience, func() bool { return w.lastPacket().After(t0) })
	} else {
		err = poll(ctx, subflowPatience, func() bool { return time.Since(w.lastPacket()) > subflowQuiet })
	}
	if err != nil && !errors.Is(err, errPatience) {
		return announced, err
	}
	seen, _, subflow, err := w.snapshot()
	if err != nil {
		return announced, err
	}
	for name, v := range measure(change, t0, seen, subflow) {
		run.Metrics[name] = v
	}
	run.Metrics[result.ConnectionsLost] = 0
	if err := transfer.broken(); err != nil {
		run.Metrics[result.ConnectionsLost] = 1
		return announced, err
	}
	return announced, nil
}

func opposite(change string) string {
	if change == scenario.ChangeAnnounce {
		return scenario.ChangeWithdraw
	}
	return scenario.ChangeAnnounce
}

// changeRoutes makes the change and waits until the network has settled. It returns when the change
// began.
func (r *runner) changeRoutes(ctx context.Context, l *lab.Lab, w *watch, change string) (time.Time, error) {
	routes := r.Spec.Experiment.Routes
	apply, err := l.PrepareAdvertise(routes.Router, routes.Neighbor, routes.Prefix, change == scenario.ChangeAnnounce)
	if err != nil {
		return time.Time{}, err
	}
	t0 := w.begin()
	if err := apply(); err != nil {
		return t0, err
	}
	problem := ""
	err = poll(ctx, routesPatience, func() bool {
		seen, last, _, _ := w.snapshot()
		problem = missing(change, seen)
		return problem == "" && time.Since(last) > routesQuiet
	})
	if problem != "" {
		err = fmt.Errorf("%s: %w", problem, err)
	}
	return t0, err
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// errPatience is why poll ends without what it waited for.
var errPatience = errors.New("waited in vain")

// poll asks again and again until the condition holds.
func poll(ctx context.Context, patience time.Duration, condition func() bool) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for end := time.Now().Add(patience); !condition(); {
		if time.Now().After(end) {
			return fmt.Errorf("%w for %s", errPatience, patience)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}

// transfer is a delivery that goes on while something else is measured.
type transfer struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// transfer starts a job's traffic and returns once data has arrived.
func (r *runner) transfer(ctx context.Context, l *lab.Lab, j job) (*transfer, error) {
	ctx, cancel := context.WithCancel(ctx)
	t := &transfer{cancel: cancel, done: make(chan struct{})}
	flows := make(chan struct{})
	var once sync.Once
	go func() {
		defer close(t.done)
		report, err := fetch(ctx, l, r.Spec.Experiment.Client, fetchArguments(r.Spec, j, r.Quick), func(s traffic.Sample) {
			if s.Bytes > 0 {
				once.Do(func() { close(flows) })
			}
			r.report(Event{Kind: RunSample, Lab: l.Name(), CellKey: j.CellKey, Trial: j.trial, Rate: unit.Size(s.Bytes).Over(interval)})
		})
		if err == nil && !report.UsedMPTCP {
			err = errors.New("the connection fell back from MPTCP to TCP")
		}
		t.err = err
	}()
	select {
	case <-flows:
		return t, nil
	case <-t.done:
		cancel()
		if t.err == nil {
			t.err = errors.New("not a byte arrived")
		}
		return nil, t.err
	case <-ctx.Done():
		t.stop()
		return nil, context.Cause(ctx)
	}
}

// broken is why the transfer ended before stop, if it did for a reason other than its time.
func (t *transfer) broken() error {
	select {
	case <-t.done:
		return t.err
	default:
		return nil
	}
}

func (t *transfer) stop() {
	t.cancel()
	<-t.done
}
