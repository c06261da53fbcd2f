package simrun

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/experiment/worlds"
)

// WorldsOptions configure Worlds.
type WorldsOptions struct {
	// Draw chooses the worlds: Count of them from Draw.Number on.
	Draw  worlds.Options
	Count int
	// Traffic is the only traffic that is simulated, in the worlds that have it; empty for all.
	Traffic string
	// Base is the scenario of Draw.Kind.Base.
	Base *scenario.Spec
	// Version is the program's version, part of a row's fingerprint.
	Version string
	// Shard simulates only every world whose number in the list, counted from 0, is Shard modulo
	// Shards. Shards 0: the list is not split.
	Shard, Shards int
	// File is a CSV file to which a row is added for each world, and whose worlds are not simulated
	// again; empty for none.
	File string
	// Jobs is the number of worlds simulated in parallel. Default: the number of processors. It
	// does not change results.
	Jobs int
	// Progress is called after worlds, by one goroutine at a time.
	Progress func(done, total int, elapsed, eta time.Duration)

	// keep takes the runs of each world. done has those of worlds, by number, that are not simulated,
	// and alone those over each path alone, if only the others are simulated.
	keep        func(number int, runs []result.Run)
	done, alone map[int][]result.Run
	// otherNumbers: all random numbers are others.
	otherNumbers bool
}

// Judged is a world and its measures.
type Judged struct {
	worlds.Options
	Values map[string]float64
}

// columnWorld describes the world, for readers.
const columnWorld = "world"

// worldColumns returns the columns of a file of worlds.
func worldColumns(kind worlds.Kind, shards int) []string {
	var names []string
	if shards > 0 {
		names = append(names, columnShard)
	}
	names = append(names, "kind", columnSeed, "number", "packets", "runs", columnWorld)
	for _, m := range worlds.Measures(kind) {
		names = append(names, m.Name)
	}
	return append(names, columnFingerprint)
}

// worldTask is a world to be simulated.
type worldTask struct {
	world       worlds.World
	fingerprint string
}

// tasks draws the worlds of the shard that are not in the file, which may be nil.
func (o *WorldsOptions) tasks(file *table) ([]worldTask, error) {
	var tasks []worldTask
	for i := range o.Count {
		if i%max(o.Shards, 1) != o.Shard {
			continue
		}
		draw := o.Draw
		draw.Number += i
		w := worlds.Draw(draw)
		mark, err := o.worldFingerprint(w)
		if err != nil {
			return nil, err
		}
		if file == nil || !file.rows[mark] {
			tasks = append(tasks, worldTask{w, mark})
		}
	}
	return tasks, nil
}

// Worlds simulates drawn worlds and judges them. Worlds that are in the file are not simulated
// again, and not in what Worlds returns: ReadWorlds reads the file.
func Worlds(ctx context.Context, o WorldsOptions) ([]Judged, error) {
	if o.Base == nil || o.Base.Experiment == nil {
		return nil, errors.New("simulate worlds: no base given")
	}
	if o.Shards < 0 || o.Shard < 0 || o.Shard >= max(o.Shards, 1) {
		return nil, fmt.Errorf("simulate worlds: shard must be from 0 to %d, got %d", max(o.Shards, 1)-1, o.Shard)
	}
	var file *table
	if o.File != "" {
		var err error
		if file, err = openTable(o.File, worldColumns(o.Draw.Kind, o.Shards)); err != nil {
			return nil, err
		}
	}
	tasks, err := o.tasks(file)
	if err != nil {
		return nil, err
	}
	judged := make([]Judged, len(tasks))
	begun := time.Now()
	var mu sync.Mutex
	done, next := 0, 0
	finished := make([]bool, len(tasks))
	err = parallel(ctx, o.Jobs, len(tasks), func(ctx context.Context, i int) error {
		runs, err := o.simulate(ctx, tasks[i].world)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if o.keep != nil {
			o.keep(tasks[i].world.Number, runs)
		}
		judged[i] = Judged{tasks[i].world.Options, tasks[i].world.Judge(runs)}
		finished[i] = true
		// Worlds that finish before earlier ones wait, so that their order does not depend on
		// timing.
		for ; file != nil && next < len(tasks) && finished[next]; next++ {
			if err := file.add(o.row(tasks[next].world, judged[next].Values, tasks[next].fingerprint)); err != nil {
				return err
			}
		}
		done++
		if o.Progress != nil {
			elapsed := time.Since(begun)
			o.Progress(done, len(tasks), elapsed, remaining(elapsed, done, len(tasks)))
		}
		return nil
	})
	if file != nil {
		err = errors.Join(err, file.close())
	}
	if err != nil {
		return nil, err
	}
	return judged, nil
}

