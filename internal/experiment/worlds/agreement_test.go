package worlds

import (
	"testing"

	"github.com/tabane/tabane/internal/experiment/result"
)

func TestAgree(t *testing.T) {
	got, err := Agree(
		[]result.Run{run(Bulk, auto, 100, 0), run(Bulk, dq, 50, 0), run(Bulk, auto, 102, 0), run(Bulk, auto, 90, 0)},
		[]result.Run{run(Bulk, auto, 104, 0), run(Bulk, dq, 60, 0)},
		[]result.Run{run(Bulk, auto, 90, 0), run(Bulk, dq, 61, 0)},
	)
	if err != nil || len(got) != 2 {
		t.Fatalf("%v, %v", got, err)
	}
	if a := got[0]; a.Lab != 100 || a.Sim != 104 || a.Chance != 90 || !a.Agrees() || a.Repeats() {
		t.Errorf("got %+v", a)
	}
	if a := got[1]; a.Transport != dq || a.Lab != 50 || a.Sim != 60 || a.Agrees() || !a.Repeats() {
		t.Errorf("got %+v", a)
	}
	if failed := (Agreement{Lab: 0, Sim: 1, CellKey: result.CellKey{}}); failed.Agrees() {
		t.Error("a delivery that failed in the lab agrees with one that did not")
	}
}
