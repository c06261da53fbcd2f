package policy

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"
)

// Validity is the origin validation state of a route (RFC 6811 section 2).
type Validity uint8

const (
	NotFound Validity = iota // no VRP covers the prefix
	Valid
	Invalid // VRPs cover the prefix, none with its origin and length

	validities = 3
)

var validityNames = [validities]string{"not-found", "valid", "invalid"}

func (v Validity) String() string {
	if v < validities {
		return validityNames[v]
	}
	return fmt.Sprintf("validity(%d)", uint8(v))
}

// MarshalText returns the text that UnmarshalText parses.
func (v Validity) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText parses valid, invalid or not-found.
func (v *Validity) UnmarshalText(text []byte) error {
	i := slices.Index(validityNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("want valid, invalid or not-found, got %q", text)
	}
	*v = Validity(i)
	return nil
}

// VRP is a Validated ROA Payload: the AS may originate the prefix, and more specific ones up to a
// length (RFC 6811 section 2).
type VRP struct {
	Prefix    netip.Prefix
	MaxLength uint8
	ASN       uint32
}

// Compare is the order of lists of VRPs.
func (v VRP) Compare(w VRP) int {
	return cmp.Or(comparePrefixes(v.Prefix, w.Prefix), cmp.Compare(v.MaxLength, w.MaxLength), cmp.Compare(v.ASN, w.ASN))
}

// VRPs is an immutable set of VRPs, safe for concurrent use. A nil set is empty.
type VRPs struct {
	index
	origins []origin
}

// origin is a VRP without its prefix, which the index has.
type origin struct {
	asn       uint32
	maxLength uint8
}

// NewVRPs returns the set of a list that is sorted by VRP.Compare, without repetitions. Prefixes
// have no host bits.
func NewVRPs(list []VRP) *VRPs {
	s := &VRPs{index: newIndex(list, func(v VRP) netip.Prefix { return v.Prefix }), origins: make([]origin, len(list))}
	for i, v := range list {
		s.origins[i] = origin{v.ASN, v.MaxLength}
	}
	return s
}

// Len returns the number of VRPs.
func (s *VRPs) Len() int {
	if s == nil {
		return 0
	}
	return len(s.origins)
}

// All returns the VRPs in the order of VRP.Compare.
func (s *VRPs) All() iter.Seq[VRP] {
	return func(yield func(VRP) bool) {
		if s == nil {
			return
		}
		for _, f := range []*family{&s.v4, &s.v6} {
			for at := range f.nodes {
				p := f.nodes[at].prefix(f == &s.v4)
				for from, to := f.valuesOf(int32(at)); from < to; from++ {
					if o := s.origins[from]; !yield(VRP{p, o.maxLength, o.asn}) {
						return
					}
				}
			}
		}
	}
}

// Validate returns the origin validation state of a route (RFC 6811 section 2). as is its origin; 0
// if the AS path is empty: no VRP matches such a route.
func (s *VRPs) Validate(p netip.Prefix, as uint32) Validity {
	if s == nil {
		return NotFound
	}
	f := s.of(p)
	at := f.longest(p)
	if at < 0 {
		return NotFound
	}
	for ; at >= 0; at = f.nodes[at].parent {
		for from, to := f.valuesOf(at); from < to; from++ {
			if o := s.origins[from]; o.asn == as && as != 0 && p.Bits() <= int(o.maxLength) {
				return Valid
			}
		}
	}
	return Invalid
}
