package measurement

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/experiment/result"
)

// WriteCSV writes a line for each trial. Times are in seconds.
func WriteCSV(w io.Writer, p Plan, rows []Row) error {
	lines := [][]string{{"name", "block", "position", "mode", "traffic", "started", "goodput_bps", "bytes", "duration_s", "first_byte_s", "longest_gap_s", "subflows",
		"idle_p50_s", "loaded_p50_s", "loaded_p95_s", "loaded_rpm", "client_version", "server_version", "client_kernel", "server_kernel", "congestion", "client", "server", "clock_step_s", "failed"}}
	seconds := func(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }
	for _, r := range rows {
		lines = append(lines, []string{
			cell(p.Name), strconv.Itoa(r.Block), strconv.Itoa(r.Position), r.Mode, p.Traffic(), r.Started.Format(time.RFC3339Nano), strconv.FormatFloat(r.GoodputBps, 'f', 0, 64), strconv.FormatInt(r.Bytes, 10),
			seconds(r.Duration), seconds(r.FirstByte), seconds(r.LongestGap), strconv.Itoa(r.Subflows), seconds(r.Idle.P50), seconds(r.Loaded.P50), seconds(r.Loaded.P95),
			strconv.FormatFloat(r.Loaded.RPM, 'f', 0, 64), cell(r.ClientVersion), cell(r.ServerVersion), cell(r.ClientKernel), cell(r.ServerKernel), cell(r.Congestion), text(r.Client.IsValid(), r.Client), text(r.Server.IsValid(), r.Server), seconds(r.ClockStep), cell(r.Failed),
		})
	}
	return csv.NewWriter(w).WriteAll(lines)
}

// cell returns a text that spreadsheets do not evaluate.
func cell(s string) string {
	if s != "" && (s[0] == '=' || s[0] == '+' || s[0] == '-' || s[0] == '@' || s[0] == '\t' || s[0] == '\r') {
		return "'" + s
	}
	return s
}

// WriteJSON writes the plan and the trials, with their series.
func WriteJSON(w io.Writer, p Plan, rows []Row) error {
	type trial struct {
		Block    int       `json:"block"`
		Position int       `json:"position"`
		Mode     string    `json:"mode"`
		Started  time.Time `json:"started"`
		Failed   string    `json:"failed,omitempty"`
		Trial    any       `json:"trial"`
		Series   []int64   `json:"bytes_per_100ms"`
		Conditions
	}
	out := struct {
		Schema int     `json:"schema"`
		Plan   Plan    `json:"plan"`
		Trials []trial `json:"trials"`
	}{1, p, []trial{}}
	for _, r := range rows {
		series := r.Series
		if series == nil {
			series = []int64{}
		}
		out.Trials = append(out.Trials, trial{r.Block, r.Position, r.Mode, r.Started, r.Failed, r.Trial, series, r.Conditions})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(out)
}

// Result returns the trials as the result of an experiment, for comparisons. Two measurements of
// the same load have the same scenario.
func Result(p Plan, rows []Row) (result.Result, error) {
	out := result.Result{Schema: result.Schema, Scenario: "measure", Backend: "measure"}
	for _, r := range rows {
		run := result.Run{CellKey: result.CellKey{Case: "client", Traffic: p.Traffic(), Transport: r.Mode}, Trial: r.Block, Notes: map[string]string{}}
		if r.Failed != "" {
			run.Notes[result.NoteError] = r.Failed
		} else {
			run.Metrics = map[string]float64{
				result.Goodput: r.GoodputBps, result.Bytes: float64(r.Bytes), result.Duration: r.Duration.Seconds(), result.FirstByte: r.FirstByte.Seconds(), result.LongestGap: r.LongestGap.Seconds(),
			}
			if len(r.Objects) > 0 {
				times := make([]float64, len(r.Objects))
				for i, t := range r.Objects {
					times[i] = t.Seconds()
				}
				for name, q := range map[string]float64{result.ObjectTimeP50: 0.5, result.ObjectTimeP95: 0.95} {
					v, err := stat.Quantile(q, times)
					if err != nil {
						return result.Result{}, fmt.Errorf("summarize objects: %w", err)
					}
					run.Metrics[name] = v
				}
			}
			out.Seconds += r.Duration.Seconds()
		}
		out.Host.Kernel, out.Host.Commit = r.ClientKernel, r.ClientVersion
		out.Runs = append(out.Runs, run)
	}
	var err error
	out.Summary, err = result.Summarize(out.Runs)
	return out, err
}
