package simrun

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/testkit/published"
)

var update = flag.Bool("update", false, "write the published tables, all rows of them")

var only = flag.String("table", "", "only the published tables of files whose path contains this `text`")

// publishedTable is a table of figures in a Markdown file that make tables writes, simulated or
// from a stored measurement in a lab.
type publishedTable struct {
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
	// lab is the result.json of a measurement in a lab, of which only the summary counts. Default:
	// the figure is simulated.
	lab string
	// traffic is the traffic, the one that trafficOf returns if empty. alone are transports over
	// one path each: the figure's median, least and largest value are relative to the best median
	// of them.
	traffic string
	alone   []string
	show    func(sample) string
	// tens is which ten seconds of the run a rate is of, counted from 1. 0: all of it.
	tens int
}

// random reports whether trials of the figure differ.
func (f figure) random() bool {
	if f.scenario == unequalScenario {
		pair, _, _ := strings.Cut(f.pattern, "-")
		return slices.Contains(unequalRandom, pair)
	}
	return f.lab == "" && (f.scenario == sweepScenario || f.scenario == "shake-static" || f.scenario == "shake-unequal" || f.scenario == "shake-dynamic" || f.scenario == fairnessScenario || f.scenario == lossScenario || (f.scenario == "reseq-buffer" || f.scenario == "reseq-loss") && !strings.HasPrefix(f.pattern, "p0"))
}

// sweepScenario has random losses and delays in most cases.
const sweepScenario = "gateway-sweep"

// lossScenario has random losses.
const lossScenario = "cc-loss"

// fairnessScenario has bottlenecks with early detection or jitter.
const fairnessScenario = "cc-fairness"

// unequalScenario has random losses or delays in the pairs of unequalRandom.
const unequalScenario = "epe-unequal"

var unequalRandom = []string{"p4", "p5", "p7", "p12", "p14"}

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
func mbits(c sample) string  { return fmt.Sprintf("%.1f", c.Median/1e6) }
func kbits(c sample) string  { return fmt.Sprintf("%.0f", c.Median/1e3) }
func least(c sample) string  { return fmt.Sprintf("%.0f", c.Min) }
func most(c sample) string   { return fmt.Sprintf("%.0f kB", c.Max/1e3) }
func millis(c sample) string { return millisOf(c.Mean, c.Mean) }

func rateSD(c sample) string { return fmt.Sprintf("%.2f ± %.2f", c.Mean/1e6, c.sd/1e6) }

// kbitsMean, mbitsCI and percentMean show a mean, the first two with its 95 % confidence interval.
func kbitsMean(c sample) string   { return fmt.Sprintf("%.0f ± %.0f", c.Mean/1e3, c.CI95/1e3) }
func mbitsCI(c sample) string     { return fmt.Sprintf("%.2f ± %.2f", c.Mean/1e6, c.CI95/1e6) }
func percentMean(c sample) string { return fmt.Sprintf("%.1f", c.Mean*100) }
func mbitsRuns(c sample) string   { return fmt.Sprintf("%.1f (%d)", c.Median/1e6, c.N) }
func shareMedian(c sample) string { return fmt.Sprintf("%.2f", c.Median) }
func mbitsLeast(c sample) string  { return fmt.Sprintf("%.1f", c.Min/1e6) }
func mbitsMost(c sample) string   { return fmt.Sprintf("%.1f", c.Max/1e6) }

// kbitsCI and percentCI show the 95 % confidence interval of the mean, kbitsCI also the number of
// runs.
func kbitsCI(c sample) string   { return fmt.Sprintf("%.0f ± %.0f (%d)", c.Mean/1e3, c.CI95/1e3, c.N) }
func percent(c sample) string   { return fmt.Sprintf("%.0f %%", c.Mean*100) }
func percentCI(c sample) string { return fmt.Sprintf("%.2f ± %.2f", c.Mean*100, c.CI95*100) }

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

func tables() []publishedTable {
	const after, delay, longest = result.ThroughputAfter, result.ReseqDelayMean, result.BurstMax
	sizes := []string{"65", "130", "260", "520", "1000", "2000", "unlimited"}
	title := func(size string) string {
		if size == "unlimited" {
			return size
		}
		return size + " kB"
	}
	losses := []string{"0", "1e-4", "2e-4", "5e-4", "1e-3", "2e-3", "5e-3", "1e-2"}

	lossy := publishedTable{file: "scenarios/reseq-buffer/README.md", name: "lossy", head: []string{"buffer", "`program`", "ms", "`ahead`", "ms", "`ns2`", "ms"}}
	lossless := publishedTable{file: lossy.file, name: "lossless", head: []string{"buffer", "`program`, `ns2`", "ms", "`ahead`", "ms", "`mptcp`", "ms"}}
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

	both := publishedTable{file: "scenarios/reseq-loss/README.md", name: "limit", head: []string{"loss",
		"throughput `program`", "260 kB", "`ahead`", "260 kB", "mean delay, ms `program`", "260 kB", "`ahead`", "260 kB", "longest burst `program`", "260 kB", "`ahead`", "260 kB"}}
	bound := publishedTable{file: both.file, name: "ns2", head: []string{"loss", "throughput", "mean delay, ms", "longest burst", "peak occupancy", "timeouts in a run"}}
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
	timer := publishedTable{file: both.file, name: "timer", head: []string{"loss", "throughput without limit", "260 kB", "longest burst without limit", "260 kB", "mean delay, ms, without limit", "260 kB"}}
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

	delays := publishedTable{file: "scenarios/reseq-delay/README.md", name: "delay", head: []string{"delay of path 2", "throughput, ns2", "mptcp", "longest burst, ns2", "mptcp", "after 3 s, ns2", "mptcp"}}
	for _, ms := range []string{"20", "50", "100"} {
		delays.rows = append(delays.rows, beside(ms+" ms", "reseq-delay", "d"+ms, after, share, longest, count, result.BurstSteady, count))
	}
	rates := publishedTable{file: "scenarios/reseq-rate/README.md", name: "rate", head: []string{"rate of path 2", "throughput, ns2", "mptcp", "longest burst, ns2", "mptcp", "after 3 s, ns2", "mptcp", "mean delay, ms, ns2", "mptcp"}}
	for _, rate := range []string{"2", "5", "10"} {
		rates.rows = append(rates.rows, beside(rate+" Mbit/s", "reseq-rate", "r"+rate, after, share, longest, count, result.BurstSteady, count, delay, millis))
	}
	bursts := publishedTable{file: "scenarios/reseq-burst/README.md", name: "bursts", head: []string{"", "published", "`ns2`", "`mptcp`", "`ns2`, 1340 bytes", "`mptcp`, 1340 bytes"}}
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
	found := publishedTable{file: "docs/resequencing.md", name: "found", head: []string{"figure", "published", "here, mean of 12 seeds", "where"}}
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
	return append([]publishedTable{lossy, lossless, both, bound, timer, delays, rates, bursts, found, gatewaySweep(), fairness(), kernelFairness(), lossPaths(), kernelLossPaths(), kernelContent(),
		shake("shake-static"), shake("shake-unequal"), shakeVariants("shake-static"), shakeVariants("shake-unequal"), jitter(), kernelShake(), unequalBulk(), unequalBound(), unequalSteady(), unequalWindow(), matrix(), webWaiting(), webPaths(), webHeavy(), turns(), datagrams(), dynamic(), unequal(),
		ratios(), kernelTurns(), kernelDatagrams(), kernelRatios(), kernelUnequal(), limit()}, slices.Concat(unequalSimulated(), kernelSweep(), []publishedTable{webFindings(), webLoad(), vegasCause()})...)
}

