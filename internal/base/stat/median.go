package stat

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// Method is how an interval of a MedianRatio was computed.
type Method string

// The methods.
const (
	// MethodExact inverts Wilcoxon's signed-rank test of the logarithms of the ratios within blocks.
	MethodExact Method = "exact"
	// MethodBootstrap resamples blocks.
	MethodBootstrap Method = "bootstrap"
	// MethodT is Student's t of the logarithms of the ratios within pairs.
	MethodT Method = "t"
)

const (
	// LeastBlocks is the number of blocks from which there is an exact interval: of fewer, the widest
	// one has less than 95 % (1 - 2^(1-5) is 93.75 %).
	LeastBlocks = 6
	// exactBlocks is the number of blocks up to which the interval is exact. Of fewer blocks the
	// percentiles of a bootstrap are few different values.
	exactBlocks = 24
	// resamples is the number of a bootstrap's resamples: 100 of them are beyond each end of an
	// interval of 95 %.
	resamples = 4000
)

// MedianRatio is the ratio of two medians, with the 95 % confidence interval [Low, High].
type MedianRatio struct {
	Ratio
	// Blocks is the number of pairs of values.
	Blocks int
	Method Method
	// P is the two-sided p-value of Wilcoxon's signed-rank test of no difference within blocks.
	P float64
}

// RatioOfMedians returns the ratio of the median of b to that of a. Values with the same index are
// of the same block: what changes between blocks, such as the time of day, affects both. All are >
// 0. level is that of the interval, 0.95 if in doubt.
//
// The interval is that of the ratio within blocks, and is extended to the ratio of the medians
// where that is outside. Of up to 24 blocks it is exact, whatever the distribution, if the
// logarithms of the ratios are distributed symmetrically: it has the ratios that Wilcoxon's
// signed-rank test does not reject, which are between two of their Walsh averages (J. L. Hodges and
// E. L. Lehmann, Estimates of location based on rank tests, 1963). Of more blocks it is between
// percentiles of the median ratio over a bootstrap that draws blocks (B. Efron, Bootstrap methods:
// another look at the jackknife, 1979). The medians of all values of a mode, resampled, would cover
// 97 to 99 % where blocks differ much, so that intervals were too wide. draw returns a random
// number from 0 to n-1.
//
// Noise that is skewed, but the same in both modes, leaves the logarithms of the ratios symmetric:
// with exponential delays, or 5 % of the values at a quarter, 95 to 97 % of the intervals have the
// true ratio. Where only one mode has it, the exact interval is of another center than the ratio of
// the medians, and more blocks do not mend that: with outliers it has 96 %, with exponential delays
// 94 % of 10 blocks and 91 % of 24, and the bootstrap 95 % of 25 and of 40 (4,000 measurements
// each; TestCoverageOfSkew).
//
// Errors wrap ErrTooFew (less than LeastBlocks, or too few for the level) or ErrNotFinite (a value
// that is not a finite number > 0).
func RatioOfMedians(b, a []float64, level float64, draw func(n int) int) (MedianRatio, error) {
	logs, err := logRatios(b, a)
	if err != nil {
		return MedianRatio{}, fmt.Errorf("compute ratio of medians: %w", err)
	}
	r := MedianRatio{Blocks: len(logs)}
	medianA, _ := Quantile(0.5, a) // checked by logRatios
	medianB, _ := Quantile(0.5, b)
	r.Value = medianB / medianA
	test, err := SignedRankTest(logs)
	if err != nil {
		return MedianRatio{}, fmt.Errorf("compute ratio of medians: %w", err)
	}
	r.P = test.P
	var low, high float64
	if r.Method = MethodExact; len(logs) > exactBlocks {
		r.Method = MethodBootstrap
		low, high = bootstrapMedian(logs, level, draw)
	} else if low, high, err = walshInterval(logs, level); err != nil {
		return MedianRatio{}, fmt.Errorf("compute ratio of medians: %w", err)
	}
	r.Low, r.High = min(math.Exp(low), r.Value), max(math.Exp(high), r.Value)
	return r, nil
}

