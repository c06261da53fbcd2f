package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// courseFigures draws, for each traffic, the throughput of each subflow over time in the runs of
// cases with events: a row for each case, a column for each transport.
func courseFigures(all []series, spec *scenario.Spec) ([]figure, error) {
	var figures []figure
	for _, name := range spec.Experiment.TrafficNames() {
		if !slices.ContainsFunc(all, func(s series) bool { return s.Traffic == name && len(s.points()) > 0 }) {
			continue
		}
		f, err := courseFigure(all, spec, name)
		if err != nil {
			return nil, err
		}
		figures = append(figures, f)
	}
	return figures, nil
}

func courseFigure(all []series, spec *scenario.Spec, name string) (figure, error) {
	e := spec.Experiment
	transports := e.TransportNames()
	columns := len(transports)
	width := figureWidth/vg.Length(columns) - 60

	var words strings.Builder
	fmt.Fprintf(&words, "Throughput of each subflow and goodput over time of %s, a row for each pattern. Mean goodput in Mbit/s:", trafficTitle(e, name))
	var courses []*course
	var titles []string
	end, top := 0.0, 0.0
	names := map[string]int{}
	for _, c := range e.Cases {
		for _, t := range transports {
			k := result.CellKey{Case: c.Name, Traffic: name, Transport: t}
			u, err := newCourse(all, spec, k)
			if err != nil {
				return figure{}, err
			}
			courses = append(courses, u)
			end, top = max(end, u.end), max(top, u.top())
			for _, f := range u.trace.Subflows {
				names[f.Name] = 0
			}
			title := fmt.Sprintf("%s  %s", clean(c.Name), transportTitle(e, t))
			if u.drawn {
				title += fmt.Sprintf(":  mean %s", decimal(u.trace.mean(), 1))
				fmt.Fprintf(&words, " %s %s %s,", clean(c.Name), transportTitle(e, t), decimal(u.trace.mean(), 1))
			}
			titles = append(titles, title)
		}
	}
	if end == 0 {
		end = 1
	}
	sorted := slices.Sorted(maps.Keys(names))
	for i, n := range sorted {
		names[n] = i
	}
	plots := make([]*plot.Plot, len(courses))
	for i, u := range courses {
		u.colors = names
		p := newPlot("", "Time since the request (s)", "Mbit/s", 0, end, 1.08*top, nil)
		p.Title.Text = shorten(titles[i], p.Title.TextStyle, width)
		if i+columns < len(courses) {
			p.X.Label.Text = ""
		}
		if i%columns > 0 {
			p.Y.Label.Text = ""
		}
		p.Add(u)
		plots[i] = p
	}
	entries := []legendEntry{{"sum", line(sumStyle)}, {"goodput", line(draw.LineStyle{Color: backdrop, Width: 1.6})}}
	for i, n := range sorted {
		entries = append(entries, legendEntry{"subflow " + clean(n), line(draw.LineStyle{Color: colorOf(i), Width: 1.6})})
	}
	entries = append(entries, legendEntry{"limit after all headers", line(dashed)}, legendEntry{"event", func(c draw.Canvas) {
		c.StrokeLine2(eventStyle, c.Center().X, c.Min.Y, c.Center().X, c.Max.Y)
	}})
	if slices.ContainsFunc(courses, func(u *course) bool { return len(u.published) > 0 }) {
		entries = append(entries, publishedEntry)
	}
	f := figure{
		name: "course-" + name, title: "Subflows over time, " + trafficTitle(e, name), alt: strings.TrimSuffix(words.String(), ",") + ".",
		caption: "Throughput of each subflow of the server per 100 ms, as the client's kernel acknowledged it, their sum, and the goodput that the " +
			"client's application received in order; the titles have the mean goodput. Of each cell, the trial with the most pauses is shown. The dashed line is the " +
			"available capacity of the usable links after all headers, at most the offered rate." + publishedIn(e, result.GoodputBefore, result.GoodputAfter),
	}
	lines := len(e.Cases)
	return render(f, legendSpace+vg.Length(lines)*165, func(c draw.Canvas) {
		tile(drawLegend(c, entries), plots, columns)
	})
}

var (
	goodputStyle = draw.LineStyle{Color: backdrop, Width: 0.8}
	sumStyle     = draw.LineStyle{Color: ink, Width: 1.3}
	eventStyle   = draw.LineStyle{Color: muted, Width: 1, Dashes: []vg.Length{1.2, 1.8}}
)

// mean returns the goodput of all whole intervals in Mbit/s.
func (s series) mean() float64 {
	points := s.points()
	sum := 0.0
	for _, p := range points {
		sum += p.Y
	}
	return sum / float64(len(points))
}

