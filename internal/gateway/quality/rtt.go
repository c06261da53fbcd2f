package quality

import "time"

// The bounds of RTT.RTO.
const (
	// MinRTO is Linux' minimum (TCP_RTO_MIN); RFC 6298 (2.4) has one second.
	MinRTO = 200 * time.Millisecond
	// MaxRTO is Linux' maximum (TCP_RTO_MAX); RFC 6298 (2.5) has at least 60 s.
	MaxRTO = 120 * time.Second
	// InitialRTO is the timeout before the first sample (RFC 6298, 2.1).
	InitialRTO = time.Second
)

// RTT estimates the round-trip time and the retransmission timeout of a path (RFC 6298). The zero
// value has no sample.
type RTT struct {
	// SRTT and RTTVAR are those of RFC 6298, MinRTT is the smallest sample. All are 0 before
	// the first one.
	SRTT, RTTVAR, MinRTT time.Duration
}

// Update takes a sample. Samples that are not positive are ignored: they are below the resolution
// of the clock.
func (r *RTT) Update(sample time.Duration) {
	switch {
	case sample <= 0:
		return
	case r.SRTT == 0:
		r.SRTT, r.RTTVAR, r.MinRTT = sample, sample/2, sample
		return
	}
	r.MinRTT = min(r.MinRTT, sample)
	r.RTTVAR += (max(r.SRTT-sample, sample-r.SRTT) - r.RTTVAR) / 4
	r.SRTT += (sample - r.SRTT) / 8
}

// RTO returns the retransmission timeout without backoff: SRTT + 4 RTTVAR, at most MaxRTO. As in
// Linux, the variation term is at least least, usually MinRTO.
func (r *RTT) RTO(least time.Duration) time.Duration {
	if r.SRTT == 0 {
		return InitialRTO
	}
	return min(r.SRTT+max(4*r.RTTVAR, least), MaxRTO)
}
