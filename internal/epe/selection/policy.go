package selection

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Policy is how the paths of a connection are chosen.
type Policy uint8

// The policies.
const (
	// Throughput opens further paths while the open ones are saturated, as long as they help.
	Throughput Policy = iota
	// Latency opens a further path only during a transfer that has lasted for longer than that
	// path's delay, so that short transfers use the best path alone.
	Latency
	// Steady keeps the first path, and opens further ones soon after it is saturated, for 5 s or
	// longer.
	Steady
	// Cost opens paths in the order of their ranks: each up to its budget, and further ones while
	// those before are saturated.
	Cost
	// Ratio divides the data by shares: paths that have carried more than their share rest.
	Ratio
)

// algorithm is how a policy decides which paths are open.
type algorithm uint8

const (
	bySaturation algorithm = iota
	byRank
	byShare
)

// parameters are those of a policy.
type parameters struct {
	name      string
	algorithm algorithm
	// switchBelow is the fraction of the first path's delay below which another one becomes first,
	// tryBelow that for one of which nothing is known, once the first has long been first.
	switchBelow, tryBelow float64
	// wait is how long all open paths are saturated before the next one is opened, waitSlowStart
	// that time while one of them is in slow start, and idle how long the first path is not
	// saturated before the others rest.
	wait, waitSlowStart, idle time.Duration
	// waitsDelay: the next path opens only after a time of saturation, without a pause, that is as
	// long as its own delay.
	waitsDelay bool
	// ignoresLoad: the other paths rest whatever they carry once the first one is not saturated.
	// idle doubles when the next path is needed again within it.
	ignoresLoad bool
	// waitsBacklog: no path opens while a stream catches up with its backlog.
	waitsBacklog bool
	// judges: paths that do not help rest.
	judges bool
	// repays: a longer path opens only for transfers that it shortens.
	repays bool
}

const (
	// saturatedFor is how long all open paths are saturated before the next one is opened: longer
	// than an object of 100 kB takes at 5 Mbit/s.
	saturatedFor = 200 * time.Millisecond
	// switchBelow is the fraction of the first path's delay below which another one becomes first.
	switchBelow = 0.8
	// tryBelow is that fraction for a path of which nothing is known, once a trial costs little:
	// any that looks shorter may be.
	tryBelow = 1
	// saturatedShort replaces saturatedFor in policies whose data should not wait, and startFor
	// where an open path is in slow start and may soon suffice.
	saturatedShort = 2 * Interval
	startFor       = 600 * time.Millisecond
	// steadySwitch and steadyIdle are those of Steady: each change of paths reorders data.
	steadySwitch = 0.5
	steadyIdle   = 5 * time.Second
	// mostDoublings bounds those of idle.
	mostDoublings = 6
	// ageEvery is how often Ratio halves what paths carried.
	ageEvery = 5 * time.Second
	// budgetFor is the time for which an unused budget accumulates.
	budgetFor = time.Second
)

// byPolicy has the parameters of all policies.
var byPolicy = [...]parameters{
	Throughput: {
		name: "throughput", algorithm: bySaturation, switchBelow: switchBelow, tryBelow: tryBelow,
		wait: saturatedFor, waitSlowStart: startFor, waitsBacklog: true, judges: true, repays: true,
	},
	Latency: {
		name: "latency", algorithm: bySaturation, switchBelow: switchBelow, tryBelow: tryBelow,
		wait: saturatedShort, waitSlowStart: saturatedShort, idle: Interval,
		waitsDelay: true, ignoresLoad: true, judges: true,
	},
	Steady: {
		name: "steady", algorithm: bySaturation, switchBelow: steadySwitch, tryBelow: steadySwitch,
		wait: saturatedShort, waitSlowStart: startFor, idle: steadyIdle, ignoresLoad: true,
	},
	Cost:  {name: "cost", algorithm: byRank, wait: saturatedShort, waitSlowStart: startFor},
	Ratio: {name: "ratio", algorithm: byShare},
}

// PolicyNames returns the names of all policies.
func PolicyNames() (names []string) {
	for _, r := range byPolicy {
		names = append(names, r.name)
	}
	return names
}

// PolicyNamed returns the policy with that name, false if there is none.
func PolicyNamed(name string) (Policy, bool) {
	at := slices.Index(PolicyNames(), name)
	return Policy(max(at, 0)), at >= 0
}

func (p Policy) String() string {
	if int(p) < len(byPolicy) {
		return byPolicy[p].name
	}
	return fmt.Sprintf("policy %d", uint8(p))
}

// Ranks reports whether a policy needs the ranks and budgets of Terms, Shares whether it needs
// shares.
func (p Policy) Ranks() bool { return byPolicy[p].algorithm == byRank }

// Shares is documented with Ranks.
func (p Policy) Shares() bool { return byPolicy[p].algorithm == byShare }

// Terms are the parameters of a path for a policy. The zero value is that of a path which is not
// listed: it carries data only when no listed one can.
type Terms struct {
	// Listed is set if the policy names the path.
	Listed bool
	// Rank orders the paths of Cost, Budget limits what this one carries; nil: no limit.
	Rank   int
	Budget *Budget
	// Share is the weight of the path in Ratio.
	Share float64
}

// Budget is a token bucket that limits what paths carry. Connections may share one if their Start
// is on the same clock. It is not safe for concurrent use.
type Budget struct {
	rate, left float64 // bytes/s, bytes
	at         time.Duration
	spent      bool
}

// NewBudget returns a budget of that rate in bytes/s.
func NewBudget(rate float64) *Budget { return &Budget{rate: rate, left: rate * budgetFor.Seconds()} }

