package scenario

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/role"
)

// Event is a change of the network while traffic runs. Exactly one of its kinds is given.
//
// The lab reverts the events of a run after it, so a case need not restore the network itself.
type Event struct {
	// After is the delay from the traffic's event_at. Default: 0.
	After time.Duration `yaml:"after,omitempty"`
	// Set replaces the shape of a link as a whole.
	Set *LinkSet `yaml:"set,omitempty"`
	// Down takes an interface down, so that its peer loses the carrier.
	Down *Port `yaml:"down,omitempty"`
	// Up takes an interface up again.
	Up *Port `yaml:"up,omitempty"`
	// Blackhole drops all packets at an interface while the link stays up.
	Blackhole *Hole `yaml:"blackhole,omitempty"`
	// Clear ends a blackhole.
	Clear *Port `yaml:"clear,omitempty"`
	// Kill ends a daemon with SIGKILL.
	Kill *Daemon `yaml:"kill,omitempty"`
	// Stop ends a daemon with SIGTERM.
	Stop *Daemon `yaml:"stop,omitempty"`
	// Start starts a daemon that has ended.
	Start *Daemon `yaml:"start,omitempty"`
	// Drain takes a border router out of service, as tabane asbr drain does.
	Drain *Drain `yaml:"drain,omitempty"`
	// Advertise makes a router originate further prefixes, as one that hijacks or leaks routes.
	Advertise *Advertise `yaml:"advertise,omitempty"`
	// Flap repeats a failure and its end.
	Flap *Flap `yaml:"flap,omitempty"`
}

// EventKind is the kind of an event, which is its key in a file.
type EventKind string

// The kinds of events.
const (
	EventSet       EventKind = "set"
	EventDown      EventKind = "down"
	EventUp        EventKind = "up"
	EventBlackhole EventKind = "blackhole"
	EventClear     EventKind = "clear"
	EventKill      EventKind = "kill"
	EventStop      EventKind = "stop"
	EventStart     EventKind = "start"
	EventDrain     EventKind = "drain"
	EventAdvertise EventKind = "advertise"
	EventFlap      EventKind = "flap"
)

// EventKinds returns all kinds of events, in the order of the table. A backend has an entry for
// each: how it applies events of the kind, or why it cannot.
func EventKinds() []EventKind {
	kinds := make([]EventKind, len(eventKinds))
	for i, k := range eventKinds {
		kinds[i] = k.kind
	}
	return kinds
}

// Kind returns the kind of the event; empty where none is given.
func (e Event) Kind() EventKind {
	for _, k := range eventKinds {
		if k.given(e) {
			return k.kind
		}
	}
	return ""
}

// LinkSet is a link and its new shape.
type LinkSet struct {
	// Link is the link's name.
	Link  string `yaml:"link"`
	Shape `yaml:",inline"`
}

// Port is an interface of a node.
type Port struct {
	// Node is the node's name.
	Node string `yaml:"node"`
	// Interface is the node's interface.
	Interface string `yaml:"interface"`
}

// Direction is a direction at an interface, as its node sees it.
type Direction string

// The directions. An empty one means Both.
const (
	Out  Direction = "out"
	In   Direction = "in"
	Both Direction = "both"
)

// Has reports whether d includes the direction one, which is Out or In.
func (d Direction) Has(one Direction) bool { return d == "" || d == Both || d == one }

// Hole is a black hole at an interface: it drops what the node sends (out), what is sent to the
// node (in), or both.
type Hole struct {
	// Node is the node's name.
	Node string `yaml:"node"`
	// Interface is the node's interface.
	Interface string `yaml:"interface"`
	// Direction is which packets are dropped, as the node sees them: out, in or both. Default:
	// both. Example: in
	Direction Direction `yaml:"direction,omitempty"`
}

// Port returns the interface of the black hole.
func (h Hole) Port() Port { return Port{h.Node, h.Interface} }

