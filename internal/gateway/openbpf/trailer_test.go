package openbpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// minFrame is the length that Ethernet pads frames to, without their checksum (IEEE 802.3, clause
// 3.2.8).
const minFrame = 60

// onWire returns a frame as it arrives from a wire: padded, and sometimes with a trailer. Neither
// is zero.
func onWire(r *rand.Rand, frame []byte) []byte {
	n := max(minFrame-len(frame), 0)
	if r.IntN(2) == 0 {
		n += 1 + r.IntN(80)
	}
	b := bytes.Clone(frame)
	for range n {
		b = append(b, byte(1+r.IntN(255)))
	}
	return b
}

// drawSmall draws a message that is often shorter than the shortest frame.
func drawSmall(r *rand.Rand) message {
	m := draw(r)
	m.payload = r.IntN(40)
	return m
}

// TestTrailers: a packet whose frame is longer is sent and counted as it is without what follows
// it.
func TestTrailers(t *testing.T) {
	p := load(t, Options{})
	p.routes4and6(t)
	p.plans(t, dataplane.Policy{{}}, "best", 1500, 1)
	r := rand.New(rand.NewPCG(32, 1))
	var want dataplane.Count
	for range 1000 {
		m := drawSmall(r)
		frame := m.frame()
		verdict, out := p.run(t, onWire(r, frame))
		m.hops--
		if verdict != redirect || !bytes.Equal(out, m.frame()) {
			t.Fatalf("%+v: verdict %d\n%x, want\n%x", m, int32(verdict), out, m.frame())
		}
		want.Packets++
		want.Bytes += uint64(len(frame) - 14)
	}
	// A trailer is not part of what a path can carry.
	m := message{Packet: dataplane.Packet{Src: from4, Dst: to4, Protocol: 17}, hops: 9, payload: 1460}
	if verdict, out := p.run(t, append(m.frame(), 1, 2, 3, 4)); verdict != redirect || len(out) != 14+1500 {
		t.Errorf("verdict %d with a trailer behind a packet of 1500 bytes", int32(verdict))
	}
	want.Packets++
	want.Bytes += 1500
	if got, err := p.Traffic(0); err != nil || got.Rules[0].Sent != want {
		t.Errorf("sent %+v, %v, want %+v", got.Rules[0].Sent, err, want)
	}
}

// TestTunnelTrailers: the same through a tunnel, whose messages have trailers as well.
func TestTunnelTrailers(t *testing.T) {
	for name, end := range map[string][2]netip.AddrPort{"IPv4": {local4, remote4}, "IPv6": {local6, remote6}} {
		e := newEnds(t, "best", 1, end[0], end[1])
		r := rand.New(rand.NewPCG(32, 2))
		var want dataplane.Count
		for range 1000 {
			m := drawSmall(r)
			verdict, out := e.near.run(t, onWire(r, m.frame()))
			m.hops--
			inner := m.frame()
			if overhead := len(out) - len(inner); verdict != redirect || overhead != OverheadIPv4 && overhead != OverheadIPv6 {
				t.Fatalf("%s: %+v: verdict %d, %d bytes around the packet", name, m, int32(verdict), len(out)-len(inner))
			}
			verdict, got := e.far.take(t, onWire(r, out))
			if verdict != next || !bytes.Equal(got, inner) {
				t.Fatalf("%s: %+v: verdict %d\n%x, want\n%x", name, m, int32(verdict), got, inner)
			}
			want.Packets++
			want.Bytes += uint64(len(out) - 14)
		}
		sent, err := e.near.Traffic(0)
		if err != nil {
			t.Fatal(err)
		}
		if arrived, err := e.far.Arrived(cookieOf(0)); err != nil || arrived[0] != (dataplane.Arrived{Count: want}) || sent.Paths[0] != want {
			t.Errorf("%s: arrived %+v, %v, sent %+v, want %+v", name, arrived[0], err, sent.Paths[0], want)
		}
	}
}

// TestPaddingInTunnel: padding that a gateway has taken into the tunnel ends there.
func TestPaddingInTunnel(t *testing.T) {
	for name, end := range map[string][2]netip.AddrPort{"IPv4": {local4, remote4}, "IPv6": {local6, remote6}} {
		e := newEnds(t, "best", 1, end[0], end[1])
		m := message{Packet: dataplane.Packet{Src: from4, Dst: to4, Protocol: 6}, hops: 9}
		frame := m.frame()
		out := append(e.fromNear(t, m), 1, 2, 3, 4, 5, 6)
		udp := 14 + 20
		if end[0].Addr().Is6() {
			udp = 14 + 40
			binary.BigEndian.PutUint16(out[14+4:], uint16(len(out)-udp))
		} else {
			binary.BigEndian.PutUint16(out[14+2:], uint16(len(out)-14))
		}
		binary.BigEndian.PutUint16(out[udp+4:], uint16(len(out)-udp))
		if verdict, got := e.far.take(t, out); verdict != next || len(got) != len(frame) {
			t.Errorf("%s: verdict %d, %d bytes, want %d", name, int32(verdict), len(got), len(frame))
		}
	}
}

