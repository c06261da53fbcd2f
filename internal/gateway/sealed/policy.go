package sealed

import (
	"slices"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/sched"
)

// policy has the rules that choose a scheduler for packets.
type policy struct {
	rules    []rule
	fallback rule // packets without a rule
}

// rule schedules the packets of a policy rule to a peer.
type rule struct {
	discipline dataplane.Discipline
	scheduler  sched.Scheduler
	hold       dataplane.Resequence
	sent       dataplane.Count
	copies     uint64
	used       sched.Set
}

// apply makes schedulers of a policy. Rules that stay the same keep theirs.
func (x *policy) apply(policy dataplane.Policy, queues *sched.Queues) error {
	rules := make([]rule, len(policy))
	for i, c := range policy {
		if i < len(x.rules) && equal(x.rules[i].discipline, c.Discipline) {
			rules[i] = x.rules[i]
			rules[i].hold = c.Resequence
			continue
		}
		s, err := newScheduler(c.Discipline, queues)
		if err != nil {
			return err
		}
		rules[i] = rule{discipline: c.Discipline, scheduler: s, hold: c.Resequence}
	}
	if x.fallback.scheduler == nil {
		d := dataplane.Discipline{Name: dataplane.Auto}
		s, err := newScheduler(d, queues)
		if err != nil {
			return err
		}
		x.fallback = rule{discipline: d, scheduler: s}
	}
	x.rules = rules
	return nil
}

func equal(a, b dataplane.Discipline) bool {
	return a.Name == b.Name && a.Choice == b.Choice && a.CopyCostlier == b.CopyCostlier && slices.Equal(a.Ratio, b.Ratio)
}

func newScheduler(d dataplane.Discipline, queues *sched.Queues) (sched.Scheduler, error) {
	return sched.New(d.Name, sched.Options{
		Queues: queues, Choice: d.Choice, Tie: sched.Tie, Size: sched.FullSize, CopyCostlier: d.CopyCostlier,
	})
}
