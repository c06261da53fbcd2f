package edge

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/mptcp"
	"github.com/tabane/tabane/internal/pathmanager"
)

// retainRoutes is how long routes outlive all reflectors. None of them is on a packet's way: without a route this server
// could deliver nothing, with what it knew it delivers what still works.
const retainRoutes = time.Hour

// locators are the ASBRs' locators, and SIDs of theirs, as BGP carries them. An ASBR that dies takes its locator's route
// along, in one message, long before the last of its EPE Routes is withdrawn; one that loses an egress peer says of the
// peer's SID that it leads nowhere.
type locators struct {
	known map[netip.Prefix]bool // have a route
	dead  map[netip.Prefix]bool // have one that leads nowhere; true for those that had another before
	lost  map[netip.Prefix]bool // had a route
}

func newLocators() locators {
	return locators{known: map[netip.Prefix]bool{}, dead: map[netip.Prefix]bool{}, lost: map[netip.Prefix]bool{}}
}

func (l *locators) clone() locators {
	return locators{maps.Clone(l.known), maps.Clone(l.dead), maps.Clone(l.lost)}
}

// reaches tells whether packets for the SID arrive, as far as BGP knows: they do not when the longest prefix around it leads
// nowhere, or has lost its route and no other is around it. A locator that BGP never had is some other protocol's matter.
func (l *locators) reaches(sid netip.Addr) bool {
	known := longest(l.known, sid)
	if longest(l.dead, sid) > known {
		return false
	}
	return known >= 0 || longest(l.lost, sid) < 0
}

// longest is the length of the longest of the prefixes around an address, -1 when there is none.
func longest(prefixes map[netip.Prefix]bool, a netip.Addr) int {
	bits := -1
	for p := range prefixes {
		if p.Contains(a) {
			bits = max(bits, p.Bits())
		}
	}
	return bits
}

// change takes what BGP says of a prefix, and reports whether that is news.
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

// locator takes a change of a unicast path. When it is about a locator, the EPE Routes through its SIDs go, or come back.
func (e *egress) locator(p bgp.UnicastPath) {
	inside := func(l netip.Prefix) bool { return l.Bits() <= p.Prefix.Bits() && l.Contains(p.Prefix.Addr()) }
	if !slices.ContainsFunc(e.config.Locators, inside) {
		return
	}
	if len(p.ASPath) > 0 {
		return // from another AS, which has nothing to say about our locators
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

// drop takes the nexthop objects of SIDs that are out of reach from the kernel, at once: its routes through them go with
// them, in one operation, while the account of a full table takes a while.
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

// hops are the ways to a prefix through a peer, best first, with the path under key as it is now.
func (e *egress) hops(p *peer, key pathKey, now path) []hop {
	hops := without(p.routes[key.prefix], key.rd)
	if e.locators.reaches(now.sid) {
		hops = append(hops, hop{key.rd, now.sid, now.draining})
		slices.SortFunc(hops, hop.compare)
	}
	return hops
}

// count keeps how many prefixes of the peer are in which state.
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

// endpoints are what the kernel's path manager announces: a peer that all ASBRs are about to lose is the last choice, so
// that nothing is on its way there when the routes go, until it has a route that stays.
func (e *Edge) endpoints() []mptcp.Endpoint {
	all := e.config.endpoints()
	for i, p := range e.egress.peers {
		all[i].Backup = all[i].Backup || p.leaving
	}
	return all
}
