package message

import (
	"encoding/binary"
	"iter"
	"slices"
	"strconv"
	"strings"
)

// Types of AS path segments (RFC 4271 section 4.3). Only sequences are accepted: sets are deprecated
// (RFC 9774), and those of confederations (RFC 5065) are malformed here, since this speaker is no
// member of one.
const (
	segmentSet            = 1
	segmentSequence       = 2
	segmentConfedSequence = 3
	segmentConfedSet      = 4

	// maxSegment is the number of AS numbers in one segment.
	maxSegment = 255
)

// ASPath is an AS path: sequences as on the wire with AS numbers of four octets. It is comparable;
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

// segments iterates over the AS numbers of each segment.
func (p ASPath) segments() iter.Seq[Uint32s] {
	return func(yield func(Uint32s) bool) {
		for s := string(p); len(s) >= 2; {
			end := 2 + 4*int(s[1])
			if !yield(Uint32s(s[2:end])) {
				return
			}
			s = s[end:]
		}
	}
}

// Len is the number of AS numbers.
func (p ASPath) Len() int {
	n := 0
	for asns := range p.segments() {
		n += asns.Len()
	}
	return n
}

// First is the nearest AS, 0 if the path is empty.
func (p ASPath) First() uint32 {
	if p == "" {
		return 0
	}
	return Uint32s(p[2:6]).At(0)
}

// Origin is the AS that originated the route, 0 if the path is empty.
func (p ASPath) Origin() uint32 {
	if p == "" {
		return 0
	}
	return Uint32s(p[len(p)-4:]).At(0)
}

// Contains reports whether the AS is in the path.
func (p ASPath) Contains(asn uint32) bool {
	for asns := range p.segments() {
		if asns.Has(asn) {
			return true
		}
	}
	return false
}

// All iterates over all AS numbers, the nearest first.
func (p ASPath) All() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for asns := range p.segments() {
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
	if p != "" && int(p[1])+n <= maxSegment {
		end := 2 + 4*int(p[1])
		return MakeASPath(append(prefix, slices.Collect(Uint32s(p[2:end]).All())...)...) + p[end:]
	}
	return MakeASPath(prefix...) + p
}

// String is the AS numbers: "64500 64501".
func (p ASPath) String() string {
	var numbers []string
	for asn := range p.All() {
		numbers = append(numbers, strconv.FormatUint(uint64(asn), 10))
	}
	return strings.Join(numbers, " ")
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
