package measurement

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
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
)

const (
	// Margin is the share below which a difference does not matter.
	Margin = 0.05
	// significance is that of a difference, after Holm's correction for the number of modes.
	significance = 0.05
	level        = 1 - significance
	// interim is the level of the intervals that end a measurement early. It is higher than that of
	// the result, because after each block there is another chance to end by luck.
	interim = 0.99
)

// ModeResult is one mode of a measurement.
type ModeResult struct {
	Mode string
	// Goodputs are those of the complete blocks in bit/s, in their order.
	Goodputs []float64
	Box      stat.Box
	// Ratio is that to the first mode; Known is false for the first mode and for too few trials.
	Ratio stat.MedianRatio
	Known bool
	// Corrected is the p-value after Holm's correction.
	Corrected float64
	Verdict   Verdict
	// Idle, LoadedP50 and LoadedP95 are medians over the trials in seconds, RPM in 1/min; 0 if there
	// are none.
	Idle, LoadedP50, LoadedP95, RPM float64
	// ObjectP50 and ObjectP95 are quantiles over the objects of all trials in seconds.
	ObjectP50, ObjectP95 float64
}

// Analysis is the outcome of a measurement.
type Analysis struct {
	Plan
	// Blocks is the number of complete blocks or pairs, and Failed that of trials without a result.
	Blocks, Failed int
	Modes          []ModeResult
	// Notes are changes of the conditions between trials.
	Notes []string
}

// Analyze compares the modes of a measurement with the first one.
func Analyze(p Plan, rows []Row) (Analysis, error) {
	blocks := p.Complete(rows)
	a := Analysis{Plan: p, Blocks: len(blocks)}
	for _, r := range rows {
		if r.Failed != "" {
			a.Failed++
		}
	}
	a.Notes = changes(rows)
	var family []int
	var ps []float64
	for i, name := range p.Modes {
		m := ModeResult{Mode: name}
		var idle, p50, p95, rpm, objects []float64
		for _, b := range blocks {
			m.Goodputs = append(m.Goodputs, b[i].GoodputBps)
			idle = append(idle, b[i].Idle.P50.Seconds())
			if l := b[i].Loaded; l.Count > 0 {
				p50, p95, rpm = append(p50, l.P50.Seconds()), append(p95, l.P95.Seconds()), append(rpm, l.RPM)
			}
			for _, o := range b[i].Objects {
				objects = append(objects, o.Seconds())
			}
		}
		for q, of := range map[*float64][]float64{&m.Idle: idle, &m.LoadedP50: p50, &m.LoadedP95: p95, &m.RPM: rpm, &m.ObjectP50: objects} {
			*q, _ = stat.Quantile(0.5, of) // 0 without values
		}
		m.ObjectP95, _ = stat.Quantile(0.95, objects)
		if len(blocks) > 0 {
			var err error
			if m.Box, err = stat.TukeyBox(m.Goodputs); err != nil {
				return Analysis{}, fmt.Errorf("analyze mode %q: %w", name, err)
			}
		}
		if i > 0 {
			var err error
			m.Ratio, err = p.ratio(m.Goodputs, goodputs(blocks, 0), level)
			switch {
			case err == nil:
				m.Known = true
				family, ps = append(family, i), append(ps, m.Ratio.P)
			case errors.Is(err, stat.ErrTooFew):
				m.Verdict = TooFew
			default:
				return Analysis{}, fmt.Errorf("analyze mode %q: %w", name, err)
			}
		}
		a.Modes = append(a.Modes, m)
	}
	corrected, err := stat.Holm(ps)
	if err != nil {
		return Analysis{}, err
	}
	for j, i := range family {
		m := &a.Modes[i]
		m.Corrected = corrected[j]
		m.Verdict = judge(m.Ratio, m.Corrected)
	}
	return a, nil
}

func goodputs(blocks [][]Row, mode int) []float64 {
	all := make([]float64, len(blocks))
	for i, b := range blocks {
		all[i] = b[mode].GoodputBps
	}
	return all
}

// ratio compares two modes. The bootstrap has the plan's seed, so that a report is the same each time.
func (p Plan) ratio(b, a []float64, level float64) (stat.MedianRatio, error) {
	if p.Paired {
		return stat.PairedRatio(b, a, level)
	}
	return stat.RatioOfMedians(b, a, level, rand.New(rand.NewPCG(p.Seed, math.MaxUint64)).IntN)
}

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

