// Package srv6 treats SRv6 segment identifiers as numbers: it builds SIDs from a locator, describes
// how the bits of a SID are divided, and moves part of a SID into an MPLS label and back
// (RFC 8986 section 3.1, RFC 9252 sections 3.2.1 and 4).
//
// It does not depend on routes, sockets or the kernel.
package srv6

import (
	"errors"
	"fmt"
	"net/netip"
)

const (
	addressBits = 128
	labelBits   = 20 // RFC 3032 section 2.1
	// maxFunctionBits is the size of the number that carries a function.
	maxFunctionBits = 32
)

// Locator is the prefix that one node owns for its SIDs, together with the division of the bits
// after it.
type Locator struct {
	Prefix   netip.Prefix
	Block    uint8 // bits of the locator block; the node part is the rest of the prefix
	Function uint8 // bits of the function part that follows the prefix; 16 is usual
}

// Check returns why SIDs cannot be built from the locator, or nil.
func (l Locator) Check() error {
	addr := l.Prefix.Addr()
	switch {
	case !l.Prefix.IsValid():
		return errors.New("locator has no prefix")
	case !addr.Is6() || addr.Is4In6():
		return fmt.Errorf("locator %s is not an IPv6 prefix", l.Prefix)
	case l.Prefix != l.Prefix.Masked():
		return fmt.Errorf("locator %s has host bits set: use %s", l.Prefix, l.Prefix.Masked())
	case l.Prefix.Bits() == 0:
		return fmt.Errorf("locator %s is the whole address space", l.Prefix)
	case addr.IsMulticast() || addr.IsLinkLocalUnicast():
		return fmt.Errorf("locator %s is not unicast beyond one link", l.Prefix)
	case l.Block == 0:
		return fmt.Errorf("locator %s: block length must be > 0", l.Prefix)
	case int(l.Block) > l.Prefix.Bits():
		return fmt.Errorf("locator %s: block length %d is longer than the prefix", l.Prefix, l.Block)
	case l.Function == 0:
		return fmt.Errorf("locator %s: function length must be > 0", l.Prefix)
	case l.Function > maxFunctionBits:
		return fmt.Errorf("locator %s: function length must be <= %d, got %d", l.Prefix, maxFunctionBits, l.Function)
	case l.Prefix.Bits()+int(l.Function) > addressBits:
		return fmt.Errorf("locator %s: no room for a function of %d bits", l.Prefix, l.Function)
	}
	return nil
}

// SID returns the SID of a function of this node. The function is 1 to 2^Function - 1: function 0
// would be the locator itself.
func (l Locator) SID(function uint32) (netip.Addr, error) {
	if err := l.Check(); err != nil {
		return netip.Addr{}, err
	}
	if function == 0 {
		return netip.Addr{}, fmt.Errorf("build sid in locator %s: function must be > 0", l.Prefix)
	}
	if uint64(function)>>l.Function != 0 {
		return netip.Addr{}, fmt.Errorf("build sid in locator %s: function %#x does not fit into %d bits",
			l.Prefix, function, l.Function)
	}
	a := l.Prefix.Addr().As16()
	for i := range int(l.Function) {
		setBit(&a, l.Prefix.Bits()+i, function>>(int(l.Function)-1-i)&1 == 1)
	}
	return netip.AddrFrom16(a), nil
}

// Structure describes the SIDs of this locator, not transposed.
func (l Locator) Structure() Structure {
	return Structure{Block: l.Block, Node: uint8(l.Prefix.Bits()) - l.Block, Function: l.Function}
}

// Overlaps reports whether the two locators could hold the same SID.
func (l Locator) Overlaps(other Locator) bool {
	return l.Prefix.Overlaps(other.Prefix)
}

// Structure describes how the bits of a SID are divided, and which of them travel in the MPLS label
// of the route instead of the SID (RFC 9252 section 3.2.1). All are numbers of bits;
// TransposeOffset counts from the first bit of the SID and means nothing when TransposeLen is 0.
type Structure struct {
	Block, Node, Function, Argument uint8
	TransposeLen, TransposeOffset   uint8
}

// bits is the sum of the four parts.
func (s Structure) bits() int {
	return int(s.Block) + int(s.Node) + int(s.Function) + int(s.Argument)
}

