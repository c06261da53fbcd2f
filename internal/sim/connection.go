package sim

import (
	"time"

	"github.com/tabane/tabane/internal/cc"
	"github.com/tabane/tabane/internal/reseq"
	"github.com/tabane/tabane/internal/sched"
	"github.com/tabane/tabane/internal/unit"
)

// connection is both ends of a connection: what its subflows share. The sending end has only what
// it was told by acknowledgements.
type connection struct {
	Connection
	id    int32
	first int32 // subflow

	// The sending end.
	control   cc.Control
	flows     []cc.Subflow
	scheduler sched.Scheduler
	paths     []sched.Path
	// next is the first byte that has not been sent, limit where the data ends, acked the data
	// acknowledgement, and edge where the advertised window ends.
	next, limit, acked, edge uint64
	// queue is data to be reinjected on another subflow.
	queue []reinjection
	done  bool // all data is acknowledged

	ahead     bool   // the scheduler gives data to subflows before they can send it
	wrote     uint64 // by the application, where the scheduler gives ahead
	needs     sched.Needs
	probes    []probing
	probeAt   time.Duration // the next
	blocked   bool
	blockedAt time.Duration
	opportune uint64 // data that was retransmitted for holding up the window, plus 1

	// The receiving end.
	buffer     *reseq.Buffer
	advertised uint64 // edge of the window
	sizing     rightSizing
	delivered  uint64
	deliveries deliveries

	result  ConnectionResult
	sampled uint64 // delivered, at the last sample
}

// reinjection is data that a subflow could not deliver in time.
type reinjection struct {
	data   uint64
	length int
	from   int // subflow
}

// deliveries is when the application got something.
type deliveries struct {
	any    bool
	last   time.Duration
	lapsed bool // the time after which gaps do not count any more is over
}

// acknowledged takes what an acknowledgement says of data sequence.
func (c *connection) acknowledged(p *packet) {
	c.acked = max(c.acked, p.data)
	if p.window != noWindow {
		c.edge = max(c.edge, p.data+uint64(p.window))
	}
	if c.acked >= c.limit {
		c.done = true
	}
}

// newData returns how much can be sent now as the next segment, 0 when there is nothing or the
// shared windows are full.
func (c *connection) newData(s *Sim) int {
	n := c.offered(s)
	if n == 0 || !c.fits(n) {
		return 0
	}
	return n
}

// fits reports whether the windows that all subflows share let n new bytes through.
func (c *connection) fits(n int) bool {
	switch {
	case c.RBuf > 0 && c.next-c.acked > uint64(c.RBuf): // the paper's rule, as it is printed
		return false
	case c.ReceiveBuffer > 0 && c.next+uint64(n) > c.edge:
		return false
	case c.SendBuffer > 0 && c.next+uint64(n)-c.acked > uint64(c.SendBuffer):
		return false
	}
	return true
}

// idle reports whether there is no new data that the subflow might send.
func (c *connection) idle(f *sender) bool {
	return c.blocked || f.board.next-f.board.una >= f.window || c.next >= c.limit || c.ahead && f.backlog.bytes == 0
}

// schedule sends all that can be sent now. Whatever may make more possible calls it again: every
// acknowledgement, timeout, start of a subflow and piece of data from the application.
func (c *connection) schedule(s *Sim) {
	if c.done {
		return
	}
	if len(c.queue) > 0 {
		c.scheduleQueue(s)
	}
	if c.Uncounted {
		c.uncount(s)
	}
	blocked := false
	for {
		n := c.offered(s)
		if n == 0 {
			break
		}
		if !c.fits(n) || c.buffered() && !c.written(s, n) {
			blocked = c.full(s, n)
			break
		}
		if !c.sendOne(s, n) {
			break
		}
		c.next += uint64(n)
	}
	if blocked != c.blocked {
		if blocked {
			c.blockedAt = s.now
		} else {
			c.result.Blocked += s.now - c.blockedAt
		}
		c.blocked = blocked
	}
}

