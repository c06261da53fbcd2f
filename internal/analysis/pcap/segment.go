package pcap

import (
	"encoding/binary"
	"net/netip"
)

// Flow has the addresses and ports of one direction of a TCP connection. IPv4 addresses are
// IPv4-mapped.
type Flow struct {
	Source, Destination         [16]byte
	SourcePort, DestinationPort uint16
}

// Reverse is the other direction.
func (f Flow) Reverse() Flow {
	return Flow{Source: f.Destination, Destination: f.Source, SourcePort: f.DestinationPort, DestinationPort: f.SourcePort}
}

// From returns the source and To the destination of the flow.
func (f Flow) From() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(f.Source).Unmap(), f.SourcePort)
}

// To is documented with From.
func (f Flow) To() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(f.Destination).Unmap(), f.DestinationPort)
}

// The flags of a TCP header.
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
)

// Segment is a TCP segment with the header fields that analysis needs.
type Segment struct {
	// At, Number, Interface and Direction are the packet's.
	At        int64
	Number    uint64
	Interface int
	Direction Direction
	// Index is the kernel's number of the interface, where a capture of all interfaces says it
	// (LinkSLL2).
	Index uint32
	// VLAN has the identifiers of the VLAN tags, 12 bits each, the innermost lowest; 0 without.
	VLAN uint32
	Flow Flow
	// Tunneled means that the segment was inside another IP packet: Tunnel is the last SID of
	// its SRv6 policy, or the destination of the outer header.
	Tunneled bool
	Tunnel   [16]byte
	HopLimit uint8
	// ID is the identification of the IPv4 header; 0 in IPv6.
	ID       uint16
	Flags    uint8
	Window   uint16
	Seq, Ack uint32
	// Payload is the length of the payload in bytes according to the IP header.
	Payload int
	// Options are the TCP options, valid as long as the packet's data. OptionsCut means that
	// the capture has only some.
	Options    []byte
	OptionsCut bool
	// Data is the captured part of the payload, valid as long as the packet's data.
	Data []byte
}

// Verdict is the kind of a packet.
type Verdict uint8

// The verdicts.
const (
	// TCP is a segment.
	TCP Verdict = iota
	// NotTCP is IP with something else in it, such as UDP or ICMP; NotIP another protocol of
	// the link, such as ARP.
	NotTCP
	NotIP
	// Fragment is a fragment of an IP packet; fragments are not reassembled.
	Fragment
	// Cut is a packet that is truncated before the end of its TCP header.
	Cut
	// Malformed is a packet whose lengths contradict each other.
	Malformed
	// UnknownLink is a packet of a link type that is not supported.
	UnknownLink
	// Verdicts is the number of verdicts.
	Verdicts
)

func (v Verdict) String() string {
	return [...]string{"TCP", "IP without TCP", "not IP", "IP fragments", "truncated before the TCP header", "malformed", "of a link type that is not read"}[v]
}

// maxHeaders bounds the number of headers of a packet that are parsed.
const maxHeaders = 24

// Decode finds the TCP segment in a packet: behind the link-layer header, VLAN tags, MPLS labels,
// PPPoE and IPv6 extension headers, and in tunnels (IP in IP, SRv6, GRE, ERSPAN, VXLAN, GENEVE). It
// sets s only if it returns TCP.
func Decode(p *Packet, s *Segment) Verdict {
	f := frame{b: p.Data, rest: p.Length, direction: p.Direction, bigEndian: p.bigEndian, link: p.Link}
	if v := f.network(); v != TCP {
		return v
	}
	d := decoder{b: f.b, rest: f.rest, vlan: f.vlan}
	if v := d.ip(f.kind == ethIPv6); v != TCP {
		return v
	}
	v := d.tcp(s)
	if v == TCP {
		s.At, s.Number, s.Interface, s.Direction, s.Index, s.VLAN = p.At, p.Number, p.Interface, f.direction, f.index, d.vlan
	}
	return v
}

// decoder goes through the headers of an IP packet.
type decoder struct {
	b      []byte // what was captured from here on
	rest   int    // how long the innermost IP payload is from here on
	flow   Flow
	hops   uint8
	id     uint16
	levels int
	sid    [16]byte // the last one of a segment routing header
	routed bool
	tunnel [16]byte
	vlan   uint32
}

func (d *decoder) skip(n int) {
	d.b, d.rest = d.b[n:], d.rest-n
}

