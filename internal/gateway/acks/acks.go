// Package acks decides which acknowledgments of TCP a queue need not send because a later one says
// as much. It has no queue and keeps nothing.
package acks

import (
	"bytes"
	"encoding/binary"
)

const (
	ipv4Len, ipv6Len, tcpLen = 20, 40, 20
	protocolTCP              = 6
	// maxBlocks is the number of SACK blocks that fit into the options of TCP (RFC 2018, section 3).
	maxBlocks = 4
)

// The kinds of options (RFC 9293, section 3.1; RFC 2018; RFC 7323).
const (
	kindEnd, kindNop, kindSACK, kindTimestamps = 0, 1, 5, 8
	timestampsLen                              = 10
)

// Ack is a TCP segment without data and with no other flag than ACK. The numbers wrap around.
type Ack struct {
	// Seq is the sequence number of what its sender sends next, Number the cumulative
	// acknowledgment.
	Seq, Number uint32
	// Timed: it has the timestamps Value and Echo (RFC 7323).
	Timed       bool
	Value, Echo uint32
	// Blocks are the SACK blocks, of which the first Count are in use.
	Blocks [maxBlocks]Block
	Count  int
}

// Block is what was received from Start to before End.
type Block struct{ Start, End uint32 }

// Supersedes reports whether an IP packet is an acknowledgment that says all that an earlier packet
// of the same connection does, which is one too.
func Supersedes(packet, old []byte) bool {
	t, o := header(packet), header(old)
	if t == nil || o == nil || !bytes.Equal(t[:4], o[:4]) || !sameIP(packet, old) {
		return false
	}
	var a, b Ack
	return a.parse(t) && b.parse(o) && a.Supersedes(&b)
}

// header returns the TCP segment of an IP packet without options or extension headers that is whole
// and no fragment, or nil.
func header(b []byte) []byte {
	at := ipv4Len
	switch {
	case len(b) >= ipv4Len+tcpLen && b[0] == 0x45:
		if int(binary.BigEndian.Uint16(b[2:])) != len(b) || b[9] != protocolTCP || binary.BigEndian.Uint16(b[6:])&0x3fff != 0 {
			return nil
		}
	case len(b) >= ipv6Len+tcpLen && b[0]>>4 == 6:
		if at = ipv6Len; int(binary.BigEndian.Uint16(b[4:]))+at != len(b) || b[6] != protocolTCP {
			return nil
		}
	default:
		return nil
	}
	return b[at:]
}

// sameIP reports whether two packets that header accepts have the same addresses and traffic class,
// with the ECN field: a congestion mark is not lost.
func sameIP(a, b []byte) bool {
	if a[0]>>4 == 4 {
		return bytes.Equal(a[:2], b[:2]) && bytes.Equal(a[12:ipv4Len], b[12:ipv4Len])
	}
	return bytes.Equal(a[:4], b[:4]) && bytes.Equal(a[8:ipv6Len], b[8:ipv6Len])
}

// parse reads a TCP segment of at least tcpLen bytes. It reports false for all that is not known to
// be repeated by later acknowledgments: data, flags, with those of ECN and the reserved ones, and
// options such as those of MPTCP.
func (a *Ack) parse(t []byte) bool {
	const ack = 1 << 4
	if int(t[12]>>4)*4 != len(t) || t[12]&15 != 0 || t[13] != ack {
		return false
	}
	*a = Ack{Seq: binary.BigEndian.Uint32(t[4:]), Number: binary.BigEndian.Uint32(t[8:])}
	for o := t[tcpLen:]; len(o) > 0 && o[0] != kindEnd; {
		if o[0] == kindNop {
			o = o[1:]
			continue
		}
		if len(o) < 2 || o[1] < 2 || int(o[1]) > len(o) {
			return false
		}
		length := int(o[1])
		switch v := o[2:length]; {
		case o[0] == kindTimestamps && length == timestampsLen && !a.Timed:
			a.Timed, a.Value, a.Echo = true, binary.BigEndian.Uint32(v), binary.BigEndian.Uint32(v[4:])
		case o[0] == kindSACK && len(v)%8 == 0 && len(v) <= 8*maxBlocks && a.Count == 0:
			for ; len(v) > 0; v = v[8:] {
				a.Blocks[a.Count] = Block{binary.BigEndian.Uint32(v), binary.BigEndian.Uint32(v[4:])}
				a.Count++
			}
		default:
			return false
		}
		o = o[length:]
	}
	return true
}

// Supersedes reports whether an acknowledgment says all that an earlier one of its connection does,
// and more: it acknowledges more, or the same and more blocks. So duplicates, window updates and
// DSACKs (RFC 2883) are not superseded.
func (a *Ack) Supersedes(old *Ack) bool {
	if a.Seq != old.Seq || before(a.Number, old.Number) || a.Timed != old.Timed || before(a.Value, old.Value) || before(a.Echo, old.Echo) {
		return false
	}
	for i, b := range old.Blocks[:old.Count] {
		if before(b.Start, old.Number) || i == 0 && old.Count > 1 && old.Blocks[1].covers(b) {
			return false // DSACK
		}
		if before(a.Number, b.End) && !a.has(b) {
			return false
		}
	}
	return a.Number != old.Number || a.selected() > old.selected()
}

// has reports whether one of the blocks covers another one.
func (a *Ack) has(b Block) bool {
	for _, own := range a.Blocks[:a.Count] {
		if own.covers(b) {
			return true
		}
	}
	return false
}

// selected returns the number of bytes in the blocks.
func (a *Ack) selected() (n uint64) {
	for _, b := range a.Blocks[:a.Count] {
		n += uint64(b.End - b.Start)
	}
	return n
}

func (b Block) covers(c Block) bool { return !before(c.Start, b.Start) && !before(b.End, c.End) }

// before compares numbers that wrap around (RFC 9293, section 3.4).
func before(a, b uint32) bool { return int32(a-b) < 0 }
