package simrun

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/cc"
	"github.com/tabane/tabane/internal/channel"
	"github.com/tabane/tabane/internal/fault"
	"github.com/tabane/tabane/internal/scenario"
	"github.com/tabane/tabane/internal/sched"
	"github.com/tabane/tabane/internal/unit"
)

// Parameter is something of a scenario that a sweep can set.
type Parameter struct {
	// Name is "rbuf", or "LINK.delay" where it is each link's.
	Name string
	// Form is how its values are written.
	Form string
	// What says what it is.
	What string
	// set gives a scenario of one case the value; link is empty where the parameter is not a link's.
	set func(s *scenario.Spec, link, value string) error
}

// none is how a limit is written that there is not.
const none = "unlimited"

// parameters are what sweeps can set, those of links first.
var parameters = []Parameter{
	ofLink("rate", "5Mbit/s or unlimited", "rate of the link", func(s *scenario.Shape, v string) error {
		return limit(&s.Rate, v, unit.ParseBandwidth)
	}),
	ofLink("delay", "20ms", "delay of the link, one way", func(s *scenario.Shape, v string) (err error) {
		s.Delay, err = time.ParseDuration(v)
		return err
	}),
	ofLink("jitter", "5ms", "jitter of the link, uniform", func(s *scenario.Shape, v string) error {
		amount, err := time.ParseDuration(v)
		s.Jitter = nil
		if amount != 0 {
			s.Jitter = &channel.Jitter{Kind: channel.Uniform, Amount: amount}
		}
		return err
	}),
	ofLink("loss", "0.001 or 1e-3", "probability that a frame is lost towards the client", nil),
	ofLink("queue", "50ms", "how long a packet may wait at the link", func(s *scenario.Shape, v string) (err error) {
		s.Buffer = nil
		s.Queue, err = time.ParseDuration(v)
		return err
	}),
	ofLink("packets", "100", "how many packets may wait at the link", func(s *scenario.Shape, v string) error {
		n, err := number(v)
		s.Queue, s.Buffer = 0, &channel.Queue{Limit: channel.Limit{Packets: n}}
		return err
	}),
	ofConnection("scheduler", strings.Join(sched.Names(), ", "), "scheduler of MPTCP", func(s *scenario.Settings, v string) error {
		s.Scheduler = v
		return nil
	}),
	ofConnection(sched.ParameterBeta, "0.25", "hysteresis of scheduler ecf", func(s *scenario.Settings, v string) (err error) {
		if s.SchedulerOptions.Beta, err = strconv.ParseFloat(v, 64); err != nil || s.SchedulerOptions.Beta == 0 {
			return fmt.Errorf("want a number > 0 like 0.25, got %q", v)
		}
		return nil
	}),
	ofConnection(sched.ParameterOvertaken, "3", "packets that must not overtake another, for scheduler dqj", func(s *scenario.Settings, v string) (err error) {
		s.SchedulerOptions.Overtaken, err = number(v)
		return err
	}),
	ofConnection(sched.ParameterOwn, "true or false", "whether dqj counts packets of the jittery path itself", func(s *scenario.Settings, v string) error {
		return truth(&s.SchedulerOptions.Own, v)
	}),
	ofConnection(sched.ParameterRatio, "3:1", "segments in succession on each path, for scheduler ratio", func(s *scenario.Settings, v string) error {
		s.SchedulerOptions.Ratio = v
		return nil
	}),
	ofConnection("congestion", strings.Join(cc.Names(), ", "), "congestion control", func(s *scenario.Settings, v string) error {
		s.Congestion = v
		return nil
	}),
	ofConnection("window", "53.6kB or unlimited", "most that a subflow may have in flight", func(s *scenario.Settings, v string) error {
		return limit(&s.Window, v, unit.ParseSize)
	}),
	ofConnection("rbuf", "260kB or unlimited", "most that is sent and not acknowledged at the data level (paper B's rule)", func(s *scenario.Settings, v string) error {
		return limit(&s.RBuf, v, unit.ParseSize)
	}),
	ofConnection("receive_buffer", "260kB or unlimited", "the receiver's buffer, which it advertises", func(s *scenario.Settings, v string) error {
		return limit(&s.ReceiveBuffer, v, unit.ParseSize)
	}),
	ofConnection("segment", "1340", "payload of a full segment in bytes", func(s *scenario.Settings, v string) (err error) {
		s.Segment, err = number(v)
		return err
	}),
	ofConnection("initial_window", "10", "segments that a subflow begins with", func(s *scenario.Settings, v string) (err error) {
		s.InitialWindow, err = number(v)
		return err
	}),
	ofConnection("delayed_ack", "true or false", "acknowledge every other segment", func(s *scenario.Settings, v string) error {
		return truth(&s.DelayedACK, v)
	}),
	ofConnection("rack", "true or false", "find losses by time", func(s *scenario.Settings, v string) error {
		return truth(&s.RACK, v)
	}),
	{"min_rto", "200ms", "least retransmission timeout", func(s *scenario.Spec, _, v string) error {
		d, err := time.ParseDuration(v)
		for _, t := range s.Experiment.Transports {
			model := scenario.Model{}
			if t.Model != nil {
				model = *t.Model
			}
			model.MinRTO = d
			t.Model = &model
		}
		return err
	}},
	ofTraffic("duration", "30s", "how long the delivery lasts at most", func(t *scenario.Traffic, v string) (err error) {
		t.Duration, err = time.ParseDuration(v)
		if err == nil && t.Duration <= 0 {
			err = errors.New("must be > 0s")
		}
		return err
	}),
}

