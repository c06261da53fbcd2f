package hashtable

import (
	"iter"
	"net/netip"
)

// A Prefix is an IPv4 or IPv6 prefix in 17 bytes without pointers. The zero Prefix is the invalid
// one.
type Prefix [17]byte

// The last byte is the length of an IPv6 prefix plus 1, or that of an IPv4 prefix plus lengthIPv4.
const lengthIPv4 = 130

// Compact returns the compact form of a prefix without zone.
func Compact(p netip.Prefix) (c Prefix) {
	if !p.IsValid() {
		return Prefix{}
	}
	a := p.Addr().As16()
	copy(c[:], a[:])
	if c[16] = uint8(p.Bits() + 1); p.Addr().Is4() {
		c[16] = uint8(p.Bits() + lengthIPv4)
	}
	return c
}

// Netip returns the prefix.
func (c Prefix) Netip() netip.Prefix {
	a := netip.AddrFrom16([16]byte(c[:16]))
	switch length := int(c[16]); {
	case length == 0:
		return netip.Prefix{}
	case length >= lengthIPv4:
		return netip.PrefixFrom(a.Unmap(), length-lengthIPv4)
	default:
		return netip.PrefixFrom(a, length-1)
	}
}

// Prefixes maps prefixes to values, with longest-prefix match. V should have no pointers. The zero
// Prefixes is empty.
type Prefixes[V any] struct {
	Table[Prefix, V]
	lengths [256]int // prefixes by last byte
}

// Find returns the entry of a prefix; ok is false if there is none.
func (t *Prefixes[V]) Find(p netip.Prefix) (Ref, bool) { return t.Table.Find(Compact(p)) }

// Add returns the entry of a prefix, with a zero value if there was none.
func (t *Prefixes[V]) Add(p netip.Prefix) (r Ref, added bool) {
	c := Compact(p)
	if r, added = t.Table.Add(c); added {
		t.lengths[c[16]]++
	}
	return r, added
}

// Remove removes an entry.
func (t *Prefixes[V]) Remove(r Ref) {
	t.lengths[t.Key(r)[16]]--
	t.Table.Remove(r)
}

// Longest returns the entry of the longest prefix that covers dst; ok is false if there is none.
func (t *Prefixes[V]) Longest(dst netip.Prefix) (r Ref, ok bool) {
	for r := range t.Covering(dst) {
		return r, true
	}
	return 0, false
}

// Covering iterates over the entries of the prefixes that cover dst, longest first.
func (t *Prefixes[V]) Covering(dst netip.Prefix) iter.Seq[Ref] {
	return func(yield func(Ref) bool) {
		for bits := dst.Bits(); bits >= 0; bits-- {
			c := Compact(netip.PrefixFrom(dst.Addr(), bits).Masked())
			if t.lengths[c[16]] == 0 {
				continue
			}
			if r, ok := t.Table.Find(c); ok && !yield(r) {
				return
			}
		}
	}
}
