package scenario

// outages are the failures of a case that no event has ended yet: interfaces that are down, black
// holes, and daemons that are stopped.
type outages map[any]bool

// hole distinguishes a black hole at an interface from the interface being down.
type hole struct{ Port }

// apply applies an event, and reports whether it ended the last failure.
func (o outages) apply(e Event) (over bool) {
	var ended any
	switch {
	case e.Down != nil:
		o[*e.Down] = true
	case e.Blackhole != nil:
		o[hole{e.Blackhole.Port()}] = true
	case e.Kill != nil:
		o[*e.Kill] = true
	case e.Stop != nil:
		o[*e.Stop] = true
	case e.Drain != nil:
		o[Daemon{e.Drain.Node, "asbr"}] = true
	case e.Advertise != nil:
		o[e.Advertise] = true
	case e.Up != nil:
		ended = *e.Up
	case e.Clear != nil:
		ended = hole{*e.Clear}
	case e.Start != nil:
		ended = *e.Start
	}
	if ended == nil || !o[ended] {
		return false
	}
	delete(o, ended)
	return len(o) == 0
}
