package pcap

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/testkit/accessor"
)

// Packets as they are on the wire.

func tcpBytes(options []byte, payload int) []byte {
	b := make([]byte, 20, 20+len(options)+payload)
	binary.BigEndian.PutUint16(b, 1234)
	binary.BigEndian.PutUint16(b[2:], 80)
	binary.BigEndian.PutUint32(b[4:], 0xdeadbeef)
	binary.BigEndian.PutUint32(b[8:], 0x01020304)
	b[12], b[13] = byte(5+len(options)/4)<<4, ACK|PSH
	binary.BigEndian.PutUint16(b[14:], 500)
	return append(append(b, options...), make([]byte, payload)...)
}

func ip4(protocol byte, source, destination string, inner []byte) []byte {
	b := make([]byte, 20)
	b[0], b[8], b[9] = 0x45, 61, protocol
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(inner)))
	copy(b[12:], netip.MustParseAddr(source).AsSlice())
	copy(b[16:], netip.MustParseAddr(destination).AsSlice())
	return append(b, inner...)
}

func ip6(next byte, source, destination string, inner []byte) []byte {
	b := make([]byte, 40)
	b[0], b[6], b[7] = 0x60, next, 62
	binary.BigEndian.PutUint16(b[4:], uint16(len(inner)))
	copy(b[8:], netip.MustParseAddr(source).AsSlice())
	copy(b[24:], netip.MustParseAddr(destination).AsSlice())
	return append(b, inner...)
}

// extension is an IPv6 extension header of 8 bytes.
func extension(next byte, inner []byte) []byte {
	return append([]byte{next, 0, 1, 4, 0, 0, 0, 0}, inner...)
}

// srh is a segment routing header; segments are in the order of the path.
func srh(next byte, segments []string, inner []byte) []byte {
	b := []byte{next, byte(2 * len(segments)), 4, byte(len(segments) - 1), byte(len(segments) - 1), 0, 0, 0}
	for _, s := range slices.Backward(segments) {
		b = append(b, netip.MustParseAddr(s).AsSlice()...)
	}
	return append(b, inner...)
}

func udp(port uint16, inner []byte) []byte {
	b := []byte{0x80, 0, byte(port >> 8), byte(port), 0, 0, 0, 0}
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)+len(inner)))
	return append(b, inner...)
}

func ethernet(kind uint16, tags []uint16, inner []byte) []byte {
	b := make([]byte, 12)
	for i, tag := range tags {
		tpid := uint16(ethVLAN)
		if i == 0 && len(tags) > 1 {
			tpid = ethQinQ
		}
		b = binary.BigEndian.AppendUint16(b, tpid)
		b = binary.BigEndian.AppendUint16(b, tag)
	}
	return append(binary.BigEndian.AppendUint16(b, kind), inner...)
}

var (
	option4  = []byte{1, 1, 1, 0}
	segment4 = ip4(6, "10.0.0.1", "10.0.0.2", tcpBytes(option4, 100))
	segment6 = ip6(6, "2001:db8::1", "2001:db8::2", tcpBytes(option4, 100))
)

