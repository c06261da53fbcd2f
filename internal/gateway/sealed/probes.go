package sealed

import "time"

// probeState is what became of a probe.
type probeState uint8

const (
	probeNone     probeState = iota // discarded, or never sent
	probeOpen                       // neither answered nor timed out
	probeAnswered                   // an answer was taken; others are not
	probeMissed                     // timed out; an answer is taken nevertheless
)

// sentProbe is a probe that was sent over a path.
type sentProbe struct {
	// id cannot be guessed: an answer shows that the probe was received.
	id    uint64
	at    time.Duration
	size  int    // of a probe of the path's MTU, the packet that it is as long as, else 0
	pair  uint64 // of such a probe, the shorter one that was sent before it, 0 if none was
	to    place  // where it was sent
	quiet bool   // sent beside another one: that it has no answer says nothing about the path
	state probeState
}

// probesKept is how many probes of a path are waited for. The most frequent ones, three at a time,
// are as far apart as they have to be for all of a timeout to be kept (keptPause).
const probesKept = 128

// sentProbes are the last probes of a path.
type sentProbes struct {
	ring []sentProbe // nil before the first one
	next int
}

// add adds a probe that is sent now, and returns its number.
func (s *sentProbes) add(p sentProbe) uint64 {
	if s.ring == nil {
		s.ring = make([]sentProbe, probesKept)
	}
	p.id, p.state = unguessable(), probeOpen
	s.ring[s.next] = p
	s.next = (s.next + 1) % probesKept
	return p.id
}

// find returns the probe with a number, nil if there is none.
func (s *sentProbes) find(id uint64) *sentProbe {
	for i := range s.ring {
		if p := &s.ring[i]; p.id == id && p.state != probeNone {
			return p
		}
	}
	return nil
}

// answer returns the probe that an answer is for, nil if there is none or it was answered before.
func (s *sentProbes) answer(id uint64) *sentProbe {
	p := s.find(id)
	if p == nil || p.state == probeAnswered {
		return nil
	}
	p.state = probeAnswered
	return p
}

// answered reports whether the probe with a number was answered.
func (s *sentProbes) answered(id uint64) bool {
	p := s.find(id)
	return p != nil && p.state == probeAnswered
}

// expire returns a probe that has had no answer for that long, which is a missed one from now on;
// nil if there is none, and when there will be one.
func (s *sentProbes) expire(now, timeout, never time.Duration) (expired *sentProbe, next time.Duration) {
	next = never
	for i := range s.ring {
		p := &s.ring[i]
		switch {
		case p.state != probeOpen:
		case now-p.at >= timeout:
			p.state = probeMissed
			return p, next
		default:
			next = min(next, p.at+timeout)
		}
	}
	return nil, next
}

// discardSized forgets the open probes of the path's MTU.
func (s *sentProbes) discardSized() {
	for i := range s.ring {
		if p := &s.ring[i]; p.size > 0 && p.state == probeOpen {
			p.state = probeNone
		}
	}
}

// discardBeside forgets the probes that were sent to other places at the same time as one that was
// answered.
func (s *sentProbes) discardBeside(answered *sentProbe) {
	for i := range s.ring {
		if p := &s.ring[i]; p.at == answered.at && p.to != answered.to && p.state == probeOpen {
			p.state = probeNone
		}
	}
}

// discard forgets all probes: the path leads elsewhere.
func (s *sentProbes) discard() { s.discardElsewhere(place{}) }

// discardElsewhere forgets the probes that were sent to other places.
func (s *sentProbes) discardElsewhere(at place) {
	for i := range s.ring {
		if p := &s.ring[i]; p.to != at {
			p.state = probeNone
		}
	}
}
