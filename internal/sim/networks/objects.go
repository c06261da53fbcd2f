package networks

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/epe/belief"
)

// Networks whose connections all carry small objects: what a mode is worth there is how long they
// take, which follows from the round trip, the losses and the rate of its path.

const (
	// segment is the payload of a segment, initialSegments what slow start begins with.
	segment, initialSegments = 1448, 10
	// leastTimeout is the least retransmission timeout of Linux, jiffy the resolution of what it
	// measures.
	leastTimeout, jiffy = 0.2, 0.004
	// firstTime is the time of a run that is judged apart.
	firstTime = 10 * time.Minute
	// reportedAfter is how long a report of a connection waits at most.
	reportedAfter = time.Second
)

// objectPath is what a path has: times in seconds, the rate in bytes/s.
type objectPath struct {
	rtt, loss, rate float64
}

// ObjectOptions are those of RunObjects.
type ObjectOptions struct {
	Seed     uint64
	Networks int
	// Size is the median size of an object in bytes, Length how long a run is.
	Size    float64
	Length  time.Duration
	Explore float64
}

// Objects is what became of a network: mean times of objects as multiples of what they take over the
// better path.
type Objects struct {
	// Best is over the best path, which all begin with, Worse over the other one.
	Best, Worse float64
	// First is in the first ten minutes, Rest after that.
	First, Rest float64
	// Tried is the share of the objects that were carried to compare modes.
	Tried   float64
	Changes int
}

// RunObjects has the connections of drawn networks with two egress peers, each with an object. If ctx
// ends, it returns its error.
func RunObjects(ctx context.Context, o ObjectOptions) ([]Objects, error) {
	all := make([]Objects, o.Networks)
	for i := range all {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		w := newObjectWorld(o, i)
		all[i] = w.run(o)
	}
	return all, nil
}

// objectWorld is a network. Its modes are best and single, and spread, in which each connection has
// one of the paths.
type objectWorld struct {
	r      *rand.Rand
	prefix netip.Prefix
	paths  [2]objectPath
	// every is the mean time between two connections, in seconds. access is the standard deviation
	// of the logarithm of a client's own part of the round trip.
	every, access float64
	table         *belief.Table
	usual         belief.Small
	trial         *belief.SmallTrial
	challenger    belief.Mode
	carried       float64   // bytes of the trial
	since, after  time.Time // of trials
	changed       time.Time
}

var objectModes = []belief.Mode{belief.Best, single, "spread"}

func newObjectWorld(o ObjectOptions, i int) *objectWorld {
	r := rand.New(rand.NewPCG(o.Seed, uint64(i)))
	w := &objectWorld{
		r: r, prefix: netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, byte(i >> 8), byte(i)}), 48),
		every: math.Exp(math.Log(0.05) + r.Float64()*math.Log(100)), access: 0.3 + 0.5*r.Float64(),
		table: belief.New(belief.Options{Start: belief.Best, Explore: o.Explore, Networks: 1}),
	}
	rtt := 0.02 * math.Exp(r.NormFloat64()*0.8)
	for k := range w.paths {
		p := &w.paths[k]
		p.rtt, p.rate = rtt*math.Exp(0.4*r.NormFloat64()), 1e6*math.Exp(r.NormFloat64())
		if p.loss = 0.0005; r.Float64() < 0.3 {
			p.loss = 0.02 * r.Float64()
		}
	}
	return w
}

// object is a connection: its size, the client's own round trip, and numbers that decide what is
// lost over either path.
type object struct {
	bytes, access float64
	seed          uint64
}

func (w *objectWorld) object(size float64) object {
	return object{min(max(size*math.Exp(w.r.NormFloat64()), belief.LeastSmall), belief.Bulk-1), 0.01 * math.Exp(w.access*w.r.NormFloat64()), w.r.Uint64()}
}

// takes returns the time from the first segment to the last acknowledgment.
func (p objectPath) takes(o object) (seconds float64) {
	r := rand.New(rand.NewPCG(o.seed, math.Float64bits(p.rtt)))
	rtt := (p.rtt + o.access) * math.Exp(0.05*math.Abs(r.NormFloat64()))
	left, window, grows := math.Ceil(o.bytes/segment), float64(initialSegments), 2.
	for left > 0 {
		sent := min(left, window)
		seconds += max(rtt, sent*segment/p.rate)
		lost, last := 0., 0.
		for i := range int(sent) {
			if r.Float64() < p.loss {
				lost, last = lost+1, float64(i)
			}
		}
		left -= sent - lost
		window *= grows
		if lost == 0 {
			continue
		}
		// What follows says that a segment was lost; else a probe does after two round trips.
		if window, grows = max(window/4, 2), 1.1; sent-last <= 3 {
			seconds += max(2*rtt, leastTimeout/4)
			if lost == sent {
				seconds += max(rtt, leastTimeout)
			}
		}
	}
	return seconds
}

