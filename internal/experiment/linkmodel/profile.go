// Package linkmodel describes one direction of a link (Profile) and emulates it in virtual time
// (Pipe): rate, delay, jitter, loss, duplication and queue. It sends no frames and has no clock.
// Package link applies it to Ethernet frames, package sim to simulated packets.
package linkmodel

import (
	"math"
	"time"

	"github.com/tabane/tabane/internal/base/codel"
	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/unit"
)

// Profile is the emulated properties of one direction of a link. The zero value is a wire without
// limit, delay or loss.
//
// A frame first waits in the queue, is then sent at the rate, and is then on the wire, where it is
// delayed, lost or duplicated. Frames lost by the wire use transmission time; frames dropped by the
// queue and duplicates do not.
type Profile struct {
	// Rate counts whole Ethernet frames without preamble, FCS and gap, as the kernel's TBF does; 0
	// is unlimited, anything else is at least 8 kbit/s: below, one frame of 1500 bytes takes longer
	// than a second.
	Rate unit.Bandwidth `yaml:"rate,omitempty" json:"rate,omitempty"`
	// Burst is what passes at once after a pause, besides a frame: the depth of the token bucket of
	// a shaper, or with a queue of 1 byte of a policer. It needs a rate.
	Burst unit.Size `yaml:"burst,omitempty" json:"burst,omitempty"`
	// Delay is one way, from the last bit sent to the last bit delivered; at most MaxDelay.
	Delay  time.Duration `yaml:"delay,omitempty" json:"delay,omitempty"`
	Jitter Jitter        `yaml:"jitter,omitempty" json:"jitter,omitzero"`
	// Slot is how often frames are delivered, all together that have come since: Wi-Fi, radio and
	// cable have slots of 1 to 10 ms. At most MaxDelay; 0: each frame by itself.
	Slot time.Duration `yaml:"slot,omitempty" json:"slot,omitempty"`
	Loss Loss          `yaml:"loss,omitempty" json:"loss,omitzero"`
	// Duplicate is the probability that a frame is delivered twice.
	Duplicate float64 `yaml:"duplicate,omitempty" json:"duplicate,omitempty"`
	Queue     Queue   `yaml:"queue,omitempty" json:"queue,omitzero"`
	// Load is traffic of others.
	Load Load `yaml:"load,omitempty" json:"load,omitzero"`
}

const (
	minRate = 8 * unit.KbitPerSecond
	// MaxDelay is the longest delay of a link.
	MaxDelay = time.Minute
)

// JitterKind is the distribution of the delay around Profile.Delay.
type JitterKind string

const (
	// Uniform is evenly distributed between -Amount and +Amount.
	Uniform JitterKind = "uniform"
	// Normal has the standard deviation Amount. Negative delays are set to 0: one draw in six
	// if Amount equals the delay, one in 700 if it is a third of the delay.
	Normal JitterKind = "normal"
	// Pareto adds a delay with a heavy tail, of the mean Amount: 72 % of the frames have less, and
	// one in 1,000 has more than 22 times as much (Lomax' distribution, or Pareto's second, of
	// shape paretoShape; MaxDelay at most).
	Pareto JitterKind = "pareto"
)

// paretoShape is that of the delay of Pareto. From 2 on the variance is finite.
const paretoShape = 2.5

// Jitter varies the delay of each frame.
type Jitter struct {
	// Kind is the distribution: uniform or normal around the delay, or pareto, which adds to it
	// with a heavy tail. It must be given. Example: uniform
	Kind JitterKind `yaml:"kind,omitempty" json:"kind,omitempty"`
	// Amount is the largest deviation (uniform) or the standard deviation (normal), at most the
	// delay, or the mean of what is added (pareto). Example: 5ms
	Amount time.Duration `yaml:"amount,omitempty" json:"amount,omitempty"`
	// Reorder lets frames overtake each other. Without it a frame is delivered with the one before
	// it at the earliest, and delays vary less than Amount where frames are closer than that.
	// Example: true
	Reorder bool `yaml:"reorder,omitempty" json:"reorder,omitempty"`
}

// LossKind is a model of loss.
type LossKind string

const (
	// Random loses each frame with probability P, independently.
	Random LossKind = "random"
	// GilbertElliott has a good and a bad state. After each frame it changes from good to bad
	// with probability P, and from bad to good with probability R; the initial state is good. A
	// frame is lost with probability Good in the good state and Bad in the bad state, so the
	// long-run loss rate is (P*Bad + R*Good) / (P+R) (Hasslinger and Hohlfeld, "The
	// Gilbert-Elliott model for packet loss in real time services on the internet", MMB 2008;
	// Good = 1-k, Bad = 1-h).
	GilbertElliott LossKind = "gilbert-elliott"
)

