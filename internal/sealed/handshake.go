package sealed

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/session"
	"github.com/tabane/tabane/internal/tunnel"
	"github.com/tabane/tabane/internal/udp"
)

const (
	// maxHandshakes is the number of messages that wait for an exchange of keys; with busyHandshakes
	// waiting, senders have to prove their addresses first.
	maxHandshakes  = 64
	busyHandshakes = 8
	// busyTime is how long senders have to prove their addresses after that: with few waiting again,
	// strangers would take all the time that an exchange takes.
	busyTime = time.Second
	// maxAdmitted is the number of latest initiations of which copies, over other paths, are not taken.
	maxAdmitted = 128
	// firstAddresses are how many addresses of a peer a path is tried with at first; each time without an
	// answer, they are twice as many. Each of 16 paths to each of 16 addresses would be 256 messages.
	firstAddresses = 4
	// maxPending is the number of initiations of a peer whose responses may still arrive.
	maxPending = 4
)

// handshakeMessage is an initiation or response that has passed checkHandshake and waits for the exchange of keys.
type handshakeMessage struct {
	line    *line
	message []byte
	from    netip.AddrPort
}

// checkHandshake checks a handshake message, which costs one hash if its sender does not know the public key. It
// returns false and the reason if the message is not for this gateway.
func (p *Plane) checkHandshake(l *line, m []byte, from netip.AddrPort) (mine bool, why reason) {
	if tunnel.Type(m[0]) == tunnel.Cookie {
		if len(m) != session.CookieLen {
			return false, dropTruncated
		}
		return p.cookie(l, m, from), dropHandshake
	}
	p.guardMu.Lock()
	if p.guard == nil {
		p.guardMu.Unlock()
		return true, 0
	}
	now := p.now()
	if len(p.handshakes) >= busyHandshakes {
		p.busyUntil = now + busyTime
	}
	verdict, reply, err := p.guard.Judge(m, from, now < p.busyUntil, now)
	p.guardMu.Unlock()
	switch {
	case err != nil:
		p.log.Error("check handshake", "error", err)
	case verdict == session.Stranger:
		return false, dropStranger
	case verdict == session.Unproven:
		p.counts.drop(dropBusy, 1)
		l.send([]udp.Datagram{{Data: reply, To: from}})
	default:
		p.admit(handshakeMessage{l, bytes.Clone(m), from})
	}
	return true, 0
}

// admit queues a message for the exchange of keys, unless it is a copy of an earlier one.
func (p *Plane) admit(h handshakeMessage) {
	p.guardMu.Lock()
	defer p.guardMu.Unlock()
	initiation := tunnel.Type(h.message[0]) == tunnel.Initiation
	if i := slices.IndexFunc(p.admitted[:], func(a handshakeMessage) bool { return bytes.Equal(a.message, h.message) }); i >= 0 && initiation {
		if a := p.admitted[i]; a.line == h.line && a.from.Addr() == h.from.Addr() {
			p.counts.drop(dropHandshake, 1) // it was recorded
		}
		return
	}
	select {
	case p.handshakes <- h:
		if initiation {
			p.admitted[p.admissions%maxAdmitted] = h
			p.admissions++
		}
	default:
		p.counts.drop(dropBusy, 1)
	}
}

// cookie passes a cookie to the peer that it is for. It returns false if there is no such peer.
func (p *Plane) cookie(l *line, m []byte, from netip.AddrPort) bool {
	r := p.pendingPeer(binary.BigEndian.Uint32(m[4:]))
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.assoc.Cookie(m, p.now()); err != nil {
		return false
	}
	r.cookieFrom = place{l, from}
	r.wakeControl()
	return true
}

// pendingPeer returns the peer that an initiation with this index was sent to, or nil.
func (p *Plane) pendingPeer(index uint32) *peer {
	p.keysMu.RLock()
	defer p.keysMu.RUnlock()
	return p.pending[index]
}

// handshakeLoop exchanges keys, one message at a time, until ctx ends.
func (p *Plane) handshakeLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case h := <-p.handshakes:
			var err error
			if tunnel.Type(h.message[0]) == tunnel.Initiation {
				err = p.answer(h)
			} else {
				err = p.complete(h)
			}
			if err != nil {
				p.counts.drop(dropHandshake, 1)
				p.log.Debug("handshake", "from", h.from, "path", h.line.name, "error", err)
			}
		}
	}
}

