package validate

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"gonum.org/v1/gonum/stat"

	"github.com/tabane/tabane/internal/sim"
)

// bench collects the runs of all comparisons, and runs them in parallel.
type bench struct {
	jobs []job
	// faults are those of the plans' input, found before the first run.
	faults []error
}

// job is a run that stores its figures for its plan.
type job func(context.Context) error

func (b *bench) run(ctx context.Context, workers int, progress func(done, all int)) error {
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	var mutex sync.Mutex
	done := 0
	for _, j := range b.jobs {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := j(ctx); err != nil {
				return err
			}
			mutex.Lock()
			defer mutex.Unlock()
			done++
			if progress != nil {
				progress(done, len(b.jobs))
			}
			return nil
		})
	}
	return group.Wait()
}

// measure returns a figure of a result.
type measure func(*sim.Result) float64

// repeat adds runs of a configuration with different seeds, and returns a sample for each measure.
func (b *bench) repeat(runs int, config func(seed uint64) sim.Config, measures ...measure) []*sample {
	samples := make([]*sample, len(measures))
	for i := range samples {
		samples[i] = &sample{values: make([]float64, runs)}
	}
	for run := range runs {
		b.jobs = append(b.jobs, func(ctx context.Context) error {
			s, err := sim.New(config(uint64(run + 1)))
			if err != nil {
				return err
			}
			result, err := s.Run(ctx)
			if err != nil {
				return err
			}
			for i, m := range measures {
				samples[i].values[run] = m(&result)
			}
			return nil
		})
	}
	return samples
}

// sample has a figure of several runs.
type sample struct{ values []float64 }

func (s *sample) n() int        { return len(s.values) }
func (s *sample) mean() float64 { return stat.Mean(s.values, nil) }

func (s *sample) deviation() float64 {
	if s.n() < 2 {
		return 0
	}
	return stat.StdDev(s.values, nil)
}

// standardError returns the standard error of the mean.
func (s *sample) standardError() float64 { return s.deviation() / math.Sqrt(float64(s.n())) }

// String formats the mean and the standard deviation.
func (s *sample) String() string {
	return fmt.Sprintf("%s ± %s", digits(s.mean()), digits(s.deviation()))
}

// digits formats a figure with three significant digits and no exponent.
func digits(x float64) string {
	if x == 0 {
		return "0"
	}
	places := 2 - int(math.Floor(math.Log10(math.Abs(x))))
	return fmt.Sprintf("%.*f", min(max(places, 0), 6), x)
}

// ratio divides two figures, run by run.
func ratio(over, under *sample) *sample {
	s := &sample{values: make([]float64, over.n())}
	for i := range s.values {
		s.values[i] = over.values[i] / under.values[i]
	}
	return s
}

// megabits returns a rate in Mbit/s.
func megabits(bytes float64, over time.Duration) float64 { return bytes * 8 / 1e6 / over.Seconds() }

// arrived measures the payload received on a path between two times, in Mbit/s. Series must have an
// interval of one second.
func arrived(connection, path int, from, to time.Duration) measure {
	return func(r *sim.Result) float64 {
		total := 0.0
		series := r.Connections[connection].Paths[path].Series
		for i := int(from / time.Second); i < int(to/time.Second) && i < len(series); i++ {
			total += float64(series[i])
		}
		return megabits(total, to-from)
	}
}

// sum adds figures.
func sum(measures ...measure) measure {
	return func(r *sim.Result) float64 {
		total := 0.0
		for _, m := range measures {
			total += m(r)
		}
		return total
	}
}

// mean returns the mean of figures.
func mean(measures ...measure) measure {
	all := sum(measures...)
	return func(r *sim.Result) float64 { return all(r) / float64(len(measures)) }
}