// Loss is the loss model of the wire. P, R, Good and Bad are probabilities.
type Loss struct {
	// Kind is random, which loses each frame independently with probability P, or gilbert-elliott,
	// which has a good and a bad state. It must be given. Example: random
	Kind LossKind `yaml:"kind,omitempty" json:"kind,omitempty"`
	// P is the probability of a loss, or of going from the good to the bad state after a frame.
	// Example: 0.01
	P float64 `yaml:"p,omitempty" json:"p,omitempty"`
	// R is the probability of going from the bad to the good state after a frame. Example: 0.2
	R float64 `yaml:"r,omitempty" json:"r,omitempty"`
	// Good is the probability of a loss in the good state. Example: 0.0001
	Good float64 `yaml:"good,omitempty" json:"good,omitempty"`
	// Bad is the probability of a loss in the bad state. Example: 1
	Bad float64 `yaml:"bad,omitempty" json:"bad,omitempty"`
}

// Limit is a length of a queue, not counting the frame that is being sent. At most one field is
// set.
type Limit struct {
	// Bytes is the length in bytes. Example: 64kB
	Bytes unit.Size `yaml:"bytes,omitempty" json:"bytes,omitempty"`
	// Packets is the length in packets.
	Packets int `yaml:"packets,omitempty" json:"packets,omitempty"`
	// Time is how long a frame would wait at the present rate, the rest of the frame that is being
	// sent included.
	// Example: 50ms
	Time time.Duration `yaml:"time,omitempty" json:"time,omitempty"`
}

// Discipline is the queueing discipline, which decides which frames are dropped.
type Discipline string

const (
	// DisciplineDropTail drops an arriving frame when the queue is full.
	DisciplineDropTail Discipline = "drop-tail"
	// DisciplineRED is random early detection in its gentle form.
	DisciplineRED Discipline = "red"
	// DisciplineCoDel is controlled delay (RFC 8289).
	DisciplineCoDel Discipline = "codel"
)

// DefaultQueue is the default limit of a queue, the same as in package tc.
const DefaultQueue = 50 * time.Millisecond

// Queue is the queue in front of the transmitter.
type Queue struct {
	// Limit is how much may wait, whatever the discipline; without one it is DefaultQueue.
	Limit `yaml:",inline"`
	// Discipline is which frame is dropped when: drop-tail, red or codel. Default: drop-tail.
	// Example: codel
	Discipline Discipline `yaml:"discipline,omitempty" json:"discipline,omitempty"`
	// RED are the parameters of red (Floyd and Jacobson).
	RED RED `yaml:"red,omitempty" json:"red,omitzero"`
	// CoDel are the parameters of codel (RFC 8289).
	CoDel CoDel `yaml:"codel,omitempty" json:"codel,omitzero"`
	// ECN marks a frame of a transport that understands it where RED or CoDel would drop it (RFC
	// 3168 section 5); others are dropped. However long the queue, such a frame is marked, as
	// Linux' red and codel do: what does not slow down meets Limit. Example: true
	ECN bool `yaml:"ecn,omitempty" json:"ecn,omitempty"`
}

// RED are the parameters of random early detection (Floyd and Jacobson, "Random early detection
// gateways for congestion avoidance", IEEE/ACM ToN 1(4), 1993), with the gentle slope from P at Max
// to 1 at twice Max (Floyd 2000).
type RED struct {
	// Min is the average length from which on frames are dropped, in the unit of Max.
	Min Limit `yaml:"min" json:"min,omitzero"`
	// Max is the average length from which on every frame is dropped.
	Max Limit `yaml:"max" json:"max,omitzero"`
	// P is the probability of a drop when the average is just below Max. Example: 0.1
	P float64 `yaml:"p" json:"p,omitempty"`
	// Weight is the weight of the present length in the average. Default: 0.002. Example: 0.002
	Weight float64 `yaml:"weight,omitempty" json:"weight,omitempty"`
}

// DefaultWeight is the weight that Floyd and Jacobson use.
const DefaultWeight = 0.002

// CoDel are the parameters of controlled delay (RFC 8289).
type CoDel struct {
	// Target is the acceptable standing delay (RFC 8289 section 4.4). Default: 5ms. Example: 5ms
	Target time.Duration `yaml:"target,omitempty" json:"target,omitempty"`
	// Interval is a round-trip time that most flows do not exceed (RFC 8289 section 4.3). Default:
	// 100ms. Example: 100ms
	Interval time.Duration `yaml:"interval,omitempty" json:"interval,omitempty"`
}

const (
	defaultTarget   = 5 * time.Millisecond
	defaultInterval = 100 * time.Millisecond
)

