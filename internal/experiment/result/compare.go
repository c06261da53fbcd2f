package result

import (
	"encoding/json"
	"fmt"
)

// Comparison is one metric of one cell, measured in a lab and simulated, each as the mean over
// trials.
type Comparison struct {
	CellKey
	Metric         string
	Measured       float64
	Simulated      float64
	MeasuredTrials int
	// SimulatedTrials is the number of simulated runs.
	SimulatedTrials int
	// MeasuredRange and SimulatedRange are the minimum and the maximum over the trials.
	MeasuredRange, SimulatedRange [2]float64
}

// Error returns the relative error of the simulated value; it is not known if the measured value is
// 0 and the simulated one is not.
func (c Comparison) Error() (relative float64, known bool) {
	if c.Measured == 0 {
		return 0, c.Simulated == 0
	}
	return (c.Simulated - c.Measured) / c.Measured, true
}

// Compare compares the cells and metrics that both results have, in the order of the measured one.
func Compare(measured, simulated Result) []Comparison {
	var list []Comparison
	compared := Select(func(m Metric) bool { return m.Compare })
	seen := map[CellKey]bool{}
	for _, cell := range measured.Summary {
		if seen[cell.CellKey] {
			continue
		}
		seen[cell.CellKey] = true
		for _, metric := range compared {
			a, measuredIt := measured.Find(cell.CellKey, metric)
			b, simulatedIt := simulated.Find(cell.CellKey, metric)
			if measuredIt && simulatedIt {
				list = append(list, Comparison{
					cell.CellKey, metric, a.Mean, b.Mean, a.N, b.N, [2]float64{a.Min, a.Max}, [2]float64{b.Min, b.Max},
				})
			}
		}
	}
	return list
}

// EncodeComparison returns the comparison as JSON. An error that is not known is left out.
func EncodeComparison(scenario string, list []Comparison) ([]byte, error) {
	type line struct {
		Case            string   `json:"case"`
		Traffic         string   `json:"traffic"`
		Transport       string   `json:"transport"`
		Metric          string   `json:"metric"`
		Measured        float64  `json:"lab"`
		Simulated       float64  `json:"sim"`
		Error           *float64 `json:"error,omitempty"`
		MeasuredTrials  int      `json:"lab_n"`
		SimulatedTrials int      `json:"sim_n"`
		// Minimum and maximum over the trials.
		MeasuredRange  [2]float64 `json:"lab_range"`
		SimulatedRange [2]float64 `json:"sim_range"`
	}
	lines := []line{}
	for _, c := range list {
		l := line{c.Case, c.Traffic, c.Transport, c.Metric, c.Measured, c.Simulated, nil, c.MeasuredTrials, c.SimulatedTrials, c.MeasuredRange, c.SimulatedRange}
		if e, known := c.Error(); known {
			l.Error = &e
		}
		lines = append(lines, l)
	}
	b, err := json.MarshalIndent(struct {
		Schema   int    `json:"schema"`
		Scenario string `json:"scenario"`
		Cells    []line `json:"cells"`
	}{Schema, scenario, lines}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode comparison of %q: %w", scenario, err)
	}
	return append(b, '\n'), nil
}
