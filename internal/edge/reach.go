package edge

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/mptcp"
)

// retainRoutes is how long routes outlive all reflectors. None of them is on a packet's way: without a route this server
// could deliver nothing, with what it knew it delivers what still works.
const retainRoutes = time.Hour

// locators are the ASBRs' locators as BGP carries them. An ASBR that dies takes its locator's route along, in one message,
// long before the last of its EPE Routes is withdrawn.
type locators struct {
	known map[netip.Prefix]bool
	lost  map[netip.Prefix]bool
}

// reaches tells whether packets for the SID arrive, as far as BGP knows: they do not when its locator had a route and lost
// it. A locator that BGP never had is some other protocol's matter.
func (l *locators) reaches(sid netip.Addr) bool {
	return !covers(l.lost, sid) || covers(l.known, sid)
}

func covers(prefixes map[netip.Prefix]bool, a netip.Addr) bool {
	for p := range prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// locator takes a change of a unicast path. When it is about a locator, the EPE Routes through its SIDs go, or come back.
func (e *egress) locator(p bgp.UnicastPath) {
	inside := func(l netip.Prefix) bool { return l.Bits() <= p.Prefix.Bits() && l.Contains(p.Prefix.Addr()) }
	if !slices.ContainsFunc(e.config.Locators, inside) {
		return
	}
	l := &e.locators
	gone := p.Withdrawn || p.Rejected != nil || slices.Contains(p.Communities, bgp.Blackhole)
	if gone != l.known[p.Prefix] {
		return // nothing new
	}
	old := locators{maps.Clone(l.known), maps.Clone(l.lost)}
	if gone {
		delete(l.known, p.Prefix)
		l.lost[p.Prefix] = true
	} else {
		l.known[p.Prefix] = true
		delete(l.lost, p.Prefix)
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
func (p *peer) count(old, now routeState) {
	p.states[old]--
	p.states[now]++
	switch {
	case p.states[routePresent] > 0:
		p.leaving = false
	case p.states[routeDraining] > 0:
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
