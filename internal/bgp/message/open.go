package message

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// ASTrans is AS_TRANS, which replaces an AS number that does not fit into two octets (RFC 6793).
const ASTrans = 23456

const (
	version = 4

	parameterCapabilities = 2
	parameterExtended     = 255 // RFC 9072

	capMultiprotocol   = 1  // RFC 4760
	capRouteRefresh    = 2  // RFC 2918
	capExtendedNextHop = 5  // RFC 8950
	capExtendedMessage = 6  // RFC 8654
	capRole            = 9  // RFC 9234
	capGracefulRestart = 64 // RFC 4724
	capFourOctetAS     = 65 // RFC 6793
	capEnhancedRefresh = 70 // RFC 7313
)

// Open is the content of an OPEN message (RFC 4271 section 4.2).
type Open struct {
	ASN      uint32 // of four octets if FourOctetAS
	HoldTime uint16 // s; 0 is no hold timer
	RouterID netip.Addr
	Capabilities
}

// Capabilities are those of an OPEN message (RFC 5492).
type Capabilities struct {
	// Families are those of the multiprotocol capability. A neighbor without this capability
	// supports IPv4Unicast only: see Negotiate.
	Families FamilySet
	// ExtendedNextHop has the IPv4 families whose next hop can be an IPv6 address (RFC 8950).
	ExtendedNextHop FamilySet
	FourOctetAS     bool // RFC 6793
	RouteRefresh    bool // RFC 2918
	EnhancedRefresh bool // RFC 7313
	ExtendedMessage bool // RFC 8654
	Restart         Restart
	Role            Role
}

// Role is what a speaker is for its neighbor of another AS (RFC 9234 section 3.1); empty: it says
// nothing.
type Role string

const (
	RoleProvider Role = "provider"
	RoleRS       Role = "rs" // route server
	RoleRSClient Role = "rs-client"
	RoleCustomer Role = "customer"
	RolePeer     Role = "peer"
	// RoleContradictory is what a neighbor has that sends different ones.
	RoleContradictory Role = "contradictory"
)

// roles are in the order of their numbers, and have that of the neighbor.
var roles = [...]struct{ role, neighbor Role }{
	{RoleProvider, RoleCustomer}, {RoleRS, RoleRSClient}, {RoleRSClient, RoleRS}, {RoleCustomer, RoleProvider}, {RolePeer, RolePeer},
}

func (r Role) number() int {
	for i := range roles {
		if roles[i].role == r {
			return i
		}
	}
	return -1
}

// IsValid reports whether a speaker can have this role.
func (r Role) IsValid() bool { return r.number() >= 0 }

// Fits reports whether a neighbor can have the other role.
func (r Role) Fits(neighbor Role) bool { return r.IsValid() && roles[r.number()].neighbor == neighbor }

// Below reports whether the neighbor gets only routes of the own AS and its customers: it is a
// provider, a peer or a route server (RFC 9234 section 5).
func (r Role) Below() bool { return r == RoleCustomer || r == RolePeer || r == RoleRSClient }

// Above reports whether the neighbor may pass what it gets to its customers only: it is a customer,
// a peer or a client of this route server.
func (r Role) Above() bool { return r == RoleProvider || r == RolePeer || r == RoleRS }

// Restart is the graceful restart capability (RFC 4724 section 3). A speaker that advertises it
// sends End-of-RIB.
type Restart struct {
	Advertised bool
	Restarting bool      // the restart state (R) bit
	Time       uint16    // s
	Families   FamilySet // whose state can be preserved
	Forwarding FamilySet // those of Families whose state was preserved
}

// ParseOpen decodes the body of an OPEN, of at least ten bytes. Whether AS number and router ID are
// the expected ones is for the caller to check. The error is an *Error.
func ParseOpen(body []byte) (Open, error) {
	o := Open{
		ASN:      uint32(binary.BigEndian.Uint16(body[1:])),
		HoldTime: binary.BigEndian.Uint16(body[3:]),
		RouterID: netip.AddrFrom4([4]byte(body[5:])),
	}
	if body[0] != version {
		return o, refuse(CodeOpen, SubcodeUnsupportedVersion, []byte{0, version}, "BGP version %d", body[0])
	}
	if o.HoldTime == 1 || o.HoldTime == 2 {
		return o, refuse(CodeOpen, SubcodeHoldTime, nil, "hold time of %d s", o.HoldTime)
	}
	if o.RouterID.IsUnspecified() { // RFC 6286 section 2.2
		return o, refuse(CodeOpen, SubcodeBadIdentifier, nil, "router ID %s", o.RouterID)
	}
	if err := o.parseParameters(body[9:]); err != nil {
		return o, err
	}
	if o.ASN == 0 { // RFC 7607
		return o, refuse(CodeOpen, SubcodeBadPeerAS, nil, "AS number 0")
	}
	return o, nil
}

func (o *Open) malformed(what string) error {
	return refuse(CodeOpen, 0, nil, "%s", what)
}

