package edge

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/base/health"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/daemon/condition"
	"github.com/tabane/tabane/internal/epe/spray"
	"github.com/tabane/tabane/internal/kernel/route"
)

// A sprayer sends the packets of connections over several paths; *spray.Sprayer implements it.
type sprayer interface {
	Set(number uint32, p spray.Plan) error
	// Program returns the number of the program for routes, as route.Route has it.
	Program(number uint32) (uint32, error)
	Remove(number uint32) error
}

// sprayState is what sends the packets of connections over several egress peers.
type sprayState struct {
	// sprayer is nil if no network has the mode, or this host cannot do it for the reason in
	// unsprayed.
	sprayer   sprayer
	unsprayed error
	plans     map[uint32]bool // that are in use
	// marking: the rules for the marks of peers are set, so that deliveries use them. unmarked are
	// nexthop objects with marks that the kernel may still have, after no mode needs them.
	marking  bool
	unmarked []route.Key
	// desprayed are networks whose routes may still have a program, after no mode sprays.
	desprayed []netip.Prefix
}

// sprayed is what a group has in place of a nexthop object.
type sprayed struct {
	plan, program uint32
	rule          uint32
}

const (
	// locatorRule is the priority of the rules for packets to SIDs: they keep the mark of what they
	// carry, and must not be looked up by it.
	locatorRule = 1
	// markRule is the priority of the first peer's rules for its mark. They are before those of
	// other programs, which may look at some bits of a mark: a packet that has one of ours has
	// passed all rules before.
	markRule = 3
	// sprayMark is that of the peer with index 0; the program refuses packets that have one of
	// these.
	sprayMark = 0x7ab5 << 16
)

// mark is that of packets that are sent through the peer.
func (p *peer) mark() uint32 { return sprayMark | uint32(p.index) }

// markRules are the rules for packets that are sent through the peer: they follow its table, or go
// nowhere.
func (p *peer) markRules() []route.Object {
	r := route.Rule{Priority: markRule + 2*uint32(p.rulePosition), Mark: p.mark(), Table: p.Table}
	if p.Address.Is4() {
		r.From = bgp.IPv4.Anywhere()
	}
	none := r
	none.Priority, none.Table, none.Unreachable = r.Priority+1, 0, true
	return []route.Object{r, none}
}

// marksPackets reports whether packets get marks, which markRules are for.
func (e *egress) marksPackets() bool { return e.marking || e.sprayer != nil }

// marked are the packets that markRules are for. Those that a rule of another program matches
// first follow that one's table, whichever peer it leads to.
func (e *egress) marked() condition.MarkedPackets {
	var marks []uint32
	for _, p := range e.peers {
		marks = append(marks, p.mark())
	}
	return condition.WholeMarks("delivered packets", uint32(markRule+2*slices.Max(e.rulePositions)), marks)
}

// locatorRules are the rules for packets to SIDs.
func (e *egress) locatorRules() (rules []route.Object) {
	for _, l := range e.config.Locators {
		rules = append(rules, route.Rule{Priority: locatorRule, To: l, Table: route.MainTable})
	}
	return rules
}

// markingRules are the rules for packets to SIDs, and those for the marks of all peers.
func (e *egress) markingRules() []route.Object {
	rules := e.locatorRules()
	for _, p := range e.byIndex {
		rules = append(rules, p.markRules()...)
	}
	return rules
}

// startSpraying sets the sprayer, or why there is none, before or after networks have the mode.
func (e *egress) startSpraying(s sprayer, reason error) {
	if e.unsprayed = reason; reason != nil {
		return
	}
	e.sprayer, e.plans = s, map[uint32]bool{}
	for _, o := range e.markingRules() {
		e.kernel.Set(o)
	}
}

// stopSpraying removes what startSpraying set, once no mode sprays and no route of the kernel has a
// program: a packet with a mark that no rule is for would come back to it. It reports whether it
// did.
func (e *egress) stopSpraying() bool {
	if e.sprayer == nil || e.config.Delivery.sprays() || len(e.plans) > 0 {
		return false
	}
	for i := len(e.desprayed) - 1; i >= 0; i-- {
		if e.kernel.Outdated(e.deliveredRoute(e.desprayed[i], nil).Key()) {
			e.desprayed = e.desprayed[:i+1]
			return false
		}
	}
	e.sprayer, e.plans, e.desprayed = nil, nil, nil
	if !e.marking {
		e.deleteMarkRules()
	}
	return true
}

