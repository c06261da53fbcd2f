package scenario

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/result"
	"github.com/tabane/tabane/internal/traffic"
	"github.com/tabane/tabane/internal/unit"
)

// DefaultMTU is a link's MTU unless given, in bytes.
const DefaultMTU = 1500

// Phases returns the limits of one cell over time, at least one, the first at 0.
//
// The limit is the maximum flow from the server to the client over the links of the file, so that a
// line which several paths share counts once; it is never more than what the usable links carry
// together. The usable links are those of the transport, and from a case's first event on those of
// them that remain, or where none does the first that remains at all, to which routing moves the
// connection, until an event ends the last of the failures before it. Links that other transports
// name are not passed.
//
// Rates are of the direction of the flow, those of the case where it sets them, or what its events
// and the links' schedules make of them, and count Ethernet frames as Shape does. Full frames carry
// the payload: the rest of a delivery, handshakes and acknowledgements are not counted, and neither
// is that packets are smaller where they were encapsulated on the way to the link. It is an error
// when the key is not a cell of the experiment.
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
	links := s.carriage(c, slices.Concat(slices.Collect(maps.Keys(s.Links)), transport.Links, c.Remaining))
	usable := transport.Links
	segment := transport.Settings.With(c.Settings).Segment
	own := traffic.Overhead{MPTCP: transport.MPTCP}
	now := func(at time.Duration, event int) result.Phase {
		p := result.Phase{
			At: at, Event: event,
			Carry:    links.carry(usable, framing{segment, own, transport.Headers()}),
			CarryTCP: links.carry(usable, framing{segment, traffic.Overhead{}, traffic.Overhead{}.Headers()}),
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

// ShapeIn returns what the link does in a case: what the case says, or what the link says where the
// case is silent.
func (s *Spec) ShapeIn(c Case, link string) Shape {
	if shape, ok := c.Links[link]; ok {
		return shape
	}
	if l := s.Links[link]; l != nil {
		return l.Shape
	}
	return Shape{}
}

// framing is how payload is put into frames: segments have the payload that the overhead leaves, or
// segment where that is less and not 0, and so many bytes of headers.
type framing struct {
	segment  int
	overhead traffic.Overhead
	headers  int
}

// payload is what a link of that rate carries of it in bit/s: infinite without a rate, and NaN when
// the MTU is impossible.
func (f framing) payload(rate unit.Bandwidth, mtu int) float64 {
	if rate == 0 {
		return math.Inf(1)
	}
	if _, err := traffic.PayloadShare(mtu, f.overhead); err != nil {
		return math.NaN()
	}
	payload := f.overhead.MaxSegment(mtu)
	if f.segment > 0 {
		payload = min(payload, f.segment)
	}
	return float64(payload) / float64(payload+f.headers) * float64(rate)
}

// carry is the payload in bit/s that reaches the client over the usable links, or 0 when there is
// no limit or an MTU is impossible.
func (k *carriage) carry(usable []string, f framing) float64 {
	s, rates := k.spec, k.rates()
	together := 0.0
	for _, name := range usable {
		together += f.payload(rates[name], s.MTU(name))
	}
	var n network
	for _, name := range slices.Sorted(maps.Keys(s.Links)) {
		l := s.Links[name]
		if l == nil || s.Experiment.names(name) && !slices.Contains(usable, name) {
			continue
		}
		forward, backward := f.payload(k.forward[name].Rate, s.MTU(name)), f.payload(k.backward[name].Rate, s.MTU(name))
		if math.IsNaN(forward + backward) {
			return 0
		}
		if len(l.Ends) == 2 {
			n.connect(l.Ends[0].Node, l.Ends[1].Node, forward)
			n.connect(l.Ends[1].Node, l.Ends[0].Node, backward)
			continue
		}
		// A switch shapes what each of its ports gives and takes. A node's name has no space.
		for _, e := range l.Ends {
			n.connect(e.Node, "switch "+name, forward)
			n.connect("switch "+name, e.Node, backward)
		}
	}
	flow := n.maxFlow(s.Experiment.Server, s.Experiment.Client)
	if flow == 0 || flow >= together*(1-1e-12) {
		flow = together // a network that the file does not connect limits nothing
	}
	if math.IsInf(flow, 1) || math.IsNaN(flow) {
		return 0
	}
	return flow
}

// names reports whether a transport or a case names the link as one that connections can use.
func (e *Experiment) names(link string) bool {
	for _, t := range e.Transports {
		if t != nil && slices.Contains(t.Links, link) {
			return true
		}
	}
	return slices.ContainsFunc(e.Cases, func(c Case) bool { return slices.Contains(c.Remaining, link) })
}

// MTU is that of the link, in bytes; the default one where it says none.
func (s *Spec) MTU(link string) int {
	if l := s.Links[link]; l != nil && l.MTU != 0 {
		return l.MTU
	}
	return DefaultMTU
}

// SumRates is the sum of the rates of the transport's links towards the client as a run begins; 0
// when one of them has none.
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
