package report

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/tabane/tabane/internal/analysis/measure"
	"github.com/tabane/tabane/internal/experiment/measurement"
)

// Measurements is the report of measurements of one or more client networks.
type Measurements struct {
	// Command repeats the report, and Version is that of the program.
	Command, Version string
	Networks         []Network
}

// Network is the measurement of a client network.
type Network struct {
	measurement.Analysis

	Rows []measurement.Row
}

// WriteMeasurements writes the report into the directory, which it creates if needed: trials.csv,
// modes.csv, figures/*.svg and *.png and report.html. Each file is written as a whole or not at
// all. Equal measurements have equal files.
func WriteMeasurements(dir string, m Measurements) error {
	files, err := m.assemble()
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return writeFiles(dir, files)
}

func (m Measurements) assemble() ([]file, error) {
	if len(m.Networks) == 0 {
		return nil, errors.New("there is no measurement")
	}
	var figures []figure
	if f, ok, err := m.modesFigure(); err != nil {
		return nil, err
	} else if ok {
		figures = append(figures, f)
	}
	for i, n := range m.Networks {
		if f, ok, err := n.parallelFigure(fmt.Sprintf("parallel-%d", i+1)); err != nil {
			return nil, err
		} else if ok {
			figures = append(figures, f)
		}
	}
	var files []file
	for _, f := range figures {
		files = append(files, file{"figures/" + f.name + ".svg", f.svg}, file{"figures/" + f.name + ".png", f.png})
	}
	var trials bytes.Buffer
	for i, n := range m.Networks {
		var b bytes.Buffer
		if err := measurement.WriteCSV(&b, n.Plan, n.Rows); err != nil {
			return nil, err
		}
		lines := b.Bytes()
		if i > 0 {
			_, lines, _ = bytes.Cut(lines, []byte("\n")) // one header
		}
		trials.Write(lines)
	}
	modes, err := table(m.modesTable())
	if err != nil {
		return nil, err
	}
	html, err := m.page(figures)
	if err != nil {
		return nil, err
	}
	return append(files, file{"trials.csv", trials.Bytes()}, file{"modes.csv", modes}, file{"report.html", html}), nil
}

// parallelOf returns the number of connections of a mode with several TCP connections, and false
// for other modes.
func parallelOf(mode string) (n int, ok bool) {
	m, err := measure.ParseMode(mode)
	if err != nil || !m.Parallel() {
		return 0, false
	}
	return m.Connections, true
}

// panel is the box plots of one network.
type panel struct {
	// names are below the boxes, and above is over each.
	names, above []string
	modes        []measurement.ModeResult
	// colors are the indexes of the modes' colors.
	colors []int
}

func (p *panel) high() float64 {
	high := 0.0
	for _, m := range p.modes {
		high = max(high, m.Box.High)
		if n := len(m.Box.Outliers); n > 0 {
			high = max(high, m.Box.Outliers[n-1])
		}
	}
	return high
}

// Plot implements plot.Plotter.
func (p *panel) Plot(c draw.Canvas, on *plot.Plot) {
	trX, trY := on.Transforms(&c)
	width := min(0.5*(trX(1)-trX(0)), 26)
	text := valueStyle
	text.XAlign, text.YAlign = draw.XCenter, draw.YBottom
	for i, m := range p.modes {
		b := m.Box
		for _, v := range []*float64{&b.Q1, &b.Median, &b.Q3, &b.Low, &b.High} {
			*v /= 1e6
		}
		b.Outliers = slices.Clone(b.Outliers)
		top := b.High
		for j := range b.Outliers {
			b.Outliers[j] /= 1e6
			top = max(top, b.Outliers[j])
		}
		x := trX(float64(i))
		drawBox(c, b, x, width, trY, colorOf(p.colors[i]))
		c.FillText(text, vg.Point{X: x, Y: trY(top) + 4}, p.above[i])
	}
}

// plot returns the axes of the panel.
func (p *panel) plot(title, yLabel string, width vg.Length) *plot.Plot {
	marks := make([]plot.Tick, len(p.names))
	for i, n := range p.names {
		marks[i] = plot.Tick{Value: float64(i), Label: n}
	}
	high := p.high() / 1e6
	if high == 0 {
		high = 1
	}
	out := newPlot("", "", yLabel, -0.6, float64(len(p.names))-0.4, 1.18*high, marks)
	out.Title.Text = shorten(clean(title), out.Title.TextStyle, width)
	out.Add(p)
	return out
}

