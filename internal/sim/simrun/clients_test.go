package simrun

import (
	"reflect"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// TestSpraySeveral: sprayed downloads to five clients at once over two equal paths bring nearly what
// both can carry, and the same options give the same.
func TestSpraySeveral(t *testing.T) {
	s, err := severalWorld(t.Context(), equalPaths(20*unit.MbitPerSecond, 9*time.Second), 5)
	if err != nil {
		t.Fatal(err)
	}
	sum := s.Alone[0].Bytes + s.Alone[1].Bytes
	for name, got := range map[string]Together{"first": s.First, "next": s.Next, "next datagrams": s.Datagrams} {
		if got.Bytes < 0.9*sum || got.Bytes > 1.02*sum {
			t.Errorf("the %s ones bring %.2f of both paths", name, got.Bytes/sum)
		}
	}
	var lists [2][]Several
	for i := range lists {
		if lists[i], err = SpraySeveral(t.Context(), SprayOptions{Seed: 7, Count: 2, Packets: 500, Jobs: 1 + i}, 2); err != nil {
			t.Fatal(err)
		}
	}
	if !reflect.DeepEqual(lists[0], lists[1]) {
		t.Errorf("%+v, and then %+v", lists[0], lists[1])
	}
	for _, r := range SeveralRatios() {
		if v := r.Of(lists[0][0]); !(v >= 0) {
			t.Errorf("%s: %g", r.Title, v)
		}
	}
}
