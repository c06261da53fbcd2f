package bgp

import (
	"net/netip"
	"sync"

	"github.com/tabane/tabane/internal/vpn"
)

// queueKey identifies events of which only the newest is kept: for a route of a neighbor, or a best
// path.
type queueKey struct {
	neighbor string
	best     bool
	rd       vpn.ID
	prefix   netip.Prefix
}

// maxBatch is the maximum length of a batch, which keeps a reader responsive.
const maxBatch = 4096

// queue buffers events until the reader takes them. It never blocks the writer, and its length is
// at most twice the number of routes plus the session events.
type queue struct {
	mu      sync.Mutex
	events  []Event // nil: superseded by a newer event with the same key
	newest  map[queueKey]int
	dropped int // number of nils in events
	wake    chan struct{}
}

func newQueue() *queue {
	return &queue{newest: map[queueKey]int{}, wake: make(chan struct{}, 1)}
}

func (q *queue) put(events ...Event) {
	q.mu.Lock()
	for _, e := range events {
		q.add(e)
	}
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// add appends one event. Callers hold mu.
func (q *queue) add(e Event) {
	var key queueKey
	switch e := e.(type) {
	case Update:
		key = queueKey{neighbor: e.Neighbor, prefix: e.Prefix}
	case UnicastPath:
		key = queueKey{best: true, prefix: e.Prefix}
	case VPNPath:
		key = queueKey{best: true, rd: e.RD, prefix: e.Prefix}
	}
	if key != (queueKey{}) {
		if i, ok := q.newest[key]; ok {
			q.events[i] = nil
			q.dropped++
		}
		q.newest[key] = len(q.events)
	}
	q.events = append(q.events, e)
	if q.dropped > len(q.events)/2 && len(q.events) > maxBatch {
		q.compact()
	}
}

// compact removes superseded events.
func (q *queue) compact() {
	moved := make([]int, len(q.events))
	n := 0
	for i, e := range q.events {
		if e != nil {
			q.events[n] = e
			moved[i] = n
			n++
		}
	}
	clear(q.events[n:])
	q.events = q.events[:n]
	for key, i := range q.newest {
		q.newest[key] = moved[i]
	}
	q.dropped = 0
}

// take removes and returns all events in order.
func (q *queue) take() []Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) == 0 {
		return nil
	}
	q.compact()
	events := q.events
	q.events = nil
	q.newest = map[queueKey]int{}
	return events
}
