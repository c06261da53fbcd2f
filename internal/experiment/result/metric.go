package result

import (
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/study/qoe"
)

// The metrics that a run can have. Rates count payload in bits per second.
const (
	Goodput = "goodput_bps"
	// GoodputLater is the goodput after the first 5 s, in which TCP starts.
	GoodputLater   = "goodput_later_bps"
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
	// SubflowWindow is the mean over subflows of the mean congestion window over time.
	SubflowWindow = "subflow_window_segments"
	// TripleDuplicates is how often three duplicate acknowledgments came in a row, as a share of
	// all acknowledgments.
	TripleDuplicates = "triple_duplicates"
	// The following are of numbered datagrams: how many were sent and arrived, copies included; the
	// share that did not arrive; of those that did, the share that arrived again and that arrived
	// after one with a higher number (RFC 4737), and by how many numbers at most.
	DatagramsSent     = "datagrams_sent"
	DatagramsReceived = "datagrams_received"
	LostShare         = "lost_share"
	DuplicatedShare   = "duplicated_share"
	ReorderedShare    = "reordered_share"
	ReorderedBehind   = "reordered_behind"
	// DatagramDelayP95 is the 95th percentile of the delay from sending to arrival.
	DatagramDelayP95 = "datagram_delay_p95_s"
	// The following are of traffic with several objects: those that are complete, and their times.
	Objects       = "objects"
	ObjectTimeP50 = "object_time_p50_s"
	ObjectTimeP95 = "object_time_p95_s"
	// ShareOfBest is the goodput relative to the best of the transports in Experiment.BestOf, and
	// ShareOfBound relative to what all of them together could carry in order with the client's
	// window.
	ShareOfBest = "share_of_best"
	// FirstLink is the share of the transport's first link in what its links carried; of the lab
	// with all headers, of the simulator in the payload that arrived.
	FirstLink    = "first_link_share"
	ShareOfBound = "share_of_bound"
	// AllRate is the goodput of a download and of those beside it together while it runs, LeastRate
	// that of the slowest of them.
	AllRate   = "all_bps"
	LeastRate = "least_bps"
	// The following are of cases with other connections, in the time in which all compete. Share is
	// the goodput of the connections of the transport, of that of all connections; OwnRate and
	// OthersRate are the mean goodput of one of them and of one of the others. FirstPath is the
	// share of the transport's first link in its data, RoundTrip the mean round-trip time of its
	// subflows.
	Share      = "share"
	OwnRate    = "own_bps"
	OthersRate = "others_bps"
	FirstPath  = "first_path_share"
	RoundTrip  = "round_trip_mean_s"
	// LeastLosses is the number of losses of the subflow that had the fewest, in the whole run.
	LeastLosses = "least_losses"
	// Repairs counts the values of skipped eBPF programs that congestion controls contained.
	Repairs = "repairs"
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
	// The following are of tasks on web pages. FirstView is when the page reports its first view,
	// StepTime and StepMax are the mean and the longest time from an interaction to the end of its
	// step, Waiting the mean of the first view and the steps. SpeedIndex and the visual changes are
	// of a recording, another load of the first view.
	TTFB         = "ttfb_s"
	FCP          = "fcp_s"
	LCP          = "lcp_s"
	CLS          = "cls"
	PageLoad     = "page_load_s"
	FirstView    = "first_view_s"
	ViewBytes    = "view_bytes"
	ViewRequests = "view_requests"
	SpeedIndex   = "speed_index_s"
	FirstChange  = "first_change_s"
	LastChange   = "last_change_s"
	TaskTime     = "task_s"
	Steps        = "steps"
	StepTime     = "step_s"
	StepMax      = "step_max_s"
	Waiting      = "waiting_s"
	// Effectiveness is the number of conditions that the choice meets, Efficiency the same per
	// minute.
	Effectiveness = "effectiveness"
	Efficiency    = "efficiency_per_min"
	// EstimatedMOS is a model's.
	EstimatedMOS = "estimated_mos"
	// PathWindow is the mean congestion window of the server's subflows while they have data in
	// flight, and PathThroughput the acknowledged bytes of the task: means over the transport's
	// paths. LeastPath is the share of the least used path.
	PathWindow     = "path_window_segments"
	PathThroughput = "path_throughput_bps"
	LeastPath      = "least_path_share"
	// Idle is the share of idle time of the host's processors, LateShare that of frames that
	// emulated links delivered later than link.LateBound; Disturbed counts the trials before that
	// were repeated for one of them.
	Idle      = "idle_share"
	LateShare = "late_share"
	// LoadShare is the load of visits of other users, in frames of all links toward the client, as
	// a share of their rates.
	LoadShare = "load_share"
	Disturbed = "disturbed_trials"
	// WakeDelay is the longest delay with which a thread of normal priority woke on the host during
	// the run. Where it is above BusyHost, the host may have delayed the run's packets, too.
	WakeDelay = "wake_delay_s"
)

