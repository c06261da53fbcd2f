package sim

import (
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/epe/selection"
	"github.com/tabane/tabane/internal/gateway/reseq"
)

// Never is the time of an event that did not happen.
const Never = time.Duration(-1)

// Result is the result of a simulation. Its lists are in the order of the Config's.
type Result struct {
	// Duration is the simulated time, and Events the number of events handled.
	Duration    time.Duration
	Events      uint64
	Connections []ConnectionResult
	Links       []LinkResult
	Cross       []CrossResult
}

// ConnectionResult is the result of a connection. Bytes are of payload.
type ConnectionResult struct {
	Name string
	// Active is the time from the start of the connection until the application finished sending
	// and receiving, or the end of the simulation. Rates are over this time.
	Active time.Duration
	// FirstByte is when the first byte was delivered to the application, Finish when the last of
	// Connection.Bytes was, both since the start of the simulation, or Never.
	FirstByte, Finish time.Duration
	// LongestGap is the longest time without delivery to the application, between FirstByte and
	// Finish, Stop or the end.
	LongestGap time.Duration
	// Arrived is the number of bytes received on all subflows, each byte once: before
	// resequencing. Delivered is the number delivered to the application: after it.
	Arrived, Delivered unit.Size
	// Reseq has the delay, bursts and occupancy of resequencing.
	Reseq reseq.Measures
	Paths []PathResult
	// Delivered bytes in each interval of Config.Series.
	Series []unit.Size
	// Objects are the times of Connection.Object from the request, of the first from the start of
	// the connection, to its last byte.
	Objects []time.Duration `json:",omitempty"`
	// Reinjected is the number of segments reinjected.
	Reinjected uint64
	// Learned is what the connection learned of each path, with Connection.Overflow.
	Learned []selection.Past `json:",omitempty"`
	// Uses are the decisions on paths, with Connection.Overflow.
	Uses []Use `json:"-"`
	// Gateway is the tunnel that carries the data, with a Gateway.
	Gateway *GatewayResult `json:",omitempty"`
	// Penalties is the number of times a subflow was penalized.
	Penalties uint64
	// Blocked is the time during which there was data and room in a congestion window, but the
	// shared window, RBuf or SendBuffer was full.
	Blocked time.Duration
}

// Before and After are the mean rates before and after resequencing, over Active.
func (r *ConnectionResult) Before() unit.Bandwidth { return r.Arrived.Over(r.Active) }

// After is documented with Before.
func (r *ConnectionResult) After() unit.Bandwidth { return r.Delivered.Over(r.Active) }

// PathResult is the result of a subflow.
type PathResult struct {
	// Segments is the number of segments sent, Retransmissions and Reinjected included.
	Segments, Retransmissions uint64
	// Reinjected is the number of segments with data first sent on another subflow.
	Reinjected uint64
	// Recoveries counts fast recoveries, Timeouts expirations of the retransmission timer, Probes
	// tail loss probes sent.
	Recoveries, Timeouts, Probes uint64
	// Undone is the number of reductions of the congestion window that were undone as spurious.
	Undone uint64 `json:",omitempty"`
	// Acks is the number of acknowledgements received. Triples is, with a Gateway, how often three
	// duplicate ones came in a row, which is a fast retransmission without SACK (RFC 5681).
	Acks    uint64
	Triples uint64 `json:",omitempty"`
	// Arrived is the bytes received on the subflow, each once; Duplicates is the number of segments
	// received again.
	Arrived    unit.Size
	Duplicates uint64
	// SRTT, MinRTT and RTO are the values at the end; MeanRTT is the mean of all samples.
	SRTT, MinRTT, MeanRTT, RTO time.Duration
	// Cwnd is the congestion window at the end, and MeanCwnd its mean over time, in segments.
	Cwnd, MeanCwnd float64
	// Stale: the subflow was stale at the end because of timeouts.
	Stale bool
	// Established is when it was established, since the start of the simulation, or Never.
	Established time.Duration
	// Series is the bytes received in each interval of Config.Series.
	Series []unit.Size
}

// LinkResult has the counters of a link, in packets and bytes.
type LinkResult struct {
	Name string
	// Arrived counts packets that entered the link, Sent those that left it at its other end.
	Arrived, ArrivedBytes, Sent, SentBytes uint64
	// Dropped counts drops by the queue, Lost packets lost on the wire, Duplicated packets
	// duplicated on the wire, Down drops because the link was down.
	Dropped, Lost, Duplicated, Down uint64
}

// CrossResult has the counters of a source of cross traffic.
type CrossResult struct {
	Name           string
	Sent, Received uint64
	ReceivedBytes  unit.Size
	// The following are of numbered datagrams. Duplicates arrived again. Reordered arrived after
	// one with a higher number (RFC 4737, section 4); Behind is by how many numbers at most. Series
	// has the arrivals.
	Duplicates, Reordered, Behind uint64        `json:",omitempty"`
	Series                        []reseq.Burst `json:",omitempty"`
	// DelayP95 is the 95th percentile of their delay, to their first arrival.
	DelayP95 time.Duration  `json:",omitempty"`
	Gateway  *GatewayResult `json:",omitempty"`
}
