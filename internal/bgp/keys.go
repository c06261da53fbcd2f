package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/bgp/bfd"
	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/policy"
)

// Keys are the keys of the configuration of a session with another AS, which daemons share.
type Keys struct {
	// LocalAddress is the source address of the session. Default: the kernel's choice.
	// Example: 2001:db8:1::1
	LocalAddress netip.Addr `yaml:"local_address,omitempty"`
	// Role is what this AS is for the neighbor (RFC 9234): customer, provider, peer, rs for a route
	// server, or rs-client. The session is refused if the neighbor's role does not fit. Routes that
	// were not meant for this AS are rejected, and routes of providers, peers and route servers go
	// to customers only. Default: none; a neighbor may refuse that. Example: customer
	Role Role `yaml:"role,omitempty"`
	// Passive waits for the neighbor's connection instead of connecting.
	Passive bool `yaml:"passive,omitempty"`
	// Multihop is the hop limit towards a neighbor that is not on the link. Default: the neighbor
	// is on the link. Example: 2
	Multihop uint8 `yaml:"multihop,omitempty"`
	// GTSM drops packets of the session that come from farther away than the link, or than multihop
	// (RFC 5082). The neighbor must have it too ("ttl security on", "ttl-security hops 1").
	GTSM bool `yaml:"gtsm,omitempty"`
	// HoldTime is how long the neighbor may be silent; the lower one of both ends is used, and a
	// third of it is the time between keepalives. Default: 9s
	HoldTime time.Duration `yaml:"hold_time,omitempty"`
	// ConnectRetry is the time between attempts to connect. Default: 1s
	ConnectRetry time.Duration `yaml:"connect_retry,omitempty"`
	// MaxPrefixes bounds the prefixes that the neighbor may advertise. Default: no limit
	MaxPrefixes PrefixLimit `yaml:"max_prefixes,omitempty"`
	// ImportRules are evaluated in order for each route from the neighbor that is not rejected
	// anyway, until one has an action. If none has, the route is accepted.
	ImportRules []policy.Rule `yaml:"import_rules,omitempty"`
	// ExportRules are the same for each route that the neighbor is sent.
	ExportRules []policy.Rule `yaml:"export_rules,omitempty"`
}

// LimitAction is what is done when a neighbor advertises more prefixes than its limit.
type LimitAction string

const (
	LimitWarn    LimitAction = "warn"    // log it
	LimitDiscard LimitAction = "discard" // do not accept more
	LimitDown    LimitAction = "down"    // close the session (RFC 4486)
)

// PrefixLimit bounds the prefixes that a neighbor advertises, accepted or not.
type PrefixLimit struct {
	// Limit is the highest number of prefixes. Example: 300000
	Limit int `yaml:"limit"`
	// Action is what happens beyond it: warn logs it; discard accepts no further prefixes; down
	// closes the session. Default: warn. Example: down
	Action LimitAction `yaml:"action,omitempty"`
	// Restart is when a session that was closed opens again. Default: 15m
	Restart time.Duration `yaml:"restart,omitempty"`
}

// DefaultRestart is when a session that exceeded its limit of prefixes opens again.
const DefaultRestart = 15 * time.Minute

func (l PrefixLimit) check() fault.List {
	var faults fault.List
	if l != (PrefixLimit{}) && l.Limit <= 0 {
		faults.Add("limit", "must be > 0, got %d", l.Limit)
	}
	if l.Action != "" && l.Action != LimitWarn && l.Action != LimitDiscard && l.Action != LimitDown {
		faults.Add("action", "must be %q, %q or %q, got %q", LimitWarn, LimitDiscard, LimitDown, l.Action)
	}
	switch {
	case l.Restart < 0 || l.Restart > 0 && l.Restart < time.Second:
		faults.Add("restart", "must be at least 1s, got %s", l.Restart)
	case l.Restart > 0 && l.Action != LimitDown:
		faults.Add("restart", "needs action: down")
	}
	return faults
}

// RPKIRule is the name of the rule that rejects routes with an invalid origin.
const RPKIRule = "rpki-invalid"

// Policies are what the rules of several neighbors have in common.
type Policies struct {
	// Lists are the prefix lists that rules name.
	Lists map[string]policy.List
	// RPKI: origins are validated; RejectInvalid adds a rule before those of import.
	RPKI, RejectInvalid bool
}

func (p Policies) before() []policy.Rule {
	if !p.RejectInvalid {
		return nil
	}
	return []policy.Rule{{Name: RPKIRule, RPKI: []policy.Validity{policy.Invalid}, Action: policy.Reject}}
}

