package report

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// routeTimes are the displayed metrics of an experiment of scenario.KindRoutes, in the order of
// columns; the drawn ones come first.
var routeTimes = []struct {
	metric, title, caption string
	drawn                  bool
}{
	{result.EPERoute, "EPE Route", "EPE ROUTE (ms)", true},
	{result.BestPath, "best path", "BEST PATH (ms)", true},
	{result.SubflowTime, "subflow", "SUBFLOW (ms)", true},
	{result.ASBRReceived, "update received by the ASBR", "ASBR RECVD (ms)", false},
	{result.ReflectorPart, "reflector", "REFLECTOR (ms)", false},
	{result.OwnPart, "ASBR and server", "ASBR+SERVER (ms)", false},
}

// overview draws the figures of all runs. The page shows the first onPage of them.
func overview(r result.Result, all []row, traces []series, e *scenario.Experiment) (figures []figure, onPage int, err error) {
	switch {
	case e.Kind == scenario.KindRoutes:
		f, err := routesFigure(r, e)
		return []figure{f}, 1, err
	case len(e.Figures) > 0:
		figures, err = ownFigures(r, traces, e)
		return figures, len(figures), err
	case e.Kind == scenario.KindWeb:
		return nil, 0, nil
	}
	// The page shows all traffic in one figure. The figures of a single traffic are only
	// written as files.
	figures, err = goodputFigures(all, e)
	return figures, 1, err
}

// routesFigure draws paper A's Fig. 10: a panel for each case, with a box for each time and each
// kind of routers.
func routesFigure(r result.Result, e *scenario.Experiment) (figure, error) {
	columns := min(2, len(e.Cases))
	lines := (len(e.Cases) + columns - 1) / columns
	width := figureWidth/vg.Length(columns) - 60
	panels := make([]*boxes, len(e.Cases))
	low, high := math.Inf(1), 0.0
	for i, c := range e.Cases {
		var err error
		if panels[i], err = newBoxes(r, e, c); err != nil {
			return figure{}, fmt.Errorf("draw figure %q: %w", "routes", err)
		}
		l, h := panels[i].bounds()
		low, high = min(low, l), max(high, h)
	}
	if high == 0 {
		low, high = 1, 10
	}
	low, high = math.Pow(10, math.Floor(math.Log10(low))), 1.6*high
	plots := make([]*plot.Plot, len(panels))
	for i, b := range panels {
		p := newPlot("", "", "Time from the change of policy (ms)", -0.5, float64(len(b.groups))-0.5, 1, b.marks())
		// In decades, on a linear axis: the library leaves unused space beside the label of
		// a logarithmic one.
		p.Y.Min, p.Y.Max, p.Y.Tick.Marker = math.Log10(low), math.Log10(high), decades{}
		p.Title.Text = shorten(strings.TrimSpace(clean(b.name)+"  "+clean(b.title)), p.Title.TextStyle, width)
		p.Add(b)
		plots[i] = p
	}
	f := figure{name: "routes", title: "Time until a change of routes has taken effect", alt: routesWords(r, e),
		caption: "Boxes are quartiles and median, whiskers reach to the last value within 1.5 times the box's height, circles are beyond; " +
			"the axis is logarithmic, with times of 0 at its lower end. The subflow's time is that of its first packet, or of its last. " +
			"Crosses on dotted lines are published medians." + publishedIn(e, result.EPERoute, result.BestPath, result.SubflowTime)}
	return render(f, legendSpace+vg.Length(lines)*310, func(c draw.Canvas) {
		tile(drawLegend(c, panels[0].legend(e, panels)), plots, columns)
	})
}

// routesWords returns the alternative text of the box plots.
func routesWords(r result.Result, e *scenario.Experiment) string {
	var b strings.Builder
	b.WriteString("Box plots of times in milliseconds, medians:")
	sep := " "
	for _, k := range e.Cells() {
		for _, t := range routeTimes {
			if c, ok := r.Find(k, t.metric); ok && t.drawn {
				fmt.Fprintf(&b, "%s%s %s %s %s", sep, clean(k.Case), transportTitle(e, k.Transport), t.title, milliseconds(c.Median))
				sep = ", "
			}
		}
	}
	return b.String() + "."
}

