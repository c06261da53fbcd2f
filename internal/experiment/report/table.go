package report

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// number is a value that may be absent.
type number struct {
	value float64
	ok    bool
}

// ratio returns a/b if both are present and b is not 0.
func ratio(a, b number) number {
	if !a.ok || !b.ok || b.value == 0 {
		return number{}
	}
	return number{a.value / b.value, true}
}

// row is a row of the result table: one cell of the experiment.
type row struct {
	result.CellKey
	CaseTitle, TrafficTitle, TransportTitle string
	// Trials is the number of runs, Failed that of failed ones.
	Trials, Failed int
	// delivered is whether Goodput, in bit/s, is of at least one run.
	delivered bool
	Goodput   stat.Summary
	// limit and offered are in bit/s.
	limit, limitTCP, offered number
	// published is the published value in bit/s.
	published number
	// gain is the goodput relative to the baseline's, and absent for the baseline.
	gain number
	// gap and reach are in seconds, the worst over the trials: the longest pause since the
	// first event, and the time to the limit. lost is the number of lost connections.
	gap, reach number
	lost       int
	// delay is the mean resequencing delay in seconds, burst the longest burst in segments: the
	// mean of all trials, and the worst.
	delay, burst number
	// best and bound are the shares of the best path alone and of what the paths can carry; p50 and
	// p95 are the times of objects in seconds; pause is the longest, the worst over the trials.
	best, bound, p50, p95, pause number
}

// rows returns the whole table in the scenario's order, including cells without a run.
func rows(r result.Result, e *scenario.Experiment) []row {
	median := func(k result.CellKey, metric string) number {
		c, ok := r.Find(k, metric)
		return number{c.Median, ok}
	}
	worst := func(k result.CellKey, metric string) number {
		c, ok := r.Find(k, metric)
		return number{c.Max, ok}
	}
	var all []row
	for _, k := range e.Cells() {
		w := row{
			CellKey: k, CaseTitle: caseTitle(e, k.Case), TrafficTitle: trafficTitle(e, k.Traffic), TransportTitle: transportTitle(e, k.Transport),
			limit: median(k, result.LimitRate), limitTCP: median(k, result.LimitTCPRate), offered: median(k, result.OfferedRate),
			best: median(k, result.ShareOfBest), bound: median(k, result.ShareOfBound),
			p50: median(k, result.ObjectTimeP50), p95: median(k, result.ObjectTimeP95),
			gap: worst(k, result.GapAfter), reach: worst(k, result.TimeToLimit),
		}
		for _, run := range r.Runs {
			if run.CellKey == k {
				w.Trials++
				if run.Err() != nil {
					w.Failed++
				}
				w.lost += int(run.Metrics[result.ConnectionsLost])
			}
		}
		if len(e.BestOf) > 0 {
			w.pause = worst(k, result.LongestGap)
		}
		if c, ok := r.Find(k, result.ReseqDelayMean); ok {
			w.delay = number{c.Mean, true}
		}
		w.burst = worst(k, result.BurstMax)
		if c, ok := r.Find(k, result.Goodput); ok {
			w.delivered, w.Goodput = true, c.Summary
		}
		if p, ok := e.Case(k.Case).PublishedOf(result.Goodput, k.Traffic, k.Transport); ok {
			w.published = number{p.Value, true}
		}
		if k.Transport != e.Baseline {
			base := k
			base.Transport = e.Baseline
			w.gain = ratio(w.goodput(), median(base, result.Goodput))
		}
		all = append(all, w)
	}
	return all
}

func (w row) goodput() number { return number{w.Goodput.Median, w.delivered} }

// Value formats the median goodput in Mbit/s, or why there is none.
func (w row) Value() string {
	switch {
	case w.delivered:
		return mbit(w.Goodput.Median, 2)
	case w.Failed > 0:
		return "failed"
	}
	return "no run"
}

// Range formats the range over the trials in Mbit/s; it is empty for a single trial.
func (w row) Range() string {
	if !w.delivered || w.Goodput.N < 2 {
		return ""
	}
	return mbit(w.Goodput.Min, 2) + " to " + mbit(w.Goodput.Max, 2)
}

// Limit formats the limit in Mbit/s, Share and ShareTCP the share of it that was reached.
func (w row) Limit() string {
	if !w.limit.ok {
		return ""
	}
	return mbit(w.limit.value, 2)
}

func (w row) Share() string    { return percent(ratio(w.goodput(), w.limit)) }
func (w row) ShareTCP() string { return percent(ratio(w.goodput(), w.limitTCP)) }

