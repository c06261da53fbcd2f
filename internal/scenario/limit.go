package scenario

import (
	"fmt"
	"slices"

	"github.com/tabane/tabane/internal/traffic"
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

// Limit returns the limits of one cell. The usable links are those of the transport; their rates are those of the case,
// where it sets them, and count Ethernet frames as Shape does. Full frames carry the payload: the rest of a delivery,
// handshakes and acknowledgements are not counted, and neither is that packets are smaller where they were encapsulated on
// the way to the link. It is an error when the key is not a cell of the experiment.
func (s *Spec) Limit(k CellKey) (Limits, error) {
	if s.Experiment == nil || !slices.Contains(s.Experiment.Cells(), k) {
		return Limits{}, fmt.Errorf("limit cell %q: is not in the experiment", k)
	}
	e := s.Experiment
	c := e.Cases[slices.IndexFunc(e.Cases, func(c Case) bool { return c.Name == k.Case })]
	transport := e.Transports[k.Transport]
	offered := float64(e.Traffic[k.Traffic].Rate)
	links, err := s.carries(transport.Links, c, traffic.Overhead{MPTCP: transport.MPTCP})
	if err != nil {
		return Limits{}, fmt.Errorf("limit cell %q: %w", k, err)
	}
	linksTCP, err := s.carries(transport.Links, c, traffic.Overhead{})
	if err != nil {
		return Limits{}, fmt.Errorf("limit cell %q: %w", k, err)
	}
	return Limits{Links: lesser(links, offered), LinksTCP: lesser(linksTCP, offered), Offered: offered}, nil
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

// carries is the payload that the links carry together, or 0 when one of them has no rate.
func (s *Spec) carries(links []string, c Case, o traffic.Overhead) (float64, error) {
	total := 0.0
	for _, name := range links {
		rate := s.ShapeIn(c, name).Rate
		if rate == 0 {
			return 0, nil
		}
		mtu := defaultMTU
		if l := s.Links[name]; l != nil && l.MTU != 0 {
			mtu = l.MTU
		}
		share, err := traffic.PayloadShare(mtu, o)
		if err != nil {
			return 0, fmt.Errorf("link %q: %w", name, err)
		}
		total += share * float64(rate)
	}
	return total, nil
}

// lesser is the lesser of two limits of which 0 is none.
func lesser(a, b float64) float64 {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}
