// Package worlds draws networks and traffic that nobody has named, as scenarios (World.Spec), and
// judges what a run of one delivered by what each of its paths delivers alone (Judge). It runs
// nothing.
package worlds

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
)

// Kind is what uses the paths of a world.
type Kind string

const (
	// Gateway is a pair of gateways with the discipline auto.
	Gateway Kind = "gateway"
	// EPE is a content server whose MPTCP connections have a path through each egress peer, with
	// use: overflow.
	EPE Kind = "epe"
	// Clients is a pair of gateways with the discipline auto that several clients use at once.
	Clients Kind = "clients"
)

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{Gateway, EPE, Clients} }

// Options choose a world. The same options draw the same world.
type Options struct {
	Kind Kind
	// Seed and Number identify the world: worlds of one seed are independent of each other.
	Seed   uint64
	Number int
	// Packets bounds the full frames that all paths together can carry in a bulk transfer, and so
	// its duration where the rates are high; 0 is DefaultPackets.
	Packets int
	// Runs is how often each cell runs, with other random numbers each time: measures compare
	// means. 0 is once.
	Runs int
}

// DefaultPackets lets 54 Mbit/s run for all of longest.
const DefaultPackets = 60_000

// World is a network with its traffic.
type World struct {
	Options
	Paths []Path
	// Shared is a link that all paths pass, in the direction of the data; the zero value is none.
	Shared linkmodel.Profile
	// Congestion is that of the senders.
	Congestion string
	// Lasts is the duration of a bulk transfer, Extra the traffic besides bulk.
	Lasts time.Duration
	Extra []string
	// Downloads is how many there are at once in worlds of Clients.
	Downloads int
	// Event says what happens during the traffic, nothing if it is empty.
	Event string
}

// Path is a path in both directions; data goes forward.
type Path struct {
	Forward, Backward linkmodel.Profile
	// Schedule changes it while traffic runs.
	Schedule linkmodel.Schedule
}

// Bounds of what is drawn. Rates, delays and queues have logarithmic scales, so that each decade is
// as likely as the others.
const (
	minPaths, maxPaths = 2, 4
	minRate, maxRate   = unit.MbitPerSecond, unit.GbitPerSecond
	minUplink          = 256 * unit.KbitPerSecond
	minDelay, maxDelay = time.Millisecond, 400 * time.Millisecond
	minQueue, maxQueue = 5 * time.Millisecond, 500 * time.Millisecond
	// A queue holds four frames at least, or no TCP fills the link.
	leastFrames           = 4
	minFrames, maxFrames  = 10, 1000
	maxAsymmetry          = 20. // of the rates of both directions
	minJitter, maxJitter  = 0.02, 0.8
	mostJitter            = 100 * time.Millisecond
	minLoss, maxLoss      = 1e-4, 0.05
	minBurst, maxBurst    = 2., 30. // frames that a burst of losses lasts
	minBursts, maxBursts  = 1e-4, 3e-3
	longest, shortest     = 13 * time.Second, 2 * time.Second
	withEvent             = 4 * time.Second // the shortest time with an event
	roundTrips            = 12              // that a transfer lasts at least
	frame                 = 1514
	shareOfStream         = 0.8 // of the rate of the fastest path, with headers
	minDelayStep, maxStep = 0.2, 4.
	minLoad, maxLoad      = 0.05, 0.5 // of the rate
	minLoadRate           = 10 * unit.KbitPerSecond
	minOn, maxOn          = 50 * time.Millisecond, 3 * time.Second
	minDown, maxDown      = 2., 20.   // downloads at once
	shaped, policed       = 0.2, 0.05 // of the paths, by a token bucket
	minDepth, maxDepth    = 5 * time.Millisecond, 500 * time.Millisecond
	slotted               = 0.2 // of the paths
	minSlot, maxSlot      = time.Millisecond, 10 * time.Millisecond
)

