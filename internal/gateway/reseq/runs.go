package reseq

import (
	"slices"
	"sort"
)

// run is a range of bytes without a gap, held because earlier bytes are missing. Its segments are a
// list; all are released at once, so their order does not matter.
type run struct {
	start, end  uint64
	first, last int32
}

const chunkRuns = 64

// chunk is a piece of the ordered list of runs: those from lo up to hi.
type chunk struct {
	lo, hi int
	runs   [chunkRuns]run
}

// runs is the ordered list of the runs that are held, in chunks: finding a place takes two binary
// searches, or none when the caller's hint is good, and making room moves one chunk at most. A list
// with pointers would be walked, and a file whose segments come in a bad order must not take
// quadratic time.
type runs struct {
	chunks []*chunk
	free   []*chunk
}

// before reports whether a precedes b. The numbers may wrap and must be less than 2^63 apart.
func before(a, b uint64) bool { return int64(a-b) < 0 }

// place is a position in the list.
type place struct{ chunk, at int }

func (r *runs) empty() bool { return len(r.chunks) == 0 }

func (r *runs) run(p place) *run { return &r.chunks[p.chunk].runs[p.at] }

func (r *runs) begin() place { return place{0, r.chunks[0].lo} }

// next moves to the following run; ok says whether there is one.
func (r *runs) next(p place) (place, bool) {
	if p.at+1 < r.chunks[p.chunk].hi {
		return place{p.chunk, p.at + 1}, true
	}
	if p.chunk+1 < len(r.chunks) {
		return place{p.chunk + 1, r.chunks[p.chunk+1].lo}, true
	}
	return p, false
}

// holds reports whether the chunk is where a run that starts at seq is or belongs.
func (r *runs) holds(i int, seq uint64) bool {
	if i < 0 || i >= len(r.chunks) {
		return false
	}
	c := r.chunks[i]
	if before(seq, c.runs[c.lo].start) {
		return false
	}
	if i+1 == len(r.chunks) {
		return true
	}
	after := r.chunks[i+1]
	return before(seq, after.runs[after.lo].start)
}

// find returns the last run that starts at seq or before it; ok is false when there is none. The
// hint is a chunk to try first.
func (r *runs) find(seq uint64, hint int) (p place, ok bool) {
	if r.empty() || before(seq, r.chunks[0].runs[r.chunks[0].lo].start) {
		return place{}, false
	}
	i := hint
	if !r.holds(i, seq) {
		if i++; !r.holds(i, seq) {
			i = sort.Search(len(r.chunks), func(i int) bool { return before(seq, r.chunks[i].runs[r.chunks[i].lo].start) }) - 1
		}
	}
	c := r.chunks[i]
	lo, hi := c.lo, c.hi-1 // the answer is between, both included
	if !before(seq, c.runs[hi].start) {
		return place{i, hi}, true
	}
	for lo < hi {
		middle := int(uint(lo+hi+1) >> 1)
		if before(seq, c.runs[middle].start) {
			hi = middle - 1
		} else {
			lo = middle
		}
	}
	return place{i, lo}, true
}

// insertAfter puts a run behind p, or in front of all when there is no run before it. It returns
// the chunk where it is now.
func (r *runs) insertAfter(p place, ok bool, v run) int {
	switch {
	case r.empty():
		c := r.take()
		c.runs[0], c.hi = v, 1
		r.chunks = append(r.chunks, c)
		return 0
	case !ok:
		p = place{0, r.chunks[0].lo - 1}
	}
	c, i := r.chunks[p.chunk], p.chunk
	at := p.at + 1
	if c.lo > 0 {
		// The first chunk has room in front when some of it was released.
		copy(c.runs[c.lo-1:], c.runs[c.lo:at])
		c.lo--
		c.runs[at-1] = v
		return i
	}
	if c.hi == chunkRuns {
		half := r.take()
		if at == chunkRuns {
			// Appending leaves full chunks behind.
			half.runs[0], half.hi = v, 1
			r.chunks = slices.Insert(r.chunks, i+1, half)
			return i + 1
		}
		half.hi = copy(half.runs[:], c.runs[chunkRuns/2:])
		c.hi = chunkRuns / 2
		r.chunks = slices.Insert(r.chunks, i+1, half)
		if at > chunkRuns/2 {
			c, i, at = half, i+1, at-chunkRuns/2
		}
	}
	copy(c.runs[at+1:c.hi+1], c.runs[at:c.hi])
	c.runs[at] = v
	c.hi++
	return i
}

// remove removes n runs from p on.
func (r *runs) remove(p place, n int) {
	i := p.chunk
	for emptied := 0; n > 0; {
		c := r.chunks[i]
		k := min(n, c.hi-p.at)
		if p.at == c.lo {
			c.lo += k
		} else {
			copy(c.runs[p.at:], c.runs[p.at+k:c.hi])
			c.hi -= k
		}
		n -= k
		if c.lo == c.hi {
			r.give(c)
			emptied++
		}
		i++
		if i < len(r.chunks) {
			p.at = r.chunks[i].lo
		}
		if n == 0 && emptied > 0 {
			from := p.chunk
			if len(r.chunks) > from && r.chunks[from].lo != r.chunks[from].hi {
				from++ // it kept what comes before p
			}
			r.chunks = slices.Delete(r.chunks, from, from+emptied)
		}
	}
}

func (r *runs) take() *chunk {
	if n := len(r.free); n > 0 {
		c := r.free[n-1]
		r.free = r.free[:n-1]
		c.lo, c.hi = 0, 0
		return c
	}
	return &chunk{}
}

func (r *runs) give(c *chunk) { r.free = append(r.free, c) }
