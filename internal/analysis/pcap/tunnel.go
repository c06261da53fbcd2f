package pcap

import "encoding/binary"

// The payload protocols of GRE, VXLAN and GENEVE beside EtherTypes of network protocols.
const (
	ethBridged = 0x6558 // Ethernet
	ethERSPAN  = 0x88be // type I without a header of GRE's sequence number, or type II
	ethERSPAN3 = 0x22eb
)

// The ports of UDP that tunnels have, of their destination.
const (
	portVXLAN      = 4789
	portVXLANLinux = 8472 // Linux' default, from before the registration
	portGENEVE     = 6081
)

// encapsulated goes through the header of a tunnel that is neither IP nor IPv6 and the link-layer
// header in it, if it has one, to the next IP header. An IP protocol without a known tunnel is
// NotTCP.
func (d *decoder) encapsulated(protocol uint8) (six bool, v Verdict) {
	var kind uint16
	switch protocol {
	case 17:
		kind, v = d.udp()
	case 47:
		kind, v = d.gre()
	default:
		v = NotTCP
	}
	if v != TCP {
		return false, v
	}
	f := frame{b: d.b, rest: d.rest, kind: kind, vlan: d.vlan}
	if kind == ethBridged {
		v = f.ethernet()
	}
	if v == TCP {
		v = f.inner()
	}
	d.b, d.rest, d.vlan = f.b, f.rest, f.vlan
	return f.kind == ethIPv6, v
}

// take skips n bytes of a header.
func (d *decoder) take(n int) Verdict {
	switch {
	case n > d.rest:
		return Malformed
	case n > len(d.b):
		return Cut
	}
	d.skip(n)
	return TCP
}

// gre skips a GRE header (RFC 2784, RFC 2890) and that of ERSPAN behind it.
func (d *decoder) gre() (kind uint16, v Verdict) {
	if len(d.b) < 4 {
		return 0, Cut
	}
	const checksum, routing, key, sequence, version = 0x8000, 0x4000, 0x2000, 0x1000, 7
	flags := binary.BigEndian.Uint16(d.b)
	kind = binary.BigEndian.Uint16(d.b[2:])
	if flags&(routing|version) != 0 {
		return 0, NotTCP // RFC 1701, or PPTP
	}
	n := 4
	for _, flag := range []uint16{checksum, key, sequence} {
		if flags&flag != 0 {
			n += 4
		}
	}
	switch {
	case kind == ethERSPAN && flags&sequence != 0:
		n += 8
	case kind == ethERSPAN3:
		if len(d.b) < n+12 {
			return 0, Cut
		}
		if d.b[n+11]&1 != 0 { // a subheader of the platform
			n += 8
		}
		n += 12
	}
	if kind == ethERSPAN || kind == ethERSPAN3 {
		kind = ethBridged
	}
	return kind, d.take(n)
}

// udp skips the header of UDP and that of VXLAN (RFC 7348) or GENEVE (RFC 8926).
func (d *decoder) udp() (kind uint16, v Verdict) {
	const header = 8
	if len(d.b) < 4 {
		return 0, Cut
	}
	port := binary.BigEndian.Uint16(d.b[2:])
	if port != portVXLAN && port != portVXLANLinux && port != portGENEVE {
		return 0, NotTCP
	}
	if len(d.b) < 2*header {
		return 0, Cut
	}
	tunnel := d.b[header:]
	if tunnel[7] != 0 { // reserved in both
		return 0, NotTCP
	}
	if port != portGENEVE {
		const identifier = 0x08 // flag I
		if tunnel[0]&identifier == 0 {
			return 0, NotTCP
		}
		return ethBridged, d.take(2 * header)
	}
	if tunnel[0]>>6 != 0 {
		return 0, NotTCP // another version
	}
	return binary.BigEndian.Uint16(tunnel[2:]), d.take(2*header + int(tunnel[0]&63)*4)
}
