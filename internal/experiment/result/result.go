// Package result holds the result of an experiment (Result): runs with their metrics, summaries
// over trials, verdicts on expectations, and single runs over time (Trace).
//
// It does not depend on scenarios, backends or figures: a backend fills in runs, package scenario
// evaluates expectations, and report draws. It opens no files.
package result

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/tabane/tabane/internal/base/stat"
)

// Schema is the version of the result file that this package writes and reads.
const Schema = 1

// MaxResult is the maximum size of a result file, in bytes.
const MaxResult = 64 << 20

// Result is the result of an experiment: the content of result.json.
type Result struct {
	Schema   int
	Scenario string
	// Backend ran the experiment: "lab" or "sim".
	Backend string
	// Seconds is the wall-clock time of all runs.
	Seconds float64
	Host    Host
	// Runs are in the order of the experiment's cells, the trials of a cell in order.
	Runs    []Run
	Summary []Cell
	Expect  []Verdict
	// NotJudged are expectations on cells that were not run, or on metrics that the backend
	// does not measure.
	NotJudged []NotJudged
	// Findings are published differences, tested in the runs.
	Findings []Finding
	// Planned is the number of runs of an experiment that ended early, with fewer; otherwise 0.
	Planned int
}

// Host is the machine that ran an experiment.
type Host struct {
	Kernel string
	CPUs   int
	Commit string
}

// CellKey names one cell of an experiment's table.
type CellKey struct{ Case, Traffic, Transport string }

// String prints the key as "1.3 bi mptcp-epe".
func (k CellKey) String() string { return k.Case + " " + k.Traffic + " " + k.Transport }

// The notes of a run. A run with NoteError failed, and its metrics are ignored.
const (
	NoteError = "error"
	// NoteSeries is the name of the run's series file, relative to the result's directory.
	NoteSeries = "series"
	// NoteHAR is the name of the file with the requests of the run's page, relative to the result's
	// directory.
	NoteHAR = "har"
)

// Run is one delivery. In JSON its metrics and notes are keys beside those of the cell: a number is
// a metric, a text a note.
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

// Verdict is the outcome of an expectation.
type Verdict struct {
	Name  string
	Want  string
	Got   string
	Holds bool
}

// NotJudged is an expectation that a result cannot be checked against.
type NotJudged struct {
	Name, Want string
	// Why is what the result lacks for it.
	Why string
}

// Holds reports whether all expectations hold.
func (r Result) Holds() bool {
	return !slices.ContainsFunc(r.Expect, func(v Verdict) bool { return !v.Holds })
}

// Busy returns the number of runs during which the host was busy, and the largest WakeDelay in
// seconds.
func (r Result) Busy() (runs int, worst float64) {
	for _, run := range r.Runs {
		if late := run.Metrics[WakeDelay]; late > BusyHost {
			runs, worst = runs+1, max(worst, late)
		}
	}
	return runs, worst
}

// Find returns the summary of one metric of one cell.
func (r Result) Find(k CellKey, metric string) (Cell, bool) {
	return Find(r.Summary, k, metric)
}

// Find returns the summary of one metric of one cell.
func Find(cells []Cell, k CellKey, metric string) (Cell, bool) {
	i := slices.IndexFunc(cells, func(c Cell) bool { return c.CellKey == k && c.Metric == metric })
	if i < 0 {
		return Cell{}, false
	}
	return cells[i], true
}

// Values returns one metric of the runs of one cell that did not fail, in their order.
func (r Result) Values(k CellKey, metric string) (values []float64) {
	for _, run := range r.Runs {
		if v, ok := run.Metrics[metric]; ok && run.CellKey == k && run.Err() == nil {
			values = append(values, v)
		}
	}
	return values
}

// Summarize returns the summary of every metric of every cell: the cells in the order of their
// first runs, the metrics of a cell by name. Failed runs are left out, so N counts the successful
// trials. Errors wrap stat.ErrNotFinite.
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

// Encode writes the result as JSON, the same bytes for the same result. NaN and infinities are
// errors, as are invalid names of metrics and notes.
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

// Decode reads what Encode wrote. It refuses unknown, duplicate and missing keys, null, wrong
// types, another schema, and anything after the result.
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
		return Result{}, fmt.Errorf("read result: %w", inWords(err))
	}
	return r, nil
}
