// Package selection decides which subflows of an MPTCP connection carry data: one path is first,
// and the others are at rest, as backups, until it is saturated. A path that does not help rests
// again, for longer each time. docs/adr/0019 has the rules and their reasons.
//
// Linux' scheduler gives data to the subflow with the emptiest queue, whatever its rate and
// round-trip time. So a small object, or a stream that one path carries, would wait for a slow
// path.
//
// The package neither samples nor changes subflows; the path manager does.
package selection

import (
	"cmp"
	"math"
	"time"

	"github.com/tabane/tabane/internal/base/ablation"
)

const (
	// Interval is the time between calls of Update for a connection that has data in flight.
	Interval = 40 * time.Millisecond

	// unknownRTT stands for a round-trip time that is not known, as where the SYN/ACK was
	// retransmitted: the kernel's retransmission timeout before it has measured one (RFC 6298).
	unknownRTT = time.Second
	// sendBurst is the number of bytes that the scheduler gives to a subflow at once
	// (MPTCP_SEND_BURST_SIZE).
	sendBurst = 64 << 10
	// restMost bounds how long a path rests.
	restMost = 5 * time.Minute
	// windowRests is the least number of doublings when the receive window was too small: the
	// window seldom grows, and a trial is expensive.
	windowRests = 2
)

// The constants of the decisions, which only Constants lets an experiment change; those that
// policies differ in are in byPolicy.
var (
	// judgeAfter, and judgeRoundTrips, is the time from the opening of a path until it is judged.
	judgeAfter      = time.Second
	judgeRoundTrips = 10.
	// restFirst is how long a path rests that did not help; it doubles each time, up to restMost.
	restFirst = 10 * time.Second
	// measureOver is the time over which a rate is measured, recent the period for which a peak is
	// kept.
	measureOver = 200 * time.Millisecond
	recent      = 2 * time.Second
	// changeAfter is the least time between changes of the first path.
	changeAfter = time.Second
	// leastShare is the share of the rate of all open paths below which a path rests.
	leastShare = 0.04
	// queueFrom is the multiple of the least round-trip time that shows a queue.
	queueFrom = 1.5
	// gainLeast is the fraction of the connection's rate before a path was opened below which the
	// path rests again, harmBelow that below which it does at once.
	gainLeast = 0.97
	harmBelow = 0.5
	// sufficeBelow is the fraction of the first path's rate below which that path carries
	// everything itself.
	sufficeBelow = 0.8
	// typicalRate is the rate in bytes/s that is expected of a path of which nothing is known.
	typicalRate = 10e6 / 8.
)

// Constants returns the constants of the policy Throughput, each with the value that removes it.
func Constants() []ablation.Constant {
	p := &byPolicy[Throughput]
	return []ablation.Constant{
		ablation.Number("switchBelow", &p.switchBelow, 1),
		ablation.Number("tryBelow", &p.tryBelow, 0),
		ablation.Duration("saturatedFor", &p.wait, 0),
		ablation.Duration("startFor", &p.waitSlowStart, 0),
		ablation.Duration("judgeAfter", &judgeAfter, 0),
		ablation.Number("judgeRoundTrips", &judgeRoundTrips, 0),
		ablation.Duration("restFirst", &restFirst, 0),
		ablation.Duration("measureOver", &measureOver, Interval),
		ablation.Duration("recent", &recent, Interval),
		ablation.Duration("changeAfter", &changeAfter, 0),
		ablation.Number("leastShare", &leastShare, 0),
		ablation.Number("queueFrom", &queueFrom, 1),
		ablation.Number("gainLeast", &gainLeast, 0),
		ablation.Number("harmBelow", &harmBelow, 0),
		ablation.Number("sufficeBelow", &sufficeBelow, 1),
		ablation.Number("typicalRate", &typicalRate, 0),
	}
}

