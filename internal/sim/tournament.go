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
	// nodes are groups of four siblings, by level, from the leaves to the top. The array has one
	// bounds check for all four.
	nodes [][4]uint64
	root  uint64 // the minimum of the last group
	above []uint // for each level, the parent of the nodes in group i is node i plus this
	often int32  // number of sources with a leaf near the root
	place uint   // index of the first leaf near the root
	short []uint // above, for the leaves near the root
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
	groups := 0
	// level adds a level of n nodes, and returns the number of its groups.
	level := func(n int) int {
		own := (n + 3) / 4
		// The parents are the first nodes of the next level, whose first group is behind these.
		t.above = append(t.above, uint(4*(groups+own)-groups))
		groups += own
		return own
	}
	n := level(max(sources-often, 1))
	for n > 1 {
		n = level(n)
	}
	long := len(t.above)
	t.place = uint(4*groups) + 1
	n = level(1 + often)
	for n > 1 {
		n = level(n)
	}
	t.short = t.above[long:]
	t.nodes = make([][4]uint64, groups)
	for i := range t.nodes {
		t.nodes[i] = [4]uint64{none, none, none, none}
	}
	t.root = none
	return t
}

func entryAt(e uint64) time.Duration { return time.Duration(e >> sourceBits) }
func entrySource(e uint64) int32     { return int32(e & (maxSources - 1)) }

// leaf returns the index of a source's leaf, and the offsets on its path to the root.
func (t *tournament) leaf(source int32) (uint, []uint) {
	if source < t.often {
		return t.place + uint(source), t.short
	}
	return uint(source - t.often), t.above
}

// entry returns the entry of a source.
func (t *tournament) entry(source int32) uint64 {
	i, _ := t.leaf(source)
	return t.nodes[i/4][i%4]
}

func newEntry(source int32, at time.Duration) uint64 {
	return uint64(min(at, latest))<<sourceBits | uint64(source)
}

// first returns the next event, and false when there is none.
func (t *tournament) first() (at time.Duration, source int32, ok bool) {
	return entryAt(t.root), entrySource(t.root), t.root != none
}

// has reports whether the source has an event.
func (t *tournament) has(source int32) bool { return t.entry(source) != none }

// at returns the time of the source's event. The source must have one.
func (t *tournament) at(source int32) time.Duration { return entryAt(t.entry(source)) }

// set sets the source's event, replacing an existing one.
func (t *tournament) set(source int32, at time.Duration) { t.enter(source, newEntry(source, at)) }

// setEarlier sets the source's event unless it has an earlier one.
func (t *tournament) setEarlier(source int32, at time.Duration) {
	if e := newEntry(source, at); e < t.entry(source) {
		t.enter(source, e)
	}
}

// remove removes the source's event, if it has one.
func (t *tournament) remove(source int32) { t.enter(source, none) }

func (t *tournament) enter(source int32, e uint64) {
	i, way := t.leaf(source)
	if t.nodes[i/4][i%4] == e {
		return // most timers are set to the time that they have
	}
	for _, above := range way {
		g := &t.nodes[i/4]
		g[i%4] = e
		// To load e itself again would wait for the store.
		e = min(e, g[(i^1)%4], g[(i^2)%4], g[(i^3)%4])
		i = above + i/4
	}
	t.root = e
}
