package cc

import (
	"math"
	"time"
)

// olia is the opportunistic linked increases algorithm (Khalili et al., MPTCP is not
// Pareto-Optimal, CoNEXT 2012; draft-khalili-mptcp-congestion-control-05, section 3). For each
// segment in congestion avoidance:
//
//	w_i += w_i / rtt_i^2 / (sum w / rtt)^2 + alpha_i / w_i
//
// alpha moves traffic from the largest windows M to the presumably best paths B: B has the largest
// l / rtt^2, where l is the larger of what was delivered between the last two losses and since the
// last one. With n subflows:
//
//	i in B but not in M:                alpha_i =  1 / n / |B \ M|
//	i in M, and B \ M is not empty:     alpha_i = -1 / n / |M|
//	otherwise:                          alpha_i =  0
//
// Losses are TCP's. Windows are compared in whole segments, as Linux did: fractions would make one
// of equals the largest.
//
// On a good path that is not the largest the sum may be up to 1 + 1/n times NewReno's increase;
// that is what its authors chose.
type olia struct{}

// oliaState is Subflow.Delivered at the last loss and at the one before.
type oliaState struct {
	loss, previous uint64
}

func (*olia) Acked(s []Subflow, i int, a Ack) {
	f := &s[i]
	if !a.Limited || f.slowStart(a.Segments) {
		return
	}
	each := 1 / f.Cwnd
	if all := look(s, i); all.flows > 1 {
		each = all.rate/(float64(f.SRTT)*all.sum*all.sum) + alpha(s, i, all.flows)/f.Cwnd
	}
	f.grow(a.Segments, each)
}

// alpha returns OLIA's alpha of subflow i; flows is the number of subflows that take part.
func alpha(s []Subflow, i, flows int) float64 {
	largest, best := 0.0, -1.0
	for j := range s {
		if f := &s[j]; f.part() {
			largest = max(largest, math.Floor(f.Cwnd))
			best = max(best, f.goodness())
		}
	}
	large, good := 0, 0 // |M| and |B \ M|
	for j := range s {
		switch f := &s[j]; {
		case !f.part():
		case math.Floor(f.Cwnd) == largest:
			large++
		case f.goodness() == best:
			good++
		}
	}
	switch f := &s[i]; {
	case good == 0:
		return 0
	case math.Floor(f.Cwnd) == largest:
		return -1 / float64(flows*large)
	case f.goodness() == best:
		return 1 / float64(flows*good)
	}
	return 0
}

// goodness is l / rtt^2: the square of the rate that a TCP would have on the path, but for a
// constant.
func (f *Subflow) goodness() float64 {
	rtt := float64(f.SRTT)
	return float64(max(f.Delivered-f.loss, f.loss-f.previous)) / (rtt * rtt)
}

// noteLoss begins a new interval between losses, unless nothing was delivered in the present one.
func (f *Subflow) noteLoss() {
	if f.Delivered != f.loss {
		f.previous, f.loss = f.loss, f.Delivered
	}
}

func (*olia) Lost(s []Subflow, i int, _ time.Duration) {
	all := look(s, i)
	s[i].noteLoss()
	s[i].lost(0.5, all.least())
}

func (*olia) TimedOut(s []Subflow, i int, _ time.Duration) {
	all := look(s, i)
	s[i].noteLoss()
	s[i].timedOut(0.5, all.least())
}
