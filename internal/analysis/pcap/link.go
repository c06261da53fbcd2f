package pcap

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// LinkType is the link-layer header type of a packet, as registered at
// https://www.tcpdump.org/linktypes.html.
type LinkType uint16

// The link types that Decode supports.
const (
	LinkNull     LinkType = 0
	LinkEthernet LinkType = 1
	LinkPPP      LinkType = 9
	LinkRawBSD   LinkType = 12 // DLT_RAW of most systems; some write it for 101
	LinkRawOBSD  LinkType = 14 // DLT_RAW of OpenBSD
	LinkPPPHDLC  LinkType = 50
	LinkPPPoE    LinkType = 51
	LinkRaw      LinkType = 101
	LinkCHDLC    LinkType = 104
	LinkWiFi     LinkType = 105
	LinkLoop     LinkType = 108
	LinkEnc      LinkType = 109
	LinkSLL      LinkType = 113
	LinkRadiotap LinkType = 127
	LinkPPPPPPD  LinkType = 166
	LinkPPPDir   LinkType = 204
	LinkIPv4     LinkType = 228
	LinkIPv6     LinkType = 229
	LinkNFLOG    LinkType = 239
	LinkSLL2     LinkType = 276
)

// linkNames are the names of common link types, without their prefix LINKTYPE_.
var linkNames = map[LinkType]string{
	LinkNull: "NULL", LinkEthernet: "ETHERNET", 3: "AX25", 6: "IEEE802_5", 7: "ARCNET_BSD", 8: "SLIP", LinkPPP: "PPP", 10: "FDDI",
	LinkRawBSD: "RAW", LinkRawOBSD: "RAW", LinkPPPHDLC: "PPP_HDLC", LinkPPPoE: "PPP_ETHER", 100: "ATM_RFC1483", LinkRaw: "RAW",
	LinkCHDLC: "C_HDLC", LinkWiFi: "IEEE802_11", 107: "FRELAY", LinkLoop: "LOOP", LinkEnc: "ENC", LinkSLL: "LINUX_SLL", 114: "LTALK", 117: "PFLOG",
	119: "IEEE802_11_PRISM", 122: "IP_OVER_FC", 123: "SUNATM", LinkRadiotap: "IEEE802_11_RADIOTAP", 129: "ARCNET_LINUX",
	138: "APPLE_IP_OVER_IEEE1394", 139: "MTP2_WITH_PHDR", 140: "MTP2", 141: "MTP3", 142: "SCCP", 143: "DOCSIS", 144: "LINUX_IRDA",
	163: "IEEE802_11_AVS", LinkPPPPPPD: "PPP_PPPD", 169: "GPRS_LLC", 177: "LINUX_LAPD", 187: "BLUETOOTH_HCI_H4", 189: "USB_LINUX", 192: "PPI",
	195: "IEEE802_15_4_WITHFCS", 201: "BLUETOOTH_HCI_H4_WITH_PHDR", LinkPPPDir: "PPP_WITH_DIR", 205: "C_HDLC_WITH_DIR", 206: "FRELAY_WITH_DIR",
	209: "IPMB_LINUX", 220: "USB_LINUX_MMAPPED", 224: "FC_2", 226: "IPNET", 227: "CAN_SOCKETCAN", LinkIPv4: "IPV4", LinkIPv6: "IPV6",
	230: "IEEE802_15_4_NOFCS", 235: "DVB_CI", LinkNFLOG: "NFLOG", 240: "NETANALYZER", 242: "IPOIB", 243: "MPEG_2_TS", 247: "INFINIBAND", 248: "SCTP",
	249: "USBPCAP", 251: "BLUETOOTH_LE_LL", 252: "WIRESHARK_UPPER_PDU", 253: "NETLINK", 254: "BLUETOOTH_LINUX_MONITOR", 258: "PKTAP",
	259: "EPON", 265: "NORDIC_BLE", 266: "USB_DARWIN", 271: "VSOCK", 272: "NORDIC_BLE", 274: "ETHERNET_MPACKET", LinkSLL2: "LINUX_SLL2",
}

// String returns the number and, if it is a common one, the name of the link type.
func (t LinkType) String() string {
	name := linkNames[t]
	switch {
	case name != "":
		return fmt.Sprintf("%d (%s)", uint16(t), name)
	case t >= 147 && t <= 162:
		return fmt.Sprintf("%d (USER%d)", uint16(t), t-147)
	}
	return fmt.Sprint(uint16(t))
}