// BusyHost is the WakeDelay in seconds above which a host was too busy for exact results: an
// interval of EmptyIntervals may be empty because of it.
const BusyHost = 0.05

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
	// OnPage: a task on web pages.
	OnPage
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
	// Competition: the metric is of cases with other connections. Settled: it is judged only if
	// each subflow had SettledLosses.
	Competition, Settled bool
	// Sweep: the metric is a column of a sweep's table.
	Sweep bool
	// Compare: the metric is compared between lab and simulation.
	Compare bool
	// Better is 1 if more is better, -1 if less is better, 0 if neither is.
	Better int
	// Occasion is when a run has the metric; 0 means OnDelivery.
	Occasion Occasion
	// PerPath: the metric is a mean over the transport's links.
	PerPath bool
	// Model: the metric is an estimate of a model from other metrics, and no sample of a test of
	// significance. All others are measured.
	Model bool
}

// Provenance returns where the values of the metric come from.
func (m Metric) Provenance() qoe.Provenance {
	if m.Model {
		return qoe.Model
	}
	return qoe.Measured
}

// metrics are all metrics, in the order of columns.
var metrics = []Metric{
	{Name: Goodput, Title: "goodput", Better: 1, Unit: "bit/s", Sweep: true, Compare: true},
	{Name: GoodputLater, Title: "goodput after the first 5 s", Better: 1, Unit: "bit/s"},
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
	{Name: SubflowWindow, Title: "mean congestion window of a subflow", Unit: "segments", Backend: BackendSim, MPTCP: true},
	{Name: TripleDuplicates, Title: "events of three duplicate acknowledgments, of all acknowledgments", Better: -1, Sweep: true, Compare: true},
	{Name: DatagramsSent, Title: "datagrams sent"},
	{Name: DatagramsReceived, Title: "datagrams received, with duplicates"},
	{Name: LostShare, Title: "share of datagrams lost", Better: -1, Sweep: true, Compare: true},
	{Name: DuplicatedShare, Title: "share of datagrams that arrive again", Better: -1},
	{Name: ReorderedShare, Title: "share of datagrams that arrive after a higher number", Better: -1, Sweep: true, Compare: true},
	{Name: ReorderedBehind, Title: "most numbers by which a datagram is behind", Better: -1, Sweep: true, Compare: true},
	{Name: DatagramDelayP95, Title: "95th percentile of the delay of datagrams", Better: -1, Unit: "s"},
	{Name: Objects, Title: "complete objects", Better: 1},
	{Name: ObjectTimeP50, Title: "median time of an object", Better: -1, Unit: "s", Compare: true},
	{Name: ObjectTimeP95, Title: "95th percentile of the time of an object", Better: -1, Unit: "s", Compare: true},
	{Name: ShareOfBest, Title: "goodput, of that over the best path alone", Better: 1},
	{Name: ShareOfBound, Title: "goodput, of what the paths can carry in order", Better: 1, MPTCP: true},
	{Name: FirstLink, Title: "share of the first link in the bytes of all", MPTCP: true, Compare: true},
	{Name: AllRate, Title: "goodput of a download and those beside it", Better: 1, Unit: "bit/s"},
	{Name: LeastRate, Title: "goodput of the slowest of them", Better: 1, Unit: "bit/s"},
	{Name: Share, Title: "goodput, of that of all connections", Competition: true, Settled: true, Compare: true},
	{Name: OwnRate, Title: "mean goodput of the transport's connections", Better: 1, Unit: "bit/s", Competition: true, Settled: true, Compare: true},
	{Name: OthersRate, Title: "mean goodput of the other connections", Better: 1, Unit: "bit/s", Competition: true, Settled: true, Compare: true},
	{Name: FirstPath, Title: "share of the first link", MPTCP: true, Competition: true, Settled: true, Compare: true},
	{Name: RoundTrip, Title: "mean round-trip time", Better: -1, Unit: "s", Competition: true, Compare: true},
	{Name: LeastLosses, Title: "losses of the subflow with the fewest", Competition: true},
	{Name: Repairs, Title: "contained values of skipped programs", Better: -1, Backend: BackendLab, Competition: true},
	{Name: EPERoute, Title: "time to the change of the EPE route on the server", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnRouteChange},
	{Name: BestPath, Title: "time to the last change of the best path on the server", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnRouteChange},
	{Name: SubflowTime, Title: "time to the first or last packet on the subflow", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnRouteChange},
	{Name: ASBRRoute, Title: "time to the change of the ASBR's own route", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnRouteChange},
	{Name: ASBRReceived, Title: "time until the ASBR receives the update", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnRouteChange},
	{Name: ASBRPart, Title: "processing time of the ASBR", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnRouteChange},
	{Name: ReflectorPart, Title: "processing time of the reflector", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnRouteChange},
	{Name: EdgePart, Title: "processing time of the server", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnRouteChange},
	{Name: OwnPart, Title: "processing time of ASBR and server together", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnRouteChange},
	{Name: TTFB, Title: "time to the first byte of the page", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnPage},
	{Name: FCP, Title: "first contentful paint", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnPage},
	{Name: LCP, Title: "largest contentful paint", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnPage},
	{Name: CLS, Title: "cumulative layout shift", Better: -1, Backend: BackendLab, Occasion: OnPage},
	{Name: PageLoad, Title: "load event", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnPage},
	{Name: FirstView, Title: "first view", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnPage},
	{Name: ViewBytes, Title: "bytes of the first view", Unit: "B", Backend: BackendLab, Occasion: OnPage},
	{Name: ViewRequests, Title: "requests of the first view", Backend: BackendLab, Occasion: OnPage},
	{Name: SpeedIndex, Title: "Speed Index", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnPage},
	{Name: FirstChange, Title: "first visual change", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnPage},
	{Name: LastChange, Title: "last visual change", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnPage},
	{Name: TaskTime, Title: "time of the task", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnPage},
	{Name: Steps, Title: "steps of the task that load", Backend: BackendLab, Occasion: OnPage},
	{Name: StepTime, Title: "mean time of a step", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnPage},
	{Name: StepMax, Title: "longest time of a step", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnPage},
	{Name: Waiting, Title: "mean waiting time of views", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnPage},
	{Name: Effectiveness, Title: "effectiveness: conditions met, of a player", Better: 1, Backend: BackendLab, Occasion: OnPage},
	{Name: Efficiency, Title: "efficiency: conditions met per minute, of a player", Better: 1, Unit: "1/min", Backend: BackendLab, Occasion: OnPage},
	{Name: EstimatedMOS, Title: "estimated MOS, " + qoe.Waiting.String(), Better: 1, Backend: BackendLab, Occasion: OnPage, Model: true},
	{Name: PathWindow, Title: "mean congestion window of a path", Unit: "segments", Backend: BackendLab, Occasion: OnPage, PerPath: true},
	{Name: PathThroughput, Title: "mean throughput of a path", Better: 1, Unit: "bit/s", Backend: BackendLab, Occasion: OnPage, PerPath: true},
	{Name: LeastPath, Title: "share of the least used path", Backend: BackendLab, Occasion: OnPage},
	{Name: Idle, Title: "idle time of the processors", Backend: BackendLab, Occasion: OnPage},
	{Name: LateShare, Title: "frames that links delivered more than 5 ms late", Better: -1, Backend: BackendLab, Occasion: OnPage},
	{Name: LoadShare, Title: "load of other visits, of the rates of the links", Backend: BackendLab, Occasion: OnPage},
	{Name: Disturbed, Title: "disturbed trials before it", Better: -1, Backend: BackendLab, Occasion: OnPage},
	{Name: WakeDelay, Title: "longest delay of a thread on the host", Better: -1, Unit: "s", Backend: BackendLab, Occasion: OnDelivery | OnRouteChange | OnPage},
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
