package stat

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

var near = cmpopts.EquateApprox(0, 1e-6)

// R: quantile(c(1, 2, 4, 8, 16), c(0, .1, .25, .5, .6, .95, 1)), type 7.
func TestQuantileIsType7(t *testing.T) {
	xs := []float64{16, 2, 8, 1, 4}
	for _, tt := range []struct{ p, want float64 }{
		{0, 1}, {0.1, 1.4}, {0.25, 2}, {0.5, 4}, {0.6, 5.6}, {0.95, 14.4}, {1, 16},
	} {
		got, err := Quantile(tt.p, xs)
		if err != nil || !cmp.Equal(got, tt.want, near) {
			t.Errorf("Quantile(%g) = %g, %v, want %g", tt.p, got, err, tt.want)
		}
	}
	if got, _ := Quantile(0.5, []float64{3, 1}); got != 2 {
		t.Errorf("median of 1, 3 = %g, want 2", got)
	}
	if !slices.Equal(xs, []float64{16, 2, 8, 1, 4}) {
		t.Errorf("Quantile changed its input to %v", xs)
	}
	for _, p := range []float64{-0.1, 1.1, math.NaN()} {
		if _, err := Quantile(p, xs); err == nil {
			t.Errorf("Quantile(%g) gives no error", p)
		}
	}
}

// Student's t at 0.975 from the tables (NIST handbook, 1.3.6.7.2).
func TestSummarize(t *testing.T) {
	for _, tt := range []struct {
		name string
		xs   []float64
		want Summary
	}{
		{"one", []float64{7}, Summary{1, 7, 7, 7, 7, 7, 7, 0}},
		{"equal", []float64{0.1, 0.1, 0.1}, Summary{3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0}},
		{"two", []float64{3, 1}, Summary{2, 1, 1.5, 2, 2.5, 3, 2, 12.7062047}},
		{"three", []float64{1, 3, 2}, Summary{3, 1, 1.5, 2, 2.5, 3, 2, 4.3026527 / math.Sqrt(3)}},
		{"eleven", []float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, Summary{11, 0, 2.5, 5, 7.5, 10, 5, 2.2281389}},
		{"negative", []float64{-3, -1}, Summary{2, -3, -2.5, -2, -1.5, -1, -2, 12.7062047}},
	} {
		got, err := Summarize(tt.xs)
		if diff := cmp.Diff(tt.want, got, near); err != nil || diff != "" {
			t.Errorf("%s: %v, (-want +got):\n%s", tt.name, err, diff)
		}
	}
}

func TestTukeyBox(t *testing.T) {
	for _, tt := range []struct {
		name string
		xs   []float64
		want Box
	}{
		{"one", []float64{5}, Box{5, 5, 5, 5, 5, nil}},
		{"plain", []float64{1, 2, 3, 4, 5}, Box{2, 3, 4, 1, 5, nil}},
		{"outliers on both sides", []float64{100, 10, 11, 12, 13, 14, -50}, Box{10.5, 12, 13.5, 10, 14, []float64{-50, 100}}},
		{"quartile between the last value and an outlier", []float64{100, 10, 11, 12, 13, 14, -50, 200}, Box{10.75, 12.5, 35.5, 10, 35.5, []float64{-50, 100, 200}}},
		{"at the reach", []float64{-1, 2, 3, 4, 7}, Box{2, 3, 4, -1, 7, nil}},
		{"beyond the reach", []float64{-1.01, 2, 3, 4, 7.01}, Box{2, 3, 4, 2, 4, []float64{-1.01, 7.01}}},
	} {
		got, err := TukeyBox(tt.xs)
		if diff := cmp.Diff(tt.want, got, near); err != nil || diff != "" {
			t.Errorf("%s: %v, (-want +got):\n%s", tt.name, err, diff)
		}
	}
}

