package traffic

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestReplay checks the report of known arrivals.
func TestReplay(t *testing.T) {
	const ms = time.Millisecond
	arrivals := map[time.Duration]int{50 * ms: 1000, 120 * ms: 500, 1100 * ms: 300, 1450 * ms: 200}
	play := func(limit time.Duration, done bool) Report {
		return Replay(100*ms, limit, done, func(yield func(time.Duration, int) bool) {
			for _, at := range slices.Sorted(maps.Keys(arrivals)) {
				if !yield(at, arrivals[at]) {
					return
				}
			}
		})
	}
	whole := play(0, true)
	if whole.Bytes != 2000 || whole.FirstByte != 50*ms || whole.Duration != 1450*ms || whole.LongestGap != 350*ms || whole.EmptyIntervals != 3 {
		t.Errorf("got %+v", whole)
	}
	if want := 2000 * 8 / 1.45; whole.GoodputBps != want {
		t.Errorf("goodput %v, want %v", whole.GoodputBps, want)
	}
	if n := len(whole.Series); n != 15 || whole.Series[1].Bytes != 500 || whole.Series[14].Gap != 350*ms {
		t.Errorf("series %+v", whole.Series)
	}
	// Bytes at or after the limit are not counted, and an incomplete delivery lasts until the
	// limit.
	cut := play(1200*ms, false)
	if cut.Bytes != 1800 || cut.Duration != 1200*ms || len(cut.Series) != 12 {
		t.Errorf("cut off: %+v", cut)
	}
	if diff := cmp.Diff(whole, play(2*time.Second, true)); diff != "" {
		t.Errorf("done before its limit (-whole +got):\n%s", diff)
	}
	if none := Replay(100*ms, time.Second, false, func(func(time.Duration, int) bool) {}); none.Bytes != 0 || none.GoodputBps != 0 || none.Duration != time.Second {
		t.Errorf("nothing: %+v", none)
	}
}
