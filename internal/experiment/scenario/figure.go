package scenario

import (
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/experiment/result"
)

// Figure is a figure of the report, in addition to or instead of the bars of goodput.
type Figure struct {
	// Name is the name of the file, without extension.
	Name string `yaml:"name"`
	// Title is the heading.
	Title string `yaml:"title"`
	// Caption is the text below the figure.
	// Example: Mean of 10 trials.
	Caption string `yaml:"caption,omitempty"`
	// Kind is lines, a metric over a parameter of the cases; heat, a metric over two parameters of
	// the cases; bursts, the segments of one case over time; or bars, a metric by case and
	// transport with a panel for each traffic. Default: lines.
	Kind string `yaml:"kind,omitempty"`
	// Traffic selects a traffic. Default: the only one, or all of a figure of kind bars.
	// Example: bulk
	Traffic string `yaml:"traffic,omitempty"`

	// X is the parameter of cases along the axis.
	X string `yaml:"x,omitempty"`
	// Y is the parameter of cases along the other axis, of a figure of kind heat.
	// Example: rate
	Y string `yaml:"y,omitempty"`
	// Metric is drawn over X: the mean over the trials with its standard deviation.
	Metric string `yaml:"metric,omitempty"`
	// Metrics are several metrics in one figure, instead of metric.
	Metrics []string `yaml:"metrics,omitempty"`
	// Divide is what the values are divided by before they are drawn.
	Divide float64 `yaml:"divide,omitempty"`
	// Where selects cases whose parameters have these values.
	Where map[string]float64 `yaml:"where,omitempty"`
	// Transports selects transports; each has a line of its own. Default: all.
	Transports []string `yaml:"transports,omitempty"`
	// Log makes the axis of X logarithmic.
	Log bool `yaml:"log,omitempty"`
	// LogY makes the other axis logarithmic.
	// Example: true
	LogY bool `yaml:"log_y,omitempty"`
	// Without is the label beyond the end of the axis, for cases that do not have the parameter
	// X.
	Without string `yaml:"without,omitempty"`
	// Zero is the label before the start of a logarithmic axis, for cases whose X is 0.
	Zero string `yaml:"zero,omitempty"`

	// Case is the case that a figure of kind bursts shows, with the first trial of each
	// transport.
	Case string `yaml:"case,omitempty"`
	// From is the start of a figure of kind bursts. Default: 0s. Example: 1s
	From time.Duration `yaml:"from,omitempty"`
	// To is the end of a figure of kind bursts. Example: 2s
	To time.Duration `yaml:"to,omitempty"`

	// Cases selects cases of a figure of kind bars; * matches any text. Default: all. Example:
	// [env1, env2]
	Cases []string `yaml:"cases,omitempty"`

	// XLabel is the text at the axis of X.
	XLabel string `yaml:"x_label,omitempty"`
	// YLabel is the text at the other axis.
	YLabel string `yaml:"y_label,omitempty"`
	// References are published values, drawn lightly behind the measured ones.
	References []Reference `yaml:"references,omitempty"`
}

// Reference is a value to compare with: over the whole axis, or at one X of it.
type Reference struct {
	// Title is the text in the legend.
	Title string `yaml:"title"`
	// Y is the value; without Y it is a vertical line at X. Example: 90
	Y *float64 `yaml:"y,omitempty"`
	// X is where the value is drawn; without X it is a horizontal line. Example: 0.01
	X *float64 `yaml:"x,omitempty"`
}

// The kinds of figures.
const (
	// FigureLines draws metrics over a parameter of the cases, as lines with error bars.
	FigureLines = "lines"
	// FigureBursts draws what was released at one instant, over time, as impulses.
	FigureBursts = "bursts"
	// FigureHeat draws the medians of a metric over two parameters of the cases, as a heat map.
	FigureHeat = "heat"
	// FigureBars draws the means of a metric by case and transport, with their confidence
	// intervals, and compares the transports.
	FigureBars = "bars"
)

var figureKinds = []string{FigureLines, FigureHeat, FigureBursts, FigureBars}

// AllMetrics returns the metrics of a figure of kind FigureLines.
func (f *Figure) AllMetrics() []string {
	if f.Metric != "" {
		return []string{f.Metric}
	}
	return f.Metrics
}

// Bursts reports whether the figure is of kind FigureBursts.
func (f *Figure) Bursts() bool { return f.Kind == FigureBursts }

// TrafficOf returns the traffic that the figure shows.
func (f *Figure) TrafficOf(e *Experiment) string {
	if f.Traffic == "" {
		return e.TrafficNames()[0]
	}
	return f.Traffic
}

// TransportsOf returns the transports that the figure shows, in the order of results.
func (f *Figure) TransportsOf(e *Experiment) []string {
	names := e.TransportNames()
	if len(f.Transports) == 0 {
		return names
	}
	return slices.DeleteFunc(names, func(n string) bool { return !slices.Contains(f.Transports, n) })
}

