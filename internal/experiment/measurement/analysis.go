package measurement

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/analysis/measure"
	"github.com/tabane/tabane/internal/base/stat"
)

const (
	// Margin is the share below which a difference does not matter.
	Margin = 0.05
	// significance is that of a difference, after Holm's correction for the number of modes.
	significance = 0.05
	// interim is the level of the intervals that end a measurement early. It is higher than that of
	// the result, because after each block there is another chance to end by luck.
	interim = 0.99
)

// level is that of the intervals of the result. If the measurement may end early, these and the
// ones that end it share the 5 %: those that end just when luck is on one side have the true ratio
// less often (TestStopsEarly).
func (p Plan) level() float64 {
	if p.Whole {
		return 1 - significance
	}
	return 1 - (significance - (1 - interim))
}

// ModeResult is one mode of a measurement.
type ModeResult struct {
	Mode string
	// Goodputs are those of the complete blocks in bit/s, in their order.
	Goodputs []float64
	Box      stat.Box
	// Ratio is that to the first mode; Known is false for the first mode and for too few trials.
	Ratio stat.MedianRatio
	Known bool
	// Corrected is the p-value after Holm's correction for the modes that are judged; that of a
	// yardstick is not corrected.
	Corrected float64
	Verdict   Verdict
	// Idle, LoadedP50 and LoadedP95 are medians over the trials in seconds, RPM in 1/min; 0 if
	// there are none.
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
	// Best is the mode that is better than the first one and than each other that is; empty if that
	// is not shown.
	Best string
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
			judged, err := judged(name)
			if err != nil {
				return Analysis{}, fmt.Errorf("analyze measurement: %w", err)
			}
			if m.Verdict = TooFew; !judged {
				m.Verdict = Yardstick
			}
			m.Ratio, err = p.ratio(m.Goodputs, goodputs(blocks, 0), p.level())
			switch {
			case err == nil:
				m.Known, m.Corrected = true, m.Ratio.P
				if judged {
					family, ps = append(family, i), append(ps, m.Ratio.P)
				}
			case !errors.Is(err, stat.ErrTooFew):
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
	a.Best = a.best()
	return a, nil
}

// judged reports whether there are verdicts about a mode: not about several TCP connections.
func judged(mode string) (bool, error) {
	m, err := measure.ParseMode(mode)
	return err == nil && !m.Parallel(), err
}

func goodputs(blocks [][]Row, mode int) []float64 {
	all := make([]float64, len(blocks))
	for i, b := range blocks {
		all[i] = b[mode].GoodputBps
	}
	return all
}

// ratio compares two modes.
func (p Plan) ratio(b, a []float64, level float64) (stat.MedianRatio, error) {
	if p.Paired {
		return stat.PairedRatio(b, a, level)
	}
	return stat.BlockRatio(b, a, level)
}

// inside reports whether differences beyond Margin are excluded, outside whether smaller ones are.
func inside(r stat.MedianRatio) bool  { return r.Low >= 1-Margin && r.High <= 1+Margin }
func outside(r stat.MedianRatio) bool { return r.Low > 1+Margin || r.High < 1-Margin }

// decided reports whether no further trials are needed: each mode that is judged is inside or
// outside of the margin.
func (p Plan) decided(rows []Row) bool {
	blocks := p.Complete(rows)
	first := goodputs(blocks, 0)
	var family []int
	for i := 1; i < len(p.Modes); i++ {
		if ok, err := judged(p.Modes[i]); ok || err != nil {
			family = append(family, i)
		}
	}
	// The level is shared by the modes, as Holm's correction does in the worst case.
	level := 1 - (1-interim)/float64(len(family))
	for _, i := range family {
		r, err := p.ratio(goodputs(blocks, i), first, level)
		if err != nil || !inside(r) && !outside(r) {
			return false
		}
	}
	return len(family) > 0
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
			notes = append(notes, fmt.Sprintf("the clock was set by %s in block %d", r.ClockStep.Round(time.Second), r.Block+1))
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
