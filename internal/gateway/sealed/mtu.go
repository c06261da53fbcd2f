package sealed

import (
	"cmp"
	"time"

	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// mtuSearch finds the largest packet that a path carries, by probes as long as a message with such
// a packet (RFC 8899). Probes are not fragmented. What ICMP reports is not used: anybody can forge
// it.
//
// A path loses messages of any size. So a size is too large only after a trial: of searchTrial
// pairs of a probe of that size and one of the least size, the long probe was lost and the short one
// answered, and no long one was answered between them. However many messages a path loses at
// random, a pair ends so at most as often as with an answer to the long probe, so that a trial
// fails by chance in less than one of 2^searchTrial cases. A path may also carry ordinary probes
// but neither of a pair. So a size is too large as well after searchMissed lost probes of it in a
// row.
//
// A size that was carried and is not any more is followed by baseMTU, and that by leastMTU, which is
// not probed: the search ends there. IPv6 carries baseMTU.
type mtuSearch struct {
	mtu     int  // largest packet, without the tunnel, that was carried
	maxMTU  int  // largest that may be, by the interface
	least   int  // what is taken to be carried whatever probes show
	failed  int  // smallest that is too large, 0 if none
	known   bool // a size was carried, or is too large
	settled bool // nothing between mtu and failed is left to try
	logged  int  // MTU that was logged last
	// doubted: packets were lost since the MTU was last confirmed.
	doubted bool
	// current is against the MTU itself, larger against the size that is tried.
	current, larger mtuTrial
	// confirmed is when the MTU was last probed, raised when a larger size was.
	confirmed, raised time.Duration
	due               time.Duration // of the next padded probes, at the earliest
}

// baseMTU is the largest packet, without the tunnel, that every path is taken to carry: what is
// left of 1280 bytes of IPv6 (RFC 8200, section 5).
const baseMTU = inet.MinMTU6 - inet.UDP6Len - tunnel.Overhead

// leastMTU is the least that a path of IPv4 is taken to carry, without the tunnel. Linux' hosts do
// not send less whatever an error says (net.ipv4.route.min_pmtu).
const leastMTU = 552

// mtuTrial is what speaks against a size.
type mtuTrial struct {
	size   int // 0: nothing speaks against it
	pairs  int // of which only the shorter probe was answered
	missed int // probes of that size without an answer
}

const (
	// searchTrial is how many pairs decide that a size is too large. RFC 8899 (5.1.2: MAX_PROBES)
	// has 3 probes, which random loss of 5 % in both directions takes away each quarter of an hour.
	searchTrial = 16
	// searchMissed is how many lost probes decide it, whatever became of the shorter ones: random
	// loss of 75 % takes as many away in one of 10^8 trials.
	searchMissed = 4 * searchTrial
	// searchPause is that between the pairs of a trial: packets may be lost meanwhile. It leaves
	// the peer more time than answerPause for each of the probes.
	searchPause = 20 * time.Millisecond
	// searchStep ends the search.
	searchStep = 8
	// searchConfirm is how often a known size is probed again, searchConfirmBusy while there is
	// traffic, and searchConfirmLoss while packets are lost, perhaps because they do not fit any
	// more.
	searchConfirm     = 5 * time.Second
	searchConfirmBusy = time.Second
	searchConfirmLoss = 200 * time.Millisecond
	// searchRaise is how often the smallest size that was too large is tried. RFC 8899 (5.1.1: 600
	// s) would leave a path that has become better unused for minutes.
	searchRaise = 10 * time.Second
)

// next returns the size of the packet to probe with, 0 for none, and whether a shorter one has to be
// sent before it. A known size is confirmed that often.
func (s *mtuSearch) next(now, confirm time.Duration, interfaceMTU int, v4 bool) (size int, paired bool) {
	maxMTU := largest(interfaceMTU, v4)
	if maxMTU != s.maxMTU {
		*s = mtuSearch{maxMTU: maxMTU, mtu: min(baseMTU, maxMTU), least: min(baseMTU, maxMTU)}
		if v4 {
			s.least = min(leastMTU, maxMTU)
		}
	}
	if s.doubted {
		confirm = min(confirm, searchConfirmLoss)
	}
	candidate := s.candidate()
	if candidate == s.mtu && !s.settled {
		s.settled, s.raised = true, now
	}
	switch {
	case s.current.size > 0:
		return s.mtu, true
	case (s.mtu > baseMTU || candidate == s.mtu) && now-s.confirmed >= confirm:
		s.confirmed, s.doubted = now, false
		return s.mtu, false
	case candidate > s.mtu:
		return candidate, s.larger.size == candidate
	case s.failed > 0 && now-s.raised >= searchRaise:
		s.raised = now
		return s.failed, false
	}
	return 0, false
}

// candidate returns the size to try, which is the MTU at the end of the search.
func (s *mtuSearch) candidate() int {
	if s.failed == 0 {
		return s.maxMTU
	}
	return max(s.mtu, (s.mtu+s.failed)/2&^(searchStep-1))
}

// onTrial returns the size that may be too large, so that probes are urgent, 0 for none.
func (s *mtuSearch) onTrial() int { return cmp.Or(s.current.size, s.larger.size) }

// tooLarge reports whether a size is known to be too large.
func (s *mtuSearch) tooLarge(size int) bool { return s.failed > 0 && size >= s.failed }

// largest returns the largest packet, without the tunnel, that fits the MTU of an interface.
func largest(interfaceMTU int, v4 bool) int { return interfaceMTU - overhead(v4) }

// overhead returns what the tunnel adds to a packet, with UDP and IP.
func overhead(v4 bool) int {
	if v4 {
		return tunnel.Overhead + inet.UDP4Len
	}
	return tunnel.Overhead + inet.UDP6Len
}

// limit returns the largest packet to send. Until a probe of that size has been answered or was too
// large, it is what fits the MTU of the interface: senders to whom a smaller one is reported keep
// to it for minutes.
func (s *mtuSearch) limit(interfaceMTU int, v4 bool) int {
	if !s.known {
		return largest(interfaceMTU, v4)
	}
	return s.mtu
}

// carried records that a probe of this size was answered.
func (s *mtuSearch) carried(size int) {
	if size > baseMTU || s.maxMTU <= baseMTU {
		s.known = true
	}
	if size > s.mtu {
		s.mtu, s.settled = size, false
	}
	if size >= s.current.size {
		s.current = mtuTrial{}
	}
	if size >= s.larger.size {
		s.larger = mtuTrial{}
	}
	if s.tooLarge(size) {
		s.failed, s.settled = 0, false
	}
}

// missed records that a probe had no answer, and whether the shorter one of the pair had.
func (s *mtuSearch) missed(size int, shorterAnswered bool) {
	trial := &s.larger
	switch {
	case size <= s.least:
		return // nothing shorter can be sent
	case size == s.mtu:
		trial = &s.current
	case size != s.candidate():
		return // it is known to be too large
	}
	if size != trial.size {
		*trial = mtuTrial{size: size}
	}
	trial.missed++
	if shorterAnswered {
		trial.pairs++
	}
	if trial.pairs < searchTrial && trial.missed < searchMissed {
		return
	}
	if size == s.mtu {
		s.mtu = s.least // what was carried is not any more
		if size > baseMTU {
			s.mtu = min(baseMTU, s.maxMTU)
		}
	}
	s.failed, s.known, s.settled, s.current, s.larger = size, true, false, mtuTrial{}, mtuTrial{}
	if s.mtu == baseMTU && size > baseMTU && s.mtu > s.least {
		s.current.size = s.mtu // it may not be carried either
	}
}

// doubt records that packets were lost.
func (s *mtuSearch) doubt() { s.doubted = true }

// discard ends the trials: the path was dead, and loses probes of any size.
func (s *mtuSearch) discard() { s.current, s.larger = mtuTrial{}, mtuTrial{} }
