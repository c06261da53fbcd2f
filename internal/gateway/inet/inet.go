// Package inet reads and changes the headers of IP packets, and writes the packets that a router
// sends on its own: fragments and ICMP errors.
package inet

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/checksum"
	"github.com/tabane/tabane/internal/gateway/dataplane"
)

// The fixed lengths of headers in bytes.
const (
	V4Len, V6Len     = 20, 40
	UDPLen, TCPLen   = 8, 20
	UDP4Len, UDP6Len = V4Len + UDPLen, V6Len + UDPLen
)

// Header is what packets are forwarded by.
type Header struct {
	dataplane.Packet
	Class        uint8 // traffic class: DSCP and ECN
	Transport    int   // where the transport header is, 0 in later fragments
	Fragment     bool  // any fragment
	DontFragment bool
	Flow         uint32 // hash of addresses, protocol and ports
}

// Parse reads the headers of an IP packet, or of the beginning of a super-packet; false means that
// it is none.
func (h *Header) Parse(b []byte) bool {
	if len(b) < V4Len {
		return false
	}
	switch b[0] >> 4 {
	case 4:
		header := int(b[0]&15) * 4
		if header < V4Len || header > len(b) {
			return false
		}
		*h = Header{Class: b[1]}
		h.Src, h.Dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		h.Protocol = b[9]
		field := binary.BigEndian.Uint16(b[6:])
		h.DontFragment, h.Fragment = field&0x4000 != 0, field&0x3fff != 0
		if field&0x1fff == 0 {
			h.Transport = header
		}
	case 6:
		if len(b) < V6Len {
			return false
		}
		*h = Header{Class: uint8(binary.BigEndian.Uint16(b) >> 4), DontFragment: true}
		h.Src, h.Dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		h.Protocol, h.Transport, h.Fragment = upper(b)
	default:
		return false
	}
	h.DSCP = h.Class >> 2
	if h.Transport > 0 && h.Transport+4 <= len(b) && hasPorts(h.Protocol) {
		t := b[h.Transport:]
		h.SrcPort, h.DstPort = binary.BigEndian.Uint16(t), binary.BigEndian.Uint16(t[2:])
	}
	h.Flow = h.hash()
	return true
}

// maxExtensions bounds the extension headers that are skipped.
const maxExtensions = 8

// upper finds the upper layer of an IPv6 packet behind its extension headers (RFC 8200, section 4).
// at is 0 if it is not in the packet.
func upper(b []byte) (protocol uint8, at int, fragment bool) {
	protocol, at = b[6], V6Len
	for range maxExtensions {
		switch protocol {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS:
			if at+8 > len(b) {
				return protocol, 0, fragment
			}
			protocol, at = b[at], at+8+int(b[at+1])*8
		case unix.IPPROTO_FRAGMENT:
			if at+8 > len(b) {
				return protocol, 0, fragment
			}
			fragment = true
			offset := binary.BigEndian.Uint16(b[at+2:]) >> 3
			protocol, at = b[at], at+8
			if offset != 0 {
				return protocol, 0, true
			}
		default:
			if at > len(b) {
				at = 0
			}
			return protocol, at, fragment
		}
	}
	return protocol, 0, fragment
}

func hasPorts(protocol uint8) bool {
	switch protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_UDPLITE, unix.IPPROTO_DCCP, unix.IPPROTO_SCTP:
		return true
	}
	return false
}

