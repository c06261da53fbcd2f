package message

import (
	"encoding/binary"
	"fmt"
)

// Encoder encodes the UPDATEs for one neighbor. It is not safe for concurrent use.
type Encoder struct {
	negotiated Negotiated
	wire       []byte // as Attributes.wire, of AnnounceFields
	attrs      []byte // attributes of the message that is being encoded
}

// NewEncoder returns an encoder for a session.
func NewEncoder(n Negotiated) *Encoder { return &Encoder{negotiated: n} }

// withdrawnLabel is the label field of a withdrawn VPN destination (RFC 8277 section 2.4).
const withdrawnLabel = 0x800000

const bottomOfStack = 1

// Announce appends one UPDATE with as many of the destinations, at least one and all of one family,
// as fit, and returns how many. It fails if the attributes leave no room for a destination, or if
// the neighbor does not accept the family of the next hop: the destinations must then be withdrawn
// instead.
func (e *Encoder) Announce(b []byte, a *Attributes, nlri []NLRI) ([]byte, int, error) {
	return announce(e, b, a.wire, nlri)
}

// AnnounceFields is Announce for attributes that are not kept after the message.
func (e *Encoder) AnnounceFields(b []byte, f *Fields, nlri []NLRI) ([]byte, int, error) {
	e.wire = f.append(e.wire[:0])
	return announce(e, b, e.wire, nlri)
}

func announce[T string | []byte](e *Encoder, b []byte, wire T, nlri []NLRI) ([]byte, int, error) {
	start, family := len(b), nlri[0].Key.Family()
	nextHop, attrs := wire[1:1+wire[0]], wire[1+wire[0]:]
	classic := family == IPv4Unicast && len(nextHop) == 4
	if is4 := len(nextHop) == 4; len(nextHop) == 0 || is4 != family.Is4() && (is4 || !e.negotiated.ExtendedNextHop.Has(family)) {
		return b, 0, fmt.Errorf("announce %s: a next hop of %d bytes is not possible in this session", nlri[0].Key, len(nextHop))
	}
	e.attrs = appendAttributes(e.attrs[:0], attrs, e.negotiated.FourOctetAS)
	b = append(begin(b, TypeUpdate), 0, 0, 0, 0)
	limit := start + e.negotiated.MaxLen()
	if classic {
		b = appendClassic(b, e.attrs, nextHop)
		binary.BigEndian.PutUint16(b[start+HeaderLen+2:], uint16(len(b)-start-HeaderLen-4))
		n := 0
		for ; n < len(nlri) && len(b)+nlri[n].Key.wireLen() <= limit; n++ {
			b = nlri[n].Key.appendTo(b, 0)
		}
		if n == 0 {
			return b[:start], 0, e.tooLong(nlri[0].Key)
		}
		return finish(b, start), n, nil
	}
	reach := len(b)
	b = append(b, flagOptional|flagExtended, attrReach, 0, 0, 0, byte(family.AFI()), family.SAFI())
	b = appendNextHop(b, nextHop, family.VPN())
	b = append(b, 0)
	limit -= len(e.attrs)
	n := 0
	for ; n < len(nlri) && len(b)+nlri[n].Key.wireLen() <= limit; n++ {
		b = nlri[n].Key.appendTo(b, nlri[n].Label<<4|bottomOfStack)
	}
	if n == 0 {
		return b[:start], 0, e.tooLong(nlri[0].Key)
	}
	binary.BigEndian.PutUint16(b[reach+2:], uint16(len(b)-reach-4))
	b = append(b, e.attrs...)
	binary.BigEndian.PutUint16(b[start+HeaderLen+2:], uint16(len(b)-start-HeaderLen-4))
	return finish(b, start), n, nil
}

func (e *Encoder) tooLong(k Key) error {
	return fmt.Errorf("announce %s: attributes of %d bytes leave no room in a message of %d", k, len(e.attrs), e.negotiated.MaxLen())
}

// Withdraw appends one UPDATE that withdraws as many of the destinations, at least one and all of
// one family, as fit, and returns how many.
func (e *Encoder) Withdraw(b []byte, keys []Key) ([]byte, int) {
	start, family := len(b), keys[0].Family()
	b = append(begin(b, TypeUpdate), 0, 0)
	limit := start + e.negotiated.MaxLen()
	if family == IPv4Unicast {
		limit -= 2
	} else {
		b = append(b, 0, 0, flagOptional|flagExtended, attrUnreach, 0, 0, 0, byte(family.AFI()), family.SAFI())
	}
	routes, n := len(b), 0
	for ; n < len(keys) && len(b)+keys[n].wireLen() <= limit; n++ {
		b = keys[n].appendTo(b, withdrawnLabel)
	}
	if family == IPv4Unicast {
		binary.BigEndian.PutUint16(b[routes-2:], uint16(len(b)-routes))
		b = append(b, 0, 0)
	} else {
		size := len(b) - routes + 3
		binary.BigEndian.PutUint16(b[routes-5:], uint16(size))
		binary.BigEndian.PutUint16(b[routes-9:], uint16(size+4))
	}
	return finish(b, start), n
}

