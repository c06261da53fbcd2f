package sealed

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/quality"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// sessionState is the session that packets are sent in.
type sessionState struct {
	peer      *peer
	assoc     *handshake.Association
	sending   *keys         // nil without a session
	since     time.Duration // when there was none before
	keysSince time.Duration
	proven    bool   // a probe was answered under the current keys
	epoch     uint32 // number of handshakes
	// begun are when the last sessions began, the latest first, again is when they last began too
	// often, and contested when they last did for so long that both gateways with one key have seen
	// it. Both are also when another gateway was refused. warned and warnedOther are when it was logged.
	begun               [contestedSessions]time.Duration
	again, contested    time.Duration
	warned, warnedOther time.Duration
	// openCookie is that which the peer accepts open messages with, 0 for none.
	openCookie uint64
}

// numbering is which gateway numbers the paths (decide).
type numbering struct {
	owner            bool // this gateway does
	peerHasEndpoints bool // so that the peer could
	peerScouts       bool // the peer has scouts
}

// decide decides whose numbers paths have: those of the gateway that has endpoints, of two that
// have, the one with the lower key.
func (x *numbering) decide(own handshake.PublicKey, c *dataplane.Peer) {
	x.owner = len(c.Endpoints) > 0 && (!x.peerHasEndpoints || slices.Compare(own[:], c.Public[:]) < 0)
}

// keys are a session with the keys made of its secrets. number and counters are guarded by the
// mutex of the peer, in and out as well; the rest has mutexes of its own.
type keys struct {
	*handshake.Session
	peer          *peer
	send, receive *tunnel.Key
	number        tunnel.Numbering
	counters      [tunnel.MaxPaths]uint64
	cookie        uint64 // that the peer sends open messages with, 0 for none
	announced     bool   // cookie was
	lanes         lanes
	in            tunnel.Inbox
	out           tunnel.Outbox
	ack           bool // records have arrived since the last Ack was sent

	replay [tunnel.MaxPaths]replay
}

// replay is what has arrived over a path: counters, and where the last message came from.
type replay struct {
	sync.Mutex
	tunnel.Replay
	// at is where the newest message came from, bytes how many have come from there since, to the
	// address of this gateway that it was sent to.
	at    place
	to    netip.Addr
	bytes int
}

// lanes are those in use since a time.
type lanes struct {
	used [tunnel.Lanes]time.Duration
}

// offers returns the encryptions of data that this gateway offers: AES only if its CPU is fast at
// it. Without such instructions AES is many times slower, and its time depends on the key.
func (p *Plane) offers() handshake.Suites {
	return 1<<(p.fastest-1) | 1<<(tunnel.ChaCha20Poly1305-1)
}

// choose returns the encryption of those that a peer offers, 0 if none is known: AES only if both
// CPUs are fast at it, or the peer offers nothing else.
func (p *Plane) choose(offered handshake.Suites) uint8 {
	for _, s := range [...]tunnel.Suite{p.fastest, tunnel.ChaCha20Poly1305, tunnel.AES256GCM} {
		if offered.Has(uint8(s)) {
			return uint8(s)
		}
	}
	return 0
}

// suite returns the name of a session's encryption.
func suite(s *handshake.Session) string { return tunnel.Suite(s.Suite).String() }

// install derives the keys of a session and registers them for received messages.
func (x *sessionState) install(s *handshake.Session) (*keys, error) {
	send, err := tunnel.NewKey(tunnel.Suite(s.Suite), s.Send)
	if err != nil {
		return nil, fmt.Errorf("make keys: %w", err)
	}
	receive, err := tunnel.NewKey(tunnel.Suite(s.Suite), s.Receive)
	if err != nil {
		return nil, fmt.Errorf("make keys: %w", err)
	}
	k := &keys{Session: s, peer: x.peer, send: send, receive: receive}
	p := x.peer.plane
	p.keysMu.Lock()
	defer p.keysMu.Unlock()
	for i, old := range p.keys {
		if old.peer == x.peer && x.assoc.Find(i) == nil {
			delete(p.keys, i)
		}
	}
	p.keys[s.Local] = k
	return k, nil
}

