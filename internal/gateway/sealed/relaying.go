package sealed

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/gateway/udp"
)

// A member relays messages between a leader on its short link and one home agent, which it cannot
// decrypt. It accepts them only from the address of the leader's own session with the member, and
// from the home agent. Each leads to at most one message, which is no longer, so a relay amplifies
// nothing. Open messages are in relayopen.go.
//
// The messages of the leader to the member and through it come from one socket to another, so that
// NAT between them maps both alike. Those that the member has no session for are relayed.

// relaying is what this gateway relays, or has relayed, for a leader.
type relaying struct {
	peer    *peer
	current *relay // nil without one
	limit   relayLimit
	counts  relayed
}

// answer answers the request of a leader to a member.
func (x *relaying) answer(v tunnel.Register, now time.Duration) tunnel.Registered {
	a := &x.peer.conf.Alliance
	answer := tunnel.Registered{Path: v.Path, Up: min(v.Up, announced(a.Up)), Down: min(v.Down, announced(a.Down)), Open: v.Open}
	over := x.peer.plane.routing.Load().line(a.Path)
	at := &x.peer.links[v.Path]
	home := v.HomeAgent
	switch {
	case !at.ready():
		answer.Code = tunnel.MemberMalformed
	case v.Lifetime == 0:
		x.end("withdrawn by the leader")
		return answer
	case home.Port() == 0 || !home.Addr().IsGlobalUnicast() || home.Addr().Is4() && home.Addr() == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		answer.Code = tunnel.MemberMalformed
	case !allowed(a.HomeAgents, home):
		answer.Code = tunnel.MemberProhibited
	case over == nil || !over.conf.Load().Usable || over.socket.Load() == nil:
		answer.Code = tunnel.MemberUnreachable
	case v.Open && !x.canRelayOpen(at, over, home):
		answer.Code = tunnel.MemberSealedOnly
	}
	if x.peer.plane.stopping.Load() {
		answer.Code = tunnel.MemberUnreachable
	}
	changed := x.current == nil || x.current.homeAgent != home || x.current.path != v.Path || x.current.open.wanted != v.Open
	if answer.Code == tunnel.Accepted && changed && !x.limit.allow(now) {
		answer.Code = tunnel.MemberResources
	}
	if answer.Code == tunnel.Accepted && changed {
		x.end("replaced")
		if err := x.begin(v.Path, home, over); err != nil {
			x.peer.log.Error("relay", "peer", x.peer.conf.Name, "home agent", home, "error", err)
			answer.Code = tunnel.MemberResources
		} else if x.current.open.wanted = v.Open; v.Open && !x.placeOpen(now) {
			x.end("open messages are not relayed")
			answer.Code = tunnel.MemberSealedOnly
		}
	}
	if x.peer.registering.refuse(answer, "relay refused", "home agent", home); answer.Code != tunnel.Accepted {
		return answer
	}
	y := x.current
	answer.Lifetime = min(v.Lifetime, a.Lifetime)
	answer.Cost = int32(over.conf.Load().Cost)
	y.until = now + answer.Lifetime
	answer.CareOf = netip.AddrPortFrom(over.careOf(home.Addr().Is4()).Addr(), y.out.socket.Load().Local().Port())
	x.place()
	return answer
}

func allowed(list []netip.AddrPort, a netip.AddrPort) bool {
	return len(list) == 0 || slices.Contains(list, a)
}

// begin opens the socket of a relay.
func (x *relaying) begin(path uint8, home netip.AddrPort, over *line) error {
	p := x.peer.plane
	var s *udp.Socket
	if err := p.enter(func() (err error) {
		s, err = udp.Listen(udp.Options{Interface: over.device, Mark: over.mark})
		return err
	}); err != nil {
		return err
	}
	out := &line{plane: p, name: over.name, device: over.device, mark: over.mark}
	out.conf.Store(over.conf.Load())
	out.socket.Store(s)
	y := &relay{leader: x.peer, path: path, homeAgent: home, base: over.socket.Load(), overName: over.name, out: out, counts: &x.counts}
	y.rate = announced(x.peer.conf.Alliance.Up)
	y.up.set(min(unansweredRate, y.rate))
	y.down.set(announced(x.peer.conf.Alliance.Down))
	x.current = y
	x.place()
	p.loops.Go(func() { y.receive(s) })
	x.peer.log.Info("relay begins", "peer", x.peer.conf.Name, "home agent", home, "path", over.name)
	return nil
}

// place has messages of the leader found by where its session is.
func (x *relaying) place() {
	y, p := x.current, x.peer.plane
	l := &x.peer.links[y.path]
	now := place{l.line, l.address.remote}
	old := y.to.Load()
	if !l.ready() || old != nil && *old == now {
		return
	}
	p.relaysMu.Lock()
	defer p.relaysMu.Unlock()
	if old != nil && p.relays[*old] == y {
		delete(p.relays, *old)
	}
	p.relays[now] = y
	y.to.Store(&now)
}

// end closes what is relayed for the leader.
func (x *relaying) end(reason string) {
	y, p := x.current, x.peer.plane
	if y == nil {
		return
	}
	x.peer.log.Info("relay ends", "peer", x.peer.conf.Name, "home agent", y.homeAgent, "reason", reason)
	x.current = nil
	x.endOpen(y)
	p.relaysMu.Lock()
	defer p.relaysMu.Unlock()
	if at := y.to.Load(); at != nil && p.relays[*at] == y {
		delete(p.relays, *at)
	}
	y.out.closeLocked()
}

// check ends a relay whose time is over or whose path has no socket any more, and informs the
// leader. It returns when it is to be called again.
func (x *relaying) check(now time.Duration) time.Duration {
	y := x.current
	if y == nil {
		return now + time.Hour
	}
	l := x.peer.plane.routing.Load().line(y.overName)
	alive := l != nil && l.conf.Load().Usable && l.socket.Load() == y.base
	switch {
	case now >= y.until:
		x.end("registration has expired")
	case !alive || x.peer.conf.Alliance.Path != y.overName:
		x.cut("the path has changed")
	default:
		x.place()
		if x.placeOpen(now) {
			return min(y.until, now+checkSockets)
		}
		x.cut("open messages are not relayed")
	}
	return now + time.Hour
}

// cut ends a relay and informs the leader, which asks again.
func (x *relaying) cut(reason string) {
	y := x.current
	if y == nil {
		return
	}
	x.end(reason)
	if x.peer.session.sending != nil {
		x.peer.session.sending.out.Put(tunnel.Registered{Path: y.path, Code: tunnel.MemberUnreachable})
		x.peer.wakeControlLocked()
	}
}

// status returns what is relayed for the leader.
func (x *relaying) status(now time.Duration) dataplane.RelayStatus {
	s := dataplane.RelayStatus{
		Leader: x.peer.conf.Name, Path: x.peer.conf.Alliance.Path,
		Up: x.counts.up.value(), Down: x.counts.down.value(), Dropped: x.counts.dropped.Load(),
	}
	if y := x.current; y != nil {
		s.HomeAgent, s.Lifetime = y.homeAgent, y.until-now
		if y.open.wanted {
			s.Add(x.peer.plane.opens.Relayed(x.peer.conf.Name))
		}
	}
	return s
}