// parseParameters decodes the optional parameters with the length before them (RFC 4271 section
// 4.2, RFC 9072).
func (o *Open) parseParameters(b []byte) error {
	wide := 0
	size, b := int(b[0]), b[1:]
	if size > 0 && len(b) >= 3 && b[0] == parameterExtended {
		wide = 1
		size, b = int(binary.BigEndian.Uint16(b[1:])), b[3:]
	}
	if size != len(b) {
		return o.malformed("the length of the optional parameters contradicts that of the message")
	}
	for len(b) > 0 {
		if len(b) < 2+wide {
			return o.malformed("an optional parameter is cut off")
		}
		kind, size := b[0], int(b[1])
		if wide > 0 {
			size = int(binary.BigEndian.Uint16(b[1:]))
		}
		if b = b[2+wide:]; size > len(b) {
			return o.malformed("an optional parameter is longer than the message")
		}
		if kind != parameterCapabilities {
			return refuse(CodeOpen, SubcodeUnsupportedParameter, nil, "optional parameter %d", kind)
		}
		if err := o.parseCapabilities(b[:size]); err != nil {
			return err
		}
		b = b[size:]
	}
	return nil
}

// parseCapabilities decodes one parameter with capabilities. Unknown ones are ignored (RFC 5492
// section 3).
func (o *Open) parseCapabilities(b []byte) error {
	for len(b) > 0 {
		if len(b) < 2 || int(b[1]) > len(b)-2 {
			return o.malformed("a capability is longer than its parameter")
		}
		code, value := b[0], b[2:2+int(b[1])]
		b = b[2+len(value):]
		var wellFormed bool
		switch code {
		case capMultiprotocol:
			if wellFormed = len(value) == 4; wellFormed {
				o.Families |= familyBit(value[0:2], value[3])
			}
		case capRouteRefresh:
			o.RouteRefresh, wellFormed = true, len(value) == 0
		case capEnhancedRefresh:
			o.EnhancedRefresh, wellFormed = true, len(value) == 0
		case capExtendedMessage:
			o.ExtendedMessage, wellFormed = true, len(value) == 0
		case capRole:
			if wellFormed = len(value) == 1; wellFormed {
				o.parseRole(value[0])
			}
		case capExtendedNextHop:
			if wellFormed = len(value)%6 == 0; wellFormed {
				o.parseExtendedNextHop(value)
			}
		case capGracefulRestart:
			if wellFormed = len(value)%4 == 2; wellFormed {
				o.Restart = parseRestart(value)
			}
		case capFourOctetAS:
			if wellFormed = len(value) == 4; wellFormed {
				o.FourOctetAS, o.ASN = true, binary.BigEndian.Uint32(value)
			}
		default:
			wellFormed = true
		}
		if !wellFormed {
			return refuse(CodeOpen, 0, nil, "capability %d of %d bytes", code, len(value))
		}
	}
	return nil
}

// familyBit returns the set of the family, empty if the family is unknown.
func familyBit(afi []byte, safi uint8) FamilySet {
	number := binary.BigEndian.Uint16(afi)
	if number == LinkState.AFI() && safi == LinkState.SAFI() {
		return Families(LinkState)
	}
	if f, known := FamilyOf(number, safi); known {
		return Families(f)
	}
	return 0
}

// parseExtendedNextHop decodes tuples of AFI, SAFI (two bytes) and AFI of the next hop.
func (o *Open) parseExtendedNextHop(b []byte) {
	for ; len(b) > 0; b = b[6:] {
		f, known := FamilyOf(binary.BigEndian.Uint16(b), b[3])
		if known && b[2] == 0 && f.Is4() && binary.BigEndian.Uint16(b[4:]) == afiIPv6 {
			o.ExtendedNextHop |= Families(f)
		}
	}
}

// parseRole decodes one of the roles of the neighbor, which has only one.
func (o *Open) parseRole(number uint8) {
	r := Role(fmt.Sprintf("unknown (%d)", number))
	if int(number) < len(roles) {
		r = roles[number].role
	}
	if o.Role != "" && o.Role != r {
		r = RoleContradictory
	}
	o.Role = r
}

func parseRestart(b []byte) Restart {
	head := binary.BigEndian.Uint16(b)
	r := Restart{Advertised: true, Restarting: head&0x8000 != 0, Time: head & 0x0fff}
	for b = b[2:]; len(b) > 0; b = b[4:] {
		f := familyBit(b[0:2], b[2])
		r.Families |= f
		if b[3]&0x80 != 0 {
			r.Forwarding |= f
		}
	}
	return r
}

// Append appends the message.
func (o Open) Append(b []byte) []byte {
	start := len(b)
	asn := uint16(ASTrans)
	if o.ASN <= 0xffff {
		asn = uint16(o.ASN)
	}
	id := o.RouterID.As4()
	b = append(begin(b, TypeOpen), version)
	b = binary.BigEndian.AppendUint16(b, asn)
	b = binary.BigEndian.AppendUint16(b, o.HoldTime)
	b = append(b, id[:]...)
	size := len(b)
	b = append(b, 0, parameterCapabilities, 0)
	b = o.appendCapabilities(b)
	// This package's capabilities have less than 255 bytes, so RFC 9072 is not needed.
	if n := len(b) - size - 3; n > 0 {
		b[size], b[size+2] = byte(n+2), byte(n)
	} else {
		b = b[:size+1]
	}
	return finish(b, start)
}

