package cc

import (
	"testing"
	"time"
)

// TestHyStart: slow start ends when all round-trip times of a round are longer, or the
// acknowledgments of a round come without a pause, and not by a single long one or below a window
// of 16.
func TestHyStart(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		name   string
		window float64
		rtt    func(i int) time.Duration // of acknowledgment i
		gap    time.Duration
		off    bool
		paced  bool
		want   bool
	}{
		{"steady", 40, func(int) time.Duration { return 100 * ms }, 3 * ms, false, false, false},
		{"a queue grows", 40, func(i int) time.Duration { return 100*ms + time.Duration(i)*ms/2 }, 3 * ms, false, false, true},
		{"without HyStart", 40, func(i int) time.Duration { return 100*ms + time.Duration(i)*ms/2 }, 3 * ms, true, false, false},
		{"jitter with short ones in each round", 40, func(i int) time.Duration { return 100*ms + time.Duration(i%4)*20*ms }, 3 * ms, false, false, false},
		{"a train", 100, func(int) time.Duration { return 100 * ms }, ms, false, false, true},
		{"the same, paced", 100, func(int) time.Duration { return 100 * ms }, ms, false, true, false},
		{"a small window", 8, func(i int) time.Duration { return 100*ms + time.Duration(i)*ms }, ms, false, false, false},
	} {
		c, err := New("cubic")
		if err != nil {
			t.Fatal(err)
		}
		s := []Subflow{Start(int(tt.window))}
		f := &s[0]
		f.HyStart, f.Paced = !tt.off, tt.paced
		now := time.Second
		for i := range 80 {
			f.InFlight = tt.window
			f.Delivered++
			// The window is held, to see when slow start ends.
			f.Cwnd = tt.window
			c.(Sampler).Sampled(s, 0, now, tt.rtt(i))
			c.Acked(s, 0, Ack{Now: now, Segments: 1, RTT: tt.rtt(i), Limited: true})
			now += tt.gap
		}
		if ended := f.Ssthresh < NoThreshold; ended != tt.want {
			t.Errorf("%s: slow start ended: %v", tt.name, ended)
		}
	}
}

// TestHyStartRounds: a round begins with the first acknowledgement of what was sent in it (after
// end_seq). If it began with one before, each round would begin earlier in the train of
// acknowledgements of its predecessor. The last ones of a train are late: they waited behind the
// others.
func TestHyStartRounds(t *testing.T) {
	s := []Subflow{Start(40)}
	f := &s[0]
	f.HyStart, f.InFlight = true, 39
	for round := range 20 {
		for i := range 40 {
			f.Delivered++
			wait := time.Duration(i) * 700 * time.Microsecond
			new(cubic).Sampled(s, 0, time.Second+time.Duration(round)*100*ms+wait, 100*ms+wait)
		}
	}
	if f.Ssthresh < NoThreshold {
		t.Error("slow start ended, though each round has acknowledgments without a queue")
	}
}

// TestSamplers: only cubic leaves slow start by round-trip times.
func TestSamplers(t *testing.T) {
	for _, name := range Names() {
		c, err := New(name)
		if err != nil {
			continue // the kernel's alone
		}
		if _, ok := c.(Sampler); ok != (name == "cubic") {
			t.Errorf("%s has round-trip times sampled: %t", name, ok)
		}
	}
}