// Daemon names a process that the lab runs on a node.
type Daemon struct {
	// Node is the node's name.
	Node string `yaml:"node"`
	// Role is the daemon's name: asbr, edge, reflector, router, serve or exec.
	Role string `yaml:"role"`
}

// Drain takes a border router out of service cleanly.
type Drain struct {
	// Node is the border router.
	Node string `yaml:"node"`
	// Wait is how long others have to move to other paths. Default: 5s. Example: 2s
	Wait time.Duration `yaml:"wait,omitempty"`
}

// Advertise makes a router originate prefixes, which it advertises to all its neighbors. It
// forwards along its other routes as before.
type Advertise struct {
	// Node is the name of a node with a router.
	Node string `yaml:"node"`
	// Prefixes are the destinations.
	Prefixes []netip.Prefix `yaml:"prefixes"`
	// ASPath is the AS path of the routes behind the router's own number, the nearest AS first.
	// Default: none, as of the router's own networks. Example: [65000, 65003]
	ASPath []uint32 `yaml:"as_path,omitempty"`
}

// Flap is a repeated failure: of an interface, which is down for half of each period, or of the BGP
// session with a neighbor, whose connection is reset.
type Flap struct {
	// Node is the node's name.
	Node string `yaml:"node"`
	// Interface is the node's interface, which goes down for half the time. Exclusive with
	// neighbor.
	// Example: link-a
	Interface string `yaml:"interface,omitempty"`
	// Neighbor is the name of a node that Node has a BGP session with, whose connection is
	// reset. Exclusive with interface.
	Neighbor string `yaml:"neighbor,omitempty"`
	// Times is the number of failures.
	Times int `yaml:"times"`
	// Every is the period.
	Every time.Duration `yaml:"every"`
	// Quick is the number of failures in a quick pass. Default: times.
	Quick int `yaml:"quick,omitempty"`
}

// Count returns the number of failures.
func (f Flap) Count(quick bool) int {
	if quick && f.Quick > 0 {
		return f.Quick
	}
	return f.Times
}

// RoleExec is the role of a node's Exec.
const RoleExec = "exec"

// Roles are the names of all daemons that a node can run.
func Roles() []string { return append(role.Names(), RoleExec) }

// Runs reports whether the node runs the named daemon.
func (n *Node) Runs(daemon string) bool {
	if daemon == RoleExec {
		return n.Exec != ""
	}
	d, ok := role.Named(daemon)
	return ok && d.In(&n.Sections) != nil
}

// Span returns the time from the first to the last failure of the event, which is 0 except for a
// flap.
func (e Event) Span(quick bool) time.Duration {
	if e.Flap == nil {
		return 0
	}
	return time.Duration(e.Flap.Count(quick)-1) * e.Flap.Every
}

// last returns how long after the traffic's EventAt the event is over.
func (e Event) last(quick bool) time.Duration {
	if e.Flap != nil {
		return e.After + time.Duration(e.Flap.Count(quick))*e.Flap.Every
	}
	return e.After
}

// HasEvents reports whether any case has events.
func (e *Experiment) HasEvents() bool {
	return slices.ContainsFunc(e.Cases, func(c Case) bool { return len(c.Events) > 0 })
}

// Ends reports whether the event ends the daemon.
func (e Event) Ends(d Daemon) bool {
	return e.Kill != nil && *e.Kill == d || e.Stop != nil && *e.Stop == d
}

// CheckEvents returns a fault for each event of the cases that a backend refuses with a reason.
func (s *Spec) CheckEvents(refuse func(Event) (why string)) fault.List {
	var faults fault.List
	if s.Experiment == nil {
		return nil
	}
	for i, c := range s.Experiment.Cases {
		for j, x := range c.Events {
			if why := refuse(x); why != "" {
				faults.Add(index(index("experiment.cases", i)+".events", j)+"."+string(x.Kind()), "%s", why)
			}
		}
	}
	return faults
}
