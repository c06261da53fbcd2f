package message

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/bgp/vpn"
)

// Types of path attributes.
const (
	attrOrigin          = 1
	attrASPath          = 2
	attrNextHop         = 3
	attrMED             = 4
	attrLocalPref       = 5
	attrAtomicAggregate = 6
	attrAggregator      = 7
	attrCommunities     = 8  // RFC 1997
	attrOriginatorID    = 9  // RFC 4456
	attrClusterList     = 10 // RFC 4456
	attrReach           = 14 // RFC 4760
	attrUnreach         = 15 // RFC 4760
	attrExtended        = 16 // RFC 4360
	attrAS4Path         = 17 // RFC 6793
	attrAS4Aggregator   = 18 // RFC 6793
	attrLarge           = 32 // RFC 8092
	attrOnlyToCustomer  = 35 // RFC 9234
	attrPrefixSID       = 40 // RFC 8669

	// Attributes that are unknown and non-transitive, so that they are not passed on.
	attrTrafficEngineering = 24 // RFC 5543
	attrAIGP               = 26 // RFC 7311
	attrLinkState          = 29 // RFC 9552
	attrBGPsecPath         = 33 // RFC 8205

	// Attributes that are passed on as unknown ones, but not whatever another AS sends.
	attrPMSITunnel   = 22 // RFC 6514
	attrTunnelEncap  = 23 // RFC 9012
	attrExtendedIPv6 = 25 // RFC 5701
)

// Attribute flags (RFC 4271 section 4.3).
const (
	flagOptional   = 0x80
	flagTransitive = 0x40
	flagPartial    = 0x20
	flagExtended   = 0x10
)

// Origin is the ORIGIN of a route; lower is preferred.
type Origin uint8

const (
	OriginIGP Origin = iota
	OriginEGP
	OriginIncomplete
)

// String is the name of RFC 4271 section 5.1.1.
func (o Origin) String() string {
	return [...]string{"IGP", "EGP", "incomplete"}[o]
}

// Well-known communities.
const (
	GracefulShutdown  uint32 = 0xffff0000 // RFC 8326
	Blackhole         uint32 = 0xffff029a // RFC 7999
	NoExport          uint32 = 0xffffff01 // RFC 1997
	NoAdvertise       uint32 = 0xffffff02 // RFC 1997
	NoExportSubconfed uint32 = 0xffffff03 // RFC 1997
)

// Attributes are the path attributes and the next hop of a route. They are immutable, and shared by
// all routes that have the same ones: equal Attributes of one Interner are the same pointer.
type Attributes struct {
	// wire is the next hop as in MP_REACH_NLRI without route distinguishers, after its length,
	// and the path attributes in ascending order of their types, as sent to an internal neighbor
	// with AS numbers of four octets.
	wire string
	// vpn is derived from extended communities and Prefix-SID, and shared by different
	// attributes. It is nil if both are absent.
	vpn *service

	med, localPref uint32
	first          uint32
	pathLen        uint16
	origin         Origin
	present        uint8 // hasMED and the following
}

const (
	hasMED = 1 << iota
	hasLocalPref
)

// service is what the attributes of a VPN route are for.
type service struct {
	Service
	targets []vpn.ID
	raw     string // extended communities and Prefix-SID on the wire
}

// NextHop is the next hop: of a global and a link-local one, the global one. It is invalid if the
// route has none.
func (a *Attributes) NextHop() netip.Addr {
	switch a.wire[0] {
	case 4:
		return netip.AddrFrom4([4]byte([]byte(a.wire[1:5])))
	case 16, 32:
		return netip.AddrFrom16([16]byte([]byte(a.wire[1:17])))
	}
	return netip.Addr{}
}

// LinkLocal is the second next hop (RFC 2545 section 3), without zone. It is invalid if there is
// none.
func (a *Attributes) LinkLocal() netip.Addr {
	if a.wire[0] != 32 {
		return netip.Addr{}
	}
	return netip.AddrFrom16([16]byte([]byte(a.wire[17:33])))
}

// attributes are the path attributes on the wire.
func (a *Attributes) attributes() string { return a.wire[1+a.wire[0]:] }

