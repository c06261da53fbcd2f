package bgp

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/policy"
	"github.com/tabane/tabane/internal/bgp/rib"
)

// ExportPolicy filters and changes the routes advertised to a neighbor.
type ExportPolicy struct {
	// Reject rejects these prefixes and all more specific ones.
	Reject []netip.Prefix
	// Shutdown adds the community GRACEFUL_SHUTDOWN to every route (RFC 8326) and, to neighbors of
	// our own AS, advertises it with the lowest LOCAL_PREF.
	Shutdown bool
	// Rules are evaluated for routes that nothing else keeps from the neighbor; nil accepts them.
	Rules *policy.Policy
}

func (p ExportPolicy) check() error {
	for _, r := range p.Reject {
		if err := checkPrefix(r); err != nil {
			return fmt.Errorf("rejected prefix %q: %w", r, err)
		}
	}
	return nil
}

func (p ExportPolicy) clone() ExportPolicy {
	p.Reject = slices.Clone(p.Reject)
	return p
}

func (p ExportPolicy) equal(q ExportPolicy) bool {
	return p.Shutdown == q.Shutdown && slices.Equal(p.Reject, q.Reject) && p.Rules.Equal(q.Rules)
}

// exporter applies the export policy of a neighbor in one session. It is immutable.
type exporter struct {
	Neighbor
	own      Options
	internal bool
	// self is our address in the session; extended are the IPv4 families that the neighbor accepts
	// with an IPv6 next hop.
	self     netip.Addr
	extended message.FamilySet
	routerID netip.Addr // of the neighbor
}

// origin describes where a best path comes from.
type origin struct {
	source rib.Source
	peer   rib.Peer
	client bool // a route reflector client of ours
}

func (o origin) local() bool { return o.source == rib.Local }

// reflected reports whether advertising the path to an internal neighbor reflects it (RFC 4456).
func (o origin) reflected() bool { return !o.local() && !o.peer.External }

// admits reports whether a best path is advertised to the neighbor.
func (x *exporter) admits(k message.Key, a *message.Attributes, from origin) bool {
	if from.reflected() && x.internal && !from.client && !x.ReflectorClient {
		return false
	}
	if x.ExportLocalOnly && !from.local() {
		return false
	}
	if _, limited := a.OnlyToCustomer(); limited && x.Role.Below() {
		return false
	}
	for c := range a.Communities().All() {
		if c == message.NoAdvertise || !x.internal && (c == message.NoExport || c == message.NoExportSubconfed) {
			return false
		}
	}
	if len(x.Export.Reject) > 0 && Inside(x.Export.Reject, k.Prefix()) {
		return false
	}
	return !x.internal || a.OriginatorID() != x.routerID
}

// fields returns the attributes that the neighbor is sent, after the changes of a set of rules. It
// returns false if our address cannot be the next hop in the family.
func (x *exporter) fields(family message.Family, a *message.Attributes, from origin, rules uint64) (message.Fields, bool) {
	f := a.Fields()
	// The link-local next hop is only for neighbors on the link of the router that it belongs to
	// (RFC 2545 section 3). FRR prefers it to the global one, on whatever link its own session is.
	f.LinkLocal = netip.Addr{}
	self := !f.NextHop.IsValid()
	if x.internal {
		// A link-local next hop of another AS is on a link of ours alone.
		self = self || from.peer.External && (x.NextHopSelf || f.NextHop.IsLinkLocalUnicast())
		x.toInternal(&f, from)
	} else {
		self = true
		x.toExternal(&f, from)
	}
	if self {
		f.NextHop = x.self
		if x.self.Is4() != family.Is4() && !x.extended.Has(family) {
			return f, false
		}
	}
	if family.Is4() {
		f.NextHop = f.NextHop.Unmap()
	}
	if rules != 0 {
		applyRules(&f, x.Export.Rules.Changes(rules), x.own.ASN)
	}
	if x.Export.Shutdown && !slices.Contains(f.Communities, GracefulShutdown) {
		f.Communities = append(f.Communities, GracefulShutdown)
	}
	return f, true
}

func (x *exporter) toInternal(f *message.Fields, from origin) {
	if !f.HasLocalPref {
		f.LocalPref, f.HasLocalPref = rib.DefaultLocalPref, true
	}
	// A locator that one reflector advertises as lost must not be preferred to the route of
	// another reflector that still has it: it is lost only if all reflectors advertise the loss.
	lost := from.local() && slices.Contains(f.Communities, Blackhole)
	if lost || x.Export.Shutdown {
		f.LocalPref = lowestPref
	}
	if from.reflected() {
		if !f.OriginatorID.IsValid() {
			f.OriginatorID = from.peer.RouterID
		}
		f.ClusterList = slices.Insert(f.ClusterList, 0, message.Number(x.own.RouterID))
	}
}

func (x *exporter) toExternal(f *message.Fields, from origin) {
	f.ASPath = f.ASPath.Prepend(x.own.ASN, 1)
	f.LocalPref, f.HasLocalPref = 0, false
	f.OriginatorID, f.ClusterList = netip.Addr{}, nil
	f.PrefixSID = "" // RFC 8669 section 4, RFC 9252 section 8
	if x.Role.Above() && !f.HasOnlyToCustomer {
		f.OnlyToCustomer, f.HasOnlyToCustomer = x.own.ASN, true
	}
	if !from.local() {
		f.MED, f.HasMED = 0, false // RFC 4271 section 5.1.4
	}
	const nonTransitive = 1 << 62 // RFC 4360 section 2
	f.Extended = slices.DeleteFunc(f.Extended, func(c uint64) bool { return c&nonTransitive != 0 })
}

// blackholePref is the LOCAL_PREF of a route with BLACKHOLE inside this speaker, where it replaces
// any other route.
const blackholePref = math.MaxUint32
