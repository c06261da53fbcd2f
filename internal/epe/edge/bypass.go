package edge

import (
	"net/netip"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/kernel/route"
)

// A bypass is a rule by which packets that are marked for a peer follow the table of another one,
// which has routes to all networks that they may be for. It takes effect and ends at once, where
// deliveries through the peer would have to be deleted from the kernel, and added again. Packets to
// networks that the other peer has no route to are discarded, so deliveries to these leave the peer.

// bypassRule is the priority of bypasses, before the rules for marks.
const bypassRule = locatorRule + 1

// mostOutside is the number of networks of a peer, at most, that may have no route through the peer
// of its bypass: they leave it one by one.
const mostOutside = fewInBurst

// bypassTo is the rule of the bypass of a peer.
func (p *peer) bypassTo(to *peer) route.Rule {
	r := route.Rule{Priority: bypassRule, Mark: p.mark(), Table: to.Table}
	if p.Address.Is4() {
		r.From = bgp.IPv4.Anywhere()
	}
	return r
}

// bypass has the packets of all deliveries through a peer take a bypass at once, if there is one.
func (e *egress) bypass(p *peer) bool {
	s := &e.delivery.suspended
	if s.bypasses[p] != nil {
		return true
	}
	to, outside := e.standIn(p)
	if to == nil {
		return false
	}
	if s.bypasses == nil {
		s.bypasses = map[*peer]*peer{}
	}
	s.bypasses[p], s.active = to, true
	for _, prefix := range outside {
		e.deliver(prefix)
		e.kernel.Hasten(e.deliveredRoute(prefix, nil).Key())
	}
	if len(outside) > 0 { // they leave first; what was withdrawn before them waits
		e.flushRoutesAtOnce(len(outside))
	}
	e.kernel.Set(p.bypassTo(to))
	e.flushAtOnce()
	return true
}

// standIn returns the peer for the bypass of another one, nil if there is none, and the networks
// that have routes through p, and not through that peer.
func (e *egress) standIn(p *peer) (to *peer, outside []netip.Prefix) {
	to = e.mostRoutes(p)
	if to == nil || to.reachable()+mostOutside < p.reachable() && !e.hasDefault(to) {
		return nil, nil
	}
	for n, ok := p.routes.Next(0); ok; n, ok = p.routes.Next(n + 1) {
		prefix := p.routes.Key(n).Netip()
		if e.choose(p.routes.Value(n).paths).sid.IsValid() && !e.covering(to, prefix).sid.IsValid() {
			if outside = append(outside, prefix); len(outside) > mostOutside {
				return nil, nil
			}
		}
	}
	return to, outside
}

// mostRoutes returns the peer with most routes that packets with the mark of another one may be
// sent through, nil if there is none.
func (e *egress) mostRoutes(p *peer) (to *peer) {
	if !e.marksPackets() {
		return nil
	}
	for _, o := range e.peers {
		if o != p && bgp.IPOf(o.Address) == bgp.IPOf(p.Address) && !o.burst.left && e.delivery.suspended.bypasses[o] == nil &&
			o.reachable() > 0 && !e.unreached(o) && (to == nil || o.reachable() > to.reachable()) {
			to = o
		}
	}
	return to
}

// unreached reports whether no SID of a peer is reachable.
func (e *egress) unreached(p *peer) bool {
	for n := range p.sids {
		if n != 0 && !e.discarded[e.sids.Value(n)] {
			return false
		}
	}
	return true
}

func (e *egress) hasDefault(p *peer) bool {
	return e.covering(p, bgp.IPOf(p.Address).Anywhere()).sid.IsValid()
}

// outside reports whether the bypass of a peer has no route to a network, which is noted. It may be
// asked again for as long as the peer goes on withdrawing and advertising.
func (e *egress) outside(p *peer, prefix netip.Prefix) bool {
	s := &e.delivery.suspended
	to := s.bypasses[p]
	if to == nil || e.covering(to, prefix).sid.IsValid() {
		return false
	}
	if s.outside == nil {
		s.outside = map[netip.Prefix]struct{}{}
	}
	s.outside[prefix] = struct{}{}
	return true
}

// endBypasses ends bypasses through these peers. Deliveries leave a peer in a burst without one.
func (e *egress) endBypasses(through func(to *peer) bool) {
	s := &e.delivery.suspended
	for p, to := range s.bypasses {
		if !through(to) {
			continue
		}
		delete(s.bypasses, p)
		e.kernel.Delete(p.bypassTo(to).Key())
		if p.burst.left {
			e.withoutBypass(p)
		}
	}
}

// endAllBypasses ends all bypasses when the deliveries through their peers are up to date.
func (e *egress) endAllBypasses() {
	s := &e.delivery.suspended
	for p, to := range s.bypasses {
		e.kernel.Delete(p.bypassTo(to).Key())
	}
	for prefix := range s.outside {
		if n, ok := e.delivery.networks.Get(prefix); ok && !n.due {
			n.due = true
			e.delivery.due = append(e.delivery.due, prefix)
		}
	}
}
