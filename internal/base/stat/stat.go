// Package stat turns repeated measurements into the figures a report shows: quantiles, a summary
// with a confidence interval, the box of a box plot, and a test of whether two sets of measurements
// differ.
//
// It takes measurements as they are: an empty set, NaN and infinities are errors, never skipped or
// replaced, because a figure made of fewer trials than were asked for must not look like the
// others.
package stat

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// Errors that say why there is no figure.
var (
	// ErrTooFew means that there are not enough values.
	ErrTooFew = errors.New("too few values")
	// ErrNotFinite means that a value, or the result, is NaN or infinite.
	ErrNotFinite = errors.New("value is not a finite number")
	// ErrNoSpread means that a test needs values that differ, and none do.
	ErrNoSpread = errors.New("values do not differ")
)

// confidence is the level of Summary.CI95.
const confidence = 0.95

// Quantile returns the p-quantile of xs, 0 <= p <= 1, in any order of xs. It interpolates linearly
// between the order statistics at (n-1)p, which is type 7 of Hyndman and Fan (Sample Quantiles in
// Statistical Packages, 1996) and the default of R and NumPy: p = 0.5 is the middle value or the
// mean of the middle two, 0 the least and 1 the largest. Errors wrap ErrTooFew or ErrNotFinite.
func Quantile(p float64, xs []float64) (float64, error) {
	if !(p >= 0 && p <= 1) {
		return 0, fmt.Errorf("compute quantile %g: want 0 <= p <= 1", p)
	}
	sorted, err := sortFinite(xs)
	if err != nil {
		return 0, fmt.Errorf("compute quantile %g: %w", p, err)
	}
	return quantile(p, sorted), nil
}

// quantile is Quantile of values that are sorted and at least one.
func quantile(p float64, sorted []float64) float64 {
	at := p * float64(len(sorted)-1)
	below := int(at)
	if below == len(sorted)-1 {
		return sorted[below]
	}
	f := at - float64(below)
	return (1-f)*sorted[below] + f*sorted[below+1]
}

// MeanSD returns the mean and the standard deviation of the sample (with n-1), which is 0 of one
// value. Errors wrap ErrTooFew or ErrNotFinite.
func MeanSD(xs []float64) (mean, sd float64, err error) {
	sorted, err := sortFinite(xs)
	if err != nil {
		return 0, 0, fmt.Errorf("compute mean and standard deviation: %w", err)
	}
	if sorted[0] == sorted[len(sorted)-1] {
		return sorted[0], 0, nil // exactly, where a sum would round
	}
	mean, sd = stat.MeanStdDev(sorted, nil)
	return mean, sd, nil
}

// Summary describes a set of measurements, in their unit.
type Summary struct {
	N      int     `json:"n"`
	Min    float64 `json:"min"`
	Q1     float64 `json:"q1"`
	Median float64 `json:"median"`
	Q3     float64 `json:"q3"`
	Max    float64 `json:"max"`
	Mean   float64 `json:"mean"`
	// CI95 is half the width of the 95 % confidence interval of the mean, by Student's t with
	// N-1 degrees of freedom. It is 0 when N is 1, where it says nothing.
	CI95 float64 `json:"ci95"`
}

// Summarize describes xs; quartiles are those of Quantile. Errors wrap ErrTooFew (xs is empty) or
// ErrNotFinite.
func Summarize(xs []float64) (Summary, error) {
	sorted, err := sortFinite(xs)
	if err != nil {
		return Summary{}, fmt.Errorf("summarize: %w", err)
	}
	s := Summary{
		N:      len(sorted),
		Min:    sorted[0],
		Q1:     quantile(0.25, sorted),
		Median: quantile(0.5, sorted),
		Q3:     quantile(0.75, sorted),
		Max:    sorted[len(sorted)-1],
	}
	if s.Min == s.Max {
		s.Mean = s.Min // exactly, where a sum would round
		return s, nil
	}
	mean, deviation := stat.MeanStdDev(sorted, nil)
	n := float64(len(sorted))
	t := distuv.StudentsT{Sigma: 1, Nu: n - 1}.Quantile((1 + confidence) / 2)
	s.Mean, s.CI95 = mean, t*stat.StdErr(deviation, n)
	if !finite(s.Mean) || !finite(s.CI95) {
		return Summary{}, fmt.Errorf("summarize: mean of values up to %g: %w", s.Max, ErrNotFinite)
	}
	return s, nil
}

