package sim

import (
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// TestObjects: objects on one connection, each requested when the previous one is complete.
func TestObjects(t *testing.T) {
	c := paper(road{rate: 8 * unit.MbitPerSecond, delay: 10 * ms})
	c.Connections[0].Bytes, c.Connections[0].Object = 50_000, 10_000
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := r.Connections[0]
	if len(got.Objects) != 5 || got.Finish == Never || got.Delivered != 50_000 {
		t.Fatalf("%d objects, %s delivered, finished at %s", len(got.Objects), got.Delivered, got.Finish)
	}
	var sum time.Duration
	for i, took := range got.Objects {
		// A round trip of 40 ms and 10 ms for the data, later without slow start.
		if took < 50*ms || i > 1 && took > 51*ms {
			t.Errorf("object %d took %s", i, took)
		}
		sum += took
	}
	if sum != got.Finish {
		t.Errorf("the objects took %s, all %s", sum, got.Finish)
	}
	c.Connections[0].Rate = unit.MbitPerSecond
	if _, err := New(c); err == nil {
		t.Error("accepted objects with a rate")
	}
}

// TestRequestPath: requests go over the first path that is not a backup, whose delay the objects
// then have.
func TestRequestPath(t *testing.T) {
	c := paper(road{rate: 8 * unit.MbitPerSecond, delay: 100 * ms}, road{rate: 8 * unit.MbitPerSecond, delay: 10 * ms})
	c.Connections[0].Bytes, c.Connections[0].Object = 50_000, 10_000
	c.Connections[0].Paths[0].Backup = true
	objects := run(t, c).Connections[0].Objects
	if len(objects) != 5 || objects[4] > 51*ms {
		t.Errorf("the objects took %v", objects)
	}
}
