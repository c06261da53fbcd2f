package sim

import (
	"time"

	"github.com/tabane/tabane/internal/unit"
)

// receiver is the receiving end of a subflow.
type receiver struct {
	c     *connection
	index int
	flow  int32
	back  uint32 // the way

	next uint32 // the first segment that has not arrived
	// bits are the segments from next on that have arrived, in a ring.
	bits []uint64
	held int // of them
	// blocks are the last ones that arrived or grew, the latest first (RFC 2018, section 4).
	blocks  [maxBlocks]span
	nblocks int

	// confirmed is the last acknowledgement, and echo TS.Recent: the timestamp of the latest
	// segment that was not beyond it (RFC 7323, section 4.3).
	confirmed uint32
	echo      time.Duration
	waiting   int // segments that are not acknowledged
	quick     int // segments that are still acknowledged one by one
	// deadline is when waiting segments are acknowledged. There is an event no later than that.
	deadline time.Duration

	// offer is how much of the window the subflow offers so far (Linux: rcv_ssthresh). rtt is the
	// round trip time as this end knows it, when it was measured last, and way the least of the way
	// here.
	offer              uint64
	rtt, measured, way time.Duration

	arrived    uint64 // bytes
	duplicates uint64
	series     []unit.Size
	sampled    uint64 // arrived, at the last sample
}

func (r *receiver) word(seq uint32) (*uint64, uint64) {
	return &r.bits[int(seq>>6)&(len(r.bits)-1)], 1 << (seq & 63)
}

// data takes a segment.
func (r *receiver) data(s *Sim, p *packet) {
	seq := p.seq
	if seq <= r.confirmed && p.at > r.echo {
		r.echo = p.at
	}
	duplicate, gap := false, r.held > 0
	switch {
	case seq < r.next:
		duplicate = true
	case seq == r.next:
		r.next++
		if r.held > 0 {
			r.close()
		}
	default:
		duplicate = !r.keep(s, seq)
	}
	if duplicate {
		r.duplicates++
	} else {
		r.arrived += uint64(p.length)
		r.widen(s, p)
	}
	r.c.take(s, r.index, p)
	r.waiting++
	if r.quick > 0 {
		r.quick--
	} else if r.c.DelayedACK && r.waiting < 2 && !duplicate && !gap && r.held == 0 {
		r.deadline = s.now + maxAckDelay
		if source := s.receiverSource(r.flow); !s.events.has(source) {
			s.events.set(source, r.deadline)
		}
		return
	}
	r.acknowledge(s, duplicate, seq)
}

// close moves next behind what has arrived.
func (r *receiver) close() {
	for r.held > 0 {
		w, bit := r.word(r.next)
		if *w&bit == 0 {
			break
		}
		*w &^= bit
		r.held--
		r.next++
	}
	n := 0
	for _, b := range r.blocks[:r.nblocks] {
		if b.end > r.next {
			r.blocks[n] = b
			n++
		}
	}
	r.nblocks = n
}

// keep notes a segment behind a gap, and returns false when it had arrived before.
func (r *receiver) keep(s *Sim, seq uint32) bool {
	for int(seq-r.next) >= 64*(len(r.bits)-1) {
		r.grow(s)
	}
	w, bit := r.word(seq)
	if *w&bit != 0 {
		return false
	}
	*w |= bit
	r.held++
	latest := span{seq, seq + 1}
	n := 0
	var rest [maxBlocks]span
	for _, b := range r.blocks[:r.nblocks] {
		switch {
		case b.end == latest.start:
			latest.start = b.start
		case b.start == latest.end:
			latest.end = b.end
		default:
			rest[n] = b
			n++
		}
	}
	r.blocks[0] = latest
	r.nblocks = 1 + copy(r.blocks[1:], rest[:n])
	return true
}

func (r *receiver) grow(s *Sim) {
	old := r.bits
	r.bits = make([]uint64, max(4, 2*len(old)))
	s.spend(len(r.bits) / 3)
	if len(old) == 0 {
		return
	}
	// A word keeps its number: from that of next on, all that are in the ring.
	first := r.next >> 6
	for i := range uint32(len(old)) {
		r.bits[int(first+i)&(len(r.bits)-1)] = old[int(first+i)&(len(old)-1)]
	}
}

// acknowledge sends an acknowledgement; duplicate: with a DSACK of segment seq.
func (r *receiver) acknowledge(s *Sim, duplicate bool, seq uint32) {
	r.waiting, r.deadline = 0, 0
	r.confirmed = r.next
	p := packet{kind: ack, flow: r.flow, hop: r.back, at: r.echo, seq: r.next, duplicate: duplicate, dsack: uint16(seq), sack: r.blocks, blocks: uint8(r.nblocks)}
	p.data, p.window = r.c.advertise(r)
	s.send(&p, int32(r.c.Header))
}

// timer is the event of the deadline.
func (r *receiver) timer(s *Sim) {
	switch source := s.receiverSource(r.flow); {
	case r.deadline == 0:
		s.events.remove(source)
	case r.deadline > s.now:
		s.events.set(source, r.deadline)
	default:
		s.events.remove(source)
		r.acknowledge(s, false, 0)
	}
}
