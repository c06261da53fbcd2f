package message

import (
	"encoding/binary"
	"iter"
	"slices"
	"strconv"
	"strings"
)

// Types of AS path segments (RFC 4271 section 4.3). Those of confederations (RFC 5065) are
// malformed here: this speaker is no member of one.
const (
	segmentSet      = 1
	segmentSequence = 2

	segmentConfedSequence = 3
	segmentConfedSet      = 4

	// maxSegment is the number of AS numbers in one segment.
	maxSegment = 255
)

// ASPath is an AS path: segments as on the wire with AS numbers of four octets. It is comparable;
// the zero value is the empty path.
type ASPath string

// MakeASPath returns the path that is one sequence of AS numbers, the nearest first.
func MakeASPath(asns ...uint32) ASPath {
	var b []byte
	for part := range slices.Chunk(asns, maxSegment) {
		b = append(b, segmentSequence, byte(len(part)))
		for _, asn := range part {
			b = binary.BigEndian.AppendUint32(b, asn)
		}
	}
	return ASPath(b)
}

// segments iterates over the types of segments and their AS numbers.
func (p ASPath) segments() iter.Seq2[uint8, Uint32s] {
	return func(yield func(uint8, Uint32s) bool) {
		for s := string(p); len(s) >= 2; {
			end := 2 + 4*int(s[1])
			if !yield(s[0], Uint32s(s[2:end])) {
				return
			}
			s = s[end:]
		}
	}
}

// Len is the length for route selection: a set counts as one (RFC 4271 section 9.1.2.2).
func (p ASPath) Len() int {
	n := 0
	for kind, asns := range p.segments() {
		if kind == segmentSet {
			n++
		} else {
			n += asns.Len()
		}
	}
	return n
}

// First is the nearest AS, 0 if the path is empty or begins with a set.
func (p ASPath) First() uint32 {
	if len(p) < 6 || p[0] != segmentSequence {
		return 0
	}
	return Uint32s(p[2:6]).At(0)
}

// Origin is the AS that originated the route, 0 if the path is empty or ends with a set.
func (p ASPath) Origin() uint32 {
	origin := uint32(0)
	for kind, asns := range p.segments() {
		origin = 0
		if kind == segmentSequence {
			origin = asns.At(asns.Len() - 1)
		}
	}
	return origin
}

// Contains reports whether the AS is in the path, in sets as well.
func (p ASPath) Contains(asn uint32) bool {
	for _, asns := range p.segments() {
		if asns.Has(asn) {
			return true
		}
	}
	return false
}

// All iterates over all AS numbers, the nearest first, sets flattened.
func (p ASPath) All() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for _, asns := range p.segments() {
			for asn := range asns.All() {
				if !yield(asn) {
					return
				}
			}
		}
	}
}

// Flat returns the AS numbers of All.
func (p ASPath) Flat() []uint32 { return slices.Collect(p.All()) }

// Prepend returns the path with the AS number n times in front (RFC 4271 section 5.1.2).
func (p ASPath) Prepend(asn uint32, n int) ASPath {
	prefix := slices.Repeat([]uint32{asn}, n)
	if len(p) >= 2 && p[0] == segmentSequence && int(p[1])+n <= maxSegment {
		end := 2 + 4*int(p[1])
		return MakeASPath(append(prefix, slices.Collect(Uint32s(p[2:end]).All())...)...) + p[end:]
	}
	return MakeASPath(prefix...) + p
}

// String is the AS numbers, sets in braces: "64500 64501 {64502,64503}".
func (p ASPath) String() string {
	var parts []string
	for kind, asns := range p.segments() {
		var numbers []string
		for asn := range asns.All() {
			numbers = append(numbers, strconv.FormatUint(uint64(asn), 10))
		}
		if kind == segmentSet {
			numbers = []string{"{" + strings.Join(numbers, ",") + "}"}
		}
		parts = append(parts, numbers...)
	}
	return strings.Join(parts, " ")
}

// Uint32s is a list of numbers of four octets as on the wire: communities, cluster IDs, AS numbers.
type Uint32s string

// Len is the number of elements.
func (u Uint32s) Len() int { return len(u) / 4 }

// At returns element i.
func (u Uint32s) At(i int) uint32 {
	u = u[4*i : 4*i+4]
	return uint32(u[0])<<24 | uint32(u[1])<<16 | uint32(u[2])<<8 | uint32(u[3])
}

// All iterates over the elements.
func (u Uint32s) All() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for i := range u.Len() {
			if !yield(u.At(i)) {
				return
			}
		}
	}
}

// Has reports whether the element is in the list.
func (u Uint32s) Has(x uint32) bool {
	for i := range u.Len() {
		if u.At(i) == x {
			return true
		}
	}
	return false
}

// Slice returns a copy of the list, nil if it is empty.
func (u Uint32s) Slice() []uint32 { return slices.Collect(u.All()) }