// worldFingerprint returns a digest of a world, its only traffic and the version of the program.
func (o *WorldsOptions) worldFingerprint(w worlds.World) (string, error) {
	data, err := json.Marshal(struct {
		Version string
		World   worlds.World
		Traffic string `json:",omitempty"`
	}{o.Version, w, o.Traffic})
	if err != nil {
		return "", fmt.Errorf("simulate world %q: %w", w.Name(), err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8]), nil
}

// simulate simulates the cells of a world, or returns those that are known.
func (o *WorldsOptions) simulate(ctx context.Context, w worlds.World) ([]result.Run, error) {
	if runs, done := o.done[w.Number]; done {
		return runs, nil
	}
	spec, alone := w.Spec(o.Base), o.alone[w.Number]
	var selection scenario.Selection
	if o.Traffic != "" {
		if spec.Experiment.Traffic[o.Traffic] == nil {
			return nil, nil
		}
		selection.Traffic = []string{o.Traffic}
	}
	if alone != nil {
		selection.Transports = worlds.Judged(w.Kind)
	}
	seed := w.SimulatorSeed()
	if o.otherNumbers {
		seed += otherSeed
	}
	spec, err := spec.Select(selection)
	if err != nil {
		return nil, err
	}
	needed := func(k result.CellKey) bool { return w.Needs(k.Traffic, k.Transport) }
	r, err := Run(ctx, Options{Spec: spec, Cells: needed, Seed: seed, Jobs: 1})
	if err != nil {
		return nil, err
	}
	if alone != nil {
		return append(r.Runs, alone...), nil
	}
	for _, best := range w.Again(r.Runs) {
		cell, err := spec.Select(scenario.Selection{Traffic: []string{best.Traffic}, Transports: []string{best.Transport}})
		if err != nil {
			return nil, err
		}
		repeated, err := Run(ctx, Options{Spec: cell, Seed: w.SimulatorSeed() + otherSeed, Jobs: 1})
		if err != nil {
			return nil, err
		}
		for _, x := range repeated.Runs {
			r.Runs = append(r.Runs, worlds.Repeated(x))
		}
	}
	return r.Runs, nil
}

// otherSeed is added to the seed of a world for other random numbers: numbers of worlds are below.
const otherSeed = 1 << 31

// row returns the row of a world.
func (o WorldsOptions) row(w worlds.World, values map[string]float64, fingerprint string) []string {
	var row []string
	if o.Shards > 0 {
		row = append(row, fmt.Sprintf("%d/%d", o.Shard, o.Shards))
	}
	row = append(row, string(w.Kind), strconv.FormatUint(w.Seed, 10), strconv.Itoa(w.Number), strconv.Itoa(w.Packets), strconv.Itoa(w.Runs), w.Text())
	for _, m := range worlds.Measures(w.Kind) {
		text := ""
		if v, ok := values[m.Name]; ok {
			text = strconv.FormatFloat(v, 'g', -1, 64)
		}
		row = append(row, text)
	}
	return append(row, fingerprint)
}

// ErrNotWorlds means that a file was not written by Worlds.
var ErrNotWorlds = errors.New("holds something else than drawn worlds")

// ReadWorlds reads a file of Worlds, of a shard or merged.
func ReadWorlds(name string) ([]Judged, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read worlds %q: %w: %w", name, ErrNotWorlds, err)
	}
	if len(all) < 2 {
		return nil, fmt.Errorf("read worlds %q: %w: there are no rows", name, ErrNotWorlds)
	}
	var list []Judged
	for _, row := range all[1:] {
		fields := map[string]string{}
		for i, column := range all[0] {
			fields[column] = row[i]
		}
		j, err := judgedOf(fields)
		if err != nil {
			return nil, fmt.Errorf("read worlds %q: %w: %w", name, ErrNotWorlds, err)
		}
		if len(list) > 0 && list[0].Kind != j.Kind {
			return nil, fmt.Errorf("read worlds %q: %w: the worlds are of several kinds", name, ErrNotWorlds)
		}
		list = append(list, j)
	}
	return list, nil
}

// judgedOf reads a row by its columns.
func judgedOf(fields map[string]string) (Judged, error) {
	j := Judged{Options: worlds.Options{Kind: worlds.Kind(fields["kind"])}, Values: map[string]float64{}}
	if !slices.Contains(worlds.Kinds(), j.Kind) {
		return j, fmt.Errorf("there is no kind %q", fields["kind"])
	}
	var errs [4]error
	j.Seed, errs[0] = strconv.ParseUint(fields[columnSeed], 10, 64)
	j.Number, errs[1] = strconv.Atoi(fields["number"])
	j.Packets, errs[2] = strconv.Atoi(fields["packets"])
	j.Runs, errs[3] = strconv.Atoi(fields["runs"])
	if err := errors.Join(errs[:]...); err != nil {
		return j, err
	}
	for _, m := range worlds.Measures(j.Kind) {
		if text := fields[m.Name]; text != "" {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return j, err
			}
			j.Values[m.Name] = v
		}
	}
	return j, nil
}

