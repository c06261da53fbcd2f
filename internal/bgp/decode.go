package bgp

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/tabane/tabane/internal/srv6"
	"github.com/tabane/tabane/internal/vpn"
)

// RejectReason is the reason why a route was rejected, as a label for counters.
type RejectReason string

const (
	RejectNextHop     RejectReason = "next-hop"      // missing, or no IPv6 unicast address
	RejectNoPrefixSID RejectReason = "no-prefix-sid" // absent, or malformed and discarded
	RejectNoL3Service RejectReason = "no-l3-service" // Prefix-SID without an SRv6 L3 Service TLV or SID in it
	RejectStructure   RejectReason = "sid-structure" // impossible lengths or transposition
	RejectSID         RejectReason = "sid"           // no unicast address, or bits outside its structure
	RejectLabel       RejectReason = "label"         // transposed, but without exactly one label
	RejectNoTarget    RejectReason = "no-rt"         // VPN route without a route target

	// Reasons of the import policy.
	RejectMartian        RejectReason = "martian"          // link-local, loopback, multicast
	RejectOwnPrefix      RejectReason = "own-prefix"       // our own address space
	RejectConnected      RejectReason = "connected"        // a network that our interfaces are connected to
	RejectLoop           RejectReason = "as-loop"          // our own AS in the AS path
	RejectFirstAS        RejectReason = "first-as"         // the AS path does not begin with the neighbor's AS
	RejectTooLong        RejectReason = "too-long"         // longer than the maximum prefix length
	RejectOwnNextHop     RejectReason = "own-next-hop"     // the next hop is our own address
	RejectForeignNextHop RejectReason = "foreign-next-hop" // the next hop is not the neighbor
)

// RejectedError is the error of a received route that is not accepted.
type RejectedError struct {
	Reason RejectReason
	Detail string
}

func (e *RejectedError) Error() string { return string(e.Reason) + ": " + e.Detail }

