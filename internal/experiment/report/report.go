// Package report renders the result of an experiment: a table for the terminal, CSV files, figures,
// and one self-contained HTML page.
//
// It neither measures nor evaluates: all numbers and verdicts are those of the result. It refuses a
// result that cannot be encoded, and writes each file as a whole or not at all.
package report

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// Extra is what a report shows besides the result.
type Extra struct {
	// Series are runs over time, in any order. Each is written as a CSV file, whose name is the
	// run's note result.NoteSeries.
	Series []result.Trace
	// Command reproduces the result; the page shows it. Text is the scenario's file.
	Command, Text string
	// Made is the time of the result, Quick whether it is of a quick pass, Seed that of the
	// first trial of a simulation; further trials have the following ones.
	Made  time.Time
	Quick bool
	Seed  uint64
	// Archives are the requests of trials on web pages. Each is written as webpage.har in a
	// directory of its own, which is the run's note result.NoteHAR.
	Archives []result.Archive
	// Simulated is a simulator's result of the same experiment, to compare with; nil for none.
	Simulated *result.Result
}

// Write writes the report into the directory, which it creates if needed: runs.csv, summary.csv,
// series/*.csv, figures/*.svg and *.png, sim/result.json and compare.json with Extra.Simulated,
// comparisons.csv, browsertime.json and pages/*/webpage.har of web pages, report.html and
// result.json. Everything is rendered before anything is written, and each file is written as a
// whole or not at all, result.json last. Other files in the directory are not touched. Errors name
// the figure or file.
func Write(dir string, r result.Result, spec *scenario.Spec, extra Extra) error {
	files, err := assemble(r, spec, extra)
	if err != nil {
		return fmt.Errorf("write report %q: %w", dir, err)
	}
	if err := writeFiles(dir, files); err != nil {
		return fmt.Errorf("write report %q: %w", dir, err)
	}
	return nil
}

// file is a file of a report, its name relative to the directory.
type file struct {
	name string
	data []byte
}

// assemble returns the files of a report in the order in which they are written.
func assemble(r result.Result, spec *scenario.Spec, extra Extra) ([]file, error) {
	if spec.Experiment == nil {
		return nil, errors.New("the scenario has no experiment")
	}
	r.Runs = slices.Clone(r.Runs)
	files, err := recordFiles(r.Runs, extra)
	if err != nil {
		return nil, err
	}
	var traces []series
	for _, trace := range extra.Series {
		traces = append(traces, series{trace})
	}
	var result bytes.Buffer
	if err := r.Encode(&result); err != nil {
		return nil, err
	}

	all := rows(r, spec.Experiment)
	figures, onPage, err := overview(r, all, traces, spec.Experiment)
	if err != nil {
		return nil, err
	}
	overTime, err := figuresOverTime(traces, spec)
	if err != nil {
		return nil, err
	}
	topology, err := topologyFigure(spec)
	if err != nil {
		return nil, err
	}
	for _, f := range slices.Concat(figures, overTime, []figure{topology}) {
		files = append(files, file{"figures/" + f.name + ".svg", f.svg}, file{"figures/" + f.name + ".png", f.png})
	}
	beside, compared, err := comparisonFiles(r, extra.Simulated)
	if err != nil {
		return nil, err
	}
	files = append(files, beside...)
	html, err := writePage(r, spec, extra, all, compared, topology, slices.Concat(figures[:onPage], overTime))
	if err != nil {
		return nil, err
	}
	tables, err := tableFiles(r, spec.Experiment)
	if err != nil {
		return nil, err
	}
	files = append(files, tables...)
	return append(files, file{"report.html", html}, file{"result.json", result.Bytes()}), nil
}

// recordFiles returns the series and the requests of runs, and notes in each run the files that it has.
func recordFiles(runs []result.Run, extra Extra) (files []file, err error) {
	of := func(key result.CellKey, trial int) int {
		return slices.IndexFunc(runs, func(run result.Run) bool { return run.CellKey == key && run.Trial == trial })
	}
	for _, trace := range extra.Series {
		s := series{trace}
		i := of(s.CellKey, s.Trial)
		if i < 0 {
			return nil, fmt.Errorf("series of %s trial %d belongs to no run", s.CellKey, s.Trial)
		}
		if s.Interval <= 0 {
			return nil, fmt.Errorf("series of %s trial %d: interval must be > 0, got %s", s.CellKey, s.Trial, s.Interval)
		}
		runs[i].Notes = withNote(runs[i].Notes, result.NoteSeries, s.file())
		data, err := s.csv()
		if err != nil {
			return nil, err
		}
		files = append(files, file{s.file(), data})
		if len(s.Bursts) > 0 {
			data, err := s.burstsCSV()
			if err != nil {
				return nil, err
			}
			files = append(files, file{s.burstsFile(), data})
		}
	}
	for _, a := range extra.Archives {
		i := of(a.CellKey, a.Trial)
		if i < 0 {
			return nil, fmt.Errorf("requests of %s trial %d belong to no run", a.CellKey, a.Trial)
		}
		name := fmt.Sprintf("pages/%s-%s-%s-%d/webpage.har", a.Case, a.Traffic, a.Transport, a.Trial)
		runs[i].Notes = withNote(runs[i].Notes, result.NoteHAR, name)
		files = append(files, file{name, a.HAR})
	}
	return files, nil
}

