package selection

import (
	"cmp"
	"math"
	"time"
)

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
	burstRate float64       // rate by dispersion when it was last in flight
	growing   bool          // the rate is not known yet
	full      bool          // the path was saturated within its last round trip
	fullAt    time.Duration // when it was saturated last
}

// delays are those of a path, in seconds.
type delays struct {
	minRTT time.Duration
	rtt    time.Duration // the least smoothed one of the subflow
	queued time.Duration // until when the round-trip time includes a standing queue of this connection
	delay  float64
	// assumedDelay is delay or, for a path that has not carried data, its delay at the rate that is
	// expected of one beside the first, if that is higher.
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
	if s.SRTT > 0 && (p.rtt == 0 || s.SRTT < p.rtt || p.seen && s.Source != p.source) {
		p.rtt = s.SRTT
	}
	p.seen, p.source, p.delivered = true, s.Source, s.Delivered
	// Linux' scheduler gives nothing to a path while another one would send sooner, however much room
	// the window of the first has.
	if s.Saturated() {
		p.full, p.fullAt = true, now
	} else if now-p.fullAt > s.SRTT {
		p.full = false
	}
	c.measureRate(now, p, s)
	c.window.add(now, float64(s.Window))
	if p.replaced = p.replaced && !s.busy(); p.replaced {
		p.growing = false
		return
	}
	c.measureDelay(now, p, s)
	p.remember(now)
}

// measureRate updates the rates of a path with the bytes that it delivered. What it carries is its
// rate while it limits: it is saturated, and not in slow start. As it is paced, and little waits in
// it, it is not saturated in each sample; but then it is again within a round trip, which it is not
// where there is nothing more to send.
func (c *Connection[K]) measureRate(now time.Duration, p *path, s *Sample[K]) {
	p.limited = p.limited && p.full && !s.starts()
	if p.meter.add(now, p.bytes, s.busy()) {
		p.rate.add(now, p.meter.last)
		switch {
		case p.limited && s.Saturated():
			p.settled.add(now, p.meter.last)
			p.whole.add(now, p.meter.last*float64(max(1, s.Sharers)))
			p.queued = now + recent
			if p.learned = true; p.verdict.fails() {
				p.verdict, p.times, p.until = Unused, 0, 0
			}
		case !p.measured(now):
			p.learned = true // its round-trip time
		}
	}
	if p.meter.since == now {
		p.limited = s.Saturated() && !s.starts()
	}
}

// measureDelay updates the delay of a path, and the rate that it is computed with.
func (c *Connection[K]) measureDelay(now time.Duration, p *path, s *Sample[K]) {
	rtt := s.SRTT
	if (s.Saturated() || now < p.queued) && s.MinRTT > 0 {
		rtt = s.MinRTT // without the queue of this connection
	}
	if s.busy() {
		p.burstRate = p.dispersion(s.SRTT - s.MinRTT)
	}
	// A congestion window that does not limit the path says little: it may be larger than what was
	// ever in flight, or small after a loss. Nor does that of a path that was measured: after a pause
	// it is the window that filled the queue, while the round-trip time has no queue yet.
	rate := max(p.known(now), p.settled.value(), 1)
	switch {
	case p.settled.value() > 0:
	case s.Saturated():
		rate = max(rate, estimate(s))
	case p == c.first && p.known(now) > 0 && p.burstRate > 0:
		rate = max(rate, p.burstRate)
	default:
		rate = max(rate, p.burstRate, estimate(s))
	}
	if p.remembers(now) {
		rate = p.known(now)
		if rtt == 0 { // it has just joined
			rtt = p.past.usual()
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
		p.assumedDelay = delay + sendBurst/max(rate, expected(c.first.capacity))
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
	if p.verdict == Stalled {
		p.rtt = p.past.RTT // what is left of its queue is in the next one
	}
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
	past := Past{Rate: p.whole.value(), MinRTT: p.minRTT, RTT: p.rtt, Verdict: p.verdict, Rests: p.times, Rest: max(p.until-now, 0)}
	if p.remembers(now) {
		past.Rate = p.past.Rate
	}
	if past.Burst = p.past.Burst; p.used {
		past.Burst = p.burstRate
	}
	return past, true
}

// expected returns the rate in bytes/s that is expected of a path that has carried nothing, beside
// one with a rate: the same, as paths to one client often have their bottleneck in common, but of a
// path beside a fast one only halfway from a typical path to that, on a logarithmic scale.
func expected(beside float64) float64 { return min(beside, math.Sqrt(beside*typicalRate)) }

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