// TestNATTrailers: the same with the address of a path, and for an ICMP error about the packet.
func TestNATTrailers(t *testing.T) {
	for name, tt := range map[string]struct{ from, to, local, router netip.Addr }{
		"IPv4": {from4, to4, netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("203.0.113.1")},
		"IPv6": {from6, to6, local6.Addr(), netip.MustParseAddr("2001:db8:ffff::1")},
	} {
		r := rand.New(rand.NewPCG(32, 3))
		s := newSites(t, tt.local)
		var want dataplane.Count
		for i := range 300 {
			m := message{Packet: dataplane.Packet{Src: tt.from, Dst: tt.to, Protocol: []uint8{6, 17}[i%2], SrcPort: 1000, DstPort: 2000}, hops: 9, payload: r.IntN(20)}
			f := tunnel.Flow{Protocol: m.Protocol, Source: netip.AddrPortFrom(tt.from, 1000), Destination: netip.AddrPortFrom(tt.to, 2000)}
			if err := errors.Join(s.near.SetSession(This, f, true), s.far.SetSession(3, f, true)); err != nil {
				t.Fatal(err)
			}
			frame := m.frame()
			setChecksum(frame)
			verdict, out := s.near.run(t, onWire(r, frame))
			if verdict != redirect || len(out) != len(frame) {
				t.Fatalf("%s: %+v: verdict %d, %d bytes, want %d", name, m, int32(verdict), len(out), len(frame))
			}
			want.Packets++
			want.Bytes += uint64(len(out) - 14)
			m.hops--
			inner := m.frame()
			setChecksum(inner)
			if verdict, got := s.far.restored(t, onWire(r, out)); verdict != next || !bytes.Equal(got, inner) {
				t.Fatalf("%s: %+v: verdict %d\n%x, want\n%x", name, m, int32(verdict), got, inner)
			}
			kind := byte(3)
			if verdict, got := s.near.restored(t, onWire(r, icmpError(tt.router, out, kind))); verdict != next || !bytes.Equal(got, icmpError(tt.router, inner, kind)) {
				t.Fatalf("%s: %+v: verdict %d\n%x, want\n%x", name, m, int32(verdict), got, icmpError(tt.router, inner, kind))
			}
		}
		if got, err := s.far.Counted(3); err != nil || got[0] != want {
			t.Errorf("%s: counted %+v, %v, want %+v", name, got[0], err, want)
		}
	}
}

// TestCountTrailers: packets of mode plain count without what follows them.
func TestCountTrailers(t *testing.T) {
	const loopback, peer = 1, 3
	p := load(t, Options{})
	if err := errors.Join(
		p.SetRoutes(map[netip.Prefix]int{netip.MustParsePrefix("10.1.0.0/16"): peer, netip.MustParsePrefix("2001:db8:1::/48"): peer}),
		p.SetLines(map[Line]int{{loopback, peer}: 0}),
	); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(32, 4))
	var want dataplane.Count
	for range 500 {
		m := drawSmall(r)
		frame := m.frame()
		if verdict, _, marked := received(t, p.objects.Count, onWire(r, frame)); verdict != next || !marked {
			t.Fatalf("%+v: verdict %d, marked %v", m, int32(verdict), marked)
		}
		want.Packets++
		want.Bytes += uint64(len(frame) - 14)
	}
	if got, err := p.Counted(peer); err != nil || got[0] != want {
		t.Errorf("counted %+v, %v, want %+v", got[0], err, want)
	}
}

// setLength sets what the IP header at an offset says that the packet has, header included.
func setLength(frame []byte, at, length int) {
	if frame[at]>>4 == 4 {
		binary.BigEndian.PutUint16(frame[at+2:], uint16(length))
		return
	}
	binary.BigEndian.PutUint16(frame[at+4:], uint16(length-40))
}

// TestLengths: a packet that is longer than its frame, or too short for its headers, is not sent,
// delivered or counted, but for the reason that it is malformed.
func TestLengths(t *testing.T) {
	p := load(t, Options{})
	p.routes4and6(t)
	p.plans(t, dataplane.Policy{{}}, "best", 1500, 1)
	for _, m := range []message{
		{Packet: dataplane.Packet{Src: from4, Dst: to4, Protocol: 6}, hops: 9, payload: 30},
		{Packet: dataplane.Packet{Src: from6, Dst: to6, Protocol: 6}, hops: 9, payload: 30},
	} {
		frame := m.frame()
		whole := len(frame) - 14
		header := 20
		if m.Src.Is6() {
			header = 40
		}
		for _, length := range []int{0, 1, header - 1, header, header + 1, header + 13, whole + 1, whole + 40, 0xffff} {
			if m.Src.Is6() && length < header {
				continue // not to be said
			}
			f := bytes.Clone(frame)
			setLength(f, 14, length)
			before, err := p.Left()
			if err != nil {
				t.Fatal(err)
			}
			verdict, _ := p.run(t, f)
			after, err := p.Left()
			if err != nil {
				t.Fatal(err)
			}
			name := fmt.Sprintf("%v: %d of %d bytes", m.Src, length, whole)
			if verdict != next {
				t.Errorf("%s: verdict %d", name, int32(verdict))
			}
			counted(t, name, leftNames, before, after, "malformed")
		}
	}
	if got, err := p.Traffic(0); err != nil || got.Paths[0] != (dataplane.Count{}) {
		t.Errorf("sent %+v, %v", got.Paths[0], err)
	}
}

