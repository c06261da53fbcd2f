package sealed

import (
	"net"
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/plane"
	"github.com/tabane/tabane/internal/tunnel"
	"github.com/tabane/tabane/internal/unit"
)

// A leader registers each path with its home agent, which sends packets only over registered ones (RFC
// 5944, and RFC 5648 for several care-of addresses at a time). The home agent sends to where authentic
// messages of the path come from, once that is proved, so that a path works behind NAT (RFC 3519).

const (
	// askAgain is how long a request has time to be answered, refusedFor how long a refused one rests.
	askAgain, refusedFor = 5 * time.Second, 10 * time.Second
	// seenPause bounds how often a peer is sent where it is seen.
	seenPause = time.Second
)

// registration is that of a path: with the home agent at a leader, and of the leader at a home agent.
type registration struct {
	until  time.Duration  // 0: there is none
	at     time.Duration  // when a leader asks for it again
	careOf netip.AddrPort // of a leader, as it knows it; of a home agent, as it has answered
	reason string         // why there is none
}

// registers reports whether the paths of the peer have to be registered. The mutex is locked.
func (r *peer) registers() bool {
	return r.conf.Alliance.Role == plane.HomeAgent || r.conf.Alliance.Role == plane.Registrant
}

// registered reports whether packets may be sent on a path. The mutex is locked.
func (r *peer) registered(l *link, now time.Duration) bool {
	return !r.registers() || l.registration.until > now
}

// refreshRegistrations keeps the registrations of a peer's paths up to date: a leader asks for them, and they end
// after their time. It returns when it is to be called again. The mutex is locked.
func (r *peer) refreshRegistrations(k *keys, now time.Duration) time.Duration {
	due, changed := now+time.Hour, false
	for i := range r.links {
		l := &r.links[i]
		x := &l.registration
		if x.until != 0 && now >= x.until {
			r.log.Warn("registration has expired", "peer", r.conf.Name, "path", l.title())
			x.until, x.reason, changed = 0, "has expired", true
		}
		if x.until != 0 {
			due = min(due, x.until)
		}
		if r.conf.Alliance.Role != plane.HomeAgent || !l.ready() || !l.probing.alive.Alive() {
			continue
		}
		if now >= x.at {
			down := l.line.conf.Load().Down
			v := tunnel.Register{
				Path: uint8(i), CareOf: l.line.careOf(l.address.remote.Addr().Is4()), Lifetime: r.conf.Alliance.Lifetime, Up: announced(l.rates.up), Down: announced(down), Cost: int32(l.cost), Strict: l.line.conf.Load().Strict,
			}
			if g := l.line.grant.Load(); g != nil {
				v.CareOf, v.Up, v.Down = g.careOf, min(v.Up, g.up), min(v.Down, g.down)
			}
			k.out.Put(v)
			x.at = now + askAgain
		}
		due = min(due, x.at)
	}
	if changed {
		r.refresh()
	}
	return due
}

// announced returns a rate as records have it.
func announced(r plane.Rate) unit.Bandwidth {
	if r.Estimated {
		return tunnel.UnknownRate
	}
	return r.Bandwidth
}

// withdraw ends the registration of a path with the home agent. The mutex is locked.
func (r *peer) withdraw(i int) {
	x := &r.links[i].registration
	if r.conf.Alliance.Role == plane.HomeAgent && x.until != 0 && r.session.sending != nil {
		r.session.sending.out.Put(tunnel.Register{Path: uint8(i)})
		r.wakeControl()
	}
	*x = registration{}
}

// register answers the request of a leader to a home agent. The mutex is locked.
func (r *peer) register(v tunnel.Register, now time.Duration) tunnel.Registered {
	l := &r.links[v.Path]
	x := &l.registration
	answer := tunnel.Registered{Path: v.Path, CareOf: l.address.remote, Up: v.Up, Down: v.Down, Cost: v.Cost}
	others := 0
	for i := range r.links {
		if r.links[i].registration.until > now && i != int(v.Path) {
			others++
		}
	}
	switch {
	case v.HomeAgent.Addr().IsValid() && !v.HomeAgent.Addr().IsUnspecified() || !l.ready():
		answer.Code = tunnel.HomeMalformed
	case v.Lifetime > 0 && v.Up == 0 && v.Down == 0: // it carries nothing
		answer.Code = tunnel.HomeMalformed
	case v.Lifetime == 0:
		if x.until != 0 {
			r.log.Info("registration withdrawn", "peer", r.conf.Name, "path", l.title())
		}
		*x = registration{reason: "withdrawn by the leader"}
	case others >= r.conf.Alliance.CareOf:
		answer.Code = tunnel.HomeResources
	default:
		if x.until == 0 {
			r.log.Info("path registered", "peer", r.conf.Name, "path", l.title(), "address", l.address.remote)
		}
		answer.Lifetime = min(v.Lifetime, r.conf.Alliance.Lifetime)
		*x = registration{until: now + answer.Lifetime, careOf: v.CareOf}
		l.rates.down, l.rates.known, l.rates.strict, l.cost = v.Down, true, v.Strict, int(v.Cost)
	}
	r.refuse(answer, "registration refused", "path", l.title())
	return answer
}

