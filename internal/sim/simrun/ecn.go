package simrun

import (
	"fmt"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// marks returns a fault for each queue with ECN. Simulated segments are not ECN-capable, and
// dropping instead of marking would change the experiment.
func marks(spec *scenario.Spec) fault.List {
	var faults fault.List
	queue := func(path string, q *linkmodel.Queue) {
		if q != nil && q.ECN {
			faults.Add(path+".ecn", "the simulator's segments carry no ECN: this needs a lab, or a queue that drops")
		}
	}
	shape := func(path string, s scenario.Shape) {
		queue(path+".buffer", s.Buffer)
		for name, change := range map[string]*linkmodel.Change{"forward": s.Forward, "backward": s.Backward} {
			if change != nil {
				queue(path+"."+name+".queue", change.Queue)
			}
		}
	}
	for _, name := range sortedLinks(spec) {
		l, path := spec.Links[name], "links."+name
		shape(path, l.Shape)
		for i, step := range l.Schedule {
			queue(fmt.Sprintf("%s.schedule[%d].queue", path, i), step.Queue)
		}
	}
	for i, c := range spec.Experiment.Cases {
		for _, name := range sortedLinks(spec) {
			if s, ok := c.Links[name]; ok {
				shape(fmt.Sprintf("experiment.cases[%d].links.%s", i, name), s)
			}
		}
		for j, x := range c.Events {
			if x.Set != nil {
				shape(fmt.Sprintf("experiment.cases[%d].events[%d].set", i, j), x.Set.Shape)
			}
		}
	}
	return faults
}
