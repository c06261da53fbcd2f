package message

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/tabane/tabane/internal/bgp/srv6"
	"github.com/tabane/tabane/internal/bgp/vpn"
)

// This file compares the codec with GoBGP's, which was written independently.

// text is an UPDATE as lines of text: one for each destination, in order.
type text []string

// render returns an UPDATE decoded by this package.
func render(u *Update) text {
	var out text
	for _, k := range u.Withdrawn {
		out = append(out, "withdrawn "+k.String())
	}
	for _, a := range u.Announced {
		f := a.Attributes.Fields()
		var cluster, large, other []string
		for _, c := range f.ClusterList {
			cluster = append(cluster, netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, c))).String())
		}
		for _, l := range f.Large {
			large = append(large, fmt.Sprintf("%d:%d:%d", l[0], l[1], l[2]))
		}
		for rest := f.UnknownTransitive; rest != ""; {
			value, size := cutAttribute(rest)
			if !otherGoBGP[rest[1]] {
				other = append(other, fmt.Sprintf("%03d:%x", rest[1], value))
			}
			rest = rest[size:]
		}
		if f.HasOnlyToCustomer {
			other = append(other, fmt.Sprintf("%03d:%08x", attrOnlyToCustomer, f.OnlyToCustomer))
			slices.Sort(other)
		}
		// GoBGP does not encode all others as it decoded them.
		f.Extended = slices.DeleteFunc(f.Extended, func(c uint64) bool { return !comparableExtended(gobgp.ExtendedCommunityAttrSubType(c >> 48)) })
		var path []string
		for asns := range f.ASPath.segments() {
			path = append(path, fmt.Sprint(segmentSequence, asns.Slice()))
		}
		attrs := fmt.Sprint(f.Origin, path, f.HasMED, f.MED, f.HasLocalPref, f.LocalPref, f.AtomicAggregate, f.Aggregator,
			f.Communities, f.OriginatorID, cluster, f.Extended, large, other)
		for _, n := range a.NLRI {
			service := ""
			if n.Key.Family().VPN() {
				sid, err := a.Attributes.Service().SID(n.Label)
				service = fmt.Sprintln(n.Label, sid, err)
			}
			out = append(out, fmt.Sprintln(n.Key.String(), f.NextHop, f.LinkLocal, attrs, service))
		}
	}
	return out
}

