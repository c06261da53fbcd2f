package message

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/bgp/vpn"
)

// NLRI is an announced destination.
type NLRI struct {
	Key   Key
	Label uint32 // 20 bits; 0 in unicast families
}

// Announcement is destinations of one family with the same attributes.
type Announcement struct {
	Attributes *Attributes
	NLRI       []NLRI
}

// Update is the content of an UPDATE message. It is reused for the next one, with its slices.
type Update struct {
	// Withdrawn are the unreachable destinations; those of announcements that
	// are treated as withdrawals are among them. They are to be applied before Announced.
	Withdrawn []Key
	// Announced has an element for each field with destinations: at most two, of different
	// families.
	Announced []Announcement
	EndOfRIB  Family // 0: it is no End-of-RIB (RFC 4724 section 2)
	Faults    []Fault

	nlri []NLRI // of all announcements
}

// Action is what was done about a Fault.
type Action uint8

const (
	// Ignored: destinations of a family or a kind that this session does not have.
	Ignored Action = iota
	// Discarded: the attribute was discarded, the message processed without it.
	Discarded
	// TreatedAsWithdraw: all destinations that the message announces are withdrawn.
	TreatedAsWithdraw
)

// Actions is the number of values of Action, for arrays that are indexed by one.
const Actions = TreatedAsWithdraw + 1

func (a Action) String() string {
	return [...]string{"ignored", "attribute discarded", "treated as withdraw"}[a]
}

// Fault is an error in an UPDATE that does not end the session (RFC 7606).
type Fault struct {
	Attribute uint8 // type of the attribute, 0 if it is none
	Action    Action
	Detail    string
}

func (f Fault) String() string {
	if f.Attribute == 0 {
		return fmt.Sprintf("%s (%s)", f.Detail, f.Action)
	}
	return fmt.Sprintf("%s: %s (%s)", attributeName(f.Attribute), f.Detail, f.Action)
}

func attributeName(kind uint8) string {
	if name := attributes[kind].name; name != "" {
		return name
	}
	return fmt.Sprintf("attribute %d", kind)
}

// Decoder decodes the UPDATEs of one session. It is not safe for concurrent use.
type Decoder struct {
	negotiated Negotiated
	internal   bool
	interner   *Interner

	// Of the message that is being decoded.
	update   *Update
	attrs    []attribute
	path     []byte // the AS path, if its AS numbers were converted
	withdraw bool   // treat as withdraw
	reach    mpReach
	unreach  []byte
	nextHop  *Fault    // of NEXT_HOP, which counts unless MP_REACH_NLRI replaces it
	seen     [4]uint64 // attribute types
	wire     []byte
}

// attribute is one path attribute of a message.
type attribute struct {
	kind, flags uint8
	value       []byte
}

// mpReach is a decoded MP_REACH_NLRI.
type mpReach struct {
	present bool
	family  Family // 0: to be ignored
	nextHop []byte // without route distinguishers
	nlri    []byte
}

// NewDecoder returns a decoder for a session with a neighbor of our own AS (internal) or of another
// one.
func NewDecoder(n Negotiated, internal bool, in *Interner) *Decoder {
	return &Decoder{negotiated: n, internal: internal, interner: in, wire: make([]byte, wireStart)}
}

// wireStart is where attributes begin in Decoder.wire: after a length and the longest next hop.
const wireStart = 1 + 32

// Update decodes the body of an UPDATE, of at least four bytes, into u. An error is an *Error: the
// session must be closed. Other errors in the message are u.Faults (RFC 7606).
func (d *Decoder) Update(body []byte, u *Update) error {
	*u = Update{Withdrawn: u.Withdrawn[:0], Announced: u.Announced[:0], Faults: u.Faults[:0], nlri: u.nlri[:0]}
	withdrawn, rest, ok := cut16(body)
	attrs, nlri, ok2 := cut16(rest)
	if !ok || !ok2 {
		return refuse(CodeUpdate, SubcodeAttributeList, nil, "the lengths of routes and attributes contradict that of the message")
	}
	if len(body) == 4 {
		if d.negotiated.Families.Has(IPv4Unicast) {
			u.EndOfRIB = IPv4Unicast
		}
		return nil
	}
	*d = Decoder{negotiated: d.negotiated, internal: d.internal, interner: d.interner,
		update: u, attrs: d.attrs[:0], path: d.path[:0], wire: d.wire[:wireStart]}
	if err := d.attributes(attrs, len(nlri) > 0); err != nil {
		return err
	}
	if err := d.withdrawn(withdrawn); err != nil {
		return err
	}
	return d.announced(nlri)
}