// fairness returns the table of cc-fairness: all cases of it.
func fairness() publishedTable {
	transports := []string{"tcp", "uncoupled", "lia", "olia", "balia", "wvegas", "vegas"}
	p := publishedTable{file: "scenarios/cc-fairness/README.md", name: "fairness", head: []string{"case", "", "tcp", "uncoupled", "lia", "olia", "balia", "wvegas", "vegas"}}
	for _, r := range []struct {
		label, pattern, what, metric string
		show                         func(sample) string
	}{
		{"RED", "red", "share", result.Share, shareSD},
		{"drop-tail", "drop-tail", "share", result.Share, shareSD},
		{"two", "two", "Mbit/s", result.OwnRate, rateSD},
		{"balance", "balance", "share of p", result.FirstPath, shareSD},
		{"A", "a", "Mbit/s of a neighbor", result.OthersRate, rateSD},
		{"C", "c", "Mbit/s of a neighbor", result.OthersRate, rateSD},
		{"B", "b", "Mbit/s of a client", result.OwnRate, rateSD},
		{"B, upgraded", "b-upgraded", "Mbit/s of a client", result.OwnRate, rateSD},
		{"delay", "delay", "round-trip time, ms", result.RoundTrip, millisSD},
	} {
		row := publishedRow{label: r.label, cells: []publishedCell{{format: r.what}}, sampled: r.pattern == "red"}
		for _, transport := range transports {
			row.cells = append(row.cells, of(fairnessScenario, r.pattern, transport, r.metric, r.show)...)
		}
		p.rows = append(p.rows, row)
	}
	return p
}

// kernelFairness returns the table of cc-fairness in a lab.
func kernelFairness() publishedTable {
	p := publishedTable{file: "scenarios/cc-fairness/README.md", name: "kernel", head: []string{"case", "uncoupled", "fewest losses of a subflow", "lia", "fewest losses"}}
	for _, r := range []struct{ label, pattern string }{{"RED", "red"}, {"drop-tail", "drop-tail"}} {
		row := publishedRow{label: r.label}
		for _, transport := range []string{"uncoupled", "lia"} {
			f := figure{lab: "docs/measured/cc-fairness.json", traffic: "bulk", pattern: r.pattern, transport: transport}
			f.metric = result.Share
			row.cells = append(row.cells, one(f, medianOf))
			f.metric = result.LeastLosses
			row.cells = append(row.cells, one(f, least))
		}
		p.rows = append(p.rows, row)
	}
	return p
}

// lossPaths returns the table of cc-loss.
func lossPaths() publishedTable {
	transports := []string{"tcp", "lia", "olia", "olia-2", "balia", "balia-2", "newreno", "vegas", "wvegas"}
	p := publishedTable{file: "scenarios/cc-loss/README.md", name: "simulated", head: append([]string{"loss"}, transports...)}
	for _, loss := range []string{"0.05", "0.1", "0.2", "0.5", "1", "2"} {
		row := publishedRow{label: loss + " %", sampled: loss == "1"}
		for _, transport := range transports {
			row.cells = append(row.cells, one(figure{scenario: lossScenario, traffic: "page", pattern: "l" + loss, transport: transport, metric: result.Duration}, secondsSD))
		}
		p.rows = append(p.rows, row)
	}
	return p
}

// kernelLossPaths returns the table of cc-loss in a lab.
func kernelLossPaths() publishedTable {
	transports := []string{"tcp", "lia", "olia", "balia", "newreno"}
	p := publishedTable{file: "scenarios/cc-loss/README.md", name: "kernel", head: append([]string{"loss"}, transports...)}
	for _, loss := range []string{"0.5", "1"} {
		row := publishedRow{label: loss + " %"}
		for _, transport := range transports {
			row.cells = append(row.cells, one(figure{lab: "docs/measured/cc-loss.json", traffic: "page", pattern: "l" + loss, transport: transport, metric: result.Duration}, ranged(1, 1)))
		}
		p.rows = append(p.rows, row)
	}
	return p
}

func secondsSD(c sample) string { return fmt.Sprintf("%.1f ± %.1f", c.Mean, c.sd) }

// kernelContent returns the table of epe-content in a lab.
func kernelContent() publishedTable {
	p := publishedTable{file: "scenarios/epe-content/README.md", name: "kernel", head: []string{"traffic, measure", "TCP over a", "MPTCP over a", "Linux' scheduler over all", "`throughput`", "the policy for it", ""}}
	number, part, delay, rate := ranged(0, 1), ranged(3, 1), ranged(0, 1e-3), ranged(1, 1e6)
	for _, r := range []struct {
		label, traffic, metric, policy string
		show                           func(sample) string
	}{
		{"stream, 100 ms intervals without data", "stream", result.EmptyIntervals, "steady", number},
		{"stream, longest pause, ms", "stream", result.LongestGap, "steady", delay},
		{"stream, share of a", "stream", result.FirstLink, "ratio", part},
		{"8 Mbit/s, share of a, which is expensive", "cheap", result.FirstLink, "cost", part},
		{"objects, median, ms", "objects", result.ObjectTimeP50, "latency", delay},
		{"objects, 95 %, ms", "objects", result.ObjectTimeP95, "latency", delay},
		{"download, Mbit/s", "bulk", result.Goodput, "ratio", rate},
		{"download, share of a", "bulk", result.FirstLink, "ratio", part},
	} {
		row := publishedRow{label: r.label}
		for _, transport := range []string{"tcp-a", "mptcp-a", "mptcp-epe", "throughput", r.policy} {
			if r.metric == result.FirstLink && strings.HasSuffix(transport, "-a") {
				row.cells = append(row.cells, publishedCell{})
				continue
			}
			row.cells = append(row.cells, one(figure{lab: "docs/measured/epe-content.json", traffic: r.traffic, pattern: "unequal", transport: transport, metric: r.metric}, r.show))
		}
		row.cells = append(row.cells, publishedCell{format: "`" + r.policy + "`"})
		p.rows = append(p.rows, row)
	}
	return p
}

