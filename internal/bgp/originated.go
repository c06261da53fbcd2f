package bgp

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/tabane/tabane/internal/srv6"
	"github.com/tabane/tabane/internal/vpn"
)

// NoExport is the community NO_EXPORT (RFC 1997): the route is not advertised to other ASes.
const NoExport uint32 = 0xffffff01

// GracefulShutdown is the community GRACEFUL_SHUTDOWN of routes that will be withdrawn soon (RFC
// 8326). A route received with it from another AS gets the lowest LOCAL_PREF; ExportPolicy.Shutdown
// adds it.
const GracefulShutdown uint32 = 0xffff0000

// Blackhole is the community BLACKHOLE (RFC 7999). Inside our AS, a locator or SID advertised with
// it is lost, and so is everything reached through it.
const Blackhole uint32 = 0xffff029a

// UnicastRoute is an IPv6 route that this speaker originates.
type UnicastRoute struct {
	Prefix netip.Prefix
	// NextHop is for neighbors of our own AS. If invalid, it is our address in each session.
	// Neighbors of other ASes always receive our address.
	NextHop    netip.Addr
	Attributes // LocalPref 0 is 100
}

// VPNRoute is a VPN-IPv6 route that this speaker originates, with its SRv6 service SID.
type VPNRoute struct {
	RD      vpn.ID
	Prefix  netip.Prefix
	NextHop netip.Addr
	RTs     []vpn.ID // at least one
	SID     netip.Addr
	// Structure is that of the SID. If TransposeLen > 0, those bits are encoded in the label;
	// otherwise the label is 3, implicit null (RFC 9252 section 4).
	Structure srv6.Structure
	Behavior  uint16 // endpoint behavior (RFC 8986 section 10.2)
	// Attributes are those of the route as received; LocalPref 0 means 100.
	Attributes
}

// VPNKey identifies a VPN-IPv6 destination.
type VPNKey struct {
	RD     vpn.ID
	Prefix netip.Prefix
}

// chunk is the number of routes in one call of GoBGP, which processes nothing else during a call.
const chunk = 1000

// implicitNull is the label of a route whose SID is not transposed.
const implicitNull = 3

// maxSegment is the number of AS numbers in one segment of an AS path (RFC 4271 section 4.3).
const maxSegment = 255

// originated holds the routes that a speaker originates. It is safe for concurrent use.
type originated struct{ *instance }

// Originate advertises routes, replacing those with the same prefix. If one of them is invalid,
// none is advertised.
func (o *originated) Originate(routes ...UnicastRoute) error {
	paths := make([]*apiutil.Path, len(routes))
	for i, r := range routes {
		p, err := r.path()
		if err != nil {
			return fmt.Errorf("originate route %s: %w", r.Prefix, err)
		}
		paths[i] = p
	}
	return o.addPaths(paths)
}

// Withdraw withdraws routes that were originated by Originate. Other prefixes are ignored.
func (o *originated) Withdraw(prefixes ...netip.Prefix) error {
	paths := make([]*apiutil.Path, len(prefixes))
	for i, prefix := range prefixes {
		nlri, err := unicastNLRI(prefix)
		if err != nil {
			return fmt.Errorf("withdraw route %s: %w", prefix, err)
		}
		paths[i] = &apiutil.Path{Family: gobgp.RF_IPv6_UC, Nlri: nlri, Withdrawal: true}
	}
	return o.deletePaths(paths)
}

// OriginateVPN advertises routes, replacing those with the same RD and prefix. If one of them is
// invalid, none is advertised.
func (o *originated) OriginateVPN(routes []VPNRoute) error {
	paths := make([]*apiutil.Path, len(routes))
	var memo sidMemo
	for i, r := range routes {
		p, err := r.path(&memo)
		if err != nil {
			return fmt.Errorf("originate vpn route %s %s: %w", r.RD, r.Prefix, err)
		}
		paths[i] = p
	}
	return o.addPaths(paths)
}