// cut16 cuts b into the part whose length is in its first two bytes, and the rest.
func cut16(b []byte) (part, rest []byte, ok bool) {
	if len(b) < 2 {
		return nil, nil, false
	}
	size := int(binary.BigEndian.Uint16(b))
	if b = b[2:]; size > len(b) {
		return nil, nil, false
	}
	return b[:size], b[size:], true
}

// withdrawn decodes the withdrawn routes and MP_UNREACH_NLRI.
func (d *Decoder) withdrawn(routes []byte) error {
	u := d.update
	if len(routes) > 0 {
		if !d.negotiated.Families.Has(IPv4Unicast) {
			d.fault(0, Ignored, "withdrawn IPv4 routes in a session without this family")
		} else if err := d.destinations(IPv4Unicast, routes); err != nil {
			return refuse(CodeUpdate, SubcodeInvalidNetwork, nil, "withdrawn routes: %s", err)
		}
	}
	if d.unreach != nil {
		family, known := FamilyOf(binary.BigEndian.Uint16(d.unreach), d.unreach[2])
		switch {
		case !known || !d.negotiated.Families.Has(family):
			d.fault(attrUnreach, Ignored, "the session does not have this family")
		case len(d.unreach) == 3 && len(routes) == 0 && len(d.attrs) == 0 && !d.reach.present:
			u.EndOfRIB = family
		default:
			if err := d.destinations(family, d.unreach[3:]); err != nil {
				return refuse(CodeUpdate, SubcodeOptionalAttribute, nil, "MP_UNREACH_NLRI: %s", err)
			}
		}
	}
	for _, n := range u.nlri {
		u.Withdrawn = append(u.Withdrawn, n.Key)
	}
	u.nlri = u.nlri[:0]
	return nil
}

// announced decodes MP_REACH_NLRI and the NLRI field, and adds their attributes.
func (d *Decoder) announced(nlri []byte) error {
	u := d.update
	if d.reach.family != 0 {
		if err := d.destinations(d.reach.family, d.reach.nlri); err != nil {
			return refuse(CodeUpdate, SubcodeOptionalAttribute, nil, "MP_REACH_NLRI: %s", err)
		}
	}
	split := len(u.nlri)
	if len(nlri) > 0 {
		if !d.negotiated.Families.Has(IPv4Unicast) {
			d.fault(0, Ignored, "IPv4 routes in a session without this family")
		} else if err := d.destinations(IPv4Unicast, nlri); err != nil {
			return refuse(CodeUpdate, SubcodeInvalidNetwork, nil, "NLRI: %s", err)
		}
	}
	if d.withdraw {
		for _, n := range u.nlri {
			u.Withdrawn = append(u.Withdrawn, n.Key)
		}
		return nil
	}
	if len(u.nlri) == 0 {
		return nil
	}
	d.canonical()
	if split > 0 {
		u.Announced = append(u.Announced, Announcement{d.shared(d.reach.nextHop), u.nlri[:split:split]})
	}
	if split < len(u.nlri) {
		u.Announced = append(u.Announced, Announcement{d.shared(d.value(attrNextHop)), u.nlri[split:]})
	}
	return nil
}

var (
	errOverrun   = errors.New("a prefix is longer than the field")
	errTooLong   = errors.New("a prefix is longer than an address")
	errNoVPNPart = errors.New("a prefix is too short for a label and a route distinguisher")
)

// vpnBits is the length of the label and the route distinguisher of a VPN destination, in bits.
const vpnBits = 24 + 64

