package report

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/study/qoe"
)

// barChart is a figure of bars with confidence intervals: a panel for each title, with a group of
// bars for each group, and a bar for each series.
type barChart struct {
	titles, groups, series []string
	xLabel, yLabel         string
	// hatched are the series that are not of the same kind as the others.
	hatched map[int]bool
	// panels have a bar for each series of each group.
	panels [][][]metricBar
}

// metricBar is the mean of n values, with half of its confidence interval. There is none if n is 0.
type metricBar struct {
	mean, ci float64
	n        int
}

func (b metricBar) tip() float64 { return b.mean + b.ci }

// metricBars is one panel, as a plot.Plotter.
type metricBars struct {
	groups  [][]metricBar
	hatched map[int]bool
}

// barFigure draws a figure of kind bars. It returns none if no run has the metric.
func barFigure(spec *scenario.Figure, r result.Result, e *scenario.Experiment) (figure, error) {
	traffic := e.TrafficNames()
	if spec.Traffic != "" {
		traffic = []string{spec.Traffic}
	}
	m, _ := result.MetricNamed(spec.Metric)
	divide := cmp.Or(spec.Divide, 1)
	transports := spec.TransportsOf(e)
	along := "Pattern"
	if e.Kind == scenario.KindWeb {
		along = "Environment" // as paper E has it
	}
	measured := false
	b := &barChart{xLabel: orName(spec.XLabel, along), yLabel: lineLabel(spec) + ", " + string(m.Provenance())}
	cases := spec.CasesOf(e)
	for _, c := range cases {
		b.groups = append(b.groups, clean(c.Name))
	}
	for _, t := range transports {
		b.series = append(b.series, transportTitle(e, t))
	}
	var paths int
	b.hatched, paths = fewerPaths(m, transports, e)
	for _, t := range traffic {
		b.titles = append(b.titles, trafficTitle(e, t))
		var panel [][]metricBar
		for _, c := range cases {
			group := make([]metricBar, len(transports))
			for j, transport := range transports {
				if cell, ok := r.Find(result.CellKey{Case: c.Name, Traffic: t, Transport: transport}, spec.Metric); ok {
					group[j] = metricBar{cell.Mean / divide, cell.CI95 / divide, cell.N}
					measured = true
				}
			}
			panel = append(panel, group)
		}
		b.panels = append(b.panels, panel)
	}
	if !measured {
		return figure{}, nil
	}
	caption := b.means(m.Provenance())
	if len(b.hatched) > 0 {
		caption += fmt.Sprintf(" The filled bars are of one of %d paths, whose sum is %d times as large; the hatched ones are of transports with fewer paths, so compare them with that sum.", paths, paths)
	}
	if m.Model {
		caption += " " + capitalize(m.Title) + "; of a function of measured times, so nothing is tested."
	} else {
		pairs, err := comparePairs(spec, r, e)
		if err != nil {
			return figure{}, fmt.Errorf("draw figure %q: %w", spec.Name, err)
		}
		caption += " " + differences(pairs)
	}
	return b.draw(figure{
		name: spec.Name, title: clean(spec.Title), caption: strings.TrimSpace(clean(spec.Caption) + " " + clean(caption)), alt: b.words("pattern and transport"),
	})
}

// fewerPaths returns the transports, by their index, whose mean over paths is not comparable with
// that of others, because these have more paths, and the number of those.
func fewerPaths(m result.Metric, transports []string, e *scenario.Experiment) (fewer map[int]bool, paths int) {
	fewer = map[int]bool{}
	for _, t := range transports {
		paths = max(paths, len(e.Transports[t].Links))
	}
	for i, t := range transports {
		if m.PerPath && len(e.Transports[t].Links) < paths {
			fewer[i] = true
		}
	}
	return fewer, paths
}

// repeated reports whether any bar has a confidence interval.
func (b *barChart) repeated() bool {
	for _, panel := range b.panels {
		for _, group := range panel {
			for _, bar := range group {
				if bar.n > 1 {
					return true
				}
			}
		}
	}
	return false
}

// means describes what the bars are, as the start of a caption.
func (b *barChart) means(from qoe.Provenance) string {
	if b.repeated() {
		return "Means with their 95 % confidence intervals, " + string(from) + "."
	}
	return "Means, " + string(from) + "."
}

// folded returns a label in two lines if it is longer than that in a style.
func folded(label string, s text.Style, most vg.Length) string {
	if s.Width(label) <= most {
		return label
	}
	at := strings.LastIndex(label[:len(label)/2+1], " ")
	if at < 0 {
		return label
	}
	return label[:at] + "\n" + label[at+1:]
}

// panelHeight is the height of a line of panels.
const panelHeight = 260

// manyBars is the number of bars of a panel from which it takes the whole width.
const manyBars = 20

