package report

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/tabane/tabane/internal/result"
	"github.com/tabane/tabane/internal/scenario"
	"github.com/tabane/tabane/internal/stat"
)

// significance is the level of tests, after Holm's correction.
const significance = 0.05

// metricBars is one panel of a figure of kind bars: a group for each case, with a bar for each
// transport.
type metricBars struct {
	groups [][]metricBar
}

// metricBar is the mean of a cell; n is the number of trials.
type metricBar struct {
	mean, ci float64
	n        int
}

func (b metricBar) tip() float64 { return b.mean + b.ci }

// barFigure draws a figure of kind bars.
func barFigure(spec *scenario.Figure, r result.Result, e *scenario.Experiment) (figure, error) {
	traffic := e.TrafficNames()
	if spec.Traffic != "" {
		traffic = []string{spec.Traffic}
	}
	m, _ := result.MetricNamed(spec.Metric)
	divide := cmp.Or(spec.Divide, 1)
	transports := spec.TransportsOf(e)
	top, repeated := 0.0, false
	panels := make([]*metricBars, len(traffic))
	for i, t := range traffic {
		panels[i] = &metricBars{}
		for _, c := range e.Cases {
			group := make([]metricBar, len(transports))
			for j, transport := range transports {
				if cell, ok := r.Find(result.CellKey{Case: c.Name, Traffic: t, Transport: transport}, spec.Metric); ok {
					group[j] = metricBar{cell.Mean / divide, cell.CI95 / divide, cell.N}
					top, repeated = max(top, group[j].tip()), repeated || cell.N > 1
				}
			}
			panels[i].groups = append(panels[i].groups, group)
		}
	}
	if top == 0 {
		top = 1
	}
	ticks := make([]plot.Tick, len(e.Cases))
	for i, c := range e.Cases {
		ticks[i] = plot.Tick{Value: float64(i), Label: clean(c.Name)}
	}
	plots := make([]*plot.Plot, len(panels))
	for i, b := range panels {
		p := newPlot(trafficTitle(e, traffic[i]), orName(spec.XLabel, "Pattern"), lineLabel(spec), -0.5, float64(len(e.Cases))-0.5, 1.15*top, ticks)
		p.Add(b)
		plots[i] = p
	}
	var entries []legendEntry
	for i, t := range transports {
		entries = append(entries, legendEntry{transportTitle(e, t), box(colorOf(i))})
	}
	caption := "Means, " + string(m.Provenance()) + "."
	if repeated {
		entries = append(entries, legendEntry{"95 % confidence", func(c draw.Canvas) { whisker(c, c.Center().X, c.Min.Y, c.Max.Y) }})
		caption = "Means with their 95 % confidence intervals, " + string(m.Provenance()) + "."
	}
	if !m.Model {
		pairs, err := comparePairs(spec, r, e)
		if err != nil {
			return figure{}, fmt.Errorf("draw figure %q: %w", spec.Name, err)
		}
		caption += " " + differences(pairs)
	}
	f := figure{
		name: spec.Name, title: clean(spec.Title), caption: strings.TrimSpace(clean(spec.Caption) + " " + clean(caption)), alt: barWords(spec, e, traffic, transports, panels),
	}
	columns := min(2, len(plots))
	lines := (len(plots) + columns - 1) / columns
	return render(f, legendSpace+vg.Length(lines)*260, func(c draw.Canvas) { tile(drawLegend(c, entries), plots, columns) })
}

// Plot implements plot.Plotter.
func (b *metricBars) Plot(c draw.Canvas, p *plot.Plot) {
	trX, trY := p.Transforms(&c)
	group := trX(1) - trX(0)
	value := style(8.5, ink)
	value.XAlign, value.YAlign = draw.XCenter, draw.YBottom
	for i, g := range b.groups {
		slot := group * groupShare / vg.Length(max(1, len(g)))
		x := trX(float64(i)) - group*groupShare/2
		for j, bar := range g {
			if bar.n > 0 {
				c.SetColor(colorOf(j))
				c.Fill(vg.Rectangle{Min: vg.Point{X: x + 0.05*slot, Y: trY(0)}, Max: vg.Point{X: x + 0.95*slot, Y: trY(bar.mean)}}.Path())
				if bar.n > 1 {
					whisker(c, x+slot/2, max(trY(bar.mean-bar.ci), c.Min.Y), trY(bar.tip()))
				}
				if text := shortValue(bar.mean); value.Width(text) < slot {
					c.FillText(value, vg.Point{X: x + slot/2, Y: trY(bar.tip()) + 2}, text)
				}
			} else {
				c.FillText(value, vg.Point{X: x + slot/2, Y: trY(0) + 2}, "–")
			}
			x += slot
		}
	}
}

