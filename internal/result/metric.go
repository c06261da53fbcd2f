package result

import (
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/fault"
)

// The metrics that a run can have. Rates count payload in bits per second.
const (
	Goodput        = "goodput_bps"
	LimitRate      = "limit_bps"
	LimitTCPRate   = "limit_tcp_bps"
	OfferedRate    = "offered_bps"
	FirstByte      = "first_byte_s"
	Duration       = "duration_s"
	Bytes          = "bytes"
	EmptyIntervals = "empty_intervals"
	LongestGap     = "longest_gap_s"
	// WorstSecond is the lowest goodput in any second.
	WorstSecond = "worst_second_bps"
	// The following are of runs with events or schedules.
	EventTime       = "event_s"
	GoodputBefore   = "goodput_before_bps"
	GoodputAfter    = "goodput_after_bps"
	LimitAfter      = "limit_after_bps"
	GapAfter        = "gap_after_event_s"
	TimeToLimit     = "time_to_limit_s"
	ConnectionsLost = "connections_lost"
	// Resequencing of the segments of several subflows (paper B). Throughput is payload, as a
	// share of the sum of the rates of the transport's links: before resequencing, in order
	// within each subflow; after resequencing, in order at the data level.
	ThroughputBefore = "throughput_before"
	ThroughputAfter  = "throughput_after"
	ReseqDelayMean   = "reseq_delay_mean_s"
	ReseqDelayP50    = "reseq_delay_p50_s"
	ReseqDelayP95    = "reseq_delay_p95_s"
	ReseqDelayP99    = "reseq_delay_p99_s"
	ReseqDelayMax    = "reseq_delay_max_s"
	BurstMax         = "burst_max_segments"
	BurstP99         = "burst_p99_segments"
	// BurstFirst is the longest burst of the first 3 s. The following metrics of bursts are of
	// the time after that; a large burst has LargeBurst segments or more.
	BurstFirst      = "burst_first_segments"
	BurstSteady     = "burst_steady_segments"
	BurstLarge      = "burst_large_segments"
	BurstSmall      = "burst_small_segments"
	BurstsPerSecond = "large_bursts_per_s"
	BurstPeriod     = "burst_period_s"
	BufferMax       = "buffer_max_bytes"
	BufferMean      = "buffer_mean_bytes"
	Retransmissions = "retransmissions"
	Timeouts        = "timeouts"
	Reinjections    = "reinjections"
	// TripleDuplicates is how often three duplicate acknowledgments came in a row, as a share of all
	// acknowledgments.
	TripleDuplicates = "triple_duplicates"
	// The following are of numbered datagrams: the share that did not arrive, the share that arrived
	// after one with a higher number (RFC 4737), and by how many numbers at most.
	LostShare       = "lost_share"
	ReorderedShare  = "reordered_share"
	ReorderedBehind = "reordered_behind"
	// The following are of experiments that change routes, in seconds from the change of policy
	// unless stated otherwise.
	EPERoute    = "epe_route_s"
	BestPath    = "best_path_s"
	SubflowTime = "subflow_s"
	ASBRRoute   = "asbr_route_s"
	// ASBRReceived is when the peer's update arrives at the ASBR.
	ASBRReceived = "asbr_received_s"
	// ASBRPart is from the peer's message at the ASBR to the ASBR's message to the reflector,
	// ReflectorPart from there to the reflector's message at the server, EdgePart from there to
	// the change of the EPE Route.
	ASBRPart      = "asbr_part_s"
	ReflectorPart = "reflector_part_s"
	EdgePart      = "edge_part_s"
	// OwnPart is the sum of ASBRPart and EdgePart: the delay that this program adds to that of
	// other routers.
	OwnPart = "own_part_s"
)

// The backends of results.
const (
	BackendLab = "lab"
	BackendSim = "sim"
)

// Occasion is a set of conditions under which a run has a metric.
type Occasion uint8

const (
	// OnDelivery: any delivery.
	OnDelivery Occasion = 1 << iota
	// OnChange: a delivery whose case has events or whose links have a schedule.
	OnChange
	// OnRouteChange: a run of an experiment that changes routes.
	OnRouteChange
)

