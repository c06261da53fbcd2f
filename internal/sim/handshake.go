package sim

import "time"

// handshake is how far the opening of a subflow has come, at both ends.
type handshake struct {
	answered bool // the SYN/ACK has arrived
	sent     time.Duration
	tries    uint
}

// handshakeTimeout is that of the first SYN (RFC 6298, section 2.1); it doubles.
const handshakeTimeout = time.Second

// begin opens the subflow, or tries again to: it is the timer's event while the subflow is closed.
func (f *sender) begin(s *Sim) {
	c := f.c
	source := s.senderSource(f.flow)
	switch {
	case c.done:
		s.events.remove(source)
		return
	case !c.Handshake:
		s.events.remove(source)
		f.establish(s)
		return
	case f.index > 0 && s.senders[c.first].state == caClosed:
		s.events.remove(source) // connection.established sets it again
		return
	}
	s.events.set(source, s.now+handshakeTimeout<<min(f.hand.tries, 6))
	f.hand.tries++
	if f.hand.answered {
		f.sayAccept(s)
		return
	}
	f.say(s, open, s.receivers[f.flow].back)
}

func (f *sender) sayAccept(s *Sim) {
	f.hand.sent = s.now
	f.say(s, accept, f.out)
}

func (f *sender) say(s *Sim, kind kind, before uint32) {
	s.send(&packet{kind: kind, flow: f.flow, hop: before}, int32(f.c.Header))
}

// shake takes a packet of the handshake, at the end where it belongs.
func (f *sender) shake(s *Sim, p *packet) {
	if f.state != caClosed {
		return
	}
	switch p.kind {
	case open:
		f.sayAccept(s)
	case accept:
		f.hand.answered = true
		f.say(s, ready, s.receivers[f.flow].back)
	case ready:
		if f.hand.tries == 1 { // Karn: which of several was answered is not known
			f.retrans.rtt.Update(s.now - f.hand.sent)
		}
		s.events.remove(s.senderSource(f.flow))
		f.establish(s)
	default: // not part of a handshake
	}
}

// established lets further subflows join after the first, and probes begin.
func (c *connection) established(s *Sim, index int) {
	if c.needs.Delay && c.probeAt == 0 {
		c.probeAt = s.now + s.phase(c.id)
		c.wake(s, c.probeAt)
	}
	if index != 0 || !c.Handshake {
		return
	}
	for i := 1; i < len(c.flows); i++ {
		f := &s.senders[int(c.first)+i]
		if f.state == caClosed && !s.events.has(s.senderSource(f.flow)) {
			s.events.set(s.senderSource(f.flow), max(s.now, c.Start+c.Paths[i].Start))
		}
	}
}
