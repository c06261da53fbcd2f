package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/base/fault"
)

// Action ends the evaluation of a policy.
type Action string

const (
	Accept Action = "accept"
	Reject Action = "reject"
)

// Rule is one rule of a policy. It applies to routes that meet all of its conditions.
type Rule struct {
	// Name identifies the rule in status and metrics.
	// Example: backup
	Name string `yaml:"name"`
	// PrefixList is the name of the prefix list that must accept the prefix.
	// Example: customers
	PrefixList string `yaml:"prefix_list,omitempty"`
	// ASPath has conditions on the AS path.
	ASPath ASPath `yaml:"as_path,omitempty"`
	// Communities: the route must have one of them (RFC 1997, RFC 8092).
	// Example: ["65001:666", no-export, "65536:1:2"]
	Communities []Community `yaml:"communities,omitempty"`
	// RPKI: the route's origin validation state must be one of these (RFC 6811): valid, invalid or
	// not-found. It needs rpki.
	// Example: [not-found]
	RPKI []Validity `yaml:"rpki,omitempty"`
	// Set is what the rule changes in the route.
	Set Changes `yaml:"set,omitempty"`
	// Action ends the evaluation: accept or reject. Default: the next rule is evaluated.
	// Example: reject
	Action Action `yaml:"action,omitempty"`
}

// ASPath holds conditions on an AS path. Each that is given must be met.
type ASPath struct {
	// First: the path begins with one of these AS numbers: the neighbor's, except behind a route
	// server. Example: [65001]
	First []uint32 `yaml:"first,omitempty"`
	// Contains: one of these AS numbers is in the path.
	// Example: [64999, 65010]
	Contains []uint32 `yaml:"contains,omitempty"`
	// Origin: the path ends with one of these AS numbers. Example: [65010]
	Origin []uint32 `yaml:"origin,omitempty"`
}

// Changes are changes of a route.
type Changes struct {
	// LocalPref is the new LOCAL_PREF, which the rules of import can set. Example: 200
	LocalPref *uint32 `yaml:"local_pref,omitempty"`
	// MED is the new MULTI_EXIT_DISC. Example: 10
	MED *uint32 `yaml:"med,omitempty"`
	// Prepend adds the own AS number so many times more to the AS path, which the rules of export
	// can do. Example: 2
	Prepend uint16 `yaml:"prepend,omitempty"`
	// RemoveCommunities are removed, before others are added. Example: ["65000:1"]
	RemoveCommunities []Community `yaml:"remove_communities,omitempty"`
	// AddCommunities are added. Example: ["65000:2"]
	AddCommunities []Community `yaml:"add_communities,omitempty"`
}

func (c Changes) empty() bool {
	return c.LocalPref == nil && c.MED == nil && c.Prepend == 0 && len(c.AddCommunities)+len(c.RemoveCommunities) == 0
}

// add applies the changes of a later rule.
func (c *Changes) add(later Changes) {
	if later.LocalPref != nil {
		c.LocalPref = later.LocalPref
	}
	if later.MED != nil {
		c.MED = later.MED
	}
	c.Prepend += later.Prepend
	c.AddCommunities = slices.DeleteFunc(slices.Clone(c.AddCommunities), func(x Community) bool { return slices.Contains(later.RemoveCommunities, x) })
	c.AddCommunities = append(c.AddCommunities, later.AddCommunities...)
	c.RemoveCommunities = append(slices.Clone(c.RemoveCommunities), later.RemoveCommunities...)
}

func (c Changes) String() string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if c.LocalPref != nil {
		add("local_pref %d", *c.LocalPref)
	}
	if c.MED != nil {
		add("med %d", *c.MED)
	}
	if c.Prepend > 0 {
		add("prepend %d", c.Prepend)
	}
	for _, x := range c.RemoveCommunities {
		add("community %s removed", x)
	}
	for _, x := range c.AddCommunities {
		add("community %s added", x)
	}
	return strings.Join(parts, ", ")
}

// Direction is what the rules are applied to.
type Direction uint8

const (
	Import Direction = iota // routes received from a neighbor
	Export                  // routes advertised to a neighbor
)

const (
	// MaxRules bounds the rules of a policy: a set of them and a few bits of the caller fit into
	// one word.
	MaxRules = 60
	// maxPrepend bounds how often one rule prepends the own AS number: longer paths are commonly
	// rejected.
	maxPrepend = 20
	// maxAdded bounds the communities that one rule adds, so that those of all rules fit into an
	// attribute with the ones received.
	maxAdded = 40
)