// shortValue formats a value with three significant digits.
func shortValue(v float64) string {
	digits := 2
	if v > 0 {
		digits = min(3, max(0, 2-int(math.Floor(math.Log10(v)))))
	}
	return decimal(v, digits)
}

// barWords returns the alternative text of the bars.
func barWords(spec *scenario.Figure, e *scenario.Experiment, traffic, transports []string, panels []*metricBars) string {
	var b strings.Builder
	b.WriteString(lineLabel(spec) + " by pattern and transport.")
	for i, p := range panels {
		for j, g := range p.groups {
			fmt.Fprintf(&b, " %s %s:", trafficTitle(e, traffic[i]), clean(e.Cases[j].Name))
			sep := " "
			for k, bar := range g {
				if bar.n > 0 {
					fmt.Fprintf(&b, "%s%s %s", sep, transportTitle(e, transports[k]), shortValue(bar.mean))
					sep = ", "
				}
			}
			b.WriteByte('.')
		}
	}
	return b.String()
}

// pairDifference is the comparison of two transports in a case.
type pairDifference struct {
	caseName, traffic, a, b string
	stat.Comparison
}

// comparePairs compares each two transports in each case and traffic of a figure of kind bars. The
// metric of a model is an error: an estimate is no sample.
func comparePairs(spec *scenario.Figure, r result.Result, e *scenario.Experiment) ([]pairDifference, error) {
	if m, ok := result.MetricNamed(spec.Metric); !ok || m.Model {
		return nil, fmt.Errorf("compare %s: it is an estimate of a model, not a measurement", spec.Metric)
	}
	type place struct{ caseName, traffic string }
	var places []place
	var groups [][][]float64
	transports := spec.TransportsOf(e)
	for _, t := range e.TrafficNames() {
		if spec.Traffic != "" && t != spec.Traffic {
			continue
		}
		for _, c := range e.Cases {
			sets := make([][]float64, len(transports))
			for i, transport := range transports {
				sets[i] = r.Values(result.CellKey{Case: c.Name, Traffic: t, Transport: transport}, spec.Metric)
			}
			places, groups = append(places, place{c.Name, t}), append(groups, sets)
		}
	}
	all, err := stat.ComparePairs(groups)
	if err != nil {
		return nil, err
	}
	var pairs []pairDifference
	for _, c := range all {
		p := places[c.Group]
		pairs = append(pairs, pairDifference{p.caseName, p.traffic, transports[c.A], transports[c.B], c})
	}
	return pairs, nil
}

// differences describes the significant ones of a figure.
func differences(pairs []pairDifference) string {
	if len(pairs) == 0 {
		return "Too few trials to compare transports."
	}
	var found []string
	for _, p := range pairs {
		if p.Corrected <= significance {
			found = append(found, fmt.Sprintf("%s %s: %s and %s (p = %s, g = %s)", p.caseName, p.traffic, p.a, p.b, decimal(p.Corrected, 4), decimal(p.Effect, 1)))
		}
	}
	what := "none differs significantly"
	if len(found) > 0 {
		what = strconv.Itoa(len(found)) + " differ significantly: " + strings.Join(found, "; ")
	}
	return fmt.Sprintf("Of %d pairs of transports %s (Welch's t, Holm's correction, p <= %g; g is Hedges' effect size).", len(pairs), what, significance)
}

// pairsTable is the table of all comparisons of an experiment's figures of kind bars.
func pairsTable(r result.Result, e *scenario.Experiment) (header []string, lines [][]string, _ error) {
	header = []string{"figure", "metric", "case", "traffic", "a", "b", "t", "df", "p", "p_holm", "hedges_g"}
	for i := range e.Figures {
		f := &e.Figures[i]
		if m, _ := result.MetricNamed(f.Metric); f.Kind != scenario.FigureBars || m.Model {
			continue
		}
		pairs, err := comparePairs(f, r, e)
		if err != nil {
			return nil, nil, err
		}
		for _, p := range pairs {
			line := []string{f.Name, f.Metric, p.caseName, p.traffic, p.a, p.b}
			for _, v := range []float64{p.T, p.DF, p.P, p.Corrected, p.Effect} {
				line = append(line, strconv.FormatFloat(v, 'g', 6, 64))
			}
			lines = append(lines, line)
		}
	}
	return header, lines, nil
}
