package scenario

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/epe/router"
	"github.com/tabane/tabane/internal/role"
)

const (
	// earliest is the earliest time of an event in a run: before it, connections and subflows
	// are still being established.
	earliest = time.Second
	// shortestFlap is the shortest period at which the kernel's link watch, which coalesces
	// changes, reports each (net/core/link_watch.c: once in 100 ms at most, except for the
	// first).
	shortestFlap = 100 * time.Millisecond
	maxFlaps     = 1000
)

// eventTimes checks that the traffic lasts until the case's events are over, in a full and in a
// quick pass.
func (c *checker) eventTimes(path string, e *Experiment) {
	if !e.HasEvents() {
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
			c.Add(where, "must be at least %s where cases have events: before, connections and subflows are still being established; got %s", earliest, t.EventAt)
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

// fastest returns the shortest possible time of a bulk delivery in the case over any transport; 0
// if a limit is not known.
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
		if d := time.Duration(float64(t.Total()) * 8 / most * float64(time.Second)); least == 0 || d < least {
			least = d
		}
	}
	return least
}

// events checks a case's events regardless of its traffic. They are applied in order: an event can
// only restore what has failed before.
func (c *checker) events(path string, k Case) {
	f := eventState{checker: c, down: map[Port]bool{}, holes: map[Port]bool{}, ended: map[Daemon]bool{}, drained: map[string]bool{}, advertised: map[origin]bool{}}
	for i, x := range k.Events {
		path := index(path+".events", i)
		switch {
		case x.After < 0:
			c.Add(path+".after", "must not be negative, got %s", x.After)
		case i > 0 && x.After < k.Events[i-1].After:
			c.Add(path+".after", "must not be before the event above, at %s, got %s", k.Events[i-1].After, x.After)
		}
		f.apply(path, x)
	}
	c.named(path+".remaining", k.Remaining)
	if len(k.Remaining) > 0 && len(k.Events) == 0 {
		c.Add(path+".remaining", "has no effect without events")
	}
}

// eventState is what the events checked so far have made fail.
type eventState struct {
	*checker
	down, holes map[Port]bool
	ended       map[Daemon]bool
	drained     map[string]bool
	advertised  map[origin]bool
}

// origin is a prefix that a node originates.
type origin struct {
	node   string
	prefix netip.Prefix
}

// eventKind is a row of the table of event kinds.
type eventKind struct {
	kind  EventKind
	given func(Event) bool
	// check validates an event of the kind, with its value at path, against those before it.
	check func(f *eventState, path string, x Event)
}

var eventKinds = []eventKind{
	{EventSet, func(x Event) bool { return x.Set != nil }, func(f *eventState, path string, x Event) {
		if _, ok := f.spec.Links[x.Set.Link]; !ok {
			f.Add(path+".link", "link %q is not in links", x.Set.Link)
		}
		f.shape(path, x.Set.Shape)
	}},
	{EventDown, func(x Event) bool { return x.Down != nil }, func(f *eventState, path string, x Event) {
		f.fail(path, f.port(path, *x.Down), f.down, *x.Down, "down")
	}},
	{EventUp, func(x Event) bool { return x.Up != nil }, func(f *eventState, path string, x Event) {
		f.restore(path, f.port(path, *x.Up), f.down, *x.Up, "down")
	}},
	{EventBlackhole, func(x Event) bool { return x.Blackhole != nil }, func(f *eventState, path string, x Event) {
		if d := x.Blackhole.Direction; d != "" && d != Out && d != In && d != Both {
			f.Add(path+".direction", "must be %s, %s or %s, got %q", Out, In, Both, string(d))
		}
		f.fail(path, f.port(path, x.Blackhole.Port()), f.holes, x.Blackhole.Port(), "a black hole")
	}},
	{EventClear, func(x Event) bool { return x.Clear != nil }, func(f *eventState, path string, x Event) {
		f.restore(path, f.port(path, *x.Clear), f.holes, *x.Clear, "a black hole")
	}},
	{EventKill, func(x Event) bool { return x.Kill != nil }, func(f *eventState, path string, x Event) { f.endDaemon(path, *x.Kill) }},
	{EventStop, func(x Event) bool { return x.Stop != nil }, func(f *eventState, path string, x Event) { f.endDaemon(path, *x.Stop) }},
	{EventStart, func(x Event) bool { return x.Start != nil }, func(f *eventState, path string, x Event) {
		if f.daemon(path, *x.Start) && !f.ended[*x.Start] {
			f.Add(path, "%s of node %q has not been killed or stopped", x.Start.Role, x.Start.Node)
		}
		delete(f.ended, *x.Start)
		delete(f.drained, x.Start.Node) // a daemon is in service after a restart
	}},
	{EventDrain, func(x Event) bool { return x.Drain != nil }, func(f *eventState, path string, x Event) { f.drain(path, *x.Drain) }},
	{EventAdvertise, func(x Event) bool { return x.Advertise != nil }, func(f *eventState, path string, x Event) { f.advertise(path, *x.Advertise) }},
	{EventFlap, func(x Event) bool { return x.Flap != nil }, func(f *eventState, path string, x Event) { f.flap(path, *x.Flap) }},
}

