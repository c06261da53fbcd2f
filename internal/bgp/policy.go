package bgp

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/api"
)

const (
	importPolicy = "import"
	exportPolicy = "export"
	globalTable  = "global" // GoBGP's name of the table that is not a route server's

	noExportSet    = "no-export"
	noAdvertiseSet = "no-advertise"
	martianSet     = "martians"
	shutdownSet    = "graceful-shutdown"
)

// lowestPref is the LOCAL_PREF of routes with GRACEFUL_SHUTDOWN. RFC 8326 section 4.2 recommends 0, which
// GoBGP treats as absent.
const lowestPref = 1

// martians are never accepted from another AS.
var martians = []netip.Prefix{
	netip.MustParsePrefix("::/128"),
	netip.MustParsePrefix("::1/128"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
}

// policyEntry is the part of a neighbor that its policies depend on.
type policyEntry struct {
	Neighbor
	ownASN uint32
}

func (e policyEntry) internal() bool { return e.ASN == e.ownASN }

// assignments attach the two policies to the global table.
func assignments() []*api.PolicyAssignment {
	assign := func(name string, direction api.PolicyDirection) *api.PolicyAssignment {
		return &api.PolicyAssignment{
			Name:          globalTable,
			Direction:     direction,
			Policies:      []*api.Policy{{Name: name}},
			DefaultAction: api.RouteAction_ROUTE_ACTION_ACCEPT,
		}
	}
	return []*api.PolicyAssignment{
		assign(importPolicy, api.PolicyDirection_POLICY_DIRECTION_IMPORT),
		assign(exportPolicy, api.PolicyDirection_POLICY_DIRECTION_EXPORT),
	}
}

// policies builds the import and the export policy of all neighbors. Statements are evaluated in order until
// one accepts or rejects. Each is bound to one neighbor, except the first import statement: GoBGP applies
// the import policy to local routes too.
func policies(entries []policyEntry) *api.SetPoliciesRequest {
	imports := []*api.Statement{{
		Name:       "import-own",
		Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
		Actions:    accept(),
	}}
	var exports []*api.Statement
	sets := []*api.DefinedSet{
		{DefinedType: api.DefinedType_DEFINED_TYPE_COMMUNITY, Name: noExportSet,
			List: []string{"no-export", "no-advertise", "no-export-subconfed"}},
		{DefinedType: api.DefinedType_DEFINED_TYPE_COMMUNITY, Name: noAdvertiseSet, List: []string{"no-advertise"}},
		{DefinedType: api.DefinedType_DEFINED_TYPE_COMMUNITY, Name: shutdownSet, List: []string{communityText(GracefulShutdown)}},
		prefixSet(martianSet, martians),
	}
	for _, e := range entries {
		sets = append(sets, &api.DefinedSet{
			DefinedType: api.DefinedType_DEFINED_TYPE_NEIGHBOR, Name: e.Name, List: []string{e.Address.String() + "/128"},
		})
		if len(e.Import.Reject) > 0 {
			sets = append(sets, prefixSet(rejectSet(e.Name), e.Import.Reject))
		}
		if len(e.Export.Reject) > 0 {
			sets = append(sets, prefixSet(withholdSet(e.Name), e.Export.Reject))
		}
		if !e.internal() {
			sets = append(sets, &api.DefinedSet{
				DefinedType: api.DefinedType_DEFINED_TYPE_AS_PATH, Name: loopSet(e.Name),
				// The parentheses avoid GoBGP's fast path, which ignores AS_SETs.
				List: []string{fmt.Sprintf("_(%d)_", e.ownASN)},
			})
		}
		imports = append(imports, importStatements(e)...)
		exports = append(exports, exportStatements(e)...)
	}
	return &api.SetPoliciesRequest{
		DefinedSets: sets,
		Policies: []*api.Policy{
			{Name: importPolicy, Statements: imports},
			{Name: exportPolicy, Statements: exports},
		},
	}
}

func importStatements(e policyEntry) []*api.Statement {
	var out []*api.Statement
	add := func(what string, c *api.Conditions, a *api.Actions) {
		c.NeighborSet = match(e.Name)
		out = append(out, &api.Statement{Name: "import-" + what + "-" + e.Name, Conditions: c, Actions: a})
	}
	if e.Import.RejectVPN {
		add("vpn", &api.Conditions{AfiSafiIn: []*api.Family{{Afi: api.Family_AFI_IP6, Safi: api.Family_SAFI_MPLS_VPN}}}, reject())
	}
	if !e.internal() {
		add("martians", &api.Conditions{PrefixSet: match(martianSet)}, reject())
		add("loop", &api.Conditions{AsPathSet: match(loopSet(e.Name))}, reject())
	}
	if len(e.Import.Reject) > 0 {
		add("reject", &api.Conditions{PrefixSet: match(rejectSet(e.Name))}, reject())
	}
	if !e.internal() {
		last := accept()
		last.LocalPref = &api.LocalPrefAction{Value: lowestPref}
		add("shutdown", &api.Conditions{CommunitySet: match(shutdownSet)}, last)
	}
	a := accept()
	if e.LocalPref > 0 {
		a.LocalPref = &api.LocalPrefAction{Value: e.LocalPref}
	}
	add("rest", &api.Conditions{}, a)
	return out
}

func exportStatements(e policyEntry) []*api.Statement {
	var out []*api.Statement
	add := func(what string, c *api.Conditions, a *api.Actions) {
		c.NeighborSet = match(e.Name)
		out = append(out, &api.Statement{Name: "export-" + what + "-" + e.Name, Conditions: c, Actions: a})
	}
	if len(e.Export.Reject) > 0 {
		add("reject", &api.Conditions{PrefixSet: match(withholdSet(e.Name))}, reject())
	}
	unchanged, self := exportActions(e), exportActions(e)
	self.Nexthop = &api.NexthopAction{Self: true}
	if e.internal() {
		add("no-advertise", &api.Conditions{CommunitySet: match(noAdvertiseSet)}, reject())
		if e.NextHopSelf {
			add("self", &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_EXTERNAL}, self)
		}
		add("rest", &api.Conditions{}, unchanged)
		return out
	}
	add("no-export", &api.Conditions{CommunitySet: match(noExportSet)}, reject())
	if e.ExportLocalOnly {
		add("own", &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL}, self)
		add("rest", &api.Conditions{}, reject())
	} else {
		add("rest", &api.Conditions{}, self)
	}
	return out
}

