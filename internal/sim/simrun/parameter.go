package simrun

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/field"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// Parameter is a value of a scenario that a sweep can set.
type Parameter struct {
	// Name is the name of the parameter: "rbuf", or "LINK.delay" for a parameter of each link.
	Name string
	// set sets the value in a scenario of one case. link is empty for parameters that do not
	// belong to a link.
	set func(s *scenario.Spec, link, value string) error
}

// linkParameter is the prefix of the names of link parameters in lists.
const linkParameter = "LINK."

// Parameters returns the parameters that a sweep can set: the keys of links, settings and models,
// and the duration of traffic. Names and values are written as in a scenario file.
func Parameters() []Parameter {
	var list []Parameter
	for _, path := range scenario.ShapePaths() {
		list = append(list, Parameter{linkParameter + path, func(s *scenario.Spec, link, value string) error {
			c := &s.Experiment.Cases[0]
			shape := s.ShapeIn(*c, link)
			if err := shape.Set(path, value); err != nil {
				return err
			}
			c.Links[link] = shape
			return nil
		}})
	}
	for _, path := range settingPaths {
		list = append(list, Parameter{path, func(s *scenario.Spec, _, value string) error { return setSetting(s, path, value) }})
	}
	for _, path := range modelPaths {
		list = append(list, Parameter{"model." + path, func(s *scenario.Spec, _, value string) error { return setModel(s, path, value) }})
	}
	return append(list, Parameter{"duration", setDuration})
}

var (
	// settingPaths are the settings that a case can have alone in the simulator, which always
	// paces.
	settingPaths = slices.DeleteFunc(field.Paths[scenario.Settings](), func(path string) bool {
		return slices.Contains([]string{"era", "pace", "lowat", "use", "recall", "begin"}, path)
	})
	modelPaths = field.Paths[scenario.Model]()
)

// setSetting sets a setting of the case, which overrides that of the transports. A case cannot
// override a limit with none, so "unlimited" is set for the transports too.
func setSetting(s *scenario.Spec, path, value string) error {
	settings := &s.Experiment.Cases[0].Settings
	if err := field.Set(settings, path, value); err != nil {
		return err
	}
	if value != field.Unlimited {
		if !slices.ContainsFunc(field.Assignments(settings), func(a string) bool { return strings.HasPrefix(a, path+"=") }) {
			return fmt.Errorf("must not be 0 or empty, got %q", value)
		}
		return nil
	}
	for _, t := range s.Experiment.Transports {
		if err := field.Set(&t.Settings, path, value); err != nil {
			return err
		}
	}
	return nil
}

func setModel(s *scenario.Spec, path, value string) error {
	for _, t := range s.Experiment.Transports {
		model := scenario.Model{}
		if t.Model != nil {
			model = *t.Model
		}
		if err := field.Set(&model, path, value); err != nil {
			return err
		}
		t.Model = &model
	}
	return nil
}

func setDuration(s *scenario.Spec, _, value string) error {
	for _, t := range s.Experiment.Traffic {
		if err := field.Set(t, "duration", value); err != nil {
			return err
		}
		if t.Duration <= 0 {
			return errors.New("must be > 0s")
		}
	}
	return nil
}

// Axis is a parameter of a grid and its values, as text.
type Axis struct {
	Name   string
	Values []string
	link   string
	set    func(s *scenario.Spec, link, value string) error
}

// ParseAxis parses an axis such as "path2.delay=20ms,50ms". Errors are worded for the command line.
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
	parameters := Parameters()
	known := make([]string, len(parameters))
	for i, p := range parameters {
		known[i] = p.Name
	}
	wanted := name
	if link, what, dotted := strings.Cut(name, "."); dotted {
		if _, there := spec.Links[link]; there {
			a.link, wanted = link, linkParameter+what
		} else if _, err := resolve(name, known); err != nil {
			return Axis{}, fmt.Errorf("the scenario has no link %q%s; it has %s", link, fault.Suggest(link, sortedLinks(spec)), strings.Join(sortedLinks(spec), ", "))
		}
	}
	resolved, err := resolve(wanted, known)
	if err != nil && a.link != "" {
		paths := scenario.ShapePaths()
		for i := range paths {
			paths[i] = a.link + "." + paths[i]
		}
		if hint := fault.Suggest(name, paths); hint != "" {
			return Axis{}, fmt.Errorf("unknown key %q%s", name, hint)
		}
	}
	if err != nil {
		if _, linked := resolve(linkParameter+name, known); a.link == "" && linked == nil {
			return Axis{}, fmt.Errorf("%w, did you mean %q?", err, sortedLinks(spec)[0]+"."+name)
		}
		return Axis{}, err
	}
	a.set = parameters[slices.Index(known, resolved)].set
	return a, nil
}

// resolve returns the full name of the parameter that name abbreviates. Names of link parameters
// begin with linkParameter.
func resolve(name string, known []string) (string, error) {
	rest, ofLink := strings.CutPrefix(name, linkParameter)
	var paths []string
	for _, k := range known {
		if path, is := strings.CutPrefix(k, linkParameter); is == ofLink {
			paths = append(paths, path)
		}
	}
	path, err := field.Resolve(rest, paths)
	if err == nil && ofLink {
		path = linkParameter + path
	}
	return path, err
}

func sortedLinks(spec *scenario.Spec) []string { return slices.Sorted(maps.Keys(spec.Links)) }

// at returns a scenario that has only the case c, with the values of a point of the grid applied.
// point[i] is the value of axes[i], as text.
func at(spec *scenario.Spec, c scenario.Case, axes []Axis, point []string) (*scenario.Spec, error) {
	one, err := spec.Select(scenario.Selection{Cases: []string{c.Name}})
	if err != nil {
		return nil, err
	}
	s, e := *one, *one.Experiment
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
	if err = s.Check().Err(); err == nil {
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
