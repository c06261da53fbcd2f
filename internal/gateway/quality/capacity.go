package quality

import (
	"cmp"
	"time"

	"github.com/tabane/tabane/internal/base/ablation"
	"github.com/tabane/tabane/internal/base/unit"
)

// Bounds and steps of Capacity.
const (
	// FirstCapacity is the estimate before any traffic.
	FirstCapacity = 10 * unit.MbitPerSecond
	// startPace is what a path is paced to until it was full for the first time: in effect not at
	// all. TCP that is held at the first estimate leaves slow start (BBR after three round trips),
	// which no sample is short enough to see.
	startPace = unit.GbitPerSecond
	// startMinSize is how much must have been sent into the first queue for what arrives to be the
	// path's rate: less may be a flow that has little to send, behind others.
	startMinSize = 15 * unit.KB
	// startLoss is the share of lost packets from which on a path whose queue is too short to be
	// seen is full.
	startLoss = 0.1
	// minCapacity bounds the estimate from below: a path that is believed to be slower would
	// get no traffic that could prove otherwise.
	minCapacity = 100 * unit.KbitPerSecond
	// Growth of the estimate in percent: before the path was ever full, of a probe, and of a probe
	// after a successful one, where a round trip is short enough to see its queue in time. A probe
	// raises the rate for two samples at most: 10 % for 300 ms make a queue of 20 ms, as 3 % are
	// not used.
	startGrowthPercent, probeGrowthPercent, nextGrowthPercent = 200, 110, 125
	// A probe succeeds if this share of the estimate before it arrives, in percent. It fails only
	// if the share testedPercent was sent: a sender that is late, or had less to send, shows
	// nothing.
	successPercent, testedPercent = 102, 104
	// An estimate of less than the share loweredPercent of what it was may be too low, and is if a
	// train shows raisePercent of it.
	loweredPercent, raisePercent = 75, 120
	// A path whose rate is not configured is full if less than this share of what is sent arrives, in
	// percent.
	wastedPercent = 65
	// pacedPercent is the share of the estimate, in percent, that the sender uses.
	pacedPercent = 97
	// lastProbe bounds the number of busy samples between two probes.
	lastProbe = 64
	// An estimate is at most maxHalves / 2 of what is configured.
	maxHalves = 3
	// While a queue that the estimate was lowered for drains, 1 - 1/drainFraction of the estimate
	// is used.
	drainFraction = 6
)

// The constants of the estimate of a configured rate, which only Constants lets an experiment
// change.
var (
	// An estimate is at least 1/minFraction of what is configured, because less may be others in
	// the same queue, who would take all.
	minFraction unit.Bandwidth = 4
	// longQueue is the standing queue from which on the path is full, shortQueue that up to which
	// more than a configured rate may soon be tried. Up to longQueue any rate is tried: where
	// jitter keeps the order of packets, as LTE does, a busy path has little of it, but none of its
	// packets is as early as those of an idle one were.
	longQueue  = 15 * time.Millisecond
	shortQueue = 5 * time.Millisecond
	// If less than the share carriedPercent of what is sent arrives though more was to be sent, or
	// less than the share drainedPercent while there is a long queue, the path does not carry it. A
	// queue alone may be a route that became longer.
	carriedPercent, drainedPercent unit.Size = 93, 98
	// sustainedPercent is a share of what was sent, in percent. While the sender leaves the path
	// idle at times, the estimate is reduced only if less than this arrives for longer than a
	// sample, because a delayed sample on a busy machine seldom hides more than the rest.
	sustainedPercent unit.Size = 80
	// steadyFraction: the jitter is at most this part of an interval, because packets and reports
	// that are late by it have what arrives in one differ from what was sent. A rate that is not
	// configured is not probed while it is more than that of the shortest one.
	steadyFraction time.Duration = 16
	// firstProbe is the number of busy samples between two probes, which doubles with each failure,
	// up to lastProbe. A configured rate is probed sooner for the first time, but any with more
	// than shortQueue behind it patienceFactor times as late.
	firstProbe, configuredProbe, patienceFactor = 8, 3, 4
	// mostSaved is the time in which the rate fills the token bucket of a path, at most. With more,
	// a rate that is configured too low is found so only after seconds.
	mostSaved = 100 * time.Millisecond
)