// Sessions begin too often if manySessions of them do within manyWithin. Those of two gateways that
// take turns with one key begin every second while packets are carried, else every six seconds.
// Those of a gateway that restarts as often do, too, and those over lines that break. A gateway
// cannot know which it is: it only sees that sessions end.
const manySessions, manyWithin, manyWarnings = 6, time.Minute, 10 * time.Minute

// contestedSessions begin until each of the two gateways has seen manySessions, and can say so.
const contestedSessions = 2*manySessions + 2

// againAndAgain is what sessions do that do not last, tooMany why there is none that does.
const (
	againAndAgain = "begin again and again: one of the two restarts, all lines between them break for seconds, or another gateway uses the key of one of the two"
	tooMany       = "its sessions " + againAndAgain
)

// repeated reports whether sessions begin too often, or did when the last one began that answers.
func (x *sessionState) repeated(now time.Duration) bool {
	return x.again > 0 && (now-x.again < manyWithin || !x.peer.links.anyAlive())
}

// count counts a session that begins.
func (x *sessionState) count(now time.Duration) {
	copy(x.begun[1:], x.begun[:])
	x.begun[0] = now
	within := func(last, limit time.Duration) bool { return last > 0 && now-last < limit }
	if within(x.begun[contestedSessions-1], 2*manyWithin) {
		x.contested = now
	}
	if !within(x.begun[manySessions-1], manyWithin) {
		if !within(x.again, manyWithin) {
			x.again = 0
		}
		return
	}
	x.again = now
	if x.warned == 0 || now-x.warned >= manyWarnings {
		x.warned = now
		x.peer.log.Warn("sessions with the peer "+againAndAgain, "peer", x.peer.conf.Name)
	}
}

// refuses reports whether an initiation from a place is refused. Of two gateways with one key, each
// would end the session of the other one for ever, and get packets for hosts that only the other one
// has. So once both have seen that, the one with the session keeps it while it answers.
func (x *sessionState) refuses(from place, now time.Duration) bool {
	if x.contested == 0 || now-x.contested >= manyWithin || !x.peer.links.anyAlive() {
		return false
	}
	for i := range x.peer.links {
		if x.peer.links[i].place() == from {
			return false
		}
	}
	x.again, x.contested = now, now
	if x.warnedOther == 0 || now-x.warnedOther >= manyWarnings {
		x.warnedOther = now
		x.peer.log.Warn("an initiation is refused while the session of the peer answers elsewhere: another gateway has its key, or a NAT has changed its address", "peer", x.peer.conf.Name, "address", from.from)
	}
	return true
}

// use starts to send with keys.
func (x *sessionState) use(k *keys, now time.Duration) {
	if x.sending == nil {
		x.since = now
	}
	x.sending, x.keysSince, x.proven, x.peer.initiating.tries = k, now, false, 0
	x.peer.initiating.stale.end()
	x.epoch++
	x.count(now)
	k.out.Put(x.hello(len(x.peer.plane.lineStates())))
	x.acceptOpen()
	if x.peer.numbering.owner {
		x.announce()
	}
	for i := range x.peer.links {
		l := &x.peer.links[i]
		// A gateway that was restarted has no registrations, and no record of what it has sent.
		l.registration.at, l.nat.reported = 0, netip.AddrPort{}
		if !l.rests() {
			l.probing.due = 0
		}
		l.reports.last.Next, l.reports.oversized = 0, 0
		l.reports.loss.Renumber()
		if !l.probing.alive.Alive() {
			l.probing.alive = quality.Liveness{} // the first answer is enough
		}
	}
	x.peer.memberRequest.at = 0
	x.peer.scheduling.refresh()
	x.peer.wakeControlLocked()
}

// hello returns the first record of a session of a gateway with so many lines.
func (x *sessionState) hello(lines int) tunnel.Hello {
	h := tunnel.Hello{Features: tunnel.Uses, Endpoints: len(x.peer.conf.Endpoints) > 0}
	if lines < tunnel.MaxPaths {
		h.Features |= tunnel.Scouts
	}
	return h
}