// apply checks one event, and that exactly one kind of it is given.
func (f *eventState) apply(path string, x Event) {
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

func (f *eventState) fail(path string, known bool, failed map[Port]bool, p Port, how string) {
	if known && failed[p] {
		f.Add(path, "interface %q of node %q already is %s", p.Interface, p.Node, how)
	}
	failed[p] = true
}

func (f *eventState) restore(path string, known bool, failed map[Port]bool, p Port, how string) {
	if known && !failed[p] {
		f.Add(path, "interface %q of node %q is not %s", p.Interface, p.Node, how)
	}
	delete(failed, p)
}

func (f *eventState) endDaemon(path string, d Daemon) {
	if f.daemon(path, d) && f.ended[d] {
		f.Add(path, "%s of node %q has ended already", d.Role, d.Node)
	}
	f.ended[d] = true
}

// port checks that the interface exists.
func (f *eventState) port(path string, p Port) bool {
	if !f.knownNode(path+".node", p.Node) {
		return false
	}
	if !f.interfaces[p.Node][p.Interface] {
		f.Add(path+".interface", "node %q has no interface %q; it has %s", p.Node, p.Interface, strings.Join(slices.Sorted(maps.Keys(f.interfaces[p.Node])), ", "))
		return false
	}
	return true
}

// daemon checks that the node runs the daemon.
func (f *eventState) daemon(path string, d Daemon) bool {
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

func (f *eventState) drain(path string, x Drain) {
	d := Daemon{Node: x.Node, Role: role.ASBR}
	switch known := f.knownNode(path+".node", x.Node); {
	case !known:
	case f.spec.Nodes[x.Node] == nil || !f.spec.Nodes[x.Node].Runs(d.Role):
		f.Add(path+".node", "node %q runs no %s", x.Node, d.Role)
	case f.ended[d]:
		f.Add(path, "%s of node %q has ended already", d.Role, x.Node)
	case f.drained[x.Node]:
		f.Add(path, "node %q is drained already", x.Node)
	}
	f.drained[x.Node] = true
	if x.Wait < 0 {
		f.Add(path+".wait", "must not be negative, got %s", x.Wait)
	}
}

func (f *eventState) advertise(path string, x Advertise) {
	if len(x.Prefixes) == 0 {
		f.Add(path+".prefixes", "must name at least one prefix")
	}
	f.Merge(path, router.CheckPrefixes("prefixes", x.Prefixes))
	if slices.Contains(x.ASPath, 0) {
		f.Add(path+".as_path", "AS numbers must be > 0, got %v", x.ASPath)
	}
	if !f.knownNode(path+".node", x.Node) {
		return
	}
	n := f.spec.Nodes[x.Node]
	if n == nil || n.Router == nil {
		f.Add(path+".node", "node %q runs no %s", x.Node, role.Router)
		return
	}
	r := n.Router
	for i, p := range x.Prefixes {
		own := slices.Contains(r.Networks, p) || slices.ContainsFunc(r.Leaks, func(l router.Leak) bool { return l.Prefix == p })
		if o := (origin{x.Node, p}); own || f.advertised[o] {
			f.Add(index(path+".prefixes", i), "node %q originates %s already", x.Node, p)
		} else {
			f.advertised[o] = true
		}
	}
}

func (f *eventState) flap(path string, x Flap) {
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