// Check returns why the structure cannot be that of a SID, or nil.
func (s Structure) Check() error {
	if n := s.bits(); n > addressBits {
		return fmt.Errorf("sid structure %s: parts add up to %d bits, a sid has %d", s, n, addressBits)
	}
	if s.TransposeLen == 0 {
		return nil
	}
	start := int(s.TransposeOffset)
	end := start + int(s.TransposeLen)
	switch {
	case s.TransposeLen > labelBits:
		return fmt.Errorf("sid structure %s: %d transposed bits, a label has %d", s, s.TransposeLen, labelBits)
	case end > addressBits:
		return fmt.Errorf("sid structure %s: transposition ends at bit %d, a sid has %d", s, end, addressBits)
	case int(s.TransposeLen) > int(s.Function)+int(s.Argument):
		return fmt.Errorf("sid structure %s: %d transposed bits, function and argument have %d",
			s, s.TransposeLen, int(s.Function)+int(s.Argument))
	case start < int(s.Block)+int(s.Node) || end > s.bits():
		return fmt.Errorf("sid structure %s: transposition reaches outside function and argument", s)
	}
	return nil
}

// CheckSID returns why the SID cannot have this structure, or nil: the bits after the last part are
// zero (RFC 8986 section 3.1). A structure of zeros describes nothing and fits every SID.
func (s Structure) CheckSID(sid netip.Addr) error {
	if !sid.Is6() || sid.Is4In6() {
		return fmt.Errorf("sid %s is not an IPv6 address", sid)
	}
	n := s.bits()
	if n > addressBits {
		return s.Check()
	}
	if n == 0 {
		return nil
	}
	a := sid.As16()
	for i := n; i < addressBits; i++ {
		if bit(a, i) {
			return fmt.Errorf("sid %s has bits set after the %d bits of its structure", sid, n)
		}
	}
	return nil
}

// Transposed returns the structure with the function part moved into the label. It fails when the
// function is longer than a label, or when the structure is already transposed.
func (s Structure) Transposed() (Structure, error) {
	if s.TransposeLen != 0 {
		return Structure{}, fmt.Errorf("transpose sid structure %s: it is already transposed", s)
	}
	s.TransposeLen = s.Function
	s.TransposeOffset = s.Block + s.Node
	if err := s.Check(); err != nil {
		return Structure{}, err
	}
	return s, nil
}

// String gives the four lengths and, when transposed, length and offset: "32/16/16/0 tpos 16@48".
func (s Structure) String() string {
	parts := fmt.Sprintf("%d/%d/%d/%d", s.Block, s.Node, s.Function, s.Argument)
	if s.TransposeLen == 0 {
		return parts
	}
	return fmt.Sprintf("%s tpos %d@%d", parts, s.TransposeLen, s.TransposeOffset)
}

// Transpose moves the bits that s names out of the SID into a label, highest bit first, and returns
// the SID with zeros in their place (RFC 9252 section 4).
func Transpose(sid netip.Addr, s Structure) (stripped netip.Addr, label uint32, err error) {
	if err := s.Check(); err != nil {
		return netip.Addr{}, 0, err
	}
	if err := s.CheckSID(sid); err != nil {
		return netip.Addr{}, 0, err
	}
	a := sid.As16()
	for i := range int(s.TransposeLen) {
		if bit(a, int(s.TransposeOffset)+i) {
			label |= 1 << (labelBits - 1 - i)
		}
		setBit(&a, int(s.TransposeOffset)+i, false)
	}
	return netip.AddrFrom16(a), label, nil
}

// Restore is the inverse of Transpose. It ignores the bits of the label that carry nothing, and
// replaces whatever the stripped SID has in the place of the transposed bits.
func Restore(stripped netip.Addr, label uint32, s Structure) (netip.Addr, error) {
	if err := s.Check(); err != nil {
		return netip.Addr{}, err
	}
	if label>>labelBits != 0 {
		return netip.Addr{}, fmt.Errorf("restore sid %s: label %#x is longer than %d bits", stripped, label, labelBits)
	}
	if err := s.CheckSID(stripped); err != nil {
		return netip.Addr{}, err
	}
	a := stripped.As16()
	for i := range int(s.TransposeLen) {
		setBit(&a, int(s.TransposeOffset)+i, label>>(labelBits-1-i)&1 == 1)
	}
	return netip.AddrFrom16(a), nil
}

// bit reads bit i of a, counted from the first bit on the wire.
func bit(a [16]byte, i int) bool {
	return a[i/8]>>(7-i%8)&1 == 1
}

func setBit(a *[16]byte, i int, on bool) {
	mask := byte(1) << (7 - i%8)
	if on {
		a[i/8] |= mask
	} else {
		a[i/8] &^= mask
	}
}
