package bgp

import "time"

// bfdSlow is the least interval between packets of a session that is not up (RFC 5880 section 6.8.3).
const bfdSlow = time.Second

// bfdSession is the state machine of RFC 5880 in asynchronous mode, with time as an argument. Its user sends what packet
// returns whenever due says so or receive asks for it.
type bfdSession struct {
	interval   time.Duration
	multiplier uint8
	my, your   uint32
	state      bfdState
	diag       bfdDiag
	polling    bool // the neighbor has not confirmed our new interval yet

	// Of the neighbor.
	remoteTx, remoteRx time.Duration
	remoteMultiplier   uint8
	heard              time.Time // the last packet, or when we last know that we could not have heard one

	sent time.Time
	// jitter is by how much the next interval is shortened, 0 to 25 percent (RFC 5880 section 6.8.7), from random.
	jitter float64
	random func() float64
}

// newBFDSession returns a session that is down. my is its discriminator, not zero; random gives numbers in [0,1).
func newBFDSession(b BFD, my uint32, random func() float64) *bfdSession {
	if b.Multiplier == 0 {
		b.Multiplier = DefaultBFDMultiplier
	}
	return &bfdSession{
		interval: b.Interval, multiplier: b.Multiplier, my: my, state: bfdDown, remoteRx: time.Microsecond, random: random,
	}
}

// bfdChange is what a session did.
type bfdChange uint8

const (
	bfdSame bfdChange = iota
	bfdCame
	// bfdLost: the neighbor was heard and is no more, or says that it does not hear us.
	bfdLost
	// bfdLeft: the neighbor switched BFD off, which says nothing about the path (RFC 5882 section 4.2).
	bfdLeft
)

// receive takes a packet of the neighbor. answer is set when a packet must be sent at once.
func (s *bfdSession) receive(now time.Time, p bfdPacket) (change bfdChange, answer bool) {
	if p.your != 0 && p.your != s.my {
		return bfdSame, false
	}
	if p.your == 0 && s.your != 0 && p.my != s.your {
		// Somebody else, or the neighbor after a restart: the old session ends by its own time.
		return bfdSame, false
	}
	s.your, s.remoteTx, s.remoteRx, s.remoteMultiplier, s.heard = p.my, p.desiredTx, p.requiredRx, p.multiplier, now
	if p.final {
		s.polling = false
	}
	old := s.state
	switch {
	case p.state == bfdAdminDown:
		if s.state != bfdDown {
			s.fall(bfdSignaled)
			return left(old), true
		}
	case s.state == bfdDown && p.state == bfdDown:
		s.state = bfdInit
	case s.state == bfdDown && p.state == bfdInit, s.state == bfdInit && p.state >= bfdInit:
		s.state, s.diag, s.polling = bfdUp, bfdNoDiag, true
		return bfdCame, true
	case s.state == bfdUp && p.state == bfdDown:
		s.fall(bfdSignaled)
		return bfdLost, true
	}
	return bfdSame, s.state != old || p.poll
}

func left(old bfdState) bfdChange {
	if old == bfdUp {
		return bfdLeft
	}
	return bfdSame
}

func (s *bfdSession) fall(why bfdDiag) {
	s.state, s.diag, s.polling, s.your, s.remoteRx = bfdDown, why, false, 0, time.Microsecond
	s.sent = time.Time{} // the neighbor should know at once
}

// detection is how long the neighbor may be silent (RFC 5880 section 6.8.4).
func (s *bfdSession) detection() time.Duration {
	return time.Duration(s.remoteMultiplier) * max(s.interval, s.remoteTx)
}

// expire ends a session whose neighbor was silent for too long.
func (s *bfdSession) expire(now time.Time) bfdChange {
	if s.your == 0 || now.Before(s.heard.Add(s.detection())) {
		return bfdSame
	}
	old := s.state
	s.fall(bfdExpired)
	if old == bfdUp {
		return bfdLost
	}
	return bfdSame
}

// missed says that nothing could be heard until now, because we ourselves did not run: the silence proves nothing.
func (s *bfdSession) missed(now time.Time) {
	if s.your != 0 {
		s.heard = now
	}
}

// deadline is when expire has to look; zero is never.
func (s *bfdSession) deadline() time.Time {
	if s.your == 0 {
		return time.Time{}
	}
	return s.heard.Add(s.detection())
}

// due is when the next packet has to be sent; zero is never, because the neighbor wants none.
func (s *bfdSession) due() time.Time {
	if s.remoteRx == 0 {
		return time.Time{}
	}
	every := max(s.desired(), s.remoteRx)
	return s.sent.Add(every - time.Duration(s.jitter*float64(every)/4))
}

func (s *bfdSession) desired() time.Duration {
	if s.state != bfdUp {
		return max(bfdSlow, s.interval)
	}
	return s.interval
}

// packet is what to send now. final answers a poll.
func (s *bfdSession) packet(now time.Time, final bool) bfdPacket {
	s.sent, s.jitter = now, s.random()
	return bfdPacket{
		diag: s.diag, state: s.state, poll: s.polling && !final, final: final, multiplier: s.multiplier,
		my: s.my, your: s.your, desiredTx: s.desired(), requiredRx: s.interval,
	}
}

// farewell tells the neighbor that BFD is switched off here.
func (s *bfdSession) farewell(now time.Time) bfdPacket {
	s.state, s.diag, s.polling = bfdAdminDown, bfdDiagByAdmin, false
	return s.packet(now, false)
}
