package stat

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// SignedRank is the result of Wilcoxon's signed-rank test of paired differences.
type SignedRank struct {
	// N is the number of differences other than 0. Plus and Minus are the sums of the ranks of the
	// positive and of the negative ones.
	N           int
	Plus, Minus float64
	// P is how probable a sum at least this far from its mean is if each difference is as likely to
	// have the other sign (two-sided).
	P float64
	// Effect is the matched-pairs rank-biserial correlation (D. S. Kerby, The simple difference
	// formula, 2014): (Plus - Minus) / (Plus + Minus), -1 to 1, and 0 if all differences are 0.
	Effect float64
}

// exactPairs is the number of differences up to which P is exact. Beyond it, P is of the normal
// distribution with corrections for ties and continuity.
const exactPairs = 200

// SignedRankTest asks whether differences of pairs are centered at 0 (F. Wilcoxon, Individual
// comparisons by ranking methods, 1945). It needs neither a normal distribution nor equal steps of
// a scale. Equal magnitudes have the mean of their ranks, and the distribution of the sum is that
// of these ranks; differences of 0 are left out. Errors wrap ErrTooFew (there are none) or
// ErrNotFinite.
func SignedRankTest(differences []float64) (SignedRank, error) {
	if len(differences) == 0 {
		return SignedRank{}, fmt.Errorf("compute signed-rank test: %w: got none", ErrTooFew)
	}
	if err := checkFinite(differences); err != nil {
		return SignedRank{}, fmt.Errorf("compute signed-rank test: %w", err)
	}
	var signed []float64
	for _, d := range differences {
		if d != 0 {
			signed = append(signed, d)
		}
	}
	if len(signed) == 0 {
		return SignedRank{P: 1}, nil
	}
	slices.SortFunc(signed, func(a, b float64) int { return cmp.Compare(math.Abs(a), math.Abs(b)) })
	// Twice a rank is an integer, also if it is a mean of ranks.
	doubled := make([]int, len(signed))
	ties, plus, sum := 0.0, 0, 0
	for i := 0; i < len(signed); {
		end := i + 1
		for end < len(signed) && sameMagnitude(signed[end], signed[i]) {
			end++
		}
		for j := i; j < end; j++ {
			doubled[j] = i + 1 + end
			sum += doubled[j]
			if signed[j] > 0 {
				plus += doubled[j]
			}
		}
		n := float64(end - i)
		ties += n*n*n - n
		i = end
	}
	s := SignedRank{N: len(signed), Plus: float64(plus) / 2, Minus: float64(sum-plus) / 2, Effect: float64(2*plus-sum) / float64(sum)}
	if least := min(plus, sum-plus); len(signed) <= exactPairs {
		s.P = min(1, 2*atMost(doubled, least))
	} else {
		s.P = min(1, 2*nearlyAtMost(len(signed), ties, least))
	}
	return s, nil
}

// relativeTie is the relative difference up to which magnitudes are equal: sums of values such as
// 0.1 round.
const relativeTie = 1e-9

func sameMagnitude(a, b float64) bool {
	a, b = math.Abs(a), math.Abs(b)
	return math.Abs(a-b) <= relativeTie*max(a, b)
}

// atMost returns the probability that the sum of ranks, each in it with probability 1/2, is at most
// most.
func atMost(ranks []int, most int) float64 {
	total := 0.0
	for _, one := range sums(ranks, most) {
		total += one
	}
	return total
}

// sums returns the probabilities of the sums of ranks up to most, each rank in it with probability
// 1/2.
func sums(ranks []int, most int) []float64 {
	p := make([]float64, most+1) // p[s] is the probability of the sum s
	p[0] = 1
	for _, r := range ranks {
		for s := most; s >= 0; s-- {
			p[s] /= 2
			if s >= r {
				p[s] += p[s-r] / 2
			}
		}
	}
	return p
}

// nearlyAtMost approximates atMost for so many ranks; ties is the sum of n^3 - n over those that
// are equal.
func nearlyAtMost(ranks int, ties float64, most int) float64 {
	n := float64(ranks)
	deviation := math.Sqrt(n*(n+1)*(2*n+1)/24 - ties/48)
	return distuv.UnitNormal.CDF((float64(most)/2 - n*(n+1)/4 + 0.5) / deviation)
}

