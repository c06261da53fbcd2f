package selection

import (
	"time"
)

// chooseFirst chooses the first path: the one with the shortest delay, unless the current one is
// nearly as good.
func (c *Connection[K]) chooseFirst(now time.Duration, samples []Sample[K]) {
	was := c.first
	if was != nil && !was.present {
		was = nil
	}
	if was != nil && now < c.keeps {
		return
	}
	best := was
	for i := range samples {
		p := c.paths[samples[i].Path]
		if c.betterFirst(now, p, best, was) {
			best = p
		}
	}
	if best == was {
		return
	}
	if was != nil {
		was.enter(stateResting, Unused)
	}
	c.first, c.keeps = best, now
	if was != nil && best.state == stateUnknown { // its rate is soon measured
		c.keeps += triedFor()
	}
	best.enter(stateFirst, First)
	c.saturated, c.suffices = since{}, since{}
}

// betterFirst reports whether a path is to be first instead of the best one so far; was is the
// first path now, nil if there is none.
func (c *Connection[K]) betterFirst(now time.Duration, p, best, was *path) bool {
	switch {
	case best == nil, !p.barred(now) && best.barred(now):
		return true
	case p.barred(now) && (was != nil || !best.barred(now)):
		return false
	}
	policy := &byPolicy[c.Policy]
	below := policy.switchBelow
	if p.unmeasured(now) && now-c.keeps >= 10*triedFor() {
		below = policy.tryBelow // its trial takes a tenth of the time so far at most
	}
	return p.shorter(below*best.delay) && (was == nil || p.carries() >= sufficeBelow*c.load(was))
}

// triedFor is how long a path of which nothing is known stays first, so that it is measured.
func triedFor() time.Duration { return 2 * measureOver }

// barred reports whether a path is not to be first until its rest ends: it failed, or nothing is
// known of its rate. One that did not help beside others may be the shortest one for what it can
// carry alone.
func (p *path) barred(now time.Duration) bool {
	return now < p.until && (p.verdict.fails() || p.unmeasured(now))
}

// shorter reports whether the delay of a path is below another one, in seconds. While its rate
// grows, only what it has carried counts.
func (p *path) shorter(delay float64) bool {
	if p.growing {
		return p.rate.value() > 0 && p.delayAt(p.rate.value()) < delay
	}
	return p.assumedDelay < delay
}

// carries returns the rate in bytes/s that a path would carry as the first one.
func (p *path) carries() float64 {
	if p.growing {
		return p.rate.value()
	}
	return p.capacity
}

// load returns the rate that the first path must carry: that of the connection, or more than the
// first path can while it is saturated.
func (c *Connection[K]) load(first *path) float64 {
	if c.saturated.holds {
		return max(first.capacity, c.total.last)
	}
	return c.total.last
}
