package report

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/tabane/tabane/internal/analysis/capture"
	"github.com/tabane/tabane/internal/gateway/reseq"
)

// ReseqFigures draws, for each connection with records, the direction that carried more: data over
// time by subflow, the distribution of delays, bursts, and buffer occupancy. It writes NAME.svg and
// NAME.png into the directory and returns the names without extension.
func ReseqFigures(dir string, all []*capture.Connection) (names []string, err error) {
	var files []file
	for _, c := range all {
		d, to := mainDirection(c)
		if len(d.Records) == 0 {
			continue
		}
		for _, paint := range []func(*reseqView) (figure, error){(*reseqView).sequence, (*reseqView).delay, (*reseqView).bursts, (*reseqView).buffer} {
			f, err := paint(newReseqView(c, d, to))
			if err != nil {
				return nil, err
			}
			names = append(names, f.name)
			files = append(files, file{f.name + ".svg", f.svg}, file{f.name + ".png", f.png})
		}
	}
	if err := writeFiles(dir, files); err != nil {
		return nil, fmt.Errorf("write figures %q: %w", dir, err)
	}
	return names, nil
}

// ReseqTables writes the data of the figures as CSV files: connections.csv and subflows.csv of all,
// and segments, bursts and occupancy of each direction with records. It returns the names of the
// files.
func ReseqTables(dir string, all []*capture.Connection) (names []string, err error) {
	var files []file
	add := func(name string, header []string, lines [][]string) error {
		data, err := table(header, lines)
		if err != nil {
			return err
		}
		files, names = append(files, file{name, data}), append(names, name)
		return nil
	}
	var connections, subflows [][]string
	for _, c := range all {
		for _, to := range []string{toClient, toServer} {
			d := directionOf(c, to)
			connections = append(connections, connectionLine(c, d, to))
			for i := range c.Subflows {
				subflows = append(subflows, subflowLine(c, &c.Subflows[i], to))
			}
			if len(d.Records) == 0 {
				continue
			}
			prefix := fmt.Sprintf("connection-%d-%s-", c.Number, to)
			err := add(prefix+"segments.csv", []string{"arrived_s", "ordered_s", "released_s", "subflow", "data_seq", "bytes"}, csvLines(d.Records, func(r capture.Record) []string {
				return []string{inSeconds(r.Arrived), inSeconds(r.Ordered), inSeconds(r.Released), strconv.Itoa(r.Subflow + 1), strconv.FormatUint(r.Seq, 10), strconv.Itoa(r.Length)}
			}))
			if err != nil {
				return nil, err
			}
			if err := add(prefix+"bursts.csv", []string{"at_s", "segments", "bytes"}, csvLines(d.Series, func(b reseq.Burst) []string {
				return []string{inSeconds(b.At), strconv.Itoa(b.Segments), strconv.Itoa(b.Bytes)}
			})); err != nil {
				return nil, err
			}
			if err := add(prefix+"occupancy.csv", []string{"at_s", "bytes"}, csvLines(d.Occupancy, func(h capture.Occupancy) []string {
				return []string{inSeconds(h.At), strconv.FormatUint(h.Bytes, 10)}
			})); err != nil {
				return nil, err
			}
		}
	}
	if err := add("connections.csv", connectionHeader, connections); err != nil {
		return nil, err
	}
	if err := add("subflows.csv", subflowHeader, subflows); err != nil {
		return nil, err
	}
	if err := writeFiles(dir, files); err != nil {
		return nil, fmt.Errorf("write tables %q: %w", dir, err)
	}
	return names, nil
}

const (
	toClient = "to-client"
	toServer = "to-server"
)

func directionOf(c *capture.Connection, to string) *capture.Direction {
	if to == toServer {
		return &c.ToServer
	}
	return &c.ToClient
}

func mainDirection(c *capture.Connection) (d *capture.Direction, to string) {
	if c.ToServer.Bytes > c.ToClient.Bytes {
		return &c.ToServer, toServer
	}
	return &c.ToClient, toClient
}

func csvLines[T any](all []T, line func(T) []string) [][]string {
	list := make([][]string, len(all))
	for i, x := range all {
		list[i] = line(x)
	}
	return list
}

func inSeconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