// Draw draws a world.
func Draw(o Options) World {
	if o.Packets == 0 {
		o.Packets = DefaultPackets
	}
	d := o.dice(forPaths)
	w := World{Options: o}
	for range d.pick(minPaths, minPaths, minPaths, minPaths+1, minPaths+1, maxPaths) {
		w.Paths = append(w.Paths, d.path())
	}
	buckets, slots := o.dice(forBuckets), o.dice(forSlots)
	for i := range w.Paths {
		p := &w.Paths[i]
		buckets.bucket(&p.Forward)
		slots.slot(p)
	}
	if o.Kind == EPE && d.chance(0.1) {
		w.Shared = d.shared(w.Paths)
	}
	w.Lasts = w.lasts()
	if d.chance(0.3) {
		w.Lasts = max(w.Lasts, withEvent)
		d.event(&w)
	}
	switch o.Kind {
	case Gateway:
		w.Congestion = []string{"cubic", "newreno"}[d.IntN(2)]
		w.Extra = []string{[]string{Kept, Stream, Page, Call}[d.IntN(4)]}
		if w.Event != "" { // those beside a download begin later than it
			w.Extra = []string{[]string{Kept, Stream}[d.IntN(2)]}
		}
	case Clients:
		w.Congestion = []string{"cubic", "newreno"}[d.IntN(2)]
		w.Downloads = int(math.Round(d.log(minDown, maxDown)))
		w.Extra = []string{[]string{Kept, Page, Call}[d.IntN(3)]}
		if w.Event != "" { // a page may end before it
			w.Extra = []string{[]string{Kept, Call}[d.IntN(2)]}
		}
	case EPE:
		w.Congestion = "cubic"
		w.Extra = []string{Kept, New, Stream}
		if w.Event != "" {
			w.Extra = []string{Kept, Stream}
		}
	}
	return w
}

// Bounds of the paths of Pair.
const (
	leastPair, mostPair           = 5 * unit.MbitPerSecond, 100 * unit.MbitPerSecond
	leastPairDelay, mostPairDelay = 2 * time.Millisecond, 20 * time.Millisecond
	mostLonger                    = 40 * time.Millisecond
	leastPairQueue, mostPairQueue = 20 * time.Millisecond, 200 * time.Millisecond
	mostPairJitter                = 10 * time.Millisecond
	leastPairLoss, mostPairLoss   = 1e-5, 1e-2
	pairLasts                     = 9 * time.Second
)

// Pair draws two paths like those of neighboring egress peers: of 5 to 100 Mbit/s, the second one up to
// 40 ms longer; a quarter of them has jitter, a quarter loses, and a fifth delivers in slots.
func Pair(o Options) World {
	d, slots := o.pairDice(forPaths), o.pairDice(forSlots)
	w := World{Options: o, Lasts: pairLasts}
	delay := d.duration(leastPairDelay, mostPairDelay)
	longer := time.Duration(d.Float64() * float64(mostLonger)).Round(100 * time.Microsecond)
	for i := range 2 {
		back := linkmodel.Profile{Rate: d.rate(leastPair, mostPair), Delay: delay, Queue: linkmodel.Queue{Limit: linkmodel.Limit{Time: d.duration(leastPairQueue, mostPairQueue)}}}
		p := back
		p.Delay += time.Duration(i) * longer
		if d.chance(0.25) {
			p.Jitter = linkmodel.Jitter{Kind: linkmodel.Uniform, Amount: min(p.Delay, d.duration(time.Millisecond, mostPairJitter))}
		}
		if d.chance(0.25) {
			p.Loss = linkmodel.Loss{Kind: linkmodel.Random, P: digits(d.log(leastPairLoss, mostPairLoss))}
		}
		path := Path{Forward: p, Backward: back}
		slots.slot(&path)
		w.Paths = append(w.Paths, path)
	}
	return w
}

// The purposes of generators.
const (
	forPaths   = iota // and all that is not drawn for another purpose
	forBuckets        // of tokens
	forSlots
)

// dice returns the generator of a world for a purpose. What is drawn for one does not depend on what
// is drawn for others.
func (o Options) dice(purpose uint64) dice {
	return o.diceOf(slices.Index(Kinds(), o.Kind), purpose)
}

// pairDice is dice for Pair, whatever the kind is.
func (o Options) pairDice(purpose uint64) dice { return o.diceOf(len(Kinds()), purpose) }

func (o Options) diceOf(kind int, purpose uint64) dice {
	return dice{rand.New(rand.NewPCG(o.Seed, purpose<<48|uint64(kind)<<32|uint64(o.Number)))}
}

// slot draws whether a path delivers in slots, both ways.
func (d dice) slot(p *Path) {
	if slot := d.duration(minSlot, maxSlot); d.chance(slotted) {
		p.Forward.Slot, p.Backward.Slot = slot, slot
	}
}

// bucket draws whether a path is shaped by a token bucket, or policed by one: then what it has no
// tokens for is dropped at once.
func (d dice) bucket(p *linkmodel.Profile) {
	at, depth := d.Float64(), p.Rate.SizeIn(d.duration(minDepth, maxDepth))
	switch {
	case at < policed:
		p.Burst = max(depth, leastFrames*frame)
		p.Queue = linkmodel.Queue{Limit: linkmodel.Limit{Bytes: 1}}
	case at < policed+shaped:
		p.Burst = depth
	}
}

// lasts returns the duration of a bulk transfer.
func (w *World) lasts() time.Duration {
	sum, slowest := unit.Bandwidth(0), time.Duration(0)
	for _, p := range w.Paths {
		sum += p.Forward.Rate
		slowest = max(slowest, p.Forward.Delay+p.Backward.Delay)
	}
	least := max(shortest, roundTrips*slowest)
	bounded := sum.TimeFor(unit.Size(w.Packets) * frame)
	return min(max(bounded, least), longest).Round(100 * time.Millisecond)
}

