package bgp

import (
	"sync"
	"time"
)

// retainSettle is how long stale routes are kept after the neighbor's End-of-RIB markers: a
// reflector that has just started sends the markers before its clients' sessions are established.
const retainSettle = 10 * time.Second

// retention keeps stale best paths after the session in which they were received has ended. It
// filters the events of the BGP server before the queue: withdrawals caused by the end of a session
// are delayed until the retention time expires, and discarded when the route is received again.
type retention struct {
	put func(Event)

	mu    sync.Mutex
	peers map[string]*retained // by the neighbor's name
	owner map[queueKey]*retained
}

// retained are the stale routes of one neighbor.
type retained struct {
	name     string
	families int
	retain   time.Duration

	// ending: the session is going down, which is the cause of the following withdrawals.
	ending  bool
	markers int // End-of-RIB markers of the current session
	stale   map[queueKey]Event
	timer   *time.Timer
	due     time.Time
}

func newRetention(put func(Event)) *retention {
	return &retention{put: put, peers: map[string]*retained{}, owner: map[queueKey]*retained{}}
}

// add starts retention for a neighbor that has a Retain time.
func (r *retention) add(n Neighbor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n.Retain > 0 && r.peers[n.Name] == nil {
		r.peers[n.Name] = &retained{name: n.Name, families: len(n.Families), retain: n.Retain, stale: map[queueKey]Event{}}
	}
}

// remove withdraws the stale routes of a neighbor and ends retention for it.
func (r *retention) remove(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.peers[name]; k != nil {
		r.drop(k)
		delete(r.peers, name)
	}
}

// sessionEnding is called before the withdrawals that are caused by the end of a session.
func (r *retention) sessionEnding(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.peers[name]; k != nil {
		k.ending = true
	}
}

// event processes an event of the BGP server: it queues or delays it.
func (r *retention) event(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e := e.(type) {
	case UnicastPath:
		if r.hold(e.Neighbor, e.Withdrawn, queueKey{best: true, prefix: e.Prefix}, e) {
			return
		}
	case VPNPath:
		if r.hold(e.Neighbor, e.Withdrawn, queueKey{best: true, rd: e.RD, prefix: e.Prefix}, e) {
			return
		}
	case Session:
		r.session(e)
	case EndOfRIB:
		r.marker(e)
	}
	r.put(e)
}

func (r *retention) hold(neighbor string, withdrawn bool, key queueKey, e Event) bool {
	if k := r.owner[key]; k != nil {
		delete(r.owner, key)
		delete(k.stale, key)
	}
	k := r.peers[neighbor]
	if k == nil || !withdrawn || !k.ending {
		return false
	}
	k.stale[key], r.owner[key] = e, k
	return true
}

func (r *retention) session(s Session) {
	k := r.peers[s.Neighbor]
	if k == nil {
		return
	}
	k.ending, k.markers = false, 0
	if len(k.stale) > 0 {
		r.expire(k, k.retain)
	}
}

func (r *retention) marker(e EndOfRIB) {
	k := r.peers[e.Neighbor]
	if k == nil {
		return
	}
	k.markers++
	if k.markers == k.families && len(k.stale) > 0 && time.Until(k.due) > retainSettle {
		r.expire(k, retainSettle)
	}
}

// expire withdraws the stale routes after a time. Callers hold mu.
func (r *retention) expire(k *retained, after time.Duration) {
	if k.timer != nil {
		k.timer.Stop()
	}
	k.due = time.Now().Add(after)
	var timer *time.Timer
	timer = time.AfterFunc(after, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if k.timer == timer {
			r.drop(k)
		}
	})
	k.timer = timer
}

// drop queues the delayed withdrawals. Callers hold mu.
func (r *retention) drop(k *retained) {
	if k.timer != nil {
		k.timer.Stop()
		k.timer = nil
	}
	k.ending = false
	for key, e := range k.stale {
		delete(r.owner, key)
		r.put(e)
	}
	clear(k.stale)
}

// stop discards the delayed withdrawals.
func (r *retention) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.peers {
		if k.timer != nil {
			k.timer.Stop()
			k.timer = nil
		}
	}
}

// stale returns the number of stale routes of a neighbor.
func (r *retention) stale(name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.peers[name]; k != nil {
		return len(k.stale)
	}
	return 0
}
