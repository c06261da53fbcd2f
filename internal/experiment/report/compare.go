package report

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/tabane/tabane/internal/experiment/result"
)

// compareLine is one formatted line of a comparison.
type compareLine struct {
	Case, Traffic, Transport string
	What                     string
	Measured, Simulated      string
	Error                    string
}

func compareLines(list []result.Comparison) []compareLine {
	var lines []compareLine
	for _, c := range list {
		m, _ := result.MetricNamed(c.Metric)
		unit, by := shownUnit(m.Unit)
		what := m.Title
		if unit != "" {
			what += " (" + unit + ")"
		}
		l := compareLine{
			clean(c.Case), clean(c.Traffic), clean(c.Transport), what,
			spread(c.Measured, c.MeasuredRange, by), spread(c.Simulated, c.SimulatedRange, by), "",
		}
		if e, known := c.Error(); known {
			l.Error = fmt.Sprintf("%+.1f %%", e*100)
		}
		lines = append(lines, l)
	}
	return lines
}

// shownUnit returns the display unit for a metric's unit, and the factor between them.
func shownUnit(unit string) (shown string, by float64) {
	switch unit {
	case "bit/s":
		return "Mbit/s", 1e-6
	case "s":
		return "ms", 1e3
	case "B":
		return "kB", 1e-3
	}
	return unit, 1
}

// spread formats a mean, with the range over the trials if they differ.
func spread(mean float64, between [2]float64, by float64) string {
	s := digits(mean * by)
	if least, most := digits(between[0]*by), digits(between[1]*by); least != most && between != [2]float64{} {
		s += " (" + least + " to " + most + ")"
	}
	return s
}

// digits formats a number with its significant digits.
func digits(v float64) string {
	switch {
	case v == float64(int64(v)):
		return fmt.Sprintf("%d", int64(v))
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.1f", v)
}

// Comparison prints a comparison of a lab's result with a simulation, in at most width columns unless
// 0.
func Comparison(w io.Writer, list []result.Comparison, width int) error {
	lines := [][]string{{"PATTERN", "TRAFFIC", "TRANSPORT", "METRIC", "LAB", "SIM", "ERROR"}}
	last := result.CellKey{}
	for i, l := range compareLines(list) {
		if k := list[i].CellKey; k != last {
			last = k
		} else {
			l.Case, l.Traffic, l.Transport = "", "", ""
		}
		lines = append(lines, []string{l.Case, l.Traffic, l.Transport, l.What, l.Measured, l.Simulated, l.Error})
	}
	var b strings.Builder
	byCell(&b, lines, width, "means, with the range over the trials", func(l []string) string {
		text := fmt.Sprintf("lab %s, sim %s", l[4], l[5])
		if l[6] != "" {
			text += ": " + l[6]
		}
		return text
	})
	_, err := io.WriteString(w, b.String())
	return err
}

// comparisonFiles returns the files and lines of a report's comparison with a simulation.
func comparisonFiles(r result.Result, simulated *result.Result) ([]file, []compareLine, error) {
	if simulated == nil {
		return nil, nil, nil
	}
	list := result.Compare(r, *simulated)
	data, err := result.EncodeComparison(r.Scenario, list)
	if err != nil {
		return nil, nil, err
	}
	var result bytes.Buffer
	if err := simulated.Encode(&result); err != nil {
		return nil, nil, err
	}
	return []file{{"sim/result.json", result.Bytes()}, {"compare.json", data}}, compareLines(list), nil
}
