package scenario

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/role"
)

const (
	// earliest is when the first event of a run can be: before, connections and subflows are still
	// being set up.
	earliest = time.Second
	// shortestFlap leaves the kernel's link watch, which gathers changes, time to report each
	// (net/core/link_watch.c: once in 100 ms at most, except for the first).
	shortestFlap = 100 * time.Millisecond
	maxFlaps     = 1000
)

// eventTimes wants the traffic to last until the case's events are over, in a whole and in a quick
// pass.
func (c *checker) eventTimes(path string, e *Experiment) {
	if !e.Eventful() {
		for _, name := range e.TrafficNames() {
			if t := e.Traffic[name]; t != nil && t.EventAt != 0 {
				c.Add(at(path+".traffic", name)+".event_at", "has no effect: no case has events")
			}
		}
		return
	}
	for _, name := range e.TrafficNames() {
		if e.Traffic[name] == nil {
			continue
		}
		where := at(path+".traffic", name) + ".event_at"
		if t := e.Traffic[name]; t.EventAt < earliest {
			c.Add(where, "must be at least %s where cases have events: before, connections and subflows are still being set up; got %s", earliest, t.EventAt)
			continue
		}
		for i, k := range e.Cases {
			t := e.TrafficIn(k, name)
			for j, x := range k.Events {
				where := index(index(path+".cases", i)+".events", j)
				switch full, quick := t.EventAt+x.last(false), t.EventAt+x.last(true); {
				case t.Duration > 0 && full >= t.Duration:
					c.Add(where, "must be over before traffic %q ends, after %s: is at %s", name, t.Duration, full)
				case t.Bytes > 0 && c.fastest(e, k, t) > 0 && full >= c.fastest(e, k, t):
					c.Add(where, "must be over before traffic %q can end, after %s: is at %s", name, c.fastest(e, k, t).Round(time.Millisecond), full)
				case t.Quick > 0 && quick >= t.Quick:
					c.Add(where, "must be over before traffic %q ends in a quick pass, after %s: is at %s", name, t.Quick, quick)
				}
			}
		}
	}
}

// fastest is the least time that a bulk delivery takes in the case, over the transport that can be
// the fastest; 0 when a limit is not known.
func (c *checker) fastest(e *Experiment, k Case, t *Traffic) time.Duration {
	var least time.Duration
	for _, transport := range e.Transports {
		if transport == nil {
			return 0
		}
		most := 0.0
		for _, p := range c.spec.phases(k, t, transport) {
			if p.Links == 0 {
				return 0
			}
			most = max(most, p.Links)
		}
		if most == 0 {
			return 0
		}
		if d := time.Duration(float64(t.Bytes) * 8 / most * float64(time.Second)); least == 0 || d < least {
			least = d
		}
	}
	return least
}

// events checks what can be said of a case's events without its traffic. They are followed in
// order: only what has failed is restored.
func (c *checker) events(path string, k Case) {
	f := follower{checker: c, down: map[Port]bool{}, holes: map[Port]bool{}, gone: map[Daemon]bool{}, drained: map[string]bool{}}
	for i, x := range k.Events {
		path := index(path+".events", i)
		switch {
		case x.After < 0:
			c.Add(path+".after", "must not be negative, got %s", x.After)
		case i > 0 && x.After < k.Events[i-1].After:
			c.Add(path+".after", "must not be before the event above, at %s, got %s", k.Events[i-1].After, x.After)
		}
		f.follow(path, x)
	}
	for i, link := range k.Remaining {
		where := index(path+".remaining", i)
		if _, ok := c.spec.Links[link]; !ok {
			c.Add(where, "link %q is not in links", link)
		}
		if slices.Index(k.Remaining, link) < i {
			c.Add(where, "link %q is named twice", link)
		}
	}
	if len(k.Remaining) > 0 && len(k.Events) == 0 {
		c.Add(path+".remaining", "has no effect without events")
	}
}

// follower knows what the events so far have failed.
type follower struct {
	*checker
	down, holes map[Port]bool
	gone        map[Daemon]bool
	drained     map[string]bool
}

// eventKind is a row of the table of event kinds.
type eventKind struct {
	kind  EventKind
	given func(Event) bool
	// check validates an event of the kind, whose value stands at path, against those before it.
	check func(f *follower, path string, x Event)
}

