package sim

import "time"

// heap says whose turn is next. It has one entry at most for each source of events: a link has its next delivery there, not its packets,
// so that the heap stays small. A source is a number; the heap is indexed by it.
type heap struct {
	entries []entry
	place   []int32 // of each source in entries, or absent
	order   uint64
}

// entry is 16 bytes, so that the four children of an entry lie in one cache line.
type entry struct {
	// key is the time, and in the last 16 bits how many entries were set before: of equal times the one that was set first is first.
	// Where that wraps, equal times are in another order, the same in each run.
	key    uint64
	source int32
}

func (e *entry) at() time.Duration { return time.Duration(e.key >> 16) }

const (
	absent = -1
	// latest is the latest time that a key has room for: 78 hours. What is later than any simulation need not be told apart.
	latest = time.Duration(1<<48 - 1)
)

func newHeap(sources int) heap {
	h := heap{entries: make([]entry, 0, sources), place: make([]int32, sources)}
	for i := range h.place {
		h.place[i] = absent
	}
	return h
}

// has says whether the source has an entry.
func (h *heap) has(source int32) bool { return h.place[source] != absent }

// at is when the turn of a source is that has an entry.
func (h *heap) at(source int32) time.Duration { return h.entries[h.place[source]].at() }

// set gives the source its turn at that time, in place of the one that it may have.
func (h *heap) set(source int32, at time.Duration) {
	e := entry{uint64(min(at, latest))<<16 | h.order&(1<<16-1), source}
	h.order++
	i := int(h.place[source])
	if i == absent {
		i = len(h.entries)
		h.entries = append(h.entries, e)
	}
	if i > 0 && e.key < h.entries[(i-1)/4].key {
		h.up(i, e)
	} else {
		h.down(i, e)
	}
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
	switch {
	case i == n:
	case i > 0 && last.key < h.entries[(i-1)/4].key:
		h.up(i, last)
	default:
		h.down(i, last)
	}
}

// up puts e into the place i, or above.
func (h *heap) up(i int, e entry) {
	entries, place := h.entries, h.place
	for i > 0 {
		above := (i - 1) / 4
		o := entries[above]
		if e.key >= o.key {
			break
		}
		entries[i], place[o.source] = o, int32(i)
		i = above
	}
	entries[i], place[e.source] = e, int32(i)
}

// down puts e into the place i, or below.
func (h *heap) down(i int, e entry) {
	entries, place := h.entries, h.place
	for {
		first := 4*i + 1
		if first >= len(entries) {
			break
		}
		least, o := first, entries[first]
		for j, c := range entries[first+1 : min(first+4, len(entries))] {
			if c.key < o.key {
				least, o = first+1+j, c
			}
		}
		if e.key <= o.key {
			break
		}
		entries[i], place[o.source] = o, int32(i)
		i = least
	}
	entries[i], place[e.source] = e, int32(i)
}
