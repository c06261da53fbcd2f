package channel

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/tabane/tabane/internal/unit"
)

// red is the state of random early detection.
type red struct {
	average float64 // average queue length, in the unit of the thresholds
	count   int     // frames since the last drop, or -1 while the average is below Min
	random  *rand.Rand
}

// drop reports whether RED drops an arriving frame. length is the queue length on arrival. idle is
// the number of frames that could have been sent in the current idle time, 0 when the link is busy.
func (r *red) drop(p *RED, length, idle float64) bool {
	weight := p.Weight
	if weight == 0 {
		weight = DefaultWeight
	}
	if idle > 0 {
		r.average *= math.Pow(1-weight, idle)
	} else {
		r.average += weight * (length - r.average)
	}
	low, high := p.Min.amount(), p.Max.amount()
	var base float64
	switch {
	case r.average < low:
		r.count = -1
		return false
	case r.average < high:
		base = p.P * (r.average - low) / (high - low)
	case r.average < 2*high:
		base = p.P + (1-p.P)*(r.average-high)/high
	default:
		r.count = 0
		return true
	}
	r.count++
	// Space the drops evenly: the distance between drops is uniformly, not geometrically,
	// distributed.
	rest := 1 - float64(r.count)*base
	if rest > 0 && r.random.Float64() >= base/rest {
		return false
	}
	r.count = 0
	return true
}

// codel is the state of controlled delay, named as in RFC 8289, section 5.
type codel struct {
	above           bool // firstAbove is set
	firstAbove      time.Duration
	dropNext        time.Duration
	count, previous int // previous is lastcount_
	dropping        bool
}

// waiting is the queue from which CoDel dequeues.
type waiting[F any] interface {
	// pop removes the first frame, and returns false when there is none.
	pop() (packet[F], bool)
	// bytes returns the length of the queue.
	bytes() unit.Size
	// signal signals congestion on a dequeued frame: it marks the frame, or drops it and
	// returns false.
	signal(packet[F]) bool
}

// dequeue returns the frame to send at the time now, and false when none is left (RFC 8289, section
// 5.6). A frame that is marked instead of dropped is returned, as in Linux.
func dequeue[F any](c *codel, p CoDel, frame unit.Size, now time.Duration, q waiting[F]) (packet[F], bool) {
	f, exists, mayDrop := take(c, p, frame, now, q)
	switch {
	case c.dropping:
		if !mayDrop {
			c.dropping = false
		}
		for c.dropping && now >= c.dropNext {
			c.count++
			if q.signal(f) {
				c.dropNext = control(c.dropNext, p.Interval, c.count)
				break
			}
			if f, exists, mayDrop = take(c, p, frame, now, q); !mayDrop {
				c.dropping = false
			} else {
				c.dropNext = control(c.dropNext, p.Interval, c.count)
			}
		}
	case mayDrop:
		if !q.signal(f) {
			f, exists, _ = take(c, p, frame, now, q)
		}
		c.dropping = true
		// If the last dropping state ended recently, start with its drop rate, which
		// controlled the queue.
		delta := c.count - c.previous
		c.count = 1
		if delta > 1 && now-c.dropNext < 16*p.Interval {
			c.count = delta
		}
		c.dropNext = control(now, p.Interval, c.count)
		c.previous = c.count
	}
	return f, exists
}

// take is dodequeue of RFC 8289; mayDrop is its ok_to_drop.
func take[F any](c *codel, p CoDel, frame unit.Size, now time.Duration, q waiting[F]) (f packet[F], exists, mayDrop bool) {
	if f, exists = q.pop(); !exists {
		c.above = false
		return f, false, false
	}
	switch {
	case now-f.arrived < p.Target || q.bytes() <= frame:
		c.above = false
	case !c.above:
		c.above, c.firstAbove = true, now+p.Interval
	default:
		mayDrop = now >= c.firstAbove
	}
	return f, true, mayDrop
}

// control returns the time of the next drop by CoDel's control law.
func control(t, interval time.Duration, count int) time.Duration {
	return t + time.Duration(float64(interval)/math.Sqrt(float64(count)))
}