// destinations appends the destinations of the family to the list of announced ones.
func (d *Decoder) destinations(f Family, b []byte) error {
	list, addressBits, vpnFamily := d.update.nlri, 128, f.VPN()
	foreign := false
	if f.Is4() {
		addressBits = 32
	}
	for len(b) > 0 {
		bits := int(b[0])
		end := 1 + (bits+7)/8
		if end > len(b) {
			return errOverrun
		}
		address, rd, label := b[1:end], uint64(0), uint32(0)
		if vpnFamily {
			if bits -= vpnBits; bits < 0 {
				return errNoVPNPart
			}
			label = uint32(b[1])<<12 | uint32(b[2])<<4 | uint32(b[3])>>4
			rd, address = binary.BigEndian.Uint64(b[4:]), b[12:end]
		}
		if bits > addressBits {
			return errTooLong
		}
		var a [16]byte
		if len(address) == 16 {
			a = [16]byte(address)
		} else {
			copy(a[:], address)
		}
		b = b[end:]
		if vpnFamily {
			if _, ok := vpn.FromDistinguisher(rd); !ok {
				foreign = true
				continue
			}
		}
		// A shift by 64 or more gives 0.
		hi := binary.BigEndian.Uint64(a[:8]) & (^uint64(0) << max(64-bits, 0))
		lo := binary.BigEndian.Uint64(a[8:]) & (^uint64(0) << (128 - max(bits, 64)))
		list = append(list, NLRI{newKey(f, hi, lo, rd, bits), label})
	}
	d.update.nlri = list
	if foreign {
		d.fault(0, Ignored, "route distinguisher of unknown type")
	}
	return nil
}

func (d *Decoder) fault(kind uint8, action Action, detail string) {
	d.update.Faults = append(d.update.Faults, Fault{kind, action, detail})
	d.withdraw = d.withdraw || action == TreatedAsWithdraw
}

// attributes decodes the path attributes. ipv4 is whether the message has an NLRI field.
func (d *Decoder) attributes(b []byte, ipv4 bool) error {
	for len(b) > 0 {
		head := 3
		if b[0]&flagExtended != 0 {
			head = 4
		}
		if len(b) < head {
			d.fault(0, TreatedAsWithdraw, "a path attribute is cut off")
			break
		}
		size := int(b[2])
		if head == 4 {
			size = int(binary.BigEndian.Uint16(b[2:]))
		}
		if size > len(b)-head {
			d.fault(b[1], TreatedAsWithdraw, "longer than the path attributes")
			break
		}
		a := attribute{b[1], b[0], b[head : head+size]}
		if err := d.attribute(a, b[:head+size]); err != nil {
			return err
		}
		b = b[head+size:]
	}
	if n := d.nextHop; n != nil && (ipv4 || !d.reach.present) {
		d.fault(n.Attribute, n.Action, n.Detail)
	}
	reachable := ipv4 || d.reach.present
	if reachable {
		d.complete(ipv4)
	}
	// There may be destinations that were not found (RFC 7606 section 5.2).
	if d.withdraw && !reachable {
		return refuse(CodeUpdate, SubcodeAttributeList, nil, "UPDATE without routes: %s", d.update.Faults[len(d.update.Faults)-1])
	}
	return nil
}

// maxValue limits the value of a known attribute, in bytes with AS numbers of four octets, to less
// than half of what its length field can express: the merge with AS4_PATH, and policy, make values
// longer.
const maxValue = 30 << 10

