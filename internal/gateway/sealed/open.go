package sealed

import (
	"crypto/rand"
	"encoding/binary"

	"github.com/tabane/tabane/internal/gateway/tunnel"
)

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

// lossShare returns the share of packets towards the peer that are lost: nearly all of them are
// those of the open plane, if it carries any.
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
