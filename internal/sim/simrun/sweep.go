package simrun

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/sim"
)

// maxRows limits a grid.
const maxRows = 10_000_000

// Grid is the cross product of the values of all axes, for every seed.
type Grid struct {
	// Spec must have passed Check.
	Spec *scenario.Spec
	// Case is the case that the axes change. Default: the first of the scenario. Traffic and
	// Transport, if not empty, select one traffic and one transport.
	Case, Traffic, Transport string
	Axes                     []Axis
	// Seeds is the number of seeds, Seed the first one.
	Seeds int
	Seed  uint64
	// Version is the version of the program. Rows of another version are simulated again.
	Version string
	// Summary writes one row for all seeds, with mean and standard deviation of each metric.
	Summary bool
	// Shards splits the rows of the grid among this number of sweeps: sweep Shard (from 0) has
	// the rows Shard, Shard+Shards and so on. 0 means that the sweep is not split.
	Shard, Shards int
}

// Cells returns the selection of the grid's case, traffic and transport.
func (g Grid) Cells() scenario.Selection {
	l := scenario.Selection{Cases: []string{g.Case}}
	if g.Case == "" {
		l.Cases[0] = g.Spec.Experiment.Cases[0].Name
	}
	if g.Traffic != "" {
		l.Traffic = []string{g.Traffic}
	}
	if g.Transport != "" {
		l.Transports = []string{g.Transport}
	}
	return l
}

// sweepMetrics are the columns of a sweep.
var sweepMetrics = result.Select(func(m result.Metric) bool { return m.Sweep })

// The columns of every row besides the axes and the metrics.
const (
	columnShard       = "shard" // only in sweeps with shards
	columnSeed        = "seed"
	columnError       = "error"
	columnFingerprint = "fingerprint"
)

// columns returns the names of the columns of the sweep's file.
func (g Grid) columns() []string {
	if g.Shards > 0 {
		return append([]string{columnShard}, g.header()...)
	}
	return g.header()
}

// header returns the names of the columns of a sweep without shards.
func (g Grid) header() []string {
	names := []string{"scenario", "case", "traffic", "transport"}
	for _, a := range g.Axes {
		names = append(names, a.Name)
	}
	names = append(names, columnSeed)
	if g.Summary {
		names[len(names)-1] = "seeds"
	}
	for _, m := range sweepMetrics {
		if g.Summary {
			names = append(names, m+"_mean", m+"_sd")
		} else {
			names = append(names, m)
		}
	}
	return append(names, columnError, columnFingerprint)
}

// task is one row to simulate.
type task struct {
	plan  *plan
	key   result.CellKey
	point []string
	seeds []uint64
	// fingerprint identifies the simulation.
	fingerprint string
}

// tasks returns the rows of the grid in order: by point, where the last axis varies fastest, then
// by cell, then by seed.
func (g Grid) tasks() ([]task, error) {
	whole, err := g.Spec.Select(g.Cells())
	if err != nil {
		return nil, err
	}
	e := whole.Experiment
	if len(e.Cases) != 1 {
		return nil, fmt.Errorf("want one case, %q chooses %d", g.Case, len(e.Cases))
	}
	c := e.Cases[0]
	if g.Shards < 0 || g.Shard < 0 || g.Shard >= max(g.Shards, 1) {
		return nil, fmt.Errorf("shard must be from 0 to %d, got %d", max(g.Shards, 1)-1, g.Shard)
	}
	if g.Seeds < 1 {
		return nil, fmt.Errorf("seeds must be > 0, got %d", g.Seeds)
	}
	rows := g.Seeds * len(e.Traffic) * len(e.Transports)
	for i, a := range g.Axes {
		if slices.ContainsFunc(g.Axes[:i], func(b Axis) bool { return a.Name == b.Name }) {
			return nil, fmt.Errorf("parameter %q is given twice", a.Name)
		}
		if rows *= len(a.Values); rows > maxRows {
			return nil, fmt.Errorf("the grid has more than %d runs", maxRows)
		}
	}
	var list []task
	row := 0
	for point := range points(g.Axes) {
		spec, err := at(whole, c, g.Axes, point)
		if err != nil {
			return nil, err
		}
		p := newPlan(spec, false)
		for _, k := range spec.Experiment.Cells() {
			t := task{plan: p, key: k, point: slices.Clone(point)}
			for i := range g.Seeds {
				if t.seeds = append(t.seeds, g.Seed+uint64(i)); g.Summary && i+1 < g.Seeds {
					continue
				}
				if mine := row%max(g.Shards, 1) == g.Shard; mine {
					if t.fingerprint, err = g.fingerprint(t); err != nil {
						return nil, err
					}
					list = append(list, t)
				}
				row++
				t.seeds = nil
			}
		}
	}
	return list, nil
}