const (
	ethIPv4   = 0x0800
	ethIPv6   = 0x86dd
	ethVLAN   = 0x8100
	ethQinQ   = 0x88a8
	ethQinQ9  = 0x9100
	ethQinQ92 = 0x9200
	ethMPLS   = 0x8847
	ethMPLSUp = 0x8848 // upstream-assigned labels, RFC 5332
	ethPPPoE  = 0x8864
	ethHeader = 14
	// ethTypes is the lowest EtherType; a smaller value is the length of an LLC frame.
	ethTypes = 0x0600
)

// The protocols of PPP that carry IP (RFC 1332, 5072, 3032).
const (
	pppIPv4   = 0x0021
	pppIPv6   = 0x0057
	pppMPLS   = 0x0281
	pppMPLSUp = 0x0283
)

// frame goes through the link-layer headers of a packet.
type frame struct {
	b         []byte // what was captured from here on
	rest      int    // how long that was before it was cut
	kind      uint16 // the EtherType of what follows
	vlan      uint32 // the identifiers of the VLAN tags, the innermost lowest
	index     uint32 // the kernel's number of the interface
	direction Direction
	bigEndian bool
	link      LinkType
}

func (f *frame) skip(n int) { f.b, f.rest = f.b[n:], f.rest-n }

// header skips the link-layer header and sets kind. It returns TCP if IP may follow.
func (f *frame) header() Verdict {
	switch f.link {
	case LinkEthernet:
		return f.ethernet()
	case LinkRaw, LinkRawBSD, LinkRawOBSD, LinkIPv4, LinkIPv6:
		return f.raw()
	case LinkSLL:
		return f.sll()
	case LinkSLL2:
		return f.sll2()
	case LinkNull, LinkLoop:
		return f.loopback()
	case LinkPPP:
		return f.ppp()
	case LinkPPPHDLC, LinkCHDLC:
		return f.hdlc()
	case LinkPPPoE:
		return f.pppoe()
	case LinkPPPPPPD, LinkPPPDir:
		return f.pppDirection()
	case LinkWiFi:
		return f.wifi(false)
	case LinkRadiotap:
		return f.radiotap()
	case LinkEnc:
		return f.enc()
	case LinkNFLOG:
		return f.nflog()
	}
	return UnknownLink
}

// network goes to the IP header.
func (f *frame) network() Verdict {
	if v := f.header(); v != TCP {
		return v
	}
	return f.inner()
}

// inner goes from what kind says to the IP header.
func (f *frame) inner() Verdict {
	for range maxHeaders {
		var v Verdict
		switch f.kind {
		case ethIPv4, ethIPv6:
			return TCP
		case ethVLAN, ethQinQ, ethQinQ9, ethQinQ92:
			v = f.tag()
		case ethMPLS, ethMPLSUp:
			v = f.mpls()
		case ethPPPoE:
			v = f.pppoe()
		default:
			if f.kind >= ethTypes {
				return NotIP
			}
			v = f.llc()
		}
		if v != TCP {
			return v
		}
	}
	return Malformed
}

func (f *frame) ethernet() Verdict {
	if len(f.b) < ethHeader {
		return Cut
	}
	f.kind = binary.BigEndian.Uint16(f.b[12:])
	f.skip(ethHeader)
	return TCP
}

// tag skips a VLAN tag.
func (f *frame) tag() Verdict {
	if len(f.b) < 4 {
		return Cut
	}
	f.vlan = f.vlan<<12 | uint32(binary.BigEndian.Uint16(f.b)&0xfff)
	f.kind = binary.BigEndian.Uint16(f.b[2:])
	f.skip(4)
	return TCP
}

// mpls skips a stack of labels (RFC 3032). It does not say what follows: the first bits of the next
// header do (RFC 4928), and 0 is the control word of an Ethernet pseudowire (RFC 4448).
func (f *frame) mpls() Verdict {
	for {
		if len(f.b) < 5 {
			return Cut
		}
		bottom := f.b[2]&1 != 0
		f.skip(4)
		if !bottom {
			continue
		}
		if f.b[0]>>4 == 0 {
			if len(f.b) < 4 {
				return Cut
			}
			f.skip(4)
			return f.ethernet()
		}
		return f.raw()
	}
}

