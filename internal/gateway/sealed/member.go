package sealed

import (
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// grant is what a member relays for this gateway, a leader.
type grant struct {
	remote   netip.AddrPort // of the member
	careOf   netip.AddrPort
	up, down unit.Bandwidth
	cost     int
}

// over returns the cost of a path over the member: the configured one, or what the member asks for.
func (g *grant) over(l *line) int { return max(l.conf.Load().Cost, g.cost) }

// memberRequest is the state of a leader's requests to a member.
type memberRequest struct {
	peer   *peer
	homes  []netip.AddrPort // where the home agent may be
	next   int              // the one that is asked for
	at     time.Duration    // when the leader asks again
	until  time.Duration    // the end of what is granted, 0: nothing is
	since  time.Duration    // when the address of the home agent was last changed
	open   bool             // packets to the home agent are not sealed
	reason string
}

const (
	// homeAgentTimeout is how long a home agent has time to answer over a relay before another of
	// its addresses is asked for.
	homeAgentTimeout = 2 * time.Second
	// unreachablePause is how long a member whose line is down is not asked.
	unreachablePause = time.Second
)

// refresh keeps what a member relays up to date. It returns when it is to be called again.
func (x *memberRequest) refresh(k *keys, now time.Duration) time.Duration {
	if x.until != 0 && now >= x.until {
		x.peer.log.Warn("member has not answered, its relay has expired", "peer", x.peer.conf.Name)
		x.end("has expired")
	}
	due := now + time.Hour
	for i := range x.peer.links {
		l := &x.peer.links[i]
		if !l.ready() || !l.probing.alive.Alive() || len(x.homes) == 0 {
			continue
		}
		if x.until != 0 && len(x.homes) > 1 && now-max(x.since, time.Duration(l.line.proven.Load())) > homeAgentTimeout {
			x.next, x.since, x.at = x.next+1, now, now
		}
		if now >= x.at {
			c := l.line.conf.Load()
			k.out.Put(tunnel.Register{
				Path: uint8(i), CareOf: l.line.careOf(l.address.remote.Addr().Is4()), HomeAgent: x.homes[x.next%len(x.homes)], Lifetime: x.peer.conf.Alliance.Lifetime,
				Up: announced(c.Up), Down: announced(c.Down), Open: x.open,
			})
			x.at = now + registerTimeout
		}
		due = min(due, x.at)
		if x.until != 0 {
			due = min(due, x.until, now+homeAgentTimeout)
		}
	}
	return due
}

// answered applies the answer of a member.
func (x *memberRequest) answered(v tunnel.Registered, now time.Duration) {
	l := &x.peer.links[v.Path]
	granted := v.Code == tunnel.Accepted && v.Lifetime > 0
	if !l.ready() || granted && (x.at == 0 || len(x.homes) == 0) { // it has not been asked
		x.peer.plane.counts.drop(dropUnexpected, 1)
		return
	}
	if granted && x.open && !v.Open { // an older version
		granted, v.Code = false, tunnel.MemberSealedOnly
	}
	if !granted {
		if reason := v.Code.String(); x.reason != reason {
			x.peer.log.Warn("member does not relay", "peer", x.peer.conf.Name, "reason", reason)
		}
		x.end(v.Code.String())
		x.next++
		x.at = now + refusedPause
		if v.Code == tunnel.MemberUnreachable {
			x.at = now + unreachablePause
		}
		return
	}
	lifetime := min(v.Lifetime, x.peer.conf.Alliance.Lifetime)
	if x.until == 0 {
		x.since = now
		x.peer.log.Info("member relays", "peer", x.peer.conf.Name, "home agent", x.homes[x.next%len(x.homes)], "lifetime", lifetime)
	}
	x.until, x.at, x.reason = now+lifetime, now+lifetime/2, ""
	g := grant{remote: l.address.remote, careOf: v.CareOf, up: v.Up, down: v.Down, cost: int(v.Cost)}
	if old := l.line.grant.Load(); old == nil || *old != g {
		l.line.grant.Store(&g)
		x.peer.plane.wakeHome()
	}
}

// end records that the member does not relay.
func (x *memberRequest) end(reason string) {
	x.until, x.reason = 0, reason
	for i := range x.peer.links {
		if l := x.peer.links[i].line; l != nil && l.grant.Swap(nil) != nil {
			x.peer.plane.wakeHome()
		}
	}
}

// wakeHome has the paths to the home agent over members updated.
func (p *Plane) wakeHome() {
	for _, r := range p.routing.Load().peers {
		r.relaysChanged.Store(true)
	}
	p.wakeControl()
}
