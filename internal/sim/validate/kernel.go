package validate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/sim/simrun"
)

// comparisonFile is what `tabane lab run --compare sim` writes beside its result.json.
const comparisonFile = "compare.json"

// comparison is the part of such a file that is read: the measurements. The simulation is run
// again.
type comparison struct {
	Schema   int    `json:"schema"`
	Scenario string `json:"scenario"`
	Cells    []struct {
		Case      string  `json:"case"`
		Traffic   string  `json:"traffic"`
		Transport string  `json:"transport"`
		Metric    string  `json:"metric"`
		Lab       float64 `json:"lab"`
		LabN      int     `json:"lab_n"`
		// From the least to the largest trial.
		LabRange [2]float64 `json:"lab_range"`
	} `json:"cells"`
}

// simulate adds the simulation of a measured scenario, with Linux' scheduler.
func simulate(b *bench, o Options, spec *scenario.Spec) *result.Result {
	spec = spec.ForLab().WithSchedulers(func(name string) string {
		if name == "" {
			return ""
		}
		return sched.Default
	})
	trials := simrun.ComparedTrials
	if o.Quick {
		trials = quickTrials
	}
	result := new(result.Result)
	b.jobs = append(b.jobs, func(ctx context.Context) (err error) {
		*result, err = simrun.Run(ctx, simrun.Options{Spec: spec, Trials: trials, Lateness: simrun.LabLateness, Jobs: 1})
		return err
	})
	return result
}

// quickTrials is the number of trials of each cell in a quick run.
const quickTrials = 3

// readComparison reads the file itself, or the one beside a result.json or in a directory.
func readComparison(path string) (comparison, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, comparisonFile)
	} else if filepath.Base(path) == "result.json" {
		path = filepath.Join(filepath.Dir(path), comparisonFile)
	}
	f, err := os.Open(path)
	if err != nil {
		return comparison{}, err
	}
	defer f.Close()
	c, err := decodeComparison(f)
	if err != nil {
		return comparison{}, fmt.Errorf("read comparison %q: %w", path, err)
	}
	return c, nil
}

func decodeComparison(in io.Reader) (comparison, error) {
	data, err := io.ReadAll(io.LimitReader(in, result.MaxResult+1))
	if err != nil {
		return comparison{}, err
	}
	if len(data) > result.MaxResult {
		return comparison{}, fmt.Errorf("is larger than %d bytes", result.MaxResult)
	}
	var c comparison
	if err := json.Unmarshal(data, &c); err != nil {
		return comparison{}, err
	}
	switch {
	case c.Schema != result.Schema:
		return comparison{}, fmt.Errorf("has schema %d, want %d", c.Schema, result.Schema)
	case c.Scenario == "":
		return comparison{}, errors.New("names no scenario")
	}
	return c, nil
}

// aims is the tolerance of each metric shown.
var aims = map[string]float64{
	result.Goodput:        0.05,
	result.ReseqDelayMean: 0.2,
	result.BurstMax:       0.2,
	result.BurstLarge:     0.2,
}

// claimed is the share of cells for which that tolerance is claimed.
var claimed = []struct {
	metric, what, cells string
	share               float64
}{
	{result.Goodput, "goodput", "each cell", 1},
	{result.ReseqDelayMean, "mean resequencing delay", "two of three cells", 2. / 3},
	{result.BurstMax, "the longest burst", "two of three cells", 2. / 3},
}

// middle is the median of sorted values.
func middle(v []float64) float64 { return (v[(len(v)-1)/2] + v[len(v)/2]) / 2 }

// ranged formats a mean, with minimum and maximum where trials differ.
func ranged(mean float64, between [2]float64, by float64) string {
	s := digits(mean * by)
	if least, most := digits(between[0]*by), digits(between[1]*by); least != most {
		s += " (" + least + " to " + most + ")"
	}
	return s
}