// Sample is the state of one path in a call of Update.
type Sample[K comparable] struct {
	Path K
	// Source identifies the subflow; each subflow has its own counters.
	Source uint64
	// Delivered counts delivered segments, and wraps around.
	Delivered uint32
	// Segment is the size of a segment in bytes, Cwnd the congestion window and InFlight what is
	// sent and not acknowledged, in segments.
	Segment, Cwnd, InFlight int
	// NotSent is the data that is queued and was never sent, Window the receive window, in bytes.
	NotSent, Window int
	// SRTT is the smoothed round-trip time (RFC 6298), MinRTT the least one; 0: not known.
	SRTT, MinRTT time.Duration
	// SlowStart is whether the window is below the slow start threshold.
	SlowStart bool
	// Sharers is the number of subflows that saturate the path, of all connections; 0: not known.
	Sharers int
	// Idled is set if there was a time without anything to send since the last call.
	Idled bool
	// Silence is the time without progress of a subflow that has stalled; 0: it has not.
	Silence time.Duration
}

// Saturated reports whether there is unsent data, or as much in flight as the congestion window
// permits.
func (s *Sample[K]) Saturated() bool { return s.NotSent > 0 || s.InFlight > 0 && s.InFlight >= s.Cwnd }

func (s *Sample[K]) busy() bool { return s.InFlight > 0 || s.NotSent > 0 }

// Source is what the application has written to a connection.
type Source struct {
	// Written counts the bytes that it wrote.
	Written uint64
	// Full is whether the send buffer is full, so that the application waits if it has more to
	// write.
	Full bool
}

// Reason is why a path carries data or rests.
type Reason uint8

// The reasons.
const (
	// Unused: the open paths suffice.
	Unused Reason = iota
	// First is the path that carries data while it suffices.
	First
	// Overflow: the other open paths are saturated.
	Overflow
	// Failover: an open path makes no progress, so all are open.
	Failover
	// Slow: its rate is too small to be worth its delay.
	Slow
	// Window: the receive window is too small for its delay.
	Window
	// NoGain: the connection carried less with it than without it.
	NoGain
	// Stalled: it made no progress in an earlier connection.
	Stalled
	// Broken: it carries handshakes and no data.
	Broken
	// OverCommit: it has carried its commit (Terms.Budget).
	OverCommit
	// UnderShare and OverShare: it has carried less, or more, than its share.
	UnderShare
	OverShare
)

// reasons are their names, in the status and, those of paths at rest, in the encoding of a Memory
// (docs/policies.md).
var reasons = [...]string{
	"unused", "first", "overflow", "failover", "slow", "window", "no gain", "stalled", "broken", "over commit", "under share", "over share",
}

func (r Reason) String() string {
	if int(r) < len(reasons) {
		return reasons[r]
	}
	return "unknown"
}

// Open reports whether a path with this reason carries data.
func (r Reason) Open() bool { return r == First || r == Overflow || r == Failover || r == UnderShare }

// fails reports whether the reason is that a path did not carry what it was given.
func (r Reason) fails() bool { return r == Stalled || r == Broken }

// Connection decides which paths of one connection are open. The zero value is ready to use. It is
// not safe for concurrent use.
type Connection[K comparable] struct {
	// Recall, if set, returns what earlier connections learned of a path. It is called once for
	// each path, and again after Forget.
	Recall func(K) Past
	// Source, if set, returns what the application has written, false if that is not known. It is
	// called at most once in a call of Update: when all open paths become saturated, and before
	// another one opens.
	Source func() (Source, bool)
	// Policy is how paths are chosen. It must not change.
	Policy Policy
	// Terms, if set, returns the terms of a path for the policy. Start is the time at which the
	// connection was established, on the clock of budgets.
	Terms func(K) Terms
	Start time.Duration

	paths map[K]*path
	first *path
	keeps time.Duration // until when the first path stays first

	window    peak  // receive window in bytes
	saturated since // all open paths are
	saturation
	suffices  since // the first path alone would
	total     meter
	doublings int           // of parameters.idle
	width     int           // number of open paths, with Cost
	aged      time.Duration // when Ratio last halved path.carried
}

// saturation is what happened since all open paths are saturated.
type saturation struct {
	source    Source // when they began to be
	hasSource bool   // source is known
	carried   int    // bytes delivered
	started   bool   // an open path has been in slow start
}

