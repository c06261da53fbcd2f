package capture

import (
	"errors"
	"slices"
	"time"
	"unsafe"

	"github.com/tabane/tabane/internal/analysis/pcap"
)

// ErrDisorder means that the times of the files run backwards so far that sorting the packets would
// need more than Options.SortMemory.
var ErrDisorder = errors.New("the times of its packets run backwards too far to be sorted in memory")

// DefaultSortMemory is the default of Options.SortMemory.
const DefaultSortMemory = 1 << 30

// sorter delivers segments in the order of their times. It buffers a segment until no earlier one
// can follow. A first pass measures how far times run backwards, so the memory depends on that
// distance and not on the size of the file.
type sorter struct {
	do      func(*pcap.Segment, point)
	back    time.Duration // the largest distance of a segment to the latest one before it
	memory  int           // limit of the buffered bytes
	payload bool          // payload is needed, for checksums

	heap   []stored
	number uint64
	latest int64
	used   int
	full   bool // the limit was exceeded; nothing is buffered any more
}

// stored is a segment held by the sorter, with its position in the files.
type stored struct {
	segment pcap.Segment
	at      point
	number  uint64
}

// before orders by time; segments with the same time are ordered by their position in the files.
func (s *stored) before(o *stored) bool {
	if s.segment.At != o.segment.At {
		return s.segment.At < o.segment.At
	}
	return s.number < o.number
}

// size returns the memory of a stored segment in bytes.
func (s *stored) size() int {
	return int(unsafe.Sizeof(*s)) + cap(s.segment.Options) + cap(s.segment.Data)
}

// add adds the next segment of the files.
func (t *sorter) add(s *pcap.Segment, at point) {
	c := stored{segment: *s, at: at, number: t.number}
	c.segment.Options, c.segment.Data = slices.Clone(s.Options), nil
	if t.payload {
		c.segment.Data = slices.Clone(s.Data)
	}
	if t.number == 0 || s.At > t.latest {
		t.latest = s.At
	}
	t.number++
	t.push(c)
	for len(t.heap) > 0 && t.latest-t.heap[0].segment.At > int64(t.back) {
		t.pop()
	}
	if t.used > t.memory {
		t.full, t.heap = true, nil
	}
}

// flush delivers all buffered segments at the end of the files.
func (t *sorter) flush() {
	for len(t.heap) > 0 {
		t.pop()
	}
}

// push and pop are those of a binary heap, because container/heap would allocate for each segment.
func (t *sorter) push(s stored) {
	t.used += s.size()
	t.heap = append(t.heap, s)
	for i := len(t.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !t.heap[i].before(&t.heap[parent]) {
			break
		}
		t.heap[i], t.heap[parent] = t.heap[parent], t.heap[i]
		i = parent
	}
}

func (t *sorter) pop() {
	first := t.heap[0]
	last := len(t.heap) - 1
	t.heap[0], t.heap[last] = t.heap[last], stored{}
	t.heap = t.heap[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if t.heap[child].before(&t.heap[least]) {
				least = child
			}
		}
		if least == i {
			break
		}
		t.heap[i], t.heap[least] = t.heap[least], t.heap[i]
		i = least
	}
	t.used -= first.size()
	t.do(&first.segment, first.at)
}
