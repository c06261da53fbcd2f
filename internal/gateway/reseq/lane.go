package reseq

import (
	"math/bits"
	"time"

	"github.com/tabane/tabane/internal/base/stat"
)

// since returns how far s is after t, negative if before.
func since(s, t uint32) int {
	return int(int32((s-t)<<(32-seqBits)) >> (32 - seqBits))
}

// advance sets high behind seq, which is ahead numbers beyond it.
func (l *lane[T]) advance(seq uint32, ahead int) {
	if ahead > 0 {
		l.unsee(l.high, ahead)
	}
	l.see(seq)
	before := l.high
	l.high = (seq + 1) & seqMask
	// What a path has passed is forgotten before the numbers are used again.
	if window := 64 * len(l.seen); int(before)/window != int(l.high)/window {
		for i := range l.passed {
			if since(l.high, l.passed[i]) > window {
				l.known &^= 1 << i
			}
		}
		if since(l.high, l.elsewhere) > window {
			l.lag = 0
		}
	}
}

// pass records that a path has no more packets with numbers before next. It returns false if that
// is less than was known.
func (l *lane[T]) pass(path int, next uint32) bool {
	if l.known>>path&1 != 0 && since(next, l.passed[path]) <= 0 {
		return false
	}
	l.known |= 1 << path
	l.passed[path] = next
	return true
}

func (l *lane[T]) see(seq uint32) {
	i := int(seq) & (64*len(l.seen) - 1)
	l.seen[i/64] |= 1 << (i % 64)
}

func (l *lane[T]) hasSeen(seq uint32) bool {
	i := int(seq) & (64*len(l.seen) - 1)
	return l.seen[i/64]>>(i%64)&1 != 0
}

// unsee clears the bits of n numbers, fewer than the window.
func (l *lane[T]) unsee(seq uint32, n int) {
	for i := int(seq); n > 0; {
		bit := i & 63
		count := min(64-bit, n)
		l.seen[i/64&(len(l.seen)-1)] &^= (1<<count - 1) << bit
		i, n = i+count, n-count
	}
}

// mark records when numbers from high on begin to arrive.
func (l *lane[T]) mark(now, resolution time.Duration) {
	if l.used > 0 && now-l.at[l.newest] < resolution {
		return
	}
	l.newest = (l.newest + 1) % marks
	l.from[l.newest], l.at[l.newest] = l.high, now
	l.used = min(l.used+1, marks)
}

// missed returns when the first number above seq arrived, rounded down to the resolution, or a time
// at least limit ago if that is not known.
func (l *lane[T]) missed(now time.Duration, seq uint32, limit time.Duration) time.Duration {
	low, high := 0, l.used // the last mark that is not above seq is this far behind the newest
	for low < high {
		middle := (low + high) / 2
		if since(seq, l.from[(l.newest-middle)&(marks-1)]) >= 0 {
			high = middle
		} else {
			low = middle + 1
		}
	}
	if low == l.used {
		return min(now-limit, l.at[(l.newest+1-l.used)&(marks-1)])
	}
	return l.at[(l.newest-low)&(marks-1)]
}

// memory is how long the reordering of a path or of paths is remembered.
const memory = stat.Memory

// spread measures by how much packets are late.
type spread struct{ stat.Peak }

// add takes the time by which a packet was late. What is beyond the limit is ignored: no packet may
// be held for so long, so waiting for less would not help.
func (s *spread) add(now, late, limit time.Duration) {
	if late <= limit {
		s.Add(now, max(late, 1))
	}
}

// bound returns how long to wait for a packet: a quarter and a millisecond more than was needed.
func (s *spread) bound(limit time.Duration) time.Duration {
	return patience(s.Value(), limit)
}

// patience returns how long to wait for packets that are up to so late.
func patience(late, limit time.Duration) time.Duration {
	if late == 0 {
		return 0
	}
	return min(late+late/4+time.Millisecond, limit)
}

// rings keeps rings of slots for reuse, by size. All together have at most budget slots.
type rings[T any] struct {
	free          [seqBits][][]slot[T]
	total, budget int
}

// minRingSlots is the smallest number of slots in a ring, a power of two.
const minRingSlots = 64

// get returns an empty ring with at least n slots, whose number is a power of two, or nil.
func (r *rings[T]) get(n int) []slot[T] {
	class := bits.Len(uint(max(n, minRingSlots) - 1))
	if last := len(r.free[class]) - 1; last >= 0 {
		ring := r.free[class][last]
		r.free[class][last] = nil
		r.free[class] = r.free[class][:last]
		return ring
	}
	size := 1 << class
	for other := len(r.free) - 1; r.total+size > r.budget && other >= 0; other-- {
		r.total -= len(r.free[other]) << other
		r.free[other] = nil
	}
	if r.total+size > r.budget {
		return nil
	}
	r.total += size
	return make([]slot[T], size)
}

// put takes back a ring whose slots are empty.
func (r *rings[T]) put(ring []slot[T]) {
	class := bits.Len(uint(len(ring) - 1))
	r.free[class] = append(r.free[class], ring)
}