// Check returns all faults of a list of rules, which use these prefix lists. rpki reports whether
// origin validation is configured.
func Check(direction Direction, rules []Rule, lists map[string]List, rpki bool) fault.List {
	var faults fault.List
	if len(rules) > MaxRules {
		faults.Add("", "must be at most %d rules, got %d", MaxRules, len(rules))
	}
	seen := fault.Seen{}
	for i, r := range rules {
		at := fmt.Sprintf("[%d]", i)
		if r.Name == "" {
			faults.Add(at+".name", "must not be empty: status names the rule by it")
		}
		seen.Check(&faults, at, "name", r.Name)
		faults.Merge(at, r.check(direction, lists, rpki))
	}
	return faults
}

func (r *Rule) check(direction Direction, lists map[string]List, rpki bool) fault.List {
	var faults fault.List
	if _, known := lists[r.PrefixList]; !known && r.PrefixList != "" {
		faults.Add("prefix_list", "there is no prefix list %q%s", r.PrefixList, fault.Suggest(r.PrefixList, slices.Sorted(maps.Keys(lists))))
	}
	checkNumbers(&faults, "as_path.first", r.ASPath.First)
	checkNumbers(&faults, "as_path.contains", r.ASPath.Contains)
	checkNumbers(&faults, "as_path.origin", r.ASPath.Origin)
	switch {
	case len(r.RPKI) > 0 && direction == Export:
		faults.Add("rpki", "is a condition of import rules: routes that are advertised have been validated")
	case len(r.RPKI) > 0 && !rpki:
		faults.Add("rpki", "needs the section rpki with a cache: without, every route is not-found")
	}
	switch {
	case r.Action != "" && r.Action != Accept && r.Action != Reject:
		faults.Add("action", "must be %q or %q, got %q", Accept, Reject, r.Action)
	case r.Action == "" && r.Set.empty():
		faults.Add("", "has no effect: it needs an action, or something to set")
	case r.Action == Reject && !r.Set.empty():
		faults.Add("set", "has no effect: the rule rejects the route")
	}
	if direction == Export && r.Set.LocalPref != nil {
		faults.Add("set.local_pref", "is not sent to another AS (RFC 4271 section 5.1.5): set med, or prepend")
	}
	switch {
	case direction == Import && r.Set.Prepend > 0:
		faults.Add("set.prepend", "is for export rules: set local_pref here")
	case r.Set.Prepend > maxPrepend:
		faults.Add("set.prepend", "must be at most %d, got %d", maxPrepend, r.Set.Prepend)
	}
	if n := len(r.Set.AddCommunities); n > maxAdded {
		faults.Add("set.add_communities", "must be at most %d, got %d", maxAdded, n)
	}
	for i, c := range r.Set.AddCommunities {
		if slices.Contains(r.Set.RemoveCommunities, c) {
			faults.Add(fmt.Sprintf("set.add_communities[%d]", i), "%s is in remove_communities too", c)
		}
	}
	return faults
}

func checkNumbers(faults *fault.List, path string, list []uint32) {
	if i := slices.Index(list, 0); i >= 0 {
		faults.Add(fmt.Sprintf("%s[%d]", path, i), "must be an AS number > 0, got 0")
	}
}

// Warnings returns what is valid and has no effect: rules that no route reaches. Others of the
// policy are evaluated before the rules.
func Warnings(before, rules []Rule) fault.List {
	var warnings fault.List
	for i := range rules {
		earlier := slices.Concat(before, rules[:i])
		if j := slices.IndexFunc(earlier, func(e Rule) bool { return e.Action != "" && e.implied(&rules[i]) }); j >= 0 {
			warnings.Add(fmt.Sprintf("[%d]", i), "rule %q is never reached: rule %q decides about all of its routes", rules[i].Name, earlier[j].Name)
		}
	}
	return warnings
}

// ListWarnings returns what is valid and has no effect in prefix lists: entries that no prefix
// reaches, and lists that are not in used.
func ListWarnings(lists map[string]List, used map[string]bool) fault.List {
	var warnings fault.List
	for _, name := range slices.Sorted(maps.Keys(lists)) {
		warnings.Merge(name, lists[name].warnings())
		if !used[name] {
			warnings.Add(name, "is used by no rule")
		}
	}
	return warnings
}

// implied reports whether the rule applies to every route that a later one applies to.
func (r *Rule) implied(later *Rule) bool {
	return (r.PrefixList == "" || r.PrefixList == later.PrefixList) &&
		subset(later.ASPath.First, r.ASPath.First) && subset(later.ASPath.Contains, r.ASPath.Contains) &&
		subset(later.ASPath.Origin, r.ASPath.Origin) && subset(later.Communities, r.Communities) && subset(later.RPKI, r.RPKI)
}

// subset reports whether a condition that one of narrow is met implies that one of wide is. An
// empty list is met by every route.
func subset[T comparable](narrow, wide []T) bool {
	if len(wide) == 0 {
		return true
	}
	return len(narrow) > 0 && !slices.ContainsFunc(narrow, func(v T) bool { return !slices.Contains(wide, v) })
}