// sweepLines are the cases of gateway-sweep.
var sweepLines = []string{
	"fiber-fiber", "fiber-dsl", "dsl-lte", "dsl-far", "dsl-satellite", "dsl-bloated", "lossy-both", "lossier-both", "lossy-second",
	"jittery-both", "jitterier-both", "jittery-second", "wifi-second", "asymmetric", "dead", "returns",
	"cable-lte", "slow-satellite", "lte-5g", "low-orbit", "slow-slower",
}

// allLines are all cases: the last two were not measured with datagrams nor on the open plane.
var allLines = append(slices.Clone(sweepLines), "far-fast", "dsl-5g")

// gatewaySweep returns the table of gateway-sweep in the simulator: all cases of it.
func gatewaySweep() publishedTable {
	p := publishedTable{file: "scenarios/gateway-sweep/README.md", name: "sweep", head: []string{
		"lines", "first, cubic", "second", "`dq`", "`dqj`", "`auto`", "three lines", "rates too high", "too low", "one of each", "first, reno", "second", "`auto`",
	}}
	for _, name := range allLines {
		row := publishedRow{label: name, sampled: name == "lossy-second"}
		for _, transport := range []string{
			"path1-cubic", "path2-cubic", "dq-cubic", "dqj-cubic", "auto-cubic", "three-cubic", "high-cubic", "low-cubic", "mixed-cubic", "path1-reno", "path2-reno", "auto-reno",
		} {
			row.cells = append(row.cells, of(sweepScenario, name, transport, result.Goodput, mbits)...)
		}
		p.rows = append(p.rows, row)
	}
	return p
}

// kernelSweep returns the tables of gateway-sweep in a lab: each line alone and auto, also of
// datagrams, packets that are not encrypted, and auto with wrong rates.
func kernelSweep() []publishedTable {
	table := func(name, traffic string, head []string, lines []string, columns ...publishedCell) publishedTable {
		p := publishedTable{file: "scenarios/gateway-sweep/README.md", name: name, head: append([]string{"lines"}, head...)}
		for _, line := range lines {
			row := publishedRow{label: line}
			for _, c := range columns {
				f := c.figures[0]
				f.lab, f.pattern, f.traffic, f.metric = "docs/measured/gateway-sweep.json", line, traffic, result.Goodput
				row.cells = append(row.cells, publishedCell{c.format, []figure{f}})
			}
			p.rows = append(p.rows, row)
		}
		return p
	}
	goodput := func(transport string) publishedCell { return one(figure{transport: transport}, mbitsRuns) }
	share := func(transport string, alone ...string) publishedCell {
		return one(figure{transport: transport, alone: alone}, shareMedian)
	}
	var all []publishedCell
	head := []string{}
	for _, control := range []string{"cubic", "bbr", "reno"} {
		first, second, auto := "path1-"+control, "path2-"+control, "auto-"+control
		head = append(head, "first, "+control, "second", "`auto`", "of the better")
		all = append(all, goodput(first), goodput(second), goodput(auto), share(auto, first, second))
	}
	// besideAlone returns two columns of each transport: its goodput, and its share of that of the
	// better line alone.
	besideAlone := func(transports ...string) (columns []publishedCell) {
		for _, transport := range transports {
			columns = append(columns, goodput(transport), share(transport, "path1-cubic", "path2-cubic"))
		}
		return columns
	}
	return []publishedTable{
		table("kernel", "bulk", head, allLines, all...),
		table("kernel-open", "bulk", []string{"`dq`, plain", "of the better line", "`dq`, nat", "of it", "`dqj`, plain", "of it", "`dqj`, nat", "of it"}, sweepLines, besideAlone("dq-plain-cubic", "dq-nat-cubic", "dqj-plain-cubic", "dqj-nat-cubic")...),
		table("kernel-udp", "udp", []string{"`auto`", "of the better line", "`dq`, plain", "of it", "`dq`, nat", "of it"}, sweepLines, besideAlone("auto-cubic", "dq-plain-cubic", "dq-nat-cubic")...),
		table("kernel-rates", "bulk", []string{"rates too high", "of the better line", "too low", "of it", "one of each", "of it"}, allLines, besideAlone("high-cubic", "low-cubic", "mixed-cubic")...),
	}
}

// shakeTransports are those of shake-static and shake-unequal, in the order of their tables.
var shakeTransports = []string{
	"path1-2006", "path3-2006", "two-2006", "dq-2006", "dqj-2006", "dq-2006-reseq",
	"path1", "path3", "dq-plain", "dqj-plain", "dq", "dqj", "dqj-packets", "dq-reseq", "auto-reseq",
}

// shakeVariants returns the table of shake-static or shake-unequal where packets of a path overtake
// each other, and where the jitter is a standard deviation.
func shakeVariants(name string) publishedTable {
	p := goodput(name, "two-2006", []string{"path3-2006", "two-2006", "dq-2006", "dqj-2006", "dq-plain", "dqj-plain"},
		[]string{"r0", "r50", "r100", "r150", "r200", "n0", "n50", "n100", "n150", "n200"},
		[]string{"overtaking ±0", "±50", "±100", "±150", "±200", "deviation 0", "50", "100", "150", "200"})
	p.name = "variants"
	return p
}

// shake returns the table of shake-static or shake-unequal: goodput in all cases of it.
func shake(name string) publishedTable {
	return goodput(name, "path1", shakeTransports, []string{"j0", "j50", "j100", "j150", "j200"}, []string{"±0", "±50", "±100", "±150", "±200"})
}

