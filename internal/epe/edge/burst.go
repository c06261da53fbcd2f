package edge

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/daemon"
)

// A peer that withdraws most of its routes one by one, or one that covers many networks, discards
// their packets at once, long before each of them has another route here: that takes the kernel
// seconds for 100,000. So all deliveries leave such a peer for a while, by a bypass if there is one.
// What is left of them then returns.

const (
	// A peer withdraws in a burst if, within burstFor, it withdraws more than fewInBurst, and this
	// share of its routes, less of which is done before it would have left and returned: by a bypass,
	// or where the kernel has to delete and add all routes through it.
	burstFor    = time.Second
	bypassShare = 64
	burstShare  = 8
	// fewInBurst is how many routes are withdrawn in burstFor at most when a burst has ended.
	fewInBurst = daemon.Step / 2
)

// burst are the routes that a peer withdraws.
type burst struct {
	since time.Time
	// had are the routes at the start, lost those withdrawn since.
	had, lost int
	// left: the deliveries have left the peer, and the nexthop objects of these SIDs.
	left bool
	sids []netip.Addr
	// direct: no other peer has routes to all networks, so that there is no bypass.
	direct bool
}

// withdrew counts that a peer has withdrawn a route.
func (e *egress) withdrew(p *peer) {
	now, b := e.now(), &p.burst
	if age := now.Sub(b.since); !b.left && (age < 0 || age >= burstFor) {
		*b = burst{since: now, had: p.reachable() + 1}
	}
	b.lost++
	switch {
	case b.left || b.lost <= max(fewInBurst, b.had/bypassShare):
	case b.lost > max(2*fewInBurst, b.had/burstShare):
		e.leavePeer(p)
	case !b.direct:
		if b.direct = !e.bypass(p); !b.direct {
			e.awaitBurst(p)
		}
	}
}

// leavePeer has all deliveries leave a peer at once.
func (e *egress) leavePeer(p *peer) {
	if !e.bypass(p) {
		e.withoutBypass(p)
	}
	e.awaitBurst(p)
}

// awaitBurst awaits the end of the burst of a peer that all deliveries have left.
func (e *egress) awaitBurst(p *peer) {
	e.endBypasses(func(to *peer) bool { return to == p })
	if b := &p.burst; !b.left && e.after != nil {
		b.left = true
		e.delivery.suspended.peers++
		e.awaitEnd(p)
	}
}

// withoutBypass has groups go on without a peer, and the kernel delete the routes to it alone with
// their nexthop object. Their packets follow the best path.
func (e *egress) withoutBypass(p *peer) {
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
