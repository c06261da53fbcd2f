package sim

import "time"

// segment is a segment that a subflow has sent and that is not acknowledged cumulatively.
type segment struct {
	data   uint64        // data sequence number of its first byte
	sent   time.Duration // when it was last sent
	length uint16
	flags
	next uint32 // SND.NXT when it was last retransmitted
}

// settled reports whether nothing of a segment is in flight: it has arrived, or is to be
// retransmitted.
func (e *segment) settled() bool {
	return e.flags&sacked != 0 || e.flags&(lost|retransInFlight) == lost
}

// flags are the state of a segment (RFC 6675, section 3).
type flags uint8

const (
	sacked          flags = 1 << iota // selectively acknowledged
	lost                              // marked lost
	retransInFlight                   // retransmitted, and the retransmission may be in flight
	everRetrans                       // retransmitted at some time
	reinjected                        // queued for the other subflows
)

// scoreboard is the state of the segments of a subflow that are not acknowledged cumulatively (RFC
// 6675, section 3). Segments are numbered from 1.
type scoreboard struct {
	// una is the first segment that is not acknowledged, next the first that has not been sent.
	una, next uint32
	ring      []segment

	// The number of segments from una on that are flagged sacked, lost and retransInFlight.
	// pending counts those to be retransmitted: lost, and neither sacked nor retransInFlight.
	sacked, lost, retrans, pending int32
	// highest are the three highest segments that were selectively acknowledged: segments below
	// the third are lost. Those below lossMarked have been marked already, and no segment below
	// retransNext is pending.
	highest                 [3]uint32
	lossMarked, retransNext uint32
	// Segments below filled need not be retransmitted by NextSeg 3: those from lossMarked on are
	// selectively acknowledged or were retransmitted, which no segment ceases to be.
	filled uint32
	// Segments below unsettled are sacked, lost, or in again, which has the retransmissions in the
	// order in which they were sent: RACK need not look at others.
	unsettled uint32
	again     []retransmission
	// late is the lowest segment below it that an acknowledgement brings first and that was never
	// retransmitted: a bound at first, which stays where there is none. 0: nobody asks.
	late uint32
	// timed are the round-trip times that the last acknowledgement gives RACK.
	timed timed
	// blocks are the SACK blocks of the last acknowledgement.
	blocks  [maxBlocks]span
	nblocks int
}

// timed are round-trip times of segments that were never retransmitted: of those that an
// acknowledgement brings first, cumulatively, and selectively (Linux: first_ackt to last_sackt), 0
// without any. retransmitted: it acknowledges a retransmission cumulatively.
type timed struct {
	first, last, firstSacked, lastSacked time.Duration
	retransmitted                        bool
}

// acknowledged adds a segment that is acknowledged cumulatively.
func (t *timed) acknowledged(e *segment, now time.Duration) {
	switch {
	case e.flags&everRetrans != 0:
		t.retransmitted = true
	case e.flags&sacked == 0:
		t.last = now - e.sent
		if t.first == 0 {
			t.first = t.last
		}
	}
}

// selected adds a segment that is selectively acknowledged.
func (t *timed) selected(e *segment, now time.Duration) {
	if e.flags&everRetrans == 0 {
		t.lastSacked = now - e.sent
		if t.firstSacked == 0 {
			t.firstSacked = t.lastSacked
		}
	}
}

// sample returns the sample for the timeout, and that of the segment sent last, 0 without any
// (tcp_clean_rtx_queue).
func (t *timed) sample() (rtt, latest time.Duration) {
	if !t.retransmitted {
		rtt, latest = t.first, t.last
	}
	if t.firstSacked > 0 {
		latest = t.lastSacked
		if rtt == 0 {
			rtt = t.firstSacked
		}
	}
	return rtt, latest
}

// retransmission is a segment that was sent again at a time. It may have been acknowledged, or sent
// once more, since.
type retransmission struct {
	seq  uint32
	sent time.Duration
}

func newScoreboard() scoreboard {
	return scoreboard{una: 1, next: 1, lossMarked: 1, retransNext: 1, unsettled: 1}
}