// goodput returns the table of a scenario's goodput by transport and case. Of a scenario whose
// trials differ the test checks the row of the sampled transport.
func goodput(name, sampled string, transports, cases, titles []string) publishedTable {
	p := publishedTable{file: "scenarios/" + name + "/README.md", name: "goodput", head: append([]string{"transport"}, titles...)}
	for _, transport := range transports {
		row := publishedRow{label: "`" + transport + "`", sampled: transport == sampled}
		for _, pattern := range cases {
			row.cells = append(row.cells, of(name, pattern, transport, result.Goodput, kbits)...)
		}
		p.rows = append(p.rows, row)
	}
	return p
}

// turns returns the table of datagram-tcp.
func turns() publishedTable {
	cases := []string{"512k-0", "512k-50", "512k-100", "1.5M-0", "1.5M-50", "1.5M-100", "8M-0", "8M-50", "8M-100"}
	cases = append(cases, "8M-50-late")
	return goodput("datagram-tcp", "", []string{"primary-2006", "secondary-2006", "both-2006", "primary-2006-x16", "both-2006-x16", "primary-rfc", "both-rfc", "primary", "both"}, cases, cases)
}

// kernelGoodput returns a table of the means of goodput in a lab, in kbit/s.
func kernelGoodput(scenario string, transports, cases []string) publishedTable {
	p := publishedTable{file: "scenarios/" + scenario + "/README.md", name: "kernel", head: append([]string{"transport"}, cases...)}
	for _, transport := range transports {
		row := publishedRow{label: "`" + transport + "`"}
		for _, pattern := range cases {
			row.cells = append(row.cells, one(figure{lab: "docs/measured/" + scenario + ".json", pattern: pattern, transport: transport, metric: result.Goodput}, kbitsMean))
		}
		p.rows = append(p.rows, row)
	}
	return p
}

// kernelTurns returns the table of datagram-tcp in a lab.
func kernelTurns() publishedTable {
	return kernelGoodput("datagram-tcp",
		[]string{"primary-2006", "secondary-2006", "both-2006", "nat-2006", "primary-2006-x16", "both-2006-x16", "primary", "both", "both-nat"},
		[]string{"512k-0", "512k-50", "512k-100", "1.5M-0", "1.5M-50", "1.5M-100", "8M-0", "8M-50", "8M-100"})
}

// curve are the ratios of datagram-ratio.
var curve = []string{"1:1", "2:1", "3:1", "4:1", "5:1", "16:3", "6:1", "8:1", "20:1"}

// ratios returns the table of datagram-ratio.
func ratios() publishedTable {
	return byRatio("ratios", func(pattern, transport string) []publishedCell {
		return of("datagram-ratio", pattern, transport, result.Goodput, kbits)
	})
}

// kernelRatios returns the table of datagram-ratio in a lab.
func kernelRatios() publishedTable {
	return byRatio("kernel", func(pattern, transport string) []publishedCell {
		return []publishedCell{one(figure{lab: "docs/measured/datagram-ratio.json", pattern: pattern, transport: transport, metric: result.Goodput}, kbitsMean)}
	})
}

// byRatio returns a table of datagram-ratio with a row for each ratio.
func byRatio(name string, cells func(pattern, transport string) []publishedCell) publishedTable {
	p := publishedTable{file: "scenarios/datagram-ratio/README.md", name: name, head: []string{"ratio", "rates, 2006", "today", "delays, 2006", "today"}}
	for _, ratio := range curve {
		row := publishedRow{label: ratio}
		for _, kind := range []string{"rate-", "delay-"} {
			for _, transport := range []string{"ratio-2006", "ratio"} {
				row.cells = append(row.cells, cells(kind+strings.ReplaceAll(ratio, ":", "-"), transport)...)
			}
		}
		p.rows = append(p.rows, row)
	}
	return p
}

// kernelDatagrams returns the table of datagram-udp in a lab.
func kernelDatagrams() publishedTable {
	cases := []string{"equal", "both50", "both100", "delay", "rate"}
	p := publishedTable{file: "scenarios/datagram-udp/README.md", name: "kernel", head: append([]string{"transport"}, cases...)}
	for _, transport := range []string{"primary", "secondary", "ratio-1-1", "nat-1-1", "ratio-2-1", "ratio-16-3", "ratio-20-1"} {
		row := publishedRow{label: "`" + transport + "`"}
		for _, pattern := range cases {
			cell := publishedCell{format: "%s; %s %%; %s %%, %s"}
			for _, m := range []struct {
				metric string
				show   func(sample) string
			}{{result.Goodput, mbitsCI}, {result.LostShare, percentMean}, {result.ReorderedShare, percentMean}, {result.ReorderedBehind, count}} {
				cell.figures = append(cell.figures, figure{lab: "docs/measured/datagram-udp.json", traffic: "udp", pattern: pattern, transport: transport, metric: m.metric, show: m.show})
			}
			row.cells = append(row.cells, cell)
		}
		p.rows = append(p.rows, row)
	}
	return p
}

// limit returns the table of datagram-limit in a lab.
func limit() publishedTable {
	p := publishedTable{file: "scenarios/datagram-limit/README.md", name: "kernel", head: []string{"links", "transport", "Mbit/s", "least", "most", "lost, %"}}
	for _, links := range []struct{ title, pattern string }{{"100 Mbit/s", "ethernet"}, {"1 Gbit/s", "gigabit"}} {
		for _, transport := range []string{"primary", "plain-1-1", "nat-1-1"} {
			row := publishedRow{label: links.title, cells: []publishedCell{{format: "`" + transport + "`"}}}
			for _, m := range []struct {
				metric string
				show   func(sample) string
			}{{result.Goodput, mbitsCI}, {result.Goodput, mbitsLeast}, {result.Goodput, mbitsMost}, {result.LostShare, percentMean}} {
				row.cells = append(row.cells, one(figure{lab: "docs/measured/datagram-limit.json", traffic: "udp", pattern: links.pattern, transport: transport, metric: m.metric}, m.show))
			}
			p.rows = append(p.rows, row)
		}
	}
	return p
}