// over is the time of an object in a mode.
func (w *objectWorld) over(m belief.Mode, o object) float64 {
	switch m {
	case belief.Best:
		return w.paths[0].takes(o)
	case single:
		return w.paths[1].takes(o)
	default:
		return w.paths[o.seed>>7&1].takes(o)
	}
}

// pending is a connection whose report is due.
type pending struct {
	at, began time.Time
	bytes     uint64
	took      time.Duration
}

// spent are times of objects: all of them in the modes that they had, and over each path.
type spent struct {
	auto float64
	over [2]float64
}

func (s *spent) add(seconds float64, w *objectWorld, c object) {
	s.auto += seconds
	for i, p := range w.paths {
		s.over[i] += p.takes(c)
	}
}

func (w *objectWorld) run(o ObjectOptions) (result Objects) {
	var first, rest spent
	start := time.Unix(1_800_000_000, 0)
	now, mode := start, belief.Best
	w.since, w.changed = now, now
	var waiting []pending
	objects, tried := 0, 0
	for now.Sub(start) < o.Length {
		now = now.Add(time.Duration(w.r.ExpFloat64() * w.every * float64(time.Second)))
		for len(waiting) > 0 && waiting[0].at.Before(now) {
			w.closed(waiting[0], mode)
			waiting = waiting[1:]
		}
		if w.trial != nil {
			w.ends(now, o.Explore, mode)
		}
		if m := w.table.Mode(now, w.prefix, 64512, objectModes); m != mode {
			mode, w.changed = m, now
			result.Changes++
		}
		at, c := mode, w.object(o.Size)
		if objects++; w.trial != nil {
			at = w.challenger
			tried++
		}
		seconds := w.over(at, c)
		p := w.pending(now, c, seconds)
		place := len(waiting)
		for place > 0 && p.at.Before(waiting[place-1].at) {
			place--
		}
		waiting = slices.Insert(waiting, place, p)
		if now.Sub(start) < firstTime {
			first.add(seconds, w, c)
		} else {
			rest.add(seconds, w, c)
		}
	}
	all := [2]float64{first.over[0] + rest.over[0], first.over[1] + rest.over[1]}
	better := 0
	if all[1] < all[0] {
		better = 1
	}
	result.Best, result.Worse = all[0]/all[better], all[1-better]/all[better]
	result.First, result.Rest = first.auto/first.over[better], rest.auto/rest.over[better]
	result.Tried = float64(tried) / float64(objects)
	return result
}

// pending returns the report of a connection that begins now.
func (w *objectWorld) pending(now time.Time, c object, seconds float64) pending {
	took := time.Duration(math.Floor(seconds/jiffy+w.r.Float64()) * jiffy * float64(time.Second))
	took = max(took, time.Duration((w.paths[0].rtt+c.access)*float64(time.Second)/2))
	wait := time.Duration(seconds*float64(time.Second)) + time.Duration(w.r.Float64()*float64(reportedAfter))
	return pending{at: now.Add(wait), began: now, bytes: uint64(c.bytes), took: took}
}

// closed applies a report.
func (w *objectWorld) closed(p pending, mode belief.Mode) {
	if p.began.Before(w.since) || p.began.Before(w.changed) {
		return
	}
	if w.trial != nil {
		w.trial.Add(&w.usual, p.bytes, p.took)
		w.carried += float64(p.bytes)
		return
	}
	if !w.usual.Add(p.at, mode, p.bytes, p.bytes, p.took, p.took) || !w.usual.Of(mode) || p.at.Before(w.after) {
		return
	}
	if c, _, ok := w.table.TrySmall(p.at, w.prefix, 64512, objectModes, &w.usual); ok {
		w.trial, w.challenger, w.carried, w.since = &belief.SmallTrial{}, c, 0, p.at
	}
}

// ends ends a trial if it is time.
func (w *objectWorld) ends(now time.Time, explore float64, mode belief.Mode) {
	ends, measured := w.trial.Ends(&w.usual, now.Sub(w.since))
	if !ends {
		return
	}
	if measured && w.usual.Of(mode) {
		pair := belief.Pair{Challenger: w.challenger, Incumbent: mode, Apart: w.trial.N(), Ratio: w.trial.Ratio(&w.usual), Bytes: max(w.carried, w.usual.Carried(now.Sub(w.since)))}
		if err := w.table.Learn(now, w.prefix, pair); err != nil {
			panic(fmt.Sprintf("BUG: %v", err))
		}
	}
	if explore > 0 {
		w.after = now.Add(time.Duration(float64(now.Sub(w.since)) * (1/explore - 1)))
	}
	w.trial, w.since = nil, now
}
