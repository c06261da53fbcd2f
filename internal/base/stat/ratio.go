package stat

import (
	"errors"
	"fmt"
	"math"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// ErrUnbounded means that the mean of the values below the fraction bar does not differ from 0
// enough for their ratio to have a bounded confidence interval.
var ErrUnbounded = errors.New("the ratio has no bounded confidence interval")

// Ratio is the ratio of two means with its 95 % confidence interval [Low, High].
type Ratio struct {
	Value, Low, High float64
}

// RatioOfMeans returns the ratio of the mean of b to the mean of a, of independent sets that may
// have different variances. The interval is that of Fieller's theorem (E. C. Fieller, Some problems
// in interval estimation, 1954): all ratios R for which the mean of b - R a does not differ from 0
// by Student's t with the degrees of freedom of Welch and Satterthwaite at the estimated ratio. Of
// sets without any spread it is the ratio itself. Errors wrap ErrTooFew (a or b has less than 2
// values), ErrNotFinite (a value, or the ratio because the mean of a is 0) or ErrUnbounded.
func RatioOfMeans(b, a []float64) (Ratio, error) {
	for _, xs := range [][]float64{a, b} {
		if len(xs) < 2 {
			return Ratio{}, fmt.Errorf("compute ratio of means: %w: want 2 or more on each side, got %d and %d", ErrTooFew, len(b), len(a))
		}
		if err := checkFinite(xs); err != nil {
			return Ratio{}, fmt.Errorf("compute ratio of means: %w", err)
		}
	}
	meanA, varA := stat.MeanVariance(a, nil)
	meanB, varB := stat.MeanVariance(b, nil)
	ratio := meanB / meanA
	if !finite(ratio) {
		return Ratio{}, fmt.Errorf("compute ratio of means: %w: %g of %g", ErrNotFinite, meanB, meanA)
	}
	if constant(a) && constant(b) {
		return Ratio{ratio, ratio, ratio}, nil
	}
	na, nb := float64(len(a)), float64(len(b))
	sa, sb := varA/na, varB/nb
	scaled := ratio * ratio * sa
	df := (sb + scaled) * (sb + scaled) / (sb*sb/(nb-1) + scaled*scaled/(na-1))
	if !finite(df) { // b is 0 throughout, and so is the ratio
		df = na - 1
	}
	t := distuv.StudentsT{Sigma: 1, Nu: df}.Quantile((1 + confidence) / 2)
	// The ends are the roots of (meanB - R meanA)^2 = t^2 (sb + R^2 sa).
	square := meanA*meanA - t*t*sa
	if square <= 0 {
		return Ratio{}, fmt.Errorf("compute ratio of means: %w: the mean of the %d values below is %g +- %g", ErrUnbounded, len(a), meanA, t*math.Sqrt(sa))
	}
	root := math.Sqrt(max(0, meanA*meanA*meanB*meanB-square*(meanB*meanB-t*t*sb)))
	r := Ratio{ratio, (meanA*meanB - root) / square, (meanA*meanB + root) / square}
	if !finite(r.Low) || !finite(r.High) {
		return Ratio{}, fmt.Errorf("compute ratio of means: %w", ErrNotFinite)
	}
	return r, nil
}
