package result

import (
	"slices"
	"time"

	"github.com/tabane/tabane/internal/reseq"
	"github.com/tabane/tabane/internal/traffic"
)

// Trace is the course of one run, from the request on.
type Trace struct {
	CellKey
	Trial int
	// Interval is how long an interval is; the last sample may be of a shorter one.
	Interval time.Duration
	// Samples are what the receiver got in each interval.
	Samples []traffic.Sample
	// Subflows are what the sender brought over each of its connections, if that is known, in the
	// order of their names.
	Subflows []Subflow
	// Events are when the case's events happened, in their order, and Ends when each did so for the
	// last time: a flap repeats.
	Events, Ends []time.Duration
	// Bursts are what the resequencing buffer released at once, if that is known and a figure shows
	// it.
	Bursts []reseq.Burst
}

// Subflow is one connection of the sender.
type Subflow struct {
	Name string
	// Bytes is what was acknowledged in each interval of the Trace, repetitions on other subflows
	// included.
	Bytes []int64
}

const (
	// reached is the share of a limit that counts as having reached it, and sustained for how long
	// it must.
	reached   = 0.95
	sustained = 300 * time.Millisecond
	// settle is how long a run has to set up its connections before anything counts against it.
	settle = time.Second
)

// whole are the samples of whole intervals: all but the last, which the end may have cut short.
func (t Trace) whole() []traffic.Sample {
	return t.Samples[:max(0, len(t.Samples)-1)]
}

// rate is the mean goodput of some samples, in bit/s.
func (t Trace) rate(samples []traffic.Sample) float64 {
	var sum int64
	for _, s := range samples {
		sum += s.Bytes
	}
	return float64(sum) * 8 / (time.Duration(len(samples)) * t.Interval).Seconds()
}

// windows calls f for each sequence of whole samples that lasts so long, until it returns false.
func (t Trace) windows(length time.Duration, f func([]traffic.Sample) bool) {
	n, all := int(length/t.Interval), t.whole()
	for i := 0; n > 0 && i+n <= len(all); i++ {
		if !f(all[i : i+n]) {
			return
		}
	}
}

// Measure adds to a run's metrics those of its course and the phases of its cell. Metrics that it
// cannot know are left out: of a run without a whole second after the first the worst second, of a
// limit that is not known the time to it. The time to a limit that was never reached is that until
// the end.
func (t Trace) Measure(phases []Phase, metrics map[string]float64) {
	if t.Interval <= 0 || len(t.Samples) == 0 {
		return
	}
	var seconds []float64
	t.windows(time.Second, func(w []traffic.Sample) bool {
		if w[0].At >= settle {
			seconds = append(seconds, t.rate(w))
		}
		return true
	})
	if len(seconds) > 0 {
		metrics[WorstSecond] = slices.Min(seconds)
	}
	event, happened := t.change(phases)
	if !happened {
		return
	}
	metrics[EventTime] = event.Seconds()
	var before, after []traffic.Sample
	gap := time.Duration(0)
	for _, s := range t.Samples {
		if s.At+t.Interval > event {
			gap = max(gap, s.Gap)
		}
	}
	metrics[GapAfter] = gap.Seconds()
	for _, s := range t.whole() {
		switch {
		case s.At >= settle && s.At+t.Interval <= event:
			before = append(before, s)
		case s.At >= event:
			after = append(after, s)
		}
	}
	if len(before) > 0 {
		metrics[GoodputBefore] = t.rate(before)
	}
	if len(after) > 0 {
		metrics[GoodputAfter] = t.rate(after)
	}
	if last, began, ok := t.lastPhase(phases); ok && last.Links > 0 {
		metrics[LimitAfter] = last.Links
		if last.Event >= 0 && last.Event < len(t.Ends) {
			began = max(began, t.Ends[last.Event])
		}
		metrics[TimeToLimit] = t.reach(last.Links, began).Seconds()
	}
}

// end is when the last sample ended.
func (t Trace) end() time.Duration { return t.Samples[len(t.Samples)-1].At + t.Interval }

// change is when something happened for the first time: an event, or a step of a schedule that
// changed the limit.
func (t Trace) change(phases []Phase) (at time.Duration, happened bool) {
	if len(t.Events) > 0 {
		at, happened = t.Events[0], true
	}
	for _, p := range phases {
		if p.Event == EventSchedule && p.At < t.end() && (!happened || p.At < at) {
			at, happened = p.At, true
		}
	}
	return at, happened
}

// Began is when a phase began in the run, if it did: with an event that happened, or by the clock.
func (t Trace) Began(p Phase) (time.Duration, bool) {
	switch {
	case p.Event == EventSchedule:
		return p.At, p.At < t.end()
	case p.Event < len(t.Events):
		return t.Events[p.Event], true
	}
	return p.At, p.At == 0
}

// lastPhase is the last phase that began in the run, and when.
func (t Trace) lastPhase(phases []Phase) (last Phase, began time.Duration, ok bool) {
	for _, p := range phases {
		if at, has := t.Began(p); has {
			last, began, ok = p, at, true
		}
	}
	return last, began, ok
}

// reach returns how long after a change the goodput is at the limit for the first time, or until
// the end when it never is.
func (t Trace) reach(limit float64, changed time.Duration) time.Duration {
	took := t.end() - changed
	t.windows(sustained, func(w []traffic.Sample) bool {
		// The interval that the change fell into may count: what was on its way before arrives
		// after it.
		if w[0].At+t.Interval <= changed || t.rate(w) < reached*limit {
			return true
		}
		took = max(0, w[0].At-changed)
		return false
	})
	return took
}
