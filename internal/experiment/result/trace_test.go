package result

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tabane/tabane/internal/analysis/traffic"
)

const (
	ms = time.Millisecond
	// one is 10 Mbit/s in 100 ms.
	one = 125_000
)

// course makes a trace of runs of equal samples.
func course(events []time.Duration, runs ...[2]int64) Trace {
	t := Trace{Interval: 100 * ms, Events: events}
	for _, r := range runs {
		for range r[0] {
			t.Samples = append(t.Samples, traffic.Sample{At: time.Duration(len(t.Samples)) * t.Interval, Bytes: r[1]})
		}
	}
	return t
}

func TestMeasure(t *testing.T) {
	steady := []Phase{{Limits: Limits{Links: 20e6}}}
	falls := []Phase{{Limits: Limits{Links: 20e6}}, {At: 2 * time.Second, Event: 0, Limits: Limits{Links: 10e6}}}
	rises := []Phase{{Limits: Limits{Links: 10e6}}, {At: 2 * time.Second, Event: 0, Limits: Limits{Links: 20e6}}}
	at := func(d ...time.Duration) []time.Duration { return d }
	for _, tt := range []struct {
		name   string
		trace  Trace
		phases []Phase
		want   map[string]float64
	}{
		{"nothing arrived", Trace{Interval: 100 * ms}, steady, map[string]float64{}},
		{"too short for a second", course(nil, [2]int64{15, one}), steady, map[string]float64{}},
		{"the first second and the last interval do not count", course(nil, [2]int64{10, 0}, [2]int64{10, one}, [2]int64{1, 0}), steady,
			map[string]float64{WorstSecond: 10e6}},
		{"the worst second is no clock's second", course(nil, [2]int64{15, one}, [2]int64{10, one / 2}, [2]int64{20, one}), steady,
			map[string]float64{WorstSecond: 5e6}},
		{"the first 5 s are the start", course(nil, [2]int64{50, one / 2}, [2]int64{20, one}, [2]int64{1, 0}), steady,
			map[string]float64{WorstSecond: 5e6, GoodputLater: 10e6}},
		{"less than a second after the start", course(nil, [2]int64{59, one}, [2]int64{1, 0}), steady,
			map[string]float64{WorstSecond: 10e6}},
		{"a limit that falls is reached at once", course(at(2*time.Second), [2]int64{20, 2 * one}, [2]int64{21, one}), falls,
			map[string]float64{WorstSecond: 10e6, EventTime: 2, GoodputBefore: 20e6, GoodputAfter: 10e6, GapAfter: 0, LimitAfter: 10e6, TimeToLimit: 0}},
		{"a limit that rises takes time", course(at(2*time.Second), [2]int64{20, one}, [2]int64{5, one}, [2]int64{16, 2 * one}), rises,
			map[string]float64{WorstSecond: 10e6, EventTime: 2, GoodputBefore: 10e6, GoodputAfter: 17.5e6, GapAfter: 0, LimitAfter: 20e6, TimeToLimit: 0.5}},
		{"a peak is not sustained", course(at(2*time.Second), [2]int64{20, one}, [2]int64{2, one}, [2]int64{1, 3 * one}, [2]int64{2, one}, [2]int64{16, 2 * one}), rises,
			map[string]float64{WorstSecond: 12e6, EventTime: 2, GoodputBefore: 10e6, GoodputAfter: 18.5e6, GapAfter: 0, LimitAfter: 20e6, TimeToLimit: 0.5}},
		{"never reached is until the end", course(at(2050*ms), [2]int64{40, one}), rises,
			map[string]float64{WorstSecond: 10e6, EventTime: 2.05, GoodputBefore: 10e6, GoodputAfter: 10e6, GapAfter: 0, LimitAfter: 20e6, TimeToLimit: 1.95}},
		{"no limit, no time to it", course(at(2*time.Second), [2]int64{40, one}), []Phase{{}},
			map[string]float64{WorstSecond: 10e6, EventTime: 2, GoodputBefore: 10e6, GoodputAfter: 10e6, GapAfter: 0}},
		{"the limit changes with the second event", course(at(1500*ms, 2*time.Second), [2]int64{23, one}, [2]int64{20, 2 * one}),
			[]Phase{{Limits: Limits{Links: 10e6}}, {At: 2 * time.Second, Event: 1, Limits: Limits{Links: 20e6}}},
			map[string]float64{WorstSecond: 10e6, EventTime: 1.5, GoodputBefore: 10e6, GoodputAfter: math.NaN(), GapAfter: 0, LimitAfter: 20e6, TimeToLimit: 0.3}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := map[string]float64{}
			tt.trace.Measure(tt.phases, got)
			for k, v := range tt.want {
				if math.IsNaN(v) {
					tt.want[k] = got[k]
				}
			}
			// A worst second may lie across the change.
			if _, eventful := tt.want[EventTime]; eventful {
				tt.want[WorstSecond] = got[WorstSecond]
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateApprox(1e-9, 0)); diff != "" {
				t.Errorf("metrics (-want +got):\n%s", diff)
			}
		})
	}
}