// Constants returns the constants of the estimate of a configured rate, each with the value that
// removes it.
func Constants() []ablation.Constant {
	return []ablation.Constant{
		ablation.Integer("minFraction", &minFraction, 1<<40),
		ablation.Duration("longQueue", &longQueue, 0),
		ablation.Duration("shortQueue", &shortQueue, 0),
		ablation.Integer("carriedPercent", &carriedPercent, 0),
		ablation.Integer("drainedPercent", &drainedPercent, 0),
		ablation.Integer("sustainedPercent", &sustainedPercent, 0),
		ablation.Integer("steadyFraction", &steadyFraction, 1),
		ablation.Integer("firstProbe", &firstProbe, 1),
		ablation.Integer("configuredProbe", &configuredProbe, 1),
		ablation.Integer("patienceFactor", &patienceFactor, 1),
		ablation.Duration("mostSaved", &mostSaved, 0),
		ablation.Duration("baseWindow", &baseWindow, time.Hour),
		ablation.Duration("standingWindow", &standingWindow, 0),
		ablation.Duration("slot", &slot, 0),
		ablation.Duration("slotMemory", &memory, 1),
		ablation.Integer("meanJitters", &meanJitters, 1<<20),
		ablation.Integer("fewPackets", &few, 0),
	}
}

// CapacitySample is what was measured of a path in an interval of 50 to 500 ms.
type CapacitySample struct {
	// Interval is the time in which Sent and Arrived bytes were sent and received; both are in
	// bytes of whole packets with all headers.
	Interval time.Duration
	Sent     unit.Size
	Arrived  unit.Size
	// Busy: packets waited for the path during the whole interval, so that more would have been
	// sent on a faster one.
	Busy bool
	Delays
}

// Delays are what is known of the delays of a path, and of its losses.
type Delays struct {
	// RTT is the round-trip time: what is sent now shows in reports after it.
	RTT time.Duration
	// Standing and Jitter are those of OneWay.
	Standing, Jitter time.Duration
	// Loss is the share of packets that are lost, from 0 to 1, as of Loss.
	Loss float64
}

// Capacity estimates the rate of a path from what the path carries and the queue that this causes,
// beginning with what is configured, if anything is. The sender paces its packets below the
// estimate, so it has to be raised to find a higher rate. The zero value is that of a path without
// a configured rate and without traffic.
type Capacity struct {
	rate       unit.Bandwidth
	configured unit.Bandwidth // 0: not at all
	// ceiling is never exceeded, 0 if there is none.
	ceiling unit.Bandwidth
	// best is the highest estimate that was lowered, or that a train has shown.
	best unit.Bandwidth
	// found: the path was full at least once. hinted: a train has shown the rate.
	found, hinted bool
	// busy counts busy samples since the last probe, every is how many there are between two.
	busy, every int
	probing     probing
	// before is the estimate before the probe in progress, tried what it is raised to, sent the
	// highest rate in one of its samples, and probed the time since it began.
	before, tried, sent unit.Bandwidth
	probed              time.Duration
	// congested is the number of samples in a row that were, but for short ones, full what arrived
	// in all of them: what the path carries, because its queue was not empty.
	congested int
	full      CapacitySample
	// draining is the number of samples that the queue on the path needs at most to drain.
	draining int
	// saved is what a token bucket on the path may have saved at most.
	saved unit.Size
	// waited is for how long packets have waited for the path.
	waited time.Duration
	// recent are samples since the estimate changed, their bytes and time weighted less with each
	// further one: jitter moves packets between intervals, so one sample shows little.
	recent  CapacitySample
	samples int
}

// probing is the state of a probe of a higher rate.
type probing uint8