// attribute decodes one attribute; whole is the attribute with its header.
func (d *Decoder) attribute(a attribute, whole []byte) error {
	spec := &attributes[a.kind]
	if d.seen[a.kind/64]>>(a.kind%64)&1 == 1 {
		if a.kind == attrReach || a.kind == attrUnreach {
			return refuse(CodeUpdate, SubcodeAttributeList, nil, "%s appears twice", spec.name)
		}
		d.fault(a.kind, Discarded, "appears twice")
		return nil
	}
	d.seen[a.kind/64] |= 1 << (a.kind % 64)
	if spec.name == "" {
		return d.unknown(a, whole)
	}
	if reason := d.unwanted(a.kind); reason != "" {
		d.fault(a.kind, Discarded, reason)
		return nil
	}
	if a.flags&(flagOptional|flagTransitive) != spec.flags {
		if a.kind == attrReach || a.kind == attrUnreach { // RFC 7606 section 5.3
			return refuse(CodeUpdate, SubcodeOptionalAttribute, bytes.Clone(whole), "%s with flags %#02x", spec.name, a.flags)
		}
		d.invalid(a.kind, TreatedAsWithdraw, fmt.Sprintf("flags %#02x", a.flags))
		return nil
	}
	switch a.kind {
	case attrReach:
		if err := d.parseReach(a.value); err != nil {
			return refuse(CodeUpdate, SubcodeOptionalAttribute, bytes.Clone(whole), "MP_REACH_NLRI: %s", err)
		}
		return nil
	case attrUnreach:
		if len(a.value) < 3 {
			return refuse(CodeUpdate, SubcodeOptionalAttribute, bytes.Clone(whole), "MP_UNREACH_NLRI of %d bytes", len(a.value))
		}
		d.unreach = a.value
		return nil
	}
	if reason := d.malformed(&a); reason != "" {
		d.invalid(a.kind, spec.malformed, reason)
		return nil
	}
	if len(a.value) > maxValue {
		d.invalid(a.kind, TreatedAsWithdraw, fmt.Sprintf("%d bytes, more than %d", len(a.value), maxValue))
		return nil
	}
	// Only for optional transitive attributes, Partial has a meaning.
	a.flags = spec.flags
	if spec.flags == flagOptional|flagTransitive {
		a.flags |= whole[0] & flagPartial
	}
	d.attrs = append(d.attrs, a)
	return nil
}

// invalid reports a malformed attribute.
func (d *Decoder) invalid(kind uint8, action Action, detail string) {
	if kind == attrNextHop {
		d.nextHop = &Fault{kind, action, detail}
		return
	}
	d.fault(kind, action, detail)
}

// unknown handles an attribute of unknown type (RFC 4271 sections 5 and 6.3).
func (d *Decoder) unknown(a attribute, whole []byte) error {
	switch {
	case a.flags&flagOptional == 0:
		return refuse(CodeUpdate, SubcodeUnknownWellKnown, bytes.Clone(whole), "unknown well-known attribute %d", a.kind)
	case !d.internal && (a.kind == attrPMSITunnel || a.kind == attrTunnelEncap):
		// Tunnels of another AS are none of ours: RFC 9012 section 11 requires that Tunnel
		// Encapsulation is filtered, and routes of the families here have no PMSI tunnel. FRR 8.4
		// resets the session on which it receives a malformed one.
		d.fault(a.kind, Discarded, "from an external neighbor")
	case a.kind == attrExtendedIPv6 && a.flags&flagTransitive != 0 && (len(a.value) == 0 || len(a.value)%20 != 0):
		// RFC 7606 section 7.15. FRR 8.4 resets the session here, too.
		d.fault(a.kind, TreatedAsWithdraw, fmt.Sprintf("length %d", len(a.value)))
	case a.flags&flagTransitive != 0 && nonTransitive(a.kind):
		// With the right flags it ends here, too. RFC 7311 section 3.4 requires that of AIGP.
		d.fault(a.kind, Discarded, fmt.Sprintf("flags %#02x", a.flags))
	case a.flags&flagTransitive != 0:
		a.flags = flagOptional | flagTransitive | flagPartial
		d.attrs = append(d.attrs, a)
	}
	return nil
}

// nonTransitive reports whether an attribute that this speaker does not know must not have the
// Transitive flag: another AS could otherwise have it act on routers behind this speaker.
func nonTransitive(kind uint8) bool {
	return kind == attrTrafficEngineering || kind == attrAIGP || kind == attrLinkState || kind == attrBGPsecPath
}

// unwanted returns why an attribute is discarded before its value is checked, or "".
func (d *Decoder) unwanted(kind uint8) string {
	switch kind {
	case attrLocalPref, attrOriginatorID, attrClusterList, attrPrefixSID:
		// RFC 7606 sections 7.5, 7.9 and 7.10; RFC 8669 section 4, RFC 9252 section 8.
		if !d.internal {
			return "from an external neighbor"
		}
	case attrAS4Path, attrAS4Aggregator: // RFC 6793 section 4.1
		if d.negotiated.FourOctetAS {
			return "from a neighbor with AS numbers of four octets"
		}
	}
	return ""
}

