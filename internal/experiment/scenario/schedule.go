package scenario

import (
	"maps"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/result"
)

// Scheduled returns the names of the links that have a schedule, sorted.
func (s *Spec) Scheduled() []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(s.Links)) {
		if l := s.Links[name]; l != nil && len(l.Schedule) > 0 {
			names = append(names, name)
		}
	}
	return names
}

// schedule checks a link's schedule against the link's shape in every case.
func (c *checker) schedule(path string, name string, l *Link) {
	if len(l.Schedule) == 0 {
		return
	}
	where := fault.Join(path, "schedule")
	e := c.spec.Experiment
	if e == nil || !e.Delivers() {
		c.Add(where, "has no effect: it starts with a delivery, and there is none")
		return
	}
	wrong := l.Schedule.Check(l.Shape.Profiles())
	c.Merge(where, wrong)
	for i, step := range l.Schedule {
		where := index(where, i) + ".at"
		if step.At >= 0 && step.At < earliest {
			c.Add(where, "must be at least %s: before, connections and subflows are still being established; got %s", earliest, step.At)
		}
		for _, traffic := range e.TrafficNames() {
			if t := e.Traffic[traffic]; t != nil && t.Duration > 0 && step.At >= t.Duration {
				c.Add(where, "must be before traffic %q ends, after %s, got %s", traffic, t.Duration, step.At)
			}
		}
		for _, k := range e.Cases {
			if k.Duration > 0 && step.At >= k.Duration {
				c.Add(where, "must be before a delivery of case %q ends, after %s, got %s", k.Name, k.Duration, step.At)
			}
		}
	}
	for i, k := range e.Cases {
		path := index("experiment.cases", i)
		if shape, own := k.Links[name]; own && len(wrong) == 0 {
			for _, f := range l.Schedule.Check(shape.Profiles()) {
				c.Add(at(path+".links", name), "conflicts with the link's schedule: %s", f.Error())
			}
		}
		for j, x := range k.Events {
			if x.Set != nil && x.Set.Link == name {
				c.Add(index(path+".events", j)+".set.link", "link %q has a schedule, which sets its shape", name)
			}
		}
	}
}

// ToClient returns the direction of the link on a shortest path from the server; Both if its two
// ends are equally far from the server.
func (s *Spec) ToClient(name string) linkmodel.Direction {
	l := s.Links[name]
	if l == nil || len(l.Ends) != 2 {
		return linkmodel.Both
	}
	far := s.distances(s.Experiment.Server)
	switch first, second := far[l.Ends[0].Node], far[l.Ends[1].Node]; {
	case first < second:
		return linkmodel.Forward
	case second < first:
		return linkmodel.Backward
	}
	return linkmodel.Both
}

// distances returns the number of links between a node and each node that it reaches.
func (s *Spec) distances(from string) map[string]int {
	far := map[string]int{from: 0}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		for _, l := range s.Links {
			if l == nil || !slices.ContainsFunc(l.Ends, func(e End) bool { return e.Node == queue[0] }) {
				continue
			}
			for _, e := range l.Ends {
				if _, known := far[e.Node]; !known {
					far[e.Node] = far[queue[0]] + 1
					queue = append(queue, e.Node)
				}
			}
		}
	}
	return far
}

// step is a change of a link's shape.
type step struct {
	at   time.Duration
	link string
	// shape replaces the link's shape; if it is nil, change applies to direction.
	shape     *Shape
	direction linkmodel.Direction
	change    linkmodel.Change
	// event is the index of the case's event, or result.EventSchedule.
	event int
}

// steps returns the changes of links in a run by time: those of the schedules and of the case's
// events. Every event has a step, even if it changes no link.
func (s *Spec) steps(c Case, t *Traffic) []step {
	var list []step
	for _, name := range s.Scheduled() {
		for _, x := range s.Links[name].Schedule {
			list = append(list, step{at: x.At, link: name, direction: x.Direction, change: x.Change, event: result.EventSchedule})
		}
	}
	for i, x := range c.Events {
		e := step{at: t.EventAt + x.After, event: i}
		if x.Set != nil {
			e.link, e.shape = x.Set.Link, &x.Set.Shape
		}
		list = append(list, e)
	}
	slices.SortStableFunc(list, func(a, b step) int { return int(a.at - b.at) })
	return list
}

// linkState is the state of the links over time, in each direction.
type linkState struct {
	spec              *Spec
	forward, backward map[string]linkmodel.Profile
	upload            bool // the data goes from the client to the server
}

func (s *Spec) linkState(c Case, links []string) *linkState {
	k := &linkState{spec: s, forward: map[string]linkmodel.Profile{}, backward: map[string]linkmodel.Profile{}}
	for _, name := range links {
		k.forward[name], k.backward[name] = s.ShapeIn(c, name).Profiles()
	}
	return k
}

func (k *linkState) apply(x step) {
	if _, followed := k.forward[x.link]; !followed {
		return
	}
	if x.shape != nil {
		k.forward[x.link], k.backward[x.link] = x.shape.Profiles()
		return
	}
	if x.direction.Has(linkmodel.Forward) {
		k.forward[x.link] = k.forward[x.link].With(x.change)
	}
	if x.direction.Has(linkmodel.Backward) {
		k.backward[x.link] = k.backward[x.link].With(x.change)
	}
}

// rates returns the rates in the direction of the data by link; 0 is unlimited.
func (k *linkState) rates() map[string]unit.Bandwidth {
	rates := map[string]unit.Bandwidth{}
	for name := range k.forward {
		forward, backward := k.forward[name].Rate, k.backward[name].Rate
		if k.upload {
			forward, backward = backward, forward
		}
		switch k.spec.ToClient(name) {
		case linkmodel.Forward:
			rates[name] = forward
		case linkmodel.Backward:
			rates[name] = backward
		default:
			rates[name] = unit.Bandwidth(result.Lesser(float64(forward), float64(backward)))
		}
	}
	return rates
}
