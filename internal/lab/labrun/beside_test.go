package labrun

import (
	"testing"
	"time"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/cell"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/lab/labtest"
)

// TestArrivals: an interval counts where it ends.
func TestArrivals(t *testing.T) {
	a := newArrivals(2)
	a.add(0, 100)
	from := time.Now()
	a.add(0, 10)
	a.add(1, 1000)
	a.add(0, 1)
	to := time.Now()
	time.Sleep(time.Millisecond)
	a.add(0, 10_000)
	if got := a.during(0, from, to); got != 11 {
		t.Errorf("%v bytes, want 11", got)
	}
	if got := a.during(1, from, to); got != 1000 {
		t.Errorf("%v bytes, want 1000", got)
	}
}

// TestPutBeside: a download counts with all that it carried, also what its last sample, which is
// reported after its end, is of.
func TestPutBeside(t *testing.T) {
	d := &delivery{job: job{cell: &cell.Cell{Traffic: &scenario.Traffic{Beside: 1}}}, clock: newRunClock(), beside: newArrivals(1)}
	d.clock.observe(time.Now(), 0)
	d.beside.add(0, 500)
	run := result.Run{Metrics: map[string]float64{}}
	d.putBeside(&run, traffic.Report{Bytes: 1000, Duration: time.Minute})
	if all, least := run.Metrics[result.AllRate], run.Metrics[result.LeastRate]; all != 200 || least != 500.*8/60 {
		t.Errorf("%v and %v bit/s", all, least)
	}
	// Nothing arrived: a result has no numbers that are not finite.
	run.Metrics = map[string]float64{}
	if d.putBeside(&run, traffic.Report{}); len(run.Metrics) > 0 {
		t.Errorf("without a delivery: %v", run.Metrics)
	}
}

// TestRunBeside: downloads beside a traffic share its link, and wait in one queue with it.
func TestRunBeside(t *testing.T) {
	const rate, queue = 10 * unit.MbitPerSecond, 50 * time.Millisecond
	o := runOptions(t, "beside")
	e := o.Spec.Experiment
	e.Cases = []scenario.Case{{Name: "one", Links: map[string]scenario.Shape{"wire": {Rate: rate, Queue: queue}}}}
	lasts := 3 * time.Second
	e.Traffic = map[string]*scenario.Traffic{
		"bulk":  {Bytes: unit.GB, Duration: lasts, Quick: lasts, Beside: 2},
		"page":  {Bytes: 20 * unit.KB, Objects: 5, Duration: 20 * time.Second, Quick: 20 * time.Second, Beside: 1},
		"call":  {Rate: unit.MbitPerSecond, Duration: lasts, Quick: lasts, Datagram: 1000, Beside: 1},
		"alone": {Rate: unit.MbitPerSecond, Duration: lasts, Quick: lasts, Datagram: 1000},
	}
	e.Transports = map[string]*scenario.Transport{"tcp": {Links: []string{"wire"}}}
	o.Trials, e.Expect = 1, nil
	outcome, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]map[string]float64{}
	for _, r := range outcome.Runs {
		if r.Err() != nil {
			t.Errorf("%s: %v", r.CellKey, r.Err())
		}
		of[r.Traffic] = r.Metrics
	}
	bulk := of["bulk"]
	if all, least := bulk[result.AllRate], bulk[result.LeastRate]; all <= bulk[result.Goodput] || all > float64(rate) || least <= 0 || least > all/3 {
		t.Errorf("three downloads at once: %v", bulk)
	}
	if _, several := of["page"][result.AllRate]; several || of["page"][result.Objects] != 5 {
		t.Errorf("a page beside a download: %v", of["page"])
	}
	// A download fills the queue; alone nothing waits.
	call, alone := of["call"][result.DatagramDelayP95], of["alone"][result.DatagramDelayP95]
	if alone <= 0 || call <= alone {
		t.Errorf("95th percentile of the delay %v s beside a download and %v s alone", call, alone)
	}
	labtest.NothingLeft(t, o.Name)
}
