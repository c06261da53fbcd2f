package message

import (
	"fmt"
	"iter"
	"strings"
)

// Family is an address family.
type Family uint8

const (
	IPv4Unicast Family = iota + 1 // AFI 1, SAFI 1
	IPv6Unicast                   // AFI 2, SAFI 1
	VPNv4                         // AFI 1, SAFI 128 (RFC 4364)
	VPNv6                         // AFI 2, SAFI 128 (RFC 4659)

	lastFamily = VPNv6

	// LinkState is BGP-LS (AFI 16388, SAFI 71; RFC 9552). Its destinations are no prefixes, so it
	// is none of the families that FamilyOf returns: sessions can have it, and packages of their
	// own encode its messages.
	LinkState = VPNv6 + 1
)

const (
	afiIPv4     = 1
	afiIPv6     = 2
	safiUnicast = 1
	safiVPN     = 128
)

var families = [LinkState + 1]struct {
	name string
	afi  uint16
	safi uint8
}{
	IPv4Unicast: {"ipv4-unicast", afiIPv4, safiUnicast},
	IPv6Unicast: {"ipv6-unicast", afiIPv6, safiUnicast},
	VPNv4:       {"vpnv4", afiIPv4, safiVPN},
	VPNv6:       {"vpnv6", afiIPv6, safiVPN},
	LinkState:   {"link-state", 16388, 71},
}

// FamilyOf returns the family with these numbers, or false if it is none of this package's.
func FamilyOf(afi uint16, safi uint8) (Family, bool) {
	for f := IPv4Unicast; f <= lastFamily; f++ {
		if families[f].afi == afi && families[f].safi == safi {
			return f, true
		}
	}
	return 0, false
}

// IsValid reports whether the family is one of this package's.
func (f Family) IsValid() bool { return f >= IPv4Unicast && f <= lastFamily }

// AFI returns the address family identifier (RFC 4760).
func (f Family) AFI() uint16 { return families[f].afi }

// SAFI returns the subsequent address family identifier (RFC 4760).
func (f Family) SAFI() uint8 { return families[f].safi }

// VPN reports whether destinations have a route distinguisher and a label.
func (f Family) VPN() bool { return f == VPNv4 || f == VPNv6 }

// Is4 reports whether destinations are IPv4 prefixes.
func (f Family) Is4() bool { return f == IPv4Unicast || f == VPNv4 }

// String is "ipv4-unicast", "ipv6-unicast", "vpnv4", "vpnv6" or "link-state".
func (f Family) String() string {
	if f.IsValid() || f == LinkState {
		return families[f].name
	}
	return fmt.Sprintf("family(%d)", uint8(f))
}

// FamilySet is a set of families.
type FamilySet uint8

// Families returns the set of these families.
func Families(list ...Family) FamilySet {
	var s FamilySet
	for _, f := range list {
		s |= 1 << f
	}
	return s
}

// Has reports whether the family is in the set.
func (s FamilySet) Has(f Family) bool { return s>>f&1 == 1 }

// All iterates over the families in the order of their numbers, without LinkState.
func (s FamilySet) All() iter.Seq[Family] {
	return func(yield func(Family) bool) {
		for f := IPv4Unicast; f <= lastFamily; f++ {
			if s.Has(f) && !yield(f) {
				return
			}
		}
	}
}

func (s FamilySet) String() string {
	var names []string
	for f := range s.All() {
		names = append(names, f.String())
	}
	if s.Has(LinkState) {
		names = append(names, LinkState.String())
	}
	return strings.Join(names, ",")
}
