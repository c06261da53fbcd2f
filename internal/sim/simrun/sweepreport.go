package simrun

import (
	"encoding/csv"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// linesInFigure is the maximum number of lines of a figure. Further lines are drawn in further
// figures.
const linesInFigure = 8

// sweepFigures are the metrics of the figures. A value is divided by divide to get the unit of the
// label.
var sweepFigures = []struct {
	metric, label string
	divide        float64
}{
	{result.Goodput, "Goodput (Mbit/s)", 1e6},
	{result.ReseqDelayMean, "Mean resequencing delay (ms)", 1e-3},
	{result.BurstMax, "Longest burst (segments)", 1},
}

// xParameter is the parameter of the cases on the x axis of figures.
const xParameter = "x"

// Experiment returns the grid as an experiment with figures and the rows of its file as the result,
// for a report. The values of the numeric axis with the most values become the cases; each
// combination of a transport and values of the other axes becomes a line. A row of a summary
// becomes one run with the means. Every row of the grid must be in the file.
func (g Grid) Experiment(file string, host result.Host) (*scenario.Spec, result.Result, error) {
	g.Shard, g.Shards = 0, 0
	tasks, err := g.tasks()
	if err != nil {
		return nil, result.Result{}, err
	}
	rows, err := g.read(file)
	if err != nil {
		return nil, result.Result{}, err
	}
	whole, err := g.Spec.Select(g.Cells())
	if err != nil {
		return nil, result.Result{}, err
	}
	x := g.xAxis()
	spec, e := *whole, *whole.Experiment
	spec.Experiment = &e
	spec.Title = strings.TrimSpace("Sweep of " + g.Spec.Name + ": " + spec.Title)
	e.Expect, e.Figures, e.Cases, e.Baseline, e.Trials = nil, nil, nil, "", g.Seeds
	transports := map[string]*scenario.Transport{}
	var lines []string
	r := result.Result{Scenario: g.Spec.Name, Backend: Backend, Host: host}
	trials := map[result.CellKey]int{}
	for _, t := range tasks {
		row, ok := rows[t.fingerprint]
		if !ok {
			return nil, result.Result{}, fmt.Errorf("report sweep: %q has not all rows of the grid; run the sweep to its end first", file)
		}
		key := t.key
		key.Case = whole.Experiment.Cases[0].Name
		c := scenario.Case{Name: key.Case}
		for i, a := range g.Axes {
			if text := a.Name + "=" + t.point[i]; i == x {
				value, _ := numeric(t.point[i])
				c.Name, c.Parameters = text, map[string]float64{xParameter: value}
			} else {
				key.Transport += " " + text
			}
		}
		key.Case = c.Name
		if !slices.ContainsFunc(e.Cases, func(known scenario.Case) bool { return known.Name == c.Name }) {
			e.Cases = append(e.Cases, c)
		}
		if transports[key.Transport] == nil {
			transports[key.Transport] = whole.Experiment.Transports[t.key.Transport]
			lines = append(lines, key.Transport)
		}
		run := result.Run{CellKey: key, Trial: trials[key], Metrics: row.metrics, Notes: map[string]string{}}
		if row.problem != "" {
			run.Notes[result.NoteError] = row.problem
		}
		trials[key]++
		r.Runs = append(r.Runs, run)
	}
	e.Transports = transports
	if x >= 0 {
		for _, kind := range e.TrafficNames() {
			for _, m := range sweepFigures {
				for part := range slices.Chunk(lines, linesInFigure) {
					e.Figures = append(e.Figures, scenario.Figure{
						Name: fmt.Sprintf("figure-%d", len(e.Figures)+1), Title: m.label + ", traffic " + kind, Kind: scenario.FigureLines, Traffic: kind, X: xParameter,
						Metric: m.metric, Divide: m.divide, Transports: slices.Clone(part), XLabel: g.Axes[x].Name, YLabel: m.label,
					})
				}
			}
		}
	}
	e.BestOf = nil // its transports have other names now
	r, err = spec.Conclude(r)
	return &spec, r, err
}

// sweepRow is a row of a sweep's file.
type sweepRow struct {
	metrics map[string]float64
	problem string
}

// read reads the rows of a sweep's file, keyed by fingerprint.
func (g Grid) read(file string) (map[string]sweepRow, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := csv.NewReader(f).ReadAll()
	if err != nil || len(all) == 0 || !slices.Equal(all[0], g.header()) {
		return nil, fmt.Errorf("read table %q: %w", file, ErrOtherFile)
	}
	rows := map[string]sweepRow{}
	for _, line := range all[1:] {
		row := sweepRow{metrics: map[string]float64{}}
		for i, column := range all[0] {
			metric := strings.TrimSuffix(column, "_mean")
			if !g.Summary {
				metric = column
			}
			switch {
			case column == columnError:
				row.problem = line[i]
			case slices.Contains(sweepMetrics, metric) && line[i] != "":
				if row.metrics[metric], err = strconv.ParseFloat(line[i], 64); err != nil {
					return nil, fmt.Errorf("read table %q: column %s: %w", file, column, err)
				}
			}
		}
		rows[line[len(line)-1]] = row
	}
	return rows, nil
}

// xAxis returns the index of the numeric axis with the most values, or -1 if none has two or more.
func (g Grid) xAxis() int {
	best := -1
	for i, a := range g.Axes {
		values := map[float64]bool{}
		for _, text := range a.Values {
			if v, ok := numeric(text); ok {
				values[v] = true
			}
		}
		if len(values) == len(a.Values) && len(values) > 1 && (best < 0 || len(values) > len(g.Axes[best].Values)) {
			best = i
		}
	}
	return best
}

// numeric converts a value to a number: times to seconds, rates to bit/s, sizes to bytes.
func numeric(text string) (float64, bool) {
	if v, err := strconv.ParseFloat(text, 64); err == nil {
		return v, true
	}
	if v, err := time.ParseDuration(text); err == nil {
		return v.Seconds(), true
	}
	if v, err := unit.ParseBandwidth(text); err == nil {
		return float64(v), true
	}
	if v, err := unit.ParseSize(text); err == nil {
		return float64(v), true
	}
	return 0, false
}
