package sealed

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/gateway/udp"
	"github.com/tabane/tabane/internal/kernel/contain"
)

const (
	// proofTime is how long senders have to prove their addresses once many messages wait: with few
	// waiting again, strangers would take all the time that an exchange takes.
	proofTime = time.Second
	// maxAdmitted is the number of latest initiations of which copies, over other paths, are not
	// taken.
	maxAdmitted = 128
	// firstAddresses are how many addresses of a peer a path is tried with at first; each time
	// without an answer, they are twice as many. Each of 16 paths to each of 16 addresses would be
	// 256 messages.
	firstAddresses = 4
	// maxPending is the number of initiations of a peer whose responses may still arrive.
	maxPending = 4
)

// checkHandshake checks a handshake message, which costs one hash if its sender does not know the
// public key. It returns false and the reason if the message is not for this gateway. to is the
// address of this gateway that it was sent to, from which it is answered.
func (p *Plane) checkHandshake(l *line, m []byte, from netip.AddrPort, to netip.Addr) (addressed bool, drop reason) {
	if tunnel.Type(m[0]) == tunnel.Cookie {
		if len(m) != handshake.CookieLen {
			return false, dropTruncated
		}
		return p.cookie(l, m, from, to), dropHandshake
	}
	guard := p.guard.Load()
	switch {
	case guard == nil:
	case tunnel.Type(m[0]) == tunnel.Initiation:
		return p.checkInitiation(guard, l, m, from, to), dropStranger
	case !guard.Addressed(m):
		return false, dropStranger
	default:
		p.checkResponse(l, m, from, to)
	}
	return true, 0
}

// checkInitiation queues an initiation if its sender may have an exchange of keys, and answers it
// with a cookie if the sender has to prove its address. It returns false if it is not for this
// gateway.
func (p *Plane) checkInitiation(guard *handshake.Guard, l *line, m []byte, from netip.AddrPort, to netip.Addr) bool {
	verdict, reply, err := p.judge(guard, l, m, from, to)
	switch {
	case err != nil:
		p.log.Error("check handshake", "error", err)
	case verdict == handshake.Stranger:
		return false
	case verdict == handshake.Unproven:
		p.counts.drop(dropBusy, 1)
		l.send([]udp.Datagram{{Data: reply, To: from, From: to}})
	case verdict == handshake.Excessive:
		p.counts.drop(dropBusy, 1)
	}
	return true
}

// judge judges an initiation, and queues it if it is admitted and no copy of another one.
func (p *Plane) judge(guard *handshake.Guard, l *line, m []byte, from netip.AddrPort, to netip.Addr) (handshake.Verdict, []byte, error) {
	p.guardMu.Lock()
	defer p.guardMu.Unlock()
	if i := slices.IndexFunc(p.admitted[:], func(a handshakeMessage) bool { return handshake.Same(a.message, m) }); i >= 0 {
		if a := p.admitted[i]; a.line == l && a.from.Addr() == from.Addr() {
			p.counts.drop(dropHandshake, 1) // it was recorded
		}
		return handshake.Admitted, nil, nil
	}
	now := p.now()
	if p.exchanges.busy() {
		p.busyUntil = now + proofTime
	}
	verdict, reply, err := guard.Judge(m, from, now < p.busyUntil, now)
	if verdict != handshake.Admitted {
		return verdict, reply, err
	}
	h := handshakeMessage{line: l, message: bytes.Clone(m), from: from, to: to}
	queued, dropped := p.exchanges.push(h)
	p.counts.drop(dropBusy, uint64(dropped))
	if queued {
		p.admitted[p.admissions%maxAdmitted] = h
		p.admissions++
	}
	return verdict, nil, nil
}

// checkResponse queues a response to an initiation of this gateway. The index, which only who has
// seen the initiation knows, and the proof that the peer has made it replace a cookie: a gateway
// that is flooded has to complete the handshakes that it begins.
func (p *Plane) checkResponse(l *line, m []byte, from netip.AddrPort, to netip.Addr) {
	r := p.pendingPeer(binary.BigEndian.Uint32(m[8:]))
	switch {
	case r == nil || !r.session.assoc.Proves(m):
		p.counts.drop(dropHandshake, 1)
	default:
		_, dropped := p.exchanges.push(handshakeMessage{line: l, message: bytes.Clone(m), from: from, to: to, peer: r})
		p.counts.drop(dropBusy, uint64(dropped))
	}
}

