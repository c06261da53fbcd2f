package result

import (
	"math"
	"testing"
)

func TestDifferences(t *testing.T) {
	make := func(values map[string][]float64) Result {
		var r Result
		for metric, list := range values {
			for trial, v := range list {
				for len(r.Runs) <= trial {
					r.Runs = append(r.Runs, Run{CellKey: CellKey{"1.1", "bi", "mptcp"}, Trial: len(r.Runs), Metrics: map[string]float64{}})
				}
				r.Runs[trial].Metrics[metric] = v
			}
		}
		return r
	}
	for _, tt := range []struct {
		name, metric string
		a, b         []float64
		want         Change
		ratio        float64 // NaN: not known
		interval     bool
	}{
		{"more goodput", Goodput, []float64{10, 11, 10}, []float64{20, 21, 20}, Better, 61.0 / 31, true},
		{"less goodput", Goodput, []float64{20, 21, 20}, []float64{10, 11, 10}, Worse, 31.0 / 61, true},
		{"less delay", ReseqDelayMean, []float64{20, 21, 20}, []float64{10, 11, 10}, Better, 31.0 / 61, true},
		{"within the spread", Goodput, []float64{10, 12, 11}, []float64{10.5, 12.5, 11}, NoDifference, 34.0 / 33, true},
		{"one trial", Goodput, []float64{10}, []float64{20}, TooFew, 2, false},
		{"same without spread", Goodput, []float64{10, 10}, []float64{10, 10}, NoDifference, 1, true},
		{"other without spread", Goodput, []float64{10, 10}, []float64{9, 9}, Worse, 0.9, true},
		{"from 0", ConnectionsLost, []float64{0, 0, 0}, []float64{2, 3, 2}, Worse, math.NaN(), false},
		{"0 in both", ConnectionsLost, []float64{0, 0}, []float64{0, 0}, NoDifference, math.NaN(), false},
		{"no bounded interval", LongestGap, []float64{0.1, 5}, []float64{1, 2}, NoDifference, 1.5 / 2.55, false},
		{"an estimate of a model", EstimatedMOS, []float64{1, 1.1, 1}, []float64{4, 4.1, 4}, Untested, 12.1 / 3.1, false},
		{"neither is better", BurstsPerSecond, []float64{1, 1.1, 1}, []float64{5, 5.1, 5}, Higher, 15.1 / 3.1, true},
	} {
		var names []string
		if m, _ := MetricNamed(tt.metric); m.Better == 0 {
			names = []string{tt.metric}
		}
		list := Differences(make(map[string][]float64{tt.metric: tt.a}), make(map[string][]float64{tt.metric: tt.b}), names)
		if len(list) != 1 {
			t.Fatalf("%s: %d differences, want 1", tt.name, len(list))
		}
		d := list[0]
		if d.Change != tt.want || d.RatioKnown == math.IsNaN(tt.ratio) || d.RatioKnown && math.Abs(d.Ratio.Value-tt.ratio) > 1e-9 || d.IntervalKnown != tt.interval {
			t.Errorf("%s: got %+v, want %s, ratio %g", tt.name, d, tt.want, tt.ratio)
		}
	}
}

func TestDifferencesOfWhatBothHave(t *testing.T) {
	k := CellKey{"1", "bi", "tcp"}
	run := func(k CellKey, goodput float64, notes map[string]string) Run {
		return Run{CellKey: k, Metrics: map[string]float64{Goodput: goodput, LimitRate: 1}, Notes: notes}
	}
	a := Result{Runs: []Run{run(k, 1, nil), run(k, 1, nil), run(CellKey{"2", "bi", "tcp"}, 1, nil)}}
	b := Result{Runs: []Run{run(k, 2, nil), run(k, 2, nil), run(k, 99, map[string]string{NoteError: "reset"}), run(CellKey{"3", "bi", "tcp"}, 1, nil)}}
	list := Differences(a, b, nil)
	if len(list) != 1 || list[0].CellKey != k || list[0].Metric != Goodput || list[0].B.N != 2 || list[0].B.Mean != 2 {
		t.Errorf("got %+v, want the goodput of %s without the failed run", list, k)
	}
}
