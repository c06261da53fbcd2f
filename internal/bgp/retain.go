package bgp

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/rib"
	"github.com/tabane/tabane/internal/bgp/session"
)

const (
	// retainSettle is how long stale routes are kept after the neighbor, or another one that
	// advertises the same, has advertised all of its routes: a reflector that has just started does
	// so before its clients' sessions are established.
	retainSettle = 10 * time.Second
	// absentLatest is how long those stale routes are kept beyond that which come from a router
	// that no neighbor with retention has advertised anything of yet: its session with the neighbor
	// may not be up, or the neighbor not advertise it yet. A router connects again within the
	// ConnectRetryTime of 120 s, and is advertised within the MinRouteAdvertisementInterval of 30 s
	// that RFC 4271 section 10 suggests.
	absentLatest = 150 * time.Second
	// quietTime is how long a neighbor without the graceful restart capability, which announces no
	// End-of-RIB, must send no UPDATE before all of its routes are considered advertised: twice the
	// MinRouteAdvertisementInterval for internal neighbors (RFC 4271 section 10). floodLatest is
	// when they are although it still sends some, as in a network with many changes: a table of a
	// million routes takes less.
	quietTime   = 10 * time.Second
	floodLatest = 2 * time.Minute
	// markerLatest is how long the End-of-RIB of a neighbor with the capability is awaited (RFC
	// 4724 section 4.2 requires a limit). One that has restarted itself sends it after it has
	// received that of its other neighbors, for which FRR and others wait 360 s.
	markerLatest = 7 * time.Minute
)

// retention keeps the routes of a neighbor after its session has ended, as stale ones: any other
// route replaces them. They are kept while no other neighbor with retention has advertised all of
// its routes. If one has, what it does not advertise was withdrawn. The zero value retains nothing.
//
// It is no graceful restart (RFC 4724), which retains routes through a router that goes on
// forwarding, if the router says so for a family (F bit) when it is back within its restart time.
// These neighbors are reflectors, which do not forward: neither bit, time nor capability counts,
// only whether a route is advertised again.
//
// Callers hold the speaker's mu unless stated otherwise.
type retention struct {
	timer *time.Timer
	due   time.Time
	since time.Time // when the first of the stale routes became stale
	// families are those of the current or the last session, and markers the End-of-RIB markers to
	// come.
	families, markers message.FamilySet
	// announced: the neighbor has the graceful restart capability, so that it sends markers.
	announced bool
	began     time.Time // of the session
	heard     time.Time // when the last UPDATE was received
	initial   *time.Timer
	// settled is when the neighbor has advertised all of its routes; zero if that is not known.
	settled time.Time
	// absent is until when stale routes of routers that are absent are kept.
	absent time.Time
}

// replaced returns since when, or from when on, another neighbor has advertised all of its routes,
// if one has or may.
func (r *retention) replaced(n *neighbor) (settled time.Time, ok bool) {
	for _, other := range n.speaker.sources {
		if other == nil || other == n || !other.up || other.stale.settled.IsZero() || !other.stale.covers(n) {
			continue
		}
		if at := other.stale.settled; !ok || at.Before(settled) {
			settled, ok = at, true
		}
	}
	return settled, ok
}

// covers reports whether the neighbor advertises all families of another one.
func (r *retention) covers(n *neighbor) bool { return n.stale.families&^r.families == 0 }

