package labrun

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/afpacket"
)

// Positions in an IPv6 packet (RFC 8200), a segment routing header (RFC 8754) and TCP.
const (
	ipv6Header = 40
	tcpHeader  = 20
	flagSYN    = 0x02
	// maxEncapsulated is the number of bytes captured of an encapsulated packet: two IPv6
	// headers and a routing header.
	maxEncapsulated = 256
)

// bgpOrEncapsulated passes IPv6 packets of BGP completely, of encapsulated packets the headers, and
// drops all others.
var bgpOrEncapsulated = afpacket.Options{Cooked: true, Filter: []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 0},
	{Code: unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K, K: 4},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 6, Jf: 9}, // version
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 6},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_IPV6, Jt: 8},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_ROUTING, Jt: 7},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_TCP, Jf: 5},
	{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: ipv6Header},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: bgpPort, Jt: 2},
	{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: ipv6Header + 2},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: bgpPort, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: afpacket.MaxLength},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	{Code: unix.BPF_RET | unix.BPF_K, K: maxEncapsulated},
}}

// carried is a TCP segment encapsulated in IPv6: its source address, its destination port, and
// whether it has the SYN flag.
type carried struct {
	from netip.Addr
	port uint16
	syn  bool
}

// parseCarried parses a segment encapsulated in IPv6, with or without a routing header.
func parseCarried(packet []byte) (carried, bool) {
	if len(packet) < ipv6Header {
		return carried{}, false
	}
	next, rest := packet[6], packet[ipv6Header:]
	if next == unix.IPPROTO_ROUTING {
		if len(rest) < 2 || len(rest) < 8*(int(rest[1])+1) {
			return carried{}, false
		}
		next, rest = rest[0], rest[8*(int(rest[1])+1):]
	}
	if next != unix.IPPROTO_IPV6 || len(rest) < ipv6Header+tcpHeader || rest[6] != unix.IPPROTO_TCP {
		return carried{}, false
	}
	tcp := rest[ipv6Header:]
	return carried{netip.AddrFrom16([16]byte(rest[8:24])), binary.BigEndian.Uint16(tcp[2:]), tcp[13]&flagSYN != 0}, true
}

// segment is a TCP segment in IPv6.
type segment struct {
	from, to netip.Addr
	payload  []byte
}

func parseSegment(packet []byte) (segment, bool) {
	if len(packet) < ipv6Header+tcpHeader || packet[6] != unix.IPPROTO_TCP {
		return segment{}, false
	}
	tcp := packet[ipv6Header:]
	// Padding of the link is not part of the packet. The length is 0 in packets larger than the
	// field allows.
	if length := int(binary.BigEndian.Uint16(packet[4:])); length > 0 && length < len(tcp) {
		tcp = tcp[:length]
	}
	if len(tcp) < tcpHeader {
		return segment{}, false
	}
	offset := int(tcp[12]>>4) * 4
	if offset < tcpHeader || offset > len(tcp) {
		return segment{}, false
	}
	return segment{netip.AddrFrom16([16]byte(packet[8:24])), netip.AddrFrom16([16]byte(packet[24:40])), tcp[offset:]}, true
}

// BGP messages (RFC 4271 section 4) and attributes with routes of other families than IPv4 (RFC
// 4760).
const (
	bgpHeader       = 19
	bgpUpdate       = 2
	extendedLength  = 0x10
	mpReach         = 14
	mpUnreach       = 15
	afiIPv6         = 2
	safiUnicast     = 1
	safiVPN         = 128
	mpUnreachHeader = 3 // AFI and SAFI; without further data, End-of-RIB
)

var bgpMarker = bytes.Repeat([]byte{0xff}, 16)

// changed reports for which address families the BGP UPDATEs in a TCP payload change routes.
// Messages that start in another segment are ignored.
func changed(payload []byte) (unicast, vpn bool) {
	for {
		i := bytes.Index(payload, bgpMarker)
		if i < 0 || len(payload) < i+bgpHeader {
			return unicast, vpn
		}
		message := payload[i:]
		length := int(binary.BigEndian.Uint16(message[16:]))
		if length < bgpHeader || length > len(message) {
			payload = payload[i+1:]
			continue
		}
		if message[18] == bgpUpdate {
			u, v := changedBy(message[bgpHeader:length])
			unicast, vpn = unicast || u, vpn || v
		}
		payload = message[length:]
	}
}

// changedBy is changed for the body of one UPDATE.
func changedBy(update []byte) (unicast, vpn bool) {
	// skip returns a field that starts with its length, and the rest.
	skip := func(b []byte) ([]byte, []byte, bool) {
		if len(b) < 2 || len(b) < 2+int(binary.BigEndian.Uint16(b)) {
			return nil, nil, false
		}
		end := 2 + int(binary.BigEndian.Uint16(b))
		return b[2:end], b[end:], true
	}
	_, rest, ok := skip(update) // withdrawn IPv4 routes
	if !ok {
		return false, false
	}
	attributes, _, ok := skip(rest)
	for ok && len(attributes) >= 3 {
		flags, typ := attributes[0], attributes[1]
		var value []byte
		if flags&extendedLength != 0 {
			if value, attributes, ok = skip(attributes[2:]); !ok {
				break
			}
		} else {
			end := 3 + int(attributes[2])
			if len(attributes) < end {
				break
			}
			value, attributes = attributes[3:end], attributes[end:]
		}
		if typ != mpReach && (typ != mpUnreach || len(value) <= mpUnreachHeader) || len(value) < mpUnreachHeader || binary.BigEndian.Uint16(value) != afiIPv6 {
			continue
		}
		unicast = unicast || value[2] == safiUnicast
		vpn = vpn || value[2] == safiVPN
	}
	return unicast, vpn
}
