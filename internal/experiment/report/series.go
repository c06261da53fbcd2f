package report

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"image/color"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// series is a trace with its file and its figures.
type series struct{ result.Trace }

// file returns the name of the series' file, relative to the result's directory.
func (s series) file() string {
	return fmt.Sprintf("series/%s-%s-%s-%d.csv", s.Case, s.Traffic, s.Transport, s.Trial)
}

// csv returns a line for each interval: the bytes received, and those of each subflow.
func (s series) csv() ([]byte, error) {
	header := []string{"start_s", "bytes"}
	for _, f := range s.Subflows {
		header = append(header, f.Name)
	}
	lines := [][]string{header}
	for i, x := range s.Samples {
		line := []string{strconv.FormatFloat(x.At.Seconds(), 'f', -1, 64), strconv.FormatInt(x.Bytes, 10)}
		for _, f := range s.Subflows {
			text := ""
			if i < len(f.Bytes) {
				text = strconv.FormatInt(f.Bytes[i], 10)
			}
			line = append(line, text)
		}
		lines = append(lines, line)
	}
	var b bytes.Buffer
	if err := csv.NewWriter(&b).WriteAll(lines); err != nil {
		return nil, fmt.Errorf("encode series of %s trial %d: %w", s.CellKey, s.Trial, err)
	}
	return b.Bytes(), nil
}

// points returns the middles of the whole intervals in seconds and their goodput in Mbit/s.
func (s series) points() plotter.XYs {
	var points plotter.XYs
	for i, x := range s.Samples {
		if i == len(s.Samples)-1 && len(s.Samples) > 1 {
			break
		}
		points = append(points, plotter.XY{X: (x.At + s.Interval/2).Seconds(), Y: float64(x.Bytes) * 8 / s.Interval.Seconds() / 1e6})
	}
	return points
}

// pauses returns the number of whole intervals after the first second without data.
func (s series) pauses() int {
	n := 0
	for _, p := range s.points() {
		if p.X >= 1 && p.Y == 0 {
			n++
		}
	}
	return n
}

// worst returns the series of the cell's trial with the most pauses, the first of several.
func worst(all []series, k result.CellKey) (series, bool) {
	var found series
	ok := false
	for _, s := range all {
		if s.CellKey == k && len(s.points()) > 0 && (!ok || s.pauses() > found.pauses()) {
			found, ok = s, true
		}
	}
	return found, ok
}

// seriesFigures draws goodput over time for each constant bit rate traffic with series.
func seriesFigures(all []series, e *scenario.Experiment) ([]figure, error) {
	var figures []figure
	for _, name := range e.TrafficNames() {
		if e.Traffic[name].Rate == 0 || !slices.ContainsFunc(all, func(s series) bool { return s.Traffic == name && len(s.points()) > 0 }) {
			continue
		}
		f, err := seriesFigure(all, e, name)
		if err != nil {
			return nil, err
		}
		figures = append(figures, f)
	}
	return figures, nil
}

func seriesFigure(all []series, e *scenario.Experiment, name string) (figure, error) {
	columns := min(2, len(e.Cases))
	lines := (len(e.Cases) + columns - 1) / columns
	width := figureWidth/vg.Length(columns) - 60

	offered := float64(e.Traffic[name].Rate) / 1e6
	end, top := 0.0, offered
	charts := make([]*pulse, len(e.Cases))
	var words strings.Builder
	fmt.Fprintf(&words, "Goodput over time of %s, a panel for each pattern. Intervals of 100 ms without data after the first second:", trafficTitle(e, name))
	sep := " "
	for i, c := range e.Cases {
		charts[i] = &pulse{offered: offered}
		for j, transport := range e.TransportNames() {
			s, ok := worst(all, result.CellKey{Case: c.Name, Traffic: name, Transport: transport})
			if !ok {
				continue
			}
			points := s.points()
			charts[i].lines = append(charts[i].lines, trace{points, colorOf(j)})
			end = max(end, (s.Samples[len(s.Samples)-1].At + s.Interval).Seconds())
			for _, p := range points {
				top = max(top, p.Y)
			}
			fmt.Fprintf(&words, "%s%s %s %d", sep, clean(c.Name), transportTitle(e, transport), s.pauses())
			sep = ", "
		}
	}
	words.WriteByte('.')

	plots := make([]*plot.Plot, len(charts))
	for i, chart := range charts {
		p := newPlot("", "Time since the request (s)", goodputLabel, 0, end, 1.05*top, nil)
		p.Title.Text = shorten(strings.TrimSpace("Pattern "+clean(e.Cases[i].Name)+"  "+clean(e.Cases[i].Title)), p.Title.TextStyle, width)
		if i+columns < len(charts) {
			p.X.Label.Text = ""
		}
		if i%columns > 0 {
			p.Y.Label.Text = ""
		}
		p.Add(chart)
		plots[i] = p
	}
	var entries []legendEntry
	for j, t := range e.TransportNames() {
		entries = append(entries, legendEntry{transportTitle(e, t), line(draw.LineStyle{Color: colorOf(j), Width: 1.6})})
	}
	entries = append(entries, legendEntry{"offered rate", line(dotted)}, legendEntry{"100 ms without data", func(c draw.Canvas) {
		for j := range e.TransportNames() {
			x := c.Center().X + vg.Length(4*(2*j-len(e.Transports)+1))/2
			c.StrokeLine2(draw.LineStyle{Color: colorOf(j), Width: 1.6}, x, c.Min.Y, x, c.Max.Y)
		}
	}})
	f := figure{
		name: "series-" + name, title: "Goodput over time, " + trafficTitle(e, name), alt: words.String(),
		caption: "Goodput per 100 ms. Of each cell, the trial with the most pauses is shown; the marks below the curves are intervals without data.",
	}
	return render(f, legendSpace+vg.Length(lines)*185, func(c draw.Canvas) {
		tile(drawLegend(c, entries), plots, columns)
	})
}

// trace is the goodput of one run over time.
type trace struct {
	points plotter.XYs
	color  color.Color
}

// pulse is one panel of traces.
type pulse struct {
	offered float64
	lines   []trace
}

// Plot implements plot.Plotter.
func (u *pulse) Plot(c draw.Canvas, p *plot.Plot) {
	trX, trY := p.Transforms(&c)
	c.StrokeLine2(dotted, c.Min.X, trY(u.offered), c.Max.X, trY(u.offered))
	for _, t := range u.lines {
		path := make([]vg.Point, len(t.points))
		for i, xy := range t.points {
			path[i] = vg.Point{X: trX(xy.X), Y: trY(xy.Y)}
		}
		c.StrokeLines(draw.LineStyle{Color: t.color, Width: 1}, path)
	}
	// A row of marks for each trace, so that they do not overlap.
	const mark = 5
	for j, t := range u.lines {
		y := c.Min.Y + 2 + vg.Length(j)*(mark+1.5)
		for _, xy := range t.points {
			if xy.Y == 0 {
				c.StrokeLine2(draw.LineStyle{Color: t.color, Width: 1.4}, trX(xy.X), y, trX(xy.X), y+mark)
			}
		}
	}
}