// path is the state of a path.
type path struct {
	state state
	// why is the reason for the state.
	why     Reason
	present bool // in the current samples
	learned bool // something, since the last call of Learned

	past        Past
	pastExpires time.Duration // when past no longer counts

	counters
	rates
	delays
	trial
	rested
	quota
}

// counters are those of the subflow of a path in its last sample.
type counters struct {
	source    uint64
	delivered uint32
	seen      bool // source and delivered are known
	replaced  bool // the subflow is a new one that has carried none: delay stays that of the one before
	bytes     int  // delivered since the last call of Update
}

// rates are what a path carried, in bytes/s.
type rates struct {
	meter meter
	rate  peak // 0: not measured
	// settled is the rate that was measured while the path was saturated and not in slow start;
	// limited is whether that applies to all samples of the current measurement.
	settled   peak
	limited   bool
	whole     peak          // settled times the subflows that shared the path, for the memory
	flight    peak          // bytes in flight
	used      bool          // the path carried data
	carriedAt time.Duration // when it did last
	forgotten int           // how often what it carried was forgotten
	hasQueue  bool          // its own data has a queue, or had one when it was last in flight
	burstRate float64       // rate by dispersion at that time
	growing   bool          // the rate is not known yet
}

// delays are those of a path, in seconds.
type delays struct {
	minRTT time.Duration
	queued time.Duration // until when the round-trip time includes a standing queue of this connection
	delay  float64
	// assumedDelay is delay or, for a path that has not carried data, its delay at the rate of the
	// first one, if that is higher: paths to one client often have their bottleneck in common.
	assumedDelay float64
	// capacity is the rate in bytes/s that delay was computed with.
	capacity float64
}

// trial is the last time that a path carried data besides another one.
type trial struct {
	opened, closed time.Duration
	rateBefore     float64 // rate of the connection before the path was opened
	tried          bool    // it was judged by the rate of the connection
}

// rested is why a path rests, or rested last.
type rested struct {
	verdict Reason
	until   time.Duration // when its rest ends
	times   int           // how many times in a row it did not help
}

// quota is what Ratio gives to a path.
type quota struct {
	// member is whether the path has a share, carried the bytes that were delivered, and given
	// carried and what is queued or in flight.
	member         bool
	carried, given float64
}

// peak is the highest value of the current period (of length recent) and of the one before.
type peak struct {
	now, before float64
	since       time.Duration
}

func (p *peak) add(now time.Duration, v float64) {
	if now-p.since >= recent {
		p.before, p.now, p.since = p.now, 0, now
	}
	p.now = max(p.now, v)
}

func (p *peak) value() float64 { return max(p.now, p.before) }

// meter measures a rate while there is something to send.
type meter struct {
	since time.Duration // start of the current measurement
	bytes int           // since then
	runs  bool
	last  float64 // bytes/s of the last complete measurement
}

// add adds bytes that were delivered up to now. It reports whether a measurement is complete.
func (m *meter) add(now time.Duration, bytes int, busy bool) bool {
	if !busy {
		m.runs = false
		return false
	}
	if !m.runs {
		m.runs, m.since, m.bytes = true, now, 0
		return false
	}
	m.bytes += bytes
	took := now - m.since
	if took < measureOver {
		return false
	}
	m.last = float64(m.bytes) / took.Seconds()
	m.since, m.bytes = now, 0
	return true
}

// Reason returns why a path carries data or rests. A path that is not known rests.
func (c *Connection[K]) Reason(k K) Reason {
	if p := c.paths[k]; p != nil {
		return p.why
	}
	return Unused
}

// Estimate returns the rate in bytes/s and the delay that are assumed of a path, 0 if it is not known.
func (c *Connection[K]) Estimate(k K) (rate float64, delay time.Duration) {
	p := c.paths[k]
	if p == nil {
		return 0, 0
	}
	return p.capacity, time.Duration(p.delay * float64(time.Second))
}

