package stat

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
)

// Holm corrects the p-values of a family of tests for their number: if those up to 0.05 are taken
// for significant, the probability of any false one is at most 5 % (S. Holm, A simple sequentially
// rejective multiple test procedure, 1979). The corrected values are in the order of ps. A value
// outside of 0..1 is an error.
func Holm(ps []float64) ([]float64, error) {
	order := make([]int, len(ps))
	for i, p := range ps {
		if !(p >= 0 && p <= 1) {
			return nil, fmt.Errorf("correct p-values: want 0 to 1, got %g at index %d", p, i)
		}
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(ps[a], ps[b]) })
	corrected := make([]float64, len(ps))
	least := 0.0
	for rank, i := range order {
		least = max(least, min(1, float64(len(ps)-rank)*ps[i]))
		corrected[i] = least
	}
	return corrected, nil
}

// HedgesG returns the difference of the means of a and b in units of their pooled standard
// deviation, corrected for small sets (L. V. Hedges, Distribution theory for Glass's estimator of
// effect size and related estimators, 1981, with the approximation 1 - 3/(4 df - 1) of its factor):
// positive when a has the larger mean. Errors wrap ErrTooFew (a or b has less than 2 values),
// ErrNotFinite, or ErrNoSpread (neither varies).
func HedgesG(a, b []float64) (float64, error) {
	for _, xs := range [][]float64{a, b} {
		if len(xs) < 2 {
			return 0, fmt.Errorf("compute effect size: %w: want 2 or more on each side, got %d and %d", ErrTooFew, len(a), len(b))
		}
		if err := checkFinite(xs); err != nil {
			return 0, fmt.Errorf("compute effect size: %w", err)
		}
	}
	if constant(a) && constant(b) {
		return 0, fmt.Errorf("compute effect size: %w", ErrNoSpread)
	}
	meanA, varA := stat.MeanVariance(a, nil)
	meanB, varB := stat.MeanVariance(b, nil)
	na, nb := float64(len(a)), float64(len(b))
	df := na + nb - 2
	g := (meanA - meanB) / math.Sqrt(((na-1)*varA+(nb-1)*varB)/df) * (1 - 3/(4*df-1))
	if !finite(g) {
		return 0, fmt.Errorf("compute effect size: %w", ErrNotFinite)
	}
	return g, nil
}

// Comparison is the difference of two sets of measurements of a group.
type Comparison struct {
	// Group is the index of the group, A and B are those of the sets in it.
	Group, A, B int
	Welch
	// Corrected is P after Holm's correction for all pairs that were compared.
	Corrected float64
	// Effect is that of HedgesG.
	Effect float64
}

// ComparePairs compares each two sets of the same group, with Holm's correction for the number of
// pairs in all groups. Pairs that cannot be compared, because a set has less than 2 values or
// neither varies, are left out and not counted. Errors wrap ErrNotFinite.
func ComparePairs(groups [][][]float64) ([]Comparison, error) {
	var all []Comparison
	var ps []float64
	for i, sets := range groups {
		for a := range sets {
			for b := a + 1; b < len(sets); b++ {
				w, err := WelchTest(sets[a], sets[b])
				if errors.Is(err, ErrTooFew) || errors.Is(err, ErrNoSpread) {
					continue
				}
				if err != nil {
					return nil, err
				}
				g, err := HedgesG(sets[a], sets[b])
				if err != nil {
					return nil, err
				}
				all, ps = append(all, Comparison{Group: i, A: a, B: b, Welch: w, Effect: g}), append(ps, w.P)
			}
		}
	}
	corrected, err := Holm(ps)
	if err != nil {
		return nil, err
	}
	for i, p := range corrected {
		all[i].Corrected = p
	}
	return all, nil
}