// AppendEndOfRIB appends the End-of-RIB of a family (RFC 4724 section 2).
func AppendEndOfRIB(b []byte, f Family) []byte {
	start := len(b)
	b = append(begin(b, TypeUpdate), 0, 0, 0, 0)
	if f != IPv4Unicast {
		b[len(b)-1] = 6
		b = append(b, flagOptional, attrUnreach, 3, 0, byte(f.AFI()), f.SAFI())
	}
	return finish(b, start)
}

// wireLen is the length of the destination in a message, in bytes.
func (k Key) wireLen() int {
	n := 1 + (k.Bits()+7)/8
	if k.Family().VPN() {
		n += vpnBits / 8
	}
	return n
}

// appendTo appends the destination; label is the whole label field of a VPN destination.
func (k Key) appendTo(b []byte, label uint32) []byte {
	bits := k.Bits()
	if k.Family().VPN() {
		b = append(b, byte(bits+vpnBits), byte(label>>16), byte(label>>8), byte(label))
		b = binary.BigEndian.AppendUint64(b, k.distinguisher())
	} else {
		b = append(b, byte(bits))
	}
	end := len(b) + (bits+7)/8
	b = binary.BigEndian.AppendUint64(b, k.hi)
	if bits > 64 {
		b = binary.BigEndian.AppendUint64(b, k.lo)
	}
	return b[:end]
}

// appendNextHop appends a next hop and its length; in VPN families each address has a route
// distinguisher of 0 (RFC 4364 section 4.3.4, RFC 4659 section 3.2.1).
func appendNextHop[T string | []byte](b []byte, nextHop T, vpn bool) []byte {
	if !vpn {
		return append(append(b, byte(len(nextHop))), nextHop...)
	}
	size := len(b)
	b = append(b, 0)
	for step := min(len(nextHop), 16); len(nextHop) > 0; nextHop = nextHop[step:] {
		b = append(append(b, 0, 0, 0, 0, 0, 0, 0, 0), nextHop[:step]...)
	}
	b[size] = byte(len(b) - size - 1)
	return b
}

// appendClassic appends attributes with NEXT_HOP in its place.
func appendClassic[T string | []byte](b, attrs []byte, nextHop T) []byte {
	at := 0
	for at < len(attrs) && attrs[at+1] < attrNextHop {
		_, size := cutAttribute(attrs[at:])
		at += size
	}
	return append(appendAttribute(append(b, attrs[:at]...), 0, attrNextHop, nextHop), attrs[at:]...)
}

// appendAttributes appends the attributes as a neighbor reads them, with AS numbers of two or four
// octets.
func appendAttributes[T string | []byte](b []byte, attrs T, fourOctetAS bool) []byte {
	if fourOctetAS {
		return append(b, attrs...)
	}
	// RFC 6793 section 4.2.2.
	var path4, aggregator4 []byte
	flush := func(kind uint8) {
		if kind > attrAS4Path && path4 != nil {
			b, path4 = append(b, path4...), nil
		}
		if kind > attrAS4Aggregator && aggregator4 != nil {
			b, aggregator4 = append(b, aggregator4...), nil
		}
	}
	for len(attrs) > 0 {
		value, size := cutAttribute(attrs)
		kind, whole := attrs[1], attrs[:size]
		attrs = attrs[size:]
		flush(kind)
		switch kind {
		case attrASPath:
			narrow, wide := narrowPath(ASPath(value))
			b = appendAttribute(b, 0, kind, narrow)
			if wide {
				path4 = appendAttribute(nil, 0, attrAS4Path, value)
			}
		case attrAggregator:
			asn, wide := narrowASN(Uint32s(value).At(0))
			b = appendAttribute(b, whole[0]&flagPartial, kind, append(binary.BigEndian.AppendUint16(nil, asn), value[4:]...))
			if wide {
				aggregator4 = appendAttribute(nil, 0, attrAS4Aggregator, value)
			}
		default:
			b = append(b, whole...)
		}
	}
	flush(255)
	return b
}

// narrowPath returns the path with AS numbers of two octets, and whether some needed AS_TRANS.
func narrowPath(p ASPath) (b []byte, wide bool) {
	for asns := range p.segments() {
		b = append(b, segmentSequence, byte(asns.Len()))
		for asn := range asns.All() {
			n, w := narrowASN(asn)
			b, wide = binary.BigEndian.AppendUint16(b, n), wide || w
		}
	}
	return b, wide
}

func narrowASN(asn uint32) (n uint16, wide bool) {
	if asn > 0xffff {
		return ASTrans, true
	}
	return uint16(asn), false
}

// AppendUpdate appends an UPDATE of a family without classic destinations (RFC 4271 section 4.3),
// whose path attributes f appends.
func AppendUpdate(b []byte, f func([]byte) []byte) []byte {
	start := len(b)
	b = append(begin(b, TypeUpdate), 0, 0, 0, 0)
	attrs := len(b)
	b = f(b)
	binary.BigEndian.PutUint16(b[attrs-2:], uint16(len(b)-attrs))
	return finish(b, start)
}