// path draws a path.
func (d dice) path() Path {
	rate := d.rate(minRate, maxRate)
	p := Path{Forward: linkmodel.Profile{Rate: rate, Delay: d.duration(minDelay, maxDelay)}}
	p.Backward = p.Forward
	if d.chance(0.5) {
		p.Backward.Rate = max(rounded(unit.Bandwidth(float64(rate)/d.log(1, maxAsymmetry))), minUplink)
	}
	if d.chance(0.3) {
		p.Backward.Delay = min(max(time.Duration(float64(p.Forward.Delay)*d.log(0.5, 2)).Round(100*time.Microsecond), minDelay), maxDelay)
	}
	if d.chance(0.75) {
		wait := d.duration(minQueue, maxQueue)
		for _, l := range []*linkmodel.Profile{&p.Forward, &p.Backward} {
			l.Queue.Time = max(wait, l.Rate.TimeFor(leastFrames*frame).Round(time.Millisecond))
		}
	} else {
		n := int(d.log(minFrames, maxFrames))
		p.Forward.Queue.Packets, p.Backward.Queue.Packets = n, n
	}
	if d.chance(0.5) {
		p.Forward.Jitter = d.jitter(p.Forward.Delay)
		if d.chance(0.5) {
			p.Backward.Jitter = d.jitter(p.Backward.Delay)
		}
	}
	p.Forward.Loss = d.loss()
	if d.chance(0.15) {
		p.Forward.Load = linkmodel.Load{Rate: max(rounded(unit.Bandwidth(float64(rate)*d.log(minLoad, maxLoad))), minLoadRate)}
		if d.chance(0.7) {
			p.Forward.Load.On, p.Forward.Load.Off = d.duration(minOn, maxOn), d.duration(minOn, maxOn)
		}
	}
	return p
}

// jitter draws the jitter of a link with this delay.
func (d dice) jitter(delay time.Duration) linkmodel.Jitter {
	return linkmodel.Jitter{
		Kind:    []linkmodel.JitterKind{linkmodel.Uniform, linkmodel.Normal, linkmodel.Pareto}[d.IntN(3)],
		Amount:  min(max(time.Duration(float64(delay)*d.log(minJitter, maxJitter)).Round(10*time.Microsecond), 10*time.Microsecond), mostJitter),
		Reorder: d.chance(0.5),
	}
}

// loss draws what a link loses: mostly nothing.
func (d dice) loss() linkmodel.Loss {
	switch at := d.Float64(); {
	case at < 0.6:
		return linkmodel.Loss{}
	case at < 0.85:
		return linkmodel.Loss{Kind: linkmodel.Random, P: digits(d.log(minLoss, maxLoss))}
	}
	return linkmodel.Loss{Kind: linkmodel.GilbertElliott, P: digits(d.log(minBursts, maxBursts)), R: digits(1 / d.log(minBurst, maxBurst)), Bad: 1}
}

// shared draws a link that all paths pass: between the fastest path and all of them, so that it
// matters for all and not for one alone, or slower.
func (d dice) shared(paths []Path) linkmodel.Profile {
	sum := 0.
	for _, p := range paths {
		sum += float64(p.Forward.Rate)
	}
	return linkmodel.Profile{
		Rate: rounded(unit.Bandwidth(sum * d.log(0.2, 1))), Delay: time.Millisecond, Queue: linkmodel.Queue{Limit: linkmodel.Limit{Time: d.duration(10*time.Millisecond, maxQueue)}},
	}
}