var connectionHeader = []string{
	"connection", "direction", "protocol", "version", "client", "server", "subflows", "bytes", "segments", "before_bps", "goodput_bps",
	"delay_mean_s", "delay_sd_s", "delay_p50_s", "delay_p95_s", "delay_p99_s", "delay_max_s", "subflow_level_mean_s", "connection_level_mean_s",
	"burst_mean", "burst_p99", "burst_max", "occupancy_max_bytes", "occupancy_mean_bytes", "duplicate_bytes", "uncaptured_bytes", "longest_gap_s",
}

func connectionLine(c *capture.Connection, d *capture.Direction, to string) []string {
	u := func(v uint64) string { return strconv.FormatUint(v, 10) }
	f := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	return []string{
		strconv.Itoa(c.Number), to, c.Protocol, strconv.Itoa(c.Version), c.Client.String(), c.Server.String(), strconv.Itoa(len(c.Subflows)), u(d.Bytes), u(d.Segments),
		f(d.BeforeBps), f(d.GoodputBps), inSeconds(d.Delay.Mean), inSeconds(d.Delay.SD), inSeconds(d.Delay.P50), inSeconds(d.Delay.P95), inSeconds(d.Delay.P99),
		inSeconds(d.Delay.Max), inSeconds(d.SubflowLevel.Mean), inSeconds(d.ConnectionLevel.Mean), f(d.Bursts.Mean), strconv.FormatInt(d.Bursts.P99, 10),
		strconv.FormatInt(d.Bursts.Max, 10), u(d.PeakOccupancy.Bytes), f(d.MeanOccupancy), u(d.Duplicate), u(d.Uncaptured), inSeconds(d.LongestGap),
	}
}

var subflowHeader = []string{
	"connection", "direction", "subflow", "client", "server", "start", "backup", "rtt_s", "tunnels", "vantage", "packets", "segments", "bytes", "share", "rate_bps",
	"retransmitted_segments", "retransmitted_bytes", "reordered_segments", "reinjected_bytes", "duplicate_data_bytes", "unmapped_bytes", "uncaptured_bytes",
	"delay_mean_s", "delay_p99_s", "subflow_level_mean_s", "connection_level_mean_s",
}

func subflowLine(c *capture.Connection, s *capture.Subflow, to string) []string {
	d := &s.ToClient
	if to == toServer {
		d = &s.ToServer
	}
	u := func(v uint64) string { return strconv.FormatUint(v, 10) }
	var tunnels []string
	for _, t := range d.Tunnels {
		tunnels = append(tunnels, t.String())
	}
	return []string{
		strconv.Itoa(c.Number), to, strconv.Itoa(s.Number), s.Client.String(), s.Server.String(), s.Start, strconv.FormatBool(s.Backup), inSeconds(s.RTT),
		strings.Join(tunnels, " "), d.Vantage, u(d.Packets), u(d.Segments), u(d.Bytes), strconv.FormatFloat(d.Share, 'f', 6, 64), strconv.FormatFloat(d.RateBps, 'f', -1, 64),
		u(d.Retransmitted.Segments), u(d.Retransmitted.Bytes), u(d.Reordered.Segments), u(d.Reinjected), u(d.DuplicateData), u(d.Unmapped), u(d.Uncaptured),
		inSeconds(d.Delay.Mean), inSeconds(d.Delay.P99), inSeconds(d.SubflowLevel.Mean), inSeconds(d.ConnectionLevel.Mean),
	}
}

// reseqView draws one direction of a connection.
type reseqView struct {
	c          *capture.Connection
	d          *capture.Direction
	name       string
	title      string
	start, end float64 // seconds
}

func newReseqView(c *capture.Connection, d *capture.Direction, to string) *reseqView {
	v := &reseqView{c: c, d: d, name: fmt.Sprintf("connection-%d-%s-", c.Number, to)}
	v.title = fmt.Sprintf("connection %d %s", c.Number, strings.Replace(to, "-", " the ", 1))
	last := d.Last
	for _, r := range d.Records {
		last = max(last, r.Released)
	}
	v.start, v.end = d.First.Seconds(), last.Seconds()
	if v.end <= v.start {
		v.end = v.start + 1e-3
	}
	return v
}

const (
	reseqHeight = 240 * vg.Length(1)
	// reseqMarks is the maximum number of drawn segments: more would make the files larger, not
	// clearer.
	reseqMarks = 2000
	timeLabel  = "Time since the connection's first data (s)"
)

func (v *reseqView) at(d time.Duration) float64 { return d.Seconds() - v.start }

