package sim

import "time"

// packet is a packet on a link: 64 bytes, a cache line. It has the header fields that the other end
// needs, and no payload.
type packet struct {
	// at is the timestamp (RFC 7323): TSval of data, TSecr of an acknowledgement.
	at time.Duration
	// data is the data sequence number, or the data acknowledgement.
	data uint64
	// seq is the number of the segment on its subflow, or the cumulative acknowledgement: the first
	// segment that has not been received.
	seq uint32
	// window is the receive window in bytes, relative to data.
	window uint32
	// hop is its position in Sim.hops.
	hop uint32
	// flow is the subflow or the source of cross traffic.
	flow int32
	// length is that of the payload.
	length uint16
	kind   kind
	// blocks is the number of SACK blocks. duplicate: the segment had been received before, and
	// dsack is the low half of its number (RFC 2883). Of a probe: packets wait in front of its
	// path.
	blocks    uint8
	duplicate bool
	dsack     uint16
	// sack begins, in a retransmission between gateways, with the path and the number of the packet
	// that was lost; the span laneSpan begins with the lane.
	sack [maxBlocks]span
}

// span is the segments [start, end).
type span struct{ start, end uint32 }

// maxBlocks is the number of SACK blocks that fit in the option space next to timestamps (RFC 2018,
// section 3).
const maxBlocks = 3

// laneSpan is the span of a packet between gateways that has its lane.
const laneSpan = 1

type kind uint8

const (
	data kind = iota
	ack
	syn         // from the receiver of the data, which opens the connection
	synACK      // from the sender
	established // ACK with the request, or the third ACK of an MP_JOIN, from the receiver
	probe
	reply
	cross
	tunneled // a packet between gateways
	tunnelProbe
	tunnelReply
	tunnelRequest // for lost packets between gateways
)

// noWindow is a window without limit.
const noWindow = 1<<32 - 1

// traffic counts the packets in flight. It implements the packet store of the links' pipes, which
// hold the packets themselves in order of use, since those of many connections exceed the CPU
// cache.
type traffic struct{ packets, most int }

// maxPackets is the maximum of packets in flight, which take 512 MiB.
const maxPackets = 1 << 22

// Retain counts a duplicate of a packet, Release a packet that is dropped.
func (t *traffic) Retain(packet) { t.packets++ }

// Release is documented with Retain.
func (t *traffic) Release(packet) { t.packets-- }
