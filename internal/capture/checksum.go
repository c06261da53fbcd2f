package capture

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sort"
	"time"
)

// Checksums counts mappings by their DSS checksum, which covers the mapping and its data (RFC 8684,
// section 3.3.1).
type Checksums struct {
	Verified uint64 `json:"verified"`
	Wrong    uint64 `json:"wrong"`
	// Unverifiable is those of which not all data was captured, or whose upper 32 bits of the data
	// sequence number are not known.
	Unverifiable uint64 `json:"unverifiable"`
	// Absent is the mappings without one in a connection that had agreed on them.
	Absent uint64 `json:"absent"`
}

func (c *Checksums) add(o Checksums) {
	c.Verified += o.Verified
	c.Wrong += o.Wrong
	c.Unverifiable += o.Unverifiable
	c.Absent += o.Absent
}

// Any says that there were checksums, or should have been.
func (c *Checksums) Any() bool { return *c != Checksums{} }

// signed is what a mapping says of its data: the ones' complement sum of the pseudo-header and of
// the checksum itself.
type signed struct {
	sum     uint16
	present bool
	partial bool // of the data sequence number only the lower 32 bits are known
}

// sign has the data sequence number in 64 bits, whatever the option had, and the length with the
// DATA_FIN.
func sign(dsn uint64, subflow uint32, length, checksum uint16, partial bool) signed {
	sum := dsn>>48 + dsn>>32&0xffff + dsn>>16&0xffff + dsn&0xffff
	sum += uint64(subflow>>16) + uint64(subflow&0xffff) + uint64(length) + uint64(checksum)
	return signed{sum: fold(sum), present: true, partial: partial}
}

// fold makes 16 bits of a ones' complement sum.
func fold(v uint64) uint16 {
	for v > 0xffff {
		v = v>>16 + v&0xffff
	}
	return uint16(v)
}

// sum16 is the ones' complement sum of bytes in 16-bit words, of which the first begins with the
// second byte of a word where odd.
func sum16(b []byte, odd bool) uint64 {
	var sum, carry uint64
	for len(b) >= 8 {
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b), carry)
		b = b[8:]
	}
	var rest [8]byte
	copy(rest[:], b)
	sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(rest[:]), carry)
	folded := fold(uint64(fold(sum)) + carry)
	if odd {
		folded = bits.ReverseBytes16(folded)
	}
	return uint64(folded)
}

// chunk is payload that is not in the subflow's order yet, or without its mapping.
type chunk struct {
	seq  uint64
	data []byte
}

// verifier checks the mappings of a half in the subflow's order. There is one when there was a
// checksum, or should have been.
type verifier struct {
	at    uint64 // what is before is checked, or given up
	start uint64 // of the mapping that sum is of
	sum   uint64
	whole bool // all of it up to at was captured
	early []chunk
	fin   bool // a DATA_FIN alone was checked
	count Checksums
	wrong []WrongChecksum
}

// checks makes the verifier of a half when a mapping that came has a checksum, or should have one,
// and says whether there is one.
func (h *half) checks(a *Analysis, s signed) bool {
	if h.verifier == nil && (s.present || h.sub.conn.checksums) {
		a.summed = true
		h.verifier = &verifier{start: math.MaxUint64}
		if h.buffer != nil {
			h.verifier.at = h.buffer.Next()
		}
	}
	return h.verifier != nil
}

// size is what a chunk takes of maxEarly.
func (c chunk) size() int { return len(c.data) + 64 }

// What is kept for checksums is bounded: of one analysis in bytes, of one half in chunks, which is
// a window of 12 MB even without an interface that puts segments together. What is more cannot be
// verified.
const (
	maxEarly  = 64 << 20
	maxChunks = 1 << 13
)

