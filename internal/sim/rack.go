package sim

import "time"

// rack finds losses by time (RFC 8985): what was sent sufficiently before something that has been
// delivered is lost.
type rack struct {
	// sent and seq are of the segment, among those delivered, that was sent last; rtt is its round
	// trip time.
	sent time.Duration
	seq  uint32
	rtt  time.Duration
	// highest is the highest segment delivered. Once a lower one that was sent once is delivered
	// after it, there is reordering.
	highest   uint32
	reordered bool
	// reorder is when the next segment is lost unless it is delivered before, and probe when a tail
	// loss probe is sent; 0 is for never.
	reorder, probe time.Duration
	// probing: a probe was sent that ended before probed, and is not yet accounted for; again if it
	// was sent before.
	probing, again bool
	probed         uint32
}

// due reports whether a timer expired, next when one does, 0 for never.
func (r *rack) due(now time.Duration) bool {
	return r.reorder != 0 && r.reorder <= now || r.probe != 0 && r.probe <= now
}

func (r *rack) next() time.Duration {
	if r.reorder == 0 || r.probe != 0 && r.probe < r.reorder {
		return r.probe
	}
	return r.reorder
}

func (r *rack) stop() { r.reorder, r.probe, r.probing = 0, 0, false }

// after reports whether a segment was sent after another.
func after(sent time.Duration, seq uint32, than time.Duration, other uint32) bool {
	return sent > than || sent == than && seq > other
}

// delivered takes a segment that is newly acknowledged (section 6.2, steps 1 to 3). least is the
// least round trip time.
func (r *rack) delivered(now time.Duration, seq uint32, e *segment, least time.Duration) {
	rtt := now - e.sent
	if e.flags&everRetrans != 0 && rtt < least {
		return // it is the first copy that was delivered
	}
	if seq > r.highest {
		r.highest = seq
	} else if e.flags&everRetrans == 0 {
		r.reordered = true
	}
	if after(e.sent, seq, r.sent, r.seq) {
		r.sent, r.seq, r.rtt = e.sent, seq, rtt
	}
}

// rackAck finds what is lost after an acknowledgement.
func (f *sender) rackAck(s *Sim, p *packet) {
	f.accountProbe(s, p)
	f.rackDetect(s)
}

// rackDetect is steps 4 and 5 of section 6.2.
func (f *sender) rackDetect(s *Sim) {
	r := &f.rack
	r.reorder = 0
	if f.board.sacked == 0 && f.board.retrans == 0 && f.board.lost == 0 || r.rtt == 0 {
		return
	}
	var window time.Duration
	if r.reordered || f.state != caRecovery && f.board.sacked < dupThresh {
		window = min(f.retrans.rtt.MinRTT/4, f.retrans.rtt.SRTT)
	}
	for seq := f.board.una; seq != f.board.next; seq++ {
		e := f.board.at(seq)
		if e.flags&sacked != 0 || e.flags&(lost|retransInFlight) == lost || !after(r.sent, r.seq, e.sent, seq) {
			continue
		}
		if at := e.sent + r.rtt + window; at > s.now {
			r.reorder = max(r.reorder, at)
			continue
		}
		if e.flags&retransInFlight != 0 {
			f.board.markRetransLost(seq, e)
		}
		f.board.markLost(seq, e)
	}
	if r.reorder != 0 {
		f.wake(s, r.reorder)
	}
}

// rackTimer does what a timer of RACK or of the probe asks for.
func (f *sender) rackTimer(s *Sim) {
	r := &f.rack
	if r.reorder != 0 && r.reorder <= s.now {
		f.rackDetect(s)
		if f.state == caOpen && f.board.lost > 0 {
			f.cc.InFlight = float64(f.board.next - f.board.una)
			f.enterRecovery(s)
		}
		f.retransmitLost(s)
		f.refresh()
		f.c.schedule(s)
	}
	if r.probe != 0 && r.probe <= s.now {
		r.probe = 0
		f.sendProbe(s)
	}
}

// ackDelay is the longest that the receiver waits with an acknowledgement (section 7.2,
// TLP.max_ack_delay).
const ackDelay = 40 * time.Millisecond

// armProbe sets when a tail loss probe is sent (section 7.2).
func (f *sender) armProbe(s *Sim) {
	r := &f.rack
	r.probe = 0
	if f.state != caOpen || f.board.sacked > 0 || f.board.una == f.board.next || r.probing {
		return
	}
	wait := time.Second
	if f.retrans.rtt.SRTT > 0 {
		wait = 2 * f.retrans.rtt.SRTT
		if f.board.next-f.board.una == 1 {
			wait += ackDelay
		}
	}
	if at := s.now + wait; at < f.retrans.deadline {
		r.probe = at
		f.wake(s, at)
	}
}

// sendProbe sends a tail loss probe: new data if there is, or the last segment again (section 7.3).
// On a subflow of MPTCP it is always the latter: new data is the scheduler's.
func (f *sender) sendProbe(s *Sim) {
	r := &f.rack
	if f.state != caOpen || f.board.una == f.board.next {
		return
	}
	f.result.Probes++
	r.probing, r.again = true, false
	c := f.c
	if n := c.newData(s); !c.MPTCP && n > 0 && f.board.next-f.board.una < f.window {
		f.sendNew(s, c.next, n)
		c.next += uint64(n)
	} else {
		seq, e := f.board.last()
		f.retransmit(s, seq, e)
		r.again = true
	}
	r.probed = f.board.next
	f.restart(s)
	f.refresh()
}

// accountProbe is section 7.4.2: a probe that repaired a loss was a loss all the same.
func (f *sender) accountProbe(s *Sim, p *packet) {
	r := &f.rack
	if !r.probing || p.seq < r.probed {
		return
	}
	switch {
	case !r.again || p.duplicate:
		r.probing = false
	case p.seq > r.probed:
		r.probing = false
		if f.state == caOpen {
			f.cc.InFlight = float64(f.board.inFlight())
			f.c.control.Lost(f.c.flows, f.index, s.now)
		}
	}
}
