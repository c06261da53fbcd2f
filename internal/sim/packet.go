package sim

import "time"

// packet is what goes over links: 64 bytes, a cache line. It has no content but what the other end decides by.
type packet struct {
	// at is the timestamp (RFC 7323): when data was sent; an acknowledgement echoes it.
	at time.Duration
	// data is the data sequence number, or the data acknowledgement.
	data uint64
	// seq is the number of the segment on its subflow, or the first that has not arrived: the cumulative acknowledgement.
	seq uint32
	// window is how many bytes from data on the receiver has room for.
	window uint32
	// hop is the first of its way in Sim.hops.
	hop uint32
	// flow is the subflow or the source of cross traffic.
	flow int32
	// length is the payload.
	length uint16
	kind   kind
	// copies is how many there are of it: links may duplicate.
	copies uint8
	// blocks is how many of sack are used. duplicate: what is acknowledged had arrived before (RFC 2883).
	blocks    uint8
	duplicate bool
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
	open   // SYN, from the receiver
	accept // SYN/ACK, from the sender
	ready  // ACK with the request, or the third ACK of a join, from the receiver
	probe
	reply
	cross
)

// noWindow stands for a window without limit.
const noWindow = 1<<32 - 1

// pool has all packets. It is the store of the links' pipes.
type pool struct {
	packets []packet
	free    []int32
	most    int // there may be at once
}

// mostPackets is how many packets there may be at once: 256 MiB.
const mostPackets = 1 << 22

// take returns an unused packet, which has still what it had, and false when there are too many.
func (p *pool) take() (int32, bool) {
	if n := len(p.free) - 1; n >= 0 {
		slot := p.free[n]
		p.free = p.free[:n]
		return slot, true
	}
	if len(p.packets) == p.most {
		return 0, false
	}
	p.packets = append(p.packets, packet{})
	return int32(len(p.packets) - 1), true
}

// Retain and Release count the copies of a packet.
func (p *pool) Retain(slot int32) { p.packets[slot].copies++ }

// Release is documented with Retain.
func (p *pool) Release(slot int32) {
	if p.packets[slot].copies--; p.packets[slot].copies == 0 {
		p.free = append(p.free, slot)
	}
}
