package scenario

import (
	"cmp"
	"fmt"
	"time"

	"github.com/tabane/tabane/internal/experiment/result"
)

// Connection is one or more downloads that run beside that of a cell, as fast as the network
// carries them.
type Connection struct {
	// Client is the node that fetches. Default: the experiment's, over the transport of the cell;
	// the connections then count as the transport's. Example: neighbor
	Client string `yaml:"client,omitempty"`
	// Number is how many there are. Default: 1. Example: 4
	Number int `yaml:"number,omitempty"`
	// Start is when they are opened, after that of the cell. Example: 2s
	Start time.Duration `yaml:"start,omitempty"`
	// Stop is when they end. Default: with that of the cell. Example: 40s
	Stop time.Duration `yaml:"stop,omitempty"`
	// MPTCP makes the client connect over MPTCP instead of TCP.
	MPTCP bool `yaml:"mptcp,omitempty"`
	// Links are links on the ways of its subflows: one for each.
	Links []string `yaml:"links,omitempty"`
	// Congestion is the congestion control. Default: that of the cell.
	Congestion string `yaml:"congestion,omitempty"`
}

// Own reports whether the connections are of the cell's transport.
func (x Connection) Own() bool { return x.Client == "" }

// Count returns the number of connections.
func (x Connection) Count() int { return cmp.Or(x.Number, 1) }

// Transport returns how the connections of a cell connect.
func (x Connection) Transport(cell *Transport, settings Settings) *Transport {
	if x.Own() {
		return cell
	}
	return &Transport{MPTCP: x.MPTCP, Links: x.Links, Settings: Settings{Congestion: cmp.Or(x.Congestion, settings.Congestion), Pace: settings.Pace}}
}

// Competition returns when all connections of a cell compete and have settled, from the request on.
func (e *Experiment) Competition(k result.CellKey, quick bool) (from, to time.Duration) {
	c := e.Case(k.Case)
	to = e.TrafficIn(c, k.Traffic).TimeLimit(quick)
	for _, x := range c.Connections {
		from = max(from, x.Start)
		if x.Stop > 0 {
			to = min(to, x.Stop)
		}
	}
	return from + c.Settle, to
}

// connections checks the connections of a case.
func (c *checker) connections(path string, k Case) {
	e := c.spec.Experiment
	if k.Settle < 0 || k.Settle > 0 && len(k.Connections) == 0 {
		c.Add(path+".settle", "is the time before connections are measured, got %s and %d connections", k.Settle, len(k.Connections))
	}
	for i, x := range k.Connections {
		path := index(path+".connections", i)
		switch {
		case x.Own() && (x.MPTCP || len(x.Links) > 0 || x.Congestion != ""):
			c.Add(path, "has no client, and so the transport of the cell: leave out mptcp, links and congestion")
		case x.Own():
		case c.knownNode(path+".client", x.Client):
			if x.Client == e.Server || x.Client == e.Client {
				c.Add(path+".client", "must be another node than the server and the client, got %q", x.Client)
			}
			c.transport(path, "connection", &Transport{MPTCP: x.MPTCP, Links: x.Links})
			if len(x.Links) > 1 && !x.MPTCP {
				c.Add(path+".links", "must be one without mptcp, got %d", len(x.Links))
			}
			c.Merge(path, Settings{Congestion: x.Congestion}.Check())
		}
		if x.Number < 0 || x.Number > maxConnections {
			c.Add(path+".number", "must be 1 to %d, got %d", maxConnections, x.Number)
		}
		if x.Start < 0 {
			c.Add(path+".start", "must not be negative, got %s", x.Start)
		}
		if x.Stop != 0 && x.Stop <= x.Start {
			c.Add(path+".stop", "must be after start, at %s, got %s", x.Start, x.Stop)
		}
	}
	if len(k.Connections) == 0 || !e.Delivers() {
		return
	}
	for _, name := range e.TrafficNames() {
		t := e.TrafficIn(k, name)
		switch {
		case t == nil:
		case t.Bytes == 0 || t.Objects > 0 || t.Upload || t.Duration == 0:
			c.Add(path+".connections", "need a traffic of bytes and a duration, downloaded as one object, and %q is another", name)
		default:
			for _, quick := range []bool{false, true} {
				if from, to := e.Competition(result.CellKey{Case: k.Name, Traffic: name}, quick); from >= to {
					c.Add(path+".connections", "never compete in traffic %q%s: all run from %s on, with settle, and one until %s", name, map[bool]string{true: ", quick"}[quick], from, to)
					break
				}
			}
		}
	}
	for _, name := range e.TransportNames() {
		if t := e.Transports[name]; t != nil && t.Gateway != nil {
			c.Add(path+".connections", "cannot compete with transport %q, which has a gateway", name)
		}
	}
}

// maxConnections bounds the connections of an entry.
const maxConnections = 100

// unsettled returns why the cells that an expectation selects have not settled, or nothing.
func (x Expectation) unsettled(cells []result.Cell) string {
	m, ok := result.MetricNamed(x.Metric)
	if !ok || !m.Settled {
		return ""
	}
	for _, c := range cells {
		if c.Metric != x.Metric || !x.selects(c.CellKey) {
			continue
		}
		losses, known := result.Find(cells, c.CellKey, result.LeastLosses)
		switch {
		case !known:
			return fmt.Sprintf("not settled: the losses of %s are not known", c.CellKey)
		case losses.Min < result.SettledLosses:
			return fmt.Sprintf("not settled: a subflow of %s had %.0f losses, and %d are needed", c.CellKey, losses.Min, result.SettledLosses)
		}
	}
	return ""
}
