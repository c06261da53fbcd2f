package route

import (
	"encoding/binary"
	"iter"
	"math/bits"
	"math/rand/v2"
	"net/netip"
)

// An interner assigns small numbers to values and counts their uses. Number 0 is no value.
type interner[T comparable] struct {
	items []interned[T]
	index map[T]uint32
	free  []uint32
	// last is the number that add returned last: successive routes mostly have the same value.
	last uint32
}

type interned[T comparable] struct {
	value T
	uses  int
	known int // uses by objects that the kernel has
}

func newInterner[T comparable]() interner[T] {
	return interner[T]{items: make([]interned[T], 1), index: map[T]uint32{}}
}

// add returns the number of a value and counts a use.
func (t *interner[T]) add(v T) uint32 {
	n := t.last
	if n == 0 || t.items[n].value != v {
		var ok bool
		if n, ok = t.index[v]; !ok {
			if free := len(t.free); free > 0 {
				n, t.free = t.free[free-1], t.free[:free-1]
			} else {
				n, t.items = uint32(len(t.items)), append(t.items, interned[T]{})
			}
			t.items[n].value, t.index[v] = v, n
		}
		t.last = n
	}
	t.items[n].uses++
	return n
}

// remove ends a use.
func (t *interner[T]) remove(n uint32) {
	item := &t.items[n]
	if item.uses--; item.uses > 0 {
		return
	}
	delete(t.index, item.value)
	*item = interned[T]{}
	t.free = append(t.free, n)
	if t.last == n {
		t.last = 0
	}
}

// A ref is the position of an entry in a store.
type ref uint32

// An id is a Key in a compact form: without pointers, so that the garbage collector does not scan
// a table of a million routes.
type id struct {
	hi, lo uint64 // of the prefix' address, IPv4 in its mapped form
	space  uint32 // number of the key without its prefix
	length uint8  // of the prefix, plus 1; 0: no prefix
	v4     bool
}

// An entry is the state of one object, in 32 bytes.
type entry struct {
	hi, lo     uint64
	space      uint32
	want, have uint32 // numbers of objects; 0: no object
	length     uint8
	flags      flags
	found      uint8 // generation of the comparison that last found it
	changed    uint8 // generation in which have was last changed other than by a comparison
}

type flags uint8

const (
	kept    flags = 1 << iota // found in the kernel, not desired and not yet stale
	double                    // the kernel has several objects with the key
	queued                    // in a queue or a waitlist
	waiting                   // in a waitlist
	refused                   // the last attempt failed
	isV4                      // the prefix is of IPv4
	used                      // the slot has an entry
)

func (e *entry) is(f flags) bool { return e.flags&f != 0 }

func (e *entry) set(f flags, on bool) {
	if e.flags &^= f; on {
		e.flags |= f
	}
}

func (e *entry) dirty() bool { return e.want != e.have && !e.is(kept) }

func (e *entry) id() id { return id{e.hi, e.lo, e.space, e.length, e.is(isV4)} }

// prefix returns the prefix of the entry's key, which is not valid if it has none.
func (e *entry) prefix() netip.Prefix {
	if e.length == 0 {
		return netip.Prefix{}
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], e.hi)
	binary.BigEndian.PutUint64(b[8:], e.lo)
	a := netip.AddrFrom16(b)
	if e.is(isV4) {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, int(e.length)-1)
}

// chunk entries are allocated together: a table grows without being copied.
const chunk = 4096

// shards of the index grow one by one, so that no single insertion takes long.
const shards = 256

// A store holds entries and finds them by key. A route takes about 40 bytes.
type store struct {
	chunks  [][]entry
	free    []ref
	size    ref // slots in use or free
	index   [shards]shard
	seed    [2]uint64
	spaces  interner[Key]    // keys without their prefix
	objects interner[Object] // routes without their key
}

// A shard is a hash table with linear probing; each slot is a ref plus 1.
type shard struct {
	slots []uint32
	n     int
}

func newStore() store {
	return store{seed: [2]uint64{rand.Uint64(), rand.Uint64()}, spaces: newInterner[Key](), objects: newInterner[Object]()}
}

func (s *store) at(n ref) *entry { return &s.chunks[n/chunk][n%chunk] }

// all iterates over the entries; they may be changed and removed meanwhile.
func (s *store) all() iter.Seq2[ref, *entry] {
	return func(yield func(ref, *entry) bool) {
		for n := ref(0); n < s.size; n++ {
			if e := s.at(n); e.is(used) && !yield(n, e) {
				return
			}
		}
	}
}

// key returns the key of an entry.
func (s *store) key(e *entry) Key {
	k := s.spaces.items[e.space].value
	k.prefix = e.prefix()
	return k
}

func (s *store) class(e *entry) Class { return s.spaces.items[e.space].value.class }

// hash mixes the id with a secret seed, because others choose the prefixes.
func (s *store) hash(k id) uint64 {
	hi, lo := bits.Mul64(k.hi^s.seed[0], k.lo^uint64(k.space)<<32^uint64(k.length)^s.seed[1])
	hi, lo = bits.Mul64(hi^lo^s.seed[1], k.hi^k.lo^0x9e3779b97f4a7c15)
	return hi ^ lo
}

// compact returns the id of a key without the number of its space.
func compact(p netip.Prefix) (k id) {
	if !p.IsValid() {
		return id{}
	}
	b := p.Addr().As16()
	return id{
		hi: binary.BigEndian.Uint64(b[:8]), lo: binary.BigEndian.Uint64(b[8:]), length: uint8(p.Bits() + 1), v4: p.Addr().Is4(),
	}
}

