package sched

import (
	"math"
	"testing"
)

// Hand-computed: 10 segments a window, so that pacing rates are 1000 and 100 bytes/ms; 64 segments fit in a burst, and one more begins
// when one byte of it is left.
func TestDefaultGivesBurstsToTheQueueThatIsSoonestEmpty(t *testing.T) {
	paths := []Path{open(), open()}
	for i := range paths {
		paths[i].Cwnd, paths[i].SRTT = 10_000, 10*ms
	}
	paths[1].SRTT = 100 * ms
	s := scheduler(t, Default, Options{})
	next := func(want int) {
		t.Helper()
		set := s.Next(paths, Segment{Size: 1000, Window: math.MaxInt})
		if set != One(want) {
			t.Fatalf("chose %b with %d and %d bytes queued, want path %d", set, paths[0].Queued, paths[1].Queued, want)
		}
		paths[want].Queued += 1000
	}
	for range 66 {
		next(0) // both are empty: the first
	}
	// 66 ms at the one, nothing at the other.
	for range 66 {
		next(1)
	}
	// 66 ms against 660: the next 594 kB, nine bursts of 66 segments, go to the first.
	for range 9 * 66 {
		next(0)
	}
	paths[0].Queued += 1
	next(1)
}

func TestDefaultWaitsForTheChosenPath(t *testing.T) {
	paths := []Path{open(), open()}
	for i := range paths {
		paths[i].Cwnd, paths[i].SRTT, paths[i].Queued = 10_000, 10*ms, 5000
	}
	paths[0].Queued, paths[0].Room = 1000, 999
	if got := drive(scheduler(t, Default, Options{}), paths, 2); got != "--" {
		t.Errorf("%s: the queue that is soonest empty has no room, and the other is taken", got)
	}
	paths[0].Usable = false
	if got := drive(scheduler(t, Default, Options{}), paths, 2); got != "11" {
		t.Errorf("%s: a path that is not usable is waited for", got)
	}
}

// What the window leaves is the burst.
func TestDefaultBurstEndsWithTheWindow(t *testing.T) {
	paths := []Path{open(), open()}
	s := scheduler(t, Default, Options{})
	var got []int
	for range 4 {
		i := s.Next(paths, Segment{Size: 1000, Window: 2000}).First()
		paths[i].Queued += 1000
		got = append(got, i)
	}
	if want := []int{0, 0, 1, 1}; got[0] != want[0] || got[1] != want[1] || got[2] != want[2] || got[3] != want[3] {
		t.Errorf("chose %v, want %v", got, want)
	}
}
