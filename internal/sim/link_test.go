package sim

import (
	"context"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
)

// Pairs of links that share an event deliver the same at the same times as with one event each.
func TestPropertyPairsOfLinks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := paper(first, second)
		c.Duration, c.Series = 3*time.Second, 100*ms
		pairs := 0
		for i := range c.Links {
			p := &c.Links[i].Profile
			*p = genProfile(t, true)
			if i%4 == 1 || i%4 == 2 { // the last of its way
				*p = linkmodel.Profile{Rate: p.Rate, Delay: p.Delay, Queue: linkmodel.Queue{Limit: p.Queue.Limit}}
				p.Burst = unit.Size(rapid.SampledFrom([]int{0, 0, 10_000}).Draw(t, "burst"))
			} else if rapid.Bool().Draw(t, "load") {
				p.Load = linkmodel.Load{Rate: p.Rate / 2, On: 100 * ms, Off: 100 * ms}
			}
		}
		result := func(pair bool) Result {
			s, err := New(c)
			if err != nil {
				t.Fatal(err)
			}
			for i := range s.links {
				if l := &s.links[i]; l.from != nil && pair {
					pairs++
				} else if !pair {
					l.from, l.into = nil, nil
				}
			}
			r, err := s.Run(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			r.Events = 0 // times at which nothing is due, as CoDel may have dropped it, differ
			return r
		}
		if alone, together := result(false), result(true); !reflect.DeepEqual(alone, together) {
			t.Fatalf("%d pairs: other results; links %+v, with an event for each %+v", pairs, together.Links, alone.Links)
		}
	})
}