// cookie repeats an initiation, with the cookie that it was answered by, where that came from. It
// returns false if no initiation waits for it.
func (p *Plane) cookie(l *line, m []byte, from netip.AddrPort, to netip.Addr) bool {
	r := p.pendingPeer(binary.BigEndian.Uint32(m[4:]))
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now, at := p.now(), place{l, from}
	c, initiation, err := r.session.assoc.Cookie(m, now)
	if err != nil {
		return false
	}
	if !r.initiating.proofs.take(at, c, r.initiating.sentTo(at)) {
		p.counts.drop(dropBusy, 1)
		return true
	}
	l.send([]udp.Datagram{{Data: c.Stamp(initiation, now), To: from, From: to}})
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
		case <-p.exchanges.ready:
		}
		for h, found := p.exchanges.pop(); found && ctx.Err() == nil; h, found = p.exchanges.pop() {
			_ = contain.Do(contain.GatewayMessage, p.log, h.message, func() { p.exchange(h) }) // it is logged
		}
	}
}

// exchange exchanges keys.
func (p *Plane) exchange(h handshakeMessage) {
	var err error
	if h.peer == nil {
		err = p.answer(h)
	} else {
		err = p.complete(h)
	}
	switch {
	case err == nil:
		return
	case errors.Is(err, handshake.ErrTooMany):
		p.counts.drop(dropBusy, 1)
	default:
		p.counts.drop(dropHandshake, 1)
	}
	p.log.Debug("handshake", "from", h.from, "path", h.line.name, "error", err)
}

// known returns the key of this gateway, and whether an initiation was answered before.
func (p *Plane) known(message []byte) (own handshake.PrivateKey, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.peers {
		if r.knows(message) {
			return p.state.Key, true
		}
	}
	return p.state.Key, false
}

// peerOf returns the peer with a key, or nil.
func (p *Plane) peerOf(k handshake.PublicKey) *peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.peers[k]
}

func (r *peer) knows(message []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.session.assoc.Known(message)
}

// answer answers an initiation.
func (p *Plane) answer(h handshakeMessage) error {
	own, known := p.known(h.message)
	if known { // it arrives over each path
		return nil
	}
	request, err := handshake.ReadInitiation(own, h.message, random{})
	var other *handshake.VersionError
	if errors.As(err, &other) {
		if r := p.peerOf(other.Peer); r != nil {
			r.warnOfVersion(err, p.now())
		}
	}
	if err != nil {
		return err
	}
	r := p.peerOf(request.Peer)
	if r == nil {
		return handshake.ErrRefused
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.removed || r.restingLocked() > 0 {
		return handshake.ErrRefused
	}
	now := p.now()
	if !r.session.assoc.Stale(request) && r.session.refuses(place{h.line, h.from}, now) {
		return handshake.ErrRefused
	}
	s, response, err := r.session.assoc.Answer(request, h.message, now)
	if errors.Is(err, handshake.ErrStale) && now-r.rx.lastMessage() > restartSilence {
		r.initiating.answerStale(request.Time, place{h.line, h.from}, h.to, now)
	}
	if err != nil {
		return err
	}
	if _, err := r.session.install(s); err != nil {
		return err
	}
	h.line.send([]udp.Datagram{{Data: response, To: h.from, From: h.to}})
	return nil
}

// complete applies a response, which establishes a session.
func (p *Plane) complete(h handshakeMessage) error {
	r, now := h.peer, p.now()
	s, used, err := r.complete(h, now)
	if err != nil || !used {
		return err
	}
	r.log.Info("session established", "peer", r.conf.Name, "address", h.from, "suite", suite(s))
	// The peer may send only after a message under the new keys.
	r.tick(now, newBatch(p, 1<<16))
	return nil
}

// complete applies a response to the peer; used reports whether its keys are those to send under.
func (r *peer) complete(h handshakeMessage, now time.Duration) (s *handshake.Session, used bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.removed || r.restingLocked() > 0 {
		return nil, false, handshake.ErrRefused
	}
	s, err = r.session.assoc.Complete(h.message, now)
	if err != nil {
		return nil, false, err
	}
	k, err := r.session.install(s)
	if err != nil {
		return nil, false, err
	}
	if r.session.assoc.Current() != s {
		return s, false, nil
	}
	r.session.use(k, now)
	r.proving.respondedFrom(k, place{h.line, h.from}, len(h.message)+inet.UDP4Len, now)
	return s, true, nil
}
