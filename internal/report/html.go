package report

import (
	"bytes"
	_ "embed"
	"encoding/xml"
	"fmt"
	"html/template"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/result"
	"github.com/tabane/tabane/internal/scenario"
)

//go:embed report.html.tmpl
var pageText string

var page = template.Must(template.New("report").Parse(pageText))

// pageData is what the page shows.
type pageData struct {
	Title, Name, Question, Backend, Took string
	Command                              string
	Host                                 result.Host
	// Verdict is "holds", "fails" or "none", Headline says it in words.
	Verdict, Headline string
	Failures          []string
	Baseline          string
	Ranged, Gained    bool
	// Eventful is whether something happened in the runs.
	Eventful bool
	// Ordered is whether what putting segments into order costs was measured.
	Ordered bool
	Rows    []row
	// Routes is there instead of Rows where changes of routes were measured.
	Routes *routeTable
	// Compared is the result beside that of a simulator.
	Compared  []compareLine
	Expect    []result.Verdict
	Figures   []pageFigure
	RunHeader []string
	Runs      [][]string
}

type pageFigure struct {
	Title, Caption string
	SVG            template.HTML
}

func writePage(r result.Result, spec *scenario.Spec, command string, all []row, compared []compareLine, figures []figure) ([]byte, error) {
	e := spec.Experiment
	d := pageData{
		Title: orName(spec.Title, r.Scenario), Name: clean(r.Scenario), Question: clean(spec.Question), Backend: clean(r.Backend),
		Took: (time.Duration(r.Seconds * float64(time.Second))).Round(time.Second).String(), Command: clean(command),
		Host: result.Host{Kernel: clean(r.Host.Kernel), CPUs: r.Host.CPUs, Commit: clean(r.Host.Commit)}, Rows: all, Eventful: e.Eventful(), Ordered: resequences(all), Compared: compared,
	}
	if e.Baseline != "" {
		d.Baseline = transportTitle(e, e.Baseline)
	}
	for _, w := range all {
		d.Ranged = d.Ranged || w.Range() != ""
		d.Gained = d.Gained || w.Gain() != ""
	}
	missed := 0
	for _, v := range r.Expect {
		if !v.Holds {
			missed++
		}
		d.Expect = append(d.Expect, result.Verdict{Name: clean(v.Name), Want: clean(v.Want), Got: clean(v.Got), Holds: v.Holds})
	}
	switch n := len(r.Expect); {
	case n == 0:
		d.Verdict, d.Headline = "none", "This scenario expects nothing."
	case missed == 0 && n == 1:
		d.Verdict, d.Headline = "holds", "The expectation holds."
	case missed == 0:
		d.Verdict, d.Headline = "holds", fmt.Sprintf("All %d expectations hold.", n)
	case missed == 1:
		d.Verdict, d.Headline = "fails", fmt.Sprintf("1 of %d expectations does not hold.", n)
	default:
		d.Verdict, d.Headline = "fails", fmt.Sprintf("%d of %d expectations do not hold.", missed, n)
	}
	for _, run := range r.Runs {
		if err := run.Err(); err != nil {
			d.Failures = append(d.Failures, clean(fmt.Sprintf("%s, trial %d: %v", run.CellKey, run.Trial, err)))
		}
	}
	for _, f := range figures {
		svg, err := inline(f)
		if err != nil {
			return nil, err
		}
		d.Figures = append(d.Figures, pageFigure{f.title, f.caption, svg})
	}
	d.Routes = newRouteTable(r, e)
	d.RunHeader, d.Runs = runTable(r.Runs)
	for _, line := range d.Runs {
		for i := range line {
			line[i] = clean(line[i])
		}
	}
	var b bytes.Buffer
	if err := page.Execute(&b, d); err != nil {
		return nil, fmt.Errorf("write report of %q: %w", r.Scenario, err)
	}
	return b.Bytes(), nil
}

// Missing reports whether the row has nothing to show.
func (w row) Missing() bool { return !w.delivered }

var svgStart = regexp.MustCompile(`(?s)^.*?<svg width="[^"]*" height="[^"]*" viewBox="([^"]*)"[^>]*>`)

// inline makes of a figure's SVG file a part of the page: with words for those who do not see it, and in colors that
// the page decides where the figure's own would be hard to see on a dark page.
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
