package report

import (
	"cmp"
	"fmt"
	"image/color"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// ownFigures draws the experiment's own figures, in their order.
func ownFigures(r result.Result, traces []series, e *scenario.Experiment) ([]figure, error) {
	var figures []figure
	for i := range e.Figures {
		spec := &e.Figures[i]
		var f figure
		var err error
		switch spec.Kind {
		case scenario.FigureBursts:
			f, err = burstFigure(spec, traces, e)
		case scenario.FigureHeat:
			f, err = heatFigure(spec, r, e)
		case scenario.FigureBars:
			f, err = barFigure(spec, r, e)
		default:
			f, err = lineFigure(spec, r, e)
		}
		if err != nil {
			return nil, err
		}
		// There is none of bars and heat maps that no run has, such as the Speed Index of a quick
		// pass.
		if f.name != "" {
			figures = append(figures, f)
		}
	}
	return figures, nil
}

// curve is one metric of one transport over the axis.
type curve struct {
	title string
	color color.Color
	// shape is the index of its marker, dodge its horizontal offset.
	shape  int
	dodge  vg.Length
	points []meanPoint
}

// meanPoint is a mean with its standard deviation; n is the number of trials.
type meanPoint struct {
	x, mean, sd float64
	n           int
	// offAxis is whether the point is beside the axis, for a case without a value on it.
	offAxis bool
}

// scale is a figure's axis: the positions of values, and the ticks.
type scale struct {
	log        bool
	from, to   float64
	zero, last float64 // positions of 0 on a logarithmic axis, and of cases without a value
	ticks      []plot.Tick
}

// newScale returns the axis for the cases that a figure shows.
func newScale(f *scenario.Figure, cases []scenario.Case) scale {
	s := scale{log: f.Log}
	var values []float64
	zero, without := false, false
	for _, c := range cases {
		v, ok := c.Parameters[f.X]
		switch {
		case !ok:
			without = true
		case s.log && v == 0:
			zero = true
		default:
			values = append(values, v)
		}
	}
	for _, ref := range f.References {
		if ref.X != nil && (*ref.X > 0 || !s.log) {
			values = append(values, *ref.X)
		}
	}
	slices.Sort(values)
	values = slices.Compact(values)
	if len(values) == 0 {
		values = []float64{1}
	}
	low, high := s.position(values[0]), s.position(values[len(values)-1])
	step := (high - low) / float64(max(1, len(values)-1))
	if step == 0 {
		step = 1
	}
	s.from, s.to = low-step/4, high+step/4
	if zero {
		s.zero = low - step
		s.from = s.zero - step/4
		s.ticks = append(s.ticks, plot.Tick{Value: s.zero, Label: clean(f.Zero)})
	}
	for _, v := range values {
		s.ticks = append(s.ticks, plot.Tick{Value: s.position(v), Label: short(v)})
	}
	if without {
		s.last = high + step
		s.to = s.last + step/4
		s.ticks = append(s.ticks, plot.Tick{Value: s.last, Label: clean(f.Without)})
	}
	return s
}

func (s scale) position(v float64) float64 {
	if s.log {
		return math.Log10(v)
	}
	return v
}

// at returns the position of a case.
func (s scale) at(f *scenario.Figure, c scenario.Case) (x float64, offAxis bool) {
	switch v, ok := c.Parameters[f.X]; {
	case !ok:
		return s.last, true
	case s.log && v == 0:
		return s.zero, true
	default:
		return s.position(v), false
	}
}

// short formats a number of an axis: 0.0005 as 5e-4, as is usual for loss rates.
func short(v float64) string {
	if abs := math.Abs(v); abs != 0 && (abs < 0.02 || abs >= 1e6) {
		text := strconv.FormatFloat(v, 'e', -1, 64)
		return strings.NewReplacer("e-0", "e-", "e+0", "e").Replace(text)
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

func lineFigure(spec *scenario.Figure, r result.Result, e *scenario.Experiment) (figure, error) {
	var cases []scenario.Case
	for _, c := range e.Cases {
		if spec.Selects(c) {
			cases = append(cases, c)
		}
	}
	axis := newScale(spec, cases)
	curves, err := newCurves(spec, r, e, cases, axis)
	if err != nil {
		return figure{}, fmt.Errorf("draw figure %q: %w", spec.Name, err)
	}
	top, low, spread := 0.0, math.Inf(1), false
	for _, c := range curves {
		for _, p := range c.points {
			top = max(top, p.mean+p.sd)
			if p.mean > 0 {
				low = min(low, p.mean)
			}
			spread = spread || p.sd > 0
		}
	}
	for _, ref := range spec.References {
		if ref.Y == nil {
			continue
		}
		top = max(top, *ref.Y)
		if *ref.Y > 0 {
			low = min(low, *ref.Y)
		}
	}
	if top <= 0 {
		top = 1
	}
	p := newPlot("", orName(spec.XLabel, spec.X), lineLabel(spec), axis.from, axis.to, 1.08*top, axis.ticks)
	p.X.Padding = 6 // for marks at 0
	chart := &lines{curves: curves, references: spec.References, axis: axis, logY: spec.LogY}
	if spec.LogY {
		if math.IsInf(low, 1) {
			low = top / 10
		}
		p.Y.Min, p.Y.Max, p.Y.Tick.Marker = math.Floor(math.Log10(low)), math.Log10(1.3*top), decades{}
		chart.floor = p.Y.Min
	}
	p.Add(chart)

	entries := make([]legendEntry, 0, len(curves)+len(spec.References)+1)
	for _, c := range curves {
		if len(curves) > 1 {
			entries = append(entries, legendEntry{c.title, func(dc draw.Canvas) {
				dc.StrokeLine2(draw.LineStyle{Color: c.color, Width: 1.3}, dc.Min.X, dc.Center().Y, dc.Max.X, dc.Center().Y)
				marker(dc, c.shape, c.color, dc.Center())
			}})
		}
	}
	for i, ref := range spec.References {
		sample := line(referenceStyle(i))
		if ref.X != nil && ref.Y != nil {
			sample = func(dc draw.Canvas) { cross(dc, dc.Center()) }
		}
		entries = append(entries, legendEntry{clean(ref.Title), sample})
	}
	if spread {
		entries = append(entries, legendEntry{"standard deviation", func(dc draw.Canvas) { whisker(dc, dc.Center().X, dc.Min.Y, dc.Max.Y) }})
	}
	caption := "Means over the trials with their standard deviation."
	if !spread {
		caption = "Means over the trials, which do not differ."
	}
	f := figure{name: spec.Name, title: clean(spec.Title), caption: strings.TrimSpace(clean(spec.Caption) + " " + caption), alt: lineWords(spec, e, curves, cases)}
	return render(f, legendSpace+290, func(c draw.Canvas) { tile(drawLegend(c, entries), []*plot.Plot{p}, 1) })
}

// lineLabel returns the label of the y axis.
func lineLabel(spec *scenario.Figure) string {
	if spec.YLabel != "" {
		return clean(spec.YLabel)
	}
	m, _ := result.MetricNamed(spec.AllMetrics()[0])
	return axisTitle(m.Title, m.Unit)
}

// axisTitle names a metric with its unit, if it has one.
func axisTitle(title, unit string) string {
	title = capitalize(title)
	if unit != "" {
		title += " (" + unit + ")"
	}
	return title
}

func newCurves(spec *scenario.Figure, r result.Result, e *scenario.Experiment, cases []scenario.Case, axis scale) ([]curve, error) {
	transports, metrics := spec.TransportsOf(e), spec.AllMetrics()
	divide := cmp.Or(spec.Divide, 1)
	var curves []curve
	for i, transport := range transports {
		for j, metric := range metrics {
			c := curve{title: curveTitle(e, transports, metrics, transport, metric), color: colorOf(i + 1), shape: i*len(metrics) + j}
			c.dodge = vg.Length(2*i-len(transports)+1) * 2
			for _, k := range cases {
				key := result.CellKey{Case: k.Name, Traffic: spec.TrafficOf(e), Transport: transport}
				values := r.Values(key, metric)
				for i := range values {
					values[i] /= divide
				}
				if len(values) == 0 {
					continue
				}
				mean, sd, err := stat.MeanSD(values)
				if err != nil {
					return nil, fmt.Errorf("%s of %s: %w", metric, key, err)
				}
				x, offAxis := axis.at(spec, k)
				c.points = append(c.points, meanPoint{x, mean, sd, len(values), offAxis})
			}
			slices.SortStableFunc(c.points, func(a, b meanPoint) int {
				switch {
				case a.x < b.x:
					return -1
				case a.x > b.x:
					return 1
				}
				return 0
			})
			curves = append(curves, c)
		}
	}
	return curves, nil
}

// curveTitle returns what distinguishes a curve from the others.
func curveTitle(e *scenario.Experiment, transports, metrics []string, transport, metric string) string {
	m, _ := result.MetricNamed(metric)
	// The common part of the metrics' titles is at the axis.
	name, _, _ := strings.Cut(m.Title, ", of ")
	switch {
	case len(metrics) == 1:
		return transportTitle(e, transport)
	case len(transports) == 1:
		return name
	}
	return transportTitle(e, transport) + ", " + name
}

// lineWords returns the alternative text of the lines.
func lineWords(spec *scenario.Figure, e *scenario.Experiment, curves []curve, cases []scenario.Case) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s over %s.", lineLabel(spec), orName(spec.XLabel, spec.X))
	for _, c := range curves {
		fmt.Fprintf(&b, " %s:", c.title)
		sep := " "
		for _, k := range cases {
			x, _ := newScale(spec, cases).at(spec, k)
			for _, p := range c.points {
				if p.x == x {
					fmt.Fprintf(&b, "%s%s %s", sep, clean(k.Name), strconv.FormatFloat(p.mean, 'g', 3, 64))
					sep = ", "
				}
			}
		}
		b.WriteByte('.')
	}
	return b.String()
}

// lines is the panel of a line figure.
type lines struct {
	curves     []curve
	references []scenario.Reference
	axis       scale
	logY       bool
	// floor is the lower end of a logarithmic y axis, in decades.
	floor float64
}

func referenceStyle(i int) draw.LineStyle {
	return draw.LineStyle{Color: backdrop, Width: 1.4, Dashes: [][]vg.Length{{1.2, 2.4}, {5, 2.5}, {5, 2, 1.2, 2}}[i%3]}
}

func (l *lines) y(v float64) float64 {
	if !l.logY {
		return v
	}
	if v <= 0 {
		return l.floor
	}
	return max(l.floor, math.Log10(v))
}

// Plot implements plot.Plotter.
func (l *lines) Plot(c draw.Canvas, p *plot.Plot) {
	trX, trY := p.Transforms(&c)
	for i, ref := range l.references {
		switch {
		case ref.X == nil:
			y := trY(l.y(*ref.Y))
			c.StrokeLine2(referenceStyle(i), c.Min.X, y, c.Max.X, y)
		case ref.Y == nil:
			x := trX(l.axis.position(*ref.X))
			c.StrokeLine2(referenceStyle(i), x, c.Min.Y, x, c.Max.Y)
		}
	}
	for _, u := range l.curves {
		style := draw.LineStyle{Color: u.color, Width: 1.3}
		bar := draw.LineStyle{Color: u.color, Width: 0.9}
		for i, m := range u.points {
			at := vg.Point{X: trX(m.x) + u.dodge, Y: trY(l.y(m.mean))}
			if i > 0 {
				s, before := style, u.points[i-1]
				if m.offAxis || before.offAxis {
					s.Dashes = []vg.Length{2, 3}
				}
				c.StrokeLine2(s, trX(before.x)+u.dodge, trY(l.y(before.mean)), at.X, at.Y)
			}
			if m.n > 1 && m.sd > 0 {
				low, high := max(trY(l.y(m.mean-m.sd)), c.Min.Y), trY(l.y(m.mean+m.sd))
				c.StrokeLine2(bar, at.X, low, at.X, high)
				c.StrokeLine2(bar, at.X-3, low, at.X+3, low)
				c.StrokeLine2(bar, at.X-3, high, at.X+3, high)
			}
		}
		for _, m := range u.points {
			marker(c, u.shape, u.color, vg.Point{X: trX(m.x) + u.dodge, Y: trY(l.y(m.mean))})
		}
	}
	for _, ref := range l.references {
		if ref.X != nil && ref.Y != nil {
			cross(c, vg.Point{X: trX(l.axis.position(*ref.X)), Y: trY(l.y(*ref.Y))})
		}
	}
}

// marker draws the mark of a curve. Neighbors in the list fit into each other, so that both are
// visible where curves coincide.
func marker(c draw.Canvas, shape int, color color.Color, at vg.Point) {
	marks := []struct {
		glyph  draw.GlyphDrawer
		radius vg.Length
	}{
		{draw.RingGlyph{}, 4.4}, {draw.CircleGlyph{}, 2.2}, {draw.SquareGlyph{}, 4.2}, {draw.BoxGlyph{}, 2.2}, {draw.TriangleGlyph{}, 5}, {draw.PyramidGlyph{}, 2.4},
	}
	m := marks[shape%len(marks)]
	c.DrawGlyph(draw.GlyphStyle{Color: color, Radius: m.radius, Shape: m.glyph}, at)
}