func (b *scoreboard) at(seq uint32) *segment { return &b.ring[seq&uint32(len(b.ring)-1)] }

// outstanding returns the number of segments sent and not acknowledged cumulatively.
func (b *scoreboard) outstanding() uint32 { return b.next - b.una }

// sent returns the highest segment sent whose number ends in these 16 bits.
func (b *scoreboard) sent(low uint16) uint32 {
	last := b.next - 1
	return last - uint32(uint16(last)-low)
}

// inFlight returns RFC 6675's pipe, in segments.
func (b *scoreboard) inFlight() int32 { return int32(b.next-b.una) - b.sacked - b.lost + b.retrans }

// full reports whether push needs a larger ring.
func (b *scoreboard) full() bool { return int(b.next-b.una) == len(b.ring) }

// grow doubles the ring, and returns the number of segments added to its capacity.
func (b *scoreboard) grow() int {
	ring := make([]segment, max(64, 2*len(b.ring)))
	for seq := b.una; seq != b.next; seq++ {
		ring[seq&uint32(len(ring)-1)] = *b.at(seq)
	}
	added := len(ring) - len(b.ring)
	b.ring = ring
	return added
}

// push adds a new segment. The ring must have room.
func (b *scoreboard) push(data uint64, length int) (seq uint32, e *segment) {
	seq = b.next
	e = b.at(seq)
	*e = segment{data: data, length: uint16(length)}
	b.next++
	return seq, e
}

// acknowledge processes the cumulative acknowledgement, and returns the number of segments that it
// newly acknowledges. r is nil without RACK.
func (b *scoreboard) acknowledge(to uint32, now, minRTT time.Duration, r *rack) int {
	if r != nil {
		b.timed = timed{}
	}
	delivered := 0
	for seq := b.una; seq != to; seq++ {
		e := b.at(seq)
		if r != nil {
			b.timed.acknowledged(e, now)
		}
		if e.flags&sacked != 0 {
			b.sacked--
			continue
		}
		delivered++
		b.arrived(seq, e, now, minRTT, r)
	}
	b.una = to
	b.lossMarked, b.retransNext, b.unsettled = max(b.lossMarked, to), max(b.retransNext, to), max(b.unsettled, to)
	return delivered
}

// arrived removes a segment from what is in flight or lost.
func (b *scoreboard) arrived(seq uint32, e *segment, now, minRTT time.Duration, r *rack) {
	if e.flags&(lost|retransInFlight) != 0 {
		if e.flags&lost != 0 {
			b.lost--
			if e.flags&retransInFlight == 0 {
				b.pending--
			}
		}
		if e.flags&retransInFlight != 0 {
			b.retrans--
		}
	}
	if seq < b.late && e.flags&everRetrans == 0 {
		b.late = seq
	}
	if r != nil {
		r.delivered(now, seq, e, minRTT)
	}
}

// selective processes the SACK blocks (RFC 2018), and returns the number of segments that they
// newly acknowledge. Ranges that were in the last acknowledgement are skipped, so that a long block
// that grows by one segment costs one segment.
func (b *scoreboard) selective(p *packet, now, minRTT time.Duration, r *rack) int {
	delivered := 0
	for _, k := range p.sack[:p.blocks] {
		k.start, k.end = max(k.start, b.una), min(k.end, b.next)
		for _, known := range b.blocks[:b.nblocks] {
			if known.start <= k.start && k.start < known.end {
				k.start = known.end
			}
			if known.start < k.end && k.end <= known.end {
				k.end = known.start
			}
		}
		for seq := k.start; seq < k.end; seq++ {
			e := b.at(seq)
			if e.flags&sacked != 0 {
				continue
			}
			b.arrived(seq, e, now, minRTT, r)
			if r != nil {
				b.timed.selected(e, now)
			}
			e.flags = e.flags&^(lost|retransInFlight) | sacked
			b.sacked++
			delivered++
			b.rank(seq)
		}
	}
	b.blocks, b.nblocks = p.sack, int(p.blocks)
	return delivered
}

