package flowcount

import "encoding/binary"

// referenceFlow says what bpf/lib/packet.h must find in a packet that begins with an Ethernet
// header, written from the formats (RFC 8200, 791, 4302, 9293, 768) and not from that file: the
// flow's key without interface and direction, and how many bytes come before the payload.
func referenceFlow(packet []byte) (Key, int, Reason) {
	var key Key
	// at returns n bytes at an offset, or nil when the packet ends before.
	at := func(offset, n int) []byte {
		if offset+n > len(packet) {
			return nil
		}
		return packet[offset : offset+n]
	}

	b := at(12, 2)
	if b == nil {
		return key, 0, Truncated
	}
	ethertype := binary.BigEndian.Uint16(b)
	offset := 14
	for tags := 0; tags < 2 && (ethertype == 0x8100 || ethertype == 0x88a8); tags++ {
		if b = at(offset, 4); b == nil {
			return key, 0, Truncated
		}
		ethertype = binary.BigEndian.Uint16(b[2:])
		offset += 4
	}

	var proto byte
	var reason Reason
	switch ethertype {
	case 0x0800:
		if proto, offset, reason = referenceIPv4(at, offset, &key); reason != Counted {
			return key, 0, reason
		}
	case 0x86dd:
		outer := offset
		if proto, offset, reason = referenceIPv6(at, outer); reason != Counted {
			return key, 0, reason
		}
		addresses := outer
		if proto == 41 || proto == 4 {
			copy(key.Sid[:], at(outer+24, 16))
			addresses = offset
			if proto == 4 {
				proto, offset, reason = referenceIPv4(at, offset, &key)
			} else {
				proto, offset, reason = referenceIPv6(at, offset)
			}
			if reason != Counted {
				return key, 0, reason
			}
			if proto == 41 || proto == 4 {
				return key, 0, Nested
			}
		}
		if key.Family == 0 {
			b := at(addresses+8, 32)
			key.Family = 6
			copy(key.Source[:], b[:16])
			copy(key.Destination[:], b[16:])
		}
	default:
		return key, 0, NotIP
	}

	if proto != 6 && proto != 17 {
		return key, 0, Protocol
	}
	key.Protocol = proto
	header := 8
	if proto == 6 {
		header = 20
	}
	if b = at(offset, header); b == nil {
		return key, 0, Truncated
	}
	key.SourcePort = binary.BigEndian.Uint16(b)
	key.DestinationPort = binary.BigEndian.Uint16(b[2:])
	if proto == 6 {
		header = int(b[12]>>4) * 4
	}
	return key, offset + header, Counted
}

func referenceIPv4(at func(int, int) []byte, offset int, key *Key) (proto byte, next int, reason Reason) {
	b := at(offset, 20)
	switch {
	case b == nil:
		return 0, 0, Truncated
	case b[0]>>4 != 4 || b[0]&15 < 5:
		return 0, 0, Malformed
	case binary.BigEndian.Uint16(b[6:])&0x1fff != 0:
		return 0, 0, Fragment
	}
	key.Family = 4
	copy(key.Source[10:], append([]byte{0xff, 0xff}, b[12:16]...))
	copy(key.Destination[10:], append([]byte{0xff, 0xff}, b[16:20]...))
	return b[9], offset + int(b[0]&15)*4, Counted
}

func referenceIPv6(at func(int, int) []byte, offset int) (proto byte, next int, reason Reason) {
	b := at(offset, 40)
	if b == nil {
		return 0, 0, Truncated
	}
	if b[0]>>4 != 6 {
		return 0, 0, Malformed
	}
	proto, next = b[6], offset+40
	for n := 0; ; n++ {
		var length int
		switch proto {
		case 0, 43, 60, 51, 44:
		default:
			return proto, next, Counted
		}
		if n == 8 {
			return 0, 0, Extensions
		}
		if b = at(next, 4); b == nil {
			return 0, 0, Truncated
		}
		switch proto {
		case 44:
			if binary.BigEndian.Uint16(b[2:])>>3 != 0 {
				return 0, 0, Fragment
			}
			length = 8
		case 51:
			length = (int(b[1]) + 2) * 4
		default:
			length = (int(b[1]) + 1) * 8
		}
		proto, next = b[0], next+length
	}
}
