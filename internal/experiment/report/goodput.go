package report

import (
	"fmt"
	"image/color"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

const goodputLabel = "L7 goodput (Mbit/s)"

// goodputFigures draws the goodput of all cells: all traffic in one figure and, if there are
// several, one figure for each.
func goodputFigures(all []row, e *scenario.Experiment) ([]figure, error) {
	traffic := e.TrafficNames()
	figures := []figure{}
	draw := func(name, title string, traffic []string) error {
		f, err := goodputFigure(name, title, all, e, traffic)
		figures = append(figures, f)
		return err
	}
	if err := draw("goodput", "Goodput of each pattern", traffic); err != nil {
		return nil, err
	}
	if len(traffic) < 2 {
		return figures, nil
	}
	for _, name := range traffic {
		if err := draw("goodput-"+name, "Goodput of each pattern, "+trafficTitle(e, name), []string{name}); err != nil {
			return nil, err
		}
	}
	return figures, nil
}

func goodputFigure(name, title string, all []row, e *scenario.Experiment, traffic []string) (figure, error) {
	charts := make([]*bars, len(traffic))
	for i, t := range traffic {
		charts[i] = newBars(all, e, t)
	}
	columns := min(2, len(traffic))
	if len(e.Cases)*len(e.Transports) > 12 {
		columns = 1
	}
	lines := (len(traffic) + columns - 1) / columns
	width := figureWidth/vg.Length(columns) - 60
	top := 0.0
	for _, b := range charts {
		top = max(top, b.top())
	}
	if top == 0 {
		top = 1
	}
	plots := make([]*plot.Plot, len(charts))
	for i, b := range charts {
		headroom := 1.1
		if b.upright(width / vg.Length(len(e.Cases))) {
			headroom = 1.2
		}
		p := newPlot("", "Pattern", goodputLabel, -0.5, float64(len(e.Cases))-0.5, headroom*top, b.marks(e, width))
		p.Title.Text = shorten(trafficTitle(e, traffic[i]), p.Title.TextStyle, width)
		p.Add(b)
		plots[i] = p
	}
	f := figure{name: name, title: title, alt: goodputWords(all, e, traffic),
		caption: "Bars are medians over the trials, whiskers the 95 % confidence interval of the mean (where there are several trials). " +
			"The dashed lines are the available capacity of the usable links after all headers, at most the offered rate." + publishedIn(e, result.Goodput)}
	return render(f, legendSpace+vg.Length(lines)*310, func(c draw.Canvas) {
		tile(drawLegend(c, charts[0].legend(e, charts)), plots, columns)
	})
}

// goodputWords returns the alternative text of the bars.
func goodputWords(all []row, e *scenario.Experiment, traffic []string) string {
	var b strings.Builder
	b.WriteString("Grouped bars of goodput in Mbit/s.")
	for _, t := range traffic {
		fmt.Fprintf(&b, " %s:", trafficTitle(e, t))
		sep := " "
		for _, w := range all {
			if w.Traffic == t {
				fmt.Fprintf(&b, "%s%s %s %s", sep, clean(w.Case), w.TransportTitle, w.Value())
				sep = ", "
			}
		}
		b.WriteByte('.')
	}
	return b.String()
}

// bars is one panel: a group for each case, with a bar for each transport.
type bars struct {
	// groups has the rows of each case, in the order of transports.
	groups     [][]row
	transports []string
	// ci is whether to draw whiskers.
	ci bool
}

func newBars(all []row, e *scenario.Experiment, traffic string) *bars {
	b := &bars{transports: e.TransportNames()}
	for _, c := range e.Cases {
		var group []row
		for _, w := range all {
			if w.Case == c.Name && w.Traffic == traffic {
				group = append(group, w)
				b.ci = b.ci || w.delivered && w.Goodput.N > 1
			}
		}
		b.groups = append(b.groups, group)
	}
	return b
}

// tip returns the upper end of a bar with its whisker, in Mbit/s.
func (w row) tip() float64 {
	top := 0.0
	if w.delivered {
		top = max(w.Goodput.Median, w.Goodput.Mean+w.Goodput.CI95)
	}
	if w.limit.ok {
		top = max(top, w.limit.value)
	}
	top = max(top, w.published.value)
	return top / 1e6
}

func (b *bars) top() float64 {
	top := 0.0
	for _, group := range b.groups {
		for _, w := range group {
			top = max(top, w.tip(), w.offered.value/1e6)
		}
	}
	return top
}

// groupShare is the width of a group, as a share of the distance between groups.
const groupShare = 0.84

var valueStyle = style(9, ink)

// upright reports whether the values have to be rotated to fit above the bars of groups of that
// width.
func (b *bars) upright(group vg.Length) bool {
	bar := group * groupShare / vg.Length(len(b.transports))
	for _, g := range b.groups {
		for _, w := range g {
			if valueStyle.Width(w.label())+3 > bar {
				return true
			}
		}
	}
	return false
}

func (w row) label() string {
	if !w.delivered {
		return w.Value()
	}
	return mbit(w.Goodput.Median, 1)
}

// marks returns the labels of the groups, with the case's title below if every title fits.
func (b *bars) marks(e *scenario.Experiment, width vg.Length) []plot.Tick {
	titled := true
	for _, c := range e.Cases {
		titled = titled && style(9, ink).Width(clean(c.Title))+4 <= width/vg.Length(len(e.Cases))
	}
	ticks := make([]plot.Tick, len(e.Cases))
	for i, c := range e.Cases {
		ticks[i] = plot.Tick{Value: float64(i), Label: clean(c.Name)}
		if titled && c.Title != "" {
			ticks[i].Label += "\n" + clean(c.Title)
		}
	}
	return ticks
}

func (b *bars) legend(e *scenario.Experiment, charts []*bars) []legendEntry {
	var entries []legendEntry
	for i, t := range b.transports {
		entries = append(entries, legendEntry{transportTitle(e, t), box(colorOf(i))})
	}
	limit, offered, published, ci := false, false, false, false
	for _, b := range charts {
		ci = ci || b.ci
		for _, group := range b.groups {
			for _, w := range group {
				limit, offered, published = limit || w.limit.ok, offered || w.offered.ok, published || w.published.ok
			}
		}
	}
	if limit {
		entries = append(entries, legendEntry{"limit after all headers", line(dashed)})
	}
	if offered {
		entries = append(entries, legendEntry{"offered rate", line(dotted)})
	}
	if published {
		entries = append(entries, publishedEntry)
	}
	if ci {
		entries = append(entries, legendEntry{"95 % confidence", func(c draw.Canvas) { whisker(c, c.Center().X, c.Min.Y, c.Max.Y) }})
	}
	return entries
}

// publishedEntry is the legend's entry for published values; publishedMark draws them.
var publishedEntry = legendEntry{"published", func(c draw.Canvas) { publishedMark(c, c.Min.X, c.Max.X, c.Center().Y) }}

func publishedMark(c draw.Canvas, from, to, y vg.Length) {
	c.StrokeLine2(publishedStyle, from, y, to, y)
	c.DrawGlyph(draw.GlyphStyle{Color: publishedStyle.Color, Radius: 4, Shape: draw.CrossGlyph{}}, vg.Point{X: (from + to) / 2, Y: y})
}

// publishedIn returns the sources of the published values of the metrics, as the end of a caption.
func publishedIn(e *scenario.Experiment, metrics ...string) string {
	var sources []string
	for _, c := range e.Cases {
		for _, p := range c.Published {
			if source := clean(p.Source); slices.Contains(metrics, p.Metric) && !slices.Contains(sources, source) {
				sources = append(sources, source)
			}
		}
	}
	if len(sources) == 0 {
		return ""
	}
	return " Published values: " + strings.Join(sources, "; ") + "."
}

var publishedStyle = draw.LineStyle{Color: rgb(0xd55e00), Width: 1.4, Dashes: []vg.Length{4, 2}}

func whisker(c draw.Canvas, x, low, high vg.Length) { whiskerOf(c, 3, x, low, high) }

// whiskerOf draws a whisker whose ends extend by end to each side.
func whiskerOf(c draw.Canvas, end, x, low, high vg.Length) {
	s := draw.LineStyle{Color: ink, Width: 1}
	c.StrokeLine2(s, x, low, x, high)
	c.StrokeLine2(s, x-end, low, x+end, low)
	c.StrokeLine2(s, x-end, high, x+end, high)
}

// Plot implements plot.Plotter.
func (b *bars) Plot(c draw.Canvas, p *plot.Plot) {
	trX, trY := p.Transforms(&c)
	group := trX(1) - trX(0)
	if offered := b.offered(); offered.ok {
		c.StrokeLine2(dotted, c.Min.X, trY(offered.value/1e6), c.Max.X, trY(offered.value/1e6))
	}
	slot := group * groupShare / vg.Length(len(b.transports))
	value := valueStyle
	value.XAlign, value.YAlign = draw.XCenter, draw.YBottom
	upright := b.upright(group)
	if upright {
		value.Rotation, value.XAlign, value.YAlign = 3.14159265/2, draw.XLeft, draw.YCenter
	}
	for i, g := range b.groups {
		x := trX(float64(i)) - group*groupShare/2
		for j, w := range g {
			center := x + slot/2
			if w.delivered {
				b.bar(c, vg.Rectangle{Min: vg.Point{X: x + 0.04*slot, Y: trY(0)}, Max: vg.Point{X: x + 0.96*slot, Y: trY(w.Goodput.Median / 1e6)}}, colorOf(j))
			}
			if w.limit.ok {
				y := trY(w.limit.value / 1e6)
				c.StrokeLine2(dashed, x-0.02*slot, y, x+1.02*slot, y)
			}
			if w.published.ok {
				publishedMark(c, x, x+slot, trY(w.published.value/1e6))
			}
			if w.delivered && w.Goodput.N > 1 {
				low, high := trY((w.Goodput.Mean-w.Goodput.CI95)/1e6), trY((w.Goodput.Mean+w.Goodput.CI95)/1e6)
				whisker(c, center, max(low, c.Min.Y), high)
			}
			b.value(c, value, w, colorOf(j), vg.Point{X: center, Y: trY(0)}, trY(w.height()))
			x += slot
		}
	}
}

// height returns the upper end of the bar alone, in Mbit/s.
func (w row) height() float64 {
	if !w.delivered {
		return 0
	}
	return w.Goodput.Median / 1e6
}

// value writes the value of a bar at its foot, where it cannot be read as that of the line of the
// limit; above the bar if it is too short.
func (b *bars) value(c draw.Canvas, s text.Style, w row, fill color.Color, foot vg.Point, top vg.Length) {
	need := s.Height(w.label())
	if s.Rotation != 0 {
		need = s.Width(w.label())
	}
	foot.Y += 4
	if w.delivered && top-foot.Y > need+2 {
		if dark(fill) {
			s.Color = color.White
		}
		c.FillText(s, foot, w.label())
		return
	}
	c.FillText(s, vg.Point{X: foot.X, Y: max(top, foot.Y-1) + 3}, w.label())
}

// dark reports whether white is easier to read on a color than black (the luma of ITU-R BT.601).
func dark(c color.Color) bool {
	r, g, b, _ := c.RGBA()
	return 299*r+587*g+114*b < 600*0xffff
}

func (b *bars) bar(c draw.Canvas, r vg.Rectangle, fill color.Color) {
	c.SetColor(fill)
	c.Fill(r.Path())
}

// offered returns the rate that the panel's source offers.
func (b *bars) offered() number {
	for _, group := range b.groups {
		for _, w := range group {
			if w.offered.ok {
				return w.offered
			}
		}
	}
	return number{}
}