// Load is traffic of others on a link: frames of full size that wait in its queue, are sent and
// lead to somewhere else. They are sent whatever is lost, and without On and Off evenly.
type Load struct {
	// Rate is the rate, while they are sent, at most that of the link. Example: 5Mbit/s
	Rate unit.Bandwidth `yaml:"rate" json:"rate,omitempty"`
	// On is the mean of the times in which they are sent, exponentially distributed. Default:
	// always.
	// Example: 1s
	On time.Duration `yaml:"on,omitempty" json:"on,omitempty"`
	// Off is the mean of the times between. It needs on. Example: 500ms
	Off time.Duration `yaml:"off,omitempty" json:"off,omitempty"`
}

func (l Load) check(rate unit.Bandwidth) fault.List {
	var faults fault.List
	switch {
	case l == Load{}:
	case l.Rate < minRate:
		faults.Add("rate", "must be at least %s, got %s", minRate, l.Rate)
	case rate == 0 || l.Rate > rate:
		faults.Add("rate", "must be at most that of the link, %s, got %s", rate, l.Rate)
	case l.On < 0 || l.On > MaxDelay:
		faults.Add("on", "must be from 0s to %s, got %s", MaxDelay, l.On)
	case l.Off < 0 || l.Off > MaxDelay:
		faults.Add("off", "must be from 0s to %s, got %s", MaxDelay, l.Off)
	case (l.On > 0) != (l.Off > 0):
		faults.Add("", "must have both on and off, or neither")
	}
	return faults
}

// Check finds what is wrong with the profile.
func (p Profile) Check() fault.List {
	var faults fault.List
	if p.Rate < minRate && p.Rate != 0 {
		faults.Add("rate", "must be at least %s, or 0 for unlimited, got %s", minRate, p.Rate)
	}
	switch {
	case p.Burst < 0:
		faults.Add("burst", "must be >= 0B, got %s", p.Burst)
	case p.Burst > 0 && p.Rate == 0:
		faults.Add("burst", "needs a rate: all passes at once without one")
	case p.Burst > 0 && p.Rate >= minRate && p.depth() > MaxDelay:
		faults.Add("burst", "must be what the rate carries in %s at most, got %s at %s", MaxDelay, p.Burst, p.Rate)
	}
	if p.Delay < 0 || p.Delay > MaxDelay {
		faults.Add("delay", "must be from 0s to %s, got %s", MaxDelay, p.Delay)
	}
	if p.Slot < 0 || p.Slot > MaxDelay {
		faults.Add("slot", "must be from 0s to %s, got %s", MaxDelay, p.Slot)
	}
	probability(&faults, "duplicate", p.Duplicate)
	faults.Merge("jitter", p.Jitter.check(p.Delay))
	faults.Merge("loss", p.Loss.check())
	faults.Merge("queue", p.Queue.check())
	faults.Merge("load", p.Load.check(p.Rate))
	return faults
}

func probability(faults *fault.List, path string, p float64) {
	if !(p >= 0 && p <= 1) { // also NaN
		faults.Add(path, "must be a probability from 0 to 1, got %v", p)
	}
}

func (j Jitter) check(delay time.Duration) fault.List {
	var faults fault.List
	switch j.Kind {
	case Uniform, Normal:
		if j.Amount <= 0 {
			faults.Add("amount", "must be > 0s, got %s", j.Amount)
		} else if j.Amount > delay {
			faults.Add("amount", "must not be more than the delay, %s: nothing arrives before it is sent; got %s", delay, j.Amount)
		}
	case Pareto:
		if j.Amount <= 0 || j.Amount > MaxDelay {
			faults.Add("amount", "must be > 0s and at most %s, got %s", MaxDelay, j.Amount)
		}
	case "":
		if j != (Jitter{}) {
			faults.Add("kind", "must be %s, %s or %s when there is jitter", Uniform, Normal, Pareto)
		}
	default:
		faults.Add("kind", "must be %s, %s or %s, got %q", Uniform, Normal, Pareto, string(j.Kind))
	}
	return faults
}

func (l Loss) check() fault.List {
	var faults fault.List
	probability(&faults, "p", l.P)
	probability(&faults, "r", l.R)
	probability(&faults, "good", l.Good)
	probability(&faults, "bad", l.Bad)
	switch l.Kind {
	case Random:
		if l.R != 0 || l.Good != 0 || l.Bad != 0 {
			faults.Add("", "r, good and bad are of %s, not of %s", GilbertElliott, Random)
		}
	case GilbertElliott:
		if l.Good == 0 && l.Bad == 0 {
			faults.Add("bad", "must be > 0, or nothing is ever lost")
		}
	case "":
		if l != (Loss{}) {
			faults.Add("kind", "must be %s or %s when there is loss", Random, GilbertElliott)
		}
	default:
		faults.Add("kind", "must be %s or %s, got %q", Random, GilbertElliott, string(l.Kind))
	}
	return faults
}