// value returns the value of the attribute of this type, or "" if it is absent.
func (a *Attributes) value(kind uint8) string {
	for rest := a.attributes(); len(rest) > 0 && rest[1] <= kind; {
		value, size := cutAttribute(rest)
		if rest[1] == kind {
			return value
		}
		rest = rest[size:]
	}
	return ""
}

// cutAttribute returns the value and the whole size of the first attribute of a well-formed list.
func cutAttribute[T string | []byte](b T) (value T, size int) {
	if b[0]&flagExtended != 0 {
		size = 4 + (int(b[2])<<8 | int(b[3]))
		return b[4:size], size
	}
	size = 3 + int(b[2])
	return b[3:size], size
}

// Origin is the ORIGIN.
func (a *Attributes) Origin() Origin { return a.origin }

// ASPath is the AS_PATH.
func (a *Attributes) ASPath() ASPath { return ASPath(a.value(attrASPath)) }

// PathLen is ASPath().Len(), without the cost of decoding.
func (a *Attributes) PathLen() int { return int(a.pathLen) }

// FirstAS is ASPath().First(), without the cost of decoding.
func (a *Attributes) FirstAS() uint32 { return a.first }

// MED is the MULTI_EXIT_DISC, or false.
func (a *Attributes) MED() (uint32, bool) { return a.med, a.present&hasMED != 0 }

// LocalPref is the LOCAL_PREF, or false.
func (a *Attributes) LocalPref() (uint32, bool) { return a.localPref, a.present&hasLocalPref != 0 }

// Communities are the COMMUNITIES in the order received.
func (a *Attributes) Communities() Uint32s { return Uint32s(a.value(attrCommunities)) }

// OriginatorID is the ORIGINATOR_ID, invalid if absent.
func (a *Attributes) OriginatorID() netip.Addr {
	if v := a.value(attrOriginatorID); v != "" {
		return netip.AddrFrom4([4]byte([]byte(v)))
	}
	return netip.Addr{}
}

// Large are the large communities.
func (a *Attributes) Large() []LargeCommunity { return largeCommunities(a.value(attrLarge)) }

func largeCommunities(value string) (list []LargeCommunity) {
	for u := Uint32s(value); len(u) > 0; u = u[12:] {
		list = append(list, LargeCommunity{u.At(0), u.At(1), u.At(2)})
	}
	return list
}

// OnlyToCustomer is the AS from which on a route goes to customers only (RFC 9234 section 5), or
// false.
func (a *Attributes) OnlyToCustomer() (uint32, bool) {
	v := Uint32s(a.value(attrOnlyToCustomer))
	if v == "" {
		return 0, false
	}
	return v.At(0), true
}

// ClusterList is the CLUSTER_LIST, the nearest cluster first.
func (a *Attributes) ClusterList() Uint32s { return Uint32s(a.value(attrClusterList)) }

// Targets are the route targets without duplicates. The caller must not change them.
func (a *Attributes) Targets() []vpn.ID {
	if a.vpn == nil {
		return nil
	}
	return a.vpn.targets
}

// Service is the SRv6 L3 service. It is never nil: without one, its SID is an error.
func (a *Attributes) Service() *Service {
	if a.vpn == nil {
		return noService
	}
	return &a.vpn.Service
}

// Size is the number of bytes of the attributes in an UPDATE, about.
func (a *Attributes) Size() int { return len(a.wire) }

// LargeCommunity is a large community: global administrator and two local parts (RFC 8092).
type LargeCommunity [3]uint32

// Aggregator is who aggregated a route (RFC 4271 section 5.1.7). The zero value is none.
type Aggregator struct {
	ASN  uint32
	Addr netip.Addr
}

// Fields are attributes in a form that can be changed: derive attributes by changing those of
// Attributes.Fields, and share them again by Interner.Intern.
type Fields struct {
	NextHop           netip.Addr // invalid: none
	LinkLocal         netip.Addr // in addition to an IPv6 NextHop
	Origin            Origin
	ASPath            ASPath
	MED, LocalPref    uint32
	HasMED            bool
	HasLocalPref      bool
	AtomicAggregate   bool
	Aggregator        Aggregator
	Communities       []uint32
	OriginatorID      netip.Addr // invalid: none
	ClusterList       []uint32
	Extended          []uint64 // extended communities, route targets included (vpn.ID.Target)
	Large             []LargeCommunity
	OnlyToCustomer    uint32
	HasOnlyToCustomer bool
	PrefixSID         string // value of the attribute, see Service.PrefixSID; empty: none
	UnknownTransitive string // attributes of unknown types as on the wire, in ascending order

	// partial has a bit for each known type whose Partial flag is set, which must not be cleared
	// (RFC 4271 section 5).
	partial uint64
}