func TestDecode(t *testing.T) {
	loop := func(family uint32, inner []byte) []byte {
		return append(binary.BigEndian.AppendUint32(nil, family), inner...)
	}
	null := func(family uint32, inner []byte) []byte {
		return append(binary.LittleEndian.AppendUint32(nil, family), inner...)
	}
	sll := func(kind uint16, inner []byte) []byte {
		return append(binary.BigEndian.AppendUint16(append([]byte{0, 4}, make([]byte, 12)...), kind), inner...)
	}
	sll2 := func(kind uint16, inner []byte) []byte {
		b := binary.BigEndian.AppendUint16(nil, kind)
		b = append(b, 0, 0, 0, 0, 0, 9, 0, 1, 4, 6)
		return append(append(b, make([]byte, 8)...), inner...)
	}
	fragment := ip4(6, "10.0.0.1", "10.0.0.2", tcpBytes(nil, 100))
	fragment[6] = 0x20
	offload := ip4(6, "10.0.0.1", "10.0.0.2", tcpBytes(option4, 100))
	offload[2], offload[3] = 0, 0
	lying := ip4(6, "10.0.0.1", "10.0.0.2", tcpBytes(option4, 100))
	lying[2], lying[3] = 0xff, 0xff
	wifi := func(control, flags byte, header int, inner []byte) []byte {
		b := append([]byte{control, flags}, make([]byte, header-2)...)
		return append(append(b, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0), inner...)
	}
	tests := []struct {
		name   string
		link   LinkType
		data   []byte
		want   Verdict
		tunnel string
		check  func(*Segment) bool
	}{
		{name: "Ethernet, IPv4", link: LinkEthernet, data: ethernet(ethIPv4, nil, segment4)},
		{name: "Ethernet, IPv6", link: LinkEthernet, data: ethernet(ethIPv6, nil, segment6)},
		{name: "Ethernet, padded", link: LinkEthernet, data: append(ethernet(ethIPv4, nil, segment4), make([]byte, 20)...)},
		{name: "VLAN", link: LinkEthernet, data: ethernet(ethIPv6, []uint16{7}, segment6)},
		{name: "VLAN in VLAN", link: LinkEthernet, data: ethernet(ethIPv4, []uint16{7, 8}, segment4)},
		{name: "PPPoE", link: LinkEthernet, data: ethernet(ethPPPoE, nil, append([]byte{0x11, 0, 0, 1, 0, 0, 0, 0x57}, segment6...))},
		{name: "cooked", link: LinkSLL, data: sll(ethIPv4, segment4), check: func(s *Segment) bool { return s.Direction == Outbound }},
		{name: "cooked, version 2", link: LinkSLL2, data: sll2(ethIPv6, segment6), check: func(s *Segment) bool { return s.Direction == Outbound && s.Index == 9 }},
		{name: "raw IPv4", link: LinkRaw, data: segment4},
		{name: "raw IPv6", link: LinkRawBSD, data: segment6},
		{name: "IPv4", link: LinkIPv4, data: segment4},
		{name: "IPv6", link: LinkIPv6, data: segment6},
		{name: "loopback of BSD", link: LinkNull, data: null(30, segment6)},
		{name: "loopback of BSD, written again in the other byte order", link: LinkNull, data: append([]byte{0, 0, 0, 30}, segment6...)},
		{name: "loopback of OpenBSD", link: LinkLoop, data: loop(24, segment6)},
		{name: "PPP", link: LinkPPP, data: append([]byte{0, 0x21}, segment4...)},
		{name: "PPP with address and control", link: LinkPPP, data: append([]byte{0xff, 3, 0, 0x57}, segment6...)},
		{name: "PPP with a compressed protocol", link: LinkPPP, data: append([]byte{0x21}, segment4...)},
		{name: "PPP with MPLS", link: LinkPPP, data: append([]byte{2, 0x81, 0, 0, 0x11, 64}, segment4...)},
		{name: "PPP in HDLC", link: LinkPPPHDLC, data: append([]byte{0xff, 3, 0, 0x21}, segment4...)},
		{name: "HDLC of Cisco", link: LinkCHDLC, data: append([]byte{0x0f, 0, 0x86, 0xdd}, segment6...)},
		{name: "HDLC of Cisco on a PPP link", link: LinkPPPHDLC, data: append([]byte{0x8f, 0, 8, 0}, segment4...)},
		{name: "PPP with direction", link: LinkPPPDir, data: append([]byte{1, 0xff, 3, 0, 0x21}, segment4...), check: func(s *Segment) bool { return s.Direction == Outbound }},
		{name: "PPP of pppd", link: LinkPPPPPPD, data: append([]byte{1, 3, 0, 0x21}, segment4...), check: func(s *Segment) bool { return s.Direction == Outbound }},
		{name: "PPP of pppd with an address", link: LinkPPPPPPD, data: append([]byte{0, 0xff, 3, 0, 0x21}, segment4...), check: func(s *Segment) bool { return s.Direction == Inbound }},
		{name: "PPPoE without Ethernet", link: LinkPPPoE, data: append([]byte{0x11, 0, 0, 1, 0, 0, 0, 0x21}, segment4...)},
		{name: "PPPoE in VLANs", link: LinkEthernet, data: ethernet(ethPPPoE, []uint16{7, 8}, append([]byte{0x11, 0, 0, 1, 0, 0, 0, 0x21}, segment4...)), check: func(s *Segment) bool { return s.VLAN == 7<<12|8 }},
		{name: "PPPoE with LCP", link: LinkEthernet, data: ethernet(ethPPPoE, nil, append([]byte{0x11, 0, 0, 1, 0, 0, 0xc0, 0x21}, segment4...)), want: NotIP},
		{name: "MPLS", link: LinkEthernet, data: ethernet(ethMPLS, nil, append([]byte{0, 1, 0, 64, 0, 2, 1, 64}, segment6...))},
		{name: "Ethernet pseudowire", link: LinkEthernet, data: ethernet(ethMPLS, nil, append([]byte{0, 1, 1, 64, 0, 0, 0, 0}, ethernet(ethIPv4, []uint16{5}, segment4)...))},
		{name: "SNAP", link: LinkEthernet, data: ethernet(168, nil, append([]byte{0xaa, 0xaa, 3, 0, 0, 0, 8, 0}, segment4...))},
		{name: "spanning tree", link: LinkEthernet, data: ethernet(38, nil, append([]byte{0x42, 0x42, 3}, make([]byte, 35)...)), want: NotIP},
		{name: "IPsec interface", link: LinkEnc, data: append([]byte{24, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0}, segment6...)},
		{name: "netfilter log", link: LinkNFLOG, data: append(append([]byte{10, 0, 0, 0, 8, 0, 1, 0, 0x86, 0xdd, 1, 0, 5, 0, 10, 0, 'x', 0, 0, 0}, byte(4+len(segment6)), 0, 9, 0), segment6...)},
		{name: "Wi-Fi", link: LinkWiFi, data: wifi(8, 1, 24, segment4)},
		{name: "Wi-Fi with QoS over four addresses", link: LinkWiFi, data: wifi(0x88, 3, 32, segment4)},
		{name: "Wi-Fi, encrypted", link: LinkWiFi, data: wifi(0x88, 0x41, 26, segment4), want: NotIP},
		{name: "Wi-Fi, beacon", link: LinkWiFi, data: wifi(0x80, 0, 24, segment4), want: NotIP},
		{name: "Wi-Fi behind radiotap, with its checksum", link: LinkRadiotap, data: append(append([]byte{0, 0, 9, 0, 2, 0, 0, 0, 0x10}, wifi(8, 2, 24, offload)...), 1, 2, 3, 4)},
		{name: "Wi-Fi with QoS, padded", link: LinkRadiotap, data: append([]byte{0, 0, 9, 0, 2, 0, 0, 0, 0x20}, wifi(0x88, 1, 28, segment4)...)},
		{name: "Wi-Fi with QoS, padded, and fields of each antenna", link: LinkRadiotap, data: append([]byte{0, 0, 25, 0, 3, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20}, wifi(0x88, 1, 28, segment4)...)},
		{name: "Wi-Fi behind radiotap that is longer than the frame", link: LinkRadiotap, data: []byte{0, 0, 255, 255, 0, 0, 0, 0}, want: Malformed},
		{name: "extension headers", link: LinkRaw, data: ip6(0, "2001:db8::1", "2001:db8::2", extension(60, extension(43, extension(6, tcpBytes(option4, 100)))))},
		{name: "atomic fragment", link: LinkRaw, data: ip6(44, "2001:db8::1", "2001:db8::2", append([]byte{6, 0, 0, 0, 0, 0, 0, 1}, tcpBytes(option4, 100)...))},
		{name: "SRv6 without a header", link: LinkRaw, data: ip6(41, "fc00::1", "fc00:1:1::", segment6), tunnel: "fc00:1:1::"},
		{name: "IPv4 in SRv6", link: LinkRaw, data: ip6(4, "fc00::1", "fc00:1:1::", segment4), tunnel: "fc00:1:1::"},
		{name: "SRv6 with a header", link: LinkRaw, data: ip6(43, "fc00::1", "fc00:9::", srh(41, []string{"fc00:9::", "fc00:1:1::"}, segment6)), tunnel: "fc00:1:1::"},
		{name: "IPv4 in SRv6 with a header", link: LinkRaw, data: ip6(43, "fc00::1", "fc00:9::", srh(4, []string{"fc00:9::", "fc00:1:1::"}, segment4)), tunnel: "fc00:1:1::"},
		{name: "IP in IP", link: LinkRaw, data: ip4(4, "192.0.2.1", "192.0.2.2", segment4), tunnel: "192.0.2.2"},
		{name: "6in4", link: LinkRaw, data: ip4(41, "192.0.2.1", "192.0.2.2", segment6), tunnel: "192.0.2.2"},
		{name: "GRE", link: LinkRaw, data: ip4(47, "192.0.2.1", "192.0.2.2", append([]byte{0, 0, 8, 0}, segment4...)), tunnel: "192.0.2.2"},
		{name: "GRE with all fields over IPv6", link: LinkRaw, data: ip6(47, "fc00::1", "fc00::2", append([]byte{0xb0, 0, 0x86, 0xdd, 1, 2, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1}, segment6...)), tunnel: "fc00::2"},
		{name: "GRE with MPLS", link: LinkRaw, data: ip4(47, "192.0.2.1", "192.0.2.2", append([]byte{0, 0, 0x88, 0x47, 0, 2, 1, 64}, segment4...)), tunnel: "192.0.2.2"},
		{name: "Ethernet in GRE", link: LinkEthernet, data: ethernet(ethIPv4, []uint16{3}, ip4(47, "192.0.2.1", "192.0.2.2", append([]byte{0x20, 0, 0x65, 0x58, 0, 0, 0, 7}, ethernet(ethIPv4, []uint16{5}, segment4)...))), tunnel: "192.0.2.2", check: func(s *Segment) bool { return s.VLAN == 3<<12|5 }},
		{name: "ERSPAN", link: LinkRaw, data: ip4(47, "192.0.2.1", "192.0.2.2", append([]byte{0, 0, 0x88, 0xbe}, ethernet(ethIPv4, nil, segment4)...)), tunnel: "192.0.2.2"},
		{name: "ERSPAN, type II", link: LinkRaw, data: ip4(47, "192.0.2.1", "192.0.2.2", append([]byte{0x10, 0, 0x88, 0xbe, 0, 0, 0, 1, 0x10, 0, 0, 5, 0, 0, 0, 0}, ethernet(ethIPv4, nil, segment4)...)), tunnel: "192.0.2.2"},
		{name: "ERSPAN, type III with a subheader", link: LinkRaw, data: ip4(47, "192.0.2.1", "192.0.2.2", slices.Concat([]byte{0x10, 0, 0x22, 0xeb, 0, 0, 0, 1, 0x20, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1}, make([]byte, 8), ethernet(ethIPv4, nil, segment4))), tunnel: "192.0.2.2"},
		{name: "VXLAN", link: LinkRaw, data: ip4(17, "192.0.2.1", "192.0.2.2", udp(4789, append([]byte{8, 0, 0, 0, 0, 0, 5, 0}, ethernet(ethIPv6, nil, segment6)...))), tunnel: "192.0.2.2"},
		{name: "VXLAN at Linux' port over IPv6", link: LinkRaw, data: ip6(17, "fc00::1", "fc00::2", udp(8472, append([]byte{8, 0, 0, 0, 0, 0, 5, 0}, ethernet(ethIPv4, nil, segment4)...))), tunnel: "fc00::2"},
		{name: "VXLAN with ARP", link: LinkRaw, data: ip4(17, "192.0.2.1", "192.0.2.2", udp(4789, append([]byte{8, 0, 0, 0, 0, 0, 5, 0}, ethernet(0x0806, nil, make([]byte, 28))...))), want: NotIP},
		{name: "another protocol at the port of VXLAN", link: LinkRaw, data: ip4(17, "192.0.2.1", "192.0.2.2", udp(4789, make([]byte, 60))), want: NotTCP},
		{name: "GENEVE with an option", link: LinkRaw, data: ip4(17, "192.0.2.1", "192.0.2.2", udp(6081, append([]byte{2, 0, 0x65, 0x58, 0, 0, 5, 0, 0, 1, 1, 1, 0, 0, 0, 0}, ethernet(ethIPv4, nil, segment4)...))), tunnel: "192.0.2.2"},
		{name: "GENEVE with IP", link: LinkRaw, data: ip4(17, "192.0.2.1", "192.0.2.2", udp(6081, append([]byte{0, 0, 0x86, 0xdd, 0, 0, 5, 0}, segment6...))), tunnel: "192.0.2.2"},
		{name: "PPTP", link: LinkRaw, data: ip4(47, "192.0.2.1", "192.0.2.2", append([]byte{0x30, 1, 0x88, 0x0b, 0, 0, 0, 0, 0, 0, 0, 0}, segment4...)), want: NotTCP},
		{name: "GRE that is longer than its packet", link: LinkRaw, data: ip4(47, "192.0.2.1", "192.0.2.2", []byte{0x20, 0, 8, 0}), want: Malformed},
		{name: "larger than the field can say", link: LinkRaw, data: offload},
		{name: "ARP", link: LinkEthernet, data: ethernet(0x0806, nil, make([]byte, 28)), want: NotIP},
		{name: "UDP", link: LinkRaw, data: ip4(17, "10.0.0.1", "10.0.0.2", make([]byte, 20)), want: NotTCP},
		{name: "ICMPv6", link: LinkRaw, data: ip6(58, "2001:db8::1", "2001:db8::2", make([]byte, 20)), want: NotTCP},
		{name: "fragment", link: LinkRaw, data: fragment, want: Fragment},
		{name: "fragment of IPv6", link: LinkRaw, data: ip6(44, "2001:db8::1", "2001:db8::2", append([]byte{6, 0, 0, 1, 0, 0, 0, 1}, tcpBytes(nil, 8)...)), want: Fragment},
		{name: "longer than its frame", link: LinkRaw, data: lying, want: Malformed},
		{name: "nested without end", link: LinkRaw, data: bytes.Repeat([]byte{0x60, 0, 0, 0, 0, 0, 41, 1, 0, 0}, 4), want: Cut},
		{name: "USB", link: 189, data: make([]byte, 40), want: UnknownLink},
		{name: "nothing", link: LinkEthernet, want: Cut},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := Packet{At: 5, Data: tt.data, Length: len(tt.data), Link: tt.link, Interface: 3}
			var s Segment
			if got := Decode(&p, &s); got != tt.want {
				t.Fatalf("got %v, want %v", got, tt.want)
			}
			if tt.want != TCP {
				return
			}
			if s.Seq != 0xdeadbeef || s.Ack != 0x01020304 || s.Payload != 100 || s.Flow.SourcePort != 1234 || s.Flow.DestinationPort != 80 || s.At != 5 || s.Interface != 3 ||
				s.Flags != ACK|PSH || s.Window != 500 || !bytes.Equal(s.Options, option4) || s.OptionsCut {
				t.Errorf("got %+v", s)
			}
			if from := s.Flow.From().Addr().String(); from != "10.0.0.1" && from != "2001:db8::1" || s.HopLimit != 61 && s.HopLimit != 62 {
				t.Errorf("from %v, hop limit %d", from, s.HopLimit)
			}
			if tunnel := netip.AddrFrom16(s.Tunnel).Unmap().String(); s.Tunneled != (tt.tunnel != "") || s.Tunneled && tunnel != tt.tunnel {
				t.Errorf("tunnel %v %s, want %q", s.Tunneled, tunnel, tt.tunnel)
			}
			if tt.check != nil && !tt.check(&s) {
				t.Errorf("got %+v", s)
			}
			// Wherever the data is truncated, the payload length follows from the
			// headers.
			for n := range tt.data {
				cut := p
				cut.Data = tt.data[:n]
				var c Segment
				switch v := Decode(&cut, &c); {
				case v == TCP && (c.Payload != 100 || c.OptionsCut != (len(c.Options) < 4)):
					t.Fatalf("cut to %d bytes: payload %d, %d bytes of options, cut %v", n, c.Payload, len(c.Options), c.OptionsCut)
				case v != TCP && v != Cut:
					t.Fatalf("cut to %d bytes: %v", n, v)
				}
			}
		})
	}
}

