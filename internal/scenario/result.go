package scenario

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/stat"
)

// Schema is the version of the result file that this package writes and reads.
const Schema = 1

// MaxResult is how large a result file may be, in bytes.
const MaxResult = 64 << 20

// Result is what came out of an experiment: the content of result.json.
type Result struct {
	Schema   int
	Scenario string
	// Backend ran the experiment: "lab" or "sim".
	Backend string
	// Seconds is how long all of it took, on the wall clock.
	Seconds float64
	Host    Host
	// Runs are in the order of Experiment.Cells, the trials of a cell in order.
	Runs    []Run
	Summary []Cell
	Expect  []Verdict
}

// Host is the machine that a result was made on.
type Host struct {
	Kernel string
	CPUs   int
	Commit string
}

// CellKey names one cell of an experiment's table.
type CellKey struct{ Case, Traffic, Transport string }

// String prints the key as "1.3 bi mptcp-epe".
func (k CellKey) String() string { return k.Case + " " + k.Traffic + " " + k.Transport }

// Cells returns the keys of the whole table in the order of results: cases as written, then traffic by name, then
// transports as TransportNames has them.
func (e *Experiment) Cells() []CellKey {
	var keys []CellKey
	for _, c := range e.Cases {
		for _, traffic := range e.TrafficNames() {
			for _, transport := range e.TransportNames() {
				keys = append(keys, CellKey{c.Name, traffic, transport})
			}
		}
	}
	return keys
}

// TrafficNames returns the names of the traffic, sorted.
func (e *Experiment) TrafficNames() []string { return slices.Sorted(maps.Keys(e.Traffic)) }

// TransportNames returns the names of the transports: the baseline first, the others sorted.
func (e *Experiment) TransportNames() []string {
	names := slices.Sorted(maps.Keys(e.Transports))
	if i := slices.Index(names, e.Baseline); i > 0 {
		names = slices.Insert(slices.Delete(names, i, i+1), 0, e.Baseline)
	}
	return names
}

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

// The notes that a run can have. A run with the note Error failed, and its metrics count for nothing.
const (
	NoteError = "error"
	// NoteSeries is the name of the run's series file, relative to the result's directory.
	NoteSeries = "series"
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

func metricNames() string {
	names := make([]string, len(metrics))
	for i, m := range metrics {
		names[i] = m.Name
	}
	return strings.Join(names, ", ")
}

// Run is one delivery. In JSON its metrics and notes stand beside the key: a number is a metric, a text a note.
type Run struct {
	CellKey
	// Trial counts from 0 within the cell.
	Trial   int
	Metrics map[string]float64
	Notes   map[string]string
}

// Err returns why the run failed, or nil.
func (r Run) Err() error {
	if text, failed := r.Notes[NoteError]; failed {
		return errors.New(text)
	}
	return nil
}

// Cell is one metric of one cell over its trials.
type Cell struct {
	CellKey
	Metric string
	stat.Summary
}

// Verdict is what became of an expectation.
type Verdict struct {
	Name  string
	Want  string
	Got   string
	Holds bool
}

// Holds reports whether all expectations hold.
func (r Result) Holds() bool {
	return !slices.ContainsFunc(r.Expect, func(v Verdict) bool { return !v.Holds })
}

// Find returns the summary of one metric of one cell.
func (r Result) Find(k CellKey, metric string) (Cell, bool) {
	return find(r.Summary, k, metric)
}

func find(cells []Cell, k CellKey, metric string) (Cell, bool) {
	i := slices.IndexFunc(cells, func(c Cell) bool { return c.CellKey == k && c.Metric == metric })
	if i < 0 {
		return Cell{}, false
	}
	return cells[i], true
}

// Summarize returns the summary of every metric of every cell: the cells in the order in which the runs first show
// them, the metrics of a cell by name. Failed runs are left out, so N counts the trials that delivered.
// Errors wrap stat.ErrNotFinite.
func Summarize(runs []Run) ([]Cell, error) {
	var order []CellKey
	values := map[CellKey]map[string][]float64{}
	for _, r := range runs {
		if r.Err() != nil {
			continue
		}
		if values[r.CellKey] == nil {
			values[r.CellKey] = map[string][]float64{}
			order = append(order, r.CellKey)
		}
		for name, v := range r.Metrics {
			values[r.CellKey][name] = append(values[r.CellKey][name], v)
		}
	}
	var cells []Cell
	for _, key := range order {
		for _, name := range slices.Sorted(maps.Keys(values[key])) {
			summary, err := stat.Summarize(values[key][name])
			if err != nil {
				return nil, fmt.Errorf("cell %s %s: %w", key, name, err)
			}
			cells = append(cells, Cell{key, name, summary})
		}
	}
	return cells, nil
}

// Encode writes the result as JSON, the same bytes for the same result. A number that JSON has no text for is an error,
// as is a metric or note whose name could not be read back.
func (r Result) Encode(w io.Writer) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		var m *json.MarshalerError
		if errors.As(err, &m) {
			err = m.Unwrap()
		}
		return fmt.Errorf("encode result %q: %w", r.Scenario, err)
	}
	if _, err := w.Write(append(data, '\n')); err != nil {
		return fmt.Errorf("write result %q: %w", r.Scenario, err)
	}
	return nil
}

