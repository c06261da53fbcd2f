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
	// leastShare is the share of the rate of all open paths below which a path rests.
	leastShare = 0.04
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
		ablation.Number("leastShare", &leastShare, 0),
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
