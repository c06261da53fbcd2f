package bgp

import (
	"encoding/binary"
	"slices"
)

// AppendKey appends a form of the attributes in which only equal ones are equal, for maps.
func (a Attributes) AppendKey(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(a.LocalPref))
	b = binary.AppendUvarint(b, uint64(a.MED))
	has := byte(0)
	if a.HasMED {
		has = 1
	}
	b = append(b, has, byte(a.Origin))
	b = append(binary.AppendUvarint(b, uint64(len(a.ASPath))), a.ASPath...)
	for _, c := range a.Communities {
		b = binary.AppendUvarint(b, uint64(c))
	}
	return b
}

// equal reports whether the attributes are those of another route.
func (a Attributes) equal(b Attributes) bool {
	return a.LocalPref == b.LocalPref && a.MED == b.MED && a.HasMED == b.HasMED && a.ASPath == b.ASPath && a.Origin == b.Origin &&
		slices.Equal(a.Communities, b.Communities)
}
