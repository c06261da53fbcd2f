package sched

import (
	"math"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// dq is delay queueing (docs/papers.md, paper D, section 2.2): a packet is sent on the path on
// which it is expected to arrive first.
//
//	D_i = Q_i / B_i + d_i                         (equation 2)
//
// Q_i is the virtual queue of the path with the packet (Queues), B_i its Rate and d_i its Delay. A
// path without a Rate is not used. Of paths whose arrival differs by no more than Options.Tie the
// one used last is used, else the first of those with the earliest arrival.
type dq struct {
	queues *Queues
	tie    time.Duration
	last   int
	// addJitter: Path.late is used instead of Path.Delay.
	addJitter bool

	version    version
	candidates [MaxPaths]candidate // the first count are in use
	count      int
}

// class is the kind of a packet by which delays of paths differ. All but auto have the first one.
type class uint8

const (
	prompt  class = iota // its own arrival matters
	bulk                 // of Kind Bulk
	earlier              // the same, of a flow that keeps to the former path of bulk flows
	small                // of Kind Bulk, of a flow of small objects
	acks                 // of Kind Acks
	classes
)

// candidate is what dq needs of a path that it may use.
type candidate struct {
	path    int
	perByte uint64                 // as in virtual
	delays  [classes]time.Duration // auto sets those of bulk flows
}

func newDQ(o Options) Scheduler { return makeDQ(o) }

func makeDQ(o Options) *dq {
	d := &dq{queues: o.Queues, tie: o.Tie}
	if d.queues == nil {
		d.queues = new(Queues)
	}
	return d
}

func (d *dq) Next(paths []Path, s Segment) Set {
	if !d.version.same(&s) {
		d.use(paths, candidates(paths))
	}
	return d.choose(paths, &s, prompt)
}

// use sets the paths to choose from.
func (d *dq) use(paths []Path, among Set) {
	d.count = 0
	for i := range paths {
		p := &paths[i]
		if !among.Has(i) || p.Rate <= 0 {
			continue
		}
		delay := p.Delay
		if d.addJitter {
			delay = p.late()
		}
		d.candidates[d.count] = candidate{i, d.queues.queue[i].timePerByte(p.Rate), [classes]time.Duration{prompt: delay}}
		d.count++
	}
}

// choose selects the path on which the packet arrives first, and adds the packet to its queue.
func (d *dq) choose(paths []Path, s *Segment, of class) Set {
	i := d.earliest(paths, s, of)
	if i < 0 {
		return 0
	}
	d.last = i
	v := &d.queues.queue[i]
	v.add(&paths[i], s.Now, v.transmissionTime(paths[i].Rate, s.Size))
	return One(i)
}

// pathBits is the number of bits of a path's number. An arrival time and a number are compared as
// one.
const pathBits = 6

// earliest returns the path on which the packet arrives first, or -1.
func (d *dq) earliest(paths []Path, s *Segment, of class) int {
	const none = math.MaxInt64
	best, last := int64(none), int64(none)
	for _, r := range d.candidates[:d.count] {
		i := r.path & (MaxPaths - 1)
		if paths[i].Room < s.Size {
			continue
		}
		wait := max(0, d.queues.queue[i].empty-s.Now) + transmissionTime(s.Size, r.perByte)
		if wait > tooLong {
			continue
		}
		key := int64(wait+r.delays[of])<<pathBits | int64(i)
		best = min(best, key)
		if i == d.last {
			last = key
		}
	}
	switch {
	case best == none:
		return -1
	case last != none && d.tie > 0 && last>>pathBits-best>>pathBits <= int64(d.tie):
		return d.last
	}
	return int(best & (MaxPaths - 1))
}

// dqjOvertaken is TCP's duplicate acknowledgement threshold (paper D, section 3.2).
const dqjOvertaken = 3

// dqj is delay queueing with jitter evaluation (paper D, section 3.3): it uses together only paths
// whose jitter does not delay a packet so long that three packets on other paths overtake it.
//
//	P_i(t) = floor(B_i t / (8 S))          (equation 3: packets that path i sends in time t)
//	sum over i of P_i(J_j) < 3             (equation 4: for each path j that is used with others)
//
// Paths that violate the rule are excluded, the worst first, until it holds for the others. A path
// used alone keeps its order whatever its jitter (the paper's premise), so an excluded path whose
// rate is higher than the sum of the others is used alone.
//
// The sum is over the other paths. Equation 4 as printed includes path j itself, but then the
// paper's own settings would violate it: three paths of 384 kbit/s with a jitter of 50 ms (1 + 1 +
// 1 packets of 1500 bytes), and 128, 128 and 384 kbit/s with 150 ms on the last (1 + 1 + 4). The
// paper's experiments use all three paths in both settings. Options.Own counts as printed.
//
// The paper evaluates the rule for every packet. The result depends on the state and quality of the
// paths and on S only, so it is kept until one of them changes.
type dqj struct {
	dq
	overtaken int
	own       bool
	fixed     int // Options.Size

	// together is the last set, the rest what it was computed from.
	together     Set
	size         int
	checkedPaths int // number of paths; -1: none
	checkedState [MaxPaths]pathState
}

// pathState is what the set of dqj depends on.
type pathState struct {
	rate   unit.Bandwidth
	jitter time.Duration
	usability
}

// usability is whether a path may be used.
type usability struct{ usable, backup bool }

func newDQJ(o Options) Scheduler {
	if o.Overtaken == 0 {
		o.Overtaken = dqjOvertaken
	}
	return &dqj{dq: *makeDQ(o), overtaken: o.Overtaken, own: o.Own, fixed: o.Size, checkedPaths: -1}
}

func (d *dqj) Next(paths []Path, s Segment) Set {
	size := s.Size
	if d.fixed != 0 {
		size = d.fixed
	}
	if !d.version.same(&s) || size != d.size {
		if d.changed(paths, size) {
			d.together = d.eligible(paths, candidates(paths), size)
		}
		d.use(paths, d.together)
	}
	return d.choose(paths, &s, prompt)
}

// changed reports whether a path has changed since the set was computed, and records its state.
func (d *dqj) changed(paths []Path, size int) bool {
	differ := size != d.size || len(paths) != d.checkedPaths
	d.size, d.checkedPaths = size, len(paths)
	for i := range paths {
		p := &paths[i]
		now := pathState{p.Rate, p.Jitter, usability{p.Usable, p.Backup}}
		if d.checkedState[i] != now {
			d.checkedState[i] = now
			differ = true
		}
	}
	return differ
}

// eligible returns the set of paths to use together, or the single path to use alone.
func (d *dqj) eligible(paths []Path, may Set, size int) Set {
	for i := range paths {
		if may.Has(i) && paths[i].Rate <= 0 {
			may &^= One(i)
		}
	}
	use := may
	for {
		worst, most := -1, 0
		for j := range paths {
			if !use.Has(j) {
				continue
			}
			n := d.overtake(paths, use, j, size)
			if n >= d.overtaken && (worst < 0 || n > most || n == most && paths[j].Jitter >= paths[worst].Jitter) {
				worst, most = j, n
			}
		}
		if worst < 0 || use == One(worst) {
			break
		}
		use &^= One(worst)
	}
	alone := -1
	var together float64
	for i := range paths {
		switch {
		case use.Has(i):
			together += float64(paths[i].Rate)
		case may.Has(i) && (alone < 0 || paths[i].Rate > paths[alone].Rate):
			alone = i
		}
	}
	if alone >= 0 && float64(paths[alone].Rate) > together {
		return One(alone)
	}
	return use
}

// maxPackets is a packet count above any threshold; MaxPaths times maxPackets does not overflow.
const maxPackets = 1 << 20

// overtake returns how many packets of that size the paths in use send during the jitter of path j.
func (d *dqj) overtake(paths []Path, use Set, j, size int) int {
	n := 0
	for i := range paths {
		if use.Has(i) && (i != j || d.own) {
			n += int(min(paths[i].Rate.SizeIn(paths[j].Jitter)/unit.Size(max(size, 1)), maxPackets))
		}
	}
	return n
}