// ip goes to the TCP header.
func (d *decoder) ip(six bool) Verdict {
	for headers := 0; headers < maxHeaders; headers++ {
		if d.levels > 0 {
			d.tunnel = d.flow.Destination
			if d.routed {
				d.tunnel = d.sid
			}
			d.routed = false
		}
		d.levels++
		var next uint8
		var v Verdict
		if six {
			next, v = d.ipv6()
		} else {
			next, v = d.ipv4()
		}
		if v != TCP {
			return v
		}
		switch next {
		case 6:
			return TCP
		case 4:
			six = false
		case 41:
			six = true
		default:
			if six, v = d.encapsulated(next); v != TCP {
				return v
			}
		}
	}
	return Malformed
}

func (d *decoder) ipv4() (next uint8, v Verdict) {
	if len(d.b) < 20 {
		return 0, Cut
	}
	n := int(d.b[0]&15) * 4
	if d.b[0]>>4 != 4 || n < 20 {
		return 0, Malformed
	}
	total := int(binary.BigEndian.Uint16(d.b[2:]))
	if total == 0 { // larger than the field: a TSO packet of the sender, or a GRO packet of the receiver
		total = d.rest
	}
	if total < n || total > d.rest {
		return 0, Malformed
	}
	d.rest = total
	fragment := binary.BigEndian.Uint16(d.b[6:])
	d.hops, d.id, next = d.b[8], binary.BigEndian.Uint16(d.b[4:]), d.b[9]
	d.flow.Source, d.flow.Destination = mapped(d.b[12:]), mapped(d.b[16:])
	if fragment&0x3fff != 0 { // more fragments, or not the first
		return 0, Fragment
	}
	if len(d.b) < n {
		return 0, Cut
	}
	d.skip(n)
	return next, TCP
}

func mapped(b []byte) [16]byte {
	return [16]byte{10: 0xff, 11: 0xff, 12: b[0], 13: b[1], 14: b[2], 15: b[3]}
}

func (d *decoder) ipv6() (next uint8, v Verdict) {
	if len(d.b) < 40 {
		return 0, Cut
	}
	if d.b[0]>>4 != 6 {
		return 0, Malformed
	}
	payload := int(binary.BigEndian.Uint16(d.b[4:]))
	next, d.hops, d.id = d.b[6], d.b[7], 0
	d.flow.Source, d.flow.Destination = [16]byte(d.b[8:]), [16]byte(d.b[24:])
	d.skip(40)
	switch {
	case payload == 0 && d.rest > 0xffff: // a jumbogram
		payload = d.rest
	case payload > d.rest:
		return 0, Malformed
	}
	d.rest = payload
	for range maxHeaders {
		var n int
		switch next {
		case 0, 43, 60, 135, 139, 140: // hop by hop, routing, destination, mobility, HIP, shim6
			if len(d.b) < 8 {
				return 0, Cut
			}
			n = 8 + int(d.b[1])*8
			// A segment routing header (RFC 8754): the last segment is first.
			if next == 43 && d.b[2] == 4 && n >= 24 && len(d.b) >= 24 {
				d.sid, d.routed = [16]byte(d.b[8:]), true
			}
		case 51: // authentication header
			if len(d.b) < 8 {
				return 0, Cut
			}
			n = 8 + int(d.b[1])*4
		case 44:
			if len(d.b) < 8 {
				return 0, Cut
			}
			if binary.BigEndian.Uint16(d.b[2:])&0xfff9 != 0 {
				return 0, Fragment
			}
			n = 8 // an atomic fragment is whole
		default:
			return next, TCP
		}
		if n > d.rest {
			return 0, Malformed
		}
		next = d.b[0]
		if n > len(d.b) {
			return 0, Cut
		}
		d.skip(n)
	}
	return 0, Malformed
}

func (d *decoder) tcp(s *Segment) Verdict {
	b := d.b
	if d.rest < 20 {
		return Malformed
	}
	if len(b) < 20 {
		return Cut
	}
	n := int(b[12]>>4) * 4
	if n < 20 || n > d.rest {
		return Malformed
	}
	d.flow.SourcePort, d.flow.DestinationPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	*s = Segment{
		Flow: d.flow, Tunneled: d.levels > 1, HopLimit: d.hops, ID: d.id, Flags: b[13], Window: binary.BigEndian.Uint16(b[14:]),
		Seq: binary.BigEndian.Uint32(b[4:]), Ack: binary.BigEndian.Uint32(b[8:]), Payload: d.rest - n,
		OptionsCut: len(b) < n, Options: b[20:min(n, len(b))], Data: b[min(n, len(b)):min(d.rest, len(b))],
	}
	if s.Tunneled {
		s.Tunnel = d.tunnel
	}
	return TCP
}
