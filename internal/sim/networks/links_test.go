package networks

import (
	"testing"
	"time"
)

// TestLinks: with what it knows of loads, auto overloads links for a hundredth of the time that it
// does without, and networks get almost as much of what their best modes would bring if all had
// room.
func TestLinks(t *testing.T) {
	run := func(p Policy) LinkResult {
		var runs []LinkResult
		for seed := range uint64(2) {
			runs = append(runs, RunLinks(LinkOptions{Seed: seed + 1, Networks: 100, Servers: 5, Links: 4, Length: 2 * time.Hour, ChangeEvery: 150 * time.Minute, Explore: 0.1, Policy: p}))
		}
		mean, _ := MeanLinks(runs)
		return mean
	}
	best, alone, auto := run(BestPath), run(AutoAlone), run(AutoAndLoad)
	if auto.Overloaded > 0.002 || auto.Overloaded > alone.Overloaded/20 || auto.Full > 0.02 || auto.Over > 0.001 {
		t.Errorf("auto: %+v\nwithout loads: %+v", auto, alone)
	}
	if auto.Brought < alone.Brought-0.03 || auto.Brought < best.Brought+0.1 || auto.Best < 0.7 {
		t.Errorf("auto: %+v\nwithout loads: %+v\nbest path: %+v", auto, alone, best)
	}
	if auto.Moves > 2 || auto.Changes > 2 {
		t.Errorf("changes in an hour: %+v", auto)
	}
}

func TestLinksRepeat(t *testing.T) {
	o := LinkOptions{Seed: 5, Networks: 50, Servers: 3, Links: 3, Length: 20 * time.Minute, Explore: 0.1, Policy: AutoAndLoad}
	if a, b := RunLinks(o), RunLinks(o); a != b {
		t.Errorf("the same seed gives %+v and %+v", a, b)
	}
}

func TestMeanLinks(t *testing.T) {
	mean, worst := MeanLinks([]LinkResult{{Best: 0.5, Brought: 0.8, Over: 0.2}, {Best: 0.7, Brought: 0.6, Over: 0.4, Moves: 2}})
	if mean.Best != 0.6 || mean.Moves != 1 || worst.Best != 0.5 || worst.Brought != 0.6 || worst.Over != 0.4 || worst.Moves != 2 {
		t.Errorf("mean %+v, worst %+v", mean, worst)
	}
}
