package report

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/tabane/tabane/internal/experiment/result"
)

// DiffOptions configure the output of a comparison of two results.
type DiffOptions struct {
	// A and B are the names of the results.
	A, B string
	// Changed leaves out rows without a difference.
	Changed bool
	// Width is the number of columns that a table of text may have; 0 for no bound.
	Width int
}

// show reports whether a row is shown.
func (o DiffOptions) show(d result.Difference) bool {
	return !o.Changed || d.Change != result.NoDifference && d.Change != result.TooFew && d.Change != result.Untested
}

// Diff prints the differences between two results, for a terminal.
func Diff(w io.Writer, a, b result.Result, list []result.Difference, o DiffOptions) error {
	var out strings.Builder
	for _, x := range []struct {
		letter, name string
		r            result.Result
	}{{"A", o.A, a}, {"B", o.B, b}} {
		fmt.Fprintf(&out, "%s  %s: %s, %s, %s, kernel %s\n", x.letter, clean(x.name), clean(x.r.Scenario), clean(x.r.Backend), trialsOf(x.r.Runs), clean(x.r.Host.Kernel))
	}
	lines := [][]string{{"PATTERN", "TRAFFIC", "TRANSPORT", "METRIC", "A", "B", "B/A", "95 % CI", "N", "VERDICT"}}
	count := map[result.Change]int{}
	for _, d := range list {
		count[d.Change]++
		if !o.show(d) {
			continue
		}
		m, _ := result.MetricNamed(d.Metric)
		unit, by := shownUnit(m.Unit)
		what := m.Title
		if unit != "" {
			what += " (" + unit + ")"
		}
		ratio, interval := "-", "-"
		if d.RatioKnown {
			ratio = fmt.Sprintf("%.3f", d.Ratio.Value)
		}
		if d.IntervalKnown {
			interval = fmt.Sprintf("%.3f to %.3f", d.Ratio.Low, d.Ratio.High)
		}
		lines = append(lines, []string{clean(d.Case), clean(d.Traffic), clean(d.Transport), what, digits(d.A.Mean * by), digits(d.B.Mean * by), ratio, interval,
			fmt.Sprintf("%d, %d", d.A.N, d.B.N), string(d.Change)})
	}
	if len(lines) > 1 {
		out.WriteByte('\n')
		byCell(&out, lines, o.Width, "B/A with its 95 % confidence interval", func(l []string) string {
			return fmt.Sprintf("%s: A %s, B %s, B/A %s (%s), N %s", l[9], l[4], l[5], l[6], l[7], l[8])
		})
	}
	for _, x := range onlyIn(a, b) {
		fmt.Fprintf(&out, "\nonly in A: %s", x)
	}
	for _, x := range onlyIn(b, a) {
		fmt.Fprintf(&out, "\nonly in B: %s", x)
	}
	var parts []string
	for _, c := range []result.Change{result.Better, result.Worse, result.Higher, result.Lower, result.NoDifference, result.TooFew, result.Untested} {
		if count[c] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count[c], c))
		}
	}
	fmt.Fprintf(&out, "\n%d compared: %s\n", len(list), strings.Join(parts, ", "))
	_, err := io.WriteString(w, out.String())
	return err
}

// byCell writes a table whose first columns are the case, the traffic, the transport and the metric.
// What is wider than width columns, unless 0, is written as a list instead: each cell, its metrics
// below, and below these the rest of the line as values returns it, which note explains.
func byCell(b *strings.Builder, lines [][]string, width int, note string, values func(line []string) string) {
	if width == 0 || len(Bands(lines, 1, width)) == 1 {
		align(b, lines, 4)
		return
	}
	fmt.Fprintf(b, "(%s)\n", note)
	last := ""
	for _, l := range lines[1:] {
		if cell := strings.Join(l[:3], " "); cell != last && strings.TrimSpace(cell) != "" {
			fmt.Fprintln(b, cell)
			last = cell
		}
		fmt.Fprintf(b, "  %s\n    %s\n", l[3], values(l))
	}
}

// onlyIn returns the cells of a that b does not have.
func onlyIn(a, b result.Result) []result.CellKey {
	there := map[result.CellKey]bool{}
	for _, k := range b.Cells() {
		there[k] = true
	}
	var list []result.CellKey
	for _, k := range a.Cells() {
		if !there[k] {
			list = append(list, k)
		}
	}
	return list
}

// DiffJSON writes the differences as JSON, with means in the metrics' units.
func DiffJSON(w io.Writer, a, b result.Result, list []result.Difference, o DiffOptions) error {
	type side struct {
		Name    string `json:"name"`
		Backend string `json:"backend"`
		Commit  string `json:"commit"`
		Kernel  string `json:"kernel"`
	}
	type cell struct {
		Case      string `json:"case"`
		Traffic   string `json:"traffic"`
		Transport string `json:"transport"`
	}
	type line struct {
		cell
		Metric  string      `json:"metric"`
		Unit    string      `json:"unit,omitempty"`
		MeanA   float64     `json:"a_mean"`
		MeanB   float64     `json:"b_mean"`
		A       int         `json:"a_n"`
		B       int         `json:"b_n"`
		Ratio   *float64    `json:"ratio,omitempty"`
		CI95    *[2]float64 `json:"ci95,omitempty"`
		Verdict string      `json:"verdict"`
	}
	cells := func(keys []result.CellKey) []cell {
		list := []cell{}
		for _, k := range keys {
			list = append(list, cell{k.Case, k.Traffic, k.Transport})
		}
		return list
	}
	lines := []line{}
	for _, d := range list {
		if !o.show(d) {
			continue
		}
		m, _ := result.MetricNamed(d.Metric)
		l := line{cell{d.Case, d.Traffic, d.Transport}, d.Metric, m.Unit, d.A.Mean, d.B.Mean, d.A.N, d.B.N, nil, nil, string(d.Change)}
		if d.RatioKnown {
			l.Ratio = &d.Ratio.Value
		}
		if d.IntervalKnown {
			l.CI95 = &[2]float64{d.Ratio.Low, d.Ratio.High}
		}
		lines = append(lines, l)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(struct {
		Schema   int    `json:"schema"`
		Scenario string `json:"scenario"`
		A        side   `json:"a"`
		B        side   `json:"b"`
		Rows     []line `json:"rows"`
		OnlyA    []cell `json:"only_a"`
		OnlyB    []cell `json:"only_b"`
	}{result.Schema, a.Scenario, side{o.A, a.Backend, a.Host.Commit, a.Host.Kernel}, side{o.B, b.Backend, b.Host.Commit, b.Host.Kernel}, lines, cells(onlyIn(a, b)), cells(onlyIn(b, a))})
}