// fields returns the number of fields that are set.
func (l Limit) fields() int {
	n := 0
	for _, set := range []bool{l.Bytes != 0, l.Packets != 0, l.Time != 0} {
		if set {
			n++
		}
	}
	return n
}

func (l Limit) check() fault.List {
	var faults fault.List
	switch {
	case l.Bytes < 0:
		faults.Add("bytes", "must be > 0B, got %s", l.Bytes)
	case l.Packets < 0:
		faults.Add("packets", "must be > 0, got %d", l.Packets)
	case l.Time < 0 || l.Time > MaxDelay:
		faults.Add("time", "must be > 0s and at most %s, got %s", MaxDelay, l.Time)
	case l.fields() > 1:
		faults.Add("", "must have one of bytes, packets and time, got %d of them", l.fields())
	}
	return faults
}

// amount returns the limit as a number in its unit.
func (l Limit) amount() float64 {
	return float64(l.Bytes) + float64(l.Packets) + float64(l.Time)
}

func (q Queue) check() fault.List {
	faults := q.Limit.check()
	switch q.Discipline {
	case "", DisciplineDropTail:
	case DisciplineRED:
		faults.Merge("red", q.RED.check())
	case DisciplineCoDel:
		faults.Merge("codel", q.CoDel.check())
	default:
		faults.Add("discipline", "must be %s, %s or %s, got %q", DisciplineDropTail, DisciplineRED, DisciplineCoDel, string(q.Discipline))
	}
	if q.ECN && q.Discipline != DisciplineRED && q.Discipline != DisciplineCoDel {
		faults.Add("ecn", "is for the disciplines %s and %s: a queue that drops its tail has no room for what it would mark", DisciplineRED, DisciplineCoDel)
	}
	if q.Discipline != DisciplineRED && q.RED != (RED{}) {
		faults.Add("red", "is for the discipline %s only", DisciplineRED)
	}
	if q.Discipline != DisciplineCoDel && q.CoDel != (CoDel{}) {
		faults.Add("codel", "is for the discipline %s only", DisciplineCoDel)
	}
	return faults
}

func (r RED) check() fault.List {
	var faults fault.List
	faults.Merge("min", r.Min.check())
	faults.Merge("max", r.Max.check())
	switch {
	case len(faults) > 0:
	case r.Min.fields() == 0:
		faults.Add("min", "must have one of bytes, packets and time")
	case (r.Min.Bytes == 0) != (r.Max.Bytes == 0) || (r.Min.Packets == 0) != (r.Max.Packets == 0) || (r.Min.Time == 0) != (r.Max.Time == 0):
		faults.Add("max", "must be in the unit of min")
	case r.Max.amount() <= r.Min.amount():
		faults.Add("max", "must be more than min")
	}
	if !(r.P > 0 && r.P <= 1) {
		faults.Add("p", "must be a probability > 0, got %v", r.P)
	}
	if !(r.Weight >= 0 && r.Weight <= 1) {
		faults.Add("weight", "must be from 0 to 1, got %v", r.Weight)
	}
	return faults
}

func (c CoDel) check() fault.List {
	var faults fault.List
	if c.Target < 0 || c.Target > MaxDelay {
		faults.Add("target", "must be > 0s and at most %s, got %s", MaxDelay, c.Target)
	}
	if c.Interval < 0 || c.Interval > MaxDelay {
		faults.Add("interval", "must be > 0s and at most %s, got %s", MaxDelay, c.Interval)
	}
	if f := c.filled(); len(faults) == 0 && f.Target >= f.Interval {
		faults.Add("target", "must be less than the interval, %s, got %s", f.Interval, f.Target)
	}
	return faults
}

// filled returns the parameters with defaults filled in.
func (c CoDel) filled() CoDel {
	if c.Target == 0 {
		c.Target = defaultTarget
	}
	if c.Interval == 0 {
		c.Interval = defaultInterval
	}
	return c
}

// law returns the parameters as codel has them.
func (c CoDel) law(frame unit.Size) codel.Law {
	c = c.filled()
	return codel.Law{Target: c.Target, Interval: c.Interval, Frame: int(frame)}
}

// Least returns the minimum delay of a frame on the wire.
func (p *Profile) Least() time.Duration {
	switch p.Jitter.Kind {
	case Uniform:
		return p.Delay - p.Jitter.Amount
	case Normal:
		return 0
	default: // none, or Pareto, which only adds
		return p.Delay
	}
}

// Never is a time later than all events.
const Never = time.Duration(math.MaxInt64)
