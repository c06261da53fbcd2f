package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/gateway/reseq"
)

// burstFigure draws what was released at one instant, over time: a panel for each transport.
func burstFigure(spec *scenario.Figure, traces []series, e *scenario.Experiment) (figure, error) {
	transports := spec.TransportsOf(e)
	panels := make([]*impulses, len(transports))
	top, to := 0.0, spec.To.Seconds()
	var words strings.Builder
	for i, t := range transports {
		panels[i] = &impulses{references: spec.References}
		k := result.CellKey{Case: spec.Case, Traffic: spec.TrafficOf(e), Transport: t}
		at := slices.IndexFunc(traces, func(s series) bool { return s.CellKey == k && len(s.Bursts) > 0 })
		if at < 0 {
			continue
		}
		for _, b := range traces[at].Bursts {
			if b.At >= spec.From && (spec.To == 0 || b.At <= spec.To) {
				panels[i].bursts = append(panels[i].bursts, b)
				top = max(top, float64(b.Segments))
			}
		}
		if n := len(panels[i].bursts); n > 0 && spec.To == 0 {
			to = max(to, math.Ceil(panels[i].bursts[n-1].At.Seconds()))
		}
		fmt.Fprintf(&words, " %s: %d bursts of %d segments or more.", transportTitle(e, t), panels[i].large(), result.LargeBurst)
	}
	for _, ref := range spec.References {
		top = max(top, *ref.Y)
	}
	if top == 0 {
		top = 1
	}
	if to <= spec.From.Seconds() {
		to = spec.From.Seconds() + 1
	}
	plots := make([]*plot.Plot, len(panels))
	for i, panel := range panels {
		title := ""
		if len(panels) > 1 {
			title = transportTitle(e, transports[i])
		}
		p := newPlot(title, orName(spec.XLabel, "Time (s)"), orName(spec.YLabel, "Burst (segments)"), spec.From.Seconds(), to, 1.1*top, nil)
		if i+1 < len(panels) {
			p.X.Label.Text = ""
		}
		p.Add(panel)
		plots[i] = p
	}
	entries := []legendEntry{{"released at one instant", func(c draw.Canvas) {
		for _, x := range []vg.Length{-4, 0, 4} {
			c.StrokeLine2(impulseStyle, c.Center().X+x, c.Min.Y, c.Center().X+x, c.Max.Y-3+x/2)
		}
	}}}
	for i, ref := range spec.References {
		entries = append(entries, legendEntry{clean(ref.Title), line(referenceStyle(i))})
	}
	f := figure{
		name: spec.Name, title: clean(spec.Title),
		caption: strings.TrimSpace(clean(spec.Caption) + " Each line is what the resequencing buffer released at one instant, of the first trial."),
		alt:     "Lengths of bursts over time." + words.String(),
	}
	return render(f, legendSpace+vg.Length(len(panels))*235, func(c draw.Canvas) { tile(drawLegend(c, entries), plots, 1) })
}

// burstsFile returns the name of the file with the bursts of a series, relative to the result's
// directory.
func (s series) burstsFile() string { return strings.TrimSuffix(s.file(), ".csv") + "-bursts.csv" }

// burstsCSV returns a line for each instant at which segments were released.
func (s series) burstsCSV() ([]byte, error) {
	lines := make([][]string, len(s.Bursts))
	for i, b := range s.Bursts {
		lines[i] = []string{strconv.FormatFloat(b.At.Seconds(), 'f', -1, 64), strconv.Itoa(b.Segments), strconv.Itoa(b.Bytes)}
	}
	return table([]string{"time_s", "segments", "bytes"}, lines)
}

var impulseStyle = draw.LineStyle{Color: colorOf(1), Width: 0.8}

// impulses is one panel of bursts.
type impulses struct {
	bursts     []reseq.Burst
	references []scenario.Reference
}

func (u *impulses) large() int {
	n := 0
	for _, b := range u.bursts {
		if b.Segments >= result.LargeBurst {
			n++
		}
	}
	return n
}

// Plot implements plot.Plotter.
func (u *impulses) Plot(c draw.Canvas, p *plot.Plot) {
	trX, trY := p.Transforms(&c)
	for i, ref := range u.references {
		c.StrokeLine2(referenceStyle(i), c.Min.X, trY(*ref.Y), c.Max.X, trY(*ref.Y))
	}
	// Of bursts at the same position only the longest is drawn.
	const fine = 0.4
	drawn, longest := math.Inf(-1), 0
	flush := func() {
		if longest > 0 {
			x := c.Min.X + vg.Length(drawn*fine)
			c.StrokeLine2(impulseStyle, x, trY(0), x, trY(float64(longest)))
		}
	}
	for _, b := range u.bursts {
		at := math.Round(float64(trX(b.At.Seconds())-c.Min.X) / fine)
		if at != drawn {
			flush()
			drawn, longest = at, 0
		}
		longest = max(longest, b.Segments)
	}
	flush()
}
