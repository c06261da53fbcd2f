package policy

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"net/netip"
	"sort"
)

// index finds the prefixes of a set that cover a prefix: the longest by binary search, the shorter
// ones by following parents. It has no pointer per prefix, so that the garbage collector does not
// scan it. It is immutable and safe for concurrent use.
type index struct {
	v4, v6 family
}

// family is the index of one address family, sorted by address and length. Two prefixes are
// disjoint or one covers the other, so that those that cover a prefix form a chain.
type family struct {
	nodes []node
	// hi is the upper half of each node's address, apart from the nodes because the search reads
	// little else.
	hi []uint64
	// buckets divides the nodes by the upper bits of their addresses, so that most of the binary
	// search is one access: the nodes of addresses base + [b, b+1) << shift are those from
	// buckets[b] to buckets[b+1].
	buckets []int32
	base    uint64
	shift   int
	values  int32 // end of the values of the last node
}

// node is one prefix.
type node struct {
	hi, lo uint64
	// parent is the next shorter prefix that covers this one, or -1.
	parent int32
	// first is the position of the prefix's values in the list that was indexed; they end at
	// that of the next node.
	first int32
	bits  uint8
}

// comparePrefixes is the order of indexed lists: IPv4 first, then by address and length.
func comparePrefixes(p, q netip.Prefix) int {
	return cmp.Or(p.Addr().Compare(q.Addr()), cmp.Compare(p.Bits(), q.Bits()))
}

// newIndex indexes a list that is sorted by comparePrefixes. Prefixes have no host bits and may
// repeat.
func newIndex[T any](values []T, prefix func(T) netip.Prefix) index {
	six := sort.Search(len(values), func(i int) bool { return prefix(values[i]).Addr().Is6() })
	return index{v4: newFamily(values, prefix, 0, six), v6: newFamily(values, prefix, six, len(values))}
}

func newFamily[T any](values []T, prefix func(T) netip.Prefix, from, to int) family {
	f := family{values: int32(to), nodes: make([]node, 0, to-from), hi: make([]uint64, 0, to-from)}
	for i := from; i < to; i++ {
		p := prefix(values[i])
		if i > from && p == prefix(values[i-1]) {
			continue
		}
		n := node{first: int32(i), bits: uint8(p.Bits()), parent: int32(len(f.nodes)) - 1}
		n.hi, n.lo = words(p.Addr())
		for n.parent >= 0 && !f.nodes[n.parent].covers(n.hi, n.lo, n.bits) {
			n.parent = f.nodes[n.parent].parent
		}
		f.nodes, f.hi = append(f.nodes, n), append(f.hi, n.hi)
	}
	if len(f.nodes) == 0 {
		return f
	}
	f.base = f.nodes[0].hi
	span := f.nodes[len(f.nodes)-1].hi - f.base
	f.shift = max(0, bits.Len64(span)-bits.Len(uint(len(f.nodes)))-1)
	f.buckets = make([]int32, span>>f.shift+2)
	for _, n := range f.nodes {
		f.buckets[(n.hi-f.base)>>f.shift+1]++
	}
	for b := range f.buckets[1:] {
		f.buckets[b+1] += f.buckets[b]
	}
	return f
}

// words are the bits of an address, aligned to the left.
func words(a netip.Addr) (hi, lo uint64) {
	if a.Is4() {
		b := a.As4()
		return uint64(binary.BigEndian.Uint32(b[:])) << 32, 0
	}
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

// prefix returns the prefix.
func (n *node) prefix(v4 bool) netip.Prefix {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], n.hi)
	binary.BigEndian.PutUint64(b[8:], n.lo)
	a := netip.AddrFrom16(b)
	if v4 {
		a = netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.PrefixFrom(a, int(n.bits))
}

// covers reports whether the prefix equals or covers another one.
func (n *node) covers(hi, lo uint64, length uint8) bool {
	return n.bits <= length && (hi^n.hi)>>(64-min(n.bits, 64)) == 0 && (n.bits <= 64 || (lo^n.lo)>>(128-n.bits) == 0)
}

// follows reports whether the prefix is sorted after another one with the same upper half.
func (n *node) follows(lo uint64, length uint8) bool {
	return n.lo > lo || n.lo == lo && n.bits > length
}

// of returns the index of the prefix's address family.
func (x *index) of(p netip.Prefix) *family {
	if p.Addr().Is4() {
		return &x.v4
	}
	return &x.v6
}

// longest returns the longest prefix that covers p, or -1. The others are its parents.
func (f *family) longest(p netip.Prefix) int32 {
	hi, lo := words(p.Addr())
	length := uint8(p.Bits())
	if len(f.nodes) == 0 || hi < f.base {
		return -1
	}
	from, to := int32(0), int32(len(f.nodes))
	if b := (hi - f.base) >> f.shift; b+1 < uint64(len(f.buckets)) {
		from, to = f.buckets[b], f.buckets[b+1]
	} else {
		from = to
	}
	for from < to { // the first node after p
		mid := int32(uint32(from+to) >> 1)
		if f.hi[mid] < hi || f.hi[mid] == hi && !f.nodes[mid].follows(lo, length) {
			from = mid + 1
		} else {
			to = mid
		}
	}
	at := from - 1
	for at >= 0 && !f.nodes[at].covers(hi, lo, length) {
		at = f.nodes[at].parent
	}
	return at
}

// valuesOf returns the range of the node's values in the indexed list.
func (f *family) valuesOf(at int32) (from, to int32) {
	to = f.values
	if int(at)+1 < len(f.nodes) {
		to = f.nodes[at+1].first
	}
	return f.nodes[at].first, to
}