// TestLinkNames: each link type that is read has a name, and every other one its number.
func TestLinkNames(t *testing.T) {
	for link := range LinkType(1000) {
		if Decode(&Packet{Link: link}, new(Segment)) != UnknownLink && linkNames[link] == "" {
			t.Errorf("link type %v has no name", link)
		}
	}
	for link, want := range map[LinkType]string{LinkPPP: "9 (PPP)", 189: "189 (USB_LINUX)", 150: "150 (USER3)", 4711: "4711"} {
		if got := link.String(); got != want {
			t.Errorf("link type %d is %q, want %q", uint16(link), got, want)
		}
	}
}

// pcapFile returns a capture whose packets are one second apart.
func pcapFile(order binary.AppendByteOrder, nano bool, link uint32, packets ...[]byte) []byte {
	magic, fraction := uint32(0xa1b2c3d4), uint32(250_000)
	if nano {
		magic, fraction = 0xa1b23c4d, 250_000_000
	}
	b := order.AppendUint32(nil, magic)
	b = order.AppendUint16(b, 2)
	b = order.AppendUint16(b, 4)
	b = order.AppendUint32(order.AppendUint32(b, 0), 0)
	b = order.AppendUint32(order.AppendUint32(b, 65535), link)
	for i, p := range packets {
		b = order.AppendUint32(order.AppendUint32(b, uint32(1_700_000_000+i)), fraction)
		b = order.AppendUint32(order.AppendUint32(b, uint32(len(p))), uint32(len(p)+10))
		b = append(b, p...)
	}
	return b
}

