package simrun

import (
	"fmt"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/cell"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/sim"
)

// competitors returns a fault for each connection of a case that has no way.
func (p *plan) competitors() fault.List {
	var faults fault.List
	for i, c := range p.spec.Experiment.Cases {
		for j, x := range c.Connections {
			for _, path := range p.cells.PathsTo(x.Client, x.Links) {
				if path.Err != nil {
					faults.Add(fmt.Sprintf("experiment.cases[%d].connections[%d].links", i, j), "%v", path.Err)
					break
				}
			}
		}
	}
	return faults
}

// compete adds the other connections of the cell to that of its transport. Their order is that of
// cell.Connections.
func (b *builder) compete(own sim.Connection) error {
	for _, x := range b.cell.Beside() {
		conn := own
		if !x.Own {
			conn = sim.Connection{MPTCP: x.Transport.MPTCP, Bytes: own.Bytes, Header: b.spec.Headers(x.Transport), Handshake: true}
			var err error
			if conn.Paths, err = b.paths(&x); err != nil {
				return err
			}
			if err := b.behave(&conn, &x); err != nil {
				return err
			}
		}
		conn.Start, conn.Stop = own.Start+x.Start, 0
		if x.Stop > 0 {
			conn.Stop = own.Start + x.Stop
		}
		for i := range x.Count {
			conn.Name = fmt.Sprintf("%s %d", x.Client, i)
			b.config.Connections = append(b.config.Connections, conn)
		}
	}
	return nil
}

// measureCompetition adds the metrics of the connections that compete.
func (p *plan) measureCompetition(of *cell.Cell, run *result.Run, simulated sim.Result) {
	from, to := p.spec.Experiment.Competition(of.Key, p.quick)
	sides, at := of.Sides()
	next := 0
	for i, x := range of.Connections {
		s := &sides[at[i]]
		for range x.Count {
			c := &simulated.Connections[next]
			next++
			s.Bytes += during(c.Series, from, to)
			for i, path := range c.Paths {
				s.Paths = append(s.Paths, result.SidePath{
					First: i == 0, Bytes: during(path.Series, from, to), Losses: int64(path.Recoveries + path.Timeouts), RoundTrip: path.MeanRTT,
				})
			}
		}
	}
	result.PutCompetition(run, to-from, sides)
}

// measureBeside adds what a download and those beside it carried from a time on.
func measureBeside(run *result.Run, simulated sim.Result, from, lasted time.Duration) {
	var bytes []float64
	for i := range simulated.Connections {
		bytes = append(bytes, during(simulated.Connections[i].Series, from, from+lasted))
	}
	result.PutDownloads(run.Metrics, bytes, lasted)
}

// during returns the bytes of a series in the intervals from one time to another.
func during(series []unit.Size, from, to time.Duration) float64 {
	n := unit.Size(0)
	for i := int(from / interval); i < min(int(to/interval), len(series)); i++ {
		n += series[i]
	}
	return float64(n)
}
