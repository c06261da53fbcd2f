package sealed

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
	ipv4Len, ipv6Len = 20, 40
	udpLen, tcpLen   = 8, 20
	ipUDP4, ipUDP6   = ipv4Len + udpLen, ipv6Len + udpLen
)

// parsed is the fields of an IP packet that the plane uses.
type parsed struct {
	dataplane.Packet
	class     uint8 // traffic class: DSCP and ECN
	transport int   // where the transport header is, 0 in later fragments
	fragment  bool  // any fragment
	dontFrag  bool
	flow      uint32
}

// parse reads the headers of an IP packet; false means that it is none. length is that of the
// packet, of which b may be the beginning of a super-packet.
func (p *parsed) parse(b []byte) bool {
	if len(b) < ipv4Len {
		return false
	}
	switch b[0] >> 4 {
	case 4:
		header := int(b[0]&15) * 4
		if header < ipv4Len || header > len(b) {
			return false
		}
		*p = parsed{class: b[1]}
		p.Src, p.Dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		p.Protocol = b[9]
		field := binary.BigEndian.Uint16(b[6:])
		p.dontFrag, p.fragment = field&0x4000 != 0, field&0x3fff != 0
		if field&0x1fff == 0 {
			p.transport = header
		}
	case 6:
		if len(b) < ipv6Len {
			return false
		}
		*p = parsed{class: uint8(binary.BigEndian.Uint16(b) >> 4), dontFrag: true}
		p.Src, p.Dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		p.Protocol, p.transport, p.fragment = upper(b)
	default:
		return false
	}
	p.DSCP = p.class >> 2
	if p.transport > 0 && p.transport+4 <= len(b) && hasPorts(p.Protocol) {
		t := b[p.transport:]
		p.SrcPort, p.DstPort = binary.BigEndian.Uint16(t), binary.BigEndian.Uint16(t[2:])
	}
	p.flow = p.hash()
	return true
}

// maxExtensions bounds the extension headers that are skipped.
const maxExtensions = 8

