package edge

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/rib"
)

// The route distinguishers of two ASBRs differ, so to BGP their paths to a prefix through one
// egress peer are different destinations, and the edge selects between them. It follows the steps
// of BGP that its attributes allow (RFC 4271 sections 9.1.1 and 9.1.2.2) and then prefers the lower
// SID, which is the same on every server and does not depend on the order of updates.

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
	compare func(a, b egressPath) int
	reason  func(a, b egressPath) string // why a is preferred to b
}

// steps are all steps, in order.
var steps = []step{
	{func(a, b egressPath) int {
		switch {
		case a.draining == b.draining:
			return 0
		case b.draining:
			return -1
		}
		return 1
	}, func(egressPath, egressPath) string { return "an ASBR that is not draining" }},
	{func(a, b egressPath) int { return cmp.Compare(b.localPref, a.localPref) },
		func(a, b egressPath) string {
			return fmt.Sprintf("higher LOCAL_PREF (%d > %d)", a.localPref, b.localPref)
		}},
	{func(a, b egressPath) int { return cmp.Compare(a.pathLength, b.pathLength) },
		func(a, b egressPath) string {
			return fmt.Sprintf("shorter AS_PATH (%d < %d)", a.pathLength, b.pathLength)
		}},
	{func(a, b egressPath) int { return cmp.Compare(a.origin, b.origin) },
		func(a, b egressPath) string { return fmt.Sprintf("lower ORIGIN (%s before %s)", a.origin, b.origin) }},
	{func(a, b egressPath) int {
		if a.neighborAS != b.neighborAS {
			return 0
		}
		return cmp.Compare(a.med, b.med)
	}, func(a, b egressPath) string { return fmt.Sprintf("lower MED (%d < %d)", a.med, b.med) }},
	{func(a, b egressPath) int { return a.sid.Compare(b.sid) },
		func(a, b egressPath) string { return fmt.Sprintf("lower SID (%s < %s)", a.sid, b.sid) }},
	// Paths to one SID are equivalent; this only makes their order deterministic.
	{func(a, b egressPath) int { return a.rd.Compare(b.rd) },
		func(a, b egressPath) string { return fmt.Sprintf("lower RD (%s < %s)", a.rd, b.rd) }},
}

// eliminate applies the steps to paths with different RDs and returns the best one. It calls
// eliminated, if not nil, for each of the others, with a path that is preferred to it in the step.
func eliminate(paths []egressPath, eliminated func(lost, to egressPath, s step)) egressPath {
	left := slices.Clone(paths)
	for _, s := range steps {
		var stay []egressPath
		for _, h := range left {
			// Each step is a partial order, so one of the paths preferred to h stays.
			better := slices.IndexFunc(left, func(other egressPath) bool {
				return s.compare(other, h) < 0 && !slices.ContainsFunc(left, func(best egressPath) bool { return s.compare(best, other) < 0 })
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
func rank(paths []egressPath) {
	for ; len(paths) > 1; paths = paths[1:] {
		best := slices.Index(paths, eliminate(paths, nil))
		paths[0], paths[best] = paths[best], paths[0]
	}
}

// explain returns, for each of the ranked paths, why it is the best one or not.
func explain(paths []egressPath) []string {
	if len(paths) == 1 {
		return []string{"only path"}
	}
	reasons := make([]string, len(paths))
	eliminate(paths, func(lost, to egressPath, s step) {
		i, prefix := slices.Index(paths, lost), "best path has "
		if s.compare(paths[0], lost) < 0 {
			to = paths[0]
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
