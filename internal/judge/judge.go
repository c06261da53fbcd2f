package judge

import (
	"math/bits"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/unit"
)

// Times and bounds, from measurements with TCP cubic and BBR over emulated paths.
const (
	// Length is the time that a Window covers, at least (Meter); what it counts is scaled to this time.
	Length = 500 * time.Millisecond
	// kept is how many windows a median is taken of: two windows at 95 % are also what BBR's own
	// cycle or a single loss of cubic cause.
	kept = 5
	// settling is the number of windows after a change of paths that count for none: packets sent
	// before still arrive.
	settling = 1
	// most bounds the number of windows of a trial, which is extended while the rate grows.
	most = 10
	// enough, as a fraction: a set is as good as another one of which it brings 0.95.
	enoughOf, enough = 100, 95
	// collapse, as a fraction: two windows below 0.3 end a trial at once, or begin one if packets
	// were lost or late.
	collapseOf, collapse = 10, 3
	// FirstRest and LastRest bound the time after a failed trial in which nothing is tried. It
	// doubles with each failure.
	FirstRest = 5 * time.Second
	LastRest  = 300 * time.Second
	// fresh is how long a measured rate is compared with. Later the set is tried again first.
	fresh = 60 * time.Second
	// remembered is the number of windows for which losses, late packets and retransmissions are
	// evidence: after a timeout, TCP is silent.
	remembered = 6
	// silentOf: a window with less than this part of the rate of the paths in use has hardly more than
	// probes in it. When they are lost, as while the other gateway starts, no flow is harmed.
	silentOf = 50
)

// MaxPaths is the number of paths that a Set can hold.
const MaxPaths = 16

// Set is a set of paths: bit i is path i.
type Set uint16

// Has reports whether path i is in the set.
func (s Set) Has(i int) bool { return s>>i&1 != 0 }

// contains reports whether all paths of t are in s.
func (s Set) contains(t Set) bool { return t&^s == 0 }

// Len returns the number of paths in the set.
func (s Set) Len() int { return bits.OnesCount16(uint16(s)) }

// Path is the state of a path in the direction of sending.
type Path struct {
	// Usable: the path is alive and may be used.
	Usable bool
	// Rate is its rate, of whole packets with all headers.
	Rate unit.Bandwidth
	// Delay is its one-way delay, on the same clock for all paths, and Jitter the variation of that.
	Delay, Jitter time.Duration
	// Loss is the share of packets that it loses, in parts per million.
	Loss int
}

// Window is what was carried within Length over all paths, as the receiver reported it.
type Window struct {
	// Delivered is what the receiver passed on, in bytes of whole packets with all headers, as
	// Path.Rate counts them, without duplicates.
	Delivered unit.Size
	// Lost and Late are numbers of packets: lost ones, and those that came after they had been
	// skipped or, without resequencing, after a later one of their flow. They show that the rate
	// is low because of the paths and not because there is little to send, but only if there are
	// senders that slow down because of them.
	Lost, Late int
	// Elastic is the number of packets of such senders: segments that TCP retransmitted, and packets
	// of transport protocols that the gateway cannot read. Pure acknowledgments, echoes and calls are none.
	Elastic int
	// Busy: for most of the window packets waited in the queue of each path in use, so that there
	// was more to send than was carried.
	Busy bool
}

// rate returns what was delivered as a rate.
func (w *Window) rate() unit.Bandwidth {
	return unit.Bandwidth(min(w.Delivered, 1<<50)) * 8 * unit.Bandwidth(time.Second/Length)
}

// Judge compares sets of paths. It begins with all paths together. It is not safe for concurrent use.
// The zero value is ready.
type Judge struct {
	last  Decision
	paths []Path // as they were when arms was made

	// arms are the sets that can be used, the first being all usable paths.
	arms []arm
	// at is the set in use, before the one that it is compared with during a trial.
	at, before int
	trial      bool
	// until is the end of the rest from trials, rest its length.
	until, rest time.Duration

	windows [most]unit.Bandwidth // the latest ones since the last change
	count   int                  // of windows
	settle  int                  // windows to be ignored
	idle    int                  // windows of a trial without anything to send
	low     int                  // successive windows of a collapse
	latest  unit.Bandwidth       // rate of the window before, whatever it says
	// missing and elastic are the numbers of windows for which there is still evidence that packets
	// were lost or late, and that senders slowed down.
	missing, elastic int
}

// arm is a set of paths and what is known of it.
type arm struct {
	use Set
	// rate is what its paths should bring, measured the median that they brought.
	rate, measured unit.Bandwidth
	when           time.Duration // of the measurement
	known          bool
	failures       int // of trials, since the last success
}

// Window takes the window that ends now and the state of the paths, and decides. The paths are the
// same ones in the same order in every call, at most MaxPaths. It allocates only when the state of a
// path changes.
func (j *Judge) Window(now time.Duration, paths []Path, w Window) Decision {
	j.update(now, paths)
	remember(&j.missing, w.Lost+w.Late > 0 && (w.Busy || j.carries(w.rate())))
	remember(&j.elastic, w.Elastic > 0)
	rate, before := w.rate(), j.latest
	j.latest = rate
	if j.settle > 0 {
		j.settle--
		return j.last
	}
	active := w.Busy || j.harmed()
	switch {
	case len(j.arms) < 2:
		return j.last
	case j.trial && !active && w.Delivered == 0:
		if j.idle++; j.idle == most {
			j.until = now + FirstRest
			j.end(now, Idle)
		}
		return j.last
	case !j.trial && !active:
		return j.last
	}
	if j.count == most {
		copy(j.windows[:], j.windows[1:])
		j.count--
	}
	j.windows[j.count] = rate
	j.count++
	if j.trial {
		j.try(now, rate, active)
	} else {
		j.hold(now, rate, before)
	}
	return j.last
}