// boxes is one panel: a group for each time, with a box for each transport.
type boxes struct {
	name, title string
	transports  []string
	groups      []boxGroup
}

type boxGroup struct {
	title string
	// published is in milliseconds.
	published number
	// boxes has one box for each transport, nil if no run has the time.
	boxes []*stat.Box
}

func newBoxes(r result.Result, e *scenario.Experiment, c scenario.Case) (*boxes, error) {
	b := &boxes{name: c.Name, title: c.Title, transports: e.TransportNames()}
	for _, t := range routeTimes {
		if !t.drawn {
			continue
		}
		g := boxGroup{title: t.title}
		if v, ok := c.PublishedOf(t.metric, "", ""); ok {
			g.published = number{1000 * v.Value, true}
		}
		for _, transport := range b.transports {
			var values []float64
			for _, run := range r.Runs {
				v, ok := run.Metrics[t.metric]
				if ok && run.Err() == nil && run.Case == c.Name && run.Transport == transport {
					values = append(values, 1000*v)
				}
			}
			if len(values) == 0 {
				g.boxes = append(g.boxes, nil)
				continue
			}
			box, err := stat.TukeyBox(values)
			if err != nil {
				return nil, err
			}
			g.boxes = append(g.boxes, &box)
		}
		b.groups = append(b.groups, g)
	}
	return b, nil
}

// bounds returns the lowest and the highest drawn value above 0, in milliseconds.
func (b *boxes) bounds() (low, high float64) {
	low = math.Inf(1)
	include := func(values ...float64) {
		for _, v := range values {
			if v > 0 {
				low, high = min(low, v), max(high, v)
			}
		}
	}
	for _, g := range b.groups {
		include(g.published.value)
		for _, box := range g.boxes {
			if box != nil {
				include(box.Low, box.Q1, box.High)
				include(box.Outliers...)
			}
		}
	}
	return low, high
}

func (b *boxes) marks() []plot.Tick {
	ticks := make([]plot.Tick, len(b.groups))
	for i, g := range b.groups {
		ticks[i] = plot.Tick{Value: float64(i), Label: g.title}
	}
	return ticks
}

func (b *boxes) legend(e *scenario.Experiment, panels []*boxes) []legendEntry {
	var entries []legendEntry
	for i, t := range b.transports {
		entries = append(entries, legendEntry{transportTitle(e, t), box(colorOf(i))})
	}
	if slices.ContainsFunc(panels, func(b *boxes) bool {
		return slices.ContainsFunc(b.groups, func(g boxGroup) bool { return g.published.ok })
	}) {
		entries = append(entries, legendEntry{"published median", func(c draw.Canvas) {
			line(dotted)(c)
			cross(c, c.Center())
		}})
	}
	return entries
}

// Plot implements plot.Plotter.
func (b *boxes) Plot(c draw.Canvas, p *plot.Plot) {
	trX, decadeY := p.Transforms(&c)
	trY := func(v float64) vg.Length { return decadeY(math.Log10(max(v, math.Pow(10, p.Y.Min)))) }
	group := trX(1) - trX(0)
	slot := group * groupShare / vg.Length(len(b.transports))
	value := valueStyle
	value.XAlign, value.YAlign = draw.XLeft, draw.YCenter
	for i, g := range b.groups {
		x := trX(float64(i)) - group*groupShare/2
		if g.published.ok {
			y := trY(g.published.value)
			c.StrokeLine2(dotted, x, y, x+group*groupShare, y)
			cross(c, vg.Point{X: x, Y: y})
		}
		for j, box := range g.boxes {
			if box != nil {
				// The number of the median is beside the box: above, it could be
				// read as that of an outlier.
				drawBox(c, *box, x+0.28*slot, 0.44*slot, trY, colorOf(j))
				c.FillText(value, vg.Point{X: x + 0.5*slot + 3, Y: trY(box.Median)}, milliseconds(box.Median/1000))
			}
			x += slot
		}
	}
}

