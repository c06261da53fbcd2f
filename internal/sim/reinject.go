package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/gateway/sched"
)

// reinject queues a subflow's outstanding segments for the others, each once (RFC 8684,
// section 3.3.6). The lowest data, for which the receiver waits, is first (Linux: mptcp_rtx_head):
// subflows that time out in turn could pass it to each other for ever behind other data.
func (c *connection) reinject(s *Sim, f *sender) {
	if len(c.flows) < 2 || c.Uncounted {
		return
	}
	for seq := f.board.una; seq != f.board.next; seq++ {
		e := f.board.at(seq)
		if e.flags&reinjected != 0 || e.data+uint64(e.length) <= c.acked {
			continue
		}
		e.flags |= reinjected
		c.requeue(s, reinjection{data: e.data, length: int(e.length), from: f.index})
	}
	c.abandon(s, f)
	slices.SortStableFunc(c.queue, func(a, b reinjection) int { return cmp.Compare(a.data, b.data) })
}

func (c *connection) requeue(s *Sim, r reinjection) {
	if len(c.queue) == cap(c.queue) {
		s.spend(max(1, cap(c.queue)))
	}
	c.queue = append(c.queue, r)
}

// scheduleQueue reinjects queued data while other subflows have room. Data that no subflow accepts
// does not block new data.
func (c *connection) scheduleQueue(s *Sim) {
	n := 0
	for n < len(c.queue) {
		r := &c.queue[n]
		if r.data+uint64(r.length) > c.acked && !c.sendElsewhere(s, r) {
			break
		}
		n++
	}
	if n > 0 {
		c.queue = c.queue[:copy(c.queue, c.queue[n:])]
	}
}

// sendElsewhere reinjects data on another subflow, and reports whether one accepted it. Data that
// its subflow has not sent returns to it while no other is usable.
func (c *connection) sendElsewhere(s *Sim, r *reinjection) bool {
	p := &c.paths[r.from]
	usable := p.Usable
	p.Usable = usable && r.unsent && !c.others(r.from)
	seg := c.segment(s, r.length)
	seg.Window = max(seg.Window, r.length) // sent before, so it is inside the window
	set := c.scheduler.Next(c.paths, seg)
	if set == 0 {
		c.retryLater(s)
	}
	p.Usable = usable
	for i := range c.paths {
		if set.Has(i) {
			f := &s.senders[int(c.first)+i]
			f.take(s, r.data, r.length, true)
			if i != r.from {
				f.result.Reinjected++
				c.result.Reinjected++
			}
		}
	}
	return set != 0
}

// others reports whether a path other than that one is usable.
func (c *connection) others(than int) bool {
	for i := range c.paths {
		if i != than && c.paths[i].Usable {
			return true
		}
	}
	return false
}

// full handles a full shared window, and reports whether the window is what blocks sending: whether
// a subflow has room.
func (c *connection) full(s *Sim, n int) bool {
	if !c.MPTCP {
		f := &s.senders[c.first]
		return f.state != caClosed && f.canSendNew()
	}
	if !c.room(n) {
		return false
	}
	if c.needs.Blocked {
		c.scheduler.Next(c.paths, c.segment(s, n))
	}
	if c.Opportunistic || c.Penalize {
		c.unblock(s)
	}
	return true
}

// unblock handles the subflow that blocks the window, whose first outstanding segment is at the
// data acknowledgement: it retransmits that segment on another path and penalizes the subflow
// (Raiciu et al., NSDI 2012, section 4).
func (c *connection) unblock(s *Sim) {
	for i := range c.flows {
		f := &s.senders[int(c.first)+i]
		if f.state == caClosed || f.board.una == f.board.next || f.board.at(f.board.una).data != c.acked {
			continue
		}
		other := false
		for j := range c.paths {
			other = other || j != i && c.paths[j].Usable && c.paths[j].Room >= c.Segment
		}
		if !other {
			return
		}
		if e := f.board.at(f.board.una); c.Opportunistic && c.opportune != c.acked+1 {
			if c.sendElsewhere(s, &reinjection{data: e.data, length: int(e.length), from: i}) {
				c.opportune = c.acked + 1
			}
		}
		if flow := f.cc; c.Penalize && s.now-f.penalized >= max(flow.SRTT, time.Millisecond) && flow.Cwnd > 1 {
			f.penalized = s.now
			c.result.Penalties++
			flow.Cwnd = max(flow.Cwnd/2, 1)
			flow.Ssthresh = min(flow.Ssthresh, max(flow.Cwnd, 2))
			f.refresh(s)
		}
		return
	}
}

// newPaths returns the scheduler's initial view of the paths.
func (c *connection) newPaths(s *Sim) {
	c.paths = make([]sched.Path, len(c.Paths))
	for i := range c.Paths {
		from, to := &c.Paths[i], &c.paths[i]
		*to = sched.Path{Backup: from.Backup, MSS: c.Segment, Ratio: max(from.Ratio, 1), Rate: from.Rate}
		for _, l := range from.Out {
			to.Delay += s.config.Links[l].Delay
		}
		if to.Rate == 0 {
			to.Rate = s.slowest(from.Out)
		}
	}
}
