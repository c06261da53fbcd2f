package bgp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/policy"
	"github.com/tabane/tabane/internal/bgp/rib"
	"github.com/tabane/tabane/internal/bgp/vpn"
)

// RejectReason is the reason why a route was rejected, as a label for counters.
type RejectReason = message.RejectReason

// RejectedError is the error of a received route that is not accepted.
type RejectedError = message.RejectedError

const (
	RejectNextHop     = message.RejectNextHop
	RejectNoPrefixSID = message.RejectNoPrefixSID
	RejectNoL3Service = message.RejectNoL3Service
	RejectStructure   = message.RejectStructure
	RejectSID         = message.RejectSID
	RejectNoTarget    = message.RejectNoTarget

	// Reasons of the import policy.
	RejectMartian        RejectReason = "martian"          // link-local, loopback, multicast, reserved
	RejectOwnPrefix      RejectReason = "own-prefix"       // our own address space
	RejectConnected      RejectReason = "connected"        // a network that our interfaces are connected to
	RejectLoop           RejectReason = "as-loop"          // our own AS in the AS path, or a loop of reflectors
	RejectFirstAS        RejectReason = "first-as"         // the AS path does not begin with the neighbor's AS
	RejectTooLong        RejectReason = "too-long"         // longer than the maximum prefix length
	RejectOwnNextHop     RejectReason = "own-next-hop"     // the next hop is our own address
	RejectForeignNextHop RejectReason = "foreign-next-hop" // the next hop is not the neighbor
	RejectFamily         RejectReason = "family"           // VPN routes, which this speaker does not accept
	RejectLeak           RejectReason = "leak"             // the route was to go to customers only
	RejectForeignSID     RejectReason = "foreign-sid"      // the SID is outside the permitted locators
	RejectNoPeer         RejectReason = "no-peer"          // no egress peer here has one of the route targets
)

// Unused reports whether the reason says that a route is fine, but of no use for this speaker.
func Unused(r RejectReason) bool { return r == RejectNoPeer || r == RejectFamily }

// ImportPolicy filters the routes received from a neighbor (RFC 7454, RFC 8212). Routes whose AS
// path contains our AS are always rejected, and so are routes for link-local, loopback, multicast
// or reserved addresses, or with such a next hop. The community BLACKHOLE and (large) communities
// of our AS are removed from routes of other ASes, since they have a meaning inside our AS.
type ImportPolicy struct {
	// Reject filters are evaluated in order; the first match determines the reason.
	Reject []PrefixFilter
	// MaxLength rejects unicast prefixes that are longer; 0 means no limit.
	MaxLength int
	// EnforceFirstAS rejects routes whose AS path does not begin with the neighbor's AS (RFC
	// 4271 section 6.3). It must be off for route servers (RFC 7947 section 2.2.2).
	EnforceFirstAS bool
	// NextHops, if not empty, rejects next hops outside these prefixes. OwnAddresses rejects
	// next hops that are our own addresses (RFC 4271 section 5.1.3).
	NextHops     []netip.Prefix
	OwnAddresses []netip.Addr
	// RejectVPN rejects every VPN route, for speakers that only originate VPN routes.
	RejectVPN bool
	// Services, unless nil, accepts only VPN routes with a usable SID.
	Services *Services
	// MaxPrefixes bounds the routes of each unicast family, accepted or not.
	MaxPrefixes PrefixLimit
	// Rules are evaluated for routes that nothing above rejects; nil accepts them.
	Rules *policy.Policy
}

// Services are the VPN routes that are accepted: those with one of the route targets of their IP
// version, and a SID in one of the locators.
type Services struct {
	Targets  []Target
	Locators []netip.Prefix
}

// Target is a route target of the VPN routes of an IP version.
type Target struct {
	RT vpn.ID
	IP IP
}

func (s *Services) equal(t *Services) bool {
	return s == t || s != nil && t != nil && slices.Equal(s.Targets, t.Targets) && slices.Equal(s.Locators, t.Locators)
}

func (s *Services) clone() *Services {
	if s == nil {
		return nil
	}
	return &Services{slices.Clone(s.Targets), slices.Clone(s.Locators)}
}

// PrefixFilter matches the prefixes inside Prefix whose length is from Min to Max.
type PrefixFilter struct {
	Prefix   netip.Prefix
	Min, Max int
	Reason   RejectReason
}

// Within returns filters that match the prefixes and all more specific ones.
func Within(reason RejectReason, prefixes ...netip.Prefix) []PrefixFilter {
	filters := make([]PrefixFilter, len(prefixes))
	for i, p := range prefixes {
		filters[i] = PrefixFilter{Prefix: p, Min: p.Bits(), Max: p.Addr().BitLen(), Reason: reason}
	}
	return filters
}

