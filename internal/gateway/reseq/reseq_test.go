package reseq_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/gateway/reseq"
)

const ms = time.Millisecond

func TestBuffer(t *testing.T) {
	type step struct {
		at     time.Duration
		seq    uint64
		length int
		want   reseq.Release
	}
	tests := []struct {
		name                    string
		start                   uint64
		steps                   []step
		arrived, released, held reseq.Count
		duplicate, maxHeld      reseq.Count
		meanHeld                float64
		maxDelay                time.Duration
		meanDelay               time.Duration
		bursts                  []reseq.Burst
	}{
		{
			name: "in order",
			steps: []step{
				{1 * ms, 0, 100, reseq.Release{New: 100, Segments: 1, Bytes: 100}},
				{2 * ms, 100, 50, reseq.Release{New: 50, Segments: 1, Bytes: 50}},
			},
			arrived: reseq.Count{Segments: 2, Bytes: 150}, released: reseq.Count{Segments: 2, Bytes: 150},
			bursts: []reseq.Burst{{1 * ms, 1, 100}, {2 * ms, 1, 50}},
		},
		{
			name: "a gap, filled later", start: math.MaxUint64 - 99, // the first segment ends at the wrap
			steps: []step{
				{0, 0, 100, reseq.Release{New: 100}},
				{1 * ms, 100, 100, reseq.Release{New: 100}},
				{4 * ms, math.MaxUint64 - 99, 100, reseq.Release{New: 100, Segments: 3, Bytes: 300}},
			},
			arrived: reseq.Count{Segments: 3, Bytes: 300}, released: reseq.Count{Segments: 3, Bytes: 300},
			maxHeld: reseq.Count{Segments: 2, Bytes: 200}, meanHeld: (100*1 + 200*3) / 4.,
			maxDelay: 4 * ms, meanDelay: 7 * ms / 3,
			bursts: []reseq.Burst{{4 * ms, 3, 300}},
		},
		{
			name: "what is not filled is held", start: 10,
			steps: []step{
				{0, 30, 10, reseq.Release{New: 10}},
				{2 * ms, 10, 10, reseq.Release{New: 10, Segments: 1, Bytes: 10}},
			},
			arrived: reseq.Count{Segments: 2, Bytes: 20}, released: reseq.Count{Segments: 1, Bytes: 10}, held: reseq.Count{Segments: 1, Bytes: 10},
			maxHeld: reseq.Count{Segments: 1, Bytes: 10}, meanHeld: 10,
			bursts: []reseq.Burst{{2 * ms, 1, 10}},
		},
		{
			name: "duplicates and overlaps",
			steps: []step{
				{0, 0, 10, reseq.Release{New: 10, Segments: 1, Bytes: 10}},
				{0, 0, 10, reseq.Release{}},                                    // all of it was released
				{0, 5, 10, reseq.Release{New: 5, Segments: 1, Bytes: 5}},       // half of it was
				{0, 20, 10, reseq.Release{New: 10}},                            // held [20,30)
				{0, 22, 3, reseq.Release{}},                                    // in what is held
				{0, 40, 10, reseq.Release{New: 10}},                            // held [40,50)
				{0, 25, 20, reseq.Release{New: 10}},                            // joins both
				{0, 18, 40, reseq.Release{New: 2 + 8}},                         // around them
				{1 * ms, 10, 9, reseq.Release{New: 3, Segments: 5, Bytes: 43}}, // [15,18), and all up to 58
			},
			arrived: reseq.Count{Segments: 7, Bytes: 58}, released: reseq.Count{Segments: 7, Bytes: 58},
			duplicate: reseq.Count{Segments: 2, Bytes: 10 + 5 + 3 + 10 + 30 + 6}, maxHeld: reseq.Count{Segments: 4, Bytes: 40}, meanHeld: 40,
			maxDelay: ms, meanDelay: 4 * ms / 7,
			bursts: []reseq.Burst{{0, 1, 10}, {0, 1, 5}, {1 * ms, 5, 43}},
		},
		{
			name: "time does not run backwards",
			steps: []step{
				{5 * ms, 10, 10, reseq.Release{New: 10}},
				{3 * ms, 0, 10, reseq.Release{New: 10, Segments: 2, Bytes: 20}},
			},
			arrived: reseq.Count{Segments: 2, Bytes: 20}, released: reseq.Count{Segments: 2, Bytes: 20},
			maxHeld: reseq.Count{Segments: 1, Bytes: 10},
			bursts:  []reseq.Burst{{5 * ms, 2, 20}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := reseq.New(reseq.Options{Start: tt.start, Bursts: true})
			for i, s := range tt.steps {
				if got := b.Push(s.at, i%3, s.seq, s.length); got != s.want {
					t.Errorf("step %d: got %+v, want %+v", i, got, s.want)
				}
			}
			m := b.Measures()
			for _, c := range []struct {
				what      string
				got, want any
			}{
				{"arrived", m.Arrived, tt.arrived}, {"released", m.Released, tt.released}, {"held", m.Occupancy, tt.held}, {"duplicate", m.Duplicate, tt.duplicate},
				{"most held", m.PeakOccupancy, tt.maxHeld}, {"mean held", m.MeanOccupancy, tt.meanHeld},
				{"largest delay", time.Duration(m.Delay.Max()), tt.maxDelay}, {"mean delay", time.Duration(m.Delay.Mean()), tt.meanDelay},
				{"bursts", m.Series, tt.bursts}, {"number of bursts", m.Bursts.Count(), uint64(len(tt.bursts))},
			} {
				if d := cmp.Diff(c.want, c.got); d != "" {
					t.Errorf("%s (-want +got):\n%s", c.what, d)
				}
			}
		})
	}
}

