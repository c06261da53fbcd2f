package sim

import (
	"math"
	"time"
)

// tournament is the event queue: a tournament tree with at most one entry for each source of
// events. A link has one entry for its next delivery, not one per packet, so the tree stays small.
// A source is a number.
//
// An entry is the time with the source in its low bits, so one instruction compares two entries;
// with equal times the lower source number is first. Every source has a leaf, and every inner node
// is the minimum of its four children. An update goes from the leaf to the root without branches
// that depend on times: in a heap, half of these are mispredicted.
//
// Sources with low numbers, the links, have the most events. Their leaves are near the root, next
// to the minimum of all other sources, so the length of their path to the root does not depend on
// the number of connections.
type tournament struct {
	entries []uint64 // by level, from the leaves to the root; levels are aligned to 4
	above   []int    // for each level, the parent of node i is at i/4 plus this
	often   int32    // number of sources with a leaf near the root
	place   int      // index of the first leaf near the root
	short   []int    // above, for the leaves near the root
}

const (
	sourceBits = 17
	maxSources = 1 << sourceBits
	// latest is the latest time that fits in an entry: 39 hours, more than MaxDuration.
	latest = time.Duration(1<<(64-sourceBits) - 2)
	// none is the entry of a source without an event.
	none = math.MaxUint64
)

// newTournament returns an empty tournament. The first often sources get leaves near the root.
func newTournament(sources, often int) tournament {
	t := tournament{often: int32(often)}
	from, n := 0, sources-often
	reduce := func() {
		for n > 1 {
			up := from + (n+3)&^3
			t.above = append(t.above, up-from/4)
			from, n = up, (n+3)/4
		}
	}
	reduce()
	long := len(t.above)
	t.place, n = from+1, 1+often
	reduce()
	t.short = t.above[long:]
	t.entries = make([]uint64, from+1)
	for i := range t.entries {
		t.entries[i] = none
	}
	return t
}

func entryAt(e uint64) time.Duration { return time.Duration(e >> sourceBits) }
func entrySource(e uint64) int32     { return int32(e & (maxSources - 1)) }

// leaf returns the index of a source's leaf, and the offsets on its path to the root.
func (t *tournament) leaf(source int32) (int, []int) {
	if source < t.often {
		return t.place + int(source), t.short
	}
	return int(source - t.often), t.above
}

// first returns the next event, and false when there is none.
func (t *tournament) first() (at time.Duration, source int32, ok bool) {
	e := t.entries[len(t.entries)-1]
	return entryAt(e), entrySource(e), e != none
}

// has reports whether the source has an event.
func (t *tournament) has(source int32) bool {
	i, _ := t.leaf(source)
	return t.entries[i] != none
}

// at returns the time of the source's event. The source must have one.
func (t *tournament) at(source int32) time.Duration {
	i, _ := t.leaf(source)
	return entryAt(t.entries[i])
}

// set sets the source's event, replacing an existing one.
func (t *tournament) set(source int32, at time.Duration) {
	t.enter(source, uint64(min(at, latest))<<sourceBits|uint64(source))
}

// remove removes the source's event, if it has one.
func (t *tournament) remove(source int32) { t.enter(source, none) }

func (t *tournament) enter(source int32, e uint64) {
	i, way := t.leaf(source)
	entries := t.entries
	if entries[i] == e {
		return // most timers are set to the time that they have
	}
	entries[i] = e
	for _, above := range way {
		e = min(e, entries[i^1], entries[i^2], entries[i^3])
		i = above + i/4
		entries[i] = e
	}
}
