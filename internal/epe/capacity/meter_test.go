package capacity

import (
	"math"
	"testing"
	"time"
)

func TestMeter(t *testing.T) {
	var m Meter
	now, bytes := start, uint64(1)<<63
	add := func(sent uint64, d time.Duration) (float64, bool) {
		now, bytes = now.Add(d), bytes+sent
		return m.Add(now, bytes)
	}
	if _, known := add(0, 0); known {
		t.Error("known from one reading")
	}
	for _, step := range []struct {
		rate          uint64
		seconds       int
		least, almost float64
	}{{1000, 1, 1000, 1000}, {1000, 20, 1000, 1000}, {2000, 1, 1390, 1400}, {2000, 1, 1630, 1640}, {2000, 20, 1999, 2000}, {0, 3, 400, 450}, {0, 60, 0, 1}} {
		var got float64
		for range step.seconds {
			got, _ = add(step.rate, time.Second)
		}
		if got < step.least || got > step.almost {
			t.Errorf("after %d s with %d bytes/s: %.1f", step.seconds, step.rate, got)
		}
	}
	for name, change := range map[string]func(){
		"counter reset": func() { bytes = 5 }, "clock set back": func() { now = now.Add(-time.Hour) }, "no time": func() { now = now.Add(-time.Second) },
	} {
		change()
		if got, known := add(0, time.Second); known {
			t.Errorf("%s: %.1f", name, got)
		}
		if got, known := add(1000, time.Second); !known || got != 1000 {
			t.Errorf("%s: then %.1f, %v", name, got, known)
		}
	}
}

func TestWorth(t *testing.T) {
	for _, c := range []struct {
		last, now, capacity float64
		since               time.Duration
		want                bool
	}{
		{0, 1000, 1000, SampleEvery / 2, false}, {0, 1000, 1000, SampleEvery, true},
		{100, 140, 1000, time.Second, false}, {100, 150, 1000, time.Second, true}, {100, 100, 1000, Repeat, true},
		{800, 805, 1000, time.Second, false}, {800, 810, 1000, time.Second, true}, {899, 900, 1000, time.Second, true}, {900, 899, 1000, time.Second, true},
		{710, 700, 1000, time.Second, true}, {700, 690, 1000, time.Second, false},
	} {
		if got := Worth(Load{c.capacity, c.last}, Load{c.capacity, c.now}, c.since); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if !Worth(Load{}, Load{1000, 0}, time.Hour) || !Worth(Load{1000, 0}, Load{2000, 0}, time.Second) {
		t.Error("a new capacity is not reported")
	}
	if Worth(Load{1000, 1}, Load{1000, math.NaN()}, time.Second) {
		t.Error("no number is reported")
	}
}