// Fields returns the attributes in a form that can be changed. The slices are copies.
func (a *Attributes) Fields() Fields {
	f := Fields{NextHop: a.NextHop(), LinkLocal: a.LinkLocal()}
	for rest := a.attributes(); len(rest) > 0; {
		value, size := cutAttribute(rest)
		f.set(rest[1], value, rest[:size])
		rest = rest[size:]
	}
	return f
}

// set decodes one well-formed attribute.
func (f *Fields) set(kind uint8, value, whole string) {
	if attributes[kind].name != "" && whole[0]&flagPartial != 0 {
		f.partial |= 1 << kind
	}
	switch kind {
	case attrOrigin:
		f.Origin = Origin(value[0])
	case attrASPath:
		f.ASPath = ASPath(value)
	case attrMED:
		f.MED, f.HasMED = Uint32s(value).At(0), true
	case attrLocalPref:
		f.LocalPref, f.HasLocalPref = Uint32s(value).At(0), true
	case attrAtomicAggregate:
		f.AtomicAggregate = true
	case attrAggregator:
		f.Aggregator = Aggregator{Uint32s(value).At(0), netip.AddrFrom4([4]byte([]byte(value[4:])))}
	case attrCommunities:
		f.Communities = Uint32s(value).Slice()
	case attrOriginatorID:
		f.OriginatorID = netip.AddrFrom4([4]byte([]byte(value)))
	case attrClusterList:
		f.ClusterList = Uint32s(value).Slice()
	case attrExtended:
		for u := Uint32s(value); len(u) > 0; u = u[8:] {
			f.Extended = append(f.Extended, uint64(u.At(0))<<32|uint64(u.At(1)))
		}
	case attrLarge:
		f.Large = largeCommunities(value)
	case attrOnlyToCustomer:
		f.OnlyToCustomer, f.HasOnlyToCustomer = Uint32s(value).At(0), true
	case attrPrefixSID:
		f.PrefixSID = value
	default:
		f.UnknownTransitive += whole
	}
}

// append encodes the attributes in the form of Attributes.wire.
func (f *Fields) append(b []byte) []byte {
	start := len(b)
	b = append(b, 0)
	if f.NextHop.IsValid() {
		b = append(b, f.NextHop.AsSlice()...)
		if f.LinkLocal.IsValid() && f.NextHop.Is6() {
			b = append(b, f.LinkLocal.AsSlice()...)
		}
		b[start] = byte(len(b) - start - 1)
	}
	e := listEncoder{b, f.UnknownTransitive, f.partial}
	e.head(attrOrigin, 1)
	e.b = append(e.b, byte(f.Origin))
	e.string(attrASPath, string(f.ASPath))
	if f.HasMED {
		e.uint32s(attrMED, f.MED)
	}
	if f.HasLocalPref {
		e.uint32s(attrLocalPref, f.LocalPref)
	}
	if f.AtomicAggregate {
		e.head(attrAtomicAggregate, 0)
	}
	if f.Aggregator.Addr.IsValid() {
		e.uint32s(attrAggregator, f.Aggregator.ASN, Number(f.Aggregator.Addr))
	}
	if len(f.Communities) > 0 {
		e.uint32s(attrCommunities, f.Communities...)
	}
	if f.OriginatorID.IsValid() {
		e.uint32s(attrOriginatorID, Number(f.OriginatorID))
	}
	if len(f.ClusterList) > 0 {
		e.uint32s(attrClusterList, f.ClusterList...)
	}
	if len(f.Extended) > 0 {
		e.head(attrExtended, 8*len(f.Extended))
		for _, c := range f.Extended {
			e.b = binary.BigEndian.AppendUint64(e.b, c)
		}
	}
	if len(f.Large) > 0 {
		e.head(attrLarge, 12*len(f.Large))
		for _, c := range f.Large {
			e.b = appendUint32s(e.b, c[:]...)
		}
	}
	if f.HasOnlyToCustomer {
		e.uint32s(attrOnlyToCustomer, f.OnlyToCustomer)
	}
	if f.PrefixSID != "" {
		e.string(attrPrefixSID, f.PrefixSID)
	}
	e.flush(256)
	return e.b
}