// above is the text over the box of a mode.
func above(m measurement.ModeResult) string {
	if !m.Known {
		return ""
	}
	return measurement.Percent(m.Ratio.Value)
}

// modesFigure draws the modes of all networks, as paper A's Fig. 12 and 13: a panel for each
// network.
func (m Measurements) modesFigure() (f figure, ok bool, err error) {
	modes := m.modes()
	if len(modes) < 2 {
		return figure{}, false, nil
	}
	columns := min(len(m.Networks), 3)
	width := figureWidth/vg.Length(columns) - 50
	var plots []*plot.Plot
	var words []string
	for i, n := range m.Networks {
		p := &panel{}
		for _, r := range n.Modes {
			at := slices.Index(modes, r.Mode)
			if at < 0 || len(r.Goodputs) == 0 {
				continue
			}
			p.names, p.above, p.modes, p.colors = append(p.names, shortMode(r.Mode)), append(p.above, above(r)), append(p.modes, r), append(p.colors, at)
			words = append(words, fmt.Sprintf("%s %s %s", clean(n.Plan.Name), r.Mode, decimal(r.Box.Median/1e6, 1)))
		}
		label := ""
		if i%columns == 0 {
			label = "Goodput (Mbit/s)"
		}
		plots = append(plots, p.plot(n.Plan.Name, label, width))
	}
	var entries []legendEntry
	for i, name := range modes {
		entries = append(entries, legendEntry{name, box(colorOf(i))})
	}
	f = figure{
		name: "modes", title: "Goodput of each mode, by client network", alt: "Box plots of the goodput in Mbit/s, medians: " + strings.Join(words, ", ") + ".",
		caption: "As Fig. 12 and 13 of paper A. Boxes are quartiles and median, whiskers reach to the last value within 1.5 times the box's height, circles are beyond. " +
			"Above each box is the median of its ratios to the first mode within blocks. Each panel has its own axis, from 0.",
	}
	lines := (len(plots) + columns - 1) / columns
	f, err = render(f, legendHeight(entries)+vg.Length(lines)*190, func(c draw.Canvas) { tile(drawLegend(c, entries), plots, columns) })
	return f, true, err
}

// shortMode is the name of a mode below its box, where the legend has the whole name.
func shortMode(name string) string {
	switch {
	case name == measure.Multipath:
		return "mp"
	case name == measure.MultipathBest:
		return "mp-best"
	}
	_, peer, has := strings.Cut(name, ":")
	if has {
		return peer
	}
	return name
}

// modes returns the modes of all networks without those of several TCP connections, in their order.
func (m Measurements) modes() (modes []string) {
	for _, n := range m.Networks {
		for _, r := range n.Modes {
			if _, parallel := parallelOf(r.Mode); !parallel && len(r.Goodputs) > 0 && !slices.Contains(modes, r.Mode) {
				modes = append(modes, r.Mode)
			}
		}
	}
	return modes
}

