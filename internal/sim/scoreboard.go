package sim

// advance takes the cumulative acknowledgement, and returns how many segments it says have arrived that were not known to.
func (f *sender) advance(s *Sim, to uint32) int {
	delivered := 0
	for seq := f.una; seq != to; seq++ {
		e := f.at(seq)
		if e.flags&sacked != 0 {
			f.sacked--
		} else {
			delivered++
			f.arrived(s, seq, e)
		}
	}
	f.una = to
	f.judged, f.resent = max(f.judged, to), max(f.resent, to)
	return delivered
}

// arrived takes a segment out of what is in flight or lost.
func (f *sender) arrived(s *Sim, seq uint32, e *segment) {
	if e.flags&(lost|again) != 0 {
		if e.flags&lost != 0 {
			f.lost--
			if e.flags&again == 0 {
				f.pending--
			}
		}
		if e.flags&again != 0 {
			f.again--
		}
	}
	if f.c.RACK {
		f.rack.delivered(s.now, seq, e, f.rtt.Least)
	}
}

// selective takes the blocks of selective acknowledgements (RFC 2018), and returns how many segments they newly tell of. What the last
// acknowledgement told too is skipped: a long block that grows by a segment costs a segment.
func (f *sender) selective(s *Sim, p *packet) int {
	delivered := 0
	for _, b := range p.sack[:p.blocks] {
		b.start, b.end = max(b.start, f.una), min(b.end, f.next)
		for _, k := range f.blocks[:f.nblocks] {
			if k.start <= b.start && b.start < k.end {
				b.start = k.end
			}
			if k.start < b.end && b.end <= k.end {
				b.end = k.start
			}
		}
		for seq := b.start; seq < b.end; seq++ {
			e := f.at(seq)
			if e.flags&sacked != 0 {
				continue
			}
			f.arrived(s, seq, e)
			e.flags = e.flags&^(lost|again) | sacked
			f.sacked++
			delivered++
			f.rank(seq)
		}
	}
	f.blocks, f.nblocks = p.sack, int(p.blocks)
	return delivered
}

// rank keeps the three highest segments that were selectively acknowledged.
func (f *sender) rank(seq uint32) {
	h := &f.highest
	switch {
	case seq > h[0]:
		h[0], h[1], h[2] = seq, h[0], h[1]
	case seq > h[1]:
		h[1], h[2] = seq, h[1]
	case seq > h[2]:
		h[2] = seq
	}
}

// threshold is DupThresh of RFC 6675.
const threshold = 3

// judge finds segments that are lost because at least three above them have arrived (RFC 6675, section 4, IsLost).
func (f *sender) judge() {
	for ; f.judged < f.highest[threshold-1]; f.judged++ {
		f.deemLost(f.judged, f.at(f.judged))
	}
}

// deemLost marks a segment that was not yet, unless it arrived.
func (f *sender) deemLost(seq uint32, e *segment) {
	if e.flags&(sacked|lost) != 0 {
		return
	}
	e.flags |= lost
	f.lost++
	if e.flags&again == 0 {
		f.pending++
		f.resent = min(f.resent, seq)
	}
}

// enterRecovery begins fast recovery, and sends the first segment again whatever the window (RFC 6675, section 5, steps 4.1 to 4.3).
func (f *sender) enterRecovery(s *Sim) {
	f.phase, f.recover, f.rescued = recovery, f.next, false
	f.result.Recoveries++
	f.c.control.Lost(f.c.flows, f.index, s.now)
	if f.pending > 0 {
		f.resendNext(s)
	}
}

// recoverLosses sends again what is lost while the window lets it (NextSeg 1).
func (f *sender) recoverLosses(s *Sim) {
	for f.pending > 0 && f.room() > 0 {
		f.resendNext(s)
	}
}

// resendNext sends the first pending segment; there is one.
func (f *sender) resendNext(s *Sim) {
	for {
		seq := f.resent
		e := f.at(seq)
		f.resent++
		if e.flags&(lost|sacked|again) == lost {
			f.resend(s, seq, e)
			return
		}
	}
}

// fill uses the window when there is no new data: for segments that are not yet deemed lost below one that arrived (NextSeg 3), and once
// for the last (NextSeg 4).
func (f *sender) fill(s *Sim) {
	for seq := max(f.una, f.judged); seq < f.highest[0] && f.room() > 0; seq++ {
		if e := f.at(seq); e.flags&(sacked|again|ever) == 0 {
			f.resend(s, seq, e)
		}
	}
	if f.rescued || f.room() <= 0 || f.una == f.next {
		return
	}
	f.rescued = true
	seq := f.next - 1
	for seq > f.una && f.at(seq).flags&sacked != 0 {
		seq--
	}
	if e := f.at(seq); e.flags&(sacked|again) == 0 {
		f.resend(s, seq, e)
	}
}
