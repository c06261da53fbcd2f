package scenario

import (
	"time"

	"github.com/tabane/tabane/internal/role"
)

// Event is something that happens while traffic runs. Exactly one of its kinds is set.
//
// The lab undoes after each run what its events have done; a case need not end as it began.
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
	// Flap repeats a failure and its end.
	Flap *Flap `yaml:"flap,omitempty"`
}

// LinkSet is a link and what it does.
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

// The directions. Both is what an empty one means.
const (
	Out  Direction = "out"
	In   Direction = "in"
	Both Direction = "both"
)

// Has reports whether d includes the one direction.
func (d Direction) Has(one Direction) bool { return d == "" || d == Both || d == one }

// Hole is where packets vanish: what the node sends (out), what is sent to it (in), or both.
type Hole struct {
	// Node is the node's name.
	Node string `yaml:"node"`
	// Interface is the node's interface.
	Interface string `yaml:"interface"`
	// Direction is which packets are dropped, as the node sees them: out, in or both. Default:
	// both. Example: in
	Direction Direction `yaml:"direction,omitempty"`
}

// Port is the interface that the hole is at.
func (h Hole) Port() Port { return Port{h.Node, h.Interface} }

// Daemon is one of the processes that the lab runs on a node.
type Daemon struct {
	// Node is the node's name.
	Node string `yaml:"node"`
	// Role is the daemon's name: asbr, edge, reflector, router or serve.
	Role string `yaml:"role"`
}

// Drain is a border router's clean way out of service.
type Drain struct {
	// Node is the border router.
	Node string `yaml:"node"`
	// Wait is how long others have to move to other paths. Default: 5s. Example: 2s
	Wait time.Duration `yaml:"wait,omitempty"`
}

// Flap is a failure that repeats: of an interface, which goes down for half the time, or of the BGP session with a
// neighbor, whose connection is cut.
type Flap struct {
	// Node is the node's name.
	Node string `yaml:"node"`
	// Interface is the node's interface, which goes down for half the time. Exclusive with
	// neighbor.
	Interface string `yaml:"interface,omitempty"`
	// Neighbor is the name of a node that Node has a BGP session with, whose connection is reset.
	// Exclusive with interface.
	Neighbor string `yaml:"neighbor,omitempty"`
	// Times is how often it happens.
	Times int `yaml:"times"`
	// Every is the period.
	Every time.Duration `yaml:"every"`
	// Quick is how often it happens in a quick pass. Default: times.
	Quick int `yaml:"quick,omitempty"`
}

// Repeats is how many times it flaps.
func (f Flap) Repeats(quick bool) int {
	if quick && f.Quick > 0 {
		return f.Quick
	}
	return f.Times
}

// Runs reports whether the node runs the daemon of that name.
func (n *Node) Runs(daemon string) bool {
	d, ok := role.Named(daemon)
	return ok && d.In(&n.Sections) != nil
}

// Lasts is how long after its begin the event happens for the last time: a flap repeats.
func (e Event) Lasts(quick bool) time.Duration {
	if e.Flap == nil {
		return 0
	}
	return time.Duration(e.Flap.Repeats(quick)-1) * e.Flap.Every
}

// last is how long after the traffic's EventAt the event is over.
func (e Event) last(quick bool) time.Duration {
	if e.Flap != nil {
		return e.After + time.Duration(e.Flap.Repeats(quick))*e.Flap.Every
	}
	return e.After
}

// Eventful reports whether anything happens while traffic runs.
func (e *Experiment) Eventful() bool {
	for _, c := range e.Cases {
		if len(c.Events) > 0 {
			return true
		}
	}
	return false
}

// Ends reports whether the event ends the daemon.
func (e Event) Ends(d Daemon) bool {
	return e.Kill != nil && *e.Kill == d || e.Stop != nil && *e.Stop == d
}
