package sim

import (
	"iter"
	"math"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// made returns how many bytes the application has produced since the start.
func (c *connection) made(at time.Duration) uint64 {
	switch {
	case c.Object > 0:
		return min(c.limit, uint64(c.requested)*uint64(c.Object))
	case c.Rate == 0:
		return c.limit
	}
	return min(c.limit, uint64(c.Rate.SizeIn(at-c.Start)))
}

// offered returns the length of the next segment: a full one, the remainder at the end of the data,
// or 0 when the application has not produced it yet.
func (c *connection) offered(s *Sim) int {
	left := c.limit - c.next
	if c.Object > 0 {
		left = c.made(s.now) - c.next
	}
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

// request asks for the next object when all of the previous one has been delivered.
func (c *connection) request(s *Sim) {
	if c.Object == 0 || c.delivered < min(c.limit, uint64(len(c.result.Objects)+1)*uint64(c.Object)) {
		return
	}
	c.result.Objects = append(c.result.Objects, s.now-c.askedAt)
	if c.delivered >= c.limit {
		return
	}
	c.askedAt = s.now
	c.arrivesAt = s.now + c.requestTakes(s)
	c.wake(s, c.arrivesAt)
}

// requestBytes is the payload of a request: of a GET with few headers.
const requestBytes = 100

// requestSize returns the size of a request on the wire, with the acknowledgement before it: of the
// handshake, or of the end of the previous object. Over a slow uplink they take milliseconds.
func (c *connection) requestSize() int { return 2*c.Header + requestBytes }

// requestTakes returns how long a request takes, without queues: over the path of asks, or the one
// on which a gateway's packets arrive first.
func (c *connection) requestTakes(s *Sim) time.Duration {
	paths := c.Paths
	if c.Gateway == nil {
		paths = paths[c.asks(s):][:1]
	}
	least := MaxDuration
	for _, p := range paths {
		takes := time.Duration(0)
		for _, i := range p.Back {
			l := &s.config.Links[i]
			takes += l.Delay
			if l.Rate > 0 {
				takes += l.Rate.TimeFor(unit.Size(c.requestSize()))
			}
		}
		least = min(least, takes)
	}
	return least
}

// asks returns the path over which the receiver requests an object: as in Linux, that of the first
// subflow that is not a backup.
func (c *connection) asks(s *Sim) int {
	for i := range c.inOrder() {
		if s.senders[int(c.first)+i].state != caClosed && !c.paths[i].Backup {
			return i
		}
	}
	return c.Begin
}

// inOrder returns the paths in the order in which their subflows are established.
func (c *connection) inOrder() iter.Seq[int] {
	return func(yield func(int) bool) {
		if !yield(c.Begin) {
			return
		}
		for i := range c.flows {
			if i != c.Begin && !yield(i) {
				return
			}
		}
	}
}

// queued returns how many bytes have been produced and not sent.
func (c *connection) queued(s *Sim) int {
	made := c.made(s.now)
	return int(min(made-min(made, c.next), math.MaxInt32))
}

// ready returns when the application has produced that many bytes.
func (c *connection) ready(bytes uint64) time.Duration {
	at := c.Rate.TimeFor(unitSize(bytes))
	if at > MaxDuration {
		return MaxDuration + time.Second
	}
	return c.Start + at
}

// timer handles the event of the connection: data is ready, the application stops, or it is time to
// send probes or to call the scheduler again.
func (c *connection) timer(s *Sim) {
	s.events.remove(s.connectionSource(c.id))
	if c.Stop > 0 && s.now >= c.Stop {
		c.stop(s)
	} else if c.Stop > 0 {
		s.events.set(s.connectionSource(c.id), c.Stop)
	}
	if c.arrivesAt > 0 {
		if s.now >= c.arrivesAt {
			c.requested++
			c.arrivesAt = 0
		} else {
			c.wake(s, c.arrivesAt)
		}
	}
	if c.use.at > 0 && !c.done {
		if s.now >= c.use.at {
			c.lookAtPaths(s)
		}
		c.wake(s, c.use.at)
	}
	if c.probeAt > 0 && !c.done {
		if s.now >= c.probeAt {
			c.sendProbes(s)
		}
		c.wake(s, c.probeAt)
	}
	if at := c.timerOfData.deadline; at > 0 && !c.done {
		if s.now >= at {
			c.retransmitData(s)
		}
		c.wake(s, c.timerOfData.deadline)
	}
	c.schedule(s)
}

// stop ends the data at what the application has produced so far, or, if it has no rate, at what
// has been sent.
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