// find returns the entry of a key; ok is false if there is none.
func (s *store) find(k Key) (n ref, e *entry, ok bool) {
	want := compact(k.prefix)
	k.prefix = netip.Prefix{}
	if want.space, ok = s.spaces.index[k]; !ok {
		return 0, nil, false
	}
	h := s.hash(want)
	slots := s.index[h>>56].slots
	for i := int(uint32(h)); len(slots) > 0; i++ {
		slot := slots[i&(len(slots)-1)]
		if slot == 0 {
			break
		}
		if e := s.at(ref(slot - 1)); e.id() == want {
			return ref(slot - 1), e, true
		}
	}
	return 0, nil, false
}

// add returns the entry of a key, and makes it if there is none.
func (s *store) add(k Key) (ref, *entry) {
	if n, e, ok := s.find(k); ok {
		return n, e
	}
	var n ref
	if free := len(s.free); free > 0 {
		n, s.free = s.free[free-1], s.free[:free-1]
	} else {
		if n = s.size; n%chunk == 0 {
			s.chunks = append(s.chunks, make([]entry, chunk))
		}
		s.size++
	}
	want := compact(k.prefix)
	k.prefix = netip.Prefix{}
	want.space = s.spaces.add(k)
	e := s.at(n)
	*e = entry{hi: want.hi, lo: want.lo, space: want.space, length: want.length, flags: used}
	e.set(isV4, want.v4)
	h := s.hash(want)
	s.index[h>>56].insert(n, h, s)
	return n, e
}

// remove removes an entry, whose objects are not counted any more.
func (s *store) remove(n ref) {
	e := s.at(n)
	h := s.hash(e.id())
	s.index[h>>56].remove(n, h, s)
	s.spaces.remove(e.space)
	*e = entry{}
	s.free = append(s.free, n)
}

func (t *shard) insert(n ref, h uint64, s *store) {
	if t.n++; 4*t.n > 3*len(t.slots) {
		old := t.slots
		t.slots = make([]uint32, max(8, 2*len(old)))
		for _, slot := range old {
			if slot != 0 {
				t.put(slot, s.hash(s.at(ref(slot-1)).id()))
			}
		}
	}
	t.put(uint32(n)+1, h)
}

func (t *shard) put(slot uint32, h uint64) {
	mask := len(t.slots) - 1
	i := int(uint32(h)) & mask
	for t.slots[i] != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = slot
}

// remove closes the gap, so that a search still ends at the first empty slot.
func (t *shard) remove(n ref, h uint64, s *store) {
	mask := len(t.slots) - 1
	i := int(uint32(h)) & mask
	for t.slots[i] != uint32(n)+1 {
		i = (i + 1) & mask
	}
	for j := i; ; {
		j = (j + 1) & mask
		slot := t.slots[j]
		if slot == 0 {
			break
		}
		// Its place may be between i and j; then it stays.
		home := int(uint32(s.hash(s.at(ref(slot-1)).id()))) & mask
		if (j-home)&mask >= (j-i)&mask {
			t.slots[i], i = slot, j
		}
	}
	t.slots[i] = 0
	t.n--
}

// value returns an object without its key if it is a route; nil for 0.
func (s *store) value(number uint32) Object { return s.objects.items[number].value }

// number returns the number of an object and counts a use.
func (s *store) number(o Object) uint32 {
	if r, ok := o.(Route); ok {
		r.Table, r.Dst, r.Metric = 0, netip.Prefix{}, 0
		if last, ok := s.objects.items[s.objects.last].value.(Route); ok && last == r {
			s.objects.items[s.objects.last].uses++
			return s.objects.last
		}
	}
	return s.objects.add(strip(o))
}

// replace ends a use of an object and counts one of another.
func (s *store) replace(old, now uint32) {
	if old == now {
		return
	}
	if now != 0 {
		s.objects.items[now].uses++
	}
	if old != 0 {
		s.objects.remove(old)
	}
}

// know counts that the kernel has an object instead of another.
func (s *store) know(old, now uint32) {
	if old != 0 {
		s.objects.items[old].known--
	}
	if now != 0 {
		s.objects.items[now].known++
	}
}

// knows reports whether the kernel has an object like this.
func (s *store) knows(like func(Object) bool) bool {
	for i := range s.objects.items {
		if item := &s.objects.items[i]; item.known > 0 && like(item.value) {
			return true
		}
	}
	return false
}

// strip returns an object without its key if it is a route, so that routes with the same next hop
// have equal objects.
func strip(o Object) Object {
	switch o := o.(type) {
	case Route:
		o.Table, o.Dst, o.Metric = 0, netip.Prefix{}, 0
		return o
	case Altered:
		return Altered{strip(o.Object)}
	}
	return o
}

// object returns an object of an entry, want or have; nil for 0.
func (s *store) object(e *entry, number uint32) Object {
	if number == 0 {
		return nil
	}
	return s.restore(e, s.objects.items[number].value)
}

func (s *store) restore(e *entry, o Object) Object {
	switch o := o.(type) {
	case Route:
		k := &s.spaces.items[e.space].value
		o.Table, o.Dst, o.Metric = k.a, e.prefix(), k.b
		return o
	case Altered:
		return Altered{s.restore(e, o.Object)}
	}
	return o
}