// Number returns an IPv4 address, such as a router ID, as a number.
func Number(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

// listEncoder encodes attributes in ascending order of their types.
type listEncoder struct {
	b       []byte
	unknown string // attributes that are still to be inserted
	partial uint64 // as in Fields
}

// flush appends the unknown attributes with types below kind.
func (e *listEncoder) flush(kind int) {
	for len(e.unknown) > 0 && int(e.unknown[1]) < kind {
		_, size := cutAttribute(e.unknown)
		e.b, e.unknown = append(e.b, e.unknown[:size]...), e.unknown[size:]
	}
}

// head appends the header of an attribute with a value of size bytes.
func (e *listEncoder) head(kind uint8, size int) {
	e.flush(int(kind))
	flags := attributes[kind].flags
	if e.partial>>kind&1 == 1 {
		flags |= flagPartial
	}
	e.b = appendAttributeHeader(e.b, flags, kind, size)
}

func (e *listEncoder) string(kind uint8, value string) {
	e.head(kind, len(value))
	e.b = append(e.b, value...)
}

func (e *listEncoder) uint32s(kind uint8, list ...uint32) {
	e.head(kind, 4*len(list))
	e.b = appendUint32s(e.b, list...)
}

func appendUint32s(b []byte, list ...uint32) []byte {
	for _, x := range list {
		b = binary.BigEndian.AppendUint32(b, x)
	}
	return b
}

// appendAttribute appends an attribute of a known type with its flags and the additional ones.
func appendAttribute[T string | []byte](b []byte, flags, kind uint8, value T) []byte {
	return append(appendAttributeHeader(b, flags|attributes[kind].flags, kind, len(value)), value...)
}

func appendAttributeHeader(b []byte, flags, kind uint8, size int) []byte {
	if size > 0xff {
		return append(b, flags|flagExtended, kind, byte(size>>8), byte(size))
	}
	return append(b, flags, kind, byte(size))
}

// newAttributes returns the attributes with this wire form, which are well-formed.
func newAttributes(wire string, services *serviceCache) *Attributes {
	a := &Attributes{wire: wire}
	var extended, prefixSID string
	for rest := a.attributes(); len(rest) > 0; {
		value, size := cutAttribute(rest)
		switch rest[1] {
		case attrOrigin:
			a.origin = Origin(value[0])
		case attrASPath:
			a.pathLen, a.first = uint16(ASPath(value).Len()), ASPath(value).First()
		case attrMED:
			a.med, a.present = Uint32s(value).At(0), a.present|hasMED
		case attrLocalPref:
			a.localPref, a.present = Uint32s(value).At(0), a.present|hasLocalPref
		case attrExtended:
			extended = rest[:size]
		case attrPrefixSID:
			prefixSID = rest[:size]
		}
		rest = rest[size:]
	}
	if extended != "" || prefixSID != "" {
		a.vpn = services.get(extended, prefixSID)
	}
	return a
}

// newService decodes extended communities and Prefix-SID, whole attributes or empty.
func newService(extended, prefixSID string) *service {
	s := &service{Service: *noService, raw: extended + prefixSID}
	if extended != "" {
		value, _ := cutAttribute(s.raw)
		for u := Uint32s(value); len(u) > 0; u = u[8:] {
			id, ok := vpn.FromTarget(uint64(u.At(0))<<32 | uint64(u.At(1)))
			if ok && !slices.Contains(s.targets, id) {
				s.targets = append(s.targets, id)
			}
		}
	}
	if prefixSID != "" {
		value, _ := cutAttribute(prefixSID)
		// Malformed attributes were discarded.
		if parsed, err := parsePrefixSID([]byte(value)); err == nil {
			s.Service = parsed
		}
	}
	return s
}