func (f PrefixFilter) check() error {
	if err := checkPrefix(f.Prefix); err != nil {
		return fmt.Errorf("rejected prefix %q: %w", f.Prefix, err)
	}
	if f.Min < 0 || f.Min > f.Max || f.Max > f.Prefix.Addr().BitLen() {
		return fmt.Errorf("rejected prefix %s: lengths from %d to %d are impossible", f.Prefix, f.Min, f.Max)
	}
	return nil
}

func (p ImportPolicy) check() error {
	var errs []error
	for _, f := range p.Reject {
		errs = append(errs, f.check())
	}
	for _, n := range p.NextHops {
		if err := checkPrefix(n); err != nil {
			errs = append(errs, fmt.Errorf("next hops %q: %w", n, err))
		}
	}
	if p.MaxLength < 0 || p.MaxLength > 128 {
		errs = append(errs, fmt.Errorf("maximum prefix length must be from 0 to 128, got %d", p.MaxLength))
	}
	return errors.Join(append(errs, p.MaxPrefixes.check().Err())...)
}

func (p ImportPolicy) clone() ImportPolicy {
	p.Reject, p.NextHops, p.OwnAddresses = slices.Clone(p.Reject), slices.Clone(p.NextHops), slices.Clone(p.OwnAddresses)
	p.Services = p.Services.clone()
	return p
}

func (p ImportPolicy) equal(q ImportPolicy) bool {
	return slices.Equal(p.Reject, q.Reject) && slices.Equal(p.NextHops, q.NextHops) && slices.Equal(p.OwnAddresses, q.OwnAddresses) &&
		p.MaxLength == q.MaxLength && p.EnforceFirstAS == q.EnforceFirstAS && p.RejectVPN == q.RejectVPN && p.MaxPrefixes == q.MaxPrefixes && p.Services.equal(q.Services) && p.Rules.Equal(q.Rules)
}

// lowestPref is the LOCAL_PREF of routes with GRACEFUL_SHUTDOWN. RFC 8326 section 4.2 recommends 0,
// which some speakers take for absent.
const lowestPref = 1