// parallelFigure draws the goodput of several TCP connections beside that of MPTCP, as paper A's
// Fig. 14, if the network has two numbers of connections.
func (n Network) parallelFigure(name string) (f figure, ok bool, err error) {
	p := &panel{}
	var several []measurement.ModeResult
	single := false
	for _, r := range n.Modes {
		connections, parallel := parallelOf(r.Mode)
		switch {
		case len(r.Goodputs) == 0:
		case r.Mode == measure.Multipath:
			p.names, p.above, p.modes, p.colors = append(p.names, "multipath"), append(p.above, above(r)), append(p.modes, r), append(p.colors, 0)
		case parallel:
			several = append(several, r)
			single = single || connections == 1
		}
	}
	for _, r := range n.Modes {
		if r.Mode == measure.TCP && !single && len(r.Goodputs) > 0 {
			several = append(several, r)
		}
	}
	connectionsOf := func(r measurement.ModeResult) int {
		connections, parallel := parallelOf(r.Mode)
		if !parallel {
			return 1
		}
		return connections
	}
	slices.SortFunc(several, func(a, b measurement.ModeResult) int { return connectionsOf(a) - connectionsOf(b) })
	if len(several) < 2 {
		return figure{}, false, nil
	}
	words := []string{}
	for _, r := range several {
		p.names, p.above, p.modes, p.colors = append(p.names, strconv.Itoa(connectionsOf(r))+" TCP"), append(p.above, above(r)), append(p.modes, r), append(p.colors, 1)
	}
	for i, r := range p.modes {
		words = append(words, fmt.Sprintf("%s %s", p.names[i], decimal(r.Box.Median/1e6, 1)))
	}
	f = figure{
		name: name, title: "Parallel TCP connections, " + clean(n.Plan.Name), alt: "Box plots of the goodput in Mbit/s, medians: " + strings.Join(words, ", ") + ".",
		caption: "As Fig. 14 of paper A: goodput of so many TCP connections over the best path at the same time, beside MPTCP over all paths. " +
			"Above each box is the median of its ratios to the first mode within blocks.",
	}
	f, err = render(f, 240, func(c draw.Canvas) {
		tile(c, []*plot.Plot{p.plot(n.Plan.Name, "Goodput (Mbit/s)", figureWidth-60)}, 1)
	})
	return f, true, err
}

// modesTable has a row for each mode of each network.
func (m Measurements) modesTable() (header []string, lines [][]string) {
	for _, n := range m.Networks {
		for i, r := range n.Modes {
			line := []string{n.Plan.Name, r.Mode, n.Plan.Traffic(), strconv.Itoa(len(r.Goodputs))}
			for _, v := range []float64{r.Box.Q1, r.Box.Median, r.Box.Q3} {
				line = append(line, numberIf(len(r.Goodputs) > 0, v))
			}
			for _, v := range []float64{r.Ratio.Value, r.Ratio.Low, r.Ratio.High, r.Ratio.P, r.Corrected} {
				line = append(line, numberIf(r.Known, v))
			}
			for _, v := range []float64{r.Idle, r.LoadedP50, r.LoadedP95, r.RPM, r.ObjectP50, r.ObjectP95} {
				line = append(line, numberIf(v > 0, v))
			}
			verdict := string(r.Verdict)
			if i == 0 {
				verdict = "compared with"
			}
			lines = append(lines, append(line, string(r.Ratio.Method), verdict))
		}
	}
	return []string{"network", "mode", "traffic", "n", "q1_bps", "median_bps", "q3_bps", "ratio", "low", "high", "p", "p_holm", "idle_p50_s", "loaded_p50_s", "loaded_p95_s", "rpm", "object_p50_s", "object_p95_s", "method", "verdict"}, lines
}

// measurePage is the data of the page's template.
type measurePage struct {
	Title, Summary, Headline, Command string
	Found                             []string
	Figures                           []pageFigure
	Modes, Latency, Conditions        *pageTable
	About                             []fact
	Files                             []string
}

func (m Measurements) page(figures []figure) ([]byte, error) {
	d := measurePage{Title: "Which way of delivery is best", Command: clean(m.Command), Files: []string{"modes.csv", "trials.csv"}, Modes: m.pageTable(), Latency: m.latencyTable(), Conditions: m.conditionsTable()}
	trials := 0
	for _, n := range m.Networks {
		trials += len(n.Rows)
		d.Found = append(d.Found, clean(n.Plan.Name+": "+n.Headline()))
		for _, note := range n.Notes {
			d.Found = append(d.Found, clean(n.Plan.Name+": note: "+note))
		}
	}
	if len(m.Networks) == 1 {
		d.Title += " for " + clean(m.Networks[0].Plan.Name)
		d.Headline, d.Found = clean(m.Networks[0].Headline()), d.Found[1:]
	} else {
		d.Headline = m.headline()
	}
	d.Summary = fmt.Sprintf("%d networks · %d trials", len(m.Networks), trials)
	if len(m.Networks) == 1 {
		d.Summary = fmt.Sprintf("%d trials", trials)
	}
	d.About = []fact{{"Version", "tabane " + clean(m.Version), false}}
	for _, f := range figures {
		p, err := onPage(f)
		if err != nil {
			return nil, err
		}
		d.Figures = append(d.Figures, p)
	}
	var b bytes.Buffer
	if err := pages.ExecuteTemplate(&b, "measure.html.tmpl", d); err != nil {
		return nil, fmt.Errorf("write page: %w", err)
	}
	return b.Bytes(), nil
}

