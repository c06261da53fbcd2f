package tunnel

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/testkit/accessor"
)

var (
	someHeader = Header{Type: Data, Path: 3, Epoch: 0x123456, Receiver: 0xdeadbeef, Counter: 0x0102030405060708}
	someStamp  = Stamp{Sent: 0xfffffffe, Wait: 100 * waitUnit, Lane: 200, Seq: 0xabcdef, Distance: 77, Copied: true}
)

func key(t testing.TB, s Suite, secret byte) *Key {
	t.Helper()
	k, err := NewKey(s, [KeyLen]byte{secret})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// message returns a buffer with a packet of size bytes and room to seal it.
func message(size int) []byte {
	b := make([]byte, Offset+size, Overhead+size)
	for i := range b[Offset:] {
		b[Offset+i] = byte(i)
	}
	return b
}

func TestHeaderOnWire(t *testing.T) {
	b := make([]byte, Overhead)
	someHeader.put(b)
	want := []byte{4, 0x12, 0x34, 0x56, 0xde, 0xad, 0xbe, 0xef, 0x31, 2, 3, 4, 5, 6, 7, 8}
	if !bytes.Equal(b[:HeaderLen], want) {
		t.Errorf("header % x, want % x", b[:HeaderLen], want)
	}
	if h, err := ParseHeader(b); err != nil || h != someHeader {
		t.Errorf("parsed %+v, %v", h, err)
	}
	for name, change := range map[string]func([]byte) []byte{
		"short":     func(b []byte) []byte { return b[:Overhead-1] },
		"empty":     func(b []byte) []byte { return nil },
		"handshake": func(b []byte) []byte { b[0] = byte(Initiation); return b },
		"type 0":    func(b []byte) []byte { b[0] = 0; return b },
	} {
		if h, err := ParseHeader(change(bytes.Clone(b))); err == nil {
			t.Errorf("%s: parsed %+v", name, h)
		}
	}
}

func TestStampOnWire(t *testing.T) {
	b := make([]byte, StampLen)
	someStamp.put(b, Data)
	want := []byte{0xff, 0xff, 0xff, 0xfe, 0, 100, 200, 0xab, 0xcd, 0xef, 0x80, 77}
	if !bytes.Equal(b, want) {
		t.Errorf("stamp % x, want % x", b, want)
	}
	if s := parseStamp(b, Data); s != someStamp {
		t.Errorf("parsed %+v, want %+v", s, someStamp)
	}
	for wait, want := range map[time.Duration]time.Duration{
		-time.Second: 0, 17 * time.Microsecond: waitUnit, time.Hour: 65535 * waitUnit,
	} {
		Stamp{Wait: wait}.put(b, Data)
		if s := parseStamp(b, Data); s.Wait != want {
			t.Errorf("a wait of %v is read as %v, want %v", wait, s.Wait, want)
		}
	}
}

func TestSeal(t *testing.T) {
	for _, suite := range []Suite{AES256GCM, ChaCha20Poly1305} {
		for _, size := range []int{0, 1, 1400, 65000} {
			k := key(t, suite, 1)
			sealed := k.Seal(message(size), someHeader, someStamp)
			if len(sealed) != size+Overhead {
				t.Fatalf("%v: %d bytes for a packet of %d", suite, len(sealed), size)
			}
			for name, change := range map[string]func([]byte) []byte{
				"changed type":     func(b []byte) []byte { b[0] = byte(Control); return b },
				"changed epoch":    func(b []byte) []byte { b[3] ^= 1; return b },
				"changed receiver": func(b []byte) []byte { b[4] ^= 1; return b },
				"changed path":     func(b []byte) []byte { b[8] ^= 0x10; return b },
				"changed counter":  func(b []byte) []byte { b[15] ^= 1; return b },
				"changed stamp":    func(b []byte) []byte { b[HeaderLen] ^= 1; return b },
				"changed tag":      func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
				"truncated":        func(b []byte) []byte { return b[:len(b)-1] },
				"too short":        func(b []byte) []byte { return b[:Overhead-1] },
			} {
				if _, _, err := k.Open(change(bytes.Clone(sealed))); err == nil {
					t.Errorf("%v, %d bytes: a message with %s is opened", suite, size, name)
				}
			}
			if _, _, err := key(t, suite, 2).Open(bytes.Clone(sealed)); err == nil {
				t.Errorf("%v, %d bytes: opened with another key", suite, size)
			}
			if h, err := ParseHeader(sealed); err != nil || h != someHeader {
				t.Errorf("header %+v, %v", h, err)
			}
			s, packet, err := k.Open(sealed)
			if err != nil || s != someStamp || !bytes.Equal(packet, message(size)[Offset:]) {
				t.Errorf("%v, %d bytes: opened %+v, %d bytes, %v", suite, size, s, len(packet), err)
			}
		}
	}
	if _, err := NewKey(9, [KeyLen]byte{}); err == nil {
		t.Error("an unknown suite has a key")
	}
}

func TestSequenceWraps(t *testing.T) {
	for _, tt := range []struct {
		s, t Seq
		want int
	}{{5, 3, 2}, {3, 5, -2}, {0, seqMask, 1}, {seqMask, 0, -1}, {1 << 23, 0, -1 << 23}, {1<<23 - 1, 0, 1<<23 - 1}} {
		if got := tt.s.Since(tt.t); got != tt.want {
			t.Errorf("%d since %d: %d, want %d", tt.s, tt.t, got, tt.want)
		}
	}
	if n := Seq(seqMask).Next(); n != 0 {
		t.Errorf("next %d", n)
	}
}

// A receiver that knows which counters of a path are missing knows by the distance which numbers
// were lost: those before the first packet that arrives after the gap are of other paths.
func TestDistanceNamesTheNumberBefore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var n Numbering
		last := map[[2]uint8]Seq{}
		copies := map[[2]uint8]bool{}
		for range rapid.IntRange(1, 200).Draw(t, "packets") {
			lane := rapid.SampledFrom([]uint8{0, 7, 255}).Draw(t, "lane")
			paths := rapid.SliceOfNDistinct(rapid.Uint8Range(0, 3), 1, 2, rapid.ID).Draw(t, "paths")
			seq := n.Assign(lane)
			for _, p := range paths {
				at := [2]uint8{lane, p}
				s := n.Stamp(lane, seq, p, len(paths) > 1)
				before, known := last[at]
				if known != (s.Distance != 0) || known && (seq.Since(before) != int(s.Distance) || s.Copied != copies[at]) {
					t.Fatalf("lane %d path %d: number %d has %+v, the one before is %d (known: %v)", lane, p, seq, s, before, known)
				}
				last[at], copies[at] = seq, len(paths) > 1
			}
		}
	})
}