// TestTunnelLengths: the same for messages and what is in them, each of which may be shorter than
// what it is in, but not longer.
func TestTunnelLengths(t *testing.T) {
	for name, end := range map[string][2]netip.AddrPort{"IPv4": {local4, remote4}, "IPv6": {local6, remote6}} {
		e := newEnds(t, "best", 1, end[0], end[1])
		for _, m := range []message{
			{Packet: dataplane.Packet{Src: from4, Dst: to4, Protocol: 6}, hops: 9, payload: 30},
			{Packet: dataplane.Packet{Src: from6, Dst: to6, Protocol: 6}, hops: 9, payload: 30},
		} {
			m.hops = 9
			out := e.fromNear(t, m)
			m.hops--
			want := m.frame()
			overhead := len(out) - len(want)
			udp, inner := 14+overhead-24-8, 14+overhead
			for what, change := range map[string]func(f []byte, by int){
				"message":  func(f []byte, by int) { setLength(f, 14, len(f)-14+by) },
				"datagram": func(f []byte, by int) { binary.BigEndian.PutUint16(f[udp+4:], uint16(len(f)-udp+by)) },
				"packet":   func(f []byte, by int) { setLength(f, inner, len(f)-inner+by) },
			} {
				for _, by := range []int{-1000, -50, -49, -1, 1, 2, 300} {
					f := bytes.Clone(out)
					change(f, by)
					before, err := e.far.Refused()
					if err != nil {
						t.Fatal(err)
					}
					verdict, got := e.far.take(t, f)
					after, err := e.far.Refused()
					if err != nil {
						t.Fatal(err)
					}
					which := fmt.Sprintf("%s: %v: %s by %d", name, m.Src, what, by)
					// The packet may be shorter, but no shorter than its header.
					if what == "packet" && by < 0 && len(f)-inner+by >= overheadOf(m) {
						if counted(t, which, refusalNames, before, after, ""); verdict != next || len(got) != len(want)+by {
							t.Errorf("%s: verdict %d, %d bytes", which, int32(verdict), len(got))
						}
						continue
					}
					if what == "packet" && by < 0 && m.Src.Is6() {
						continue // the field wraps: longer
					}
					if verdict != drop {
						t.Errorf("%s: verdict %d", which, int32(verdict))
					}
					counted(t, which, refusalNames, before, after, "malformed")
				}
			}
		}
	}
}

// overheadOf is the length of a message's IP header.
func overheadOf(m message) int {
	if m.Src.Is6() {
		return 40
	}
	return 20
}

// TestRestoreLengths: a packet of NAT that is longer than its frame is dropped and counted, and so
// is what may be an error.
func TestRestoreLengths(t *testing.T) {
	for name, tt := range map[string]struct{ from, to, local netip.Addr }{
		"IPv4": {from4, to4, netip.MustParseAddr("192.0.2.9")}, "IPv6": {from6, to6, local6.Addr()},
	} {
		s := newSites(t, tt.local)
		m := message{Packet: dataplane.Packet{Src: tt.from, Dst: tt.to, Protocol: 17, SrcPort: 1, DstPort: 2}, hops: 9, payload: 30}
		f := tunnel.Flow{Protocol: 17, Source: netip.AddrPortFrom(tt.from, 1), Destination: netip.AddrPortFrom(tt.to, 2)}
		if err := errors.Join(s.near.SetSession(This, f, true), s.far.SetSession(3, f, true)); err != nil {
			t.Fatal(err)
		}
		frame := m.frame()
		setChecksum(frame)
		_, out := s.near.run(t, frame)
		setLength(out, 14, len(out)-14+1)
		before, err := s.far.Refused()
		if err != nil {
			t.Fatal(err)
		}
		verdict, _ := s.far.restored(t, out)
		after, err := s.far.Refused()
		if err != nil {
			t.Fatal(err)
		}
		if verdict != drop {
			t.Errorf("%s: verdict %d", name, int32(verdict))
		}
		counted(t, name, refusalNames, before, after, "malformed")
		if got, err := s.far.Counted(3); err != nil || got[0] != (dataplane.Count{}) {
			t.Errorf("%s: counted %+v, %v", name, got[0], err)
		}
	}
}
