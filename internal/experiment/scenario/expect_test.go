package scenario

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/experiment/result"
)

// table is two cases of one traffic over two transports, three trials each.
func table() (*Experiment, []result.Run) {
	e := &Experiment{
		Cases:      []Case{{Name: "1.1"}, {Name: "1.2"}},
		Traffic:    map[string]*Traffic{"bi": {}},
		Transports: map[string]*Transport{"tcp": {}, "mptcp": {}},
		Baseline:   "tcp",
	}
	var runs []result.Run
	for k, v := range map[result.CellKey][3]float64{
		{Case: "1.1", Traffic: "bi", Transport: "tcp"}: {28, 28, 27}, {Case: "1.1", Traffic: "bi", Transport: "mptcp"}: {54, 55, 53.9},
		{Case: "1.2", Traffic: "bi", Transport: "tcp"}: {28, 28, 28}, {Case: "1.2", Traffic: "bi", Transport: "mptcp"}: {40, 41, 30},
	} {
		limit := map[string]float64{"1.1": 56, "1.2": 42}[k.Case]
		for i, goodput := range v {
			runs = append(runs, result.Run{CellKey: k, Trial: i, Metrics: map[string]float64{result.Goodput: goodput, result.LimitRate: limit, result.EmptyIntervals: 0, result.LongestGap: 0.03}})
		}
	}
	return e, runs
}

