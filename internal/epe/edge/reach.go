package edge

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/kernel/route"
	"github.com/tabane/tabane/internal/mptcp"
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
	// reached has what was found out about SIDs since the last change, of mostReached at most.
	reached map[netip.Addr]bool
}

const mostReached = 4096

func newLocators() locators {
	return locators{known: map[netip.Prefix]bool{}, dead: map[netip.Prefix]bool{}, lost: map[netip.Prefix]bool{}, reached: map[netip.Addr]bool{}}
}

// reaches reports whether the SID is reachable according to BGP: it is not when its longest
// matching route has BLACKHOLE, or was withdrawn and no other matches. A locator that was never in
// BGP may be routed by an IGP.
func (l *locators) reaches(sid netip.Addr) bool {
	reached, ok := l.reached[sid]
	if !ok {
		if len(l.reached) == mostReached {
			clear(l.reached)
		}
		reached = l.examine(sid)
		l.reached[sid] = reached
	}
	return reached
}

func (l *locators) examine(sid netip.Addr) bool {
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
	clear(l.reached)
	return true
}

// locator applies an update of a unicast path. For a locator, the EPE Routes through its SIDs are
// removed or restored.
func (e *egress) locator(p bgp.UnicastPath) {
	if !bgp.Inside(e.config.Locators, p.Prefix) {
		return
	}
	if len(p.ASPath) > 0 {
		return // ignore routes to our locators from another AS
	}
	if !e.locators.change(p) {
		return
	}
	e.drop()
	clear(e.lists.choices)
	e.startWalk(false)
}

// drop discards packets to unreachable SIDs at once, before the routes are removed, and no longer
// those to reachable ones. Groups are without the unreachable ones at once, too: their flows move,
// and are not discarded. Then the kernel deletes the routes through these SIDs, those of deliveries
// first, so that what has another route follows that.
func (e *egress) drop() {
	var dropped, delivered []route.Key
	for n, object := range e.objects {
		sid := e.sids.Value(n)
		was, now := e.discarded[sid], !e.locators.reaches(sid)
		switch {
		case now && !was:
			e.kernel.Set(discard(sid))
			e.discarded[sid] = true
			dropped = append(dropped, object.Key())
			for _, d := range e.deliveringTo(n) {
				delivered = append(delivered, d.Key())
			}
		case was && !now:
			e.kernel.Set(object)
			for _, d := range e.deliveringTo(n) {
				e.kernel.Set(d)
			}
			e.kernel.Delete(discard(sid).Key())
			delete(e.discarded, sid)
		}
	}
	if len(dropped) == 0 {
		return
	}
	e.endBypasses(e.unreached)
	e.suspend(func(m member) bool { return e.discarded[m.sid] })
	e.flushAtOnce()
	for _, object := range slices.Concat(delivered, dropped) {
		e.kernel.Suspend(object)
	}
}

// deliveringTo returns the nexthop objects of deliveries that lead to a SID.
func (e *egress) deliveringTo(sid uint32) (list []route.Nexthop) {
	for to, d := range e.delivering {
		if to.sid == sid {
			list = append(list, d.Nexthop)
		}
	}
	return list
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
