package stat

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// TestSignedRank compares with SciPy: testdata/signedrank.py.
func TestSignedRank(t *testing.T) {
	data, err := os.ReadFile("testdata/signedrank.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name           string
		Differences    []float64
		Plus, Minus, P float64
	}
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 9 {
		t.Fatalf("%d cases", len(cases))
	}
	for _, tt := range cases {
		got, err := SignedRankTest(tt.Differences)
		if err != nil {
			t.Errorf("%s: %v", tt.Name, err)
			continue
		}
		want := SignedRank{N: got.N, Plus: tt.Plus, Minus: tt.Minus, P: tt.P, Effect: (tt.Plus - tt.Minus) / (tt.Plus + tt.Minus)}
		if diff := cmp.Diff(want, got, cmpopts.EquateApprox(1e-9, 0)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.Name, diff)
		}
	}
}

func TestSignedRankOfEqualPairs(t *testing.T) {
	if got, err := SignedRankTest([]float64{0, 0, 0}); err != nil || got != (SignedRank{P: 1}) {
		t.Errorf("got %+v, %v", got, err)
	}
	// 0.1 + 0.2 and 0.3 are equal magnitudes.
	tenths := 0.1
	got, err := SignedRankTest([]float64{tenths + 0.2, -0.3})
	if err != nil || got.Plus != 1.5 || got.P != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := SignedRankTest(nil); !errors.Is(err, ErrTooFew) {
		t.Errorf("of nothing: %v", err)
	}
	if _, err := SignedRankTest([]float64{1, math.NaN()}); !errors.Is(err, ErrNotFinite) {
		t.Errorf("of NaN: %v", err)
	}
}

// TestSignedRankApproximates: where the approximation begins, it is that of the exact probability.
func TestSignedRankApproximates(t *testing.T) {
	doubled := make([]int, exactPairs)
	for i := range doubled {
		doubled[i] = 2 * (i + 1)
	}
	for _, share := range []float64{0.8, 0.9, 1} { // of the mean sum
		most := int(share * exactPairs * (exactPairs + 1) / 2)
		exact, near := atMost(doubled, most), nearlyAtMost(exactPairs, 0, most)
		if ratio := near / exact; ratio < 0.95 || ratio > 1.05 {
			t.Errorf("%g of the mean: %g, exactly %g", share, near, exact)
		}
	}
}

// TestStudent: the sleep data of Student, 1908, as t.test(extra ~ group, paired = TRUE) of R has
// them: t = -4.0621, df = 9, p = 0.002833.
func TestStudent(t *testing.T) {
	got, err := StudentTest([]float64{-1.2, -2.4, -1.3, -1.3, 0, -1, -1.8, -0.8, -4.6, -1.4})
	if err != nil || got.DF != 9 || math.Abs(got.T+4.0621) > 1e-4 || math.Abs(got.P-0.002833) > 1e-6 {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := StudentTest([]float64{0, 0, 0}); err != nil || got != (Student{DF: 2, P: 1}) {
		t.Errorf("of equal pairs: %+v, %v", got, err)
	}
	for _, tt := range []struct {
		differences []float64
		want        error
	}{{nil, ErrTooFew}, {[]float64{1}, ErrTooFew}, {[]float64{0.1, 0.1, 0.1}, ErrNoSpread}, {[]float64{1, math.NaN()}, ErrNotFinite}} {
		if _, err := StudentTest(tt.differences); !errors.Is(err, tt.want) {
			t.Errorf("%v: got %v, want %v", tt.differences, err, tt.want)
		}
	}
}

// TestComparePairedStudent: the t-test needs fewer pairs, and its correction counts all of the
// family.
func TestComparePairedStudent(t *testing.T) {
	got, err := ComparePaired([][]float64{{1, 1.1, 0.9}, {2, 2, 2}, {1}, nil}, 0.05)
	if err != nil {
		t.Fatal(err)
	}
	first := got[0]
	if first.Judged || first.Student.DF != 2 || first.Student.P > 0.01 || math.Abs(first.StudentCorrected-4*first.Student.P) > 1e-12 {
		t.Errorf("got %+v", first)
	}
	for _, c := range got[1:] {
		if c.Student != (Student{}) || c.StudentCorrected != 0 {
			t.Errorf("what has no test has a p-value: %+v", c)
		}
	}
}

func TestPropertySignedRank(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.SliceOfN(rapid.Float64Range(-5, 5), 1, 30).Draw(t, "differences")
		negated := make([]float64, len(d))
		for i := range d {
			negated[i] = -d[i]
		}
		a, err := SignedRankTest(d)
		if err != nil {
			t.Fatal(err)
		}
		b, err := SignedRankTest(negated)
		if err != nil {
			t.Fatal(err)
		}
		if a.P != b.P || a.Effect != -b.Effect || a.Plus != b.Minus || a.P <= 0 || a.P > 1 || math.Abs(a.Effect) > 1 {
			t.Fatalf("%+v, and with other signs %+v", a, b)
		}
		if least := math.Pow(2, 1-float64(a.N)); a.N > 0 && a.P < least*(1-1e-9) {
			t.Fatalf("p = %g of %d differences", a.P, a.N)
		}
	})
}

func TestLeastPairs(t *testing.T) {
	for _, tt := range []struct{ tests, want int }{{1, 6}, {2, 7}, {3, 7}, {4, 8}, {12, 9}, {56, 12}} {
		got := LeastPairs(tt.tests, 0.05)
		if got != tt.want {
			t.Errorf("%d tests: got %d, want %d", tt.tests, got, tt.want)
		}
		if p := float64(tt.tests) * math.Pow(2, 1-float64(got)); p > 0.05 || 2*p <= 0.05 {
			t.Errorf("%d tests of %d pairs: the least p is %g", tt.tests, got, p)
		}
	}
}

// TestComparePaired: what has too few pairs is not judged, and counts for the correction.
func TestComparePaired(t *testing.T) {
	up := []float64{1, 2, 3, 4, 5, 6, 7, 8}
	got, err := ComparePaired([][]float64{up, up[:6], {-1, 2, -3, 4, -5, 6, -7, 8}}, 0.05)
	if err != nil {
		t.Fatal(err)
	}
	if c := got[0]; !c.Judged || c.Pairs != 8 || c.P != 1.0/128 || c.Corrected != 3.0/128 || c.Effect != 1 {
		t.Errorf("first: %+v", c)
	}
	got[1].Student, got[1].StudentCorrected = Student{}, 0
	if got[1] != (PairedComparison{Pairs: 6}) {
		t.Errorf("too few: %+v", got[1])
	}
	if c := got[2]; !c.Judged || c.Corrected != 1 {
		t.Errorf("last: %+v", c)
	}
	if _, err := ComparePaired([][]float64{{1, 2, 3, 4, 5, 6, math.NaN()}}, 0.05); !errors.Is(err, ErrNotFinite) {
		t.Errorf("of NaN: %v", err)
	}
}