const (
	// noProbe: the rate is the estimate.
	noProbe probing = iota
	// raised: the rate is higher than the estimate.
	raised
	// awaited: the rate is the estimate again, and reports of what was sent at the higher one are
	// on their way.
	awaited
)

// LimitCapacity returns the state of a path whose rate is configured: the estimate begins there. It
// is lower while a queue on the path shows that it does not carry so much, and higher after a probe
// has shown that it carries more. Of rate 0 it is that of one without a configured rate.
func LimitCapacity(rate unit.Bandwidth) Capacity {
	if rate == 0 {
		return Capacity{}
	}
	return Capacity{rate: rate, configured: rate, found: true, every: configuredProbe}
}

// Hint has the estimate begin at a rate that a train has shown. Packets are not paced to it until
// the path was full: it may be that of a burst.
func (c *Capacity) Hint(rate unit.Bandwidth) {
	if !c.found {
		c.rate, c.hinted = c.ceil(max(rate, minCapacity)), true
		c.best = max(c.best, c.rate)
	}
}

// Lowered reports whether the estimate is clearly below what it was, or what is configured: the path
// may have recovered, and traffic that seldom fills it would not show that. A bound is kept.
func (c *Capacity) Lowered() bool {
	return c.found && c.ceiling == 0 && c.estimate() < max(c.best, c.configured)/100*loweredPercent
}

// Raise raises an estimate that was lowered to a rate that a train has shown, and reports whether
// that is clearly more. One of a rate that is not configured begins again, as with Hint.
func (c *Capacity) Raise(shown unit.Bandwidth) bool {
	if !c.Lowered() || shown < c.estimate()/100*raisePercent {
		return false
	}
	c.probing = noProbe // traffic may have ended before a probe has
	if c.configured > 0 {
		c.set(min(shown, c.configured))
		return true
	}
	*c = Capacity{best: c.best}
	c.Hint(shown)
	return true
}

// Hinted reports whether nothing but a hint is known of the rate.
func (c *Capacity) Hinted() bool { return !c.found && c.hinted }

// Begins reports whether nothing is known of the rate yet.
func (c *Capacity) Begins() bool { return !c.found && !c.hinted }

// Known reports whether the rate is configured, or was estimated from traffic: not that of the
// beginning, which a path keeps that carries little.
func (c *Capacity) Known() bool {
	return c.rate > 0 && (!c.Begins() || c.rate != c.ceil(FirstCapacity))
}

// Ceil bounds the estimate: a rate that a contract does not let be exceeded. 0 removes the bound.
func (c *Capacity) Ceil(ceiling unit.Bandwidth) {
	c.ceiling = ceiling
	if c.rate > 0 {
		c.rate = c.ceil(c.rate)
	}
}

// estimate returns the rate without what a probe adds to it.
func (c *Capacity) estimate() unit.Bandwidth {
	if c.probing != noProbe {
		return c.before
	}
	return c.rate
}

// ceil returns a rate, or the ceiling if that is lower.
func (c *Capacity) ceil(rate unit.Bandwidth) unit.Bandwidth {
	if c.ceiling > 0 {
		return min(rate, c.ceiling)
	}
	return rate
}

// Value returns the rate that is to be used: the estimate, or less while a queue on the path
// drains.
func (c *Capacity) Value() unit.Bandwidth {
	switch {
	case c.rate == 0:
		return c.ceil(FirstCapacity)
	case c.draining > 0:
		return max(c.rate-c.rate/drainFraction, min(c.rate, minCapacity))
	}
	return c.rate
}

// Pace returns the rate to pace packets to: Value, but in effect unlimited until the path was full
// for the first time, as a sender without a gateway finds its rate. A bound is kept.
func (c *Capacity) Pace() unit.Bandwidth {
	if c.found {
		return c.Value()
	}
	return c.ceil(max(startPace, 2*c.Value()))
}

