package scenario

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/experiment/result"
)

// The prefixes of an Expectation's Relative that names a transport or a case.
const (
	relativeTransport = "transport:"
	relativeCase      = "case:"
)

// statNames are the statistics of expectations; the first is the default.
var statNames = []string{"median", "min", "max", "mean", "q1", "q3"}

// statOf returns the named statistic.
func statOf(s stat.Summary, name string) (float64, bool) {
	switch name {
	case "", "median":
		return s.Median, true
	case "min":
		return s.Min, true
	case "max":
		return s.Max, true
	case "mean":
		return s.Mean, true
	case "q1":
		return s.Q1, true
	case "q3":
		return s.Q3, true
	}
	return 0, false
}

// Evaluate returns a verdict for each expectation of e. An expectation does not hold when it
// selects no cell, when a cell that it needs has no run or a failed one, or when the value that it
// bounds is missing. A relative value is the quotient of the same statistic of both sides; cells
// that others are compared with are not selected. cells summarize runs.
func Evaluate(e *Experiment, cells []result.Cell, runs []result.Run) []result.Verdict {
	failed := map[result.CellKey]result.Run{}
	for _, r := range runs {
		if _, known := failed[r.CellKey]; r.Err() != nil && !known {
			failed[r.CellKey] = r
		}
	}
	verdicts := make([]result.Verdict, len(e.Expect))
	for i, x := range e.Expect {
		verdicts[i] = x.judge(e.Cells(), cells, failed)
	}
	return verdicts
}

// judge evaluates one expectation on the cells that the experiment should have.
func (x Expectation) judge(keys []result.CellKey, cells []result.Cell, failed map[result.CellKey]result.Run) result.Verdict {
	v := result.Verdict{Name: x.Name, Want: x.want()}
	var (
		problems []string
		values   int
		missed   int
		worst    float64
		worstKey result.CellKey
	)
	for _, k := range keys {
		if !x.needs(k) {
			continue
		}
		value, problem := x.value(k, cells, failed)
		if problem != "" {
			problems = append(problems, problem)
			continue
		}
		if values == 0 || x.margin(value) < x.margin(worst) {
			worst, worstKey = value, k
		}
		values++
		if x.margin(value) < 0 {
			missed++
		}
	}
	switch {
	case len(problems) == 0 && values == 0:
		v.Got = "selects no cell"
		return v
	case len(problems) > 0:
		v.Got = problems[0]
		if more := len(problems) - 1; more > 0 {
			v.Got += fmt.Sprintf(" (and %d more)", more)
		}
		return v
	case values == 1:
		v.Got = fmt.Sprintf("%s (%s)", x.format(worst), worstKey)
	case missed > 1:
		v.Got = fmt.Sprintf("%s (worst: %s; %d of %d cells miss)", x.format(worst), worstKey, missed, values)
	default:
		v.Got = fmt.Sprintf("%s (worst: %s)", x.format(worst), worstKey)
	}
	v.Holds = missed == 0
	return v
}

func (x Expectation) selects(k result.CellKey) bool {
	return x.selectsCase(k.Case) && (x.Traffic == "" || x.Traffic == k.Traffic) && (x.Transport == "" || x.Transport == k.Transport)
}

// selectsCase reports whether the expectation selects the case. Its Case is a pattern, in which *
// matches any text.
func (x Expectation) selectsCase(name string) bool { return x.Case == "" || matches(x.Case, name) }

// againstCell reports whether cells are compared with other cells.
func (x Expectation) againstCell() bool {
	return strings.HasPrefix(x.Relative, relativeTransport) || strings.HasPrefix(x.Relative, relativeCase)
}

// needs reports whether the expectation is of the cell, and not only of others that are compared
// with it.
func (x Expectation) needs(k result.CellKey) bool {
	return x.selects(k) && !(x.againstCell() && x.against(k) == k)
}

// against returns the cell that k is compared with.
func (x Expectation) against(k result.CellKey) result.CellKey {
	if name, ok := strings.CutPrefix(x.Relative, relativeTransport); ok {
		k.Transport = name
	} else if name, ok := strings.CutPrefix(x.Relative, relativeCase); ok {
		k.Case = name
	}
	return k
}

// Of returns the value of a cell that the expectation bounds.
func (x Expectation) Of(k result.CellKey, cells []result.Cell) (float64, error) {
	value, problem := x.value(k, cells, nil)
	if problem != "" {
		return 0, errors.New(problem)
	}
	return value, nil
}

