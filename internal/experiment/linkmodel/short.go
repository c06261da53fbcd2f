package linkmodel

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/base/field"
	"github.com/tabane/tabane/internal/base/unit"
)

const (
	shortNormal  = "normal"
	shortPareto  = "pareto"
	shortReorder = "reorder"
	shortGE      = "ge"
)

// ParseShort parses "0.1%", a random loss with this probability, or "ge:P:R", a Gilbert-Elliott
// model that loses all frames in the bad state. A probability of 0 means no loss.
func (l *Loss) ParseShort(text string) error {
	parts := strings.Split(text, ":")
	if parts[0] == shortGE {
		if len(parts) != 3 {
			return fmt.Errorf("want ge:P:R like ge:1%%:20%%, got %q", text)
		}
		p, err := field.Probability(parts[1])
		if err != nil {
			return err
		}
		r, err := field.Probability(parts[2])
		if err != nil {
			return err
		}
		*l = Loss{Kind: GilbertElliott, P: p, R: r, Bad: 1}
		return nil
	}
	p, err := field.Probability(text)
	if err != nil {
		return fmt.Errorf("%w, or ge:P:R like ge:1%%:20%%", err)
	}
	*l = Loss{}
	if p > 0 {
		*l = Loss{Kind: Random, P: p}
	}
	return nil
}

// Short returns the text that ParseShort parses; ok is false if no such text exists.
func (l *Loss) Short() (text string, ok bool) {
	number := func(p float64) string { return strconv.FormatFloat(p, 'g', -1, 64) }
	switch *l {
	case Loss{}:
		return "0", true
	case Loss{Kind: Random, P: l.P}:
		return number(l.P), l.P > 0
	case Loss{Kind: GilbertElliott, P: l.P, R: l.R, Bad: 1}:
		return shortGE + ":" + number(l.P) + ":" + number(l.R), true
	}
	return "", false
}

// ParseShort parses "5ms", "normal:5ms" or "pareto:5ms", optionally with the suffix ":reorder",
// which lets frames overtake each other. 0s means no jitter.
func (j *Jitter) ParseShort(text string) error {
	got := Jitter{Kind: Uniform}
	kind, rest, named := strings.Cut(text, ":")
	switch kind {
	case shortNormal:
		got.Kind = Normal
	case shortPareto:
		got.Kind = Pareto
	default:
		rest, named = text, false
	}
	rest, got.Reorder = strings.CutSuffix(rest, ":"+shortReorder)
	d, err := time.ParseDuration(rest)
	switch {
	case err != nil:
		return fmt.Errorf("want a duration like 5ms, normal:5ms, pareto:5ms, or one of them with :reorder, got %q", text)
	case d < 0:
		return fmt.Errorf("must not be negative, got %s", d)
	case d == 0 && (named || got.Reorder):
		return fmt.Errorf("must be > 0s, got %q", text)
	case d == 0:
		*j = Jitter{}
		return nil
	}
	got.Amount = d
	*j = got
	return nil
}

// Short returns the text that ParseShort parses; ok is false if no such text exists.
func (j *Jitter) Short() (text string, ok bool) {
	if *j == (Jitter{}) {
		return "0s", true
	}
	text = j.Amount.String()
	switch j.Kind {
	case Normal:
		text = shortNormal + ":" + text
	case Pareto:
		text = shortPareto + ":" + text
	case Uniform:
	default:
		return "", false
	}
	if j.Reorder {
		text += ":" + shortReorder
	}
	return text, j.Amount > 0
}

// ParseShort parses the limit of a drop-tail queue, as a time ("50ms") or in bytes ("64kB").
func (q *Queue) ParseShort(text string) error {
	got := Queue{}
	if d, err := time.ParseDuration(text); err == nil {
		got.Time = d
	} else if size, err := unit.ParseSize(text); err == nil {
		got.Bytes = size
	} else {
		return fmt.Errorf("want a duration like 50ms or a size like 64kB, got %q", text)
	}
	if got.Time <= 0 && got.Bytes <= 0 {
		return fmt.Errorf("must be > 0, got %q", text)
	}
	*q = got
	return nil
}

// Short returns the text that ParseShort parses; ok is false if no such text exists.
func (q *Queue) Short() (text string, ok bool) {
	switch *q {
	case Queue{Limit: Limit{Time: q.Time}}:
		return q.Time.String(), q.Time > 0
	case Queue{Limit: Limit{Bytes: q.Bytes}}:
		return q.Bytes.String(), q.Bytes > 0
	}
	return "", false
}