func (v *reseqView) plot(title, y string, top float64) *plot.Plot {
	return newPlot(title, timeLabel, y, 0, (v.end-v.start)*1.005, top*1.05, nil)
}

func (v *reseqView) subflowName(i int) string {
	s := &v.c.Subflows[i]
	d := &s.ToClient
	name := fmt.Sprintf("%d: from %s", s.Number, s.Server.Addr())
	if strings.HasSuffix(v.name, toServer+"-") {
		d, name = &s.ToServer, fmt.Sprintf("%d: from %s", s.Number, s.Client.Addr())
	}
	if len(d.Tunnels) > 0 {
		name += " via " + d.Tunnels[0].String()
	}
	return name
}

// byteUnit returns the unit for an axis up to that number of bytes.
func byteUnit(most float64) (name string, worth float64) {
	switch {
	case most >= 2e9:
		return "GB", 1e9
	case most >= 2e6:
		return "MB", 1e6
	}
	return "kB", 1e3
}

// sequence draws the position of each segment in the data, its arrival and its release: of all
// segments or, if these are too many, of those around the one with the longest delay.
func (v *reseqView) sequence() (figure, error) {
	drawn, part := v.d.Records, ""
	if len(drawn) > reseqMarks {
		longest := 0
		for i, r := range drawn {
			if r.Released-r.Arrived > drawn[longest].Released-drawn[longest].Arrived {
				longest = i
			}
		}
		from := min(max(0, longest-reseqMarks/2), len(drawn)-reseqMarks)
		drawn = drawn[from : from+reseqMarks]
		part = fmt.Sprintf("; %d of %d segments, around the longest wait", len(drawn), len(v.d.Records))
	}
	first, last := v.end, v.start
	low, top := math.Inf(1), 0.0
	used := map[int]bool{}
	for _, r := range drawn {
		first, last = min(first, r.Arrived.Seconds()), max(last, r.Released.Seconds())
		low, top = min(low, float64(r.Seq)), max(top, float64(r.Seq)+float64(r.Length))
		used[r.Subflow] = true
	}
	if part == "" {
		first, low = v.start, 0
	}
	name, worth := byteUnit(top)
	margin := 0.05 * (top - low)
	p := newPlot("Data over time, "+v.title+part, timeLabel, "Data sequence ("+name+")", first-v.start, last-v.start+max(0.005*(last-first), 1e-6), (top+margin)/worth, nil)
	if part != "" {
		p.Y.Min = (low - margin) / worth
	}
	p.Add(&sequencePlot{v, drawn, worth})
	var entries []legendEntry
	for i := range v.c.Subflows {
		if used[i] {
			entries = append(entries, legendEntry{v.subflowName(i), dot(colorOf(i))})
		}
	}
	entries = append(entries, legendEntry{"buffered until released", line(draw.LineStyle{Color: backdrop, Width: 0.8})})
	f := figure{name: v.name + "sequence", title: "Data over time", alt: fmt.Sprintf("Data sequence of %d segments over time, by subflow, with the time that each was buffered.", len(drawn))}
	return render(f, reseqHeight+90, func(c draw.Canvas) { tile(drawLegend(c, entries), []*plot.Plot{p}, 1) })
}

// dot returns a legend's sample of a mark.
func dot(c color.Color) func(draw.Canvas) {
	return func(dc draw.Canvas) {
		dc.DrawGlyph(draw.GlyphStyle{Color: c, Radius: 2.6, Shape: draw.CircleGlyph{}}, dc.Center())
	}
}

type sequencePlot struct {
	v     *reseqView
	drawn []capture.Record
	worth float64
}

// Plot implements plot.Plotter.
func (s *sequencePlot) Plot(c draw.Canvas, p *plot.Plot) {
	trX, trY := p.Transforms(&c)
	held := draw.LineStyle{Color: backdrop, Width: 0.35}
	middle := func(r *capture.Record) vg.Length { return trY((float64(r.Seq) + float64(r.Length)/2) / s.worth) }
	// The lines first, so that marks are on top.
	for i := range s.drawn {
		if r := &s.drawn[i]; r.Released > r.Arrived {
			c.StrokeLine2(held, trX(s.v.at(r.Arrived)), middle(r), trX(s.v.at(r.Released)), middle(r))
		}
	}
	for i := range s.drawn {
		r := &s.drawn[i]
		c.DrawGlyph(draw.GlyphStyle{Color: colorOf(r.Subflow), Radius: 1.1, Shape: draw.CircleGlyph{}}, vg.Point{X: trX(s.v.at(r.Arrived)), Y: middle(r)})
	}
}

