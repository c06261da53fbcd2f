package edge

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/daemon"
)

// A peer that withdraws most of its routes one by one, or one that covers many networks, discards
// their packets at once, long before each of them has another route here: that takes the kernel
// seconds for 100,000. So all deliveries leave such a peer for a while. What is left of them then
// returns.

const (
	// A peer withdraws in a burst if, within burstFor, it withdraws an eighth of its routes, and
	// more than one step brings up to date: less is done before it would have left and returned.
	burstFor   = time.Second
	burstShare = 8
	// fewInBurst is how many routes are withdrawn in burstFor at most when a burst has ended.
	fewInBurst = daemon.Step
)

// burst are the routes that a peer withdraws.
type burst struct {
	since time.Time
	// had are the routes at the start, lost those withdrawn since.
	had, lost int
	// left: the deliveries have left the peer, and the nexthop objects of these SIDs.
	left bool
	sids []netip.Addr
}

// withdrew counts that a peer has withdrawn a route.
func (e *egress) withdrew(p *peer) {
	now, b := e.now(), &p.burst
	if age := now.Sub(b.since); !b.left && (age < 0 || age >= burstFor) {
		*b = burst{since: now, had: p.reachable() + 1}
	}
	if b.lost++; !b.left && b.lost > max(fewInBurst, b.had/burstShare) {
		e.leavePeer(p)
	}
}

// leavePeer has all deliveries leave a peer at once: groups go on without it, and the kernel deletes
// the routes to it alone with their nexthop object. Their packets follow the best path.
func (e *egress) leavePeer(p *peer) {
	e.suspend(func(m member) bool { return m.peer == p })
	e.flushAtOnce()
	if e.after == nil {
		return
	}
	b := &p.burst
	for to, d := range e.delivering {
		switch sid := e.sids.Value(to.sid); {
		case to.mark != 0 && to.mark != p.mark():
		case to.mark != 0, e.leadsTo(p, sid):
			if !slices.Contains(b.sids, sid) {
				b.sids = append(b.sids, sid)
				e.kernel.Suspend(d.Key())
			}
		}
	}
	if !b.left {
		b.left = true
		e.delivery.suspended.peers++
		e.awaitEnd(p)
	}
}

// leadsTo reports whether what is delivered to a SID leads to this peer, and to no other.
func (e *egress) leadsTo(p *peer, sid netip.Addr) (found bool) {
	for _, g := range e.delivery.groups {
		for _, m := range g.members {
			if m.sid == sid && m.peer != p {
				return false
			}
			found = found || m.sid == sid
		}
	}
	return found
}

// awaitEnd has the deliveries return to a peer when its burst has ended, and no network is left to
// be brought up to date.
func (e *egress) awaitEnd(p *peer) {
	e.after(burstFor, func() {
		b := &p.burst
		if b.lost > fewInBurst || len(e.delivery.due) > 0 || len(e.walk.peers) > 0 {
			b.lost = 0
			e.awaitEnd(p)
			return
		}
		for _, sid := range b.sids {
			if n, ok := e.sids.Find(sid); ok && !e.discarded[sid] {
				for _, to := range []lead{{sid: n}, {n, p.mark()}} {
					if d, ok := e.delivering[to]; ok {
						e.kernel.Set(d.Nexthop)
					}
				}
			}
		}
		*b = burst{}
		e.delivery.suspended.peers--
	})
}
