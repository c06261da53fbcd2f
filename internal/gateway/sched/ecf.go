package sched

// ecfBeta is the default of Options.Beta, as in Lim et al.
const ecfBeta = 0.25

// ecf is earliest completion first (Lim et al., ECF: An MPTCP Path Scheduler to Manage
// Heterogeneous Paths, CoNEXT 2017, algorithm 1). When the fastest path F is full, it waits for F
// rather than use a slower path S if the k queued bytes are then completed earlier:
//
//	n = 1 + k / CWND_F,  delta = max(sigma_F, sigma_S)
//	n RTT_F < (1 + waiting beta) (RTT_S + delta)   and   k / CWND_S RTT_S >= 2 RTT_F + delta
type ecf struct {
	beta    float64
	waiting bool
}

func newECF(o Options) Scheduler {
	if o.Beta == 0 {
		o.Beta = ecfBeta
	}
	return &ecf{beta: o.Beta}
}

func (e *ecf) Next(paths []Path, s Segment) Set {
	fast, open := pair(paths, s.Size)
	if open < 0 {
		return 0
	}
	if fast == open {
		return One(open)
	}
	f, p := &paths[fast], &paths[open]
	k := float64(max(s.Queued, s.Size))
	rttF, rttS := float64(f.SRTT), float64(p.SRTT)
	delta := float64(max(f.RTTVAR, p.RTTVAR))
	hesitation := 1.0
	if e.waiting {
		hesitation += e.beta
	}
	if (1+k/float64(f.Cwnd))*rttF >= hesitation*(rttS+delta) {
		e.waiting = false
		return One(open)
	}
	if k/float64(p.Cwnd)*rttS < 2*rttF+delta {
		return One(open)
	}
	e.waiting = true
	return 0
}