// Worst returns up to n worlds in which a measure is farthest beyond its goal, relative to it, the
// worst first, with that measure.
func Worst(judged []Judged, n int) []WorstWorld {
	var list []WorstWorld
	for _, j := range judged {
		worst := WorstWorld{Judged: j, Beyond: math.Inf(-1)}
		for _, m := range worlds.Measures(j.Kind) {
			if v, ok := j.Values[m.Name]; ok && m.Beyond(v) > worst.Beyond {
				worst.Measure, worst.Beyond = m, m.Beyond(v)
			}
		}
		if !math.IsInf(worst.Beyond, -1) {
			list = append(list, worst)
		}
	}
	slices.SortStableFunc(list, func(a, b WorstWorld) int {
		return cmp.Or(cmp.Compare(b.Beyond, a.Beyond), cmp.Compare(a.Number, b.Number))
	})
	return list[:min(n, len(list))]
}

// WorstWorld is a world with the measure in which it is worst.
type WorstWorld struct {
	Judged
	Measure worlds.Measure
	// Beyond is by how much the measure misses its goal (worlds.Measure.Beyond).
	Beyond float64
}

// Values returns the values of worlds, as worlds.Distribute takes them.
func Values(judged []Judged) []map[string]float64 {
	list := make([]map[string]float64, len(judged))
	for i, j := range judged {
		list[i] = j.Values
	}
	return list
}

// Why writes the course of a world in the cell that a measure judges: what each transport
// delivered, what each path carried in each second beside what it can carry, and the decisions on
// paths.
func Why(ctx context.Context, w worlds.World, base *scenario.Spec, m worlds.Measure) (string, error) {
	spec, err := w.Spec(base).Select(scenario.Selection{Traffic: []string{m.Traffic}})
	if err != nil {
		return "", err
	}
	var trace *result.Trace
	r, err := Run(ctx, Options{Spec: spec, Seed: w.SimulatorSeed(), Jobs: 1, Progress: func(e Event) {
		if e.Run.Transport == m.Transport {
			trace = e.Trace
		}
	}})
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nDelivered of %s, in Mbit/s:\n", strings.Join(w.Lines(), "\n"), m.Traffic)
	for _, run := range r.Runs {
		fmt.Fprintf(&b, "%-8s %9.3f\n", run.Transport, run.Metrics[result.Goodput]/1e6)
	}
	if trace == nil {
		return b.String(), nil
	}
	if len(trace.Subflows) > 0 {
		writeCourse(&b, w, m, trace)
	}
	b.WriteString("\n")
	for _, d := range trace.Decisions {
		fmt.Fprintf(&b, "%6.2f  %s\n", d.At.Seconds(), d.Text)
	}
	return b.String(), nil
}

// writeCourse writes what each path carried in each second, what it can carry, and what the sender
// knew of it then.
func writeCourse(b *strings.Builder, w worlds.World, m worlds.Measure, trace *result.Trace) {
	fmt.Fprintf(b, "\nCarried by %s, what the path can carry, in Mbit/s, and what the sender knew of it: rate, delay beyond the first path's, jitter in ms,\n"+
		"loss in percent; - while it rests:\n%6s", m.Transport, "s")
	for _, f := range trace.Subflows {
		fmt.Fprintf(b, "  %-46s", f.Name)
	}
	const each = int(time.Second / interval)
	for at := 0; at < len(trace.Subflows[0].Bytes); at += each {
		fmt.Fprintf(b, "\n%6d", at/each)
		for i, f := range trace.Subflows {
			sum := int64(0)
			for _, n := range f.Bytes[min(at, len(f.Bytes)):min(at+each, len(f.Bytes))] {
				sum += n
			}
			can := w.Carries(i, time.Duration(at/each)*time.Second+time.Second/2)
			fmt.Fprintf(b, "  %7.2f /%7.2f%s", float64(8*sum)/1e6, float64(can)/1e6, knownOf(trace.Subflows, i, at+each/2))
		}
	}
	b.WriteString("\n")
}

// knownOf returns what the sender knew of a path at the end of an interval.
func knownOf(paths []result.Subflow, i, at int) string {
	if at >= len(paths[i].Estimates) {
		return ""
	}
	e := paths[i].Estimates[at]
	rests := ""
	switch {
	case !e.Usable:
		rests = "dead"
	case e.Resting:
		rests = "-"
	}
	const ms = float64(time.Millisecond)
	return fmt.Sprintf(" %7.2f %+6.0f %5.1f %4.1f %-4s", float64(e.Rate)/1e6, float64(e.Delay-paths[0].Estimates[at].Delay)/ms, float64(e.Jitter)/ms, 100*e.Loss, rests)
}
