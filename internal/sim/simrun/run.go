package simrun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tabane/tabane/internal/epe/selection"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/sim"
)

// Backend is the backend that results of the simulator name.
const Backend = result.BackendSim

// FirstSeed is the seed of the first trial unless another is given.
const FirstSeed = 1

// Settings of a simulation that is compared with a lab.
const (
	// ComparedTrials is the minimum number of trials of each cell.
	ComparedTrials = 12
	// LabLateness is how early or late the emulated links of a lab are on a quiet machine.
	LabLateness = 100 * time.Microsecond
)

// Options configure Run.
type Options struct {
	// Spec must have passed Check.
	Spec *scenario.Spec
	// Cells, if set, chooses the cells that are simulated. nil: all.
	Cells func(result.CellKey) bool
	// Trials is the number of trials of each cell. Default: that of the scenario, or one with
	// Quick. Trial i of every cell has the seed Seed + i, so that cells are compared with the
	// same random numbers.
	Trials int
	Seed   uint64
	// Quick limits each run to the quick time of its traffic.
	Quick bool
	// Jobs is the number of runs simulated in parallel. Default: the number of processors. It
	// does not change results.
	Jobs int
	// Lateness is the amplitude of a uniform jitter, without reordering, on each link that has
	// a delay and no jitter of its own, like that of the emulated links of a lab. It also makes
	// trials differ where nothing else is random.
	Lateness time.Duration
	// Capture receives the first trial as a pcap file of a capture at the client. It requires a
	// scenario of one cell (scenario.Spec.Select).
	Capture io.Writer
	// Host describes the host.
	Host result.Host
	// Progress is called after each run, by one goroutine at a time.
	Progress func(Event)
}

// Event is the end of a run.
type Event struct {
	// Done and Total count runs.
	Done, Total int
	// Elapsed is the time since the start, ETA the estimate of the time left.
	Elapsed, ETA time.Duration
	Run          result.Run
	// Trace has its time series, unless it failed.
	Trace *result.Trace
}

// Run simulates the scenario's experiment: every case with every traffic over every transport,
// Trials times. The same scenario and seed give the same runs. When ctx ends there is no result.
func Run(ctx context.Context, o Options) (result.Result, error) {
	switch {
	case o.Spec == nil:
		return result.Result{}, errors.New("simulate scenario: no scenario given")
	case o.Trials < 0:
		return result.Result{}, fmt.Errorf("simulate scenario %q: trials must be >= 0, got %d", o.Spec.Name, o.Trials)
	case o.Jobs < 0:
		return result.Result{}, fmt.Errorf("simulate scenario %q: jobs must be >= 0, got %d", o.Spec.Name, o.Jobs)
	}
	if err := Check(o.Spec).Err(); err != nil {
		return result.Result{}, fmt.Errorf("simulate scenario %q: %w", o.Spec.Name, err)
	}
	e := o.Spec.Experiment
	if cells := e.Cells(); o.Capture != nil && len(cells) != 1 {
		return result.Result{}, fmt.Errorf("simulate scenario %q: %w, and there are %d", o.Spec.Name, ErrCells, len(cells))
	}
	if cells := e.Cells(); o.Capture != nil && e.Traffic[cells[0].Traffic].Upload {
		return result.Result{}, fmt.Errorf("simulate scenario %q: a capture at the client is of a download, and traffic %q is an upload", o.Spec.Name, cells[0].Traffic)
	}
	if cells := e.Cells(); o.Capture != nil && e.Traffic[cells[0].Traffic].NewConnections {
		return result.Result{}, fmt.Errorf("simulate scenario %q: a capture is of one connection, and traffic %q has several", o.Spec.Name, cells[0].Traffic)
	}
	if o.Seed == 0 {
		o.Seed = FirstSeed
	}
	begun := time.Now()
	type job struct {
		result.CellKey
		trial int
	}
	var jobs []job
	for _, k := range e.Cells() {
		if o.Cells != nil && !o.Cells(k) {
			continue
		}
		for trial := range e.TrialsOf(e.Case(k.Case), o.Trials, o.Quick) {
			jobs = append(jobs, job{k, trial})
		}
	}
	runs := make([]result.Run, len(jobs))
	p := newPlan(o.Spec, o.Quick)
	p.lateness = o.Lateness
	var mu sync.Mutex
	done := 0
	err := parallel(ctx, o.Jobs, len(runs), func(ctx context.Context, i int) error {
		j := jobs[i]
		var capture io.Writer
		if j.trial == 0 {
			capture = o.Capture
		}
		run, trace, err := p.simulate(ctx, j.CellKey, j.trial, o.Seed+uint64(j.trial), capture)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		runs[i] = run
		done++
		if o.Progress != nil {
			elapsed := time.Since(begun)
			o.Progress(Event{Done: done, Total: len(runs), Elapsed: elapsed, ETA: remaining(elapsed, done, len(runs)), Run: run, Trace: trace})
		}
		return nil
	})
	if err != nil {
		return result.Result{}, fmt.Errorf("simulate scenario %q: %w", o.Spec.Name, err)
	}
	return o.Spec.Conclude(result.Result{
		Scenario: o.Spec.Name, Backend: Backend, Seconds: time.Since(begun).Seconds(), Host: o.Host, Runs: runs,
	})
}

