package labrun

import (
	"fmt"
	"math"
	"time"

	"github.com/tabane/tabane/internal/experiment/cell"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/study/content"
)

// What a trial takes on two processors, beside its think times and the transfers of its pages.
const (
	// trialTime is for opening a page, reading counters and closing it again.
	trialTime = 700 * time.Millisecond
	// viewTime is for making and drawing a view, and viewTrips are the round trips of one.
	viewTime  = 90 * time.Millisecond
	viewTrips = 3
	// browserTime is for starting a browser.
	browserTime = 2500 * time.Millisecond
	// payload is the share of payload in the frames of a page.
	payload = 0.93
	// busy is how much longer a view takes while other users visit the site.
	busy = 1.5
	// fair is the share of a path that a page has at least, whatever the load: TCP divides it.
	fair = 0.25
)

// webClock estimates how long trials of an experiment of scenario.KindWeb take.
type webClock struct {
	world *content.World
	// started are the browsers that earlier trials have started.
	started map[browserKind]bool
}

func newWebClock(spec *scenario.Spec) *webClock {
	c := &webClock{started: map[browserKind]bool{}}
	if n := spec.Nodes[spec.Experiment.Server]; n != nil && n.Site != nil {
		c.world = content.New(n.Site.Seed)
	}
	return c
}

// expect returns the duration of a trial without a disturbance.
func (c *webClock) expect(of *cell.Cell, trial int, quick bool) time.Duration {
	in, t, transport := of.Case, of.Traffic, of.Own().Transport
	rate, trip := c.path(of)
	first, longest := time.Duration(0), time.Duration(0)
	tasks := tasksOf(c.world, t, trial)
	for i, task := range tasks {
		sum := thinking(task, t, quick)
		for view, l := range task.Loads {
			wait := viewTime + viewTrips*trip + time.Duration(float64(8*l.Bytes())/rate*float64(time.Second))
			if in.Load > 0 {
				wait = time.Duration(busy * float64(wait))
			}
			if sum += wait; view == 0 {
				first = wait
			}
		}
		longest = max(longest, beginning(tasks, i, t, quick)+sum)
	}
	total := min(longest, t.Duration) + trialTime
	if in.Load > 0 {
		total += loadWarmUp
	}
	if !quick { // the recording
		total += min(first, t.Duration) + trialTime
	}
	if kind := (browserKind{transport.MPTCP, t.Web.HTTP}); !c.started[kind] {
		c.started[kind] = true
		total += browserTime
	}
	return total
}

// path returns the rate in bit/s at which the connection of a cell carries payload, and its
// shortest round trip. With loss it is at most what loss leaves a connection (Mathis et al. 1997).
func (c *webClock) path(of *cell.Cell) (rate float64, trip time.Duration) {
	for i, name := range of.Own().Transport.Links {
		s := of.Shape(name)
		own := 2 * s.Delay
		one := math.Inf(1)
		if s.Rate > 0 {
			one = payload * max(fair, 1-of.Case.Load) * float64(s.Rate)
		}
		if s.Loss != nil && s.Loss.P > 0 && own > 0 {
			const segment = 8 * 1428 // bits
			one = min(one, segment*math.Sqrt(1.5/s.Loss.P)/own.Seconds())
		}
		rate += one
		if i == 0 || own < trip {
			trip = own
		}
	}
	return rate, trip
}

// viewCPU is the processor time that a browser takes for a view.
const viewCPU = 450 * time.Millisecond

// capacity returns an error if sessions side by side would keep the processors so busy that every
// trial is disturbed. One session is always played.
func capacity(spec *scenario.Spec, quick bool, processors int) error {
	c := newWebClock(spec)
	for _, name := range spec.Experiment.TrafficNames() {
		t := spec.Experiment.Traffic[name]
		n := max(1, t.Web.Sessions)
		views, span := 0, time.Duration(0)
		for _, task := range tasksOf(c.world, t, 0) {
			views += len(task.Loads)
			span += thinking(task, t, quick) + time.Duration(len(task.Loads))*viewTime
		}
		// All sessions take n times as much in the time of one.
		use := float64(n) * float64(views) * viewCPU.Seconds() / span.Seconds()
		if most := float64(processors) * (1 - minIdle); n > 1 && use > most {
			return fmt.Errorf("%d sessions of traffic %q would use %.1f processors, and %d of this host leave %.1f for them: have at most %d, or longer think times (web.think)",
				n, name, use, processors, most, max(1, int(most/use*float64(n))))
		}
	}
	return nil
}