// CasesOf returns the cases that a figure of kind FigureBars shows.
func (f *Figure) CasesOf(e *Experiment) []Case {
	if len(f.Cases) == 0 {
		return e.Cases
	}
	return slices.DeleteFunc(slices.Clone(e.Cases), func(c Case) bool {
		return !slices.ContainsFunc(f.Cases, func(pattern string) bool { return matches(pattern, c.Name) })
	})
}

// Selects reports whether a figure of kind FigureLines or FigureHeat shows the case: the case has
// the values of Where and the parameters of the axes, or the figure has a label for cases without
// X.
func (f *Figure) Selects(c Case) bool {
	for name, want := range f.Where {
		if got, ok := c.Parameters[name]; !ok || got != want {
			return false
		}
	}
	_, ok := c.Parameters[f.X]
	if f.Kind == FigureHeat {
		_, both := c.Parameters[f.Y]
		return ok && both
	}
	return ok || f.Without != ""
}

// DrawsBursts reports whether a figure shows the bursts of a run.
func (e *Experiment) DrawsBursts(k result.CellKey, trial int) bool {
	return trial == 0 && slices.ContainsFunc(e.Figures, func(f Figure) bool {
		return f.Bursts() && f.Case == k.Case && f.TrafficOf(e) == k.Traffic && slices.Contains(f.TransportsOf(e), k.Transport)
	})
}

// figures checks the figures of an experiment.
func (c *checker) figures(path string, e *Experiment) {
	taken := []string{"goodput", "routes"}
	for i, f := range e.Figures {
		path := index(path+".figures", i)
		switch {
		case !word.MatchString(f.Name):
			c.Add(path+".name", wantWord, f.Name)
		case slices.Contains(taken, f.Name) || strings.HasPrefix(f.Name, "goodput-") || strings.HasPrefix(f.Name, "course-") || strings.HasPrefix(f.Name, "series-"):
			c.Add(path+".name", "%q is another figure's name", f.Name)
		}
		taken = append(taken, f.Name)
		if f.Title == "" {
			c.Add(path+".title", "must say what the figure shows")
		}
		if f.Kind != "" && !slices.Contains(figureKinds, f.Kind) {
			c.Add(path+".kind", "must be one of %s, got %q", strings.Join(figureKinds, ", "), f.Kind)
			continue
		}
		if _, ok := e.Traffic[f.Traffic]; f.Traffic != "" && !ok {
			c.Add(path+".traffic", "traffic %q is not in traffic", f.Traffic)
		} else if f.Traffic == "" && len(e.Traffic) > 1 && f.Kind != FigureBars {
			c.Add(path+".traffic", "must be one of the traffic: %s", strings.Join(e.TrafficNames(), ", "))
		}
		for j, t := range f.Transports {
			if _, ok := e.Transports[t]; !ok {
				c.Add(index(path+".transports", j), "transport %q is not in transports", t)
			}
		}
		switch {
		case f.Bursts():
			c.burstFigure(path, e, f)
		case f.Kind == FigureHeat:
			c.heatFigure(path, e, f)
		case f.Kind == FigureBars:
			c.barFigure(path, e, f)
		default:
			c.onlyFor(path, FigureHeat, map[string]bool{"y": f.Y != ""})
			c.lineFigure(path, e, f)
		}
		for j, r := range f.References {
			where := index(path+".references", j)
			if r.Title == "" {
				c.Add(where+".title", "must say what it is")
			}
			switch {
			case r.Y == nil && (r.X == nil || f.Bursts()):
				c.Add(where+".y", "must be given, or x in a figure of kind %s", FigureLines)
			case r.Y != nil && (math.IsNaN(*r.Y) || math.IsInf(*r.Y, 0) || *r.Y <= 0 && f.LogY):
				c.Add(where+".y", "must be a finite number, > 0 on a logarithmic axis, got %v", *r.Y)
			}
			if r.X != nil && r.Y != nil && f.Bursts() {
				c.Add(where+".x", "is for figures of kind %s", FigureLines)
			}
		}
	}
}

func (c *checker) lineFigure(path string, e *Experiment, f Figure) {
	c.onlyFor(path, FigureBars, map[string]bool{"cases": f.Cases != nil})
	c.onlyFor(path, FigureBursts, map[string]bool{"case": f.Case != "", "from": f.From != 0, "to": f.To != 0})
	switch {
	case (f.Metric == "") == (len(f.Metrics) == 0):
		c.Add(path, "must have either metric or metrics")
	default:
		for _, m := range f.AllMetrics() {
			result.CheckMetric(&c.List, path, m)
		}
	}
	if f.Divide < 0 || math.IsInf(f.Divide, 0) || math.IsNaN(f.Divide) {
		c.Add(path+".divide", "must be > 0, got %v", f.Divide)
	}
	parameters := map[string]bool{}
	for _, k := range e.Cases {
		for name := range k.Parameters {
			parameters[name] = true
		}
	}
	if f.X == "" || !parameters[f.X] {
		c.Add(path+".x", "must be a parameter of cases, got %q", f.X)
		return
	}
	for name := range f.Where {
		if !parameters[name] {
			c.Add(at(path+".where", name), "is not a parameter of any case")
		}
	}
	if f.Zero != "" && !f.Log {
		c.Add(path+".zero", "is for a logarithmic axis")
	}
	shown := false
	for i, k := range e.Cases {
		if !f.Selects(k) {
			continue
		}
		shown = true
		switch x, ok := k.Parameters[f.X]; {
		case !ok || !f.Log || x > 0 || x == 0 && f.Zero != "":
		case x == 0:
			c.Add(index("experiment.cases", i)+".parameters."+f.X, "is 0, which the logarithmic axis of figure %q cannot show: give the figure a label zero", f.Name)
		default:
			c.Add(index("experiment.cases", i)+".parameters."+f.X, "must not be negative on the logarithmic axis of figure %q, got %v", f.Name, x)
		}
	}
	if !shown {
		c.Add(path, "selects no case")
	}
}