// llc skips the header of a SNAP frame (IEEE 802.2) with an EtherType.
func (f *frame) llc() Verdict {
	if len(f.b) < 8 {
		return Cut
	}
	if f.b[0] != 0xaa || f.b[1] != 0xaa || f.b[2] != 3 || f.b[3] != 0 || f.b[4] != 0 || f.b[5] != 0 {
		return NotIP
	}
	if f.kind = binary.BigEndian.Uint16(f.b[6:]); f.kind < ethTypes {
		return NotIP
	}
	f.skip(8)
	return TCP
}

// raw detects the version of an IP packet without a link-layer header.
func (f *frame) raw() Verdict {
	if len(f.b) == 0 {
		return Cut
	}
	switch f.b[0] >> 4 {
	case 4:
		f.kind = ethIPv4
	case 6:
		f.kind = ethIPv6
	default:
		return NotIP
	}
	return TCP
}

func (f *frame) loopback() Verdict {
	if len(f.b) < 4 {
		return Cut
	}
	family := binary.LittleEndian.Uint32(f.b)
	if f.bigEndian || f.link == LinkLoop {
		family = binary.BigEndian.Uint32(f.b)
	}
	if family > 0xffff { // a host of the other byte order has written the file again
		family = bits.ReverseBytes32(family)
	}
	f.skip(4)
	return f.family(family)
}

// family sets kind from an address family.
func (f *frame) family(family uint32) Verdict {
	switch family {
	case 2:
		f.kind = ethIPv4
	case 10, 24, 28, 30: // AF_INET6 of Linux, NetBSD and OpenBSD, FreeBSD, Darwin
		f.kind = ethIPv6
	default:
		return NotIP
	}
	return TCP
}

// sll is the Linux cooked header.
func (f *frame) sll() Verdict {
	if len(f.b) < 16 {
		return Cut
	}
	if f.direction == DirectionUnknown {
		f.direction = cooked(binary.BigEndian.Uint16(f.b))
	}
	f.kind = binary.BigEndian.Uint16(f.b[14:])
	f.skip(16)
	return TCP
}

func (f *frame) sll2() Verdict {
	if len(f.b) < 20 {
		return Cut
	}
	if f.direction == DirectionUnknown {
		f.direction = cooked(uint16(f.b[10]))
	}
	f.kind, f.index = binary.BigEndian.Uint16(f.b), binary.BigEndian.Uint32(f.b[4:])
	f.skip(20)
	return TCP
}

// cooked returns the direction recorded in a Linux cooked header.
func cooked(kind uint16) Direction {
	switch kind {
	case 0: // PACKET_HOST
		return Inbound
	case 4: // PACKET_OUTGOING
		return Outbound
	}
	return DirectionUnknown
}

// ppp is PPP with or without the address and control bytes of HDLC-like framing (RFC 1662), and
// with a protocol of one byte if it was compressed (RFC 1661, section 6.5).
func (f *frame) ppp() Verdict {
	if len(f.b) >= 2 && f.b[0] == 0xff && f.b[1] == 3 {
		f.skip(2)
	}
	if len(f.b) < 2 {
		return Cut
	}
	protocol, n := uint16(f.b[0]), 1
	if protocol&1 == 0 {
		protocol, n = binary.BigEndian.Uint16(f.b), 2
	}
	f.skip(n)
	switch protocol {
	case pppIPv4:
		f.kind = ethIPv4
	case pppIPv6:
		f.kind = ethIPv6
	case pppMPLS, pppMPLSUp:
		f.kind = ethMPLS
	default:
		return NotIP
	}
	return TCP
}

// pppDirection is PPP behind a byte that says whether this host sent the packet; the files of pppd
// have it in place of the address (LINKTYPE_PPP_PPPD).
func (f *frame) pppDirection() Verdict {
	if len(f.b) < 1 {
		return Cut
	}
	if f.direction == DirectionUnknown {
		f.direction = Inbound
		if f.b[0] != 0 {
			f.direction = Outbound
		}
	}
	f.skip(1)
	const control = 3
	if f.link == LinkPPPPPPD && len(f.b) >= 1 && f.b[0] == control {
		f.skip(1)
	}
	return f.ppp()
}

