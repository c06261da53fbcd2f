package simrun

import (
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/cell"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/gateway/reseq"
	"github.com/tabane/tabane/internal/sim"
)

// newGateway returns the gateways of a transport.
func newGateway(t *scenario.Transport, overhead int) *sim.Gateway {
	g := t.Gateway
	hold, auto := g.Hold()
	s := &sim.Gateway{Discipline: g.Discipline, Hold: reseq.Hold(hold), Overhead: overhead, Probes: g.Probes, Open: g.Carried().Open()}
	if auto {
		s.Hold = reseq.Auto
	}
	if g.Replies != "" {
		s.Replies = 1 + slices.Index(t.Links, g.Replies)
	}
	return s
}

// source returns the source of a traffic of datagrams, over the paths of a connection.
func source(c sim.Connection, t *scenario.Traffic, lasts time.Duration, overhead traffic.Overhead) sim.Cross {
	overhead.UDP, overhead.Tunnel = true, 0
	size := t.Datagram + overhead.Headers()
	x := sim.Cross{
		Name: c.Name, Kind: sim.CBR, Size: size, Payload: t.Datagram, Start: c.Start, Stop: c.Start + lasts,
		Rate: unit.Bandwidth(float64(t.Rate) * float64(size) / float64(t.Datagram)), Gateway: c.Gateway,
	}
	if c.Gateway != nil {
		x.Paths = c.Paths
	} else {
		x.Out = c.Paths[0].Out
	}
	return x
}

// subflows returns what the gateways sent on each link, from the start of the transfer.
func subflows(links []string, g *sim.GatewayResult, began time.Duration) []result.Subflow {
	var list []result.Subflow
	for i, series := range g.Series {
		series = series[min(int(began/interval), len(series)):]
		bytes := make([]int64, len(series))
		for j, n := range series {
			bytes[j] = int64(n)
		}
		known := g.Estimates[i][min(int(began/interval), len(g.Estimates[i])):]
		estimates := make([]result.Estimate, len(known))
		for j, e := range known {
			estimates[j] = result.Estimate{Rate: e.Rate, Delay: e.Delay, Jitter: e.Jitter, Loss: float64(e.Loss) / 1e6, Usable: e.Usable, Resting: e.Resting}
		}
		list = append(list, result.Subflow{Name: links[i], Bytes: bytes, Estimates: estimates})
	}
	slices.SortFunc(list, func(a, b result.Subflow) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// decisions explains the decisions on the paths of a gateway.
func decisions(links []string, g *sim.GatewayResult, began time.Duration) []result.Note {
	var list []result.Note
	for _, d := range g.Decisions {
		list = append(list, result.Note{At: d.At - began, Text: d.Use.List(links) + ": " + d.Explain(links)})
	}
	return list
}

// measureDatagrams is measure for a traffic of datagrams.
func (p *plan) measureDatagrams(of *cell.Cell, trial int, config sim.Config, simulated sim.Result) (result.Run, *result.Trace) {
	run := result.Run{CellKey: of.Key, Trial: trial, Metrics: map[string]float64{}, Notes: map[string]string{}}
	x, c := config.Cross[0], &simulated.Cross[0]
	report := traffic.Replay(interval, 0, true, func(yield func(time.Duration, int) bool) {
		for _, b := range c.Series {
			if !yield(b.At-x.Start, b.Bytes) {
				return
			}
		}
	})
	report.Datagrams = &traffic.Datagrams{Sent: c.Sent, Received: c.Received, Duplicates: c.Duplicates, Reordered: c.Reordered, Behind: c.Behind, DelayP95: c.DelayP95}
	of.Phases[0].Put(run.Metrics)
	if report.Bytes == 0 {
		run.Notes[result.NoteError] = "not a datagram arrived"
		return run, nil
	}
	trace := &result.Trace{CellKey: of.Key, Trial: trial, Interval: interval, Samples: report.Series}
	result.PutDelivery(run.Metrics, report)
	result.Mean(of.Phases, report.Duration).Put(run.Metrics)
	trace.Measure(of.Phases, run.Metrics)
	if c.Gateway != nil {
		trace.Subflows = subflows(of.Own().Transport.Links, c.Gateway, x.Start)
		trace.Decisions = decisions(of.Own().Transport.Links, c.Gateway, x.Start)
	}
	return run, trace
}
