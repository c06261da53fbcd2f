package sealed

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tabane/tabane/internal/contain"
	"github.com/tabane/tabane/internal/plane"
	"github.com/tabane/tabane/internal/tunnel"
	"github.com/tabane/tabane/internal/udp"
	"github.com/tabane/tabane/internal/unit"
)

// A member relays messages between a leader on its short link and one home agent, which it cannot
// decrypt. It accepts them only from the address of the leader's own session with the member, and
// from the home agent. Each leads to at most one message, which is no longer, so a relay amplifies
// nothing. Open messages are in relayopen.go.
//
// The messages of the leader to the member and through it come from one socket to another, so that NAT
// between them maps both alike. Those that the member has no session for are relayed.

// relaying is what this gateway relays, or has relayed, for a leader.
type relaying struct {
	peer    *peer
	current *relay // nil without one
	limit   relayLimit
	counts  relayed
}

// relay is what a member does for a leader.
type relay struct {
	leader    *peer
	path      uint8 // as the leader numbers it
	homeAgent netip.AddrPort
	until     time.Duration
	base      *udp.Socket // of the path that the relay's socket is beside
	over      string      // name of that path
	out       *line       // the relay's socket
	to        atomic.Pointer[place]
	// answered: the home agent has sent a message.
	answered atomic.Bool
	rate     unit.Bandwidth // from the leader, once the home agent has answered
	up, down policer
	x        *relayed
	open     openRelay
}

// relayed counts what is relayed for a leader, as long as it is configured.
type relayed struct {
	up, down count
	dropped  atomic.Uint64
}

// policer drops what exceeds a rate.
type policer struct {
	mu     sync.Mutex
	rate   float64 // bytes per second
	tokens float64
	at     time.Duration
}

const (
	// burstTime is how long a burst at the rate may be, burstLen its smallest length in bytes: that of
	// a message in segments.
	burstTime, burstLen = 100 * time.Millisecond, 1 << 17
	// unansweredRate is the rate to a home agent that has not answered: enough for handshakes and
	// probes.
	unansweredRate = 64 * unit.KbitPerSecond
	// maxRelayStarts is how many relays a leader may start in relayStartsIn: each opens a socket.
	maxRelayStarts, relayStartsIn = 8, 10 * time.Second
)

// relayLimit limits how often a leader starts relays. It has the times of the last ones.
type relayLimit struct {
	at   [maxRelayStarts]time.Duration
	next int
}

// allow reports whether one more may start now, and counts it.
func (b *relayLimit) allow(now time.Duration) bool {
	at := &b.at[b.next%maxRelayStarts]
	if b.next >= maxRelayStarts && now-*at < relayStartsIn {
		return false
	}
	*at = now
	b.next++
	return true
}

func (p *policer) set(rate unit.Bandwidth) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = float64(rate) / 8
	p.tokens = p.burstLocked()
}

func (p *policer) burstLocked() float64 {
	if p.rate <= float64(unansweredRate)/8 {
		return p.rate // a second
	}
	return max(p.rate*burstTime.Seconds(), burstLen)
}

// allow reports whether a packet of n bytes is within the rate, and accounts for it.
func (p *policer) allow(now time.Duration, n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now > p.at {
		p.tokens = min(p.burstLocked(), p.tokens+p.rate*(now-p.at).Seconds())
		p.at = now
	}
	if p.tokens < float64(n) {
		return false
	}
	p.tokens -= float64(n)
	return true
}

// relayOf returns what is relayed for the sender of messages, or nil.
func (p *Plane) relayOf(l *line, from netip.AddrPort) *relay {
	if !l.conf.Load().Short {
		return nil
	}
	p.relaysMu.RLock()
	defer p.relaysMu.RUnlock()
	return p.relays[place{l, from}]
}

// relayOrDrop handles a message that is not for this gateway: it is relayed if a leader has sent
// it, else dropped.
func (p *Plane) relayOrDrop(l *line, g *udp.Received, m []byte, b *batch, why reason) {
	if y := p.relayOf(l, g.From); y != nil {
		y.forward(b, m, g.Class)
	} else {
		p.counts.drop(why, 1)
	}
}

// forward relays a message of the leader, which is not for this gateway.
func (y *relay) forward(b *batch, m []byte, class uint8) {
	if !sealedOrHandshake(m) || !y.up.allow(y.leader.plane.now(), len(m)+ipUDP4) {
		y.x.dropped.Add(1)
		return
	}
	y.x.up.add(1, len(m)+ipUDP4)
	b.add(y.out, udp.Datagram{Data: m, To: y.homeAgent, Class: class})
}

