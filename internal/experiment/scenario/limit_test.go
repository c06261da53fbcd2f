package scenario

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/result"
)

// limit is that of a cell in which nothing happens.
func limit(s *Spec, k result.CellKey) (result.Limits, error) {
	phases, err := s.Phases(k)
	if err != nil {
		return result.Limits{}, err
	}
	if len(phases) != 1 || phases[0].At != 0 {
		return result.Limits{}, fmt.Errorf("phases %+v", phases)
	}
	return phases[0].Limits, nil
}

func TestLimit(t *testing.T) {
	for _, tt := range []struct {
		key  result.CellKey
		want result.Limits
	}{
		{result.CellKey{Case: "1.1", Traffic: "bi", Transport: "tcp"}, result.Limits{Links: 30e6 * 1428 / 1514, LinksTCP: 30e6 * 1428 / 1514}},
		{result.CellKey{Case: "1.3", Traffic: "bi", Transport: "tcp"}, result.Limits{Links: 15e6 * 1428 / 1514, LinksTCP: 15e6 * 1428 / 1514}},
		{result.CellKey{Case: "1.3", Traffic: "bi", Transport: "mptcp-epe"}, result.Limits{Links: 45e6 * 1400 / 1514, LinksTCP: 45e6 * 1428 / 1514}},
		{result.CellKey{Case: "1.1", Traffic: "cbr", Transport: "mptcp-epe"}, result.Limits{Links: 25e6, LinksTCP: 25e6, Offered: 25e6}},
		{result.CellKey{Case: "1.4", Traffic: "cbr", Transport: "tcp"}, result.Limits{Links: 15e6 * 1428 / 1514, LinksTCP: 15e6 * 1428 / 1514, Offered: 25e6}},
	} {
		got, err := limit(steady(t), tt.key)
		near := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1 })
		if diff := cmp.Diff(tt.want, got, near); err != nil || diff != "" {
			t.Errorf("Limit(%s): %v (-want +got):\n%s", tt.key, err, diff)
		}
	}
}

func TestLimitWithoutRateAndMTU(t *testing.T) {
	s := steady(t)
	s.Experiment.Cases[0].Links["b"] = Shape{}
	delete(s.Experiment.Cases[1].Links, "b")
	s.Links["b"].Rate, s.Links["b"].MTU = 10*unit.MbitPerSecond, 9000
	if got, err := limit(s, result.CellKey{Case: "1.1", Traffic: "bi", Transport: "mptcp-epe"}); err != nil || got != (result.Limits{}) {
		t.Errorf("a link without rate limits to %+v, %v", got, err)
	}
	if got, err := limit(s, result.CellKey{Case: "1.1", Traffic: "cbr", Transport: "mptcp-epe"}); err != nil || got != (result.Limits{Links: 25e6, LinksTCP: 25e6, Offered: 25e6}) {
		t.Errorf("a link without rate limits CBR to %+v, %v", got, err)
	}
	want := 30e6*1400/1514 + 10e6*8900/9014
	if got, err := limit(s, result.CellKey{Case: "1.2", Traffic: "bi", Transport: "mptcp-epe"}); err != nil || math.Abs(got.Links-want) > 1 {
		t.Errorf("the link's own rate and MTU limit to %+v, %v, want %v", got, err, want)
	}
	if got, err := limit(s, result.CellKey{Case: "2.1", Traffic: "bi", Transport: "tcp"}); err == nil {
		t.Errorf("an unknown cell has the limit %+v", got)
	}
	s.Experiment = nil
	if got, err := limit(s, result.CellKey{Case: "1.1", Traffic: "bi", Transport: "tcp"}); err == nil {
		t.Errorf("a network alone has the limit %+v", got)
	}
}