// answer answers an initiation.
func (p *Plane) answer(h handshakeMessage) error {
	p.mu.Lock()
	own, peers := p.state.Key, p.peers
	for _, r := range peers {
		r.mu.Lock()
		known := r.assoc.Known(h.message)
		r.mu.Unlock()
		if known { // it arrives over each path
			p.mu.Unlock()
			return nil
		}
	}
	p.mu.Unlock()
	request, err := session.ReadInitiation(own, h.message, random{})
	if err != nil {
		return err
	}
	p.mu.Lock()
	r := p.peers[request.Peer]
	p.mu.Unlock()
	if r == nil {
		return session.ErrRefused
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.removed {
		return session.ErrRefused
	}
	now := p.now()
	s, response, err := r.assoc.Answer(request, h.message, now)
	if errors.Is(err, session.ErrStale) && now-r.lastHeard() > restartedAfter {
		r.answerStale(h, now)
	}
	if err != nil {
		return err
	}
	if _, err := r.installKeys(s); err != nil {
		return err
	}
	h.line.send([]udp.Datagram{{Data: response, To: h.from}})
	return nil
}

// restartedAfter is the silence after which a peer may have been restarted: two idle probes.
const restartedAfter = 2 * probeIdle

// answerStale has initiations also sent to the source of one with an old time. A peer whose clock was set back
// before a restart answers them, because it has seen no later one. An attacker who replays an initiation causes no
// more of them than a silent peer does anyway. The mutex is locked.
func (r *peer) answerStale(h handshakeMessage, now time.Duration) {
	again := r.staleFrom.line != nil
	r.staleFrom = place{h.line, h.from}
	r.assoc.Want(now)
	if !again {
		r.assoc.Repeat(now)
	}
	r.wakeControl()
}

// complete applies a response, which establishes a session.
func (p *Plane) complete(h handshakeMessage) error {
	index := binary.BigEndian.Uint32(h.message[8:])
	r := p.pendingPeer(index)
	if r == nil {
		return session.ErrRefused
	}
	r.mu.Lock()
	now := p.now()
	s, err := r.assoc.Complete(h.message, now)
	if err != nil {
		r.mu.Unlock()
		return err
	}
	k, err := r.installKeys(s)
	if err != nil {
		r.mu.Unlock()
		return err
	}
	for i := range r.links {
		if l := &r.links[i]; l.line == h.line && !(l.remote.IsValid() && l.alive.Alive()) {
			l.remote = h.from
		}
	}
	if r.assoc.Current() != s {
		r.mu.Unlock()
		return nil
	}
	r.useKeys(k, now)
	r.mu.Unlock()
	r.log.Info("session established", "peer", r.conf.Name, "address", h.from, "suite", suite(s))
	// The peer may send only after a message under the new keys.
	r.tick(now, newBatch(p, 1<<16))
	return nil
}

// initiate sends an initiation to addresses at which the peer may be, or where a cookie came from. The
// mutex is locked.
func (r *peer) initiate(message []byte) {
	p := r.plane
	index := binary.BigEndian.Uint32(message[4:])
	p.keysMu.Lock()
	if len(r.pending) == maxPending {
		delete(p.pending, r.pending[0])
		r.pending = slices.Delete(r.pending, 0, 1)
	}
	r.pending = append(r.pending, index)
	p.pending[index] = r
	p.keysMu.Unlock()
	if to := r.cookieFrom; to.line != nil {
		r.cookieFrom = place{}
		to.line.send([]udp.Datagram{{Data: message, To: to.from}})
		return
	}
	defer func() { r.tries++ }()
	for i := range r.links {
		l := &r.links[i]
		if l.line == nil || l.line.socket.Load() == nil || !l.line.conf.Load().Usable {
			continue
		}
		var all []udp.Datagram
		for _, to := range l.addressesToTry(r.tries) {
			all = append(all, udp.Datagram{Data: message, To: to})
		}
		l.line.send(all)
	}
	if to := r.staleFrom; to.line != nil {
		to.line.send([]udp.Datagram{{Data: message, To: to.from}})
	}
}

// addressesToTry returns the addresses to try after that many attempts without an answer.
func (l *link) addressesToTry(times int) []netip.AddrPort {
	all := l.addresses()
	return all[:min(len(all), firstAddresses<<min(times, 8))]
}

// addresses returns where the peer may be on a path: where it was last heard, then the configured ones.
func (l *link) addresses() []netip.AddrPort {
	if !l.remote.IsValid() || slices.Contains(l.candidates, l.remote) {
		return l.candidates
	}
	return append([]netip.AddrPort{l.remote}, l.candidates...)
}

// learn applies what an authentic message shows: that the peer has the keys, and its address on a path.
func (r *peer) learn(k *keys, path int, at *line, from netip.AddrPort) {
	p := r.plane
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.removed {
		return
	}
	now := p.now()
	if r.assoc.Received(k.Session) {
		r.log.Info("session established", "peer", r.conf.Name, "address", from, "suite", suite(k.Session))
		r.useKeys(k, now)
	}
	l := &r.links[path]
	switch {
	case !r.owner:
		if l.line != at {
			l.line = at
			l.rate = at.conf.Load().Up
		}
	case l.line != at:
		return // the peer uses other numbers
	case l.remote.IsValid() && l.alive.Alive() && slices.Contains(l.candidates, l.remote) && slices.Contains(l.candidates, from):
		return // several of its addresses answer: the first one is used
	}
	if l.remote != from {
		if l.remote.IsValid() {
			r.log.Info("address of peer has changed", "peer", r.conf.Name, "path", at.name, "from", l.remote, "to", from)
		}
		l.remote = from
		l.probeAt = min(l.probeAt, now)
		r.wakeControl()
	}
	r.refresh()
}