// keep copies payload behind what is in order. Of what is kept already nothing is kept again.
func (v *verifier) keep(a *Analysis, seq uint64, data []byte) {
	if seq < v.at {
		data = data[min(v.at-seq, uint64(len(data))):]
		seq = v.at
	}
	c := chunk{seq, data}
	if len(data) == 0 || a.early+c.size() > maxEarly || len(v.early) == maxChunks {
		return
	}
	i := sort.Search(len(v.early), func(i int) bool { return v.early[i].seq >= seq })
	if i < len(v.early) && v.early[i].seq == seq && len(v.early[i].data) >= len(data) {
		return
	}
	a.early += c.size()
	c.data = slices.Clone(data)
	v.early = slices.Insert(v.early, i, c)
}

// forget drops what was kept of what is behind.
func (v *verifier) forget(a *Analysis) {
	n := 0
	for n < len(v.early) && v.early[n].seq+uint64(len(v.early[n].data)) <= v.at {
		a.early -= v.early[n].size()
		n++
	}
	v.early = slices.Delete(v.early, 0, n)
}

// next returns kept payload from at on.
func (v *verifier) next(a *Analysis) []byte {
	v.forget(a)
	for i := range v.early {
		c := &v.early[i]
		if c.seq > v.at {
			break
		}
		if end := c.seq + uint64(len(c.data)); end > v.at {
			return c.data[v.at-c.seq:]
		}
	}
	return nil
}

// verify goes on to until, which is in the subflow's order, with the payload of the segment that
// came, of which the capture may have only a part.
func (h *half) verify(a *Analysis, until, seq uint64, payload []byte) {
	v := h.verifier
	for v.at < until {
		m, next, ok := h.maps.find(v.at)
		if !ok {
			if next >= until {
				break // the mapping may come late
			}
			v.at = next
			continue
		}
		end := min(until, m.end)
		if v.start != m.start {
			v.start, v.sum, v.whole = m.start, 0, v.at == m.start
		}
		var data []byte
		if seq <= v.at && v.at-seq < uint64(len(payload)) {
			data = payload[v.at-seq:]
		} else {
			data = v.next(a)
		}
		if n := uint64(len(data)); n == 0 {
			v.whole = false
			v.at = end
		} else {
			if n > end-v.at {
				data = data[:end-v.at]
			}
			if m.signed.present && v.whole {
				v.sum += sum16(data, (v.at-m.start)&1 != 0)
			}
			v.at += uint64(len(data))
		}
		if v.at == m.end {
			h.judge(a, &m, v.sum, v.whole)
		}
	}
	v.forget(a)
	v.keep(a, seq, payload)
}

// judge counts a mapping with all of its data, of that sum.
func (h *half) judge(a *Analysis, m *mapping, sum uint64, whole bool) {
	v := h.verifier
	switch s := &m.signed; {
	case !s.present:
		if h.sub.conn.checksums {
			v.count.Absent++
		}
	case !whole || s.partial:
		v.count.Unverifiable++
	case fold(uint64(s.sum)+sum) == 0xffff:
		v.count.Verified++
	default:
		v.count.Wrong++
		if len(v.wrong) < maxWrong {
			w := WrongChecksum{At: a.now, Packet: a.packet, Seq: m.dsn, Length: m.end - m.start}
			if len(a.o.names) > 0 {
				w.File = a.o.names[h.at.file]
			}
			v.wrong = append(v.wrong, w)
		}
	}
}

// WrongChecksum is a mapping whose checksum is not that of its data.
type WrongChecksum struct {
	At time.Duration `json:"at_ns"`
	// Packet is the number of the packet that completed it, in the file of that name.
	Packet uint64 `json:"packet"`
	File   string `json:"file,omitempty"`
	// Seq is its data sequence number, and Length that of its data.
	Seq    uint64 `json:"data_sequence_number"`
	Length uint64 `json:"length"`
}

func (w WrongChecksum) String() string {
	where := fmt.Sprintf("packet %d", w.Packet)
	if w.File != "" {
		where += " of " + w.File
	}
	return fmt.Sprintf("%s: the checksum of %d bytes at data sequence number %d is wrong", where, w.Length, w.Seq)
}

// maxWrong is how many wrong checksums a direction of a subflow lists; all are counted.
const maxWrong = 20
