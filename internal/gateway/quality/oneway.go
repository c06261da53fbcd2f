package quality

import "time"

// Clock turns the time stamps of a sender into differences of one-way delay. Its own clock and the
// sender's need not be synchronized: the difference of the first packet is 0, so values of
// different paths from the same sender can be compared, but are not delays. The zero value has seen
// no packet.
type Clock struct {
	first uint32
	begun bool
}

// Difference returns by how much the delay of a packet differs from that of the first one. sent is
// in microseconds of the sender's clock and wraps around; received is on the own clock. Differences
// of up to 35 minutes are exact.
func (c *Clock) Difference(sent uint32, received time.Duration) time.Duration {
	transit := uint32(received/time.Microsecond) - sent
	if !c.begun {
		c.first, c.begun = transit, true
	}
	return time.Duration(int32(transit-c.first)) * time.Microsecond
}

const (
	// spreadWindow is the window of the spread, which has to follow jitter faster.
	spreadWindow = 2 * time.Second
	// minStandingWindow and standingPackets bound the window of the standing queue.
	minStandingWindow = 75 * time.Millisecond
	standingPackets   = 24
)

// The constants of the estimates, which only Constants lets an experiment change.
var (
	// baseWindow is the window of the minimum: what is older than two windows is forgotten, so
	// that the base follows a change of route, and less than one window is never all, so that a
	// queue which empties every few seconds does not count (RFC 6817, section 4.2, keeps minutes;
	// 10 s is also that of BBR's minimum RTT).
	baseWindow = 10 * time.Second
	// standingWindow is that of the standing queue, or as long as standingPackets take, if that is
	// shorter, but minStandingWindow: the smallest delay of few packets is not that of the path.
	standingWindow = 250 * time.Millisecond
	// slot is the time that packets are averaged over before they are one sample. It makes the
	// estimates independent of the packet rate.
	slot = 25 * time.Millisecond
	// memory is the time constant of the averages over slots.
	memory = 200 * time.Millisecond
	// meanJitters is by how many times the jitter the mean delay is longer than the least recent one,
	// at most: what is more was a queue that is gone.
	meanJitters time.Duration = 3
	// few is the number of packets from which on a slot counts for half: on a path with jitter, the
	// single probe of an idle one is hardly meaningful.
	few time.Duration = 7
)

// OneWay is what is known of the delay of one direction of a path. Base and Delay are in the time
// of a Clock.
type OneWay struct {
	// Base is the minimum of the differences over the last 10 to 20 s: the path with empty queues.
	Base time.Duration
	// Delay is Base plus the mean of the residuals: when a packet is expected, were it sent into
	// an empty virtual queue. It is what delay queueing needs (the minimum would make a jittery
	// path look short).
	Delay time.Duration
	// Jitter is the mean difference of the residuals of successive packets: J of RFC 3550,
	// section 6.4.1, averaged over time instead of over packets.
	Jitter time.Duration
	// Spread is the largest minus the smallest residual of the last 2 to 4 s.
	Spread time.Duration
	// Standing is the smallest residual of the last 75 to 500 ms, depending on the number of
	// packets: what no packet was without, so that it is not jitter but a queue elsewhere, as in a
	// modem.
	Standing time.Duration
}

// OneWayEstimator estimates the one-way delay of a path from the time stamps of all its packets.
// The residual of a packet is what remains of its difference after its expected wait in the
// sender's queue and the base have been subtracted: without the wait, one would measure the bursts
// of the own sender. The base comes from the plain differences, because a virtual queue longer than
// the real one would make residuals ever smaller. The zero value has no samples.
type OneWayEstimator struct {
	base      window
	low, high window
	recent    window
	arrived   int           // in the current window of recent
	last      time.Duration // difference minus wait of the last packet
	begun     bool
	// difference is that of the last packet.
	difference time.Duration

	// The current slot, and the averages of the earlier ones.
	since         time.Duration
	delays, steps time.Duration // sums
	packets       time.Duration // their number
	previous      time.Duration // end of the previous slot
	mean, jitter  time.Duration
	slots         int // that were averaged
}

// clockLeap is the change of a delay from one packet to the next from which on it is rather one of
// the clocks. A path that was interrupted for so long is not what it was either.
const clockLeap = 3 * time.Second

// Leaps reports whether the difference of a packet is so far from that of the packet before that a
// clock was changed: all estimates with the Clock have to begin again.
func (e *OneWayEstimator) Leaps(difference time.Duration) bool {
	step := difference - e.difference
	return e.begun && max(step, -step) >= clockLeap
}

// Update adds a packet that arrived at the time now: its difference by Clock, and its expected
// wait.
func (e *OneWayEstimator) Update(now, difference, wait time.Duration) {
	e.difference = difference
	e.base.update(now, baseWindow, difference)
	residual := difference - wait
	e.low.update(now, spreadWindow, residual)
	e.high.update(now, spreadWindow, -residual)
	standing := standingWindow
	if e.arrived++; e.arrived > standingPackets {
		standing = minStandingWindow
	}
	if e.recent.update(now, standing, residual) {
		e.arrived = 1
	}
	var step time.Duration
	if e.begun {
		step = max(residual-e.last, e.last-residual)
	} else {
		e.begun, e.since, e.previous = true, now, now
	}
	e.last = residual
	if now-e.since >= slot && e.packets > 0 {
		e.average(now)
	}
	e.delays += residual
	e.steps += step
	e.packets++
}

// average ends the current slot.
func (e *OneWayEstimator) average(now time.Duration) {
	delay, step := e.delays/e.packets, e.steps/e.packets
	// The share of the slot grows with the time that it covers and with its packets. The first
	// slots all have the same.
	share := min(max(float64(now-e.previous)/float64(memory), 1./8), 1./2, float64(e.packets)/float64(e.packets+few))
	e.slots++
	share = max(share, 1/float64(e.slots))
	e.mean += time.Duration(float64(delay-e.mean) * share)
	e.jitter += time.Duration(float64(step-e.jitter) * share)
	e.delays, e.steps, e.packets = 0, 0, 0
	e.since, e.previous = now, now
}

// Value returns the estimate, and false before the first packet.
func (e *OneWayEstimator) Value() (OneWay, bool) {
	if !e.begun {
		return OneWay{}, false
	}
	base := e.base.value()
	mean, jitter := e.mean, e.jitter
	if e.slots == 0 {
		mean, jitter = e.delays/e.packets, e.steps/e.packets
	}
	standing := max(0, e.recent.value()-base)
	return OneWay{
		Base: base, Delay: max(base, min(mean, base+standing+meanJitters*jitter)), Jitter: jitter,
		Spread: -e.high.value() - e.low.value(), Standing: standing,
	}, true
}

// window is the minimum over the current and the previous window of time.
type window struct {
	since             time.Duration
	current, previous time.Duration
	begun             bool
}

// update adds a value, and reports whether a window begins with it.
func (w *window) update(now, length, v time.Duration) bool {
	switch gone := now - w.since; {
	case !w.begun || gone >= 2*length:
		*w = window{since: now, current: v, previous: v, begun: true}
	case gone >= length:
		w.since, w.previous, w.current = now, w.current, v
	default:
		w.current = min(w.current, v)
		return false
	}
	return true
}

func (w *window) value() time.Duration { return min(w.current, w.previous) }
