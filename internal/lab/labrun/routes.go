package labrun

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/cell"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab"
)

const (
	// quickRoutes is the number of trials of each case of a scenario.KindRoutes experiment in a
	// quick run.
	quickRoutes = 10
	// routesQuiet is how long no route must have changed before the network counts as settled.
	// Routers that batch updates delay a change by some 50 ms each; the longest path here has
	// three of them.
	routesQuiet = 500 * time.Millisecond
	// routesPatience bounds the time for a change to reach the server, subflowPatience the time
	// from then until the path is used: a client retries after 1, 3 and 7 s.
	routesPatience  = 15 * time.Second
	subflowPatience = 8 * time.Second
	// subflowQuiet is how long a subflow must be idle for its last packet to count as captured.
	subflowQuiet = 300 * time.Millisecond
	// warmUp is the time between the start of a connection and the change, so that slow start
	// does not affect the result.
	warmUp = 300 * time.Millisecond
	// routesExpected is the expected duration of a trial.
	routesExpected = 1400 * time.Millisecond
)

// newRoutesRunner is newRunner for an experiment of scenario.KindRoutes. The options have been
// checked.
func newRoutesRunner(o RunOptions) (*runner, error) {
	e := o.Spec.Experiment
	cells := cell.New(o.Spec, o.Quick)
	var jobs []job
	// One network at a time and one trial at a time, so that nothing else delays a change. The
	// cases alternate, so that each leaves the network as the next one needs it; the first is a
	// case that can start at once.
	for _, transport := range e.TransportNames() {
		for trial := range o.Trials {
			for _, c := range withdrawFirst(e.Cases) {
				for _, t := range e.TrafficNames() {
					k := result.CellKey{Case: c.Name, Traffic: t, Transport: transport}
					of, err := cells.Cell(k)
					if err != nil {
						return nil, err
					}
					jobs = append(jobs, job{k, trial, of, routesExpected})
				}
			}
		}
	}
	return &runner{
		RunOptions: o, names: []string{o.Name}, left: [][]job{jobs}, started: make([]time.Time, 1), labs: make([]*lab.Lab, 1), total: len(jobs),
	}, nil
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

// runRoutes runs all jobs, in a lab for each kind of routers.
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

// workRoutes runs the jobs of one transport.
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
			wakes := r.wakes.begin()
			announced, err = r.tryRoutes(ctx, l, w, j, announced, &run)
			run.Metrics[result.WakeDelay] = wakes().Seconds()
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

// fail records the error in the notes of a run, if there is one.
func fail(run *result.Run, err error) {
	if err != nil {
		run.Notes[result.NoteError] = oneLine(err)
	}
}

// oneLine returns the text of an error for a note, which is one line in tables.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// tryRoutes runs one job and returns whether the prefix is advertised after it.
func (r *runner) tryRoutes(ctx context.Context, l *lab.Lab, w *watch, j job, announced bool, run *result.Run) (bool, error) {
	change := j.cell.Case.Change
	if before := change == scenario.ChangeWithdraw; announced != before {
		// An experiment with a single case, or an earlier trial failed.
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
	// A subflow that is to be closed must be in use.
	if change == scenario.ChangeWithdraw {
		begun := time.Now()
		err := poll(ctx, subflowPatience, func() bool { return w.lastPacket().After(begun) })
		if err != nil {
			return announced, fmt.Errorf("the subflow over the peer is not used: %w", err)
		}
	}
	t0, err := r.changeRoutes(ctx, l, w, change)
	announced = !announced // also if the change has not propagated: the policy has changed
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

// changeRoutes applies the change and waits until the network has settled. It returns when the
// change began.
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

// errPatience is wrapped by the error of poll when the condition is not met in time.
var errPatience = errors.New("waited in vain")

// poll waits until the condition is met.
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

// transfer is a delivery that runs while something else is measured.
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
		report, err := fetch(ctx, l, r.Spec.Experiment.Client, fetchArguments(r.Spec, j.cell), func(s traffic.Sample) {
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

// broken returns the error of a transfer that ended before stop, or nil.
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