// event draws what happens to one of the paths, in the middle half of a transfer.
func (d dice) event(w *World) {
	i := d.IntN(len(w.Paths))
	p := &w.Paths[i]
	within := func(from, to float64) time.Duration {
		return time.Duration(float64(w.Lasts) * (from + (to-from)*d.Float64())).Round(10 * time.Millisecond)
	}
	at, until := max(within(0.2, 0.45), time.Second), within(0.55, 0.8)
	all := linkmodel.Loss{Kind: linkmodel.Random, P: 1}
	step := func(at time.Duration, way linkmodel.Direction, c linkmodel.Change) {
		p.Schedule = append(p.Schedule, linkmodel.Step{At: at, Direction: way, Change: c})
	}
	switch d.IntN(6) {
	case 0:
		w.Event = "rate falls to a tenth and returns"
		for _, l := range []struct {
			way  linkmodel.Direction
			rate unit.Bandwidth
			load linkmodel.Load
		}{{linkmodel.Forward, p.Forward.Rate, p.Forward.Load}, {linkmodel.Backward, p.Backward.Rate, p.Backward.Load}} {
			tenth := rounded(l.rate / 10)
			down, up := linkmodel.Change{Rate: &tenth}, linkmodel.Change{Rate: &l.rate}
			if load := l.load; load.Rate > 0 { // that of others falls, too
				less := load
				less.Rate = max(rounded(load.Rate/10), minLoadRate)
				down.Load, up.Load = &less, &load
			}
			step(at, l.way, down)
			step(until, l.way, up)
		}
		slices.SortStableFunc(p.Schedule, func(a, b linkmodel.Step) int { return int(a.At - b.At) })
	case 1:
		w.Event = "dies"
		step(at, linkmodel.Both, linkmodel.Change{Loss: &all})
	case 2:
		w.Event = "dies and returns"
		step(at, linkmodel.Both, linkmodel.Change{Loss: &all})
		step(until, linkmodel.Forward, linkmodel.Change{Loss: &p.Forward.Loss})
		step(until, linkmodel.Backward, linkmodel.Change{Loss: &p.Backward.Loss})
	case 3:
		w.Event = "carries nothing toward the receiver"
		step(at, linkmodel.Forward, linkmodel.Change{Loss: &all})
	case 4:
		w.Event = "delay steps"
		factor := d.log(minDelayStep, maxStep)
		for _, l := range []struct {
			way     linkmodel.Direction
			profile linkmodel.Profile
		}{{linkmodel.Forward, p.Forward}, {linkmodel.Backward, p.Backward}} {
			delay := min(max(time.Duration(float64(l.profile.Delay)*factor).Round(100*time.Microsecond), l.profile.Jitter.Amount, minDelay), maxDelay)
			step(at, l.way, linkmodel.Change{Delay: &delay})
		}
	default:
		w.Event = "jitter begins"
		j := d.jitter(p.Forward.Delay)
		step(at, linkmodel.Forward, linkmodel.Change{Jitter: &j})
	}
	w.Event = fmt.Sprintf("at %s path %d: %s", at, i+1, w.Event)
}

// Name is the world's name, and that of its scenario.
func (w World) Name() string { return fmt.Sprintf("%s-%d-%d", w.Kind, w.Seed, w.Number) }

// SimulatorSeed is the seed of all its simulations.
func (w World) SimulatorSeed() uint64 { return w.Seed<<32 | uint64(w.Number+1) }

// Lines describe the world: a line for each path, and one for what they share and what happens.
func (w World) Lines() []string {
	var list []string
	for i, p := range w.Paths {
		list = append(list, fmt.Sprintf("path %d: %s", i+1, p.text()))
	}
	if w.Downloads > 0 {
		list = append(list, fmt.Sprintf("%d downloads at once", w.Downloads))
	}
	if w.Shared.Rate > 0 {
		list = append(list, "all through "+w.Shared.Rate.String())
	}
	if w.Event != "" {
		list = append(list, w.Event)
	}
	return list
}

// Text describes the world in one line.
func (w World) Text() string { return strings.Join(w.Lines(), "; ") }

// text describes a path: its rate, and what else it has.
func (p Path) text() string {
	text := p.Forward.Rate.String()
	if p.Backward.Rate != p.Forward.Rate {
		text += "/" + p.Backward.Rate.String()
	}
	text += " " + p.Forward.Delay.String()
	switch q := p.Forward.Queue; {
	case q.Packets > 0:
		text += fmt.Sprintf(" queue %d packets", q.Packets)
	case q.Bytes > 0:
		text += " policed"
	default:
		text += " queue " + q.Time.String()
	}
	if p.Forward.Burst > 0 {
		text += " burst " + p.Forward.Burst.String()
	}
	if p.Forward.Slot > 0 {
		text += " slot " + p.Forward.Slot.String()
	}
	if j := p.Forward.Jitter; j.Kind != "" {
		short, _ := j.Short()
		text += " jitter " + short
	}
	if l := p.Forward.Loss; l.Kind != "" {
		short, _ := l.Short()
		text += " loss " + short
	}
	if o := p.Forward.Load; o.Rate > 0 {
		text += " load " + o.Rate.String()
		if o.On > 0 {
			text += fmt.Sprintf(" for %s of %s", o.On, o.On+o.Off)
		}
	}
	return text
}

// Carries returns the rate of path i toward the receiver at a time of the traffic: 0 while it loses
// all.
func (w World) Carries(i int, at time.Duration) unit.Bandwidth {
	profile := w.Paths[i].Forward
	for _, step := range w.Paths[i].Schedule {
		if step.At <= at && step.Direction.Has(linkmodel.Forward) {
			profile = profile.With(step.Change)
		}
	}
	if profile.Loss.P == 1 && profile.Loss.Kind == linkmodel.Random {
		return 0
	}
	return profile.Rate
}