// begin retains the routes of a session that has ended, or withdraws them if another neighbor
// replaces them. Callers do not hold mu.
func (r *retention) begin(n *neighbor) {
	n.speaker.mu.Lock()
	from := n.source
	settled, ok := r.replaced(n)
	replaced := ok && time.Since(settled) >= absentLatest
	if !replaced {
		if n.speaker.rib.Stale(from) == 0 {
			r.since = time.Now()
		}
		n.speaker.rib.MarkStale(from)
	}
	n.speaker.mu.Unlock()
	if replaced {
		n.speaker.purge(from)
		return
	}
	n.eachPart(func(f Family, at uint32) uint32 { return n.speaker.rib.Reselect(f, from, at, slice, blackholed) })
	n.speaker.mu.Lock()
	defer n.speaker.mu.Unlock()
	if kept := n.speaker.rib.Stale(from); kept > 0 {
		after := r.rest(n)
		if settled, ok := r.replaced(n); ok {
			r.absent = settled.Add(absentLatest)
			after = min(after, max(0, time.Until(settled)))
		}
		n.speaker.log.Warn("session down, stale routes retained", "neighbor", n.conf.Name, "routes", kept, "time", after.Round(time.Second))
		r.expire(n, after)
	}
}

// rest returns how long stale routes may still be kept: a neighbor whose sessions end before all
// routes are advertised does not prolong that.
func (r *retention) rest(n *neighbor) time.Duration {
	return max(0, time.Until(r.since.Add(n.conf.Retain)))
}

// blackholed reports whether a route has BLACKHOLE. Such a route is not retained: when its prefix
// is reachable again, the sessions that are up have no route to it that would replace it.
func blackholed(a *message.Attributes) bool { return a.Communities().Has(Blackhole) }

// established is called when the next session is up.
func (r *retention) established(n *neighbor, e session.Established) {
	now := time.Now()
	r.families, r.markers, r.announced, r.settled = e.Families, e.Families, e.EndOfRIB, time.Time{}
	r.began, r.heard = now, now
	if n.conf.Retain == 0 {
		return
	}
	if n.speaker.rib.Stale(n.source) > 0 {
		r.expire(n, r.rest(n))
	}
	r.awaitUpdate(n, r.left(now))
}

// ended is called when the session has ended.
func (r *retention) ended() {
	if r.initial != nil {
		r.initial.Stop()
		r.initial = nil
	}
}

// left returns how long to wait at least until all routes of the neighbor are considered
// advertised, unless all markers are received before.
func (r *retention) left(now time.Time) time.Duration {
	if r.announced {
		return r.began.Add(markerLatest).Sub(now)
	}
	return min(r.heard.Add(quietTime).Sub(now), r.began.Add(floodLatest).Sub(now))
}

// awaitUpdate considers all routes of the neighbor advertised after a time, or later if it still
// sends them.
func (r *retention) awaitUpdate(n *neighbor, after time.Duration) {
	var timer *time.Timer
	timer = time.AfterFunc(after, func() {
		n.speaker.mu.Lock()
		defer n.speaker.mu.Unlock()
		if r.initial != timer || !n.up {
			return
		}
		if left := r.left(time.Now()); left > 0 {
			r.awaitUpdate(n, left)
			return
		}
		if r.announced {
			n.speaker.log.Warn("neighbor has sent no End-of-RIB", "neighbor", n.conf.Name, "families", r.markers, "time", markerLatest)
		}
		r.complete(n)
	})
	r.initial = timer
}

// marker is called for each End-of-RIB.
func (r *retention) marker(n *neighbor, f Family) {
	if r.markers &^= message.Families(f); r.markers == 0 && n.conf.Retain > 0 && r.settled.IsZero() {
		r.complete(n)
	}
}

// complete is called when the neighbor has advertised all of its routes.
func (r *retention) complete(n *neighbor) {
	r.ended()
	r.settled = time.Now().Add(retainSettle)
	for _, k := range n.speaker.sources {
		if k != nil && k.stale.timer != nil && r.covers(k) && time.Until(k.stale.due) > retainSettle {
			k.stale.absent = r.settled.Add(absentLatest)
			k.stale.expire(k, retainSettle)
		}
	}
}