// Box is a box plot after Tukey, in the unit of the measurements.
type Box struct {
	Q1, Median, Q3 float64
	// Low and High are the ends of the whiskers: the least and the largest value within 1.5
	// times the distance of the quartiles from them.
	Low, High float64
	// Outliers are the values beyond the whiskers, in ascending order.
	Outliers []float64
}

// TukeyBox returns the box of xs; quartiles are those of Quantile. Errors wrap ErrTooFew (xs is
// empty) or ErrNotFinite.
func TukeyBox(xs []float64) (Box, error) {
	sorted, err := sortFinite(xs)
	if err != nil {
		return Box{}, fmt.Errorf("compute box: %w", err)
	}
	b := Box{Q1: quantile(0.25, sorted), Median: quantile(0.5, sorted), Q3: quantile(0.75, sorted)}
	reach := 1.5 * (b.Q3 - b.Q1)
	// A quartile may lie between two values, the nearer of them beyond the other quartile's
	// reach; the whisker then ends at the box.
	b.Low, b.High = b.Q1, b.Q3
	for _, x := range sorted {
		if x < b.Q1-reach || x > b.Q3+reach {
			b.Outliers = append(b.Outliers, x)
			continue
		}
		b.Low, b.High = min(b.Low, x), max(b.High, x)
	}
	return b, nil
}

// Welch is the result of Welch's t-test.
type Welch struct {
	// T is the statistic: positive when the first set has the larger mean.
	T float64
	// DF is the number of degrees of freedom (Welch and Satterthwaite), not rounded.
	DF float64
	// P is how probable a |T| at least this large is when the means are equal (two-sided).
	P float64
}

// WelchTest asks whether a and b have different means, whatever their variances (B. L. Welch, The
// generalization of Student's problem, 1947). Errors wrap ErrTooFew (a or b has less than 2
// values), ErrNotFinite, or ErrNoSpread (neither varies, so that there is nothing to compare the
// difference with).
func WelchTest(a, b []float64) (Welch, error) {
	for _, xs := range [][]float64{a, b} {
		if len(xs) < 2 {
			return Welch{}, fmt.Errorf("compute welch test: %w: want 2 or more on each side, got %d and %d", ErrTooFew, len(a), len(b))
		}
		if err := checkFinite(xs); err != nil {
			return Welch{}, fmt.Errorf("compute welch test: %w", err)
		}
	}
	if constant(a) && constant(b) {
		return Welch{}, fmt.Errorf("compute welch test: %w", ErrNoSpread)
	}
	meanA, varA := stat.MeanVariance(a, nil)
	meanB, varB := stat.MeanVariance(b, nil)
	na, nb := float64(len(a)), float64(len(b))
	sa, sb := varA/na, varB/nb
	w := Welch{
		T:  (meanA - meanB) / math.Sqrt(sa+sb),
		DF: (sa + sb) * (sa + sb) / (sa*sa/(na-1) + sb*sb/(nb-1)),
	}
	w.P = 2 * distuv.StudentsT{Sigma: 1, Nu: w.DF}.CDF(-math.Abs(w.T))
	if !finite(w.T) || !finite(w.DF) || !finite(w.P) {
		return Welch{}, fmt.Errorf("compute welch test: %w", ErrNotFinite)
	}
	return w, nil
}

// sortFinite returns a sorted copy of xs.
func sortFinite(xs []float64) ([]float64, error) {
	if len(xs) == 0 {
		return nil, fmt.Errorf("%w: got none", ErrTooFew)
	}
	if err := checkFinite(xs); err != nil {
		return nil, err
	}
	sorted := slices.Clone(xs)
	slices.Sort(sorted)
	return sorted, nil
}

func checkFinite(xs []float64) error {
	for i, x := range xs {
		if !finite(x) {
			return fmt.Errorf("%w: %g at index %d", ErrNotFinite, x, i)
		}
	}
	return nil
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

func constant(xs []float64) bool { return slices.Min(xs) == slices.Max(xs) }
