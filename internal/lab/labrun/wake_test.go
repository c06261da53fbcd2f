package labrun

import (
	"testing"
	"time"
)

// Each interval has the longest delay within it, also where intervals overlap.
func TestWakeDelays(t *testing.T) {
	w := &wakes{worst: map[*time.Duration]struct{}{}}
	w.observe(time.Second)
	first := w.begin()
	w.observe(2 * time.Millisecond)
	second := w.begin()
	w.observe(30 * time.Millisecond)
	w.observe(-time.Millisecond)
	if got := second(); got != 30*time.Millisecond {
		t.Errorf("second: %s", got)
	}
	w.observe(50 * time.Millisecond)
	if got := first(); got != 50*time.Millisecond {
		t.Errorf("first: %s", got)
	}
	if len(w.worst) != 0 {
		t.Errorf("%d intervals remain", len(w.worst))
	}
}

// The thread measures until stop, which waits for its end.
func TestWatchWakes(t *testing.T) {
	w := watchWakes()
	end := w.begin()
	for range 500 {
		time.Sleep(10 * time.Millisecond)
		w.mu.Lock()
		measured := false
		for worst := range w.worst {
			measured = *worst > 0
		}
		w.mu.Unlock()
		if measured {
			break
		}
	}
	w.stop()
	if got := end(); got <= 0 {
		t.Errorf("delay %s, want the delay of a timer at least", got)
	}
}