// kernel compares measurements of a lab with simulations.
func kernel(b *bench, o Options) func() Part {
	part := Part{
		Title:    "The kernel",
		Question: "How far is a simulation from the same connection of a real Linux kernel?",
		Method: `A lab runs a scenario in network namespaces with the kernel's own TCP and MPTCP, and the simulator runs the same file:
` + "`tabane lab run NAME --compare sim --out DIR`" + ` (as root) puts both side by side. The measurements are those of a machine and stay as they are:
` + "`tabane sim validate --kernel DIR`" + ` reads them, and ` + "`make validate`" + ` reads all docs/validation/*.json, which are compare.json files of such
directories. The simulations are run again. Both are means, with the smallest and the largest trial. The aim is goodput within 5 %, mean resequencing delay and bursts within 20 %, where
no loss is random.`,
		Answer: `Goodput is claimed of each cell, resequencing delay and longest bursts of as many as a claim says. They come from the kernel's default
scheduler, which gives a path up to 64 kB at once, long before its window has room; the simulator does the same. What is left, and why, is in
[compare.md](compare.md): two equal paths hand each other pieces of any length, and what one choice of the first half second makes
of a single burst. The scenario receive-buffer
(docs/validation/receive-buffer.yaml) is of goodput alone: each lab ran alone, with real-time priority, because late packets cost a small window throughput.`,
	}
	if len(o.Kernel) == 0 {
		part.Missing = "no measurement was given (`tabane lab run reseq-rate --compare sim --out DIR`, then `tabane sim validate --kernel DIR`)"
		return func() Part { return part }
	}
	comparisons, simulated := make([]comparison, len(o.Kernel)), make([]*result.Result, len(o.Kernel))
	for i, path := range o.Kernel {
		c, err := readComparison(path)
		if err != nil {
			b.faults = append(b.faults, err)
			continue
		}
		spec, err := o.Scenario(c.Scenario, path)
		if err != nil {
			b.faults = append(b.faults, fmt.Errorf("simulate what %q was measured of: %w", path, err))
			continue
		}
		comparisons[i], simulated[i] = c, simulate(b, o, spec)
	}
	return func() Part {
		off := map[string][]float64{} // of each metric, the errors of the cells
		var missing []string
		for i, c := range comparisons {
			t := Table{Caption: "Scenario " + c.Scenario, Head: []string{"case, traffic, transport", "metric", "n lab / sim", "lab", "sim", "error", "within the aim"}}
			for _, cell := range c.Cells {
				within, aimed := aims[cell.Metric]
				if !aimed {
					continue
				}
				name := strings.Join([]string{cell.Case, cell.Traffic, cell.Transport}, " ")
				s, there := simulated[i].Find(result.CellKey{Case: cell.Case, Traffic: cell.Traffic, Transport: cell.Transport}, cell.Metric)
				if !there {
					missing = append(missing, fmt.Sprintf("%s of %s: %s", cell.Metric, c.Scenario, name))
					continue
				}
				shown, holds := "–", "–"
				if cell.Lab != 0 {
					e := s.Mean/cell.Lab - 1
					shown, holds = fmt.Sprintf("%+.1f %%", 100*e), verdict(math.Abs(e) <= within)
					off[cell.Metric] = append(off[cell.Metric], math.Abs(e))
				}
				title, by := inUnit(cell.Metric)
				t.Rows = append(t.Rows, []string{name, title,
					fmt.Sprintf("%d / %d", cell.LabN, s.N), ranged(cell.Lab, cell.LabRange, by), ranged(s.Mean, [2]float64{s.Min, s.Max}, by), shown, holds})
			}
			part.Tables = append(part.Tables, t)
		}
		if missing != nil {
			part.Claims = append(part.Claims, Claim{Text: "the simulator measures what the lab measured", Got: "missing: " + strings.Join(missing, "; ")})
		}
		for _, m := range claimed {
			errors := off[m.metric]
			if len(errors) == 0 {
				continue
			}
			slices.Sort(errors)
			within := 0
			for _, e := range errors {
				if e <= aims[m.metric] {
					within++
				}
			}
			part.Claims = append(part.Claims, Claim{
				Text:  fmt.Sprintf("%s is within %.0f %% of the kernel's in %s", m.what, 100*aims[m.metric], m.cells),
				Got:   fmt.Sprintf("%d of %d, median error %.1f %%, largest %.1f %%", within, len(errors), 100*middle(errors), 100*errors[len(errors)-1]),
				Holds: float64(within) >= m.share*float64(len(errors)),
			})
		}
		return part
	}
}

// inUnit returns a metric's title with the unit it is shown in, and the factor to that unit.
func inUnit(metric string) (title string, by float64) {
	m, known := result.MetricNamed(metric)
	if !known {
		return metric, 1
	}
	unit, by := m.Unit, 1.0
	switch unit {
	case "bit/s":
		unit, by = "Mbit/s", 1e-6
	case "s":
		unit, by = "ms", 1e3
	case "":
		return m.Title, 1
	}
	return m.Title + ", " + unit, by
}
