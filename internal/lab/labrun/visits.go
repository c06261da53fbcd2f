package labrun

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab"
)

// loadWarmUp is how long visits of other users run before a trial.
const loadWarmUp = 2 * time.Second

// visits are the visits of other users during a trial, over each link of the case.
type visits struct {
	loads  []scenario.Load
	rate   float64 // of all links, in bit/s
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu  sync.Mutex
	err error
}

// visit starts the load of a job's case. Without one it does nothing.
func (r *runner) visit(ctx context.Context, l *lab.Lab, j job) (*visits, error) {
	e := r.Spec.Experiment
	v := &visits{loads: r.Spec.LoadsIn(j.cell.Case)}
	ctx, v.cancel = context.WithCancel(ctx)
	for i, load := range v.loads {
		v.rate += float64(j.cell.Shape(load.Link).Rate)
		// Another seed for each link and trial, equal for all transports.
		seed := e.Traffic[j.Traffic].Web.Seed + uint64(j.trial*len(v.loads)+i)
		args := []string{
			"load", "--json", "--rate", load.Rate.String(), "--duration", (e.Traffic[j.Traffic].Duration + browserPatience).String(),
			"--seed", strconv.FormatUint(seed, 10), "--site-seed", strconv.FormatUint(load.Seed, 10), load.URL,
		}
		v.done.Go(func() {
			err := l.Daemons().RunClient(ctx, load.Node, args, func(out io.Reader) error {
				var report traffic.LoadReport
				return json.NewDecoder(out).Decode(&report)
			})
			if ctx.Err() != nil {
				return // stopped
			}
			v.mu.Lock()
			defer v.mu.Unlock()
			v.err = errors.Join(v.err, fmt.Errorf("load of link %q ended during the task: %w", load.Link, err))
		})
	}
	if len(v.loads) == 0 {
		return v, nil
	}
	if err := sleep(ctx, loadWarmUp); err != nil {
		return nil, errors.Join(err, v.stop())
	}
	return v, nil
}

// stop ends the visits. It is an error if some have ended before.
func (v *visits) stop() error {
	v.cancel()
	v.done.Wait()
	return v.err
}

// put adds the load between two readings to a run, without the bytes of the page itself.
func (v *visits) put(after, before usage, page uint64, run *result.Run) {
	if len(v.loads) == 0 {
		return
	}
	bytes := 0.0
	for _, load := range v.loads {
		bytes += float64(after.toward[load.Link] - before.toward[load.Link])
	}
	run.Metrics[result.LoadShare] = 8 * max(0, bytes-float64(page)) / (v.rate * after.at.Sub(before.at).Seconds())
}
