package sim

import (
	"github.com/tabane/tabane/internal/channel"
)

// link is one direction of a link.
type link struct {
	*channel.Pipe
	down      bool
	sent      uint64
	sentBytes uint64
	lost      uint64 // for being down
}

// end is the hop behind the last link of a way.
const end = -1

// way stores the way over these links, and returns the hop before the first.
func (s *Sim) way(links []int) uint32 {
	s.hops = append(s.hops, end)
	before := uint32(len(s.hops) - 1)
	for _, l := range links {
		s.hops = append(s.hops, int32(l))
	}
	s.hops = append(s.hops, end)
	return before
}

// packet returns a new packet at the hop before the first of a way, to be filled and sent. When there are too many it is one that goes
// nowhere, and the simulation is over.
func (s *Sim) packet(kind kind, flow int32, before uint32) (*packet, int32) {
	slot, ok := s.pool.take()
	if !ok {
		s.tooLarge = true
		return &packet{}, -1
	}
	p := &s.pool.packets[slot]
	p.kind, p.flow, p.hop, p.copies = kind, flow, before+1, 1
	return p, slot
}

// send puts a new packet on its way.
func (s *Sim) send(p *packet, slot, size int32) {
	if slot != -1 {
		s.enter(p.hop, slot, size)
	}
}

// enter gives a packet to the link of a hop. The hop goes with it, so that the packet itself, one of many thousands, is not looked at before
// the end of its way. The link has an event at the next delivery; one that is not the first in line changes nothing,
// unless packets overtake each other.
func (s *Sim) enter(hop uint32, slot, size int32) {
	i := s.hops[hop]
	l := &s.links[i]
	if l.down {
		l.lost++
		s.pool.Release(slot)
		return
	}
	l.ArriveTagged(s.now, size, slot, hop)
	if !s.events.has(i) {
		if at := l.Next(); at != channel.Never {
			s.events.set(i, at)
		}
	} else if l.Overtakes() {
		if at := l.Next(); at < s.events.at(i) {
			s.events.set(i, at)
		}
	}
}

// deliver takes what a link delivers now to the next link, or to its end.
func (s *Sim) deliver(i int32) {
	l := &s.links[i]
	a, ok, next := l.Take(s.now)
	if next == channel.Never {
		s.events.remove(i)
	} else {
		s.events.set(i, next)
	}
	if !ok {
		return
	}
	l.sent++
	l.sentBytes += uint64(a.Size)
	slot := a.Slot
	if l.Duplicates() && s.pool.packets[slot].copies > 1 {
		if slot, ok = s.split(slot); !ok {
			return
		}
	}
	if hop := a.Tag + 1; s.hops[hop] != end {
		s.enter(hop, slot, a.Size)
	} else {
		s.arrive(slot)
	}
}

// split gives one of several copies of a packet a place of its own.
func (s *Sim) split(slot int32) (int32, bool) {
	s.pool.Release(slot)
	one, ok := s.pool.take()
	if !ok {
		s.tooLarge = true
		return 0, false
	}
	s.pool.packets[one] = s.pool.packets[slot]
	s.pool.packets[one].copies = 1
	return one, true
}

// arrive takes a packet at the end of its way.
func (s *Sim) arrive(slot int32) {
	p := &s.pool.packets[slot] // it stays what it is until it is released, even if the pool grows
	switch p.kind {
	case data:
		s.receivers[p.flow].data(s, p)
	case ack:
		s.senders[p.flow].ack(s, p)
	case probe:
		s.receivers[p.flow].probed(s, p)
	case reply:
		s.senders[p.flow].replied(s, p)
	case cross:
		s.sources[p.flow].received++
		s.sources[p.flow].receivedBytes += uint64(p.length)
	default:
		s.senders[p.flow].shake(s, p)
	}
	s.pool.Release(slot)
}

// change applies what is due of the config's changes.
func (s *Sim) change() {
	for s.changed < len(s.config.Changes) && s.config.Changes[s.changed].At <= s.now {
		c := &s.config.Changes[s.changed]
		s.changed++
		i := int32(c.Link)
		l := &s.links[i]
		if c.Up {
			l.down = false
		}
		if c.Down {
			l.down = true
			l.lost += uint64(l.Flush())
		}
		l.Set(s.now, l.Profile().With(c.Change))
		if at := l.Next(); at != channel.Never {
			s.events.set(i, max(at, s.now))
		} else {
			s.events.remove(i)
		}
	}
	if s.changed < len(s.config.Changes) {
		s.events.set(s.changeSource(), s.config.Changes[s.changed].At)
	} else {
		s.events.remove(s.changeSource())
	}
}