func TestEvaluate(t *testing.T) {
	ptr := func(f float64) *float64 { return &f }
	for _, tt := range []struct {
		name  string
		x     Expectation
		spoil func([]result.Run) []result.Run
		want  result.Verdict
	}{
		{"worst cell counts", Expectation{Metric: result.Goodput, Transport: "mptcp", Relative: result.LimitRate, AtLeast: ptr(0.95)}, nil,
			result.Verdict{Want: "median goodput / available capacity (payload) >= 0.95 in every case, every traffic, mptcp", Got: "0.9524 (worst: 1.2 bi mptcp)", Holds: true}},
		{"some cell misses", Expectation{Metric: result.Goodput, Transport: "mptcp", Relative: result.LimitRate, AtLeast: ptr(0.96)}, nil,
			result.Verdict{Want: "median goodput / available capacity (payload) >= 0.96 in every case, every traffic, mptcp", Got: "0.9524 (worst: 1.2 bi mptcp)"}},
		{"several cells miss", Expectation{Metric: result.Goodput, Transport: "mptcp", Relative: result.LimitRate, AtLeast: ptr(0.97)}, nil,
			result.Verdict{Want: "median goodput / available capacity (payload) >= 0.97 in every case, every traffic, mptcp", Got: "0.9524 (worst: 1.2 bi mptcp; 2 of 2 cells miss)"}},
		{"one cell", Expectation{Metric: result.Goodput, Case: "1.1", Traffic: "bi", Transport: "mptcp", Stat: "min", AtLeast: ptr(53.9)}, nil,
			result.Verdict{Want: "min goodput >= 53.9 in case 1.1, bi, mptcp", Got: "53.9 bit/s (1.1 bi mptcp)", Holds: true}},
		{"two bounds, the upper nearer", Expectation{Metric: result.Goodput, Case: "1.1", Transport: "mptcp", AtLeast: ptr(1), AtMost: ptr(53)}, nil,
			result.Verdict{Want: "median goodput >= 1 and <= 53 in case 1.1, every traffic, mptcp", Got: "54 bit/s (1.1 bi mptcp)"}},
		{"against a transport, which is not selected itself", Expectation{Metric: result.Goodput, Relative: "transport:tcp", AtLeast: ptr(1.2)}, nil,
			result.Verdict{Want: "median goodput / that of tcp >= 1.2 in every case, every traffic, every transport", Got: "1.429 (worst: 1.2 bi mptcp)", Holds: true}},
		{"zero may be bounded", Expectation{Metric: result.EmptyIntervals, Stat: "max", AtMost: ptr(0)}, nil,
			result.Verdict{Want: "max 100 ms intervals without data <= 0 in every case, every traffic, every transport", Got: "0 (worst: 1.1 bi tcp)", Holds: true}},
		{"mean", Expectation{Metric: result.LongestGap, Stat: "mean", Case: "1.1", Transport: "tcp", AtMost: ptr(0.01)}, nil,
			result.Verdict{Want: "mean longest gap without data <= 0.01 in case 1.1, every traffic, tcp", Got: "0.03 s (1.1 bi tcp)"}},
		{"a near miss does not read as met", Expectation{Metric: result.Goodput, Case: "1.1", Transport: "mptcp", AtLeast: ptr(54.00001)}, nil,
			result.Verdict{Want: "median goodput >= 54.00001 in case 1.1, every traffic, mptcp", Got: "54 bit/s (1.1 bi mptcp)"}},
		{"a very near miss neither", Expectation{Metric: result.Goodput, Case: "1.2", Transport: "mptcp", Relative: result.LimitRate, AtLeast: ptr(0.9524)}, nil,
			result.Verdict{Want: "median goodput / available capacity (payload) >= 0.9524 in case 1.2, every traffic, mptcp", Got: "0.95238 (1.2 bi mptcp)"}},
		{"no cell", Expectation{Metric: result.Goodput, Case: "9", AtLeast: ptr(0)}, nil,
			result.Verdict{Want: "median goodput >= 0 in case 9, every traffic, every transport", Got: "selects no cell"}},
		{"metric that no run has", Expectation{Metric: result.FirstByte, Transport: "tcp", AtLeast: ptr(0)}, nil,
			result.Verdict{Want: "median time to first byte >= 0 in every case, every traffic, tcp", Got: "1.1 bi tcp has no time to first byte (and 1 more)"}},
		{"relative metric that no run has", Expectation{Metric: result.Goodput, Relative: result.OfferedRate, Case: "1.1", Transport: "tcp", AtLeast: ptr(0)}, nil,
			result.Verdict{Want: "median goodput / offered rate (payload) >= 0 in case 1.1, every traffic, tcp", Got: "1.1 bi tcp has no offered rate (payload)"}},
		{"relative to zero", Expectation{Metric: result.Goodput, Relative: result.EmptyIntervals, Case: "1.1", Transport: "tcp", AtLeast: ptr(0)}, nil,
			result.Verdict{Want: "median goodput / 100 ms intervals without data >= 0 in case 1.1, every traffic, tcp", Got: "100 ms intervals without data of 1.1 bi tcp is 0: no value is relative to it"}},
		{"failed run", Expectation{Metric: result.Goodput, Transport: "mptcp", AtLeast: ptr(0)}, fail("mptcp"),
			result.Verdict{Want: "median goodput >= 0 in every case, every traffic, mptcp", Got: "1.2 bi mptcp: trial 1 failed: reset"}},
		{"failed run on the other side", Expectation{Metric: result.Goodput, Transport: "mptcp", Relative: "transport:tcp", AtLeast: ptr(0)}, fail("tcp"),
			result.Verdict{Want: "median goodput / that of tcp >= 0 in every case, every traffic, mptcp", Got: "1.2 bi tcp: trial 1 failed: reset"}},
		{"failed run elsewhere", Expectation{Metric: result.Goodput, Transport: "mptcp", AtLeast: ptr(0)}, fail("tcp"),
			result.Verdict{Want: "median goodput >= 0 in every case, every traffic, mptcp", Got: "40 bit/s (worst: 1.2 bi mptcp)", Holds: true}},
		{"cell that never ran", Expectation{Metric: result.Goodput, Transport: "tcp", AtLeast: ptr(0)}, func(runs []result.Run) []result.Run {
			var left []result.Run
			for _, r := range runs {
				if r.Case != "1.2" {
					left = append(left, r)
				}
			}
			return left
		}, result.Verdict{Want: "median goodput >= 0 in every case, every traffic, tcp", Got: "1.2 bi tcp has no goodput"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, runs := table()
			if tt.spoil != nil {
				runs = tt.spoil(runs)
			}
			cells, err := result.Summarize(runs)
			if err != nil {
				t.Fatal(err)
			}
			tt.x.Name, tt.want.Name = tt.name, tt.name
			e.Expect = []Expectation{tt.x}
			if diff := cmp.Diff([]result.Verdict{tt.want}, Evaluate(e, cells, runs)); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
		})
	}
}

// fail makes trial 1 of case 1.2 over the transport a failed one.
func fail(transport string) func([]result.Run) []result.Run {
	return func(runs []result.Run) []result.Run {
		for i, r := range runs {
			if r.Case == "1.2" && r.Transport == transport && r.Trial == 1 {
				runs[i].Notes = map[string]string{result.NoteError: "reset"}
			}
		}
		return runs
	}
}
