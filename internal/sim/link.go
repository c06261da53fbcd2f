package sim

import (
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
)

// link is one direction of a link.
type link struct {
	down      bool
	sent      uint64
	sentBytes uint64
	lost      uint64 // dropped because the link was down
	index     int32
	// All that from delivers enters this link, and nothing else does; into is the opposite. They
	// are nil if there is no such link. The pair has one event, that of the second link.
	from, into *link
	linkmodel.Pipe[packet]
}

// join finds pairs of links that all packets pass one after the other. What the first delivers
// affects only the second, and nothing observes the second before it delivers: only that needs an
// event.
func (s *Sim) join() {
	const several = -2 // or none
	before, after := make([]int32, len(s.links)), make([]int32, len(s.links))
	for i := range s.links {
		s.links[i].index = int32(i)
		before[i], after[i] = several, several
	}
	seen := make([]bool, len(s.links))
	for i, l := range s.hops {
		switch {
		case l == end:
		case !seen[l]:
			seen[l], before[l], after[l] = true, s.hops[i-1], s.hops[i+1]
		default:
			if before[l] != s.hops[i-1] {
				before[l] = several
			}
			if after[l] != s.hops[i+1] {
				after[l] = several
			}
		}
	}
	for i := range s.config.Changes {
		l := s.config.Changes[i].Link
		before[l], after[l] = several, several
	}
	for i := range s.links {
		l := &s.links[i]
		if after[i] < 0 || before[after[i]] != l.index || l.from != nil || l.Overtakes() {
			continue
		}
		if next := &s.links[after[i]]; next.Plain() && next.Least() > 0 {
			l.into, next.from = next, l
		}
	}
}

// pull has the packets enter the second link of a pair that the first one delivers until now.
func (s *Sim) pull(l *link, now time.Duration) {
	from := l.from
	for at := from.Next(); at <= now; {
		s.handled++
		a, next := from.Take(at)
		if a != nil {
			from.sent++
			from.sentBytes += uint64(a.Size)
			a.Frame.hop++
			l.Arrive(at, a.Size, &a.Frame)
		}
		at = next
	}
}

// end is the hop after the last link of a route.
const end = -1

// way stores a route over these links, and returns the hop before its first link.
func (s *Sim) way(links []int) uint32 {
	s.hops = append(s.hops, end)
	before := uint32(len(s.hops) - 1)
	for _, l := range links {
		s.hops = append(s.hops, int32(l))
	}
	s.hops = append(s.hops, end)
	return before
}

// unlimited is the rate that the schedulers assume for a path whose links have no rate.
const unlimited = 100 * unit.GbitPerSecond

// slowest returns the minimum of the rates of links.
func (s *Sim) slowest(links []int) unit.Bandwidth {
	least := unlimited
	for _, l := range links {
		if r := s.config.Links[l].Rate; r > 0 && r < least {
			least = r
		}
	}
	return least
}

// send sends a new packet.
func (s *Sim) send(p *packet, size int32) {
	if s.tap != nil {
		s.observe(p, true)
	}
	if p.hop&tunneledHop != 0 {
		s.carriers[p.hop&^tunneledHop].send(s, p, size)
		return
	}
	s.launch(p, size)
}

// launch passes a new packet to its first link. Too many packets in flight end the simulation.
func (s *Sim) launch(p *packet, size int32) {
	if s.traffic.packets++; s.traffic.packets > s.traffic.most {
		s.tooLarge = true
	}
	p.hop++
	s.enter(s.hops[p.hop], p, size)
}

// enter passes a packet to link i. The event of a link is its next delivery. A new packet changes
// it only if the link was idle or packets may overtake each other on it.
func (s *Sim) enter(i int32, p *packet, size int32) {
	l := &s.links[i]
	if l.down {
		l.lost++
		s.traffic.packets--
		return
	}
	idle := l.Flying() == 0
	l.Arrive(s.now, size, p)
	if !idle && !l.Overtakes() {
		return
	}
	if l.into != nil {
		i = l.into.index
		if at := l.into.NextOf(&l.Pipe); at != linkmodel.Never {
			s.events.setEarlier(i, at)
		}
		return
	}
	if at := l.Next(); at != linkmodel.Never {
		s.events.setEarlier(i, at)
	}
}

// deliver passes the packet that a link delivers now to the next link, or to its destination.
func (s *Sim) deliver(i int32) {
	l := &s.links[i]
	if l.from != nil {
		s.pull(l, s.now)
	}
	a, next := l.Take(s.now)
	if next == linkmodel.Never && l.from != nil {
		next = l.NextOf(&l.from.Pipe)
	}
	if next == linkmodel.Never {
		s.events.remove(i)
	} else {
		s.events.set(i, next)
	}
	if a == nil {
		if l.from != nil {
			s.handled-- // nothing was due: its packets were queued in front of the first link
		}
		return
	}
	l.sent++
	l.sentBytes += uint64(a.Size)
	a.Frame.hop++
	if to := s.hops[a.Frame.hop]; to != end {
		s.enter(to, &a.Frame, a.Size)
		return
	}
	s.traffic.packets--
	s.arrive(&a.Frame)
}

// arrive processes a packet at its destination. The packet is valid until another is sent.
func (s *Sim) arrive(p *packet) {
	if s.tap != nil {
		s.observe(p, false)
	}
	switch p.kind {
	case data:
		s.receivers[p.flow].data(s, p)
	case ack:
		s.senders[p.flow].ack(s, p)
	case probe:
		s.receivers[p.flow].probed(s, p)
	case reply:
		f := &s.senders[p.flow]
		f.c.replied(s, f.index, p)
	case cross:
		s.sources[p.flow].take(s, p)
	case tunneled:
		s.carriers[p.flow].arrive(s, p)
	case tunnelProbe:
		s.carriers[p.flow].probed(s, p)
	case tunnelReply:
		s.carriers[p.flow].replied(s, p)
	case tunnelRequest:
		s.carriers[p.flow].requested(s, p)
	default:
		f := &s.senders[p.flow]
		f.hand.receive(s, f, p)
	}
}

// change applies the changes of the config that are due.
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
		if at := l.Next(); at != linkmodel.Never {
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