// simulate runs one trial of one cell. An error ends the experiment; a failed delivery is a result.
func (p *plan) simulate(ctx context.Context, k result.CellKey, trial int, seed uint64, capture io.Writer) (result.Run, *result.Trace, error) {
	if p.spec.Experiment.Traffic[k.Traffic].NewConnections {
		return p.simulateObjects(ctx, k, trial, seed)
	}
	c, err := p.cells.Cell(k)
	if err != nil {
		return result.Run{}, nil, fmt.Errorf("%s: %w", k, err)
	}
	config, err := p.configOf(c, seed)
	if err != nil {
		return result.Run{}, nil, fmt.Errorf("%s: %w", k, err)
	}
	if err := p.recall(ctx, k, &config); err != nil {
		return result.Run{}, nil, fmt.Errorf("%s trial %d: %w", k, trial, err)
	}
	s, err := sim.New(config)
	if err != nil {
		return result.Run{}, nil, fmt.Errorf("%s: %w", k, err)
	}
	var record *recorder
	if capture != nil {
		if record, err = p.newRecorder(capture, k, config.Connections[0]); err != nil {
			return result.Run{}, nil, fmt.Errorf("%s: write capture: %w", k, err)
		}
		s.Tap(func(x sim.Packet) {
			if x.Connection == 0 {
				record.packet(x)
			}
		})
	}
	simulated, err := s.Run(ctx)
	if err != nil {
		return result.Run{}, nil, fmt.Errorf("%s trial %d: %w", k, trial, err)
	}
	if record != nil {
		if err := record.close(); err != nil {
			return result.Run{}, nil, err
		}
	}
	run, trace := p.measure(c, trial, config, simulated)
	return run, trace, nil
}

// recall simulates the download from which the connection of a cell recalls what was learned of
// paths.
func (p *plan) recall(ctx context.Context, k result.CellKey, c *sim.Config) error {
	d := p.spec.Experiment.Settings(k).Recall
	if d == 0 || !c.Connections[0].Overflow {
		return nil
	}
	before := *c
	connection := c.Connections[0]
	connection.Bytes, connection.Rate, connection.Object = 0, 0, 0
	before.Connections, before.Changes, before.Duration = []sim.Connection{connection}, nil, connection.Start+d
	s, err := sim.New(before)
	if err != nil {
		return err
	}
	r, err := s.Run(ctx)
	if err != nil {
		return err
	}
	past := r.Connections[0].Learned
	for i := range past {
		past[i].Left = recallFor
	}
	c.Connections[0].Past = past
	if p.spec.Experiment.Settings(k).Begin == scenario.BeginBest {
		c.Connections[0].Begin = selection.Nearest(past, 0)
	}
	return nil
}

// recallFor is how long what was learned counts: longer than a run lasts.
const recallFor = time.Hour

// parallel calls f for 0 to n-1 in at most jobs goroutines, started in this order. The first error
// cancels the rest.
func parallel(ctx context.Context, jobs, n int, f func(ctx context.Context, i int) error) error {
	if jobs == 0 {
		jobs = runtime.GOMAXPROCS(0)
	}
	g, ctx := errgroup.WithContext(ctx)
	next := make(chan int)
	g.Go(func() error {
		defer close(next)
		for i := range n {
			select {
			case next <- i:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	for range min(jobs, n) {
		g.Go(func() error {
			for i := range next {
				if err := f(ctx, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// remaining estimates the remaining time from the mean time per run.
func remaining(elapsed time.Duration, done, total int) time.Duration {
	if done == 0 {
		return 0
	}
	return time.Duration(float64(elapsed) / float64(done) * float64(total-done))
}
