package reseq

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// Options configure a Buffer.
type Options struct {
	// Start is the sequence number of the first byte that is released.
	Start uint64
	// Bursts records every burst with its time, at 24 bytes each. The first one makes room for
	// Expected ones.
	Bursts   bool
	Expected int
	// Released, if not nil, is called for every segment when it is released, in no particular
	// order for the segments that one arrival releases.
	Released func(now time.Duration, s Segment)
}

// Segment is bytes [Seq, Seq+Length) of the sequence space that arrived over a path.
type Segment struct {
	// Arrived is its arrival time; Ready, which Push and PushBatch set, when it entered the
	// buffer, which is later when another buffer held it first.
	Arrived, Ready time.Duration
	Path           int
	Seq            uint64
	// Length is positive. In calls of Released it does not count duplicate bytes at the front.
	Length int
}

// Release is the effect of an arrival.
type Release struct {
	// New is the number of its bytes that are not duplicates.
	New int
	// Segments and Bytes are what it released, itself included.
	Segments, Bytes int
}

// Burst is the data that one arrival released.
type Burst struct {
	At              time.Duration
	Segments, Bytes int
}

// Count is a number of segments and their bytes.
type Count struct{ Segments, Bytes uint64 }

// Buffer is a reorder buffer that measures itself. Times are those of any clock that does not run
// backwards: a time before the latest one counts as the latest. Sequence numbers wrap at 2^64 and
// must be less than 2^63 apart. In steady state it does not allocate. It is not safe for concurrent
// use.
type Buffer struct {
	next  uint64
	held  runs
	hints [paths]int
	pool  []node
	free  int32

	// now is the latest time, holding the bytes that are held since then.
	now     time.Duration
	holding uint64
	area    wide

	batch    Release
	released func(time.Duration, Segment)
	series   bool
	expected int
	m        Measures
}

// paths is the number of paths with a separate search hint; the others share one.
const paths = 16

// node is a held segment; next is the index of the following one of its run, or of the list
// of free ones.
type node struct {
	Segment
	next int32
}

const none = -1

// New returns an empty buffer.
func New(o Options) *Buffer {
	return &Buffer{next: o.Start, free: none, released: o.Released, series: o.Bursts, expected: o.Expected}
}

// Next returns the sequence number of the first missing byte (RCV.NXT).
func (b *Buffer) Next() uint64 { return b.next }

// Occupancy returns the data held because earlier bytes are missing. Duplicate bytes count once.
func (b *Buffer) Occupancy() Count { return Count{Segments: b.m.Occupancy.Segments, Bytes: b.holding} }

// Push processes a segment that arrives now. Bytes received before are counted as duplicates; a
// segment of duplicates alone releases nothing. It panics when length is not positive.
func (b *Buffer) Push(now time.Duration, path int, seq uint64, length int) Release {
	now = b.begin(now)
	b.push(now, &Segment{Arrived: now, Ready: now, Path: path, Seq: seq, Length: length})
	return b.end(now)
}

// PushBatch adds segments that another buffer released at once, and which may have arrived earlier.
// What they release is one burst.
func (b *Buffer) PushBatch(now time.Duration, all []Segment) Release {
	now = b.begin(now)
	for _, s := range all {
		s.Ready = now
		b.push(now, &s)
	}
	return b.end(now)
}

// Skip skips the gaps before seq, for data that will not arrive. Segments held only by these gaps
// are released as one burst. The bytes skipped count in Measures.Skipped.
func (b *Buffer) Skip(now time.Duration, seq uint64) Release {
	now = b.begin(now)
	if !before(b.next, seq) {
		return b.end(now)
	}
	missing := seq - b.next
	n := 0
	b.next = seq
	for p, ok := b.front(); ok; p, ok = b.held.next(p) {
		r := b.held.run(p)
		if before(b.next, r.start) {
			break
		}
		// The bytes of this run below seq are not missing.
		if before(r.end, seq) {
			missing -= r.end - r.start
		} else {
			missing -= seq - r.start
			b.next = r.end
		}
		b.releaseList(now, r.first, r.last, r.end-r.start)
		n++
	}
	if n > 0 {
		b.held.remove(b.held.begin(), n)
	}
	b.m.Skipped += missing
	return b.end(now)
}

