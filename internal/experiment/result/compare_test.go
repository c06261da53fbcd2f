package result

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/base/stat"
)

func TestCompare(t *testing.T) {
	cell := func(name, metric string, n int, mean float64) Cell {
		return Cell{CellKey{name, "bulk", "mptcp"}, metric, stat.Summary{N: n, Mean: mean, Min: mean / 2, Max: 2 * mean}}
	}
	measured := Result{Summary: []Cell{
		cell("d50", BurstMax, 3, 0), cell("d50", Goodput, 3, 8e6), cell("d50", FirstByte, 3, 1), cell("d20", Goodput, 3, 1e6), cell("d20", BufferMax, 3, 1),
	}}
	simulated := Result{Summary: []Cell{
		cell("d50", Goodput, 12, 9e6), cell("d50", BurstMax, 12, 4), cell("d50", FirstByte, 12, 1), cell("d20", Goodput, 12, 1e6), cell("d9", Goodput, 12, 1),
	}}
	got := Compare(measured, simulated)
	want := []Comparison{
		{CellKey{"d50", "bulk", "mptcp"}, Goodput, 8e6, 9e6, 3, 12, [2]float64{4e6, 16e6}, [2]float64{4.5e6, 18e6}},
		{CellKey{"d50", "bulk", "mptcp"}, BurstMax, 0, 4, 3, 12, [2]float64{}, [2]float64{2, 8}},
		{CellKey{"d20", "bulk", "mptcp"}, Goodput, 1e6, 1e6, 3, 12, [2]float64{5e5, 2e6}, [2]float64{5e5, 2e6}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if e, known := got[0].Error(); e != 0.125 || !known {
		t.Errorf("error %v, %v", e, known)
	}
	if e, known := got[1].Error(); known {
		t.Errorf("an error of %v relative to nothing", e)
	}
	b, err := EncodeComparison("x", got)
	if text := string(b); err != nil || strings.Count(text, `"error"`) != 2 || !strings.Contains(text, `"lab": 8000000`) {
		t.Errorf("%s, %v", text, err)
	}
}
