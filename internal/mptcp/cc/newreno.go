package cc

import "time"

// newReno is TCP's standard congestion control (RFC 5681, RFC 6582), on each subflow independently.
type newReno struct{}

func (*newReno) Acked(s []Subflow, i int, a Ack) {
	f := &s[i]
	if !a.Limited || f.slowStart(a.Segments) {
		return
	}
	f.grow(a.Segments, 1/f.Cwnd)
}

func (*newReno) Lost(s []Subflow, i int, _ time.Duration) { s[i].lost(0.5, minThreshold) }

func (*newReno) TimedOut(s []Subflow, i int, _ time.Duration) { s[i].timedOut(0.5, minThreshold) }
