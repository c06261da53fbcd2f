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
	// longQueue is the standing queue from which on the path is full.
	longQueue = 15 * time.Millisecond
	// shortQueue is the standing queue up to which more may be tried.
	shortQueue = 5 * time.Millisecond
	// shortfall is the share of what was sent, in percent, below which the path has not carried it.
	shortfall = 90
	// Growth of the estimate in percent: while none of its limits has been met, and of a probe (as
	// the gain of BBR's ProbeBW_UP, draft-ietf-ccwg-bbr, section 5.3.3).
	startGrowth, probeGrowth = 200, 125
	// probeEvery is the number of busy samples from one probe to the next.
	probeEvery = 8
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
	busy  int // samples since the last probe
	// before is the estimate before the probe in progress, 0 if there is none.
	before unit.Bandwidth
}

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
	full := s.Standing >= longQueue || s.Busy && s.Arrived < s.Sent/100*shortfall
	switch {
	case full && s.Busy:
		// What arrives is what the path carries; the queue drains because the sender paces
		// below it.
		c.found, c.busy, c.before = true, 0, 0
		c.rate = arrived
	case full:
	case arrived > c.rate:
		c.rate = arrived
	case !s.Busy:
	case !c.found && s.Standing <= shortQueue:
		c.rate = c.rate * startGrowth / 100
	case c.before > 0:
		// The probe is over. What arrived was paced below the estimate.
		c.rate, c.before = max(c.before, min(c.rate, arrived/97*100)), 0
	default:
		if c.busy++; c.busy >= probeEvery && s.Standing <= shortQueue {
			c.busy, c.before = 0, c.rate
			c.rate = c.rate * probeGrowth / 100
		}
	}
	c.rate = max(c.rate, leastCapacity)
}
