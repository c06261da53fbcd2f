package content

import (
	"reflect"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// TestVisits: the pages of visits together have the rate, from the start on, and are equal for
// equal seeds.
func TestVisits(t *testing.T) {
	w := New(1)
	const rate, measured = 100_000_000, 40 * time.Second
	for _, heavy := range []bool{false, true} {
		var starts []time.Duration
		bytes := map[time.Duration]int64{} // by quarter
		for v := range w.Visits(Services(), heavy, rate, 5) {
			if v.Start >= measured {
				break
			}
			if n := len(starts); n > 0 && starts[n-1] > v.Start {
				t.Fatalf("visit %d starts at %s, before the previous one", n, v.Start)
			}
			starts = append(starts, v.Start)
			at := v.Start - v.Task.Loads[0].Think
			for _, l := range v.Task.Loads {
				if at += l.Think; at >= 0 && at < measured {
					bytes[at*4/measured] += l.Bytes()
				}
			}
			if last := at - v.Start; last > visitLasts {
				t.Errorf("a visit lasts %s", last)
			}
		}
		total := int64(0)
		for quarter := range time.Duration(4) {
			total += bytes[quarter]
			if r := bytes[quarter] * 8 * 4 / int64(measured/time.Second); r < rate*6/10 || r > rate*14/10 {
				t.Errorf("heavy %t, quarter %d: %d bit/s", heavy, quarter, r)
			}
		}
		if r := total * 8 / int64(measured/time.Second); r < rate*9/10 || r > rate*11/10 {
			t.Errorf("heavy %t: %d bit/s, want %d", heavy, r, rate)
		}
		var again []time.Duration
		for v := range w.Visits(Services(), heavy, unit.Bandwidth(rate), 5) {
			if again = append(again, v.Start); len(again) == len(starts) {
				break
			}
		}
		if !reflect.DeepEqual(starts, again) {
			t.Error("the visits of equal seeds differ")
		}
	}
}
