package sched

import "time"

// Bounds and steps of BLEST's correction factor lambda, as in the authors' implementation for
// Linux.
const (
	blestStart = 1.2
	blestMin   = 1.0
	blestMax   = 1.3
	blestGood  = 0.01
	blestBad   = 0.04
)

// blest is the blocking estimation scheduler (Ferlin et al., BLEST: Blocking Estimation-based MPTCP
// Scheduler for Heterogeneous Networks, IFIP Networking 2016). When the fastest path F is full, it
// uses a slower path S only if the share of the send window that S occupies for a round trip leaves
// enough for F:
//
//	rtts = RTT_S / RTT_F
//	X    = MSS_F (CWND_F + (rtts - 1) / 2) rtts      what F could send in the meantime
//	S is used unless X lambda > |M| - MSS_S (inflight_S + 1)
//
// lambda is updated once per round trip of S: increased if the send window was the limit, else
// decreased.
type blest struct {
	lambda  float64
	blocked bool          // the window was the limit since the last update
	updated time.Duration // when lambda last changed
}

func (b *blest) Next(paths []Path, s Segment) Set {
	b.blocked = b.blocked || s.Window < s.Size
	fast, open := pair(paths, s.Size)
	if open < 0 {
		return 0
	}
	if fast == open {
		return One(open)
	}
	f, p := &paths[fast], &paths[open]
	b.adapt(s.Now, p.SRTT)
	rtts := float64(p.SRTT) / float64(f.SRTT)
	x := (float64(f.Cwnd) + float64(f.MSS)*(rtts-1)/2) * rtts
	if x*b.lambda > float64(s.Window)+float64(s.Unacked)-float64(p.InFlight)-float64(s.Size) {
		return 0
	}
	return One(open)
}

func (b *blest) adapt(now, rtt time.Duration) {
	if now-b.updated < rtt {
		return
	}
	if b.blocked {
		b.lambda = min(b.lambda+blestBad, blestMax)
	} else {
		b.lambda = max(b.lambda-blestGood, blestMin)
	}
	b.blocked, b.updated = false, now
}