// Update adds a sample.
func (c *Capacity) Update(s CapacitySample) {
	if s.Interval <= 0 || s.Arrived < 0 || s.Sent < 0 {
		return
	}
	if c.rate == 0 {
		c.rate = c.ceil(FirstCapacity)
	}
	beyond := c.save(&s)
	if c.probing != noProbe {
		c.judge(&s, beyond)
		return
	}
	c.count(&s)
	switch {
	case !c.found && c.fills(&s):
	case c.starved(&s):
		c.lower(c.recent.rate(), s.Standing)
	case c.wasted(&s):
		c.lower(c.recent.rate()*nextGrowthPercent/100, s.Standing)
	case c.found && c.overloaded(s.Jitter):
		c.lower(c.full.rate(), s.Standing)
	case c.samples >= 3 && c.recent.rate() > c.rate && c.saved == 0:
		c.set(c.recent.rate())
	case !s.Busy || Congested(s.Standing, s.Jitter) || c.behind(&s) && c.rate.SizeIn(shortQueue) < startMinSize:
	case !c.found:
		c.set(c.rate * startGrowthPercent / 100)
	default:
		c.mayProbe(&s)
	}
}

// count adds a sample to those that the estimate is changed by.
func (c *Capacity) count(s *CapacitySample) {
	if s.Busy {
		c.waited += s.Interval
	} else {
		c.waited = 0
	}
	c.recent.add(*s)
	c.samples++
	if Congested(s.Standing, s.Jitter) {
		c.full.Sent, c.full.Arrived, c.full.Interval = c.full.Sent+s.Sent, c.full.Arrived+s.Arrived, c.full.Interval+s.Interval
		if s.Interval > sampleInterval/2 {
			c.congested++
		}
	} else {
		c.full, c.congested = CapacitySample{}, 0
	}
	if c.draining--; c.draining < 0 || s.Standing <= shortQueue+s.Jitter {
		c.draining = 0
	}
}

// fills reports whether a path that was never full is, by its queue or by its losses, and sets the
// estimate then.
func (c *Capacity) fills(s *CapacitySample) bool {
	switch {
	case c.full.Interval > s.Interval && c.full.Sent >= startMinSize && (steadyPath(s.Jitter) || c.congested >= 4):
		c.find(max(s.rate(), c.full.rate()), s.Standing) // the first sample may have begun before the queue
	case c.full.Interval == 0 && c.samples >= 3 && s.Loss >= startLoss && c.recent.Sent >= 4*startMinSize:
		c.find(max(s.rate(), c.recent.rate())*nextGrowthPercent/100, 0) // not less than the path carries if the losses are not for a queue
	default:
		return false
	}
	return true
}

// starved reports whether less arrives than is sent on a path whose rate is not configured, though
// packets have waited for it all the time.
func (c *Capacity) starved(s *CapacitySample) bool {
	return c.samples >= 3 && c.configured == 0 && c.waited >= s.RTT+3*sampleInterval && c.recent.Arrived < c.recent.Sent/100*carriedPercent
}

// wasted reports whether much less arrives than is sent on a path whose rate is not configured,
// though packets do not wait for it. That is a policer, which has no queue: retransmissions hide its
// losses from TCP, which would send as much as before for ever.
func (c *Capacity) wasted(s *CapacitySample) bool {
	return c.found && c.configured == 0 && !s.Busy && c.samples >= 3 && time.Duration(c.samples)*sampleInterval >= s.RTT+3*sampleInterval &&
		c.recent.Sent >= 4*startMinSize && c.recent.Arrived < c.recent.Sent/100*wastedPercent
}

// behind reports whether there is a queue on a path whose rate is configured.
func (c *Capacity) behind(s *CapacitySample) bool {
	return c.configured > 0 && s.Standing > shortQueue+s.Jitter
}

// mayProbe begins a probe after enough busy samples.
func (c *Capacity) mayProbe(s *CapacitySample) {
	every := cmp.Or(c.every, firstProbe)
	if c.behind(s) {
		every *= patienceFactor
	}
	if c.busy++; c.busy >= every && (c.rate < c.configured || steadyPath(s.Jitter)) {
		c.probe(probeGrowthPercent)
	}
}

