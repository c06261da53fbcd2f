package labrun

import (
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/tabane/tabane/internal/scenario"
	"github.com/tabane/tabane/internal/scenario/scenariotest"
)

// TestWebClock: what webqoe is estimated to take is within the bounds that its README promises, and grows
// with what slows pages down.
func TestWebClock(t *testing.T) {
	whole := &scenario.Spec{}
	if err := yaml.UnmarshalWithOptions(scenariotest.Text(t, "webqoe"), whole, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	quick, err := whole.Select(whole.Experiment.Quick)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		spec  *scenario.Spec
		quick bool
		most  time.Duration
	}{{quick, true, 4 * time.Minute}, {whole, false, time.Hour}} {
		lists, err := schedule(tt.spec, 1, 0, tt.quick)
		if err != nil {
			t.Fatal(err)
		}
		sum := remaining(lists, make([]time.Time, 1), time.Time{})
		if sum < tt.most/2 || sum > tt.most {
			t.Errorf("quick %t: %d runs, %s, want at most %s", tt.quick, len(lists[0]), sum, tt.most)
		}
		t.Logf("quick %t: %d runs, %s", tt.quick, len(lists[0]), sum)
		of := map[string]time.Duration{}
		for _, j := range lists[0] {
			of[j.Case+" "+j.Transport] += j.expected
		}
		for _, order := range [][2]string{{"env3 lia", "env3 tcp"}, {"env3 tcp", "env4 tcp"}, {"env4 tcp", "env2 tcp"}, {"env3-heavy lia", "env3-heavy tcp"}} {
			if of[order[0]] > of[order[1]] {
				t.Errorf("quick %t: %s takes %s, %s takes %s", tt.quick, order[0], of[order[0]], order[1], of[order[1]])
			}
		}
	}
}
