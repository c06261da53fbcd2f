package worlds

import (
	"testing"

	"github.com/tabane/tabane/internal/experiment/result"
)

func TestAgree(t *testing.T) {
	got, err := Agree(
		[]result.Run{run(Bulk, auto, 100, 0), run(Bulk, dq, 50, 0), run(Bulk, auto, 102, 0), run(Bulk, auto, 90, 0)},
		[]result.Run{run(Bulk, auto, 104, 0), run(Bulk, dq, 60, 0), run(Bulk, auto, 90, 0), run(Bulk, auto, 105, 0), run(Bulk, dq, 61, 0), run(Bulk, dq, 60, 0)},
	)
	if err != nil || len(got) != 2 {
		t.Fatalf("%v, %v", got, err)
	}
	if a := got[0]; a.Lab != 100 || a.Sim != (Simulated{104, 90, 105}) || !a.Agrees() || !a.Within() || a.Sim.Repeats() {
		t.Errorf("got %+v", a)
	}
	if a := got[1]; a.Transport != dq || a.Lab != 50 || a.Sim != (Simulated{60, 60, 61}) || a.Agrees() || a.Within() || !a.Sim.Repeats() {
		t.Errorf("got %+v", a)
	}
	far := Agreement{Lab: 80, Sim: Simulated{100, 83, 120}}
	if far.Agrees() || !far.Within() {
		t.Errorf("a lab just outside of what runs span: %v, %v", far.Agrees(), far.Within())
	}
	if failed := (Agreement{Sim: Simulated{Median: 1, Most: 1}}); failed.Agrees() || failed.Within() {
		t.Error("a delivery that failed in the lab agrees with one that did not")
	}
}
