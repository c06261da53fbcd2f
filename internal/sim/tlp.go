package sim

import (
	"time"

	"github.com/tabane/tabane/internal/gateway/quality"
)

// tailLossProbe is the state of the tail loss probe (RFC 8985, section 7; Linux:
// tcp_send_loss_probe, tcp_process_tlp_ack).
type tailLossProbe struct {
	// deadline is when the probe timer expires, 0 when it does not run.
	deadline time.Duration
	// sent: a probe is outstanding, and its episode ends at end (TLP.end_seq); retransmission:
	// the probe carried no new data (TLP.is_retrans).
	sent, retransmission bool
	end                  uint32
}

// maxAckDelay is the maximum time by which a receiver delays an acknowledgement (section 7.2,
// TLP.max_ack_delay).
const maxAckDelay = 40 * time.Millisecond

// timeout returns the probe timeout with that many segments in flight (section 7.2,
// TLP_calc_PTO).
func (t *tailLossProbe) timeout(rtt *quality.RTT, inFlight uint32) time.Duration {
	switch {
	case rtt.SRTT == 0:
		return time.Second
	case inFlight == 1:
		return 2*rtt.SRTT + maxAckDelay
	}
	return 2 * rtt.SRTT
}

// repaired reports whether an acknowledgement shows that the probe repaired a loss (section 7.4.2).
func (t *tailLossProbe) repaired(p *packet) bool {
	if !t.sent || p.seq < t.end {
		return false
	}
	switch {
	case !t.retransmission || p.duplicate:
		t.sent = false
	case p.seq > t.end:
		t.sent = false
		return true
	}
	return false
}

// ack processes an acknowledgement: congestion control responds to a loss that a probe repaired.
func (t *tailLossProbe) ack(s *Sim, f *sender, p *packet) {
	if t.repaired(p) && f.state == caOpen {
		f.undo.marker = 0
		f.cc.InFlight = float64(f.board.inFlight())
		f.c.control.Lost(f.c.flows, f.index, s.now)
	}
}

// arm starts or stops the probe timer.
func (t *tailLossProbe) arm(s *Sim, f *sender) {
	t.deadline = 0
	if f.state != caOpen || f.board.sacked > 0 || f.board.una == f.board.next || t.sent {
		return
	}
	if at := s.now + t.timeout(&f.retrans.rtt, f.board.outstanding()); at < f.retrans.deadline {
		t.deadline = at
		f.wake(s, at)
	}
}

// send sends a tail loss probe when the timer expires: new data if there is any, otherwise it
// retransmits the last segment (section 7.3). MPTCP subflows always retransmit, since only the
// scheduler assigns new data.
func (t *tailLossProbe) send(s *Sim, f *sender) {
	c := f.c
	t.deadline = 0
	if f.state != caOpen || f.board.una == f.board.next {
		return
	}
	f.result.Probes++
	t.sent, t.retransmission = true, false
	if n := c.newData(s); !c.MPTCP && n > 0 && f.board.outstanding() < f.window {
		f.sendNew(s, c.next, n)
		c.next += uint64(n)
	} else {
		f.undo.first = 0 // no recovery is in progress
		seq, e := f.board.last()
		f.retransmit(s, seq, e)
		t.retransmission = true
	}
	t.end = f.board.next
	f.restart(s)
	f.refresh(s)
}
