package sim

import (
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/mptcp/cc"
)

// caState is the state of congestion avoidance, named as in Linux (enum tcp_ca_state). Disorder is
// omitted, since nothing depends on it.
type caState uint8

const (
	caClosed   caState = iota // not established
	caOpen                    // nothing is lost
	caRecovery                // fast recovery (RFC 6675)
	caLoss                    // after a timeout, until all that was sent before it is acknowledged
)

// sender is the sending end of a subflow.
type sender struct {
	c     *connection
	index int   // of the subflow in the connection
	flow  int32 // index among the subflows of all connections
	// The subflow's state for congestion control and the scheduler: elements of the connection's
	// slices, which never move.
	cc   *cc.Subflow
	path *sched.Path

	state  caState
	board  scoreboard
	window uint32 // limit of outstanding segments

	recover  uint32 // recovery ends when this is una
	rescued  bool   // the last segment was retransmitted in this recovery (RFC 6675, section 4, NextSeg 4)
	timedOut uint32 // una at the last timeout

	retrans retransTimer
	backlog backlog
	buffers buffers
	pacing  pacing

	rack    rack
	tlp     tailLossProbe
	undo    undo
	usage   usage
	prr     reduction
	linux24 linux24
	hand    handshake

	duplicateAcks int // in a row

	lastSent time.Duration // when a segment was sent last (lsndtime)

	idled bool // nothing was to be sent for a moment since overflow's last look

	windowSince time.Duration
	windowArea  float64 // segments times nanoseconds
	penalized   time.Duration
	out         uint32 // hop before the first link
	spray       *spraying
	result      PathResult
}

// room returns how many segments the congestion window allows now: at least one if nothing is in
// flight.
func (f *sender) room() int32 {
	return int32(min(max(int(f.cc.Cwnd), 1), maxSegments)) - f.board.inFlight()
}

// maxSegments limits the outstanding segments of a subflow: a window of 1 GiB (RFC 7323, section
// 2.3) with the smallest segments in use.
const maxSegments = 1 << 20

// establish marks the subflow established.
func (f *sender) establish(s *Sim) {
	c := f.c
	f.state = caOpen
	f.result.Established = s.now
	f.windowSince = s.now
	rtt, least := f.retrans.rtt.SRTT, f.retrans.rtt.MinRTT
	*f.cc = cc.Start(c.InitialWindow)
	f.cc.SRTT, f.cc.MinRTT = rtt, least
	f.cc.HyStart, f.cc.MinThreshold = c.HyStart, float64(c.MinThreshold)
	f.retrans.rto = f.retrans.rtt.RTO(c.MinRTO)
	f.path.Usable = true
	if f.paces() {
		f.pace(s)
	}
	f.refresh(s)
	c.established(s, f.index)
	c.schedule(s)
}

// refresh updates the subflow's state for the scheduler and congestion control.
func (f *sender) refresh(s *Sim) {
	flight := f.board.inFlight()
	flow := f.cc
	flow.InFlight = float64(flight)
	if !f.c.MPTCP {
		return
	}
	p := f.path
	size := f.c.Segment
	room := int(min(f.room(), int32(f.window-(f.board.next-f.board.una))))
	if f.board.pending > 0 || f.state == caClosed {
		room = 0
	}
	p.Cwnd = int(flow.Cwnd) * size
	p.InFlight = int(flight) * size
	p.Room = max(room, 0) * size
	if f.c.buffered() {
		f.account(s)
	}
	p.SRTT, p.RTTVAR = f.retrans.rtt.SRTT, f.retrans.rtt.RTTVAR
}

// canSendNew reports whether the window allows a new segment.
func (f *sender) canSendNew() bool {
	return f.board.pending == 0 && f.board.next-f.board.una < f.window && f.room() > 0
}

