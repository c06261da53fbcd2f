package bfd

import "time"

// slowInterval is the least interval between packets of a session that is not up (RFC 5880 section
// 6.8.3).
const slowInterval = time.Second

// session is the state machine of RFC 5880 in asynchronous mode, with time as an argument. The
// caller sends what packet returns whenever nextSend is reached or receive asks for a reply.
type session struct {
	interval   time.Duration
	multiplier uint8
	my, your   uint32 // local and remote discriminator
	state      state
	diag       diagnostic
	polling    bool // poll sequence: the neighbor has not confirmed our new interval yet

	remoteTx, remoteRx time.Duration
	remoteMultiplier   uint8
	received           time.Time // last packet, or the last moment at which none could be received

	sent time.Time
	// jitter, from random, shortens the next interval by 0 to 25 percent (RFC 5880 section 6.8.7).
	jitter float64
	random func() float64
}

// newSession returns a session in state Down. my is its discriminator, not zero; random returns
// numbers in [0,1).
func newSession(c Config, my uint32, random func() float64) *session {
	if c.Multiplier == 0 {
		c.Multiplier = DefaultMultiplier
	}
	return &session{
		interval: c.Interval, multiplier: c.Multiplier, my: my, state: stateDown, remoteRx: time.Microsecond, random: random,
	}
}

// transition is what became of a session, in order of importance.
type transition uint8

const (
	unchanged transition = iota
	cameUp
	// wentDown: the detection time expired, or the neighbor signaled that it does not receive from
	// us.
	wentDown
	// adminDown: the neighbor disabled BFD, which says nothing about the path (RFC 5882 section
	// 4.2).
	adminDown
)

// receive processes a packet of the neighbor. With reply, a packet must be sent at once.
func (s *session) receive(now time.Time, p packet) (t transition, reply bool) {
	if p.your != 0 && p.your != s.my {
		return unchanged, false
	}
	if p.your == 0 && s.your != 0 && p.my != s.your {
		// Another sender, or the neighbor after a restart: the old session ends by its detection
		// time.
		return unchanged, false
	}
	s.your, s.remoteTx, s.remoteRx, s.remoteMultiplier, s.received = p.my, p.desiredTx, p.requiredRx, p.multiplier, now
	if p.final {
		s.polling = false
	}
	old := s.state
	switch {
	case p.state == stateAdminDown:
		if s.state != stateDown {
			s.down(diagNeighborDown)
			if old == stateUp {
				return adminDown, true
			}
			return unchanged, true
		}
	case s.state == stateDown && p.state == stateDown:
		s.state = stateInit
	case s.state == stateDown && p.state == stateInit, s.state == stateInit && p.state >= stateInit:
		s.state, s.diag, s.polling = stateUp, diagNone, true
		return cameUp, true
	case s.state == stateUp && p.state == stateDown:
		s.down(diagNeighborDown)
		return wentDown, true
	}
	return unchanged, s.state != old || p.poll
}

func (s *session) down(why diagnostic) {
	s.state, s.diag, s.polling, s.your, s.remoteRx = stateDown, why, false, 0, time.Microsecond
	s.sent = time.Time{} // the neighbor should learn it at once
}

// detectionTime is how long the neighbor may be silent (RFC 5880 section 6.8.4).
func (s *session) detectionTime() time.Duration {
	return time.Duration(s.remoteMultiplier) * max(s.interval, s.remoteTx)
}

// expire takes the session down if the detection time has expired.
func (s *session) expire(now time.Time) transition {
	if s.your == 0 || now.Before(s.received.Add(s.detectionTime())) {
		return unchanged
	}
	old := s.state
	s.down(diagTimeExpired)
	if old == stateUp {
		return wentDown
	}
	return unchanged
}

// restartDetection begins the detection time again at now, because this process itself did not run:
// what it did not receive proves nothing.
func (s *session) restartDetection(now time.Time) {
	if s.your != 0 {
		s.received = now
	}
}

// deadline is when expire is due; zero is never.
func (s *session) deadline() time.Time {
	if s.your == 0 {
		return time.Time{}
	}
	return s.received.Add(s.detectionTime())
}

// nextSend is when the next packet is due; zero is never, because the neighbor's Required Min RX
// Interval is zero.
func (s *session) nextSend() time.Time {
	if s.remoteRx == 0 {
		return time.Time{}
	}
	every := s.every()
	return s.sent.Add(every - time.Duration(s.jitter*float64(every)/4))
}

// every is the longest time between packets; 0 if the neighbor wants none.
func (s *session) every() time.Duration {
	if s.remoteRx == 0 {
		return 0
	}
	return max(s.desiredTx(), s.remoteRx)
}

func (s *session) desiredTx() time.Duration {
	if s.state != stateUp {
		return max(slowInterval, s.interval)
	}
	return s.interval
}

// packet returns the packet to send at now. final answers a poll.
func (s *session) packet(now time.Time, final bool) packet {
	s.sent, s.jitter = now, s.random()
	return packet{
		diag: s.diag, state: s.state, poll: s.polling && !final, final: final, multiplier: s.multiplier,
		my: s.my, your: s.your, desiredTx: s.desiredTx(), requiredRx: s.interval,
	}
}

// disable puts the session into AdminDown and returns the packet that signals it.
func (s *session) disable(now time.Time) packet {
	s.state, s.diag, s.polling = stateAdminDown, diagAdminDown, false
	return s.packet(now, false)
}

// fail ends the session and returns a packet from which the neighbor learns that this end is dead.
func (s *session) fail(now time.Time) packet {
	s.state, s.diag, s.polling = stateDown, diagNone, false
	return s.packet(now, false)
}