func block(order binary.AppendByteOrder, kind uint32, body []byte) []byte {
	for len(body)%4 != 0 {
		body = append(body, 0)
	}
	n := uint32(len(body) + 12)
	b := order.AppendUint32(order.AppendUint32(nil, kind), n)
	return order.AppendUint32(append(b, body...), n)
}

func ngOption(order binary.AppendByteOrder, code uint16, value ...byte) []byte {
	b := order.AppendUint16(order.AppendUint16(nil, code), uint16(len(value)))
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func sectionBlock(order binary.AppendByteOrder) []byte {
	b := order.AppendUint32(nil, 0x1a2b3c4d)
	b = order.AppendUint16(order.AppendUint16(b, 1), 0)
	return block(order, blockSection, order.AppendUint64(b, ^uint64(0)))
}

func interfaceBlock(order binary.AppendByteOrder, link uint16, options ...[]byte) []byte {
	b := order.AppendUint16(order.AppendUint16(nil, link), 0)
	return block(order, blockInterface, append(order.AppendUint32(b, 0), slices.Concat(options...)...))
}

func packetBlock(order binary.AppendByteOrder, iface uint32, at uint64, data []byte, options ...[]byte) []byte {
	b := order.AppendUint32(nil, iface)
	b = order.AppendUint32(order.AppendUint32(b, uint32(at>>32)), uint32(at))
	b = order.AppendUint32(order.AppendUint32(b, uint32(len(data))), uint32(len(data)+10))
	b = append(b, data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return block(order, blockEnhanced, append(b, slices.Concat(options...)...))
}

// all reads every packet, with copies of their data.
func all(t *testing.T, file []byte) (packets []Packet, s Stats) {
	t.Helper()
	r, err := New(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	for {
		var p Packet
		err := r.Next(&p)
		if errors.Is(err, io.EOF) {
			return packets, r.Stats()
		}
		if err != nil {
			t.Fatal(err)
		}
		p.Data = slices.Clone(p.Data)
		packets = append(packets, p)
	}
}

func zip(t *testing.T, b []byte) []byte {
	t.Helper()
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return z.Bytes()
}

func TestPcap(t *testing.T) {
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		for _, nano := range []bool{false, true} {
			file := pcapFile(order, nano, 101, segment4, segment6)
			for _, f := range [][]byte{file, zip(t, file), append(zip(t, file[:50]), zip(t, file[50:])...)} {
				packets, s := all(t, f)
				if len(packets) != 2 || packets[1].At != 1_700_000_001_250_000_000 || !bytes.Equal(packets[1].Data, segment6) || packets[1].Length != len(segment6)+10 || packets[0].Link != LinkRaw {
					t.Errorf("%v, nanoseconds %v: got %+v", order, nano, packets)
				}
				if s.Packets != 2 || s.FaultCount != 0 || s.Cut {
					t.Errorf("got %+v", s)
				}
			}
		}
	}
}

func TestPcapng(t *testing.T) {
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		file := slices.Concat(
			sectionBlock(order),
			interfaceBlock(order, uint16(LinkEthernet), ngOption(order, 2, 'e', 't', 'h'), ngOption(order, 9, 9), ngOption(order, 0)),
			interfaceBlock(order, uint16(LinkRaw), ngOption(order, 9, 0x80|10), ngOption(order, 14, order.AppendUint64(nil, 1000)...)),
			block(order, 4, make([]byte, 16)), // names
			packetBlock(order, 0, 1_700_000_000_000_000_123, ethernet(ethIPv4, nil, segment4), ngOption(order, 2, order.AppendUint32(nil, 1)...), ngOption(order, 0)),
			packetBlock(order, 1, 5<<10|512, segment6, ngOption(order, 4, order.AppendUint64(nil, 3)...)),
			block(order, blockSimple, append(order.AppendUint32(nil, uint32(len(segment4)+14)), ethernet(ethIPv4, nil, segment4)...)),
			block(order, blockStatistics, slices.Concat(make([]byte, 12), ngOption(order, 5, order.AppendUint64(nil, 7)...))),
			sectionBlock(binary.BigEndian),
			interfaceBlock(binary.BigEndian, uint16(LinkIPv4)),
			packetBlock(binary.BigEndian, 0, 1_000_000, segment4),
		)
		packets, s := all(t, zip(t, file))
		if len(packets) != 4 || s.FaultCount != 0 || s.Dropped != 10 || s.NoTime != 1 || !slices.Equal(s.Interfaces, []string{"eth", "", ""}) {
			t.Fatalf("%v: %d packets, %+v", order, len(packets), s)
		}
		want := []Packet{
			{At: 1_700_000_000_000_000_123, Length: len(segment4) + 14 + 10, Link: LinkEthernet, Direction: Inbound},
			{At: 1005_500_000_000, Length: len(segment6) + 10, Link: LinkRaw, Interface: 1},
			{Length: len(segment4) + 14, Link: LinkEthernet},
			{At: 1_000_000_000, Length: len(segment4) + 10, Link: LinkIPv4, Interface: 2},
		}
		for i, p := range packets {
			if w := want[i]; p.At != w.At || p.Length != w.Length || p.Link != w.Link || p.Direction != w.Direction || p.Interface != w.Interface {
				t.Errorf("packet %d: got %+v, want %+v", i, p, w)
			}
		}
	}
}

func TestBrokenFiles(t *testing.T) {
	order := binary.LittleEndian
	old := pcapFile(order, false, 101, slices.Repeat([][]byte{segment4}, 20)...)
	record := recordHeader + len(segment4)
	ng := slices.Concat(sectionBlock(order), interfaceBlock(order, 101))
	start := len(ng)
	for i := range 20 {
		ng = append(ng, packetBlock(order, 0, 1_700_000_000_000_000+uint64(i), segment4)...)
	}
	length := (len(ng) - start) / 20
	garbage := bytes.Repeat([]byte{0xff, 0x13, 0x77}, 21)
	tests := []struct {
		name    string
		file    []byte
		packets int
		faults  int
		cut     bool
		what    string
	}{
		{"pcap cut in a packet", old[:len(old)-7], 19, 1, true, "ends in the middle"},
		{"pcap cut in a header", old[:fileHeader+record+5], 1, 1, true, "at byte 184"},
		{"pcapng cut", ng[:len(ng)-7], 19, 1, true, "ends in the middle"},
		{"garbage in pcap", slices.Concat(old[:fileHeader+5*record], garbage, old[fileHeader+5*record:]), 20, 1, false, "63 bytes lost"},
		{"garbage in pcapng", slices.Concat(ng[:start+5*length], garbage, ng[start+5*length:]), 20, 1, false, "63 bytes lost"},
		{"a piece of pcap is missing", slices.Concat(old[:fileHeader+5*record+30], old[fileHeader+7*record+11:]), 18, 1, false, ""},
		{"a piece of pcapng is missing", slices.Concat(ng[:start+5*length+30], ng[start+7*length+11:]), 17, 1, false, ""},
		{"garbage at the end", append(slices.Clone(old), garbage...), 20, 1, false, "63 bytes lost"},
		{"a packet of an interface that is not there", slices.Concat(ng, packetBlock(order, 9, 1, segment4), ng[start:start+length]), 21, 1, false, "interface 9"},
		{"a compressed file that is cut", zip(t, old)[:len(zip(t, old))-20], 0, 1, true, "compressed file is truncated"},
		{"a header alone", old[:fileHeader], 0, 0, false, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			packets, s := all(t, tt.file)
			if !strings.HasPrefix(tt.name, "a compressed") && len(packets) != tt.packets || s.FaultCount != tt.faults || s.Cut != tt.cut {
				t.Errorf("%d packets, %+v; want %d, %d faults, cut %v", len(packets), s, tt.packets, tt.faults, tt.cut)
			}
			if tt.what != "" && (len(s.Faults) == 0 || !strings.Contains(s.Faults[0].String(), tt.what)) {
				t.Errorf("faults %v, want one with %q", s.Faults, tt.what)
			}
		})
	}
}

