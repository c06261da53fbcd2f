// Package cell translates a cell of a scenario's experiment into what every backend makes of it:
// the links in their directions, the paths of subflows over them, and the connections with their
// traffic and events. It neither simulates nor changes anything.
package cell

import (
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// Cell is a case of an experiment with a traffic over a transport.
type Cell struct {
	Key  result.CellKey
	Case scenario.Case
	// Traffic is that of the case.
	Traffic *scenario.Traffic
	// Payload goes from Sender to Receiver, of which one is the server and the other the client.
	Sender, Receiver string
	// Limit ends the delivery. 0: only its last byte does.
	Limit time.Duration
	// Bytes are the payload, of a traffic with a rate that within Limit.
	Bytes unit.Size
	// Phases are the limits over time, at least one.
	Phases []result.Phase
	// Events are in the order of the case.
	Events []Event
	// Connections are that of the cell, then those beside it in the order of the case.
	Connections []Connection

	spec *scenario.Spec
}

// Event is an event of the case.
type Event struct {
	scenario.Event
	// At is its time, from the request on.
	At time.Duration
}

// Connection is one or more equal connections of a cell.
type Connection struct {
	// Client is the node at the other end than the server.
	Client string
	// Own: it is of the cell's transport and counts as that.
	Own bool
	// Count is how many there are.
	Count     int
	Transport *scenario.Transport
	Settings  scenario.Settings
	// Start and Stop are from the request of the cell on. Stop 0: with the cell.
	Start, Stop time.Duration
	// Paths are those of its subflows, from the sender to the receiver.
	Paths []Path
}

// Cells translates the cells of one scenario. It is safe for concurrent use.
type Cells struct {
	spec  *scenario.Spec
	quick bool
	net   *network
	// paths are those of each transport, from the server to the client.
	paths map[string][]Path
}

// New returns the cells of a scenario that has an experiment and passed scenario.Spec.Check. quick
// limits each delivery to the quick time of its traffic.
func New(spec *scenario.Spec, quick bool) *Cells {
	c := &Cells{spec: spec, quick: quick, net: newNetwork(spec), paths: map[string][]Path{}}
	for name, t := range spec.Experiment.Transports {
		c.paths[name] = c.PathsTo(spec.Experiment.Client, t.Links)
	}
	return c
}

// Paths returns the paths of a transport from the server to the client.
func (c *Cells) Paths(transport string) []Path { return c.paths[transport] }

// PathsTo returns the paths from the server to a client, one over each of the links and none of the
// others.
func (c *Cells) PathsTo(client string, links []string) []Path {
	var paths []Path
	for i, link := range links {
		hops, err := c.net.over(c.spec.Experiment.Server, client, link, slices.Concat(links[:i], links[i+1:]))
		paths = append(paths, Path{link, hops, err})
	}
	return paths
}

// Across returns the hops over a link, in all directions.
func (c *Cells) Across(link string) []Hop { return c.net.across(link) }

// Cell translates a cell of the experiment. A key that is not one of its cells is an error, and so
// is an MTU that is too small. A missing path is not: see Path.Err.
func (c *Cells) Cell(k result.CellKey) (*Cell, error) {
	phases, err := c.spec.Phases(k)
	if err != nil {
		return nil, err
	}
	e := c.spec.Experiment
	in := e.Case(k.Case)
	t := e.TrafficIn(in, k.Traffic)
	cell := &Cell{
		Key: k, Case: in, Traffic: t, Sender: e.Server, Receiver: e.Client,
		Limit: t.TimeLimit(c.quick), Bytes: t.Total(), Phases: phases, spec: c.spec,
	}
	if t.Rate > 0 {
		cell.Bytes = t.Rate.SizeIn(cell.Limit)
	}
	for _, x := range in.Events {
		cell.Events = append(cell.Events, Event{x, t.EventAt + x.After})
	}
	own := Connection{Client: e.Client, Own: true, Count: 1, Transport: e.Transports[k.Transport], Settings: e.Settings(k), Paths: c.paths[k.Transport]}
	if t.Upload {
		cell.Sender, cell.Receiver = e.Client, e.Server
		own.Paths = reversed(own.Paths)
	}
	cell.Connections = append(cell.Connections, own)
	for _, x := range in.Connections {
		beside := own
		if !x.Own() {
			transport := x.Transport(own.Transport, own.Settings)
			beside = Connection{Client: x.Client, Transport: transport, Settings: transport.Settings, Paths: c.PathsTo(x.Client, x.Links)}
		}
		beside.Count, beside.Start, beside.Stop = x.Count(), x.Start, x.Stop
		cell.Connections = append(cell.Connections, beside)
	}
	return cell, nil
}

func reversed(paths []Path) []Path {
	paths = slices.Clone(paths)
	for i := range paths {
		paths[i].Hops = paths[i].Back()
	}
	return paths
}

// Own returns the connection of the cell.
func (c *Cell) Own() *Connection { return &c.Connections[0] }

// Beside returns the connections beside that of the cell.
func (c *Cell) Beside() []Connection { return c.Connections[1:] }

// TransferTime returns how long the delivery of all bytes takes at the limits, if they are known.
func (c *Cell) TransferTime() (took time.Duration, known bool) {
	return result.TransferTime(c.Bytes, c.Phases)
}

// Sides returns the sides of the cell's connections, and the index of that of each.
func (c *Cell) Sides() (sides result.Sides, of []int) {
	for _, x := range c.Connections {
		i := sides.Index(x.Client)
		sides[i].Connections += x.Count
		of = append(of, i)
	}
	return sides, of
}

// MaxSegment returns the payload of a full segment of a connection in bytes: what the least MTU of
// its paths leaves.
func (c *Cell) MaxSegment(x *Connection) int {
	mtu := 0
	least := func(link string) {
		if m := c.spec.MTU(link); mtu == 0 || m < mtu {
			mtu = m
		}
	}
	for _, p := range x.Paths {
		least(p.Link)
		for _, h := range p.Hops {
			least(h.Link)
		}
	}
	if mtu == 0 {
		mtu = scenario.DefaultMTU
	}
	return c.spec.Overhead(x.Transport).MaxSegment(mtu)
}

// Shape returns the shape of a link at the start of the run.
func (c *Cell) Shape(link string) scenario.Shape { return c.spec.ShapeIn(c.Case, link) }

// Profile returns what a shape does to the frames of a hop.
func Profile(spec *scenario.Spec, s scenario.Shape, h Hop) linkmodel.Profile {
	forward, backward := s.Profiles()
	if l := spec.Links[h.Link]; len(l.Ends) == 2 && h.From != l.Ends[0].Node {
		return backward
	}
	return forward
}
