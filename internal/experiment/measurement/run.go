package measurement

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/analysis/measure"
)

// Measurer makes trials. Errors that wrap ErrPermanent are not tried again.
type Measurer interface {
	// Trial makes a trial in a mode.
	Trial(ctx context.Context, mode string) (measure.Trial, Conditions, error)
	// Paired makes pairs of trials of the plan's two modes in one connection.
	Paired(ctx context.Context, orders [][2]int) ([][2]measure.Trial, Conditions, error)
}

// ErrPermanent is an error that another trial would have as well.
var ErrPermanent = errors.New("cannot be repeated")

// RunOptions are the parameters of Run.
type RunOptions struct {
	Store    *Store
	Measurer Measurer
	// MaxBytes and MaxTime end a run before the trial that would exceed them; 0 means no limit.
	MaxBytes int64
	MaxTime  time.Duration
	// Progress is called before and after each trial, if set.
	Progress func(Progress)
	// Wait waits before another attempt; nil means a timer.
	Wait func(context.Context, time.Duration) error
	// Clock is the wall clock, which may be set; nil means that of this host.
	Clock func() time.Time
}

// Progress describes a run.
type Progress struct {
	// Done of All trials are reported as made, and Mode is the next one, or the one that Row has
	// the result of.
	Done, All int
	Block     int
	Mode      string
	// Left is the estimated time of the trials that are left, 0 if it is not known.
	Left time.Duration
	// Row is the trial that was made, if one was; its Failed says why it failed.
	Row *Row
	// Note is what happened besides: an address changed, a clock was set.
	Note string
}

// Stop is why a run ended.
type Stop string

// The reasons.
const (
	AllDone   Stop = "all trials are made"
	Decided   Stop = "fewer trials decide"
	ByteLimit Stop = "the limit of bytes is reached"
	TimeLimit Stop = "the limit of time is reached"
)

const (
	// attempts is how often a trial is tried in a row, with pauses from firstPause to longestPause.
	attempts                 = 5
	firstPause, longestPause = time.Second, 30 * time.Second
	// repeats is how often a block is made again because the client's network changed within it.
	repeats = 5
)

// run is the state of Run.
type run struct {
	RunOptions
	plan    Plan
	rows    []Row
	started time.Time
	bytes   int64
	// spent is the time of the trials of this run, made their number.
	spent time.Duration
	made  int
	// again is how often this run has made each block again.
	again map[int]int
}

// Run makes the trials that the store does not have, and stores each one. It returns why it ended.
// Errors name the trial. After an error, or the end of the process at any time, another Run
// continues; two at a time are refused.
func Run(ctx context.Context, o RunOptions) (stop Stop, err error) {
	release, err := o.Store.claim()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, release()) }()
	r := &run{RunOptions: o, plan: o.Store.Plan(), started: time.Now(), again: map[int]int{}}
	if r.Wait == nil {
		r.Wait = pause
	}
	if r.Clock == nil {
		r.Clock = time.Now
	}
	if r.Progress == nil {
		r.Progress = func(Progress) {}
	}
	if r.rows, err = o.Store.Rows(ctx); err != nil {
		return "", err
	}
	for block := 0; block < r.plan.Trials; {
		if !r.plan.Whole && r.plan.decided(r.rows) {
			return Decided, nil
		}
		next, stop, err := r.next(ctx, block)
		if err != nil || stop != "" {
			return stop, err
		}
		block = next
	}
	return AllDone, nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// has reports whether there is a result.
func (r *run) has(block int, mode string) bool {
	return slices.ContainsFunc(r.rows, func(row Row) bool { return row.Block == block && row.Mode == mode && row.Failed == "" })
}

// next makes what is missing of a block, and returns the block to continue with.
func (r *run) next(ctx context.Context, block int) (int, Stop, error) {
	if r.plan.Paired {
		return r.pairs(ctx, block)
	}
	for position, i := range r.plan.Order(block) {
		mode := r.plan.Modes[i]
		if r.has(block, mode) {
			continue
		}
		if stop := r.limit(1); stop != "" {
			return block, stop, nil
		}
		r.report(Progress{Block: block, Mode: mode})
		row := Row{Block: block, Position: position, Mode: mode}
		err := r.try(ctx, &row, func() (rows []Row, err error) {
			row.Trial, row.Conditions, err = r.Measurer.Trial(ctx, mode)
			return []Row{row}, err
		})
		if err != nil {
			return block, "", err
		}
		changed, err := r.checkAddress(ctx, block)
		if err != nil {
			return block, "", err
		}
		if changed {
			return block, "", nil // the block again
		}
	}
	return block + 1, "", nil
}

