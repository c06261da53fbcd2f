package pathmanager

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/epe/selection"
)

// Rule assigns a policy to connections. All of its conditions that are set must apply; without any
// it applies to all connections.
type Rule struct {
	// Port is the server's port, Mark the mark of its sockets (SO_MARK); 0: any. Cgroup is the path
	// of a cgroup of version 2: that of the process which opened the listening socket, or one above
	// it; "": any.
	Port   uint16
	Mark   uint32
	Cgroup string
	Policy selection.Policy
	// Paths are the peers that the policy names, in the order of their costs.
	Paths []RulePath
}

// RulePath are the parameters of an egress peer, identified by its EPE address.
type RulePath struct {
	Peer netip.Addr
	// Share is the weight of the path for selection.Ratio, Commit the rate in bytes/s up to which
	// selection.Cost uses it; 0: any.
	Share, Commit float64
}

// needsSocket reports whether the rule has conditions that only a sample of a subflow shows.
func (r *Rule) needsSocket() bool { return r.Mark != 0 || r.Cgroup != "" }

// socket is what rules are matched against.
type socket struct {
	port   uint16
	mark   uint32
	cgroup uint64
	known  bool // mark and cgroup
}

// rule is a Rule with the budgets of its paths, which all its connections share.
type rule struct {
	Rule
	terms map[netip.Addr]selection.Terms
}

func newRules(all []Rule) []*rule {
	var rules []*rule
	for _, r := range all {
		added := &rule{r, map[netip.Addr]selection.Terms{}}
		for i, p := range r.Paths {
			t := selection.Terms{Listed: true, Rank: i, Share: p.Share}
			if p.Commit > 0 {
				t.Budget = selection.NewBudget(p.Commit)
			}
			added.terms[p.Peer] = t
		}
		rules = append(rules, added)
	}
	return rules
}

// matches reports whether the rule applies to a socket. within reports whether a cgroup has that
// path or is beneath it.
func (r *rule) matches(s socket, within func(cgroup uint64, path string) bool) bool {
	switch {
	case r.Port != 0 && r.Port != s.port:
		return false
	case r.needsSocket() && !s.known:
		return false
	case r.Mark != 0 && r.Mark != s.mark:
		return false
	}
	return r.Cgroup == "" || within(s.cgroup, r.Cgroup)
}

// ruleFor returns the first rule for a socket, nil if there is none.
func (m *machine) ruleFor(s socket) *rule {
	at := slices.IndexFunc(m.rules, func(r *rule) bool { return r.matches(s, m.inCgroup) })
	if at < 0 {
		return nil
	}
	return m.rules[at]
}

// chooses reports whether the paths of a connection are chosen by package selection.
func (c *connection) chooses() bool {
	return c.machine.noChoice == "" && (c.rule != nil || c.machine.overflow)
}

// policy returns the name of the policy of a connection, "" if the scheduler uses all paths.
func (c *connection) policy() string {
	switch {
	case !c.chooses():
		return ""
	case c.rule != nil:
		return c.rule.Policy.String()
	}
	return selection.Throughput.String()
}

// choiceConfigured reports whether the configuration has paths chosen for some connections.
func (m *machine) choiceConfigured() bool { return m.overflow || len(m.rules) > 0 }

// choosesAny reports whether that is so and the kernel gives the signals for it.
func (m *machine) choosesAny() bool { return m.noChoice == "" && m.choiceConfigured() }

// needsSockets reports whether a rule has conditions that only a sample shows.
func (m *machine) needsSockets() bool {
	return m.noChoice == "" && slices.ContainsFunc(m.rules, func(r *rule) bool { return r.needsSocket() })
}

// resetChoice starts to choose the paths of a connection by its rule, without what it has learned.
func (c *connection) resetChoice() {
	m := c.machine
	c.choice = selection.Connection[pathKey]{
		Recall: m.recall, Start: c.since.Sub(m.epoch),
		Source: func() (selection.Source, bool) { return m.source(c.token) },
	}
	if r := c.rule; r != nil {
		c.choice.Policy = r.Policy
		c.choice.Terms = func(k pathKey) selection.Terms {
			if k.peer < 0 {
				return selection.Terms{}
			}
			return r.terms[m.peers[k.peer].address]
		}
	}
}

// setRule sets the rule of a connection, and reports whether it has changed.
func (c *connection) setRule() bool {
	r := c.machine.ruleFor(c.socket)
	if r == c.rule {
		return false
	}
	c.rule = r
	c.resetChoice()
	return true
}

// applyChoice sets the priorities of a connection after its policy has changed.
func (c *connection) applyChoice() {
	c.decide()
	c.setPriorities()
}

// sampledSocket applies the mark and cgroup of a sample; the application may change the mark.
func (c *connection) sampledSocket(mark uint32, cgroup uint64) {
	now := socket{c.socket.port, mark, cgroup, true}
	if c.socket == now {
		return
	}
	c.socket = now
	if c.setRule() {
		c.applyChoice()
	}
}

// setUse applies Options.Overflow and Options.Rules to all connections. It clears the memory.
func (m *machine) setUse(now time.Time, overflows bool, rules []Rule) {
	m.now = now
	m.overflow, m.rules = overflows, newRules(rules)
	m.memory.Clear()
	for _, c := range m.conns {
		c.rule = m.ruleFor(c.socket)
		c.resetChoice()
		c.applyChoice()
	}
}
