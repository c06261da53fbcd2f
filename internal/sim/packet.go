package sim

import "time"

// packet is what goes over links: 64 bytes, a cache line. It has no content but what the other end
// decides by.
type packet struct {
	// at is the timestamp (RFC 7323): when data was sent; an acknowledgement echoes it.
	at time.Duration
	// data is the data sequence number, or the data acknowledgement.
	data uint64
	// seq is the number of the segment on its subflow, or the first that has not arrived: the
	// cumulative acknowledgement.
	seq uint32
	// window is how many bytes from data on the receiver has room for.
	window uint32
	// hop is where it is, in Sim.hops.
	hop uint32
	// flow is the subflow or the source of cross traffic.
	flow int32
	// length is the payload.
	length uint16
	kind   kind
	// blocks is how many of sack are used. duplicate: the segment had been received before, and dsack
	// is the low half of its number (RFC 2883).
	blocks    uint8
	duplicate bool
	dsack     uint16
	sack      [maxBlocks]span
}

// span is segments from start until before end.
type span struct{ start, end uint32 }

// maxBlocks is what fits beside timestamps (RFC 2018, section 3).
const maxBlocks = 3

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
)

// noWindow stands for a window without limit.
const noWindow = 1<<32 - 1

// traffic counts the packets that are on the way. It is the store of the links' pipes, which carry
// packets as they are: what many connections have on the way is more than a cache holds, and so
// lies in the order in which it is needed.
type traffic struct{ packets, most int }

// mostPackets is how many packets there may be at once: they need 512 MiB.
const mostPackets = 1 << 22

// Retain counts a further copy of a packet, Release one that does not arrive.
func (t *traffic) Retain(packet) { t.packets++ }

// Release is documented with Retain.
func (t *traffic) Release(packet) { t.packets-- }