// Update takes a sample of each path that can carry data, in the order of preference, and decides
// which are open. The time now is relative to any fixed start. It reports whether a path opened or
// was put at rest.
func (c *Connection[K]) Update(now time.Duration, samples []Sample[K]) (changed bool) {
	if c.paths == nil {
		c.paths = map[K]*path{}
	}
	before := make([]Reason, len(samples))
	for _, p := range c.paths {
		p.present = false
	}
	for i := range samples {
		before[i] = c.Reason(samples[i].Path)
		c.measure(now, &samples[i])
	}
	for _, p := range c.paths {
		if !p.present && p.state.carries() {
			p.enter(stateResting, Unused)
			p.seen = false
		}
	}
	if len(samples) == 0 {
		c.first = nil
		return false
	}
	c.decide(now, samples)
	for i := range samples {
		changed = changed || before[i].Open() != c.Reason(samples[i].Path).Open()
	}
	return changed
}

// Forget forgets what this connection measured of a path. What Recall returns of it counts again:
// of one that stalled, that it rests.
func (c *Connection[K]) Forget(k K) {
	if p := c.paths[k]; p != nil && p == c.first {
		c.first = nil
	}
	delete(c.paths, k)
}

// measure updates the rates and the delay of a path.
func (c *Connection[K]) measure(now time.Duration, s *Sample[K]) {
	p := c.paths[s.Path]
	if p == nil {
		p = c.newPath(now, s.Path)
		c.paths[s.Path] = p
	}
	if p.minRTT == 0 && s.MinRTT > 0 && !p.remembers(now) {
		p.learned = true // its round-trip time
	}
	p.present, p.bytes, p.minRTT = true, 0, s.MinRTT
	if p.seen && p.source == s.Source {
		p.bytes = int(s.Delivered-p.delivered) * s.Segment
	} else {
		p.meter.runs, p.replaced = false, p.seen
	}
	p.seen, p.source, p.delivered = true, s.Source, s.Delivered
	p.measureRate(now, s.Saturated() && !s.starts(), s.busy(), s.Sharers)
	c.window.add(now, float64(s.Window))
	if p.replaced = p.replaced && !s.busy(); p.replaced {
		p.growing = false
		return
	}
	c.measureDelay(now, p, s)
	p.remember(now)
}

// measureRate updates the rates of a path with the bytes that it delivered. What it carries is its
// rate while it limits: it is saturated, and not in slow start.
func (p *path) measureRate(now time.Duration, limits, busy bool, sharers int) {
	p.limited = p.limited && limits
	if p.meter.add(now, p.bytes, busy) {
		p.rate.add(now, p.meter.last)
		switch {
		case p.limited:
			p.settled.add(now, p.meter.last)
			p.whole.add(now, p.meter.last*float64(max(1, sharers)))
			p.queued = now + recent
			if p.learned = true; p.verdict.fails() {
				p.verdict, p.times, p.until = Unused, 0, 0
			}
		case !p.measured(now):
			p.learned = true // its round-trip time
		}
	}
	if p.meter.since == now {
		p.limited = limits
	}
}

// measureDelay updates the delay of a path, and the rate that it is computed with.
func (c *Connection[K]) measureDelay(now time.Duration, p *path, s *Sample[K]) {
	rtt := s.SRTT
	if (s.Saturated() || now < p.queued) && s.MinRTT > 0 {
		rtt = s.MinRTT // without the queue of this connection
	}
	if s.busy() {
		p.hasQueue = s.MinRTT > 0 && float64(s.SRTT) > queueFrom*float64(s.MinRTT)
		p.burstRate = p.dispersion(s.SRTT - s.MinRTT)
	}
	// A congestion window that does not limit the path says little: it may be larger than what was
	// ever in flight, or small after a loss.
	rate := max(p.known(now), p.settled.value(), 1)
	switch {
	case s.Saturated():
		rate = max(rate, estimate(s))
	case p.settled.value() > 0:
	case p == c.first && p.known(now) > 0 && p.burstRate > 0:
		rate = max(rate, p.burstRate)
	default:
		rate = max(rate, p.burstRate, estimate(s))
	}
	if p.remembers(now) {
		rate = p.known(now)
		if rtt == 0 { // it has just joined
			rtt = p.past.MinRTT
		}
	}
	delay := cmp.Or(rtt, unknownRTT).Seconds()
	if s.MinRTT > 0 { // nor with the queue that short transfers leave
		p.flight.add(now, float64(s.InFlight*s.Segment))
		delay = max(s.MinRTT.Seconds(), delay-p.flight.value()/rate)
	}
	p.delay, p.capacity = delay+sendBurst/rate, rate
	p.assumedDelay = p.delay
	if s.busy() {
		p.used, p.carriedAt = true, now
	}
	if p.unmeasured(now) && c.first != nil {
		p.assumedDelay = delay + sendBurst/max(rate, c.first.capacity)
	}
	p.growing = rtt == 0 || s.busy() && p.settled.value() == 0 && !p.remembers(now)
}

