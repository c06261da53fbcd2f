package quality

import (
	"time"

	"github.com/tabane/tabane/internal/unit"
)

// Bounds and steps of Capacity.
const (
	// FirstCapacity is the estimate before any traffic.
	FirstCapacity = 10 * unit.MbitPerSecond
	// leastCapacity bounds the estimate from below: a path that is believed to be slower would
	// get no traffic that could prove otherwise.
	leastCapacity = 100 * unit.KbitPerSecond
	// longQueue is the standing queue from which on the path is full, shortQueue that up to which
	// more may be tried.
	longQueue  = 15 * time.Millisecond
	shortQueue = 5 * time.Millisecond
	// paced is the share of the estimate, in percent, that the sender uses. If less than the share
	// carried of that arrives though more was to be sent, or less than the share drained while there
	// is a long queue, the path does not carry it. A queue alone may be a route that became longer.
	paced, carried, drained = 97, 93, 98
	// Growth of the estimate in percent: before the path was ever full, of a probe, and of a probe
	// after a successful one. A probe of 10 % for 250 ms makes a queue of 25 ms.
	startGrowth, probeGrowth, nextGrowth = 200, 110, 125
	// A probe succeeds if this share of the estimate before it arrives, in percent.
	success = 102
	// steady: there is no probe while the jitter is more than this part of an interval, because
	// then what arrives in one tells little.
	steady = 16
	// firstProbe and lastProbe are the numbers of busy samples between two probes, which double
	// with each failure.
	firstProbe, lastProbe = 8, 64
)

// CapacitySample is what was measured of a path in an interval of 50 to 500 ms.
type CapacitySample struct {
	// Interval is the time in which Sent and Arrived bytes were sent and received; both are in
	// bytes of whole packets with all headers.
	Interval time.Duration
	Sent     unit.Size
	Arrived  unit.Size
	// Busy: packets waited for the path during the whole interval, so that more would have been
	// sent on a faster one.
	Busy bool
	// Standing and Jitter are those of OneWay.
	Standing, Jitter time.Duration
}

// Capacity estimates the rate of a path that its user has not configured, from what the path carries
// and the queue that this causes. The sender paces its packets below the estimate, so it has to be
// raised to find a higher rate. The zero value is that of a path without traffic.
type Capacity struct {
	rate unit.Bandwidth
	// found: the path was full at least once.
	found bool
	// busy counts busy samples since the last probe, every is how many there are between two.
	busy, every int
	// before is the estimate before the probe in progress, 0 if there is none.
	before unit.Bandwidth
	// recent are samples since the estimate changed, their bytes and time weighted less with each
	// further one: jitter moves packets between intervals, so one tells little.
	recent  CapacitySample
	samples int
}

// StartCapacity returns the state of a path whose rate was configured: the estimate begins there.
func StartCapacity(rate unit.Bandwidth) Capacity { return Capacity{rate: rate, found: rate > 0} }

// Value returns the estimate.
func (c *Capacity) Value() unit.Bandwidth {
	if c.rate == 0 {
		return FirstCapacity
	}
	return c.rate
}

// Update adds a sample.
func (c *Capacity) Update(s CapacitySample) {
	if s.Interval <= 0 || s.Arrived < 0 || s.Sent < 0 {
		return
	}
	if c.rate == 0 {
		c.rate = FirstCapacity
	}
	if c.before > 0 {
		c.judge(s.rate())
		return
	}
	c.remember(s)
	r := &c.recent
	switch {
	case c.samples >= 3 && (s.Busy && r.Arrived < r.Sent/100*carried || s.Standing >= longQueue && r.rate() > c.rate/2 && r.Arrived < r.Sent/100*drained):
		// What arrives is what the path carries. The sender paces below it, so the queue drains.
		c.found, c.busy, c.every = true, 0, firstProbe
		c.set(max(r.rate(), leastCapacity))
	case c.samples >= 3 && r.rate() > c.rate:
		c.set(r.rate())
	case !s.Busy || s.Standing > shortQueue:
		c.found = c.found || s.Standing >= longQueue
	case !c.found:
		c.set(c.rate * startGrowth / 100)
	default:
		if c.busy++; c.busy >= max(c.every, firstProbe) && s.Jitter <= s.Interval/steady {
			c.probe(probeGrowth)
		}
	}
}

// rate returns the rate of arrival.
func (s *CapacitySample) rate() unit.Bandwidth {
	return unit.Bandwidth(min(float64(s.Arrived)*8/s.Interval.Seconds(), float64(unit.TbitPerSecond)))
}

// remember adds a sample to the recent ones.
func (c *Capacity) remember(s CapacitySample) {
	r := &c.recent
	r.Sent, r.Arrived, r.Interval = r.Sent/4*3+s.Sent, r.Arrived/4*3+s.Arrived, r.Interval/4*3+s.Interval
	c.samples++
}

// set changes the estimate.
func (c *Capacity) set(rate unit.Bandwidth) {
	c.rate, c.recent, c.samples = rate, CapacitySample{}, 0
}

// probe raises the estimate until the next sample.
func (c *Capacity) probe(percent unit.Bandwidth) {
	c.busy, c.before = 0, c.rate
	c.set(c.rate * percent / 100)
}

// judge ends a probe, in which that rate arrived.
func (c *Capacity) judge(arrived unit.Bandwidth) {
	before := c.before
	c.before = 0
	if arrived < before*success/100 {
		c.set(before)
		c.every = min(2*max(c.every, firstProbe), lastProbe)
		return
	}
	c.set(max(before, min(c.rate, arrived*100/paced)))
	c.every = firstProbe
	c.probe(nextGrowth)
}