// transmit sends a segment of the scoreboard.
func (f *sender) transmit(s *Sim, seq uint32, e *segment) {
	if f.board.outstanding() <= 1 && f.lastSent > 0 { // CA_EVENT_TX_START
		f.cc.Idle += s.now - f.lastSent
	}
	e.sent, f.lastSent = s.now, s.now
	f.prr.sent++
	f.usage.sent = true
	f.result.Segments++
	f.pacing.sent(f, s.now, int(e.length))
	out := f.out
	if f.spray != nil {
		out = f.spray.choose(s.now, seq, e.length)
	}
	s.send(&packet{kind: data, flow: f.flow, hop: out, at: s.now, data: e.data, seq: seq, length: e.length}, int32(e.length)+int32(f.c.Header))
}

// sendNew sends new data on the subflow. The window must allow it.
func (f *sender) sendNew(s *Sim, at uint64, length int) {
	if f.board.full() {
		s.spend(f.board.grow())
	}
	seq, e := f.board.push(at, length)
	if f.retrans.deadline == 0 {
		f.restart(s) // RFC 6298, 5.1
	}
	f.transmit(s, seq, e)
	if f.c.RACK {
		f.tlp.arm(s, f)
	}
	f.cc.InFlight++
	if f.c.MPTCP {
		p := f.path
		p.InFlight += f.c.Segment
		if !f.c.ahead {
			p.Room -= f.c.Segment
		}
	}
}

// retransmit retransmits a segment.
func (f *sender) retransmit(s *Sim, seq uint32, e *segment) {
	f.board.retransmitted(s.now, seq, e)
	f.undo.retransmitted(s.now)
	f.result.Retransmissions++
	f.transmit(s, seq, e)
	if seq == f.board.una {
		// The retransmission of the first segment gets the full timeout, not reduced by the
		// time that loss detection took.
		f.restart(s)
	}
}

// ack processes an acknowledgement.
func (f *sender) ack(s *Sim, p *packet) {
	f.result.Acks++
	if f.spray != nil {
		f.spray.acknowledged(s.now, p)
	}
	c := f.c
	if c.RACK && p.seq < f.board.una {
		return // an older timestamp: the path reordered it (PAWS, RFC 7323, section 5)
	}
	c.acknowledged(p)
	switch {
	case p.duplicate && c.RACK:
		f.undo.dsackReceived(f, p)
	case p.duplicate && c.Linux24:
		f.linux24.dsack(f, p)
	}
	if c.done || f.state == caClosed || p.seq < f.board.una {
		if !c.done {
			c.schedule(s)
		}
		return
	}
	if c.Gateway != nil {
		f.countDuplicate(p)
	}
	flow := f.cc
	f.windowArea += flow.Cwnd * float64(s.now-f.windowSince)
	f.windowSince = s.now

	before := f.board.inFlight()
	una := f.board.una
	segments := int(p.seq - una)
	var r *rack
	if c.RACK {
		r = &f.rack
	}
	top := uint32(0)
	if c.RACK || c.Linux24 {
		top = f.board.top()
		f.board.late = top
	}
	delivered, selected := f.board.acknowledge(p.seq, s.now, f.retrans.rtt.MinRTT, r), 0
	if p.blocks > 0 || f.board.nblocks > 0 {
		selected = f.board.selective(p, s.now, f.retrans.rtt.MinRTT, r)
		delivered += selected
	}
	flow.Delivered += uint64(delivered)
	if segments > 0 {
		f.retrans.progress()
		f.path.Usable = true
	}
	a := &acked{
		prior: una, top: top, segments: segments, selected: selected, delivered: delivered, flight: before, sample: f.measure(s, p, segments > 0),
	}
	detect := true
	if c.Linux24 {
		f.linux24.ack(s, f, p, a)
	} else {
		detect = f.respond(s, p, a)
	}
	f.proceed(s, segments > 0, detect)
}