// newPath returns the state of a path that this connection has not measured.
func (c *Connection[K]) newPath(now time.Duration, k K) *path {
	p := &path{}
	if c.Recall == nil {
		return p
	}
	p.past = c.Recall(k)
	p.pastExpires, p.times, p.verdict = now+p.past.Left, p.past.Rests, p.past.Verdict
	if p.past.Rest > 0 {
		p.enter(stateResting, p.past.Verdict)
		p.until = now + p.past.Rest
	}
	return p
}

// remembers reports whether the rate that earlier connections measured counts, because this one has
// not measured it.
func (p *path) remembers(now time.Duration) bool {
	return p.settled.value() == 0 && p.past.Rate > 0 && now < p.pastExpires
}

// measured reports whether it is known what the path carries when it is saturated.
func (p *path) measured(now time.Duration) bool { return p.settled.value() > 0 || p.remembers(now) }

// delayAt returns what the delay of the path would be at another rate in bytes/s.
func (p *path) delayAt(rate float64) float64 { return p.delay - sendBurst/p.capacity + sendBurst/rate }

// unmeasured reports whether nothing is known of the rate of a path, because it has not carried
// data.
func (p *path) unmeasured(now time.Duration) bool { return !p.used && p.known(now) == 0 }

// known is the rate of a path in bytes/s, 0 if none was measured.
func (p *path) known(now time.Duration) float64 {
	if p.remembers(now) {
		return max(p.past.Rate, p.rate.value())
	}
	return p.rate.value()
}

// starts reports whether the path is in slow start and its rate is not yet what the path can carry.
// With a standing queue it is, in slow start too.
func (s *Sample[K]) starts() bool {
	return s.SlowStart && (s.MinRTT == 0 || s.SRTT < 2*s.MinRTT)
}

// Learned returns what was learned of a path since the last call, false if nothing was.
func (c *Connection[K]) Learned(now time.Duration, k K) (Past, bool) {
	p := c.paths[k]
	if p == nil || !p.learned {
		return Past{}, false
	}
	p.learned = false
	past := Past{Rate: p.whole.value(), MinRTT: p.minRTT, Verdict: p.verdict, Rests: p.times, Rest: max(p.until-now, 0)}
	if p.remembers(now) {
		past.Rate = p.past.Rate
	}
	if past.Burst = p.past.Burst; p.hasQueue {
		past.Burst = p.burstRate
	}
	return past, true
}

// estimate is the rate of a path that was not measured, in bytes/s.
func estimate[K comparable](s *Sample[K]) float64 {
	if s.SRTT <= 0 {
		return 0
	}
	return float64(s.Cwnd*s.Segment) / s.SRTT.Seconds()
}

// dispersion estimates the rate of a path, in bytes/s, from the queue that its bursts leave: the
// mean segment of a burst waits for half of it.
func (p *path) dispersion(queue time.Duration) float64 {
	return p.flight.value() / 2 / max(queue, time.Millisecond).Seconds()
}

