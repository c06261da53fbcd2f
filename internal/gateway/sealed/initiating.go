package sealed

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/gateway/handshake"
	"github.com/tabane/tabane/internal/gateway/udp"
)

// initiating is what is known of handshakes that this gateway has begun.
type initiating struct {
	peer        *peer
	pending     []uint32 // indices of initiations
	tries       int      // initiations without an answer
	proofs      proofs
	stale       stale
	nextWarning time.Duration // of another version (warnOfVersion)
}

// sentTo reports whether initiations are sent to a place.
func (x *initiating) sentTo(at place) bool {
	for i := range x.peer.links {
		if l := &x.peer.links[i]; l.line == at.line && slices.Contains(l.addresses(), at.from) {
			return true
		}
	}
	return at == x.stale.from
}

// send sends an initiation to addresses at which the peer may be, with the cookies that are known.
func (x *initiating) send(message []byte, now time.Duration) {
	x.await(binary.BigEndian.Uint32(message[4:]))
	x.proofs.next()
	stamped := func(l *line, to netip.AddrPort, from netip.Addr) udp.Datagram {
		return udp.Datagram{Data: x.proofs.cookies[place{l, to}].Stamp(message, now), To: to, From: from}
	}
	metered := false
	for i := range x.peer.links {
		l := &x.peer.links[i]
		if l.line == nil || l.line.socket.Load() == nil || !l.line.conf.Load().Usable {
			continue
		}
		if x.peer.uses.sparesInitiation(i, now) {
			continue
		}
		if x.peer.uses.of(i).Metered() {
			metered = true
		}
		var all []udp.Datagram
		for _, to := range l.addressesToTry(x.tries) {
			all = append(all, stamped(l.line, to, l.source(l.line, to)))
		}
		l.line.send(all)
	}
	if x.tries++; metered {
		x.peer.uses.initiated = now
	}
	if to := x.stale.from; to.line != nil {
		to.line.send([]udp.Datagram{stamped(to.line, to.from, x.stale.own)})
		x.stale.sent()
	}
}

// await has the response to an initiation of this index found.
func (x *initiating) await(index uint32) {
	p := x.peer.plane
	p.keysMu.Lock()
	defer p.keysMu.Unlock()
	if len(x.pending) == maxPending {
		delete(p.pending, x.pending[0])
		x.pending = slices.Delete(x.pending, 0, 1)
	}
	x.pending = append(x.pending, index)
	p.pending[index] = x.peer
}

// restartSilence is the silence after which a peer may have been restarted: two idle probes.
const restartSilence = 2 * probeIdle

// answerStale has a few initiations also sent to the source of one with an old time. A peer whose
// clock was set back before a restart answers them, because it has seen no later one.
// own is the address of this gateway that it was sent to.
func (x *initiating) answerStale(at handshake.Timestamp, from place, own netip.Addr, now time.Duration) {
	if !x.stale.take(at, from, now) {
		return
	}
	x.stale.own = own
	x.peer.session.assoc.Want(now)
	x.peer.session.assoc.Repeat(now)
	x.peer.wakeControlLocked()
}

// otherVersionPause is that between two warnings of a peer's other version: it begins handshakes
// all the time.
const otherVersionPause = time.Minute

// warnOfVersion warns of an initiation of the peer with another version. It may be a recorded one.
func (r *peer) warnOfVersion(err error, now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now < r.initiating.nextWarning {
		return
	}
	r.initiating.nextWarning = now + otherVersionPause
	r.log.Warn("no session with another version", "peer", r.conf.Name, "err", err)
}

// proofs are the cookies that prove this gateway's addresses to a busy peer: each belongs to the
// addresses between which it came.
type proofs struct {
	cookies     map[place]handshake.Cookie
	repeats     map[place]int // of the last initiation
	otherPlaces int
}

// next begins with another initiation.
func (x *proofs) next() {
	clear(x.repeats)
	x.otherPlaces = 0
}

// take keeps the cookie of a place, and reports whether the initiation is to be repeated there.
// sent: it was sent there.
func (x *proofs) take(at place, c handshake.Cookie, sent bool) bool {
	if x.repeats[at] >= maxRepeats || !sent && x.otherPlaces >= maxOtherPlaces || len(x.repeats) >= maxPlaces {
		return false
	}
	if x.cookies == nil || len(x.cookies) >= maxPlaces {
		x.cookies = map[place]handshake.Cookie{}
	}
	if x.repeats == nil {
		x.repeats = map[place]int{}
	}
	x.cookies[at] = c
	x.repeats[at]++
	if !sent {
		x.otherPlaces++
	}
	return true
}

// stale is where an initiation with an old time came from while its peer was silent: a recorded
// one, or the clock of the peer was set back while its gateway did not run.
type stale struct {
	from  place
	own   netip.Addr
	tries int // initiations that are still sent there
	next  time.Duration
	used  map[handshake.Timestamp]struct{}
}

// take reports whether the source of such an initiation gets initiations.
func (x *stale) take(at handshake.Timestamp, from place, now time.Duration) bool {
	if _, used := x.used[at]; used || now < x.next {
		return false
	}
	if x.used == nil || len(x.used) >= maxStale {
		x.used = map[handshake.Timestamp]struct{}{}
	}
	x.used[at] = struct{}{}
	x.from, x.tries, x.next = from, staleTries, now+stalePause
	return true
}

// sent counts an initiation that was sent there.
func (x *stale) sent() {
	if x.tries--; x.tries <= 0 {
		x.from = place{}
	}
}

// end forgets the source: the peer has answered.
func (x *stale) end() { x.from, x.tries = place{}, 0 }