// hdlc is PPP in HDLC-like framing, or Cisco's HDLC, which has an EtherType. A serial line may be
// of either link type (RFC 1547, section 4.3.1).
func (f *frame) hdlc() Verdict {
	if len(f.b) < 4 {
		return Cut
	}
	if f.b[0] != 0x0f && f.b[0] != 0x8f { // unicast and multicast of Cisco
		return f.ppp()
	}
	if f.kind = binary.BigEndian.Uint16(f.b[2:]); f.kind < ethTypes {
		return NotIP
	}
	f.skip(4)
	return TCP
}

// pppoe is the header of a PPPoE session (RFC 2516).
func (f *frame) pppoe() Verdict {
	if len(f.b) < 8 {
		return Cut
	}
	f.skip(6)
	return f.ppp()
}

// enc is the header of OpenBSD's IPsec interface, in the byte order of the host.
func (f *frame) enc() Verdict {
	if len(f.b) < 12 {
		return Cut
	}
	family := binary.LittleEndian.Uint32(f.b)
	if family > 0xff {
		family = binary.BigEndian.Uint32(f.b)
	}
	f.skip(12)
	return f.family(family)
}

// nflog is a message of the Linux netfilter log: a list of attributes in the byte order of the
// host, of which one is the packet.
func (f *frame) nflog() Verdict {
	const header, payload = 4, 9 // NFULA_PAYLOAD
	if len(f.b) < header {
		return Cut
	}
	family := uint32(f.b[0])
	f.skip(header)
	for len(f.b) >= 4 {
		var order binary.ByteOrder = binary.LittleEndian
		if f.bigEndian {
			order = binary.BigEndian
		}
		n, kind := int(order.Uint16(f.b)), order.Uint16(f.b[2:])&0x7fff
		switch {
		case n < 4 || n > f.rest:
			return Malformed
		case kind == payload:
			f.b, f.rest = f.b[4:min(n, len(f.b))], n-4
			return f.family(family)
		}
		n = min((n+3)&^3, f.rest)
		if n > len(f.b) {
			return Cut
		}
		f.skip(n)
	}
	if f.rest >= 4 {
		return Cut
	}
	return NotIP
}

// radiotap is the header of a monitoring 802.11 interface, in front of an 802.11 frame.
func (f *frame) radiotap() Verdict {
	if len(f.b) < 8 {
		return Cut
	}
	n := int(binary.LittleEndian.Uint16(f.b[2:]))
	if f.b[0] != 0 || n < 8 || n > f.rest {
		return Malformed
	}
	if n > len(f.b) {
		return Cut
	}
	const flags, tsft, more = 1 << 1, 1 << 0, 1 << 31
	padded := false
	if present := binary.LittleEndian.Uint32(f.b[4:]); present&flags != 0 {
		at := 8
		for word := present; word&more != 0 && at+4 <= n; at += 4 {
			word = binary.LittleEndian.Uint32(f.b[at:])
		}
		if present&tsft != 0 {
			at = (at+7)&^7 + 8
		}
		const hasFCS, hasPad = 0x10, 0x20
		if at < n {
			padded = f.b[at]&hasPad != 0
			if f.b[at]&hasFCS != 0 && f.rest-n > 4 {
				f.rest -= 4
				f.b = f.b[:min(len(f.b), f.rest)]
			}
		}
	}
	f.skip(n)
	return f.wifi(padded)
}

// wifi is a frame of IEEE 802.11. Only data frames that are not encrypted can be IP. Some adapters
// pad the header to 32 bits.
func (f *frame) wifi(padded bool) Verdict {
	if len(f.b) < 24 {
		return Cut
	}
	control, flags := f.b[0], f.b[1]
	const (
		data, noData, qos            = 2, 4, 8
		toDS, fromDS, protected, htc = 1, 2, 0x40, 0x80
	)
	subtype := control >> 4
	if control>>2&3 != data || subtype&noData != 0 || flags&protected != 0 {
		return NotIP
	}
	n := 24
	if flags&(toDS|fromDS) == toDS|fromDS {
		n += 6
	}
	aggregate := false
	if subtype&qos != 0 {
		if len(f.b) < n+2 {
			return Cut
		}
		aggregate = f.b[n]&0x80 != 0
		n += 2
		if flags&htc != 0 {
			n += 4
		}
	}
	if padded {
		n = (n + 3) &^ 3
	}
	if aggregate {
		n += ethHeader // of the first frame of an A-MSDU; the others are not parsed
	}
	if n > len(f.b) {
		return Cut
	}
	f.skip(n)
	return f.llc()
}
