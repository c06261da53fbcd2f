package cc

import (
	"testing"
	"time"
)

func TestLowatAndFast(t *testing.T) {
	const segment = 1400
	for _, c := range []struct {
		cwnd       float64
		srtt, lead time.Duration
		lowat      int
		fast       bool
	}{
		{10, 0, 0, firstLowat, false},
		{2, 500 * time.Millisecond, 0, leastLowat, false},
		{100, 100 * time.Millisecond, 0, 28_000, false},
		{100, 100 * time.Millisecond, 480 * time.Millisecond, 700_000, false},
		{357, 10 * time.Millisecond, 0, 999_600, false}, // 399.84 Mbit/s
		{358, 10 * time.Millisecond, 0, mostLowat, true},
		{1000, 100 * time.Microsecond, time.Second, mostLowat, true},
	} {
		if lowat, fast := Lowat(c.cwnd, segment, c.srtt, c.lead), Fast(c.cwnd, segment, c.srtt); lowat != c.lowat || fast != c.fast {
			t.Errorf("%v segments in %v, lead %v: %d, fast %v, want %d, %v", c.cwnd, c.srtt, c.lead, lowat, fast, c.lowat, c.fast)
		}
	}
}

func TestLead(t *testing.T) {
	const srtt = 50 * time.Millisecond
	for _, c := range []struct {
		name      string
		rate      float64 // of the other, of the subflow's
		minRTT    time.Duration
		slowStart bool
		want      time.Duration
	}{
		{"a longer path", 1, 200 * time.Millisecond, false, 550 * time.Millisecond},
		{"a shorter path", 1, 10 * time.Millisecond, false, 0},
		{"a very long path", 1, time.Second, false, mostLead},
		{"a slow path", 1. / 17, 200 * time.Millisecond, false, 0},
		{"a path in slow start", 1. / 17, 200 * time.Millisecond, true, 550 * time.Millisecond},
	} {
		if got := Lead(1000, srtt, 1000*c.rate, c.minRTT, c.slowStart); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
