package rib

import (
	"cmp"
	"net/netip"

	"github.com/tabane/tabane/internal/bgp/message"
)

// DefaultLocalPref is the LOCAL_PREF of a route without one.
const DefaultLocalPref = 100

// Step is a step of the route selection.
type Step uint8

// The steps of the route selection in their order (RFC 4271 section 9.1.2.2, RFC 4456 section 9).
const (
	Equal Step = iota
	ByStale
	ByLocalPref
	ByLocalOrigin
	ByPathLength
	ByOrigin
	ByMED
	ByExternal
	ByRouterID
	ByClusterList
	ByAddress
	BySource
)

type candidate struct {
	path  Path
	set   *message.Attributes
	peer  *Peer
	stale bool
}

// LocalPref returns the LOCAL_PREF that a path with these attributes has in the route selection.
func LocalPref(a *message.Attributes) uint32 {
	if pref, ok := a.LocalPref(); ok {
		return pref
	}
	return DefaultLocalPref
}

// med returns the MED, 0 if absent (RFC 4271 section 9.1.2.2 c).
func med(a *message.Attributes) uint32 {
	m, _ := a.MED()
	return m
}

// RouterID returns the ORIGINATOR_ID of a path or, without one, the router ID of the neighbor.
func RouterID(a *message.Attributes, p Peer) netip.Addr {
	if id := a.OriginatorID(); id.IsValid() {
		return id
	}
	return p.RouterID
}

func (c *candidate) routerID() netip.Addr { return RouterID(c.set, *c.peer) }

func before(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// steps compare two paths; a negative result prefers the first one. That of MED is not transitive:
// it is 0 for paths through different neighbor ASes.
var steps = [...]struct {
	step       Step
	compare    func(a, b *candidate) int
	incomplete bool
}{
	{step: ByStale, compare: func(a, b *candidate) int { return before(!a.stale, !b.stale) }},
	{step: ByLocalPref, compare: func(a, b *candidate) int { return cmp.Compare(LocalPref(b.set), LocalPref(a.set)) }},
	{step: ByLocalOrigin, compare: func(a, b *candidate) int { return before(a.path.Source == Local, b.path.Source == Local) }},
	{step: ByPathLength, compare: func(a, b *candidate) int { return cmp.Compare(a.set.PathLen(), b.set.PathLen()) }},
	{step: ByOrigin, compare: func(a, b *candidate) int { return cmp.Compare(a.set.Origin(), b.set.Origin()) }},
	{step: ByMED, incomplete: true, compare: func(a, b *candidate) int {
		if a.set.FirstAS() != b.set.FirstAS() {
			return 0
		}
		return cmp.Compare(med(a.set), med(b.set))
	}},
	{step: ByExternal, compare: func(a, b *candidate) int { return before(a.peer.External, b.peer.External) }},
	{step: ByRouterID, compare: func(a, b *candidate) int { return a.routerID().Compare(b.routerID()) }},
	{step: ByClusterList, compare: func(a, b *candidate) int { return cmp.Compare(a.set.ClusterList().Len(), b.set.ClusterList().Len()) }},
	{step: ByAddress, compare: func(a, b *candidate) int { return a.peer.Address.Compare(b.peer.Address) }},
	{step: BySource, compare: func(a, b *candidate) int { return cmp.Compare(a.path.Source, b.path.Source) }},
}

func (t *table) candidate(i uint32, p Path) candidate {
	return candidate{
		path: p, set: t.rib.attributes.at(p.Accepted).set, peer: &t.rib.sources[p.Source].Peer,
		stale: t.stale(i, p.Source),
	}
}

func (t *table) stale(i uint32, s Source) bool {
	stale := &t.from[s].stale
	return stale.n > 0 && stale.has(i)
}

// selectBest makes the best path the first one, and removes stale paths if it is not stale.
func (t *table) selectBest(i uint32) {
	d := t.at(i)
	if d.more == 0 {
		return
	}
	rest := t.scratch[:0]
	stale := false
	for _, p := range t.paths(i, make([]Path, 0, 16)) {
		if p.Accepted != 0 {
			rest = append(rest, t.candidate(i, p))
		}
		stale = stale || t.stale(i, p.Source)
	}
	t.scratch = rest
	defer clear(t.scratch)
	if len(rest) == 0 {
		return
	}
	for s := range steps {
		if len(rest) == 1 {
			break
		}
		rest = eliminate(rest, s)
	}
	best := rest[0]
	if d.path.Source != best.path.Source {
		p := t.find(i, best.path.Source)
		d.path, *p = *p, d.path
	}
	if stale && !best.stale {
		for _, p := range t.paths(i, nil) {
			if t.stale(i, p.Source) {
				t.remove(i, p.Source, false)
			}
		}
	}
}

// eliminate keeps the candidates to which a step prefers no other one. The result is in the array
// of the argument.
func eliminate(from []candidate, s int) []candidate {
	compare := steps[s].compare
	if steps[s].incomplete {
		worse := func(c *candidate) bool {
			for j := range from {
				if compare(&from[j], c) < 0 {
					return true
				}
			}
			return false
		}
		var drop [64]bool
		dropped := drop[:]
		if len(from) > len(drop) {
			dropped = make([]bool, len(from))
		}
		for j := range from {
			dropped[j] = worse(&from[j])
		}
		kept := from[:0]
		for j := range from {
			if !dropped[j] {
				kept = append(kept, from[j])
			}
		}
		return kept
	}
	kept := from[:1]
	for j := 1; j < len(from); j++ {
		switch n := compare(&from[j], &kept[0]); {
		case n < 0:
			kept = append(kept[:0], from[j])
		case n == 0:
			kept = append(kept, from[j])
		}
	}
	return kept
}

// Compare compares two paths to one destination, of which neither is stale, and returns the
// decisive step; a negative result prefers the first one. Paths that the import policy rejects come
// last.
func (r *RIB) Compare(a, b Path) (int, Step) {
	if a.Accepted == 0 || b.Accepted == 0 {
		return before(a.Accepted != 0, b.Accepted != 0), Equal
	}
	x := candidate{path: a, set: r.Attributes(a.Accepted), peer: &r.sources[a.Source].Peer}
	y := candidate{path: b, set: r.Attributes(b.Accepted), peer: &r.sources[b.Source].Peer}
	for _, s := range steps {
		if n := s.compare(&x, &y); n != 0 {
			return n, s.step
		}
	}
	return 0, Equal
}
