package stat

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// simulateBlocks returns the goodput of two modes in blocks: what a block has in common varies by
// between, each value by within, both in the standard deviation of the logarithm.
func simulateBlocks(blocks int, ratio, between, within float64, r *rand.Rand) (b, a []float64) {
	for range blocks {
		level := 50e6 * math.Exp(between*r.NormFloat64())
		a = append(a, level*math.Exp(within*r.NormFloat64()))
		b = append(b, level*ratio*math.Exp(within*r.NormFloat64()))
	}
	return b, a
}

// TestCoverage: of 2,000 measurements, 95 +- 2 % of the intervals have the true ratio, whatever the
// noise, in both modes or in one. 2 % are four standard deviations.
func TestCoverage(t *testing.T) {
	if testing.Short() {
		t.Skip("too many measurements for an emulated processor")
	}
	const ratio, measurements = 1.3, 2000
	least, most := 1.0, 0.0
	type noise func(*rand.Rand) float64
	normal := func(r *rand.Rand) float64 { return math.Exp(0.15 * r.NormFloat64()) }
	small := func(r *rand.Rand) float64 { return math.Exp(0.02 * r.NormFloat64()) }
	exponential := func(r *rand.Rand) float64 { return 1 / (1 + 0.3*r.ExpFloat64()) }
	quarterOf := func(share float64) noise {
		return func(r *rand.Rand) float64 {
			if r.Float64() < share {
				return small(r) / 4
			}
			return small(r)
		}
	}
	for _, tt := range []struct {
		name string
		a, b noise
	}{
		{"normal", normal, normal},
		{"exponential", exponential, exponential},
		{"exponential in the second", small, exponential},
		{"exponential in the first", exponential, small},
		{"exponential and normal", normal, exponential},
		{"outliers", quarterOf(0.05), quarterOf(0.05)},
		{"outliers in one", small, quarterOf(0.05)},
		{"two levels in one", small, quarterOf(0.3)},
	} {
		r := rand.New(rand.NewPCG(37, 2))
		logs := make([]float64, 200_000)
		for i := range logs {
			logs[i] = math.Log(tt.b(r) / tt.a(r))
		}
		truth, _ := Quantile(0.5, logs) // it has values
		for _, blocks := range []int{6, 7, 8, 10, 24, 40} {
			covered := 0
			for range measurements {
				a, b := make([]float64, blocks), make([]float64, blocks)
				for i := range a {
					level := 50e6 * math.Exp(0.3*r.NormFloat64())
					a[i], b[i] = level*tt.a(r), level*ratio*tt.b(r)
				}
				got, err := BlockRatio(b, a, 0.95)
				if err != nil {
					t.Fatal(err)
				}
				if got.Low <= ratio*math.Exp(truth) && ratio*math.Exp(truth) <= got.High {
					covered++
				}
			}
			share := float64(covered) / measurements
			t.Logf("%s, %d blocks: %.2f %%", tt.name, blocks, 100*share)
			least, most = min(least, share), max(most, share)
			if share < 0.93 || share > 0.97 {
				t.Errorf("%s, %d blocks: %.2f %%", tt.name, blocks, 100*share)
			}
		}
	}
	page, err := os.ReadFile("../../../docs/measure.md")
	if err != nil {
		t.Fatal(err)
	}
	if said := fmt.Sprintf("about 95 %% of the intervals have the true ratio (%.1f to %.1f %%, `TestCoverage`)", 100*least, 100*most); !strings.Contains(string(page), said) {
		t.Errorf("docs/measure.md does not say %q", said)
	}
}

// TestPairedCoverage: the same of 5 pairs within a connection, whose noise is 0.04; their intervals
// are about +-5 %.
func TestPairedCoverage(t *testing.T) {
	r := rand.New(rand.NewPCG(37, 5))
	covered, width := 0, 0.0
	const ratio, measurements = 0.92, 2000
	for range measurements {
		b, a := simulateBlocks(5, ratio, 0.3, 0.04/math.Sqrt2, r)
		got, err := PairedRatio(b, a, 0.95)
		if err != nil {
			t.Fatal(err)
		}
		width += (got.High - got.Low) / 2 / measurements
		if got.Low <= ratio && ratio <= got.High {
			covered++
		}
	}
	if share := float64(covered) / measurements; share < 0.93 || share > 0.97 {
		t.Errorf("covered %.2f %%", 100*share)
	}
	if width < 0.03 || width > 0.06 {
		t.Errorf("intervals of +-%.3f", width)
	}
}