// sealedOrHandshake reports whether a message may be one of a tunnel.
func sealedOrHandshake(m []byte) bool {
	switch tunnel.Type(m[0]) {
	case tunnel.Initiation, tunnel.Response, tunnel.Cookie:
		return len(m) >= shortestHandshake
	case tunnel.Data, tunnel.Control, tunnel.Compatible, tunnel.OpenData: // ParseHeader refuses the last two
	}
	_, err := tunnel.ParseHeader(m)
	return err == nil
}

// shortestHandshake is the length of a cookie.
const shortestHandshake = 64

// receive relays messages of the home agent until the socket is closed.
func (y *relay) receive(s *udp.Socket) {
	p := y.leader.plane
	buffers := make([][]byte, receiveBuffers)
	for i := range buffers {
		buffers[i] = make([]byte, udp.BufferLen)
	}
	got := make([]udp.Received, receiveBuffers)
	var all []udp.Datagram
	for {
		n, err := s.Receive(buffers, got)
		if errors.Is(err, fs.ErrClosed) {
			return
		}
		if err != nil {
			y.out.fail(err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		_ = contain.Do(contain.GatewayMessage, p.log, got[0].Data, func() { all = y.pass(got[:n], all[:0]) }) // it is logged
	}
}

// pass relays what was received from the home agent to the leader; all is a buffer.
func (y *relay) pass(got []udp.Received, all []udp.Datagram) []udp.Datagram {
	p := y.leader.plane
	at, now := y.to.Load(), p.now()
	for i := range got {
		g := &got[i]
		for data := g.Data; len(data) > 0; {
			m := data[:min(g.Size, len(data))]
			data = data[len(m):]
			if g.From != y.homeAgent || !sealedOrHandshake(m) || !y.down.allow(now, len(m)+ipUDP4) {
				y.x.dropped.Add(1)
				continue
			}
			y.x.down.add(1, len(m)+ipUDP4)
			all = append(all, udp.Datagram{Data: m, To: at.from, Class: g.Class})
		}
	}
	if len(all) > 0 {
		if !y.answered.Swap(true) {
			y.up.set(y.rate)
			y.leader.relaysChanged.Store(true) // for open messages
			p.wakeControl()
		}
		at.line.send(all)
	}
	return all
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
	other := x.current == nil || x.current.homeAgent != home || x.current.path != v.Path || x.current.open.wanted != v.Open
	if answer.Code == tunnel.Accepted && other && !x.limit.allow(now) {
		answer.Code = tunnel.MemberResources
	}
	if answer.Code == tunnel.Accepted && other {
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
	y := &relay{leader: x.peer, path: path, homeAgent: home, base: over.socket.Load(), over: over.name, out: out, x: &x.counts}
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
	l := x.peer.plane.routing.Load().line(y.over)
	alive := l != nil && l.conf.Load().Usable && l.socket.Load() == y.base
	switch {
	case now >= y.until:
		x.end("registration has expired")
	case !alive || x.peer.conf.Alliance.Path != y.over:
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
func (x *relaying) status(now time.Duration) plane.RelayStatus {
	s := plane.RelayStatus{
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
	// tryHome is how long a home agent has time to answer over a relay before another of its addresses
	// is asked for.
	tryHome = 2 * time.Second
	// unreachableFor is how long a member whose line is down is not asked.
	unreachableFor = time.Second
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
		if x.until != 0 && len(x.homes) > 1 && now-max(x.since, time.Duration(l.line.proven.Load())) > tryHome {
			x.next, x.since, x.at = x.next+1, now, now
		}
		if now >= x.at {
			c := l.line.conf.Load()
			k.out.Put(tunnel.Register{
				Path: uint8(i), CareOf: l.line.careOf(l.address.remote.Addr().Is4()), HomeAgent: x.homes[x.next%len(x.homes)], Lifetime: x.peer.conf.Alliance.Lifetime,
				Up: announced(c.Up), Down: announced(c.Down), Open: x.open,
			})
			x.at = now + askAgain
		}
		due = min(due, x.at)
		if x.until != 0 {
			due = min(due, x.until, now+tryHome)
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
		x.at = now + refusedFor
		if v.Code == tunnel.MemberUnreachable {
			x.at = now + unreachableFor
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

// applyGrants updates the paths over members by what these relay.
func (x *registering) applyGrants(now time.Duration) {
	changed := false
	for i := range x.peer.links {
		l := &x.peer.links[i]
		if l.line == nil || l.line.conf.Load().Member == "" || x.peer.conf.Alliance.Role != plane.HomeAgent {
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
