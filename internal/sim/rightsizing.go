package sim

import (
	"math/bits"
	"time"
)

// rightSizing is dynamic right-sizing of the receive window, as mptcp_rcv_space_adjust and
// mptcp_rcvbuf_grow of net/mptcp/protocol.c do (Linux 6.18): to twice of what the application read
// in a round trip, and to more while that grows. The receive buffer is memory, and a window that it
// carries; what waits out of order takes of both. What it carries is not offered at once: see
// receiver.widen.
type rightSizing struct {
	window uint64 // that the memory carries
	since  time.Duration
	// at is what had been delivered then, space the most that was in any round trip.
	at, space uint64
	// segment is what one that waits takes of the window, scale the unit in which it is advertised
	// (RFC 7323, section 2).
	segment, scale uint64
}

// newRightSizing begins with the initial window, and with as much in a round trip as an initial
// congestion window has (mptcp_rcv_space_init).
func newRightSizing(c *connection) rightSizing {
	// Linux reckons with the share of payload in memory that it saw in segments larger than
	// TCP_MSS_DEFAULT, and with a half until then (tcp_measure_rcv_mss, TCP_DEFAULT_SCALING_RATIO).
	takes := uint64(c.Segment)
	if c.Segment <= defaultSegment {
		block := 1<<bits.Len(uint(c.Segment+headerMPTCP+segmentShared-1)) + segmentBody
		takes = uint64(block / 2)
	}
	return rightSizing{
		window: uint64(c.InitialReceive), since: c.Start, space: initialWindow * uint64(c.Segment+dataSequence), segment: takes,
		scale: max(1, uint64(1)<<bits.Len64(uint64(2*c.ReceiveBuffer))>>16),
	}
}

const (
	defaultSegment = 536 // TCP_MSS_DEFAULT
	initialWindow  = 10  // TCP_INIT_CWND
	dataSequence   = 28  // that the option takes of an advertised MSS
)

// resize is called for every delivery. A round trip is that of the slowest subflow, as the receiver
// knows it.
func (c *connection) resize(s *Sim) {
	r := &c.sizing
	if c.InitialReceive == 0 || r.window >= uint64(c.ReceiveBuffer) {
		return
	}
	var rtt time.Duration
	for i := range c.flows {
		rtt = max(rtt, s.receivers[int(c.first)+i].rtt)
	}
	if rtt == 0 || s.now-r.since < rtt {
		return
	}
	if read := c.delivered - r.at; read > r.space {
		want := 2 * read
		want += 2 * want * (read - r.space) / r.space
		r.window = min(max(r.window, want), uint64(c.ReceiveBuffer))
		r.space = read
	}
	r.since, r.at = s.now, c.delivered
}

// widen lets a subflow offer two segments more for each one that arrives, as far as the memory goes
// (tcp_grow_window), and measures the round trip time.
func (r *receiver) widen(s *Sim, p *packet) {
	c := r.c
	if c.InitialReceive == 0 {
		return
	}
	r.offer = min(r.offer+2*uint64(c.Segment), max(r.offer, c.sizing.window))
	r.measure(s, p)
}

// measure is tcp_rcv_rtt_measure_ts: from an acknowledgement to the data that echoes its timestamp,
// which has ticks of a millisecond. The way of the acknowledgement is taken for free of queues. The
// least sample counts at once, others as one of eight (tcp_rcv_rtt_update).
func (r *receiver) measure(s *Sim, p *packet) {
	way := s.now - p.at
	if r.way == 0 || way < r.way {
		r.way = way
	}
	if r.rtt > 0 && s.now-r.measured < time.Millisecond {
		return
	}
	r.measured = s.now
	sample := way + max(r.c.flows[r.index].MinRTT-r.way, 0)
	if r.rtt == 0 || sample < r.rtt {
		r.rtt = sample
	} else {
		r.rtt += (sample - r.rtt) / 8
	}
}

// offers returns the window that a subflow advertises: what the memory carries beside data held out of
// order, limited by the subflow's offer (mptcp_space, __tcp_select_window).
func (c *connection) offers(r *receiver) uint64 {
	if c.InitialReceive == 0 {
		return uint64(c.ReceiveBuffer)
	}
	taken := uint64(c.buffer.Occupancy().Segments) * c.sizing.segment
	return c.scaled(min(c.sizing.window-min(c.sizing.window, taken), r.offer) + c.sizing.scale - 1)
}

// scaled returns the window rounded down to the window scale.
func (c *connection) scaled(window uint64) uint64 {
	if c.InitialReceive == 0 {
		return window
	}
	return window &^ (c.sizing.scale - 1)
}
