package sim

// enterRecovery starts fast recovery, and retransmits the first segment regardless of the window
// (RFC 6675, section 5, steps 4.1 to 4.3).
func (f *sender) enterRecovery(s *Sim) {
	f.state, f.recover, f.rescued = caRecovery, f.board.next, false
	f.result.Recoveries++
	f.undo.begin(&f.board, f.cc)
	f.c.control.Lost(f.c.flows, f.index, s.now)
	if f.board.pending > 0 {
		f.retransmitNext(s)
	}
}

// retransmitLost retransmits lost segments while the window has room (NextSeg 1).
func (f *sender) retransmitLost(s *Sim) {
	for f.board.pending > 0 && f.room() > 0 {
		f.retransmitNext(s)
	}
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
	for seq := max(b.una, b.lossMarked); seq < b.highest[0] && f.room() > 0; seq++ {
		if e := b.at(seq); e.flags&(sacked|retransInFlight|everRetrans) == 0 {
			f.retransmit(s, seq, e)
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
