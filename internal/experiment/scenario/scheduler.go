package scenario

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/gateway/sched"
)

// SchedulerOptions are the parameters of a connection's scheduler. Zero values are the defaults of
// package sched.
type SchedulerOptions struct {
	// Beta is the hysteresis of ecf, 0 to 1. Default: 0.25. Example: 0.25
	Beta float64 `yaml:"beta,omitempty"`
	// Overtaken is the reordering in packets that dqj stays below (paper D, section 3.2).
	// Default: 3. Example: 3
	Overtaken int `yaml:"overtaken,omitempty"`
	// Own makes dqj count the packets that follow on the jittery path itself as well (paper D,
	// equation 4 as printed). Default: false. Example: true
	Own *bool `yaml:"own,omitempty"`
	// Ratio is the number of consecutive segments that the scheduler ratio sends on each path,
	// in the order of the transport's links: "3:1". If empty, it is 1 for every path. Example:
	// "3:1"
	Ratio string `yaml:"ratio,omitempty"`
}

// maxRatio bounds the number of consecutive segments on one path.
const maxRatio = 10_000

// With returns the options after those set in over have replaced them.
func (o SchedulerOptions) With(over SchedulerOptions) SchedulerOptions {
	o.Beta = cmp.Or(over.Beta, o.Beta)
	o.Overtaken = cmp.Or(over.Overtaken, o.Overtaken)
	o.Own = cmp.Or(over.Own, o.Own)
	o.Ratio = cmp.Or(over.Ratio, o.Ratio)
	return o
}

// Options returns the options in the form of package sched.
func (o SchedulerOptions) Options() sched.Options {
	return sched.Options{Beta: o.Beta, Overtaken: o.Overtaken, Own: o.Own != nil && *o.Own}
}

// Ratios returns the values of Ratio; nil if it is empty or malformed.
func (o SchedulerOptions) Ratios() []int {
	list, err := o.ratios()
	if err != nil {
		return nil
	}
	return list
}

func (o SchedulerOptions) ratios() ([]int, error) {
	if o.Ratio == "" {
		return nil, nil
	}
	var list []int
	for text := range strings.SplitSeq(o.Ratio, ":") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxRatio {
			return nil, fmt.Errorf("must be numbers from 1 to %d like 3:1, one for each link, got %q", maxRatio, o.Ratio)
		}
		list = append(list, n)
	}
	return list, nil
}

// Set returns the names of the parameters that are set.
func (o SchedulerOptions) Set() []string {
	var names []string
	for _, p := range []struct {
		name string
		set  bool
	}{
		{sched.ParameterBeta, o.Beta != 0}, {sched.ParameterOvertaken, o.Overtaken != 0},
		{sched.ParameterOwn, o.Own != nil}, {sched.ParameterRatio, o.Ratio != ""},
	} {
		if p.set {
			names = append(names, p.name)
		}
	}
	return names
}

// Check returns the options that are out of range.
func (o SchedulerOptions) Check() fault.List {
	faults := o.Options().Check()
	if _, err := o.ratios(); err != nil {
		faults.Add(sched.ParameterRatio, "%v", err)
	}
	return faults
}

// foreign returns an option that is set but has no effect with that scheduler and number of paths,
// and why; the name is empty if all have an effect.
func (o SchedulerOptions) foreign(scheduler string, paths int) (name, why string) {
	scheduler = cmp.Or(scheduler, sched.Default)
	for _, name := range o.Set() {
		if !slices.Contains(sched.ParametersOf(scheduler), name) {
			return name, fmt.Sprintf("is not a parameter of scheduler %s", scheduler)
		}
	}
	if list := o.Ratios(); list != nil && len(list) != paths {
		return sched.ParameterRatio, fmt.Sprintf("must have one number for each of the %d links, got %q", paths, o.Ratio)
	}
	return "", ""
}

// WithSchedulers returns the scenario with each scheduler replaced by what instead returns for it.
// The scenario itself is not changed.
func (s *Spec) WithSchedulers(instead func(name string) string) *Spec {
	if s.Experiment == nil {
		return s
	}
	e := *s.Experiment
	e.Transports = maps.Clone(e.Transports)
	for name, t := range e.Transports {
		if t != nil {
			t := *t
			t.Scheduler = instead(t.Scheduler)
			e.Transports[name] = &t
		}
	}
	e.Cases = slices.Clone(e.Cases)
	for i := range e.Cases {
		c := &e.Cases[i].Settings
		c.Scheduler = instead(c.Scheduler)
	}
	same := *s
	same.Experiment = &e
	return &same
}
