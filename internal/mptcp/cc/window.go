package cc

import (
	"math"
	"math/bits"
	"time"
)

// slowStart grows the window in slow start, and reports whether the subflow is in it. Appropriate
// byte counting (RFC 3465) with a limit L of two segments for an acknowledgement, and one after a
// timeout (sections 2.3 and 2.4): the acknowledgement of a whole window that a retransmission
// completes says nothing about the rate of the path.
func (f *Subflow) slowStart(segments int) bool {
	if f.Cwnd >= f.Ssthresh {
		f.afterTimeout = false
		return false
	}
	limit := 2
	if f.afterTimeout {
		limit = 1
	}
	f.Cwnd = min(f.Cwnd+float64(min(segments, limit)), f.Ssthresh, maxWindow)
	return true
}

// grow adds each for every segment, for one window of segments at most: congestion avoidance is per
// round trip (RFC 3465, section 2.1). The increase may be negative (OLIA).
func (f *Subflow) grow(segments int, each float64) {
	f.Cwnd = min(max(f.Cwnd+min(float64(segments), f.Cwnd)*each, lossWindow), maxWindow)
}

// threshold returns ssthresh after a loss: keep times FlightSize (RFC 5681, equation 4, where keep
// is one half), but at least least. FlightSize is no more than the window: what limited transmit
// added (RFC 3042) is not counted.
func (f *Subflow) threshold(keep, least float64) float64 {
	if f.MinThreshold > 0 {
		least = f.MinThreshold
	}
	return max(min(f.InFlight, f.Cwnd)*keep, least)
}

// lost applies the multiplicative decrease.
func (f *Subflow) lost(keep, least float64) {
	f.Ssthresh = f.threshold(keep, least)
	f.Cwnd = f.Ssthresh
}

// timedOut restarts slow start (RFC 5681, section 3.1).
func (f *Subflow) timedOut(keep, least float64) {
	f.Ssthresh = f.threshold(keep, least)
	f.Cwnd = lossWindow
	f.afterTimeout = true
}

// Undo restores the window and the threshold from before a reduction that proved spurious (RFC
// 4015, section 3.2; Linux: tcp_reno_undo_cwnd): neither gets smaller by it. What else controls
// keep stays, as in Linux.
func (f *Subflow) Undo(cwnd, ssthresh float64) {
	f.Cwnd, f.Ssthresh = max(f.Cwnd, cwnd), max(f.Ssthresh, ssthresh)
	f.afterTimeout = false
}

// The bounds of Lowat in bytes, and the time whose data it is.
const (
	firstLowat = 16 << 10
	leastLowat = 4 << 10
	mostLowat  = 1 << 30
	lowatTime  = 20 * time.Millisecond
	// fastLowat of data in that time is 400 Mbit/s.
	fastLowat = 1_000_000
)

// Fast reports whether a subflow of MPTCP is so fast that what the scheduler gives it at a time is
// sent within a millisecond or so. Then Lowat bounds nothing, and the send buffer is Linux' own: a
// larger one may all be waiting for a receiver that is slower. An SRTT of 0 is unknown.
func Fast(cwnd float64, segment int, srtt time.Duration) bool {
	return srtt > 0 && sends(cwnd, segment, srtt, lowatTime) > fastLowat
}

// sends returns the bytes that a subflow sends in a time.
func sends(cwnd float64, segment int, srtt, in time.Duration) float64 {
	return math.Floor(math.Floor(cwnd) * float64(segment) * float64(in) / float64(srtt))
}

// Lowat returns how many bytes a subflow of MPTCP may have in its send buffer unsent, so that the
// scheduler, which cannot take them back, gives a slow subflow no more than it sends in a short
// time (TCP_NOTSENT_LOWAT): 20 ms of its rate, and of the lead (see Lead) in addition. An SRTT of 0
// is unknown.
func Lowat(cwnd float64, segment int, srtt, lead time.Duration) int {
	if srtt <= 0 {
		return firstLowat
	}
	if Fast(cwnd, segment, srtt) {
		return mostLowat
	}
	return int(min(max(sends(cwnd, segment, srtt, lowatTime+lead), leastLowat), mostLowat))
}

// Lead returns how much longer the round-trip time of another subflow is without a queue, whose
// rate is worth it: for so long data of this one may wait in its send buffer. The scheduler gives
// data to the subflow that needs the least time for what it has, and to none if that one accepts no
// more, so that a long path would be idle for most of a round trip. While its window grows, the
// scheduler's mean of its rate is a third of it; in slow start its rate is not known, and grows
// only if it is given enough.
func Lead(rate float64, srtt time.Duration, otherRate float64, otherMinRTT time.Duration, slowStart bool) time.Duration {
	if otherRate < rate/leadRate && !slowStart {
		return 0
	}
	return min(max(leadTrips*otherMinRTT-srtt, 0), mostLead)
}

// leadTrips is for how many round trips of the other subflow there is data, leadRate the part of a
// subflow's rate that its rate must be at least, and mostLead bounds the lead.
const (
	leadTrips = 3
	leadRate  = 16
	mostLead  = time.Second
)

// LowatChanged reports whether a bound differs from the present one by more than a quarter: smaller
// changes are not worth a system call.
func LowatChanged(now, next int) bool { return next > now+now/4 || next < now-now/4 }

// The sizes of a subflow's send buffer in windows: Linux' own, and that of subflows whose unsent
// data is bounded. While a slow subflow carries the oldest data, the fast one must hold what it
// sends meanwhile.
const (
	SendBuffer      = 2
	SendBufferLowat = 6
	leastBuffer     = 10 // TCP_INIT_CWND
)

// Buffer returns the size of the send buffer of a subflow in bytes of the kernel's memory, where
// each segment is in a buffer of its own (tcp_sndbuf_expand).
func Buffer(windows int, cwnd float64, segment int) int {
	// MAX_TCP_HEADER and struct skb_shared_info, which is rounded, and struct sk_buff.
	const head, shared, body = 256, 320, 256
	return windows * max(int(cwnd), leastBuffer) * (1<<bits.Len(uint(segment+head+shared-1)) + body)
}