// exportActions are the actions on every route that is advertised to the neighbor.
func exportActions(e policyEntry) *api.Actions {
	a := accept()
	if !e.Export.Shutdown {
		return a
	}
	a.Community = &api.CommunityAction{Type: api.CommunityAction_TYPE_ADD, Communities: []string{communityText(GracefulShutdown)}}
	if e.internal() {
		a.LocalPref = &api.LocalPrefAction{Value: lowestPref}
	}
	return a
}

func communityText(c uint32) string { return fmt.Sprintf("%d:%d", c>>16, c&0xffff) }

func rejectSet(neighbor string) string   { return "reject-" + neighbor }
func withholdSet(neighbor string) string { return "withhold-" + neighbor }
func loopSet(neighbor string) string     { return "loop-" + neighbor }

func accept() *api.Actions { return &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT} }
func reject() *api.Actions { return &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_REJECT} }

func match(set string) *api.MatchSet {
	return &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: set}
}

// admit applies the import policy to a route of the Adj-RIB-In. It must agree with importStatements, by which
// GoBGP selects best paths.
func (e policyEntry) admit(u Update) Update {
	if u.Withdrawn || u.Rejected != nil {
		return u
	}
	external := !e.internal()
	if external && (inside(martians, u.Prefix) || slices.Contains(u.ASPath, e.ownASN)) || inside(e.Import.Reject, u.Prefix) {
		return Update{Neighbor: u.Neighbor, Prefix: u.Prefix, Withdrawn: true}
	}
	if external {
		u.LocalPref = 0 // ignored from external peers (RFC 4271 section 5.1.5)
	}
	switch {
	case external && slices.Contains(u.Communities, GracefulShutdown):
		u.LocalPref = lowestPref
	case e.LocalPref > 0:
		u.LocalPref = e.LocalPref
	}
	return u
}

// inside reports whether p equals, or is more specific than, one of others.
func inside(others []netip.Prefix, p netip.Prefix) bool {
	return slices.ContainsFunc(others, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) })
}

// prefixSet matches the prefixes and all more specific ones.
func prefixSet(name string, prefixes []netip.Prefix) *api.DefinedSet {
	set := &api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_PREFIX, Name: name}
	for _, p := range prefixes {
		set.Prefixes = append(set.Prefixes, &api.Prefix{
			IpPrefix: p.String(), MaskLengthMin: uint32(p.Bits()), MaskLengthMax: 128,
		})
	}
	return set
}