// datagrams returns the table of datagram-udp.
func datagrams() publishedTable {
	cases := []string{"equal", "both50", "both100", "delay", "rate"}
	p := publishedTable{file: "scenarios/datagram-udp/README.md", name: "datagrams", head: append([]string{"transport"}, cases...)}
	for _, transport := range []string{"primary", "secondary", "ratio-1-1", "ratio-2-1", "ratio-16-3", "ratio-20-1"} {
		row := publishedRow{label: "`" + transport + "`"}
		for _, pattern := range cases {
			cell := publishedCell{format: "%s; %s; %s, %s"}
			for _, m := range []struct {
				metric string
				show   func(sample) string
			}{{result.Goodput, mbits}, {result.LostShare, percent}, {result.ReorderedShare, percent}, {result.ReorderedBehind, count}} {
				cell.figures = append(cell.figures, figure{scenario: "datagram-udp", pattern: pattern, transport: transport, metric: m.metric, show: m.show})
			}
			row.cells = append(row.cells, cell)
		}
		p.rows = append(p.rows, row)
	}
	return p
}

// dynamic returns the table of shake-dynamic: goodput in each ten seconds and in all of them.
func dynamic() publishedTable {
	p := publishedTable{file: "scenarios/shake-dynamic/README.md", name: "goodput", head: []string{"transport", "±50", "±100", "±150", "±200", "±50", "±50", "whole"}}
	for _, transport := range []string{
		"path1-2006", "two-2006", "dq-2006", "dqj-2006", "dqj-2006-packets", "dq-plain", "dqj-plain", "dq", "dqj", "dqj-packets", "dq-reseq", "auto-reseq",
	} {
		row := publishedRow{label: "`" + transport + "`", sampled: transport == "path1-2006"}
		for i := range 7 {
			row.cells = append(row.cells, one(figure{scenario: "shake-dynamic", pattern: "table1", transport: transport, metric: result.Goodput, tens: (i + 1) % 7}, kbits))
		}
		p.rows = append(p.rows, row)
	}
	return p
}

// The cells of datagram-unequal.
var (
	unequalCases      = []string{"equal", "both50", "delay", "rate"}
	unequalTransports = []string{
		"primary-2006", "secondary-2006", "ratio-1-1", "ratio-2-1", "ratio-16-3", "ratio-1-1-x16", "primary", "secondary", "today-1-1", "today-1-1-reseq", "today-16-3", "today-dq", "today-dq-reseq",
	}
)

// unequal returns the table of datagram-unequal: goodput of the download in all cases.
func unequal() publishedTable {
	return goodput("datagram-unequal", "", unequalTransports, unequalCases, unequalCases)
}

// kernelUnequal returns the table of datagram-unequal in a lab.
func kernelUnequal() publishedTable {
	return kernelGoodput("datagram-unequal", unequalTransports, unequalCases)
}

// jitter returns the part of the table of shake-static that is about disciplines, with the third
// path at ±200 ms and the others at ±50 ms.
func jitter() publishedTable {
	p := publishedTable{file: "docs/shake.md", name: "jitter", head: []string{"", "paths 1 and 2", "DQ", "DQJ", "DQ with the resequencer", "`auto` with it"}}
	for _, r := range []struct {
		label      string
		transports []string
	}{
		{"RFC 6675: three segments, no undo", []string{"two-rfc", "dq-rfc", "dqj-rfc", "", ""}},
		{"TCP of 2006: a threshold that adapts, undo", []string{"two-2006", "dq-2006", "dqj-2006", "dq-2006-reseq", ""}},
		{"TCP of today: RACK-TLP, undo", []string{"", "dq-plain", "dqj-plain", "dq-reseq", "auto-reseq"}},
	} {
		row := publishedRow{label: r.label}
		for _, transport := range r.transports {
			if transport == "" {
				row.cells = append(row.cells, publishedCell{})
				continue
			}
			row.cells = append(row.cells, of("shake-static", "j200", transport, result.Goodput, kbits)...)
		}
		p.rows = append(p.rows, row)
	}
	return p
}

// kernelShake returns the table of shake-static in a lab.
func kernelShake() publishedTable {
	p := publishedTable{file: "docs/shake.md", name: "kernel", head: []string{"transport", "±50", "±200", "after 5 s: ±50", "±200", "three duplicates at ±50, %", "at ±200"}}
	for _, transport := range slices.DeleteFunc(slices.Clone(shakeTransports), func(t string) bool { return strings.HasSuffix(t, "-plain") }) {
		row := publishedRow{label: "`" + transport + "`"}
		for _, m := range []struct {
			metric string
			show   func(sample) string
		}{{result.Goodput, kbitsCI}, {result.GoodputLater, kbitsCI}, {result.TripleDuplicates, percentCI}} {
			for _, pattern := range []string{"j50", "j200"} {
				if m.metric == result.TripleDuplicates && strings.HasPrefix(transport, "path") {
					row.cells = append(row.cells, publishedCell{}) // one path keeps the order
					continue
				}
				row.cells = append(row.cells, one(figure{lab: "docs/measured/shake-static.json", pattern: pattern, transport: transport, metric: m.metric}, m.show))
			}
		}
		p.rows = append(p.rows, row)
	}
	return p
}

// The transports of epe-unequal over one path each and over both.
var (
	unequalAlone = []string{"mptcp-a", "mptcp-b"}
	unequalBoth  = []string{"mptcp-overflow-lowat", "mptcp-recall"}
)

// unequalPairs are the pairs of paths of epe-unequal, and the transport over the better one of
// each.
var unequalPairs = []struct{ name, better string }{
	{"p1", "mptcp-b"}, {"p1r", "mptcp-a"}, {"p2", "mptcp-a"}, {"p3", "mptcp-a"}, {"p4", "mptcp-a"}, {"p5", "mptcp-b"}, {"p6", "mptcp-a"}, {"p7", "mptcp-a"},
	{"p8", "mptcp-a"}, {"p9", "mptcp-a"}, {"p10", "mptcp-a"}, {"p11", "mptcp-a"}, {"p12", "mptcp-a"}, {"p13", "mptcp-a"}, {"p14", "mptcp-b"},
}

// unequalWindowed is the number of the first pairs that have cases with smaller receive windows.
const unequalWindowed = 10

// ofPairs returns a table of epe-unequal in a lab with a row for each pair of paths. better is the
// transport over the better one.
func ofPairs(name string, head []string, cells func(of func(traffic, transport, metric string, alone []string, show func(sample) string) publishedCell, better string) []publishedCell) publishedTable {
	p := publishedTable{file: "scenarios/epe-unequal/README.md", name: name, head: append([]string{"pair"}, head...)}
	for _, pair := range unequalPairs {
		p.rows = append(p.rows, publishedRow{label: pair.name, cells: cells(func(traffic, transport, metric string, alone []string, show func(sample) string) publishedCell {
			return one(figure{lab: "docs/measured/epe-unequal.json", traffic: traffic, pattern: pair.name + "-16mb", transport: transport, metric: metric, alone: alone}, show)
		}, pair.better)})
	}
	return p
}

