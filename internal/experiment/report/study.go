package report

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/study/qoe"
)

// Study is the report of a study with people.
type Study struct {
	Title string
	// Command repeats the report, and Version is that of the program.
	Command, Version string
	// Agreed counts the participants who agreed and did not withdraw, also those without an answer,
	// and Withdrawn those whose answers are deleted. Without Counted the latter are not known.
	Agreed, Withdrawn int
	Counted           bool
	Analysis          qoe.Analysis
}

// WriteStudy writes the report of a study into the directory, which it creates if needed:
// summary.csv, comparisons.csv, figures/*.svg and *.png and report.html. Each file is written as a
// whole or not at all. Equal answers have equal files.
func WriteStudy(dir string, s Study) error {
	files, err := s.assemble()
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return writeFiles(dir, files)
}

func (s Study) assemble() ([]file, error) {
	var figures []figure
	var files []file
	for i := range s.Analysis.Measures {
		f, err := s.figure(&s.Analysis.Measures[i])
		if err != nil {
			return nil, err
		}
		figures = append(figures, f)
		files = append(files, file{"figures/" + f.name + ".svg", f.svg}, file{"figures/" + f.name + ".png", f.png})
	}
	html, err := s.page(figures)
	if err != nil {
		return nil, err
	}
	summary, err := table(s.summaryTable())
	if err != nil {
		return nil, err
	}
	compared, err := table(s.comparisonTable())
	if err != nil {
		return nil, err
	}
	return append(files, file{"summary.csv", summary}, file{"comparisons.csv", compared}, file{"report.html", html}), nil
}

// measureTitle names a measure with its unit and where it comes from.
func measureTitle(m qoe.Measure) string {
	return axisTitle(m.Title, m.Unit)
}

// figure draws a measure: a panel for each service, a group for each environment.
func (s Study) figure(m *qoe.MeasureAnalysis) (figure, error) {
	a := s.Analysis
	b := &barChart{titles: capitalized(a.Services), groups: a.Environments, series: a.Transports, xLabel: "Environment", yLabel: measureTitle(m.Measure) + ", " + string(m.Provenance)}
	for _, service := range a.Services {
		var panel [][]metricBar
		for _, environment := range a.Environments {
			group := make([]metricBar, len(a.Transports))
			for _, c := range m.Cells {
				if c.Service == service && c.Environment == environment {
					group[slices.Index(a.Transports, c.Transport)] = metricBar{c.Mean, c.CI95, c.N}
				}
			}
			panel = append(panel, group)
		}
		b.panels = append(b.panels, panel)
	}
	caption := b.means(m.Provenance)
	if b.repeated() {
		caption += " Intervals are those of each mean, not of the differences within participants."
	}
	found := differing(m)
	judged := judgedOf(m)
	switch {
	case len(m.Differences) == 0:
		caption += " No environment has two transports to compare."
	case judged == 0:
		caption += " " + notEnough(m) + "."
	default:
		text := "none differs significantly"
		if len(found) > 0 {
			text = strconv.Itoa(len(found)) + " differ significantly: " + strings.Join(found, "; ")
		}
		caption += fmt.Sprintf(" Of %d pairs of transports %s (Wilcoxon's signed-rank test, Holm's correction, p <= %g; r is the rank-biserial correlation).", len(m.Differences), text, qoe.Significance)
		if left := len(m.Differences) - judged; left > 0 {
			caption += fmt.Sprintf(" %d of the pairs do not have the %d participants that it takes, and are not judged.", left, m.Needed)
		}
	}
	return b.draw(figure{name: m.Name, title: measureTitle(m.Measure), caption: caption, alt: b.words("environment and transport")})
}

// judgedOf counts the comparisons that were judged.
func judgedOf(m *qoe.MeasureAnalysis) (n int) {
	for _, d := range m.Differences {
		if d.Judged {
			n++
		}
	}
	return n
}

// notEnough reports how many participants comparisons lack.
func notEnough(m *qoe.MeasureAnalysis) string {
	most := 0
	for _, d := range m.Differences {
		most = max(most, d.Pairs)
	}
	return fmt.Sprintf("Not enough participants: %d have a value of both transports of a pair, and %d are needed, so nothing is judged", most, m.Needed)
}

