package sim

import (
	"math"
	"time"
)

// made is how much the application has made by now, in bytes since the start.
func (c *connection) made(at time.Duration) uint64 {
	if c.Rate == 0 {
		return c.limit
	}
	return min(c.limit, uint64(c.Rate.SizeIn(at-c.Start)))
}

// offered returns how many bytes the next segment has: a full one, or what is left at the end, or
// nothing yet.
func (c *connection) offered(s *Sim) int {
	left := c.limit - c.next
	n := uint64(c.Segment)
	if left < n {
		n = left
	}
	if c.Rate > 0 && n > 0 && c.made(s.now) < c.next+n {
		c.wake(s, max(c.ready(c.next+n), s.now+1))
		return 0
	}
	return int(n)
}

// queued is how many bytes wait to be sent.
func (c *connection) queued(s *Sim) int {
	return int(min(c.made(s.now)-min(c.made(s.now), c.next), math.MaxInt32))
}

// ready is when the application has made so many bytes.
func (c *connection) ready(bytes uint64) time.Duration {
	at := c.Rate.TimeFor(unitSize(bytes))
	if at > MaxDuration {
		return MaxDuration + time.Second
	}
	return c.Start + at
}

// timer is the event of the connection: data is ready, or there is none any more, or it is time to
// probe or to ask the scheduler again.
func (c *connection) timer(s *Sim) {
	s.events.remove(s.connectionSource(c.id))
	if c.Stop > 0 && s.now >= c.Stop {
		c.stop(s)
	} else if c.Stop > 0 {
		s.events.set(s.connectionSource(c.id), c.Stop)
	}
	if c.probeAt > 0 && !c.done {
		if s.now >= c.probeAt {
			c.sendProbes(s)
		}
		c.wake(s, c.probeAt)
	}
	c.schedule(s)
}

// stop ends the data: what was made by then, or without a rate what was sent by then.
func (c *connection) stop(s *Sim) {
	if c.deliveries.lapsed {
		return
	}
	if c.deliveries.any && c.result.Finish == Never {
		c.result.LongestGap = max(c.result.LongestGap, c.Stop-c.deliveries.last)
	}
	c.deliveries.lapsed = true
	if c.Rate > 0 {
		c.limit = max(c.made(c.Stop), c.next)
	} else {
		c.limit = c.next
	}
	c.done = c.done || c.acked >= c.limit
}
