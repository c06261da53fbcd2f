package capture

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sort"
	"time"

	"github.com/tabane/tabane/internal/base/checksum"
)

// Checksums counts mappings by the state of their DSS checksum, which covers the mapping and its
// data (RFC 8684, section 3.3.1).
type Checksums struct {
	Verified uint64 `json:"verified"`
	Wrong    uint64 `json:"wrong"`
	// Unverifiable counts those whose data was not captured completely, or whose data sequence
	// number is known in its lower 32 bits only.
	Unverifiable uint64 `json:"unverifiable"`
	// Absent counts mappings without a checksum in a connection that negotiated checksums.
	Absent uint64 `json:"absent"`
}

func (c *Checksums) add(o Checksums) {
	c.Verified += o.Verified
	c.Wrong += o.Wrong
	c.Unverifiable += o.Unverifiable
	c.Absent += o.Absent
}

// Any reports whether there were checksums, or should have been.
func (c *Checksums) Any() bool { return *c != Checksums{} }

// signed is a mapping with the ones' complement sum of its pseudo-header and its checksum.
type signed struct {
	sum     uint16
	present bool
	partial bool // only the lower 32 bits of the data sequence number are known
}

// sign takes the data sequence number in 64 bits, whatever its size in the option, and the length
// including the DATA_FIN.
func sign(dsn uint64, subflow uint32, length, sum uint16, partial bool) signed {
	all := dsn>>48 + dsn>>32&0xffff + dsn>>16&0xffff + dsn&0xffff
	all += uint64(subflow>>16) + uint64(subflow&0xffff) + uint64(length) + uint64(sum)
	return signed{sum: checksum.Fold(all), present: true, partial: partial}
}

// sum16 returns the ones' complement sum of bytes in 16-bit words. If odd, the first byte is the
// second one of a word.
func sum16(b []byte, odd bool) uint64 {
	folded := checksum.Fold(checksum.Sum(b, 0))
	if odd {
		folded = bits.ReverseBytes16(folded)
	}
	return uint64(folded)
}

// chunk is payload that is out of order at the subflow level, or whose mapping is not known yet.
type chunk struct {
	seq  uint64
	data []byte
}

// verifier verifies the checksums of a half, in the order of the subflow. It exists if there was a
// checksum, or should have been.
type verifier struct {
	at    uint64 // everything below was verified or is unverifiable
	start uint64 // of the mapping that sum covers
	sum   uint64
	whole bool // the mapping was captured completely up to at
	early []chunk
	fin   bool // a DATA_FIN without data was checked
	count Checksums
	wrong []WrongChecksum
}

// checks creates the verifier of a half if a mapping has a checksum, or should have one, and
// reports whether there is a verifier.
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

// size returns how many bytes of maxEarly a chunk uses.
func (c chunk) size() int { return len(c.data) + 64 }

// Limits of the payload buffered for checksums: bytes for one analysis, and chunks for one half,
// which allow a window of 12 MB without GRO. Beyond them, checksums are unverifiable.
const (
	maxEarly  = 64 << 20
	maxChunks = 1 << 13
)

// keep buffers a copy of payload that is out of order, without bytes that are buffered already.
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

// forget drops the buffered payload.
func (v *verifier) forget(a *Analysis) {
	n := 0
	for n < len(v.early) && v.early[n].seq+uint64(len(v.early[n].data)) <= v.at {
		a.early -= v.early[n].size()
		n++
	}
	v.early = slices.Delete(v.early, 0, n)
}

// next returns the buffered payload at at.
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

// verify continues up to until, the end of the data in order at the subflow level, with the payload
// of the current segment, which may be truncated.
func (h *half) verify(a *Analysis, until, seq uint64, payload []byte) {
	v := h.verifier
	for v.at < until {
		m, next, ok := h.maps.find(v.at)
		if !ok {
			if next >= until {
				break // the mapping may arrive later
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

// judge compares the checksum of a completed mapping with the sum of its data, and counts the
// result.
func (h *half) judge(a *Analysis, m *mapping, sum uint64, whole bool) {
	v := h.verifier
	switch s := &m.signed; {
	case !s.present:
		if h.sub.conn.checksums {
			v.count.Absent++
		}
	case !whole || s.partial:
		v.count.Unverifiable++
	case checksum.Fold(uint64(s.sum)+sum) == 0xffff:
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

// WrongChecksum is a mapping whose checksum does not match its data.
type WrongChecksum struct {
	At time.Duration `json:"at_ns"`
	// Packet is the number of the packet that completed the mapping, in the named file.
	Packet uint64 `json:"packet"`
	File   string `json:"file,omitempty"`
	// Seq is the data sequence number, and Length the length of the data.
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

// maxWrong limits the list of wrong checksums of one direction of a subflow; all of them are
// counted.
const maxWrong = 20