// differing describes the significant differences of a measure.
func differing(m *qoe.MeasureAnalysis) []string {
	var found []string
	for _, d := range m.Differences {
		if d.Judged && d.Corrected <= qoe.Significance {
			found = append(found, fmt.Sprintf("%s %s: %s and %s (%s, p %s, r = %s)", d.Environment, d.Service, d.A, d.B, signed(d.Mean), equalsP(d.Corrected), signed(d.Effect)))
		}
	}
	return found
}

// signed formats a difference.
func signed(v float64) string {
	switch text := decimal(v, 2); {
	case v > 0:
		return "+" + text
	case text == "-0.00":
		return "0.00"
	default:
		return text
	}
}

// capitalize returns a text that begins with a capital letter. The text begins with an ASCII
// character.
func capitalize(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

func capitalized(names []string) []string {
	list := slices.Clone(names)
	for i, n := range list {
		list[i] = capitalize(n)
	}
	return list
}

// Headline is the outcome in a sentence.
func (s Study) Headline() string {
	all, judged, found := 0, 0, 0
	for i := range s.Analysis.Measures {
		m := &s.Analysis.Measures[i]
		all, judged, found = all+len(m.Differences), judged+judgedOf(m), found+len(differing(m))
	}
	switch {
	case all == 0:
		return "There are no two transports to compare."
	case judged == 0:
		return fmt.Sprintf("Not enough participants to compare transports: %d.", s.Analysis.Participants)
	}
	text := fmt.Sprintf("Of %d comparisons %d differ significantly", all, found)
	if judged < all {
		text += fmt.Sprintf(", and %d have too few participants", all-judged)
	}
	return text + "."
}

// studyPage is the data of the page's template.
type studyPage struct {
	Title, Summary, Headline, Command string
	Found                             []string
	Figures                           []pageFigure
	Means, Compared, Excluded         *pageTable
	About                             []fact
	Files                             []string
}

func (s Study) page(figures []figure) ([]byte, error) {
	a := s.Analysis
	withdrawn := "not known: the answers are of an export as CSV"
	summary := fmt.Sprintf("%d participants with an answer", a.Participants)
	if s.Counted {
		withdrawn = strconv.Itoa(s.Withdrawn)
		summary = fmt.Sprintf("%d participants agreed and did not withdraw, %d of them have an answer", s.Agreed, a.Participants)
	}
	d := studyPage{
		Title: clean(s.Title), Headline: s.Headline(), Command: clean(s.Command),
		Summary: fmt.Sprintf("%s; %d finished all tasks.", summary, a.Complete),
		Means:   s.meansTable(), Compared: s.comparedTable(), Excluded: s.excludedTable(), Files: []string{"summary.csv", "comparisons.csv"},
		About: []fact{
			{Name: "Withdrawn", Text: withdrawn + "; their answers are deleted, and nothing of them is in the report"},
			{Name: "Finished tasks", Text: strconv.Itoa(a.Answers)},
			{Name: "Ended without a choice", Text: strconv.Itoa(a.GaveUp) + "; they have no time, and met no condition"},
			{Name: "Page loaded again", Text: strconv.Itoa(a.Reloaded) + " tasks, which are not left out"},
			{Name: "Version", Text: "tabane " + clean(s.Version)},
		},
	}
	for i := range a.Measures {
		m := &a.Measures[i]
		for _, text := range differing(m) {
			d.Found = append(d.Found, measureTitle(m.Measure)+": "+text)
		}
		if len(m.Differences) > 0 && judgedOf(m) == 0 {
			d.Found = append(d.Found, measureTitle(m.Measure)+": "+strings.ToLower(notEnough(m)[:1])+notEnough(m)[1:]+".")
		}
	}
	for _, f := range figures {
		p, err := onPage(f)
		if err != nil {
			return nil, err
		}
		d.Figures = append(d.Figures, p)
	}
	var b bytes.Buffer
	if err := pages.ExecuteTemplate(&b, "study.html.tmpl", d); err != nil {
		return nil, fmt.Errorf("write report of %q: %w", s.Title, err)
	}
	return b.Bytes(), nil
}

// meansTable has a row for each condition and service.
func (s Study) meansTable() *pageTable {
	t := &pageTable{
		Caption: "Means over the participants who have a value, with 95 % confidence intervals by Student's t. Each column says whether it is a rating of people or measured.",
		Columns: []pageColumn{{Title: "Service"}, {Title: "Environment"}, {Title: "Transport", keep: true}},
	}
	measures := s.Analysis.Measures
	for _, m := range measures {
		t.Columns = append(t.Columns, pageColumn{measureTitle(m.Measure) + ", " + provenance(m.Provenance), true, true})
	}
	for i, c := range measures[0].Cells {
		row := []pageCell{{Text: c.Service}, {Text: c.Environment}, {Text: c.Transport}}
		for _, m := range measures {
			cell := m.Cells[i]
			if cell.N == 0 {
				row = append(row, pageCell{Text: "-", Note: "n = 0"})
				continue
			}
			note := fmt.Sprintf("n = %d", cell.N)
			if cell.N > 1 {
				note = "± " + decimal(cell.CI95, 2) + ", " + note
			}
			row = append(row, pageCell{Text: decimal(cell.Mean, 2), Note: note})
		}
		t.add(row...)
	}
	return t.compact()
}

// provenance returns the source of a measure.
func provenance(p qoe.Provenance) string {
	if p == qoe.Rating {
		return "rating of people"
	}
	return string(p)
}

// comparedTable has a row for each comparison.
func (s Study) comparedTable() *pageTable {
	t := &pageTable{
		Caption: "Each participant uses every condition, so transports are compared within participants: the first minus the second, of those who have a value of both. The test is Wilcoxon's signed-rank test, two-sided. " +
			"Ratings and conditions met have few steps, whose distances need not be equal, and times and efficiencies are skewed: a paired t-test assumes otherwise. Ranks of equal differences are their mean, differences of 0 are left out, " +
			"and p is exact up to 200 differences. Holm's correction counts all pairs of a figure, also those that are not judged. r is the matched-pairs rank-biserial correlation, from -1 to 1. " +
			"Beside it is the paired t-test, as paper E has it, with Holm's correction of its own; the verdict is that of the ranks. " +
			"A pair is judged if its participants are as many as it takes for p <= 0.05 after the correction if all differ in the same direction.",
		Columns: []pageColumn{{Title: "Measure"}, {Title: "Service"}, {Title: "Environment"}, {Title: "Transports", keep: true}, {"Participants", true, true}, {"Mean difference", true, true},
			{"p", true, true}, {"p, Holm", true, true}, {"r", true, true}, {"p, t-test", true, true}, {"p, t-test, Holm", true, true}, {Title: "Verdict", keep: true}},
	}
	for i := range s.Analysis.Measures {
		m := &s.Analysis.Measures[i]
		for _, d := range m.Differences {
			row := []pageCell{{Text: measureTitle(m.Measure), Note: provenance(m.Provenance)}, {Text: d.Service}, {Text: d.Environment}, {Text: d.A + " - " + d.B}, {Text: strconv.Itoa(d.Pairs)}}
			mean := pageCell{Text: "-"}
			if d.Pairs > 0 {
				mean.Text = signed(d.Mean)
			}
			if d.Pairs > 1 {
				mean.Note = "± " + decimal(d.CI95, 2)
			}
			row = append(row, mean)
			if !d.Judged {
				t.add(append(row, pageCell{}, pageCell{}, pageCell{}, pageCell{}, pageCell{}, pageCell{Text: fmt.Sprintf("not enough: %d needed", m.Needed)})...)
				continue
			}
			verdict := pageCell{Text: "no significant difference"}
			if d.Corrected <= qoe.Significance {
				verdict = pageCell{Text: "differ", Strong: true}
			}
			row = append(row, pageCell{Text: shortP(d.P)}, pageCell{Text: shortP(d.Corrected), Strong: verdict.Strong}, pageCell{Text: signed(d.Effect)})
			t.add(append(append(row, studentCells(d.Student, d.StudentCorrected)...), verdict)...)
		}
	}
	return t.compact()
}

// studentCells returns the p-value of a t-test, and the same after Holm's correction.
func studentCells(s stat.Student, corrected float64) []pageCell {
	if s.DF == 0 {
		return []pageCell{{Text: "-"}, {Text: "-"}}
	}
	return []pageCell{{Text: shortP(s.P)}, {Text: shortP(corrected), Strong: corrected <= qoe.Significance}}
}

// excludedTable counts the answers without a value.
func (s Study) excludedTable() *pageTable {
	t := &pageTable{
		Caption: "Answers without a value of a measure, which is not filled in. A participant who has no value under one condition is not in the comparisons with it.",
		Columns: []pageColumn{{Title: "Measure"}, {Title: "Reason", keep: true}, {Title: "Service"}, {Title: "Environment"}, {Title: "Transport", keep: true}, {"Answers", true, true}},
	}
	for _, m := range s.Analysis.Measures {
		for _, c := range m.Cells {
			for _, why := range slices.Sorted(maps.Keys(c.Excluded)) {
				t.add(pageCell{Text: measureTitle(m.Measure)}, pageCell{Text: why}, pageCell{Text: c.Service}, pageCell{Text: c.Environment}, pageCell{Text: c.Transport}, pageCell{Text: strconv.Itoa(c.Excluded[why])})
			}
		}
	}
	if len(t.Rows) == 0 {
		return &pageTable{Caption: "No answer of a finished task is left out."}
	}
	return t.compact()
}

// summaryTable has a row for each measure, condition and service.
func (s Study) summaryTable() (header []string, lines [][]string) {
	for _, m := range s.Analysis.Measures {
		for _, c := range m.Cells {
			line := []string{m.Name, string(m.Provenance), c.Environment, c.Transport, c.Service, strconv.Itoa(c.N)}
			for _, v := range []float64{c.Min, c.Q1, c.Median, c.Q3, c.Max, c.Mean, c.CI95} {
				line = append(line, numberIf(c.N > 0, v))
			}
			var reasons []string
			for _, why := range slices.Sorted(maps.Keys(c.Excluded)) {
				reasons = append(reasons, fmt.Sprintf("%d: %s", c.Excluded[why], why))
			}
			lines = append(lines, append(line, strings.Join(reasons, "; ")))
		}
	}
	return []string{"measure", "provenance", "environment", "transport", "service", "n", "min", "q1", "median", "q3", "max", "mean", "ci95", "left_out"}, lines
}

// comparisonTable has a row for each comparison. What is not judged has no p-value.
func (s Study) comparisonTable() (header []string, lines [][]string) {
	for _, m := range s.Analysis.Measures {
		for _, d := range m.Differences {
			line := []string{m.Name, string(m.Provenance), d.Environment, d.Service, d.A, d.B, strconv.Itoa(d.Pairs), strconv.Itoa(m.Needed), numberIf(d.Pairs > 0, d.Mean), numberIf(d.Pairs > 1, d.CI95)}
			for _, v := range []float64{d.Plus, d.Minus, d.P, d.Corrected, d.Effect} {
				line = append(line, numberIf(d.Judged, v))
			}
			for _, v := range []float64{d.Student.T, d.Student.P, d.StudentCorrected} {
				line = append(line, numberIf(d.Judged && d.Student.DF > 0, v))
			}
			lines = append(lines, line)
		}
	}
	return []string{"measure", "provenance", "environment", "service", "a", "b", "participants", "needed", "mean_difference", "ci95", "w_plus", "w_minus", "p", "p_holm", "rank_biserial", "t", "p_t_test", "p_t_test_holm"}, lines
}

// numberIf formats a number that exists.
func numberIf(exists bool, v float64) string {
	if !exists {
		return ""
	}
	return csvNumber(v)
}

// csvNumber formats a number for a CSV file.
func csvNumber(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
