package lab

import (
	"bytes"
	"encoding/csv"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/experiment/papers"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/sim/simrun"
	"github.com/tabane/tabane/internal/testkit/published"
)

var updatePapers = flag.Bool("update", false, "simulate the figures of the papers, and write what is recorded of them and docs/papers.md")

const root = "../../.."

// TestPapers compares what is recorded of each figure with its sources: values of labs with the
// published result, those of the simulator with its first trial. With -update it simulates all
// trials and writes the record, and then docs/papers.md.
func TestPapers(t *testing.T) {
	record := papers.Recorded()
	if *updatePapers {
		record = papers.Record{}
	}
	simulated := map[string]result.Result{}
	var ids []string
	for _, f := range papers.All() {
		if slices.Contains(ids, f.ID) {
			t.Errorf("figure %s is there twice", f.ID)
		}
		ids = append(ids, f.ID)
		spec, err := figureSpec(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Check(spec).Err(); err != nil {
			t.Errorf("figure %s: %v", f.ID, err)
		}
		if spec == nil && f.Trials == "" {
			continue
		}
		if record[f.ID] == nil {
			record[f.ID] = map[string][]result.Cell{}
		}
		if f.Trials != "" {
			compareRecorded(t, f, papers.BackendMeasure, f.Trials, summarizeTrials(t, f.Trials), record)
			continue
		}
		if f.Backend == result.BackendSim {
			compareSimulated(t, f, spec.ForSimulator(), record, simulated)
		}
		if f.Kernel != "" {
			b, err := os.ReadFile(filepath.Join(root, f.Kernel))
			if err != nil {
				t.Error(err)
				continue
			}
			r, err := result.Decode(bytes.NewReader(b))
			if err != nil || r.Scenario != f.Scenario || r.Backend != result.BackendLab {
				t.Fatalf("%s is no result of %s in a lab: %v", f.Kernel, f.Scenario, err)
			}
			compareRecorded(t, f, result.BackendLab, f.Kernel, f.Select(spec, r.Summary), record)
			checkInLab(t, f, r.Summary)
		}
	}
	if *updatePapers {
		b, err := record.Encode()
		if err == nil {
			err = os.WriteFile(filepath.Join(root, "internal/experiment/papers/recorded.json"), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	comparePage(t, record)
}

// checkInLab checks that "papers run --backend lab" has cells for each claim.
func checkInLab(t *testing.T, f papers.Figure, cells []result.Cell) {
	f = f.On(result.BackendLab)
	f.Values = nil
	spec, err := figureSpec(f)
	if err != nil {
		t.Fatal(err)
	}
	spec = spec.ForLab()
	e, err := f.Enter(spec, map[string][]result.Cell{result.BackendLab: f.Select(spec, cells)})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range e.Claimed {
		if v.Got == "selects no cell" || strings.Contains(v.Got, " has no ") {
			t.Errorf("figure %s in a lab: %s: %s", f.ID, v.Name, v.Got)
		}
	}
}

// compareRecorded records what a published file has of a figure, or compares it.
func compareRecorded(t *testing.T, f papers.Figure, backend, file string, cells []result.Cell, record papers.Record) {
	if *updatePapers {
		record[f.ID][backend] = cells
	} else if !reflect.DeepEqual(cells, record[f.ID][backend]) {
		t.Errorf("figure %s: what is recorded is not what %s has; make papers writes it", f.ID, file)
	}
}

// summarizeTrials summarizes the goodput of each mode of each network in the trials of a report.
func summarizeTrials(t *testing.T, file string) []result.Cell {
	b, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	lines, err := csv.NewReader(bytes.NewReader(b)).ReadAll()
	if err != nil || len(lines) < 2 {
		t.Fatalf("%s has %d lines, %v", file, len(lines), err)
	}
	at := func(line []string, column string) string { return line[slices.Index(lines[0], column)] }
	var runs []result.Run
	for _, line := range lines[1:] {
		if at(line, "failed") != "" {
			continue
		}
		bps, err := strconv.ParseFloat(at(line, "goodput_bps"), 64)
		block, err2 := strconv.Atoi(at(line, "block"))
		if err != nil || err2 != nil {
			t.Fatalf("%s: trial %q: %v, %v", file, line, err, err2)
		}
		runs = append(runs, result.Run{
			CellKey: result.CellKey{Case: at(line, "name"), Traffic: at(line, "traffic"), Transport: at(line, "mode")},
			Trial:   block, Metrics: map[string]float64{result.Goodput: bps},
		})
	}
	cells, err := result.Summarize(runs)
	if err != nil {
		t.Fatal(err)
	}
	return cells
}

// compareSimulated records the simulation of a figure, or checks that the first trial is among
// those that are recorded.
func compareSimulated(t *testing.T, f papers.Figure, spec *scenario.Spec, record papers.Record, simulated map[string]result.Result) {
	key := f.Scenario + strings.Join(slices.Concat(f.Cells.Cases, f.Cells.Traffic, f.Cells.Transports), " ")
	r, ok := simulated[key]
	if !ok {
		trials := 1
		if *updatePapers {
			trials = 0 // the scenario's
		}
		var err error
		if r, err = simrun.Run(t.Context(), simrun.Options{Spec: spec, Trials: trials}); err != nil {
			t.Fatal(err)
		}
		simulated[key] = r
	}
	cells := f.Select(spec, r.Summary)
	if *updatePapers {
		record[f.ID][result.BackendSim] = cells
		return
	}
	recorded := record[f.ID][result.BackendSim]
	if len(cells) != len(recorded) || len(cells) == 0 {
		t.Errorf("figure %s: %d values are recorded, and the simulator has %d; make papers writes them", f.ID, len(recorded), len(cells))
		return
	}
	for i, c := range recorded {
		first := cells[i].Median
		slack := 1e-9 * math.Abs(first)
		if c.CellKey != cells[i].CellKey || c.Metric != cells[i].Metric || first < c.Min-slack || first > c.Max+slack {
			t.Errorf("figure %s: %s %s is %v in the first trial, and from %v to %v is recorded of %s %s; make papers writes it",
				f.ID, cells[i].CellKey, cells[i].Metric, first, c.Min, c.Max, c.CellKey, c.Metric)
			return
		}
	}
}

// comparePage compares the tables of docs/papers.md with the record, or writes them.
func comparePage(t *testing.T, record papers.Record) {
	lines := map[string][]string{}
	for _, f := range papers.All() {
		spec, err := figureSpec(f)
		if err != nil {
			t.Fatal(err)
		}
		e, err := f.Enter(spec, record[f.ID])
		if err != nil {
			t.Fatal(err)
		}
		if e.Outcome != papers.Reproduced && e.Because == "" {
			t.Errorf("figure %s: does not say why it is %s", f.ID, e.Outcome)
		}
		if lines[f.Paper()] == nil {
			lines[f.Paper()] = published.Head(papers.Head()...)
		}
		for _, cell := range e.Row() {
			if strings.ContainsAny(cell, "|\n") {
				t.Errorf("figure %s: %q breaks the table", f.ID, cell)
			}
		}
		lines[f.Paper()] = append(lines[f.Paper()], published.Row(e.Row()...))
	}
	for _, paper := range []string{"A", "B", "C", "D", "E"} {
		page, err := published.Read("docs/papers.md", paper, "make papers")
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case *updatePapers:
			if err := page.Write(lines[paper]); err != nil {
				t.Fatal(err)
			}
		case !slices.Equal(page.Lines, lines[paper]):
			for i, line := range lines[paper] {
				if i >= len(page.Lines) || page.Lines[i] != line {
					t.Errorf("docs/papers.md: table %s is stale; make papers writes it\nwant %s", paper, line)
				}
			}
		}
	}
}

// TestPapersFit: the table fits 80 columns, and shows each figure with its verdict.
func TestPapersFit(t *testing.T) {
	list, err := entries(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		var b strings.Builder
		showEntry(&b, e)
		if !strings.Contains(b.String(), e.ID) || !strings.Contains(b.String(), string(e.Outcome)) || !strings.Contains(b.String(), "published") {
			t.Errorf("a part is missing of\n%s", b.String())
		}
		for line := range strings.Lines(b.String()) {
			if len([]rune(strings.TrimSuffix(line, "\n"))) > tableWidth && strings.Contains(strings.TrimSpace(line[min(16, len(line)-1):]), " ") {
				t.Errorf("%s: more than %d columns: %s", e.ID, tableWidth, line)
			}
		}
	}
	if err := writeJSON(io.Discard, list); err != nil {
		t.Error(err)
	}
}