func TestPhases(t *testing.T) {
	s := steady(t)
	e := s.Experiment
	e.Traffic["bi"].EventAt, e.Traffic["cbr"].EventAt = 9*time.Second, 4*time.Second
	set := func(after time.Duration, link string, rate unit.Bandwidth) Event {
		return Event{After: after, Set: &LinkSet{link, Shape{Rate: rate}}}
	}
	e.Cases = []Case{{Name: "2.1", Links: map[string]Shape{"b": {Rate: 15e6}}, Events: []Event{set(0, "a", 15e6), set(time.Second, "b", 15e6), set(2*time.Second, "b", 30e6)}},
		{Name: "down", Events: []Event{{Down: &Port{"transit-a", "link-a"}}, set(time.Second, "b", 15e6)}, Remaining: []string{"b"}},
		{Name: "cleared", Remaining: []string{"b"}, Events: []Event{
			{Blackhole: &Hole{"transit-a", "link-a", Out}}, {After: time.Second, Kill: &Daemon{"asbr1", "asbr"}},
			{After: 2 * time.Second, Clear: &Port{"transit-a", "link-a"}}, {After: 3 * time.Second, Start: &Daemon{"asbr1", "asbr"}}}},
		{Name: "at once", Events: []Event{set(0, "a", 1e6), set(0, "a", 15e6)}}}
	const one, two = 1428.0 / 1514, 1400.0 / 1514
	for _, tt := range []struct {
		key  result.CellKey
		want []result.Phase
	}{
		{result.CellKey{Case: "2.1", Traffic: "bi", Transport: "mptcp-epe"}, []result.Phase{{Limits: result.Limits{Links: 45e6 * two, LinksTCP: 45e6 * one, Offered: 0}}, {At: 9 * time.Second, Event: 0, Limits: result.Limits{Links: 30e6 * two, LinksTCP: 30e6 * one, Offered: 0}},
			{At: 11 * time.Second, Event: 2, Limits: result.Limits{Links: 45e6 * two, LinksTCP: 45e6 * one, Offered: 0}}}},
		{result.CellKey{Case: "2.1", Traffic: "cbr", Transport: "tcp"}, []result.Phase{{Limits: result.Limits{Links: 25e6, LinksTCP: 25e6, Offered: 25e6}}, {At: 4 * time.Second, Event: 0, Limits: result.Limits{Links: 15e6 * one, LinksTCP: 15e6 * one, Offered: 25e6}}}},
		{result.CellKey{Case: "2.1", Traffic: "cbr", Transport: "mptcp-epe"}, []result.Phase{{Limits: result.Limits{Links: 25e6, LinksTCP: 25e6, Offered: 25e6}}, {At: 4 * time.Second, Event: 0, Limits: result.Limits{Links: 25e6, LinksTCP: 25e6, Offered: 25e6}},
			{At: 6 * time.Second, Event: 2, Limits: result.Limits{Links: 25e6, LinksTCP: 25e6, Offered: 25e6}}}},
		{result.CellKey{Case: "down", Traffic: "bi", Transport: "mptcp-epe"}, []result.Phase{{Limits: result.Limits{Links: 60e6 * two, LinksTCP: 60e6 * one, Offered: 0}}, {At: 9 * time.Second, Event: 0, Limits: result.Limits{Links: 30e6 * two, LinksTCP: 30e6 * one, Offered: 0}},
			{At: 10 * time.Second, Event: 1, Limits: result.Limits{Links: 15e6 * two, LinksTCP: 15e6 * one, Offered: 0}}}},
		{result.CellKey{Case: "down", Traffic: "bi", Transport: "tcp"}, []result.Phase{{Limits: result.Limits{Links: 30e6 * one, LinksTCP: 30e6 * one, Offered: 0}}, {At: 9 * time.Second, Event: 0, Limits: result.Limits{Links: 30e6 * one, LinksTCP: 30e6 * one, Offered: 0}},
			{At: 10 * time.Second, Event: 1, Limits: result.Limits{Links: 15e6 * one, LinksTCP: 15e6 * one, Offered: 0}}}},
		{result.CellKey{Case: "cleared", Traffic: "bi", Transport: "mptcp-epe"}, []result.Phase{{Limits: result.Limits{Links: 60e6 * two, LinksTCP: 60e6 * one, Offered: 0}}, {At: 9 * time.Second, Event: 0, Limits: result.Limits{Links: 30e6 * two, LinksTCP: 30e6 * one, Offered: 0}},
			{At: 12 * time.Second, Event: 3, Limits: result.Limits{Links: 60e6 * two, LinksTCP: 60e6 * one, Offered: 0}}}},
		{result.CellKey{Case: "at once", Traffic: "bi", Transport: "tcp"}, []result.Phase{{Limits: result.Limits{Links: 30e6 * one, LinksTCP: 30e6 * one, Offered: 0}}, {At: 9 * time.Second, Event: 1, Limits: result.Limits{Links: 15e6 * one, LinksTCP: 15e6 * one, Offered: 0}}}},
	} {
		got, err := s.Phases(tt.key)
		if diff := cmp.Diff(tt.want, got, cmpopts.EquateApprox(1e-9, 0), cmpopts.IgnoreFields(result.Phase{}, "Capacity", "CapacityTCP")); err != nil || diff != "" {
			t.Errorf("phases of %s: %v (-want +got):\n%s", tt.key, err, diff)
		}
	}
}
