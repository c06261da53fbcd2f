package sim

import "time"

// PacketKind is the kind of a packet.
type PacketKind uint8

// The kinds of packets that connections send.
const (
	// PacketData is a segment with payload, PacketAck an acknowledgement without payload.
	PacketData PacketKind = iota
	PacketAck
	// PacketSYN, PacketSYNACK and PacketEstablish are the three packets of a handshake. The
	// receiver of the data sends the first and the third.
	PacketSYN
	PacketSYNACK
	PacketEstablish
)

// Packet is a packet as one end of a connection sees it.
type Packet struct {
	At   time.Duration
	Kind PacketKind
	// Sent: the packet leaves its source now. Otherwise it arrives at its destination.
	Sent             bool
	Connection, Path int
	// Timestamp is when the data was sent; an acknowledgement echoes it (RFC 7323).
	Timestamp time.Duration
	// Segment is the number of the segment on its subflow, from 1; in an acknowledgement, the
	// number of the first segment that has not arrived. First: the segment is sent for the
	// first time.
	Segment uint32
	First   bool
	// Data is the data sequence number of the first byte, from 0, or the data acknowledgement.
	// Length is the payload in bytes.
	Data   uint64
	Length int
	// Window is the receive window in bytes from Data on, or Unlimited.
	Window int64
	// SACK are ranges of segment numbers [first, end). The slice is valid until the function
	// returns.
	SACK [][2]uint32
}

// Unlimited is the Window of a connection without a receive buffer.
const Unlimited = int64(-1)

// Tap makes Run call f for every packet of a connection, at both ends, in the order of time. It
// must be called before Run; f must not call the simulation.
func (s *Sim) Tap(f func(Packet)) { s.tap = f }

// observe passes a packet to the tap.
func (s *Sim) observe(p *packet, sent bool) {
	var kind PacketKind
	switch p.kind {
	case data:
		kind = PacketData
	case ack:
		kind = PacketAck
	case syn:
		kind = PacketSYN
	case synACK:
		kind = PacketSYNACK
	case established:
		kind = PacketEstablish
	default:
		return
	}
	f := &s.senders[p.flow]
	var sack [maxBlocks][2]uint32
	for i, b := range p.sack[:p.blocks] {
		sack[i] = [2]uint32{b.start, b.end}
	}
	seen := Packet{
		At: s.now, Kind: kind, Sent: sent, Connection: int(f.c.id), Path: f.index, Timestamp: p.at, Segment: p.seq, Data: p.data,
		Length: int(p.length), Window: int64(p.window), SACK: sack[:p.blocks],
	}
	if kind == PacketData {
		seen.First = sent && p.seq > s.tapped[p.flow]
		s.tapped[p.flow] = max(s.tapped[p.flow], p.seq)
	}
	if kind != PacketAck || p.window == noWindow {
		seen.Window = Unlimited
	}
	s.tap(seen)
}