// headline counts the networks in which each mode is better than the first, or worse, and by how
// much. Several TCP connections are a yardstick, and not counted.
func (m Measurements) headline() string {
	var modes []string
	firsts := map[string]bool{}
	for _, n := range m.Networks {
		firsts[n.Plan.Modes[0]] = true
		for _, r := range n.Modes[1:] {
			if r.Verdict != measurement.Yardstick && !slices.Contains(modes, r.Mode) {
				modes = append(modes, r.Mode)
			}
		}
	}
	first := "the first mode"
	if len(firsts) == 1 {
		first = m.Networks[0].Plan.Modes[0]
	}
	var parts []string
	for _, name := range modes {
		parts = append(parts, clean(name)+" is "+m.count(name, first))
	}
	if len(parts) == 0 {
		return "No verdict: only several TCP connections were measured, which are a yardstick."
	}
	return strings.Join(parts, ". ") + "."
}

// count counts the networks by the verdict of a mode.
func (m Measurements) count(mode, first string) string {
	of := 0
	ratios := map[measurement.Verdict][]float64{}
	for _, n := range m.Networks {
		for _, r := range n.Modes[1:] {
			if r.Mode == mode {
				of++
				ratios[r.Verdict] = append(ratios[r.Verdict], r.Ratio.Value)
			}
		}
	}
	better, worse := ratios[measurement.Better], ratios[measurement.Worse]
	text := fmt.Sprintf("better than %s in %d of %d networks%s", clean(first), len(better), of, sizes(better))
	if len(worse) > 0 {
		text += fmt.Sprintf(", worse in %d%s", len(worse), sizes(worse))
	}
	if n := len(ratios[measurement.Equal]); n > 0 {
		text += fmt.Sprintf(", without a difference that matters in %d", n)
	}
	if n := len(ratios[measurement.NotShown]) + len(ratios[measurement.TooFew]); n > 0 {
		text += fmt.Sprintf("; in %d that is not shown", n)
	}
	return text
}

// sizes prints the range of ratios that are all above 1, or all below.
func sizes(ratios []float64) string {
	if len(ratios) == 0 {
		return ""
	}
	low, high := slices.Min(ratios), slices.Max(ratios)
	if high < 1 {
		low, high = high, low
	}
	if len(ratios) == 1 {
		return fmt.Sprintf(" (by %s %%)", measurement.Size(low))
	}
	return fmt.Sprintf(" (by %s to %s %%)", measurement.Size(low), measurement.Size(high))
}

// pageTable has the modes of all networks.
func (m Measurements) pageTable() *pageTable {
	t := &pageTable{
		Caption: "Ratios are to the first mode of the network: the median of those within blocks, with an interval of 95 % by order statistics, which holds for all distributions; " +
			"or the geometric mean of those of pairs in one connection, by Student's t. p is of Wilcoxon's signed-rank test, or of the t-test, with Holm's correction for the modes of the network that are judged. " +
			"A difference does not matter if the whole interval is within ±5 %, and is otherwise better or worse if the interval excludes 1 and p is at most 0.05. " +
			"Several TCP connections are a yardstick, as in Fig. 14 of paper A: the client opens them, and no verdict is about them.",
		Columns: []pageColumn{{Title: "Network", keep: true}, {Title: "Mode", keep: true}, {"Trials", true, true}, {"Median, Mbit/s", true, true}, {"Quartiles", true, true}, {"Ratio", true, true}, {"95 % interval", true, true}, {"p, Holm", true, true}, {Title: "Verdict", keep: true}},
	}
	for _, n := range m.Networks {
		for i, r := range n.Modes {
			row := []pageCell{{Text: n.Plan.Name}, {Text: r.Mode}, {Text: strconv.Itoa(len(r.Goodputs))}}
			if len(r.Goodputs) == 0 {
				row = append(row, pageCell{Text: "-"}, pageCell{Text: "-"})
			} else {
				row = append(row, pageCell{Text: decimal(r.Box.Median/1e6, 2), Strong: true}, pageCell{Text: decimal(r.Box.Q1/1e6, 2) + " to " + decimal(r.Box.Q3/1e6, 2)})
			}
			switch {
			case r.Known:
				row = append(row, pageCell{Text: decimal(r.Ratio.Value, 2)}, pageCell{Text: decimal(r.Ratio.Low, 2) + " to " + decimal(r.Ratio.High, 2), Note: string(r.Ratio.Method)}, pageCell{Text: shortP(r.Corrected)},
					pageCell{Text: r.Words(), Strong: r.Verdict == measurement.Better, Bad: r.Verdict == measurement.Worse})
			case i == 0:
				row = append(row, pageCell{Text: "1"}, pageCell{}, pageCell{}, pageCell{Text: "compared with"})
			default:
				row = append(row, pageCell{Text: "-"}, pageCell{}, pageCell{}, pageCell{Text: string(r.Verdict)})
			}
			t.add(row...)
		}
	}
	return t.compact()
}

