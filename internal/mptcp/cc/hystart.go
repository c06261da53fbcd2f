package cc

import "time"

// The parameters of HyStart, as in Linux (net/ipv4/tcp_cubic.c).
const (
	// hystartLow is the window from which on slow start may be left, in segments.
	hystartLow = 16
	// hystartGap is the longest time between two acknowledgments of a train.
	hystartGap = 2 * time.Millisecond
	// hystartBurst is how long a train may be in addition because of segmentation offload: at the
	// rates of slow start below 2 Gbit/s (hystart_ack_delay).
	hystartBurst = time.Millisecond
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

// Sampled implements Sampler. It leaves slow start before the queue overflows (Ha and Rhee, Taming
// the elephants: new TCP slow start, 2011, as in Linux): when the acknowledgments of a round come in a
// train that is half a round-trip time long, a whole one if it is paced, or the shortest round-trip
// time of the round is longer than the shortest of all.
func (*cubic) Sampled(s []Subflow, i int, now, rtt time.Duration) {
	f := &s[i]
	h := &f.leaving
	if f.begun && int64(now/jiffy)-f.epoch < int64(time.Second/jiffy) {
		return // samples right after a recovery do not count
	}
	if h.shortest == 0 || rtt < h.shortest {
		h.shortest = rtt
	}
	if !f.HyStart || h.found || f.Cwnd >= f.Ssthresh {
		return
	}
	if !h.begun || f.Delivered > h.end {
		*h = hystartState{shortest: h.shortest, begun: true, end: f.Delivered + uint64(f.InFlight), since: now, train: now, least: rtt}
	}
	if f.Cwnd < hystartLow {
		return
	}
	if now-h.train <= hystartGap {
		h.train = now
		most := h.shortest + hystartBurst
		if !f.Paced {
			most /= 2
		}
		h.found = now-h.since > most
	}
	h.least = min(h.least, rtt)
	if h.taken < hystartSamples {
		h.taken++
	} else if h.least > h.shortest+min(max(h.shortest/hystartShare, hystartLeast), hystartMost) {
		h.found = true
	}
	if h.found {
		f.Ssthresh = f.Cwnd
	}
}
