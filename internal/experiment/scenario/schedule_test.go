package scenario

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/result"
)

func rate(mbit unit.Bandwidth) linkmodel.Change {
	r := mbit * unit.MbitPerSecond
	return linkmodel.Change{Rate: &r}
}

// TestLimitWithSchedule: the towards-client direction counts, whichever end of the link comes
// first in the file.
func TestLimitWithSchedule(t *testing.T) {
	s := steady(t)
	s.Links["a"].Schedule = linkmodel.Schedule{
		{At: 4 * time.Second, Direction: linkmodel.Forward, Change: rate(15)},
		{At: 5 * time.Second, Direction: linkmodel.Backward, Change: rate(1)},
		{At: 6 * time.Second, Change: rate(20)},
	}
	if faults := s.Check(); len(faults) > 0 {
		t.Fatal(faults.Err())
	}
	check := func(want ...result.Phase) {
		t.Helper()
		phases, err := s.Phases(result.CellKey{Case: "1.1", Traffic: "bi", Transport: "tcp"})
		if err != nil || len(phases) != len(want) {
			t.Fatalf("phases %+v, %v", phases, err)
		}
		for i, p := range phases {
			if p.At != want[i].At || p.Event != want[i].Event || math.Abs(p.Links-want[i].Links*1428/1514) > 1 {
				t.Errorf("phase %d is %+v, want %+v", i, p, want[i])
			}
		}
	}
	check(result.Phase{Limits: result.Limits{Links: 30e6}}, result.Phase{At: 4 * time.Second, Event: result.EventSchedule, Limits: result.Limits{Links: 15e6}}, result.Phase{At: 6 * time.Second, Event: result.EventSchedule, Limits: result.Limits{Links: 20e6}})
	ends := s.Links["a"].Ends
	ends[0], ends[1] = ends[1], ends[0]
	check(result.Phase{Limits: result.Limits{Links: 30e6}}, result.Phase{At: 5 * time.Second, Event: result.EventSchedule, Limits: result.Limits{Links: 1e6}}, result.Phase{At: 6 * time.Second, Event: result.EventSchedule, Limits: result.Limits{Links: 20e6}})
}

func TestCheckSchedule(t *testing.T) {
	delay, none := 20*time.Millisecond, time.Duration(0)
	for _, tt := range []struct {
		want   string
		change func(s *Spec)
	}{
		{"links.a.schedule[0].at: must be at least 1s", func(s *Spec) { s.Links["a"].Schedule = linkmodel.Schedule{{At: 1, Change: rate(5)}} }},
		{"links.a.schedule[0].at: must be >= 0s", func(s *Spec) { s.Links["a"].Schedule = linkmodel.Schedule{{At: -1, Change: rate(5)}} }},
		{"links.a.schedule[1].at: must not be before the step above it, at 5s, got 4s", func(s *Spec) {
			s.Links["a"].Schedule = linkmodel.Schedule{{At: 5 * time.Second, Change: rate(5)}, {At: 4 * time.Second, Change: rate(5)}}
		}},
		{`links.a.schedule[0].at: must be before traffic "cbr" ends, after 10s, got 1h0m0s`, func(s *Spec) {
			s.Experiment.Traffic["cbr"].Duration = 10 * time.Second
			s.Links["a"].Schedule = linkmodel.Schedule{{At: time.Hour, Change: rate(5)}}
		}},
		{"links.csp.ends: must be 2", func(s *Spec) { s.Links["csp"].Schedule = linkmodel.Schedule{{At: 2 * time.Second, Change: rate(5)}} }},
		{`links.a.schedule: has no effect`, func(s *Spec) {
			s.Experiment = nil
			s.Links["a"].Schedule = linkmodel.Schedule{{At: 2 * time.Second, Change: rate(5)}}
		}},
		{`experiment.cases[0].links.a: conflicts with the link's schedule: [0].jitter.amount: must not be more than the delay`, func(s *Spec) {
			s.Links["a"].Delay = delay
			s.Links["a"].Schedule = linkmodel.Schedule{{At: 2 * time.Second, Change: linkmodel.Change{Jitter: &linkmodel.Jitter{Kind: linkmodel.Uniform, Amount: delay}}}}
			s.Experiment.Cases[0].Links["a"] = Shape{Delay: none, Rate: 5e6}
		}},
		{`experiment.cases[0].events[0].set.link: link "a" has a schedule, which sets its shape`, func(s *Spec) {
			s.Links["a"].Schedule = linkmodel.Schedule{{At: 2 * time.Second, Change: rate(5)}}
			s.Experiment.Cases[0].Events = []Event{{Set: &LinkSet{Link: "a", Shape: Shape{Rate: 5e6}}}}
		}},
	} {
		s := steady(t)
		tt.change(s)
		if got := s.Check().Error(); !strings.Contains(got, tt.want) {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}