// WithdrawVPN withdraws routes that were originated by OriginateVPN. Other keys are ignored.
func (o *originated) WithdrawVPN(keys []VPNKey) error {
	paths := make([]*apiutil.Path, len(keys))
	for i, k := range keys {
		nlri, err := vpnNLRI(k.RD, k.Prefix, implicitNull)
		if err != nil {
			return fmt.Errorf("withdraw vpn route %s %s: %w", k.RD, k.Prefix, err)
		}
		paths[i] = &apiutil.Path{Family: gobgp.RF_IPv6_VPN, Nlri: nlri, Withdrawal: true}
	}
	return o.deletePaths(paths)
}

func (o *originated) addPaths(paths []*apiutil.Path) error {
	return o.inChunks(paths, func(part []*apiutil.Path) error {
		_, err := o.server.AddPath(apiutil.AddPathRequest{Paths: part})
		return err
	})
}

func (o *originated) deletePaths(paths []*apiutil.Path) error {
	return o.inChunks(paths, func(part []*apiutil.Path) error {
		return o.server.DeletePath(apiutil.DeletePathRequest{Paths: part})
	})
}

func (o *originated) inChunks(paths []*apiutil.Path, f func([]*apiutil.Path) error) error {
	o.calls.Lock()
	err := o.usable()
	o.calls.Unlock()
	if err != nil {
		return err
	}
	for part := range slices.Chunk(paths, chunk) {
		if err := f(part); err != nil {
			return fmt.Errorf("change originated routes: %w", err)
		}
	}
	return nil
}

// SetBlackhole advertises prefixes with BLACKHOLE inside our AS (NO_EXPORT), before other pending
// withdrawals, or withdraws these routes. They replace other routes of this speaker, but have the
// lowest LOCAL_PREF at neighbors.
func (o *originated) SetBlackhole(on bool, prefixes ...netip.Prefix) error {
	o.calls.Lock()
	defer o.calls.Unlock()
	if err := o.usable(); err != nil {
		return err
	}
	return o.setBlackhole(on, prefixes)
}

// setBlackhole is SetBlackhole for callers that hold calls.
func (o *originated) setBlackhole(on bool, prefixes []netip.Prefix) error {
	if len(prefixes) == 0 {
		return nil
	}
	paths := make([]*apiutil.Path, len(prefixes))
	for i, prefix := range prefixes {
		p, err := UnicastRoute{Prefix: prefix, Attributes: Attributes{
			LocalPref: math.MaxUint32, Communities: []uint32{Blackhole, NoExport},
		}}.path()
		if err != nil {
			return fmt.Errorf("advertise blackhole %s: %w", prefix, err)
		}
		p.Withdrawal = !on
		paths[i] = p
	}
	var err error
	if on {
		_, err = o.server.AddPath(apiutil.AddPathRequest{Paths: paths})
	} else {
		err = o.server.DeletePath(apiutil.DeletePathRequest{Paths: paths})
	}
	if err != nil {
		return fmt.Errorf("advertise blackholes: %w", err)
	}
	return nil
}

func checkPrefix(p netip.Prefix) error {
	switch {
	case !p.IsValid() || !p.Addr().Is6() || p.Addr().Is4In6():
		return errors.New("not an IPv6 prefix")
	case p != p.Masked():
		return fmt.Errorf("has host bits set: use %s", p.Masked())
	}
	return nil
}

func checkNextHop(a netip.Addr) error {
	if !a.Is6() || a.Is4In6() || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
		return fmt.Errorf("next hop %s is not an IPv6 unicast address", a)
	}
	return nil
}

func unicastNLRI(prefix netip.Prefix) (gobgp.NLRI, error) {
	if err := checkPrefix(prefix); err != nil {
		return nil, err
	}
	return gobgp.NewIPAddrPrefix(prefix)
}