// malformed returns what is wrong with the value, or "". It converts AS numbers to four octets.
func (d *Decoder) malformed(a *attribute) string {
	if spec := &attributes[a.kind]; spec.unit > 0 {
		n := len(a.value)
		if n%spec.unit != 0 || n == 0 || spec.single && n != spec.unit {
			return fmt.Sprintf("length %d", n)
		}
		if a.kind == attrOrigin && a.value[0] > byte(OriginIncomplete) {
			return fmt.Sprintf("value %d", a.value[0])
		}
		if a.kind == attrAS4Aggregator && binary.BigEndian.Uint32(a.value) == 0 {
			return "AS number 0"
		}
		return ""
	}
	switch a.kind {
	case attrASPath:
		width := 4
		if !d.negotiated.FourOctetAS {
			width = 2
		}
		if reason := malformedPath(a.value, width); reason != "" {
			return reason
		}
		if width == 2 {
			d.path = appendWidePath(d.path, a.value)
			a.value = d.path
		}
	case attrAS4Path:
		return malformedPath(a.value, 4)
	case attrAtomicAggregate:
		if len(a.value) != 0 {
			return fmt.Sprintf("length %d", len(a.value))
		}
	case attrAggregator:
		return d.malformedAggregator(a)
	case attrPrefixSID:
		if len(a.value) == 0 {
			return "length 0" // RFC 7606 section 4
		}
		if _, err := parsePrefixSID(a.value); err != nil {
			return err.Error()
		}
	}
	return ""
}

func (d *Decoder) malformedAggregator(a *attribute) string {
	size := 8
	if !d.negotiated.FourOctetAS {
		size = 6
	}
	if len(a.value) != size {
		return fmt.Sprintf("length %d", len(a.value))
	}
	if size == 6 {
		a.value = slices.Concat([]byte{0, 0}, a.value)
	}
	if binary.BigEndian.Uint32(a.value) == 0 { // RFC 7607
		return "AS number 0"
	}
	return ""
}

// malformedPath returns what is wrong with an AS path whose AS numbers have width bytes, or "" (RFC
// 7606 section 7.2, RFC 7607, RFC 9774).
func malformedPath(b []byte, width int) string {
	for len(b) > 0 {
		if len(b) < 2 {
			return "a segment is cut off"
		}
		switch b[0] {
		case segmentSequence:
		case segmentSet:
			return "AS_SET, which is deprecated (RFC 9774)"
		case segmentConfedSequence, segmentConfedSet:
			return "confederation segment: the neighbor takes our AS for a member of its confederation"
		default:
			return fmt.Sprintf("segment of type %d", b[0])
		}
		end := 2 + int(b[1])*width
		switch {
		case b[1] == 0:
			return "a segment is empty"
		case end > len(b):
			return "a segment is longer than the attribute"
		}
		for i := 2; i < end; i += width {
			if b[i]|b[i+1] == 0 && (width == 2 || b[i+2]|b[i+3] == 0) {
				return "AS number 0"
			}
		}
		b = b[end:]
	}
	return ""
}

var errNextHopLength = errors.New("unexpected length of the next hop")

// parseReach decodes an MP_REACH_NLRI without its destinations (RFC 4760 section 3).
func (d *Decoder) parseReach(b []byte) error {
	if len(b) < 5 || len(b) < 5+int(b[3]) {
		return fmt.Errorf("%d bytes", len(b))
	}
	family, known := FamilyOf(binary.BigEndian.Uint16(b), b[2])
	nextHop, rest := b[4:4+b[3]], b[5+b[3]:]
	d.reach.present = true
	if !known || !d.negotiated.Families.Has(family) {
		d.fault(attrReach, Ignored, "the session does not have this family")
		return nil
	}
	if family.VPN() {
		// Each address has a route distinguisher, which has no meaning.
		switch len(nextHop) {
		case 8 + 4, 8 + 16:
			nextHop = nextHop[8:]
		case 2 * (8 + 16):
			nextHop = slices.Concat(nextHop[8:24], nextHop[32:])
		default:
			return errNextHopLength
		}
	} else if n := len(nextHop); n != 4 && n != 16 && n != 32 {
		return errNextHopLength
	}
	if len(nextHop) == 32 && !isLinkLocal(nextHop[16:]) {
		nextHop = nextHop[:16] // RFC 2545 section 3 has no other second address
	}
	d.reach = mpReach{present: true, family: family, nextHop: nextHop, nlri: rest}
	// With a length that belongs to the other address family, destinations can be located.
	if is4 := len(nextHop) == 4; is4 != family.Is4() && (is4 || !d.negotiated.ExtendedNextHopIn.Has(family)) {
		d.fault(attrReach, TreatedAsWithdraw, "next hop of the wrong address family")
	}
	return nil
}