func figuresOverTime(traces []series, spec *scenario.Spec) ([]figure, error) {
	if spec.Experiment.HasEvents() {
		return courseFigures(traces, spec)
	}
	return seriesFigures(traces, spec.Experiment)
}

// tableFiles returns the CSV files of a result, and the statistics of a browser's visits.
func tableFiles(r result.Result, e *scenario.Experiment) (files []file, err error) {
	if e.Kind == scenario.KindWeb {
		header, lines, err := pairsTable(r, e)
		if err != nil {
			return nil, err
		}
		pairs, err := table(header, lines)
		if err != nil {
			return nil, err
		}
		statistics, err := browsertimeFile(r, e)
		if err != nil {
			return nil, err
		}
		files = append(files, file{"comparisons.csv", pairs}, file{"browsertime.json", statistics})
	}
	if len(r.Findings) > 0 {
		tested, err := table(findingsFile(r))
		if err != nil {
			return nil, err
		}
		files = append(files, file{"findings.csv", tested})
	}
	runs, err := table(runTable(r.Runs))
	if err != nil {
		return nil, err
	}
	summary, err := table(summaryTable(r.Summary))
	if err != nil {
		return nil, err
	}
	return append(files, file{"runs.csv", runs}, file{"summary.csv", summary}), nil
}

// withNote returns a copy of notes with one more.
func withNote(notes map[string]string, name, text string) map[string]string {
	copied := map[string]string{name: text}
	maps.Copy(copied, notes)
	copied[name] = text
	return copied
}

// sourceOf returns the source of a metric's values, and their model.
func sourceOf(metric string) string {
	m, _ := result.MetricNamed(metric)
	if m.Model {
		return string(m.Provenance()) + ": " + m.Title
	}
	return string(m.Provenance())
}

func summaryTable(cells []result.Cell) (header []string, lines [][]string) {
	for _, c := range cells {
		line := []string{c.Case, c.Traffic, c.Transport, c.Metric, strconv.Itoa(c.N)}
		for _, v := range []float64{c.Min, c.Q1, c.Median, c.Q3, c.Max, c.Mean, c.CI95} {
			line = append(line, strconv.FormatFloat(v, 'f', -1, 64))
		}
		lines = append(lines, append(line, sourceOf(c.Metric)))
	}
	return []string{"case", "traffic", "transport", "metric", "n", "min", "q1", "median", "q3", "max", "mean", "ci95", "source"}, lines
}

func table(header []string, lines [][]string) ([]byte, error) {
	var b bytes.Buffer
	if err := csv.NewWriter(&b).WriteAll(slices.Concat([][]string{header}, lines)); err != nil {
		return nil, fmt.Errorf("encode csv: %w", err)
	}
	return b.Bytes(), nil
}

// writeFiles writes all files under temporary names and then renames them, in order. On an error,
// files not renamed yet are unchanged, and temporary files are removed.
func writeFiles(dir string, files []file) (err error) {
	temporary := make([]string, 0, len(files))
	defer func() {
		for _, name := range temporary {
			err = errors.Join(err, os.Remove(name))
		}
	}()
	for _, f := range files {
		if !filepath.IsLocal(filepath.FromSlash(f.name)) {
			return fmt.Errorf("file %q is outside of the directory", f.name)
		}
		name, err := writeTemporary(filepath.Join(dir, filepath.FromSlash(f.name)), f.data)
		if err != nil {
			return err
		}
		temporary = append(temporary, name)
	}
	for _, f := range files {
		if err := os.Rename(temporary[0], filepath.Join(dir, filepath.FromSlash(f.name))); err != nil {
			return err
		}
		temporary = temporary[1:]
	}
	return nil
}

// writeTemporary writes data to a new file beside path and syncs it.
func writeTemporary(path string, data []byte) (string, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}
