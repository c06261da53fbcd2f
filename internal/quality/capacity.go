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
	// Standing is that of OneWay.
	Standing time.Duration
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
	arrived := unit.Bandwidth(float64(s.Arrived) * 8 / s.Interval.Seconds())
	switch {
	case c.before > 0:
		c.judge(arrived)
	case s.Busy && arrived < c.rate*paced/100*carried/100, s.Standing >= longQueue && arrived > c.rate/2 && arrived < c.rate*paced/100*drained/100:
		// What arrives is what the path carries. The sender paces below it, so the queue drains.
		c.found, c.busy, c.every = true, 0, firstProbe
		c.rate = (c.rate + arrived) / 2
	case arrived > c.rate:
		c.rate = arrived
	case !s.Busy || s.Standing > shortQueue:
		c.found = c.found || s.Standing >= longQueue
	case !c.found:
		c.rate = c.rate * startGrowth / 100
	default:
		if c.busy++; c.busy >= max(c.every, firstProbe) {
			c.probe(probeGrowth)
		}
	}
	c.rate = max(c.rate, leastCapacity)
}

// probe raises the estimate until the next sample.
func (c *Capacity) probe(percent unit.Bandwidth) {
	c.busy, c.before = 0, c.rate
	c.rate = c.rate * percent / 100
}

// judge ends a probe, in which that rate arrived.
func (c *Capacity) judge(arrived unit.Bandwidth) {
	before := c.before
	c.before = 0
	if arrived < before*success/100 {
		c.rate, c.every = before, min(2*max(c.every, firstProbe), lastProbe)
		return
	}
	c.rate, c.every = max(before, min(c.rate, arrived*100/paced)), firstProbe
	c.probe(nextGrowth)
}
