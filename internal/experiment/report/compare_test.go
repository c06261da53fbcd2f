package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

func TestComparison(t *testing.T) {
	key := result.CellKey{Case: "d50", Traffic: "bulk", Transport: "mptcp"}
	for width, want := range map[int]string{
		80: `PATTERN  TRAFFIC  TRANSPORT  METRIC                        LAB   SIM    ERROR
d50      bulk     mptcp      goodput (Mbit/s)                8  8.20   +2.5 %
                             mean resequencing delay (ms)   20  2.50  -87.5 %
                             longest burst (segments)        0     3
`,
		60: `(means, with the range over the trials)
d50 bulk mptcp
  goodput (Mbit/s)
    lab 8, sim 8.20: +2.5 %
  mean resequencing delay (ms)
    lab 20, sim 2.50: -87.5 %
  longest burst (segments)
    lab 0, sim 3
`,
	} {
		var b strings.Builder
		err := Comparison(&b, []result.Comparison{
			{CellKey: key, Metric: result.Goodput, Measured: 8e6, Simulated: 8.2e6},
			{CellKey: key, Metric: result.ReseqDelayMean, Measured: 0.02, Simulated: 0.0025},
			{CellKey: key, Metric: result.BurstMax, Simulated: 3},
		}, width)
		if err != nil || b.String() != want {
			t.Errorf("in %d columns: got\n%s, %v\nwant\n%s", width, b.String(), err, want)
		}
	}
}

// TestWriteComparison: the simulation's result and the comparison lie beside the result, and the
// page shows them.
func TestWriteComparison(t *testing.T) {
	dir := t.TempDir()
	spec := &scenario.Spec{Name: "two", Experiment: &scenario.Experiment{
		Cases: []scenario.Case{{Name: "d50"}}, Traffic: map[string]*scenario.Traffic{"bulk": {}}, Transports: map[string]*scenario.Transport{"mptcp": {}},
	}}
	result := func(goodput float64) result.Result {
		key := result.CellKey{Case: "d50", Traffic: "bulk", Transport: "mptcp"}
		return result.Result{
			Schema: result.Schema, Scenario: "two", Backend: "lab",
			Runs:    []result.Run{{CellKey: key, Metrics: map[string]float64{result.Goodput: goodput}}},
			Summary: []result.Cell{{CellKey: key, Metric: result.Goodput, Summary: stat.Summary{N: 1, Median: goodput, Mean: goodput, Min: goodput, Max: goodput, Q1: goodput, Q3: goodput}}},
		}
	}
	simulated := result(9e6)
	if err := Write(dir, result(10e6), spec, Extra{Simulated: &simulated}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"sim/result.json": `"goodput_bps": 9000000`, "compare.json": `"error": -0.1`, "report.html": "<td class=\"number\">-10.0 %</td>",
	} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s lacks %q: %v", name, want, err)
		}
	}
}
