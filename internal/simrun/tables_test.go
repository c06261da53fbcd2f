package simrun

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/result"
	"github.com/tabane/tabane/internal/scenario"
	"github.com/tabane/tabane/internal/stat"
)

var update = flag.Bool("update", false, "write the published tables, all rows of them")

// published is a table of simulated figures in a Markdown file, between two comments:
//
//	<!-- table NAME: make tables -->
//	<!-- end -->
type published struct {
	file, name string
	head       []string
	rows       []publishedRow
}

// publishedRow is a row of a table. Its label is the first cell.
type publishedRow struct {
	label string
	cells []publishedCell
	// sampled: the test checks the row although its losses are random, which requires all
	// trials.
	sampled bool
}

// publishedCell is a text with a verb %s for each figure.
type publishedCell struct {
	format  string
	figures []figure
}

// figure is a metric of a cell of a scenario.
type figure struct {
	scenario, pattern, transport, metric string
	// minRTO replaces the minimum RTO.
	minRTO string
	show   func(sample) string
}

// random reports whether trials of the figure differ.
func (f figure) random() bool {
	return (f.scenario == "reseq-buffer" || f.scenario == "reseq-loss") && !strings.HasPrefix(f.pattern, "p0")
}

// sample is a metric of a cell, with the standard deviation of its trials.
type sample struct {
	result.Cell
	sd float64
}

// Formats of figures.
func share(c sample) string  { return fmt.Sprintf("%.3f", c.Mean) }
func count(c sample) string  { return fmt.Sprintf("%.0f", c.Mean) }
func tenth(c sample) string  { return fmt.Sprintf("%.1f", c.Mean) }
func period(c sample) string { return fmt.Sprintf("%.3f s", c.Mean) }
func most(c sample) string   { return fmt.Sprintf("%.0f kB", c.Max/1e3) }
func millis(c sample) string { return millisOf(c.Mean, c.Mean) }

func shareSD(c sample) string { return fmt.Sprintf("%.3f ± %.3f", c.Mean, c.sd) }
func millisSD(c sample) string {
	return millisOf(c.Mean, c.Mean) + " ± " + millisOf(c.sd, c.Mean)
}

// millisOf formats a time in milliseconds, with the number of decimals for a time of like seconds.
func millisOf(seconds, like float64) string {
	digits := 0
	switch like *= 1e3; {
	case like < 0.995:
		digits = 2
	case like < 9.95:
		digits = 1
	}
	return fmt.Sprintf("%.*f", digits, seconds*1e3)
}

// one returns a cell with a single figure.
func one(f figure, show func(sample) string) publishedCell {
	f.show = show
	return publishedCell{"%s", []figure{f}}
}

// of returns one table cell for each pair of a metric and its format, all of the same scenario
// cell.
func of(name, pattern, transport string, metrics ...any) []publishedCell {
	var cells []publishedCell
	for pair := range slices.Chunk(metrics, 2) {
		cells = append(cells, one(figure{scenario: name, pattern: pattern, transport: transport, metric: pair[0].(string)}, pair[1].(func(sample) string)))
	}
	return cells
}

