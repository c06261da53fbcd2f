package sched

import (
	"fmt"
	"slices"
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
	// RuleWeighted keeps flows on paths that were drawn by weight, as flow does unless the choice is
	// Fastest.
	RuleWeighted
	// RuleFlowEarliest keeps flows on the path on which the first packet arrives first.
	RuleFlowEarliest
)

// Plan is what the choice of paths depends on between two changes of the paths, so that a program in
// the kernel can repeat the choices of a scheduler without the scheduler. What changes with each
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
	// Until is the sum of the weights of the paths up to this one. It is the same as that of the path
	// before if no flow is assigned to this one.
	Until uint64
}

// planned are the schedulers of packets whose choices follow from the paths alone.
var planned = []string{"ratio", "redundant", "dq", "dqj", "best", "flow"}

// Planned returns the names of the schedulers that a Planner supports.
func Planned() []string { return slices.Clone(planned) }

// Planner derives plans for one scheduler. It is not safe for concurrent use.
type Planner struct {
	name    string
	options Options
	dqj     *dqj
	best    best
}

// NewPlanner returns a planner for a scheduler of packets, or an error for one whose choices do not
// follow from the paths alone: auto, and dqj without Options.Size.
func NewPlanner(name string, o Options) (*Planner, error) {
	if err := o.Check().Err(); err != nil {
		return nil, fmt.Errorf("plan scheduler %q: %w", name, err)
	}
	p := &Planner{name: name, options: o, best: best{at: -1}}
	if !slices.Contains(planned, name) {
		return nil, fmt.Errorf("plan scheduler %q: its choices do not follow from the paths alone", name)
	}
	if name == "dqj" {
		if o.Size == 0 {
			return nil, fmt.Errorf("plan scheduler %q: the size of packets must be given", name)
		}
		p.dqj = newDQJ(o).(*dqj)
	}
	return p, nil
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
	switch p.name {
	case "ratio":
		plan.Rule = RuleRatio
		for i := range paths {
			if plan.Paths[i].Ratio == 0 {
				plan.May &^= One(i)
			}
		}
		for i := range paths {
			for next := 1; next <= len(paths); next++ {
				if j := (i + next) % len(paths); plan.May.Has(j) {
					plan.Paths[i].Next = j
					break
				}
			}
		}
	case "redundant":
		plan.Rule = RuleAll
	case "dq":
		plan.Rule, plan.May = RuleEarliest, may
	case "dqj":
		plan.Rule, plan.May = RuleEarliest, p.dqj.eligible(paths, may, p.options.Size)
	case "best":
		p.best.choose(paths)
		if plan.Rule, plan.Only, plan.May = RuleOne, p.best.at, 0; plan.Only >= 0 {
			plan.May = One(plan.Only)
		}
	case "flow":
		plan.Rule, plan.May = RuleWeighted, may
		if p.options.Choice == Fastest {
			plan.Rule = RuleFlowEarliest
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
			plan.Paths[i].Until = sum
		}
	}
	if plan.May == 0 && plan.Rule != RuleRatio { // whose turn continues
		plan.Rule = RuleNone
	}
	return plan
}