// Decode reads what Encode wrote. It refuses unknown, repeated and missing keys, null, numbers where texts belong and
// the reverse, another schema, and anything after the result.
func Decode(in io.Reader) (Result, error) {
	data, err := io.ReadAll(io.LimitReader(in, MaxResult+1))
	if err != nil {
		return Result{}, fmt.Errorf("read result: %w", err)
	}
	if len(data) > MaxResult {
		return Result{}, fmt.Errorf("read result: is larger than %d bytes", MaxResult)
	}
	var r Result
	if err := json.Unmarshal(data, &r); err != nil {
		return Result{}, fmt.Errorf("read result: %w", err)
	}
	return r, nil
}

// MarshalJSON writes the keys in the order of the contract.
func (r Result) MarshalJSON() ([]byte, error) {
	return marshalObject(
		field{"schema", r.Schema}, field{"scenario", r.Scenario}, field{"backend", r.Backend}, field{"seconds", r.Seconds},
		field{"host", r.Host}, field{"runs", list(r.Runs)}, field{"summary", list(r.Summary)}, field{"expect", list(r.Expect)})
}

// UnmarshalJSON reads what MarshalJSON wrote and nothing else.
func (r *Result) UnmarshalJSON(data []byte) error {
	var got Result
	err := unmarshalObject(data,
		field{"schema", &got.Schema}, field{"scenario", &got.Scenario}, field{"backend", &got.Backend}, field{"seconds", &got.Seconds},
		field{"host", &got.Host}, field{"runs", &got.Runs}, field{"summary", &got.Summary}, field{"expect", &got.Expect})
	if err != nil {
		return err
	}
	if got.Schema != Schema {
		return fmt.Errorf("schema %d is not known, only %d", got.Schema, Schema)
	}
	*r = got
	return nil
}

// MarshalJSON writes the keys in the order of the contract.
func (h Host) MarshalJSON() ([]byte, error) {
	return marshalObject(field{"kernel", h.Kernel}, field{"cpus", h.CPUs}, field{"commit", h.Commit})
}

// UnmarshalJSON reads what MarshalJSON wrote and nothing else.
func (h *Host) UnmarshalJSON(data []byte) error {
	return unmarshalObject(data, field{"kernel", &h.Kernel}, field{"cpus", &h.CPUs}, field{"commit", &h.Commit})
}

// metricName is what a metric or note can be called. The keys of every run cannot be.
var metricName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

var runKeys = []string{"case", "traffic", "transport", "trial"}

func checkMetricName(name string) error {
	if !metricName.MatchString(name) || slices.Contains(runKeys, name) {
		return fmt.Errorf("%q is not a name for a metric or note", name)
	}
	return nil
}

// MarshalJSON writes the key, then the metrics and the notes, each by name.
func (r Run) MarshalJSON() ([]byte, error) {
	if r.Trial < 0 {
		return nil, fmt.Errorf("run %s: trial must be >= 0, got %d", r.CellKey, r.Trial)
	}
	fields := []field{{"case", r.Case}, {"traffic", r.Traffic}, {"transport", r.Transport}, {"trial", r.Trial}}
	for _, name := range slices.Sorted(maps.Keys(r.Metrics)) {
		fields = append(fields, field{name, r.Metrics[name]})
	}
	for _, name := range slices.Sorted(maps.Keys(r.Notes)) {
		if _, both := r.Metrics[name]; both {
			return nil, fmt.Errorf("run %s: %q is both a metric and a note", r.CellKey, name)
		}
		fields = append(fields, field{name, r.Notes[name]})
	}
	for _, f := range fields[len(runKeys):] {
		if err := checkMetricName(f.name); err != nil {
			return nil, fmt.Errorf("run %s: %w", r.CellKey, err)
		}
	}
	data, err := marshalObject(fields...)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", r.CellKey, err)
	}
	return data, nil
}