// unequalSimulated returns the simulated tables of epe-unequal, all shares of the better path
// alone: bulk with each receive window, and a constant bit rate and objects on one connection with
// 16 MB.
func unequalSimulated() []publishedTable {
	transports := []string{"mptcp-epe", "mptcp-lowat", "mptcp-overflow", "mptcp-overflow-lowat", "mptcp-recall"}
	share := func(pattern, traffic, transport string) figure {
		return figure{scenario: unequalScenario, pattern: pattern, traffic: traffic, transport: transport, metric: result.Goodput, alone: unequalAlone, show: shareMedian}
	}
	bulk := publishedTable{file: "scenarios/epe-unequal/README.md", name: "simulated-bulk", head: []string{"pair", "better path alone, Mbit/s"}}
	steady := publishedTable{file: bulk.file, name: "simulated-steady", head: []string{"pair"}}
	for _, transport := range transports {
		bulk.head = append(bulk.head, "`"+transport+"`")
	}
	steady.head = slices.Concat(steady.head, bulk.head[2:], bulk.head[2:])
	steady.head[1] = "CBR: " + steady.head[1]
	steady.head[1+len(transports)] = "objects: " + steady.head[1+len(transports)]
	for i, pair := range unequalPairs {
		largest := pair.name + "-16mb"
		row := publishedRow{label: pair.name, sampled: true}
		row.cells = append(row.cells, one(figure{scenario: unequalScenario, pattern: largest, traffic: "bi", transport: pair.better, metric: result.Goodput}, mbits))
		for _, transport := range transports {
			cell := publishedCell{"%s", []figure{share(largest, "bi", transport)}}
			if i < unequalWindowed {
				cell.format = "%s, %s, %s"
				cell.figures = append(cell.figures, share(pair.name+"-3mb", "bi", transport), share(pair.name+"-1mb", "bi", transport))
			}
			row.cells = append(row.cells, cell)
		}
		bulk.rows = append(bulk.rows, row)
		row = publishedRow{label: pair.name, sampled: true}
		for _, traffic := range []string{"cbr", "kept"} {
			for _, transport := range transports {
				row.cells = append(row.cells, one(share(largest, traffic, transport), shareMedian))
			}
		}
		steady.rows = append(steady.rows, row)
	}
	return []publishedTable{bulk, steady}
}

// unequalWindow returns the table of bulk in epe-unequal in a lab with a small receive window.
func unequalWindow() publishedTable {
	p := publishedTable{file: "scenarios/epe-unequal/README.md", name: "window", head: []string{"pair", "first connection, of the better path alone", "second"}}
	for _, pair := range unequalPairs[:unequalWindowed] {
		row := publishedRow{label: pair.name}
		for _, transport := range unequalBoth {
			row.cells = append(row.cells, one(figure{
				lab: "docs/measured/epe-unequal-window.json", traffic: "bi", pattern: pair.name + "-1mb", transport: transport, metric: result.Goodput, alone: unequalAlone,
			}, shareMedian))
		}
		p.rows = append(p.rows, row)
	}
	return p
}

// unequalBulk returns the table of bulk in epe-unequal in a lab.
func unequalBulk() publishedTable {
	head := []string{"first connection, Mbit/s", "of the better path alone", "second, Mbit/s", "of it", "longest pause, ms: first", "second"}
	return ofPairs("bulk", head, func(of func(string, string, string, []string, func(sample) string) publishedCell, _ string) (cells []publishedCell) {
		for _, transport := range unequalBoth {
			cells = append(cells, of("bi", transport, result.Goodput, nil, mbits), of("bi", transport, result.Goodput, unequalAlone, medianOf))
		}
		for _, transport := range unequalBoth {
			cells = append(cells, of("bi", transport, result.LongestGap, nil, medianMillis))
		}
		return cells
	})
}

// unequalSteady returns the table of a constant bit rate and of objects in epe-unequal in a lab.
func unequalSteady() publishedTable {
	head := []string{"CBR, of the better path alone: first", "second", "longest pause, ms: better path alone", "first", "second",
		"objects, of the better path alone: first", "second", "95 % of them, ms: better path alone", "first", "second"}
	return ofPairs("steady", head, func(of func(string, string, string, []string, func(sample) string) publishedCell, better string) (cells []publishedCell) {
		for _, m := range []struct{ traffic, metric string }{{"cbr", result.LongestGap}, {"kept", result.ObjectTimeP95}} {
			for _, transport := range unequalBoth {
				cells = append(cells, of(m.traffic, transport, result.Goodput, unequalAlone, medianOf))
			}
			for _, transport := range append([]string{better}, unequalBoth...) {
				cells = append(cells, of(m.traffic, transport, m.metric, nil, medianMillis))
			}
		}
		return cells
	})
}

// unequalBound returns the table of bulk in epe-unequal in a lab, of the bound of two paths.
func unequalBound() publishedTable {
	return ofPairs("bound", []string{"first connection", "second"}, func(of func(string, string, string, []string, func(sample) string) publishedCell, _ string) (cells []publishedCell) {
		for _, transport := range unequalBoth {
			cells = append(cells, of("bi", transport, result.ShareOfBound, nil, medianOf))
		}
		return cells
	})
}

// matrix returns the table of epe-matrix in a lab, by the rate of the slow path. For 50 kB that may
// be the better one.
func matrix() publishedTable {
	p := publishedTable{file: "scenarios/epe-matrix/README.md", name: "kernel", head: []string{"size", "its rate, Mbit/s", "1 ms", "10 ms", "25 ms", "50 ms", "100 ms", "300 ms"}}
	for _, size := range []struct {
		label, traffic string
		alone          []string
	}{{"50 kB", "object-50k", []string{"tcp-a", "tcp-b"}}, {"1 MB", "object-1m", []string{"tcp-a"}}, {"10 MB", "object-10m", []string{"tcp-a"}}} {
		for _, rate := range []string{"2", "10", "50"} {
			row := publishedRow{label: size.label + " | " + rate}
			for _, delay := range []string{"1", "10", "25", "50", "100", "300"} {
				row.cells = append(row.cells, one(figure{
					lab: "docs/measured/epe-matrix.json", traffic: size.traffic, pattern: "r" + rate + "-d" + delay,
					transport: "mptcp-recall", metric: result.Goodput, alone: size.alone,
				}, shareMedian))
			}
			p.rows = append(p.rows, row)
		}
	}
	return p
}