func vpnNLRI(rd vpn.ID, prefix netip.Prefix, label uint32) (gobgp.NLRI, error) {
	if err := checkPrefix(prefix); err != nil {
		return nil, err
	}
	native, err := distinguisher(rd)
	if err != nil {
		return nil, err
	}
	return gobgp.NewLabeledVPNIPAddrPrefix(prefix, *gobgp.NewMPLSLabelStack(label), native)
}

func (r UnicastRoute) path() (*apiutil.Path, error) {
	nlri, err := unicastNLRI(r.Prefix)
	if err != nil {
		return nil, err
	}
	nextHop := netip.IPv6Unspecified()
	if r.NextHop.IsValid() {
		if err := checkNextHop(r.NextHop); err != nil {
			return nil, err
		}
		nextHop = r.NextHop
	}
	reach, err := gobgp.NewPathAttributeMpReachNLRI(gobgp.RF_IPv6_UC, []gobgp.PathNLRI{{NLRI: nlri}}, nextHop)
	if err != nil {
		return nil, err
	}
	attrs := []gobgp.PathAttributeInterface{gobgp.NewPathAttributeOrigin(gobgp.BGP_ORIGIN_ATTR_TYPE_IGP), reach}
	return localPath(gobgp.RF_IPv6_UC, nlri, r.appendTo(attrs)), nil
}

func localPath(f gobgp.Family, nlri gobgp.NLRI, attrs []gobgp.PathAttributeInterface) *apiutil.Path {
	return &apiutil.Path{Family: f, Nlri: nlri, Attrs: attrs, Age: time.Now().Unix()}
}

// appendTo appends the attributes that are set.
func (a Attributes) appendTo(attrs []gobgp.PathAttributeInterface) []gobgp.PathAttributeInterface {
	if len(a.ASPath) > 0 {
		var segments []gobgp.AsPathParamInterface
		for part := range slices.Chunk(a.ASPath, maxSegment) {
			segments = append(segments, gobgp.NewAs4PathParam(gobgp.BGP_ASPATH_ATTR_TYPE_SEQ, slices.Clone(part)))
		}
		attrs = append(attrs, gobgp.NewPathAttributeAsPath(segments))
	}
	if a.HasMED {
		attrs = append(attrs, gobgp.NewPathAttributeMultiExitDisc(a.MED))
	}
	if a.LocalPref > 0 {
		attrs = append(attrs, gobgp.NewPathAttributeLocalPref(a.LocalPref))
	}
	if len(a.Communities) > 0 {
		attrs = append(attrs, gobgp.NewPathAttributeCommunities(slices.Clone(a.Communities)))
	}
	return attrs
}

// sidMemo caches the attributes of the last SID and route targets, since the routes of one peer
// share them.
type sidMemo struct {
	valid     bool
	sid       netip.Addr
	structure srv6.Structure
	behavior  uint16
	rts       []vpn.ID

	label     uint32
	prefixSID *gobgp.PathAttributePrefixSID
	targets   *gobgp.PathAttributeExtendedCommunities
}

func (m *sidMemo) fill(r VPNRoute) error {
	if m.valid && m.sid == r.SID && m.structure == r.Structure && m.behavior == r.Behavior && slices.Equal(m.rts, r.RTs) {
		return nil
	}
	if !r.SID.Is6() || r.SID.Is4In6() || r.SID.Zone() != "" || !r.SID.IsGlobalUnicast() {
		return fmt.Errorf("sid %s is not a global unicast address", r.SID)
	}
	stripped, label, err := srv6.Transpose(r.SID, r.Structure)
	if err != nil {
		return err
	}
	st := r.Structure
	if st.TransposeLen == 0 {
		label, st.TransposeOffset = implicitNull, 0
	}
	if len(r.RTs) == 0 {
		return errors.New("no route target")
	}
	targets := make([]gobgp.ExtendedCommunityInterface, len(r.RTs))
	for i, rt := range r.RTs {
		if targets[i], err = target(rt); err != nil {
			return err
		}
	}
	*m = sidMemo{
		valid: true, sid: r.SID, structure: r.Structure, behavior: r.Behavior, rts: slices.Clone(r.RTs),
		label:   label,
		targets: gobgp.NewPathAttributeExtendedCommunities(targets),
		prefixSID: gobgp.NewPathAttributePrefixSID(gobgp.NewSRv6ServiceTLV(gobgp.TLVTypeSRv6L3Service,
			gobgp.NewSRv6InformationSubTLV(stripped, gobgp.SRBehavior(r.Behavior),
				gobgp.NewSRv6SIDStructureSubSubTLV(st.Block, st.Node, st.Function, st.Argument,
					st.TransposeLen, st.TransposeOffset)))),
	}
	return nil
}

