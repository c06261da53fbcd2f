package scenario

import (
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tabane/tabane/internal/unit"
)

// limit is that of a cell in which nothing happens.
func limit(s *Spec, k CellKey) (Limits, error) {
	phases, err := s.Phases(k)
	if err != nil {
		return Limits{}, err
	}
	if len(phases) != 1 || phases[0].At != 0 {
		return Limits{}, fmt.Errorf("phases %+v", phases)
	}
	return phases[0].Limits, nil
}

func TestLimit(t *testing.T) {
	for _, tt := range []struct {
		key  CellKey
		want Limits
	}{
		{CellKey{"1.1", "bi", "tcp"}, Limits{Links: 30e6 * 1428 / 1514, LinksTCP: 30e6 * 1428 / 1514}},
		{CellKey{"1.3", "bi", "tcp"}, Limits{Links: 15e6 * 1428 / 1514, LinksTCP: 15e6 * 1428 / 1514}},
		{CellKey{"1.3", "bi", "mptcp-epe"}, Limits{Links: 45e6 * 1400 / 1514, LinksTCP: 45e6 * 1428 / 1514}},
		{CellKey{"1.1", "cbr", "mptcp-epe"}, Limits{Links: 25e6, LinksTCP: 25e6, Offered: 25e6}},
		{CellKey{"1.4", "cbr", "tcp"}, Limits{Links: 15e6 * 1428 / 1514, LinksTCP: 15e6 * 1428 / 1514, Offered: 25e6}},
	} {
		got, err := limit(steady(t), tt.key)
		near := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1 })
		if diff := cmp.Diff(tt.want, got, near); err != nil || diff != "" {
			t.Errorf("Limit(%s): %v (-want +got):\n%s", tt.key, err, diff)
		}
	}
}

func TestLimitOfLinksWithoutRateAndOtherMTU(t *testing.T) {
	s := steady(t)
	s.Experiment.Cases[0].Links["b"] = Shape{}
	delete(s.Experiment.Cases[1].Links, "b")
	s.Links["b"].Rate, s.Links["b"].MTU = 10*unit.MbitPerSecond, 9000
	if got, err := limit(s, CellKey{"1.1", "bi", "mptcp-epe"}); err != nil || got != (Limits{}) {
		t.Errorf("a link without rate limits to %+v, %v", got, err)
	}
	if got, err := limit(s, CellKey{"1.1", "cbr", "mptcp-epe"}); err != nil || got != (Limits{Links: 25e6, LinksTCP: 25e6, Offered: 25e6}) {
		t.Errorf("a link without rate limits CBR to %+v, %v", got, err)
	}
	want := 30e6*1400/1514 + 10e6*8900/9014
	if got, err := limit(s, CellKey{"1.2", "bi", "mptcp-epe"}); err != nil || math.Abs(got.Links-want) > 1 {
		t.Errorf("the link's own rate and MTU limit to %+v, %v, want %v", got, err, want)
	}
	if got, err := limit(s, CellKey{"2.1", "bi", "tcp"}); err == nil {
		t.Errorf("an unknown cell has the limit %+v", got)
	}
	s.Experiment = nil
	if got, err := limit(s, CellKey{"1.1", "bi", "tcp"}); err == nil {
		t.Errorf("a network alone has the limit %+v", got)
	}
}

func TestPutLeavesOutWhatThereIsNot(t *testing.T) {
	m := map[string]float64{Goodput: 1}
	Limits{Links: 2, LinksTCP: 3}.Put(m)
	if diff := cmp.Diff(map[string]float64{Goodput: 1, LimitRate: 2, LimitTCPRate: 3}, m); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}
