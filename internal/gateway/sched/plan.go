package sched

import (
	"fmt"
	"time"
)

// Rule is how a Plan chooses the path of a packet.
type Rule uint8

const (
	// RuleNone: no path can be used.
	RuleNone Rule = iota
	// RuleOne is the path Plan.Only, as best chooses it.
	RuleOne
	// RuleAll is every path of Plan.May, as of redundant.
	RuleAll
	// RuleRatio is so many consecutive packets on each path, as of ratio.
	RuleRatio
	// RuleEarliest is the path on which the packet arrives first, as of dq and dqj.
	RuleEarliest
	// RuleWeighted keeps flows on paths that were drawn by weight, as flow does unless the choice
	// is Fastest.
	RuleWeighted
	// RuleFlowEarliest keeps flows on the path on which the first packet arrives first.
	RuleFlowEarliest
)

// Plan is what the choice of paths depends on between two changes of the paths, so that a program
// in the kernel can repeat the choices of a scheduler without the scheduler. What changes with each
// packet is not in it: the virtual queues, the state of ratio and dq, and the table of flow.
type Plan struct {
	Rule Rule
	// May are the paths that can carry packets.
	May Set
	// Only is the path of RuleOne.
	Only int
	// Tie is that of the scheduler's options.
	Tie   time.Duration
	Paths []PathPlan
}

// PathPlan is the part of a Plan for one path.
type PathPlan struct {
	// PerByte is the transmission time of a byte in 2^-16 ns, 0 without a rate.
	PerByte uint64
	// Delay and Buffer are those of the Path.
	Delay, Buffer time.Duration
	// Ratio is that of the Path. Next is the path whose turn is after this one's, with RuleRatio.
	Ratio uint32
	Next  int
	// Until is the sum of the weights of the paths up to this one. It is the same as that of the
	// path before if no flow is assigned to this one.
	Until uint64
}

// Planned returns the names of the schedulers of packets that a Planner supports.
func Planned() []string {
	var list []string
	for _, s := range schedulers {
		if s.plan != nil {
			list = append(list, s.name)
		}
	}
	return list
}

// Planner derives plans for one scheduler. It is not safe for concurrent use.
type Planner struct {
	scheduler *descriptor
	options   Options
	dqj       *dqj
	best      best
}

// NewPlanner returns a planner for a scheduler of packets, or an error for one whose choices do not
// follow from the paths alone: auto, and dqj without Options.Size.
func NewPlanner(name string, o Options) (*Planner, error) {
	if err := o.Check().Err(); err != nil {
		return nil, fmt.Errorf("plan scheduler %q: %w", name, err)
	}
	d, err := find(name)
	if err != nil || d.plan == nil {
		return nil, fmt.Errorf("plan scheduler %q: its choices do not follow from the paths alone", name)
	}
	if d.sized && o.Size == 0 {
		return nil, fmt.Errorf("plan scheduler %q: the size of packets must be given", name)
	}
	return &Planner{scheduler: d, options: o, dqj: newDQJ(o).(*dqj), best: best{at: -1}}, nil
}

// Plan returns the plan for the state of the paths, which the scheduler has until the next one.
func (p *Planner) Plan(paths []Path) Plan {
	may := candidates(paths)
	plan := Plan{May: may, Only: -1, Tie: p.options.Tie, Paths: make([]PathPlan, len(paths))}
	for i := range paths {
		c, to := &paths[i], &plan.Paths[i]
		to.Delay, to.Buffer, to.Ratio = c.Delay, c.Buffer, uint32(max(c.Ratio, 0))
		if c.Rate > 0 {
			to.PerByte = new(virtual).timePerByte(c.Rate)
		} else {
			may &^= One(i)
		}
	}
	p.scheduler.plan(p, &plan, paths, may)
	if plan.May == 0 && plan.Rule != RuleRatio { // whose turn continues
		plan.Rule = RuleNone
	}
	return plan
}

func planRatio(_ *Planner, to *Plan, paths []Path, _ Set) {
	to.Rule = RuleRatio
	for i := range paths {
		if to.Paths[i].Ratio == 0 {
			to.May &^= One(i)
		}
	}
	for i := range paths {
		for next := 1; next <= len(paths); next++ {
			if j := (i + next) % len(paths); to.May.Has(j) {
				to.Paths[i].Next = j
				break
			}
		}
	}
}

func planRedundant(_ *Planner, to *Plan, _ []Path, _ Set) { to.Rule = RuleAll }

func planDQ(_ *Planner, to *Plan, _ []Path, may Set) { to.Rule, to.May = RuleEarliest, may }

func planDQJ(p *Planner, to *Plan, paths []Path, may Set) {
	to.Rule, to.May = RuleEarliest, p.dqj.eligible(paths, may, p.options.Size)
}

func planBest(p *Planner, to *Plan, paths []Path, _ Set) {
	p.best.choose(paths)
	if to.Rule, to.Only, to.May = RuleOne, p.best.at, 0; to.Only >= 0 {
		to.May = One(to.Only)
	}
}

func planFlow(p *Planner, to *Plan, paths []Path, may Set) {
	to.Rule, to.May = RuleWeighted, may
	if p.options.Choice == Fastest {
		to.Rule = RuleFlowEarliest
	}
	among := may
	if p.options.Choice == Cheapest {
		among = cheapest(paths, may)
	}
	sum := uint64(0)
	for i := range paths {
		if among.Has(i) {
			sum += share(&paths[i])
		}
		to.Paths[i].Until = sum
	}
}