// draw draws the figure f.
func (b *barChart) draw(f figure) (figure, error) {
	top, most := 0.0, 0
	for _, panel := range b.panels {
		n := 0
		for _, group := range panel {
			n += len(group)
			for _, bar := range group {
				top = max(top, bar.tip())
			}
		}
		most = max(most, n)
	}
	if top == 0 {
		top = 1
	}
	ticks := make([]plot.Tick, len(b.groups))
	for i, name := range b.groups {
		ticks[i] = plot.Tick{Value: float64(i), Label: name}
	}
	plots := make([]*plot.Plot, len(b.panels))
	for i, panel := range b.panels {
		p := newPlot(b.titles[i], b.xLabel, folded(b.yLabel, style(9.5, ink), panelHeight-60), -0.5, float64(len(b.groups))-0.5, 1.15*top, ticks)
		p.Add(&metricBars{panel, b.hatched})
		plots[i] = p
	}
	var entries []legendEntry
	for i, name := range b.series {
		sample := box(colorOf(i))
		if b.hatched[i] {
			sample = func(c draw.Canvas) { hatch(c, c.Rectangle, colorOf(i)) }
		}
		entries = append(entries, legendEntry{name, sample})
	}
	if b.repeated() {
		entries = append(entries, legendEntry{"95 % confidence", func(c draw.Canvas) { whisker(c, c.Center().X, c.Min.Y, c.Max.Y) }})
	}
	columns := min(2, len(plots))
	if most > manyBars {
		columns = 1
	}
	lines := (len(plots) + columns - 1) / columns
	return render(f, legendHeight(entries)+vg.Length(lines)*panelHeight, func(c draw.Canvas) { tile(drawLegend(c, entries), plots, columns) })
}

// Plot implements plot.Plotter. Values are written above the bars, upright where the bars are
// narrow.
func (b *metricBars) Plot(c draw.Canvas, p *plot.Plot) {
	trX, trY := p.Transforms(&c)
	group := trX(1) - trX(0)
	for i, g := range b.groups {
		slot := group * groupShare / vg.Length(max(1, len(g)))
		value := style(min(8.5, slot), ink)
		value.XAlign, value.YAlign = draw.XCenter, draw.YBottom
		upright := false
		for _, bar := range g {
			upright = upright || value.Width(shortValue(bar.mean)) >= slot
		}
		if upright {
			value.Rotation, value.XAlign, value.YAlign = math.Pi/2, draw.XLeft, draw.YCenter
		}
		x := trX(float64(i)) - group*groupShare/2
		for j, bar := range g {
			if bar.n > 0 {
				r := vg.Rectangle{Min: vg.Point{X: x + 0.05*slot, Y: trY(0)}, Max: vg.Point{X: x + 0.95*slot, Y: trY(bar.mean)}}
				if c.SetColor(colorOf(j)); b.hatched[j] {
					hatch(c, r, colorOf(j))
				} else {
					c.Fill(r.Path())
				}
				if bar.n > 1 {
					whiskerOf(c, min(3, slot/3), x+slot/2, max(trY(bar.mean-bar.ci), c.Min.Y), trY(bar.tip()))
				}
				c.FillText(value, vg.Point{X: x + slot/2, Y: trY(bar.tip()) + 2}, shortValue(bar.mean))
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

// words returns the alternative text of the bars, which are by so and so.
func (b *barChart) words(by string) string {
	var t strings.Builder
	t.WriteString(b.yLabel + " by " + by + ".")
	for i, panel := range b.panels {
		for j, group := range panel {
			fmt.Fprintf(&t, " %s %s:", b.titles[i], b.groups[j])
			sep := " "
			for k, bar := range group {
				if bar.n > 0 {
					fmt.Fprintf(&t, "%s%s %s", sep, b.series[k], shortValue(bar.mean))
					sep = ", "
				}
			}
			t.WriteByte('.')
		}
	}
	return t.String()
}

// pairDifference is the comparison of two transports in a case.
type pairDifference struct {
	caseName, traffic, a, b string
	stat.Comparison
}

// comparePairs compares each two transports in each case and traffic of a figure of kind bars. The
// metric of a model is an error: an estimate is no sample. Means over different numbers of paths
// are not compared.
func comparePairs(spec *scenario.Figure, r result.Result, e *scenario.Experiment) ([]pairDifference, error) {
	m, ok := result.MetricNamed(spec.Metric)
	if !ok || m.Model {
		return nil, fmt.Errorf("compare %s: it is an estimate of a model, not a measurement", spec.Metric)
	}
	type place struct{ caseName, traffic string }
	var places []place
	var groups [][][]float64
	transports := spec.TransportsOf(e)
	fewer, _ := fewerPaths(m, transports, e)
	for _, t := range e.TrafficNames() {
		if spec.Traffic != "" && t != spec.Traffic {
			continue
		}
		for _, c := range spec.CasesOf(e) {
			sets := make([][]float64, len(transports))
			for i, transport := range transports {
				if fewer[i] {
					continue
				}
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
		return "No two transports have enough trials to be compared."
	}
	var found []string
	for _, p := range pairs {
		if p.Corrected <= qoe.Significance {
			found = append(found, fmt.Sprintf("%s %s: %s and %s (p %s, g = %s)", p.caseName, p.traffic, p.a, p.b, equalsP(p.Corrected), decimal(p.Effect, 1)))
		}
	}
	what := "none differs significantly"
	if len(found) > 0 {
		what = strconv.Itoa(len(found)) + " differ significantly: " + strings.Join(found, "; ")
	}
	return fmt.Sprintf("Of %d pairs of transports %s (Welch's t, Holm's correction, p <= %g; g is Hedges' effect size).", len(pairs), what, qoe.Significance)
}

// shortP formats a p-value.
func shortP(p float64) string {
	const digits = 4
	if least := math.Pow10(-digits); p < least {
		return "< " + decimal(least, digits)
	}
	return decimal(p, digits)
}

// equalsP formats a p-value for a sentence.
func equalsP(p float64) string {
	text := shortP(p)
	if strings.HasPrefix(text, "<") {
		return text
	}
	return "= " + text
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
				line = append(line, csvNumber(v))
			}
			lines = append(lines, line)
		}
	}
	return header, lines, nil
}