// delay draws the distribution of the delay and of its two parts.
func (v *reseqView) delay() (figure, error) {
	total, own, others := make([]float64, 0, len(v.d.Records)), make([]float64, 0, len(v.d.Records)), make([]float64, 0, len(v.d.Records))
	for _, r := range v.d.Records {
		total = append(total, (r.Released-r.Arrived).Seconds()*1e3)
		own = append(own, (r.Ordered-r.Arrived).Seconds()*1e3)
		others = append(others, (r.Released-r.Ordered).Seconds()*1e3)
	}
	type curve struct {
		name   string
		values []float64
		style  draw.LineStyle
	}
	curves := []curve{{"resequencing delay", total, draw.LineStyle{Color: ink, Width: 1.6}}}
	if v.d.ConnectionLevel.Count > 0 {
		curves = append(curves,
			curve{"at the subflow level", own, draw.LineStyle{Color: colorOf(0), Width: 1.1}},
			curve{"at the connection level", others, draw.LineStyle{Color: colorOf(1), Width: 1.1}})
	}
	slices.Sort(total)
	top := total[len(total)-1]
	if top == 0 {
		top = 1
	}
	p := newPlot("Resequencing delay, "+v.title, "Delay (ms)", "Share of segments (%)", 0, top*1.02, 102, nil)
	var entries []legendEntry
	for _, x := range curves {
		slices.Sort(x.values)
		p.Add(&cdfPlot{x.values, x.style})
		entries = append(entries, legendEntry{x.name, line(x.style)})
	}
	d := v.d.Delay
	f := figure{
		name: v.name + "delay", title: "Resequencing delay",
		alt: fmt.Sprintf("Distribution of the resequencing delay: mean %v, median %v, 99 %% up to %v, at most %v.", d.Mean, d.P50, d.P99, d.Max),
	}
	return render(f, reseqHeight, func(c draw.Canvas) { tile(drawLegend(c, entries), []*plot.Plot{p}, 1) })
}

// cdfPlot draws the cumulative distribution of sorted values.
type cdfPlot struct {
	values []float64
	style  draw.LineStyle
}

// Plot implements plot.Plotter.
func (u *cdfPlot) Plot(c draw.Canvas, p *plot.Plot) {
	trX, trY := p.Transforms(&c)
	n := len(u.values)
	step := max(1, n/1000)
	path := []vg.Point{{X: trX(u.values[0]), Y: trY(0)}}
	for i := 0; i < n; i += step {
		y := trY(100 * float64(min(n, i+step)) / float64(n))
		x := trX(u.values[i])
		path = append(path, vg.Point{X: x, Y: path[len(path)-1].Y}, vg.Point{X: x, Y: y})
	}
	path = append(path, vg.Point{X: trX(u.values[n-1]), Y: trY(100)}, vg.Point{X: c.Max.X, Y: trY(100)})
	c.StrokeLines(u.style, path)
}

// bursts draws how many segments each arrival released.
func (v *reseqView) bursts() (figure, error) {
	most := 1.0
	points := make(plotter.XYs, 0, len(v.d.Series))
	for _, b := range v.d.Series {
		points = append(points, plotter.XY{X: v.at(b.At), Y: float64(b.Segments)})
		most = max(most, float64(b.Segments))
	}
	p := v.plot("Bursts, "+v.title, "Segments released at once", most)
	p.Add(&stemPlot{points: points, end: v.end - v.start})
	b := v.d.Bursts
	f := figure{
		name: v.name + "bursts", title: "Bursts",
		alt: fmt.Sprintf("Segments that each arrival released, over time: %d arrivals, %.1f segments on average, at most %d.", b.Count, b.Mean, b.Max),
	}
	return render(f, reseqHeight-20, func(c draw.Canvas) { tile(draw.Crop(c, 0, 0, 0, -8), []*plot.Plot{p}, 1) })
}

// stemPlot draws a line for each value; of those at the same position, for the largest.
type stemPlot struct {
	points plotter.XYs
	end    float64
}

