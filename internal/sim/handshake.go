package sim

import "time"

// handshake is the state of a subflow that is being established, at both ends.
type handshake struct {
	answered bool          // the SYN/ACK has been received
	sent     time.Duration // when the SYN/ACK was sent last
	tries    uint          // SYNs sent
	answers  uint          // SYN/ACKs sent
}

// handshakeTimeout is the retransmission timeout of the first SYN and of the first SYN/ACK (RFC
// 6298, section 2.1); it doubles.
const handshakeTimeout = time.Second

// timer sends or retransmits the SYN. It is the subflow's timer until the subflow is established.
func (h *handshake) timer(s *Sim, f *sender) {
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
	case f.index != c.Begin && s.senders[int(c.first)+c.Begin].state == caClosed:
		s.events.remove(source) // connection.established adds it again
		return
	}
	if h.answered {
		h.sendSYNACK(s, f)
		return
	}
	s.events.set(source, s.now+handshakeTimeout<<min(h.tries, 6))
	h.tries++
	h.send(s, f, syn, s.receivers[f.flow].back)
}

func (h *handshake) sendSYNACK(s *Sim, f *sender) {
	s.events.set(s.senderSource(f.flow), s.now+handshakeTimeout<<min(h.answers, 6))
	h.answers++
	h.sent = s.now
	h.send(s, f, synACK, f.out)
}

func (h *handshake) send(s *Sim, f *sender, kind kind, before uint32) {
	s.send(&packet{kind: kind, flow: f.flow, hop: before}, int32(f.c.Header))
}

// receive processes a packet of the handshake at the end that it arrives at.
func (h *handshake) receive(s *Sim, f *sender, p *packet) {
	if f.state != caClosed {
		return
	}
	c := f.c
	switch p.kind {
	case syn:
		h.sendSYNACK(s, f)
	case synACK:
		h.answered = true
		size := c.Header
		if f.index == c.Begin {
			size = c.requestSize()
		}
		s.send(&packet{kind: established, flow: f.flow, hop: s.receivers[f.flow].back}, int32(size))
	case established:
		if h.answers == 1 { // Karn's algorithm (RFC 6298, section 3)
			f.retrans.rtt.Update(s.now - h.sent)
		}
		s.events.remove(s.senderSource(f.flow))
		f.establish(s)
	default: // not part of a handshake
	}
}

// established starts probing, and the further subflows once the first is established.
func (c *connection) established(s *Sim, index int) {
	if c.needs.Delay && c.probeAt == 0 {
		c.probeAt = s.now + s.phase(c.id)
		c.wake(s, c.probeAt)
	}
	if c.Overflow {
		c.lookAtPaths(s)
		c.wake(s, c.use.at)
	}
	if index != c.Begin || !c.Handshake {
		return
	}
	for i := range c.flows {
		f := &s.senders[int(c.first)+i]
		if f.state == caClosed && !s.events.has(s.senderSource(f.flow)) {
			s.events.set(s.senderSource(f.flow), max(s.now, c.Start+c.Paths[i].Start))
		}
	}
}