// startMarking has the packets of deliveries marked, and encapsulated by the rules for the marks:
// those that this host forwards, as for containers, are then filtered, translated and compared with
// the MTU before, and all are fragmented before.
func (e *egress) startMarking() {
	e.marking = true
	for _, o := range e.markingRules() {
		e.kernel.Set(o)
	}
}

// stopMarking ends what startMarking began, once no mode needs it and the kernel has no more
// nexthop object with a mark. It reports whether it did.
func (e *egress) stopMarking() bool {
	if !e.marking || e.config.Delivery.leads() || e.sprayer != nil {
		return false
	}
	for to := range e.delivering {
		if to.mark != 0 {
			return false
		}
	}
	if slices.ContainsFunc(e.unmarked, e.kernel.Outdated) {
		return false
	}
	e.marking, e.unmarked = false, nil
	e.deleteMarkRules()
	return true
}

func (e *egress) deleteMarkRules() {
	for _, o := range e.markingRules() {
		e.kernel.Delete(o.Key())
	}
}

// leaveFirst takes the peers that a network has lost out of all groups, before a program for those
// that are left is loaded: that takes milliseconds, more where many networks lose some, and the
// withdrawals are only queued, so that packets would leave to these peers meanwhile.
func (e *egress) leaveFirst(old *group, left []member) {
	if old != nil {
		e.suspend(func(m member) bool {
			same := func(other member) bool { return other.peer == m.peer }
			return slices.ContainsFunc(old.members, same) && !slices.ContainsFunc(left, same)
		})
	}
	e.flushAtOnce()
}

// newSprayed gives a group a plan and a program; without, it keeps its first member.
func (e *egress) newSprayed(g *group, rule *deliveryRule) {
	s := &sprayed{rule: uint32(e.newPlanID(rule))}
	for e.plans[s.plan] {
		s.plan++
	}
	first := e.delivering[g.leads[0]].ID
	if g.id != first {
		delete(e.ids, g.id) // it needs no nexthop object of its own
		g.id = first
	}
	g.sprayed = s
	err := e.sprayer.Set(s.plan, g.plan())
	if err == nil {
		s.program, err = e.sprayer.Program(s.plan)
	}
	if err != nil {
		g.unsprayed, g.sprayed = err, nil
		return
	}
	e.plans[s.plan] = true
}

// newPlanID identifies the peers of a rule by their order.
func (e *egress) newPlanID(rule *deliveryRule) (id uint32) {
	for _, w := range rule.peers {
		i := slices.IndexFunc(e.peers, func(p *peer) bool { return p.Name == w.peer })
		id = id*31 + uint32(i+2)
	}
	return id
}

// plan returns the plan of a group that is sprayed, for its present members.
func (g *group) plan() spray.Plan {
	p := spray.Plan{Rule: g.sprayed.rule}
	for _, m := range g.present() {
		p.Marks[m.path] = m.peer.mark()
	}
	return p
}

// setSprayed applies the present members of a group, at once for all its routes.
func (e *egress) setSprayed(g *group) {
	g.unsprayed = e.sprayer.Set(g.sprayed.plan, g.plan())
}

// releaseSprayed ends the use of the plan of a group.
func (e *egress) releaseSprayed(g *group) {
	if g.sprayed == nil {
		return
	}
	_ = e.sprayer.Remove(g.sprayed.plan) // no route needs it any more
	delete(e.plans, g.sprayed.plan)
}

// sprays reports whether a mode sprays packets over egress peers, and not in a dry run.
func (d *Delivery) sprays() bool {
	return !d.DryRun && d.has(func(m Mode) bool { return len(m.Spray) > 1 })
}

// leads reports whether a mode sends packets to named egress peers, and not in a dry run.
func (d *Delivery) leads() bool {
	return !d.DryRun && (d.learns() || d.has(func(m Mode) bool { return m.Single != "" || len(m.Spread)+len(m.Spray) > 0 }))
}