// Gain formats the gain in goodput over the baseline: "+191 %".
func (w row) Gain() string {
	if !w.gain.ok {
		return ""
	}
	text := fmt.Sprintf("%+.1f %%", 100*(w.gain.value-1))
	return strings.Replace(text, "-0.0 ", "+0.0 ", 1)
}

// Gap formats the longest pause in milliseconds, Reach the time to the limit in seconds.
func (w row) Gap() string {
	return inMilliseconds(w.gap)
}

// inMilliseconds formats a time in seconds, or nothing.
func inMilliseconds(v number) string {
	if !v.ok {
		return ""
	}
	return decimal(1000*v.value, 0)
}

func (w row) Reach() string {
	if !w.reach.ok {
		return ""
	}
	return decimal(w.reach.value, 1)
}

// Delay formats the mean resequencing delay in milliseconds, Burst the longest burst in segments.
func (w row) Delay() string {
	if !w.delay.ok {
		return ""
	}
	return decimal(1000*w.delay.value, 2)
}

func (w row) Burst() string {
	if !w.burst.ok {
		return ""
	}
	return decimal(w.burst.value, 0)
}

// resequences reports whether any of the rows has a resequencing delay.
func resequences(all []row) bool {
	return slices.ContainsFunc(all, func(w row) bool { return w.delay.ok })
}

// Lost formats the number of lost connections.
func (w row) Lost() string { return strconv.Itoa(w.lost) }

func percent(n number) string {
	if !n.ok {
		return ""
	}
	return fmt.Sprintf("%.1f %%", 100*n.value)
}

// mbit formats bit/s as Mbit/s.
func mbit(bps float64, digits int) string { return decimal(bps/1e6, digits) }

// decimal formats v with the given number of decimals, or a large v with an exponent.
func decimal(v float64, digits int) string {
	if v >= 1e9 {
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}

func orName(title, name string) string {
	if title == "" {
		return clean(name)
	}
	return clean(title)
}

// caseTitle returns the title of a case, which may be empty.
func caseTitle(e *scenario.Experiment, name string) string {
	for _, c := range e.Cases {
		if c.Name == name {
			return clean(c.Title)
		}
	}
	return ""
}

func trafficTitle(e *scenario.Experiment, name string) string {
	if t := e.Traffic[name]; t != nil {
		return orName(t.Title, name)
	}
	return clean(name)
}

func transportTitle(e *scenario.Experiment, name string) string {
	if t := e.Transports[name]; t != nil {
		return orName(t.Title, name)
	}
	return clean(name)
}

// clean replaces characters that are not printable, which could control a terminal or make XML
// invalid.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == ' ' || unicode.IsGraphic(r) && r != '\u2028' && r != '\u2029' {
			return r
		}
		return utf8.RuneError
	}, s)
}

// Table prints the result for a terminal: the cells with their goodput, share of the limit and
// gain, then the verdicts. What does not fit into width columns, unless 0, follows in further tables.
// A scenario without an experiment is an error.
func Table(w io.Writer, r result.Result, spec *scenario.Spec, width int) error {
	if spec.Experiment == nil {
		return fmt.Errorf("print result %q: the scenario has no experiment", r.Scenario)
	}
	e := spec.Experiment
	var b strings.Builder
	if routes := newRouteTable(r, e); routes != nil {
		alignWithin(&b, routes.text(), 2, width)
	} else if web := newWebTable(r, e); web != nil {
		alignWithin(&b, web.text(), 3, width)
		b.WriteString(mosNote())
	} else {
		alignWithin(&b, goodputLines(rows(r, e), e), 3, width)
	}

	if len(r.Expect)+len(r.NotJudged)+len(r.Findings) > 0 {
		b.WriteByte('\n')
	}
	for _, v := range r.Expect {
		if v.Holds {
			fmt.Fprintf(&b, "holds  %s: %s\n", clean(v.Name), clean(v.Got))
		} else {
			fmt.Fprintf(&b, "FAILS  %s: %s\n       want %s\n", clean(v.Name), clean(v.Got), clean(v.Want))
		}
	}
	for _, n := range r.NotJudged {
		fmt.Fprintf(&b, "not judged  %s: %s\n", clean(n.Name), clean(n.Why))
	}
	b.WriteString(findingsText(r))
	if note := early(r); note != "" {
		fmt.Fprintf(&b, "\n%s\n", note)
	}
	if note := busy(r); note != "" && !r.Holds() {
		fmt.Fprintf(&b, "\n%s\n", note)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print result %q: %w", r.Scenario, err)
	}
	return nil
}

