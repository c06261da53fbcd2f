package measure

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/stat"
)

// line is a drawn network: the goodput of every 100 ms varies by sd, a standard deviation of its
// logarithm, that holds for so many seconds; low is a share of the goodput that is left for about
// lasting seconds, so often in a second. After a switch a fifth to a half of the goodput is lost,
// and comes back within 4 s.
type line struct {
	name                string
	sd, holds           float64
	often, low, lasting float64
}

// phases draws the goodput of phases in the order of modes, the second of which has ratio times as
// much, each as Paired counts it.
func (l line) phases(r *rand.Rand, ratio float64, order []int, phase time.Duration) []float64 {
	const recovery = 4.0
	step := Interval.Seconds()
	keeps := math.Exp(-step / l.holds)
	noise, left := l.sd*r.NormFloat64(), 0.0
	var means []float64
	for i, mode := range order {
		lost := 0.0
		if i > 0 && order[i-1] != mode {
			lost = 0.2 + 0.3*r.Float64()
		}
		sum, n := 0.0, 0
		for at := time.Duration(0); at < phase; at += Interval {
			noise = keeps*noise + math.Sqrt(1-keeps*keeps)*l.sd*r.NormFloat64()
			goodput := math.Exp(noise)
			if mode == 1 {
				goodput *= ratio
			}
			goodput *= 1 - lost*math.Pow(max(0, 1-at.Seconds()/recovery), 3)
			if left <= 0 && r.Float64() < l.often*step {
				left = l.lasting * r.ExpFloat64()
			}
			if left > 0 {
				goodput *= l.low
				left -= step
			}
			if at >= settling(phase) {
				sum, n = sum+goodput, n+1
			}
		}
		means = append(means, sum/float64(n))
	}
	return means
}

// measure returns the interval of a measurement of so many pairs.
func (l line) measure(t *testing.T, r *rand.Rand, ratio float64, pairs int, phase time.Duration) stat.MedianRatio {
	order := []int{0, 1} // it does not count
	for i := range pairs {
		first := r.IntN(2)
		if i%2 == 1 {
			first = order[len(order)-1]
		}
		order = append(order, first, 1-first)
	}
	means := l.phases(r, ratio, order, phase)
	of := [2][]float64{}
	for i := 2; i < len(order); i++ {
		of[order[i]] = append(of[order[i]], means[i])
	}
	got, err := stat.PairedRatio(of[1], of[0], 0.95)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestPairsOfDrawnLines: what pairs show depends on the line; docs/measure.md has the figures.
func TestPairsOfDrawnLines(t *testing.T) {
	if testing.Short() {
		t.Skip("too many measurements for an emulated processor")
	}
	const ratio, measurements = 1.25, 1000
	page, err := os.ReadFile("../../../docs/measure.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []line{
		{name: "each 100 ms varies by 3 %", sd: 0.03, holds: 0.1},
		{name: "others take 10 % for half a second", sd: 0.1, holds: 0.5},
		{name: "others take 10 % for 5 s", sd: 0.1, holds: 5},
		{name: "pauses of 0.2 s, every 5 s", sd: 0.05, holds: 0.5, often: 0.2, lasting: 0.2},
		{name: "0.7 of the goodput for 8 s, every 50 s", sd: 0.05, holds: 0.5, often: 0.02, lasting: 8, low: 0.7},
	} {
		row := "| " + l.name
		for _, way := range []struct {
			pairs int
			phase time.Duration
		}{{5, 8 * time.Second}, {10, 4 * time.Second}, {10, 8 * time.Second}} {
			r := rand.New(rand.NewPCG(37, 8))
			var halves []float64
			covered := 0
			for range measurements {
				got := l.measure(t, r, ratio, way.pairs, way.phase)
				halves = append(halves, math.Sqrt(got.High/got.Low)-1)
				if got.Low <= ratio && ratio <= got.High {
					covered++
				}
			}
			slices.Sort(halves)
			row += fmt.Sprintf(" | ±%.0f %%, ±%.0f %%", 100*halves[len(halves)/2], 100*halves[len(halves)*9/10])
			if share := float64(covered) / measurements; share < 0.92 {
				t.Errorf("%s: %.1f %% of the intervals of %d pairs of %s have the ratio", l.name, 100*share, way.pairs, way.phase)
			}
		}
		if row += " |"; !strings.Contains(string(page), row) {
			t.Errorf("docs/measure.md lacks %s", row)
		}
	}
}
