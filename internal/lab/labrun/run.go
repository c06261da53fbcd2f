// Package labrun runs the experiment of a scenario.Spec in labs: it applies the case's settings and
// events, starts the traffic, and measures deliveries, route changes and the packets at the client.
// Building the network is left to package lab, evaluating expectations to package scenario.
package labrun

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/experiment/cell"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab"
)

// RunOptions are the parameters of Run.
type RunOptions struct {
	// Name of the lab; by default the scenario's name. Parallel labs are NAME.1, NAME.2 and so
	// on.
	Name string
	Spec *scenario.Spec
	// Routers is as in lab.Options. In an experiment of scenario.KindRoutes, each transport
	// selects its routers.
	Routers string
	// Trials is the number of runs of each cell; by default the scenario's, or 1 in a quick run
	// (10 for route changes).
	Trials int
	// Sessions is how many tasks on web pages each trial plays at the same time; by default the
	// scenario's.
	Sessions int
	// Quick limits the duration of each run as its traffic configures.
	Quick bool
	// Parallel is the number of parallel labs, at most one for each cell; by default
	// DefaultParallel.
	Parallel int
	// Binary is as in lab.Options.
	Binary string
	// Keep leaves the labs running, with the links as in the last case. If Run fails, they are
	// removed nevertheless.
	Keep bool
	// HAR records the requests of each trial on web pages, which takes CPU time.
	HAR bool
	// Resequencing analyzes the client's packets even if no expectation or figure needs them.
	Resequencing bool
	// Commit is the version of the program, recorded in the result.
	Commit string
	// Progress is called for each event, never concurrently.
	Progress func(Event)
	// Save is called with the result of the runs so far, at most once a minute and never
	// concurrently: Run returns none to a caller that is killed.
	Save func(result.Result)
	Log  *slog.Logger
}

// saveEvery is the least time between two calls of RunOptions.Save.
const saveEvery = time.Minute

// EventKind is the kind of an Event.
type EventKind string

const (
	// LabStarting and LabReady have no cell.
	LabStarting EventKind = "lab-starting"
	LabReady    EventKind = "lab-ready"
	RunStarted  EventKind = "run-started"
	// RunSample has the current Rate.
	RunSample EventKind = "run-sample"
	// RunDone has the Run, and the Trace unless the run failed.
	RunDone EventKind = "run-done"
	// LabRestoring: the events of the last run are being reverted.
	LabRestoring EventKind = "lab-restoring"
	// LabsRemoving is the last event.
	LabsRemoving EventKind = "labs-removing"
)

// Event is a step of Run.
type Event struct {
	Kind EventKind
	Lab  string
	result.CellKey
	Trial int
	// Done and Total count runs.
	Done, Total int
	// Elapsed is the time since Run started, ETA the estimated remaining time.
	Elapsed, ETA time.Duration
	// Rate is the goodput of the last interval.
	Rate unit.Bandwidth
	// Run is the result of the run of a RunDone event, Trace its time series unless it failed.
	Run   *result.Run
	Trace *result.Trace
	// Archive has the requests of a trial on web pages, also of one that failed, if RunOptions.HAR
	// is set.
	Archive *result.Archive
}

// DefaultParallel is how many labs Run has side by side: one for each case, if there are two
// processors, and four for each processor at most. Where no transport carries more than slow, there
// are up to four for each case, and eight for each processor.
//
// A lab waits for its links nearly all the time. The four cases of epe-steady side by side on two
// processors, with other work on them, took 13 % of the processors' time; compared with one lab
// after the other (10 s per run, two trials), TCP and CBR goodput differed by at most 0.1 % and
// that of MPTCP in bulk by at most 0.5 %, in both directions, which is what trials of one kind
// differ by as well. With one processor the daemons' start alone would be in the way. A browser
// uses a processor and more while a page loads, so there is one at a time.
func DefaultParallel(spec *scenario.Spec) int {
	cells, cases, processors := spec.Experiment.Cells(), len(spec.Experiment.Cases), runtime.NumCPU()
	switch {
	case processors < 2 || spec.Experiment.Kind == scenario.KindWeb:
		return 1
	case !slices.ContainsFunc(cells, func(k result.CellKey) bool { return !isSlow(spec.SumRates(k)) }):
		return min(labsPerSlowCase*cases, len(cells), 2*labsPerProcessor*processors)
	}
	return min(cases, labsPerProcessor*processors)
}

// slow is a rate at which a lab takes hardly any CPU: that of mobile telephony of the third
// generation.
const slow = 2 * unit.MbitPerSecond