// take accounts for bytes that were carried, up to a time.
func (b *Budget) take(now time.Duration, bytes int) {
	most := b.rate * budgetFor.Seconds()
	if now > b.at {
		b.left = min(most, b.left+b.rate*(now-b.at).Seconds())
		b.at = now
	}
	// What is in flight on paths that rest still arrives, so that left may become negative.
	b.left = max(-most, b.left-float64(bytes))
	switch {
	case b.left <= 0:
		b.spent = true
	case b.left >= most/2:
		b.spent = false
	}
}

// decide chooses the open paths.
func (c *Connection[K]) decide(now time.Duration, samples []Sample[K]) {
	switch byPolicy[c.Policy].algorithm {
	case bySaturation:
		c.chooseFirst(now, samples)
		if !c.failover(now, samples) {
			if byPolicy[c.Policy].judges {
				c.judge(now, samples)
			} else {
				c.measureAll(now, samples)
			}
			c.openBySaturation(now, samples)
		}
	case byRank:
		c.openByRank(now, samples)
		c.failoverAny(samples)
	case byShare:
		c.openByShare(now, samples)
		c.failoverAny(samples)
	}
}

// measureAll updates the rate of the connection. It reports whether a measurement is complete.
func (c *Connection[K]) measureAll(now time.Duration, samples []Sample[K]) bool {
	bytes, busy := 0, false
	for i := range samples {
		bytes += c.paths[samples[i].Path].bytes
		busy = busy || samples[i].busy()
	}
	return c.total.add(now, bytes, busy)
}

// failoverAny opens all paths while an open one makes no progress.
func (c *Connection[K]) failoverAny(samples []Sample[K]) {
	if !slices.ContainsFunc(samples, func(s Sample[K]) bool { return s.Silence > 0 && c.paths[s.Path].state.carries() }) {
		return
	}
	for i := range samples {
		if p := c.paths[samples[i].Path]; !p.state.carries() {
			p.enter(stateOpen, Failover)
		}
	}
}

func (c *Connection[K]) terms(k K) Terms {
	if c.Terms == nil {
		return Terms{}
	}
	return c.Terms(k)
}

// ranked is a path with its terms.
type ranked[K comparable] struct {
	*path
	sample *Sample[K]
	terms  Terms
}

// openByRank opens paths in the order of their ranks.
func (c *Connection[K]) openByRank(now time.Duration, samples []Sample[K]) {
	able := c.ranked(now, samples)
	c.width = min(max(c.width, 1), len(able))
	params := &byPolicy[c.Policy]
	saturated, needed, starts := true, true, false
	for i, r := range able[:c.width] {
		saturated = saturated && r.sample.Saturated()
		starts = starts || r.sample.starts()
		needed = needed && (i == c.width-1 || r.sample.Saturated())
	}
	c.saturated.set(now, saturated)
	switch {
	case c.saturated.lasted(now, params.waits(&view{starts: starts})) && c.width < len(able):
		c.width++
		c.saturated = since{}
	case !needed:
		c.width--
	}
	for i, r := range able {
		switch {
		case i == 0:
			r.enter(stateFirst, First)
			c.first = r.path
		case i < c.width:
			r.enter(stateOpen, Overflow)
		default:
			r.enter(stateResting, Unused)
		}
	}
}

// ranked returns the paths in the order of their ranks, without those that have spent their budget
// or stalled unless all have.
func (c *Connection[K]) ranked(now time.Duration, samples []Sample[K]) []ranked[K] {
	var able, out []ranked[K]
	for i := range samples {
		s := &samples[i]
		r := ranked[K]{c.paths[s.Path], s, c.terms(s.Path)}
		b := r.terms.Budget
		if b != nil {
			b.take(c.Start+now, r.bytes)
		}
		switch {
		case b != nil && b.spent:
			r.enter(stateResting, OverCommit)
			out = append(out, r)
		case r.verdict == Stalled && now < r.until:
			r.enter(stateResting, Stalled)
			out = append(out, r)
		default:
			able = append(able, r)
		}
	}
	if len(able) == 0 {
		able = out
	}
	slices.SortStableFunc(able, func(a, b ranked[K]) int {
		switch {
		case a.terms.Listed == b.terms.Listed:
			return cmp.Compare(a.terms.Rank, b.terms.Rank)
		case a.terms.Listed:
			return -1
		}
		return 1
	})
	return able
}

// openByShare opens the paths that have carried no more than their shares.
func (c *Connection[K]) openByShare(now time.Duration, samples []Sample[K]) {
	shares, members := 0.0, 0
	again := false
	for i := range samples {
		if t := c.terms(samples[i].Path); t.Share > 0 {
			p := c.paths[samples[i].Path]
			shares += t.Share
			members++
			again = again || !p.member
			p.member = true
		}
	}
	for _, p := range c.paths {
		if p.member && !p.present {
			p.member, again = false, true
		}
	}
	age := now-c.aged >= ageEvery
	if age || again {
		c.aged = now
	}
	var all float64
	for i := range samples {
		s := &samples[i]
		p := c.paths[s.Path]
		p.carried += float64(p.bytes)
		switch {
		case again: // a new path would make up for what it did not carry before
			p.carried = 0
		case age:
			p.carried /= 2
		}
		if p.member {
			p.given = p.carried + float64(s.InFlight*s.Segment+s.NotSent)
			all += p.given
		}
	}
	for i := range samples {
		p := c.paths[samples[i].Path]
		switch share := c.terms(samples[i].Path).Share; {
		case members == 0:
			p.enter(stateOpen, Overflow)
		case !p.member:
			p.enter(stateResting, Unused)
		case p.given <= all*share/shares+sendBurst:
			p.enter(stateOpen, UnderShare)
		default:
			p.enter(stateResting, OverShare)
		}
	}
}