func (o Open) appendCapabilities(b []byte) []byte {
	for f := range o.Families.All() {
		b = append(b, capMultiprotocol, 4, 0, byte(f.AFI()), 0, f.SAFI())
	}
	if o.Families.Has(LinkState) {
		b = append(b, capMultiprotocol, 4, byte(LinkState.AFI()>>8), byte(LinkState.AFI()&0xff), 0, LinkState.SAFI())
	}
	if o.RouteRefresh {
		b = append(b, capRouteRefresh, 0)
	}
	if o.ExtendedNextHop != 0 {
		b = append(b, capExtendedNextHop, 0)
		size := len(b)
		for f := range o.ExtendedNextHop.All() {
			b = append(b, 0, byte(f.AFI()), 0, f.SAFI(), 0, afiIPv6)
		}
		b[size-1] = byte(len(b) - size)
	}
	if o.ExtendedMessage {
		b = append(b, capExtendedMessage, 0)
	}
	if n := o.Role.number(); n >= 0 {
		b = append(b, capRole, 1, byte(n))
	}
	if r := o.Restart; r.Advertised {
		head := r.Time & 0x0fff
		if r.Restarting {
			head |= 0x8000
		}
		b = append(b, capGracefulRestart, 0)
		size := len(b)
		b = binary.BigEndian.AppendUint16(b, head)
		for f := range r.Families.All() {
			var flags byte
			if r.Forwarding.Has(f) {
				flags = 0x80
			}
			b = append(b, 0, byte(f.AFI()), f.SAFI(), flags)
		}
		b[size-1] = byte(len(b) - size)
	}
	if o.FourOctetAS {
		b = append(b, capFourOctetAS, 4)
		b = binary.BigEndian.AppendUint32(b, o.ASN)
	}
	if o.EnhancedRefresh {
		b = append(b, capEnhancedRefresh, 0)
	}
	return b
}

// Negotiated is what the OPEN messages of both ends allow in a session.
type Negotiated struct {
	Families        FamilySet
	ExtendedNextHop FamilySet // IPv4 families that the neighbor accepts with an IPv6 next hop
	// ExtendedNextHopIn has the IPv4 families that we accept with an IPv6 next hop.
	ExtendedNextHopIn FamilySet
	FourOctetAS       bool
	RouteRefresh      bool // the neighbor accepts ROUTE-REFRESH
	EnhancedRefresh   bool // both ends send BoRR and EoRR
	ExtendedMessage   bool
	EndOfRIB          bool // the neighbor sends End-of-RIB
}

// Negotiate combines the OPEN message that was sent with the received one.
func Negotiate(sent, received Open) Negotiated {
	families := received.Families
	if families == 0 {
		families = Families(IPv4Unicast) // RFC 4760 section 8
	}
	return Negotiated{
		Families: sent.Families & families,
		// A speaker needs the neighbor's capability only (RFC 8950 section 4).
		ExtendedNextHop:   received.ExtendedNextHop,
		ExtendedNextHopIn: sent.ExtendedNextHop,
		FourOctetAS:       sent.FourOctetAS && received.FourOctetAS,
		RouteRefresh:      received.RouteRefresh,
		EnhancedRefresh:   sent.EnhancedRefresh && received.EnhancedRefresh,
		ExtendedMessage:   sent.ExtendedMessage && received.ExtendedMessage,
		EndOfRIB:          received.Restart.Advertised,
	}
}

// MaxLen is the length of the longest message, in bytes.
func (n Negotiated) MaxLen() int {
	if n.ExtendedMessage {
		return MaxExtended
	}
	return MaxLen
}

// Names are the capabilities in words, with their code numbers.
func (c Capabilities) Names() []string {
	var names []string
	add := func(has bool, format string, args ...any) {
		if has {
			names = append(names, fmt.Sprintf(format, args...))
		}
	}
	for f := range c.Families.All() {
		add(true, "multiprotocol %s (%d)", f, capMultiprotocol)
	}
	add(c.Families.Has(LinkState), "multiprotocol %s (%d)", LinkState, capMultiprotocol)
	add(c.RouteRefresh, "route refresh (%d)", capRouteRefresh)
	for f := range c.ExtendedNextHop.All() {
		add(true, "extended next hop %s (%d)", f, capExtendedNextHop)
	}
	add(c.ExtendedMessage, "extended message (%d)", capExtendedMessage)
	add(c.Role != "", "role %s (%d)", c.Role, capRole)
	if r := c.Restart; r.Advertised {
		text := fmt.Sprintf("graceful restart %d s", r.Time)
		if r.Restarting {
			text += " restarting"
		}
		for f := range r.Families.All() {
			text += " " + f.String()
			if r.Forwarding.Has(f) {
				text += " forwarding"
			}
		}
		add(true, "%s (%d)", text, capGracefulRestart)
	}
	add(c.FourOctetAS, "4-octet as (%d)", capFourOctetAS)
	add(c.EnhancedRefresh, "enhanced refresh (%d)", capEnhancedRefresh)
	return names
}