// isSlow reports whether paths carry no more than slow in all. A sum of 0 is not known.
func isSlow(sum unit.Bandwidth) bool { return sum > 0 && sum <= slow }

const labsPerSlowCase = 4

const labsPerProcessor = 4

// Host describes the machine that this process runs on.
func Host(commit string) result.Host {
	h := result.Host{CPUs: runtime.NumCPU(), Commit: commit}
	var u unix.Utsname
	if unix.Uname(&u) == nil { // fails only for a bad pointer
		h.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	return h
}

// Run runs the scenario's experiment in labs of its own: every case with every traffic over every
// transport, Trials times. A run that fails is recorded as failed, is not repeated, and makes
// Result.Holds false. Run removes its labs before it returns, even after an error, a panic or the
// end of ctx. If it returns an error, the result has the runs that were done before, if any.
func Run(ctx context.Context, o RunOptions) (result.Result, error) {
	r, err := newRunner(o)
	if err != nil {
		return result.Result{}, fmt.Errorf("run scenario: %w", err)
	}
	out, err := r.run(ctx)
	if err != nil {
		var failed error
		out, failed = r.part()
		return out, fmt.Errorf("run scenario %q: %w", o.Spec.Name, errors.Join(err, failed))
	}
	return out, nil
}

type runner struct {
	RunOptions
	names []string
	begun time.Time

	mu      sync.Mutex
	left    [][]job
	started []time.Time
	total   int
	runs    []result.Run
	labs    []*lab.Lab
	// saving is locked while the result is saved; saved is when it was last, nil before.
	saving  sync.Mutex
	saved   *time.Time
	tunings map[result.CellKey]tuning
	// overflows is whether each run begins without what the others learned of paths.
	overflows bool
	// delivers is whether some run has a mode of delivery of its own.
	delivers bool
	// offers are the kernel's, and controls what the run has loaded beside them.
	offers   offers
	controls controls
	// web is of an experiment of scenario.KindWeb.
	web *web
	// wakes measures delays of the host while the runner runs.
	wakes *wakes
	// resequences is whether the client's packets are analyzed.
	resequences bool
}

func newRunner(o RunOptions) (*runner, error) {
	switch {
	case o.Spec == nil:
		return nil, errors.New("no scenario given")
	case o.Spec.Experiment == nil:
		return nil, fmt.Errorf("scenario %q has no experiment", o.Spec.Name)
	case o.Trials < 0:
		return nil, fmt.Errorf("trials must be >= 0, got %d", o.Trials)
	case o.Parallel < 0:
		return nil, fmt.Errorf("parallel must be >= 0, got %d", o.Parallel)
	case o.Sessions != 0 && o.Spec.Experiment.Kind != scenario.KindWeb:
		return nil, fmt.Errorf("sessions are for experiments of kind %s", scenario.KindWeb)
	}
	if err := o.Spec.Check().Err(); err != nil {
		return nil, fmt.Errorf("check scenario %q: %w", o.Spec.Name, err)
	}
	if o.Sessions != 0 {
		o.Spec = o.Spec.WithSessions(o.Sessions)
		if err := o.Spec.Check().Err(); err != nil {
			return nil, fmt.Errorf("play %d sessions: %w", o.Sessions, err)
		}
	}
	e := o.Spec.Experiment
	if o.Name == "" {
		o.Name = o.Spec.Name
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if e.Kind == scenario.KindRoutes {
		switch {
		case o.Trials > 0:
		case o.Quick:
			o.Trials = quickRoutes
		default:
			o.Trials = e.Trials
		}
		return newRoutesRunner(o)
	}
	var (
		settings map[result.CellKey]tuning
		offers   offers
		err      error
	)
	if e.Kind == scenario.KindWeb {
		if err := capacity(o.Spec, o.Quick, runtime.NumCPU()); err != nil {
			return nil, err
		}
		offers, err = webOffers(o.Spec)
	} else {
		settings, offers, err = tunings(o.Spec)
	}
	if err != nil {
		return nil, err
	}
	if o.Parallel == 0 {
		o.Parallel = DefaultParallel(o.Spec)
	}
	labs := min(o.Parallel, len(e.Cells()))
	left, err := schedule(o.Spec, labs, o.Trials, o.Quick)
	if err != nil {
		return nil, err
	}
	r := &runner{
		RunOptions: o, names: labNamesFor(o.Name, labs), left: left, started: make([]time.Time, labs), labs: make([]*lab.Lab, labs),
		tunings: settings, overflows: overflows(o.Spec, settings), delivers: delivers(e), offers: offers, controls: controls{}, resequences: o.Resequencing || resequences(e),
	}
	for _, l := range left {
		r.total += len(l)
	}
	return r, nil
}

func (r *runner) run(ctx context.Context) (_ result.Result, err error) {
	r.begun = time.Now()
	r.wakes = watchWakes()
	defer r.wakes.stop()
	finished := false
	defer func() {
		if !finished || !r.Keep {
			err = errors.Join(err, r.down(context.WithoutCancel(ctx)))
			return
		}
		for _, l := range r.labs {
			l.Close()
		}
	}()
	if r.Spec.Experiment.Kind == scenario.KindRoutes {
		if err := r.runRoutes(ctx); err != nil {
			return result.Result{}, err
		}
		result, err := r.result()
		finished = err == nil
		return result, err
	}
	defer func() { err = errors.Join(err, r.controls.close()) }()
	if err := r.controls.load(r.left, r.offers); err != nil {
		return result.Result{}, err
	}
	spec := r.Spec
	var files map[string][]byte
	if r.Spec.Experiment.Kind == scenario.KindWeb {
		if r.web, spec, err = r.newWeb(); err != nil {
			return result.Result{}, err
		}
		files = map[string][]byte{certificateFile: r.web.certificate.Chain, keyFile: r.web.certificate.Key}
		defer func() { err = errors.Join(err, r.web.close()) }()
	}
	// All labs are up before the first run: starting daemons is the only time when a lab needs
	// much CPU.
	err = r.all(ctx, func(ctx context.Context, i int) error {
		r.report(Event{Kind: LabStarting, Lab: r.names[i]})
		l, err := lab.Up(ctx, lab.Options{Name: r.names[i], Spec: spec, Routers: r.Routers, Binary: r.Binary, Detach: r.Keep, Files: files, Log: r.Log})
		if err != nil {
			return err
		}
		r.mu.Lock()
		r.labs[i] = l
		r.mu.Unlock()
		r.report(Event{Kind: LabReady, Lab: r.names[i]})
		if r.resequences || r.Spec.Experiment.HasEra(scenario.Era2006) {
			return l.Links().DisableOffloads()
		}
		return nil
	})
	if err != nil {
		return result.Result{}, err
	}
	if err := r.all(ctx, r.work); err != nil {
		return result.Result{}, err
	}
	result, err := r.result()
	finished = err == nil
	return result, err
}

// all calls f for every lab concurrently. The first error cancels the context of the others; a
// panic is raised again in the caller, so that its deferred functions run.
func (r *runner) all(ctx context.Context, f func(ctx context.Context, lab int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for i := range r.names {
		g.Go(func() (err error) {
			defer func() {
				if p := recover(); p != nil {
					err = &panicError{p, debug.Stack()}
				}
			}()
			return f(ctx, i)
		})
	}
	err := g.Wait()
	var p *panicError
	if errors.As(err, &p) {
		panic(p.Error())
	}
	return err
}

type panicError struct {
	value any
	stack []byte
}

func (p *panicError) Error() string { return fmt.Sprintf("%v\n\n%s", p.value, p.stack) }

// down removes the labs.
func (r *runner) down(ctx context.Context) error {
	r.report(Event{Kind: LabsRemoving})
	var g sync.WaitGroup
	errs := make([]error, len(r.labs))
	for i, l := range r.labs {
		if l != nil {
			g.Go(func() { errs[i] = l.Down(ctx) })
		}
	}
	g.Wait()
	return errors.Join(errs...)
}

// work runs the jobs of one lab in order.
func (r *runner) work(ctx context.Context, i int) error {
	l := r.labs[i]
	jobs := r.left[i]
	var (
		whole  []string
		broken error
	)
	if r.Spec.Experiment.HasEvents() {
		var err error
		if whole, err = settle(ctx, l); err != nil {
			return err
		}
	}
	if r.web != nil {
		if err := r.preflight(ctx, l, jobs); err != nil {
			return err
		}
	}
	ends := tuner{lab: l}
	for n, j := range jobs {
		if n == 0 || jobs[n-1].Case != j.Case {
			if err := r.setCase(l, j.cell); err != nil {
				return err
			}
		}
		r.mu.Lock()
		r.started[i] = time.Now()
		r.mu.Unlock()
		r.report(Event{Kind: RunStarted, Lab: l.Name(), CellKey: j.CellKey, Trial: j.trial})

		run := result.Run{CellKey: j.CellKey, Trial: j.trial, Metrics: map[string]float64{}, Notes: map[string]string{}}
		j.cell.Phases[0].Put(run.Metrics)
		var (
			trace *result.Trace
			err   error
		)
		if broken == nil {
			wakes := r.wakes.begin()
			if err = errors.Join(r.tune(ctx, &ends, j, &run), r.restartGateways(ctx, l, j.CellKey)); err == nil {
				if r.web != nil {
					err = r.browse(ctx, l, j, &run)
				} else {
					trace, err = r.deliver(ctx, l, j, &run)
				}
			}
			run.Metrics[result.WakeDelay] = wakes().Seconds()
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			broken = l.Daemons().Exited()
			if broken != nil && r.web != nil {
				// It is the cause of whatever the browser reported.
				err, broken = broken, r.revive(ctx, l, j.cell)
			}
			if broken == nil {
				broken = r.undo(ctx, l, j, whole)
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
			}
			err = errors.Join(err, broken)
		} else {
			err = fmt.Errorf("not run: %w", broken)
		}
		if err != nil {
			trace = nil
			fail(&run, err)
			r.Log.Warn("run failed", "lab", l.Name(), "cell", j.CellKey.String(), "trial", j.trial, "error", err)
		}
		r.mu.Lock()
		r.runs = append(r.runs, run)
		r.left[i] = r.left[i][1:]
		r.started[i] = time.Time{}
		r.mu.Unlock()
		r.report(Event{Kind: RunDone, Lab: l.Name(), CellKey: j.CellKey, Trial: j.trial, Run: &run, Trace: trace, Archive: r.web.archive(j)})
	}
	return nil
}

// undo restores the lab's state before a run with events or schedules.
func (r *runner) undo(ctx context.Context, l *lab.Lab, j job, whole []string) error {
	if r.delivers {
		if err := l.SetDelivery(ctx, r.Spec.Experiment.Server, r.Spec.Experiment.Client, edge.Mode{}); err != nil {
			return fmt.Errorf("restore the delivery: %w", err)
		}
	}
	if len(j.cell.Events) == 0 {
		for _, name := range r.Spec.Scheduled() {
			if err := l.Links().Set(name, j.cell.Shape(name)); err != nil {
				return err
			}
		}
		return nil
	}
	r.report(Event{Kind: LabRestoring, Lab: l.Name(), CellKey: j.CellKey, Trial: j.trial})
	if err := r.setCase(l, j.cell); err != nil {
		return err
	}
	return restore(ctx, l, j.cell.Case.Events, whole)
}

// setCase sets the shape of every link for the case of a cell, including links that an earlier case
// has changed.
func (r *runner) setCase(l *lab.Lab, c *cell.Cell) error {
	for _, link := range slices.Sorted(maps.Keys(r.Spec.Links)) {
		if err := l.Links().Set(link, c.Shape(link)); err != nil {
			return fmt.Errorf("set case %q: %w", c.Key.Case, err)
		}
	}
	return nil
}

// report passes an event to Progress, with the fields common to all events, and saves the result
// after a run.
func (r *runner) report(e Event) {
	if e.Kind == RunDone {
		r.save()
	}
	if r.Progress == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	e.Done, e.Total = len(r.runs), r.total
	e.Elapsed, e.ETA = now.Sub(r.begun), remaining(r.left, r.started, now)
	r.Progress(e)
}

// save calls Save if that is due. Errors are those of the result at the end.
func (r *runner) save() {
	if r.Save == nil {
		return
	}
	r.saving.Lock()
	defer r.saving.Unlock()
	now := time.Now()
	if r.saved != nil && now.Sub(*r.saved) < saveEvery {
		return
	}
	r.saved = &now
	r.mu.Lock()
	runs := slices.Clone(r.runs)
	r.mu.Unlock()
	if out, err := r.conclude(runs); err == nil {
		r.Save(out)
	}
}

func (r *runner) result() (result.Result, error) { return r.conclude(r.runs) }

// conclude returns the result of runs.
func (r *runner) conclude(runs []result.Run) (result.Result, error) {
	planned := 0
	if len(runs) < r.total {
		planned = r.total
	}
	return r.Spec.Conclude(result.Result{
		Scenario: r.Spec.Name, Backend: "lab", Seconds: time.Since(r.begun).Seconds(), Host: Host(r.Commit), Runs: runs, Planned: planned,
	})
}

// part returns the result of the runs of an experiment that ended early, without any none.
func (r *runner) part() (result.Result, error) {
	if len(r.runs) == 0 {
		return result.Result{}, nil
	}
	return r.result()
}
