package tunnel

import (
	"encoding/binary"
	"time"
)

const (
	// Lanes is the number of sequences of a tunnel. Packets of a flow use one lane, so that a
	// missing packet delays only the flows of its own lane.
	Lanes = 256
	// seqBits is the length of a sequence number: at a million packets per second in one lane, a
	// number comes back after 16 seconds.
	seqBits = 24
	seqMask = 1<<seqBits - 1
	// MaxDistance is the largest distance that a Stamp can hold.
	MaxDistance = 1<<15 - 1
	copiedBit   = 1 << 15
	// waitUnit is the unit of Stamp.Wait on the wire, which reaches to 1.05 s.
	waitUnit = 16 * time.Microsecond
)

// Seq is the number of a packet in its lane. It wraps around.
type Seq uint32

// Next returns the following number.
func (s Seq) Next() Seq { return (s + 1) & seqMask }

// Since returns how far s is after t, negative if before: from -2^23 to 2^23-1.
func (s Seq) Since(t Seq) int {
	return int(int32((uint32(s)-uint32(t))<<(32-seqBits)) >> (32 - seqBits))
}

// Stamp is the sealed part of a message before the packet.
type Stamp struct {
	// Sent is when the message was sent, in microseconds of the sender's clock. It wraps around.
	Sent uint32
	// Wait is the time that the packet was expected to wait in the path's queue, without which the
	// delay of a path would include the sender's own bursts.
	Wait time.Duration
	// Lane and Seq number the packet. A copy has the numbers of the original.
	Lane uint8
	Seq  Seq
	// Distance is Seq minus the number of the packet before it in this lane and on this path: the
	// numbers between them were sent on other paths, so a gap in the path's counters names the
	// packets that were lost. 0: it is unknown or larger than MaxDistance.
	Distance uint16
	// Copied: the packet before was also sent on another path.
	Copied bool
	// Origin is the message that a Retransmission repeats, in place of Sent and Wait. The rest is
	// as in that message.
	Origin Origin
}

// Origin is the path and the counter of a message that was lost.
type Origin struct {
	Path    uint8
	Counter uint64 // below MaxOrigin
}

// MaxOrigin bounds the counters of messages that can be retransmitted: at a million packets per
// second, it is reached after 200 days.
const (
	originBits = 44
	MaxOrigin  = 1 << originBits
)

// put writes the stamp of a message of that type to the first StampLen bytes. Wait is rounded down
// and bounded.
func (s Stamp) put(b []byte, kind Type) {
	if kind == Retransmission {
		origin := uint64(s.Origin.Path)<<originBits | s.Origin.Counter&(MaxOrigin-1)
		binary.BigEndian.PutUint16(b, uint16(origin>>32))
		binary.BigEndian.PutUint32(b[2:], uint32(origin))
	} else {
		binary.BigEndian.PutUint32(b, s.Sent)
		binary.BigEndian.PutUint16(b[4:], uint16(min(max(s.Wait/waitUnit, 0), 1<<16-1)))
	}
	binary.BigEndian.PutUint32(b[6:], uint32(s.Lane)<<seqBits|uint32(s.Seq)&seqMask)
	distance := s.Distance & MaxDistance
	if s.Copied {
		distance |= copiedBit
	}
	binary.BigEndian.PutUint16(b[10:], distance)
}

func parseStamp(b []byte, kind Type) Stamp {
	number, distance := binary.BigEndian.Uint32(b[6:]), binary.BigEndian.Uint16(b[10:])
	s := Stamp{
		Lane: uint8(number >> seqBits), Seq: Seq(number & seqMask),
		Distance: distance & MaxDistance, Copied: distance&copiedBit != 0,
	}
	if kind == Retransmission {
		origin := uint64(binary.BigEndian.Uint16(b))<<32 | uint64(binary.BigEndian.Uint32(b[2:]))
		s.Origin = Origin{Path: uint8(origin >> originBits), Counter: origin & (MaxOrigin - 1)}
	} else {
		s.Sent, s.Wait = binary.BigEndian.Uint32(b), time.Duration(binary.BigEndian.Uint16(b[4:]))*waitUnit
	}
	return s
}

// Numbering numbers the packets of a sender. It is not safe for concurrent use. The zero value is
// that of a new key: lanes begin with 0.
type Numbering struct {
	next [Lanes]Seq
	last [Lanes][MaxPaths]sent
}

// sent is the last packet of a lane on a path.
type sent struct {
	seq           Seq
	known, copied bool
}

// Assign returns the number of the next packet of a lane.
func (n *Numbering) Assign(lane uint8) Seq {
	s := n.next[lane]
	n.next[lane] = s.Next()
	return s
}

// Peek returns the number that the next packet of a lane will have. The receiver of a probe
// that carries it knows that an idle path holds no earlier packet.
func (n *Numbering) Peek(lane uint8) Seq { return n.next[lane] }

// Stamp returns the numbers of a packet that is sent on a path. copied means that it is, or will
// be, sent on another path too.
func (n *Numbering) Stamp(lane uint8, seq Seq, path uint8, copied bool) Stamp {
	s := Stamp{Lane: lane, Seq: seq}
	before := &n.last[lane][path]
	if before.known {
		if d := seq.Since(before.seq); d > 0 && d <= MaxDistance {
			s.Distance, s.Copied = uint16(d), before.copied
		}
	}
	*before = sent{seq: seq, known: true, copied: copied}
	return s
}
