package report

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"strings"

	stdfont "golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// figure is a figure as SVG and as PNG.
type figure struct {
	// name is the name of the file, without extension; alt is the alternative text.
	name, title, caption, alt string
	svg, png                  []byte
}

// Figures are 900 CSS pixels wide; PNG files have two pixels for each of those.
const (
	figureWidth = 675 * vg.Length(1)
	legendSpace = 26 * vg.Length(1)
	pngDPI      = 192
)

var (
	paper = rgb(0xffffff)
	ink   = rgb(0x1a1a1a)
	muted = rgb(0x595959)
	grid  = rgb(0xe0e0e0)
	// backdrop is for what is in the background.
	backdrop = rgb(0xa6a6a6)
)

// palette is that of Okabe and Ito, which is distinguishable with any color vision, with grey
// instead of black and yellow; neighbors differ in lightness too, for print.
var palette = []color.Color{rgb(0xe69f00), rgb(0x0072b2), rgb(0x009e73), rgb(0xcc79a7), rgb(0x56b4e9), rgb(0xd55e00), rgb(0x7f7f7f), rgb(0x882255)}

func rgb(v uint32) color.RGBA {
	return color.RGBA{R: uint8(v >> 16), G: uint8(v >> 8), B: uint8(v), A: 255}
}

func colorOf(i int) color.Color { return palette[i%len(palette)] }

func style(size vg.Length, c color.Color) text.Style {
	return text.Style{Color: c, Font: font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}, Handler: plot.DefaultTextHandler}
}

var (
	dashed = draw.LineStyle{Color: ink, Width: 1.3, Dashes: []vg.Length{4, 2.5}}
	dotted = draw.LineStyle{Color: muted, Width: 1.2, Dashes: []vg.Length{1.2, 2.4}}
)

// render draws a figure as SVG and PNG.
func render(f figure, height vg.Length, paint func(draw.Canvas)) (figure, error) {
	onPaper := func(c vg.CanvasSizer) {
		dc := draw.New(c)
		dc.SetColor(paper)
		dc.Fill(dc.Path())
		paint(dc)
	}
	svg := vgsvg.New(figureWidth, height)
	onPaper(svg)
	var b bytes.Buffer
	if _, err := svg.WriteTo(&b); err != nil {
		return figure{}, fmt.Errorf("draw figure %q: %w", f.name, err)
	}
	f.svg = bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;"))

	img := vgimg.NewWith(vgimg.UseWH(figureWidth, height), vgimg.UseDPI(pngDPI))
	onPaper(img)
	var p bytes.Buffer
	if _, err := (vgimg.PngCanvas{Canvas: img}).WriteTo(&p); err != nil {
		return figure{}, fmt.Errorf("draw figure %q: %w", f.name, err)
	}
	f.png = p.Bytes()
	return f, nil
}

// newPlot returns axes in the report's style. X is from x0 to x1 with the given ticks, or with
// round numbers if there are none; y is from 0 to y1.
func newPlot(title, xLabel, yLabel string, x0, x1, y1 float64, marks []plot.Tick) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	p.Title.Text, p.Title.Padding = title, 6
	p.Title.TextStyle = style(10.5, ink)
	p.Title.TextStyle.Font.Weight = stdfont.WeightBold
	p.Title.TextStyle.XAlign, p.Title.TextStyle.YAlign = draw.XCenter, draw.YTop
	p.X.Label.Text, p.Y.Label.Text = xLabel, yLabel
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Label.TextStyle.Font, a.Label.TextStyle.Color = style(9.5, ink).Font, ink
		a.Tick.Label.Font, a.Tick.Label.Color = style(9, ink).Font, ink
		a.LineStyle = draw.LineStyle{Color: muted, Width: 0.75}
		a.Tick.LineStyle = a.LineStyle
		a.Tick.Length = 3
		a.Padding, a.Label.Padding = 0, 4
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = x0, x1, 0, y1
	p.X.Tick.Marker, p.Y.Tick.Marker = roundTicks{}, roundTicks{}
	if marks != nil {
		p.X.Tick.Marker = plot.ConstantTicks(marks)
		p.X.Tick.LineStyle.Width, p.X.Tick.Length = 0, 2
	}
	g := plotter.NewGrid()
	g.Vertical.Color = nil
	g.Horizontal = draw.LineStyle{Color: grid, Width: 0.5}
	p.Add(g)
	return p
}

// roundTicks has at least five ticks, at multiples of 1, 2 or 5 times a power of ten.
type roundTicks struct{}

func (roundTicks) Ticks(from, to float64) []plot.Tick {
	step := math.Pow(10, math.Floor(math.Log10((to-from)/5)))
	for _, f := range []float64{5, 2} {
		if (to-from)/(step*f) >= 4 {
			step *= f
			break
		}
	}
	digits := max(0, int(-math.Floor(math.Log10(step)+1e-9)))
	var ticks []plot.Tick
	for i := math.Ceil(from / step); i*step <= to*(1+1e-9); i++ {
		ticks = append(ticks, plot.Tick{Value: i * step, Label: decimal(i*step, digits)})
	}
	return ticks
}

