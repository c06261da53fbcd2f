package labrun

import (
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/experiment/scenario/scenariotest"
)

// TestWebClock: what webqoe is estimated to take is within the bounds that its README promises, and
// grows with what slows pages down.
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
	}{{quick, true, 5 * time.Minute}, {whole, false, 90 * time.Minute}} {
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

// TestSessions: sessions have tasks of their own, begin one after the other, and are refused where
// the processors would be busy.
func TestSessions(t *testing.T) {
	spec := &scenario.Spec{}
	if err := yaml.UnmarshalWithOptions(scenariotest.Text(t, "webqoe"), spec, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	own := spec.WithSessions(3)
	if n := spec.Experiment.Traffic["map"].Web.Sessions; n != 0 {
		t.Errorf("the scenario itself has %d sessions", n)
	}
	if err := own.Check().Err(); err != nil {
		t.Fatal(err)
	}
	c := newWebClock(own)
	traffic := own.Experiment.Traffic["map"]
	seen := map[string]bool{}
	for trial := range 3 {
		tasks := tasksOf(c.world, traffic, trial)
		before := time.Duration(-1)
		for i, task := range tasks {
			seen[task.Goal] = true
			if at := beginning(tasks, i, traffic, false); at <= before {
				t.Errorf("session %d begins at %s, after one at %s", i, at, before)
			} else {
				before = at
			}
		}
	}
	if len(seen) < 8 {
		t.Errorf("%d goals in 9 tasks", len(seen))
	}
	k := own.Experiment.Cells()[0]
	if three, one := c.expect(cellOf(t, own, k, true), 0, true), newWebClock(spec).expect(cellOf(t, spec, k, true), 0, true); three < one || three > 4*one {
		t.Errorf("three sessions take %s, one %s", three, one)
	}

	if err := capacity(spec, true, 1); err != nil {
		t.Errorf("one session: %v", err)
	}
	const want = "3 sessions of traffic \"map\" would use "
	if err := capacity(own, false, 2); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "have at most 1") {
		t.Errorf("think times of 3 s in all: %v", err)
	}
	for _, t := range own.Experiment.Traffic {
		t.Web.Think = 0 // some 3 s a step
	}
	if err := capacity(own, false, 2); err != nil {
		t.Errorf("think times of some 3 s a step: %v", err)
	}
	if err := capacity(own.WithSessions(scenario.MaxSessions), false, 2); err == nil {
		t.Error("no error with 64 sessions")
	}
}
