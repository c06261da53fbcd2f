package result

import (
	"slices"
	"time"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/reseq"
)

// Trace is one run over time, from the request on.
type Trace struct {
	CellKey
	Trial int
	// Interval is the length of an interval; that of the last sample may be shorter.
	Interval time.Duration
	// Samples are what the client received in each interval.
	Samples []traffic.Sample
	// Subflows are what the sender delivered over each of its subflows, if that is known,
	// sorted by name.
	Subflows []Subflow
	// Decisions are those on which paths are used, if they are known.
	Decisions []Note
	// Events are the times of the case's events, in their order. Ends are the times of their
	// last repetition: a flap repeats.
	Events, Ends []time.Duration
	// Bursts are what the resequencing buffer released at one instant, if that is known and a
	// figure shows it.
	Bursts []reseq.Burst
}

// Archive has the requests of a trial on web pages, as a HAR document.
type Archive struct {
	CellKey
	Trial int
	HAR   []byte
}

// Subflow is one subflow of the sender, or its TCP connection.
type Subflow struct {
	Name string
	// Bytes is what was acknowledged in each interval of the Trace, including reinjections.
	Bytes []int64
	// Estimates are what the sender knew of the path at the end of each interval, if that is known.
	Estimates []Estimate
}

// Estimate is what the sender knew of a path. Of delays only the differences between paths matter.
type Estimate struct {
	Rate            unit.Bandwidth
	Delay, Jitter   time.Duration
	Loss            float64
	Usable, Resting bool
}

// Note is what was decided at a time of the Trace, and why.
type Note struct {
	At   time.Duration
	Text string
}

const (
	// reached is the share of a limit that counts as reaching it, sustained how long it must
	// last.
	reached   = 0.95
	sustained = 300 * time.Millisecond
	// settle is the time at the start of a run, for establishing connections, that WorstSecond
	// and GoodputBefore ignore.
	settle = time.Second
	// later is the time at the start of a run that GoodputLater ignores, leastLater what has to
	// remain.
	later      = 5 * time.Second
	leastLater = time.Second
)

// whole returns the samples of whole intervals: all but the last, which may be shorter.
func (t Trace) whole() []traffic.Sample {
	return t.Samples[:max(0, len(t.Samples)-1)]
}

// rate returns the mean goodput of samples, in bit/s.
func (t Trace) rate(samples []traffic.Sample) float64 {
	var sum int64
	for _, s := range samples {
		sum += s.Bytes
	}
	return float64(sum) * 8 / (time.Duration(len(samples)) * t.Interval).Seconds()
}

// windows calls f for each sequence of whole samples of that length, until f returns false.
func (t Trace) windows(length time.Duration, f func([]traffic.Sample) bool) {
	n, all := int(length/t.Interval), t.whole()
	for i := 0; n > 0 && i+n <= len(all); i++ {
		if !f(all[i : i+n]) {
			return
		}
	}
}

// Measure adds the metrics of the run over time, given the phases of its cell. Metrics that cannot
// be known are left out: the worst second of a run without a whole second after the first, the time
// to a limit that is not known. The time to a limit that was never reached is that until the end.
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
	whole := t.whole()
	if from := int(later / t.Interval); len(whole)-from >= int(leastLater/t.Interval) {
		metrics[GoodputLater] = t.rate(whole[from:])
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

// end returns the end of the last sample.
func (t Trace) end() time.Duration { return t.Samples[len(t.Samples)-1].At + t.Interval }

// change returns the time of the first event, or of the first step of a schedule that changed the
// limit.
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

// Began returns when a phase began in the run, if it did: at the actual time of its event, or as
// scheduled.
func (t Trace) Began(p Phase) (time.Duration, bool) {
	switch {
	case p.Event == EventSchedule:
		return p.At, p.At < t.end()
	case p.Event < len(t.Events):
		return t.Events[p.Event], true
	}
	return p.At, p.At == 0
}

// lastPhase returns the last phase that began in the run, and when.
func (t Trace) lastPhase(phases []Phase) (last Phase, began time.Duration, ok bool) {
	for _, p := range phases {
		if at, has := t.Began(p); has {
			last, began, ok = p, at, true
		}
	}
	return last, began, ok
}

// reach returns the time from a change until the goodput first reaches the limit, or until the end
// if it never does.
func (t Trace) reach(limit float64, changed time.Duration) time.Duration {
	took := t.end() - changed
	t.windows(sustained, func(w []traffic.Sample) bool {
		// The interval of the change counts too: data in flight before it arrives after it.
		if w[0].At+t.Interval <= changed || t.rate(w) < reached*limit {
			return true
		}
		took = max(0, w[0].At-changed)
		return false
	})
	return took
}