func drawBox(c draw.Canvas, b stat.Box, x, width vg.Length, y func(float64) vg.Length, fill color.Color) {
	const cap = 4
	s := draw.LineStyle{Color: ink, Width: 1}
	left, right := x-width/2, x+width/2
	c.StrokeLine2(s, x, y(b.Low), x, y(b.Q1))
	c.StrokeLine2(s, x, y(b.Q3), x, y(b.High))
	c.StrokeLine2(s, x-cap, y(b.Low), x+cap, y(b.Low))
	c.StrokeLine2(s, x-cap, y(b.High), x+cap, y(b.High))
	r := vg.Rectangle{Min: vg.Point{X: left, Y: y(b.Q1)}, Max: vg.Point{X: right, Y: y(b.Q3)}}
	c.SetColor(fill)
	c.Fill(r.Path())
	c.SetLineStyle(s)
	c.Stroke(r.Path())
	c.StrokeLine2(draw.LineStyle{Color: ink, Width: 2}, left, y(b.Median), right, y(b.Median))
	for _, v := range b.Outliers {
		c.DrawGlyph(draw.GlyphStyle{Color: ink, Radius: 1.6, Shape: draw.RingGlyph{}}, vg.Point{X: x, Y: y(v)})
	}
}

func cross(c draw.Canvas, at vg.Point) {
	c.DrawGlyph(draw.GlyphStyle{Color: ink, Radius: 3, Shape: draw.CrossGlyph{}}, at)
}

// decades has labeled ticks at powers of ten and unlabeled ones at their multiples, for an axis of
// logarithms.
type decades struct{}

func (decades) Ticks(from, to float64) []plot.Tick {
	var ticks []plot.Tick
	for power := math.Floor(from); power <= to; power++ {
		for m := 1.0; m < 10; m++ {
			t := plot.Tick{Value: power + math.Log10(m)}
			if t.Value < from-1e-9 || t.Value > to {
				continue
			}
			if m == 1 {
				t.Label = decimal(math.Pow(10, power), max(0, int(-power)))
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}

// milliseconds formats seconds as milliseconds, with the significant digits.
func milliseconds(seconds float64) string {
	ms := 1000 * seconds
	if ms >= 100 {
		return decimal(ms, 0)
	}
	return decimal(ms, 1)
}

// routeTable is the table of an experiment of scenario.KindRoutes: a line for each cell, with the
// median of each time and, with several trials, the quartiles.
type routeTable struct {
	Columns []string
	Lines   []routeLine
}

type routeLine struct {
	Case, CaseTitle, Routers string
	Times                    []string
	Trials, Failed           int
}

func newRouteTable(r result.Result, e *scenario.Experiment) *routeTable {
	if e.Kind != scenario.KindRoutes {
		return nil
	}
	t := &routeTable{}
	for _, m := range routeTimes {
		t.Columns = append(t.Columns, m.title)
	}
	for _, k := range e.Cells() {
		l := routeLine{Case: clean(k.Case), CaseTitle: caseTitle(e, k.Case), Routers: transportTitle(e, k.Transport)}
		for _, run := range r.Runs {
			if run.CellKey == k {
				l.Trials++
				if run.Err() != nil {
					l.Failed++
				}
			}
		}
		for _, m := range routeTimes {
			text := "-"
			if c, ok := r.Find(k, m.metric); ok {
				text = milliseconds(c.Median)
				if c.N > 1 {
					text += fmt.Sprintf(" (%s to %s)", milliseconds(c.Q1), milliseconds(c.Q3))
				}
			}
			l.Times = append(l.Times, text)
		}
		t.Lines = append(t.Lines, l)
	}
	return t
}

// text returns the table for a terminal, which has only the medians.
func (t *routeTable) text() [][]string {
	header := []string{"PATTERN", "ROUTERS"}
	for _, m := range routeTimes {
		header = append(header, m.caption)
	}
	lines := [][]string{append(header, "TRIALS")}
	for _, l := range t.Lines {
		line := []string{l.Case, l.Routers}
		for _, v := range l.Times {
			median, _, _ := strings.Cut(v, " ")
			line = append(line, median)
		}
		trials := fmt.Sprint(l.Trials)
		if l.Failed > 0 {
			trials += fmt.Sprintf(" (%d failed)", l.Failed)
		}
		lines = append(lines, append(line, trials))
	}
	return lines
}