// legendEntry is an entry of a legend: its text and a function that draws its sample.
type legendEntry struct {
	name   string
	sample func(draw.Canvas)
}

func box(c color.Color) func(draw.Canvas) {
	return func(dc draw.Canvas) {
		dc.SetColor(c)
		dc.Fill(dc.Path())
	}
}

// hatch draws a box of lines, for bars that are not to be compared with the filled ones.
func hatch(c draw.Canvas, r vg.Rectangle, color color.Color) {
	s := draw.LineStyle{Color: color, Width: 0.9}
	const step = 3.5
	width, height := r.Max.X-r.Min.X, r.Max.Y-r.Min.Y
	for d := vg.Length(step); d < width+height; d += step {
		// From the lower or right edge up to the left or upper one.
		x, y := min(d, width), max(0, d-width)
		left, up := max(0, d-height), min(d, height)
		c.StrokeLine2(s, r.Min.X+x, r.Min.Y+y, r.Min.X+left, r.Min.Y+up)
	}
	c.StrokeLines(s, []vg.Point{r.Min, {X: r.Max.X, Y: r.Min.Y}, r.Max, {X: r.Min.X, Y: r.Max.Y}, r.Min})
}

func line(s draw.LineStyle) func(draw.Canvas) {
	return func(dc draw.Canvas) {
		dc.StrokeLine2(s, dc.Min.X, dc.Center().Y, dc.Max.X, dc.Center().Y)
	}
}

// The sizes of a legend.
const (
	legendSample, legendGap, legendBetween, legendLine = 16, 5, 18, 14
	legendMargin                                       = 10
)

var legendStyle = func() text.Style {
	s := style(9.5, ink)
	s.YAlign = draw.YCenter
	return s
}()

func (e legendEntry) width() vg.Length { return legendSample + legendGap + legendStyle.Width(e.name) }

// legendLines divides the entries into the lines of a legend of the given width, and returns the
// width of each line.
func legendLines(entries []legendEntry, width vg.Length) (lines [][]legendEntry, widths []vg.Length) {
	for len(entries) > 0 {
		n, total := 1, entries[0].width()
		for n < len(entries) && total+legendBetween+entries[n].width() <= width-legendMargin {
			total += legendBetween + entries[n].width()
			n++
		}
		lines, widths, entries = append(lines, entries[:n]), append(widths, total), entries[n:]
	}
	return lines, widths
}

// legendHeight returns the height of a legend across a figure.
func legendHeight(entries []legendEntry) vg.Length {
	lines, _ := legendLines(entries, figureWidth)
	return legendSpace + vg.Length(max(0, len(lines)-1))*legendLine
}

// drawLegend draws the entries in as many centered lines as they need, and returns the rest of c
// below them.
func drawLegend(c draw.Canvas, entries []legendEntry) draw.Canvas {
	y := c.Max.Y - legendSpace/2
	lines, widths := legendLines(entries, c.Max.X-c.Min.X)
	for i, line := range lines {
		x := c.Center().X - widths[i]/2
		for _, e := range line {
			e.sample(draw.Canvas{Canvas: c.Canvas, Rectangle: vg.Rectangle{Min: vg.Point{X: x, Y: y - 4.5}, Max: vg.Point{X: x + legendSample, Y: y + 4.5}}})
			c.FillText(legendStyle, vg.Point{X: x + legendSample + legendGap, Y: y}, e.name)
			x += e.width() + legendBetween
		}
		y -= legendLine
	}
	return draw.Crop(c, 0, 0, 0, y+legendLine-legendSpace/2-c.Max.Y)
}

// tile draws the plots in rows of the given number of columns, with aligned axes.
func tile(c draw.Canvas, plots []*plot.Plot, columns int) {
	rows := (len(plots) + columns - 1) / columns
	grid := make([][]*plot.Plot, rows)
	for i := range grid {
		grid[i] = make([]*plot.Plot, columns)
		copy(grid[i], plots[i*columns:min(len(plots), (i+1)*columns)])
	}
	canvases := plot.Align(grid, draw.Tiles{Rows: rows, Cols: columns, PadX: 14, PadY: 12, PadLeft: 6, PadRight: 8, PadTop: 2, PadBottom: 6}, c)
	for i := range grid {
		for j, p := range grid[i] {
			if p != nil {
				p.Draw(canvases[i][j])
			}
		}
	}
}

// shorten cuts a title at the given width and adds an ellipsis.
func shorten(s string, sty text.Style, width vg.Length) string {
	if sty.Width(s) <= width {
		return s
	}
	runes := []rune(s)
	for len(runes) > 0 && sty.Width(string(runes)+"…") > width {
		runes = runes[:len(runes)-1]
	}
	return strings.TrimRight(string(runes), " ") + "…"
}
