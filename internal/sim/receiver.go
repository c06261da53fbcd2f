package sim

import (
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// receiver is the receiving end of a subflow.
type receiver struct {
	c     *connection
	index int
	flow  int32
	back  uint32 // the route of acknowledgements

	next uint32 // RCV.NXT: the first segment that has not been received
	// bits is a ring bitmap of the segments received above next, held their number.
	bits []uint64
	held int
	// blocks are the SACK blocks, the most recent first (RFC 2018, section 4).
	blocks  [maxBlocks]span
	nblocks int

	// confirmed is the last acknowledgement sent (Last.ACK.sent), and echo is TS.Recent (RFC 7323,
	// section 4.3).
	confirmed uint32
	echo      time.Duration
	waiting   int // segments received and not acknowledged
	quick     int // quick acknowledgements left
	// deadline is when the delayed acknowledgement timer expires, 0 when it is not running. The
	// event of the timer is scheduled at that time or earlier.
	deadline time.Duration

	// offer is the part of the window that the subflow may advertise (Linux: rcv_ssthresh). rtt
	// is the receiver's round-trip time (Linux: rcv_rtt_est), measured is the time of its last
	// sample, and way is the minimum one-way delay from the sender.
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

// pawsWindow is by how many milliseconds, the unit of timestamps, a segment may be older
// (TCP_PAWS_WINDOW of Linux).
const pawsWindow = 1

// overtaken reports whether Linux discards a segment because of its timestamp: a retransmission
// that was sent later and filled the first gap has overtaken it (PAWS, RFC 7323, section 5.3).
func (r *receiver) overtaken(p *packet) bool {
	return p.at/time.Millisecond+pawsWindow < r.echo/time.Millisecond
}

// data processes a segment.
func (r *receiver) data(s *Sim, p *packet) {
	seq := p.seq
	if r.c.RACK && r.overtaken(p) {
		r.acknowledge(s, seq < r.next, seq)
		return
	}
	old := r.c.RACK && seq+1 < r.confirmed // Linux refuses it before it reads the timestamp (tcp_sequence)
	if seq <= r.confirmed && p.at > r.echo && !old {
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

// close advances next over the segments received.
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

// keep records a segment above a gap, and returns false for a duplicate.
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
	// The position of a word in the ring is its number modulo the size of the ring.
	first := r.next >> 6
	for i := range uint32(len(old)) {
		r.bits[int(first+i)&(len(r.bits)-1)] = old[int(first+i)&(len(old)-1)]
	}
}

// acknowledge sends an acknowledgement. If duplicate is set, it carries a DSACK of segment seq.
func (r *receiver) acknowledge(s *Sim, duplicate bool, seq uint32) {
	r.waiting, r.deadline = 0, 0
	r.confirmed = r.next
	p := &packet{kind: ack, flow: r.flow, hop: r.back, at: r.echo, seq: r.next, duplicate: duplicate, dsack: uint16(seq), sack: r.blocks, blocks: uint8(r.nblocks)}
	p.data, p.window = r.c.advertise(r)
	s.send(p, int32(r.c.Header))
}

// timer handles the delayed acknowledgement timer.
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
