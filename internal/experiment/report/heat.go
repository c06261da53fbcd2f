package report

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// heat is a grid of the medians of a metric over two parameters of the cases.
type heat struct {
	x, y []float64
	// values has a row for each y, a column for each x.
	values [][]number
}

func newHeat(spec *scenario.Figure, r result.Result, e *scenario.Experiment) *heat {
	h := &heat{}
	var cases []scenario.Case
	for _, c := range e.Cases {
		if spec.Selects(c) {
			cases = append(cases, c)
			h.x, h.y = append(h.x, c.Parameters[spec.X]), append(h.y, c.Parameters[spec.Y])
		}
	}
	slices.Sort(h.x)
	slices.Sort(h.y)
	h.x, h.y = slices.Compact(h.x), slices.Compact(h.y)
	h.values = make([][]number, len(h.y))
	for i := range h.values {
		h.values[i] = make([]number, len(h.x))
	}
	for _, c := range cases {
		k := result.CellKey{Case: c.Name, Traffic: spec.TrafficOf(e), Transport: spec.TransportsOf(e)[0]}
		if found, ok := r.Find(k, spec.Metric); ok {
			v := found.Median
			if spec.Divide != 0 {
				v /= spec.Divide
			}
			h.values[slices.Index(h.y, c.Parameters[spec.Y])][slices.Index(h.x, c.Parameters[spec.X])] = number{v, true}
		}
	}
	return h
}

// heatFigure draws a figure of kind scenario.FigureHeat, or none if no cell of it was measured.
func heatFigure(spec *scenario.Figure, r result.Result, e *scenario.Experiment) (figure, error) {
	h := newHeat(spec, r, e)
	if !slices.ContainsFunc(slices.Concat(h.values...), func(n number) bool { return n.ok }) {
		return figure{}, nil
	}
	ticks := func(values []float64) []plot.Tick {
		list := make([]plot.Tick, len(values))
		for i, v := range values {
			list[i] = plot.Tick{Value: float64(i), Label: short(v)}
		}
		return list
	}
	p := newPlot("", orName(spec.XLabel, spec.X), orName(spec.YLabel, spec.Y), -0.5, float64(len(h.x))-0.5, float64(len(h.y))-0.5, ticks(h.x))
	p.Y.Min, p.Y.Tick.Marker = -0.5, plot.ConstantTicks(ticks(h.y))
	p.Add(h)
	f := figure{
		name: spec.Name, title: clean(spec.Title), alt: h.words(spec),
		caption: strings.TrimSpace(clean(spec.Caption) + " Medians over the trials; orange is below 1, blue above."),
	}
	return render(f, vg.Length(60+40*len(h.y)), func(c draw.Canvas) { tile(c, []*plot.Plot{p}, 1) })
}

// Plot draws the grid. It implements plot.Plotter.
func (h *heat) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	sty := style(9.5, ink)
	sty.XAlign, sty.YAlign = draw.XCenter, draw.YCenter
	for i, row := range h.values {
		for j, v := range row {
			if !v.ok {
				continue
			}
			cell := c
			cell.Min = vg.Point{X: x(float64(j) - 0.48), Y: y(float64(i) - 0.46)}
			cell.Max = vg.Point{X: x(float64(j) + 0.48), Y: y(float64(i) + 0.46)}
			box(heatColor(v.value))(cell)
			c.FillText(sty, cell.Center(), decimal(v.value, 2))
		}
	}
}

// heatColor returns orange below 1 and blue above, the darker the farther: at a factor of 4 full.
func heatColor(v float64) color.Color {
	if v <= 0 {
		v = math.SmallestNonzeroFloat64
	}
	to := palette[4]
	if v < 1 {
		to = palette[0]
	}
	share := min(1, math.Abs(math.Log(v))/math.Log(4))
	r, g, b, _ := to.RGBA()
	mix := func(full uint32) uint8 { return uint8(255 - share*(255-float64(full>>8))) }
	return color.RGBA{R: mix(r), G: mix(g), B: mix(b), A: 255}
}

// words returns the alternative text.
func (h *heat) words(spec *scenario.Figure) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s over %s and %s.", lineLabel(&scenario.Figure{Metric: spec.Metric}), orName(spec.XLabel, spec.X), orName(spec.YLabel, spec.Y))
	for i, row := range h.values {
		fmt.Fprintf(&b, " %s:", short(h.y[i]))
		for j, v := range row {
			if v.ok {
				fmt.Fprintf(&b, " %s %s", short(h.x[j]), strconv.FormatFloat(v.value, 'g', 3, 64))
			}
		}
		b.WriteByte('.')
	}
	return b.String()
}
