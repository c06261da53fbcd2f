package labrun

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/analysis/capture"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/gateway/reseq"
	"github.com/tabane/tabane/internal/lab"
)

// resequences reports whether an expectation or a figure of the experiment needs the packets
// captured at the client.
func resequences(e *scenario.Experiment) bool {
	needs := func(name string) bool {
		m, ok := result.MetricNamed(name)
		return ok && m.Packets
	}
	return slices.ContainsFunc(e.Expect, func(x scenario.Expectation) bool {
		return needs(x.Metric) || needs(x.Relative)
	}) || slices.ContainsFunc(e.Figures, func(f scenario.Figure) bool {
		return f.Bursts() || slices.ContainsFunc(f.AllMetrics(), needs)
	})
}

// receiverRecords bounds the records of one run, some 200 MB.
const receiverRecords = 2_000_000

// receiver analyzes the segments of a node while it runs.
type receiver struct {
	*segments
	analysis *capture.Analysis
}

// receive starts a receiver.
func receive(ctx context.Context, l *lab.Lab, node string) (*receiver, error) {
	r := &receiver{analysis: capture.New(capture.Options{Record: true, MaxRecords: receiverRecords})}
	var err error
	r.segments, err = captureSegments(ctx, l, node, r.analysis.Add)
	return r, err
}

// measure adds the metrics of the captured connection to a run and returns the connection's bursts.
// It stops the receiver.
func (r *receiver) measure(spec *scenario.Spec, k result.CellKey, run *result.Run) ([]reseq.Burst, error) {
	if err := r.stop(); err != nil {
		return nil, fmt.Errorf("capture at the client: %w", err)
	}
	report := r.analysis.Report()
	var c *capture.Connection
	for i := range report.Connections {
		if x := &report.Connections[i]; c == nil || x.ToClient.Bytes > c.ToClient.Bytes {
			c = x
		}
	}
	if c == nil || c.ToClient.DelayBins == nil {
		return nil, errors.New("no connection was captured at the client")
	}
	if n := r.dropped(); n > 0 || c.ToClient.Uncaptured > 0 {
		run.Notes[NotePackets] = fmt.Sprintf("%d packets, %d bytes", n, c.ToClient.Uncaptured)
	}
	d := &c.ToClient
	m := reseq.Measures{
		Arrived:       reseq.Count{Segments: d.Segments, Bytes: d.Bytes + d.Unreleased},
		Released:      reseq.Count{Segments: d.Segments, Bytes: d.Bytes},
		PeakOccupancy: reseq.Count{Segments: d.PeakOccupancy.Segments, Bytes: d.PeakOccupancy.Bytes},
		MeanOccupancy: d.MeanOccupancy, Delay: *d.DelayBins, Series: d.Series,
	}
	for _, b := range d.Series {
		m.Bursts.Add(int64(b.Segments))
	}
	lasted := time.Duration(run.Metrics[result.Duration] * float64(time.Second))
	result.PutResequencing(run.Metrics, &m, spec.SumRates(k), lasted)
	for _, s := range c.Subflows {
		run.Metrics[result.Retransmissions] += float64(s.ToClient.Retransmitted.Segments)
	}
	if len(c.Missed) > 0 {
		run.Notes["capture"] = strings.Join(c.Missed, "; ")
	}
	return d.Series, nil
}