// The results of webqoe in a lab: with the paper's environments, and over HTTP/2.
const webMeasured, webHeavyMeasured = "docs/measured/webqoe.json", "docs/measured/webqoe-h2.json"

var webCases = []string{"env1", "env2", "env3", "env4"}

// webTransports are all transports of webqoe, the paper's first.
var webTransports = []string{"tcp", "lia", "vegas", "newreno", "olia", "balia", "wvegas", "cubic"}

// webRows returns a table of docs/webqoe.md with a row for each service in each case.
func webRows(name string, cases []string, head []string, cells func(pattern, service string) []publishedCell) publishedTable {
	p := publishedTable{file: "docs/webqoe.md", name: name, head: append([]string{"case", "service"}, head...)}
	for _, pattern := range cases {
		for _, service := range []string{"map", "shop"} {
			p.rows = append(p.rows, publishedRow{label: pattern + " | " + service, cells: cells(pattern, service)})
		}
	}
	return p
}

// ofWeb returns a cell for each transport.
func ofWeb(file, pattern, service, metric string, transports []string, show func(sample) string) (cells []publishedCell) {
	for _, transport := range transports {
		cells = append(cells, one(figure{lab: file, traffic: service, pattern: pattern, transport: transport, metric: metric}, show))
	}
	return cells
}

// webWaiting returns the table of waiting times with the paper's environments.
func webWaiting() publishedTable {
	papers := webTransports[:4]
	return webRows("waiting", webCases, papers, func(pattern, service string) []publishedCell {
		return ofWeb(webMeasured, pattern, service, result.Waiting, papers, rangeOf)
	})
}

// webHeavy returns the table of first views over HTTP/2 and of 6 MB.
func webHeavy() publishedTable {
	return webRows("heavy", []string{"env3-h2", "env4-h2", "env3-heavy", "env4-heavy"}, webTransports, func(pattern, service string) []publishedCell {
		return ofWeb(webHeavyMeasured, pattern, service, result.FirstView, webTransports, rangeOf)
	})
}

// webPaths returns the table of what the paths carry.
func webPaths() publishedTable {
	controls := []string{"lia", "vegas", "newreno"}
	head := []string{"window: lia", "vegas", "newreno", "Mbit/s: lia", "vegas", "newreno", "least, %: lia", "vegas", "newreno"}
	// In a quick trial, which is not repeated, windows may have been contained values.
	return webRows("paths", []string{"env3", "env4"}, head, func(pattern, service string) []publishedCell {
		return slices.Concat(
			ofWeb(webMeasured, pattern, service, result.PathWindow, controls, tenth),
			ofWeb(webMeasured, pattern, service, result.PathThroughput, controls, mbits),
			ofWeb(webMeasured, pattern, service, result.LeastPath, controls, percents),
		)
	})
}

// vegasCause returns the table of what makes Vegas the fastest without delay, loss and load.
func vegasCause() publishedTable {
	p := publishedTable{file: "scenarios/webqoe-controls/README.md", name: "cause", head: []string{"MPTCP", "600 kB: LIA", "NewReno", "Vegas", "6 MB: LIA", "NewReno", "Vegas"}}
	for _, r := range []struct{ label, suffix string }{
		{"of today", ""}, {"of today, 64 KiB", "-64k"}, {"lowest round-trip time first", "-rtt"}, {"lowest round-trip time first, 64 KiB", "-2014"},
	} {
		row := publishedRow{label: r.label}
		for _, size := range []string{"view", "heavy"} {
			for _, control := range []string{"lia", "newreno", "vegas"} {
				row.cells = append(row.cells, one(figure{scenario: "webqoe-controls", traffic: size, pattern: "env3", transport: control + r.suffix, metric: result.Goodput}, mbits))
			}
		}
		p.rows = append(p.rows, row)
	}
	return p
}

// webFindings returns the published differences of paper E as they were tested.
func webFindings() publishedTable {
	const file = "docs/measured/webqoe-findings.json"
	data, err := os.ReadFile("../../../" + file)
	if err != nil {
		panic(err)
	}
	r, err := result.Decode(bytes.NewReader(data))
	if err != nil {
		panic(fmt.Sprintf("%s: %v", file, err))
	}
	p := publishedTable{file: "docs/webqoe.md", name: "findings", head: []string{"case, service", "published", "trials", "ratio", "p, t-test", "p, Wilcoxon", "outcome"}}
	for _, f := range r.Findings {
		wilcoxon := "-"
		if f.Wilcoxon > 0 {
			wilcoxon = fmt.Sprintf("%.4f", f.WilcoxonCorrected)
		}
		row := publishedRow{label: f.Case + ", " + f.Traffic}
		for _, text := range []string{
			f.Name, strconv.Itoa(f.Pairs), fmt.Sprintf("%.2f (%.2f to %.2f)", f.Ratio, f.Low, f.High), fmt.Sprintf("%.4f", f.Corrected), wilcoxon, string(f.Outcome),
		} {
			row.cells = append(row.cells, publishedCell{format: text})
		}
		p.rows = append(p.rows, row)
	}
	return p
}

// webLoad returns the table of webqoe-load: what load does to the map, without delay and loss.
func webLoad() publishedTable {
	p := publishedTable{file: "docs/webqoe.md", name: "load", head: []string{"load", "carried: tcp", "lia", "wait, s: tcp", "lia", "MOS: tcp", "lia", "Mbit/s of a path: tcp", "lia"}}
	for _, r := range []struct{ label, pattern string }{{"0", "e1-0"}, {"0.5", "e1-50"}, {"0.7", "e1-70"}, {"0.8", "e1-80"}, {"0.9", "e1-90"}, {"0.95", "e1-95"}} {
		row := publishedRow{label: r.label}
		for _, m := range []struct {
			metric string
			show   func(sample) string
		}{{result.LoadShare, shareMedian}, {result.Waiting, rangeOf}, {result.EstimatedMOS, rangeOf}, {result.PathThroughput, mbits}} {
			if m.metric == result.LoadShare && r.label == "0" {
				row.cells = append(row.cells, publishedCell{format: "-"}, publishedCell{format: "-"})
				continue
			}
			row.cells = append(row.cells, ofWeb("docs/measured/webqoe-load.json", r.pattern, "map", m.metric, []string{"tcp", "lia"}, m.show)...)
		}
		p.rows = append(p.rows, row)
	}
	return p
}

