package sched

import (
	"fmt"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
)

// best uses a single path: the one with the highest Rate, of equal ones that with the shortest
// Delay. It changes only to a path whose rate is higher by a tenth, or when its own can no longer
// be used, because a change may reorder packets. A full path is waited for.
type best struct {
	at      int
	version version
}

func newBest(Options) Scheduler { return &best{at: -1} }

func (b *best) Next(paths []Path, s Segment) Set {
	if !b.version.same(&s) {
		b.choose(paths)
	}
	if b.at < 0 || paths[b.at].Room < s.Size {
		return 0
	}
	return One(b.at)
}

// choose sets the path.
func (b *best) choose(paths []Path) {
	may := candidates(paths)
	first := -1
	for i := range paths {
		p := &paths[i]
		if may.Has(i) && p.Rate > 0 && (first < 0 || p.Rate > paths[first].Rate || p.Rate == paths[first].Rate && p.Delay < paths[first].Delay) {
			first = i
		}
	}
	if b.at < 0 || !may.Has(b.at) || paths[b.at].Rate <= 0 || first >= 0 && paths[first].Rate-paths[b.at].Rate > paths[b.at].Rate/10 {
		b.at = first
	}
}

// Choice is how the scheduler flow chooses the path of a new flow.
type Choice uint8

const (
	// Pinned distributes flows over paths in proportion to their rates.
	Pinned Choice = iota
	// Cheapest is Pinned among the usable paths of the lowest Path.Cost.
	Cheapest
	// Fastest uses the path on which the flow's first packet arrives first, as dq does.
	Fastest
)

func (c Choice) String() string {
	switch c {
	case Pinned:
		return "pinned"
	case Cheapest:
		return "cheapest"
	case Fastest:
		return "fastest"
	}
	return fmt.Sprintf("choice %d", uint8(c))
}

// flow keeps the packets of a flow (Segment.Flow) on one path while that is usable, so they need no
// resequencing (paper D, section 2: policy per flow). A flow that was silent for flowSilence counts
// as new. A full path is waited for.
type flow struct {
	choice  Choice
	dq      *dq
	version version
	may     Set // paths that can carry packets
	table   [flowEntries]entry
}

const (
	// flowEntries is the number of flows that are distinguished; those of one entry share a path.
	flowEntries = 4096
	flowSilence = 5 * time.Second
)

// entry is the path of a flow.
type entry struct {
	used  time.Duration
	path  int8
	known bool
}

func newFlow(o Options) Scheduler { return &flow{choice: o.Choice, dq: makeDQ(o)} }

func (f *flow) Next(paths []Path, s Segment) Set {
	if !f.version.same(&s) {
		f.may = candidates(paths)
		for i := range paths {
			if paths[i].Rate <= 0 {
				f.may &^= One(i)
			}
		}
	}
	e := &f.table[s.Flow%flowEntries]
	hash, choose := s.Flow, !e.known || s.Now-e.used > flowSilence
	if !choose && !f.may.Has(int(e.path)) {
		// With the same hash, the flows of a path that fails would all move to the same path.
		hash, choose = hash^uint32(e.path+1)*0x9e3779b1, true
	}
	if choose {
		i := f.choose(paths, &s, mix(hash))
		if i < 0 {
			return 0
		}
		e.path, e.known = int8(i), true
	}
	e.used = s.Now
	if paths[e.path].Room < s.Size {
		return 0
	}
	return One(int(e.path))
}

// choose returns the path of a flow with that hash, or -1 if there is none.
func (f *flow) choose(paths []Path, s *Segment, hash uint32) int {
	may := f.may
	switch f.choice {
	case Fastest:
		f.dq.use(paths, may)
		return f.dq.earliest(paths, s, prompt)
	case Cheapest:
		may = cheapest(paths, may)
	case Pinned:
	}
	total := uint64(0)
	for i := range paths {
		if may.Has(i) {
			total += share(&paths[i])
		}
	}
	if total == 0 {
		return -1
	}
	at := uint64(hash) * total >> 32
	for i := range paths {
		if !may.Has(i) {
			continue
		}
		if at < share(&paths[i]) {
			return i
		}
		at -= share(&paths[i])
	}
	panic("BUG: a share beyond the total")
}

// mix spreads hashes that differ in few bits (the finalizer of MurmurHash3).
func mix(h uint32) uint32 {
	h = (h ^ h>>16) * 0x85ebca6b
	h = (h ^ h>>13) * 0xc2b2ae35
	return h ^ h>>16
}

// share returns the weight of a path: its rate in kbit/s, bounded so that MaxPaths of them times a
// hash of 32 bits fit 64 bits.
func share(p *Path) uint64 { return uint64(min(p.Rate/unit.KbitPerSecond+1, 1<<25)) }

// cheapest returns the paths of the set with the lowest cost.
func cheapest(paths []Path, among Set) Set {
	var lowest Set
	cost := 0
	for i := range paths {
		switch c := paths[i].Cost; {
		case !among.Has(i):
		case lowest == 0 || c < cost:
			lowest, cost = One(i), c
		case c == cost:
			lowest |= One(i)
		}
	}
	return lowest
}