// points iterates over all combinations of values. The last axis varies fastest.
func points(axes []Axis) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		point := make([]string, len(axes))
		var walk func(i int) bool
		walk = func(i int) bool {
			if i == len(axes) {
				return yield(point)
			}
			for _, v := range axes[i].Values {
				if point[i] = v; !walk(i + 1) {
					return false
				}
			}
			return true
		}
		walk(0)
	}
}

// fingerprint returns a digest of the simulation's configuration and the version of the program.
func (g Grid) fingerprint(t task) (string, error) {
	config, err := t.plan.config(t.key, 0)
	if err != nil {
		return "", fmt.Errorf("%s: %w", t.key, err)
	}
	data, err := json.Marshal(struct {
		Version  string
		Scenario string
		Columns  []string
		Seeds    []uint64
		Rates    int64
		Config   sim.Config
	}{g.Version, g.Spec.Name, g.header(), t.seeds, int64(t.plan.spec.SumRates(t.key)), config})
	if err != nil {
		return "", fmt.Errorf("%s: %w", t.key, err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8]), nil
}

// run simulates a row and returns its columns.
func (g Grid) run(ctx context.Context, t task) ([]string, error) {
	values := map[string][]float64{}
	problem := ""
	for trial, seed := range t.seeds {
		run, _, err := t.plan.simulate(ctx, t.key, trial, seed, nil)
		if err != nil {
			return nil, err
		}
		if err := run.Err(); err != nil && problem == "" {
			problem = err.Error()
		}
		for name, v := range run.Metrics {
			values[name] = append(values[name], v)
		}
	}
	row := append([]string{g.Spec.Name, t.key.Case, t.key.Traffic, t.key.Transport}, t.point...)
	if g.Summary {
		row = append(row, strconv.Itoa(len(t.seeds)))
	} else {
		row = append(row, strconv.FormatUint(t.seeds[0], 10))
	}
	for _, name := range sweepMetrics {
		mean, sd := "", ""
		if list := values[name]; len(list) > 0 {
			m, d, err := stat.MeanSD(list)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", t.key, name, err)
			}
			mean, sd = strconv.FormatFloat(m, 'g', -1, 64), strconv.FormatFloat(d, 'g', -1, 64)
		}
		row = append(row, mean)
		if g.Summary {
			row = append(row, sd)
		}
	}
	if g.Shards > 0 {
		row = append([]string{fmt.Sprintf("%d/%d", g.Shard, g.Shards)}, row...)
	}
	return append(row, problem, t.fingerprint), nil
}

// SweepOptions configure Sweep.
type SweepOptions struct {
	Grid
	// File is the CSV file to which rows are appended.
	File string
	// Jobs is the number of runs simulated in parallel. Default: the number of processors. It
	// does not change results.
	Jobs int
	// Progress is called for rows as they are written, by one goroutine at a time.
	Progress func(done, total int, elapsed, eta time.Duration)
}

// SweepResult is the result of a sweep.
type SweepResult struct {
	// Rows is the number of rows of the grid, Kept the number of those already in the file,
	// Failed the number of new rows with a failed delivery.
	Rows, Kept, Failed int
	// Repaired: the file ended with an incomplete row, which was simulated again.
	Repaired bool
}

// Sweep runs the rows of the grid that are not in the file yet, and appends them in the order of
// the grid. It resumes an interrupted sweep: an incomplete last row is simulated again. A file with
// other columns is refused.
func Sweep(ctx context.Context, o SweepOptions) (SweepResult, error) {
	if o.Jobs < 0 {
		return SweepResult{}, fmt.Errorf("jobs must be >= 0, got %d", o.Jobs)
	}
	tasks, err := o.tasks()
	if err != nil {
		return SweepResult{}, err
	}
	file, err := openTable(o.File, o.columns())
	if err != nil {
		return SweepResult{}, err
	}
	result := SweepResult{Rows: len(tasks), Repaired: file.repaired}
	left := slices.DeleteFunc(tasks, func(t task) bool { return file.rows[t.fingerprint] })
	result.Kept = result.Rows - len(left)

	begun := time.Now()
	var mu sync.Mutex
	// Rows that finish before earlier rows wait here, so that the order in the file does not
	// depend on timing.
	waiting := map[int][]string{}
	next := 0
	err = parallel(ctx, o.Jobs, len(left), func(ctx context.Context, i int) error {
		row, err := o.run(ctx, left[i])
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		waiting[i] = row
		for ; waiting[next] != nil; next++ {
			if err := file.add(waiting[next]); err != nil {
				return err
			}
			if waiting[next][len(row)-2] != "" {
				result.Failed++
			}
			delete(waiting, next)
		}
		if o.Progress != nil {
			elapsed, done := time.Since(begun), next+len(waiting)
			o.Progress(result.Kept+done, result.Rows, elapsed, remaining(elapsed, done, len(left)))
		}
		return nil
	})
	return result, errors.Join(err, file.close())
}