// TestMeasureAfterTheLastRepetition: what repeats is over after the last time, whenever it began.
func TestMeasureAfterTheLastRepetition(t *testing.T) {
	trace := course([]time.Duration{2 * time.Second}, [2]int64{35, 2 * one}, [2]int64{10, one}, [2]int64{10, 2 * one})
	trace.Ends = []time.Duration{4 * time.Second}
	m := map[string]float64{}
	trace.Measure([]Phase{{Limits: Limits{Links: 20e6}}}, m)
	if m[EventTime] != 2 || m[TimeToLimit] != 0.5 {
		t.Errorf("metrics %v", m)
	}
}

func TestMeasureCountsTheGapsThatEndAfterTheEvent(t *testing.T) {
	trace := course([]time.Duration{2050 * ms}, [2]int64{40, one})
	trace.Samples[15].Gap, trace.Samples[20].Gap, trace.Samples[25].Gap = 900*ms, 50*ms, 30*ms
	got := map[string]float64{}
	trace.Measure([]Phase{{}}, got)
	if got[GapAfter] != 0.05 {
		t.Errorf("gap %v s", got[GapAfter])
	}
}

func TestMean(t *testing.T) {
	of := func(offered float64, at int, carry, tcp float64) Phase {
		return Phase{At: time.Duration(at) * time.Second, Limits: Limits{Offered: offered}, Capacity: carry, CapacityTCP: tcp}
	}
	for _, tt := range []struct {
		name   string
		phases []Phase
		lasted time.Duration
		want   Limits
	}{
		{"no change yet", []Phase{of(0, 0, 40, 44), of(0, 4, 20, 22)}, 2 * time.Second, Limits{40, 44, 0}},
		{"half and half", []Phase{of(0, 0, 40, 44), of(0, 4, 20, 22)}, 8 * time.Second, Limits{30, 33, 0}},
		{"no time", []Phase{of(0, 0, 40, 44)}, 0, Limits{}},
		{"not known afterwards", []Phase{of(0, 0, 40, 44), of(0, 4, 0, 0)}, 8 * time.Second, Limits{}},
		{"no more than is offered", []Phase{of(30, 0, 40, 44), of(30, 4, 20, 22)}, 8 * time.Second, Limits{25, 26, 30}},
		{"what was held up follows", []Phase{of(30, 0, 20, 20), of(30, 4, 40, 35)}, 8 * time.Second, Limits{30, 27.5, 30}},
		{"not known, but offered", []Phase{of(30, 0, 20, 20), of(30, 4, 0, 0)}, 8 * time.Second, Limits{30, 30, 30}},
	} {
		if got := Mean(tt.phases, tt.lasted); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestMeasureFollowsTheSchedule(t *testing.T) {
	interval := 100 * time.Millisecond
	trace := Trace{Interval: interval}
	for i := range 40 {
		bytes := int64(125_000) // 10 Mbit/s
		if i >= 22 {
			bytes = 62_500
		}
		trace.Samples = append(trace.Samples, traffic.Sample{At: time.Duration(i) * interval, Bytes: bytes})
	}
	phases := []Phase{
		{Limits: Limits{Links: 10e6}}, {At: 2 * time.Second, Event: EventSchedule, Limits: Limits{Links: 5e6}},
		{At: time.Hour, Event: EventSchedule, Limits: Limits{Links: 1e6}}, // the run did not last so long
	}
	m := map[string]float64{}
	trace.Measure(phases, m)
	if m[EventTime] != 2 || m[LimitAfter] != 5e6 || m[GoodputBefore] != 10e6 || m[TimeToLimit] > 0.001 {
		t.Errorf("metrics %v", m)
	}
}
