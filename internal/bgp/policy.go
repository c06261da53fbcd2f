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
	globalTable  = "global" // GoBGP's name of the table that is not of a route server

	noExportSet    = "no-export"
	noAdvertiseSet = "no-advertise"
	martianSet     = "martians"
	shutdownSet    = "graceful-shutdown"
	blackholeSet   = "blackhole"
)

// lowestPref is the LOCAL_PREF of routes with GRACEFUL_SHUTDOWN. RFC 8326 section 4.2 recommends 0,
// which GoBGP treats as absent.
const lowestPref = 1

// martians are never accepted from another AS.
var martians = []netip.Prefix{
	netip.MustParsePrefix("::/128"),
	netip.MustParsePrefix("::1/128"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
}

// policyEntry holds the fields of a neighbor that its policies depend on.
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

// policies builds the import and the export policy of all neighbors. Statements are evaluated in
// order until one accepts or rejects. Each is bound to one neighbor, except the first import
// statement: GoBGP applies the import policy to local routes too.
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
		{DefinedType: api.DefinedType_DEFINED_TYPE_COMMUNITY, Name: blackholeSet, List: []string{communityText(Blackhole)}},
		prefixSet(martianSet, Within("", martians...)),
	}
	for _, e := range entries {
		sets = append(sets, &api.DefinedSet{
			DefinedType: api.DefinedType_DEFINED_TYPE_NEIGHBOR, Name: e.Name, List: []string{e.Address.String() + "/128"},
		})
		if filters := e.prefixFilters(); len(filters) > 0 {
			sets = append(sets, prefixSet(rejectSet(e.Name), filters))
		}
		if len(e.Export.Reject) > 0 {
			sets = append(sets, prefixSet(withholdSet(e.Name), Within("", e.Export.Reject...)))
		}
		if !e.internal() {
			sets = append(sets, &api.DefinedSet{
				DefinedType: api.DefinedType_DEFINED_TYPE_AS_PATH, Name: loopSet(e.Name),
				// The parentheses avoid GoBGP's fast path, which ignores AS_SETs.
				List: []string{fmt.Sprintf("_(%d)_", e.ownASN)},
			}, &api.DefinedSet{
				DefinedType: api.DefinedType_DEFINED_TYPE_AS_PATH, Name: firstASSet(e.Name),
				List: []string{fmt.Sprintf("^%d_", e.ASN)},
			}, &api.DefinedSet{
				DefinedType: api.DefinedType_DEFINED_TYPE_COMMUNITY, Name: internalSet(e.Name), List: e.internalSignals(),
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
		if e.Import.EnforceFirstAS {
			add("first-as", &api.Conditions{AsPathSet: &api.MatchSet{Type: api.MatchSet_TYPE_INVERT, Name: firstASSet(e.Name)}}, reject())
		}
	}
	if len(e.prefixFilters()) > 0 {
		add("reject", &api.Conditions{PrefixSet: match(rejectSet(e.Name))}, reject())
	}
	if len(e.Import.OwnAddresses) > 0 {
		add("own-next-hop", &api.Conditions{NextHopInList: texts(e.Import.OwnAddresses)}, reject())
	}
	if !e.internal() {
		add("internal-signals", &api.Conditions{CommunitySet: match(internalSet(e.Name))}, &api.Actions{
			Community: &api.CommunityAction{Type: api.CommunityAction_TYPE_REMOVE, Communities: e.internalSignals()},
		})
		last := accept()
		last.LocalPref = &api.LocalPrefAction{Value: lowestPref}
		add("shutdown", &api.Conditions{CommunitySet: match(shutdownSet), NextHopInList: texts(e.Import.NextHops)}, last)
	}
	a := accept()
	if e.LocalPref > 0 {
		a.LocalPref = &api.LocalPrefAction{Value: e.LocalPref}
	}
	add("rest", &api.Conditions{NextHopInList: texts(e.Import.NextHops)}, a)
	if len(e.Import.NextHops) > 0 {
		add("foreign-next-hop", &api.Conditions{}, reject()) // GoBGP cannot invert a list of next hops
	}
	return out
}

// prefixFilters returns the prefixes that the import policy rejects, including those that are too
// long.
func (e policyEntry) prefixFilters() []PrefixFilter {
	filters := e.Import.Reject
	if limit := e.Import.MaxLength; limit > 0 && limit < 128 {
		filters = append(slices.Clone(filters), PrefixFilter{
			Prefix: netip.PrefixFrom(netip.IPv6Unspecified(), 0), Min: limit + 1, Max: 128, Reason: RejectTooLong,
		})
	}
	return filters
}

// internalSignals returns the communities of internalSignal as regular expressions.
func (e policyEntry) internalSignals() []string {
	signals := []string{"^" + communityText(Blackhole) + "$"}
	if e.ownASN <= 0xffff {
		signals = append(signals, fmt.Sprintf("^%d:.*$", e.ownASN))
	}
	return signals
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
		// A locator that one reflector advertises as lost must not be preferred to the
		// route of another reflector that still has it: it is lost only if all reflectors
		// advertise the loss.
		lost := exportActions(e)
		lost.LocalPref = &api.LocalPrefAction{Value: lowestPref}
		add("blackhole", &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL, CommunitySet: match(blackholeSet)}, lost)
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

// exportActions returns the actions on every route advertised to the neighbor.
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
func firstASSet(neighbor string) string  { return "first-as-" + neighbor }
func internalSet(neighbor string) string { return "internal-" + neighbor }

func accept() *api.Actions { return &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT} }
func reject() *api.Actions { return &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_REJECT} }

func match(set string) *api.MatchSet {
	return &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: set}
}

func prefixSet(name string, filters []PrefixFilter) *api.DefinedSet {
	set := &api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_PREFIX, Name: name}
	for _, f := range filters {
		set.Prefixes = append(set.Prefixes, &api.Prefix{
			IpPrefix: f.Prefix.String(), MaskLengthMin: uint32(max(f.Min, f.Prefix.Bits())), MaskLengthMax: uint32(f.Max),
		})
	}
	return set
}

func texts[T fmt.Stringer](list []T) []string {
	text := make([]string, len(list))
	for i, v := range list {
		text[i] = v.String()
	}
	return text
}