func (r VPNRoute) path(memo *sidMemo) (*apiutil.Path, error) {
	if err := checkNextHop(r.NextHop); err != nil {
		return nil, err
	}
	if err := memo.fill(r); err != nil {
		return nil, err
	}
	nlri, err := vpnNLRI(r.RD, r.Prefix, memo.label)
	if err != nil {
		return nil, err
	}
	reach, err := gobgp.NewPathAttributeMpReachNLRI(gobgp.RF_IPv6_VPN, []gobgp.PathNLRI{{NLRI: nlri}}, r.NextHop)
	if err != nil {
		return nil, err
	}
	attrs := []gobgp.PathAttributeInterface{
		gobgp.NewPathAttributeOrigin(gobgp.BGP_ORIGIN_ATTR_TYPE_IGP), reach, memo.targets, memo.prefixSID,
	}
	return localPath(gobgp.RF_IPv6_VPN, nlri, r.appendTo(attrs)), nil
}

// fields splits the text of a vpn.ID: "ipv4:number" or "asn:number"; the AS number has four octets
// if it is large or has a dot. (GoBGP's own parsers clamp four-octet AS numbers.)
func fields(id vpn.ID) (ip netip.Addr, asn uint32, long bool, number uint32, err error) {
	who, what, _ := strings.Cut(id.String(), ":")
	n, err := strconv.ParseUint(what, 10, 32)
	if err != nil {
		return netip.Addr{}, 0, false, 0, errors.New("empty")
	}
	number = uint32(n)
	if ip, err = netip.ParseAddr(who); err == nil {
		return ip, 0, false, number, nil
	}
	var high uint64
	left, low, long := strings.Cut(who, ".")
	if !long {
		low = who
	} else if high, err = strconv.ParseUint(left, 10, 16); err != nil {
		return netip.Addr{}, 0, false, 0, err
	}
	l, err := strconv.ParseUint(low, 10, 32)
	asn = uint32(high<<16 | l)
	return netip.Addr{}, asn, long || asn > math.MaxUint16, number, err
}

func distinguisher(id vpn.ID) (gobgp.RouteDistinguisherInterface, error) {
	ip, asn, long, number, err := fields(id)
	switch {
	case err != nil:
		return nil, fmt.Errorf("route distinguisher %q: %w", id, err)
	case ip.IsValid():
		return gobgp.NewRouteDistinguisherIPAddressAS(ip, uint16(number))
	case long:
		return gobgp.NewRouteDistinguisherFourOctetAS(asn, uint16(number)), nil
	}
	return gobgp.NewRouteDistinguisherTwoOctetAS(uint16(asn), number), nil
}

func target(id vpn.ID) (gobgp.ExtendedCommunityInterface, error) {
	ip, asn, long, number, err := fields(id)
	switch {
	case err != nil:
		return nil, fmt.Errorf("route target %q: %w", id, err)
	case ip.IsValid():
		return gobgp.NewIPv4AddressSpecificExtended(gobgp.EC_SUBTYPE_ROUTE_TARGET, ip, uint16(number), true)
	case long:
		return gobgp.NewFourOctetAsSpecificExtended(gobgp.EC_SUBTYPE_ROUTE_TARGET, asn, uint16(number), true), nil
	}
	return gobgp.NewTwoOctetAsSpecificExtended(gobgp.EC_SUBTYPE_ROUTE_TARGET, uint16(asn), number, true), nil
}
