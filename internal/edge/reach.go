package edge

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/mptcp"
	"github.com/tabane/tabane/internal/pathmanager"
)

// retainRoutes is how long routes are retained without a session to any reflector. Reflectors do
// not forward packets, so the last known routes are better than none.
const retainRoutes = time.Hour

// locators are the routes to the ASBRs' locators and SIDs. If an ASBR fails, the route to its
// locator is withdrawn in one message, long before the last of its EPE Routes. If it loses the
// session with an egress peer, it advertises the peer's SID with the community BLACKHOLE (RFC
// 7999).
type locators struct {
	known map[netip.Prefix]bool // prefixes with a route
	dead  map[netip.Prefix]bool // prefixes with a BLACKHOLE route; true if they had another route
	lost  map[netip.Prefix]bool // prefixes that had a route
}

func newLocators() locators {
	return locators{known: map[netip.Prefix]bool{}, dead: map[netip.Prefix]bool{}, lost: map[netip.Prefix]bool{}}
}

func (l *locators) clone() locators {
	return locators{maps.Clone(l.known), maps.Clone(l.dead), maps.Clone(l.lost)}
}

// reaches reports whether the SID is reachable according to BGP: it is not when its longest
// matching route has BLACKHOLE, or was withdrawn and no other matches. A locator that was never in
// BGP may be routed by an IGP.
func (l *locators) reaches(sid netip.Addr) bool {
	known := longest(l.known, sid)
	if longest(l.dead, sid) > known {
		return false
	}
	return known >= 0 || longest(l.lost, sid) < 0
}

// longest returns the length of the longest matching prefix, -1 when there is none.
func longest(prefixes map[netip.Prefix]bool, a netip.Addr) int {
	bits := -1
	for p := range prefixes {
		if p.Contains(a) {
			bits = max(bits, p.Bits())
		}
	}
	return bits
}

// change applies an update, and reports whether it changed anything.
func (l *locators) change(p bgp.UnicastPath) bool {
	known := l.known[p.Prefix]
	had, dead := l.dead[p.Prefix]
	switch {
	case p.Withdrawn || p.Rejected != nil:
		if !known && !dead {
			return false
		}
		delete(l.known, p.Prefix)
		delete(l.dead, p.Prefix)
		if known || had {
			l.lost[p.Prefix] = true
		}
	case slices.Contains(p.Communities, bgp.Blackhole):
		if dead {
			return false
		}
		l.dead[p.Prefix] = known || l.lost[p.Prefix]
		delete(l.known, p.Prefix)
		delete(l.lost, p.Prefix)
	default:
		if known {
			return false
		}
		l.known[p.Prefix] = true
		delete(l.dead, p.Prefix)
		delete(l.lost, p.Prefix)
	}
	return true
}

// locator applies an update of a unicast path. For a locator, the EPE Routes through its SIDs are
// removed or restored.
func (e *egress) locator(p bgp.UnicastPath) {
	inside := func(l netip.Prefix) bool { return l.Bits() <= p.Prefix.Bits() && l.Contains(p.Prefix.Addr()) }
	if !slices.ContainsFunc(e.config.Locators, inside) {
		return
	}
	if len(p.ASPath) > 0 {
		return // ignore routes to our locators from another AS
	}
	l := &e.locators
	old := l.clone()
	if !l.change(p) {
		return
	}
	e.drop(&old)
	changed := map[netip.Addr]bool{} // by SID, of which there are few
	for key, path := range e.paths {
		differs, asked := changed[path.sid]
		if !asked {
			differs = old.reaches(path.sid) != l.reaches(path.sid)
			changed[path.sid] = differs
		}
		if !differs {
			continue
		}
		for _, peer := range path.peers {
			e.choose(peer, key.prefix, e.hops(peer, key, path))
		}
	}
}

// drop flushes the deletion of the nexthop objects of unreachable SIDs at once. The kernel deletes
// the routes that use them in the same operation, while updating a full table takes longer.
func (e *egress) drop(was *locators) {
	dropped := false
	for addr, s := range e.sids {
		if was.reaches(addr) && !e.locators.reaches(addr) {
			e.kernel.Delete(s.object.Key())
			dropped = true
		}
	}
	if dropped && e.urgent != nil {
		e.urgent()
	}
}

// hops returns the paths to a prefix through a peer, best first, with now as the path of key.
func (e *egress) hops(p *peer, key pathKey, now path) []hop {
	hops := without(p.routes[key.prefix], key.rd)
	if e.locators.reaches(now.sid) {
		hops = append(hops, hop{key.rd, now.sid, now.preference})
		rank(hops)
	}
	return hops
}

// count updates the number of the peer's prefixes in each state.
func (p *peer) count(old, now pathmanager.RouteState) {
	p.states[old]--
	p.states[now]++
	switch {
	case p.states[pathmanager.RoutePresent] > 0:
		p.leaving = false
	case p.states[pathmanager.RouteDraining] > 0:
		p.leaving = true
	}
}

// endpoints returns the endpoints for the kernel's path manager. A peer whose routes are all
// draining becomes a backup, so that no data is in flight when they are withdrawn.
func (e *Edge) endpoints() []mptcp.Endpoint {
	all := make([]mptcp.Endpoint, len(e.egress.peers))
	for i, p := range e.egress.peers {
		all[i] = mptcp.Endpoint{Address: p.Address, Link: cmp.Or(p.Interface, e.config.Interface), Signal: true, Backup: p.Backup || p.leaving}
	}
	return all
}
