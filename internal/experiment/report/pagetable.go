package report

import (
	"slices"
	"strconv"

	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
)

// pageTable is a table of the page. Its first column has the names of the rows.
type pageTable struct {
	Caption string
	Columns []pageColumn
	Rows    []pageRow
	// Same are the values that all rows have in common, shown once instead of in a column.
	Same []fact
}

type pageColumn struct {
	Title  string
	Number bool
	// keep shows the column even if all rows have the same value.
	keep bool
}

type pageRow struct {
	// Group marks the first of a group of rows with the same first cell.
	Group bool
	Cells []pageCell
}

type pageCell struct {
	Text string
	// Note follows the text in a muted color; in a Bad cell, as an error.
	Note        string
	Strong, Bad bool
	// Link is a file beside the page.
	Link string
}

func (t *pageTable) add(cells ...pageCell) {
	for i := range cells {
		cells[i].Text, cells[i].Note = clean(cells[i].Text), clean(cells[i].Note)
	}
	n := len(t.Rows)
	t.Rows = append(t.Rows, pageRow{n == 0 || t.Rows[n-1].Cells[0] != cells[0], cells})
}

// compact moves columns with the same value in all rows to Same, and drops empty ones.
func (t *pageTable) compact() *pageTable {
	for i := len(t.Columns) - 1; i > 0; i-- {
		empty := !slices.ContainsFunc(t.Rows, func(r pageRow) bool { return r.Cells[i] != pageCell{} })
		same := len(t.Rows) > 1 && !slices.ContainsFunc(t.Rows, func(r pageRow) bool { return r.Cells[i] != t.Rows[0].Cells[i] })
		if t.Columns[i].keep || !empty && !same {
			continue
		}
		if !empty {
			text := t.Rows[0].Cells[i].Text
			if note := t.Rows[0].Cells[i].Note; note != "" {
				text += " " + note
			}
			t.Same = slices.Insert(t.Same, 0, fact{Name: t.Columns[i].Title, Text: text})
		}
		t.Columns = slices.Delete(t.Columns, i, i+1)
		for j := range t.Rows {
			t.Rows[j].Cells = slices.Delete(t.Rows[j].Cells, i, i+1)
		}
	}
	return t
}

// trialsCell returns a cell with the number of trials, and of failed ones.
func trialsCell(trials, failed int) pageCell {
	c := pageCell{Text: strconv.Itoa(trials)}
	if failed > 0 {
		c.Note, c.Bad = "("+strconv.Itoa(failed)+" failed)", true
	}
	return c
}

// resultTable returns the table of an experiment of scenario.KindDelivery, a row for each cell.
func resultTable(all []row, e *scenario.Experiment) *pageTable {
	t := &pageTable{Caption: "Median goodput of the content at the receiver"}
	ranged, eventful, ordered := false, e.HasEvents(), resequences(all)
	for _, w := range all {
		ranged = ranged || w.Range() != ""
	}
	if ranged {
		t.Caption += ", with the range over the trials"
	}
	t.Caption += ". The limit is the available capacity of the usable links after all headers, at most the offered rate; the last share counts the headers of plain TCP for every transport."
	if eventful {
		t.Caption += " The longest pause and the time to 95 % of the new limit, held for 0.3 s, count from the first event and are the worst of all trials."
	}
	if len(e.BestOf) > 0 {
		t.Caption += " The best path alone is the better of the transports with one path; what the paths can carry in order is the largest over their sets of the lesser of the sum of their rates and the client's window over the longest round-trip time. The longest pause is the worst of all trials."
	}
	if ordered {
		t.Caption += " The resequencing delay is how long segments waited for those before them, the mean over the trials; the longest burst is what was released at one instant, in segments, the worst of all trials."
	}
	text := func(title string) pageColumn { return pageColumn{Title: title} }
	number := func(title string) pageColumn { return pageColumn{Title: title, Number: true} }
	t.Columns = []pageColumn{text("Pattern"), text("Traffic"), text("Transport"), {"Goodput (Mbit/s)", true, true}, number("Min to max (Mbit/s)"),
		number("Limit (Mbit/s)"), number("Of limit"), number("Of limit with TCP headers"), number("Gain over " + transportTitle(e, e.Baseline)),
		number("Longest pause (ms)"), number("To the limit (s)"), number("Connections lost"),
		number("Of the best path alone"), number("Of what the paths can carry"), number("Object, median (ms)"), number("Object, 95 % (ms)"), number("Longest pause after 1 s (ms)"),
		number("Resequencing delay (ms)"), number("Longest burst"), number("Trials")}
	for _, w := range all {
		goodput := pageCell{Text: w.Value(), Strong: w.delivered, Bad: !w.delivered}
		if w.published.ok {
			goodput.Note = "published " + mbit(w.published.value, 1)
		}
		lost := pageCell{}
		if eventful {
			lost.Text = w.Lost()
		}
		t.add(pageCell{Text: w.Case, Note: w.CaseTitle}, pageCell{Text: w.TrafficTitle}, pageCell{Text: w.TransportTitle}, goodput, pageCell{Text: w.Range()},
			pageCell{Text: w.Limit()}, pageCell{Text: w.Share()}, pageCell{Text: w.ShareTCP()}, pageCell{Text: w.Gain()},
			pageCell{Text: w.Gap()}, pageCell{Text: w.Reach()}, lost,
			pageCell{Text: percent(w.best)}, pageCell{Text: percent(w.bound)}, pageCell{Text: inMilliseconds(w.p50)}, pageCell{Text: inMilliseconds(w.p95)}, pageCell{Text: inMilliseconds(w.pause)},
			pageCell{Text: w.Delay()}, pageCell{Text: w.Burst()}, trialsCell(w.Trials, w.Failed))
	}
	return t.compact()
}

