package emulator

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/checksum"
)

func frameOf(ethertypes []uint16, packet []byte) []byte {
	frame := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	for i, t := range ethertypes {
		if i > 0 {
			frame = append(frame, 0x20, 7) // TCI of the preceding tag
		}
		frame = binary.BigEndian.AppendUint16(frame, t)
	}
	return append(frame, packet...)
}

// packet4 returns an IPv4 packet with options bytes of options and a valid header checksum.
func packet4(tos byte, options int, payload ...byte) []byte {
	h := make([]byte, 20+options, 20+options+len(payload))
	h[0], h[1], h[8], h[9] = 0x40|byte(5+options/4), tos, 64, 6
	copy(h[12:], []byte{192, 0, 2, 1, 198, 51, 100, 2})
	binary.BigEndian.PutUint16(h[2:], uint16(cap(h)))
	binary.BigEndian.PutUint16(h[10:], checksum.Of(h))
	return append(h, payload...)
}

// packet6 returns an IPv6 packet whose flow label is all ones.
func packet6(class, next byte, payload ...byte) []byte {
	h := make([]byte, 40)
	h[0], h[1], h[2], h[3], h[6], h[7] = 0x60|class>>4, class<<4|0xf, 0xff, 0xff, next, 64
	return append(h, payload...)
}

func TestMark(t *testing.T) {
	const ip4, ip6 = 0x0800, 0x86dd
	ack := make([]byte, 20)
	// A router on the path to a SID marks the outer header only.
	encapsulated := func(outer, inner byte) []byte { return packet6(outer, 41, packet6(inner, 6, ack...)...) }
	segment := func(outer, inner byte) []byte {
		srh := append([]byte{41, 2, 4, 1, 0, 0, 0, 0}, make([]byte, 16)...)
		return packet6(outer, 43, append(srh, packet6(inner, 6, ack...)...)...)
	}
	changed := func(b []byte, at int, to byte) []byte {
		b = slices.Clone(b)
		b[at] = to
		return b
	}
	for _, tt := range []struct {
		name       string
		types      []uint16
		from, to   []byte
		understood bool
	}{
		{"ipv4, not capable", []uint16{ip4}, packet4(0xb8, 0), nil, false},
		{"ipv4, capable 1", []uint16{ip4}, packet4(0xb9, 0, ack...), packet4(0xbb, 0, ack...), true},
		{"ipv4, capable 0", []uint16{ip4}, packet4(2, 0), packet4(3, 0), true},
		{"ipv4, marked", []uint16{ip4}, packet4(3, 0), packet4(3, 0), true},
		{"ipv4 with options", []uint16{ip4}, packet4(2, 40), packet4(3, 40), true},
		{"ipv6, not capable", []uint16{ip6}, packet6(0xb8, 6), nil, false},
		{"ipv6, capable 1", []uint16{ip6}, packet6(0xb9, 6, ack...), packet6(0xbb, 6, ack...), true},
		{"ipv6, capable 0", []uint16{ip6}, packet6(2, 6), packet6(3, 6), true},
		{"ipv6, marked", []uint16{ip6}, packet6(3, 6), packet6(3, 6), true},
		{"encapsulated", []uint16{ip6}, encapsulated(2, 2), encapsulated(3, 2), true},
		{"encapsulated, with segments left", []uint16{ip6}, segment(1, 0), segment(3, 0), true},
		{"encapsulated, the inner alone is capable", []uint16{ip6}, encapsulated(0, 2), nil, false},
		{"tag", []uint16{0x8100, ip6}, packet6(2, 6), packet6(3, 6), true},
		{"two tags", []uint16{0x88a8, 0x8100, ip4}, packet4(2, 0), packet4(3, 0), true},
		{"three tags", []uint16{0x88a8, 0x8100, 0x8100, ip4}, packet4(2, 0), nil, false},
		{"arp", []uint16{0x0806}, packet4(2, 0), nil, false},
		{"ipv4 called ipv6", []uint16{ip6}, packet4(2, 40), nil, false},
		{"ipv6 called ipv4", []uint16{ip4}, packet6(2, 6), nil, false},
		{"ipv4 with a short header", []uint16{ip4}, changed(packet4(2, 0), 0, 0x44), nil, false},
		{"ipv4 cut", []uint16{ip4}, packet4(2, 0)[:19], nil, false},
		{"ipv6 cut", []uint16{ip6}, packet6(2, 6)[:39], nil, false},
		{"tag without rest", []uint16{0x8100}, []byte{0, 7, 8}, nil, false},
	} {
		frame := frameOf(tt.types, tt.from)
		want := slices.Clone(frame)
		if tt.understood {
			want = frameOf(tt.types, tt.to)
		}
		if got := mark(frame); got != tt.understood || !bytes.Equal(frame, want) {
			t.Errorf("%s: %v\n%x, want %v\n%x", tt.name, got, frame, tt.understood, want)
		}
	}
	for n := range 14 {
		if mark(frameOf([]uint16{ip4}, nil)[:n]) {
			t.Errorf("%d bytes are marked", n)
		}
	}
}

// A valid checksum stays valid and a wrong one stays wrong by the same difference, so that the
// receiver detects it as without the mark.
func TestPropertyChecksum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		packet := packet4(byte(rapid.IntRange(0, 255).Draw(t, "tos")), 4*rapid.IntRange(0, 10).Draw(t, "options"))
		for i := 2; i < len(packet); i++ {
			packet[i] = rapid.Byte().Draw(t, fmt.Sprint(i))
		}
		if rapid.Bool().Draw(t, "right") {
			binary.BigEndian.PutUint16(packet[10:], 0)
			binary.BigEndian.PutUint16(packet[10:], checksum.Of(packet))
		}
		before := checksum.Of(packet)
		mark(frameOf([]uint16{0x0800}, nil)) // nothing follows
		frame := frameOf([]uint16{0x0800}, packet)
		mark(frame)
		// Ones' complement has two zeros: 0 and 0xffff are equal.
		if after := checksum.Of(frame[14:]); after%0xffff != before%0xffff {
			t.Fatalf("checksum is off by %#x, before by %#x, of %x", after, before, packet)
		}
	})
}

// FuzzMark checks that mark changes only the ECN field and the header checksum, and only if it
// reports a mark.
func FuzzMark(f *testing.F) {
	f.Add(frameOf([]uint16{0x0800}, packet4(2, 0, 1, 2, 3)))
	f.Add(frameOf([]uint16{0x8100, 0x86dd}, packet6(1, 6, 1, 2, 3)))
	f.Add(frameOf([]uint16{0x88a8, 0x8100, 0x0800}, packet4(3, 8)))
	f.Fuzz(func(t *testing.T, frame []byte) {
		before := slices.Clone(frame)
		marked := mark(frame)
		differ := 0
		for i := range frame {
			if frame[i] != before[i] {
				differ++
			}
		}
		if !marked && differ > 0 || differ > 3 {
			t.Errorf("%v: %x became %x", marked, before, frame)
		}
		again := slices.Clone(frame)
		if mark(again) != marked || !bytes.Equal(again, frame) {
			t.Errorf("%x became %x when marked again", frame, again)
		}
	})
}
