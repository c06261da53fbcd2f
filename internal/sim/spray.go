package sim

import (
	"time"

	"github.com/tabane/tabane/internal/epe/arrival"
)

// Spray is a client network whose connections are sprayed. Those with the same one share what is
// remembered of its paths, which begin with nothing.
type Spray struct{ Network string }

// spraying chooses the paths of a connection's packets. Sequence numbers are those of segments, times
// the bytes of a full one.
type spraying struct {
	*arrival.Connection
	flow    *arrival.Flow // in place of the connection
	segment uint32
	routes  []uint32
	blocks  []arrival.Block
}

// newSpraying returns nil if the connection is not sprayed.
func (s *Sim) newSpraying(c *connection) *spraying {
	if c.Spray == nil {
		return nil
	}
	network := s.sprayed[c.Spray]
	if network == nil {
		network = &arrival.Network{}
		s.sprayed[c.Spray] = network
	}
	x := &spraying{segment: uint32(c.Segment)}
	for _, p := range c.Paths {
		x.routes = append(x.routes, s.way(p.Out))
	}
	if c.Unread {
		x.flow = arrival.NewFlow(network, len(x.routes), c.Start)
	} else {
		x.Connection = arrival.New(network, len(x.routes), x.segment, c.Start)
	}
	return x
}

// choose returns the hop of a segment.
func (x *spraying) choose(now time.Duration, seq uint32, length uint16) uint32 {
	if x.flow != nil {
		return x.routes[x.flow.Choose(now, uint32(length))]
	}
	return x.routes[x.Choose(now, seq*x.segment, uint32(length))]
}

// acknowledged reads an acknowledgment.
func (x *spraying) acknowledged(now time.Duration, p *packet) {
	if x.flow != nil {
		x.flow.Heard(now)
		return
	}
	x.blocks = x.blocks[:0]
	if p.duplicate {
		seq := p.seq&^0xffff | uint32(p.dsack)
		if seq > p.seq+1<<15 {
			seq -= 1 << 16
		}
		x.blocks = append(x.blocks, arrival.Block{Left: seq * x.segment, Right: (seq + 1) * x.segment})
	}
	for _, b := range p.sack[:p.blocks] {
		x.blocks = append(x.blocks, arrival.Block{Left: b.start * x.segment, Right: b.end * x.segment})
	}
	x.Acknowledged(now, p.seq*x.segment, x.blocks)
}