// Student is the result of Student's t-test of paired differences.
type Student struct {
	// T is the statistic: positive when the mean of the differences is. DF is 0 if nothing was
	// tested.
	T, DF float64
	// P is how probable a |T| at least this large is when the differences are normal with mean 0
	// (two-sided).
	P float64
}

// StudentTest asks whether differences of pairs have the mean 0, if they are normal (Student, The
// probable error of a mean, 1908). Errors wrap ErrTooFew (less than 2), ErrNotFinite, or
// ErrNoSpread (all are equal, and not 0).
func StudentTest(differences []float64) (Student, error) {
	if len(differences) < 2 {
		return Student{}, fmt.Errorf("compute t-test: %w: want 2 or more, got %d", ErrTooFew, len(differences))
	}
	mean, sd, err := MeanSD(differences)
	if err != nil {
		return Student{}, fmt.Errorf("compute t-test: %w", err)
	}
	n := float64(len(differences))
	s := Student{DF: n - 1, P: 1}
	switch {
	case sd > 0:
		if s.T = mean / sd * math.Sqrt(n); !finite(s.T) {
			return Student{}, fmt.Errorf("compute t-test: %w", ErrNotFinite)
		}
		s.P = min(1, 2*distuv.StudentsT{Sigma: 1, Nu: s.DF}.CDF(-math.Abs(s.T)))
	case mean != 0:
		return Student{}, fmt.Errorf("compute t-test: %w", ErrNoSpread)
	}
	return s, nil
}

// LeastPairs returns how many pairs a signed-rank test needs so that its p-value can be alpha or
// less after Holm's correction for so many tests: the least p-value of n pairs is 2^(1-n).
func LeastPairs(tests int, alpha float64) int {
	return 1 + int(math.Ceil(math.Log2(float64(max(1, tests))/alpha)))
}

// PairedComparison is the comparison of paired values.
type PairedComparison struct {
	// Pairs is their number. Judged is false if they are too few, and what follows is 0.
	Pairs  int
	Judged bool
	SignedRank
	// Corrected is P after Holm's correction for all comparisons of the family.
	Corrected float64
	// Student is the t-test of the same differences, whose P may be small with fewer pairs, and
	// StudentCorrected that P after Holm's correction. Its DF is 0 if there are less than 2
	// differences or all are equal and not 0.
	Student          Student
	StudentCorrected float64
}

// ComparePaired tests the differences of each comparison of a family that has at least LeastPairs
// pairs, and by Student's t-test whatever their number. Holm's correction of either test counts all
// of the family: those that are not judged as not significant. Errors wrap ErrNotFinite.
func ComparePaired(family [][]float64, alpha float64) ([]PairedComparison, error) {
	least := LeastPairs(len(family), alpha)
	all, ps, students := make([]PairedComparison, len(family)), make([]float64, len(family)), make([]float64, len(family))
	for i, differences := range family {
		all[i].Pairs, ps[i], students[i] = len(differences), 1, 1
		switch t, err := StudentTest(differences); {
		case err == nil:
			all[i].Student, students[i] = t, t.P
		case !errors.Is(err, ErrTooFew) && !errors.Is(err, ErrNoSpread):
			return nil, err
		}
		if len(differences) < least {
			continue
		}
		test, err := SignedRankTest(differences)
		if err != nil {
			return nil, err
		}
		all[i].Judged, all[i].SignedRank, ps[i] = true, test, test.P
	}
	for _, test := range []struct {
		ps  []float64
		put func(c *PairedComparison, p float64)
	}{
		{ps, func(c *PairedComparison, p float64) {
			if c.Judged {
				c.Corrected = p
			}
		}},
		{students, func(c *PairedComparison, p float64) {
			if c.Student.DF > 0 {
				c.StudentCorrected = p
			}
		}},
	} {
		corrected, err := Holm(test.ps)
		if err != nil {
			return nil, err
		}
		for i := range all {
			test.put(&all[i], corrected[i])
		}
	}
	return all, nil
}