func TestRoomForExpectedBursts(t *testing.T) {
	const expected = 5000
	b := reseq.New(reseq.Options{Bursts: true, Expected: expected})
	if n := cap(b.Measures().Series); n != 0 {
		t.Errorf("there is room for %d bursts before the first", n)
	}
	b.Push(0, 0, 0, 1)
	room := cap(b.Measures().Series)
	for i := range uint64(expected - 1) {
		b.Push(0, 0, 1+i, 1)
	}
	if s := b.Measures().Series; len(s) != expected || cap(s) != room {
		t.Errorf("got %d bursts with room for %d, want %d and the room of the first, %d", len(s), cap(s), expected, room)
	}
}

func TestBatchIsOneBurst(t *testing.T) {
	b := reseq.New(reseq.Options{Bursts: true})
	b.PushBatch(10*ms, []reseq.Segment{
		{Arrived: 4 * ms, Path: 1, Seq: 10, Length: 10},
		{Arrived: 6 * ms, Path: 1, Seq: 0, Length: 10},
	})
	m := b.Measures()
	if want := []reseq.Burst{{10 * ms, 2, 20}}; !slices.Equal(m.Series, want) {
		t.Errorf("got %v, want %v", m.Series, want)
	}
	if got := time.Duration(m.Delay.Mean()); got != 5*ms {
		t.Errorf("mean delay: got %v, want 5ms, counted from the arrival", got)
	}
}

func TestSkip(t *testing.T) {
	b := reseq.New(reseq.Options{})
	b.Push(0, 0, 10, 10) // [10,20)
	b.Push(0, 0, 30, 10) // [30,40)
	b.Push(0, 0, 50, 10) // [50,60)
	if got, want := b.Skip(ms, 35), (reseq.Release{Segments: 2, Bytes: 20}); got != want {
		t.Errorf("skip to 35: got %+v, want %+v", got, want)
	}
	if b.Next() != 40 {
		t.Errorf("next: got %d, want 40", b.Next())
	}
	if got := b.Skip(ms, 20); got != (reseq.Release{}) {
		t.Errorf("skip back: got %+v, want nothing", got)
	}
	m := b.Measures()
	if m.Skipped != 20 || m.Occupancy != (reseq.Count{Segments: 1, Bytes: 10}) || m.Released.Bytes != 20 {
		t.Errorf("got skipped %d, held %+v, released %+v; want 20, 1 segment of 10, 20 bytes", m.Skipped, m.Occupancy, m.Released)
	}
}

// naive is a reference model of the buffer: a set of bytes, and segments that are released when all
// bytes before their last new one have arrived.
type naive struct {
	next     uint64 // counted from 0, without a wrap
	have     map[uint64]bool
	held     []naiveSegment
	delays   []time.Duration
	maxBytes int
}

