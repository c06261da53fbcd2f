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

// TestRequestTakesTime: a request has 100 bytes, and follows an acknowledgement: over an uplink of
// 100 kbit/s the two take 22 ms more than over a fast one, in the handshake too.
func TestRequestTakesTime(t *testing.T) {
	took := func(up unit.Bandwidth) []time.Duration {
		c := paper(road{rate: 8 * unit.MbitPerSecond, delay: 10 * ms})
		k := &c.Connections[0]
		k.Bytes, k.Object, k.Header, k.Handshake = 20_000, 10_000, 86, true
		for _, l := range k.Paths[0].Back {
			c.Links[l].Rate = 0
		}
		c.Links[k.Paths[0].Back[0]].Rate = up
		return run(t, c).Connections[0].Objects
	}
	slow, fast := took(100*unit.KbitPerSecond), took(0)
	// SYN and the ACK before the request are of the first object only, and so are the acknowledgements
	// in its slow start.
	if got, least := slow[0]-fast[0], 28*ms; got < least {
		t.Errorf("the first object takes %v longer over a slow uplink, want %v or more", got, least)
	}
	if got, want := slow[1]-fast[1], (2*86+100)*8*time.Second/100_000; got < want || got > want+30*ms {
		t.Errorf("the second one takes %v longer, want %v or, with its acknowledgements, a little more", got, want)
	}
}
