package pathset

import (
	"math/bits"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/ablation"
	"github.com/tabane/tabane/internal/base/unit"
)

// Times and bounds, from measurements with TCP cubic and BBR over emulated paths.
const (
	// Length is the time that a Window covers, at least (Meter); what it counts is scaled to this
	// time.
	Length = 500 * time.Millisecond
	// medianWindows is the number of windows in a median: BBR's own cycle, or a single loss of
	// cubic, also cause two windows at 95 %.
	medianWindows = 5
	// settlingWindows is the number of windows after a change of the set that are ignored: packets
	// sent before still arrive.
	settlingWindows = 1
	// maxWindows bounds the number of windows of a trial, which is extended while the rate grows.
	maxWindows = 10
	// RestMin and RestMax bound the time without trials after a failed one. It doubles with each
	// failure.
	RestMin = 5 * time.Second
	RestMax = 300 * time.Second
)

// The constants of the decisions, which only Constants lets an experiment change.
var (
	// goodEnoughPercent: a set is as good as another one if it carries this share of its rate.
	goodEnoughPercent unit.Bandwidth = 95
	// collapseTenths: two windows below this share of the rate end a trial at once, or begin one if
	// packets were lost or late.
	collapseTenths unit.Bandwidth = 3
	// rateLifetime is how long a measured rate is valid. Later the set has to be tried again.
	rateLifetime = 60 * time.Second
	// silentFraction: a window with less than 1/silentFraction of the rate of the paths in use has
	// hardly more than probes in it. Lost probes, as while the other gateway starts, harm no flow.
	silentFraction unit.Bandwidth = 50
)

// Constants returns the constants of the decisions, each with the value that removes it.
func Constants() []ablation.Constant {
	return []ablation.Constant{
		ablation.Integer("goodEnoughPercent", &goodEnoughPercent, 100),
		ablation.Integer("collapseTenths", &collapseTenths, 0),
		ablation.Duration("rateLifetime", &rateLifetime, 0),
		ablation.Integer("silentFraction", &silentFraction, 1<<40),
		ablation.Integer("changedRate", &changedRate, 1<<40),
		ablation.Duration("changedJitter", &changedJitter, 0),
		ablation.Integer("changedLoss", &changedLoss, 0),
		ablation.Integer("lossyFrom", &lossyFrom, 1e6),
		ablation.Duration("delayHalving", &delayHalving, time.Hour),
		ablation.Integer("windowRTTs", &windowRTTs, 0),
	}
}

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
	// Delay is its one-way delay, on the same clock for all paths, and Jitter the variation of
	// that.
	Delay, Jitter time.Duration
	// Loss is the share of packets that it loses, in parts per million.
	Loss int
}

// Window is what all paths carried within Length, as the receiver reported it.
type Window struct {
	// Delivered is what the receiver passed on, in bytes of whole packets with all headers, as
	// Path.Rate counts them, without duplicates.
	Delivered unit.Size
	// Lost and Late are numbers of packets: lost ones, and those that came after they had been
	// skipped or, without resequencing, after a later one of their flow. They show that the rate
	// is low because of the paths and not because there is little to send, but only if there are
	// senders that slow down because of them.
	Lost, Late int
	// Elastic is the number of packets of such senders: segments that TCP retransmitted, and
	// packets of transport protocols that the gateway cannot read. Pure acknowledgments, echoes and
	// calls are none.
	Elastic int
	// Busy: for most of the window packets waited in the queue of each path in use, so there was
	// more to send than was carried.
	Busy bool
}

// rate returns what was delivered as a rate.
func (w *Window) rate() unit.Bandwidth {
	return unit.Bandwidth(min(w.Delivered, 1<<50)) * 8 * unit.Bandwidth(time.Second/Length)
}