// goodputLines returns the table of cells with their goodput, after its header. It has only the
// columns that something is in.
func goodputLines(all []row, e *scenario.Experiment) [][]string {
	type column struct {
		title string
		cell  func(row) string
	}
	columns := []column{
		{"PATTERN", func(r row) string { return clean(r.Case) }},
		{"TRAFFIC", func(r row) string { return clean(r.Traffic) }},
		{"TRANSPORT", func(r row) string { return clean(r.Transport) }},
		{"GOODPUT (Mbit/s)", row.Value},
	}
	for _, c := range []column{{"MIN TO MAX", row.Range}, {"OF LIMIT", row.Share}, {"GAIN OVER " + strings.ToUpper(transportTitle(e, e.Baseline)), row.Gain}} {
		if slices.ContainsFunc(all, func(r row) bool { return c.cell(r) != "" }) {
			columns = append(columns, c)
		}
	}
	if e.HasEvents() {
		columns = append(columns, column{"GAP (ms)", row.Gap}, column{"TO LIMIT (s)", row.Reach}, column{"LOST", row.Lost})
	}
	if len(e.BestOf) > 0 {
		columns = append(columns,
			column{"OF BEST", func(r row) string { return percent(r.best) }}, column{"OF BOUND", func(r row) string { return percent(r.bound) }},
			column{"OBJECT (ms)", func(r row) string { return inMilliseconds(r.p50) }}, column{"95 % (ms)", func(r row) string { return inMilliseconds(r.p95) }},
			column{"PAUSE (ms)", func(r row) string { return inMilliseconds(r.pause) }})
	}
	if resequences(all) {
		columns = append(columns, column{"RESEQ DELAY (ms)", row.Delay}, column{"MAX BURST", row.Burst})
	}
	lines := make([][]string, 1+len(all))
	for _, c := range columns {
		lines[0] = append(lines[0], c.title)
		for i, r := range all {
			lines[i+1] = append(lines[i+1], c.cell(r))
		}
	}
	return lines
}

// early reports how many runs there are of an experiment that ended early, and is empty otherwise.
func early(r result.Result) string {
	if r.Planned == 0 {
		return ""
	}
	return fmt.Sprintf("It ended early: %d of %d runs were done.", len(r.Runs), r.Planned)
}

// busy reports in how many runs the host was too busy for exact results, and is empty if there were
// none.
func busy(r result.Result) string {
	runs, worst := r.Busy()
	if runs == 0 {
		return ""
	}
	return fmt.Sprintf("The host was busy: in %d of %d runs a thread that slept woke more than %s ms late, by up to %s ms. "+
		"Run it again with nothing else on this host, or with --jobs 1.",
		runs, len(r.Runs), inMilliseconds(number{result.BusyHost, true}), inMilliseconds(number{worst, true}))
}

// Bands divides a table so that each part fits into width columns of text, with two spaces between
// cells. Each part begins with the first columns, names, which tell the lines apart, and has at least
// one more. 0 is no bound. The parts share the cells of lines.
func Bands(lines [][]string, names, width int) (parts [][][]string) {
	const gap = 2
	columns := make([]int, len(lines[0]))
	for _, line := range lines {
		for i, text := range line {
			columns[i] = max(columns[i], gap+utf8.RuneCountInString(text))
		}
	}
	begin := -gap
	for _, n := range columns[:names] {
		begin += n
	}
	for from := names; ; {
		used, to := begin, from
		for to < len(columns) && (to == from || width == 0 || used+columns[to] <= width) {
			used += columns[to]
			to++
		}
		part := make([][]string, len(lines))
		for i, line := range lines {
			part[i] = slices.Concat(line[:names], line[from:to])
		}
		parts = append(parts, part)
		if from = to; from >= len(columns) {
			return parts
		}
	}
}

// alignWithin writes a table as align does. What does not fit into width columns follows in further
// tables, which begin with the columns that are aligned to the left.
func alignWithin(b *strings.Builder, lines [][]string, left, width int) {
	for i, part := range Bands(lines, left, width) {
		if i > 0 {
			b.WriteByte('\n')
		}
		align(b, part, left)
	}
}

// align prints lines in columns: the first ones (left of them) flush left, the others flush right.
func align(b *strings.Builder, lines [][]string, left int) {
	widths := make([]int, len(lines[0]))
	for _, line := range lines {
		for i, text := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	for _, line := range lines {
		var out strings.Builder
		for i, text := range line {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))
			if i > 0 {
				out.WriteString("  ")
			}
			if i < left {
				out.WriteString(text + pad)
			} else {
				out.WriteString(pad + text)
			}
		}
		b.WriteString(strings.TrimRight(out.String(), " ") + "\n")
	}
}
