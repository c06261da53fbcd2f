package sim

import "time"

// heap says whose turn is next. It has one entry at most for each source of events: a link has its next delivery there, not its packets,
// so that the heap stays small. A source is a number; the heap is indexed by it.
type heap struct {
	entries []entry
	place   []int32 // of each source in entries, or absent
	order   uint32
}

// entry is 16 bytes, so that the four children of an entry lie in one cache line.
type entry struct {
	at     time.Duration
	order  uint32 // of equal times the one that was set first is first
	source int32
}

const absent = -1

func newHeap(sources int) heap {
	h := heap{entries: make([]entry, 0, sources), place: make([]int32, sources)}
	for i := range h.place {
		h.place[i] = absent
	}
	return h
}

func (e *entry) before(o *entry) bool {
	return e.at < o.at || e.at == o.at && int32(e.order-o.order) < 0
}

// has says whether the source has an entry.
func (h *heap) has(source int32) bool { return h.place[source] != absent }

// at is when the turn of a source is that has an entry.
func (h *heap) at(source int32) time.Duration { return h.entries[h.place[source]].at }

// set gives the source its turn at that time, in place of the one that it may have.
func (h *heap) set(source int32, at time.Duration) {
	e := entry{at, h.order, source}
	h.order++
	i := h.place[source]
	if i == absent {
		h.entries = append(h.entries, e)
		h.up(len(h.entries)-1, e)
		return
	}
	if at < h.entries[i].at {
		h.up(int(i), e)
	} else {
		h.down(int(i), e)
	}
}

// remove takes the entry of a source that has one.
func (h *heap) remove(source int32) {
	i := int(h.place[source])
	h.place[source] = absent
	n := len(h.entries) - 1
	last := h.entries[n]
	h.entries = h.entries[:n]
	switch {
	case i == n:
	case i > 0 && last.before(&h.entries[(i-1)/4]):
		h.up(i, last)
	default:
		h.down(i, last)
	}
}

// up puts e into the place i, or above.
func (h *heap) up(i int, e entry) {
	for i > 0 {
		above := (i - 1) / 4
		if !e.before(&h.entries[above]) {
			break
		}
		h.put(i, h.entries[above])
		i = above
	}
	h.put(i, e)
}

// down puts e into the place i, or below.
func (h *heap) down(i int, e entry) {
	n := len(h.entries)
	for {
		first := 4*i + 1
		if first >= n {
			break
		}
		least := first
		for j := first + 1; j < min(first+4, n); j++ {
			if h.entries[j].before(&h.entries[least]) {
				least = j
			}
		}
		if !h.entries[least].before(&e) {
			break
		}
		h.put(i, h.entries[least])
		i = least
	}
	h.put(i, e)
}

func (h *heap) put(i int, e entry) {
	h.entries[i] = e
	h.place[e.source] = int32(i)
}
