package report

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// webColumns are the displayed metrics of an experiment of scenario.KindWeb; caption is for a
// terminal. Values are divided by divide, unless that is 0, and have so many digits.
var webColumns = []struct {
	metric, title, caption string
	divide                 float64
	digits                 int
}{
	{result.FirstView, "First view (s)", "VIEW (s)", 0, 2},
	{result.StepTime, "Step (s)", "STEP (s)", 0, 2},
	{result.TaskTime, "Task (s)", "TASK (s)", 0, 1},
	{result.Effectiveness, "Conditions met", "MET", 0, 1},
	{result.SpeedIndex, "Speed Index (s)", "SPEED (s)", 0, 2},
	{result.EstimatedMOS, "Estimated MOS (model)", "MOS*", 0, 2},
	{result.PathWindow, "Window of a path (segments)", "CWND", 0, 1},
	{result.PathThroughput, "Throughput of a path (Mbit/s)", "PATH (Mbit/s)", 1e6, 2},
	{result.LeastPath, "Least used path (%)", "LEAST (%)", 0.01, 1},
}

// webTable is the table of an experiment of scenario.KindWeb: a line for each cell, with the means.
type webTable struct{ lines []webLine }

type webLine struct {
	result.CellKey
	caseTitle, trafficTitle, transportTitle string
	values, ranges                          []string
	trials, failed, disturbed               int
}

// newWebTable returns nil for an experiment of another kind.
func newWebTable(r result.Result, e *scenario.Experiment) *webTable {
	if e.Kind != scenario.KindWeb {
		return nil
	}
	t := &webTable{}
	for _, k := range e.Cells() {
		l := webLine{CellKey: k, caseTitle: caseTitle(e, k.Case), trafficTitle: trafficTitle(e, k.Traffic), transportTitle: transportTitle(e, k.Transport)}
		for _, run := range r.Runs {
			if run.CellKey != k {
				continue
			}
			l.trials++
			if run.Err() != nil {
				l.failed++
			}
			l.disturbed += int(run.Metrics[result.Disturbed])
		}
		for _, c := range webColumns {
			text, around := "-", ""
			if cell, ok := r.Find(k, c.metric); ok {
				divide := cmp.Or(c.divide, 1)
				text = decimal(cell.Mean/divide, c.digits)
				if cell.N > 1 {
					around = "± " + decimal(cell.CI95/divide, c.digits)
				}
			}
			l.values, l.ranges = append(l.values, text), append(l.ranges, around)
		}
		t.lines = append(t.lines, l)
	}
	return t
}

// text returns the table for a terminal.
func (t *webTable) text() [][]string {
	header := []string{"PATTERN", "TRAFFIC", "TRANSPORT"}
	for _, c := range webColumns {
		header = append(header, c.caption)
	}
	lines := [][]string{append(header, "TRIALS", "DISTURBED")}
	for _, l := range t.lines {
		trials := strconv.Itoa(l.trials)
		if l.failed > 0 {
			trials += fmt.Sprintf(" (%d failed)", l.failed)
		}
		line := append([]string{clean(l.Case), clean(l.Traffic), clean(l.Transport)}, l.values...)
		lines = append(lines, append(line, trials, strconv.Itoa(l.disturbed)))
	}
	return lines
}

// page returns the table for the page.
func (t *webTable) page() *pageTable {
	mos, _ := result.MetricNamed(result.EstimatedMOS)
	p := &pageTable{
		Caption: "Means over the trials that did not fail, with 95 % confidence intervals. All are measured but the " + mos.Title + ", which a model estimates from the mean waiting time. " +
			"Disturbed trials were repeated, because the processors were busy or links late.",
		Columns: []pageColumn{{Title: "Pattern"}, {Title: "Traffic"}, {Title: "Transport", keep: true}},
	}
	for _, c := range webColumns {
		p.Columns = append(p.Columns, pageColumn{c.title, true, true})
	}
	p.Columns = append(p.Columns, pageColumn{Title: "Trials", Number: true}, pageColumn{Title: "Disturbed", Number: true})
	for _, l := range t.lines {
		cells := []pageCell{{Text: l.Case, Note: l.caseTitle}, {Text: l.trafficTitle}, {Text: l.transportTitle}}
		for i, v := range l.values {
			cells = append(cells, pageCell{Text: v, Note: l.ranges[i]})
		}
		p.add(append(cells, trialsCell(l.trials, l.failed), pageCell{Text: strconv.Itoa(l.disturbed)})...)
	}
	return p.compact()
}

// mosNote explains the asterisk of the terminal's table.
func mosNote() string {
	m, _ := result.MetricNamed(result.EstimatedMOS)
	return "* " + m.Title + ": of a model, not measured\n"
}
