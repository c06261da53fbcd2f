package health

import (
	"reflect"
	"testing"
)

func TestStatus(t *testing.T) {
	for name, c := range map[string]struct {
		report func(*Report)
		want   Status
	}{
		"no problem":      {func(*Report) {}, Status{Ready: true}},
		"one of two":      {func(r *Report) { r.NeedOne(2, []string{"a is down"}) }, Status{Ready: true, Degraded: true, Reason: "a is down"}},
		"both":            {func(r *Report) { r.NeedOne(2, []string{"a is down", "b is down"}) }, Status{Reason: "a is down; b is down"}},
		"nothing to lose": {func(r *Report) { r.NeedOne(1, nil) }, Status{Ready: true}},
		"host":            {func(r *Report) { r.Lack(Problem{"off", "turn on"}) }, Status{Ready: true, Degraded: true, Reason: "off: turn on", Host: []Problem{{"off", "turn on"}}}},
		"failure first": {func(r *Report) {
			r.Degrade("%d routes pending", 3)
			r.Fail("draining")
		}, Status{Reason: "draining; 3 routes pending"}},
	} {
		var r Report
		c.report(&r)
		if got := r.Status(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
