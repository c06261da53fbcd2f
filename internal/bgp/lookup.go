package bgp

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/rib"
	"github.com/tabane/tabane/internal/bgp/vpn"
)

// Candidate is a path to a destination, with the decisive step of the route selection.
type Candidate struct {
	Prefix netip.Prefix `json:"prefix"`
	RD     string       `json:"rd,omitempty"` // of a VPN route
	Best   bool         `json:"best"`
	Reason string       `json:"reason"` // why it is the best path or not, or why it is rejected
	// Policy are the import rules that changed the path, and what they changed.
	Policy    string     `json:"policy,omitempty"`
	Neighbor  string     `json:"neighbor"`
	NextHop   netip.Addr `json:"next_hop"`
	SID       netip.Addr `json:"sid,omitzero"`
	LocalPref uint32     `json:"local_pref"`
	MED       uint32     `json:"med"`
	ASPath    string     `json:"as_path"`
}

// Lookup returns the paths to the longest prefix that covers dst, best first: unicast routes, and
// VPN routes of each route distinguisher in rds, where invalid and repeated ones are ignored.
// Rejected paths follow, those to longer prefixes included. Its cost does not depend on the size of
// the tables.
func (s *Speaker) Lookup(dst netip.Prefix, rds ...vpn.ID) ([]Candidate, error) {
	if !dst.IsValid() || dst.Addr().Is4In6() {
		return nil, fmt.Errorf("look up %s: not a prefix", dst)
	}
	found := append([]Candidate{}, s.lookup(dst, message.KeyOf)...) // not nil, which JSON has as null
	for i, rd := range rds {
		if !rd.IsValid() || slices.Contains(rds[:i], rd) {
			continue
		}
		found = append(found, s.lookup(dst, func(p netip.Prefix) message.Key { return message.KeyOfVPN(rd, p) })...)
	}
	return found, nil
}

// BestPath returns next hop and first AS of the best path to the longest prefix that covers dst;
// false if there is none.
func (s *Speaker) BestPath(dst netip.Prefix) (nextHop netip.Addr, firstAS uint32, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for bits := dst.Bits(); bits >= 0; bits-- {
		k := message.KeyOf(netip.PrefixFrom(dst.Addr(), bits).Masked())
		for _, p := range s.rib.Paths(k) { // best first
			if p.Accepted == 0 {
				continue
			}
			a := s.rib.Attributes(p.Accepted)
			nextHop = a.NextHop()
			if n := s.sources[p.Source]; n != nil {
				nextHop = n.nextHop(k.Family(), a)
			}
			return nextHop, a.FirstAS(), true
		}
	}
	return netip.Addr{}, 0, false
}

// lookup returns the accepted paths to the longest prefix that covers dst and has some, and the
// rejected paths that would be preferred or equal by length.
func (s *Speaker) lookup(dst netip.Prefix, key func(netip.Prefix) message.Key) []Candidate {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rejected []Candidate
	for bits := dst.Bits(); bits >= 0; bits-- {
		k := key(netip.PrefixFrom(dst.Addr(), bits).Masked())
		paths := slices.DeleteFunc(s.rib.Paths(k), func(p rib.Path) bool {
			if p.Accepted == 0 {
				rejected = append(rejected, s.candidate(k, p))
			}
			return p.Accepted == 0
		})
		if len(paths) == 0 {
			continue
		}
		candidates := make([]Candidate, len(paths))
		for i, p := range paths {
			c := s.candidate(k, p)
			c.Best = i == 0
			switch {
			case len(paths) == 1:
				c.Reason = "only path"
			case i == 0:
				c.Reason = s.decision(p, paths[1])
			default:
				c.Reason = "best path has " + s.decision(paths[0], p)
			}
			candidates[i] = c
		}
		return append(candidates, rejected...)
	}
	return rejected
}

func (s *Speaker) candidate(k message.Key, p rib.Path) Candidate {
	a := s.rib.Attributes(cmp.Or(p.Accepted, p.Received))
	c := Candidate{Prefix: k.Prefix(), LocalPref: rib.LocalPref(a), ASPath: a.ASPath().String(), Neighbor: "local", NextHop: a.NextHop()}
	c.MED, _ = a.MED()
	if n := s.sources[p.Source]; n != nil {
		c.Neighbor, c.NextHop = n.conf.Name, n.nextHop(k.Family(), a)
		change, err := n.importer.evaluate(n.importer.classify(k.Family(), s.rib.Attributes(p.Received)), k, p.Label)
		switch rules := change >> ruleShift; {
		case err != nil:
			c.Reason = "rejected: " + err.Error()
		case rules != 0:
			c.Policy = n.conf.Import.Rules.Describe(rules)
		}
	}
	if k.Family().VPN() {
		c.RD = k.RD().String()
		c.SID, _ = a.Service().SID(p.Label)
	}
	return c
}

// decision describes the step of the route selection in which best is preferred to other.
func (s *Speaker) decision(best, other rib.Path) string {
	a, b := s.rib.Attributes(best.Accepted), s.rib.Attributes(other.Accepted)
	p, q := s.rib.Peer(best.Source), s.rib.Peer(other.Source)
	_, step := s.rib.Compare(best, other)
	switch step {
	case rib.ByStale:
		return "not retained from a session that is down"
	case rib.ByLocalPref:
		return fmt.Sprintf("higher LOCAL_PREF (%d > %d)", rib.LocalPref(a), rib.LocalPref(b))
	case rib.ByLocalOrigin:
		return "local origin"
	case rib.ByPathLength:
		return fmt.Sprintf("shorter AS_PATH (%d < %d)", a.PathLen(), b.PathLen())
	case rib.ByOrigin:
		return fmt.Sprintf("lower ORIGIN (%s before %s)", a.Origin(), b.Origin())
	case rib.ByMED:
		x, _ := a.MED()
		y, _ := b.MED()
		return fmt.Sprintf("lower MED (%d < %d)", x, y)
	case rib.ByExternal:
		return "eBGP before iBGP"
	case rib.ByRouterID:
		return fmt.Sprintf("lower router id (%s < %s)", rib.RouterID(a, p), rib.RouterID(b, q))
	case rib.ByClusterList:
		return fmt.Sprintf("shorter CLUSTER_LIST (%d < %d)", a.ClusterList().Len(), b.ClusterList().Len())
	case rib.ByAddress:
		return fmt.Sprintf("lower neighbor address (%s < %s)", p.Address, q.Address)
	case rib.BySource, rib.Equal:
	}
	return "an earlier path through the same neighbor"
}