// throughput returns the sum of the subflows' throughput in each whole interval, or the goodput of
// a connection without subflows.
func (s series) throughput() plotter.XYs {
	points := s.points()
	if len(s.Subflows) == 0 {
		return points
	}
	for i := range points {
		points[i].Y = 0
		for _, f := range s.Subflows {
			points[i].Y += s.rate(f, i)
		}
	}
	return points
}

// rate returns the throughput of a subflow in an interval, in Mbit/s.
func (s series) rate(f result.Subflow, i int) float64 {
	if i >= len(f.Bytes) {
		return 0
	}
	return float64(f.Bytes[i]) * 8 / s.Interval.Seconds() / 1e6
}

// course is one panel: a run's goodput, its subflows, its limit and its events.
type course struct {
	trace series
	drawn bool
	// limit has the corners of step lines, in seconds and Mbit/s. A limit that is not known has
	// no line.
	limit  []plotter.XYs
	end    float64
	colors map[string]int
	// published are published goodputs before and after the first event.
	published []publishedSpan
}

// publishedSpan is a published goodput in Mbit/s and the time that it is of, in seconds.
type publishedSpan struct{ from, to, mbit float64 }

func newCourse(all []series, spec *scenario.Spec, k result.CellKey) (*course, error) {
	u := &course{}
	u.trace, u.drawn = worst(all, k)
	if !u.drawn {
		return u, nil
	}
	u.end = (u.trace.Samples[len(u.trace.Samples)-1].At + u.trace.Interval).Seconds()
	phases, err := spec.Phases(k)
	if err != nil {
		return nil, err
	}
	var step plotter.XYs
	for i, p := range phases {
		from, to := u.phaseAt(i, p), u.end
		if i+1 < len(phases) {
			to = u.phaseAt(i+1, phases[i+1])
		}
		if p.Links == 0 {
			if len(step) > 0 {
				u.limit, step = append(u.limit, step), nil
			}
			continue
		}
		step = append(step, plotter.XY{X: from, Y: p.Links / 1e6}, plotter.XY{X: min(to, u.end), Y: p.Links / 1e6})
	}
	if len(step) > 0 {
		u.limit = append(u.limit, step)
	}
	if c := spec.Experiment.Case(k.Case); len(u.trace.Events) > 0 {
		event := u.trace.Events[0].Seconds()
		for metric, span := range map[string]publishedSpan{result.GoodputBefore: {0, event, 0}, result.GoodputAfter: {event, u.end, 0}} {
			if p, ok := c.PublishedOf(metric, k.Traffic, k.Transport); ok {
				span.mbit = p.Value / 1e6
				u.published = append(u.published, span)
			}
		}
		slices.SortFunc(u.published, func(a, b publishedSpan) int { return cmp.Compare(a.from, b.from) })
	}
	return u, nil
}

// phaseAt returns when a phase began in this run: at the actual time of its event, or as scheduled.
func (u *course) phaseAt(i int, p result.Phase) float64 {
	if at, began := u.trace.Began(p); i > 0 && began {
		return at.Seconds()
	}
	return p.At.Seconds()
}

// top returns the upper end of the axis in Mbit/s. A burst after a pause is cut off at 1.5 times
// the limit: it is not a rate.
func (u *course) top() float64 {
	top, most := 0.0, 0.0
	for _, step := range u.limit {
		for _, xy := range step {
			most = max(most, xy.Y)
		}
	}
	if u.drawn {
		for _, p := range u.trace.points() {
			top = max(top, p.Y)
		}
	}
	for _, p := range u.published {
		most = max(most, p.mbit)
	}
	if most > 0 {
		top = max(most, min(top, 1.5*most))
	}
	return max(top, 1)
}

// Plot implements plot.Plotter.
func (u *course) Plot(c draw.Canvas, p *plot.Plot) {
	if !u.drawn {
		return
	}
	trX, trY := p.Transforms(&c)
	stroke := func(style draw.LineStyle, points plotter.XYs) {
		path := make([]vg.Point, len(points))
		for i, xy := range points {
			path[i] = vg.Point{X: trX(xy.X), Y: min(trY(xy.Y), c.Max.Y)}
		}
		c.StrokeLines(style, path)
	}
	for _, at := range u.trace.Events {
		x := trX(at.Seconds())
		c.StrokeLine2(eventStyle, x, c.Min.Y, x, c.Max.Y)
	}
	for _, step := range u.limit {
		stroke(dashed, step)
	}
	if len(u.trace.Subflows) > 0 {
		stroke(goodputStyle, u.trace.points())
	}
	for _, f := range u.trace.Subflows {
		points := u.trace.points()
		for i := range points {
			points[i].Y = u.trace.rate(f, i)
		}
		stroke(draw.LineStyle{Color: colorOf(u.colors[f.Name]), Width: 1}, points)
	}
	stroke(sumStyle, u.trace.throughput())
	for _, p := range u.published {
		publishedMark(c, trX(p.from), trX(p.to), trY(p.mbit))
	}
}
