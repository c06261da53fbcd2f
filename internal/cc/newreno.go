package cc

import "time"

// newReno is TCP's standard congestion control (RFC 5681, RFC 6582), on each subflow by itself.
type newReno struct{}

func (newReno) Acked(s []Subflow, i int, a Ack) {
	f := &s[i]
	if !a.Limited || f.slowStart(a.Segments) {
		return
	}
	f.grow(a.Segments, 1/f.Cwnd)
}

func (newReno) Lost(s []Subflow, i int, _ time.Duration) { s[i].halve() }

func (newReno) TimedOut(s []Subflow, i int, _ time.Duration) { s[i].timedOut() }

// slowStart grows the window in slow start and says whether it is in it. It counts bytes (RFC 3465), of one acknowledgement two
// segments at most, and one after a timeout (section 2.3: L): an acknowledgement of a whole window that a retransmission
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
	f.Cwnd = min(f.Cwnd+float64(min(segments, limit)), f.Ssthresh)
	return true
}

// grow adds that much for each segment, for one window's worth of segments at most: congestion avoidance is by round trip
// (RFC 3465, section 2.1), and an acknowledgement tells of one at most.
func (f *Subflow) grow(segments int, each float64) {
	f.Cwnd += min(float64(segments), f.Cwnd) * each
}

// halve is multiplicative decrease (RFC 5681, equation 4).
func (f *Subflow) halve() {
	f.Ssthresh = f.half()
	f.Cwnd = f.Ssthresh
}

// half is half of what was in flight, which is the window unless the sender had less to send. What limited transmit added (RFC
// 3042) is not counted.
func (f *Subflow) half() float64 { return max(min(f.InFlight, f.Cwnd)/2, minThreshold) }

// timedOut begins slow start anew (RFC 5681, section 3.1).
func (f *Subflow) timedOut() {
	f.Ssthresh = f.half()
	f.Cwnd = lossWindow
	f.afterTimeout = true
}
