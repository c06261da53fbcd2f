package emulator

import (
	"testing"

	"github.com/tabane/tabane/internal/experiment/linkmodel"
)

// A step of the schedule wakes the relay, because queued frames may be due after it.
func TestStepsWakeTheLink(t *testing.T) {
	w := &way{pipe: linkmodel.NewPipe[int32](linkmodel.Profile{}, 1514, 1, 0, nil), steps: linkmodel.Schedule{{At: 5 * ms, Change: linkmodel.Change{Delay: ptr(ms)}}}}
	if at := w.next(); at != 5*ms {
		t.Errorf("next is at %s", at)
	}
	if w.change(5*ms - 1); len(w.steps) != 1 {
		t.Error("step is done too early")
	}
	if w.change(5 * ms); len(w.steps) != 0 || w.pipe.Profile().Delay != ms || w.next() != linkmodel.Never {
		t.Errorf("after the step: %+v, next at %s", w.pipe.Profile(), w.next())
	}
}