// proceed restarts the timers after an acknowledgement and sends what it allows, lost segments only
// if detect is set. It acknowledges new data cumulatively if progress is set.
func (f *sender) proceed(s *Sim, progress, detect bool) {
	c := f.c
	if f.board.una == f.board.next {
		f.retrans.deadline = 0 // RFC 6298, 5.2
		f.idled = f.idled || f.backlog.bytes == 0
	} else if progress {
		f.restart(s) // 5.3
	}
	if c.RACK {
		f.tlp.arm(s, f)
	}
	if f.paces() {
		f.pace(s)
	}
	if detect {
		f.retransmitLost(s)
	}
	if c.ahead {
		f.sendBacklog(s)
	}
	f.refresh(s)
	c.schedule(s)
	if c.RACK {
		f.usage.validate(f)
	}
	if f.state == caRecovery && f.room() > 0 && c.idle(f) {
		if c.Linux24 {
			f.linux24.forward(s, f)
		} else {
			f.fillWindow(s)
		}
		f.refresh(s)
	}
}

// measure takes the round-trip time that an acknowledgement gives, and returns it, 0 without any.
// It acknowledges new data cumulatively if progress is set.
func (f *sender) measure(s *Sim, p *packet, progress bool) time.Duration {
	c, flow := f.c, f.cc
	sample, latest := time.Duration(0), time.Duration(0)
	if c.RACK {
		sample, latest = f.board.timed.sample()
	}
	if progress && sample == 0 {
		sample = s.now - p.at
	}
	if progress && latest == 0 {
		latest = sample
	}
	if sample <= 0 {
		return sample
	}
	f.retrans.sample(sample, latest, c.MinRTO)
	if c.RACK || c.Linux24 {
		f.retrans.vary(f.board.una, f.board.next, c.MinRTO)
	}
	flow.SRTT, flow.MinRTT = f.retrans.rtt.SRTT, f.retrans.rtt.MinRTT
	if c.sampler != nil {
		flow.InFlight = float64(f.board.inFlight())
		c.sampler.Sampled(c.flows, f.index, s.now, latest)
	}
	return sample
}

// respond finds losses after an acknowledgement, and adapts the window. It returns false if nothing
// may be retransmitted yet.
func (f *sender) respond(s *Sim, p *packet, a *acked) bool {
	c, flow := f.c, f.cc
	was, pending := f.state, f.board.pending
	detect := true
	switch {
	case c.RACK:
		f.rack.reordering.displaced(&f.board, a.top)
		if detect = f.undo.ack(f, p, a.prior); detect {
			f.tlp.ack(s, f, p)
			f.rack.markLost(s, f)
		}
	default:
		if was != caOpen && f.board.una >= f.recover {
			f.state, f.rescued = caOpen, false
		}
		f.board.markLostBySACK()
	}
	grows := a.segments
	if c.RACK {
		grows = f.grows(a)
	} else if was == caRecovery {
		grows = 0
	}
	switch {
	case f.state == caOpen && f.board.lost > 0:
		flow.InFlight = float64(f.board.next - a.prior)
		f.enterRecovery(s)
	case grows > 0 && f.state != caRecovery:
		f.prr.end(f)
		flow.InFlight = float64(f.board.inFlight())
		c.control.Acked(c.flows, f.index, cc.Ack{Now: s.now, Segments: grows, RTT: a.sample, Limited: f.limited(a)})
	}
	if f.state == caRecovery {
		f.prr.reduce(f, a.delivered, a.segments > 0 && f.board.pending <= pending)
	} else {
		f.prr.end(f)
	}
	return detect
}

// acked is what an acknowledgement changed, before congestion control.
type acked struct {
	prior    uint32 // SND.UNA before it
	top      uint32 // the highest segment selectively acknowledged before it, 0: none; of linux24
	segments int    // acknowledged cumulatively
	selected int    // newly selectively acknowledged
	// delivered is what is newly acknowledged in either way.
	delivered int
	flight    int32 // in flight before it
	sample    time.Duration
}

