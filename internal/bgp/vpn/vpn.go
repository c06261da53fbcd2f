// Package vpn reads, prints and encodes the identifiers of VPN routes: route distinguishers and
// route targets, which share one form (RFC 4364 section 4.2, RFC 4360 section 4). It knows neither
// routes nor messages.
package vpn

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
)

// ID is a route distinguisher or a route target: who assigned it, and the number assigned. The zero
// ID is invalid. IDs are comparable; two IDs are equal exactly if they are the same on the wire.
type ID struct {
	kind   kind
	admin  uint32
	number uint32
}

type kind uint8

const (
	_ kind = iota
	twoOctetAS
	fourOctetAS
	ipv4
)

// FromAddress is the ID that the router with this IPv4 router ID assigns ("10.0.0.1:7").
func FromAddress(router netip.Addr, number uint16) (ID, error) {
	if !router.Is4() {
		return ID{}, fmt.Errorf("router ID %v: must be an IPv4 address", router)
	}
	b := router.As4()
	return ID{ipv4, uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3]), uint32(number)}, nil
}

// FromASN is the ID that an AS assigns, in the four-octet form.
func FromASN(asn uint32, number uint16) ID { return ID{fourOctetAS, asn, uint32(number)} }

// Parse reads "65000:101" (two-octet AS and a 32-bit number), "10.0.0.1:7" (IPv4 address and a
// 16-bit number), and "4200000000:7" or "64086.59904:7" (four-octet AS and a 16-bit number).
func Parse(s string) (ID, error) {
	admin, number, ok := strings.Cut(s, ":")
	if !ok {
		return ID{}, fmt.Errorf("%q: want ADMINISTRATOR:NUMBER, such as 65000:101", s)
	}
	id, largest := ID{kind: ipv4}, uint64(math.MaxUint16)
	if addr, err := netip.ParseAddr(admin); err == nil && addr.Is4() {
		if id, err = FromAddress(addr, 0); err != nil {
			return ID{}, err
		}
	} else if asn, err := parseASN(admin); err != nil {
		return ID{}, fmt.Errorf("%q: administrator %q is neither an AS number nor an IPv4 address", s, admin)
	} else if id = (ID{kind: fourOctetAS, admin: asn}); asn <= math.MaxUint16 && !strings.Contains(admin, ".") {
		id.kind, largest = twoOctetAS, math.MaxUint32
	}
	n, err := parseDecimal(number, largest)
	if err != nil {
		return ID{}, fmt.Errorf("%q: number %q must be between 0 and %d", s, number, largest)
	}
	id.number = uint32(n)
	return id, nil
}

// parseASN reads an AS number as asplain or asdot (RFC 5396).
func parseASN(s string) (uint32, error) {
	high, low, dotted := strings.Cut(s, ".")
	if !dotted {
		n, err := parseDecimal(s, math.MaxUint32)
		return uint32(n), err
	}
	h, err := parseDecimal(high, math.MaxUint16)
	if err != nil {
		return 0, err
	}
	l, err := parseDecimal(low, math.MaxUint16)
	return uint32(h)<<16 | uint32(l), err
}

// parseDecimal reads digits alone: no sign, and no leading zeros, which others take for octal.
func parseDecimal(s string, largest uint64) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, err
	}
	if n > largest || strconv.FormatUint(n, 10) != s {
		return 0, strconv.ErrRange
	}
	return n, nil
}

// Compare orders IDs by form, administrator and number.
func (id ID) Compare(other ID) int {
	return cmp.Or(cmp.Compare(id.kind, other.kind), cmp.Compare(id.admin, other.admin), cmp.Compare(id.number, other.number))
}

// IsValid reports whether the ID is not the zero ID.
func (id ID) IsValid() bool { return id.kind != 0 }

// String prints the ID so that Parse reads the same ID back: a short AS number in the four-octet
// form as asdot ("0.65000:7"), which distinguishes it from the two-octet form. The zero ID prints
// as "".
func (id ID) String() string {
	switch id.kind {
	case twoOctetAS, fourOctetAS:
		if id.kind == fourOctetAS && id.admin <= math.MaxUint16 {
			return fmt.Sprintf("0.%d:%d", id.admin, id.number)
		}
		return fmt.Sprintf("%d:%d", id.admin, id.number)
	case ipv4:
		return fmt.Sprintf("%d.%d.%d.%d:%d", id.admin>>24, id.admin>>16&0xff, id.admin>>8&0xff, id.admin&0xff, id.number)
	default:
		return ""
	}
}

// MarshalText prints the ID as String does.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads the ID as Parse does; empty text is the zero ID.
func (id *ID) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*id = ID{}
		return nil
	}
	parsed, err := Parse(string(text))
	if err != nil {
		return err
	}
	*id = parsed
	return nil
}

// The eight bytes on the wire begin with the type; a route target has the subtype in the second
// byte, where a route distinguisher has the lower half of its type.
const (
	typeShift        = 48
	wireTwoOctetAS   = 0
	wireIPv4         = 1
	wireFourOctetAS  = 2
	subtypeTarget    = 2 // RFC 4360 section 4
	transitiveTarget = subtypeTarget << typeShift
)

// Distinguisher is the ID as a route distinguisher on the wire, as a big-endian number (RFC 4364
// section 4.2). That of the zero ID, which destinations of unicast families have, is 0.
func (id ID) Distinguisher() uint64 {
	switch id.kind {
	case twoOctetAS:
		return uint64(id.admin)<<32 | uint64(id.number)
	case ipv4:
		return wireIPv4<<typeShift | uint64(id.admin)<<16 | uint64(id.number)
	case fourOctetAS:
		return wireFourOctetAS<<typeShift | uint64(id.admin)<<16 | uint64(id.number)
	}
	return 0
}

// FromDistinguisher is the inverse of Distinguisher; false for types not defined in RFC 4364.
func FromDistinguisher(wire uint64) (ID, bool) {
	admin, number := uint32(wire>>16), uint32(wire&0xffff)
	switch wire >> typeShift {
	case wireTwoOctetAS:
		return ID{twoOctetAS, uint32(wire >> 32 & 0xffff), uint32(wire)}, true
	case wireIPv4:
		return ID{ipv4, admin, number}, true
	case wireFourOctetAS:
		return ID{fourOctetAS, admin, number}, true
	}
	return ID{}, false
}

// Target is the ID as a transitive route target on the wire, an extended community as a big-endian
// number (RFC 4360 section 4, RFC 5668). The ID should be valid.
func (id ID) Target() uint64 {
	wire := id.Distinguisher()
	return wire>>typeShift<<(typeShift+8) | transitiveTarget | wire&(1<<typeShift-1)
}

// FromTarget is the inverse of Target; false for other extended communities.
func FromTarget(wire uint64) (ID, bool) {
	if wire>>typeShift&0xff != subtypeTarget {
		return ID{}, false
	}
	return FromDistinguisher(wire>>(typeShift+8)<<typeShift | wire&(1<<typeShift-1))
}
