package sim

import (
	"math"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/reseq"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/mptcp/cc"
)

// connection is the state that the subflows of a connection share, at both ends. The sending end
// gets information about the receiving end from acknowledgements only.
type connection struct {
	Connection
	id    int32
	first int32 // subflow

	// The sending end.
	control   cc.Control
	sampler   cc.Sampler // nil: the control has no use for round-trip times
	flows     []cc.Subflow
	scheduler sched.Scheduler
	paths     []sched.Path
	// next is SND.NXT at the data level, limit the end of the data, acked the data acknowledgement
	// (SND.UNA), and edge the right edge of the advertised window.
	next, limit, acked, edge uint64
	// queue is data to be reinjected on another subflow, in the order of data sequence numbers.
	queue       []reinjection
	timerOfData dataTimer
	done        bool // all data is acknowledged
	// requested is the number of objects whose requests have arrived; the next does at arrivesAt, 0
	// if there is none on its way.
	requested int
	arrivesAt time.Duration

	ahead     bool   // the scheduler assigns data to subflows before they can send it
	wrote     uint64 // by the application, where the scheduler assigns ahead
	needs     sched.Needs
	probes    []probing
	probeAt   time.Duration // the next
	blocked   bool
	blockedAt time.Duration
	opportune uint64 // the last opportunistic retransmission, plus 1
	use       use

	// The receiving end.
	buffer     *reseq.Buffer
	advertised uint64 // right edge of the window
	sizing     rightSizing
	delivered  uint64
	deliveries deliveries
	askedAt    time.Duration // of the object being received

	result  ConnectionResult
	sampled uint64 // delivered, at the last sample
}

// reinjection is data to be reinjected on another subflow.
type reinjection struct {
	data   uint64
	length int
	from   int  // subflow
	unsent bool // by that subflow, to which the data returns while no other is usable
}

// deliveries records when data was delivered to the application.
type deliveries struct {
	any    bool
	last   time.Duration
	lapsed bool // gaps no longer count
}

// acknowledged processes the data acknowledgement and the window of an acknowledgement.
func (c *connection) acknowledged(p *packet) {
	c.acked = max(c.acked, p.data)
	if p.window != noWindow {
		c.edge = max(c.edge, p.data+uint64(p.window))
	}
	if c.acked >= c.limit {
		c.done = true
	}
}

// mostExpectedBursts bounds the room for bursts that may never be needed.
const mostExpectedBursts = 1 << 15

// expectedBursts returns how many bursts a connection delivers if each is one segment and its paths
// are used fully.
func (c *connection) expectedBursts(s *Sim) int {
	bytes := unit.Size(0)
	for i := range c.Paths {
		bytes += s.slowest(c.Paths[i].Out).SizeIn(s.config.Duration - c.Start)
	}
	if c.Bytes > 0 {
		bytes = min(bytes, c.Bytes)
	}
	return int(min(bytes/unit.Size(c.Segment), mostExpectedBursts))
}

// newData returns the length of the next segment that can be sent now, 0 when there is no data or a
// shared window is full.
func (c *connection) newData(s *Sim) int {
	n := c.offered(s)
	if n == 0 || !c.fits(n) {
		return 0
	}
	return n
}

// fits reports whether n new bytes fit in the windows that all subflows share.
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

// idle reports whether there is no new data that the subflow could send.
func (c *connection) idle(f *sender) bool {
	return c.blocked || f.board.next-f.board.una >= f.window || c.next >= c.limit || c.Object > 0 && c.next >= c.made(0) || c.ahead && f.backlog.bytes == 0
}

// exhausted reports whether there is no new data for a subflow.
func (c *connection) exhausted(f *sender) bool {
	if c.ahead {
		return f.backlog.bytes == 0
	}
	return c.next >= c.limit || c.Object > 0 && c.next >= c.made(0)
}

// schedule sends all that can be sent now. It is called for every acknowledgement, timeout,
// established subflow and write of the application.
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
	if c.buffered() && len(c.flows) > 1 {
		c.watchData(s)
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
		return false // an acknowledgement or a timeout calls schedule again
	}
	set := c.scheduler.Next(c.paths, c.segment(s, n))
	if set == 0 {
		c.retryLater(s)
		return false
	}
	for ; set != 0; set &= set - 1 {
		s.senders[int(c.first)+set.First()].take(s, c.next, n, false)
	}
	return true
}

// room reports whether a usable path has room for n bytes.
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
	window := math.MaxInt32
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

// pause is the interval at which a scheduler that waits with nothing in flight is called.
const pause = 10 * time.Millisecond

// retryLater ensures that a scheduler that chose to wait is called again: by an acknowledgement or
// a timeout when something is in flight, otherwise by a timer.
func (c *connection) retryLater(s *Sim) {
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

// wake schedules a call of schedule at that time, unless there is an earlier one.
func (c *connection) wake(s *Sim, at time.Duration) {
	s.events.setEarlier(s.connectionSource(c.id), at)
}

// take processes a segment at the receiving end.
func (c *connection) take(s *Sim, path int, p *packet) {
	before := c.buffer.Next()
	r := c.buffer.Push(s.now, path, p.data, int(p.length))
	if r.Bytes > 0 {
		c.hand(s, c.buffer.Next()-before)
	}
}

// hand delivers n bytes in order to the application.
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
	c.request(s)
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
	if c.Gateway != nil {
		r.Gateway = s.carriers[s.senders[c.first].out&^tunneledHop].collect()
	}
	for i := range c.flows {
		r.Paths = append(r.Paths, s.senders[int(c.first)+i].collect(s))
	}
	if c.Overflow {
		r.Learned, r.Uses = c.use.learned(s.now, len(c.Paths)), c.use.decisions
	}
	return r
}
