package cc

import "time"

const (
	// wvegasTotal is how many segments all subflows together keep in queues, wvegasLeast the
	// minimum of one.
	wvegasTotal = 10
	wvegasLeast = 2
)

// wvegas is weighted Vegas (Cao, Xu and Fu, Delay-based Congestion Control for Multipath TCP, ICNP
// 2012): Vegas whose bound on the segments in queues is the subflow's share of the rate of the
// connection, so that traffic moves to the paths whose queues are short. Once in a round trip:
//
//	diff_i  = cwnd_i (rtt_i - base_i) / rtt_i
//	alpha_i = max(10 x_i / sum x, 2) when diff_i has reached it, with x_i = cwnd_i / srtt_i
//
// and the window grows by a segment while diff is below alpha and shrinks by one above it. When the
// queueing delay is twice its minimum, the window becomes cwnd base / 2 rtt: queues empty, and base
// can be measured again. Slow start, rounds and losses are those of vegas.
type wvegas struct{}

type wvegasState struct {
	target float64       // alpha
	queue  time.Duration // minimum queueing delay since the last time that queues were drained, or 0
}

func (*wvegas) Acked(s []Subflow, i int, a Ack) {
	f := &s[i]
	rtt, ok := f.endRound(s, i, a)
	if !ok || f.endSlowStart(rtt, a) {
		return
	}
	all := look(s, i)
	f.follow(rtt, all.share(), a.Limited)
}

// share returns the share of the rate, 1 of a subflow alone.
func (all *shares) share() float64 {
	if all.sum == 0 {
		return 1
	}
	return all.rate / all.sum
}

// follow changes the window once per round of congestion avoidance.
func (f *Subflow) follow(rtt time.Duration, share float64, limited bool) {
	diff := max(f.Cwnd*float64(rtt-f.MinRTT)/float64(rtt), 0)
	if diff >= f.target {
		f.target = max(wvegasTotal*share, wvegasLeast)
	}
	switch {
	case diff > f.target:
		f.shrink()
	case diff < f.target && limited:
		f.Cwnd++
	}
	delay := rtt - f.MinRTT
	if f.queue == 0 || delay < f.queue {
		f.queue = delay
	}
	if delay >= 2*f.queue && delay > 0 {
		f.Cwnd *= float64(f.MinRTT) / (2 * float64(rtt))
		f.queue = 0
	}
	f.Cwnd = min(max(f.Cwnd, minThreshold), maxWindow)
}

func (*wvegas) Lost(s []Subflow, i int, now time.Duration)     { new(vegas).Lost(s, i, now) }
func (*wvegas) TimedOut(s []Subflow, i int, now time.Duration) { new(vegas).TimedOut(s, i, now) }
