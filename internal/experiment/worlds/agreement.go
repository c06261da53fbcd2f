package worlds

import (
	"math"
	"slices"

	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// InLab returns the scenario of the world without the traffic that only the simulator has.
func (w World) InLab(base *scenario.Spec) *scenario.Spec {
	w.Extra = slices.DeleteFunc(slices.Clone(w.Extra), func(name string) bool { return w.traffic(name).Beside > 0 })
	s := w.Spec(base)
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

// Agreement is the goodput of a cell in a lab and in the simulator: medians, in bit/s, 0 if all
// failed. Chance is that of one more simulated run with other random numbers: a lab cannot be
// expected to be closer to the simulator than the simulator is to itself.
type Agreement struct {
	result.CellKey
	Lab, Sim, Chance float64
}

// Tolerance is by how much of the lab's goodput the simulator's may differ to agree.
const Tolerance = 0.05

// Agrees reports whether the lab and the simulator differ by no more than Tolerance.
func (a Agreement) Agrees() bool { return agrees(a.Lab, a.Sim) }

// Repeats reports whether the simulator differs from itself by no more than that.
func (a Agreement) Repeats() bool { return agrees(a.Chance, a.Sim) }

func agrees(a, b float64) bool { return math.Abs(b-a) <= Tolerance*a }

// Agree compares the runs of a world in a lab and in the simulator, in the order of the lab's
// cells. chance has one more simulated run of each.
func Agree(lab, sim, chance []result.Run) ([]Agreement, error) {
	var list []Agreement
	for _, r := range lab {
		if slices.ContainsFunc(list, func(a Agreement) bool { return a.CellKey == r.CellKey }) {
			continue
		}
		a := Agreement{CellKey: r.CellKey}
		for _, of := range []struct {
			runs []result.Run
			to   *float64
		}{{lab, &a.Lab}, {sim, &a.Sim}, {chance, &a.Chance}} {
			var all []float64
			for _, x := range of.runs {
				if x.CellKey == r.CellKey {
					all = append(all, x.Metrics[result.Goodput]) // 0 if it failed
				}
			}
			if len(all) == 0 {
				continue
			}
			var err error
			if *of.to, err = stat.Quantile(0.5, all); err != nil {
				return nil, err
			}
		}
		list = append(list, a)
	}
	return list, nil
}