// announce sends the paths of this gateway to the peer.
func (x *sessionState) announce() {
	for i := range x.peer.links {
		if x.peer.links[i].line != nil {
			x.peer.matching.announce(i)
		}
	}
}

// retract withdraws a path from the peer.
func (x *sessionState) retract(path int) {
	if x.sending != nil {
		x.sending.out.Put(tunnel.PathRemove{Path: uint8(path)})
		x.peer.matching.announced[path] = tunnel.PathAdd{}
		x.peer.wakeControlLocked()
	}
}

// retractUnused withdraws the paths that this gateway does not have: before a restart it may have
// had more, and what was said under other keys may not have arrived.
func (x *sessionState) retractUnused() {
	for i := range x.peer.links {
		if x.peer.links[i].line == nil {
			x.retract(i)
		}
	}
}

// forgetPlace has the next message of a path show where the peer is, whichever keys it has.
func (x *sessionState) forgetPlace(path int) {
	p := x.peer.plane
	var all []*keys
	p.keysMu.RLock()
	for _, k := range p.keys {
		if k.peer == x.peer {
			all = append(all, k)
		}
	}
	p.keysMu.RUnlock()
	for _, k := range all {
		k.replay[path].forgetPlace()
	}
}

// end ends all sessions.
func (x *sessionState) end() {
	x.assoc.Forget()
	x.sending = nil
	x.peer.memberRequest.end("the member has ended the session")
	x.peer.relaying.end("the leader has ended the session")
	for i := range x.peer.links {
		l := &x.peer.links[i]
		l.registration, l.address.unproved, l.address.waiting = registration{}, unproved{}, nil
	}
	x.openCookie = 0
	x.acceptOpen()
	p := x.peer.plane
	p.keysMu.Lock()
	defer p.keysMu.Unlock()
	for i, k := range p.keys {
		if k.peer == x.peer {
			delete(p.keys, i)
		}
	}
	for _, i := range x.peer.initiating.pending {
		delete(p.pending, i)
	}
	x.peer.initiating.pending = nil
	x.peer.scheduling.refresh()
}

// sendBye sends the end of the session.
func (x *sessionState) sendBye() {
	k := x.sending
	if k == nil {
		return
	}
	k.out = tunnel.Outbox{}
	k.out.Put(tunnel.Bye{})
	b := newBatch(x.peer.plane, 1<<16)
	for i := range x.peer.links {
		if x.peer.links[i].ready() {
			buf := b.slot(controlRoom)
			body := tunnel.AppendNumbered(buf[tunnel.Offset:tunnel.Offset], 0, tunnel.Bye{})
			x.peer.sealLocked(b, k, i, buf[:tunnel.Offset+len(body)], tunnel.Control, tunnel.Stamp{}, controlClass, x.peer.plane.now())
		}
	}
	b.flush()
}

// acceptOpen has open messages of the peer accepted with a cookie of each of its sessions, and
// announces that of the current one.
func (x *sessionState) acceptOpen() {
	p := x.peer.plane
	if p.opened == nil {
		return
	}
	k := x.sending
	var cookies []uint64
	if x.peer.conf.Mode == dataplane.Unsealed && k != nil {
		if k.cookie == 0 {
			k.cookie = unguessable()
		}
		p.keysMu.RLock()
		for _, other := range p.keys {
			if other.peer == x.peer && other.cookie != 0 {
				cookies = append(cookies, other.cookie)
			}
		}
		p.keysMu.RUnlock()
	}
	if err := p.opened.Accept(x.peer.conf.Name, cookies); err != nil {
		x.peer.log.Error("open messages are not accepted", "peer", x.peer.conf.Name, "err", err)
		return
	}
	if len(cookies) > 0 && !k.announced {
		k.announced = true
		k.out.Put(tunnel.Open{Cookie: k.cookie})
	}
}