// waiting describes what ends the retention of stale routes.
func (r *retention) waiting(n *neighbor) string {
	switch {
	case !n.up && time.Until(r.due) <= retainSettle:
		return "another neighbor has advertised all of its routes"
	case !n.up:
		return "the session is down"
	case !r.settled.IsZero() && time.Since(r.settled) >= 0:
		return "all routes are advertised, but none yet of routers that are not back"
	case !r.settled.IsZero():
		return "all routes are advertised; its clients may come back"
	case r.announced:
		return "waits for End-of-RIB of " + r.markers.String()
	}
	return "the neighbor sends no End-of-RIB; waits for " + quietTime.String() + " without an UPDATE"
}

// expire withdraws the stale routes after a time, unless the neighbor that was to replace them is
// down by then.
func (r *retention) expire(n *neighbor, after time.Duration) {
	r.cancel()
	r.due = time.Now().Add(after)
	var timer *time.Timer
	timer = time.AfterFunc(after, func() {
		n.speaker.mu.Lock()
		current := r.timer == timer
		if rest := r.rest(n); current && rest > 0 && !n.up {
			settled, ok := r.replaced(n)
			if wait := time.Until(settled); !ok || wait > 0 {
				if ok {
					rest = min(wait, rest)
				}
				r.expire(n, rest)
				current = false
			}
		}
		keep := time.Until(r.absent) > 0
		n.speaker.mu.Unlock()
		switch {
		case current && keep:
			r.dropPresent(n, timer)
		case current:
			r.drop(n)
		}
	})
	r.timer = timer
}

// dropPresent withdraws the stale routes but those of absent routers, which wait longer. Callers do
// not hold mu.
func (r *retention) dropPresent(n *neighbor, timer *time.Timer) {
	n.speaker.mu.Lock()
	sources := slices.DeleteFunc(slices.Clone(n.speaker.sources), func(from *neighbor) bool { return from == nil || from.conf.Retain == 0 })
	n.speaker.mu.Unlock()
	present := map[netip.Addr]bool{{}: true} // routes of the neighbor itself have no originator
	for _, from := range sources {
		from.eachPart(func(f Family, at uint32) uint32 {
			return n.speaker.rib.Each(f, from.source, at, slice, func(route rib.Route) {
				if !route.Stale {
					present[n.speaker.rib.Attributes(route.Received).OriginatorID()] = true
				}
			})
		})
	}
	r.purge(n, func(a *message.Attributes) bool { return present[a.OriginatorID()] })
	n.speaker.mu.Lock()
	defer n.speaker.mu.Unlock()
	if r.timer != timer {
		return
	}
	if kept := n.speaker.rib.Stale(n.source); kept > 0 {
		after := min(time.Until(r.absent), r.rest(n))
		n.speaker.log.Warn("stale routes of routers that are not back retained", "neighbor", n.conf.Name, "routes", kept, "time", after.Round(time.Second))
		r.expire(n, after)
		return
	}
	r.cancel()
	n.freeSource()
}

func (r *retention) cancel() {
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
}

// drop withdraws the stale routes now. Callers do not hold mu.
func (r *retention) drop(n *neighbor) {
	n.speaker.mu.Lock()
	r.cancel()
	n.speaker.mu.Unlock()
	r.purge(n, func(*message.Attributes) bool { return true })
	n.speaker.mu.Lock()
	defer n.speaker.mu.Unlock()
	n.freeSource()
}

// purge withdraws the stale routes with these attributes. Callers do not hold mu.
func (r *retention) purge(n *neighbor, which func(*message.Attributes) bool) {
	n.eachPart(func(f Family, at uint32) uint32 { return n.speaker.rib.PurgeStale(f, n.source, at, slice, which) })
}

// eachPart calls step for parts of the neighbor's routes of each family, with the index where it
// continues, until it returns 0 or the neighbor has no source any more. Callers do not hold mu,
// which is held during each call.
func (n *neighbor) eachPart(step func(f Family, at uint32) (next uint32)) {
	next := uint32(0)
	n.speaker.inSlices(func(f Family) bool {
		if n.source == rib.Local {
			next = 0
		} else {
			next = step(f, next)
		}
		return next == 0
	})
}
