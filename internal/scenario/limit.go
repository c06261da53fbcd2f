package scenario

import (
	"fmt"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/result"
	"github.com/tabane/tabane/internal/traffic"
	"github.com/tabane/tabane/internal/unit"
)

// DefaultMTU is a link's MTU unless given, in bytes.
const DefaultMTU = 1500

// Phases returns the limits of one cell over time, at least one, the first at 0. The usable links are those of the
// transport, and from a case's first event on those of them that remain, or where none does the first that remains at all, to
// which routing moves the connection, until an event ends the last of the failures before it; their rates towards the client are those of the
// case, where it sets them, or what its events and the links' schedules make of them, and count Ethernet frames as Shape
// does. Full frames carry the payload: the rest of
// a delivery, handshakes and acknowledgements are not counted, and neither is that packets are smaller where they were
// encapsulated on the way to the link. It is an error when the key is not a cell of the experiment.
func (s *Spec) Phases(k result.CellKey) ([]result.Phase, error) {
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

func (s *Spec) phases(c Case, t *Traffic, transport *Transport) []result.Phase {
	links := s.carriage(c, slices.Concat(transport.Links, c.Remaining))
	usable := transport.Links
	segment := transport.Settings.With(c.Settings).Segment
	own := traffic.Overhead{MPTCP: transport.MPTCP}
	now := func(at time.Duration, event int) result.Phase {
		rates := links.rates()
		p := result.Phase{
			At: at, Event: event,
			Carry:    s.carries(usable, rates, segment, own, transport.Headers()),
			CarryTCP: s.carries(usable, rates, segment, traffic.Overhead{}, traffic.Overhead{}.Headers()),
		}
		offered := float64(t.Rate)
		p.Limits = result.Limits{Links: result.Lesser(p.Carry, offered), LinksTCP: result.Lesser(p.CarryTCP, offered), Offered: offered}
		return p
	}
	list := []result.Phase{now(0, 0)}
	left := outages{}
	for _, x := range s.steps(c, t) {
		moves := false
		switch {
		case len(c.Remaining) == 0 || x.event == result.EventSchedule:
		case left.take(c.Events[x.event]):
			usable, moves = transport.Links, true
		case x.event == 0:
			moves = true
			usable = slices.DeleteFunc(slices.Clone(usable), func(link string) bool { return !slices.Contains(c.Remaining, link) })
			if len(usable) == 0 {
				usable = c.Remaining[:1]
			}
		}
		links.take(x)
		p, last := now(x.at, x.event), &list[len(list)-1]
		switch {
		case p.Carry == last.Carry && p.CarryTCP == last.CarryTCP && !moves:
		case p.At == last.At:
			*last = p
		default:
			list = append(list, p)
		}
	}
	return list
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
	return DefaultMTU
}

// SumRates is the sum of the rates of the transport's links towards the client as a run begins; 0 when one of them has none.
func (s *Spec) SumRates(k result.CellKey) unit.Bandwidth {
	var sum unit.Bandwidth
	for _, rate := range s.carriage(s.Experiment.Case(k.Case), s.Experiment.Transports[k.Transport].Links).rates() {
		if rate == 0 {
			return 0
		}
		sum += rate
	}
	return sum
}
