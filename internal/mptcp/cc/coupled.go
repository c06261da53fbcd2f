package cc

import "time"

// shares compares a subflow with the others of its connection. Rates are cwnd / SRTT in segments
// per nanosecond; only their ratios are used.
type shares struct {
	flows    int     // subflows that take part in the coupling
	rate     float64 // rate of the subflow itself
	sum      float64 // sum of all rates
	fastest  float64 // the largest rate
	steepest float64 // the largest window / rtt^2
}

// part reports whether the subflow takes part in the coupling: it is established and has an SRTT.
func (f *Subflow) part() bool { return f.SRTT > 0 && f.Cwnd > 0 }

// look returns the shares of subflow i. If it takes no part in the coupling, flows is 0.
func look(s []Subflow, i int) shares {
	var all shares
	if !s[i].part() {
		return all
	}
	for j := range s {
		f := &s[j]
		if !f.part() {
			continue
		}
		perTime := 1 / float64(f.SRTT)
		rate := f.Cwnd * perTime
		if j == i {
			all.rate = rate
		}
		all.flows++
		all.sum += rate
		if rate > all.fastest {
			all.fastest = rate
		}
		if steep := rate * perTime; steep > all.steepest {
			all.steepest = steep
		}
	}
	return all
}

// least returns the minimum slow start threshold after a loss. One of several subflows reduces to
// a segment, so that no more than probing is left on a congested path
// (draft-khalili-mptcp-congestion-control-05 and draft-walid-mptcp-congestion-control-04).
func (all *shares) least() float64 {
	if all.flows > 1 {
		return lossWindow
	}
	return minThreshold
}

// lia is the coupled control of RFC 6356: together the subflows are as aggressive as one TCP on the
// best of their paths. For each segment in congestion avoidance (section 3):
//
//	cwnd_i += min(alpha / cwnd_total, 1 / cwnd_i)                                       (equation 1)
//	alpha   = cwnd_total max(cwnd_i / rtt_i^2) / (sum cwnd_i / rtt_i)^2                 (equation 2)
//
// Losses are TCP's. alpha is computed at each acknowledgement; section 4.1 allows once in a round
// trip, and scales it by 512 for integers.
type lia struct{}

func (*lia) Acked(s []Subflow, i int, a Ack) {
	f := &s[i]
	if !a.Limited || f.slowStart(a.Segments) {
		return
	}
	each := 1 / f.Cwnd
	if all := look(s, i); all.flows > 1 {
		each = min(each, all.alpha())
	}
	f.grow(a.Segments, each)
}

// alpha is equation 2 without cwnd_total, which equation 1 divides by again.
func (all *shares) alpha() float64 { return all.steepest / (all.sum * all.sum) }

func (*lia) Lost(s []Subflow, i int, now time.Duration)     { new(newReno).Lost(s, i, now) }
func (*lia) TimedOut(s []Subflow, i int, now time.Duration) { new(newReno).TimedOut(s, i, now) }

// balia is the balanced linked adaptation (Peng et al., Multipath TCP: Analysis, Design, and
// Implementation, IEEE/ACM Transactions on Networking 2016;
// draft-walid-mptcp-congestion-control-04). With x_i = cwnd_i / rtt_i and alpha_i = max x / x_i,
// for each segment in congestion avoidance and on a loss:
//
//	cwnd_i += x_i / (rtt_i (sum x)^2) (1 + alpha_i) / 2 (4 + alpha_i) / 5
//	cwnd_i -= cwnd_i / 2 min(alpha_i, 3/2)
type balia struct{}

func (*balia) Acked(s []Subflow, i int, a Ack) {
	f := &s[i]
	if !a.Limited || f.slowStart(a.Segments) {
		return
	}
	each := 1 / f.Cwnd
	if all := look(s, i); all.flows > 1 {
		// In terms of rates, because alpha could overflow.
		each = (all.rate + all.fastest) * (4*all.rate + all.fastest) / (10 * all.sum * all.sum * f.Cwnd)
	}
	f.grow(a.Segments, each)
}

func (*balia) Lost(s []Subflow, i int, _ time.Duration) {
	all := look(s, i)
	s[i].lost(all.keep(), all.least())
}

func (*balia) TimedOut(s []Subflow, i int, _ time.Duration) {
	all := look(s, i)
	s[i].timedOut(all.keep(), all.least())
}

// keep returns the factor of balia's decrease: one half on the fastest path, down to one quarter on
// slow ones.
func (all *shares) keep() float64 {
	if all.flows < 2 {
		return 0.5
	}
	return 1 - min(all.fastest/all.rate, 1.5)/2
}
