package scenario

import (
	"fmt"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/traffic"
	"github.com/tabane/tabane/internal/unit"
)

// defaultMTU is a link's MTU unless given, in bytes.
const defaultMTU = 1500

// Limits is what a cell could reach at most, as payload in bits per second. 0 stands for no limit, and for Offered when
// the source offers as much as it can.
type Limits struct {
	// Links is what the usable links carry after all headers of the transport, or the offered rate when that is less.
	Links float64
	// LinksTCP is the same with the headers of plain TCP, whatever the transport: the stricter yardstick for MPTCP.
	LinksTCP float64
	// Offered is the rate of a constant bit rate source.
	Offered float64
}

// Phase is a time in a run in which the limits stay the same.
type Phase struct {
	// At is when it begins, from the request on; it lasts until the next begins, the last one until the run ends.
	At time.Duration
	// Event is the index of the event that it begins with, of the case's events; 0 for the first phase too, and negative
	// for one that begins with a step of a link's schedule.
	Event int
	Limits
	// carry and carryTCP are what the links carry, whatever the source offers.
	carry, carryTCP float64
}

// Phases returns the limits of one cell over time, at least one, the first at 0. The usable links are those of the
// transport, and from a case's first event on those of them that remain, or where none does the first that remains at all, to
// which routing moves the connection; their rates towards the client are those of the
// case, where it sets them, or what its events and the links' schedules make of them, and count Ethernet frames as Shape
// does. Full frames carry the payload: the rest of
// a delivery, handshakes and acknowledgements are not counted, and neither is that packets are smaller where they were
// encapsulated on the way to the link. It is an error when the key is not a cell of the experiment.
func (s *Spec) Phases(k CellKey) ([]Phase, error) {
	if s.Experiment == nil || !slices.Contains(s.Experiment.Cells(), k) {
		return nil, fmt.Errorf("limit cell %q: is not in the experiment", k)
	}
	e := s.Experiment
	c := e.Case(k.Case)
	for _, name := range e.Transports[k.Transport].Links {
		if _, err := traffic.PayloadShare(s.MTU(name), traffic.Overhead{MPTCP: true}); err != nil {
			return nil, fmt.Errorf("limit cell %q: link %q: %w", k, name, err)
		}
	}
	return s.phases(c, e.TrafficIn(c, k.Traffic), e.Transports[k.Transport]), nil
}

func (s *Spec) phases(c Case, t *Traffic, transport *Transport) []Phase {
	links := s.carriage(c, slices.Concat(transport.Links, c.Remaining))
	usable := transport.Links
	segment := transport.Settings.With(c.Settings).Segment
	own := traffic.Overhead{MPTCP: transport.MPTCP}
	now := func(at time.Duration, event int) Phase {
		rates := links.rates()
		p := Phase{
			At: at, Event: event,
			carry:    s.carries(usable, rates, segment, own, transport.Headers()),
			carryTCP: s.carries(usable, rates, segment, traffic.Overhead{}, traffic.Overhead{}.Headers()),
		}
		offered := float64(t.Rate)
		p.Limits = Limits{Links: lesser(p.carry, offered), LinksTCP: lesser(p.carryTCP, offered), Offered: offered}
		return p
	}
	list := []Phase{now(0, 0)}
	for _, x := range s.steps(c, t) {
		moves := x.event == 0 && len(c.Remaining) > 0
		if moves {
			usable = slices.DeleteFunc(slices.Clone(usable), func(link string) bool { return !slices.Contains(c.Remaining, link) })
			if len(usable) == 0 {
				usable = c.Remaining[:1]
			}
		}
		links.take(x)
		p, last := now(x.at, x.event), &list[len(list)-1]
		switch {
		case p.carry == last.carry && p.carryTCP == last.carryTCP && !moves:
		case p.At == last.At:
			*last = p
		default:
			list = append(list, p)
		}
	}
	return list
}

// Mean returns the limits of a run that lasted so long: what its phases let through together. What a source offered while
// the links did not carry it may follow when they do.
func Mean(phases []Phase, lasted time.Duration) Limits {
	mean := Limits{Offered: phases[0].Offered}
	if lasted <= 0 {
		return mean
	}
	through := func(carry func(Phase) float64) float64 {
		sum := 0.0
		for i, p := range phases {
			until := lasted
			if i+1 < len(phases) {
				until = min(until, phases[i+1].At)
			}
			if until <= p.At {
				continue
			}
			switch rate, offered := carry(p), mean.Offered*until.Seconds(); {
			case rate == 0 && mean.Offered == 0:
				return 0
			case rate == 0:
				sum = offered
			default:
				sum = lesser(sum+rate*(until-p.At).Seconds(), offered)
			}
		}
		return sum / lasted.Seconds()
	}
	mean.Links = through(func(p Phase) float64 { return p.carry })
	mean.LinksTCP = through(func(p Phase) float64 { return p.carryTCP })
	return mean
}

// Put adds the limits that there are to a run's metrics.
func (l Limits) Put(metrics map[string]float64) {
	for name, v := range map[string]float64{LimitRate: l.Links, LimitTCPRate: l.LinksTCP, OfferedRate: l.Offered} {
		if v > 0 {
			metrics[name] = v
		}
	}
}

// ShapeIn returns what the link does in a case: what the case says, or what the link says where the case is silent.
func (s *Spec) ShapeIn(c Case, link string) Shape {
	if shape, ok := c.Links[link]; ok {
		return shape
	}
	if l := s.Links[link]; l != nil {
		return l.Shape
	}
	return Shape{}
}

// carries is the payload that the links carry together, or 0 when there is none of them, when one of them has no rate, or
// when its MTU is impossible. Segments have the payload that the overhead leaves, or segment where that is less and not 0,
// and so many bytes of headers.
func (s *Spec) carries(links []string, rates map[string]unit.Bandwidth, segment int, o traffic.Overhead, headers int) float64 {
	total := 0.0
	for _, name := range links {
		if _, err := traffic.PayloadShare(s.MTU(name), o); rates[name] == 0 || err != nil {
			return 0
		}
		payload := o.MaxSegment(s.MTU(name))
		if segment > 0 {
			payload = min(payload, segment)
		}
		total += float64(payload) / float64(payload+headers) * float64(rates[name])
	}
	return total
}

// MTU is that of the link, in bytes; the default one where it says none.
func (s *Spec) MTU(link string) int {
	if l := s.Links[link]; l != nil && l.MTU != 0 {
		return l.MTU
	}
	return defaultMTU
}

// lesser is the lesser of two limits of which 0 is none.
func lesser(a, b float64) float64 {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}