// renderGoBGP returns an UPDATE decoded by GoBGP, in the same form; false if it is about something
// that this package does not have.
func renderGoBGP(u *gobgp.BGPUpdate) (text, bool) {
	var withdrawn, reach, ipv4 text
	var origin Origin
	var path, cluster, large, other []string
	var med, pref uint32
	var hasMED, hasPref, atomic bool
	var aggregator Aggregator
	var communities []uint32
	var originator, classic netip.Addr
	var extended []uint64
	var sid *gobgp.PathAttributePrefixSID
	var announced *gobgp.PathAttributeMpReachNLRI
	known := true
	for _, w := range u.WithdrawnRoutes {
		withdrawn = append(withdrawn, "withdrawn "+w.NLRI.(*gobgp.IPAddrPrefix).Prefix.Masked().String())
	}
	for _, attr := range u.PathAttributes {
		switch a := attr.(type) {
		case *gobgp.PathAttributeOrigin:
			origin = Origin(a.Value)
		case *gobgp.PathAttributeAsPath:
			for _, s := range a.Value {
				path = append(path, fmt.Sprint(s.GetType(), s.GetAS()))
			}
		case *gobgp.PathAttributeNextHop:
			classic = a.Value
		case *gobgp.PathAttributeMultiExitDisc:
			med, hasMED = a.Value, true
		case *gobgp.PathAttributeLocalPref:
			pref, hasPref = a.Value, true
		case *gobgp.PathAttributeAtomicAggregate:
			atomic = true
		case *gobgp.PathAttributeAggregator:
			aggregator = Aggregator{a.Value.AS, a.Value.Address}
		case *gobgp.PathAttributeCommunities:
			communities = a.Value
		case *gobgp.PathAttributeOriginatorId:
			originator = a.Value
		case *gobgp.PathAttributeClusterList:
			for _, c := range a.Value {
				cluster = append(cluster, c.String())
			}
		case *gobgp.PathAttributeExtendedCommunities:
			for _, c := range a.Value {
				if _, subtype := c.GetTypes(); !comparableExtended(subtype) {
					continue
				}
				b, err := c.Serialize()
				if known = known && err == nil && len(b) == 8; known {
					extended = append(extended, binary.BigEndian.Uint64(b))
				}
			}
		case *gobgp.PathAttributeLargeCommunities:
			for _, l := range a.Values {
				large = append(large, fmt.Sprintf("%d:%d:%d", l.ASN, l.LocalData1, l.LocalData2))
			}
		case *gobgp.PathAttributePrefixSID:
			sid = a
		case *gobgp.PathAttributeMpReachNLRI:
			announced = a
		case *gobgp.PathAttributeMpUnreachNLRI:
			for _, n := range a.Value {
				key, _, ok := keyOfGoBGP(n.NLRI)
				withdrawn, known = append(withdrawn, "withdrawn "+key), known && ok
			}
		case *gobgp.PathAttributeUnknown:
			if a.Flags&flagTransitive != 0 {
				other = append(other, fmt.Sprintf("%03d:%x", a.Type, a.Value))
			}
		default:
			known = known && otherGoBGP[uint8(a.GetType())]
		}
	}
	slices.Sort(other)
	attrs := fmt.Sprint(origin, path, hasMED, med, hasPref, pref, atomic, aggregator, communities, originator, cluster, extended, large, other)
	if announced != nil {
		second := announced.LinkLocalNexthop
		if !second.IsLinkLocalUnicast() {
			second = netip.Addr{} // which GoBGP keeps
		}
		for _, n := range announced.Value {
			key, label, ok := keyOfGoBGP(n.NLRI)
			service := ""
			if announced.SAFI == gobgp.SAFI_MPLS_VPN {
				service = fmt.Sprint(label, " ", serviceOfGoBGP(sid, label))
			}
			reach = append(reach, fmt.Sprintln(key, announced.Nexthop, second, attrs, service))
			known = known && ok
		}
	}
	for _, n := range u.NLRI {
		ipv4 = append(ipv4, fmt.Sprintln(n.NLRI.(*gobgp.IPAddrPrefix).Prefix.Masked().String(), classic, netip.Addr{}, attrs, ""))
	}
	return slices.Concat(withdrawn, reach, ipv4), known
}

// comparableExtended reports whether GoBGP encodes extended communities of this subtype as it
// decoded them.
func comparableExtended(subtype gobgp.ExtendedCommunityAttrSubType) bool {
	return subtype == gobgp.EC_SUBTYPE_ROUTE_TARGET || subtype == gobgp.EC_SUBTYPE_ROUTE_ORIGIN
}

func keyOfGoBGP(nlri gobgp.NLRI) (key string, label uint32, ok bool) {
	switch n := nlri.(type) {
	case *gobgp.IPAddrPrefix:
		return n.Prefix.Masked().String(), 0, true
	case *gobgp.LabeledVPNIPAddrPrefix:
		b, err := n.RD.Serialize()
		if err != nil || len(n.Labels.Labels) != 1 {
			return "", 0, false
		}
		label := n.Labels.Labels[0]
		if label >= 1<<20 {
			label >>= 4 // GoBGP does not shift the label field of a withdrawal
		}
		id, ok := vpn.FromDistinguisher(binary.BigEndian.Uint64(b))
		return id.String() + " " + n.Prefix.Masked().String(), label, ok
	}
	return "", 0, false
}

// serviceOfGoBGP reads the first SID of a Prefix-SID attribute.
func serviceOfGoBGP(attr *gobgp.PathAttributePrefixSID, label uint32) string {
	if attr == nil {
		return fmt.Sprintln(netip.Addr{}, errNoPrefixSID)
	}
	for _, t := range attr.TLVs {
		service, ok := t.(*gobgp.SRv6ServiceTLV)
		if !ok || service.Type != gobgp.TLVTypeSRv6L3Service {
			continue
		}
		for _, sub := range service.SubTLVs {
			info, ok := sub.(*gobgp.SRv6InformationSubTLV)
			if !ok {
				continue
			}
			s := &Service{}
			s.stripped, _ = netip.AddrFromSlice(info.SID)
			for _, subSub := range info.SubSubTLVs {
				if t, ok := subSub.(*gobgp.SRv6SIDStructureSubSubTLV); ok {
					s.Structure = srv6.Structure{
						Block: t.LocatorBlockLength, Node: t.LocatorNodeLength, Function: t.FunctionLength, Argument: t.ArgumentLength,
						TransposeLen: t.TranspositionLength, TransposeOffset: t.TranspositionOffset,
					}
					break
				}
			}
			s.err = s.check()
			sid, err := s.SID(label)
			return fmt.Sprintln(sid, err)
		}
		return fmt.Sprintln(netip.Addr{}, errNoSID)
	}
	return fmt.Sprintln(netip.Addr{}, errNoL3Service)
}

