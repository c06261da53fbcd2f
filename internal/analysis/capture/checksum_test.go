package capture

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/analysis/pcap"
	"github.com/tabane/tabane/internal/base/checksum"
)

// naiveSum returns the checksum of RFC 1071 of b.
func naiveSum(b []byte) uint16 {
	if len(b)%2 != 0 {
		b = append(b[:len(b):len(b)], 0)
	}
	var sum uint32
	for ; len(b) > 0; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func TestSum16(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "bytes")
		cut := rapid.IntRange(0, len(b)).Draw(t, "cut")
		if got, want := ^checksum.Fold(sum16(b[:cut], false)+sum16(b[cut:], cut%2 != 0)), naiveSum(b); got != want && got^want != 0xffff {
			t.Fatalf("% x cut at %d: %04x, want %04x", b, cut, got, want)
		}
	})
}

// content returns byte i of the data.
func content(i uint64) byte { return byte(i*i>>3 ^ i*7) }

func contents(offset uint64, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = content(offset + uint64(i))
	}
	return b
}

// sumOf returns the checksum of a mapping of the server's data, with the pseudo-header of RFC 8684,
// section 3.3.1.
func (s *scene) sumOf(m mapped) uint16 {
	n := int(m.length)
	if m.fin {
		n--
	}
	head := append(be64(s.idsn(1)+1+m.offset), be32(m.start)...)
	head = append(append(head, be16(m.length)...), 0, 0)
	return naiveSum(append(head, contents(m.offset, n)...))
}

// piece adds a segment of the server with part of a mapping: payload bytes from subflow sequence
// number seq on, of which the capture has captured bytes.
func (s *scene) piece(at time.Duration, subflow int, seq uint32, payload, captured int, m mapped, sum uint16) {
	f := s.subflows[subflow]
	g := &pcap.Segment{
		At: int64(at) + 1e18, Number: uint64(at / ms), Flow: f.flow.Reverse(), Flags: pcap.ACK, Seq: f.isn[1] + seq, Ack: f.isn[0] + 1, Payload: payload, HopLimit: 60,
		Options: signalOption{
			hasMap: true, dsn: s.idsn(1) + 1 + m.offset, subflow: m.start, length: m.length, fin: m.fin, short: s.short, checksum: true, sum: sum,
		}.bytes(),
		Data: contents(m.offset+uint64(seq-m.start), payload)[:captured],
	}
	s.a.Add(g)
}

