package sealed

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/gateway/quality"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// The source of an authentic message can be that of another host: a peer can forge it, and so can
// a router that forwards the message. So an address of a path is proved before packets follow it, as in
// QUIC (RFC 9000, sections 8 and 9.3): the peer has to answer a probe with a random number that was
// sent there. Until then packets go to the address that was proved before, and only probes and
// answers to probes to the new one, with at most maxAmplification times the bytes that came from
// there.

// linkAddress.remote is always an address that was proved, or none.

const (
	// maxAmplification is that of RFC 9000, section 8.
	maxAmplification = 3
	// provePause is that between probes to addresses of a path that are not proved: many may
	// appear.
	provePause = 10 * time.Millisecond
	// proveAgain is how long after the first probe to an address there is a second one. Each
	// further pause is twice as long, up to proveSeldom.
	proveAgain, proveSeldom = 50 * time.Millisecond, time.Second
)

// proving proves the addresses of a peer.
type proving struct{ peer *peer }

// unproved is where the newest messages of a path come from, as long as it has not answered a
// probe.
type unproved struct {
	place
	keys     *keys // of those messages, which its replay window counts
	received int   // bytes from there besides
	sent     int   // bytes to there under these keys
	tries    int
	due      time.Duration // of the next probe
}

// learn applies what the newest message of a path shows: that the peer has the keys, and where it
// may be. own is the address of this gateway that the message was sent to.
func (r *peer) learn(k *keys, path int, at *line, from netip.AddrPort, own netip.Addr) {
	p := r.plane
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.removed {
		return
	}
	now := p.now()
	if r.session.assoc.Received(k.Session) {
		r.log.Info("session established", "peer", r.conf.Name, "address", from, "suite", suite(k.Session))
		r.session.use(k, now)
	}
	l := &r.links[path]
	if o := (ownAddress{at, own}); len(r.conf.Endpoints) == 0 && o != l.address.own {
		l.address.own = o
		r.scheduling.reportMeasured()
	}
	to := place{at, from}
	switch {
	case l.removed || r.isScout(path):
		return
	case l.line == nil && !r.numbering.owner:
		r.proving.setLine(l, at)
	case r.numbering.owner && l.line != at:
		return // the peer uses other numbers
	}
	switch {
	case to == l.place():
		if l.address.unproved.line != nil { // it is where it was
			l.address.unproved = unproved{}
			l.probing.sent.discardElsewhere(to)
		}
	case r.numbering.owner && l.address.remote.IsValid() && l.probing.alive.Alive() && slices.Contains(l.address.candidates, l.address.remote) && slices.Contains(l.address.candidates, from):
		// Several of its addresses answer: the first one is used.
	default:
		r.proving.suspect(l, to, k, 0, now)
	}
}

// setLine has a path that the peer numbers use a line.
func (x *proving) setLine(l *link, at *line) {
	l.line, l.rates.up = at, at.conf.Load().Up
	x.peer.scheduling.refresh()
}

// suspect has a place proved that messages under these keys came from, and as many bytes besides.
func (x *proving) suspect(l *link, to place, k *keys, received int, now time.Duration) {
	u := &l.address.unproved
	if u.place == to {
		if u.keys != k {
			u.keys, u.sent, u.received = k, 0, received
		}
		return
	}
	*u = unproved{place: to, keys: k, received: received, due: max(now, l.address.probed+provePause)}
	if u.due == now {
		x.peer.wakeControlLocked()
	} else {
		x.peer.due = min(x.peer.due, u.due)
	}
}

// allow reports whether a message of that many bytes may be sent to an address that is not proved,
// and counts it.
func (u *unproved) allow(path, bytes int) bool {
	if u.keys == nil {
		return false
	}
	received := u.received + u.keys.replay[path].from(u.place)
	if u.sent+bytes > maxAmplification*received {
		return false
	}
	u.sent += bytes
	return true
}

// from returns how many bytes have come from a place, if the newest message has.
func (r *replay) from(at place) int {
	r.Lock()
	defer r.Unlock()
	if r.at != at {
		return 0
	}
	return r.bytes
}

