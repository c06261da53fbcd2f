package tun

import (
	"bytes"
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/checksum"
)

// segment is a packet of a flow, to be built.
type segment struct {
	six, udp        bool
	id              uint16
	fragment        uint16 // the field of IPv4 with its flags
	class, hops     byte
	label           uint32
	seq, ack        uint32
	reserved, flags byte // bits 8 to 11 and the flags of TCP
	window, urgent  uint16
	options         []byte
	payload         []byte
	damaged         int // 1: the checksum of the transport, 2: that of the IPv4 header
}

func (g *segment) packet() []byte {
	be := binary.BigEndian
	var transport []byte
	protocol, field := byte(unix.IPPROTO_TCP), 16
	if g.udp {
		protocol, field = unix.IPPROTO_UDP, 6
		transport = be.AppendUint16(be.AppendUint16(nil, 1000), 2000)
		transport = append(be.AppendUint16(transport, uint16(8+len(g.payload))), 0, 0)
	} else {
		transport = be.AppendUint16(be.AppendUint16(nil, 1000), 2000)
		transport = be.AppendUint32(be.AppendUint32(transport, g.seq), g.ack)
		transport = append(transport, byte(20+len(g.options))/4<<4|g.reserved, g.flags)
		transport = append(be.AppendUint16(transport, g.window), 0, 0)
		transport = append(be.AppendUint16(transport, g.urgent), g.options...)
	}
	transport = append(transport, g.payload...)
	var p []byte
	if g.six {
		p = be.AppendUint32(nil, 6<<28|uint32(g.class)<<20|g.label)
		p = append(be.AppendUint16(p, uint16(len(transport))), protocol, g.hops)
		p = append(p, bytes.Repeat([]byte{0x20}, 32)...)
	} else {
		p = be.AppendUint16([]byte{0x45, g.class}, uint16(20+len(transport)))
		p = be.AppendUint16(be.AppendUint16(p, g.id), g.fragment)
		p = append(p, g.hops, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2)
		put16(p[10:], checksum.Of(p))
	}
	at := len(p)
	p = append(p, transport...)
	put16(p[at+field:], nonzero(p, ^checksum.Fold(checksum.Sum(p[at:], checksum.Pseudo(p, protocol, len(p)-at)))))
	switch {
	case g.damaged == 1:
		p[at+field] ^= 1
	case g.damaged == 2 && !g.six:
		p[11] ^= 1
	}
	return p
}

// drawFlow draws packets of a flow, most of which continue the one before.
func drawFlow(t *rapid.T, udp bool) (list []segment) {
	s := segment{six: rapid.Bool().Draw(t, "six"), udp: udp, hops: 64, flags: flagACK, window: 500, seq: rapid.Uint32().Draw(t, "seq"), id: rapid.Uint16().Draw(t, "id")}
	step := uint16(1)
	if rapid.Bool().Draw(t, "don't fragment") {
		s.fragment = 0x4000
	}
	if rapid.IntRange(0, 4).Draw(t, "fixed ID") == 0 {
		step = 0
	}
	if rapid.Bool().Draw(t, "AccECN") {
		s.flags |= flagECE
		s.reserved = 1
	}
	if rapid.Bool().Draw(t, "time stamps") {
		s.options = []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}
	}
	size := rapid.IntRange(1, 40).Draw(t, "size")
	for range rapid.IntRange(2, 30).Draw(t, "packets") {
		n := s
		n.payload = bytes.Repeat([]byte{byte(len(list)) + 1}, size)
		n.options = bytes.Clone(s.options)
		switch rapid.IntRange(0, 40).Draw(t, "change") {
		case 0:
			n.id += uint16(rapid.IntRange(1, 3).Draw(t, "ID"))
		case 1:
			n.reserved ^= 1 << rapid.IntRange(0, 3).Draw(t, "reserved bit")
		case 2:
			n.flags ^= 1 << rapid.IntRange(0, 7).Draw(t, "flag")
		case 3:
			n.hops--
		case 4:
			n.class ^= 1 << rapid.IntRange(0, 7).Draw(t, "class")
		case 5:
			n.label++
		case 6:
			n.window++
		case 7:
			n.ack++
		case 8:
			n.urgent++
		case 9:
			n.fragment ^= []uint16{0x4000, 0x8000, 0x2000, 1}[rapid.IntRange(0, 3).Draw(t, "fragment")]
		case 10:
			if len(n.options) > 0 {
				n.options[7]++
			}
		case 11:
			n.payload = n.payload[:rapid.IntRange(0, size).Draw(t, "shorter")]
		case 12:
			n.damaged = rapid.IntRange(1, 2).Draw(t, "damage")
		case 13:
			n.seq += 7
		}
		list = append(list, n)
		s.seq, s.id = n.seq+uint32(len(n.payload)), n.id+step
		if rapid.IntRange(0, 3).Draw(t, "stays") == 0 {
			s.reserved, s.flags, s.hops, s.class, s.window, s.ack, s.fragment = n.reserved, n.flags&^(flagPSH|flagFIN), n.hops, n.class, n.window, n.ack, n.fragment
		}
	}
	return list
}

// segmented returns the packets that a group is written as, after segmentation as the kernel does
// it.
func segmented(t *rapid.T, w *writer, g *group) (list [][]byte) {
	t.Helper()
	w.prepare(g)
	frame := bytes.Clone(w.head[:])
	frame = append(frame, g.first...)
	for _, b := range g.payload[:g.payloads] {
		frame = append(frame, b...)
	}
	var f Frame
	if err := f.parse(frame); err != nil {
		t.Fatalf("the frame is %v: %x", err, frame)
	}
	for i := range f.Len() {
		b := make([]byte, f.PacketLen(i))
		list = append(list, b[:f.Packet(i, b)])
	}
	return list
}

// TestMergedAreTheSame: segmenting what was merged gives exactly the packets back, in their order,
// but for the IPv4 IDs of packets that are not to be fragmented and have all the same.
func TestMergedAreTheSame(t *testing.T) {
	merged, fixed := 0, 0
	check := func(t *rapid.T) {
		var w writer
		w.init(nil)
		udp := rapid.Bool().Draw(t, "UDP")
		var want [][]byte
		for _, s := range drawFlow(t, udp) {
			p := s.packet()
			want = append(want, bytes.Clone(p))
			if !w.merge(p, true) {
				w.add(p, true)
			}
		}
		for _, g := range w.groups {
			if g.payloads > 0 {
				merged++
			}
			for i, got := range segmented(t, &w, g) {
				atomic := got[0]>>4 == 4 && g.payloads > 0 && g.step == 0
				if atomic {
					fixed++
					if want[0][6]&0x40 == 0 {
						t.Fatalf("packets with the same ID that may be fragmented are merged: %x", want[0])
					}
					copy(got[4:], want[0][4:6])
					put16(got[10:], 0)
					put16(got[10:], checksum.Of(got[:20]))
				}
				if !bytes.Equal(got, want[0]) {
					t.Fatalf("packet %d of %d is\n%x, was\n%x", i, 1+g.payloads, got, want[0])
				}
				want = want[1:]
			}
		}
		if len(want) > 0 {
			t.Fatalf("%d packets are missing", len(want))
		}
	}
	// Of a hundred flows, few have packets with a fixed ID that can be merged.
	for rounds := 0; rounds < 20 && (merged < 50 || fixed < 10); rounds++ {
		rapid.Check(t, check)
	}
	if merged < 50 || fixed < 10 {
		t.Errorf("%d groups were merged, %d packets with a fixed ID: the test tests little", merged, fixed)
	}
}