// save counts what a token bucket on the path may have saved while less arrived than its rate, and
// what arrives out of that, which shows no higher rate. It reports whether more arrived than a
// bucket can have saved. A bucket is empty while there is a queue.
func (c *Capacity) save(s *CapacitySample) (beyond bool) {
	rate := c.estimate()
	left := c.saved + rate.SizeIn(s.Interval) - s.Arrived
	c.saved = min(max(0, left), rate.SizeIn(mostSaved))
	if !c.found || Congested(s.Standing, s.Jitter) {
		c.saved = 0
	}
	return left < 0
}

// steadyPath reports whether one sample shows what the path carries.
func steadyPath(jitter time.Duration) bool { return jitter <= sampleInterval/steadyFraction }

// overloaded reports whether less arrives than is sent while packets queue on the path.
func (c *Capacity) overloaded(jitter time.Duration) bool {
	minSamples := 1
	switch idle := c.full.sending() < c.rate/4*3; {
	case steadyPath(jitter) && idle && c.full.Interval >= sampleInterval*4/3 && c.full.Arrived < c.full.Sent/100*sustainedPercent:
	case !steadyPath(jitter) || idle:
		minSamples = 3 // one sample of a sender that was late, as on a busy machine, is not meaningful
	}
	return c.congested >= minSamples && c.full.Arrived < c.full.Sent/100*drainedPercent
}

// lower sets the estimate to what arrives, which is what the path carries. A path that suddenly
// carries less than half may be interrupted: then the estimate is halved.
func (c *Capacity) lower(arrives unit.Bandwidth, standing time.Duration) {
	if c.found {
		c.best = max(c.best, c.rate)
	}
	c.find(max(arrives, c.rate/2), standing)
}

// find sets the estimate of a path that is full.
func (c *Capacity) find(rate unit.Bandwidth, standing time.Duration) {
	c.found, c.busy, c.every = true, 0, firstProbe
	c.set(max(rate, minCapacity))
	if standing >= longQueue {
		c.draining = 2 + int(drainFraction*standing/sampleInterval)
	}
}

// rate returns the rate of arrival, sending that of sending.
func (s *CapacitySample) rate() unit.Bandwidth    { return rateOf(s.Arrived, s.Interval) }
func (s *CapacitySample) sending() unit.Bandwidth { return rateOf(s.Sent, s.Interval) }

func rateOf(bytes unit.Size, in time.Duration) unit.Bandwidth {
	return unit.Bandwidth(min(float64(bytes)*8/in.Seconds(), float64(unit.TbitPerSecond)))
}

// add adds a sample to others, which count less with each further one.
func (s *CapacitySample) add(more CapacitySample) {
	s.Sent, s.Arrived, s.Interval = s.Sent/4*3+more.Sent, s.Arrived/4*3+more.Arrived, s.Interval/4*3+more.Interval
}

// set changes the estimate.
func (c *Capacity) set(rate unit.Bandwidth) {
	if c.configured > 0 {
		rate = min(max(rate, c.configured/minFraction), c.configured/2*maxHalves)
	}
	c.rate, c.recent, c.samples = c.ceil(rate), CapacitySample{}, 0
	c.full, c.congested, c.draining = CapacitySample{}, 0, 0
}

// probe raises the estimate until judge has seen what arrives.
func (c *Capacity) probe(percent unit.Bandwidth) {
	c.busy, c.before, c.sent = 0, c.rate, 0
	c.raise(percent)
}

// raise has a probe send more, of which reports come after a round trip.
func (c *Capacity) raise(percent unit.Bandwidth) {
	c.set(c.rate * percent / 100)
	c.probing, c.tried, c.probed = raised, c.rate, 0
}

// end ends a probe, after which the estimate is rate.
func (c *Capacity) end(rate unit.Bandwidth) {
	c.probing = noProbe
	c.set(rate)
}

// fail ends a probe that has shown that the path does not carry more.
func (c *Capacity) fail() {
	c.end(c.before)
	c.every = min(2*max(c.every, firstProbe), lastProbe)
}