// linkParameter is what the names of parameters of links begin with in lists.
const linkParameter = "LINK."

// Parameters returns what sweeps can set.
func Parameters() []Parameter { return slices.Clone(parameters) }

func ofLink(name, form, what string, set func(*scenario.Shape, string) error) Parameter {
	return Parameter{linkParameter + name, form, what, func(s *scenario.Spec, link, value string) error {
		c := &s.Experiment.Cases[0]
		shape := s.ShapeIn(*c, link)
		if name == "loss" {
			if err := setLoss(s, link, &shape, value); err != nil {
				return err
			}
		} else if err := set(&shape, value); err != nil {
			return err
		}
		c.Links[link] = shape
		return nil
	}}
}

// setLoss lets a link lose what goes to the client, as paper B does; what comes back is not lost.
func setLoss(s *scenario.Spec, link string, shape *scenario.Shape, value string) error {
	p, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return errors.New("want a probability like 0.001 or 1e-3")
	}
	way := &shape.Forward
	if s.ToClient(link) == channel.Backward {
		way = &shape.Backward
	}
	shape.Loss = nil
	var change channel.Change
	if *way != nil {
		change = **way
	}
	change.Loss = nil
	if p != 0 {
		change.Loss = &channel.Loss{Kind: channel.Random, P: p}
	}
	*way = &change
	if change == (channel.Change{}) {
		*way = nil
	}
	return nil
}

func ofConnection(name, form, what string, set func(*scenario.Settings, string) error) Parameter {
	return Parameter{name, form, what, func(s *scenario.Spec, _, value string) error {
		if err := set(&s.Experiment.Cases[0].Settings, value); err != nil {
			return err
		}
		if value != none {
			return nil
		}
		// What a case says goes over a transport, but a limit that there is not says nothing.
		for _, t := range s.Experiment.Transports {
			if err := set(&t.Settings, value); err != nil {
				return err
			}
		}
		return nil
	}}
}

func ofTraffic(name, form, what string, set func(*scenario.Traffic, string) error) Parameter {
	return Parameter{name, form, what, func(s *scenario.Spec, _, value string) error {
		for _, t := range s.Experiment.Traffic {
			if err := set(t, value); err != nil {
				return err
			}
		}
		return nil
	}}
}