func TestBlockRatio(t *testing.T) {
	a := []float64{10, 20, 30, 40, 50, 60}
	twice := []float64{20, 40, 60, 80, 100, 120}
	got, err := BlockRatio(twice, a, 0.95)
	if err != nil || math.Abs(got.Value-2) > 1e-12 || math.Abs(got.Low-2) > 1e-12 || math.Abs(got.High-2) > 1e-12 || got.Method != MethodOrder || got.P != 1.0/32 {
		t.Errorf("got %+v, %v", got, err)
	}
	many := slices.Repeat(a, 5)
	if got, err = BlockRatio(many, many, 0.95); err != nil || got.Value != 1 || got.Low != 1 || got.High != 1 || got.Method != MethodOrder || got.P != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
	// By hand: of 6 values, the binomial distribution leaves 1/64 outside of the outermost ones on
	// each side, and 6/64 more outside of the next ones. Of 0.025, that is the share 0.1 of the
	// step, which has the weight 5*0.1 / (1 + 4*0.1).
	if low, high, err := medianInterval([]float64{6, 1, 2, 4, 3, 5}, 0.95); err != nil || math.Abs(low-(1+5./14)) > 1e-9 || math.Abs(high-(6-5./14)) > 1e-9 {
		t.Errorf("got %g to %g, %v", low, high, err)
	}
	// Of very many values, the distance of the ranks is that of a normal distribution.
	ranks := make([]float64, 10_000)
	for i := range ranks {
		ranks[i] = float64(i)
	}
	if low, high, err := medianInterval(ranks, 0.95); err != nil || math.Abs(high-low-2*1.96*50) > 3 {
		t.Errorf("got %g to %g, %v", low, high, err)
	}
	for _, tt := range []struct {
		b, a []float64
		want error
	}{
		{a[:5], a[:5], ErrTooFew},
		{a, a[:5], ErrTooFew},
		{nil, nil, ErrTooFew},
		{[]float64{1, 2, 3, 4, 5, 0}, a, ErrNotFinite},
		{a, []float64{1, 2, 3, 4, 5, math.NaN()}, ErrNotFinite},
		{a, []float64{1, 2, 3, 4, 5, -1}, ErrNotFinite},
		{[]float64{1, 2, 3, 4, 5, math.MaxFloat64}, []float64{1, 2, 3, 4, 5, math.SmallestNonzeroFloat64}, ErrNotFinite},
	} {
		if _, err := BlockRatio(tt.b, tt.a, 0.95); !errors.Is(err, tt.want) {
			t.Errorf("%v of %v: got %v, want %v", tt.b, tt.a, err, tt.want)
		}
		if _, err := PairedRatio(tt.b, tt.a, 0.95); !errors.Is(err, tt.want) && len(tt.a) != 5 {
			t.Errorf("pairs %v of %v: got %v, want %v", tt.b, tt.a, err, tt.want)
		}
	}
}

// TestPropertyBlockRatio: the ratio is within its interval, and that of the values exchanged is
// the reciprocal.
func TestPropertyBlockRatio(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(LeastBlocks, 30).Draw(t, "blocks")
		a := rapid.SliceOfN(rapid.Float64Range(1e-3, 1e12), n, n).Draw(t, "a")
		b := rapid.SliceOfN(rapid.Float64Range(1e-3, 1e12), n, n).Draw(t, "b")
		got, err := BlockRatio(b, a, 0.95)
		if err != nil {
			t.Fatal(err)
		}
		if !(got.Low <= got.Value && got.Value <= got.High && got.P > 0 && got.P <= 1) {
			t.Fatalf("%+v", got)
		}
		back, err := BlockRatio(a, b, 0.95)
		if err != nil || math.Abs(back.Low*got.High-1) > 1e-6 || back.P != got.P {
			t.Fatalf("%+v and %+v, %v", got, back, err)
		}
	})
}