// Metric is a row of the table of metrics, which expectations, figures, sweeps, comparisons and
// backends share.
type Metric struct {
	Name, Title, Unit string
	// Backend is the only backend that measures the metric; if empty, both do.
	Backend string
	// Packets: a lab measures the metric only from a capture at the receiver, which is
	// optional.
	Packets bool
	// MPTCP: a run over a transport without MPTCP does not have the metric.
	MPTCP bool
	// Sweep: the metric is a column of a sweep's table.
	Sweep bool
	// Compare: the metric is compared between lab and simulation.
	Compare bool
	// Better is 1 if more is better, -1 if less is better, 0 if neither is.
	Better int
	// Occasion is when a run has the metric; 0 means OnDelivery.
	Occasion Occasion
}

// metrics are all metrics, in the order of columns.
var metrics = []Metric{
	{Name: Goodput, Title: "goodput", Better: 1, Unit: "bit/s", Sweep: true, Compare: true},
	{Name: LimitRate, Title: "available capacity (payload)", Unit: "bit/s", Sweep: true},
	{Name: LimitTCPRate, Title: "available capacity (payload) with plain TCP headers", Unit: "bit/s"},
	{Name: OfferedRate, Title: "offered rate (payload)", Unit: "bit/s"},
	{Name: Bytes, Title: "payload received", Unit: "B", Sweep: true},
	{Name: Duration, Title: "time from the request to the last byte", Better: -1, Unit: "s", Sweep: true},
	{Name: FirstByte, Title: "time to first byte", Better: -1, Unit: "s", Sweep: true},
	{Name: EmptyIntervals, Title: "100 ms intervals without data", Better: -1},
	{Name: LongestGap, Title: "longest gap without data", Better: -1, Unit: "s", Sweep: true},
	{Name: WorstSecond, Title: "goodput of the worst second", Better: 1, Unit: "bit/s"},
	{Name: EventTime, Title: "time of the first event", Unit: "s", Occasion: OnChange},
	{Name: GoodputBefore, Title: "goodput before the first event", Better: 1, Unit: "bit/s", Occasion: OnChange},
	{Name: GoodputAfter, Title: "goodput after the first event", Better: 1, Unit: "bit/s", Occasion: OnChange},
	{Name: LimitAfter, Title: "available capacity (payload) at the end", Unit: "bit/s", Occasion: OnChange},
	{Name: GapAfter, Title: "longest gap after the first event", Better: -1, Unit: "s", Occasion: OnChange},
	{Name: TimeToLimit, Title: "time from the last change of the available capacity to 95 % of it", Better: -1, Unit: "s", Occasion: OnChange},
	{Name: ConnectionsLost, Title: "connections lost", Better: -1, Occasion: OnChange | OnRouteChange},
	{Name: ThroughputBefore, Title: "throughput before resequencing, of the sum of the rates", Better: 1, Packets: true, MPTCP: true, Sweep: true},
	{Name: ThroughputAfter, Title: "throughput after resequencing, of the sum of the rates", Better: 1, Packets: true, MPTCP: true, Sweep: true},
	{Name: ReseqDelayMean, Title: "mean resequencing delay", Better: -1, Unit: "s", Packets: true, MPTCP: true, Sweep: true, Compare: true},
	{Name: ReseqDelayP50, Title: "median resequencing delay", Better: -1, Unit: "s", Packets: true, MPTCP: true, Sweep: true},
	{Name: ReseqDelayP95, Title: "95th percentile of the resequencing delay", Better: -1, Unit: "s", Packets: true, MPTCP: true, Sweep: true, Compare: true},
	{Name: ReseqDelayP99, Title: "99th percentile of the resequencing delay", Better: -1, Unit: "s", Packets: true, MPTCP: true, Sweep: true},
	{Name: ReseqDelayMax, Title: "longest resequencing delay", Better: -1, Unit: "s", Packets: true, MPTCP: true, Sweep: true, Compare: true},
	{Name: BurstMax, Title: "longest burst", Better: -1, Unit: "segments", Packets: true, MPTCP: true, Sweep: true, Compare: true},
	{Name: BurstP99, Title: "99th percentile of the burst length", Better: -1, Unit: "segments", Packets: true, MPTCP: true, Sweep: true},
	{Name: BurstFirst, Title: "longest burst of the first 3 s", Better: -1, Unit: "segments", Packets: true, MPTCP: true, Sweep: true, Compare: true},
	{Name: BurstSteady, Title: "longest burst after 3 s", Better: -1, Unit: "segments", Packets: true, MPTCP: true, Sweep: true},
	{Name: BurstLarge, Title: "median length of bursts of 10 segments or more, after 3 s", Better: -1, Unit: "segments", Packets: true, MPTCP: true, Sweep: true, Compare: true},
	{Name: BurstSmall, Title: "longest burst of fewer than 10 segments, after 3 s", Unit: "segments", Packets: true, MPTCP: true},
	{Name: BurstsPerSecond, Title: "bursts of 10 segments or more per second, after 3 s", Unit: "1/s", Packets: true, MPTCP: true, Sweep: true},
	{Name: BurstPeriod, Title: "median time between bursts of 10 segments or more, after 3 s", Unit: "s", Packets: true, MPTCP: true, Sweep: true, Compare: true},
	{Name: BufferMax, Title: "peak reorder-buffer occupancy", Better: -1, Unit: "B", Packets: true, MPTCP: true, Sweep: true, Compare: true},
	{Name: BufferMean, Title: "mean reorder-buffer occupancy", Better: -1, Unit: "B", Packets: true, MPTCP: true, Sweep: true, Compare: true},
	{Name: Retransmissions, Title: "retransmitted segments", Better: -1, Packets: true, Sweep: true, Compare: true},
	{Name: Timeouts, Title: "retransmission timeouts", Better: -1, Backend: BackendSim, Sweep: true},
	{Name: Reinjections, Title: "reinjected segments", Better: -1, Backend: BackendSim, MPTCP: true, Sweep: true},
	{Name: TripleDuplicates, Title: "events of three duplicate acknowledgments, of all acknowledgments", Better: -1, Backend: BackendSim, Sweep: true},
	{Name: LostShare, Title: "share of datagrams lost", Better: -1, Backend: BackendSim, Sweep: true},
	{Name: ReorderedShare, Title: "share of datagrams that arrive after a higher number", Better: -1, Backend: BackendSim, Sweep: true},
	{Name: ReorderedBehind, Title: "most numbers by which a datagram is behind", Better: -1, Backend: BackendSim, Sweep: true},
	{Name: EPERoute, Title: "time to the change of the EPE route on the server", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnRouteChange},
	{Name: BestPath, Title: "time to the last change of the best path on the server", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnRouteChange},
	{Name: SubflowTime, Title: "time to the first or last packet on the subflow", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnRouteChange},
	{Name: ASBRRoute, Title: "time to the change of the ASBR's own route", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnRouteChange},
	{Name: ASBRReceived, Title: "time until the ASBR receives the update", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnRouteChange},
	{Name: ASBRPart, Title: "processing time of the ASBR", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnRouteChange},
	{Name: ReflectorPart, Title: "processing time of the reflector", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnRouteChange},
	{Name: EdgePart, Title: "processing time of the server", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnRouteChange},
	{Name: OwnPart, Title: "processing time of ASBR and server together", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnRouteChange},
}

