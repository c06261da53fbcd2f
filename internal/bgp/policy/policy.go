// Package policy decides by rules which routes are accepted from a neighbor or advertised to one,
// and what is changed in them (RFC 4271 section 9.1.1). Rules are data: conditions on the prefix,
// the path attributes and the origin validation state (RFC 6811).
//
// It changes no route itself, and knows neither sessions nor tables of routes.
package policy

import (
	"fmt"
	"math/bits"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// Attributes are the path attributes of a route that conditions need.
type Attributes struct {
	// ASPath is the AS path, the nearest AS first.
	ASPath []uint32
	// First and Origin are the first and the last AS of the path; 0 if it is empty.
	First, Origin uint32
	Communities   []uint32
	Large         [][3]uint32 // RFC 8092
}

// Policy is a compiled list of rules. It is immutable and safe for concurrent use; a nil policy
// accepts everything.
type Policy struct {
	rules []rule
	vrps  *VRPs
}

type rule struct {
	Rule
	list     *list
	validity uint8 // a set of bits 1 << Validity; 0 if there is no such condition
	changes  bool
}

// Lists are compiled prefix lists, which several policies share.
type Lists struct{ byName map[string]*list }

// CompileLists compiles prefix lists.
func CompileLists(lists map[string]List) Lists {
	c := Lists{map[string]*list{}}
	for name, l := range lists {
		c.byName[name] = compileList(l)
	}
	return c
}

// New compiles rules, which Check accepts with the same prefix lists, with a set of VRPs.
func New(rules []Rule, lists Lists, vrps *VRPs) *Policy {
	p := &Policy{rules: make([]rule, len(rules))}
	for i, r := range rules {
		p.rules[i] = rule{Rule: r, changes: !r.Set.empty()}
		if r.PrefixList != "" {
			p.rules[i].list = lists.byName[r.PrefixList]
		}
		for _, v := range r.RPKI {
			p.rules[i].validity |= 1 << v
			p.vrps = vrps
		}
	}
	return p
}

// Class is what a policy needs of a route besides its prefix. It is the same for all routes with
// the same attributes, so that it can be kept with them.
type Class struct {
	// rules are those whose conditions on the attributes are met.
	rules  uint64
	origin uint32
}

// Classify returns the class of the routes with these attributes.
func (p *Policy) Classify(a Attributes) Class {
	if p == nil {
		return Class{}
	}
	c := Class{origin: a.Origin}
	for i := range p.rules {
		if p.rules[i].met(a) {
			c.rules |= 1 << i
		}
	}
	return c
}

// met reports whether the conditions on the attributes are met.
func (r *rule) met(a Attributes) bool {
	path := &r.ASPath
	return (len(path.First) == 0 || a.First != 0 && slices.Contains(path.First, a.First)) &&
		(len(path.Origin) == 0 || a.Origin != 0 && slices.Contains(path.Origin, a.Origin)) &&
		(len(path.Contains) == 0 || slices.ContainsFunc(a.ASPath, func(as uint32) bool { return slices.Contains(path.Contains, as) })) &&
		(len(r.Communities) == 0 || slices.ContainsFunc(r.Communities, a.has))
}

func (a Attributes) has(c Community) bool {
	if c.Large {
		return slices.Contains(a.Large, c.Value)
	}
	return slices.Contains(a.Communities, c.Value[0])
}

// Verdict is the result of an evaluation.
type Verdict struct {
	// Changed are the rules whose changes apply, bit i for rule i: routes with the same attributes
	// and the same set are changed equally.
	Changed uint64
	// Rule is the rule that accepted or rejected the route; -1 if none did, so that it is
	// accepted.
	Rule   int
	Accept bool
}

// Evaluate evaluates the rules in order, for a route of the class, until one accepts or rejects. If
// none does, the route is accepted. It does not allocate.
func (p *Policy) Evaluate(c Class, prefix netip.Prefix) Verdict {
	v := Verdict{Rule: -1, Accept: true}
	var validity uint8 // a bit of rule.validity, once it is known
	for left := c.rules; left != 0; left &= left - 1 {
		i := bits.TrailingZeros64(left)
		r := &p.rules[i]
		if r.list != nil && !r.list.accepts(prefix) {
			continue
		}
		if r.validity != 0 {
			if validity == 0 {
				validity = 1 << p.vrps.Validate(prefix, c.origin)
			}
			if r.validity&validity == 0 {
				continue
			}
		}
		if r.Action == Reject {
			return Verdict{Rule: i}
		}
		if r.changes {
			v.Changed |= 1 << i
		}
		if r.Action == Accept {
			v.Rule = i
			return v
		}
	}
	return v
}

// Changes returns the changes of a set of rules, as Verdict.Changed has them.
func (p *Policy) Changes(rules uint64) Changes {
	var c Changes
	for ; rules != 0; rules &= rules - 1 {
		c.add(p.rules[bits.TrailingZeros64(rules)].Set)
	}
	return c
}

// Name returns the name of a rule.
func (p *Policy) Name(rule int) string { return p.rules[rule].Rule.Name }

// Describe names a set of rules, as Verdict.Changed has them, and what they change.
func (p *Policy) Describe(rules uint64) string {
	var names []string
	for left := rules; left != 0; left &= left - 1 {
		names = append(names, p.Name(bits.TrailingZeros64(left)))
	}
	return fmt.Sprintf("%s: %s", strings.Join(names, ", "), p.Changes(rules))
}

// Equal reports whether two policies have the same rules and prefix lists, and the same set of VRPs
// if they validate origins.
func (p *Policy) Equal(q *Policy) bool {
	if p == nil || q == nil {
		return p == q
	}
	return p.vrps == q.vrps && reflect.DeepEqual(p.rules, q.rules)
}