// The sleep data of Student; R: t.test(extra ~ group, sleep).
func TestWelch(t *testing.T) {
	first := []float64{0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0}
	second := []float64{1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4}
	got, err := WelchTest(first, second)
	want := Welch{-1.8608135, 17.776474, 0.0793941}
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-5)); err != nil || diff != "" {
		t.Errorf("sleep: %v, (-want +got):\n%s", err, diff)
	}
	swapped, err := WelchTest(second, first)
	want.T = -want.T
	if diff := cmp.Diff(want, swapped, cmpopts.EquateApprox(0, 1e-5)); err != nil || diff != "" {
		t.Errorf("sleep, swapped: %v, (-want +got):\n%s", err, diff)
	}
}

func TestErrors(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for name, f := range map[string]func(xs []float64) error{
		"Quantile":  func(xs []float64) error { _, err := Quantile(0.5, xs); return err },
		"Summarize": func(xs []float64) error { _, err := Summarize(xs); return err },
		"TukeyBox":  func(xs []float64) error { _, err := TukeyBox(xs); return err },
		"Welch a":   func(xs []float64) error { _, err := WelchTest(xs, []float64{1, 2}); return err },
		"Welch b":   func(xs []float64) error { _, err := WelchTest([]float64{1, 2}, xs); return err },
	} {
		if err := f(nil); !errors.Is(err, ErrTooFew) {
			t.Errorf("%s of nothing: %v, want ErrTooFew", name, err)
		}
		for _, bad := range []float64{nan, inf, -inf} {
			if err := f([]float64{1, bad, 2}); !errors.Is(err, ErrNotFinite) {
				t.Errorf("%s with %g: %v, want ErrNotFinite", name, bad, err)
			}
		}
	}
	if _, err := WelchTest([]float64{1}, []float64{1, 2}); !errors.Is(err, ErrTooFew) {
		t.Errorf("Welch of one value: %v, want ErrTooFew", err)
	}
	if _, err := WelchTest([]float64{0.1, 0.1, 0.1}, []float64{2, 2}); !errors.Is(err, ErrNoSpread) {
		t.Errorf("Welch of constants: %v, want ErrNoSpread", err)
	}
	if _, err := Summarize([]float64{math.MaxFloat64, math.MaxFloat64 / 2, -math.MaxFloat64}); !errors.Is(err, ErrNotFinite) {
		t.Errorf("Summarize of huge values: %v, want ErrNotFinite", err)
	}
}

func TestPropertySummaryIsOrdered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		xs := rapid.SliceOfN(rapid.Float64Range(-1e9, 1e9), 1, 50).Draw(t, "xs")
		s, err := Summarize(xs)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.IsSorted([]float64{s.Min, s.Q1, s.Median, s.Q3, s.Max}) || s.CI95 < 0 {
			t.Fatalf("summary %+v is out of order", s)
		}
		b, err := TukeyBox(xs)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.IsSorted([]float64{s.Min, b.Low, b.Q1, b.Median, b.Q3, b.High, s.Max}) {
			t.Fatalf("box %+v is out of order", b)
		}
		for _, o := range b.Outliers {
			if o >= b.Low && o <= b.High {
				t.Fatalf("outlier %g lies within the whiskers of %+v", o, b)
			}
		}
	})
}

func TestMeanSD(t *testing.T) {
	for _, tt := range []struct {
		xs       []float64
		mean, sd float64
	}{
		{[]float64{0.1, 0.1, 0.1}, 0.1, 0},
		{[]float64{7}, 7, 0},
		{[]float64{4, 2, 6}, 4, 2},
	} {
		if mean, sd, err := MeanSD(tt.xs); err != nil || mean != tt.mean || sd != tt.sd {
			t.Errorf("MeanSD(%v) = %v, %v, %v, want %v, %v", tt.xs, mean, sd, err, tt.mean, tt.sd)
		}
	}
	if _, _, err := MeanSD(nil); !errors.Is(err, ErrTooFew) {
		t.Errorf("of nothing: %v", err)
	}
	if _, _, err := MeanSD([]float64{1, math.NaN()}); !errors.Is(err, ErrNotFinite) {
		t.Errorf("of NaN: %v", err)
	}
}
