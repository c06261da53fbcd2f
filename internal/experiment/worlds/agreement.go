package worlds

import (
	"math"
	"slices"

	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// InLab returns the scenario of the world as a lab runs it.
func (w World) InLab(base *scenario.Spec) *scenario.Spec {
	s := w.Spec(base).ForLab()
	// Only the simulator can choose where connections begin.
	for name, t := range s.Experiment.Transports {
		switch {
		case t.Begin == scenario.BeginBest:
			t.Begin = ""
		case t.Begin != "":
			delete(s.Experiment.Transports, name)
		}
	}
	return s
}

// Rate is what all paths together can carry.
func (w World) Rate() unit.Bandwidth {
	sum := unit.Bandwidth(0)
	for _, p := range w.Paths {
		sum += p.Forward.Rate
	}
	return sum
}

// Agreement is what a cell came to in a lab, a median, and in the simulator, 0 if all failed: the
// goodput in bit/s, of all downloads at once, or of a call the 95th percentile of the delay in
// seconds.
type Agreement struct {
	result.CellKey
	Lab float64
	Sim Simulated
}

// Delay reports whether a delay is compared.
func (a Agreement) Delay() bool { return a.Traffic == Call }

// Simulated is that of simulated runs with other random numbers each. What they span is what
// chance does: a lab cannot be expected to be closer to their median than they are.
type Simulated struct {
	Median, Least, Most float64
}

// Tolerance is by which part of the one goodput another may differ to agree.
const Tolerance = 0.05

// Agrees reports whether the lab and the median of the simulator differ by no more than Tolerance.
func (a Agreement) Agrees() bool { return math.Abs(a.Sim.Median-a.Lab) <= Tolerance*a.Lab }

// Within reports whether the lab is in what the simulated runs span, or outside by no more than
// Tolerance.
func (a Agreement) Within() bool {
	return a.Lab > 0 && a.Lab >= (1-Tolerance)*a.Sim.Least && a.Lab <= (1+Tolerance)*a.Sim.Most
}

// Repeats reports whether no simulated run differs from their median by more than Tolerance.
func (s Simulated) Repeats() bool {
	return s.Most-s.Median <= Tolerance*s.Median && s.Median-s.Least <= Tolerance*s.Median
}

// Agree compares the runs of a world in a lab and in the simulator, in the order of the lab's
// cells.
func Agree(lab, sim []result.Run) ([]Agreement, error) {
	var list []Agreement
	for _, r := range lab {
		if slices.ContainsFunc(list, func(a Agreement) bool { return a.CellKey == r.CellKey }) {
			continue
		}
		measured, err := spanOf(lab, r.CellKey)
		if err != nil {
			return nil, err
		}
		simulated, err := spanOf(sim, r.CellKey)
		if err != nil {
			return nil, err
		}
		list = append(list, Agreement{r.CellKey, measured.Median, Simulated{simulated.Median, simulated.Min, simulated.Max}})
	}
	return list, nil
}

// spanOf describes what the runs of a cell came to, 0 of one that failed. Without runs all of it is 0.
func spanOf(runs []result.Run, cell result.CellKey) (stat.Summary, error) {
	var all []float64
	for _, x := range runs {
		if x.CellKey == cell {
			if cell.Traffic == Call {
				all = append(all, x.Metrics[result.DatagramDelayP95])
			} else {
				all = append(all, carried(x.Metrics))
			}
		}
	}
	if len(all) == 0 {
		return stat.Summary{}, nil
	}
	return stat.Summarize(all)
}