// compare decodes the body of an UPDATE of an internal neighbor with both codecs. It returns false
// if one of them finds a fault, or GoBGP knows something that this package does not.
func compare(t *testing.T, fourOctet bool, b []byte) bool {
	t.Helper()
	n := everything
	n.FourOctetAS = fourOctet
	var u Update
	if err := NewDecoder(n, true, NewInterner()).Update(b, &u); err != nil || len(u.Faults) > 0 {
		return false
	}
	msg, err := gobgp.ParseBGPBody(&gobgp.BGPHeader{Type: gobgp.BGP_MSG_UPDATE, Len: uint16(HeaderLen + len(b))}, slices.Clone(b),
		&gobgp.MarshallingOption{Use2ByteAS: !fourOctet})
	if err != nil {
		return false
	}
	want, ok := renderGoBGP(msg.Body.(*gobgp.BGPUpdate))
	if !ok {
		return false
	}
	got := render(&u)
	if len(got) != len(want) {
		t.Errorf("%x\n%d destinations, GoBGP: %d", b, len(got), len(want))
		return true
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("%x\ndecoded as %s\nGoBGP:     %s", b, got[i], want[i])
			break
		}
	}
	return true
}

// otherGoBGP has the types of transitive attributes that GoBGP decodes and this package passes on:
// PMSI_TUNNEL, tunnel encapsulation, IPv6 extended communities, AIGP, BGP-LS.
var otherGoBGP = map[uint8]bool{22: true, 23: true, 25: true, 26: true, 29: true}

// randomFields returns attributes of which each is present or absent at random.
func randomFields(t testing.TB, r *rand.Rand) Fields {
	full := fullFields(t)
	var f Fields
	some := func() bool { return r.IntN(2) == 0 }
	f.NextHop, f.Origin, f.ASPath = full.NextHop, Origin(r.IntN(3)), MakeASPath(randomNumbers(r, r.IntN(6))...)
	if some() {
		f.LinkLocal = full.LinkLocal
	}
	if some() {
		f.ASPath += full.ASPath
	}
	if some() {
		f.MED, f.HasMED = r.Uint32(), true
	}
	if some() {
		f.LocalPref, f.HasLocalPref = r.Uint32(), true
	}
	f.AtomicAggregate = some()
	if some() {
		f.Aggregator = full.Aggregator
	}
	f.Communities = randomNumbers(r, r.IntN(80))
	if some() {
		f.OriginatorID = full.OriginatorID
	}
	f.ClusterList = randomNumbers(r, r.IntN(4))
	if some() {
		f.Extended = full.Extended
	}
	if some() {
		f.Large = []LargeCommunity{{r.Uint32(), r.Uint32(), r.Uint32()}}
	}
	if some() {
		f.OnlyToCustomer, f.HasOnlyToCustomer = r.Uint32(), true
	}
	if some() {
		f.PrefixSID = full.PrefixSID
	}
	for kind := 1 + r.IntN(60); kind < len(attributes); kind += 1 + r.IntN(120) {
		if attributes[kind].name == "" && !otherGoBGP[uint8(kind)] && !nonTransitive(uint8(kind)) {
			f.UnknownTransitive += unknownAttribute(uint8(kind), []byte("twelve bytes"[:r.IntN(13)]))
		}
	}
	return f
}

func randomNumbers(r *rand.Rand, n int) []uint32 {
	list := make([]uint32, n)
	for i := range list {
		list[i] = 1 + r.Uint32N(1<<31)
	}
	return list
}

