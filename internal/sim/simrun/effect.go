package simrun

import (
	"time"

	"github.com/tabane/tabane/internal/experiment/cell"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/sim"
)

// effect is how the simulator applies events of one kind.
type effect struct {
	// refuse returns why the simulator does not support the event, or "" if it does.
	refuse func(spec *scenario.Spec, x scenario.Event) string
	// touched returns the directions of links that an event changes.
	touched func(b *builder, x scenario.Event) []cell.Hop
	// changes calls add for each change of the event to one of these directions; after is
	// relative to the time of the event.
	changes func(b *builder, x scenario.Event, h cell.Hop, add func(after time.Duration, change sim.Change))
}

// effects maps every kind of event to its effect.
var effects = map[scenario.EventKind]effect{
	scenario.EventSet: {
		refuse:  func(*scenario.Spec, scenario.Event) string { return "" },
		touched: func(b *builder, x scenario.Event) []cell.Hop { return b.cells.Across(x.Set.Link) },
		changes: func(b *builder, x scenario.Event, h cell.Hop, add func(time.Duration, sim.Change)) {
			profile := cell.Profile(b.spec, x.Set.Shape, h)
			add(0, sim.Change{Change: profile.Whole()})
		},
	},
	scenario.EventDown:      ofPort(func(x scenario.Event) scenario.Port { return *x.Down }, sim.Change{Down: true}),
	scenario.EventUp:        ofPort(func(x scenario.Event) scenario.Port { return *x.Up }, sim.Change{Up: true}),
	scenario.EventClear:     ofPort(func(x scenario.Event) scenario.Port { return *x.Clear }, sim.Change{Up: true}),
	scenario.EventBlackhole: blackhole(),
	scenario.EventKill:      ofDaemon(),
	scenario.EventStop:      ofDaemon(),
	scenario.EventStart:     ofDaemon(),
	scenario.EventDrain:     ofDaemon(),
	scenario.EventAdvertise: ofDaemon(),
	scenario.EventFlap:      flap(),
}

// ofPort returns an effect that applies a change to both directions of the link at a port.
func ofPort(port func(scenario.Event) scenario.Port, change sim.Change) effect {
	return effect{
		refuse: func(spec *scenario.Spec, x scenario.Event) string {
			if l, _, _ := wire(spec, port(x)); l == "" {
				return "the simulator takes down wires only, and this is a port of a switch: it needs a lab"
			}
			return ""
		},
		touched: func(b *builder, x scenario.Event) []cell.Hop {
			_, out, in := wire(b.spec, port(x))
			return []cell.Hop{out, in}
		},
		changes: func(_ *builder, _ scenario.Event, _ cell.Hop, add func(time.Duration, sim.Change)) { add(0, change) },
	}
}

// ofDaemon returns the effect of events that need a daemon, which only a lab has.
func ofDaemon() effect {
	return effect{refuse: func(*scenario.Spec, scenario.Event) string {
		return "the simulator runs no daemons: this needs a lab"
	}}
}

func blackhole() effect {
	e := ofPort(func(x scenario.Event) scenario.Port { return x.Blackhole.Port() }, sim.Change{Down: true})
	both := e.touched
	e.touched = func(b *builder, x scenario.Event) []cell.Hop {
		hops := both(b, x)
		switch d := x.Blackhole.Direction; {
		case !d.Has(scenario.In):
			return hops[:1]
		case !d.Has(scenario.Out):
			return hops[1:]
		}
		return hops
	}
	return e
}

func flap() effect {
	e := ofPort(func(x scenario.Event) scenario.Port {
		return scenario.Port{Node: x.Flap.Node, Interface: x.Flap.Interface}
	}, sim.Change{})
	port := e.refuse
	e.refuse = func(spec *scenario.Spec, x scenario.Event) string {
		if x.Flap.Neighbor != "" {
			return "the simulator has no BGP sessions: this needs a lab"
		}
		return port(spec, x)
	}
	e.changes = func(b *builder, x scenario.Event, _ cell.Hop, add func(time.Duration, sim.Change)) {
		for i := range x.Flap.Count(b.quick) {
			begin := time.Duration(i) * x.Flap.Every
			add(begin, sim.Change{Down: true})
			add(begin+x.Flap.Every/2, sim.Change{Up: true})
		}
	}
	return e
}
