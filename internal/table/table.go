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
)

// A Table maps keys to values. K and V should have no pointers. An entry takes 6 bytes beside its
// key and value; memory of removed entries is used for others. The zero Table is empty. It is not
// safe for concurrent use.
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

// A shard is a hash table with linear probing; each slot is a Ref plus 1.
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

// locate returns the shard of a key and its home in it. Others choose the prefixes, so the seed is
// secret.
func (t *Table[K, V]) locate(k K) (*shard, int) {
	if t.index == nil {
		t.index, t.seed = make([]shard, shards), maphash.MakeSeed()
	}
	h := maphash.Comparable(t.seed, k)
	return &t.index[h>>(64-shardBits)], int(uint32(h))
}

// Find returns the entry of a key; ok is false if there is none.
func (t *Table[K, V]) Find(k K) (r Ref, ok bool) {
	s, home := t.locate(k)
	for i := home; len(s.slots) > 0; i++ {
		slot := s.slots[i&(len(s.slots)-1)]
		if slot == 0 {
			break
		}
		if r := Ref(slot - 1); t.at(r).key == k {
			return r, true
		}
	}
	return 0, false
}

// Add returns the entry of a key, with a zero value if there was none.
func (t *Table[K, V]) Add(k K) (r Ref, added bool) {
	if r, ok := t.Find(k); ok {
		return r, false
	}
	if n := len(t.free); n > 0 {
		r, t.free = t.free[n-1], t.free[:n-1]
	} else {
		if r = t.size; r%chunk == 0 {
			t.chunks = append(t.chunks, new(block[K, V]))
		}
		t.size++
	}
	*t.at(r) = entry[K, V]{key: k}
	t.chunks[r/chunk].used[r%chunk/64] |= 1 << (r % 64)
	s, home := t.locate(k)
	if s.n++; 4*s.n > 3*len(s.slots) {
		old := s.slots
		s.slots = make([]uint32, max(8, 2*len(old)))
		for _, slot := range old {
			if slot != 0 {
				_, home := t.locate(t.at(Ref(slot - 1)).key)
				s.put(slot, home)
			}
		}
	}
	s.put(uint32(r)+1, home)
	return r, true
}

func (s *shard) put(slot uint32, home int) {
	mask := len(s.slots) - 1
	i := home & mask
	for s.slots[i] != 0 {
		i = (i + 1) & mask
	}
	s.slots[i] = slot
}

// Remove removes an entry.
func (t *Table[K, V]) Remove(r Ref) {
	s, home := t.locate(t.at(r).key)
	mask := len(s.slots) - 1
	gap := home & mask
	for s.slots[gap] != uint32(r)+1 {
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
		_, home := t.locate(t.at(Ref(slot - 1)).key)
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
