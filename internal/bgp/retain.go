package bgp

import (
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/rib"
)

// retainSettle is how long stale routes are kept after the neighbor's End-of-RIB markers: a
// reflector that has just started sends the markers before its clients' sessions are established.
const retainSettle = 10 * time.Second

// retention keeps the routes of a neighbor after its session has ended, as stale ones: any other
// route replaces them. The zero value retains nothing. Callers hold the speaker's mu unless stated
// otherwise.
type retention struct {
	timer   *time.Timer
	due     time.Time
	markers message.FamilySet // End-of-RIB markers to come
}

// begin retains the routes of a session that has ended. Callers do not hold mu.
func (r *retention) begin(n *neighbor) {
	n.mu.Lock()
	n.rib.MarkStale(n.source)
	from := n.source
	n.mu.Unlock()
	next := uint32(0)
	n.inSlices(func(f Family) bool {
		next = n.rib.Reselect(f, from, next, slice, blackholed)
		return next == 0
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	if kept := n.rib.Stale(from); kept > 0 {
		n.log.Warn("session down, stale routes retained", "neighbor", n.conf.Name, "routes", kept, "time", n.conf.Retain)
		r.expire(n, n.conf.Retain)
	}
}

// blackholed reports whether a route has BLACKHOLE. Such a route is not retained: when its prefix is
// reachable again, the sessions that are up have no route to it that would replace it.
func blackholed(a *message.Attributes) bool { return a.Communities().Has(Blackhole) }

// established is called when the next session is up.
func (r *retention) established(n *neighbor) {
	r.markers = message.Families(n.conf.Families...)
	if n.rib.Stale(n.source) > 0 {
		r.expire(n, n.conf.Retain)
	}
}

// marker is called for each End-of-RIB.
func (r *retention) marker(n *neighbor, f Family) {
	r.markers &^= message.Families(f)
	if r.markers == 0 && r.timer != nil && time.Until(r.due) > retainSettle {
		r.expire(n, retainSettle)
	}
}

// expire withdraws the stale routes after a time.
func (r *retention) expire(n *neighbor, after time.Duration) {
	r.cancel()
	r.due = time.Now().Add(after)
	var timer *time.Timer
	timer = time.AfterFunc(after, func() {
		n.mu.Lock()
		current := r.timer == timer
		n.mu.Unlock()
		if current {
			r.drop(n)
		}
	})
	r.timer = timer
}

func (r *retention) cancel() {
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
}

// drop withdraws the stale routes now. Callers do not hold mu.
func (r *retention) drop(n *neighbor) {
	n.mu.Lock()
	r.cancel()
	from := n.source
	n.mu.Unlock()
	if from == rib.Local {
		return
	}
	n.inSlices(func(f Family) bool { return n.source != from || n.rib.PurgeStale(f, from, slice) })
	n.mu.Lock()
	defer n.mu.Unlock()
	n.freeSource()
}