// PairedRatio returns the geometric mean of the ratios b/a of pairs with its interval by Student's
// t of their logarithms. Pairs measured within one connection have little noise, which is close to
// normal, so that few suffice. The geometric mean is not the ratio of the medians where one mode
// alone has skewed noise: with exponential delays, 94 % of the intervals of 8 pairs have the
// latter, and 83 % of 24. Errors wrap ErrTooFew (less than 3 pairs) or ErrNotFinite.
func PairedRatio(b, a []float64, level float64) (MedianRatio, error) {
	logs, err := logRatios(b, a)
	if err != nil {
		return MedianRatio{}, fmt.Errorf("compute ratio of pairs: %w", err)
	}
	const least = 3
	if len(logs) < least {
		return MedianRatio{}, fmt.Errorf("compute ratio of pairs: %w: want %d pairs, got %d", ErrTooFew, least, len(logs))
	}
	mean, sd, _ := MeanSD(logs) // they are finite
	n := float64(len(logs))
	half := distuv.StudentsT{Sigma: 1, Nu: n - 1}.Quantile((1+level)/2) * sd / math.Sqrt(n)
	r := MedianRatio{Ratio: Ratio{math.Exp(mean), math.Exp(mean - half), math.Exp(mean + half)}, Blocks: len(logs), Method: MethodT}
	// All ratios that are equal and not 1 leave P 0.
	test, err := StudentTest(logs)
	if err != nil && !errors.Is(err, ErrNoSpread) {
		return MedianRatio{}, fmt.Errorf("compute ratio of pairs: %w", err)
	}
	r.P = test.P
	return r, nil
}

// logRatios returns ln(b/a) of each pair.
func logRatios(b, a []float64) ([]float64, error) {
	if len(a) != len(b) || len(a) == 0 {
		return nil, fmt.Errorf("%w: want pairs, got %d and %d values", ErrTooFew, len(b), len(a))
	}
	logs := make([]float64, len(a))
	for i := range a {
		for _, x := range []float64{a[i], b[i]} {
			if !finite(x) || x <= 0 {
				return nil, fmt.Errorf("%w above 0: %g at index %d", ErrNotFinite, x, i)
			}
		}
		if logs[i] = math.Log(b[i] / a[i]); !finite(logs[i]) {
			return nil, fmt.Errorf("%w: ratio %g / %g at index %d", ErrNotFinite, b[i], a[i], i)
		}
	}
	return logs, nil
}

// walshInterval returns the values that the signed-rank test of the differences does not reject.
func walshInterval(differences []float64, level float64) (low, high float64, err error) {
	n := len(differences)
	ranks := make([]int, n)
	for i := range ranks {
		ranks[i] = i + 1
	}
	// outside is the number of Walsh averages on each side that the test rejects.
	outside, below := 0, 0.0
	for _, p := range sums(ranks, n*(n+1)/4) {
		if below += p; below > (1-level)/2 {
			break
		}
		outside++
	}
	if outside == 0 {
		return 0, 0, fmt.Errorf("%w: no interval of %g %% of %d blocks", ErrTooFew, 100*level, n)
	}
	averages := make([]float64, 0, n*(n+1)/2)
	for i, x := range differences {
		for _, y := range differences[i:] {
			averages = append(averages, (x+y)/2)
		}
	}
	slices.Sort(averages)
	return averages[outside-1], averages[len(averages)-outside], nil
}

// bootstrapMedian returns percentiles of the median of resamples.
func bootstrapMedian(xs []float64, level float64, draw func(n int) int) (low, high float64) {
	sorted := slices.Sorted(slices.Values(xs))
	counts, medians := make([]int, len(xs)), make([]float64, resamples)
	for i := range medians {
		clear(counts)
		for range xs {
			counts[draw(len(xs))]++
		}
		medians[i] = countedMedian(sorted, counts)
	}
	slices.Sort(medians)
	return quantile((1-level)/2, medians), quantile((1+level)/2, medians)
}

// countedMedian returns the median of sorted values, each of which occurs counts times, len(sorted)
// in all.
func countedMedian(sorted []float64, counts []int) float64 {
	lower, seen := 0.0, 0
	for i, x := range sorted {
		before := seen
		seen += counts[i]
		if middle := (len(sorted) - 1) / 2; before <= middle && seen > middle {
			lower = x
		}
		if seen > len(sorted)/2 {
			return (lower + x) / 2
		}
	}
	panic("BUG: counts of a resample do not add up")
}
