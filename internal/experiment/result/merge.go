package result

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Errors of Merge.
var (
	ErrOtherScenario = errors.New("is of another scenario or backend")
	ErrOtherHost     = errors.New("is of another host")
	ErrNoRuns        = errors.New("has no runs")
)

// Merge returns the runs of parts of an experiment as those of one result, which has to be
// concluded: the runs of a cell are numbered in the order of the parts. The commits of the parts
// are listed. Notes that name files are dropped. An error names the part by its number, from 0.
func Merge(parts []Result) (Result, error) {
	whole := Result{Schema: Schema}
	trials := map[CellKey]int{}
	var commits []string
	for i, p := range parts {
		if i == 0 {
			whole.Scenario, whole.Backend, whole.Host = p.Scenario, p.Backend, p.Host
		}
		switch {
		case p.Scenario != whole.Scenario || p.Backend != whole.Backend:
			return Result{}, fmt.Errorf("part %d %w: %s of %s, not %s of %s", i, ErrOtherScenario, p.Backend, p.Scenario, whole.Backend, whole.Scenario)
		case p.Host.Kernel != whole.Host.Kernel || p.Host.CPUs != whole.Host.CPUs:
			return Result{}, fmt.Errorf("part %d %w: Linux %s with %d CPUs, not %s with %d", i, ErrOtherHost, p.Host.Kernel, p.Host.CPUs, whole.Host.Kernel, whole.Host.CPUs)
		case len(p.Runs) == 0:
			return Result{}, fmt.Errorf("part %d %w", i, ErrNoRuns)
		}
		if !slices.Contains(commits, p.Host.Commit) {
			commits = append(commits, p.Host.Commit)
		}
		whole.Seconds += p.Seconds
		for _, r := range p.Runs {
			r.Trial = trials[r.CellKey]
			trials[r.CellKey]++
			r.Metrics, r.Notes = maps.Clone(r.Metrics), maps.Clone(r.Notes)
			delete(r.Notes, NoteSeries)
			delete(r.Notes, NoteHAR)
			whole.Runs = append(whole.Runs, r)
		}
	}
	whole.Host.Commit = strings.Join(commits, ", ")
	return whole, nil
}

// Published returns a result without its runs, and with the summaries of the metrics alone, or of
// all if there are none: what documents cite.
func (r Result) Published(metrics []string) Result {
	r.Runs = nil
	if len(metrics) > 0 {
		r.Summary = slices.DeleteFunc(slices.Clone(r.Summary), func(c Cell) bool { return !slices.Contains(metrics, c.Metric) })
	}
	return r
}
