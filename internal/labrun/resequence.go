package labrun

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/capture"
	"github.com/tabane/tabane/internal/lab"
	"github.com/tabane/tabane/internal/packet"
	"github.com/tabane/tabane/internal/pcap"
	"github.com/tabane/tabane/internal/reseq"
	"github.com/tabane/tabane/internal/result"
	"github.com/tabane/tabane/internal/scenario"
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

const (
	// receiverSnap is the number of bytes captured of a packet: its headers, including those of
	// a tunnel.
	receiverSnap = 512
	// receiverRecords bounds the records of one run, some 200 MB.
	receiverRecords = 2_000_000
	// NotePackets is the note with the number of packets that a full buffer dropped.
	NotePackets = "packets_missed"
)

// receiver analyzes the packets of a node while it runs.
type receiver struct {
	capture  *lab.Packets
	analysis *capture.Analysis
	packet   pcap.Packet
	segment  pcap.Segment
	done     chan struct{}
	err      error // once done is closed
}

// receive starts a receiver, which runs until ctx ends. It captures all packets after receive has
// returned.
func receive(ctx context.Context, l *lab.Lab, node string) (*receiver, error) {
	n, err := l.Node(node)
	if err != nil {
		return nil, err
	}
	r := &receiver{analysis: capture.New(capture.Options{Record: true, MaxRecords: receiverRecords}), done: make(chan struct{})}
	r.packet.Link = pcap.LinkEthernet
	r.capture, err = n.Packets("", receiverSnap)
	if err != nil {
		return nil, err
	}
	go func() {
		defer close(r.done)
		r.err = errors.Join(r.capture.Run(ctx, packet.Handler{Packet: r.take}), r.capture.Close())
	}()
	return r, nil
}

// stop cancels the receiver's context and waits until it has ended.
func (r *receiver) stop(cancel context.CancelFunc) {
	cancel()
	<-r.done
}

// take processes one packet.
func (r *receiver) take(p packet.Packet) error {
	r.packet.At, r.packet.Data, r.packet.Length, r.packet.Interface = p.At.UnixNano(), p.Data, p.Length, p.Interface
	r.packet.Direction = pcap.Inbound
	if p.Sent {
		r.packet.Direction = pcap.Outbound
	}
	if pcap.Decode(&r.packet, &r.segment) == pcap.TCP {
		r.analysis.Add(&r.segment)
	}
	return nil
}

// measure adds the metrics of the captured connection to a run and returns the connection's bursts.
// The receiver must have stopped.
func (r *receiver) measure(spec *scenario.Spec, k result.CellKey, run *result.Run) ([]reseq.Burst, error) {
	if r.err != nil {
		return nil, fmt.Errorf("capture at the client: %w", r.err)
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
	if r.capture.Stats().Dropped > 0 || c.ToClient.Uncaptured > 0 {
		run.Notes[NotePackets] = fmt.Sprintf("%d packets, %d bytes", r.capture.Stats().Dropped, c.ToClient.Uncaptured)
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
