package simrun

import (
	"fmt"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/sim"
)

// competitors returns a fault for each connection of a case that has no way.
func (p *plan) competitors() fault.List {
	var faults fault.List
	for i, c := range p.spec.Experiment.Cases {
		for j, x := range c.Connections {
			if _, err := p.waysOf(x); err != nil {
				faults.Add(fmt.Sprintf("experiment.cases[%d].connections[%d].links", i, j), "%v", err)
			}
		}
	}
	return faults
}

// waysOf returns the ways of the subflows of another connection.
func (p *plan) waysOf(x scenario.Connection) ([]way, error) {
	var ways []way
	for i, link := range x.Links {
		hops, err := p.net.over(p.spec.Experiment.Server, x.Client, link, slices.Concat(x.Links[:i], x.Links[i+1:]))
		if err != nil {
			return nil, err
		}
		ways = append(ways, way{hops: hops})
	}
	return ways, nil
}

// compete adds the other connections of a case to that of the cell. Their order is that of sides.
func (b *builder) compete(k result.CellKey, own sim.Connection) error {
	e := b.spec.Experiment
	for _, x := range b.c.Connections {
		conn := own
		if !x.Own() {
			transport := x.Transport(e.Transports[k.Transport], e.Settings(k))
			conn = sim.Connection{MPTCP: transport.MPTCP, Bytes: own.Bytes, Header: b.spec.Headers(transport), Handshake: true}
			ways, err := b.waysOf(x)
			if err != nil {
				return err
			}
			mtu := 0
			for _, w := range ways {
				conn.Paths = append(conn.Paths, b.path(w.hops, &mtu))
			}
			if err := b.behave(&conn, transport.Settings, b.spec.Overhead(transport).MaxSegment(mtu), e.Server); err != nil {
				return err
			}
		}
		conn.Start, conn.Stop = own.Start+x.Start, 0
		if x.Stop > 0 {
			conn.Stop = own.Start + x.Stop
		}
		for i := range x.Count() {
			conn.Name = fmt.Sprintf("%s %d", x.Client, i)
			b.config.Connections = append(b.config.Connections, conn)
		}
	}
	return nil
}

// measureCompetition adds the metrics of the connections that compete.
func (p *plan) measureCompetition(k result.CellKey, run *result.Run, simulated sim.Result) {
	e := p.spec.Experiment
	from, to := e.Competition(k, p.quick)
	var sides result.Sides
	add := func(client string, c *sim.ConnectionResult) {
		s := &sides[sides.Index(client)]
		s.Connections++
		s.Bytes += during(c.Series, from, to)
		for i, path := range c.Paths {
			s.Paths = append(s.Paths, result.SidePath{
				First: i == 0, Bytes: during(path.Series, from, to), Losses: int64(path.Recoveries + path.Timeouts), RoundTrip: path.MeanRTT,
			})
		}
	}
	next := 0
	take := func(client string, n int) {
		for range n {
			add(client, &simulated.Connections[next])
			next++
		}
	}
	take(e.Client, 1)
	for _, x := range e.Case(k.Case).Connections {
		client := x.Client
		if x.Own() {
			client = e.Client
		}
		take(client, x.Count())
	}
	result.PutCompetition(run, to-from, sides)
}

// during returns the bytes of a series in the intervals from one time to another.
func during(series []unit.Size, from, to time.Duration) float64 {
	n := unit.Size(0)
	for i := int(from / interval); i < min(int(to/interval), len(series)); i++ {
		n += series[i]
	}
	return float64(n)
}