func (c *checker) heatFigure(path string, e *Experiment, f Figure) {
	c.onlyFor(path, FigureBars, map[string]bool{"cases": f.Cases != nil})
	c.onlyFor(path, FigureBursts, map[string]bool{"case": f.Case != "", "from": f.From != 0, "to": f.To != 0})
	c.onlyFor(path, FigureLines, map[string]bool{
		"metrics": f.Metrics != nil, "log": f.Log, "log_y": f.LogY, "without": f.Without != "", "zero": f.Zero != "", "references": f.References != nil,
	})
	result.CheckMetric(&c.List, path+".metric", f.Metric)
	if f.Divide < 0 || math.IsInf(f.Divide, 0) || math.IsNaN(f.Divide) {
		c.Add(path+".divide", "must be > 0, got %v", f.Divide)
	}
	if n := len(f.TransportsOf(e)); n != 1 {
		c.Add(path+".transports", "must be one, got %d", n)
	}
	shown := map[[2]float64]string{}
	for _, k := range e.Cases {
		if !f.Selects(k) {
			continue
		}
		at := [2]float64{k.Parameters[f.X], k.Parameters[f.Y]}
		if other, taken := shown[at]; taken {
			c.Add(path, "shows cases %q and %q at the same place", other, k.Name)
		}
		shown[at] = k.Name
	}
	if len(shown) == 0 {
		c.Add(path, "selects no case: x and y must be parameters of cases")
	}
}

func (c *checker) barFigure(path string, e *Experiment, f Figure) {
	c.onlyFor(path, FigureBursts, map[string]bool{"case": f.Case != "", "from": f.From != 0, "to": f.To != 0})
	c.onlyFor(path, FigureLines, map[string]bool{
		"x": f.X != "", "y": f.Y != "", "metrics": f.Metrics != nil, "where": f.Where != nil, "log": f.Log, "log_y": f.LogY, "without": f.Without != "",
		"zero": f.Zero != "", "references": f.References != nil,
	})
	for i, pattern := range f.Cases {
		if !slices.ContainsFunc(e.Cases, func(k Case) bool { return matches(pattern, k.Name) }) {
			c.Add(index(path+".cases", i), "case %q is not in cases", pattern)
		}
	}
	c.expectedMetric(path+".metric", e, Expectation{Traffic: f.Traffic}, f.Metric)
	if f.Divide < 0 || math.IsInf(f.Divide, 0) || math.IsNaN(f.Divide) {
		c.Add(path+".divide", "must be > 0, got %v", f.Divide)
	}
}

func (c *checker) burstFigure(path string, e *Experiment, f Figure) {
	c.onlyFor(path, FigureBars, map[string]bool{"cases": f.Cases != nil})
	c.onlyFor(path, FigureLines, map[string]bool{
		"x": f.X != "", "y": f.Y != "", "metric": f.Metric != "", "metrics": f.Metrics != nil, "divide": f.Divide != 0, "where": f.Where != nil,
		"log": f.Log, "log_y": f.LogY, "without": f.Without != "", "zero": f.Zero != "",
	})
	if !slices.ContainsFunc(e.Cases, func(k Case) bool { return k.Name == f.Case }) {
		c.Add(path+".case", "case %q is not in cases", f.Case)
	}
	if f.From < 0 {
		c.Add(path+".from", "must not be negative, got %s", f.From)
	}
	if f.To != 0 && f.To <= f.From {
		c.Add(path+".to", "must be after from, %s, got %s", f.From, f.To)
	}
}

// onlyFor adds a fault for each key that is set but belongs to the given kind of figure.
func (c *checker) onlyFor(path, kind string, set map[string]bool) {
	for _, key := range sortedKeys(set) {
		if set[key] {
			c.Add(path+"."+key, "is for figures of kind %s", kind)
		}
	}
}

// parameterName is the syntax of a parameter's name.
var parameterName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// parameters checks the parameters of a case.
func (c *checker) parameters(path string, k Case) {
	for _, name := range sortedKeys(k.Parameters) {
		if !parameterName.MatchString(name) {
			c.Add(at(path+".parameters", name), "name must be lower-case letters, digits and underscores and start with a letter, got %q", name)
		}
		if v := k.Parameters[name]; math.IsNaN(v) || math.IsInf(v, 0) {
			c.Add(at(path+".parameters", name), "must be a finite number, got %v", v)
		}
	}
}