// remember keeps evidence for some windows.
func remember(windows *int, seen bool) {
	if seen {
		*windows = remembered
	} else {
		*windows = max(*windows-1, 0)
	}
}

// harmed reports whether the rate may be low because of the paths: packets were lost or late, and senders
// reacted to that. Otherwise there may be little to send.
func (j *Judge) harmed() bool { return j.missing > 0 && j.elastic > 0 }

// carries reports whether a rate is more than that of probes.
func (j *Judge) carries(rate unit.Bandwidth) bool {
	return len(j.arms) > 0 && rate > j.arms[j.at].rate/silentOf
}

// Decision returns the decision in force.
func (j *Judge) Decision() Decision { return j.last }

// try judges the trial of a set after one of its windows.
func (j *Judge) try(now time.Duration, rate unit.Bandwidth, active bool) {
	a, b := &j.arms[j.at], &j.arms[j.before]
	if active && rate < b.measured/collapseOf*collapse {
		if j.low++; j.low == 2 {
			a.measure(now, rate)
			j.fail(now, a)
			j.end(now, Collapsed)
		}
		return
	}
	j.low = 0
	if j.count < kept || j.count < most && j.grows() {
		return
	}
	a.measure(now, j.median())
	// The larger set only has to be as good, another one to be better.
	better := a.measured >= b.measured/enoughOf*enough
	if !a.use.contains(b.use) {
		better = b.measured < a.measured/enoughOf*enough
	}
	if !better {
		j.fail(now, a)
		j.end(now, Worse)
		return
	}
	a.failures, j.rest = 0, 0
	j.fail(now, b)
	j.trial, j.count = false, 0
	j.decide(now, Decision{Reason: Better, Tried: a.use, Rate: a.measured, Against: b.measured})
}

// end ends a trial with the set that was in use before.
func (j *Judge) end(now time.Duration, why Reason) {
	tried := j.arms[j.at]
	j.at, j.trial = j.before, false
	j.restart()
	j.decide(now, Decision{Reason: why, Tried: tried.use, Rate: tried.measured, Against: j.arms[j.at].measured})
}

// hold looks for a set that may be better than the one in use. before is the rate of the window before.
func (j *Judge) hold(now time.Duration, rate, before unit.Bandwidth) {
	a := &j.arms[j.at]
	to, reason, expected := j.rival(now, a.use)
	if to < 0 || now < j.until {
		return
	}
	b := &j.arms[to]
	// A flow that has just begun grows from window to window.
	if reason == Below && (b.known || j.harmed()) && !rises(before, rate) && rate < expected/collapseOf*collapse {
		j.low++
	} else {
		j.low = 0
	}
	brings := rate
	if j.low < 2 {
		if j.count < kept {
			return
		}
		brings = j.median()
		if reason == Below && (brings >= expected/enoughOf*enough || j.count < most && j.grows()) {
			return
		}
	}
	a.measure(now, brings)
	b.known = false
	j.before, j.at, j.trial = j.at, to, true
	j.restart()
	j.decide(now, Decision{Reason: reason, Tried: b.use, Rate: brings, Against: expected})
}

// rival returns the set to be tried next, or -1, why, and what it is expected to bring: first a set
// with more paths, of several the one that failed least, else the one that should bring most.
func (j *Judge) rival(now time.Duration, use Set) (to int, why Reason, expected unit.Bandwidth) {
	to = -1
	for i := range j.arms {
		b := &j.arms[i]
		if b.use == use || !b.use.contains(use) {
			continue
		}
		if to < 0 || b.failures < j.arms[to].failures {
			to, why, expected = i, Again, b.rate
		}
	}
	if to >= 0 {
		return to, why, expected
	}
	for i := range j.arms {
		b := &j.arms[i]
		if b.use.contains(use) {
			continue
		}
		rate := b.rate
		if b.known && now-b.when <= fresh {
			rate = min(rate, b.measured)
		}
		if rate > expected {
			to, why, expected = i, Below, rate
		}
	}
	return to, why, expected
}

// grows reports whether the last window is well above the median: the rate is still rising, as in
// slow start.
func (j *Judge) grows() bool { return rises(j.median(), j.windows[j.count-1]) }

// rises reports whether a rate is well above another one.
func rises(from, to unit.Bandwidth) bool { return to > from/100*115 }

// median returns the median of the last kept windows.
func (j *Judge) median() unit.Bandwidth {
	var sorted [kept]unit.Bandwidth
	n := copy(sorted[:], j.windows[max(0, j.count-kept):j.count])
	slices.Sort(sorted[:n])
	return sorted[n/2]
}

// restart forgets the windows, which were those of another set.
func (j *Judge) restart() { j.settle, j.count, j.idle, j.low = settling, 0, 0, 0 }

// decide records a decision for the set in use.
func (j *Judge) decide(now time.Duration, d Decision) {
	d.At, d.Use = now, j.arms[j.at].use
	j.last = d
}

// measure records what the set brings.
func (a *arm) measure(now time.Duration, rate unit.Bandwidth) {
	a.measured, a.when, a.known = rate, now, true
}

// fail records that a set was worse than another one. The next trial is after a rest, which doubles.
func (j *Judge) fail(now time.Duration, a *arm) {
	a.failures++
	j.rest = min(max(2*j.rest, FirstRest), LastRest)
	j.until = now + j.rest
}