var eventKinds = []eventKind{
	{EventSet, func(x Event) bool { return x.Set != nil }, func(f *follower, path string, x Event) {
		if _, ok := f.spec.Links[x.Set.Link]; !ok {
			f.Add(path+".link", "link %q is not in links", x.Set.Link)
		}
		f.shape(path, x.Set.Shape)
	}},
	{EventDown, func(x Event) bool { return x.Down != nil }, func(f *follower, path string, x Event) {
		f.fail(path, f.port(path, *x.Down), f.down, *x.Down, "down")
	}},
	{EventUp, func(x Event) bool { return x.Up != nil }, func(f *follower, path string, x Event) {
		f.heal(path, f.port(path, *x.Up), f.down, *x.Up, "down")
	}},
	{EventBlackhole, func(x Event) bool { return x.Blackhole != nil }, func(f *follower, path string, x Event) {
		if d := x.Blackhole.Direction; d != "" && d != Out && d != In && d != Both {
			f.Add(path+".direction", "must be %s, %s or %s, got %q", Out, In, Both, string(d))
		}
		f.fail(path, f.port(path, x.Blackhole.Port()), f.holes, x.Blackhole.Port(), "a black hole")
	}},
	{EventClear, func(x Event) bool { return x.Clear != nil }, func(f *follower, path string, x Event) {
		f.heal(path, f.port(path, *x.Clear), f.holes, *x.Clear, "a black hole")
	}},
	{EventKill, func(x Event) bool { return x.Kill != nil }, func(f *follower, path string, x Event) { f.end(path, *x.Kill) }},
	{EventStop, func(x Event) bool { return x.Stop != nil }, func(f *follower, path string, x Event) { f.end(path, *x.Stop) }},
	{EventStart, func(x Event) bool { return x.Start != nil }, func(f *follower, path string, x Event) {
		if f.daemon(path, *x.Start) && !f.gone[*x.Start] {
			f.Add(path, "%s of node %q has not been killed or stopped", x.Start.Role, x.Start.Node)
		}
		delete(f.gone, *x.Start)
		delete(f.drained, x.Start.Node) // a daemon is in service after a restart
	}},
	{EventDrain, func(x Event) bool { return x.Drain != nil }, func(f *follower, path string, x Event) { f.drain(path, *x.Drain) }},
	{EventFlap, func(x Event) bool { return x.Flap != nil }, func(f *follower, path string, x Event) { f.flap(path, *x.Flap) }},
}

// follow checks one event, and that exactly one kind is given.
func (f *follower) follow(path string, x Event) {
	var all, given []string
	for _, k := range eventKinds {
		all = append(all, string(k.kind))
		if k.given(x) {
			given = append(given, string(k.kind))
			k.check(f, path+"."+string(k.kind), x)
		}
	}
	last := len(all) - 1
	switch want := "must be exactly one of " + strings.Join(all[:last], ", ") + " and " + all[last]; len(given) {
	case 0:
		f.Add(path, "%s", want)
	case 1:
	default:
		f.Add(path, "%s, got %s", want, strings.Join(given, ", "))
	}
}

func (f *follower) fail(path string, known bool, failed map[Port]bool, p Port, how string) {
	if known && failed[p] {
		f.Add(path, "interface %q of node %q already is %s", p.Interface, p.Node, how)
	}
	failed[p] = true
}

func (f *follower) heal(path string, known bool, failed map[Port]bool, p Port, how string) {
	if known && !failed[p] {
		f.Add(path, "interface %q of node %q is not %s", p.Interface, p.Node, how)
	}
	delete(failed, p)
}

func (f *follower) end(path string, d Daemon) {
	if f.daemon(path, d) && f.gone[d] {
		f.Add(path, "%s of node %q has ended already", d.Role, d.Node)
	}
	f.gone[d] = true
}

// port wants an interface that there is.
func (f *follower) port(path string, p Port) bool {
	if !f.knownNode(path+".node", p.Node) {
		return false
	}
	if !f.interfaces[p.Node][p.Interface] {
		f.Add(path+".interface", "node %q has no interface %q; it has %s", p.Node, p.Interface, strings.Join(slices.Sorted(maps.Keys(f.interfaces[p.Node])), ", "))
		return false
	}
	return true
}

// daemon wants a daemon that there is.
func (f *follower) daemon(path string, d Daemon) bool {
	if !f.knownNode(path+".node", d.Node) {
		return false
	}
	if !slices.Contains(Roles(), d.Role) {
		f.Add(path+".role", "must be one of %s, got %q", strings.Join(Roles(), ", "), d.Role)
		return false
	}
	if n := f.spec.Nodes[d.Node]; n != nil && !n.Runs(d.Role) {
		f.Add(path+".role", "node %q runs no %s", d.Node, d.Role)
		return false
	}
	return true
}

func (f *follower) drain(path string, x Drain) {
	d := Daemon{Node: x.Node, Role: role.ASBR}
	switch known := f.knownNode(path+".node", x.Node); {
	case !known:
	case f.spec.Nodes[x.Node] == nil || !f.spec.Nodes[x.Node].Runs(d.Role):
		f.Add(path+".node", "node %q runs no %s", x.Node, d.Role)
	case f.gone[d]:
		f.Add(path, "%s of node %q has ended already", d.Role, x.Node)
	case f.drained[x.Node]:
		f.Add(path, "node %q is drained already", x.Node)
	}
	f.drained[x.Node] = true
	if x.Wait < 0 {
		f.Add(path+".wait", "must not be negative, got %s", x.Wait)
	}
}

func (f *follower) flap(path string, x Flap) {
	switch {
	case (x.Interface == "") == (x.Neighbor == ""):
		f.Add(path, "must have either interface or neighbor")
	case x.Interface != "":
		f.port(path, Port{x.Node, x.Interface})
	case f.knownNode(path+".node", x.Node) && f.knownNode(path+".neighbor", x.Neighbor) && x.Node == x.Neighbor:
		f.Add(path+".neighbor", "must be another node, got %q", x.Neighbor)
	}
	if x.Times < 1 || x.Times > maxFlaps {
		f.Add(path+".times", "must be 1 to %d, got %d", maxFlaps, x.Times)
	}
	if x.Quick < 0 || x.Quick > x.Times {
		f.Add(path+".quick", "must be 1 to times (%d), got %d", x.Times, x.Quick)
	}
	if x.Every < shortestFlap {
		f.Add(path+".every", "must be at least %s, got %s", shortestFlap, x.Every)
	}
}
