package cc

import "time"

// Bounds on the number of segments in the queues of the path: minimum, maximum, and maximum in slow
// start (Linux' tcp_vegas; Brakmo and Peterson, TCP Vegas: End to End Congestion Avoidance on a
// Global Internet, 1995, sections 3.2 and 3.3).
const (
	vegasAlpha = 2
	vegasBeta  = 4
	vegasGamma = 1
	// vegasSamples is the minimum number of RTT samples of a round. With fewer the window grows
	// as in NewReno: two samples may both be of delayed acknowledgements.
	vegasSamples = 3
)

// vegas is TCP Vegas on each subflow separately, in the form of Linux' tcp_vegas: the rates are
// those at which acknowledgments arrive, the window grows in every round trip of slow start,
// and losses are NewReno's. Once in a round trip it compares what the window would bring without
// queues:
//
//	diff = cwnd (rtt - base) / base
//
// base is the minimum round-trip time (BaseRTT), rtt the minimum of this round. A round ends with
// the first acknowledgement of a segment that was sent after it began, that is at Now - RTT. Linux
// compares with diff's whole part.
type vegas struct{}

type vegasState struct {
	started bool // a round has begun
	round   time.Duration
	least   time.Duration
	samples int
}

func (*vegas) Acked(s []Subflow, i int, a Ack) {
	f := &s[i]
	rtt, ok := f.endRound(s, i, a)
	if !ok || f.endSlowStart(rtt, a) {
		return
	}
	base := float64(f.MinRTT)
	switch diff := max(f.Cwnd*(float64(rtt)-base)/base, 0); {
	case diff > vegasBeta:
		f.shrink()
	case diff < vegasAlpha && a.Limited:
		f.Cwnd++
	}
	f.Cwnd = min(max(f.Cwnd, minThreshold), maxWindow)
}

// endRound counts an acknowledgment, and returns the minimum round-trip time of the round that it
// ends. Otherwise only slow start continues; a round with few samples is NewReno's.
func (f *Subflow) endRound(s []Subflow, i int, a Ack) (rtt time.Duration, ok bool) {
	if !f.started {
		f.beginRound(a.Now)
	}
	if a.RTT > 0 {
		if f.samples == 0 || a.RTT < f.least {
			f.least = a.RTT
		}
		f.samples++
	}
	if a.RTT <= 0 || a.Now-a.RTT < f.round {
		if a.Limited {
			f.slowStart(a.Segments)
		}
		return 0, false
	}
	enough := f.samples >= vegasSamples
	rtt = f.least
	f.beginRound(a.Now)
	if !enough || f.MinRTT <= 0 {
		new(newReno).Acked(s, i, a)
		return 0, false
	}
	return rtt, true
}

// endSlowStart handles the end of a round in slow start, and reports whether the subflow was in it.
// Slow start ends when more than vegasGamma segments are in queues.
func (f *Subflow) endSlowStart(rtt time.Duration, a Ack) bool {
	if f.Cwnd >= f.Ssthresh {
		return false
	}
	base, now := float64(f.MinRTT), float64(rtt)
	if f.Cwnd*(now-base)/base > vegasGamma {
		// The window that brings the actual rate without queues; one more as in Linux.
		f.Cwnd = min(f.Cwnd, f.Cwnd*base/now+1)
		f.Ssthresh = min(f.Ssthresh, f.Cwnd)
	} else if a.Limited {
		f.slowStart(a.Segments)
	}
	f.Cwnd = min(max(f.Cwnd, minThreshold), maxWindow)
	return true
}

// shrink takes a segment from the window, in congestion avoidance, and keeps it out of slow start.
func (f *Subflow) shrink() {
	f.Cwnd = max(f.Cwnd-1, minThreshold)
	f.Ssthresh = min(f.Ssthresh, f.Cwnd)
}

func (v *vegasState) beginRound(now time.Duration) {
	v.started, v.round, v.samples = true, now, 0
}

// Lost ends the round: its samples are outdated after recovery.
func (*vegas) Lost(s []Subflow, i int, now time.Duration) {
	s[i].started = false
	new(newReno).Lost(s, i, now)
}

func (*vegas) TimedOut(s []Subflow, i int, now time.Duration) {
	s[i].started = false
	new(newReno).TimedOut(s, i, now)
}
