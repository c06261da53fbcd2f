package cc

// slowStart grows the window in slow start and says whether it is in it. It counts what was
// delivered (RFC 3465), of one acknowledgement two segments at most, and one after a timeout
// (sections 2.3 and 2.4: L): an acknowledgement of a whole window that a retransmission completes
// says nothing about the rate of the path.
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

// grow adds that much for each segment, for one window's worth of segments at most: congestion
// avoidance is by round trip (RFC 3465, section 2.1), and an acknowledgement tells of one at most.
// What it adds may be negative (OLIA).
func (f *Subflow) grow(segments int, each float64) {
	f.Cwnd = min(max(f.Cwnd+min(float64(segments), f.Cwnd)*each, lossWindow), maxWindow)
}

// threshold is what a loss leaves: keep times what was in flight (RFC 5681, equation 4, where keep
// is one half), and least at least. What was in flight is the window, or less when the sender had
// less to send; what limited transmit added to it (RFC 3042) is not counted.
func (f *Subflow) threshold(keep, least float64) float64 {
	return max(min(f.InFlight, f.Cwnd)*keep, least)
}

// lost is multiplicative decrease.
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

// Undo restores the window and the threshold from before a reduction that proved spurious (RFC 4015,
// section 3.2; Linux: tcp_reno_undo_cwnd): neither gets smaller by it. What else controls keep stays,
// as in Linux.
func (f *Subflow) Undo(cwnd, ssthresh float64) {
	f.Cwnd, f.Ssthresh = max(f.Cwnd, cwnd), max(f.Ssthresh, ssthresh)
	f.afterTimeout = false
}
