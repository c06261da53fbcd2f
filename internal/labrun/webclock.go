package labrun

import (
	"math"
	"time"

	"github.com/tabane/tabane/internal/page"
	"github.com/tabane/tabane/internal/result"
	"github.com/tabane/tabane/internal/scenario"
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
)

// webClock estimates how long trials of an experiment of scenario.KindWeb take.
type webClock struct {
	spec  *scenario.Spec
	world *page.World
	// started are the browsers that earlier trials have started.
	started map[browserKind]bool
}

func newWebClock(spec *scenario.Spec) *webClock {
	c := &webClock{spec: spec, started: map[browserKind]bool{}}
	if n := spec.Nodes[spec.Experiment.Server]; n != nil && n.Site != nil {
		c.world = page.New(n.Site.Seed)
	}
	return c
}

// expect returns the duration of a trial without a disturbance.
func (c *webClock) expect(k result.CellKey, trial int, quick bool) time.Duration {
	e := c.spec.Experiment
	in := e.Case(k.Case)
	t := e.TrafficIn(in, k.Traffic)
	task := c.world.Task(t.Web.Service, t.Web.Heavy, t.Web.Seed+uint64(trial))
	rate, trip := c.path(in, e.Transports[k.Transport])
	waits := make([]time.Duration, len(task.Loads))
	sum, think := time.Duration(0), time.Duration(0)
	for i, l := range task.Loads {
		waits[i] = viewTime + viewTrips*trip + time.Duration(float64(8*l.Bytes())/rate*float64(time.Second))
		if in.Load > 0 {
			waits[i] = time.Duration(busy * float64(waits[i]))
		}
		sum += waits[i]
	}
	for _, s := range task.Steps {
		think += s.Think
	}
	total := min(sum+time.Duration(t.ThinkTimes(think, quick)*float64(think)), t.Duration) + trialTime
	if in.Load > 0 {
		total += loadWarmUp
	}
	if !quick { // the recording
		total += min(waits[0], t.Duration) + trialTime
	}
	if kind := (browserKind{e.Transports[k.Transport].MPTCP, t.Web.HTTP}); !c.started[kind] {
		c.started[kind] = true
		total += browserTime
	}
	return total
}

// path returns the rate in bit/s at which a connection of a transport carries payload in a case, and its
// shortest round trip. With loss it is at most what loss leaves a connection (Mathis et al. 1997).
func (c *webClock) path(in scenario.Case, t *scenario.Transport) (rate float64, trip time.Duration) {
	for i, name := range t.Links {
		s := c.spec.ShapeIn(in, name)
		own := 2 * s.Delay
		one := math.Inf(1)
		if s.Rate > 0 {
			one = payload * (1 - in.Load) * float64(s.Rate)
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