// rank updates the three highest segments that were selectively acknowledged.
func (b *scoreboard) rank(seq uint32) {
	h := &b.highest
	switch {
	case seq > h[0]:
		h[0], h[1], h[2] = seq, h[0], h[1]
	case seq > h[1]:
		h[1], h[2] = seq, h[1]
	case seq > h[2]:
		h[2] = seq
	}
}

// dupThresh is DupThresh of RFC 6675.
const dupThresh = 3

// markLostBySACK marks segments lost because at least three above them have arrived (RFC 6675,
// section 4, IsLost).
func (b *scoreboard) markLostBySACK() {
	for ; b.lossMarked < b.highest[dupThresh-1]; b.lossMarked++ {
		b.markLost(b.lossMarked, b.at(b.lossMarked))
	}
}

// markLost marks a segment lost, unless it is already marked or has arrived.
func (b *scoreboard) markLost(seq uint32, e *segment) {
	if e.flags&(sacked|lost) != 0 {
		return
	}
	e.flags |= lost
	b.lost++
	if e.flags&retransInFlight == 0 {
		b.pending++
		b.retransNext = min(b.retransNext, seq)
	}
}

// markRetransLost marks the retransmission of a segment lost.
func (b *scoreboard) markRetransLost(seq uint32, e *segment) {
	e.flags &^= retransInFlight
	b.retrans--
	if e.flags&lost != 0 {
		b.pending++
		b.retransNext = min(b.retransNext, seq)
	}
}

// markAllLost marks all segments lost that were not selectively acknowledged, including
// retransmissions.
func (b *scoreboard) markAllLost() {
	b.retrans, b.lost = 0, 0
	for seq := b.una; seq != b.next; seq++ {
		e := b.at(seq)
		e.flags &^= retransInFlight
		if e.flags&sacked == 0 {
			e.flags |= lost
			b.lost++
		}
	}
	b.pending = b.lost
	b.lossMarked, b.retransNext, b.unsettled, b.again = b.next, b.una, b.next, b.again[:0]
}

// anyRetrans reports whether a retransmission is in flight, or the first segment has been
// retransmitted (Linux: tcp_any_retrans_done).
func (b *scoreboard) anyRetrans() bool {
	return b.retrans > 0 || b.una != b.next && b.at(b.una).flags&everRetrans != 0
}

// unmarkLost counts lost segments as in flight again.
func (b *scoreboard) unmarkLost() {
	for seq := b.una; seq != b.next; seq++ {
		b.at(seq).flags &^= lost
	}
	b.lost, b.pending, b.unsettled, b.again = 0, 0, b.una, b.again[:0]
}

// addAgain adds a retransmission to again.
func (b *scoreboard) addAgain(x retransmission) {
	i := len(b.again)
	b.again = append(b.again, x)
	for ; i > 0 && sentAfter(b.again[i-1].sent, b.again[i-1].seq, x.sent, x.seq); i-- {
		b.again[i] = b.again[i-1]
	}
	b.again[i] = x
}

// retransmitted records a retransmission at the time now.
func (b *scoreboard) retransmitted(now time.Duration, seq uint32, e *segment) {
	if seq < b.unsettled {
		b.addAgain(retransmission{seq, now})
	}
	if e.flags&retransInFlight == 0 {
		if e.flags&lost != 0 {
			b.pending--
		}
		b.retrans++
	}
	e.flags |= retransInFlight | everRetrans
	e.next = b.next
}

// nextPending returns the first segment to be retransmitted (RFC 6675, section 4, NextSeg 1). There
// must be one.
func (b *scoreboard) nextPending() (uint32, *segment) {
	for {
		seq := b.retransNext
		e := b.at(seq)
		b.retransNext++
		if e.flags&(lost|sacked|retransInFlight) == lost {
			return seq, e
		}
	}
}

// last returns the highest segment that was not selectively acknowledged, or the first if all were.
func (b *scoreboard) last() (uint32, *segment) {
	seq := b.next - 1
	for seq > b.una && b.at(seq).flags&sacked != 0 {
		seq--
	}
	return seq, b.at(seq)
}
