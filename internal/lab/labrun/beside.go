package labrun

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/result"
)

// arrivals is what arrived on connections or groups of them, by their numbers.
type arrivals struct {
	mu  sync.Mutex
	all [][]arrival
}

// arrival is the bytes of an interval that ended at a time.
type arrival struct {
	at    time.Time
	bytes int64
}

func newArrivals(n int) *arrivals { return &arrivals{all: make([][]arrival, n)} }

// add adds the bytes of an interval that ends now.
func (a *arrivals) add(number int, bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all[number] = append(a.all[number], arrival{time.Now(), bytes})
}

// during returns the bytes of the intervals that ended after from, and at to at the latest.
func (a *arrivals) during(number int, from, to time.Time) (bytes float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, x := range a.all[number] {
		if x.at.After(from) && !x.at.After(to) {
			bytes += float64(x.bytes)
		}
	}
	return bytes
}

// runBeside runs the downloads beside the traffic, over the same transport, until ctx ends.
func (d *delivery) runBeside(ctx context.Context) error {
	args := clientArguments(d.transport)
	if d.job.cell.Traffic.Upload {
		args = append(args, "--upload")
	}
	args = append(args, serverURL(d.Spec, d.transport)+"/bytes/"+strconv.FormatInt(int64(unit.TiB), 10))
	all := newTasks(ctx)
	for i := range d.job.cell.Traffic.Beside {
		all.start(func(ctx context.Context) error {
			_, err := fetch(ctx, d.lab, d.Spec.Experiment.Client, args, func(s traffic.Sample) { d.beside.add(i, s.Bytes) })
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				return fmt.Errorf("download %d beside the traffic: %w", i+1, err)
			}
			return errors.New("a download beside the traffic ended before it")
		})
	}
	return all.wait()
}

// putBeside adds what a download, which has this report, and those beside it carried while it ran.
func (d *delivery) putBeside(run *result.Run, report traffic.Report) {
	began := d.clock.began()
	bytes := []float64{float64(report.Bytes)}
	for i := range d.job.cell.Traffic.Beside {
		bytes = append(bytes, d.beside.during(i, began, began.Add(report.Duration)))
	}
	result.PutDownloads(run.Metrics, bytes, report.Duration)
}
