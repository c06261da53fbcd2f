package result

import (
	"slices"
	"strings"
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
	// WorstSecond is the least goodput of any second.
	WorstSecond = "worst_second_bps"
	// The rest is of runs in which something happens.
	EventTime       = "event_s"
	GoodputBefore   = "goodput_before_bps"
	GoodputAfter    = "goodput_after_bps"
	LimitAfter      = "limit_after_bps"
	GapAfter        = "gap_after_event_s"
	TimeToLimit     = "time_to_limit_s"
	ConnectionsLost = "connections_lost"
	// What putting the segments of several subflows in order costs (paper B). Throughput is payload, as a share of the sum of
	// the rates of the transport's links. Before is what arrived in the order of each subflow, after what was in order
	// altogether.
	ThroughputBefore = "throughput_before"
	ThroughputAfter  = "throughput_after"
	ReseqDelayMean   = "reseq_delay_mean_s"
	ReseqDelayP50    = "reseq_delay_p50_s"
	ReseqDelayP95    = "reseq_delay_p95_s"
	ReseqDelayP99    = "reseq_delay_p99_s"
	ReseqDelayMax    = "reseq_delay_max_s"
	BurstMax         = "burst_max_segments"
	BurstP99         = "burst_p99_segments"
	// BurstFirst is the longest burst of the first 3 s. The others of bursts that follow count from there on; a large burst
	// has LargeBurst segments or more.
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
	// The rest is of experiments of KindRoutes, in seconds; unless told otherwise, from the change of policy on.
	EPERoute    = "epe_route_s"
	BestPath    = "best_path_s"
	SubflowTime = "subflow_s"
	ASBRRoute   = "asbr_route_s"
	ASBRHeard   = "asbr_heard_s"
	// ASBRPart is from the peer's message at the ASBR to the ASBR's message to the reflector, ReflectorPart from there to
	// the reflector's message at the server, EdgePart from there to the change of the EPE Route.
	ASBRPart      = "asbr_part_s"
	ReflectorPart = "reflector_part_s"
	EdgePart      = "edge_part_s"
	// OwnPart is ASBRPart and EdgePart together: what the product adds to what others' routers take.
	OwnPart = "own_part_s"
)

// Metric says what a number of a run means.
type Metric struct{ Name, Title, Unit string }

var metrics = []Metric{
	{Goodput, "goodput", "bit/s"},
	{LimitRate, "payload that the usable links carry", "bit/s"},
	{LimitTCPRate, "payload that the usable links carry with plain TCP headers", "bit/s"},
	{OfferedRate, "payload that the source offers", "bit/s"},
	{FirstByte, "time to the first byte", "s"},
	{Duration, "time from the request to the last byte", "s"},
	{Bytes, "payload", "B"},
	{EmptyIntervals, "100 ms intervals without data", ""},
	{LongestGap, "longest pause", "s"},
	{WorstSecond, "goodput of the worst second", "bit/s"},
	{EventTime, "when the first event happened", "s"},
	{GoodputBefore, "goodput before the first event", "bit/s"},
	{GoodputAfter, "goodput after the first event", "bit/s"},
	{LimitAfter, "payload that the usable links carry in the end", "bit/s"},
	{GapAfter, "longest pause that ended after the first event", "s"},
	{TimeToLimit, "time from the last change of the limit to 95 % of it", "s"},
	{ConnectionsLost, "connections that broke", ""},
	{ThroughputBefore, "throughput before resequencing, of the sum of the rates", ""},
	{ThroughputAfter, "throughput after resequencing, of the sum of the rates", ""},
	{ReseqDelayMean, "mean resequencing delay", "s"},
	{ReseqDelayP50, "median resequencing delay", "s"},
	{ReseqDelayP95, "95 % quantile of the resequencing delay", "s"},
	{ReseqDelayP99, "99 % quantile of the resequencing delay", "s"},
	{ReseqDelayMax, "longest resequencing delay", "s"},
	{BurstMax, "longest burst", "segments"},
	{BurstP99, "99 % quantile of the length of bursts", "segments"},
	{BurstFirst, "longest burst of the first 3 s", "segments"},
	{BurstSteady, "longest burst after 3 s", "segments"},
	{BurstLarge, "median length of bursts of 10 segments or more, after 3 s", "segments"},
	{BurstSmall, "longest burst of fewer than 10 segments, after 3 s", "segments"},
	{BurstsPerSecond, "bursts of 10 segments or more in a second, after 3 s", "1/s"},
	{BurstPeriod, "median time between bursts of 10 segments or more, after 3 s", "s"},
	{BufferMax, "most that the resequencing buffer held", "B"},
	{BufferMean, "mean that the resequencing buffer held", "B"},
	{Retransmissions, "segments sent again on their subflow", ""},
	{Timeouts, "retransmission timeouts", ""},
	{Reinjections, "segments sent again on another subflow", ""},
	{EPERoute, "time to the change of the EPE Route on the server", "s"},
	{BestPath, "time to the last change of the best path on the server", "s"},
	{SubflowTime, "time to the first or last packet on the subflow", "s"},
	{ASBRRoute, "time to the change of the ASBR's own route", "s"},
	{ASBRHeard, "time until the ASBR hears of the change", "s"},
	{ASBRPart, "time that the ASBR takes", "s"},
	{ReflectorPart, "time that the reflector takes", "s"},
	{EdgePart, "time that the server takes", "s"},
	{OwnPart, "time that ASBR and server take together", "s"},
}

// Metrics returns the metrics that an expectation can name.
func Metrics() []Metric { return slices.Clone(metrics) }

// MetricNamed returns what is known of a metric.
func MetricNamed(name string) (Metric, bool) {
	i := slices.IndexFunc(metrics, func(m Metric) bool { return m.Name == name })
	if i < 0 {
		return Metric{}, false
	}
	return metrics[i], true
}

// MetricNames lists all metrics, for messages.
func MetricNames() string {
	names := make([]string, len(metrics))
	for i, m := range metrics {
		names[i] = m.Name
	}
	return strings.Join(names, ", ")
}