func TestChecksums(t *testing.T) {
	one, two := mapped{start: 1, offset: 0, length: 1001}, mapped{start: 1002, offset: 1001, length: 500}
	tests := []struct {
		name string
		send func(s *scene)
		want Checksums
	}{
		{"one segment", func(s *scene) { s.piece(10*ms, 0, 1, 1001, 1001, one, s.sumOf(one)) }, Checksums{Verified: 1}},
		{"several segments of odd lengths", func(s *scene) {
			s.piece(10*ms, 0, 1, 333, 333, one, s.sumOf(one))
			s.piece(11*ms, 0, 334, 100, 100, one, s.sumOf(one))
			s.piece(12*ms, 0, 434, 568, 568, one, s.sumOf(one))
		}, Checksums{Verified: 1}},
		{"out of order, with repetitions", func(s *scene) {
			s.piece(10*ms, 0, 434, 568, 568, one, s.sumOf(one))
			s.piece(10*ms, 0, 1002, 500, 500, two, s.sumOf(two))
			s.piece(11*ms, 0, 334, 200, 200, one, s.sumOf(one))
			s.piece(11*ms, 0, 434, 568, 568, one, s.sumOf(one))
			s.piece(12*ms, 0, 1, 433, 433, one, s.sumOf(one))
			s.piece(13*ms, 0, 1, 1001, 1001, one, s.sumOf(one))
		}, Checksums{Verified: 2}},
		{"the mapping on the last segment only", func(s *scene) {
			s.packet(10*ms, 0, 1, pcap.ACK, 1, 1, 0)
			plain := &pcap.Segment{At: 1e18 + int64(11*ms), Flow: s.subflows[0].flow.Reverse(), Flags: pcap.ACK, Seq: s.subflows[0].isn[1] + 1, Payload: 500, Data: contents(0, 500)}
			s.piece(10*ms, 0, 1002, 500, 500, two, s.sumOf(two))
			s.a.Add(plain)
			s.piece(12*ms, 0, 501, 501, 501, one, s.sumOf(one))
		}, Checksums{Verified: 2}},
		{"with DATA_FIN", func(s *scene) {
			m := one
			m.length, m.fin = m.length+1, true
			s.piece(10*ms, 0, 1, 1001, 1001, m, s.sumOf(m))
		}, Checksums{Verified: 1}},
		{"DATA_FIN alone, repeated", func(s *scene) {
			fin := mapped{start: 0, offset: 1001, length: 1, fin: true}
			head := append(append(be64(s.idsn(1)+1+1001), 0, 0, 0, 0), 0, 1, 0, 0)
			s.piece(10*ms, 0, 1, 1001, 1001, one, s.sumOf(one))
			s.piece(11*ms, 0, 1002, 0, 0, fin, naiveSum(head))
			s.piece(12*ms, 0, 1002, 0, 0, fin, naiveSum(head))
		}, Checksums{Verified: 2}},
		{"payload that was cut", func(s *scene) {
			s.piece(10*ms, 0, 1, 1001, 1000, one, s.sumOf(one))
			s.piece(11*ms, 0, 1002, 500, 0, two, s.sumOf(two))
		}, Checksums{Unverifiable: 2}},
		{"a packet that was not captured", func(s *scene) {
			s.piece(10*ms, 0, 501, 501, 501, one, s.sumOf(one))
			s.piece(11*ms, 0, 1002, 500, 500, two, s.sumOf(two))
			s.ack(12*ms, 0, 1502, 1501)
		}, Checksums{Verified: 1, Unverifiable: 1}},
		{"a byte that is another", func(s *scene) {
			s.piece(10*ms, 0, 1, 1001, 1001, one, s.sumOf(one)+1)
			s.piece(11*ms, 0, 1002, 500, 500, two, s.sumOf(two))
		}, Checksums{Verified: 1, Wrong: 1}},
		{"none, though agreed on", func(s *scene) {
			s.a.connections[0].checksums = true
			s.data(10*ms, 0, 1, 1001, one)
			s.piece(11*ms, 0, 1002, 500, 500, two, s.sumOf(two))
		}, Checksums{Verified: 1, Absent: 1}},
		{"the infinite mapping", func(s *scene) {
			s.piece(10*ms, 0, 1, 1001, 1001, one, s.sumOf(one))
			s.piece(11*ms, 0, 1002, 500, 500, mapped{start: 1002, offset: 1001}, 0)
		}, Checksums{Verified: 1}},
	}
	for _, tt := range tests {
		for _, short := range []bool{false, true} {
			s := newScene(1, Options{})
			s.short = short
			s.open(0)
			tt.send(s)
			c := only(t, s.a.Report())
			if got := c.ToClient.Checksums; got != tt.want || c.Subflows[0].ToClient.Checksums != tt.want {
				t.Errorf("%s, short %v: got %+v, want %+v", tt.name, short, got, tt.want)
			}
			if wrong := c.Subflows[0].ToClient.Wrong; uint64(len(wrong)) != tt.want.Wrong || len(wrong) > 0 &&
				(wrong[0].Packet != 10 || !strings.HasPrefix(wrong[0].String(), "packet 10: the checksum of 1001 bytes") || !strings.Contains(fmt.Sprint(c.Missed), "1 mapping whose checksum is wrong")) {
				t.Errorf("%s: wrong %+v, missed %v", tt.name, wrong, c.Missed)
			}
			if s.a.early != 0 {
				t.Errorf("%s: %d bytes are kept in the end", tt.name, s.a.early)
			}
		}
	}
}

// Checksums are required if either side sets flag A of MP_CAPABLE.
func TestChecksumsAgreed(t *testing.T) {
	for _, side := range []int{-1, 0, 1} {
		s := newScene(1, Options{})
		i := s.add()
		ask := func(o []byte, yes bool) []byte {
			if yes {
				o[3] |= 0x80
			}
			return o
		}
		s.packet(0, i, 0, pcap.SYN, 0, 0, 0, ask(capableOption(1), side == 0))
		s.packet(1*ms, i, 1, pcap.SYN|pcap.ACK, 0, 1, 0, ask(capableOption(1, s.key[1]), side == 1))
		s.packet(1*ms, i, 0, pcap.ACK, 1, 1, 0, capableOption(1, s.key[0], s.key[1]))
		if got := only(t, s.a.Report()).Checksums; got != (side >= 0) {
			t.Errorf("asked for by side %d: agreed on %v", side, got)
		}
	}
}