// judge takes a sample of a probe. More may arrive at any time, and shows that the path carries it
// if it is beyond what a token bucket can have saved; until then more and more is sent. On a path
// whose round trip is longer than the rate is raised, a probe never empties a bucket, and need not.
// That less arrives counts only from when all of a sample was sent since the probe began.
func (c *Capacity) judge(s *CapacitySample, beyond bool) {
	before, began, arrived := c.before, c.probed, s.rate()
	c.sent = max(c.sent, s.sending())
	c.probed += s.Interval
	full := Congested(s.Standing, s.Jitter)
	more := arrived >= before*successPercent/100
	switch {
	case more && (beyond || s.RTT > 2*sampleInterval):
		c.end(max(before, min(c.tried, arrived*100/pacedPercent)))
		c.every = firstProbe
		switch {
		case full:
		case s.RTT > sampleInterval:
			c.probe(probeGrowthPercent)
		default:
			c.probe(nextGrowthPercent)
		}
	case more && !full: // it may be out of a bucket
		if began >= s.RTT && c.rate < before*4/3 {
			c.raise(probeGrowthPercent)
		}
	case began < s.RTT && !full:
		if c.probing == raised && c.probed >= 2*sampleInterval {
			c.probing = awaited
			c.set(before)
		}
	case c.sent >= before*testedPercent/100 || full:
		c.fail()
	default:
		c.end(before)
	}
}

// Exhausted reports whether the estimate of a configured rate cannot be lowered further.
func (c *Capacity) Exhausted() bool { return c.configured > 0 && c.rate <= c.configured/minFraction }

// Congested reports whether a standing queue, as of OneWay, shows that more is sent on a path than
// it carries. The smallest delay of few packets on a jittery path is longer than that of many.
func Congested(standing, jitter time.Duration) bool { return standing >= longQueue+2*jitter }

// CapacityMeter takes the samples of a Capacity from counters. The zero value is ready.
type CapacityMeter struct {
	Capacity
	since          time.Duration
	at             time.Duration
	sent, received uint64 // at that time
	reports, waits int
	// silent is when a probe in progress has failed if there is no further sample until then.
	silent time.Duration
}

// sampleInterval is the least time between two samples, on a path without jitter.
const sampleInterval = 150 * time.Millisecond

// AddReport adds the bytes that were sent on a path until now and those that had arrived when the
// receiver reported them, at the time at on its clock; waiting is whether packets wait in front of
// the path. It is called several times in an interval. A report that is late, because it came over
// a jittery path, has more in it than arrived in the interval.
func (m *CapacityMeter) AddReport(now, at time.Duration, sent, received uint64, waiting bool, d Delays) {
	m.reports++
	if waiting {
		m.waits++
	}
	took, minInterval := now-m.since, max(sampleInterval, steadyFraction*d.Jitter)
	begins := m.full.Interval == 0 && m.probing == noProbe && Congested(d.Standing, d.Jitter)
	if took < minInterval && (!begins || took < sampleInterval/3) {
		return // a queue that begins ends a sample, so that the next one is of a full path alone
	}
	const maxRatio = 4 // times; the interval is not the same one
	if in := at - m.at; m.since > 0 && took < 10*minInterval && received >= m.received && sent >= m.sent && in > took/maxRatio && in < took*maxRatio {
		m.Update(CapacitySample{
			Interval: took, Sent: unit.Size(sent - m.sent), Arrived: unit.Size(float64(received-m.received) * float64(took) / float64(in)),
			Busy: 4*m.waits >= 3*m.reports, Delays: d,
		})
		m.silent = now + d.RTT + 2*took
	}
	m.since, m.at, m.sent, m.received, m.reports, m.waits = now, at, sent, received, 0, 0
}

// Expire ends a probe of a higher rate that no report comes of, and reports whether it has. Without
// it the higher rate, which may be why reports are lost, would be kept.
func (m *CapacityMeter) Expire(now time.Duration) bool {
	if m.probing == noProbe || now < m.silent {
		return false
	}
	m.fail()
	return true
}
