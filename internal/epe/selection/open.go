package selection

import (
	"cmp"
	"time"
)

// catchesUp reports whether the open paths suffice for a stream and are only saturated by its
// backlog: during the time of saturation the application did not have to wait, and wrote less than
// was delivered. If so, that time starts again; it also does when slow start ended during it. For
// the end of a file nothing is written, so that it is not recognized as a stream. If nothing was
// delivered since the last call of Update, the samples may be older than what the application has
// written.
func (c *Connection[K]) catchesUp(now time.Duration, v *view) bool {
	if !c.hasSource {
		return false
	}
	s, ok := c.Source()
	switch {
	case !ok || s.Full:
		return false
	case v.carried == 0:
		return true
	}
	written, carried := float64(s.Written-c.source.Written), float64(c.carried)
	if written == 0 || written >= gainLeast*carried && (v.starts || !c.started) {
		return false
	}
	c.saturated.start, c.source, c.carried, c.started = now, s, 0, v.starts
	return true
}

// view is what all open paths are together in a call of Update.
type view struct {
	// saturated: one of them is, and all are or were within their last round trip, as Linux'
	// scheduler gives nothing to a path while another one would send sooner; starts: one of them is
	// in slow start; over: the first one has had nothing to send; tries: one of them has not been
	// judged yet.
	saturated, starts, over, tries bool
	// sum is their rate in bytes/s, longest the longest delay in seconds, and inFlight their data
	// in flight, firstInFlight that of the first path.
	sum, longest            float64
	inFlight, firstInFlight int
	// carried are the bytes delivered since the last call, over any path.
	carried int
	// next is the path at rest that would open next, if all open ones are saturated.
	next *path
}

// look returns the view of the samples, and notes since when the first path alone would suffice.
func (c *Connection[K]) look(now time.Duration, samples []Sample[K]) view {
	params := &byPolicy[c.Policy]
	v, suffices, waits := view{saturated: true}, false, false
	var rests []*path
	for i := range samples {
		s := &samples[i]
		p := c.paths[s.Path]
		rate := cmp.Or(p.rate.value(), estimate(s))
		v.carried += p.bytes
		switch {
		case p.state.carries():
			v.saturated = v.saturated && p.full && !(params.waitsDelay && s.Idled)
			waits = waits || s.Saturated()
			v.tries = v.tries || !p.tried && p.state == stateOpen && now-p.opened < p.trialLasts()
			v.starts = v.starts || s.starts()
			v.sum += rate
			v.longest = max(v.longest, p.delay)
			v.inFlight += s.InFlight * s.Segment
		case now >= p.until:
			rests = append(rests, p)
		}
		if p == c.first {
			v.firstInFlight = s.InFlight * s.Segment
			v.over = params.waitsDelay && s.Idled
			suffices = !s.Saturated() && (params.ignoresLoad || c.total.last < sufficeBelow*rate)
		}
	}
	v.saturated = v.saturated && waits
	// While a path is tried it may be what the first one waits for.
	c.suffices.set(now, suffices && (params.ignoresLoad || !v.tries))
	if v.saturated {
		v.next = c.next(now, &v, rests)
	}
	return v
}

// next returns the path at rest that would open next: of those that would help, the one with the
// shortest delay.
func (c *Connection[K]) next(now time.Duration, v *view, rests []*path) (next *path) {
	least := 0.0
	for _, p := range rests {
		if delay, ok := c.worthwhile(now, v, p); ok && (next == nil || delay < least) {
			next, least = p, delay
		}
	}
	return next
}

// openBySaturation opens the next path when all open ones have been saturated for long enough, and
// puts the others at rest when the first one carries everything.
func (c *Connection[K]) openBySaturation(now time.Duration, samples []Sample[K]) {
	params := &byPolicy[c.Policy]
	v := c.look(now, samples)
	began := c.saturated.set(now, v.saturated)
	if began {
		c.saturation = saturation{}
		if params.waitsBacklog && c.Source != nil {
			c.source, c.hasSource = c.Source()
		}
	} else {
		c.carried += v.carried
	}
	c.started = c.started || v.starts
	idle := params.idle << c.doublings
	switch {
	case v.next != nil && c.saturated.lasted(now, params.waits(&v)):
		if !began && params.waitsBacklog && c.catchesUp(now, &v) {
			return
		}
		c.doublings = 0
		if params.ignoresLoad && v.next.closed > 0 && now-v.next.closed < idle {
			c.doublings = min(c.doublings+1, mostDoublings)
		}
		v.next.open(now, Overflow, max(c.total.last, 1))
		c.saturated = since{}
	case v.over, c.suffices.lasted(now, idle):
		c.restOthers(now, samples)
	}
}

// restOthers puts all paths but the first one at rest, which suffices.
func (c *Connection[K]) restOthers(now time.Duration, samples []Sample[K]) {
	for i := range samples {
		if p := c.paths[samples[i].Path]; p.state == stateOpen {
			p.rest(now, Unused)
		}
	}
}

// waits returns how long all open paths are saturated before the next one opens.
func (p *parameters) waits(v *view) time.Duration {
	wait := p.wait
	if v.starts {
		wait = p.waitSlowStart
	}
	if p.waitsDelay && v.next != nil {
		wait = max(wait, time.Duration(v.next.delay*float64(time.Second)))
	}
	return wait
}

// worthwhile reports whether a path would help besides the open ones, and with what delay in
// seconds. One that has carried nothing is hoped to be as fast as the first one, but has to be worth
// its delay at the rate that is expected of it. If the receive window has too little room for what
// is hoped, and does not grow by slow start, the open paths wait for all of the delay of a typical
// path, whose rate must be worth that.
func (c *Connection[K]) worthwhile(now time.Duration, v *view, next *path) (delay float64, ok bool) {
	repaying := byPolicy[c.Policy].repays
	hoped, delay := next.capacity, next.delay
	rate, longer := hoped, delay-v.longest
	if next.unmeasured(now) {
		hoped = max(hoped, c.first.capacity)
		delay = next.delayAt(hoped)
		rate = expected(hoped)
		longer = next.delayAt(rate) - v.longest
		if window := c.window.value(); window > 0 && !fits(window-float64(v.inFlight), float64(v.firstInFlight), v.sum, delay) {
			if !repaying || v.starts {
				return delay, false
			}
			hoped, rate, longer = typicalRate, typicalRate, next.delayAt(typicalRate)
		}
	}
	return delay, hoped >= leastShare*v.sum &&
		(!repaying || repays(now-c.saturated.start, cmp.Or(next.minRTT, next.past.MinRTT), rate/(v.sum+rate), longer))
}
