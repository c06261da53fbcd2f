package sim

import "time"

// heap says whose turn is next. It has one entry at most for each source of events: a link has its next delivery there, not its packets,
// so that the heap stays small. A source is a number.
//
// An entry is the time and in its last bits the source, so that it is compared by one instruction, and four children take half a cache
// line. Of equal times the source of the lower number is first.
type heap struct {
	entries []uint64
	place   []int32 // of each source in entries, or absent
}

const (
	sourceBits = 17
	maxSources = 1 << sourceBits
	absent     = -1
	// latest is the latest time that an entry has room for: 39 hours. What is later than any simulation need not be told apart.
	latest = time.Duration(1<<(64-sourceBits) - 1)
)

func newHeap(sources int) heap {
	h := heap{entries: make([]uint64, 0, sources), place: make([]int32, sources)}
	for i := range h.place {
		h.place[i] = absent
	}
	return h
}

func entryAt(e uint64) time.Duration { return time.Duration(e >> sourceBits) }
func entrySource(e uint64) int32     { return int32(e & (maxSources - 1)) }

// first returns whose turn is next, and false when it is nobody's.
func (h *heap) first() (at time.Duration, source int32, ok bool) {
	if len(h.entries) == 0 {
		return 0, 0, false
	}
	return entryAt(h.entries[0]), entrySource(h.entries[0]), true
}

// has says whether the source has an entry.
func (h *heap) has(source int32) bool { return h.place[source] != absent }

// at is when the turn of a source is that has an entry.
func (h *heap) at(source int32) time.Duration { return entryAt(h.entries[h.place[source]]) }

// set gives the source its turn at that time, in place of the one that it may have.
func (h *heap) set(source int32, at time.Duration) {
	e := uint64(min(at, latest))<<sourceBits | uint64(source)
	i := int(h.place[source])
	switch i {
	case 0: // most often: it is this source's turn now
		h.down(0, e)
		return
	case absent:
		i = len(h.entries)
		h.entries = append(h.entries, e)
	}
	h.move(i, e)
}

// remove takes the entry of a source, if it has one.
func (h *heap) remove(source int32) {
	i := int(h.place[source])
	if i == absent {
		return
	}
	h.place[source] = absent
	n := len(h.entries) - 1
	last := h.entries[n]
	h.entries = h.entries[:n]
	if i < n {
		h.move(i, last)
	}
}

// move puts e into the place i, above or below.
func (h *heap) move(i int, e uint64) {
	if i > 0 && e < h.entries[(i-1)/4] {
		h.up(i, e)
	} else {
		h.down(i, e)
	}
}

func (h *heap) up(i int, e uint64) {
	for i > 0 {
		above := (i - 1) / 4
		o := h.entries[above]
		if e >= o {
			break
		}
		h.put(i, o)
		i = above
	}
	h.put(i, e)
}

func (h *heap) down(i int, e uint64) {
	entries := h.entries
	for {
		first := 4*i + 1
		var least uint64
		if first+4 <= len(entries) {
			c := entries[first : first+4 : first+4]
			least = min(min(c[0], c[1]), min(c[2], c[3]))
		} else if first < len(entries) {
			least = entries[first]
			for _, c := range entries[first+1:] {
				least = min(least, c)
			}
		} else {
			break
		}
		if e <= least {
			break
		}
		at := int(h.place[entrySource(least)])
		h.put(i, least)
		i = at
	}
	h.put(i, e)
}

func (h *heap) put(i int, e uint64) {
	h.entries[i] = e
	h.place[entrySource(e)] = int32(i)
}
