package stat

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

func TestRatioOfMeans(t *testing.T) {
	for _, tt := range []struct {
		name string
		b, a []float64
		want Ratio
		err  error
	}{
		{name: "no spread", b: []float64{6, 6}, a: []float64{4, 4, 4}, want: Ratio{1.5, 1.5, 1.5}},
		// Where a does not vary, the interval is that of the mean of b divided by it:
		// mean 6, standard error 1/sqrt(3), t of 2 degrees of freedom 4.302653.
		{name: "constant below", b: []float64{5, 6, 7}, a: []float64{2, 2, 2}, want: Ratio{3, 3 - 4.302653*0.57735027/2, 3 + 4.302653*0.57735027/2}},
		{name: "all 0 above", b: []float64{0, 0}, a: []float64{2.9, 3, 3.1}, want: Ratio{}},
		{name: "one value", b: []float64{1}, a: []float64{1, 2}, err: ErrTooFew},
		{name: "mean 0 below", b: []float64{1, 2}, a: []float64{-1, 1}, err: ErrNotFinite},
		{name: "not a number", b: []float64{1, math.NaN()}, a: []float64{1, 2}, err: ErrNotFinite},
		{name: "below not apart from 0", b: []float64{1, 2}, a: []float64{0.1, 5}, err: ErrUnbounded},
	} {
		got, err := RatioOfMeans(tt.b, tt.a)
		if !errors.Is(err, tt.err) {
			t.Errorf("%s: got error %v, want %v", tt.name, err, tt.err)
		}
		for _, x := range [][2]float64{{got.Value, tt.want.Value}, {got.Low, tt.want.Low}, {got.High, tt.want.High}} {
			if math.Abs(x[0]-x[1]) > 1e-6 {
				t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
			}
		}
	}
}

// TestRatioCovers: of samples from known distributions with different variances, the interval holds
// the true ratio about as often as it says. The seeds are fixed.
func TestRatioCovers(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const rounds = 4000
	inside := 0
	for range rounds {
		a, b := make([]float64, 5), make([]float64, 8)
		for i := range a {
			a[i] = 20 + 1*random.NormFloat64()
		}
		for i := range b {
			b[i] = 30 + 4*random.NormFloat64()
		}
		r, err := RatioOfMeans(b, a)
		if err != nil {
			t.Fatal(err)
		}
		if r.Low <= 1.5 && 1.5 <= r.High {
			inside++
		}
	}
	if share := float64(inside) / rounds; share < 0.94 || share > 0.96 {
		t.Errorf("%.1f %% of the intervals hold the true ratio, want 95 %%", 100*share)
	}
}
