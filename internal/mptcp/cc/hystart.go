package cc

import "time"

// The parameters of HyStart, as in Linux (net/ipv4/tcp_cubic.c).
const (
	// hystartLow is the window from which on slow start may be left, in segments.
	hystartLow = 16
	// hystartGap is the longest time between two acknowledgments of a train.
	hystartGap = 2 * time.Millisecond
	// hystartSamples is how many round-trip times of a round are taken before their minimum counts.
	hystartSamples = 8
	// The minimum of a round may be longer than that of all by 1/hystartShare, and hystartLeast to
	// hystartMost.
	hystartShare = 8
	hystartLeast = 4 * time.Millisecond
	hystartMost  = 16 * time.Millisecond
)

// hystartState is the shortest round-trip time so far, and what HyStart keeps of a round, which
// ends when what was sent before it is delivered.
type hystartState struct {
	shortest time.Duration
	found    bool
	begun    bool
	end      uint64        // of the round, as Delivered
	since    time.Duration // its start
	train    time.Duration // the last acknowledgment of its train
	least    time.Duration // round-trip time
	taken    int           // samples
}

// hystart leaves slow start before the queue overflows (Ha and Rhee, Taming the elephants: new TCP
// slow start, 2011, as in Linux): when the acknowledgments of a round come in a train that is half
// a round-trip time long, or the shortest round-trip time of the round is longer than the shortest
// of all.
func (f *Subflow) hystart(a Ack) {
	h := &f.leaving
	if !f.HyStart || h.found || f.Cwnd >= f.Ssthresh || a.Latest <= 0 {
		return
	}
	if h.shortest == 0 || a.Latest < h.shortest {
		h.shortest = a.Latest
	}
	if !h.begun || f.Delivered >= h.end {
		*h = hystartState{shortest: h.shortest, begun: true, end: f.Delivered + uint64(f.InFlight), since: a.Now, train: a.Now, least: a.Latest}
	}
	if f.Cwnd < hystartLow {
		return
	}
	if a.Now-h.train <= hystartGap {
		h.train = a.Now
		h.found = a.Now-h.since > h.shortest/2
	}
	h.least = min(h.least, a.Latest)
	if h.taken < hystartSamples {
		h.taken++
	} else if h.least > h.shortest+min(max(h.shortest/hystartShare, hystartLeast), hystartMost) {
		h.found = true
	}
	if h.found {
		f.Ssthresh = f.Cwnd
	}
}
