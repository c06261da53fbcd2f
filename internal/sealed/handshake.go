package sealed

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/session"
	"github.com/tabane/tabane/internal/tunnel"
	"github.com/tabane/tabane/internal/udp"
)

const (
	// maxHandshakes is the number of messages that wait for an exchange of keys; with busyHandshakes
	// waiting, senders have to prove their addresses first.
	maxHandshakes  = 64
	busyHandshakes = 8
	// maxPending is the number of initiations of a peer whose responses may still arrive.
	maxPending = 4
)

// handshake is a message that is worth an exchange of keys.
type handshake struct {
	line    *line
	message []byte
	from    netip.AddrPort
}

// knock judges a handshake message: a stranger's costs a hash.
func (p *Plane) knock(l *line, m []byte, from netip.AddrPort) {
	if tunnel.Type(m[0]) == tunnel.Cookie {
		if len(m) == session.CookieLen {
			p.cookie(m)
		} else {
			p.counts.drop(dropTruncated, 1)
		}
		return
	}
	p.guardMu.Lock()
	if p.guard == nil {
		p.guardMu.Unlock()
		return
	}
	verdict, reply, err := p.guard.Judge(m, from, len(p.handshakes) >= busyHandshakes, p.now())
	p.guardMu.Unlock()
	switch {
	case err != nil:
		p.log.Error("judge handshake", "error", err)
	case verdict == session.Stranger:
		p.counts.drop(dropStranger, 1)
	case verdict == session.Unproven:
		p.counts.drop(dropBusy, 1)
		l.send([]udp.Datagram{{Data: reply, To: from}})
	default:
		select {
		case p.handshakes <- handshake{l, bytes.Clone(m), from}:
		default:
			p.counts.drop(dropBusy, 1)
		}
	}
}

// cookie gives a cookie to the peer that it is for.
func (p *Plane) cookie(m []byte) {
	r := p.awaiting(binary.BigEndian.Uint32(m[4:]))
	if r == nil {
		p.counts.drop(dropHandshake, 1)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.assoc.Cookie(m, p.now()); err != nil {
		p.counts.drop(dropHandshake, 1)
		return
	}
	r.soon()
}

// awaiting returns the peer that an initiation with this index was sent to, or nil.
func (p *Plane) awaiting(index uint32) *peer {
	p.keysMu.RLock()
	defer p.keysMu.RUnlock()
	return p.pending[index]
}

// shake exchanges keys, one message at a time.
func (p *Plane) shake(ctx context.Context) {
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
func (p *Plane) answer(h handshake) error {
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
	if r.gone {
		return session.ErrRefused
	}
	s, response, err := r.assoc.Answer(request, h.message, p.now())
	if err != nil {
		return err
	}
	if _, err := r.install(s); err != nil {
		return err
	}
	h.line.send([]udp.Datagram{{Data: response, To: h.from}})
	return nil
}

// complete takes a response: there is a session.
func (p *Plane) complete(h handshake) error {
	index := binary.BigEndian.Uint32(h.message[8:])
	r := p.awaiting(index)
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
	k, err := r.install(s)
	if err != nil {
		r.mu.Unlock()
		return err
	}
	for i := range r.links {
		if l := &r.links[i]; l.line == h.line && !l.remote.IsValid() {
			l.remote = h.from
		}
	}
	if r.assoc.Current() != s {
		r.mu.Unlock()
		return nil
	}
	r.use(k, now)
	r.mu.Unlock()
	p.log.Info("session established", "peer", r.conf.Name, "address", h.from, "suite", suite(s))
	// The peer may send only after a message under the new keys.
	r.tick(now, newBatch(p, 1<<16))
	return nil
}

// initiate sends an initiation to all addresses at which the peer may be. The mutex is locked.
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
	for i := range r.links {
		l := &r.links[i]
		if l.line == nil || l.line.socket.Load() == nil || !l.line.conf.Load().Usable {
			continue
		}
		for _, to := range l.addresses() {
			l.line.send([]udp.Datagram{{Data: message, To: to}})
		}
	}
}

// addresses returns where the peer may be on a path: where it was last heard, then the configured ones.
func (l *link) addresses() []netip.AddrPort {
	if !l.remote.IsValid() || slices.Contains(l.candidates, l.remote) {
		return l.candidates
	}
	return append([]netip.AddrPort{l.remote}, l.candidates...)
}

// learn takes what an authentic message shows: that the peer has the keys, and where it is.
func (r *peer) learn(k *keys, path int, at *line, from netip.AddrPort) {
	p := r.plane
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return
	}
	now := p.now()
	if r.assoc.Received(k.Session) {
		p.log.Info("session established", "peer", r.conf.Name, "address", from, "suite", suite(k.Session))
		r.use(k, now)
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
			p.log.Info("address of peer has changed", "peer", r.conf.Name, "path", at.name, "from", l.remote, "to", from)
		}
		l.remote = from
		l.probeAt = min(l.probeAt, now)
		r.soon()
	}
	r.refresh()
}