func TestDistanceThatIsTooLarge(t *testing.T) {
	var n Numbering
	n.Stamp(1, n.Assign(1), 0, false)
	for range MaxDistance {
		n.Assign(1)
	}
	if s := n.Stamp(1, n.Peek(1), 0, false); s.Distance != 0 {
		t.Errorf("distance %d of %d numbers", s.Distance, MaxDistance+1)
	}
}

func TestReplay(t *testing.T) {
	// The model keeps all counters.
	rapid.Check(t, func(t *rapid.T) {
		var r Replay
		seen, highest := map[uint64]bool{}, uint64(0)
		base := rapid.SampledFrom([]uint64{0, 1, 64, 1 << 40}).Draw(t, "base")
		steps := []*rapid.Generator[uint64]{rapid.Uint64Range(0, 200), rapid.Uint64Range(0, replayWindow+100), rapid.Uint64Range(0, 40000)}
		for range rapid.IntRange(1, 300).Draw(t, "messages") {
			c := base + rapid.OneOf(steps...).Draw(t, "counter")
			fresh := !seen[c] && (len(seen) == 0 || c+replayWindow > highest)
			if got := r.Fresh(c); got != fresh {
				t.Fatalf("counter %d, highest %d, seen %v: fresh %v, want %v", c, highest, seen[c], got, fresh)
			}
			if !fresh {
				continue
			}
			missing := r.Accept(c)
			var want uint64
			switch {
			case len(seen) == 0:
				want = c
			case c > highest:
				want = c - highest - 1
			}
			if missing != want {
				t.Fatalf("counter %d, highest %d: %d missing, want %d", c, highest, missing, want)
			}
			seen[c], highest = true, max(highest, c)
		}
	})
	var r Replay
	if r.Fresh(MaxCounter) {
		t.Error("a counter beyond the maximum is fresh")
	}
}

func FuzzOpen(f *testing.F) {
	k := key(f, AES256GCM, 1)
	f.Add(k.Seal(message(40), someHeader, someStamp))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseHeader(b)
		if err != nil {
			return
		}
		original := bytes.Clone(b)
		s, packet, err := k.Open(b)
		accessor.Call(t, h, s)
		if err != nil {
			return
		}
		// Only what was sealed is opened, so sealing it again gives the same message.
		again := append(make([]byte, Offset, len(original)), packet...)
		if got := k.Seal(again, h, s); !bytes.Equal(got, original) {
			t.Errorf("% x is opened and sealed as % x", original, got)
		}
	})
}

func BenchmarkSeal(b *testing.B) {
	for _, suite := range []Suite{AES256GCM, ChaCha20Poly1305} {
		b.Run(fmt.Sprint(suite), func(b *testing.B) {
			k, buf, h := key(b, suite, 1), message(1400), someHeader
			b.SetBytes(1400)
			b.ReportAllocs()
			for b.Loop() {
				h.Counter++
				k.Seal(buf, h, someStamp)
			}
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	k, sealed := key(b, AES256GCM, 1), key(b, AES256GCM, 1).Seal(message(1400), someHeader, someStamp)
	buf := make([]byte, len(sealed))
	var replay Replay
	b.SetBytes(1400)
	b.ReportAllocs()
	for b.Loop() {
		copy(buf, sealed)
		h, err := ParseHeader(buf)
		if err != nil || !replay.Fresh(h.Counter) {
			b.Fatal(err)
		}
		if _, _, err := k.Open(buf); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReplay(b *testing.B) {
	var r Replay
	random := rand.New(rand.NewPCG(1, 2))
	c := uint64(100)
	for b.Loop() {
		c++
		if n := c - random.Uint64N(64); r.Fresh(n) {
			r.Accept(n)
		}
	}
}