func (b *Buffer) front() (place, bool) {
	if b.held.empty() {
		return place{}, false
	}
	return b.held.begin(), true
}

func (b *Buffer) begin(now time.Duration) time.Duration {
	if b.m.started {
		if now <= b.now {
			now = b.now
		} else if b.holding > 0 {
			b.area.addProduct(b.holding, uint64(now-b.now))
		}
	} else {
		b.m.started, b.m.First = true, now
	}
	b.now = now
	b.batch = Release{}
	return now
}

func (b *Buffer) end(now time.Duration) Release {
	if b.holding > b.m.PeakOccupancy.Bytes {
		b.m.PeakOccupancy.Bytes = b.holding
	}
	if b.m.Occupancy.Segments > b.m.PeakOccupancy.Segments {
		b.m.PeakOccupancy.Segments = b.m.Occupancy.Segments
	}
	if r := b.batch; r.Segments > 0 {
		b.m.LastRelease = now
		b.m.Bursts.Add(int64(r.Segments))
		if b.series {
			if n := len(b.m.Series); n == cap(b.m.Series) {
				b.m.Series = slices.Grow(b.m.Series, max(n, b.expected, 1024)) // long ones grow by a quarter otherwise
			}
			b.m.Series = append(b.m.Series, Burst{now, r.Segments, r.Bytes})
		}
	}
	return b.batch
}

func (b *Buffer) push(now time.Duration, s *Segment) {
	if s.Length <= 0 {
		panic(fmt.Sprintf("BUG: segment of %d bytes", s.Length))
	}
	start, end := s.Seq, s.Seq+uint64(s.Length)
	if before(start, b.next) {
		if !before(b.next, end) {
			b.duplicate(s.Length)
			return
		}
		start = b.next
	}
	if b.held.empty() && start == b.next {
		b.arrive(s, int(end-start))
		b.next = end
		b.deliver(now, s, start, int(end-start))
		return
	}
	hint := &b.hints[uint(s.Path)%paths]
	p, ok := b.held.find(start, *hint)
	if ok && !before(b.held.run(p).end, end) {
		*hint = p.chunk
		b.duplicate(s.Length)
		return
	}
	// The run before may reach up to this segment; those behind may begin in it.
	at, there := p, ok && !before(b.held.run(p).end, start)
	if !there {
		if ok {
			at, there = b.held.next(p)
		} else {
			at, there = b.front()
		}
		there = there && !before(end, b.held.run(at).start)
	}
	if !there {
		n := int(end - start)
		b.arrive(s, n)
		if start == b.next { // there are runs, but they wait for more than this
			b.next = end
			b.deliver(now, s, start, n)
			return
		}
		i := b.hold(s, start, n)
		b.holding += uint64(n)
		*hint = b.held.insertAfter(p, ok, run{start, end, i, i})
		return
	}
	first := b.held.run(at)
	*hint = at.chunk
	lo, hi := first.start, first.end
	if before(start, lo) {
		lo = start
	}
	overlap := shared(start, end, first)
	others := 0 // runs behind the first that this segment reaches
	for q, ok := b.held.next(at); ok; q, ok = b.held.next(q) {
		r := b.held.run(q)
		if before(end, r.start) {
			break
		}
		overlap += shared(start, end, r)
		hi = r.end
		others++
		b.pool[first.last].next = r.first
		first.last = r.last
	}
	if before(hi, end) {
		hi = end
	}
	fresh := int(end-start) - int(overlap)
	b.arrive(s, fresh)
	if start == b.next {
		// All runs that it reaches follow it without a gap.
		b.next = hi
		b.deliver(now, s, start, fresh)
		b.releaseList(now, first.first, first.last, hi-start-uint64(fresh))
		b.held.remove(at, 1+others)
		return
	}
	i := b.hold(s, start, fresh)
	first.start, first.end = lo, hi
	b.pool[first.last].next = i
	first.last = i
	b.holding += uint64(fresh)
	if others > 0 {
		q, _ := b.held.next(at)
		b.held.remove(q, others)
	}
}

// shared returns the number of bytes of [start, end) in the run.
func shared(start, end uint64, r *run) uint64 {
	from, to := r.start, r.end
	if before(from, start) {
		from = start
	}
	if before(end, to) {
		to = end
	}
	if !before(from, to) {
		return 0
	}
	return to - from
}