func tables() []published {
	const after, delay, longest = result.ThroughputAfter, result.ReseqDelayMean, result.BurstMax
	sizes := []string{"65", "130", "260", "520", "1000", "2000", "unlimited"}
	title := func(size string) string {
		if size == "unlimited" {
			return size
		}
		return size + " kB"
	}
	losses := []string{"0", "1e-4", "2e-4", "5e-4", "1e-3", "2e-3", "5e-3", "1e-2"}

	lossy := published{file: "scenarios/reseq-buffer/README.md", name: "lossy", head: []string{"buffer", "`program`", "ms", "`ahead`", "ms", "`ns2`", "ms"}}
	lossless := published{file: lossy.file, name: "lossless", head: []string{"buffer", "`program`, `ns2`", "ms", "`ahead`", "ms", "`mptcp`", "ms"}}
	for _, size := range sizes {
		row := publishedRow{label: title(size), sampled: size == "260"}
		for _, transport := range []string{"program", "ahead", "ns2"} {
			row.cells = append(row.cells, of("reseq-buffer", "p1e-4-"+size, transport, after, shareSD, delay, millisSD)...)
		}
		lossy.rows = append(lossy.rows, row)
		row = publishedRow{label: title(size)}
		for _, transport := range []string{"program", "ahead", "mptcp"} {
			row.cells = append(row.cells, of("reseq-buffer", "p0-"+size, transport, after, share, delay, millis)...)
		}
		lossless.rows = append(lossless.rows, row)
	}

	both := published{file: "scenarios/reseq-loss/README.md", name: "limit", head: []string{"loss",
		"throughput `program`", "260 kB", "`ahead`", "260 kB", "mean delay, ms `program`", "260 kB", "`ahead`", "260 kB", "longest burst `program`", "260 kB", "`ahead`", "260 kB"}}
	bound := published{file: both.file, name: "ns2", head: []string{"loss", "throughput", "mean delay, ms", "longest burst", "peak occupancy", "timeouts in a run"}}
	for _, loss := range losses {
		row := publishedRow{label: loss}
		for _, m := range []struct {
			metric string
			show   func(sample) string
		}{{after, share}, {delay, millis}, {longest, count}} {
			for _, transport := range []string{"program", "program-260", "ahead", "ahead-260"} {
				row.cells = append(row.cells, of("reseq-loss", "p"+loss, transport, m.metric, m.show)...)
			}
		}
		both.rows = append(both.rows, row)
		bound.rows = append(bound.rows, publishedRow{label: loss, cells: of("reseq-loss", "p"+loss, "ns2",
			after, shareSD, delay, millis, longest, count, result.BufferMax, most, result.Timeouts, tenth)})
	}
	timer := published{file: both.file, name: "timer", head: []string{"loss", "throughput without limit", "260 kB", "longest burst without limit", "260 kB", "mean delay, ms, without limit", "260 kB"}}
	for _, loss := range []string{"5e-4", "2e-3", "5e-3", "1e-2"} {
		row := publishedRow{label: loss}
		for _, m := range []struct {
			metric string
			show   func(sample) string
		}{{after, share}, {longest, count}, {delay, millis}} {
			for _, transport := range []string{"ns2", "ns2-260"} {
				row.cells = append(row.cells, one(figure{scenario: "reseq-loss", pattern: "p" + loss, transport: transport, metric: m.metric, minRTO: "1s"}, m.show))
			}
		}
		timer.rows = append(timer.rows, row)
	}

	delays := published{file: "scenarios/reseq-delay/README.md", name: "delay", head: []string{"delay of path 2", "throughput, ns2", "mptcp", "longest burst, ns2", "mptcp", "after 3 s, ns2", "mptcp"}}
	for _, ms := range []string{"20", "50", "100"} {
		delays.rows = append(delays.rows, beside(ms+" ms", "reseq-delay", "d"+ms, after, share, longest, count, result.BurstSteady, count))
	}
	rates := published{file: "scenarios/reseq-rate/README.md", name: "rate", head: []string{"rate of path 2", "throughput, ns2", "mptcp", "longest burst, ns2", "mptcp", "after 3 s, ns2", "mptcp", "mean delay, ms, ns2", "mptcp"}}
	for _, rate := range []string{"2", "5", "10"} {
		rates.rows = append(rates.rows, beside(rate+" Mbit/s", "reseq-rate", "r"+rate, after, share, longest, count, result.BurstSteady, count, delay, millis))
	}
	bursts := published{file: "scenarios/reseq-burst/README.md", name: "bursts", head: []string{"", "published", "`ns2`", "`mptcp`", "`ns2`, 1340 bytes", "`mptcp`, 1340 bytes"}}
	for _, m := range []struct {
		label, paper, metric string
		show                 func(sample) string
	}{
		{"first bursts", "nearly 90", result.BurstFirst, count}, {"after 3 s", "about 50", result.BurstLarge, count},
		{"every", "about 0.2 s", result.BurstPeriod, period}, {"otherwise", "at most 2", result.BurstSmall, count},
	} {
		row := publishedRow{label: m.label, cells: []publishedCell{{format: m.paper}}}
		for _, pattern := range []string{"d100", "d100-1340"} {
			for _, transport := range []string{"ns2", "mptcp"} {
				row.cells = append(row.cells, of("reseq-burst", pattern, transport, m.metric, m.show)...)
			}
		}
		bursts.rows = append(bursts.rows, row)
	}

	buffer := func(pattern, metric string, show func(sample) string) figure {
		return figure{scenario: "reseq-buffer", pattern: pattern, transport: "program", metric: metric, show: show}
	}
	loss := func(pattern, transport, metric string, show func(sample) string) figure {
		return figure{scenario: "reseq-loss", pattern: pattern, transport: transport, metric: metric, show: show}
	}
	burst := func(metric string, show func(sample) string) figure {
		return figure{scenario: "reseq-burst", pattern: "d100", transport: "ns2", metric: metric, show: show}
	}
	found := published{file: "docs/resequencing.md", name: "found", head: []string{"figure", "published", "here, mean of 12 seeds", "where"}}
	for _, r := range []struct {
		figures, paper, here string
		of                   []figure
		where                string
	}{
		{"13, 14", "a first burst of nearly 90 segments, then about 50 about every 0.2 s, otherwise at most 2", "%s, then %s every %s, otherwise %s",
			[]figure{burst(result.BurstFirst, count), burst(result.BurstLarge, count), burst(result.BurstPeriod, period), burst(result.BurstSmall, count)}, "[reseq-burst](../scenarios/reseq-burst)"},
		{"15", "without loss 65 kB are too small, above that the throughput is constant", "%s with 65 kB, %s with 130 kB, %s without limit",
			[]figure{buffer("p0-65", after, share), buffer("p0-130", after, share), buffer("p0-unlimited", after, share)}, "[reseq-buffer](../scenarios/reseq-buffer)"},
		{"16", "65 kB delay more", "%s ms with 65 kB, %s ms with 130 kB, %s ms without limit",
			[]figure{buffer("p0-65", delay, millis), buffer("p0-130", delay, millis), buffer("p0-unlimited", delay, millis)}, ""},
		{"17", "at 1e-4 the throughput is there from 130 kB on", "%s with 65 kB, %s with 130 kB, %s without limit",
			[]figure{buffer("p1e-4-65", after, share), buffer("p1e-4-130", after, share), buffer("p1e-4-unlimited", after, share)}, ""},
		{"18", "the delay grows beyond 1000 kB", "%s ms with 260 kB, %s ms with 1000 kB, %s ms with 2000 kB",
			[]figure{buffer("p1e-4-260", delay, millis), buffer("p1e-4-1000", delay, millis), buffer("p1e-4-2000", delay, millis)}, ""},
		{"19", "260 kB and no limit are equal below 2e-4; above 5e-4 no limit carries more", "at 2e-4 %s and %s; with Linux' scheduler at 1e-2 %s and %s",
			[]figure{loss("p2e-4", "program-260", after, share), loss("p2e-4", "program", after, share), loss("p1e-2", "ahead-260", after, share), loss("p1e-2", "ahead", after, share)},
			"[reseq-loss](../scenarios/reseq-loss)"},
		{"20, 21", "without a limit far larger bursts and delays", "at 5e-4 bursts of %s instead of %s segments, %s instead of %s ms",
			[]figure{loss("p5e-4", "program", longest, count), loss("p5e-4", "program-260", longest, count), loss("p5e-4", "program", delay, millis), loss("p5e-4", "program-260", delay, millis)}, ""},
	} {
		found.rows = append(found.rows, publishedRow{label: r.figures, cells: []publishedCell{{format: r.paper}, {r.here, r.of}, {format: r.where}}})
	}
	return []published{lossy, lossless, both, bound, timer, delays, rates, bursts, found}
}

