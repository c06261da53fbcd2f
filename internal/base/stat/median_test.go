package stat

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
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

// TestCoverage: of 2,000 measurements, 95 +- 2 % of the intervals have the true ratio, in blocks
// that are equal and in blocks that differ more than the modes. 2 % are four standard deviations.
func TestCoverage(t *testing.T) {
	if testing.Short() {
		t.Skip("too many measurements for an emulated processor")
	}
	const ratio, measurements = 1.3, 2000
	for _, tt := range []struct {
		blocks  int
		between float64
	}{{7, 0.3}, {8, 0}, {10, 0}, {10, 0.3}, {24, 0.3}, {25, 0}, {40, 0.3}} {
		r := rand.New(rand.NewPCG(37, uint64(tt.blocks)))
		covered := 0
		for range measurements {
			b, a := simulateBlocks(tt.blocks, ratio, tt.between, 0.15, r)
			got, err := RatioOfMedians(b, a, 0.95, r.IntN)
			if err != nil {
				t.Fatal(err)
			}
			if got.Low <= ratio && ratio <= got.High {
				covered++
			}
		}
		if share := float64(covered) / measurements; share < 0.93 || share > 0.97 {
			t.Errorf("%d blocks that differ by %g: %.2f %%", tt.blocks, tt.between, 100*share)
		}
	}
}

// TestCoverageOfSkew: noise that only lowers goodput, by an exponential time or to a quarter in 5 %
// of the trials. Where both modes have it, the logarithms of the ratios are symmetric nevertheless.
// Where one has it, the intervals cover their own center, which is not quite the ratio of the
// medians. The bounds are six standard deviations or more from what 4,000 measurements had.
func TestCoverageOfSkew(t *testing.T) {
	if testing.Short() {
		t.Skip("too many measurements for an emulated processor")
	}
	const ratio, measurements = 1.3, 2000
	small := func(r *rand.Rand) float64 { return math.Exp(0.05 * r.NormFloat64()) }
	exponential := func(r *rand.Rand) float64 { return 1 / (1 + 0.3*r.ExpFloat64()) }
	outliers := func(r *rand.Rand) float64 {
		if r.Float64() < 0.05 {
			return small(r) / 4
		}
		return small(r)
	}
	for _, tt := range []struct {
		name   string
		a, b   func(*rand.Rand) float64
		blocks int
		least  float64
	}{
		{"exponential in both", exponential, exponential, 10, 0.92},
		{"outliers in both", outliers, outliers, 10, 0.92},
		{"outliers in both", outliers, outliers, 24, 0.92},
		{"exponential in one", small, exponential, 10, 0.89},
		{"exponential in one", small, exponential, 24, 0.85},
		{"exponential in one", small, exponential, 40, 0.92},
		{"outliers in one", small, outliers, 24, 0.92},
	} {
		medianOf := func(noise func(*rand.Rand) float64) float64 {
			r := rand.New(rand.NewPCG(37, 2))
			values := make([]float64, 200_000)
			for i := range values {
				values[i] = noise(r)
			}
			m, _ := Quantile(0.5, values) // it has values
			return m
		}
		truth := ratio * medianOf(tt.b) / medianOf(tt.a)
		r := rand.New(rand.NewPCG(37, uint64(tt.blocks)))
		covered := 0
		for range measurements {
			var a, b []float64
			for range tt.blocks {
				level := 50e6 * math.Exp(0.3*r.NormFloat64())
				a, b = append(a, level*tt.a(r)), append(b, level*ratio*tt.b(r))
			}
			got, err := RatioOfMedians(b, a, 0.95, r.IntN)
			if err != nil {
				t.Fatal(err)
			}
			if got.Low <= truth && truth <= got.High {
				covered++
			}
		}
		share := float64(covered) / measurements
		t.Logf("%s, %d blocks: %.2f %%", tt.name, tt.blocks, 100*share)
		if share < tt.least || share > 0.99 {
			t.Errorf("%s, %d blocks: %.2f %%, want at least %.0f %%", tt.name, tt.blocks, 100*share, 100*tt.least)
		}
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

func TestRatioOfMedians(t *testing.T) {
	a := []float64{10, 20, 30, 40, 50, 60}
	twice := []float64{20, 40, 60, 80, 100, 120}
	r := rand.New(rand.NewPCG(1, 1))
	got, err := RatioOfMedians(twice, a, 0.95, r.IntN)
	if err != nil || math.Abs(got.Value-2) > 1e-12 || math.Abs(got.Low-2) > 1e-12 || math.Abs(got.High-2) > 1e-12 || got.Method != MethodExact || got.P != 1.0/32 {
		t.Errorf("got %+v, %v", got, err)
	}
	many := slices.Repeat(a, 5)
	if got, err = RatioOfMedians(many, many, 0.95, r.IntN); err != nil || got.Value != 1 || got.Low != 1 || got.High != 1 || got.Method != MethodBootstrap || got.P != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
	// wilcox.test(x, conf.int = TRUE) of R: x = c(1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06,
	// 1.30) - c(0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29), 0.010 to 0.786 (Hollander
	// and Wolfe).
	var depression []float64
	for i, x := range []float64{1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30} {
		depression = append(depression, x-[]float64{0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29}[i])
	}
	if low, high, err := walshInterval(depression, 0.95); err != nil || math.Abs(low-0.010) > 1e-9 || math.Abs(high-0.786) > 1e-9 {
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
		if _, err := RatioOfMedians(tt.b, tt.a, 0.95, r.IntN); !errors.Is(err, tt.want) {
			t.Errorf("%v of %v: got %v, want %v", tt.b, tt.a, err, tt.want)
		}
		if _, err := PairedRatio(tt.b, tt.a, 0.95); !errors.Is(err, tt.want) && len(tt.a) != 5 {
			t.Errorf("pairs %v of %v: got %v, want %v", tt.b, tt.a, err, tt.want)
		}
	}
}

// TestPropertyRatioOfMedians: the ratio is within its interval, and that of the values exchanged is
// the reciprocal.
func TestPropertyRatioOfMedians(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(LeastBlocks, 30).Draw(t, "blocks")
		a := rapid.SliceOfN(rapid.Float64Range(1e-3, 1e12), n, n).Draw(t, "a")
		b := rapid.SliceOfN(rapid.Float64Range(1e-3, 1e12), n, n).Draw(t, "b")
		seed := rapid.Uint64().Draw(t, "seed")
		got, err := RatioOfMedians(b, a, 0.95, rand.New(rand.NewPCG(seed, 0)).IntN)
		if err != nil {
			t.Fatal(err)
		}
		if !(got.Low <= got.Value && got.Value <= got.High && got.P > 0 && got.P <= 1) {
			t.Fatalf("%+v", got)
		}
		back, err := RatioOfMedians(a, b, 0.95, rand.New(rand.NewPCG(seed, 0)).IntN)
		if err != nil || got.Method == MethodExact && math.Abs(back.Low*got.High-1) > 1e-6 || back.P != got.P {
			t.Fatalf("%+v and %+v, %v", got, back, err)
		}
	})
}
