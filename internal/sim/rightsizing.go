package sim

import "time"

// rightSizing lets the receive window grow with need: to twice of what the application reads in a round trip, and more while that
// grows (Linux: tcp_rcv_space_adjust, mptcp_rcv_space_adjust).
type rightSizing struct {
	window uint64 // that is offered
	since  time.Duration
	// at is what had been delivered then, space the most that was in any round trip.
	at, space uint64
}

// memory is what the receiver offers by now.
func (c *connection) memory() uint64 {
	if c.InitialReceive > 0 {
		return c.sizing.window
	}
	return uint64(c.ReceiveBuffer)
}

// resize is told of every delivery. A round trip is that of the slowest subflow.
func (c *connection) resize(s *Sim) {
	r := &c.sizing
	if c.InitialReceive == 0 || r.window >= uint64(c.ReceiveBuffer) {
		return
	}
	var rtt time.Duration
	for i := range c.flows {
		rtt = max(rtt, c.flows[i].SRTT)
	}
	if s.now-r.since < rtt {
		return
	}
	if read := c.delivered - r.at; read > r.space {
		want := 2*read + 16*uint64(c.Segment)
		want += 2 * want * (read - r.space) / r.space
		r.window = min(max(r.window, want), uint64(c.ReceiveBuffer))
		r.space = read
	}
	r.since, r.at = s.now, c.delivered
}