// arrive counts a segment with that many new bytes.
func (b *Buffer) arrive(s *Segment, fresh int) {
	b.m.Arrived.Segments++
	b.m.Arrived.Bytes += uint64(fresh)
	b.m.Duplicate.Bytes += uint64(s.Length - fresh)
	b.batch.New += fresh
}

func (b *Buffer) duplicate(length int) {
	b.m.Duplicate.Segments++
	b.m.Duplicate.Bytes += uint64(length)
}

// deliver releases a segment that is in order.
func (b *Buffer) deliver(now time.Duration, s *Segment, start uint64, fresh int) {
	b.batch.Bytes += fresh
	b.m.Released.Bytes += uint64(fresh)
	b.one(now, s, start)
}

// one counts the release of one segment, whose bytes are counted already.
func (b *Buffer) one(now time.Duration, s *Segment, start uint64) {
	b.batch.Segments++
	b.m.Released.Segments++
	b.m.Delay.Add(int64(max(0, now-s.Arrived)))
	if b.released != nil {
		part := *s
		part.Length -= int(start - s.Seq)
		part.Seq = start
		b.released(now, part)
	}
}

// releaseList releases a list of segments with the given number of bytes.
func (b *Buffer) releaseList(now time.Duration, first, last int32, bytes uint64) {
	b.batch.Bytes += int(bytes)
	b.m.Released.Bytes += bytes
	b.holding -= bytes
	for i := first; ; {
		s := &b.pool[i]
		b.one(now, &s.Segment, s.Seq)
		b.m.Occupancy.Segments--
		next := s.next
		s.next, b.free = b.free, i
		if i == last {
			return
		}
		i = next
	}
}

// hold keeps a segment and returns its index.
func (b *Buffer) hold(s *Segment, start uint64, fresh int) int32 {
	i := b.free
	if i == none {
		if len(b.pool) == math.MaxInt32 {
			panic("BUG: 2^31 segments are held")
		}
		i = int32(len(b.pool))
		b.pool = append(b.pool, node{})
	} else {
		b.free = b.pool[i].next
	}
	n := &b.pool[i]
	n.Arrived, n.Ready, n.Path = s.Arrived, s.Ready, s.Path
	n.Seq, n.Length = start, s.Length-int(start-s.Seq)
	n.next = none
	b.m.Occupancy.Segments++
	return i
}

// Measures are the measurements of a buffer.
type Measures struct {
	// First and Last are the times of the first and the last arrival (or Skip), LastRelease
	// that of the last release.
	First, Last, LastRelease time.Duration
	// Arrived counts segments with new bytes, and these bytes; Released what was released;
	// Occupancy is the difference.
	Arrived, Released, Occupancy Count
	// Duplicate counts segments without new bytes, and all duplicate bytes.
	Duplicate Count
	// Skipped is the number of bytes that never arrived.
	Skipped uint64
	// PeakOccupancy is the peak, MeanOccupancy the mean over time in bytes.
	PeakOccupancy Count
	MeanOccupancy float64
	// Delay is the time between arrival and release of each released segment, in nanoseconds;
	// Bursts the number of segments that each arrival released, when it released any.
	Delay, Bursts Histogram
	// Series has all bursts when Options.Bursts is set.
	Series []Burst

	started bool
}

// Measures returns the measurements so far. It shares its histograms with the buffer: read it
// before the next Push.
func (b *Buffer) Measures() Measures {
	m := b.m
	m.Last = b.now
	m.Occupancy.Bytes = b.holding
	if d := m.Last - m.First; d > 0 {
		m.MeanOccupancy = b.area.float() / float64(d)
	}
	return m
}

// Before is the rate at which new bytes arrived between First and Last, before resequencing; 0 if
// First equals Last.
func (m *Measures) Before() unit.Bandwidth { return rate(m.Arrived.Bytes, m.Last-m.First) }

// After is the rate at which bytes were released between First and Last; 0 if First equals Last.
func (m *Measures) After() unit.Bandwidth { return rate(m.Released.Bytes, m.Last-m.First) }

func rate(bytes uint64, d time.Duration) unit.Bandwidth {
	if d <= 0 {
		return 0
	}
	return unit.Bandwidth(math.Round(float64(bytes) * 8 / d.Seconds()))
}
