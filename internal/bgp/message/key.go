package message

import (
	"cmp"
	"encoding/binary"
	"net/netip"

	"github.com/tabane/tabane/internal/bgp/vpn"
)

// Key identifies a destination: the prefix and, in the VPN families, the route distinguisher. It
// has 24 bytes and no pointers, so that the garbage collector does not scan a table of them. Keys
// are comparable; the zero Key is invalid.
type Key struct {
	hi, lo uint64 // address, an IPv4 address in the upper half of hi
	// tail is, from the highest bit: the value of the route distinguisher (48), its type (4),
	// the family (4), and the prefix length (8).
	tail uint64
}

const (
	rdValueShift = 16
	rdTypeShift  = 12
	familyShift  = 8
)

// KeyOf returns the key of a prefix of a unicast family. Host bits are ignored.
func KeyOf(p netip.Prefix) Key { return keyOf(p, IPv4Unicast, IPv6Unicast, 0) }

// KeyOfVPN returns the key of a VPN destination. rd must be valid.
func KeyOfVPN(rd vpn.ID, p netip.Prefix) Key { return keyOf(p, VPNv4, VPNv6, rd.Distinguisher()) }

func keyOf(p netip.Prefix, v4, v6 Family, rd uint64) Key {
	p = p.Masked()
	if p.Addr().Is4() {
		a := p.Addr().As4()
		return newKey(v4, uint64(binary.BigEndian.Uint32(a[:]))<<32, 0, rd, p.Bits())
	}
	a := p.Addr().As16()
	return newKey(v6, binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:]), rd, p.Bits())
}

// newKey returns a key; rd is a route distinguisher on the wire, of a type below 16.
func newKey(f Family, hi, lo, rd uint64, bits int) Key {
	return Key{hi, lo, rd<<rdValueShift | rd>>48<<rdTypeShift | uint64(f)<<familyShift | uint64(bits)}
}

// IsValid reports whether the key is not the zero Key.
func (k Key) IsValid() bool { return k.tail != 0 }

// Family returns the family of the destination.
func (k Key) Family() Family { return Family(k.tail >> familyShift & 0xf) }

// Bits returns the prefix length.
func (k Key) Bits() int { return int(k.tail & 0xff) }

// Addr returns the address of the prefix.
func (k Key) Addr() netip.Addr {
	if k.Family().Is4() {
		return netip.AddrFrom4([4]byte{byte(k.hi >> 56), byte(k.hi >> 48), byte(k.hi >> 40), byte(k.hi >> 32)})
	}
	var a [16]byte
	binary.BigEndian.PutUint64(a[:8], k.hi)
	binary.BigEndian.PutUint64(a[8:], k.lo)
	return netip.AddrFrom16(a)
}

// Prefix returns the prefix.
func (k Key) Prefix() netip.Prefix { return netip.PrefixFrom(k.Addr(), k.Bits()) }

// distinguisher returns the route distinguisher on the wire.
func (k Key) distinguisher() uint64 { return k.tail>>rdTypeShift&0xf<<48 | k.tail>>rdValueShift }

// RD returns the route distinguisher, the zero ID in unicast families.
func (k Key) RD() vpn.ID {
	if !k.Family().VPN() {
		return vpn.ID{}
	}
	id, _ := vpn.FromDistinguisher(k.distinguisher())
	return id
}

// Compare orders keys by family, route distinguisher, address and prefix length.
func (k Key) Compare(other Key) int {
	return cmp.Or(
		cmp.Compare(k.Family(), other.Family()),
		cmp.Compare(k.distinguisher(), other.distinguisher()),
		cmp.Compare(k.hi, other.hi),
		cmp.Compare(k.lo, other.lo),
		cmp.Compare(k.Bits(), other.Bits()),
	)
}

// String is the prefix, after the route distinguisher and a space in the VPN families.
func (k Key) String() string {
	if k.Family().VPN() {
		return k.RD().String() + " " + k.Prefix().String()
	}
	return k.Prefix().String()
}
