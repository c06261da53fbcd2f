package sealed

import (
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// A leader registers each path with its home agent, which sends packets only over registered ones
// (RFC 5944, and RFC 5648 for several care-of addresses at a time). The home agent sends to where
// authentic messages of the path come from, once that is proved, so that a path works behind NAT
// (RFC 3519).

const (
	// registerTimeout is how long a request has time to be answered, refusedPause how long a
	// refused one rests.
	registerTimeout, refusedPause = 5 * time.Second, 10 * time.Second
	// natPause bounds how often a peer is sent where it is seen.
	natPause = time.Second
)

// registering has the registrations of a peer's paths: those that a leader asks its home agent for,
// and those that a home agent has granted.
type registering struct {
	peer    *peer
	refused tunnel.Code // how the peer's last request was answered
}

// registration is that of a path: with the home agent at a leader, and of the leader at a home
// agent.
type registration struct {
	until  time.Duration  // 0: there is none
	at     time.Duration  // when a leader asks for it again
	careOf netip.AddrPort // of a leader, as it knows it; of a home agent, as it has answered
	reason string         // why there is none
}

// required reports whether the paths of the peer have to be registered.
func (x *registering) required() bool {
	return x.peer.conf.Alliance.Role == dataplane.HomeAgent || x.peer.conf.Alliance.Role == dataplane.Registrant
}

// allows reports whether packets may be sent on a path.
func (x *registering) allows(l *link, now time.Duration) bool {
	return !x.required() || l.registration.until > now
}

// refresh keeps the registrations of a peer's paths up to date: a leader asks for them, and they
// end after their time. It returns when it is to be called again.
func (x *registering) refresh(k *keys, now time.Duration) time.Duration {
	due, changed := now+time.Hour, false
	for i := range x.peer.links {
		l := &x.peer.links[i]
		reg := &l.registration
		if reg.until != 0 && now >= reg.until {
			x.peer.log.Warn("registration has expired", "peer", x.peer.conf.Name, "path", l.title())
			reg.until, reg.reason, changed = 0, "has expired", true
		}
		if reg.until != 0 {
			due = min(due, reg.until)
		}
		if x.peer.conf.Alliance.Role != dataplane.HomeAgent || !l.ready() || !l.probing.alive.Alive() {
			continue
		}
		if now >= reg.at {
			down := l.line.conf.Load().Down
			v := tunnel.Register{
				Path: uint8(i), CareOf: l.line.careOf(l.address.remote.Addr().Is4()), Lifetime: x.peer.conf.Alliance.Lifetime, Up: announced(l.rates.up), Down: announced(down), Cost: int32(l.cost), Strict: l.line.conf.Load().Strict,
			}
			if g := l.line.grant.Load(); g != nil {
				v.CareOf, v.Up, v.Down = g.careOf, min(v.Up, g.up), min(v.Down, g.down)
			}
			k.out.Put(v)
			reg.at = now + registerTimeout
		}
		due = min(due, reg.at)
	}
	if changed {
		x.peer.scheduling.refresh()
	}
	return due
}

// announced returns a rate as records have it.
func announced(r dataplane.Rate) unit.Bandwidth {
	if r.Estimated {
		return tunnel.UnknownRate
	}
	return r.Bandwidth
}

// withdraw ends the registration of a path with the home agent.
func (x *registering) withdraw(i int) {
	reg := &x.peer.links[i].registration
	if x.peer.conf.Alliance.Role == dataplane.HomeAgent && reg.until != 0 && x.peer.session.sending != nil {
		x.peer.session.sending.out.Put(tunnel.Register{Path: uint8(i)})
		x.peer.wakeControlLocked()
	}
	*reg = registration{}
}

// register answers the request of a leader to a home agent.
func (x *registering) register(v tunnel.Register, now time.Duration) tunnel.Registered {
	l := &x.peer.links[v.Path]
	reg := &l.registration
	answer := tunnel.Registered{Path: v.Path, CareOf: l.address.remote, Up: v.Up, Down: v.Down, Cost: v.Cost}
	others := 0
	for i := range x.peer.links {
		if x.peer.links[i].registration.until > now && i != int(v.Path) {
			others++
		}
	}
	switch {
	case v.HomeAgent.Addr().IsValid() && !v.HomeAgent.Addr().IsUnspecified() || !l.ready():
		answer.Code = tunnel.HomeMalformed
	case v.Lifetime > 0 && v.Up == 0 && v.Down == 0: // it carries nothing
		answer.Code = tunnel.HomeMalformed
	case v.Lifetime == 0:
		if reg.until != 0 {
			x.peer.log.Info("registration withdrawn", "peer", x.peer.conf.Name, "path", l.title())
		}
		*reg = registration{reason: "withdrawn by the leader"}
	case others >= x.peer.conf.Alliance.CareOf:
		answer.Code = tunnel.HomeResources
	default:
		if reg.until == 0 {
			x.peer.log.Info("path registered", "peer", x.peer.conf.Name, "path", l.title(), "address", l.address.remote)
		}
		answer.Lifetime = min(v.Lifetime, x.peer.conf.Alliance.Lifetime)
		*reg = registration{until: now + answer.Lifetime, careOf: v.CareOf}
		l.rates.down, l.rates.known, l.rates.strict, l.cost = v.Down, true, v.Strict, int(v.Cost)
	}
	x.refuse(answer, "registration refused", "path", l.title())
	return answer
}

// refuse counts a request that is refused, and logs it unless the one before was refused for the
// same reason: a peer may repeat it as often as it likes.
func (x *registering) refuse(a tunnel.Registered, message string, attributes ...any) {
	if a.Code != tunnel.Accepted {
		x.peer.plane.counts.drop(dropRegistration, 1)
		if a.Code != x.refused {
			x.peer.log.Warn(message, append([]any{"peer", x.peer.conf.Name, "reason", a.Code}, attributes...)...)
		}
	}
	x.refused = a.Code
}

// answer answers a request to register.
func (x *registering) answer(v tunnel.Register, now time.Duration) {
	if x.peer.session.sending == nil {
		return
	}
	// A message has arrived over the path, but its address is not proved yet.
	l := &x.peer.links[v.Path]
	if !l.ready() && l.address.unproved.line != nil && v.Lifetime > 0 {
		l.address.waiting = &v
		return
	}
	l.address.waiting = nil // this request is later
	var a tunnel.Registered
	switch x.peer.conf.Alliance.Role {
	case dataplane.Registrant:
		a = x.register(v, now)
	case dataplane.Leader:
		a = x.peer.relaying.answer(v, now)
	default:
		x.peer.plane.counts.drop(dropUnexpected, 1)
		a = tunnel.Registered{Path: v.Path, Code: tunnel.HomeProhibited}
	}
	x.peer.session.sending.out.Put(a)
}

// answered applies the answer of the home agent.
func (x *registering) answered(v tunnel.Registered, now time.Duration) {
	l := &x.peer.links[v.Path]
	reg := &l.registration
	if l.line == nil || reg.at == 0 { // it has not been asked
		x.peer.plane.counts.drop(dropUnexpected, 1)
		return
	}
	switch {
	case v.Code != tunnel.Accepted:
		if reason := v.Code.String(); reg.reason != reason {
			x.peer.log.Warn("home agent refuses a registration", "peer", x.peer.conf.Name, "path", l.title(), "reason", reason)
		}
		*reg = registration{at: now + refusedPause, reason: v.Code.String()}
	case v.Lifetime == 0:
		reg.until = 0
	default:
		lifetime := min(v.Lifetime, x.peer.conf.Alliance.Lifetime)
		reg.until, reg.at, reg.careOf, reg.reason = now+lifetime, now+lifetime/2, v.CareOf, ""
	}
}

// applyGrants updates the paths over members by what these relay.
func (x *registering) applyGrants(now time.Duration) {
	changed := false
	for i := range x.peer.links {
		l := &x.peer.links[i]
		if l.line == nil || l.line.conf.Load().Member == "" || x.peer.conf.Alliance.Role != dataplane.HomeAgent {
			continue
		}
		g := l.line.grant.Load()
		switch {
		case g == nil && l.address.candidates != nil:
			x.withdraw(i)
			l.probing.alive.Down()
			l.address.candidates, l.address.remote, l.rates.known, l.reports.received, l.search = nil, netip.AddrPort{}, false, false, mtuSearch{}
			changed = true
		case g != nil && (len(l.address.candidates) == 0 || l.address.candidates[0] != g.remote || l.rates.down != g.up || l.cost != g.over(l.line)):
			// The member has answered there.
			l.address.candidates, l.address.remote = []netip.AddrPort{g.remote}, g.remote
			l.probing.sent.discard()
			l.rates.down, l.rates.known, l.cost = g.up, true, g.over(l.line)
			l.probing.due, l.registration.at = 0, 0
			changed = true
		}
	}
	if changed {
		x.peer.scheduling.refresh()
	}
}