// rangeOf shows the least and the largest value of a time, or the only one.
func rangeOf(c sample) string {
	if c.N == 1 {
		return fmt.Sprintf("%.2f", c.Mean)
	}
	return fmt.Sprintf("%.2f to %.2f", c.Min, c.Max)
}

func percents(c sample) string { return fmt.Sprintf("%.0f", 100*c.Mean) }

// medianOf shows a share with the least and the largest.
var medianOf = ranged(2, 1)

// ranged returns a format that shows a median in a unit, with the least and the largest.
func ranged(decimals int, unit float64) func(sample) string {
	return func(c sample) string {
		return fmt.Sprintf("%.*f (%.*f to %.*f)", decimals, c.Median/unit, decimals, c.Min/unit, decimals, c.Max/unit)
	}
}

func medianMillis(c sample) string { return fmt.Sprintf("%.0f", c.Median*1e3) }

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
	cells map[[5]string]result.Result
	labs  map[string]result.Result
	// traces are those of a cell's trials.
	traces map[[5]string][]*result.Trace
}

// text returns a figure as its table shows it.
func (s *simulations) text(f figure) string {
	s.t.Helper()
	c, ok := s.value(f)
	best := 0.0
	for _, name := range f.alone {
		alone := f
		alone.transport = name
		path, _ := s.value(alone) // that of a dead path has no value
		best = max(best, path.Median)
	}
	if !ok || len(f.alone) > 0 && best == 0 {
		s.t.Fatalf("%s%s has no %s of %s, %s, %s and %v", f.scenario, f.lab, f.metric, f.pattern, trafficOf(f), f.transport, f.alone)
	}
	if len(f.alone) > 0 {
		c.Min, c.Median, c.Max = c.Min/best, c.Median/best, c.Max/best
	}
	return f.show(c)
}

// value returns the metric of a figure, simulated or measured, if there is one.
func (s *simulations) value(f figure) (sample, bool) {
	s.t.Helper()
	if f.lab != "" {
		return s.measured(f)
	}
	key := [5]string{f.scenario, f.pattern, f.transport, f.minRTO, trafficOf(f)}
	r, done := s.cells[key]
	if !done {
		spec := s.specs[f.scenario]
		if spec == nil {
			spec = builtIn(s.t, f.scenario)
			s.specs[f.scenario] = spec
		}
		selection := scenario.Selection{Cases: []string{f.pattern}, Transports: []string{f.transport}, Traffic: []string{trafficOf(f)}}
		cell, err := spec.Select(selection)
		if err != nil {
			s.t.Fatal(err)
		}
		e := cell.Experiment
		if f.minRTO != "" {
			least, err := time.ParseDuration(f.minRTO)
			if err != nil {
				s.t.Fatal(err)
			}
			transport := *e.Transports[f.transport]
			model := *transport.Model
			model.MinRTO, transport.Model = least, &model
			e.Transports[f.transport] = &transport
		}
		trials := 1
		if f.random() {
			trials = e.Trials
		}
		keep := func(e Event) { s.traces[key] = append(s.traces[key], e.Trace) }
		if r, err = Run(context.Background(), Options{Spec: cell, Trials: trials, Progress: keep}); err != nil {
			s.t.Fatal(err)
		}
		s.cells[key] = r
	}
	if f.tens > 0 {
		rates, err := stat.Summarize(tens(s.traces[key], f.tens))
		if err != nil {
			s.t.Fatal(err)
		}
		return sample{result.Cell{Summary: rates}, 0}, true
	}
	c, ok := r.Find(result.CellKey{Case: f.pattern, Traffic: trafficOf(f), Transport: f.transport}, f.metric)
	if !ok {
		return sample{}, false
	}
	var values []float64
	for _, run := range r.Runs {
		values = append(values, run.Metrics[f.metric])
	}
	_, sd, err := stat.MeanSD(values)
	if err != nil {
		s.t.Fatal(err)
	}
	return sample{c, sd}, true
}

// tens returns the rates in the nth ten seconds of all trials.
func tens(traces []*result.Trace, n int) (rates []float64) {
	for _, trace := range traces {
		each := int(10 * time.Second / trace.Interval)
		bytes := int64(0)
		for _, sample := range trace.Samples[(n-1)*each : n*each] {
			bytes += sample.Bytes
		}
		rates = append(rates, float64(bytes)*8/10)
	}
	return rates
}

// trafficOf returns the traffic of a figure.
func trafficOf(f figure) string {
	switch {
	case f.traffic != "":
		return f.traffic
	case f.lab != "", strings.HasPrefix(f.scenario, "shake"), strings.HasPrefix(f.scenario, "datagram-") && f.scenario != "datagram-udp":
		return "ftp"
	case f.scenario == "datagram-udp":
		return "udp"
	}
	return "bulk"
}

// measured returns the metric of a figure of a measurement in a lab, if there is one.
func (s *simulations) measured(f figure) (sample, bool) {
	s.t.Helper()
	r, known := s.labs[f.lab]
	if !known {
		data, err := os.ReadFile("../../../" + f.lab)
		if err == nil {
			err = json.Unmarshal(data, &r)
		}
		if err != nil {
			s.t.Fatal(err)
		}
		s.labs[f.lab] = r
	}
	c, ok := r.Find(result.CellKey{Case: f.pattern, Traffic: trafficOf(f), Transport: f.transport}, f.metric)
	return sample{c, 0}, ok
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
	s := &simulations{t: t, specs: map[string]*scenario.Spec{}, cells: map[[5]string]result.Result{}, traces: map[[5]string][]*result.Trace{}, labs: map[string]result.Result{}}
	checked := 0
	for _, table := range tables() {
		if !strings.Contains(table.file, *only) {
			continue
		}
		page, err := published.Read(table.file, table.name, "make tables")
		if err != nil {
			t.Error(err)
			continue
		}
		lines, written := published.Head(table.head...), page.Lines
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
			if err := page.Write(lines); err != nil {
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
	if checked < 20 && *only == "" {
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
