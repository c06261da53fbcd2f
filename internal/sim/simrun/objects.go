package simrun

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/epe/selection"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/gateway/reseq"
	"github.com/tabane/tabane/internal/sim"
)

// newConnections returns a fault for each traffic that opens a connection for each object, where
// links change during a run or something runs beside it: each object is simulated alone.
func (p *plan) newConnections() fault.List {
	var faults fault.List
	e := p.spec.Experiment
	for _, name := range e.TrafficNames() {
		if t := e.Traffic[name]; t.NewConnections && t.Beside > 0 {
			faults.Add("experiment.traffic."+name+".beside", "the simulator has no downloads beside objects on new connections, each of which it simulates alone")
		}
		if e.Traffic[name].NewConnections && (e.HasEvents() || len(p.spec.Scheduled()) > 0) {
			faults.Add("experiment.traffic."+name+".new_connections", "the simulator has it only without events and schedules")
		}
	}
	return faults
}

// simulateObjects is simulate for a traffic with a connection for each object. Connections follow
// each other and share nothing: what is left of one in a queue does not delay the next.
func (p *plan) simulateObjects(ctx context.Context, k result.CellKey, trial int, seed uint64) (result.Run, *result.Trace, error) {
	run := result.Run{CellKey: k, Trial: trial, Metrics: map[string]float64{}, Notes: map[string]string{}}
	of, err := p.cells.Cell(k)
	if err != nil {
		return run, nil, err
	}
	t, limit := of.Traffic, of.Limit
	var (
		arrivals []reseq.Burst
		notes    []result.Note // decisions of the first connection
		times    []time.Duration
		began    time.Duration
	)
	var past []selection.Past
	begin := 0
	for i := range t.Objects {
		config, err := p.configOf(of, seed+uint64(i)<<32)
		if err == nil && i == 0 {
			err = p.recall(ctx, k, &config)
			past, begin = config.Connections[0].Past, config.Connections[0].Begin
		}
		if err != nil {
			return run, nil, fmt.Errorf("%s: %w", k, err)
		}
		config.Connections[0].Past, config.Connections[0].Begin = past, begin
		config.Connections[0].Bytes, config.Connections[0].Object = t.Bytes, 0
		s, err := sim.New(config)
		if err != nil {
			return run, nil, fmt.Errorf("%s: %w", k, err)
		}
		simulated, err := s.Run(ctx)
		if err != nil {
			return run, nil, fmt.Errorf("%s trial %d: %w", k, trial, err)
		}
		c := &simulated.Connections[0]
		if i == 0 {
			notes = uses(of.Own().Transport.Links, &config.Connections[0], c, config.Connections[0].Start)
		}
		for _, b := range c.Reseq.Series {
			b.At += began
			arrivals = append(arrivals, b)
		}
		run.Metrics[result.Reinjections] += float64(c.Reinjected)
		for _, path := range c.Paths {
			run.Metrics[result.Retransmissions] += float64(path.Retransmissions)
			run.Metrics[result.Timeouts] += float64(path.Timeouts)
		}
		if c.Finish == sim.Never || limit > 0 && began+c.Finish >= limit {
			break
		}
		times = append(times, c.Finish)
		began += c.Finish
	}
	done := len(times) == t.Objects
	report := traffic.Replay(interval, limit, done, func(yield func(time.Duration, int) bool) {
		for _, b := range arrivals {
			if !yield(b.At, b.Bytes) {
				return
			}
		}
	})
	report.Objects = times
	of.Phases[0].Put(run.Metrics)
	switch {
	case report.Bytes == 0:
		err = errors.New("not a byte arrived")
	case limit == 0 && !done:
		err = fmt.Errorf("took far longer than it should: after %d of %d objects", len(times), t.Objects)
	}
	if err != nil {
		run.Notes[result.NoteError] = err.Error()
		return run, nil, nil
	}
	trace := &result.Trace{CellKey: k, Trial: trial, Interval: interval, Samples: report.Series, Decisions: notes}
	result.PutDelivery(run.Metrics, report)
	result.Mean(of.Phases, report.Duration).Put(run.Metrics)
	trace.Measure(of.Phases, run.Metrics)
	return run, trace, nil
}
