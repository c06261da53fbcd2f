package scenario

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/result"
)

// Selection selects cells of an experiment by the names of their parts, in which * matches any
// text. An empty list selects all.
type Selection struct {
	// Cases are names of cases, in which * matches any text. Default: all. Example: [env1, env2]
	Cases []string `yaml:"cases,omitempty"`
	// Traffic are names of traffic. Default: all. Example: [bulk]
	Traffic []string `yaml:"traffic,omitempty"`
	// Transports are names of transports. Default: all. Example: [tcp, lia]
	Transports []string `yaml:"transports,omitempty"`
}

// Or returns the selection with the lists of another one in place of its empty ones.
func (l Selection) Or(other Selection) Selection {
	first := func(a, b []string) []string {
		if len(a) > 0 {
			return a
		}
		return b
	}
	return Selection{first(l.Cases, other.Cases), first(l.Traffic, other.Traffic), first(l.Transports, other.Transports)}
}

// quick checks the selection of a quick pass.
func (c *checker) quick(path string, e *Experiment) {
	var cases []string
	for _, k := range e.Cases {
		cases = append(cases, k.Name)
	}
	for _, l := range []struct {
		key             string
		patterns, names []string
	}{{"cases", e.Quick.Cases, cases}, {"traffic", e.Quick.Traffic, e.TrafficNames()}, {"transports", e.Quick.Transports, e.TransportNames()}} {
		for i, p := range l.patterns {
			if !slices.ContainsFunc(l.names, func(name string) bool { return matches(p, name) }) {
				c.Add(index(path+"."+l.key, i), "matches none of %s, got %q", strings.Join(l.names, ", "), p)
			}
		}
	}
}

// All reports whether all cells are selected.
func (l Selection) All() bool { return len(l.Cases)+len(l.Traffic)+len(l.Transports) == 0 }

// Select returns the scenario with only the selected cells. Expectations that need other cells are
// not judged, and figures of other cells are left out. The scenario itself is not changed. A
// pattern that matches nothing is an error.
func (s *Spec) Select(l Selection) (*Spec, error) {
	if l.All() || s.Experiment == nil {
		return s, nil
	}
	e := *s.Experiment
	e.Quick = Selection{} // it may name what is left out, and the choice is made
	var caseNames []string
	for _, c := range e.Cases {
		caseNames = append(caseNames, c.Name)
	}
	cases, err := choose("case", l.Cases, caseNames)
	if err != nil {
		return nil, err
	}
	kinds, err := choose("traffic", l.Traffic, e.TrafficNames())
	if err != nil {
		return nil, err
	}
	transports, err := choose("transport", l.Transports, e.TransportNames())
	if err != nil {
		return nil, err
	}
	e.Cases = slices.DeleteFunc(slices.Clone(e.Cases), func(c Case) bool { return !cases[c.Name] })
	for i := range e.Cases {
		e.Cases[i].Published = slices.DeleteFunc(slices.Clone(e.Cases[i].Published), func(p Published) bool {
			return p.Traffic != "" && !kinds[p.Traffic] || p.Transport != "" && !transports[p.Transport]
		})
		e.Cases[i].Rates = maps.Clone(e.Cases[i].Rates)
		maps.DeleteFunc(e.Cases[i].Rates, func(name string, _ unit.Bandwidth) bool { return !kinds[name] })
	}
	e.Traffic = only(e.Traffic, kinds)
	e.Transports = only(e.Transports, transports)
	if !e.HasEvents() {
		for name, t := range e.Traffic {
			quiet := *t
			quiet.EventAt = 0
			e.Traffic[name] = &quiet
		}
	}
	if !transports[e.Baseline] {
		e.Baseline = ""
	}
	if slices.ContainsFunc(e.BestOf, func(name string) bool { return !transports[name] }) {
		e.BestOf = nil
	}
	lacks := func(metric string) bool { return len(e.BestOf) == 0 && slices.Contains(sharesOfOthers, metric) }
	keys := e.Cells()
	e.Expect, e.notRun = nil, slices.Clone(e.notRun)
	for _, x := range s.Experiment.Expect {
		if x.evaluable(keys) && !lacks(x.Metric) && !lacks(x.Relative) {
			e.Expect = append(e.Expect, x)
		} else {
			e.notRun = append(e.notRun, x)
		}
	}
	e.Figures = nil
	for _, f := range s.Experiment.Figures {
		if f, ok := e.selectFigure(f, s.Experiment); ok && !slices.ContainsFunc(f.AllMetrics(), lacks) {
			e.Figures = append(e.Figures, f)
		}
	}
	same := *s
	same.Experiment = &e
	return &same, nil
}

// selectFigure returns a figure of all cells with those that were selected. It returns false if
// some that the figure needs are left out.
func (e *Experiment) selectFigure(f Figure, all *Experiment) (Figure, bool) {
	anyTraffic := f.Kind == FigureBars && f.Traffic == "" // that is selected
	if !anyTraffic {
		f.Traffic = f.TrafficOf(all)
	}
	f.Transports = slices.DeleteFunc(f.TransportsOf(all), func(name string) bool { _, left := e.Transports[name]; return !left })
	// Patterns that select none of what is left would be faults.
	hadCases := len(f.Cases) > 0
	f.Cases = slices.DeleteFunc(slices.Clone(f.Cases), func(pattern string) bool {
		return !slices.ContainsFunc(e.Cases, func(c Case) bool { return matches(pattern, c.Name) })
	})
	switch {
	case hadCases && len(f.Cases) == 0, len(f.Transports) == 0, !anyTraffic && e.Traffic[f.Traffic] == nil:
		return f, false
	case f.X != "" && !slices.ContainsFunc(e.Cases, f.Selects):
		return f, false
	case f.Bursts() && !slices.ContainsFunc(e.Cases, func(c Case) bool { return c.Name == f.Case }):
		return f, false
	}
	return f, true
}

// evaluable reports whether the expectation selects one of the cells, and whether all cells that
// these are compared with are among them.
func (x Expectation) evaluable(keys []result.CellKey) bool {
	found := false
	for _, k := range keys {
		if !x.needs(k) {
			continue
		}
		found = true
		if x.againstCell() && !slices.Contains(keys, x.against(k)) {
			return false
		}
	}
	return found
}

// choose returns the names that match one of the patterns, or all without patterns.
func choose(what string, patterns, names []string) (map[string]bool, error) {
	chosen := map[string]bool{}
	if len(patterns) == 0 {
		for _, name := range names {
			chosen[name] = true
		}
	}
	for _, pattern := range patterns {
		found := false
		for _, name := range names {
			if matches(pattern, name) {
				chosen[name], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("the scenario has no %s %q%s; it has %s", what, pattern, fault.Suggest(pattern, names), strings.Join(names, ", "))
		}
	}
	return chosen, nil
}

// only returns the entries of a map whose names are chosen.
func only[T any](all map[string]*T, chosen map[string]bool) map[string]*T {
	some := maps.Clone(all)
	maps.DeleteFunc(some, func(name string, _ *T) bool { return !chosen[name] })
	return some
}

// matches reports whether the name matches the pattern, in which * matches any text.
func matches(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == name
	}
	rest, ok := strings.CutPrefix(name, parts[0])
	if !ok {
		return false
	}
	for _, part := range parts[1 : len(parts)-1] {
		if _, rest, ok = strings.Cut(rest, part); !ok {
			return false
		}
	}
	return strings.HasSuffix(rest, parts[len(parts)-1])
}