// pairs makes the pairs from a block on that one connection has.
func (r *run) pairs(ctx context.Context, block int) (int, Stop, error) {
	n := min(r.plan.Pairs(), r.plan.Trials-block)
	for i := range n {
		if r.has(block+i, r.plan.Modes[0]) {
			n = i
			break
		}
	}
	if n == 0 {
		return block + 1, "", nil
	}
	if stop := r.limit(2 * n); stop != "" {
		return block, stop, nil
	}
	orders := make([][2]int, n)
	for i := range orders {
		orders[i] = [2]int(r.plan.Order(block + i))
	}
	r.report(Progress{Block: block, Mode: r.plan.Modes[0] + " and " + r.plan.Modes[1]})
	row := Row{Block: block, Mode: r.plan.Modes[0]}
	err := r.try(ctx, &row, func() (rows []Row, err error) {
		trials, conditions, err := r.Measurer.Paired(ctx, orders)
		if err != nil {
			return nil, err
		}
		for i, pair := range trials {
			for position, mode := range orders[i] {
				rows = append(rows, Row{Block: block + i, Position: position, Mode: r.plan.Modes[mode], Started: row.Started, Trial: pair[mode], Conditions: conditions})
			}
		}
		return rows, nil
	})
	return block + n, "", err
}

// try makes trials until one attempt succeeds, and stores each attempt.
func (r *run) try(ctx context.Context, row *Row, attempt func() ([]Row, error)) error {
	wait := firstPause
	for i := 1; ; i++ {
		begun := time.Now()
		row.Started = r.Clock().Round(0).UTC() // of the wall clock alone
		rows, err := attempt()
		took := time.Since(begun)
		if ctx.Err() != nil {
			return ctx.Err() // the running trial is lost, nothing else
		}
		if err != nil {
			failed := *row
			failed.Trial, failed.Failed = measure.Trial{}, err.Error()
			rows = []Row{failed}
		}
		step := r.Clock().Round(0).Sub(row.Started) - took
		if step.Abs() < clockStep {
			step = 0
		}
		for j := range rows {
			rows[j].ClockStep = step
		}
		if stored := r.Store.Add(ctx, rows...); stored != nil {
			return fmt.Errorf("store the trial: %w", stored)
		}
		if step != 0 {
			r.report(Progress{Block: row.Block, Mode: row.Mode, Note: fmt.Sprintf("the clock was set by %s; times are of the monotonic clock and not affected", step.Round(time.Second))})
		}
		if err == nil {
			r.made += len(rows)
			r.spent += took
		}
		// One after the other, so that each of several trials of a connection has its own number.
		for j := range rows {
			r.bytes += rows[j].Bytes
			r.rows = append(r.rows, rows[j])
			r.report(Progress{Block: rows[j].Block, Mode: rows[j].Mode, Row: &rows[j]})
		}
		if err == nil {
			return nil
		}
		if errors.Is(err, ErrPermanent) || i == attempts {
			return fmt.Errorf("measure %q: %w", row.Mode, err)
		}
		if err := r.Wait(ctx, wait); err != nil {
			return err
		}
		wait = min(2*wait, longestPause)
	}
}

// clockStep is the difference of wall clock and monotonic clock over a trial from which on the
// clock was set rather than slewed.
const clockStep = 2 * time.Second

// checkAddress drops a block in which the client's network changed, so that the block is made
// again.
func (r *run) checkAddress(ctx context.Context, block int) (changed bool, err error) {
	var of []*Row
	for i := range r.rows {
		if r.rows[i].Block == block && r.rows[i].Failed == "" {
			of = append(of, &r.rows[i])
		}
	}
	last := of[len(of)-1]
	if last.Client == of[0].Client {
		return false, nil
	}
	why := fmt.Sprintf("the client's address changed from %s to %s within the block", of[0].Client, last.Client)
	if err := r.Store.Drop(ctx, block, why); err != nil {
		return false, fmt.Errorf("store the trial: %w", err)
	}
	for _, row := range of {
		row.Failed = why
	}
	if r.again[block]++; r.again[block] > repeats {
		return false, fmt.Errorf("measure block %d: %s, for the %dth time: measure on one network, then continue", block+1, why, r.again[block])
	}
	r.report(Progress{Block: block, Note: why + "; the block is made again"})
	return true, nil
}

// report calls Progress with what is done and left.
func (r *run) report(p Progress) {
	p.All = r.plan.Trials * len(r.plan.Modes)
	for _, row := range r.rows {
		if row.Failed == "" {
			p.Done++
		}
	}
	if r.made > 0 {
		p.Left = r.spent / time.Duration(r.made) * time.Duration(p.All-p.Done)
	}
	r.Progress(p)
}

// limit returns the limit that so many more trials would exceed, if they are as those so far.
func (r *run) limit(more int) Stop {
	each, took := int64(0), time.Duration(0)
	if r.made > 0 {
		each, took = r.bytes/int64(r.made), r.spent/time.Duration(r.made)
	}
	switch {
	case r.MaxBytes > 0 && (r.bytes+int64(more)*each > r.MaxBytes || r.bytes >= r.MaxBytes):
		return ByteLimit
	case r.MaxTime > 0 && time.Since(r.started)+time.Duration(more)*took > r.MaxTime:
		return TimeLimit
	}
	return ""
}