// beside returns a row that has, for each metric, a cell of transport ns2 and one of mptcp.
func beside(label, name, pattern string, metrics ...any) publishedRow {
	row := publishedRow{label: label}
	for pair := range slices.Chunk(metrics, 2) {
		for _, transport := range []string{"ns2", "mptcp"} {
			row.cells = append(row.cells, of(name, pattern, transport, pair...)...)
		}
	}
	return row
}

// simulations caches the simulated cells of published tables, so that each is simulated once.
type simulations struct {
	t     *testing.T
	specs map[string]*scenario.Spec
	cells map[[4]string]result.Result
}

func (s *simulations) text(f figure) string {
	s.t.Helper()
	key := [4]string{f.scenario, f.pattern, f.transport, f.minRTO}
	r, done := s.cells[key]
	if !done {
		spec := s.specs[f.scenario]
		if spec == nil {
			spec = builtIn(s.t, f.scenario)
			s.specs[f.scenario] = spec
		}
		i := slices.IndexFunc(spec.Experiment.Cases, func(c scenario.Case) bool { return c.Name == f.pattern })
		transport := spec.Experiment.Transports[f.transport]
		if i < 0 || transport == nil {
			s.t.Fatalf("%s has no case %s or no transport %s", f.scenario, f.pattern, f.transport)
		}
		e, copied := *spec.Experiment, *transport
		if f.minRTO != "" {
			least, err := time.ParseDuration(f.minRTO)
			if err != nil {
				s.t.Fatal(err)
			}
			model := *copied.Model
			model.MinRTO, copied.Model = least, &model
		}
		e.Cases, e.Transports = e.Cases[i:i+1], map[string]*scenario.Transport{f.transport: &copied}
		e.Expect, e.Figures = nil, nil
		trials := 1
		if f.random() {
			trials = e.Trials
		}
		cell := *spec
		cell.Experiment = &e
		var err error
		if r, err = Run(context.Background(), Options{Spec: &cell, Trials: trials}); err != nil {
			s.t.Fatal(err)
		}
		s.cells[key] = r
	}
	c, ok := r.Find(result.CellKey{Case: f.pattern, Traffic: "bulk", Transport: f.transport}, f.metric)
	if !ok {
		s.t.Fatalf("%v has no %s", key, f.metric)
	}
	var values []float64
	for _, run := range r.Runs {
		values = append(values, run.Metrics[f.metric])
	}
	_, sd, err := stat.MeanSD(values)
	if err != nil {
		s.t.Fatal(err)
	}
	return f.show(sample{c, sd})
}

