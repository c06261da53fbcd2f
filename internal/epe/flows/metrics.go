package flows

import (
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tabane/tabane/internal/epe/flowcount"
)

// aggregateKey is the key by which flows are aggregated for monitoring, so that the number of
// metrics does not grow with the number of flows.
type aggregateKey struct {
	iface string
	sent  bool
	sid   netip.Addr
	peer  string
}

// Aggregate is the sum of the flows with the same interface, direction, SID and egress peer.
type Aggregate struct {
	flowcount.Count
	// Flows is the current number of flows.
	Flows int
	// Retransmitted counts retransmitted segments of sent flows.
	Retransmitted uint64
}

// maxAggregates is the maximum number of aggregates: SIDs are read from packets, which anyone can
// send.
const maxAggregates = 1024

// otherSIDs is the SID label of flows beyond maxAggregates.
const otherSIDs = "other"

func (t *tracker) aggregate(f *Flow) *Aggregate {
	key := aggregateKey{f.Interface, f.Sent, f.SID, f.Peer}
	a := t.aggregates[key]
	if a == nil {
		if len(t.aggregates) >= maxAggregates {
			key = aggregateKey{iface: f.Interface, sent: f.Sent, peer: otherSIDs}
			if a = t.aggregates[key]; a != nil {
				return a
			}
		}
		a = &Aggregate{}
		t.aggregates[key] = a
	}
	return a
}

// The metrics.
var (
	aggregateLabels = []string{"interface", "direction", "sid", "peer"}

	bytesDesc = prometheus.NewDesc("tabane_flows_bytes_total",
		"Bytes on the wire, from the link layer's header on.", aggregateLabels, nil)
	packetsDesc = prometheus.NewDesc("tabane_flows_packets_total",
		"Packets on the wire.", aggregateLabels, nil)
	flowsDesc = prometheus.NewDesc("tabane_flows",
		"Flows that are known now.", aggregateLabels, nil)
	retransmittedDesc = prometheus.NewDesc("tabane_flows_retransmitted_segments_total",
		"TCP segments that this host sent again.", aggregateLabels, nil)
	rttDesc = prometheus.NewDesc("tabane_flows_srtt_seconds",
		"Mean of the smoothed round-trip times of the TCP sockets that send on it.", aggregateLabels, nil)
	connectionsDesc = prometheus.NewDesc("tabane_flows_mptcp_connections",
		"MPTCP connections that flows belong to.", nil, nil)
	unparsedDesc = prometheus.NewDesc("tabane_flows_unparsed_packets_total",
		"Packets that belong to no flow, by the reason.", []string{"reason"}, nil)
)

// Describe implements prometheus.Collector.
func (w *Watcher) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{bytesDesc, packetsDesc, flowsDesc, retransmittedDesc, rttDesc, connectionsDesc, unparsedDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (w *Watcher) Collect(ch chan<- prometheus.Metric) {
	w.mu.Lock()
	defer w.mu.Unlock()
	type mean struct {
		sum float64
		n   int
	}
	rtts := map[*Aggregate]mean{}
	for _, f := range w.t.flows {
		if s, _ := f.Socket(); s != nil && f.Sent && s.RTT > 0 {
			m := rtts[f.sum]
			rtts[f.sum] = mean{m.sum + s.RTT.Seconds(), m.n + 1}
		}
	}
	constant := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, value, labels...)
	}
	for key, a := range w.t.aggregates {
		labels := []string{key.iface, direction(key.sent), "", key.peer}
		if key.sid.IsValid() {
			labels[2] = key.sid.String()
		}
		constant(bytesDesc, prometheus.CounterValue, float64(a.Bytes), labels...)
		constant(packetsDesc, prometheus.CounterValue, float64(a.Packets), labels...)
		constant(flowsDesc, prometheus.GaugeValue, float64(a.Flows), labels...)
		if key.sent {
			constant(retransmittedDesc, prometheus.CounterValue, float64(a.Retransmitted), labels...)
		}
		if m := rtts[a]; m.n > 0 {
			constant(rttDesc, prometheus.GaugeValue, m.sum/float64(m.n), labels...)
		}
	}
	constant(connectionsDesc, prometheus.GaugeValue, float64(len(w.t.connections)))
	for r, c := range w.t.snapshot.Unparsed {
		if flowcount.Reason(r) != flowcount.Counted {
			constant(unparsedDesc, prometheus.CounterValue, float64(c.Packets), flowcount.Reason(r).String())
		}
	}
}

func direction(sent bool) string {
	if sent {
		return "sent"
	}
	return "received"
}

// Status is the content of /status.
type Status struct {
	Interfaces  []string          `json:"interfaces"`
	Interval    string            `json:"interval"`
	Flows       int               `json:"flows"`
	Connections int               `json:"mptcp_connections"`
	Sockets     string            `json:"sockets"`
	Unparsed    map[string]uint64 `json:"unparsed_packets"`
}

// Status returns a Status.
func (w *Watcher) Status() any {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := Status{
		Interfaces: w.options.Interfaces, Interval: w.options.Interval.String(), Flows: len(w.t.flows),
		Connections: len(w.t.connections), Sockets: "read", Unparsed: unparsed(&w.t.snapshot),
	}
	if w.socketsErr != nil {
		s.Sockets = w.socketsErr.Error()
	}
	return s
}

// unparsed returns the numbers of packets that belong to no flow, by reason; reasons without
// packets are omitted.
func unparsed(s *Snapshot) map[string]uint64 {
	all := map[string]uint64{}
	for r, c := range s.Unparsed {
		if c.Packets > 0 {
			all[flowcount.Reason(r).String()] = c.Packets
		}
	}
	return all
}

var _ prometheus.Collector = (*Watcher)(nil)
