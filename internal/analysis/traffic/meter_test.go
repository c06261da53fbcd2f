package traffic

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const ms = time.Millisecond

func TestMeter(t *testing.T) {
	type arrival struct {
		at time.Duration
		n  int
	}
	for _, tt := range []struct {
		name     string
		arrivals []arrival
		end      time.Duration
		series   []int64
		longest  time.Duration
		empty    int
	}{
		{"nothing at all", nil, 0, nil, 0, 0},
		{"nothing until the limit", nil, 1500 * ms, []int64{0, 0, 0}, 500 * ms, 1},
		{"one instant", []arrival{{0, 7}}, 0, []int64{7}, 0, 0},
		{"boundaries belong to the later interval", []arrival{{0, 1}, {499 * ms, 2}, {500 * ms, 4}, {1000 * ms, 8}}, 1000 * ms, []int64{3, 4, 8}, 0, 0},
		{"gaps of the first second do not count", []arrival{{0, 1}, {999 * ms, 1}, {1010 * ms, 1}}, 1010 * ms, []int64{1, 1, 1}, 10 * ms, 0},
		{"a gap counts from the first second on", []arrival{{100 * ms, 1}, {2700 * ms, 1}}, 2700 * ms, []int64{1, 0, 0, 0, 0, 1}, 1700 * ms, 3},
		{"the trailing gap counts, its cut interval does not", []arrival{{100 * ms, 1}, {1200 * ms, 1}}, 2600 * ms, []int64{1, 0, 1, 0, 0, 0}, 1400 * ms, 2},
		{"the first gap is the longest", []arrival{{1000 * ms, 1}, {1400 * ms, 1}, {1500 * ms, 1}}, 1600 * ms, []int64{0, 0, 2, 1}, 400 * ms, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var now time.Duration
			var reported []Sample
			m := &meter{interval: 500 * ms, now: func() time.Duration { return now }, progress: func(s Sample) { reported = append(reported, s) }}
			var total int64
			for _, a := range tt.arrivals {
				now = a.at
				m.count(a.n, 0)
				total += int64(a.n)
			}
			m.finish(tt.end)
			var series []int64
			var gap time.Duration
			for i, s := range m.series {
				gap = max(gap, s.Gap)
				if s.At != time.Duration(i)*m.interval {
					t.Errorf("interval %d begins at %s", i, s.At)
				}
				series = append(series, s.Bytes)
			}
			if diff := cmp.Diff(tt.series, series); diff != "" {
				t.Errorf("series (-want +got):\n%s", diff)
			}
			if gap != tt.longest && len(series) > 0 {
				t.Errorf("longest gap of the series is %s, want %s", gap, tt.longest)
			}
			for i := range reported {
				reported[i].Gap = m.series[i].Gap // that of the very end is known only then
			}
			if !slices.Equal(reported, m.series) {
				t.Errorf("progress reported %v, the series is %v", reported, m.series)
			}
			if m.total != total || m.longest != tt.longest || m.empty != tt.empty {
				t.Errorf("total %d, longest gap %s, %d empty; want %d, %s, %d", m.total, m.longest, m.empty, total, tt.longest, tt.empty)
			}
		})
	}
}

func TestMeterLimit(t *testing.T) {
	var now time.Duration
	m := &meter{interval: 100 * ms, now: func() time.Duration { return now }}
	for i := range 5 {
		now = time.Duration(i) * 100 * ms
		m.count(10, 300*ms)
	}
	m.finish(300 * ms)
	if diff := cmp.Diff([]Sample{{0, 10, 0}, {100 * ms, 10, 0}, {200 * ms, 10, 0}}, m.series); diff != "" || m.total != 30 {
		t.Errorf("total %d, series (-want +got):\n%s", m.total, diff)
	}
}

func TestMeterTick(t *testing.T) {
	var now time.Duration
	reported := 0
	m := &meter{interval: 100 * ms, now: func() time.Duration { return now }, progress: func(Sample) { reported++ }}
	if d := m.tick(); d != 100*ms || reported != 0 {
		t.Errorf("at the start: next in %s, %d reported", d, reported)
	}
	now = 330 * ms
	if d := m.tick(); d != 70*ms || reported != 3 {
		t.Errorf("at 330 ms: next in %s, %d reported", d, reported)
	}
	if r := m.report(330 * ms); len(r.Series) != reported {
		t.Errorf("%d intervals, %d reported", len(r.Series), reported)
	}
	now = 600 * ms
	if m.tick(); reported != 4 {
		t.Errorf("after the report: %d reported", reported)
	}
}

// The series adds up, and does not depend on ticks between arrivals.
func TestPropertyMeterSum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var now time.Duration
		clock := func() time.Duration { return now }
		ticked, plain := &meter{interval: 100 * ms, now: clock}, &meter{interval: 100 * ms, now: clock}
		for _, step := range rapid.SliceOf(rapid.Int64Range(0, int64(2*time.Second))).Draw(t, "steps") {
			now += time.Duration(step)
			if rapid.Bool().Draw(t, "tick") {
				ticked.tick()
				continue
			}
			n := rapid.IntRange(1, 1000).Draw(t, "n")
			ticked.count(n, 0)
			plain.count(n, 0)
		}
		ticked.finish(now)
		plain.finish(now)
		if !slices.Equal(ticked.series, plain.series) || ticked.longest != plain.longest || ticked.empty != plain.empty {
			t.Fatalf("with ticks %+v, without %+v", ticked.series, plain.series)
		}
		var sum int64
		for _, s := range ticked.series {
			sum += s.Bytes
		}
		if sum != ticked.total {
			t.Fatalf("the series adds up to %d of %d bytes", sum, ticked.total)
		}
	})
}