func isLinkLocal(a []byte) bool { return netip.AddrFrom16([16]byte(a)).IsLinkLocalUnicast() }

// complete checks which attributes an UPDATE with routes has, and merges those of neighbors with
// AS numbers of two octets.
func (d *Decoder) complete(ipv4 bool) {
	slices.SortFunc(d.attrs, func(a, b attribute) int { return int(a.kind) - int(b.kind) })
	required := []uint8{attrOrigin, attrASPath, attrNextHop}
	if !ipv4 {
		required = required[:2]
	}
	for _, kind := range required {
		// A malformed one has been reported.
		if d.seen[0]>>kind&1 == 0 {
			d.fault(kind, TreatedAsWithdraw, "missing")
		}
	}
	if !d.negotiated.FourOctetAS && !d.withdraw {
		d.mergeAS4()
	}
}

func (d *Decoder) value(kind uint8) []byte {
	for i := range d.attrs {
		if d.attrs[i].kind == kind {
			return d.attrs[i].value
		}
	}
	return nil
}

// mergeAS4 replaces AS_TRANS in AS_PATH and AGGREGATOR by the AS numbers of AS4_PATH and
// AS4_AGGREGATOR (RFC 6793 section 4.2.3).
func (d *Decoder) mergeAS4() {
	aggregator, aggregator4 := d.value(attrAggregator), d.value(attrAS4Aggregator)
	path, path4 := ASPath(d.value(attrASPath)), ASPath(d.value(attrAS4Path))
	usable := true
	if aggregator != nil && aggregator4 != nil {
		if usable = binary.BigEndian.Uint32(aggregator) == ASTrans; usable {
			copy(aggregator, aggregator4)
		}
	}
	if extra := path.Len() - path4.Len(); usable && path4 != "" && extra >= 0 {
		d.path = append(appendPathHead(nil, path, extra), path4...)
		for i := range d.attrs {
			if d.attrs[i].kind == attrASPath {
				d.attrs[i].value = d.path
			}
		}
	}
	d.attrs = slices.DeleteFunc(d.attrs, func(a attribute) bool { return a.kind == attrAS4Path || a.kind == attrAS4Aggregator })
}

// appendWidePath appends a path of AS numbers of two octets with four octets each.
func appendWidePath(to, b []byte) []byte {
	for len(b) > 0 {
		end := 2 + 2*int(b[1])
		to = append(to, b[:2]...)
		for i := 2; i < end; i += 2 {
			to = append(to, 0, 0, b[i], b[i+1])
		}
		b = b[end:]
	}
	return to
}

// appendPathHead appends the first part of a path, of length n.
func appendPathHead(to []byte, p ASPath, n int) []byte {
	for asns := range p.segments() {
		if n <= 0 {
			break
		}
		asns = asns[:4*min(n, asns.Len())]
		n -= asns.Len()
		to = append(append(to, segmentSequence, byte(asns.Len())), asns...)
	}
	return to
}

// canonical encodes the attributes other than the next hop in the form of Attributes.wire.
func (d *Decoder) canonical() {
	for _, a := range d.attrs {
		if a.kind != attrNextHop {
			d.wire = append(appendAttributeHeader(d.wire, a.flags, a.kind, len(a.value)), a.value...)
		}
	}
}

// shared returns the shared attributes with this next hop.
func (d *Decoder) shared(nextHop []byte) *Attributes {
	start := wireStart - 1 - len(nextHop)
	d.wire[start] = byte(len(nextHop))
	copy(d.wire[start+1:wireStart], nextHop)
	return d.interner.intern(d.wire[start:])
}
