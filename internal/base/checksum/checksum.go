// Package checksum is the internet checksum of IP, TCP, UDP and ICMP (RFC 1071).
package checksum

import (
	"encoding/binary"
	"math/bits"
)

// Of returns the checksum of parts, of which all but the last have even length. It is 0 if the
// parts contain their right checksum.
func Of(parts ...[]byte) uint16 {
	var s uint64
	for _, b := range parts {
		s = Sum(b, s)
	}
	return ^Fold(s)
}

// Sum adds bytes to a ones' complement sum of 64 bits. Only the last part of data may have odd
// length.
func Sum(b []byte, s uint64) uint64 {
	var c uint64
	for len(b) >= 64 {
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b), 0)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b[8:]), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b[16:]), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b[24:]), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b[32:]), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b[40:]), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b[48:]), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b[56:]), c)
		s += c
		b = b[64:]
	}
	for len(b) >= 8 {
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b), 0)
		s += c
		b = b[8:]
	}
	var rest [8]byte
	copy(rest[:], b)
	s, c = bits.Add64(s, binary.BigEndian.Uint64(rest[:]), 0)
	return s + c
}

// Fold reduces a sum to 16 bits. The checksum is its complement.
func Fold(s uint64) uint16 {
	s = s>>32 + s&0xffffffff
	s = s>>32 + s&0xffffffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return uint16(s)
}

// Pseudo returns the sum of the pseudo header (RFC 9293 section 3.1, RFC 8200 section 8.1) of an IP
// packet, whose transport header and payload have length bytes.
func Pseudo(packet []byte, protocol byte, length int) uint64 {
	s := uint64(protocol) + uint64(length)
	if packet[0]>>4 == 4 {
		return Sum(packet[12:20], s)
	}
	return Sum(packet[8:40], s)
}

// Update changes a checksum for a 16-bit word that has changed (RFC 1624, equation 3). A wrong
// checksum stays wrong.
func Update(field []byte, old, changed uint16) {
	s := uint64(^binary.BigEndian.Uint16(field)) + uint64(^old) + uint64(changed)
	binary.BigEndian.PutUint16(field, ^Fold(s))
}
