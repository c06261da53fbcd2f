package inet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/checksum"
)

// packetOf makes a packet with right checksums.
func packetOf(t testing.TB, all ...gopacket.SerializableLayer) []byte {
	t.Helper()
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, all...); err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(b.Bytes())
}

func ip4(protocol layers.IPProtocol, class uint8, dontFragment bool) *layers.IPv4 {
	l := &layers.IPv4{Version: 4, IHL: 5, TOS: class, TTL: 64, Protocol: protocol, SrcIP: []byte{10, 0, 1, 1}, DstIP: []byte{10, 0, 2, 1}, Id: 77}
	if dontFragment {
		l.Flags = layers.IPv4DontFragment
	}
	return l
}

func ip6(protocol layers.IPProtocol, class uint8) *layers.IPv6 {
	return &layers.IPv6{Version: 6, TrafficClass: class, HopLimit: 64, NextHeader: protocol, SrcIP: netip.MustParseAddr("fd00:1::1").AsSlice(), DstIP: netip.MustParseAddr("fd00:2::1").AsSlice()}
}

// rightSums reports whether the checksums of a packet of TCP, ICMP or ICMPv6 are right.
func rightSums(b []byte) bool {
	var h Header
	if !h.Parse(b) || !LengthValid(b) {
		return false
	}
	transport := b[h.Transport:]
	pseudo := uint64(0)
	if h.Protocol != unix.IPPROTO_ICMP {
		pseudo = checksum.Pseudo(b, h.Protocol, len(transport))
	}
	right := checksum.Fold(checksum.Sum(transport, pseudo)) == 0xffff
	return right && (b[0]>>4 == 6 || checksum.Of(b[:V4Len]) == 0)
}

func TestMSSIsClamped(t *testing.T) {
	for name, options := range map[string][]layers.TCPOption{
		"alone":         {{OptionType: 2, OptionLength: 4, OptionData: []byte{5, 180}}},
		"at odd offset": {{OptionType: 1}, {OptionType: 2, OptionLength: 4, OptionData: []byte{5, 180}}},
		"behind others": {{OptionType: 4, OptionLength: 2}, {OptionType: 3, OptionLength: 3, OptionData: []byte{7}}, {OptionType: 2, OptionLength: 4, OptionData: []byte{5, 180}}},
	} {
		for _, v6 := range []bool{false, true} {
			tcp := &layers.TCP{SrcPort: 1, DstPort: 2, SYN: true, Options: options}
			var b []byte
			want := uint16(1300 - 40)
			if v6 {
				l := ip6(layers.IPProtocolTCP, 0)
				tcp.SetNetworkLayerForChecksum(l)
				b, want = packetOf(t, l, tcp), 1300-60
			} else {
				l := ip4(layers.IPProtocolTCP, 0, true)
				tcp.SetNetworkLayerForChecksum(l)
				b = packetOf(t, l, tcp)
			}
			var h Header
			if !h.Parse(b) {
				t.Fatal("not parsed")
			}
			ClampMSS(b, &h, 1300)
			got := gopacket.NewPacket(b[h.Transport:], layers.LayerTypeTCP, gopacket.Default).Layer(layers.LayerTypeTCP).(*layers.TCP)
			for _, o := range got.Options {
				if o.OptionType == layers.TCPOptionKindMSS && binary.BigEndian.Uint16(o.OptionData) != want {
					t.Errorf("%s: MSS %d, want %d", name, binary.BigEndian.Uint16(o.OptionData), want)
				}
			}
			if !rightSums(b) {
				t.Errorf("%s, IPv6 %v: wrong checksum", name, v6)
			}
			before := bytes.Clone(b)
			if ClampMSS(b, &h, 9000); !bytes.Equal(b, before) {
				t.Errorf("%s: a smaller MSS was raised", name)
			}
		}
	}
}

// TestCongestionMark is the table of RFC 6040, section 4.2.
func TestCongestionMark(t *testing.T) {
	const notECT, ect1, ect0, ce = 0, 1, 2, 3
	for _, tt := range []struct {
		inner, outer, want uint8
		dropped            bool
	}{
		{notECT, notECT, notECT, false}, {notECT, ect0, notECT, false}, {notECT, ce, 0, true},
		{ect0, notECT, ect0, false}, {ect0, ect0, ect0, false}, {ect0, ce, ce, false},
		{ect1, ce, ce, false}, {ce, notECT, ce, false}, {ce, ce, ce, false},
	} {
		for _, v6 := range []bool{false, true} {
			var b []byte
			if v6 {
				b = packetOf(t, ip6(layers.IPProtocolUDP, 46<<2|tt.inner))
			} else {
				b = packetOf(t, ip4(layers.IPProtocolUDP, 46<<2|tt.inner, true))
			}
			ok := Decapsulate(46<<2|tt.outer, b)
			var h Header
			h.Parse(b)
			if ok == tt.dropped || ok && h.Class != 46<<2|tt.want {
				t.Errorf("inner %d outer %d: %v, class %#x", tt.inner, tt.outer, ok, h.Class)
			}
			if ok && !v6 && checksum.Of(b[:V4Len]) != 0 {
				t.Errorf("inner %d outer %d: wrong header checksum", tt.inner, tt.outer)
			}
		}
	}
}

