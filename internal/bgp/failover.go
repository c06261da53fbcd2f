package bgp

import "github.com/tabane/tabane/internal/bgp/message"

// bfdReason is the reason for a session that is closed because BFD went down, worded as in FRR.
const bfdReason = "bfd down"

// bfdUp connects to a neighbor that is reachable again.
func (s *Speaker) bfdUp(name string) {
	s.mu.Lock()
	n := s.neighbors[name]
	s.mu.Unlock()
	if n != nil {
		n.session.Connect()
	}
}

// bfdDown resets the session with a neighbor whose BFD session went down (RFC 5882 section 4.1).
// The loss of its locators is advertised before its routes are withdrawn.
func (s *Speaker) bfdDown(name string) {
	if n := s.loseLocators(name); n != nil {
		n.session.Reset(message.Notification{Code: message.CodeCease, Subcode: message.SubcodeBFDDown}, bfdReason)
	}
}

// loseLocators advertises the loss of a neighbor's locators, and returns the neighbor, or nil if
// its session has already ended.
func (s *Speaker) loseLocators(name string) *neighbor {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.neighbors[name]
	if n == nil || !n.up {
		return nil
	}
	s.blackhole(true, n.conf.Locators)
	n.lost = n.internal
	return n
}