// randomUpdate returns the body of a valid UPDATE.
func randomUpdate(t testing.TB, r *rand.Rand, n Negotiated) []byte {
	t.Helper()
	e := NewEncoder(n)
	family := IPv4Unicast + Family(r.IntN(int(lastFamily)))
	var nlri []NLRI
	var keys []Key
	for range 1 + r.IntN(5) {
		route := NLRI{Key: randomKey(r, family)}
		if family.VPN() {
			route.Label = r.Uint32N(1 << 19)
		}
		nlri, keys = append(nlri, route), append(keys, route.Key)
	}
	if r.IntN(4) == 0 {
		b, _ := e.Withdraw(nil, keys)
		return b[HeaderLen:]
	}
	f := randomFields(t, r)
	if family.Is4() && r.IntN(2) == 0 {
		f.NextHop = addr("192.0.2.1")
	}
	b, _, err := e.Announce(nil, NewInterner().Intern(f), nlri)
	if err != nil {
		t.Fatal(err)
	}
	return b[HeaderLen:]
}

// TestAgreesWithGoBGP compares valid messages, and malformed ones that both codecs accept.
func TestAgreesWithGoBGP(t *testing.T) {
	const messages, mutations = 150, 30
	r := rand.New(rand.NewPCG(7, 8))
	accepted := 0
	for i := range messages {
		b := randomUpdate(t, r, everything)
		if !compare(t, true, b) {
			t.Fatalf("%x was not accepted by both", b)
		}
		for range mutations {
			m := slices.Clone(b)
			m[r.IntN(len(m))] = byte(r.Uint32())
			if compare(t, true, m) {
				accepted++
			}
			if t.Failed() {
				t.Fatalf("message %d", i)
			}
		}
	}
	if accepted < messages*mutations/4 {
		t.Errorf("only %d of %d malformed messages were compared", accepted, messages*mutations)
	}
	t.Logf("%d of %d malformed messages accepted by both", accepted, messages*mutations)
}

// TestOpenAgreesWithGoBGP compares OPEN messages with all capabilities.
func TestOpenAgreesWithGoBGP(t *testing.T) {
	o := Open{ASN: 4200000000, HoldTime: 9, RouterID: addr("10.0.0.1"), Capabilities: Capabilities{
		Families: Families(IPv4Unicast, IPv6Unicast, VPNv4, VPNv6), ExtendedNextHop: Families(IPv4Unicast, VPNv4), FourOctetAS: true,
		RouteRefresh: true, EnhancedRefresh: true, ExtendedMessage: true,
		Restart: Restart{Advertised: true, Restarting: true, Time: 120, Families: Families(IPv6Unicast), Forwarding: Families(IPv6Unicast)},
	}}
	caps := []gobgp.ParameterCapabilityInterface{
		gobgp.NewCapMultiProtocol(gobgp.RF_IPv4_UC), gobgp.NewCapMultiProtocol(gobgp.RF_IPv6_UC),
		gobgp.NewCapMultiProtocol(gobgp.RF_IPv4_VPN), gobgp.NewCapMultiProtocol(gobgp.RF_IPv6_VPN), gobgp.NewCapRouteRefresh(),
		gobgp.NewCapExtendedNexthop([]*gobgp.CapExtendedNexthopTuple{
			gobgp.NewCapExtendedNexthopTuple(gobgp.RF_IPv4_UC, gobgp.AFI_IP6), gobgp.NewCapExtendedNexthopTuple(gobgp.RF_IPv4_VPN, gobgp.AFI_IP6)}),
		gobgp.NewCapExtendedMessage(),
		gobgp.NewCapGracefulRestart(true, false, 120, []*gobgp.CapGracefulRestartTuple{gobgp.NewCapGracefulRestartTuple(gobgp.RF_IPv6_UC, true)}),
		gobgp.NewCapFourOctetASNumber(o.ASN), gobgp.NewCapEnhancedRouteRefresh(),
	}
	msg, err := gobgp.NewBGPOpenMessage(ASTrans, o.HoldTime, o.RouterID, []gobgp.OptionParameterInterface{gobgp.NewOptionParameterCapability(caps)})
	if err != nil {
		t.Fatal(err)
	}
	b, err := msg.Serialize()
	if err != nil {
		t.Fatal(err)
	}
	if got := o.Append(nil); !slices.Equal(got, b) {
		t.Errorf("encoded as\n%x\nGoBGP:\n%x", got, b)
	}
	if got, err := ParseOpen(b[HeaderLen:]); err != nil || got != o {
		t.Errorf("decoded as %+v, %v", got, err)
	}
}