// addMarks sets the rules for marks, before a mode needs them, and returns what the loop is to call
// when it does.
func (e *Edge) addMarks(ctx context.Context) (applied func()) {
	marking := true
	e.daemon.Do(ctx, func() { marking = e.egress.marking })
	if marking || !e.canMark() {
		return func() {}
	}
	e.addMarkRules(ctx)
	return func() { e.egress.startMarking() }
}

// markable reports whether this host can mark the packets of deliveries, and logs why not.
func markable(log *slog.Logger) bool {
	err := route.SupportsSentMark()
	if err != nil {
		log.Warn("this host cannot mark packets: with single and spread, datagrams that are longer than a packet, and what is sent "+
			"from containers and other hosts through this one, get lost", "err", err)
	}
	return err == nil
}

// addMarkRules adds the rules for marks one at a time: for each the kernel visits all of its IPv6
// routes, 35 ms for 300,000.
func (e *Edge) addMarkRules(ctx context.Context) {
	var rules []route.Object
	e.daemon.Do(ctx, func() { rules = e.egress.markingRules() })
	e.inSteps(ctx, func() bool {
		if len(rules) > 0 {
			e.egress.kernel.Set(rules[0])
			rules = rules[1:]
		}
		return len(rules) > 0
	})
}

// loadSprayer loads what sprays packets if a new configuration needs it, sets its rules, and
// returns what the loop is to call when the configuration applies. It is not called in the loop,
// which would follow no withdrawal meanwhile: loading takes a tenth of a second, longer on a busy
// machine.
func (e *Edge) loadSprayer(ctx context.Context, now *Config) (applied func()) {
	loads := false
	e.daemon.Do(ctx, func() {
		e.keepsSprayer = now.Delivery.sprays()
		loads = e.keepsSprayer && e.sprayer == nil
	})
	if !loads {
		return func() { e.keepsSprayer = false }
	}
	s, err := spray.New(now.links())
	if err == nil {
		e.addMarkRules(ctx)
	}
	return func() {
		e.keepsSprayer = false
		e.startSpraying(s, err)
	}
}

// startSpraying has packets sprayed by what was loaded, or says why it was not.
func (e *Edge) startSpraying(s *spray.Sprayer, err error) {
	if err != nil {
		e.log.Warn("this host cannot spray packets, the first egress peer carries all", "err", err)
		e.egress.startSpraying(nil, err)
		return
	}
	e.sprayer = s
	e.egress.startSpraying(s, nil)
}

// acknowledgments are the conditions that packets of clients are read, which an interface that is
// made again, another program, or replies that arrive elsewhere end.
func acknowledgments(s *spray.Sprayer, unheard *counted) []condition.Condition {
	return []condition.Condition{{
		Name: "acknowledgments", Good: "the acknowledgments of clients are read on all interfaces",
		Examine: func() (problems []health.Problem, err error) {
			links, err := s.Unread()
			for _, l := range links {
				problems = append(problems, health.Problem{
					Text:   fmt.Sprintf("the acknowledgments of clients are not read on %q: connections are not sprayed", l),
					Remedy: "have other programs leave the tc filters of tabane, and restart edge",
				})
			}
			return problems, err
		},
		Restore: func() error { return s.Read(false) },
	}, {
		Name: "sprayed connections", Good: "the acknowledgments of connections that are sprayed are seen",
		Examine: func() ([]health.Problem, error) {
			n, err := s.Unheard()
			if err != nil || !unheard.recent(n) {
				return nil, err
			}
			return []health.Problem{{
				Text:   "no acknowledgments are seen of some connections, which are not sprayed: replies of clients arrive on another interface than packets to border routers leave through, or another tcx program there accepts them before",
				Remedy: "have replies arrive on that interface, and other tcx programs return TCX_NEXT in place of TCX_PASS",
			}}, nil
		},
		Restore: func() error { return s.Read(true) },
	}}
}

// stopSpraying unloads what sprays packets after no mode does. It reports whether there is
// something to apply to the kernel.
func (e *Edge) stopSpraying() bool {
	if e.keepsSprayer || !e.egress.stopSpraying() {
		return false
	}
	if err := e.sprayer.Close(); err != nil {
		e.log.Error("unload what sprays packets", "err", err)
	}
	e.sprayer = nil
	return true
}