// Selector selects the set of paths to use. It starts with all paths together. It is not safe for
// concurrent use. The zero value is ready.
type Selector struct {
	last      Decision
	lastPaths []Path // as they were when candidates was computed

	// candidates are the sets that can be used, the first being all usable paths.
	candidates []candidate
	// inUse is the candidate in use, previous the one that it is compared with during a trial.
	inUse, previous int
	trying          bool
	// There is no trial before restUntil; restFor is the length of that rest.
	restUntil, restFor time.Duration

	windows     [maxWindows]unit.Bandwidth // the latest ones since the last change
	windowCount int                        // of windows
	settle      int                        // windows to be ignored
	idleWindows int                        // windows of a trial without anything to send
	collapsed   int                        // successive windows of a collapse
	lastRate    unit.Bandwidth             // rate of the window before, whatever it says
	// pathsLimit: the rate may be low because of the paths: in this window packets were lost or
	// late, and senders reacted to that. Otherwise there may be little to send.
	pathsLimit bool
}

// candidate is a set of paths and what is known of it.
type candidate struct {
	use Set
	// rate is what its paths are expected to carry, measured the median of what they carried.
	rate, measured unit.Bandwidth
	when           time.Duration // of the measurement
	known          bool
	failures       int // of trials, since the last success
}

// Update takes the window that ends now and the state of the paths, and decides. The paths are the
// same ones in the same order in every call, at most MaxPaths. It allocates only when the state of
// a path changes.
func (s *Selector) Update(now time.Duration, paths []Path, w Window) Decision {
	s.updatePaths(now, paths)
	s.pathsLimit = w.Lost+w.Late > 0 && w.Elastic > 0 && (w.Busy || s.moreThanProbes(w.rate()))
	rate, before := w.rate(), s.lastRate
	s.lastRate = rate
	if s.settle > 0 {
		s.settle--
		return s.last
	}
	active := w.Busy || s.pathsLimit
	switch {
	case len(s.candidates) < 2:
		return s.last
	case s.trying && !active && w.Delivered == 0:
		if s.idleWindows++; s.idleWindows == maxWindows {
			s.restUntil = now + RestMin
			s.endTrial(now, Idle)
		}
		return s.last
	case !s.trying && !active:
		return s.last
	}
	if s.windowCount == maxWindows {
		copy(s.windows[:], s.windows[1:])
		s.windowCount--
	}
	s.windows[s.windowCount] = rate
	s.windowCount++
	if s.trying {
		s.evaluateTrial(now, rate, active)
	} else {
		s.considerTrial(now, rate, before)
	}
	return s.last
}

// moreThanProbes reports whether a rate is more than that of probes.
func (s *Selector) moreThanProbes(rate unit.Bandwidth) bool {
	return len(s.candidates) > 0 && rate > s.candidates[s.inUse].rate/silentFraction
}

// Decision returns the decision in force.
func (s *Selector) Decision() Decision { return s.last }

// evaluateTrial evaluates the trial of a set after one of its windows.
func (s *Selector) evaluateTrial(now time.Duration, rate unit.Bandwidth, active bool) {
	a, b := &s.candidates[s.inUse], &s.candidates[s.previous]
	if active && rate < b.measured/10*collapseTenths {
		if s.collapsed++; s.collapsed == 2 {
			a.measure(now, rate)
			s.countFailure(now, a)
			s.endTrial(now, Collapsed)
		}
		return
	}
	s.collapsed = 0
	if s.windowCount < medianWindows || s.windowCount < maxWindows && s.grows() {
		return
	}
	a.measure(now, s.median())
	// The larger set only has to be as good, another one to be better.
	better := a.measured >= b.measured/100*goodEnoughPercent
	if !a.use.contains(b.use) {
		better = b.measured < a.measured/100*goodEnoughPercent
	}
	if !better {
		s.countFailure(now, a)
		s.endTrial(now, Worse)
		return
	}
	a.failures, s.restFor = 0, 0
	s.countFailure(now, b)
	s.trying, s.windowCount = false, 0
	s.decide(now, Decision{Reason: Better, Tried: a.use, Rate: a.measured, Against: b.measured})
}

