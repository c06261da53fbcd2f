package edge

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/rib"
)

// The route distinguishers of two ASBRs differ, so to BGP their paths to a prefix through one egress
// peer are different destinations, and the edge selects between them. It follows the steps of BGP
// that its attributes allow (RFC 4271 sections 9.1.1 and 9.1.2.2) and then prefers the lower SID,
// which is the same on every server and does not depend on the order of updates.

// preference are the attributes of a path that the selection depends on.
type preference struct {
	localPref  uint32
	pathLength uint32 // of the AS path, in which a set counts as one
	med        uint32 // 0 if absent (RFC 4271 section 9.1.2.2 c)
	neighborAS uint32 // AS that the MED is from; 0: our own, or a set
	origin     message.Origin
	draining   bool
}

func preferenceOf(a bgp.Attributes) preference {
	return preference{
		localPref: cmp.Or(a.LocalPref, rib.DefaultLocalPref), pathLength: uint32(a.ASPath.Len()), origin: a.Origin, med: a.MED,
		neighborAS: a.ASPath.First(),
		draining:   slices.Contains(a.Communities, bgp.GracefulShutdown),
	}
}

// step is a step of the selection, in which a path is eliminated if another one is preferred to it.
type step struct {
	// compare is negative if a is preferred to b, and 0 if they are equal or not comparable.
	compare func(a, b hop) int
	reason  func(a, b hop) string // why a is preferred to b
}

// steps are all steps, in order.
var steps = []step{
	{func(a, b hop) int {
		switch {
		case a.draining == b.draining:
			return 0
		case b.draining:
			return -1
		}
		return 1
	}, func(hop, hop) string { return "an ASBR that is not draining" }},
	{func(a, b hop) int { return cmp.Compare(b.localPref, a.localPref) },
		func(a, b hop) string { return fmt.Sprintf("higher LOCAL_PREF (%d > %d)", a.localPref, b.localPref) }},
	{func(a, b hop) int { return cmp.Compare(a.pathLength, b.pathLength) },
		func(a, b hop) string { return fmt.Sprintf("shorter AS_PATH (%d < %d)", a.pathLength, b.pathLength) }},
	{func(a, b hop) int { return cmp.Compare(a.origin, b.origin) },
		func(a, b hop) string { return fmt.Sprintf("lower ORIGIN (%s before %s)", a.origin, b.origin) }},
	{func(a, b hop) int {
		if a.neighborAS != b.neighborAS {
			return 0
		}
		return cmp.Compare(a.med, b.med)
	}, func(a, b hop) string { return fmt.Sprintf("lower MED (%d < %d)", a.med, b.med) }},
	{func(a, b hop) int { return a.sid.Compare(b.sid) },
		func(a, b hop) string { return fmt.Sprintf("lower SID (%s < %s)", a.sid, b.sid) }},
	// Paths to one SID are equivalent; this only makes their order deterministic.
	{func(a, b hop) int { return a.rd.Compare(b.rd) },
		func(a, b hop) string { return fmt.Sprintf("lower RD (%s < %s)", a.rd, b.rd) }},
}

// eliminate applies the steps to paths with different RDs and returns the best one. It calls
// eliminated, if not nil, for each of the others, with a path that is preferred to it in the step.
func eliminate(hops []hop, eliminated func(lost, to hop, s step)) hop {
	left := slices.Clone(hops)
	for _, s := range steps {
		var stay []hop
		for _, h := range left {
			// Each step is a partial order, so one of the paths preferred to h stays.
			better := slices.IndexFunc(left, func(other hop) bool {
				return s.compare(other, h) < 0 && !slices.ContainsFunc(left, func(best hop) bool { return s.compare(best, other) < 0 })
			})
			if better < 0 {
				stay = append(stay, h)
			} else if eliminated != nil {
				eliminated(h, left[better], s)
			}
		}
		if left = stay; len(left) == 1 {
			break
		}
	}
	return left[0]
}

// rank sorts paths by preference: the best one, then the best one of the others, and so on. MEDs of
// different neighbor ASes are not comparable, so no pairwise comparison defines this order.
func rank(hops []hop) {
	for ; len(hops) > 1; hops = hops[1:] {
		best := slices.Index(hops, eliminate(hops, nil))
		hops[0], hops[best] = hops[best], hops[0]
	}
}

// explain returns, for each of the ranked paths, why it is the best one or not.
func explain(hops []hop) []string {
	if len(hops) == 1 {
		return []string{"only path"}
	}
	reasons := make([]string, len(hops))
	eliminate(hops, func(lost, to hop, s step) {
		i, prefix := slices.Index(hops, lost), "best path has "
		if s.compare(hops[0], lost) < 0 {
			to = hops[0]
		} else {
			prefix = fmt.Sprintf("path through SID %s has ", to.sid)
		}
		reasons[i] = prefix + s.reason(to, lost)
		if i == 1 {
			reasons[0] = s.reason(to, lost)
		}
	})
	return reasons
}