// upper finds the upper layer of an IPv6 packet behind its extension headers (RFC 8200, section 4).
// at is 0 if it is not in the packet.
func upper(b []byte) (protocol uint8, at int, fragment bool) {
	protocol, at = b[6], ipv6Len
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
func (p *parsed) hash() uint32 {
	src, dst := p.Src.As16(), p.Dst.As16()
	h := uint64(p.Protocol)
	if !p.fragment {
		h |= uint64(p.SrcPort)<<16 | uint64(p.DstPort)<<32
	}
	for _, v := range [...]uint64{
		binary.LittleEndian.Uint64(src[:]), binary.LittleEndian.Uint64(src[8:]),
		binary.LittleEndian.Uint64(dst[:]), binary.LittleEndian.Uint64(dst[8:]),
	} {
		hi, lo := bits.Mul64(h^v^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
		h = hi ^ lo
	}
	return uint32(h ^ h>>32)
}

// The code points of ECN (RFC 3168).
const (
	ecnMask   = 3
	ecnNotECT = 0
	ecnCE     = 3
)

// decapsulate transfers the congestion mark of the outer header to the packet (RFC 6040, section
// 4.2). It reports false for a packet that has to be dropped.
func decapsulate(outer uint8, b []byte) bool {
	if outer&ecnMask != ecnCE {
		return true
	}
	var class uint8
	if b[0]>>4 == 4 {
		class = b[1]
	} else {
		class = uint8(binary.BigEndian.Uint16(b) >> 4)
	}
	switch class & ecnMask {
	case ecnNotECT:
		return false
	case ecnCE:
		return true
	}
	if b[0]>>4 == 4 {
		old := binary.BigEndian.Uint16(b)
		b[1] |= ecnCE
		checksum.Update(b[10:12], old, binary.BigEndian.Uint16(b))
		return true
	}
	binary.BigEndian.PutUint16(b, binary.BigEndian.Uint16(b)|ecnCE<<4)
	return true
}

// clampMSS lowers the maximum segment size of a TCP SYN to what fits into packets of mtu bytes (RFC
// 4459, section 3.2). p describes b.
func clampMSS(b []byte, p *parsed, mtu int) {
	if p.Protocol != unix.IPPROTO_TCP || p.transport == 0 || p.fragment || len(b) < p.transport+tcpLen {
		return
	}
	t := b[p.transport:]
	const kindEnd, kindNop, kindMSS = 0, 1, 2
	header := int(t[12]>>4) * 4
	if t[13]&flagSYN == 0 || header < tcpLen || header > len(t) {
		return
	}
	maxMSS := mtu - tcpLen - ipv4Len
	if b[0]>>4 == 6 {
		maxMSS = mtu - tcpLen - ipv6Len
	}
	for o := tcpLen; o < header; {
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
	quoted4 = 576 - ipv4Len - 8
	// quoted6 is that of ICMPv6: as much as fits into the least MTU (RFC 4443, section 3.2).
	quoted6 = ipv6MinMTU - ipv6Len - 8
)

// ipv6MinMTU is what IPv6 hosts send whatever an error says (RFC 8200, section 5).
const ipv6MinMTU = 1280

// tooBig returns the ICMP message (RFC 792 and RFC 1191, RFC 4443 section 3.2) that reports to the
// sender of a packet that only mtu bytes fit, but not less than ipv6MinMTU in IPv6, appended to
// out. The source is the packet's destination, which the way back from there would have too. There
// is none for a packet that must not be answered: an ICMP error, a later fragment, a multicast
// address.
func tooBig(out, packet []byte, p *parsed, mtu int) []byte {
	if p.transport == 0 || p.Src.IsUnspecified() || p.Src.IsMulticast() || p.Dst.IsMulticast() {
		return out
	}
	kind := byte(255)
	if p.transport < len(packet) {
		kind = packet[p.transport]
	}
	if p.Src.Is4() {
		// Only echo requests and replies, time stamps and information are no errors.
		if p.Protocol == unix.IPPROTO_ICMP && kind != 0 && kind != 8 && (kind < 13 || kind > 18) {
			return out
		}
		quote := packet[:min(len(packet), quoted4)]
		src, dst := p.Dst.As4(), p.Src.As4()
		n := ipv4Len + 8 + len(quote)
		at := len(out)
		out = append(out, 0x45, 0xc0, byte(n>>8), byte(n), 0, 0, 0x40, 0, 64, unix.IPPROTO_ICMP, 0, 0)
		out = append(append(out, src[:]...), dst[:]...)
		binary.BigEndian.PutUint16(out[at+10:], checksum.Of(out[at:at+ipv4Len]))
		icmp := len(out)
		out = append(out, 3, 4, 0, 0, 0, 0, byte(mtu>>8), byte(mtu))
		out = append(out, quote...)
		binary.BigEndian.PutUint16(out[icmp+2:], checksum.Of(out[icmp:]))
		return out
	}
	if p.Protocol == unix.IPPROTO_ICMPV6 && kind < 128 {
		return out
	}
	quote := packet[:min(len(packet), quoted6)]
	src, dst := p.Dst.As16(), p.Src.As16()
	n := 8 + len(quote)
	out = append(out, 0x60, 0, 0, 0, byte(n>>8), byte(n), unix.IPPROTO_ICMPV6, 64)
	out = append(append(out, src[:]...), dst[:]...)
	icmp := len(out)
	mtu = max(mtu, ipv6MinMTU) // hosts ignore less (RFC 8201, section 4)
	out = append(out, 2, 0, 0, 0, 0, 0, byte(mtu>>8), byte(mtu))
	out = append(out, quote...)
	pseudo := [8]byte{2: byte(n >> 8), 3: byte(n), 7: unix.IPPROTO_ICMPV6}
	binary.BigEndian.PutUint16(out[icmp+2:], checksum.Of(src[:], dst[:], pseudo[:], out[icmp:]))
	return out
}

// fragments splits an IPv4 packet that may be fragmented into packets of at most mtu bytes (RFC
// 791, section 3.2) and passes each to use, in buf. Options are copied into all of them.
func fragments(packet, buf []byte, mtu int, use func([]byte)) {
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
	flagFIN = 1 << 0
	flagSYN = 1 << 1
	flagRST = 1 << 2
	flagACK = 1 << 4
)

// tcpHeader returns the TCP header of an IP packet and what is behind it, or nil if it is not right
// behind the IP header.
func tcpHeader(b []byte) []byte {
	at := int(b[0]&15) * 4
	protocol := b[9]
	if b[0]>>4 == 6 {
		at, protocol = ipv6Len, b[6]
	}
	if protocol != unix.IPPROTO_TCP || len(b) < at+tcpLen {
		return nil
	}
	return b[at:]
}

// isSYN reports whether an IP packet may begin a TCP connection.
func isSYN(b []byte) bool {
	t := tcpHeader(b)
	return t != nil && t[13]&flagSYN != 0
}

// isAcknowledgment reports whether an IP packet is a TCP segment that only acknowledges.
func isAcknowledgment(b []byte) bool {
	t := tcpHeader(b)
	return t != nil && t[13]&(flagFIN|flagSYN|flagRST) == 0 && int(t[12]>>4)*4 == len(t)
}

// lengthValid reports whether an IP packet has the length that its header states.
func lengthValid(b []byte) bool {
	switch {
	case len(b) >= ipv4Len && b[0]>>4 == 4:
		return int(binary.BigEndian.Uint16(b[2:])) == len(b)
	case len(b) >= ipv6Len && b[0]>>4 == 6:
		return int(binary.BigEndian.Uint16(b[4:]))+ipv6Len == len(b)
	}
	return false
}

func source(b []byte) netip.Addr {
	if b[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(b[12:16]))
	}
	return netip.AddrFrom16([16]byte(b[8:24]))
}

func destination(b []byte) netip.Addr {
	if b[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(b[16:20]))
	}
	return netip.AddrFrom16([16]byte(b[24:40]))
}
