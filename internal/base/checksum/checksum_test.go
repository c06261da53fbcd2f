package checksum

import (
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"
)

// plain is RFC 1071, section 4.1, word by word.
func plain(b []byte) uint16 {
	s := uint32(0)
	for i := range b {
		s += uint32(b[i]) << (8 * (1 - i%2))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

func TestOf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "bytes")
		cut := rapid.IntRange(0, len(b)/2).Draw(t, "words") * 2
		if got, want := Of(b[:cut], b[cut:]), plain(b); got != want {
			t.Fatalf("% x cut at %d: %04x, want %04x", b, cut, got, want)
		}
	})
}

// TestUpdate: the changed checksum is that of the changed words, and a wrong one stays wrong.
func TestUpdate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 20, 20).Draw(t, "header")
		b[0] = 0x45 // no checksum of all zeros
		binary.BigEndian.PutUint16(b[10:], 0)
		wrong := rapid.Bool().Draw(t, "wrong")
		sum := Of(b)
		if wrong {
			sum ^= 1
		}
		binary.BigEndian.PutUint16(b[10:], sum)
		at := rapid.SampledFrom([]int{2, 4, 6, 8, 12, 14, 16, 18}).Draw(t, "at")
		old, changed := binary.BigEndian.Uint16(b[at:]), rapid.Uint16().Draw(t, "changed")
		binary.BigEndian.PutUint16(b[at:], changed)
		Update(b[10:], old, changed)
		if right := Of(b) == 0; right == wrong {
			t.Fatalf("% x: right %t, was wrong %t", b, right, wrong)
		}
	})
}

// TestPseudo: the checksum of a datagram (RFC 768) over both versions of IP is that of the pseudo
// header written out.
func TestPseudo(t *testing.T) {
	udp := []byte{0x04, 0xd2, 0x00, 0x35, 0x00, 0x0a, 0, 0, 'h', 'i'}
	v4 := append(make([]byte, 12), 192, 0, 2, 1, 198, 51, 100, 2)
	v4[0] = 0x45
	v6 := make([]byte, 40)
	v6[0], v6[8], v6[23], v6[24], v6[39] = 0x60, 0x20, 1, 0x20, 2
	for _, tt := range []struct {
		packet []byte
		pseudo []byte
	}{
		{v4, append(append([]byte{}, v4[12:]...), 0, 17, 0, byte(len(udp)))},
		{v6, append(append([]byte{}, v6[8:]...), 0, 0, 0, byte(len(udp)), 0, 0, 0, 17)},
	} {
		if got, want := ^Fold(Sum(udp, Pseudo(tt.packet, 17, len(udp)))), Of(tt.pseudo, udp); got != want {
			t.Errorf("version %d: %04x, want %04x", tt.packet[0]>>4, got, want)
		}
	}
}
