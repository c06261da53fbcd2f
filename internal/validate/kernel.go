package validate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/scenario"
)

// comparisonFile is what `tabane lab run --compare sim` writes beside its result.json.
const comparisonFile = "compare.json"

// comparison is the content of such a file.
type comparison struct {
	Schema   int    `json:"schema"`
	Scenario string `json:"scenario"`
	Cells    []struct {
		Case      string   `json:"case"`
		Traffic   string   `json:"traffic"`
		Transport string   `json:"transport"`
		Metric    string   `json:"metric"`
		Lab       float64  `json:"lab"`
		Sim       float64  `json:"sim"`
		Error     *float64 `json:"error"`
		LabN      int      `json:"lab_n"`
		SimN      int      `json:"sim_n"`
	} `json:"cells"`
}

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
	data, err := io.ReadAll(io.LimitReader(in, scenario.MaxResult+1))
	if err != nil {
		return comparison{}, err
	}
	if len(data) > scenario.MaxResult {
		return comparison{}, fmt.Errorf("is larger than %d bytes", scenario.MaxResult)
	}
	var c comparison
	if err := json.Unmarshal(data, &c); err != nil {
		return comparison{}, err
	}
	switch {
	case c.Schema != scenario.Schema:
		return comparison{}, fmt.Errorf("has schema %d, want %d", c.Schema, scenario.Schema)
	case c.Scenario == "":
		return comparison{}, errors.New("names no scenario")
	}
	return c, nil
}

// aims says for each metric how near the simulator should be, and what it is.
var aims = []struct {
	name    string
	metrics []string
	within  float64
}{
	{"goodput", []string{scenario.Goodput}, 0.05},
	{"resequencing delay", []string{scenario.ReseqDelayMean}, 0.2},
	{"bursts", []string{scenario.BurstMax, scenario.BurstLarge}, 0.2},
}

func aimOf(metric string) (name string, within float64, ok bool) {
	for _, a := range aims {
		if slices.Contains(a.metrics, metric) {
			return a.name, a.within, true
		}
	}
	return "", 0, false
}

// kernel shows what a lab measured beside what was simulated.
func kernel(b *bench, o Options) func() Part {
	part := Part{
		Title:    "The kernel",
		Question: "How far is a simulation from the same connection of a real Linux kernel?",
		Method: `A lab runs a scenario in network namespaces with the kernel's own TCP and MPTCP, and the simulator runs the same file:
` + "`tabane lab run NAME --compare sim --out DIR`" + ` (as root) puts both side by side. These are measurements of a machine, so they are not made anew with
this page: ` + "`tabane sim validate --kernel DIR`" + ` enters them, and ` + "`make validate`" + ` enters all docs/validation/*.json, which are compare.json files of such
directories. Both are medians. The aim is goodput within 5 %, mean resequencing delay and bursts within 20 %, where nothing is lost by chance.`,
	}
	if len(o.Kernel) == 0 {
		part.Missing = "no measurement was given (`tabane lab run reseq-rate --compare sim --out DIR`, then `tabane sim validate --kernel DIR`)"
		return func() Part { return part }
	}
	comparisons := make([]comparison, len(o.Kernel))
	for i, path := range o.Kernel {
		c, err := readComparison(path)
		if err != nil {
			b.faults = append(b.faults, err)
		}
		comparisons[i] = c
	}
	return func() Part {
		off := map[string][]float64{}
		for _, c := range comparisons {
			t := Table{Caption: "Scenario " + c.Scenario, Head: []string{"case, traffic, transport", "metric", "n lab / sim", "lab", "sim", "error", "within the aim"}}
			for _, cell := range c.Cells {
				shown, aim := "–", "–"
				if cell.Error != nil {
					shown = fmt.Sprintf("%+.1f %%", 100**cell.Error)
					if name, within, ok := aimOf(cell.Metric); ok {
						off[name] = append(off[name], math.Abs(*cell.Error))
						aim = verdict(math.Abs(*cell.Error) <= within)
					}
				}
				title, by := cell.Metric, 1.0
				if m, known := scenario.MetricNamed(cell.Metric); known {
					title = m.Title
					unit := m.Unit
					switch unit {
					case "bit/s":
						unit, by = "Mbit/s", 1e-6
					case "s":
						unit, by = "ms", 1e3
					case "B":
						unit, by = "kB", 1e-3
					}
					if unit != "" {
						title += ", " + unit
					}
				}
				t.Rows = append(t.Rows, []string{strings.Join([]string{cell.Case, cell.Traffic, cell.Transport}, " "), title,
					fmt.Sprintf("%d / %d", cell.LabN, cell.SimN), digits(cell.Lab * by), digits(cell.Sim * by), shown, aim})
			}
			part.Tables = append(part.Tables, t)
		}
		for _, a := range aims {
			errs := off[a.name]
			if len(errs) == 0 {
				continue
			}
			slices.Sort(errs)
			middle := (errs[(len(errs)-1)/2] + errs[len(errs)/2]) / 2
			part.Claims = append(part.Claims, Claim{
				Text:  fmt.Sprintf("%s is within %.0f %% of the kernel's in at least half of the cells", a.name, 100*a.within),
				Got:   fmt.Sprintf("median error %.1f %%, largest %.1f %%, of %d", 100*middle, 100*errs[len(errs)-1], len(errs)),
				Holds: middle <= a.within,
			})
		}
		return part
	}
}
