package sealed

import (
	"time"

	"github.com/tabane/tabane/internal/tunnel"
)

// mtuSearch finds the largest packet that a path carries, by probes as long as a message with such a
// packet (RFC 8899). Probes are not fragmented.
type mtuSearch struct {
	mtu    int  // largest packet, without the tunnel, that was carried
	most   int  // largest that may be, by the interface
	bad    int  // smallest that was not carried, 0 if none
	lostAt int  // size of the last lost probe
	times  int  // that it was lost
	known  bool // a probe was answered or lost for good
	// at is when the MTU was last confirmed, since when the search ended.
	at, since time.Duration
}

const (
	// searchTimes is how often a size is lost before it does not fit (RFC 8899, 5.1.2: MAX_PROBES).
	searchTimes = 3
	// searchStep ends the search.
	searchStep = 8
	// searchConfirm is how often a known size is probed again, searchConfirmBusy while there is
	// traffic, which is lost when it does not fit any more. searchRaise is how often a larger size is
	// tried (RFC 8899, 5.1.1: 600 s).
	searchConfirm     = 5 * time.Second
	searchConfirmBusy = time.Second
	searchRaise       = 600 * time.Second
)

// next returns the size of the packet to probe with, 0 for none. A known size is confirmed that often.
func (s *mtuSearch) next(now, confirm time.Duration, interfaceMTU int, v4 bool) int {
	most := largest(interfaceMTU, v4)
	if most != s.most {
		*s = mtuSearch{most: most, mtu: min(baseMTU, most)}
	}
	size := s.most
	if s.bad > 0 {
		size = (s.mtu + s.bad) / 2 &^ (searchStep - 1)
		if size <= s.mtu {
			size = s.mtu
		}
	}
	if size == s.mtu {
		switch {
		case s.since == 0:
			s.since = now
		case s.bad > 0 && now-s.since > searchRaise:
			s.bad, s.since = 0, 0
		case now-s.at < confirm && (s.times == 0 || s.lostAt != size):
			return 0
		}
		s.at = now
	}
	return size
}

// largest returns the largest packet, without the tunnel, that fits the MTU of an interface.
func largest(interfaceMTU int, v4 bool) int { return interfaceMTU - overhead(v4) }

// overhead returns what the tunnel adds to a packet, with UDP and IP.
func overhead(v4 bool) int {
	if v4 {
		return tunnel.Overhead + ipUDP4
	}
	return tunnel.Overhead + ipUDP6
}

// limit returns the largest packet to send. Until a probe of that size has been answered or lost for good, it
// is what fits the MTU of the interface: senders to whom a smaller one is reported keep to it for minutes.
func (s *mtuSearch) limit(interfaceMTU int, v4 bool) int {
	if !s.known {
		return largest(interfaceMTU, v4)
	}
	return s.mtu
}

// carried takes that a size is carried.
func (s *mtuSearch) carried(size int) {
	s.mtu, s.known = max(s.mtu, size), true
	s.times = 0
	if s.bad > 0 && s.bad <= size {
		s.bad = 0
	}
}

// lost takes that a probe had no answer.
func (s *mtuSearch) lost(size int) {
	if size != s.lostAt {
		s.lostAt, s.times = size, 0
	}
	if s.times++; s.times < searchTimes {
		return
	}
	s.times, s.since, s.known = 0, 0, true
	if size <= s.mtu {
		// What was carried is not any more.
		s.mtu, s.bad = min(baseMTU, s.most), size
		return
	}
	if s.bad == 0 || size < s.bad {
		s.bad = size
	}
}
