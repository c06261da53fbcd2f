package report

import (
	"bytes"
	"embed"
	"encoding/xml"
	"fmt"
	"html/template"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

//go:embed *.html.tmpl
var pageFiles embed.FS

// pages are the pages report.html.tmpl and study.html.tmpl, and their parts.
var pages = template.Must(template.ParseFS(pageFiles, "*.html.tmpl"))

// pageData is the data of the page's template.
type pageData struct {
	Title, Question string
	Command, Text   string
	// Summary describes the result in a line; About has all facts.
	Summary string
	About   []fact
	// Verdict is "holds", "fails" or "none", Headline the verdict in words, Scope the number of
	// trials.
	Verdict, Headline, Scope string
	Failures                 []string
	// Early reports that the experiment ended early, and Busy that the host was too busy, if so.
	Early, Busy string
	Result      *pageTable
	// FiguresFirst puts the figures before a long table.
	FiguresFirst bool
	Topology     pageFigure
	Expect       []result.Verdict
	NotJudged    []result.NotJudged
	// Findings are the published differences.
	Findings *pageTable
	// Compared is the comparison with a simulation.
	Compared *pageTable
	Figures  []pageFigure
	Files    []string
	Runs     *pageTable
	RunCount int
}

// longTable is the number of rows from which the figures precede the table.
const longTable = 20

type pageFigure struct {
	Name, Title, Caption string
	SVG                  template.HTML
}

func writePage(r result.Result, spec *scenario.Spec, extra Extra, all []row, compared []compareLine, topology figure, figures []figure) ([]byte, error) {
	e := spec.Experiment
	trials := trialsOf(r.Runs)
	d := pageData{
		Title: orName(spec.Title, r.Scenario), Question: clean(spec.Question), Command: clean(extra.Command), Text: printable(extra.Text),
		About: about(r, spec, extra, trials), Early: early(r), Busy: busy(r), Files: []string{"result.json", "summary.csv", "runs.csv"}, RunCount: len(r.Runs),
	}
	if e.Kind == scenario.KindWeb {
		d.Files = append(d.Files, "comparisons.csv", "browsertime.json")
	}
	if d.Findings = findingsTable(r); d.Findings != nil {
		d.Files = append(d.Files, "findings.csv")
	}
	d.Scope = trials
	if extra.Quick {
		d.Scope = "quick, " + trials
	}
	d.Verdict, d.Headline = verdict(r)
	for _, v := range r.Expect {
		d.Expect = append(d.Expect, result.Verdict{Name: clean(v.Name), Want: clean(v.Want), Got: clean(v.Got), Holds: v.Holds})
	}
	for _, n := range r.NotJudged {
		d.NotJudged = append(d.NotJudged, result.NotJudged{Name: clean(n.Name), Want: clean(n.Want), Why: clean(n.Why)})
	}
	for _, run := range r.Runs {
		if err := run.Err(); err != nil {
			d.Failures = append(d.Failures, clean(fmt.Sprintf("%s, trial %d: %v", run.CellKey, run.Trial, err)))
		}
	}
	var err error
	if d.Topology, err = onPage(topology); err != nil {
		return nil, err
	}
	for _, f := range figures {
		p, err := onPage(f)
		if err != nil {
			return nil, err
		}
		d.Figures = append(d.Figures, p)
	}
	if routes := newRouteTable(r, e); routes != nil {
		d.Result = routes.page()
	} else if web := newWebTable(r, e); web != nil {
		d.Result = web.page()
	} else {
		d.Result = resultTable(all, e)
	}
	d.FiguresFirst = len(d.Result.Rows) > longTable
	if len(compared) > 0 {
		d.Compared = comparedTable(compared)
	}
	d.Runs = runsTable(r.Runs)
	var facts []string
	for _, f := range d.About {
		if f.Brief {
			facts = append(facts, f.Text)
		}
	}
	d.Summary = strings.Join(facts, " \u00b7 ")
	var b bytes.Buffer
	if err := pages.ExecuteTemplate(&b, "report.html.tmpl", d); err != nil {
		return nil, fmt.Errorf("write report of %q: %w", r.Scenario, err)
	}
	return b.Bytes(), nil
}

// verdict returns Verdict and Headline of the page of a result.
func verdict(r result.Result) (verdict, headline string) {
	n, missed := len(r.Expect), 0
	for _, v := range r.Expect {
		if !v.Holds {
			missed++
		}
	}
	switch {
	case n == 0 && len(r.NotJudged) > 0:
		return "none", "No expectation was judged."
	case n == 0:
		return "none", "This scenario has no expectations."
	case missed == 0 && n == 1:
		return "holds", "The expectation holds."
	case missed == 0:
		return "holds", fmt.Sprintf("All %d expectations hold.", n)
	case missed == 1:
		return "fails", fmt.Sprintf("1 of %d expectations does not hold.", n)
	}
	return "fails", fmt.Sprintf("%d of %d expectations do not hold.", missed, n)
}

func onPage(f figure) (pageFigure, error) {
	svg, err := inline(f)
	return pageFigure{f.name, f.title, f.caption, svg}, err
}

// fact is a property of the whole result, or a value that all rows of a table have in common.
type fact struct {
	Name, Text string
	// Brief facts are also in the line below the title.
	Brief bool
}

// about returns the facts needed to assess or reproduce the result.
func about(r result.Result, spec *scenario.Spec, extra Extra, trials string) []fact {
	backend := map[string]string{result.BackendLab: "lab (Linux kernel)", result.BackendSim: "simulator"}[r.Backend]
	if backend == "" {
		backend = clean(r.Backend)
	}
	facts := []fact{{"Scenario", clean(r.Scenario), false}}
	if !extra.Made.IsZero() {
		facts = append(facts, fact{"Date", extra.Made.UTC().Format("2006-01-02 15:04 UTC"), true})
	}
	facts = append(facts, fact{"Backend", backend, true})
	if r.Host.Commit != "" {
		facts = append(facts, fact{"Version", "tabane " + clean(r.Host.Commit), true})
	}
	pass := trials
	if extra.Quick {
		pass = "quick, " + trials
	}
	facts = append(facts, fact{"Trials", pass, true})
	if seeds := seedsOf(r, spec, extra); seeds != "" {
		facts = append(facts, fact{"Seeds", seeds, false})
	}
	return append(facts, fact{"Kernel", clean(r.Host.Kernel), false}, fact{"CPUs", strconv.Itoa(r.Host.CPUs), false},
		fact{"Took", (time.Duration(r.Seconds * float64(time.Second))).Round(time.Second).String(), false})
}

// trialsOf returns the number of trials of each cell, in words.
func trialsOf(runs []result.Run) string {
	count := map[result.CellKey]int{}
	for _, r := range runs {
		count[r.CellKey]++
	}
	least, most := math.MaxInt, 0
	for _, n := range count {
		least, most = min(least, n), max(most, n)
	}
	switch {
	case len(count) == 0:
		return "no trials"
	case least != most:
		return fmt.Sprintf("%d to %d trials", least, most)
	case most == 1:
		return "1 trial"
	}
	return fmt.Sprintf("%d trials", most)
}

// seedsOf returns the seeds of all randomness: of a simulation those of its trials, of a lab those
// of its emulated links.
func seedsOf(r result.Result, spec *scenario.Spec, extra Extra) string {
	if extra.Seed != 0 {
		most := 0
		for _, run := range r.Runs {
			most = max(most, run.Trial)
		}
		if most == 0 {
			return strconv.FormatUint(extra.Seed, 10)
		}
		return fmt.Sprintf("%d to %d", extra.Seed, extra.Seed+uint64(most))
	}
	var seeds []string
	for _, name := range slices.Sorted(maps.Keys(spec.Links)) {
		if l := spec.Links[name]; l != nil && l.Seed != 0 {
			seeds = append(seeds, fmt.Sprintf("link %s %d", clean(name), l.Seed))
		}
	}
	return strings.Join(seeds, ", ")
}

// printable returns a text of several lines without characters that are not printable.
func printable(s string) string {
	lines := strings.Split(strings.ReplaceAll(s, "\t", "    "), "\n")
	for i := range lines {
		lines[i] = clean(lines[i])
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

var svgStart = regexp.MustCompile(`(?s)^.*?<svg width="[^"]*" height="[^"]*" viewBox="([^"]*)"[^>]*>`)

// inline returns a figure's SVG as a part of the page, with its alternative text, and with the
// page's variables for colors that would be hard to see on a dark page.
func inline(f figure) (template.HTML, error) {
	m := svgStart.FindSubmatchIndex(f.svg)
	if m == nil {
		return "", fmt.Errorf("embed figure %q: is not an SVG as expected", f.name)
	}
	var alt strings.Builder
	if err := xml.EscapeText(&alt, []byte(f.alt)); err != nil {
		return "", fmt.Errorf("embed figure %q: %w", f.name, err)
	}
	body := string(f.svg[m[1]:])
	for hex, name := range map[string]string{"#FFFFFF": "paper", "#1A1A1A": "ink", "#595959": "muted", "#E0E0E0": "grid", "#0072B2": "blue"} {
		body = strings.ReplaceAll(body, ":"+hex, ":var(--"+name+")")
	}
	return template.HTML(fmt.Sprintf(`<svg role="img" viewBox="%s" aria-label="%s">%s`, f.svg[m[2]:m[3]], alt.String(), body)), nil
}

// runTable has every metric and every note of every run as a column.
func runTable(runs []result.Run) (header []string, lines [][]string) {
	metrics, notes := map[string]bool{}, map[string]bool{}
	for _, r := range runs {
		for name := range r.Metrics {
			metrics[name] = true
		}
		for name := range r.Notes {
			notes[name] = true
		}
	}
	metricNames, noteNames := slices.Sorted(maps.Keys(metrics)), slices.Sorted(maps.Keys(notes))
	header = slices.Concat([]string{"case", "traffic", "transport", "trial"}, metricNames, noteNames)
	for _, r := range runs {
		line := []string{r.Case, r.Traffic, r.Transport, strconv.Itoa(r.Trial)}
		for _, name := range metricNames {
			if v, ok := r.Metrics[name]; ok {
				line = append(line, strconv.FormatFloat(v, 'f', -1, 64))
			} else {
				line = append(line, "")
			}
		}
		for _, name := range noteNames {
			line = append(line, r.Notes[name])
		}
		lines = append(lines, line)
	}
	return header, lines
}