// value returns the bounded value of a cell, or why it is not known.
func (x Expectation) value(k result.CellKey, cells []result.Cell, failed map[result.CellKey]result.Run) (value float64, problem string) {
	value, problem = x.read(k, x.Metric, cells, failed)
	if problem != "" || x.Relative == "" {
		return value, problem
	}
	other, metric := x.against(k), x.Relative
	if x.againstCell() {
		metric = x.Metric
	}
	by, problem := x.read(other, metric, cells, failed)
	if problem != "" {
		return 0, problem
	}
	if by == 0 {
		return 0, fmt.Sprintf("%s of %s is 0: no value is relative to it", titleOf(metric), other)
	}
	if value /= by; math.IsInf(value, 0) {
		return 0, fmt.Sprintf("%s of %s is too small to be relative to", titleOf(metric), other)
	}
	return value, ""
}

func (x Expectation) read(k result.CellKey, metric string, cells []result.Cell, failed map[result.CellKey]result.Run) (value float64, problem string) {
	if r, ok := failed[k]; ok {
		return 0, fmt.Sprintf("%s: trial %d failed: %v", k, r.Trial, r.Err())
	}
	c, ok := result.Find(cells, k, metric)
	if !ok {
		return 0, fmt.Sprintf("%s has no %s", k, titleOf(metric))
	}
	value, ok = statOf(c.Summary, x.Stat)
	if !ok {
		return 0, fmt.Sprintf("%q is not a statistic", x.Stat)
	}
	return value, ""
}

// margin returns the distance of a value to the nearest bound, negative outside the bounds.
func (x Expectation) margin(value float64) float64 {
	m := math.Inf(1)
	if x.AtLeast != nil {
		m = value - *x.AtLeast
	}
	if x.AtMost != nil {
		m = min(m, *x.AtMost-value)
	}
	return m
}

// titleOf returns the metric's title, or its name if it has none.
func titleOf(metric string) string {
	if m, ok := result.MetricNamed(metric); ok {
		return m.Title
	}
	return metric
}

// want formats the expectation: "median goodput / available capacity (payload) >= 0.97 in every
// case, bi, mptcp-epe".
func (x Expectation) want() string {
	var b strings.Builder
	name := cmp.Or(x.Stat, statNames[0])
	if x.published() {
		name = "geometric mean of"
	}
	b.WriteString(name + " " + titleOf(x.Metric))
	switch {
	case strings.HasPrefix(x.Relative, relativeTransport):
		b.WriteString(" / that of " + strings.TrimPrefix(x.Relative, relativeTransport))
	case strings.HasPrefix(x.Relative, relativeCase):
		b.WriteString(" / that of case " + strings.TrimPrefix(x.Relative, relativeCase))
	case x.Relative != "":
		b.WriteString(" / " + titleOf(x.Relative))
	}
	var bounds []string
	if x.AtLeast != nil {
		bounds = append(bounds, ">= "+plain(*x.AtLeast))
	}
	if x.AtMost != nil {
		bounds = append(bounds, "<= "+plain(*x.AtMost))
	}
	b.WriteString(" " + strings.Join(bounds, " and "))
	one := func(name, all, prefix string) string {
		if name == "" {
			return all
		}
		return prefix + name
	}
	b.WriteString(" in " + strings.Join([]string{
		one(x.Case, "every case", "case "), one(x.Traffic, "every traffic", ""), one(x.Transport, "every transport", "")}, ", "))
	return b.String()
}

// format formats a value with 4 significant digits, or with as many more as are needed to print it
// on its side of the bounds: a value below a bound of 0.97 is never printed as 0.97.
func (x Expectation) format(value float64) string {
	rounded := value
	for digits := 4; digits <= 17; digits++ {
		r, err := strconv.ParseFloat(strconv.FormatFloat(value, 'g', digits, 64), 64)
		if err == nil && (x.margin(r) < 0) == (x.margin(value) < 0) {
			rounded = r
			break
		}
	}
	text := plain(rounded)
	if m, ok := result.MetricNamed(x.Metric); ok && m.Unit != "" && x.Relative == "" {
		text += " " + m.Unit
	}
	return text
}

// plain formats a number without an exponent where that is readable.
func plain(v float64) string {
	if abs := math.Abs(v); abs != 0 && (abs >= 1e15 || abs < 1e-6) {
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}