// row returns a row as Markdown.
func (s *simulations) row(r publishedRow) string {
	text := "| " + r.label + " |"
	for _, c := range r.cells {
		var values []any
		for _, f := range c.figures {
			values = append(values, s.text(f))
		}
		text += " " + fmt.Sprintf(c.format, values...) + " |"
	}
	return text
}

// TestPublishedTables compares published tables with the simulator: all rows without random losses,
// and the sampled rows of the others. With -update it simulates and writes all rows.
func TestPublishedTables(t *testing.T) {
	s := &simulations{t: t, specs: map[string]*scenario.Spec{}, cells: map[[4]string]result.Result{}}
	checked := 0
	for _, table := range tables() {
		name := "../../" + table.file
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		begin, end := fmt.Sprintf("<!-- table %s: make tables -->\n", table.name), "<!-- end -->"
		before, rest, ok := strings.Cut(string(data), begin)
		block, after, closed := strings.Cut(rest, end)
		if !ok || !closed {
			t.Errorf("%s has no table %s, between %q and %q", table.file, table.name, strings.TrimSpace(begin), end)
			continue
		}
		lines := []string{"| " + strings.Join(table.head, " | ") + " |", strings.Repeat("|---", len(table.head)) + "|"}
		written := strings.Split(strings.TrimSpace(block), "\n")
		for i, r := range table.rows {
			random := slices.ContainsFunc(r.cells, func(c publishedCell) bool { return slices.ContainsFunc(c.figures, figure.random) })
			if random && !r.sampled && !*update {
				if at := i + 2; at >= len(written) || !strings.HasPrefix(written[at], "| "+r.label+" |") {
					t.Errorf("%s: table %s has no row %q; see make tables", table.file, table.name, r.label)
				} else {
					lines = append(lines, written[at])
				}
				continue
			}
			lines = append(lines, s.row(r))
			checked++
		}
		if *update {
			text := before + begin + strings.Join(lines, "\n") + "\n" + end + after
			if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		for i := range max(len(lines), len(written)) {
			is, want := cmp.Or(at0(written, i), "(nothing)"), cmp.Or(at0(lines, i), "(nothing)")
			if is != want {
				t.Errorf("%s: table %s is stale; make tables writes it\n has %s\nwant %s", table.file, table.name, is, want)
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d rows were checked", checked)
	}
}

// at0 returns element i of a list, or "" beyond its end.
func at0(list []string, i int) string {
	if i < len(list) {
		return list[i]
	}
	return ""
}