// chooseFirst chooses the first path: the one with the shortest delay, unless the current one is
// nearly as good.
func (c *Connection[K]) chooseFirst(now time.Duration, samples []Sample[K]) {
	was := c.first
	if was != nil && !was.present {
		was = nil
	}
	if was != nil && now < c.keeps {
		return
	}
	best := was
	for i := range samples {
		p := c.paths[samples[i].Path]
		if c.betterFirst(now, p, best, was) {
			best = p
		}
	}
	if best == was {
		return
	}
	if was != nil {
		was.enter(stateResting, Unused)
	}
	switch c.first = best; {
	case was == nil: // another path may become first as soon as it is measured
		c.keeps = now
	case best.state == stateUnknown: // its rate is soon measured
		c.keeps = now + triedFor()
	default:
		c.keeps = now + changeAfter
	}
	best.enter(stateFirst, First)
	c.saturated, c.suffices = since{}, since{}
}

// betterFirst reports whether a path is to be first instead of the best one so far; was is the
// first path now, nil if there is none.
func (c *Connection[K]) betterFirst(now time.Duration, p, best, was *path) bool {
	switch {
	case best == nil, !p.barred(now) && best.barred(now):
		return true
	case p.barred(now) && (was != nil || !best.barred(now)):
		return false
	}
	policy := &byPolicy[c.Policy]
	below := policy.switchBelow
	if p.unmeasured(now) && now-c.keeps >= 10*triedFor() {
		below = policy.tryBelow // its trial takes a tenth of the time so far at most
	}
	return p.shorter(below*best.delay) && (was == nil || p.carries() >= sufficeBelow*c.load(was))
}

// triedFor is how long a path of which nothing is known stays first, so that it is measured.
func triedFor() time.Duration { return 2 * measureOver }

// barred reports whether a path is not to be first until its rest ends: it failed, or nothing is
// known of its rate. One that did not help beside others may be the shortest one for what it can
// carry alone.
func (p *path) barred(now time.Duration) bool {
	return now < p.until && (p.verdict.fails() || p.unmeasured(now))
}

// shorter reports whether the delay of a path is below another one, in seconds. While its rate
// grows, only what it has carried counts.
func (p *path) shorter(delay float64) bool {
	if p.growing {
		return p.rate.value() > 0 && p.delayAt(p.rate.value()) < delay
	}
	return p.assumedDelay < delay
}

// carries returns the rate in bytes/s that a path would carry as the first one.
func (p *path) carries() float64 {
	if p.growing {
		return p.rate.value()
	}
	return p.capacity
}

// load returns the rate that the first path must carry: that of the connection, or more than the
// first path can while it is saturated.
func (c *Connection[K]) load(first *path) float64 {
	if c.saturated.holds {
		return max(first.capacity, c.total.last)
	}
	return c.total.last
}

// failover opens all paths while the first one makes no progress. It reports whether that is so.
func (c *Connection[K]) failover(now time.Duration, samples []Sample[K]) bool {
	silent := false
	for i := range samples {
		silent = silent || c.paths[samples[i].Path] == c.first && samples[i].Silence > 0
	}
	for i := range samples {
		switch p := c.paths[samples[i].Path]; {
		case p == c.first && silent:
			p.enter(stateFailed, First)
		case p == c.first:
			p.enter(stateFirst, First)
		case silent:
			p.open(now, Failover, 0)
		case p.why == Failover && p.rateBefore == 0:
			p.rest(now, Unused)
		case p.why == Failover: // it was open before
			p.enter(stateOpen, Overflow)
		}
	}
	return silent
}

// judge puts open paths at rest that do not help.
func (c *Connection[K]) judge(now time.Duration, samples []Sample[K]) {
	sum := 0.0 // the rate of all open paths
	limited := false
	for i := range samples {
		p := c.paths[samples[i].Path]
		if p.state.carries() {
			sum += cmp.Or(p.rate.value(), estimate(&samples[i]))
		}
		limited = limited || p == c.first && samples[i].Saturated()
	}
	measured := c.measureAll(now, samples)
	for i := range samples {
		s := &samples[i]
		p := c.paths[s.Path]
		if p.state != stateOpen {
			continue
		}
		if why, ok := c.verdict(now, p, s, sum, limited, measured); ok && why == Unused {
			p.tried, p.times, p.verdict, p.learned = true, 0, Unused, true
		} else if ok {
			p.rest(now, why)
		}
	}
}