// page returns the table of an experiment of scenario.KindRoutes.
func (t *routeTable) page() *pageTable {
	p := &pageTable{
		Caption: "Median time in milliseconds, with the quartiles over the trials. EPE Route, best path, subflow and what the ASBR receives count from the change of policy on; reflector, and ASBR and server, are what these take themselves.",
		Columns: []pageColumn{{Title: "Pattern"}, {Title: "Routers"}},
	}
	for _, title := range t.Columns {
		p.Columns = append(p.Columns, pageColumn{title, true, true})
	}
	p.Columns = append(p.Columns, pageColumn{Title: "Trials", Number: true})
	for _, l := range t.Lines {
		cells := []pageCell{{Text: l.Case, Note: l.CaseTitle}, {Text: l.Routers}}
		for _, time := range l.Times {
			cells = append(cells, pageCell{Text: time})
		}
		p.add(append(cells, trialsCell(l.Trials, l.Failed))...)
	}
	return p.compact()
}

func comparedTable(lines []compareLine) *pageTable {
	t := &pageTable{
		Caption: "Means of the same cells in the lab and in the simulator. The error is relative to the lab.",
		Columns: []pageColumn{{Title: "Pattern"}, {Title: "Traffic"}, {Title: "Transport"}, {Title: "Metric"}, {"Lab", true, true}, {"Simulator", true, true}, {"Error", true, true}},
	}
	for _, l := range lines {
		t.add(pageCell{Text: l.Case}, pageCell{Text: l.Traffic}, pageCell{Text: l.Transport}, pageCell{Text: l.What}, pageCell{Text: l.Measured}, pageCell{Text: l.Simulated}, pageCell{Text: l.Error})
	}
	return t.compact()
}

// runsTable returns the table of all runs with all metrics and notes.
func runsTable(runs []result.Run) *pageTable {
	header, lines := runTable(runs)
	t := &pageTable{}
	for i, name := range header {
		c := pageColumn{Title: clean(name), Number: i > 2}
		if m, ok := result.MetricNamed(name); ok {
			c.Title = metricTitle(m)
		}
		t.Columns = append(t.Columns, c)
	}
	for _, line := range lines {
		cells := make([]pageCell, len(line))
		for i, text := range line {
			cells[i].Text = text
			if header[i] == result.NoteSeries || header[i] == result.NoteHAR {
				cells[i].Link = text
			}
		}
		t.add(cells...)
	}
	return t.compact()
}

// metricTitle returns a metric's title with its unit.
func metricTitle(m result.Metric) string {
	if m.Unit == "" {
		return m.Title
	}
	return m.Title + " (" + m.Unit + ")"
}
