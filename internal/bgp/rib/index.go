package rib

import (
	"hash/maphash"

	"github.com/tabane/tabane/internal/bgp/message"
)

// index finds destinations by key. It stores indices only, a few bytes for each destination; the
// keys are in the destinations themselves. It consists of many small parts, since one large part
// would take too long to enlarge.
type index struct {
	seed  maphash.Seed
	parts [indexParts]indexPart
}

const indexParts = 256

// indexPart is an open-addressing hash table with linear probing.
type indexPart struct {
	slots []uint32 // index of a destination + 1; 0: free
	n     int
}

func (x *index) hash(k message.Key) uint64 { return maphash.Comparable(x.seed, k) }

func (p *indexPart) find(hash uint64, match func(uint32) bool) (slot int, ok bool) {
	if len(p.slots) == 0 {
		return 0, false
	}
	mask := len(p.slots) - 1
	for slot = int(hash) & mask; p.slots[slot] != 0; slot = (slot + 1) & mask {
		if match(p.slots[slot] - 1) {
			return slot, true
		}
	}
	return slot, false
}

// lookup returns the destination with the key.
func (t *table) lookup(k message.Key) (uint32, bool) {
	h := t.index.hash(k)
	p := &t.index.parts[h>>56]
	slot, ok := p.find(h, func(i uint32) bool { return t.at(i).key == k })
	if !ok {
		return 0, false
	}
	return p.slots[slot] - 1, true
}

// insert adds a destination whose key is not in the index.
func (t *table) insert(i uint32) {
	h := t.index.hash(t.at(i).key)
	p := &t.index.parts[h>>56]
	if 2*(p.n+1) > len(p.slots) {
		old := p.slots
		p.slots = make([]uint32, max(8, 2*len(old)))
		for _, v := range old {
			if v != 0 {
				slot, _ := p.find(t.index.hash(t.at(v-1).key), func(uint32) bool { return false })
				p.slots[slot] = v
			}
		}
	}
	slot, _ := p.find(h, func(uint32) bool { return false })
	p.slots[slot] = i + 1
	p.n++
}

// erase removes a destination from the index and moves those that follow it to where they are
// found without it.
func (t *table) erase(i uint32) {
	h := t.index.hash(t.at(i).key)
	p := &t.index.parts[h>>56]
	slot, ok := p.find(h, func(j uint32) bool { return j == i })
	if !ok {
		panic("BUG: destination is not in the index")
	}
	p.n--
	if p.n == 0 {
		p.slots = nil
		return
	}
	mask := len(p.slots) - 1
	hole := slot
	for next := (slot + 1) & mask; p.slots[next] != 0; next = (next + 1) & mask {
		home := int(t.index.hash(t.at(p.slots[next]-1).key)) & mask
		if (next-home)&mask >= (next-hole)&mask {
			p.slots[hole], hole = p.slots[next], next
		}
	}
	p.slots[hole] = 0
}