// latencyTable has the latency under load.
func (m Measurements) latencyTable() *pageTable {
	t := &pageTable{
		Caption: "Round-trip times of small requests on a connection of their own, before and beside the load, medians over the trials. RPM is 60 s over the mean of the times up to the 95th percentile.",
		Columns: []pageColumn{{Title: "Network", keep: true}, {Title: "Mode", keep: true}, {"Idle, ms", true, true}, {"Loaded p50, ms", true, true}, {"Loaded p95, ms", true, true}, {"RPM", true, true}},
	}
	for _, n := range m.Networks {
		for _, r := range n.Modes {
			row := []pageCell{{Text: n.Plan.Name}, {Text: r.Mode}}
			for _, v := range []float64{r.Idle, r.LoadedP50, r.LoadedP95} {
				text := "-"
				if v > 0 {
					text = decimal(1e3*v, 1)
				}
				row = append(row, pageCell{Text: text})
			}
			rpm := "-"
			if r.RPM > 0 {
				rpm = decimal(r.RPM, 0)
			}
			t.add(append(row, pageCell{Text: rpm})...)
		}
	}
	return t.compact()
}

// conditionsTable has what one needs to repeat the measurements.
func (m Measurements) conditionsTable() *pageTable {
	t := &pageTable{
		Columns: []pageColumn{{Title: "Network", keep: true}, {Title: "Server"}, {Title: "Load"}, {Title: "Order's seed"}, {Title: "From", keep: true}, {Title: "Client, kernel"}, {Title: "Server, kernel"}, {Title: "Congestion control"}, {Title: "Client's prefix"}, {"Failed trials", true, true}},
	}
	for _, n := range m.Networks {
		var c measurement.Conditions
		from := "-"
		for _, r := range n.Rows {
			if r.Failed == "" {
				c, from = r.Conditions, r.Started.Format("2006-01-02 15:04 UTC")
				break
			}
		}
		prefix := "-"
		if c.Client.IsValid() {
			prefix = c.Client.String()
		}
		t.add(pageCell{Text: n.Plan.Name}, pageCell{Text: n.Plan.Server}, pageCell{Text: loadWords(n.Plan)}, pageCell{Text: strconv.FormatUint(n.Plan.Seed, 10)}, pageCell{Text: from},
			pageCell{Text: c.ClientVersion + ", " + c.ClientKernel}, pageCell{Text: c.ServerVersion + ", " + c.ServerKernel}, pageCell{Text: c.Congestion}, pageCell{Text: prefix}, pageCell{Text: strconv.Itoa(n.Failed)})
	}
	return t.compact()
}

// loadWords describes what a trial transfers.
func loadWords(p measurement.Plan) string {
	switch l := p.Load; {
	case p.Paired:
		return "pairs of phases of one connection, " + p.Load.Time.String() + " each"
	case l.Rate > 0:
		return fmt.Sprintf("stream of %s for %s", l.Rate, l.Time)
	case l.Objects > 0:
		return fmt.Sprintf("%d objects of %s", l.Objects, l.Bytes)
	case l.Bytes > 0:
		return fmt.Sprintf("bulk of %s", l.Bytes)
	default:
		return fmt.Sprintf("bulk for %s", l.Time)
	}
}