// Metrics returns all metrics, in the order of columns. The caller keeps the slice.
func Metrics() []Metric { return slices.Clone(metrics) }

// Select returns the names of the metrics that keep accepts, in the order of columns.
func Select(keep func(Metric) bool) []string {
	var names []string
	for _, m := range metrics {
		if keep(m) {
			names = append(names, m.Name)
		}
	}
	return names
}

// MetricNamed returns the row of a metric.
func MetricNamed(name string) (Metric, bool) {
	i := slices.IndexFunc(metrics, func(m Metric) bool { return m.Name == name })
	if i < 0 {
		return Metric{}, false
	}
	return metrics[i], true
}

// CheckMetric adds a fault at path if no metric has the name.
func CheckMetric(faults *fault.List, path, name string) bool {
	if _, ok := MetricNamed(name); ok {
		return true
	}
	names := Select(func(Metric) bool { return true })
	faults.Add(path, "must be one of %s, got %q%s", strings.Join(names, ", "), name, fault.Suggest(name, names))
	return false
}

// Measures reports whether a backend has the metric.
func (m Metric) Measures(backend string) bool { return m.Backend == "" || m.Backend == backend }

// On reports whether a run has the metric on any of the occasions.
func (m Metric) On(o Occasion) bool { return max(m.Occasion, OnDelivery)&o != 0 }
