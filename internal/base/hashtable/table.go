// Package hashtable has hash tables for a million routes: their keys and values are small and
// without pointers, so that they take little memory and no time of the garbage collector.
//
// It knows nothing of routing but prefixes.
package hashtable

import (
	"hash/maphash"
	"iter"
	"math/bits"
)

// A Ref is the position of an entry in a Table. It does not change while the entry exists; then
// another one may get it.
type Ref uint32

const (
	// chunk entries are allocated together: a table grows without being copied.
	chunk = 4096
	// shards of the index grow one by one, so that no single insertion takes long.
	shards    = 256
	shardBits = 8
	// refBits are the low bits of a slot, which have a Ref plus 1; the others are a tag.
	refBits = 26
	refMask = 1<<refBits - 1
)

// A Table maps keys to values. K and V should have no pointers. An entry takes about 9 bytes beside
// its key and value; memory of removed entries is used for others. There are at most 67 million.
// The zero Table is empty. It is not safe for concurrent use.
type Table[K comparable, V any] struct {
	chunks []*block[K, V]
	free   []Ref
	size   Ref // entries and free places
	index  []shard
	seed   maphash.Seed
}

type block[K comparable, V any] struct {
	used    [chunk / 64]uint64 // bits of the places with an entry
	homes   [chunk]uint16      // of the entries, so that the index changes without their keys
	entries [chunk]entry[K, V]
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

// A shard is a hash table with linear probing. The home of an entry is the part of its hash that
// selects the slot. The tag of a slot is another part, so that the entries of other keys, mostly in
// no cache, are not looked at.
type shard struct {
	slots []uint32
	n     int
}

func (t *Table[K, V]) at(r Ref) *entry[K, V] { return &t.chunks[r/chunk].entries[r%chunk] }

// Key returns the key of an entry.
func (t *Table[K, V]) Key(r Ref) K { return t.at(r).key }

// Value returns the value of an entry, which the caller may change.
func (t *Table[K, V]) Value(r Ref) *V { return &t.at(r).value }

// Has reports whether there is an entry at a Ref that was returned before.
func (t *Table[K, V]) Has(r Ref) bool { return t.chunks[r/chunk].used[r%chunk/64]&(1<<(r%64)) != 0 }

// Len returns the number of entries.
func (t *Table[K, V]) Len() int { return int(t.size) - len(t.free) }

// All iterates over the entries. They may be changed and removed meanwhile; entries that are added
// may be left out.
func (t *Table[K, V]) All() iter.Seq[Ref] {
	return func(yield func(Ref) bool) {
		for r := Ref(0); r < t.size; r = r/64*64 + 64 {
			for left := t.chunks[r/chunk].used[r%chunk/64]; left != 0; left &= left - 1 {
				at := r + Ref(bits.TrailingZeros64(left))
				if t.Has(at) && !yield(at) {
					return
				}
			}
		}
	}
}

// Next returns the first entry at from or after it, for a walk in steps between which anything may
// change. It returns false at the end.
func (t *Table[K, V]) Next(from Ref) (Ref, bool) {
	for r := from; r < t.size; r = r/64*64 + 64 {
		left := t.chunks[r/chunk].used[r%chunk/64] >> (r % 64)
		if left != 0 {
			return r + Ref(bits.TrailingZeros64(left)), true
		}
	}
	return 0, false
}

// locate returns the shard of a key, its home in it, and its tag. Others choose the prefixes, so
// the seed is secret.
func (t *Table[K, V]) locate(k K) (s *shard, home uint16, tag uint32) {
	if t.index == nil {
		t.index, t.seed = make([]shard, shards), maphash.MakeSeed()
	}
	h := maphash.Comparable(t.seed, k)
	return &t.index[h>>(64-shardBits)], uint16(h), uint32(h>>32) << refBits
}

// first returns the slot that a search begins with. With more slots than homes, a home has several.
func (s *shard) first(home uint16) int { return int(home) * len(s.slots) >> 16 }

// next returns the slot after another one.
func (s *shard) next(at int) int {
	if at++; at == len(s.slots) {
		return 0
	}
	return at
}

// distance returns how far a slot is behind another one.
func (s *shard) distance(from, to int) int {
	if to < from {
		to += len(s.slots)
	}
	return to - from
}

// home returns the home of the entry of a slot.
func (t *Table[K, V]) home(slot uint32) uint16 {
	r := slot&refMask - 1
	return t.chunks[r/chunk].homes[r%chunk]
}

// search returns the entry of a key in its shard, or where its slot would be.
func (t *Table[K, V]) search(s *shard, home uint16, tag uint32, k K) (r Ref, at int, ok bool) {
	for at = s.first(home); s.slots[at] != 0; at = s.next(at) {
		if slot := s.slots[at]; slot&^refMask == tag {
			if r := Ref(slot&refMask - 1); t.at(r).key == k {
				return r, at, true
			}
		}
	}
	return 0, at, false
}

// Find returns the entry of a key; ok is false if there is none.
func (t *Table[K, V]) Find(k K) (r Ref, ok bool) {
	s, home, tag := t.locate(k)
	if len(s.slots) > 0 {
		r, _, ok = t.search(s, home, tag, k)
	}
	return r, ok
}

// Add returns the entry of a key, with a zero value if there was none.
func (t *Table[K, V]) Add(k K) (r Ref, added bool) {
	s, home, tag := t.locate(k)
	if 4*(s.n+1) > 3*len(s.slots) {
		t.grow(s)
	}
	r, at, ok := t.search(s, home, tag, k)
	if ok {
		return r, false
	}
	if n := len(t.free); n > 0 {
		r, t.free = t.free[n-1], t.free[:n-1]
	} else {
		if r = t.size; r%chunk == 0 {
			t.chunks = append(t.chunks, new(block[K, V]))
		}
		if t.size++; t.size > refMask {
			panic("BUG: too many entries")
		}
	}
	b := t.chunks[r/chunk]
	b.entries[r%chunk] = entry[K, V]{key: k}
	b.homes[r%chunk] = home
	b.used[r%chunk/64] |= 1 << (r % 64)
	s.slots[at] = tag | uint32(r) + 1
	s.n++
	return r, true
}

// grow adds slots to a shard.
func (t *Table[K, V]) grow(s *shard) {
	old := s.slots
	s.slots = make([]uint32, max(8, len(old)+len(old)/2))
	for _, slot := range old {
		if slot == 0 {
			continue
		}
		at := s.first(t.home(slot))
		for s.slots[at] != 0 {
			at = s.next(at)
		}
		s.slots[at] = slot
	}
}

// Remove removes an entry.
func (t *Table[K, V]) Remove(r Ref) {
	s, home, _ := t.locate(t.at(r).key)
	gap := s.first(home)
	for s.slots[gap]&refMask != uint32(r)+1 {
		gap = s.next(gap)
	}
	// Slots move into the gap, so that a search still ends at the first empty one.
	for i := s.next(gap); s.slots[i] != 0; i = s.next(i) {
		// A slot stays if its search begins between the gap and its place.
		if first := s.first(t.home(s.slots[i])); s.distance(first, i) >= s.distance(gap, i) {
			s.slots[gap], gap = s.slots[i], i
		}
	}
	s.slots[gap] = 0
	s.n--
	*t.at(r) = entry[K, V]{}
	t.chunks[r/chunk].used[r%chunk/64] &^= 1 << (r % 64)
	t.free = append(t.free, r)
}