// limit reads a limit; "unlimited" is none.
func limit[T ~int64](to *T, value string, parse func(string) (T, error)) error {
	if value == none {
		*to = 0
		return nil
	}
	v, err := parse(value)
	if err != nil {
		return err
	}
	if v <= 0 {
		return fmt.Errorf("must be > 0, or %s, got %q", none, value)
	}
	*to = v
	return nil
}

func number(value string) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("want a whole number > 0, got %q", value)
	}
	return n, nil
}

func truth(to **bool, value string) error {
	if value != "true" && value != "false" {
		return fmt.Errorf("want true or false, got %q", value)
	}
	v := value == "true"
	*to = &v
	return nil
}

// Axis is a parameter of a grid and its values, as they are written.
type Axis struct {
	Name   string
	Values []string
	link   string
	set    func(s *scenario.Spec, link, value string) error
}

// ParseAxis reads "path2.delay=20ms,50ms". Errors are sentences for whoever wrote it.
func ParseAxis(spec *scenario.Spec, text string) (Axis, error) {
	name, list, ok := strings.Cut(text, "=")
	if !ok || name == "" || list == "" {
		return Axis{}, errors.New("want NAME=VALUE,VALUE..., like path2.delay=20ms,50ms")
	}
	a := Axis{Name: name, Values: strings.Split(list, ",")}
	for i, v := range a.Values {
		if v == "" {
			return Axis{}, errors.New("a value is empty")
		}
		if slices.Index(a.Values, v) < i {
			return Axis{}, fmt.Errorf("value %q is given twice", v)
		}
	}
	wanted := name
	if link, what, dotted := strings.Cut(name, "."); dotted {
		if _, there := spec.Links[link]; !there {
			return Axis{}, fmt.Errorf("the scenario has no link %q%s; it has %s", link, fault.Suggest(link, sortedLinks(spec)), strings.Join(sortedLinks(spec), ", "))
		}
		a.link, wanted = link, linkParameter+what
	}
	var known []string
	for _, p := range parameters {
		if p.Name == wanted {
			a.set = p.set
		}
		known = append(known, p.Name)
	}
	if a.set == nil {
		hint := strings.Replace(fault.Suggest(wanted, known), linkParameter, a.link+".", 1)
		if _, _, dotted := strings.Cut(name, "."); !dotted && hint == "" && slices.Contains(known, linkParameter+name) {
			hint = fmt.Sprintf(", did you mean %q?", sortedLinks(spec)[0]+"."+name)
		}
		return Axis{}, fmt.Errorf("there is no parameter %q%s; there are %s", name, hint, strings.Join(known, ", "))
	}
	return a, nil
}

func sortedLinks(spec *scenario.Spec) []string { return slices.Sorted(maps.Keys(spec.Links)) }

// at returns the scenario with one case and the values of a point of the grid; texts are as they are written on the axes.
func at(spec *scenario.Spec, c scenario.Case, axes []Axis, point []string) (*scenario.Spec, error) {
	s, e := *spec, *spec.Experiment
	s.Experiment = &e
	c.Links = maps.Clone(c.Links)
	if c.Links == nil {
		c.Links = map[string]scenario.Shape{}
	}
	e.Cases, e.Expect, e.Figures = []scenario.Case{c}, nil, nil
	e.Transports, e.Traffic = maps.Clone(e.Transports), maps.Clone(e.Traffic)
	for name, t := range e.Transports {
		copied := *t
		e.Transports[name] = &copied
	}
	for name, t := range e.Traffic {
		copied := *t
		e.Traffic[name] = &copied
	}
	for i, a := range axes {
		if err := a.set(&s, a.link, point[i]); err != nil {
			return nil, fmt.Errorf("set %s to %q: %w", a.Name, point[i], err)
		}
	}
	err := s.Check().Err()
	if err == nil {
		err = Check(&s).Err()
	}
	if err != nil {
		var texts []string
		for i, a := range axes {
			texts = append(texts, a.Name+"="+point[i])
		}
		return nil, fmt.Errorf("set %s: %w", strings.Join(texts, " "), err)
	}
	return &s, nil
}