// hash returns the hash of the flow: addresses, protocol and ports. Fragments of a datagram have
// only the first in common, whatever the fragment, so that they use one lane.
func (h *Header) hash() uint32 {
	src, dst := h.Src.As16(), h.Dst.As16()
	v := uint64(h.Protocol)
	if !h.Fragment {
		v |= uint64(h.SrcPort)<<16 | uint64(h.DstPort)<<32
	}
	for _, word := range [...]uint64{
		binary.LittleEndian.Uint64(src[:]), binary.LittleEndian.Uint64(src[8:]),
		binary.LittleEndian.Uint64(dst[:]), binary.LittleEndian.Uint64(dst[8:]),
	} {
		hi, lo := bits.Mul64(v^word^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
		v = hi ^ lo
	}
	return uint32(v ^ v>>32)
}

// The code points of ECN (RFC 3168).
const (
	ECNMask = 3
	NotECT  = 0
	CE      = 3
)

// Decapsulate transfers the congestion mark of the outer header to the packet (RFC 6040, section
// 4.2). It reports false for a packet that has to be dropped.
func Decapsulate(outer uint8, b []byte) bool {
	if outer&ECNMask != CE {
		return true
	}
	var class uint8
	if b[0]>>4 == 4 {
		class = b[1]
	} else {
		class = uint8(binary.BigEndian.Uint16(b) >> 4)
	}
	switch class & ECNMask {
	case NotECT:
		return false
	case CE:
		return true
	}
	if b[0]>>4 == 4 {
		old := binary.BigEndian.Uint16(b)
		b[1] |= CE
		checksum.Update(b[10:12], old, binary.BigEndian.Uint16(b))
		return true
	}
	binary.BigEndian.PutUint16(b, binary.BigEndian.Uint16(b)|CE<<4)
	return true
}

// ClampMSS lowers the maximum segment size of a TCP SYN to what fits into packets of mtu bytes (RFC
// 4459, section 3.2). h is its header.
func ClampMSS(b []byte, h *Header, mtu int) {
	if h.Protocol != unix.IPPROTO_TCP || h.Transport == 0 || h.Fragment || len(b) < h.Transport+TCPLen {
		return
	}
	t := b[h.Transport:]
	const kindEnd, kindNop, kindMSS = 0, 1, 2
	header := int(t[12]>>4) * 4
	if t[13]&FlagSYN == 0 || header < TCPLen || header > len(t) {
		return
	}
	maxMSS := mtu - TCPLen - V4Len
	if b[0]>>4 == 6 {
		maxMSS = mtu - TCPLen - V6Len
	}
	for o := TCPLen; o < header; {
		switch kind := t[o]; {
		case kind == kindEnd:
			return
		case kind == kindNop:
			o++
			continue
		case o+1 >= header || t[o+1] < 2 || o+int(t[o+1]) > header:
			return
		case kind == kindMSS && t[o+1] == 4:
			value := binary.BigEndian.Uint16(t[o+2:])
			if int(value) <= maxMSS || maxMSS <= 0 {
				return
			}
			// The words of the checksum may lie across the option.
			replace16(t, o+2, uint16(maxMSS))
			return
		default:
			o += int(t[o+1])
		}
	}
}

// replace16 writes a value at an offset of a TCP header, which may be odd, and updates the
// checksum.
func replace16(t []byte, at int, value uint16) {
	before := at &^ 1
	after := (at + 1) &^ 1 // the same word, or the next one
	first, second := binary.BigEndian.Uint16(t[before:]), binary.BigEndian.Uint16(t[after:])
	binary.BigEndian.PutUint16(t[at:], value)
	checksum.Update(t[16:18], first, binary.BigEndian.Uint16(t[before:]))
	if after != before {
		checksum.Update(t[16:18], second, binary.BigEndian.Uint16(t[after:]))
	}
}

const (
	// quoted4 is how much of a packet an ICMP error quotes: at least 8 bytes behind the header (RFC
	// 792), and as much as fits into 576 bytes (RFC 1812, section 4.3.2.3).
	quoted4 = 576 - V4Len - 8
	// quoted6 is that of ICMPv6: as much as fits into the least MTU (RFC 4443, section 3.2).
	quoted6 = MinMTU6 - V6Len - 8
)

// MinMTU6 is what IPv6 hosts send whatever an error says (RFC 8200, section 5).
const MinMTU6 = 1280

// TooBig returns the ICMP message (RFC 792 and RFC 1191, RFC 4443 section 3.2) that reports to the
// sender of a packet that only mtu bytes fit, but not less than MinMTU6 in IPv6, appended to
// out. The source is the packet's destination, which the way back from there would have too. There
// is none for a packet that must not be answered: an ICMP error, a later fragment, a multicast
// address.
func TooBig(out, packet []byte, h *Header, mtu int) []byte {
	if h.Transport == 0 || h.Src.IsUnspecified() || h.Src.IsMulticast() || h.Dst.IsMulticast() {
		return out
	}
	kind := byte(255)
	if h.Transport < len(packet) {
		kind = packet[h.Transport]
	}
	if h.Src.Is4() {
		// Only echo requests and replies, time stamps and information are no errors.
		if h.Protocol == unix.IPPROTO_ICMP && kind != 0 && kind != 8 && (kind < 13 || kind > 18) {
			return out
		}
		quote := packet[:min(len(packet), quoted4)]
		src, dst := h.Dst.As4(), h.Src.As4()
		n := V4Len + 8 + len(quote)
		at := len(out)
		out = append(out, 0x45, 0xc0, byte(n>>8), byte(n), 0, 0, 0x40, 0, 64, unix.IPPROTO_ICMP, 0, 0)
		out = append(append(out, src[:]...), dst[:]...)
		binary.BigEndian.PutUint16(out[at+10:], checksum.Of(out[at:at+V4Len]))
		icmp := len(out)
		out = append(out, 3, 4, 0, 0, 0, 0, byte(mtu>>8), byte(mtu))
		out = append(out, quote...)
		binary.BigEndian.PutUint16(out[icmp+2:], checksum.Of(out[icmp:]))
		return out
	}
	if h.Protocol == unix.IPPROTO_ICMPV6 && kind < 128 {
		return out
	}
	quote := packet[:min(len(packet), quoted6)]
	src, dst := h.Dst.As16(), h.Src.As16()
	n := 8 + len(quote)
	out = append(out, 0x60, 0, 0, 0, byte(n>>8), byte(n), unix.IPPROTO_ICMPV6, 64)
	out = append(append(out, src[:]...), dst[:]...)
	icmp := len(out)
	mtu = max(mtu, MinMTU6) // hosts ignore less (RFC 8201, section 4)
	out = append(out, 2, 0, 0, 0, 0, 0, byte(mtu>>8), byte(mtu))
	out = append(out, quote...)
	pseudo := [8]byte{2: byte(n >> 8), 3: byte(n), 7: unix.IPPROTO_ICMPV6}
	binary.BigEndian.PutUint16(out[icmp+2:], checksum.Of(src[:], dst[:], pseudo[:], out[icmp:]))
	return out
}

// Fragments splits an IPv4 packet that may be fragmented into packets of at most mtu bytes (RFC
// 791, section 3.2) and passes each to use, in buf. Options are copied into all of them.
func Fragments(packet, buf []byte, mtu int, use func([]byte)) {
	header := int(packet[0]&15) * 4
	step := (mtu - header) &^ 7
	if step <= 0 {
		return
	}
	field := binary.BigEndian.Uint16(packet[6:])
	data := packet[header:]
	for at := 0; at < len(data); at += step {
		part := data[at:min(at+step, len(data))]
		f := buf[:header+len(part)]
		copy(f, packet[:header])
		copy(f[header:], part)
		binary.BigEndian.PutUint16(f[2:], uint16(len(f)))
		now := field + uint16(at/8)
		if at+len(part) < len(data) {
			now |= 0x2000
		}
		binary.BigEndian.PutUint16(f[6:], now)
		binary.BigEndian.PutUint16(f[10:], 0)
		binary.BigEndian.PutUint16(f[10:], checksum.Of(f[:header]))
		use(f)
	}
}

// The flags of TCP (RFC 9293, section 3.1).
const (
	FlagFIN = 1 << 0
	FlagSYN = 1 << 1
	FlagRST = 1 << 2
	FlagACK = 1 << 4
)

// TCP returns the TCP header of an IP packet and what is behind it, or nil if it is not right
// behind the IP header.
func TCP(b []byte) []byte {
	at := int(b[0]&15) * 4
	protocol := b[9]
	if b[0]>>4 == 6 {
		at, protocol = V6Len, b[6]
	}
	if protocol != unix.IPPROTO_TCP || len(b) < at+TCPLen {
		return nil
	}
	return b[at:]
}

// IsSYN reports whether an IP packet may begin a TCP connection.
func IsSYN(b []byte) bool {
	t := TCP(b)
	return t != nil && t[13]&FlagSYN != 0
}

// IsAcknowledgment reports whether an IP packet is a TCP segment that only acknowledges.
func IsAcknowledgment(b []byte) bool {
	t := TCP(b)
	return t != nil && t[13]&(FlagFIN|FlagSYN|FlagRST) == 0 && int(t[12]>>4)*4 == len(t)
}

// LengthValid reports whether an IP packet has the length that its header states.
func LengthValid(b []byte) bool {
	switch {
	case len(b) >= V4Len && b[0]>>4 == 4:
		return int(binary.BigEndian.Uint16(b[2:])) == len(b)
	case len(b) >= V6Len && b[0]>>4 == 6:
		return int(binary.BigEndian.Uint16(b[4:]))+V6Len == len(b)
	}
	return false
}

// Source returns the source address of an IP packet.
func Source(b []byte) netip.Addr {
	if b[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(b[12:16]))
	}
	return netip.AddrFrom16([16]byte(b[8:24]))
}

// Destination returns the destination address of an IP packet.
func Destination(b []byte) netip.Addr {
	if b[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(b[16:20]))
	}
	return netip.AddrFrom16([16]byte(b[24:40]))
}
