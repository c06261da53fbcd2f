package message

import "encoding/binary"

// RefreshKind is the message subtype of a ROUTE-REFRESH (RFC 7313 section 3.2).
type RefreshKind uint8

const (
	RefreshRequest RefreshKind = 0 // RFC 2918
	RefreshBegin   RefreshKind = 1 // BoRR
	RefreshEnd     RefreshKind = 2 // EoRR
)

// Refresh is the content of a ROUTE-REFRESH message.
type Refresh struct {
	Family Family
	Kind   RefreshKind
}

const refreshLen = 4

// ParseRefresh decodes the body of a ROUTE-REFRESH. It returns false for a family or a subtype that
// must be ignored (RFC 2918 section 4, RFC 7313 section 5). The error is an *Error.
func ParseRefresh(body []byte) (Refresh, bool, error) {
	r := Refresh{Kind: RefreshKind(body[2])}
	if len(body) != refreshLen && (r.Kind == RefreshBegin || r.Kind == RefreshEnd) {
		whole := finish(append(begin(nil, TypeRouteRefresh), body...), 0)
		return r, false, refuse(CodeRouteRefresh, subcodeRefreshBadWidth, whole, "ROUTE-REFRESH of subtype %d with a body of %d bytes", r.Kind, len(body))
	}
	var known bool
	r.Family, known = FamilyOf(binary.BigEndian.Uint16(body), body[3])
	return r, known && r.Kind <= RefreshEnd, nil
}

// Append appends the message.
func (r Refresh) Append(b []byte) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint16(begin(b, TypeRouteRefresh), r.Family.AFI())
	return finish(append(b, byte(r.Kind), r.Family.SAFI()), start)
}
