// Package table has hash tables for a million routes: their keys and values are small and without
// pointers, so that they take little memory and no time of the garbage collector.
//
// It knows nothing of routing but prefixes.
package table

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

// A Table maps keys to values. K and V should have no pointers. An entry takes 6 bytes beside its
// key and value; memory of removed entries is used for others. There are at most 67 million. The zero
// Table is empty. It is not safe for concurrent use.
type Table[K comparable, V any] struct {
	chunks []*block[K, V]
	free   []Ref
	size   Ref // entries and free places
	index  []shard
	seed   maphash.Seed
}

type block[K comparable, V any] struct {
	used    [chunk / 64]uint64 // bits of the places with an entry
	entries [chunk]entry[K, V]
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

// A shard is a hash table with linear probing. The tag of a slot is a part of the hash, so that the
// entries of other keys, mostly in no cache, are not looked at.
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

// locate returns the shard of a key, its home in it, and its tag. Others choose the prefixes, so the
// seed is secret.
func (t *Table[K, V]) locate(k K) (s *shard, home int, tag uint32) {
	if t.index == nil {
		t.index, t.seed = make([]shard, shards), maphash.MakeSeed()
	}
	h := maphash.Comparable(t.seed, k)
	return &t.index[h>>(64-shardBits)], int(uint32(h)), uint32(h>>32) << refBits
}

// search returns the entry of a key in its shard, or where its slot would be.
func (t *Table[K, V]) search(s *shard, home int, tag uint32, k K) (r Ref, at int, ok bool) {
	mask := len(s.slots) - 1
	for at = home & mask; s.slots[at] != 0; at = (at + 1) & mask {
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
	*t.at(r) = entry[K, V]{key: k}
	t.chunks[r/chunk].used[r%chunk/64] |= 1 << (r % 64)
	s.slots[at] = tag | uint32(r) + 1
	s.n++
	return r, true
}

// grow doubles the slots of a shard.
func (t *Table[K, V]) grow(s *shard) {
	old := s.slots
	s.slots = make([]uint32, max(8, 2*len(old)))
	mask := len(s.slots) - 1
	for _, slot := range old {
		if slot == 0 {
			continue
		}
		_, home, _ := t.locate(t.at(Ref(slot&refMask - 1)).key)
		at := home & mask
		for s.slots[at] != 0 {
			at = (at + 1) & mask
		}
		s.slots[at] = slot
	}
}

// Remove removes an entry.
func (t *Table[K, V]) Remove(r Ref) {
	s, home, _ := t.locate(t.at(r).key)
	mask := len(s.slots) - 1
	gap := home & mask
	for s.slots[gap]&refMask != uint32(r)+1 {
		gap = (gap + 1) & mask
	}
	// Slots move into the gap, so that a search still ends at the first empty one.
	for i := gap; ; {
		i = (i + 1) & mask
		slot := s.slots[i]
		if slot == 0 {
			break
		}
		// A slot stays if its home is between the gap and its place.
		_, home, _ := t.locate(t.at(Ref(slot&refMask - 1)).key)
		if (i-home)&mask >= (i-gap)&mask {
			s.slots[gap], gap = slot, i
		}
	}
	s.slots[gap] = 0
	s.n--
	*t.at(r) = entry[K, V]{}
	t.chunks[r/chunk].used[r%chunk/64] &^= 1 << (r % 64)
	t.free = append(t.free, r)
}
