package stat

import (
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestHolm(t *testing.T) {
	for _, tt := range []struct{ ps, want []float64 }{
		{nil, []float64{}},
		{[]float64{0.03}, []float64{0.03}},
		// p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") of R
		{[]float64{0.01, 0.04, 0.03, 0.005}, []float64{0.03, 0.06, 0.06, 0.02}},
		{[]float64{0.5, 0.9, 0.5}, []float64{1, 1, 1}},
	} {
		got, err := Holm(tt.ps)
		if err != nil || !slices.EqualFunc(got, tt.want, func(a, b float64) bool { return math.Abs(a-b) < 1e-12 }) {
			t.Errorf("%v: got %v, %v, want %v", tt.ps, got, err, tt.want)
		}
	}
	for _, bad := range []float64{-0.1, 1.1, math.NaN()} {
		if _, err := Holm([]float64{0.5, bad}); err == nil {
			t.Errorf("%g: no error", bad)
		}
	}
}

// TestHolmKeepsTheOrder: corrected values are at least as large, and in the same order.
func TestHolmKeepsTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ps := rapid.SliceOfN(rapid.Float64Range(0, 1), 1, 20).Draw(t, "ps")
		got, err := Holm(ps)
		if err != nil {
			t.Fatal(err)
		}
		for i := range ps {
			if got[i] < ps[i] || got[i] > 1 {
				t.Fatalf("%g became %g", ps[i], got[i])
			}
			for j := range ps {
				if ps[i] < ps[j] && got[i] > got[j] {
					t.Fatalf("%v became %v", ps, got)
				}
			}
		}
	})
}

func TestHedgesG(t *testing.T) {
	// Means 3 and 5, both variances 2.5, 8 degrees of freedom: -2/sqrt(2.5) * (1 - 3/31).
	a, b := []float64{1, 2, 3, 4, 5}, []float64{3, 4, 5, 6, 7}
	want := -2 / math.Sqrt(2.5) * (1 - 3.0/31)
	if got, err := HedgesG(a, b); err != nil || math.Abs(got-want) > 1e-12 {
		t.Errorf("got %g, %v, want %g", got, err, want)
	}
	for want, sets := range map[error][2][]float64{
		ErrTooFew:    {{1}, {1, 2}},
		ErrNoSpread:  {{1, 1}, {2, 2}},
		ErrNotFinite: {{1, math.Inf(1)}, {1, 2}},
	} {
		if _, err := HedgesG(sets[0], sets[1]); !errors.Is(err, want) {
			t.Errorf("%v: got %v, want %v", sets, err, want)
		}
	}
}

func TestComparePairs(t *testing.T) {
	got, err := ComparePairs([][][]float64{{{1, 2, 3, 4, 5}, {11, 12, 13, 14, 15}, {1}, {1.5, 2.5, 3.5, 4.5, 5.5}}, {{1, 1}, {2, 2}, {2, 2.1}}})
	if err != nil || len(got) != 5 {
		t.Fatalf("got %+v, %v", got, err)
	}
	for i, pair := range [][2]int{{0, 1}, {0, 3}, {1, 3}} {
		c := got[i]
		if c.A != pair[0] || c.B != pair[1] || c.Corrected < c.P {
			t.Errorf("pair %v: %+v", pair, c)
		}
		if significant := c.Corrected <= 0.05; significant != (i != 1) {
			t.Errorf("pair %v: significant %v: %+v", pair, significant, c)
		}
	}
	if got[3].Group != 1 || got[4].Group != 1 || got[4].A != 1 || got[4].B != 2 {
		t.Errorf("second group: %+v", got[3:])
	}
	if got[0].Corrected != 5*got[0].P || got[0].Effect > -5 {
		t.Errorf("%+v", got[0])
	}
}