// countDuplicate counts the acknowledgements that do not acknowledge new data while some is in
// flight.
func (f *sender) countDuplicate(p *packet) {
	if p.seq > f.board.una || f.board.una == f.board.next {
		f.duplicateAcks = 0
		return
	}
	if f.duplicateAcks++; f.duplicateAcks == dupThresh {
		f.result.Triples++
	}
}

// restart restarts the retransmission timer.
func (f *sender) restart(s *Sim) {
	f.retrans.deadline = s.now + f.retrans.interval()
	f.wake(s, f.retrans.deadline)
}

// wake schedules an event at that time, unless there is an earlier one.
func (f *sender) wake(s *Sim, at time.Duration) {
	s.events.setEarlier(s.senderSource(f.flow), at)
}

// timer handles the subflow's event: the earliest of its timers.
func (f *sender) timer(s *Sim) {
	if f.state == caClosed {
		f.hand.timer(s, f)
		return
	}
	source := s.senderSource(f.flow)
	if f.c.done {
		s.events.remove(source)
		return
	}
	if due(f.rack.deadline, s.now) {
		f.rack.timeout(s, f)
	}
	if due(f.tlp.deadline, s.now) {
		f.tlp.send(s, f)
	}
	if due(f.retrans.deadline, s.now) {
		f.timeout(s)
	}
	if due(f.pacing.deadline, s.now) {
		f.resume(s)
	}
	next := earlier(earlier(f.retrans.deadline, f.pacing.deadline), earlier(f.rack.deadline, f.tlp.deadline))
	if next == 0 {
		s.events.remove(source)
		return
	}
	s.events.set(source, next)
}

// due reports whether a timer with that deadline has expired; a deadline of 0 means not running.
func due(deadline, now time.Duration) bool { return deadline != 0 && deadline <= now }

// earlier returns the earlier of two deadlines.
func earlier(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// timeout handles the retransmission timer (RFC 6298, 5.4 to 5.6). The scoreboard is kept (RFC
// 6675, section 5.1).
func (f *sender) timeout(s *Sim) {
	c := f.c
	f.result.Timeouts++
	f.retrans.timeouts++
	if f.retrans.timeouts >= c.StaleAfter {
		f.path.Usable = false
	}
	flow := f.cc
	f.windowArea += flow.Cwnd * float64(s.now-f.windowSince)
	f.windowSince = s.now
	first := f.timedOut != f.board.una
	f.timedOut = f.board.una
	if c.Linux24 {
		f.linux24.timedOut(s, f, first)
	} else if first {
		flow.InFlight = float64(f.board.next - f.board.una)
		if f.state != caRecovery {
			f.undo.begin(&f.board, flow)
		}
		c.control.TimedOut(c.flows, f.index, s.now)
	}
	f.board.markAllLost()
	f.state, f.recover, f.rescued, f.prr.active = caLoss, f.board.next, false, false
	f.rack.deadline, f.tlp = 0, tailLossProbe{}
	f.retrans.backOff()
	f.restart(s)
	c.reinject(s, f)
	f.pacing.next = min(f.pacing.next, s.now) // the first segment does not wait
	f.retransmitLost(s)
	f.refresh(s)
	c.schedule(s)
}

// collect completes the result at the end.
func (f *sender) collect(s *Sim) PathResult {
	r := f.result
	r.SRTT, r.MinRTT, r.RTO = f.retrans.rtt.SRTT, f.retrans.rtt.MinRTT, f.retrans.rto
	r.MeanRTT = f.retrans.mean()
	flow := f.cc
	r.Cwnd = flow.Cwnd
	r.Stale = f.retrans.timeouts >= f.c.StaleAfter
	if d := s.now - r.Established; r.Established != Never && d > 0 {
		r.MeanCwnd = (f.windowArea + flow.Cwnd*float64(s.now-f.windowSince)) / float64(d)
	}
	in := &s.receivers[f.flow]
	r.Arrived, r.Duplicates, r.Series = unit.Size(in.arrived), in.duplicates, in.series
	return r
}
