package measurement

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/tabane/tabane/internal/base/stat"
)

// Verdict is what a measurement shows of a mode, compared with the first one.
type Verdict string

// The verdicts.
const (
	Better   Verdict = "better"
	Worse    Verdict = "worse"
	Equal    Verdict = "no difference that matters"
	NotShown Verdict = "not shown with this many trials"
	TooFew   Verdict = "too few trials"
	// Yardstick is of several TCP connections, with which paper A's Fig. 14 scales MPTCP: the
	// client opens them, so that they are no answer to how the server is to deliver.
	Yardstick Verdict = "yardstick"
)

// judge returns the verdict of a ratio.
func judge(r stat.MedianRatio, corrected float64) Verdict {
	switch {
	case inside(r):
		return Equal
	case r.Low > 1 && corrected <= significance:
		return Better
	case r.High < 1 && corrected <= significance:
		return Worse
	}
	return NotShown
}

// with returns the modes that have a verdict, the highest ratio first.
func (a Analysis) with(v Verdict) (all []ModeResult) {
	for _, m := range a.Modes[1:] {
		if m.Verdict == v {
			all = append(all, m)
		}
	}
	slices.SortStableFunc(all, func(x, y ModeResult) int {
		switch {
		case x.Ratio.Value > y.Ratio.Value:
			return -1
		case x.Ratio.Value < y.Ratio.Value:
			return 1
		}
		return 0
	})
	return all
}

// best returns Analysis.Best. The level of its intervals is shared by the modes that it compares.
func (a Analysis) best() string {
	better := a.with(Better)
	if len(better) == 0 {
		return ""
	}
	for _, m := range better[1:] {
		r, err := a.ratio(better[0].Goodputs, m.Goodputs, 1-significance/float64(len(better)-1))
		if err != nil || r.Low <= 1 {
			return "" // of too few trials, it is not shown either
		}
	}
	return better[0].Mode
}

// Percent prints a ratio as a change: "+50 %".
func Percent(ratio float64) string {
	change := math.Round(100 * (ratio - 1))
	if change == 0 {
		change = 0 // not -0
	}
	return fmt.Sprintf("%+.0f %%", change)
}

// Size prints by how much a ratio is above 1 or below, without the sign: "50".
func Size(ratio float64) string {
	switch change := 100 * math.Abs(ratio-1); {
	case change == 0 || change >= 1:
		return fmt.Sprintf("%.0f", change)
	case change >= 0.1:
		return fmt.Sprintf("%.1f", change)
	}
	return "under 0.1"
}

// Words is the verdict with its size: "worse by 39 %".
func (m ModeResult) Words() string {
	switch {
	case m.Verdict == Better || m.Verdict == Worse:
		return fmt.Sprintf("%s by %s %%", m.Verdict, Size(m.Ratio.Value))
	case m.Verdict == Yardstick && m.Known:
		return fmt.Sprintf("%s: %s", m.Verdict, Percent(m.Ratio.Value))
	}
	return string(m.Verdict)
}

// interval prints the interval of a ratio as what Words has of its value.
func (m ModeResult) interval() string {
	low, high := m.Ratio.Low, m.Ratio.High
	switch m.Verdict {
	case Better:
		return fmt.Sprintf("(%s to %s %%)", Size(low), Size(high))
	case Worse:
		return fmt.Sprintf("(%s to %s %%)", Size(high), Size(low))
	default:
		return fmt.Sprintf("(%s to %s)", strings.TrimSuffix(Percent(low), " %"), Percent(high))
	}
}

// mostListed bounds the modes of a verdict that the headline lists.
const mostListed = 4

// list lists modes, each as text says it.
func list(modes []ModeResult, text func(i int, m ModeResult) string) string {
	var all []string
	for i, m := range modes[:min(len(modes), mostListed)] {
		all = append(all, text(i, m))
	}
	if more := len(modes) - mostListed; more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(all, ", ")
}

// Headline is the verdict of the measurement in words: whether a mode in which the server can
// deliver is better than the first one, by how much, and which is best. Yardsticks are not part of
// it.
func (a Analysis) Headline() string {
	first := a.Plan.Modes[0]
	trials := fmt.Sprintf("%d trials", a.Blocks)
	if a.Paired {
		trials = fmt.Sprintf("%d pairs", a.Blocks)
	}
	better, worse, equal, open := a.with(Better), a.with(Worse), a.with(Equal), a.with(NotShown)
	switch {
	case a.Blocks == 0:
		return "There is no complete block of trials yet."
	case len(a.with(Yardstick)) == len(a.Modes)-1:
		return "No verdict: only several TCP connections were measured, which are a yardstick. Measure multipath or single:PEER."
	case len(a.with(TooFew)) > 0:
		return fmt.Sprintf("Too few trials: %s, and %d are needed.", trials, a.least())
	}
	sized := func(m ModeResult) string {
		_, by, _ := strings.Cut(m.Words(), " ")
		return by + " " + m.interval()
	}
	compared := func(i int, m ModeResult) string {
		if i > 0 {
			return m.Mode + " " + sized(m)
		}
		return fmt.Sprintf("%s is %s than %s %s", m.Mode, m.Verdict, first, sized(m))
	}
	signed := func(_ int, m ModeResult) string { return m.Mode + " " + m.interval() }
	var parts []string
	if len(better) > 0 {
		text := list(better, compared)
		switch {
		case len(better) > 1 && a.Best != "":
			text = "Best is " + a.Best + ": " + text
		case len(better) > 1:
			text += ", and which of them is best is not shown"
		}
		parts = append(parts, text)
	}
	if len(open) > 0 {
		parts = append(parts, fmt.Sprintf("not shown with %s: %s; %s", trials, list(open, signed), a.advice()))
	}
	if len(equal) > 0 {
		parts = append(parts, "no difference that matters: "+list(equal, signed))
	}
	if len(worse) > 0 {
		parts = append(parts, list(worse, compared))
	}
	text := strings.Join(parts, "; ") + "."
	switch {
	case len(better)+len(open)+len(equal) == 0:
		return a.first() + " was already best: " + text
	case len(better)+len(open) == 0:
		return fmt.Sprintf("%s was already best: nothing is better by %.0f %% or more; %s", a.first(), 100*Margin, text)
	case len(better) == 0:
		return "N" + strings.TrimPrefix(text, "n") // "Not shown"
	}
	return text
}

// first names the first mode.
func (a Analysis) first() string {
	if a.Plan.Modes[0] == "tcp" {
		return "BGP's best path"
	}
	return a.Plan.Modes[0]
}

// least is the number of trials from which there is an interval.
func (a Analysis) least() int {
	if a.Paired {
		return 3
	}
	return stat.LeastBlocks
}

// advice says how many trials would decide: the width of an interval falls with the root of their
// number.
func (a Analysis) advice() string {
	most := 0
	for _, m := range a.with(NotShown) {
		half := math.Log(m.Ratio.High/m.Ratio.Low) / 2
		factor := half / math.Log(1+Margin)
		most = max(most, int(math.Ceil(float64(a.Blocks)*factor*factor)))
	}
	text := fmt.Sprintf("about %d would show a difference of %.0f %%", max(most, a.Blocks+1), 100*Margin)
	if most > MaxTrials {
		text = "this network varies too much for that"
	}
	if !a.Paired {
		text += "; --paired needs far fewer where it is possible"
	}
	return text
}
