package labrun

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/tabane/tabane/internal/experiment/cell"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// job is one run.
type job struct {
	result.CellKey
	trial int
	cell  *cell.Cell
	// expected is the duration of the run if the transport reaches its limit.
	expected time.Duration
}

// overhead is the duration of a run beyond its delivery: starting the client, connecting, slow
// start.
const overhead = 500 * time.Millisecond

// recovery is the minimum time to restore a lab after a run with events.
const recovery = 2 * time.Second

// schedule assigns jobs to labs and orders them. A case runs in one lab as a whole, because its
// link settings apply to the lab, or in several where there are more labs than cases, each run in
// the one that is free first. Within a case the transports alternate, and each trial starts with
// another one, so that drift of the machine affects all transports equally. trials is as in
// RunOptions.
func schedule(spec *scenario.Spec, labs, trials int, quick bool) ([][]job, error) {
	e := spec.Experiment
	lists := make([][]job, labs)
	cells, clock := cell.New(spec, quick), newWebClock(spec)
	busy := make([]time.Duration, labs)
	if !quick {
		trials = cmp.Or(trials, e.LabTrials)
	}
	for i, c := range e.Cases {
		var own []int
		for lab := i % labs; lab < labs; lab += len(e.Cases) {
			own = append(own, lab)
		}
		of := map[result.CellKey]*cell.Cell{}
		for trial := range e.TrialsOf(c, trials, quick) {
			for _, t := range e.TrafficNames() {
				for _, tr := range rotate(e.TransportNames(), trial) {
					k := result.CellKey{Case: c.Name, Traffic: t, Transport: tr}
					if of[k] == nil {
						var err error
						if of[k], err = cells.Cell(k); err != nil {
							return nil, err
						}
					}
					expected := expect(of[k])
					if e.Kind == scenario.KindWeb {
						expected = clock.expect(of[k], trial, quick)
					}
					if len(c.Events) > 0 {
						expected += recovery
					}
					if of[k].Traffic.Beside > 0 {
						expected += scenario.BesideLead
					}
					expected += warmUpOf(spec, k)
					if d := e.Settings(k).Recall; d > 0 {
						expected += d + overhead
					}
					lab := slices.MinFunc(own, func(a, b int) int { return cmp.Compare(busy[a], busy[b]) })
					busy[lab] += expected
					lists[lab] = append(lists[lab], job{k, trial, of[k], expected})
				}
			}
		}
	}
	return lists, nil
}

func rotate(s []string, n int) []string {
	n %= max(1, len(s))
	return slices.Concat(s[n:], s[:n])
}

// expect returns the minimum duration of a run: until the limits allow its last byte to arrive, or
// its time limit ends it.
func expect(c *cell.Cell) time.Duration {
	d := c.Limit
	if full, known := c.TransferTime(); known && !c.Traffic.Live && (c.Traffic.Rate > 0 || d == 0 || full < d) {
		d = full
	}
	return d + overhead
}

// labNamesFor returns the names of the labs of a run.
func labNamesFor(base string, n int) []string {
	if n == 1 {
		return []string{base}
	}
	names := make([]string, n)
	for i := range names {
		names[i] = base + "." + strconv.Itoa(i+1)
	}
	return names
}

// remaining returns the remaining time of the lab with the longest, as the labs run in parallel.
// started has the start times of the labs' current runs, zero when none runs.
func remaining(left [][]job, started []time.Time, now time.Time) time.Duration {
	var longest time.Duration
	for i, jobs := range left {
		var sum time.Duration
		for _, j := range jobs {
			sum += j.expected
		}
		if len(jobs) > 0 && !started[i].IsZero() {
			sum -= min(now.Sub(started[i]), jobs[0].expected)
		}
		longest = max(longest, sum)
	}
	return longest
}
