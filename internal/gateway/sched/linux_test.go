package sched

import (
	"math"
	"testing"
	"time"
)

// quarter is the segment size of which four make a Piece.
const quarter = Piece / 4

// Computed by hand: windows of 10 segments, so pacing rates of 1000 and 100 bytes/ms; a burst is
// two pieces.
func TestDefaultGivesBurstsToTheQueueThatIsSoonestEmpty(t *testing.T) {
	paths := []Path{open(), open()}
	for i := range paths {
		paths[i].Cwnd, paths[i].SRTT, paths[i].Room = 10_000, 10*ms, quarter
	}
	paths[1].SRTT = 100 * ms
	s := scheduler(t, Default, Options{})
	next := func(want int) {
		t.Helper()
		set := s.Next(paths, Segment{Size: quarter, Window: math.MaxInt})
		if set != One(want) {
			t.Fatalf("chose %b with %d and %d bytes queued, want path %d", set, paths[0].Queued, paths[1].Queued, want)
		}
		paths[want].Queued += quarter
	}
	for range 8 {
		next(0) // both queues are empty: the first path
	}
	// Linger times: 65 ms on the first path, 0 on the second.
	for range 8 {
		next(1)
	}
	// Linger times: 65 ms and 655 ms, so the next nine bursts go to the first path.
	for range 9 * 8 {
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

// pushes returns the choices for pushes of n segments each; assigned segments stay queued.
func pushes(s Scheduler, paths []Path, window int, n ...int) []int {
	var got []int
	for i, n := range n {
		for range n {
			chosen := s.Next(paths, Segment{Now: time.Duration(i + 1), Size: quarter, Window: window}).First()
			got = append(got, chosen)
			if chosen >= 0 {
				paths[chosen].Queued += quarter
				paths[chosen].Room -= quarter
			}
		}
	}
	return got
}

// A push that ends at the window also ends the burst.
func TestDefaultChoosesAnewForEachPush(t *testing.T) {
	paths := []Path{open(), open()}
	paths[0].Room, paths[1].Room = 100*quarter, 100*quarter
	got := pushes(scheduler(t, Default, Options{}), paths, 2*quarter, 2, 2, 1, 1)
	if want := [...]int{0, 0, 1, 1, 0, 1}; [6]int(got) != want {
		t.Errorf("chose %v, want %v", got, want)
	}
}

// A piece is assigned to its end whatever the room. The room is checked before the next piece.
func TestDefaultGivesWholePieces(t *testing.T) {
	for _, tt := range []struct {
		name         string
		room, window int
		want         [10]int
	}{
		{"room for all", 100 * quarter, math.MaxInt, [10]int{0, 0, 0, 0, 0, 0, 0, 0, 1, 1}},
		{"room for one", quarter, math.MaxInt, [10]int{0, 0, 0, 0, 1, 1, 1, 1, -1, -1}},
		{"a burst of less than a piece", 100 * quarter, quarter, [10]int{0, 0, 0, 0, 1, 1, 1, 1, 0, 0}},
	} {
		paths := []Path{open(), open()}
		paths[0].Room, paths[1].Room = tt.room, tt.room
		if got := [10]int(pushes(scheduler(t, Default, Options{}), paths, tt.window, 10)); got != tt.want {
			t.Errorf("%s: chose %v, want %v", tt.name, got, tt.want)
		}
	}
}
