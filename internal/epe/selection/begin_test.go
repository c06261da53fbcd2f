package selection

import (
	"testing"
	"time"
)

func TestNearest(t *testing.T) {
	near := Past{Rate: mbit, MinRTT: 10 * time.Millisecond}
	equal := Past{Rate: 50 * mbit, MinRTT: 10 * time.Millisecond}
	for _, tt := range []struct {
		name     string
		paths    []Past
		at, want int
	}{
		{"nothing is known", make([]Past, 3), 0, 0},
		{"nothing is known any more", make([]Past, 3), 2, 2},
		{"one is known", []Past{{}, near}, 0, 1},
		{"the rate decides", []Past{near, {Rate: 100 * mbit, MinRTT: 100 * time.Millisecond}}, 0, 1},
		{"the delay decides", []Past{{Rate: 100 * mbit, MinRTT: 100 * time.Millisecond}, equal}, 0, 1},
		{"its rate is not known", []Past{{Rate: 10 * mbit, MinRTT: 100 * time.Millisecond}, {MinRTT: 50 * time.Millisecond}}, 0, 1},
		{"it has jitter or slots", []Past{{Rate: 50 * mbit, MinRTT: 12 * time.Millisecond, RTT: 13 * time.Millisecond}, {Rate: 50 * mbit, MinRTT: 10 * time.Millisecond, RTT: 20 * time.Millisecond}}, 0, 0},
		{"its bursts queue", []Past{{Burst: 2 * mbit, MinRTT: 5 * time.Millisecond}, equal}, 0, 1},
		{"it failed", []Past{{Rate: mbit, MinRTT: time.Second}, {MinRTT: 10 * time.Millisecond, Verdict: Stalled, Rest: 10 * time.Second}}, 0, 1},
		{"it is broken", []Past{{Rate: mbit, MinRTT: time.Second}, {Verdict: Broken, Rest: brokenFor}}, 0, 0},
		{"it rests, and its rate is not known", []Past{{Rate: 500 * mbit, MinRTT: time.Second}, {MinRTT: 10 * time.Millisecond, Verdict: Slow, Rest: restFirst}}, 0, 1},
		{"hardly nearer", []Past{equal, {Rate: 50 * mbit, MinRTT: 9 * time.Millisecond}}, 0, 0},
		{"the nearest of three", []Past{equal, {Rate: 50 * mbit, MinRTT: 6 * time.Millisecond}, {Rate: 50 * mbit, MinRTT: 3 * time.Millisecond}}, 0, 2},
		{"stays", []Past{equal, equal}, 1, 1},
		{"returns", []Past{{Rate: 50 * mbit, MinRTT: 3 * time.Millisecond}, equal}, 1, 0},
	} {
		if got := Nearest(tt.paths, tt.at); got != tt.want {
			t.Errorf("%s: got %d, want %d", tt.name, got, tt.want)
		}
	}
}

// TestRecent: what was measured counts for 10 minutes, the latest most, and not after a stall.
func TestRecent(t *testing.T) {
	const ms = time.Millisecond
	var none *Recent
	if got := none.Past(wall); got != (Past{}) {
		t.Errorf("nothing measured: %+v", got)
	}
	r := &Recent{}
	for _, tt := range []struct {
		after, minRTT, rtt time.Duration
		rate               float64
		want               Past
	}{
		{0, 20 * ms, 24 * ms, 0, Past{MinRTT: 20 * ms, RTT: 24 * ms}},
		{time.Second, 40 * ms, 90 * ms, 4e6, Past{MinRTT: 25 * ms, RTT: 29 * ms, Rate: 4e6}}, // its own queue is in the smoothed one
		{2 * time.Second, 0, 0, 9e6, Past{MinRTT: 25 * ms, RTT: 29 * ms, Rate: 4e6}},         // its round-trip time is not known
		{3 * time.Second, 25 * ms, 0, 8e6, Past{MinRTT: 25 * ms, RTT: 29 * ms, Rate: 5e6}},
		{4 * time.Second, 25 * ms, 33 * ms, 0, Past{MinRTT: 25 * ms, RTT: 30 * ms, Rate: 5e6}},
		{9 * time.Minute, 0, 0, 0, Past{MinRTT: 25 * ms, RTT: 30 * ms, Rate: 5e6}},
		{11 * time.Minute, 0, 0, 0, Past{}},
		{12 * time.Minute, 10 * ms, 0, 0, Past{MinRTT: 10 * ms, RTT: 10 * ms}},
		{0, 0, 0, 0, Past{}}, // the clock was set back
	} {
		at := wall.Add(tt.after)
		if r.Add(at, at, tt.minRTT, tt.rtt, tt.rate); r.Past(at) != tt.want {
			t.Errorf("after %s: %+v, want %+v", tt.after, r.Past(at), tt.want)
		}
	}
	r.Stalled(wall)
	if r.Add(wall.Add(time.Second), wall.Add(-time.Second), 10*ms, 0, 0); r.Past(wall) != (Past{}) {
		t.Errorf("what was established before the stall counts: %+v", r.Past(wall))
	}
	if r.Add(wall.Add(time.Second), wall.Add(ms), 10*ms, 0, 0); r.Past(wall.Add(time.Second)).MinRTT != 10*ms {
		t.Error("what was established after the stall does not count")
	}
}