// martians are never accepted, also not from a reflector, which may pass on what a router with less
// care has accepted: no router forwards packets to them (RFC 1812 section 5.3.7, RFC 6890), and a
// route to them would take the host's own packets away.
var martians = []netip.Prefix{
	netip.MustParsePrefix("::/96"),
	netip.MustParsePrefix("::ffff:0:0/96"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("240.0.0.0/4"),
}

// importer applies the import policy of a neighbor. It is immutable.
type importer struct {
	Neighbor
	own      Options
	number   uint64 // distinguishes the importers of a speaker
	internal bool
	// filters are those that are evaluated, and index finds the first of them.
	filters []PrefixFilter
	index   policy.Index
	// targets are the families of each route target of Import.Services.
	targets map[vpn.ID]message.FamilySet
}

// newImporter returns the importer of a neighbor's current policy.
func (s *Speaker) newImporter(n *neighbor) *importer {
	s.policies++
	m := &importer{Neighbor: n.conf, own: s.opt, number: s.policies, internal: n.internal}
	m.filters = append(Within(RejectMartian, martians...), m.Import.Reject...)
	list := make(policy.List, len(m.filters))
	for i, f := range m.filters {
		list[i] = policy.Entry{Prefix: f.Prefix, Min: uint8(max(f.Min, f.Prefix.Bits())), Max: uint8(f.Max)}
	}
	m.index = policy.NewIndex(list)
	if v := m.Import.Services; v != nil {
		m.targets = make(map[vpn.ID]message.FamilySet, len(v.Targets))
		for _, t := range v.Targets {
			m.targets[t.RT] |= message.Families(t.IP.VPN())
		}
	}
	return m
}

// RuleReason is the reason of a route that a rule rejects.
func RuleReason(rule string) RejectReason { return RejectReason("rule " + rule) }

// class is what the policy says of all routes with the same attributes.
type class struct {
	err    error  // why they are rejected
	change uint64 // what is changed in them: a set of the following bits
	rules  policy.Class
	// service has the SID that they must have; nil: none.
	service *message.Service
}

const (
	// dropSignals removes the communities that have a meaning inside our AS.
	dropSignals = 1 << iota
	// leaving gives the lowest LOCAL_PREF.
	leaving
	// preferred gives the LOCAL_PREF of the neighbor.
	preferred

	// ruleShift is the position of a set of rules in a change.
	ruleShift = iota
)

// onlyRole is neither leaving nor preferred, which exclude each other: there is something to change
// because of the neighbor's role.
const onlyRole = leaving | preferred

// A set of rules, with the one of RPKI, and the bits above fit into one word.
const _ = uint(64 - ruleShift - policy.MaxRules - 1)

// classify applies the part of the policy that is the same for all routes with the same attributes.
func (m *importer) classify(f message.Family, a *message.Attributes) (c class) {
	path, communities := a.ASPath(), a.Communities()
	hop := nextHop(f, a, m.Address)
	switch {
	case m.Import.RejectVPN && f.VPN():
		c.err = message.Reject(RejectFamily, "VPN routes are not accepted from %s", m.Name)
	case path.Contains(m.own.ASN):
		c.err = message.Reject(RejectLoop, "own AS %d in the AS path", m.own.ASN)
	case m.internal && a.OriginatorID() == m.own.RouterID:
		c.err = message.Reject(RejectLoop, "this router is the originator")
	case m.internal && a.ClusterList().Has(message.Number(m.own.RouterID)):
		c.err = message.Reject(RejectLoop, "own cluster ID in the cluster list")
	case !m.internal && m.Import.EnforceFirstAS && a.FirstAS() != m.ASN:
		c.err = message.Reject(RejectFirstAS, "AS path does not begin with %d", m.ASN)
	case m.leaked(a):
		c.err = message.Reject(RejectLeak, "it was to go to customers only (RFC 9234)")
	case hop.Is4In6() && !f.VPN():
		c.err = message.Reject(RejectNextHop, "%s: IPv6 packets reach an IPv4 next hop through a tunnel only (RFC 4798)", hop)
	case !m.isHost(hop.Unmap()):
		c.err = message.Reject(RejectNextHop, "%s is not a unicast address", hop)
	case slices.Contains(m.Import.OwnAddresses, hop.Unmap()):
		c.err = message.Reject(RejectOwnNextHop, "next hop %s is ours", hop)
	case len(m.Import.NextHops) > 0 && !slices.ContainsFunc(m.Import.NextHops, func(p netip.Prefix) bool { return p.Contains(hop.Unmap()) }):
		c.err = message.Reject(RejectForeignNextHop, "next hop %s is not the neighbor", hop)
	}
	if m.targets != nil && f.VPN() && c.err == nil {
		c.service, c.err = a.Service(), m.checkTargets(f, a)
	}
	if c.err != nil {
		return c
	}
	if !m.internal {
		for signal := range communities.All() {
			if m.internalSignal(signal) {
				c.change |= dropSignals
			}
			if signal == message.GracefulShutdown {
				c.change |= leaving
			}
		}
		if slices.ContainsFunc(a.Large(), m.internalLarge) {
			c.change |= dropSignals
		}
	}
	c.rules = classify(m.Import.Rules, a)
	if pref, ok := a.LocalPref(); m.LocalPref > 0 && c.change&leaving == 0 && (!ok || pref != m.LocalPref) {
		c.change |= preferred
	}
	if _, limited := a.OnlyToCustomer(); !limited && m.Role.Below() && c.change&(leaving|preferred) == 0 {
		c.change |= onlyRole
	}
	return c
}

// leaked reports whether a neighbor sends a route that it, or another AS on the path, should have
// sent to customers only (RFC 9234 section 5).
func (m *importer) leaked(a *message.Attributes) bool {
	by, limited := a.OnlyToCustomer()
	switch m.Role {
	case message.RoleProvider, message.RoleRS:
		return limited
	case message.RolePeer:
		return limited && by != m.ASN
	}
	return false
}

// isHost reports whether a next hop is the address of a host: a link-local one only on the link of
// the session, or where the neighbor is outside our AS and has to be the next hop itself.
func (m *importer) isHost(a netip.Addr) bool {
	if a.IsLinkLocalUnicast() {
		return !m.internal || m.Address.IsLinkLocalUnicast()
	}
	return a.IsValid() && !slices.ContainsFunc(martians, func(p netip.Prefix) bool { return p.Contains(a) })
}

// checkTargets returns why the route targets of VPN routes are none of Import.Services.
func (m *importer) checkTargets(f message.Family, a *message.Attributes) error {
	targets := a.Targets()
	if len(targets) == 0 {
		return message.Reject(RejectNoTarget, "no route target")
	}
	if !slices.ContainsFunc(targets, func(t vpn.ID) bool { return m.targets[t].Has(f) }) {
		return message.Reject(RejectNoPeer, "no egress peer has the route target %s", targets[0])
	}
	return nil
}

// checkSID returns why the SID of a VPN route with a label is not accepted.
func (m *importer) checkSID(s *message.Service, label uint32) error {
	sid, err := s.SID(label)
	if err == nil && !slices.ContainsFunc(m.Import.Services.Locators, func(l netip.Prefix) bool { return l.Contains(sid) }) {
		err = message.Reject(RejectForeignSID, "sid %s is outside the permitted locators", sid)
	}
	return err
}

// evaluate applies the policy to a route with a label, and returns the change of its attributes or
// why it is rejected.
func (m *importer) evaluate(c class, k message.Key, label uint32) (change uint64, err error) {
	if c.err != nil {
		return 0, c.err
	}
	if c.service != nil {
		if err := m.checkSID(c.service, label); err != nil {
			return 0, err
		}
	}
	p := k.Prefix()
	if i := m.index.First(p); i >= 0 {
		return 0, message.Reject(m.filters[i].Reason, "%s", p)
	}
	if limit := m.Import.MaxLength; limit > 0 && p.Bits() > limit && !k.Family().VPN() {
		return 0, message.Reject(RejectTooLong, "%s is longer than /%d", p, limit)
	}
	v := m.Import.Rules.Evaluate(c.rules, p)
	if !v.Accept {
		name := m.Import.Rules.Name(v.Rule)
		return 0, message.Reject(RuleReason(name), "%s", p)
	}
	return c.change | v.Changed<<ruleShift, nil
}

// classify returns the class of the attributes in rules, which may be nil.
func classify(rules *policy.Policy, a *message.Attributes) policy.Class {
	if rules == nil {
		return policy.Class{}
	}
	path := a.ASPath()
	seen := policy.Attributes{ASPath: path.Flat(), First: a.FirstAS(), Origin: path.Origin(), Communities: a.Communities().Slice()}
	for _, c := range a.Large() {
		seen.Large = append(seen.Large, c)
	}
	return rules.Classify(seen)
}

// applyRules makes the changes of a set of rules. own is our AS number.
func applyRules(f *message.Fields, changes policy.Changes, own uint32) {
	if changes.LocalPref != nil {
		f.LocalPref, f.HasLocalPref = *changes.LocalPref, true
	}
	if changes.MED != nil {
		f.MED, f.HasMED = *changes.MED, true
	}
	if changes.Prepend > 0 {
		f.ASPath = f.ASPath.Prepend(own, int(changes.Prepend))
	}
	f.Communities = slices.DeleteFunc(f.Communities, func(c uint32) bool {
		return slices.Contains(changes.RemoveCommunities, policy.Standard(c))
	})
	f.Large = slices.DeleteFunc(f.Large, func(c message.LargeCommunity) bool {
		return slices.Contains(changes.RemoveCommunities, policy.Community{Large: true, Value: c})
	})
	for _, c := range changes.AddCommunities {
		switch {
		case c.Large && !slices.Contains(f.Large, c.Value):
			f.Large = append(f.Large, c.Value)
		case !c.Large && !slices.Contains(f.Communities, c.Value[0]):
			f.Communities = append(f.Communities, c.Value[0])
		}
	}
}

// accept returns the ID of the attributes of a route after the policy; 0: it rejects the route,
// with the number of the reason. Callers hold the speaker's mu.
func (m *importer) accept(n *neighbor, c class, k message.Key, label uint32, received rib.ID) (rib.ID, uint16) {
	change, err := m.evaluate(c, k, label)
	if err != nil {
		return 0, n.rejected(k, err)
	}
	if change == 0 {
		return received, 0
	}
	return n.speaker.rib.Derive(received, rib.Change{m.number, change}, func(a *message.Attributes) *message.Attributes {
		return n.speaker.interner.Intern(m.apply(a, change))
	}), 0
}

// apply changes attributes.
func (m *importer) apply(a *message.Attributes, change uint64) message.Fields {
	f := a.Fields()
	if change&dropSignals != 0 {
		f.Communities = slices.DeleteFunc(f.Communities, m.internalSignal)
		f.Large = slices.DeleteFunc(f.Large, m.internalLarge)
	}
	if m.Role.Below() && !f.HasOnlyToCustomer {
		f.OnlyToCustomer, f.HasOnlyToCustomer = m.ASN, true
	}
	pref := change & (leaving | preferred)
	if pref == preferred {
		f.LocalPref, f.HasLocalPref = m.LocalPref, true
	}
	if rules := change >> ruleShift; rules != 0 {
		applyRules(&f, m.Import.Rules.Changes(rules), m.own.ASN)
	}
	if pref == leaving {
		f.LocalPref, f.HasLocalPref = lowestPref, true
	}
	return f
}

// internalSignal reports whether a community has a meaning inside our AS and is therefore removed
// from routes of other ASes.
func (m *importer) internalSignal(c uint32) bool {
	return c == Blackhole || m.own.ASN <= 0xffff && c>>16 == m.own.ASN
}

// internalLarge is internalSignal of a large community, whose first number is the AS that defines
// it (RFC 8092 section 2).
func (m *importer) internalLarge(c message.LargeCommunity) bool { return c[0] == m.own.ASN }

// Inside reports whether p equals, or is more specific than, one of others.
func Inside(others []netip.Prefix, p netip.Prefix) bool {
	return slices.ContainsFunc(others, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) })
}
