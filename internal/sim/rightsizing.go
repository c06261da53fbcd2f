package sim

import (
	"math/bits"
	"time"
)

// rightSizing is dynamic right-sizing of the receive window, as in mptcp_rcv_space_adjust and
// mptcp_rcvbuf_grow of net/mptcp/protocol.c (Linux 6.18): the window grows to twice what the
// application read in a round trip, and further while that amount grows. The receive buffer is an
// amount of memory, and the window is the payload that fits in it; data held out of order uses
// both. The window is not advertised all at once: see receiver.widen.
type rightSizing struct {
	window uint64 // payload that fits in the memory
	since  time.Duration
	// at is the number of bytes delivered at the start of the round trip, space the maximum of
	// any round trip.
	at, space uint64
	// segment is the part of the window that one segment held out of order uses, scale the unit
	// in which the window is advertised (RFC 7323, section 2).
	segment, scale uint64
}

// newRightSizing starts with the initial window, and with an initial congestion window as the
// amount read in a round trip (mptcp_rcv_space_init).
func newRightSizing(c *connection) rightSizing {
	// Linux uses the ratio of payload to memory of segments larger than TCP_MSS_DEFAULT, and
	// one half before it has received one (tcp_measure_rcv_mss, TCP_DEFAULT_SCALING_RATIO).
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
	dataSequence   = 28  // bytes of the DSS option in an advertised MSS
)

// resize is called for every delivery. The round trip is that of the slowest subflow, as measured
// by the receiver.
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

// widen raises the subflow's offer by two segments for each one that arrives, as far as the memory
// allows (tcp_grow_window), and measures the round-trip time.
func (r *receiver) widen(s *Sim, p *packet) {
	c := r.c
	if c.InitialReceive == 0 {
		return
	}
	r.offer = min(r.offer+2*uint64(c.Segment), max(r.offer, c.sizing.window))
	r.measure(s, p)
}

// measure is tcp_rcv_rtt_measure_ts: the time from an acknowledgement to the data that echoes its
// timestamp, in ticks of a millisecond. It assumes no queueing delay for the acknowledgement. A new
// minimum replaces the estimate; other samples have a weight of 1/8 (tcp_rcv_rtt_update).
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

// offers returns the window that a subflow advertises: what fits in the memory in addition to data
// held out of order, limited by the subflow's offer (mptcp_space, __tcp_select_window).
func (c *connection) offers(r *receiver) uint64 {
	if c.InitialReceive == 0 {
		return uint64(c.ReceiveBuffer)
	}
	taken := uint64(c.buffer.Occupancy().Segments) * c.sizing.segment
	return c.scaled(min(c.sizing.window-min(c.sizing.window, taken), r.offer) + c.sizing.scale - 1)
}

// scaled returns the window rounded down to a multiple of the window scale.
func (c *connection) scaled(window uint64) uint64 {
	if c.InitialReceive == 0 {
		return window
	}
	return window &^ (c.sizing.scale - 1)
}
