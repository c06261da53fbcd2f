package report

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/study/qoe"
)

// findingsTable returns the table of the published differences, or nil if there are none.
func findingsTable(r result.Result) *pageTable {
	if len(r.Findings) == 0 {
		return nil
	}
	count := 0
	for _, f := range r.Findings {
		if f.Outcome == result.OutcomeReproduced {
			count++
		}
	}
	t := &pageTable{
		Caption: fmt.Sprintf("%d of %d published differences are reproduced: the ratio is on the published side, and its paired t-test has p <= %g after Holm's correction for all of them. ", count, len(r.Findings), qoe.Significance) +
			"Ratios are geometric means of those of trials with the same task, with 95 % confidence intervals; the tests are of their logarithms. Beside the t-test, which publications use, is Wilcoxon's signed-rank test, which needs no normal distribution and more trials. " +
			"A difference that is not significant may exist nevertheless.",
		Columns: []pageColumn{{Title: "Published"}, {Title: "Source"}, {Title: "Cell", keep: true}, {Title: "Compared with", keep: true}, {"Ratio", true, true}, {Title: "Published ratio", Number: true},
			{"Trials", true, true}, {"p, t-test, Holm", true, true}, {"p, Wilcoxon, Holm", true, true}, {Title: "Outcome", keep: true}},
	}
	for _, f := range r.Findings {
		_, other, _ := strings.Cut(f.Relative, ":")
		ratio := pageCell{Text: "-"}
		if f.Ratio > 0 {
			ratio = pageCell{Text: decimal(f.Ratio, 2), Note: decimal(f.Low, 2) + " to " + decimal(f.High, 2)}
		}
		reproduced := f.Outcome == result.OutcomeReproduced
		t.add(pageCell{Text: f.Name, Note: titleOfMetric(f.Metric)}, pageCell{Text: f.Source}, pageCell{Text: f.CellKey.String()}, pageCell{Text: other}, ratio, pageCell{Text: f.Want},
			pageCell{Text: strconv.Itoa(f.Pairs)}, pageCell{Text: shortP(f.Corrected), Strong: f.Corrected <= qoe.Significance}, wilcoxonCell(f),
			pageCell{Text: string(f.Outcome), Strong: reproduced, Bad: f.Outcome == result.OutcomeContrary})
	}
	return t.compact()
}

// wilcoxonCell returns the p-value of the signed-rank test, after Holm's correction.
func wilcoxonCell(f result.Finding) pageCell {
	if f.Wilcoxon == 0 {
		return pageCell{Text: "-"}
	}
	return pageCell{Text: shortP(f.WilcoxonCorrected), Strong: f.WilcoxonCorrected <= qoe.Significance}
}

func titleOfMetric(name string) string {
	m, _ := result.MetricNamed(name)
	return m.Title
}

// findingsText returns the published differences for a terminal.
func findingsText(r result.Result) string {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s  %s (%s): %s / %s", f.Outcome, clean(f.Name), clean(f.Source), f.CellKey, clean(f.Relative))
		if f.Ratio > 0 {
			fmt.Fprintf(&b, " %s (%s to %s), p %s", decimal(f.Ratio, 2), decimal(f.Low, 2), decimal(f.High, 2), equalsP(f.Corrected))
		}
		if f.Wilcoxon > 0 {
			fmt.Fprintf(&b, ", Wilcoxon %s", equalsP(f.WilcoxonCorrected))
		}
		fmt.Fprintf(&b, ", %d trials\n", f.Pairs)
	}
	return b.String()
}

// findingsFile is the table of the published differences for findings.csv.
func findingsFile(r result.Result) (header []string, lines [][]string) {
	for _, f := range r.Findings {
		line := []string{f.Name, f.Source, f.Metric, f.Case, f.Traffic, f.Transport, f.Relative, f.Want, strconv.Itoa(f.Pairs)}
		for _, v := range []float64{f.Ratio, f.Low, f.High} {
			line = append(line, numberIf(f.Ratio > 0, v))
		}
		line = append(line, csvNumber(f.P), csvNumber(f.Corrected), numberIf(f.Wilcoxon > 0, f.Wilcoxon), numberIf(f.Wilcoxon > 0, f.WilcoxonCorrected))
		lines = append(lines, append(line, string(f.Outcome)))
	}
	return []string{"name", "source", "metric", "case", "traffic", "transport", "relative", "published", "pairs", "ratio", "low", "high", "p", "p_holm", "wilcoxon_p", "wilcoxon_p_holm", "outcome"}, lines
}
