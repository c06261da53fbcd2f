package simrun

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/worlds"
)

// equalPaths is a network of two paths of a rate.
func equalPaths(rate unit.Bandwidth, lasts time.Duration) worlds.World {
	p := linkmodel.Profile{Rate: rate, Delay: 5 * time.Millisecond, Queue: linkmodel.Queue{Limit: linkmodel.Limit{Time: 50 * time.Millisecond}}}
	path := worlds.Path{Forward: p, Backward: p}
	return worlds.World{Options: worlds.Options{Kind: worlds.EPE, Seed: 1}, Paths: []worlds.Path{path, path}, Lasts: lasts}
}

// TestSpray: over two equal paths a sprayed download brings nearly what both can carry, one of
// datagrams too once TCP measured the paths, and the same options give the same.
func TestSpray(t *testing.T) {
	s, err := sprayWorld(t.Context(), equalPaths(30*unit.MbitPerSecond, 8*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]float64{"first": s.First, "next": s.Next, "next datagrams": s.NextDatagrams} {
		if got < 1.7*s.Alone[0] || got > 2.01*s.Alone[0] {
			t.Errorf("the %s download brings %.2f of one path", name, got/s.Alone[0])
		}
	}
	if s.Datagrams < 1.4*s.Alone[0] {
		t.Errorf("the first one of datagrams brings %.2f of one path", s.Datagrams/s.Alone[0])
	}
	var lists [2][]Sprayed
	for i := range lists {
		if lists[i], err = Spray(context.Background(), SprayOptions{Seed: 7, Count: 3, Packets: 500, Jobs: 1 + i}); err != nil {
			t.Fatal(err)
		}
	}
	if !reflect.DeepEqual(lists[0], lists[1]) {
		t.Errorf("%+v, and then %+v", lists[0], lists[1])
	}
	for _, r := range SprayedRatios() {
		if v := r.Of(lists[0][0]); !(v > 0) {
			t.Errorf("%s: %g", r.Title, v)
		}
	}
}
