package sim

import (
	"math"
	"time"
)

// tournament says whose turn is next. It has one entry at most for each source of events: a link
// has its next delivery there, not its packets, so that it stays small. A source is a number.
//
// An entry is the time and in its last bits the source, so that it is compared by one instruction;
// of equal times the source of the lower number is first. Every source has its place among the
// leaves, and every node above has the least entry of the four below it. A change goes up from the
// leaf, and never asks which of two times is earlier by a branch: in a heap, half of these are
// guessed wrong.
//
// Sources of low numbers, the links, have a turn often and come in higher up, beside the winner of
// all others: their way to the root is as short with a thousand connections as with one.
type tournament struct {
	entries []uint64 // level upon level, from the leaves to the root; each begins at a multiple of four
	above   []int    // for each level, what is added to a quarter of the place of an entry to make that of the one above it
	often   int32    // how many sources come in higher up
	place   int      // of the first of these
	short   []int    // above, for these
}

const (
	sourceBits = 17
	maxSources = 1 << sourceBits
	// latest is the latest time that an entry has room for: 39 hours. What is later than any
	// simulation need not be told apart.
	latest = time.Duration(1<<(64-sourceBits) - 2)
	// none is the entry of a source that has no turn.
	none = math.MaxUint64
)

// newTournament makes one of so many sources, the first of which have a turn often.
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

// leaf returns the place of a source, and its way up.
func (t *tournament) leaf(source int32) (int, []int) {
	if source < t.often {
		return t.place + int(source), t.short
	}
	return int(source - t.often), t.above
}

// first returns whose turn is next, and false when it is nobody's.
func (t *tournament) first() (at time.Duration, source int32, ok bool) {
	e := t.entries[len(t.entries)-1]
	return entryAt(e), entrySource(e), e != none
}

// has reports whether the source has a turn.
func (t *tournament) has(source int32) bool {
	i, _ := t.leaf(source)
	return t.entries[i] != none
}

// at is when the turn of a source is that has one.
func (t *tournament) at(source int32) time.Duration {
	i, _ := t.leaf(source)
	return entryAt(t.entries[i])
}

// set gives the source its turn at that time, in place of the one that it may have.
func (t *tournament) set(source int32, at time.Duration) {
	t.enter(source, uint64(min(at, latest))<<sourceBits|uint64(source))
}

// remove takes the turn of a source, if it has one.
func (t *tournament) remove(source int32) { t.enter(source, none) }

func (t *tournament) enter(source int32, e uint64) {
	i, way := t.leaf(source)
	entries := t.entries
	entries[i] = e
	for _, above := range way {
		e = min(e, entries[i^1], entries[i^2], entries[i^3])
		i = above + i/4
		entries[i] = e
	}
}