type naiveSegment struct {
	arrived time.Duration
	end     uint64
}

func (n *naive) push(now time.Duration, seq uint64, length int) reseq.Release {
	var r reseq.Release
	for i := seq; i < seq+uint64(length); i++ {
		if i >= n.next && !n.have[i] {
			n.have[i] = true
			r.New++
		}
	}
	if r.New > 0 {
		n.held = append(n.held, naiveSegment{now, seq + uint64(length)})
	}
	n.release(now, &r)
	n.maxBytes = max(n.maxBytes, len(n.have))
	return r
}

func (n *naive) release(now time.Duration, r *reseq.Release) {
	for n.have[n.next] {
		delete(n.have, n.next)
		n.next++
		r.Bytes++
	}
	n.held = slices.DeleteFunc(n.held, func(s naiveSegment) bool {
		if s.end > n.next {
			return false
		}
		n.delays = append(n.delays, now-s.arrived)
		r.Segments++
		return true
	})
}

func (n *naive) skip(now time.Duration, to uint64) reseq.Release {
	var r reseq.Release
	for ; n.next < to; n.next++ {
		if n.have[n.next] {
			delete(n.have, n.next)
			r.Bytes++
		}
	}
	n.release(now, &r)
	return r
}

func TestBufferIsLikeASetOfBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.SampledFrom([]uint64{0, 1, math.MaxUint64 - 200, 1<<63 - 100}).Draw(t, "start")
		reach := rapid.SampledFrom([]uint64{60, 600, 20000}).Draw(t, "reach")
		var released []time.Duration
		b := reseq.New(reseq.Options{Start: start, Released: func(now time.Duration, s reseq.Segment) { released = append(released, now-s.Arrived) }})
		n := &naive{have: map[uint64]bool{}}
		var now time.Duration
		var duplicates, pushed uint64
		for range rapid.IntRange(1, 600).Draw(t, "steps") {
			now += time.Duration(rapid.IntRange(0, 3).Draw(t, "later"))
			if rapid.IntRange(0, 60).Draw(t, "what") == 0 {
				to := n.next + rapid.Uint64Range(0, reach/2).Draw(t, "to")
				if got, want := b.Skip(now, start+to), n.skip(now, to); got != want {
					t.Fatalf("skip to %d: got %+v, want %+v", to, got, want)
				}
				continue
			}
			seq := n.next + rapid.Uint64Range(0, reach).Draw(t, "ahead")
			if back := rapid.Uint64Range(0, 20).Draw(t, "back"); back <= seq {
				seq -= back
			}
			length := rapid.IntRange(1, 30).Draw(t, "length")
			if rapid.IntRange(0, 80).Draw(t, "long") == 77 { // small numbers are drawn more often
				length = rapid.IntRange(1, int(reach)).Draw(t, "length")
			}
			got, want := b.Push(now, rapid.IntRange(0, 20).Draw(t, "path"), start+seq, length), n.push(now, seq, length)
			if got != want {
				t.Fatalf("push [%d,%d): got %+v, want %+v", seq, seq+uint64(length), got, want)
			}
			pushed += uint64(length)
			duplicates += uint64(length - got.New)
			if b.Next() != start+n.next || b.Occupancy() != (reseq.Count{Segments: uint64(len(n.held)), Bytes: uint64(len(n.have))}) {
				t.Fatalf("next %d, held %+v; want %d, %d segments and %d bytes", b.Next()-start, b.Occupancy(), n.next, len(n.held), len(n.have))
			}
		}
		m := b.Measures()
		slices.Sort(released)
		slices.Sort(n.delays)
		if !slices.Equal(released, n.delays) {
			t.Fatalf("delays %v, want %v", released, n.delays)
		}
		if m.Duplicate.Bytes != duplicates || m.Arrived.Bytes != pushed-duplicates || m.PeakOccupancy.Bytes != uint64(n.maxBytes) || m.Delay.Count() != uint64(len(released)) {
			t.Fatalf("%d duplicate, %d new, at most %d held, %d delays; want %d, %d, %d, %d", m.Duplicate.Bytes, m.Arrived.Bytes, m.PeakOccupancy.Bytes, m.Delay.Count(), duplicates, pushed-duplicates, n.maxBytes, len(released))
		}
	})
}