// verdict returns whether an open path helps: why it is to rest, Unused if it helps, false if that
// is not known yet. sum is the rate of all open paths, limited whether the first one is saturated,
// and measured whether a measurement of the connection's rate is complete.
func (c *Connection[K]) verdict(now time.Duration, p *path, s *Sample[K], sum float64, limited, measured bool) (Reason, bool) {
	rate, window := cmp.Or(p.rate.value(), estimate(s)), c.window.value()
	why := NoGain
	if window > 0 && window/p.delay < max(sum-rate, p.rateBefore) {
		why = Window
	}
	judged := measured && !p.tried
	switch age := now - p.opened; {
	case judged && !limited && s.busy() && c.total.since-measureOver >= p.opened && c.total.last < harmBelow*p.rateBefore:
		return why, true
	case p.carriedAt < p.opened: // it was given nothing
		return why, false
	case rate < leastShare*sum && (p.settled.value() > 0 || age >= p.trialLasts()):
		// It has been saturated at that rate, or had time to grow.
		return Slow, true
	case age < p.trialLasts():
		return why, false
	case why == Window:
		return Window, true
	case judged && c.total.last < gainLeast*p.rateBefore:
		// While the first path is saturated, this one does not block it. And if the receive window
		// allows much more, the application has less to send.
		return NoGain, !limited && (window == 0 || c.total.last > harmBelow*window/p.delay)
	}
	return Unused, judged
}

// trialLasts returns how long a path is open until it is judged.
func (p *path) trialLasts() time.Duration {
	return max(judgeAfter, time.Duration(judgeRoundTrips*float64(p.minRTT)))
}

// repays reports whether a path makes a transfer of unknown length shorter that has lasted for some
// time. The transfer is expected to go on for as long as it has lasted. The path, with a share of
// the rate of all paths including its own, shortens that by the share, but carries next to nothing
// in its first round trip, and the last data arrives longer seconds later because of the path's
// longer delay.
func repays(lasted, rtt time.Duration, share, longer float64) bool {
	return (lasted-rtt).Seconds()*share >= longer
}

// fits reports whether the receive window has enough room, in bytes, for a path of unknown rate. As
// it is hoped to be as fast as the first one, it would have as much in flight. Besides, the open
// paths, with a rate in bytes/s, deliver out of order until its first data has arrived, after a
// delay in seconds. With less room they wait for that data even if the path is as fast as is hoped,
// and far longer if it is slow.
func fits(room, inFlight, rate, delay float64) bool { return room >= inFlight+rate*delay }

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
	// saturated: all of them are; starts: one of them is in slow start; over: the first one has had
	// nothing to send; tries: one of them has not been judged yet.
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
	v, suffices := view{saturated: true}, false
	var rests []*path
	for i := range samples {
		s := &samples[i]
		p := c.paths[s.Path]
		rate := cmp.Or(p.rate.value(), estimate(s))
		v.carried += p.bytes
		switch {
		case p.state.carries():
			v.saturated = v.saturated && s.Saturated() && !(params.waitsDelay && s.Idled)
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
// seconds. One that was never saturated, and left no queue, is hoped to be as fast as the first
// one, but that is not to be expected of one beside a fast path: halfway between a typical path and
// that one, on a logarithmic scale. If the receive window has too little room for that, and does
// not grow by slow start, the open paths wait for all of the delay of a typical path, whose rate
// must be worth that.
func (c *Connection[K]) worthwhile(now time.Duration, v *view, next *path) (delay float64, ok bool) {
	repaying := byPolicy[c.Policy].repays
	hoped, delay := next.capacity, next.delay
	rate, longer := hoped, delay-v.longest
	if !next.measured(now) && !next.hasQueue {
		hoped = max(hoped, c.first.capacity)
		delay = next.delayAt(hoped)
		rate = min(hoped, math.Sqrt(hoped*typicalRate))
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
