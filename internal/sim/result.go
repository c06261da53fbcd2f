package sim

import (
	"time"

	"github.com/tabane/tabane/internal/reseq"
	"github.com/tabane/tabane/internal/unit"
)

// Never is the time of what did not happen.
const Never = time.Duration(-1)

// Result is what came of a Config. Its lists are in the order of the Config's.
type Result struct {
	// Duration is how long was simulated, and Events how many events that took.
	Duration    time.Duration
	Events      uint64
	Connections []ConnectionResult
	Links       []LinkResult
	Cross       []CrossResult
}

// ConnectionResult is what became of a connection. Bytes are payload.
type ConnectionResult struct {
	Name string
	// Active is from the start of the connection until the application had nothing more to send or
	// receive, or the end of the simulation: what rates are over.
	Active time.Duration
	// FirstByte is when the receiving application got its first byte, Finish when it got the last
	// of Connection.Bytes, both since the start of the simulation, or Never.
	FirstByte, Finish time.Duration
	// LongestGap is the longest time without anything for the receiving application, from its first
	// byte until Finish, or until Stop or the end.
	LongestGap time.Duration
	// Arrived is what arrived on any subflow, each byte once: before resequencing. Delivered is
	// what the application got: after it.
	Arrived, Delivered unit.Size
	// Reseq is what resequencing cost.
	Reseq reseq.Measures
	Paths []PathResult
	// Delivered bytes in each interval of Config.Series.
	Series []unit.Size
	// Reinjected is how often a segment was sent again over another path.
	Reinjected uint64
	// Penalties is how often a subflow was penalized.
	Penalties uint64
	// Blocked is how long there was data and room in a congestion window, but the shared window,
	// RBuf or SendBuffer was full.
	Blocked time.Duration
}

// Before and After are the mean rates before and after resequencing, over Active.
func (r *ConnectionResult) Before() unit.Bandwidth { return r.Arrived.Over(r.Active) }

// After is documented with Before.
func (r *ConnectionResult) After() unit.Bandwidth { return r.Delivered.Over(r.Active) }

// PathResult is what became of a subflow.
type PathResult struct {
	// Segments were sent, retransmissions and reinjected ones included. Retransmissions were sent
	// again on this subflow.
	Segments, Retransmissions uint64
	// Reinjected is how many were sent that another subflow had sent before.
	Reinjected uint64
	// Recoveries is how often fast recovery was entered, Timeouts how often the retransmission
	// timer expired, Probes how many tail loss probes were sent.
	Recoveries, Timeouts, Probes uint64
	// Undone is how often a reduction of the congestion window was undone as spurious.
	Undone uint64 `json:",omitempty"`
	// Acks is how many acknowledgements came back.
	Acks uint64
	// Arrived is the bytes that arrived on the subflow, each byte of the subflow's sequence once;
	// those that came again are Duplicates, in segments.
	Arrived    unit.Size
	Duplicates uint64
	// SRTT, MinRTT and RTO are those at the end; MeanRTT is of all samples.
	SRTT, MinRTT, MeanRTT, RTO time.Duration
	// Cwnd is the congestion window at the end, and MeanCwnd its mean over time, in segments.
	Cwnd, MeanCwnd float64
	// Stale: at the end the subflow got no new data because of timeouts.
	Stale bool
	// Established is when it could send, since the start of the simulation, or Never.
	Established time.Duration
	// Series is bytes that arrived in each interval of Config.Series.
	Series []unit.Size
}

// LinkResult is what a link did with packets.
type LinkResult struct {
	Name string
	// Arrived is what was given to it, Sent what it delivered at its other end.
	Arrived, ArrivedBytes, Sent, SentBytes uint64
	// Dropped is by its queue, Lost by its wire, Duplicated twice on its wire, Down what it lost
	// for being down.
	Dropped, Lost, Duplicated, Down uint64
}

// CrossResult is what became of cross traffic.
type CrossResult struct {
	Name           string
	Sent, Received uint64
	ReceivedBytes  unit.Size
}