// CheckKeys returns the faults of the keys of a session with the neighbor at an address, whose loss
// BFD may detect.
func (p Policies) CheckKeys(k *Keys, address netip.Addr, detect bfd.Config) fault.List {
	var faults fault.List
	switch local := k.LocalAddress; {
	case !local.IsValid():
	case local.Zone() != "" || local.Is4In6() || local.IsUnspecified() || local.IsMulticast() || local.Is4() != address.Is4():
		faults.Add("local_address", "must be an address of the same family as %s, got %s", address, local)
	case local.IsLinkLocalUnicast() != address.IsLinkLocalUnicast():
		faults.Add("local_address", "%s and address %s must both be link-local, or neither", local, address)
	}
	if k.Role != "" && !k.Role.IsValid() {
		faults.Add("role", "must be %q, %q, %q, %q or %q, got %q", message.RoleCustomer, message.RoleProvider, message.RolePeer, message.RoleRS, message.RoleRSClient, k.Role)
	}
	if k.HoldTime != 0 && (k.HoldTime < minHoldTime || k.HoldTime > maxHoldTime || k.HoldTime%time.Second != 0) {
		faults.Add("hold_time", "must be whole seconds from %s to %s, got %s", minHoldTime, maxHoldTime, k.HoldTime)
	}
	if k.ConnectRetry != 0 && (k.ConnectRetry < minConnectRetry || k.ConnectRetry%time.Second != 0) {
		faults.Add("connect_retry", "must be whole seconds from %s, got %s", minConnectRetry, k.ConnectRetry)
	}
	if k.Multihop > 0 && address.IsLinkLocalUnicast() {
		faults.Add("multihop", "%s is link-local, so the neighbor is on the link", address)
	}
	if k.Multihop > 0 && detect.Enabled() {
		faults.Add("multihop", "excludes bfd, which is single-hop (RFC 5881)")
	}
	faults.Merge("max_prefixes", k.MaxPrefixes.check())
	faults.Merge("import_rules", policy.Check(policy.Import, k.ImportRules, p.Lists, p.RPKI))
	faults.Merge("export_rules", policy.Check(policy.Export, k.ExportRules, p.Lists, p.RPKI))
	for i, r := range k.ImportRules {
		if p.RejectInvalid && r.Name == RPKIRule {
			faults.Add(fmt.Sprintf("import_rules[%d].name", i), "%s is the rule that rpki adds: choose another name, or write rpki.invalid: accept", RPKIRule)
		}
	}
	return faults
}

// Warn returns what is valid and has no effect in the keys.
func (p Policies) Warn(k *Keys) fault.List {
	var warnings fault.List
	warnings.Merge("import_rules", policy.Warnings(p.before(), k.ImportRules))
	warnings.Merge("export_rules", policy.Warnings(nil, k.ExportRules))
	return warnings
}

// WarnLists returns what has no effect in the prefix lists, which the keys of all neighbors use.
func (p Policies) WarnLists(all ...*Keys) fault.List {
	used := map[string]bool{}
	for _, k := range all {
		for _, r := range k.ImportRules {
			used[r.PrefixList] = true
		}
		for _, r := range k.ExportRules {
			used[r.PrefixList] = true
		}
	}
	return policy.ListWarnings(p.Lists, used)
}

// Compiler compiles the rules of several neighbors.
type Compiler struct {
	policies Policies
	lists    policy.Lists
	vrps     *policy.VRPs
}

// Compiler returns a compiler for rules that CheckKeys accepts. vrps may be nil.
func (p Policies) Compiler(vrps *policy.VRPs) Compiler {
	return Compiler{p, policy.CompileLists(p.Lists), vrps}
}

// Apply configures a neighbor by the keys.
func (c Compiler) Apply(k *Keys, n *Neighbor) {
	n.LocalAddress, n.Multihop, n.GTSM = k.LocalAddress, k.Multihop, k.GTSM
	n.Role = k.Role
	n.Passive = n.Passive || k.Passive
	n.HoldTime, n.ConnectRetry = k.HoldTime, k.ConnectRetry
	n.Import.MaxPrefixes = k.MaxPrefixes
	if rules := slices.Concat(c.policies.before(), k.ImportRules); len(rules) > 0 {
		n.Import.Rules = policy.New(rules, c.lists, c.vrps)
	}
	if len(k.ExportRules) > 0 {
		n.Export.Rules = policy.New(k.ExportRules, c.lists, nil)
	}
}
