package tun

import (
	"encoding/binary"
	"math/bits"
)

// Checksum returns the internet checksum (RFC 1071) of parts, of which all but the last have even
// length.
func Checksum(parts ...[]byte) uint16 {
	var s uint64
	for _, b := range parts {
		s = sum(b, s)
	}
	return ^fold(s)
}

// sum adds the bytes to a ones' complement sum of 64 bits (RFC 1071). Only the last part of data
// may have odd length.
func sum(b []byte, s uint64) uint64 {
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

// fold reduces a sum to 16 bits.
func fold(s uint64) uint16 {
	s = s>>32 + s&0xffffffff
	s = s>>32 + s&0xffffffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return uint16(s)
}

// pseudo returns the sum of the pseudo header (RFC 9293 section 3.1, RFC 8200 section 8.1) of a
// packet, whose transport header and payload have length bytes.
func pseudo(packet []byte, protocol byte, length int) uint64 {
	s := uint64(protocol) + uint64(length)
	if packet[0]>>4 == 4 {
		return sum(packet[12:20], s)
	}
	return sum(packet[8:40], s)
}