// inside reports whether differences beyond Margin are excluded, outside whether smaller ones are.
func inside(r stat.MedianRatio) bool  { return r.Low >= 1-Margin && r.High <= 1+Margin }
func outside(r stat.MedianRatio) bool { return r.Low > 1+Margin || r.High < 1-Margin }

// decided reports whether no further trials are needed: each mode is inside or outside of the margin.
func (p Plan) decided(rows []Row) bool {
	blocks := p.Complete(rows)
	first := goodputs(blocks, 0)
	// The level is shared by the modes, as Holm's correction does in the worst case.
	level := 1 - (1-interim)/float64(len(p.Modes)-1)
	for i := 1; i < len(p.Modes); i++ {
		r, err := p.ratio(goodputs(blocks, i), first, level)
		if err != nil || !inside(r) && !outside(r) {
			return false
		}
	}
	return true
}

// changes describes what differs between the trials' conditions.
func changes(rows []Row) (notes []string) {
	if len(rows) == 0 {
		return nil
	}
	for _, c := range []struct {
		what string
		of   func(Row) string
	}{
		{"the client's network", func(r Row) string { return text(r.Client.IsValid(), r.Client) }},
		{"the server's network", func(r Row) string { return text(r.Server.IsValid(), r.Server) }},
		{"the client's version", func(r Row) string { return r.ClientVersion }},
		{"the server's version", func(r Row) string { return r.ServerVersion }},
		{"the client's kernel", func(r Row) string { return r.ClientKernel }},
		{"the server's kernel", func(r Row) string { return r.ServerKernel }},
		{"the server's congestion control", func(r Row) string { return r.Congestion }},
	} {
		var seen []string
		for _, r := range rows {
			if v := c.of(r); v != "" && (len(seen) == 0 || seen[len(seen)-1] != v) {
				seen = append(seen, v)
			}
		}
		if len(seen) > 1 {
			notes = append(notes, fmt.Sprintf("%s changed: %s", c.what, strings.Join(seen, ", then ")))
		}
	}
	for _, r := range rows {
		if r.ClockStep != 0 {
			notes = append(notes, fmt.Sprintf("the clock was set by %s in block %d", r.ClockStep, r.Block+1))
		}
	}
	return notes
}

func text(ok bool, v fmt.Stringer) string {
	if !ok {
		return ""
	}
	return v.String()
}

// Percent prints a ratio as a change: "+50 %".
func Percent(ratio float64) string { return fmt.Sprintf("%+.0f %%", 100*(ratio-1)) }

// Words describes the mode, compared with the first one.
func (m ModeResult) Words() string {
	if !m.Known {
		return string(m.Verdict)
	}
	return fmt.Sprintf("%s: %s (95 %% interval %s to %s, %s)", m.Verdict, Percent(m.Ratio.Value), Percent(m.Ratio.Low), Percent(m.Ratio.High), m.Ratio.Method)
}

// Headline is the verdict of the measurement in words.
func (a Analysis) Headline() string {
	first := a.Plan.Modes[0]
	best, undecided, worse := -1, 0, 0
	for i, m := range a.Modes[1:] {
		switch m.Verdict {
		case Better:
			if best < 0 || m.Ratio.Value > a.Modes[best].Ratio.Value {
				best = i + 1
			}
		case NotShown, TooFew:
			undecided++
		case Worse:
			worse++
		case Equal:
		}
	}
	trials := fmt.Sprintf("%d trials", a.Blocks)
	if a.Paired {
		trials = fmt.Sprintf("%d pairs", a.Blocks)
	}
	switch {
	case a.Blocks == 0:
		return "There is no complete block of trials yet."
	case best >= 0:
		m := a.Modes[best]
		return fmt.Sprintf("%s is better than %s by %.0f %% (%.0f to %.0f %%).", m.Mode, first, 100*(m.Ratio.Value-1), 100*(m.Ratio.Low-1), 100*(m.Ratio.High-1))
	case undecided > 0 && a.Modes[1].Verdict == TooFew:
		return fmt.Sprintf("Too few trials: %s, and %d are needed.", trials, a.least())
	case undecided > 0:
		return fmt.Sprintf("Not shown with %s: %s.", trials, a.advice())
	case worse == len(a.Modes)-1:
		return fmt.Sprintf("%s was already best: all else is worse.", a.first())
	}
	return fmt.Sprintf("%s was already best: nothing is better by %.0f %% or more.", a.first(), 100*Margin)
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

// advice says how many trials would decide: the width of an interval falls with the root of their number.
func (a Analysis) advice() string {
	most := 0
	for _, m := range a.Modes[1:] {
		if m.Verdict != NotShown {
			continue
		}
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