// UnmarshalJSON reads what MarshalJSON wrote and nothing else.
func (r *Run) UnmarshalJSON(data []byte) error {
	var got Run
	into := map[string]any{"case": &got.Case, "traffic": &got.Traffic, "transport": &got.Transport, "trial": &got.Trial}
	err := walkObject(data, func(name string, value json.RawMessage) error {
		if target, ok := into[name]; ok {
			delete(into, name)
			return unmarshalValue(value, target)
		}
		if err := checkMetricName(name); err != nil {
			return err
		}
		if value[0] == '"' {
			var text string
			if err := unmarshalValue(value, &text); err != nil {
				return err
			}
			if got.Notes == nil {
				got.Notes = map[string]string{}
			}
			got.Notes[name] = text
			return nil
		}
		var number float64
		if err := unmarshalValue(value, &number); err != nil {
			return err
		}
		if got.Metrics == nil {
			got.Metrics = map[string]float64{}
		}
		got.Metrics[name] = number
		return nil
	})
	if err != nil {
		return err
	}
	if missing := slices.Sorted(maps.Keys(into)); len(missing) > 0 {
		return fmt.Errorf("key %q is missing", missing[0])
	}
	if got.Trial < 0 {
		return fmt.Errorf("trial must be >= 0, got %d", got.Trial)
	}
	*r = got
	return nil
}

// MarshalJSON writes the keys in the order of the contract.
func (c Cell) MarshalJSON() ([]byte, error) {
	data, err := marshalObject(
		field{"case", c.Case}, field{"traffic", c.Traffic}, field{"transport", c.Transport}, field{"metric", c.Metric},
		field{"n", c.N}, field{"min", c.Min}, field{"q1", c.Q1}, field{"median", c.Median}, field{"q3", c.Q3}, field{"max", c.Max},
		field{"mean", c.Mean}, field{"ci95", c.CI95})
	if err != nil {
		return nil, fmt.Errorf("summary %s %s: %w", c.CellKey, c.Metric, err)
	}
	return data, nil
}

// UnmarshalJSON reads what MarshalJSON wrote and nothing else.
func (c *Cell) UnmarshalJSON(data []byte) error {
	return unmarshalObject(data,
		field{"case", &c.Case}, field{"traffic", &c.Traffic}, field{"transport", &c.Transport}, field{"metric", &c.Metric},
		field{"n", &c.N}, field{"min", &c.Min}, field{"q1", &c.Q1}, field{"median", &c.Median}, field{"q3", &c.Q3}, field{"max", &c.Max},
		field{"mean", &c.Mean}, field{"ci95", &c.CI95})
}

// MarshalJSON writes the keys in the order of the contract.
func (v Verdict) MarshalJSON() ([]byte, error) {
	return marshalObject(field{"name", v.Name}, field{"want", v.Want}, field{"got", v.Got}, field{"holds", v.Holds})
}

// UnmarshalJSON reads what MarshalJSON wrote and nothing else.
func (v *Verdict) UnmarshalJSON(data []byte) error {
	return unmarshalObject(data, field{"name", &v.Name}, field{"want", &v.Want}, field{"got", &v.Got}, field{"holds", &v.Holds})
}

// list is l, or an empty list: readers of the contract get [] and never null.
func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

// field is one key of a JSON object, with the value to write or a pointer to what is read.
type field struct {
	name  string
	value any
}

func marshalObject(fields ...field) ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, f := range fields {
		if i > 0 {
			b.WriteByte(',')
		}
		if v, ok := f.value.(float64); ok && (math.IsNaN(v) || math.IsInf(v, 0)) {
			return nil, fmt.Errorf("%s is %v, which is no result", f.name, v)
		}
		name, err := json.Marshal(f.name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(f.value)
		if err != nil {
			return nil, err
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// unmarshalObject reads an object that has all of the fields and no other.
func unmarshalObject(data []byte, fields ...field) error {
	read := make([]bool, len(fields))
	err := walkObject(data, func(name string, value json.RawMessage) error {
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
		if i < 0 {
			return errors.New("key is not known")
		}
		read[i] = true
		return unmarshalValue(value, fields[i].value)
	})
	if err != nil {
		return err
	}
	if i := slices.Index(read, false); i >= 0 {
		return fmt.Errorf("key %q is missing", fields[i].name)
	}
	return nil
}

// unmarshalValue reads a value that is not null, which encoding/json takes for whatever the target holds already.
func unmarshalValue(value json.RawMessage, into any) error {
	if string(value) == "null" {
		return errors.New("must not be null")
	}
	return json.Unmarshal(value, into)
}

// walkObject calls visit for each key of the object, in order, and refuses a key that comes twice.
func walkObject(data []byte, visit func(name string, value json.RawMessage) error) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return errors.New("is not an object")
	}
	seen := map[string]bool{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		name, ok := key.(string)
		if !ok {
			return fmt.Errorf("%v is not a key", key)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		if seen[name] {
			return fmt.Errorf("%q: key comes twice", name)
		}
		seen[name] = true
		if err := visit(name, value); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	return nil
}
