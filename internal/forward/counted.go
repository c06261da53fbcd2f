package forward

import (
	"sync"

	"github.com/tabane/tabane/internal/plane"
)

// translated counts what arrives from peers with NAT. Their packets have no numbers: how many were sent over a path says a
// message that follows them there, a mark. Its methods are safe for concurrent use, and call no other plane.
type translated struct {
	read func(number int) ([plane.MaxPaths]plane.Count, error)

	mu      sync.Mutex
	numbers map[string]int
	marks   map[string]*[plane.MaxPaths]marks
}

// marks are the marks of a path.
type marks struct {
	known         bool
	sent, arrived uint64 // at the last one
	base          uint64 // sent less arrived at the first one
	lost          uint64 // since the first one
	before        uint64 // lost, of earlier instances of the peer or the program
}

// look takes a mark: so many packets were sent before it, and so many have arrived until now. Those that arrived since the mark
// are among them, so that fewer may be missing than are lost: the largest difference counts, because no lost packet comes back.
func (m *marks) look(sent, arrived uint64) {
	if !m.known || sent < m.sent || arrived < m.arrived {
		*m = marks{known: true, base: sent - arrived, before: m.before + m.lost}
	}
	m.sent, m.arrived = sent, arrived
	if missing := int64(sent - arrived - m.base); missing > 0 {
		m.lost = max(m.lost, uint64(missing))
	}
}

// number replaces the numbers of the peers with NAT in the program.
func (t *translated) number(numbers map[string]int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := map[string]*[plane.MaxPaths]marks{}
	for peer, n := range numbers {
		if old, ok := t.numbers[peer]; ok && old == n {
			now[peer] = t.marks[peer]
		} else {
			now[peer] = new([plane.MaxPaths]marks)
		}
	}
	t.numbers, t.marks = numbers, now
}

// mark takes a mark of a path.
func (t *translated) mark(peer string, path int, sent uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, ok := t.numbers[peer]
	if !ok || path < 0 || path >= plane.MaxPaths {
		return
	}
	if counts, err := t.read(n); err == nil { // else the plane has stopped
		t.marks[peer][path].look(sent, counts[path].Packets)
	}
}

// arrived is what has arrived from a peer; false if it is none with NAT.
func (t *translated) arrived(peer string) (all [plane.MaxPaths]plane.Arrived, ok bool) {
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
		m := &t.marks[peer][i]
		all[i] = plane.Arrived{Count: counts[i], Lost: m.before + m.lost}
	}
	return all, true
}
