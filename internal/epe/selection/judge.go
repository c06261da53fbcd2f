package selection

import (
	"cmp"
	"time"
)

// failover opens all paths while the first one makes no progress. It reports whether that is so.
func (c *Connection[K]) failover(now time.Duration, samples []Sample[K]) bool {
	silent := false
	for i := range samples {
		silent = silent || c.paths[samples[i].Path] == c.first && samples[i].Silence > 0
	}
	for i := range samples {
		switch p := c.paths[samples[i].Path]; {
		case p == c.first && silent:
			p.enter(stateFailed, First)
		case p == c.first:
			p.enter(stateFirst, First)
		case silent:
			p.open(now, Failover, 0)
		case p.why == Failover && p.rateBefore == 0:
			p.rest(now, Unused)
		case p.why == Failover: // it was open before
			p.enter(stateOpen, Overflow)
		}
	}
	return silent
}

// judge puts open paths at rest that do not help.
func (c *Connection[K]) judge(now time.Duration, samples []Sample[K]) {
	sum := 0.0 // the rate of all open paths
	limited := false
	for i := range samples {
		p := c.paths[samples[i].Path]
		if p.state.carries() {
			sum += cmp.Or(p.rate.value(), estimate(&samples[i]))
		}
		limited = limited || p == c.first && samples[i].Saturated()
	}
	measured := c.measureAll(now, samples)
	for i := range samples {
		s := &samples[i]
		p := c.paths[s.Path]
		if p.state != stateOpen {
			continue
		}
		if why, ok := c.verdict(now, p, s, sum, limited, measured); ok && why == Unused {
			p.tried, p.times, p.verdict, p.learned = true, 0, Unused, true
		} else if ok {
			p.rest(now, why)
		}
	}
}

// verdict returns whether an open path helps: why it is to rest, Unused if it helps, false if that
// is not known yet. sum is the rate of all open paths, limited whether the first one is saturated,
// and measured whether a measurement of the connection's rate is complete.
func (c *Connection[K]) verdict(now time.Duration, p *path, s *Sample[K], sum float64, limited, measured bool) (Reason, bool) {
	rate, window := cmp.Or(p.rate.value(), estimate(s)), c.window.value()
	why := NoGain
	if window > 0 && window/p.delay < max(sum-rate, p.rateBefore) {
		why = Window
	}
	judged := measured && !p.tried
	switch age := now - p.opened; {
	case judged && !limited && s.busy() && c.total.since-measureOver >= p.opened && c.total.last < harmBelow*p.rateBefore:
		return why, true
	case p.carriedAt < p.opened: // it was given nothing
		return why, false
	case rate < leastShare*sum && (p.settled.value() > 0 || age >= p.trialLasts()):
		// It has been saturated at that rate, or had time to grow.
		return Slow, true
	case age < p.trialLasts():
		return why, false
	case why == Window:
		return Window, true
	case judged && c.total.last < gainLeast*p.rateBefore:
		// While the first path is saturated, this one does not block it. And if the receive window
		// allows much more, the application has less to send.
		return NoGain, !limited && (window == 0 || c.total.last > harmBelow*window/p.delay)
	}
	return Unused, judged
}

// trialLasts returns how long a path is open until it is judged.
func (p *path) trialLasts() time.Duration {
	return max(judgeAfter, time.Duration(judgeRoundTrips*float64(p.minRTT)))
}

// repays reports whether a path makes a transfer of unknown length shorter that has lasted for some
// time. The transfer is expected to go on for as long as it has lasted. The path, with a share of
// the rate of all paths including its own, shortens that by the share, but carries next to nothing
// in its first round trip, and the last data arrives longer seconds later because of the path's
// longer delay.
func repays(lasted, rtt time.Duration, share, longer float64) bool {
	return (lasted-rtt).Seconds()*share >= longer
}

// fits reports whether the receive window has enough room, in bytes, for a path of unknown rate. As
// it is hoped to be as fast as the first one, it would have as much in flight. Besides, the open
// paths, with a rate in bytes/s, deliver out of order until its first data has arrived, after a
// delay in seconds. With less room they wait for that data even if the path is as fast as is hoped,
// and far longer if it is slow.
func fits(room, inFlight, rate, delay float64) bool { return room >= inFlight+rate*delay }