// forgetPlace has the next message show where the peer is, even if it comes from there again.
func (r *replay) forgetPlace() {
	r.Lock()
	defer r.Unlock()
	r.at = place{}
}

// probe sends the probe to an address that is not proved if it is due, and returns when the next
// one is.
func (x *proving) probe(b *batch, k *keys, i int, now time.Duration) time.Duration {
	l := &x.peer.links[i]
	u := &l.address.unproved
	if u.line == nil {
		return now + time.Hour
	}
	if now < u.due {
		return u.due
	}
	l.address.probed = now
	u.due = now + min(proveAgain<<min(u.tries, 8), proveSeldom)
	if u.allow(i, bareProbeLen) {
		u.tries++
		x.peer.prober.sendBare(b, k, i, u.place, false, now)
	}
	return u.due
}

// proved applies that a place has answered a probe: packets of the path are sent there. The answer
// may have come from elsewhere, where the peer is besides or its messages are copied. It reports
// false if the path has another line by now.
func (x *proving) proved(i int, to place, now time.Duration) bool {
	l := &x.peer.links[i]
	switch {
	case to == l.place():
		return true
	case to.line == nil || x.peer.numbering.owner && to.line != l.line:
		return false
	}
	if l.address.remote.IsValid() {
		x.peer.log.Info("address of peer has changed", "peer", x.peer.conf.Name, "path", l.title(), "from", l.address.remote, "to", to.from)
	}
	x.part(i, to)
	if l.line != to.line {
		x.setLine(l, to.line)
	}
	if l.address.remote = to.from; to == l.address.unproved.place {
		l.address.unproved = unproved{}
	}
	l.probing.sent.discard()
	l.search.doubt()
	if !l.probing.alive.Alive() {
		l.probing.alive = quality.Liveness{} // it was that of another address
	}
	l.probing.due = min(l.probing.due, now)
	if v := l.address.waiting; v != nil {
		l.address.waiting = nil
		x.peer.registering.answer(*v, now)
	}
	x.peer.scheduling.refresh()
	x.peer.wakeControlLocked()
	return true
}

// part is for a path that moves to a place, and so may leave a line that it shared with others, of
// this site or the other one: what was measured while they shared it is the rate of none of them.
// TCP that starts over both finds a rate of a twentieth, which it takes seconds to raise again. A
// path whose NAT maps it to another port leaves none.
func (x *proving) part(i int, to place) {
	l := &x.peer.links[i]
	for j := range x.peer.links {
		o := &x.peer.links[j]
		ours := o.line == l.line && to.line != l.line
		theirs := o.address.remote == l.address.remote && to.from != l.address.remote
		if j != i && o.line != nil && (ours || theirs) {
			o.beginRate()
			l.beginRate()
		}
	}
}

// respondedFrom applies that a response came from a place, which may be another one than those that
// the initiation was sent to. Its bytes count for one path of the line: for each one more, as many
// again could be sent there.
func (x *proving) respondedFrom(k *keys, from place, bytes int, now time.Duration) {
	var of *link
	for i := range x.peer.links {
		l := &x.peer.links[i]
		switch {
		case l.line != from.line:
		case l.place() == from:
			return
		case l.ready() && l.probing.alive.Alive():
		case of == nil || !slices.Contains(of.addresses(), from.from) && slices.Contains(l.addresses(), from.from):
			of = l
		}
	}
	if of != nil {
		x.suspect(of, from, k, bytes, now)
	}
}

// reportSeen sends the peer where its paths are seen, if that has changed.
func (x *proving) reportSeen(k *keys, now time.Duration) {
	for i := range x.peer.links {
		l := &x.peer.links[i]
		if x.peer.numbering.owner || !l.ready() || !l.probing.alive.Alive() || l.nat.reported == l.address.remote || l.nat.reported.IsValid() && now-l.nat.reportedAt < natPause {
			continue
		}
		if k.out.Put(tunnel.NAT{Path: uint8(i), Seen: l.address.remote}) {
			l.nat.reported, l.nat.reportedAt = l.address.remote, now
		}
	}
}