// endTrial ends a trial and returns to the set that was in use before.
func (s *Selector) endTrial(now time.Duration, why Reason) {
	tried := s.candidates[s.inUse]
	s.inUse, s.trying = s.previous, false
	s.resetWindows()
	s.decide(now, Decision{Reason: why, Tried: tried.use, Rate: tried.measured, Against: s.candidates[s.inUse].measured})
}

// considerTrial starts a trial if a set may be better than the one in use. before is the rate of
// the window before.
func (s *Selector) considerTrial(now time.Duration, rate, before unit.Bandwidth) {
	a := &s.candidates[s.inUse]
	to, reason, expected := s.nextTrial(now, a.use)
	if to < 0 || now < s.restUntil {
		return
	}
	b := &s.candidates[to]
	// A flow that has just begun grows from window to window.
	if reason == Below && (b.known || s.pathsLimit) && !rises(before, rate) && rate < expected/10*collapseTenths {
		s.collapsed++
	} else {
		s.collapsed = 0
	}
	carried := rate
	if s.collapsed < 2 {
		if s.windowCount < medianWindows {
			return
		}
		carried = s.median()
		if reason == Below && (carried >= expected/100*goodEnoughPercent || s.windowCount < maxWindows && s.grows()) {
			return
		}
	}
	a.measure(now, carried)
	b.known = false
	s.previous, s.inUse, s.trying = s.inUse, to, true
	s.resetWindows()
	s.decide(now, Decision{Reason: reason, Tried: b.use, Rate: carried, Against: expected})
}

// nextTrial returns the candidate to be tried next, or -1, why, and its expected rate: a set with
// more paths, of several the one that failed least, or else the one with the highest expected rate.
func (s *Selector) nextTrial(now time.Duration, use Set) (to int, why Reason, expected unit.Bandwidth) {
	to = -1
	for i := range s.candidates {
		b := &s.candidates[i]
		if b.use == use || !b.use.contains(use) {
			continue
		}
		if to < 0 || b.failures < s.candidates[to].failures {
			to, why, expected = i, Again, b.rate
		}
	}
	if to >= 0 {
		return to, why, expected
	}
	for i := range s.candidates {
		b := &s.candidates[i]
		if b.use.contains(use) {
			continue
		}
		rate := b.rate
		if b.known && now-b.when <= rateLifetime {
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
func (s *Selector) grows() bool { return rises(s.median(), s.windows[s.windowCount-1]) }

// rises reports whether a rate is well above another one.
func rises(from, to unit.Bandwidth) bool { return to > from/100*115 }

// median returns the median of the last medianWindows windows.
func (s *Selector) median() unit.Bandwidth {
	var sorted [medianWindows]unit.Bandwidth
	n := copy(sorted[:], s.windows[max(0, s.windowCount-medianWindows):s.windowCount])
	slices.Sort(sorted[:n])
	return sorted[n/2]
}

// resetWindows discards the windows, which were those of another set.
func (s *Selector) resetWindows() {
	s.settle, s.windowCount, s.idleWindows, s.collapsed = settlingWindows, 0, 0, 0
}

// decide records a decision for the set in use.
func (s *Selector) decide(now time.Duration, d Decision) {
	d.At, d.Use = now, s.candidates[s.inUse].use
	s.last = d
}

// measure records what the set carries.
func (a *candidate) measure(now time.Duration, rate unit.Bandwidth) {
	a.measured, a.when, a.known = rate, now, true
}

// countFailure records that a set was worse than another one. The next trial is after a rest, which
// doubles.
func (s *Selector) countFailure(now time.Duration, a *candidate) {
	a.failures++
	s.restFor = min(max(2*s.restFor, RestMin), RestMax)
	s.restUntil = now + s.restFor
}
