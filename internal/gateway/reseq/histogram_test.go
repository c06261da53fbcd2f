package reseq_test

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/gateway/reseq"
)

func TestHistogram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		magnitude := rapid.IntRange(0, 62).Draw(t, "bits")
		values := rapid.SliceOfN(rapid.Int64Range(0, 1<<magnitude), 1, 300).Draw(t, "values")
		cut := rapid.IntRange(0, len(values)).Draw(t, "cut")
		var h, other reseq.Histogram
		for i, v := range values {
			if i < cut {
				h.Add(v)
			} else {
				other.Add(v)
			}
		}
		h.Merge(&other)

		slices.Sort(values)
		n := float64(len(values))
		mean, sq := 0.0, 0.0
		for _, v := range values {
			mean += float64(v) / n
		}
		for _, v := range values {
			sq += (float64(v) - mean) * (float64(v) - mean)
		}
		if h.Count() != uint64(len(values)) || h.Min() != values[0] || h.Max() != values[len(values)-1] || !near(h.Mean(), mean, 1e-9) {
			t.Fatalf("got %d values from %d to %d, mean %g; want %d, %d to %d, mean %g", h.Count(), h.Min(), h.Max(), h.Mean(), len(values), values[0], values[len(values)-1], mean)
		}
		if len(values) > 1 && !near(h.SD(), math.Sqrt(sq/(n-1)), 1e-6) && math.Abs(h.SD()-math.Sqrt(sq/(n-1))) > 1e-6*mean {
			t.Fatalf("standard deviation %g, want %g", h.SD(), math.Sqrt(sq/(n-1)))
		}
		for _, p := range []float64{0, 0.1, 0.5, 0.95, 0.99, 1} {
			want := values[max(0, int(math.Ceil(p*n))-1)]
			if got := h.Quantile(p); !near(float64(got), float64(want), 0.01) {
				t.Fatalf("quantile %g: got %d, want %d within 1 %%", p, got, want)
			}
		}
		var counted uint64
		last := int64(-1)
		for b := range h.Bins() {
			if b.From <= last || b.To < b.From {
				t.Fatalf("bin [%d,%d] after %d", b.From, b.To, last)
			}
			inside := uint64(0)
			for _, v := range values {
				if v >= b.From && v <= b.To {
					inside++
				}
			}
			if inside != b.Count {
				t.Fatalf("bin [%d,%d] has %d, want %d", b.From, b.To, b.Count, inside)
			}
			last = b.To
			counted += b.Count
		}
		if counted != h.Count() {
			t.Fatalf("bins have %d values, want %d", counted, h.Count())
		}
	})
}

func near(got, want, relative float64) bool { return math.Abs(got-want) <= relative*math.Abs(want) }

func TestHistogramOfValuesThatHardlyDiffer(t *testing.T) {
	var h reseq.Histogram
	for range 1_000_000 {
		h.Add(1_000_000_000)
	}
	h.Add(1_000_000_001)
	if got, want := h.SD(), 1/math.Sqrt(1_000_001.); !near(got, want, 1e-9) {
		t.Errorf("standard deviation %g, want %g", got, want)
	}
	if got := (&reseq.Histogram{}).Quantile(0.5); got != 0 {
		t.Errorf("median of nothing: %d", got)
	}
}

func BenchmarkHistogram(b *testing.B) {
	var h reseq.Histogram
	for i := range b.N {
		h.Add(int64(i) * 7919 % (1 << 26))
	}
}