func TestNoCaptures(t *testing.T) {
	for _, tt := range []struct {
		name string
		file []byte
		want error
	}{
		{"empty", nil, ErrEmpty},
		{"empty, compressed", zip(t, nil), ErrEmpty},
		{"one byte", []byte{0xd4}, ErrNotCapture},
		{"text", []byte("hello world, this is no capture"), ErrNotCapture},
		{"zstd", []byte("\x28\xb5\x2f\xfd1234567890"), ErrCompressed},
		{"pcap of version 1", append(append([]byte{0xd4, 0xc3, 0xb2, 0xa1, 1, 0}, make([]byte, 30)...), 1), ErrNotCapture},
		{"half a header", []byte{0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0}, ErrNotCapture},
	} {
		if _, err := New(bytes.NewReader(tt.file)); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
	}
	if _, err := New(bytes.NewReader([]byte{0x1f, 0x8b, 0, 0, 1, 2})); err == nil {
		t.Error("a broken gzip header is no error")
	}
}

// failing is a reader that returns an I/O error at its end.
type failing struct{ r io.Reader }

func (f failing) Read(b []byte) (int, error) {
	n, err := f.r.Read(b)
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("input/output error")
	}
	return n, err
}

// TestReadErrorIsNotDamage: an I/O error is returned, also from within compressed data, while data
// that cannot be decompressed is a fault of the file, which ends there.
func TestReadErrorIsNotDamage(t *testing.T) {
	file := pcapFile(binary.LittleEndian, false, 101, slices.Repeat([][]byte{segment4}, 2000)...)
	for i := 24; i < len(file); i++ { // something that does not compress away
		file[i] ^= byte(i * i >> 7)
	}
	z := zip(t, file)
	corrupt, wrongSum := slices.Clone(z), slices.Clone(z)
	for i := len(z) / 2; i < len(z)/2+50; i++ {
		corrupt[i] ^= 0xff
	}
	wrongSum[len(z)-6] ^= 0xff
	for _, tt := range []struct {
		name   string
		r      io.Reader
		failed bool
		fault  string
	}{
		{"I/O error", failing{bytes.NewReader(file)}, true, ""},
		{"I/O error in compressed data", failing{bytes.NewReader(z[:len(z)/2])}, true, ""},
		{"cut compressed data", bytes.NewReader(z[:len(z)/2]), false, "compressed file is truncated"},
		{"corrupt compressed data", bytes.NewReader(corrupt), false, "compressed data is damaged"},
		{"wrong checksum of compressed data", bytes.NewReader(wrongSum), false, "compressed data is damaged"},
	} {
		r, err := New(tt.r)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		var p Packet
		for err == nil {
			err = r.Next(&p)
		}
		if failed := !errors.Is(err, io.EOF); failed != tt.failed {
			t.Errorf("%s: got %v", tt.name, err)
		}
		s := r.Stats()
		if tt.fault != "" && !slices.ContainsFunc(s.Faults, func(f Fault) bool { return strings.Contains(f.What, tt.fault) }) {
			t.Errorf("%s: faults %v, want one with %q", tt.name, s.Faults, tt.fault)
		}
	}
}

