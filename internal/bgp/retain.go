package bgp

import (
	"cmp"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/rib"
)

// retainSettle is how long stale routes are kept after the End-of-RIB markers of the neighbor, or
// of another one that advertises the same: a reflector that has just started sends the markers
// before its clients' sessions are established.
const retainSettle = 10 * time.Second

// retention keeps the routes of a neighbor after its session has ended, as stale ones: any other
// route replaces them. They are kept while no other neighbor with retention has advertised all of
// its routes. If one has, what it does not advertise was withdrawn. The zero value retains nothing.
// Callers hold the speaker's mu unless stated otherwise.
type retention struct {
	timer   *time.Timer
	due     time.Time
	markers message.FamilySet // End-of-RIB markers to come
	// settled is when the neighbor has advertised all of its routes; zero if that is not known.
	settled time.Time
}

// replaced returns in what time another neighbor will have advertised all of its routes, if one
// may.
func (r *retention) replaced(n *neighbor) (wait time.Duration, ok bool) {
	for _, other := range n.sources {
		if other == nil || other == n || !other.up || other.stale.settled.IsZero() || !covers(other.conf.Families, n.conf.Families) {
			continue
		}
		if w := max(time.Until(other.stale.settled), 0); !ok || w < wait {
			wait, ok = w, true
		}
	}
	return wait, ok
}

// covers reports whether the families include these.
func covers(families, these []Family) bool {
	return !slices.ContainsFunc(these, func(f Family) bool { return !slices.Contains(families, f) })
}

// begin retains the routes of a session that has ended, or withdraws them if another neighbor
// replaces them. Callers do not hold mu.
func (r *retention) begin(n *neighbor) {
	n.mu.Lock()
	from := n.source
	wait, ok := r.replaced(n)
	replaced := ok && wait == 0
	if !replaced {
		n.rib.MarkStale(from)
	}
	n.mu.Unlock()
	if replaced {
		n.purge(from)
		return
	}
	next := uint32(0)
	n.inSlices(func(f Family) bool {
		next = n.rib.Reselect(f, from, next, slice, blackholed)
		return next == 0
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	if kept := n.rib.Stale(from); kept > 0 {
		after := n.conf.Retain
		if wait, ok := r.replaced(n); ok {
			after = wait
		}
		n.log.Warn("session down, stale routes retained", "neighbor", n.conf.Name, "routes", kept, "time", after)
		r.expire(n, after)
	}
}

// blackholed reports whether a route has BLACKHOLE. Such a route is not retained: when its prefix is
// reachable again, the sessions that are up have no route to it that would replace it.
func blackholed(a *message.Attributes) bool { return a.Communities().Has(Blackhole) }

// established is called when the next session is up.
func (r *retention) established(n *neighbor) {
	r.markers, r.settled = message.Families(n.conf.Families...), time.Time{}
	if n.rib.Stale(n.source) > 0 {
		r.expire(n, n.conf.Retain)
	}
}

// marker is called for each End-of-RIB.
func (r *retention) marker(n *neighbor, f Family) {
	r.markers &^= message.Families(f)
	if r.markers != 0 || n.conf.Retain == 0 || !r.settled.IsZero() {
		return
	}
	r.settled = time.Now().Add(retainSettle)
	for _, k := range n.sources {
		if k != nil && k.stale.timer != nil && covers(n.conf.Families, k.conf.Families) && time.Until(k.stale.due) > retainSettle {
			k.stale.expire(k, retainSettle)
		}
	}
}

// expire withdraws the stale routes after a time, unless the neighbor that was to replace them is
// down by then.
func (r *retention) expire(n *neighbor, after time.Duration) {
	r.cancel()
	r.due = time.Now().Add(after)
	var timer *time.Timer
	timer = time.AfterFunc(after, func() {
		n.mu.Lock()
		current := r.timer == timer
		if current && after < n.conf.Retain && !n.up {
			if wait, ok := r.replaced(n); !ok || wait > 0 {
				r.expire(n, cmp.Or(wait, n.conf.Retain))
				current = false
			}
		}
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