// refuse counts a request that is refused, and logs it unless the one before was refused for the same
// reason: a peer may repeat it as often as it likes.
func (r *peer) refuse(a tunnel.Registered, message string, what ...any) {
	if a.Code != tunnel.Accepted {
		r.plane.counts.drop(dropRegistration, 1)
		if a.Code != r.refused {
			r.log.Warn(message, append([]any{"peer", r.conf.Name, "reason", a.Code}, what...)...)
		}
	}
	r.refused = a.Code
}

// answer answers a request to register. The mutex is locked.
func (r *peer) answer(v tunnel.Register, now time.Duration) {
	if r.session.sending == nil {
		return
	}
	// A message has arrived over the path, but its address is not proved yet.
	if l := &r.links[v.Path]; !l.ready() && l.address.unproved.line != nil && v.Lifetime > 0 {
		l.address.waiting = &v
		return
	}
	var a tunnel.Registered
	switch r.conf.Alliance.Role {
	case plane.Registrant:
		a = r.register(v, now)
	case plane.Leader:
		a = r.relay(v, now)
	default:
		r.plane.counts.drop(dropUnexpected, 1)
		a = tunnel.Registered{Path: v.Path, Code: tunnel.HomeProhibited}
	}
	r.session.sending.out.Put(a)
}

// registrationAnswered applies the answer of the home agent. The mutex is locked.
func (r *peer) registrationAnswered(v tunnel.Registered, now time.Duration) {
	l := &r.links[v.Path]
	x := &l.registration
	if l.line == nil || x.at == 0 { // it has not been asked
		r.plane.counts.drop(dropUnexpected, 1)
		return
	}
	switch {
	case v.Code != tunnel.Accepted:
		if reason := v.Code.String(); x.reason != reason {
			r.log.Warn("home agent refuses a registration", "peer", r.conf.Name, "path", l.title(), "reason", reason)
		}
		*x = registration{at: now + refusedFor, reason: v.Code.String()}
	case v.Lifetime == 0:
		x.until = 0
	default:
		lifetime := min(v.Lifetime, r.conf.Alliance.Lifetime)
		x.until, x.at, x.careOf, x.reason = now+lifetime, now+lifetime/2, v.CareOf, ""
	}
}

// reportSeen sends the peer where its paths are seen, if that has changed. The mutex is locked.
func (r *peer) reportSeen(k *keys, now time.Duration) {
	for i := range r.links {
		l := &r.links[i]
		if r.numbering.owner || !l.ready() || !l.probing.alive.Alive() || l.nat.reported == l.address.remote || l.nat.reported.IsValid() && now-l.nat.reportedAt < seenPause {
			continue
		}
		if k.out.Put(tunnel.NAT{Path: uint8(i), Seen: l.address.remote}) {
			l.nat.reported, l.nat.reportedAt = l.address.remote, now
		}
	}
}

// careOf returns the address of the line that a peer may know it by: the first global one of its
// interface, unspecified if there is none.
func (l *line) careOf(v4 bool) netip.AddrPort {
	found := netip.IPv6Unspecified()
	s := l.socket.Load()
	if s == nil {
		return netip.AddrPortFrom(found, 0)
	}
	// An error leaves the address unspecified.
	_ = l.plane.enter(func() error {
		device, err := net.InterfaceByName(l.device)
		if err != nil {
			return err
		}
		list, err := device.Addrs()
		for _, a := range list {
			p, parsed := netip.ParsePrefix(a.String())
			if parsed == nil && p.Addr().Is4() == v4 && p.Addr().IsGlobalUnicast() {
				found = p.Addr()
				break
			}
		}
		return err
	})
	return netip.AddrPortFrom(found, s.Local().Port())
}
