package openplane

import (
	"log/slog"
	"sync"

	"github.com/tabane/tabane/internal/gateway/dataplane"
)

// counted counts what arrives from peers with NAT and mode plain. Their packets have no numbers:
// how many were sent over a path says a message that follows them there, a mark. Its methods are
// safe for concurrent use, and call no other plane.
type counted struct {
	read func(number int) ([dataplane.MaxPaths]dataplane.Count, error)
	log  *slog.Logger

	mu      sync.Mutex
	numbers map[string]int
	peers   map[string]*countedPeer
}

// countedPeer is what is counted of a peer.
type countedPeer struct {
	marks [dataplane.MaxPaths]marks
	// plain packets belong to the path whose interface they arrive on. mixed: the network delivers
	// some on another one, so that no loss is known.
	plain, mixed bool
	// indices are those of the interfaces, 0 where packets are not counted.
	indices [dataplane.MaxPaths]int
}

// marks are the marks of a path.
type marks struct {
	known         bool
	sent, arrived uint64 // at the last one
	first, base   uint64 // sent at the first one, and that less arrived
	lost          uint64 // since the first one
	settling      int    // more marks that the base is taken from
	before        uint64 // lost, of earlier instances of the peer or the program
}

// settle is how many marks the base is taken from.
const settle = 8

// look takes a mark: so many packets were sent before it, and so many have arrived until now. Those
// that arrived since the mark are among them, so that fewer may be missing than are lost: the
// largest difference counts, because no lost packet comes back. For the same reason the base is the
// largest one of several marks, unless nothing was sent before the first.
func (m *marks) look(sent, arrived uint64) {
	if !m.known || sent < m.sent || arrived < m.arrived {
		*m = marks{known: true, first: sent, base: sent - arrived, before: m.before + m.lost}
		if sent > 0 {
			m.settling = settle
		}
	}
	m.sent, m.arrived = sent, arrived
	if m.settling > 0 {
		m.settling--
		if now := sent - arrived; int64(now-m.base) > 0 {
			m.base = now
		}
		return
	}
	if missing := int64(sent - arrived - m.base); missing > 0 {
		m.lost = max(m.lost, uint64(missing))
	}
}

// surplus reports that of the packets that had arrived at the mark before many more had arrived
// than were sent before this one: those of another path are among them, and not just a few copies
// that the network has made.
func (m *marks) surplus(sent uint64) bool {
	const copies, copiesShare = 64, 16
	return m.known && sent >= m.sent && int64(m.arrived+m.base-sent) > int64(copies+(sent-m.first)/copiesShare)
}

// number replaces the peers in the program, whose numbers these are: those with mode plain, and the
// others, with NAT.
func (t *counted) number(numbers map[string]int, plain map[string]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := map[string]*countedPeer{}
	for peer, n := range numbers {
		if old, ok := t.numbers[peer]; ok && old == n && t.peers[peer].plain == plain[peer] {
			now[peer] = t.peers[peer]
		} else {
			now[peer] = &countedPeer{plain: plain[peer]}
		}
	}
	t.numbers, t.peers = numbers, now
}

// lines replaces the interfaces where packets of a peer with mode plain are counted, 0 for none.
func (t *counted) lines(peer string, indices [dataplane.MaxPaths]int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.peers[peer]
	if c == nil {
		return
	}
	for i, index := range indices {
		if c.indices[i] != index {
			c.marks[i].known = false // packets were sent meanwhile that are not counted
		}
	}
	c.indices = indices
}

// mark takes a mark of a path.
func (t *counted) mark(peer string, path int, sent uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, ok := t.numbers[peer]
	if !ok || path < 0 || path >= dataplane.MaxPaths {
		return
	}
	counts, err := t.read(n)
	if err != nil {
		return // the plane has stopped
	}
	c := t.peers[peer]
	if c.plain && !c.mixed && c.marks[path].surplus(sent) {
		c.mixed = true
		t.log.Warn("packets of a path arrive over another one: losses are not counted any more", "peer", peer)
	}
	if !c.mixed && (!c.plain || c.indices[path] != 0) {
		c.marks[path].look(sent, counts[path].Packets)
	}
}

// arrived is what has arrived from a peer; false if it is none of these.
func (t *counted) arrived(peer string) (all [dataplane.MaxPaths]dataplane.Arrived, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, ok := t.numbers[peer]
	if !ok {
		return all, false
	}
	counts, err := t.read(n)
	if err != nil {
		return all, true // the plane has stopped
	}
	for i := range all {
		m := &t.peers[peer].marks[i]
		all[i] = dataplane.Arrived{Count: counts[i], Lost: m.before + m.lost}
	}
	return all, true
}