// sendOne sends the next n bytes, and reports whether there was room.
func (c *connection) sendOne(s *Sim, n int) bool {
	if !c.MPTCP {
		f := &s.senders[c.first]
		if f.state == caClosed || !f.canSendNew() {
			return false
		}
		f.sendNew(s, c.next, n)
		return true
	}
	if !c.buffered() && !c.room(n) {
		return false // what fills the windows will be acknowledged, or time out
	}
	set := c.scheduler.Next(c.paths, c.segment(s, n))
	if set == 0 {
		c.askAgain(s)
		return false
	}
	for i := range c.paths {
		if set.Has(i) {
			s.senders[int(c.first)+i].take(s, c.next, n, false)
		}
	}
	return true
}

// room reports whether there is a usable path that has room for n bytes.
func (c *connection) room(n int) bool {
	for i := range c.paths {
		if p := &c.paths[i]; p.Usable && p.Room >= n {
			return true
		}
	}
	return false
}

// segment describes the next n bytes for the scheduler.
func (c *connection) segment(s *Sim, n int) sched.Segment {
	unacked := int(c.next - c.acked)
	window := 1 << 40
	if c.ReceiveBuffer > 0 {
		window = int(c.edge - min(c.edge, c.next))
	}
	if c.RBuf > 0 {
		window = min(window, max(int(c.RBuf)+c.Segment-unacked, 0))
	}
	if c.SendBuffer > 0 {
		window = min(window, max(int(c.SendBuffer)-unacked, 0))
	}
	return sched.Segment{Now: s.now, Size: n, Window: window, Unacked: unacked, Queued: c.queued(s)}
}

// pause is how long a scheduler that waits without anything in flight is left alone.
const pause = 10 * time.Millisecond

// askAgain sees to it that a scheduler that wants to wait is asked again: with something in flight
// an acknowledgement or a timeout will, otherwise a timer.
func (c *connection) askAgain(s *Sim) {
	usable := false
	for i := range c.paths {
		if p := &c.paths[i]; p.Usable {
			if f := &s.senders[int(c.first)+i]; f.board.next != f.board.una {
				return
			}
			usable = true
		}
	}
	if usable {
		c.wake(s, s.now+pause)
	}
}

// wake has schedule called at that time at the latest.
func (c *connection) wake(s *Sim, at time.Duration) {
	if source := s.connectionSource(c.id); !s.events.has(source) || at < s.events.at(source) {
		s.events.set(source, at)
	}
}

// take takes a segment at the receiving end.
func (c *connection) take(s *Sim, path int, p *packet) {
	before := c.buffer.Next()
	r := c.buffer.Push(s.now, path, p.data, int(p.length))
	if r.Bytes > 0 {
		c.hand(s, c.buffer.Next()-before)
	}
}

// hand gives the application data that is in order.
func (c *connection) hand(s *Sim, n uint64) {
	d := &c.deliveries
	if !d.any {
		d.any = true
		c.result.FirstByte = s.now
	} else if !d.lapsed {
		c.result.LongestGap = max(c.result.LongestGap, s.now-d.last)
	}
	d.last = s.now
	c.delivered += n
	c.resize(s)
	if c.Bytes > 0 && c.delivered >= uint64(c.Bytes) && c.result.Finish == Never {
		c.result.Finish = s.now
	}
}

// advertise returns the data acknowledgement and the window. The right edge of the window never
// moves left, as in Linux (tcp_select_window).
func (c *connection) advertise(r *receiver) (acked uint64, window uint32) {
	acked = c.buffer.Next()
	if c.ReceiveBuffer == 0 {
		return acked, noWindow
	}
	c.advertised = max(c.advertised, acked+c.offers(r))
	return acked, uint32(c.scaled(c.advertised - acked))
}

// collect completes the result at the end.
func (c *connection) collect(s *Sim) ConnectionResult {
	r := c.result
	until := s.now
	if c.Stop > 0 {
		until = min(until, c.Stop)
	}
	if c.blocked && !c.done {
		r.Blocked += s.now - c.blockedAt
	}
	if r.Finish != Never {
		until = r.Finish
	} else if c.deliveries.any && !c.deliveries.lapsed {
		r.LongestGap = max(r.LongestGap, until-c.deliveries.last)
	}
	r.Active = max(until-c.Start, 0)
	r.Reseq = c.buffer.Measures()
	r.Arrived, r.Delivered = unit.Size(r.Reseq.Arrived.Bytes), unit.Size(c.delivered)
	for i := range c.flows {
		r.Paths = append(r.Paths, s.senders[int(c.first)+i].collect(s))
	}
	return r
}
