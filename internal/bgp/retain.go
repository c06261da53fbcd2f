package bgp

import (
	"sync"
	"time"
)

// retainSettle is how long after a neighbor's End-of-RIB markers what it did not announce again is still kept: a
// reflector that has itself just started sends the markers before its own neighbors are back.
const retainSettle = 10 * time.Second

// retention keeps best paths over the end of the session that they were learned in. It stands between the BGP server's
// events and the queue: the withdrawals that the end of a session causes are held back until their time is up, and
// forgotten when the route comes back.
type retention struct {
	put func(Event)

	mu    sync.Mutex
	kept  map[string]*keeping // by the neighbor's name
	owner map[queueKey]*keeping
}

// keeping is what is kept of one neighbor.
type keeping struct {
	name     string
	families int
	retain   time.Duration

	// ending: the session is about to go down, and takes its routes along.
	ending  bool
	markers int // End-of-RIB markers of the current session
	stale   map[queueKey]Event
	timer   *time.Timer
	due     time.Time
}

func newRetention(put func(Event)) *retention {
	return &retention{put: put, kept: map[string]*keeping{}, owner: map[queueKey]*keeping{}}
}

// add begins to keep what a neighbor announces.
func (r *retention) add(n Neighbor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n.Retain > 0 && r.kept[n.Name] == nil {
		r.kept[n.Name] = &keeping{name: n.Name, families: len(n.Families), retain: n.Retain, stale: map[queueKey]Event{}}
	}
}

// remove is for a session that this side ends: nothing is kept of it.
func (r *retention) remove(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.kept[name]; k != nil {
		r.drop(k)
		delete(r.kept, name)
	}
}

// ending hears that a session is about to go down. Withdrawals from now on are caused by that.
func (r *retention) ending(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.kept[name]; k != nil {
		k.ending = true
	}
}

// event takes an event of the BGP server and passes it on, or holds it back.
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
	k := r.kept[neighbor]
	if k == nil || !withdrawn || !k.ending {
		return false
	}
	k.stale[key], r.owner[key] = e, k
	return true
}

func (r *retention) session(s Session) {
	k := r.kept[s.Neighbor]
	if k == nil {
		return
	}
	k.ending, k.markers = false, 0
	if len(k.stale) > 0 {
		r.expire(k, k.retain)
	}
}

func (r *retention) marker(e EndOfRIB) {
	k := r.kept[e.Neighbor]
	if k == nil {
		return
	}
	k.markers++
	if k.markers == k.families && len(k.stale) > 0 && time.Until(k.due) > retainSettle {
		r.expire(k, retainSettle)
	}
}

// expire drops what is kept after a while. Callers hold mu.
func (r *retention) expire(k *keeping, after time.Duration) {
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

// drop passes on what was held back. Callers hold mu.
func (r *retention) drop(k *keeping) {
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

// stop forgets everything without a word.
func (r *retention) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.kept {
		if k.timer != nil {
			k.timer.Stop()
			k.timer = nil
		}
	}
}

// stale says how many routes are kept of a neighbor that it has not announced in its current session.
func (r *retention) stale(name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.kept[name]; k != nil {
		return len(k.stale)
	}
	return 0
}
