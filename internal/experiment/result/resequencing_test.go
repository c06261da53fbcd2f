package result

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/reseq"
)

func TestPutResequencing(t *testing.T) {
	b := reseq.New(reseq.Options{Bursts: true})
	at := func(ms int) time.Duration { return time.Duration(ms) * time.Millisecond }
	next := uint64(0)
	// A segment that is late by 4 ms, and n-1 that wait for it.
	burst := func(ms, n int) {
		for i := 1; i < n; i++ {
			b.Push(at(ms), 0, next+uint64(i)*100, 100)
		}
		b.Push(at(ms+4), 1, next, 100)
		next += uint64(n) * 100
	}
	burst(0, 30)
	burst(1000, 20)
	burst(4000, 12)
	burst(4300, 2)
	burst(4500, 14)
	burst(5000, 16)
	m := b.Measures()
	got := map[string]float64{}
	PutResequencing(got, &m, 10*unit.KbitPerSecond, 10*time.Second)
	want := map[string]float64{
		ThroughputBefore: 0.752, ThroughputAfter: 0.752, BurstMax: 30, BurstP99: 30, BurstFirst: 30, BurstSteady: 16, BurstSmall: 2, BurstLarge: 14,
		BurstsPerSecond: 3. / 7, BurstPeriod: 0.5, BufferMax: 2900, ReseqDelayMax: 0.004, ReseqDelayMean: 0.004 * 88 / 94, ReseqDelayP50: 0.004, ReseqDelayP95: 0.004, ReseqDelayP99: 0.004,
	}
	delete(got, BufferMean)
	near := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) <= 0.01*math.Abs(b) })
	if diff := cmp.Diff(want, got, near); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// Without rates and bursts over time there is no more than is known.
	m.Series = nil
	got = map[string]float64{}
	PutResequencing(got, &m, 0, 10*time.Second)
	for _, name := range []string{ThroughputBefore, ThroughputAfter, BurstFirst, BurstLarge, BurstPeriod} {
		if v, there := got[name]; there {
			t.Errorf("%s is %v", name, v)
		}
	}
}
