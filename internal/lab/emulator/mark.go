package emulator

import (
	"encoding/binary"

	"github.com/tabane/tabane/internal/base/checksum"
)

// mark sets Congestion Experienced in the IP header of a frame (RFC 3168, section 5) and reports
// whether the codepoint is set afterwards, also if it was set before. Frames of transports without
// ECN, truncated frames and protocols other than IP are unchanged. In an encapsulated packet the
// outer header is marked, as by a router. VLAN tags are skipped.
func mark(frame []byte) bool {
	const (
		typeAt  = 12 // offset of the EtherType
		maxTags = 2
	)
	at := typeAt
	for range maxTags + 1 {
		if len(frame) < at+2 {
			return false
		}
		packet := frame[at+2:]
		switch binary.BigEndian.Uint16(frame[at:]) {
		case 0x8100, 0x88a8:
			at += vlanTag
		case 0x0800:
			return markIPv4(packet)
		case 0x86dd:
			return markIPv6(packet)
		default:
			return false
		}
	}
	return false
}

// Codepoints of the ECN field (RFC 3168, section 5).
const (
	notCapable  = 0
	experienced = 3
)

func markIPv4(packet []byte) bool {
	const header = 20
	if len(packet) < header || packet[0]>>4 != 4 || packet[0]&0xf < header/4 {
		return false
	}
	switch packet[1] & experienced {
	case notCapable:
		return false
	case experienced:
		return true
	}
	old := binary.BigEndian.Uint16(packet)
	packet[1] |= experienced
	checksum.Update(packet[10:], old, binary.BigEndian.Uint16(packet))
	return true
}

func markIPv6(packet []byte) bool {
	const header = 40
	if len(packet) < header || packet[0]>>4 != 6 {
		return false
	}
	// The traffic class is in the low nibble of the first byte and the high nibble of the
	// second.
	if packet[1]>>4&experienced == notCapable {
		return false
	}
	packet[1] |= experienced << 4
	return true
}