func FuzzReader(f *testing.F) {
	order := binary.LittleEndian
	f.Add(pcapFile(order, false, 1, ethernet(ethIPv6, nil, ip6(41, "fc00::1", "fc00:1:1::", segment6))))
	f.Add(pcapFile(binary.BigEndian, true, 113, segment4))
	f.Add(slices.Concat(sectionBlock(order), interfaceBlock(order, 1, ngOption(order, 9, 9)), packetBlock(order, 0, 1, ethernet(ethIPv4, nil, segment4))))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := New(bytes.NewReader(b))
		if err != nil {
			return
		}
		var p Packet
		var s Segment
		for range 10_000 {
			if err := r.Next(&p); err != nil {
				st := r.Stats()
				accessor.Call(t, st, err)
				if !errors.Is(err, io.EOF) {
					t.Fatal(err)
				}
				if !st.Gzip && st.Captured > uint64(len(b)) {
					t.Fatalf("%d bytes of packets in a file of %d", st.Captured, len(b))
				}
				return
			}
			v := Decode(&p, &s)
			accessor.Call(t, p, s, v)
			if v == TCP && (s.Payload < 0 || s.Payload > max(p.Length, len(p.Data))) {
				t.Fatalf("payload of %d bytes in a packet of %d", s.Payload, p.Length)
			}
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add(uint16(1), ethernet(ethIPv6, []uint16{4}, ip6(43, "fc00::1", "fc00:9::", srh(41, []string{"fc00:9::", "fc00:1:1::"}, segment6))))
	f.Add(uint16(101), segment4)
	f.Add(uint16(276), make([]byte, 60))
	f.Add(uint16(101), ip4(17, "192.0.2.1", "192.0.2.2", udp(4789, append([]byte{8, 0, 0, 0, 0, 0, 5, 0}, ethernet(ethIPv6, nil, segment6)...))))
	f.Add(uint16(101), ip6(47, "fc00::1", "fc00::2", append([]byte{0xb0, 0, 0x86, 0xdd, 1, 2, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1}, segment6...)))
	f.Fuzz(func(t *testing.T, link uint16, b []byte) {
		var s Segment
		p := Packet{Data: b, Length: len(b) + 40, Link: LinkType(link)}
		v := Decode(&p, &s)
		accessor.Call(t, p, s, v)
		if v >= Verdicts || v == TCP && s.Payload < 0 {
			t.Fatalf("%v, payload %d", v, s.Payload)
		}
	})
}

func BenchmarkReadAndDecode(b *testing.B) {
	for _, c := range []struct {
		name string
		file []byte
	}{
		{"pcap", pcapFile(binary.LittleEndian, true, 1, slices.Repeat([][]byte{ethernet(ethIPv6, nil, segment6)}, 10_000)...)},
		{"pcapng, SRv6", func() []byte {
			f := slices.Concat(sectionBlock(binary.LittleEndian), interfaceBlock(binary.LittleEndian, 1, ngOption(binary.LittleEndian, 9, 9)))
			p := packetBlock(binary.LittleEndian, 0, 1_700_000_000_000_000_000, ethernet(ethIPv6, nil, ip6(41, "fc00::1", "fc00:1:1::", segment6)))
			for range 10_000 {
				f = append(f, p...)
			}
			return f
		}()},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			var p Packet
			var s Segment
			for n := 0; n < b.N; {
				r, err := New(bytes.NewReader(c.file))
				if err != nil {
					b.Fatal(err)
				}
				for ; n < b.N && r.Next(&p) == nil; n++ {
					if Decode(&p, &s) != TCP {
						b.Fatal("no TCP")
					}
				}
			}
		})
	}
}
