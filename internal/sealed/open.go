package sealed

import (
	"crypto/rand"
	"encoding/binary"

	"github.com/tabane/tabane/internal/plane"
	"github.com/tabane/tabane/internal/tunnel"
)

// acceptOpen has open messages of the peer accepted with a cookie of each of its sessions, and
// announces that of the current one.
func (x *sessionState) acceptOpen() {
	p := x.peer.plane
	if p.opened == nil {
		return
	}
	k := x.sending
	var cookies []uint64
	if x.peer.conf.Mode == plane.Unsealed && k != nil {
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

// unguessable returns a random number that is not 0.
func unguessable() uint64 {
	var b [8]byte
	for {
		rand.Read(b[:]) // never fails
		if c := binary.NativeEndian.Uint64(b[:]); c != 0 {
			return c
		}
	}
}

// arrivedLen and sentLen are the lengths of an Arrived and a Sent in a message.
const arrivedLen, sentLen = 20, 11

// appendArrived appends what has arrived in open messages.
func (x *messages) appendArrived(b []byte) []byte {
	if x.peer.plane.opened == nil || !x.peer.conf.Mode.Open() {
		return b
	}
	for i, a := range x.peer.plane.opened.Arrived(x.peer.conf.Name) {
		if a.Packets > 0 && len(b)+arrivedLen <= controlRoom {
			b = tunnel.AppendRecord(b, tunnel.Arrived{Path: uint8(i), Packets: a.Packets + a.Lost, Lost: a.Lost})
		}
	}
	return b
}

// appendSent appends how many packets without numbers were sent over a path, which a message over
// it says.
func (x *messages) appendSent(b []byte, path int) []byte {
	if x.peer.plane.opened == nil || !x.peer.conf.Mode.Counted() || len(b)+sentLen > controlRoom {
		return b
	}
	return tunnel.AppendRecord(b, tunnel.Sent{Packets: x.peer.plane.opened.Sent(x.peer.conf.Name, path)})
}

// lossShare returns the share of packets towards the peer that are lost: nearly all of them are those of
// the open plane, if it carries any.
func (l *link) lossShare() float64 { return max(l.reports.loss.Share, l.reports.openLoss.Share) }

// sendNAT sends a record about NAT sessions if this is the peer.
func (r *peer) sendNAT(name string, v tunnel.NATSession) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conf.Name != name || r.session.sending == nil || !r.session.sending.out.Put(v) {
		return false
	}
	r.wakeControlLocked()
	return true
}

// SendNATSession sends a record about NAT sessions to a peer. It reports false if there is no
// session with the peer, or no room; without an answer, the caller repeats it.
func (p *Plane) SendNATSession(peer string, v tunnel.NATSession) bool {
	for _, r := range p.routing.Load().peers {
		if r.sendNAT(peer, v) {
			return true
		}
	}
	return false
}