func rejectf(reason RejectReason, format string, args ...any) error {
	return &RejectedError{Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

// readUnicast decodes an IPv6 unicast path; zone is the zone of link-local next hops. It returns
// false for other families.
func readUnicast(p *apiutil.Path, zone string) (UnicastPath, bool) {
	nlri, ok := p.Nlri.(*gobgp.IPAddrPrefix)
	if p.Family != gobgp.RF_IPv6_UC || !ok {
		return UnicastPath{}, false
	}
	u := UnicastPath{Prefix: nlri.Prefix.Masked(), Local: !p.PeerAddress.IsValid(), Withdrawn: p.Withdrawal}
	if u.Withdrawn {
		return u, true
	}
	u.Attributes = readAttributes(p.Attrs)
	u.NextHop, u.Rejected = readNextHop(p)
	if u.NextHop.IsLinkLocalUnicast() {
		u.NextHop = u.NextHop.WithZone(zone)
	}
	return u, true
}

// readUpdate decodes an IPv6 unicast route of the Adj-RIB-In, before the import policy.
func readUpdate(p *apiutil.Path, neighbor, zone string) (Update, firstSegment, bool) {
	u, ok := readUnicast(p, zone)
	if !ok {
		return Update{}, 0, false
	}
	var first firstSegment
	if path := attribute[*gobgp.PathAttributeAsPath](p.Attrs); path != nil && len(path.Value) > 0 {
		if s := path.Value[0]; s.GetType() == gobgp.BGP_ASPATH_ATTR_TYPE_SEQ && len(s.GetAS()) > 0 {
			first = firstSegment(s.GetAS()[0])
		}
	}
	return Update{
		Neighbor: neighbor, Prefix: u.Prefix, NextHop: u.NextHop, Attributes: u.Attributes, Withdrawn: u.Withdrawn, Rejected: u.Rejected,
	}, first, true
}

// readVPN decodes a VPN-IPv6 path. It returns false for other families and for route distinguisher
// types not defined in RFC 4364.
func readVPN(p *apiutil.Path) (VPNPath, bool) {
	nlri, ok := p.Nlri.(*gobgp.LabeledVPNIPAddrPrefix)
	if p.Family != gobgp.RF_IPv6_VPN || !ok {
		return VPNPath{}, false
	}
	rd, err := vpn.Parse(nlri.RD.String())
	if err != nil {
		return VPNPath{}, false
	}
	v := VPNPath{RD: rd, Prefix: nlri.Prefix.Masked(), Local: !p.PeerAddress.IsValid(), Withdrawn: p.Withdrawal}
	if v.Withdrawn {
		return v, true
	}
	v.Attributes = readAttributes(p.Attrs)
	if c := attribute[*gobgp.PathAttributeExtendedCommunities](p.Attrs); c != nil {
		v.RTs = readTargets(c.Value)
	}
	v.NextHop, v.Rejected = readNextHop(p)
	if v.Rejected == nil && len(v.RTs) == 0 {
		v.Rejected = rejectf(RejectNoTarget, "no route target")
	}
	if v.Rejected == nil {
		v.SID, v.Structure, v.Behavior, v.Rejected = readSID(attribute[*gobgp.PathAttributePrefixSID](p.Attrs), nlri.Labels.Labels)
	}
	return v, true
}

// attribute returns the attribute of type T, or its zero value. BGP allows one attribute of each
// type.
func attribute[T gobgp.PathAttributeInterface](attrs []gobgp.PathAttributeInterface) T {
	var none T
	for _, a := range attrs {
		if v, ok := a.(T); ok {
			return v
		}
	}
	return none
}

func readAttributes(attrs []gobgp.PathAttributeInterface) Attributes {
	var out Attributes
	for _, attr := range attrs {
		switch a := attr.(type) {
		case *gobgp.PathAttributeLocalPref:
			out.LocalPref = a.Value
		case *gobgp.PathAttributeMultiExitDisc:
			out.MED, out.HasMED = a.Value, true
		case *gobgp.PathAttributeAsPath:
			for _, segment := range a.Value {
				out.ASPath = append(out.ASPath, segment.GetAS()...)
			}
		case *gobgp.PathAttributeCommunities:
			out.Communities = slices.Clone(a.Value)
		}
	}
	return out
}

// readNextHop returns the next hop: of a global and a link-local one, the global one.
func readNextHop(p *apiutil.Path) (netip.Addr, error) {
	reach := attribute[*gobgp.PathAttributeMpReachNLRI](p.Attrs)
	if reach == nil {
		return netip.Addr{}, rejectf(RejectNextHop, "no next hop")
	}
	nh, local := reach.Nexthop, !p.PeerAddress.IsValid()
	if !nh.Is6() || nh.Is4In6() || nh.IsMulticast() || (nh.IsUnspecified() && !local) {
		return nh, rejectf(RejectNextHop, "%s is not an IPv6 unicast address", nh)
	}
	return nh, nil
}

// readTargets returns the route targets among extended communities.
func readTargets(communities []gobgp.ExtendedCommunityInterface) []vpn.ID {
	var rts []vpn.ID
	for _, c := range communities {
		switch c.(type) {
		case *gobgp.TwoOctetAsSpecificExtended, *gobgp.IPv4AddressSpecificExtended, *gobgp.FourOctetAsSpecificExtended:
		default:
			continue
		}
		if _, subtype := c.GetTypes(); subtype != gobgp.EC_SUBTYPE_ROUTE_TARGET {
			continue
		}
		if rt, err := vpn.Parse(c.String()); err == nil && !slices.Contains(rts, rt) {
			rts = append(rts, rt)
		}
	}
	return rts
}

// readSID decodes the SID in the Prefix-SID attribute of a VPN route and, if it is transposed, in
// its label (RFC 9252 sections 3.1, 3.2.1 and 4). The first of several services, SIDs or structures
// is used. The endpoint behavior is not checked: some reflectors change it.
func readSID(attr *gobgp.PathAttributePrefixSID, labels []uint32) (netip.Addr, srv6.Structure, uint16, error) {
	none := netip.Addr{}
	if attr == nil {
		return none, srv6.Structure{}, 0, rejectf(RejectNoPrefixSID, "no usable Prefix-SID attribute")
	}
	service := first(attr.TLVs, func(t *gobgp.SRv6ServiceTLV) bool { return t.Type == gobgp.TLVTypeSRv6L3Service })
	if service == nil {
		return none, srv6.Structure{}, 0, rejectf(RejectNoL3Service, "no SRv6 L3 Service TLV")
	}
	info := first(service.SubTLVs, func(*gobgp.SRv6InformationSubTLV) bool { return true })
	if info == nil {
		return none, srv6.Structure{}, 0, rejectf(RejectNoL3Service, "no SRv6 SID Information Sub-TLV")
	}
	sid, ok := netip.AddrFromSlice(info.SID)
	if !ok || !sid.Is6() {
		return none, srv6.Structure{}, 0, rejectf(RejectSID, "SID of %d bytes", len(info.SID))
	}
	var structure srv6.Structure
	if t := first(info.SubSubTLVs, func(*gobgp.SRv6SIDStructureSubSubTLV) bool { return true }); t != nil {
		structure = srv6.Structure{
			Block: t.LocatorBlockLength, Node: t.LocatorNodeLength,
			Function: t.FunctionLength, Argument: t.ArgumentLength,
			TransposeLen: t.TranspositionLength, TransposeOffset: t.TranspositionOffset,
		}
	}
	if err := structure.Check(); err != nil {
		return none, structure, info.EndpointBehavior, rejectf(RejectStructure, "%s", err)
	}
	if structure.TransposeLen > 0 {
		if len(labels) != 1 {
			return none, structure, info.EndpointBehavior, rejectf(RejectLabel, "%d labels, a transposed SID needs one", len(labels))
		}
		label := labels[0]
		if label >= 1<<20 {
			// GoBGP treats the label field 0x800000 as a withdrawal and does not shift
			// it right by four bits.
			label >>= 4
		}
		restored, err := srv6.Restore(sid, label, structure)
		if err != nil {
			return none, structure, info.EndpointBehavior, rejectf(RejectSID, "%s", err)
		}
		sid = restored
	} else if err := structure.CheckSID(sid); err != nil {
		return none, structure, info.EndpointBehavior, rejectf(RejectSID, "%s", err)
	}
	if sid.Is4In6() || !sid.IsGlobalUnicast() {
		return none, structure, info.EndpointBehavior, rejectf(RejectSID, "%s is not a global unicast address", sid)
	}
	return sid, structure, info.EndpointBehavior, nil
}

// first returns the first TLV of type T that matches, or nil.
func first[T any](tlvs []gobgp.PrefixSIDTLVInterface, match func(*T) bool) *T {
	for _, t := range tlvs {
		if v, ok := any(t).(*T); ok && v != nil && match(v) {
			return v
		}
	}
	return nil
}