// Plot implements plot.Plotter.
func (s *stemPlot) Plot(c draw.Canvas, p *plot.Plot) {
	trX, trY := p.Transforms(&c)
	style := draw.LineStyle{Color: colorOf(1), Width: 0.8}
	for _, xy := range highest(s.points, s.end, false) {
		c.StrokeLine2(style, trX(xy.X), trY(0), trX(xy.X), trY(xy.Y))
		if xy.Y >= p.Y.Max/20 {
			c.DrawGlyph(draw.GlyphStyle{Color: colorOf(1), Radius: 1.3, Shape: draw.CircleGlyph{}}, vg.Point{X: trX(xy.X), Y: trY(xy.Y)})
		}
	}
}

// highest keeps the highest point in each column of the figure and, with last, the last one, for a
// line that continues from there.
func highest(points plotter.XYs, end float64, last bool) plotter.XYs {
	const columns = 600
	var kept plotter.XYs
	for from := 0; from < len(points); {
		column, top, to := int(points[from].X/end*columns), from, from+1
		for ; to < len(points) && int(points[to].X/end*columns) == column; to++ {
			if points[to].Y > points[top].Y {
				top = to
			}
		}
		kept = append(kept, points[top])
		if last && top != to-1 {
			kept = append(kept, points[to-1])
		}
		from = to
	}
	return kept
}

// buffer draws the buffer occupancy over time.
func (v *reseqView) buffer() (figure, error) {
	points := make(plotter.XYs, 0, len(v.d.Occupancy))
	most := 0.0
	for _, h := range v.d.Occupancy {
		if x := v.at(h.At); x >= 0 {
			points = append(points, plotter.XY{X: x, Y: float64(h.Bytes)})
			most = max(most, float64(h.Bytes))
		}
	}
	name, worth := byteUnit(most)
	for i := range points {
		points[i].Y /= worth
	}
	top := most / worth
	if top == 0 {
		top = 1
	}
	p := v.plot("Reorder-buffer occupancy, "+v.title, "Buffered ("+name+")", top)
	p.Add(&stepPlot{highest(points, v.end-v.start, true), v.end - v.start})
	mean := v.d.MeanOccupancy / worth
	p.Add(&levelPlot{mean})
	entries := []legendEntry{
		{"buffered", line(draw.LineStyle{Color: colorOf(1), Width: 1.4})},
		{fmt.Sprintf("mean %s %s", decimal(mean, 1), name), line(dashed)},
	}
	f := figure{
		name: v.name + "buffer", title: "Reorder-buffer occupancy",
		alt: fmt.Sprintf("Bytes in the reorder buffer over time: at most %.0f, mean %.0f.", most, v.d.MeanOccupancy),
	}
	return render(f, reseqHeight, func(c draw.Canvas) { tile(drawLegend(c, entries), []*plot.Plot{p}, 1) })
}

// stepPlot draws a value that changes at points, with the area below filled.
type stepPlot struct {
	points plotter.XYs
	end    float64
}

// Plot implements plot.Plotter.
func (s *stepPlot) Plot(c draw.Canvas, p *plot.Plot) {
	if len(s.points) == 0 {
		return
	}
	trX, trY := p.Transforms(&c)
	y := trY(0)
	path := []vg.Point{{X: trX(0), Y: y}}
	for _, xy := range s.points {
		x := trX(xy.X)
		path = append(path, vg.Point{X: x, Y: y})
		y = trY(xy.Y)
		path = append(path, vg.Point{X: x, Y: y})
	}
	path = append(path, vg.Point{X: trX(s.end), Y: y})
	// In pieces: the time to render a path grows with the square of its length.
	const piece = 40
	pieces := func(do func([]vg.Point)) {
		for i := 0; i+1 < len(path); i += piece {
			do(path[i:min(len(path), i+piece+1)])
		}
	}
	pieces(func(part []vg.Point) {
		const seam = 0.2 // overlap, so that no line is visible between two
		last := part[len(part)-1]
		c.FillPolygon(rgb(0xd9e7f2), slices.Concat([]vg.Point{{X: part[0].X, Y: trY(0)}}, part, []vg.Point{{X: last.X + seam, Y: last.Y}, {X: last.X + seam, Y: trY(0)}}))
	})
	pieces(func(part []vg.Point) { c.StrokeLines(draw.LineStyle{Color: colorOf(1), Width: 0.9}, part) })
}

// levelPlot draws a horizontal line over the whole width.
type levelPlot struct{ at float64 }

// Plot implements plot.Plotter.
func (l *levelPlot) Plot(c draw.Canvas, p *plot.Plot) {
	_, trY := p.Transforms(&c)
	c.StrokeLine2(dashed, c.Min.X, trY(l.at), c.Max.X, trY(l.at))
}