// TestSegmentOverManyRuns merges runs in distant chunks, from any one to any other.
func TestSegmentOverManyRuns(t *testing.T) {
	const n = 400
	for from := 0; from < n; from += 13 {
		for to := from; to < n; to += 29 {
			b := reseq.New(reseq.Options{})
			for i := range n {
				b.Push(0, 0, uint64(10+10*i), 5)
			}
			b.Push(0, 1, uint64(10+10*from), 10*(to-from)+5)
			for i := range n {
				b.Push(0, 2, uint64(15+10*i), 5)
			}
			if r := b.Push(0, 3, 0, 10); r.Bytes != 10+10*n || b.Occupancy() != (reseq.Count{}) {
				t.Fatalf("segment over runs %d to %d: %+v released, %+v held; want %d bytes, nothing", from, to, r, b.Occupancy(), 10+10*n)
			}
		}
	}
}

// interleaved returns the order in which segments of the paths arrive if each path is slower than
// the previous one.
func interleaved(paths, lag, segments int) (path, seq []int) {
	for i := range segments + paths*lag {
		for p := range paths {
			if s := (i-p*lag)*paths + paths - 1 - p; i >= p*lag && s < segments {
				path, seq = append(path, p), append(seq, s)
			}
		}
	}
	return path, seq
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	b := reseq.New(reseq.Options{})
	var at time.Duration
	round := 0
	path, seq := interleaved(4, 500, 10_000)
	push := func() {
		for i := range seq {
			at += 1000
			b.Push(at, path[i], uint64(round*10_000+seq[i])*1400, 1400)
		}
		round++
	}
	push()
	if n := testing.AllocsPerRun(5, push); n > 0 {
		t.Errorf("%v allocations for 10,000 segments, want 0", n)
	}
	if h := b.Occupancy(); h.Segments != 0 {
		t.Errorf("%d segments are held after all", h.Segments)
	}
}

func BenchmarkPush(b *testing.B) {
	b.Run("in order", func(b *testing.B) {
		q := reseq.New(reseq.Options{})
		b.ReportAllocs()
		for i := range b.N {
			q.Push(time.Duration(i)*1000, 0, uint64(i)*1400, 1400)
		}
	})
	for _, lag := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprintf("4 paths, lag %d", lag), func(b *testing.B) {
			const segments = 200_000
			path, seq := interleaved(4, lag, segments)
			q := reseq.New(reseq.Options{})
			at, round := time.Duration(0), 0
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i++ {
				k := i % segments
				if k == 0 {
					round = i / segments
				}
				at += 1000
				q.Push(at, path[k], uint64(round*segments+seq[k])*1400, 1400)
			}
			b.ReportMetric(float64(q.Measures().PeakOccupancy.Segments), "held")
		})
	}
	b.Run("any order", func(b *testing.B) {
		const segments = 1 << 17
		q := reseq.New(reseq.Options{})
		b.ReportAllocs()
		for i := range b.N {
			// An odd factor permutes the numbers below a power of two.
			k := uint64(i) % segments
			q.Push(time.Duration(i)*1000, 0, (uint64(i)/segments*segments+k*48271%segments)*1400, 1400)
		}
	})
}

// TestAnySequenceNumbers: segments more than 2^63 away may be misplaced, but are never lost or
// counted twice.
func TestAnySequenceNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := reseq.New(reseq.Options{Start: rapid.Uint64().Draw(t, "start")})
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			seq := rapid.Uint64().Draw(t, "seq")
			if rapid.Bool().Draw(t, "near") {
				seq = b.Next() + seq%1000
			}
			if rapid.IntRange(0, 20).Draw(t, "skip") == 0 {
				b.Skip(0, seq)
			} else {
				b.Push(0, 0, seq, rapid.IntRange(1, math.MaxInt32).Draw(t, "length"))
			}
		}
		if m := b.Measures(); m.Arrived.Segments != m.Released.Segments+m.Occupancy.Segments || m.Arrived.Bytes != m.Released.Bytes+m.Occupancy.Bytes {
			t.Fatalf("arrived %+v, released %+v, held %+v", m.Arrived, m.Released, m.Occupancy)
		}
	})
}