// The first data of a client is sent with MP_CAPABLE.
func TestChecksumWithCapable(t *testing.T) {
	for _, wrong := range []uint16{0, 1} {
		s := newScene(1, Options{})
		i := s.open(0)
		head := append(append(be64(s.idsn(0)+1), 0, 0, 0, 1), 0, 100, 0, 0)
		o := capableOption(1, s.key[0], s.key[1])
		o = append(append(o, be16(100)...), be16(naiveSum(append(head, contents(0, 100)...))^wrong)...)
		o[1] = byte(len(o))
		f := s.subflows[i]
		s.a.Add(&pcap.Segment{At: 1e18 + int64(5*ms), Flow: f.flow, Flags: pcap.ACK, Seq: f.isn[0] + 1, Ack: f.isn[1] + 1, Payload: 100, Options: o, Data: contents(0, 100)})
		want := Checksums{Verified: 1 - uint64(wrong), Wrong: uint64(wrong)}
		if got := only(t, s.a.Report()).ToServer.Checksums; got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

// All mappings that are captured completely are verified, however they are divided, reordered and
// repeated, and exactly those made wrong are reported as wrong.
func TestPropertyChecksums(t *testing.T) { rapid.Check(t, checksumsHold) }

func FuzzChecksums(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checksumsHold)) }

func checksumsHold(t *rapid.T) {
	s := newScene(rapid.IntRange(0, 1).Draw(t, "version"), Options{})
	s.short = rapid.Bool().Draw(t, "short")
	s.open(0)
	type segment struct {
		seq, length uint32
		m           mapped
		sum         uint16
	}
	var all []segment
	var want Checksums
	seq, offset := uint32(1), uint64(0)
	for range rapid.IntRange(1, 8).Draw(t, "mappings") {
		m := mapped{start: seq, offset: offset, length: uint16(rapid.IntRange(1, 300).Draw(t, "length"))}
		sum := s.sumOf(m)
		if rapid.SampledFrom([]bool{false, false, true}).Draw(t, "wrong") {
			sum ^= 1 << rapid.IntRange(0, 15).Draw(t, "bit")
			want.Wrong++
		} else {
			want.Verified++
		}
		for left := uint32(m.length); left > 0; {
			n := uint32(rapid.IntRange(1, int(left)).Draw(t, "segment"))
			all = append(all, segment{seq, n, m, sum})
			seq, left = seq+n, left-n
		}
		offset += uint64(m.length) + uint64(rapid.IntRange(0, 5).Draw(t, "elsewhere"))
	}
	sent := append(rapid.Permutation(all).Draw(t, "order"), rapid.SliceOfN(rapid.SampledFrom(all), 0, 5).Draw(t, "again")...)
	for i, g := range sent {
		s.piece(time.Duration(10+i)*ms, 0, g.seq, int(g.length), int(g.length), g.m, g.sum)
	}
	if got := only(t, s.a.Report()).ToClient.Checksums; got != want {
		t.Fatalf("got %+v, want %+v", got, want)
	}
	if s.a.early != 0 {
		t.Fatalf("%d bytes are kept in the end", s.a.early)
	}
}

// TestChecksumsOfTheKernel: all checksums of a Linux connection with three subflows, two of them
// inside SRv6, are correct at both ends. They are wrong where a byte of the data is changed, and
// unverifiable where data is truncated.
func TestChecksumsOfTheKernel(t *testing.T) {
	count := func(names ...string) (*Connection, Checksums) {
		c := busiest(read(t, names...))
		all := c.ToClient.Checksums
		all.add(c.ToServer.Checksums)
		return c, all
	}
	for _, name := range []string{"checksums-server.pcapng.gz", "checksums-client.pcapng.gz"} {
		c, all := count("testdata/" + name)
		if !c.Checksums || len(c.Subflows) != 3 || all.Verified < 5 || all != (Checksums{Verified: all.Verified}) {
			t.Errorf("%s: %d subflows, checksums %v: %+v; want that all are verified", name, len(c.Subflows), c.Checksums, all)
		}
		whole := unzip(t, name)
		blocks := bytes.Index(whole, []byte("HTTP/1.1 200 OK"))
		if blocks < 0 {
			t.Fatalf("%s has no response", name)
		}
		whole[blocks] ^= 1
		other, changed := count(write(t, "changed.pcapng", whole))
		if changed.Wrong != 1 || changed.Verified != all.Verified-1 {
			t.Errorf("%s with a byte that is another: %+v, want 1 wrong of %d", name, changed, all.Verified)
		}
		for _, s := range other.Subflows {
			for _, w := range s.ToClient.Wrong {
				if w.Packet == 0 || w.File == "" {
					t.Errorf("%s: %+v names no packet", name, w)
				}
			}
		}
	}
}
