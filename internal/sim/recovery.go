package sim

import "math"

// enterRecovery starts fast recovery, and retransmits the first segment regardless of the window
// (RFC 6675, section 5, steps 4.1 to 4.3).
func (f *sender) enterRecovery(s *Sim) {
	f.state, f.recover, f.rescued = caRecovery, f.board.next, false
	f.result.Recoveries++
	f.undo.begin(&f.board, f.cc)
	before := f.cc.Cwnd
	f.c.control.Lost(f.c.flows, f.index, s.now)
	if f.c.RACK {
		f.prr = reduction{active: true, before: before}
		return // the acknowledgment allows a retransmission
	}
	if f.board.pending > 0 {
		f.retransmitNext(s)
	}
}

// reduction is the state of a proportional rate reduction (RFC 6937; Linux: tcp_cwnd_reduction).
type reduction struct {
	active bool
	// before is the window before the reduction, delivered and sent count segments since then.
	before          float64
	delivered, sent int
}

// reduce sets the window in recovery after an acknowledgment by which so many segments are
// delivered. clean: it acknowledges new data, and no further segment is lost.
func (r *reduction) reduce(f *sender, delivered int, clean bool) {
	if !r.active || delivered <= 0 {
		return
	}
	r.delivered += delivered
	flight, target := int(f.board.inFlight()), int(f.cc.Ssthresh)
	may := 0
	if room := target - flight; room < 0 {
		may = int(math.Ceil(float64(target)*float64(r.delivered)/r.before)) - r.sent
	} else {
		may = max(r.delivered-r.sent, delivered)
		if clean {
			may++
		}
		may = min(may, room)
	}
	if r.sent == 0 {
		may = max(may, 1)
	}
	f.cc.Cwnd = float64(flight + max(may, 0))
}

// end ends the reduction with the window that it was to reach, unless it was undone.
func (r *reduction) end(f *sender) {
	if r.active && f.undo.marker != 0 {
		f.cc.Cwnd = f.cc.Ssthresh
	}
	r.active = false
}

// retransmitLost retransmits lost segments while the window has room (NextSeg 1).
func (f *sender) retransmitLost(s *Sim) {
	for f.board.pending > 0 && f.room() > 0 && !f.early(s) {
		f.retransmitNext(s)
	}
	f.pacing.flush()
}

// retransmitNext retransmits the first lost segment. There must be one.
func (f *sender) retransmitNext(s *Sim) {
	seq, e := f.board.nextPending()
	f.retransmit(s, seq, e)
}

// fillWindow uses the remaining window when there is no new data: for segments below the highest
// SACKed one that are not yet marked lost (NextSeg 3), and once for the last segment (NextSeg 4).
func (f *sender) fillWindow(s *Sim) {
	b := &f.board
	for b.filled = max(b.una, b.lossMarked, b.filled); b.filled < b.highest[0] && f.room() > 0; b.filled++ {
		if e := b.at(b.filled); e.flags&(sacked|everRetrans) == 0 {
			f.retransmit(s, b.filled, e)
		}
	}
	if f.rescued || f.room() <= 0 || b.una == b.next {
		return
	}
	f.rescued = true
	if seq, e := b.last(); e.flags&(sacked|retransInFlight) == 0 {
		f.retransmit(s, seq, e)
	}
}
