package scenario

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/result"
)

// DefaultMTU is a link's MTU unless given, in bytes.
const DefaultMTU = 1500

// Phases returns the limits of one cell over time, at least one, the first at 0.
//
// The limit is the maximum flow from the server to the client, of an upload the other way, over the
// links of the file, so that a link shared by several paths counts once; it never exceeds the sum
// of the usable links. The usable links are those of the transport. From a case's first event until
// the event that ends the last failure, they are those of the transport that are in Remaining, or
// if none is, the first of Remaining, to which routing moves the connection. Links of other
// transports carry nothing.
//
// Rates are those in the direction of the flow: of the case where it sets them, changed by its
// events and the links' schedules. They count Ethernet frames as Shape does. All payload is taken
// to be in full frames; handshakes, acknowledgments and the overhead of encapsulation before the
// link are not counted. A key that is not a cell of the experiment is an error.
func (s *Spec) Phases(k result.CellKey) ([]result.Phase, error) {
	if s.Experiment == nil || !s.Experiment.has(k) {
		return nil, fmt.Errorf("limit cell %q: is not in the experiment", k)
	}
	e := s.Experiment
	c := e.Case(k.Case)
	for _, name := range e.Transports[k.Transport].Links {
		if _, err := traffic.PayloadShare(s.MTU(name), traffic.Overhead{MPTCP: true, Tunnel: s.Overhead(e.Transports[k.Transport]).Tunnel}); err != nil {
			return nil, fmt.Errorf("limit cell %q: link %q: %w", k, name, err)
		}
	}
	return s.phases(c, e.TrafficIn(c, k.Traffic), e.Transports[k.Transport]), nil
}

func (s *Spec) phases(c Case, t *Traffic, transport *Transport) []result.Phase {
	links := s.linkState(c, slices.Concat(slices.Collect(maps.Keys(s.Links)), transport.Links, c.Remaining))
	links.upload = t.Upload
	usable := transport.Links
	segment := transport.Settings.With(c.Settings).Segment
	own, headers := s.Overhead(transport), s.Headers(transport)
	if t.Datagram > 0 {
		own.UDP, segment = true, t.Datagram
		headers = own.Headers()
	}
	tcp := traffic.Overhead{IPv4: own.IPv4, UDP: own.UDP}
	now := func(at time.Duration, event int) result.Phase {
		p := result.Phase{
			At: at, Event: event,
			Capacity:    links.capacity(usable, framing{segment, own, headers}),
			CapacityTCP: links.capacity(usable, framing{segment, tcp, tcp.Headers()}),
		}
		offered := float64(t.Rate)
		p.Limits = result.Limits{Links: result.Lesser(p.Capacity, offered), LinksTCP: result.Lesser(p.CapacityTCP, offered), Offered: offered}
		return p
	}
	list := []result.Phase{now(0, 0)}
	failed := outages{}
	for _, x := range s.steps(c, t) {
		moves := false
		switch {
		case len(c.Remaining) == 0 || x.event == result.EventSchedule:
		case failed.apply(c.Events[x.event]):
			usable, moves = transport.Links, true
		case x.event == 0:
			moves = true
			usable = slices.DeleteFunc(slices.Clone(usable), func(link string) bool { return !slices.Contains(c.Remaining, link) })
			if len(usable) == 0 {
				usable = c.Remaining[:1]
			}
		}
		links.apply(x)
		p, last := now(x.at, x.event), &list[len(list)-1]
		switch {
		case p.Capacity == last.Capacity && p.CapacityTCP == last.CapacityTCP && !moves:
		case p.At == last.At:
			*last = p
		default:
			list = append(list, p)
		}
	}
	return list
}

// ShapeIn returns the shape of the link in a case: that of the case, or the link's own if the case
// sets none.
func (s *Spec) ShapeIn(c Case, link string) Shape {
	if shape, ok := c.Links[link]; ok {
		return shape
	}
	if l := s.Links[link]; l != nil {
		return l.Shape
	}
	return Shape{}
}

// framing is how payload is put into frames. A segment has as much payload as the overhead leaves
// of the MTU, at most segment bytes unless that is 0, and headers bytes of headers.
type framing struct {
	segment  int
	overhead traffic.Overhead
	headers  int
}

// payload returns the payload rate of a link of that rate, in bit/s: infinite without a rate, NaN
// if the MTU is too small.
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

// capacity returns the payload rate in bit/s that the usable links carry to the receiver, or 0 if
// there is no limit or an MTU is too small.
func (k *linkState) capacity(usable []string, f framing) float64 {
	s, rates := k.spec, k.rates()
	together := 0.0
	for _, name := range usable {
		together += f.payload(rates[name], s.MTU(name))
	}
	var n network
	for _, name := range slices.Sorted(maps.Keys(s.Links)) {
		l := s.Links[name]
		if l == nil || s.Experiment.isUsable(name) && !slices.Contains(usable, name) {
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
		// A switch shapes each of its ports, in both directions. A node's name has no
		// space.
		for _, e := range l.Ends {
			n.connect(e.Node, "switch "+name, forward)
			n.connect("switch "+name, e.Node, backward)
		}
	}
	from, to := s.Experiment.Server, s.Experiment.Client
	if k.upload {
		from, to = to, from
	}
	flow := n.maxFlow(from, to)
	if flow == 0 || flow >= together*(1-1e-12) {
		flow = together // a network that the file does not connect limits nothing
	}
	if math.IsInf(flow, 1) || math.IsNaN(flow) {
		return 0
	}
	return flow
}

// isUsable reports whether a transport or a case lists the link as usable.
func (e *Experiment) isUsable(link string) bool {
	for _, t := range e.Transports {
		if t != nil && slices.Contains(t.Links, link) {
			return true
		}
	}
	return slices.ContainsFunc(e.Cases, func(c Case) bool {
		return slices.Contains(c.Remaining, link) || slices.ContainsFunc(c.Connections, func(x Connection) bool { return slices.Contains(x.Links, link) })
	})
}

// MTU returns the MTU of the link in bytes.
func (s *Spec) MTU(link string) int {
	if l := s.Links[link]; l != nil && l.MTU != 0 {
		return l.MTU
	}
	return DefaultMTU
}

// SumRates returns the sum of the rates of the transport's links to the receiver at the start of
// a run; 0 if one of them is unlimited.
func (s *Spec) SumRates(k result.CellKey) unit.Bandwidth {
	var sum unit.Bandwidth
	links := s.linkState(s.Experiment.Case(k.Case), s.Experiment.Transports[k.Transport].Links)
	links.upload = s.Experiment.Traffic[k.Traffic].Upload
	for _, rate := range links.rates() {
		if rate == 0 {
			return 0
		}
		sum += rate
	}
	return sum
}
