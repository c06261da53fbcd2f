package selection

import "time"

const (
	// StallMin is the shortest time without progress that counts as a stall.
	StallMin = 150 * time.Millisecond
	// StallMinShort is that of a subflow with fewer than ShortFlight segments in flight. A full
	// queue may drop all of them, and then the kernel retransmits only after its RTO, which is at
	// least 200 ms plus a round trip.
	StallMinShort = 450 * time.Millisecond
	ShortFlight   = 16
)

// StallTimeout returns the time without progress after which a subflow with that many segments in
// flight has stalled. Two round trips after the last acknowledgment the kernel sends a tail loss
// probe (RFC 8985 section 7.2), whose answer takes a third. SRTT includes the queue of the path.
func StallTimeout(inFlight int, srtt, rttvar time.Duration) time.Duration {
	least := StallMin
	if inFlight < ShortFlight {
		least = StallMinShort
	}
	return max(least, 3*srtt+4*rttvar)
}

// ProgressesBeside reports whether a subflow progresses while another one of the connection has been
// silent for some time: it was acknowledged well after that one began to wait, and is not silent
// itself.
func ProgressesBeside(acked, silent, silence time.Duration) bool {
	return acked >= silence/3 && silent < silence/2
}