func TestTooBig(t *testing.T) {
	udp := &layers.UDP{SrcPort: 1, DstPort: 2}
	v4, v6 := ip4(layers.IPProtocolUDP, 0, true), ip6(layers.IPProtocolUDP, 0)
	udp.SetNetworkLayerForChecksum(v4)
	four := packetOf(t, v4, udp, gopacket.Payload(make([]byte, 1500)))
	udp.SetNetworkLayerForChecksum(v6)
	six := packetOf(t, v6, udp, gopacket.Payload(make([]byte, 1500)))
	for _, b := range [][]byte{four, six} {
		var h Header
		h.Parse(b)
		want := uint16(1234)
		if b[0]>>4 == 6 {
			want = 1280 // hosts ignore less
		}
		m := TooBig(nil, b, &h, 1234)
		var e Header
		if !e.Parse(m) || e.Src != h.Dst || e.Dst != h.Src || !rightSums(m) {
			t.Fatalf("%x", m)
		}
		icmp := m[e.Transport:]
		if v4 := b[0]>>4 == 4; v4 && (icmp[0] != 3 || icmp[1] != 4) || !v4 && icmp[0] != 2 || binary.BigEndian.Uint16(icmp[6:]) != want || !bytes.HasPrefix(b, icmp[8:]) {
			t.Errorf("%x", icmp[:8])
		}
		// No error about an error.
		var again Header
		again.Parse(m)
		if n := TooBig(nil, m, &again, 100); n != nil {
			t.Errorf("an error is answered by %x", n)
		}
	}
}

func TestFragments(t *testing.T) {
	payload := make([]byte, 3001)
	for i := range payload {
		payload[i] = byte(i * 7)
	}
	b := packetOf(t, ip4(layers.IPProtocolUDP, 0, false), gopacket.Payload(payload))
	var got []byte
	Fragments(b, make([]byte, len(b)), 1300, func(f []byte) {
		field := binary.BigEndian.Uint16(f[6:])
		if int(field&0x1fff)*8 != len(got) || len(f) > 1300 || checksum.Of(f[:V4Len]) != 0 || !LengthValid(f) {
			t.Errorf("fragment of %d bytes at %d: %#x", len(f), len(got), field)
		}
		got = append(got, f[V4Len:]...)
		if more := field&0x2000 != 0; more != (len(got) < len(payload)) {
			t.Errorf("more fragments: %v after %d bytes", more, len(got))
		}
	})
	if !bytes.Equal(got, payload) {
		t.Errorf("%d bytes, want %d", len(got), len(payload))
	}
}

func TestFragmentsUseOneLane(t *testing.T) {
	udp := &layers.UDP{SrcPort: 1, DstPort: 2}
	l := ip4(layers.IPProtocolUDP, 0, false)
	udp.SetNetworkLayerForChecksum(l)
	b := packetOf(t, l, udp, gopacket.Payload(make([]byte, 3000)))
	flows := map[uint32]bool{}
	Fragments(b, make([]byte, len(b)), 1300, func(f []byte) {
		var h Header
		h.Parse(f)
		flows[h.Flow] = true
	})
	if len(flows) != 1 {
		t.Errorf("%d flows", len(flows))
	}
}

// FuzzParse: whatever hosts send, nothing is read or written outside of the packet.
func FuzzParse(f *testing.F) {
	f.Add([]byte{0x45, 0, 0, 20, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x60, 2, 0, 0, 0, 0, 0, 0, 2, 4, 5, 0xb4})
	f.Add(append([]byte{0x60, 0, 0, 0, 0, 8, unix.IPPROTO_FRAGMENT, 64}, make([]byte, 48)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Header
		if !h.Parse(b) {
			return
		}
		if h.Transport > len(b) {
			t.Fatalf("transport header at %d of %d", h.Transport, len(b))
		}
		n := len(b)
		ClampMSS(b, &h, 1300)
		Decapsulate(CE, b)
		IsSYN(b)
		IsAcknowledgment(b)
		if m := TooBig(nil, b, &h, 1280); len(m) > 1280 {
			t.Fatalf("error of %d bytes", len(m))
		}
		if b[0]>>4 == 4 && LengthValid(b) {
			Fragments(b, make([]byte, n), 600, func(f []byte) {
				if len(f) > 600 {
					t.Fatalf("fragment of %d bytes", len(f))
				}
			})
		}
	})
}
