package sched

import (
	"fmt"
	"math/bits"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/fault"
	"github.com/tabane/tabane/internal/unit"
)

// MaxPaths is how many paths a Set has bits for.
const MaxPaths = 64

// Path is what is known of a path when a decision is made.
type Path struct {
	// Usable: the path is up and may be used. Backup: only while no other path is usable.
	Usable, Backup bool
	// Room is how many bytes the path's window lets through now. A datagram path without a window has a large one.
	Room int
	// Cwnd and InFlight are the congestion window and what of it is in use, in bytes. MSS is the payload of a full segment.
	Cwnd, InFlight, MSS int
	// Queued is what was given to the path before, is not acknowledged and not in flight, in bytes: it waits for the window or is to be
	// sent again. Only the scheduler default asks, and only it gives more than the window lets through.
	Queued int
	// SRTT and RTTVar are the smoothed round trip time and its variation, or 0 before the first sample.
	SRTT, RTTVar time.Duration
	// Delay, Jitter and Rate are measured one way; the datagram schedulers use them.
	Delay, Jitter time.Duration
	Rate          unit.Bandwidth
	// Ratio is how many packets in succession the scheduler ratio gives to the path.
	Ratio int
}

// open says whether the path is able to take a packet of that size now.
func (p *Path) open(size int) bool { return p.Usable && p.Room >= size }

// Segment is the packet or segment that is to be sent.
type Segment struct {
	// Now is the time on the caller's clock, which never goes back.
	Now time.Duration
	// Size is how many bytes of a path's room it takes.
	Size int
	// Window is how many more bytes the shared receive window lets through; this segment is not yet taken off. It is the caller
	// who keeps within it. blest alone uses it; told of a segment that does not fit, it learns that the window was the limit.
	Window int
	// Unacked is how many bytes of the connection have been sent and are not acknowledged at its level: they may be in flight, or
	// have arrived and wait for others. Window and Unacked together are the whole send window.
	Unacked int
	// Queued is how many bytes wait to be given to a path, this segment among them: ecf asks how long they will take.
	Queued int
}

// Set is a set of paths: bit i is path i. The empty set means: wait, until something changes.
type Set uint64

// One is the set of path i alone.
func One(i int) Set { return 1 << i }

// Has says whether path i is in the set.
func (s Set) Has(i int) bool { return s>>i&1 != 0 }

// First returns the path of the lowest number. The empty set has none: -1.
func (s Set) First() int {
	if s == 0 {
		return -1
	}
	return bits.TrailingZeros64(uint64(s))
}

// Len says how many paths are in the set.
func (s Set) Len() int { return bits.OnesCount64(uint64(s)) }

// Scheduler decides for one connection or one flow of datagrams, whose state it may hold.
type Scheduler interface {
	// Next chooses where the segment goes. A path that it chooses is usable and has room for the segment; the caller sends there
	// or at least on one of them, for the choice is remembered as done. paths are the same ones in the same order at every
	// call, MaxPaths at most. No call allocates.
	Next(paths []Path, s Segment) Set
}

// Options are the parameters of the schedulers. Each has its source's value when it is 0.
type Options struct {
	// Beta is how much ecf hesitates to take up a slower path again once it waited for a faster (Lim et al.: 0.25).
	Beta float64
	// Overtaken is how many packets must not overtake one that jitter holds up, for dqj (paper D, section 3.2: 3).
	Overtaken int
	// Own makes dqj count the packets that follow on the jittery path itself too.
	Own bool
}

// Check says what is wrong with the options, or nothing.
func (o Options) Check() fault.List {
	var faults fault.List
	if !(o.Beta >= 0 && o.Beta <= 1) {
		faults.Add("beta", "must be from 0 to 1, got %g", o.Beta)
	}
	if o.Overtaken < 0 {
		faults.Add("overtaken", "must not be negative, got %d", o.Overtaken)
	}
	return faults
}

// Default is the name of Linux' default scheduler, as the kernel has it (net.mptcp.scheduler). It gives to a path more than its
// window lets through: Room is then what the path's send buffer has room for, and the rest of a Piece is given beyond it.
const Default = "default"

// schedulers is in the order that Names tells.
var schedulers = []struct {
	name string
	make func(Options) Scheduler
}{
	{Default, func(Options) Scheduler { return new(linux) }},
	{"ratio", func(Options) Scheduler { return new(ratio) }},
	{"round-robin", func(Options) Scheduler { return new(roundRobin) }},
	{"lowest-rtt", func(Options) Scheduler { return lowestRTT{} }},
	{"blest", func(Options) Scheduler { return &blest{lambda: blestStart} }},
	{"ecf", newECF},
	{"redundant", func(Options) Scheduler { return redundant{} }},
	{"dq", func(Options) Scheduler { return new(dq) }},
	{"dqj", newDQJ},
}

// Names returns the names that New knows.
func Names() []string {
	names := make([]string, len(schedulers))
	for i, s := range schedulers {
		names[i] = s.name
	}
	return names
}

// New returns a scheduler for one connection or one flow of datagrams. An unknown name and impossible options are errors.
func New(name string, o Options) (Scheduler, error) {
	for _, s := range schedulers {
		if s.name == name {
			if err := o.Check().Err(); err != nil {
				return nil, fmt.Errorf("make scheduler %q: %w", name, err)
			}
			return s.make(o), nil
		}
	}
	return nil, fmt.Errorf("choose scheduler %q: want one of %s", name, strings.Join(Names(), ", "))
}

// candidates returns the paths that a decision is about: the usable ones, or, when all of these are backups, those. Whether
// they have room makes no difference: a backup does not help out a path that is merely full.
func candidates(paths []Path) Set {
	var all, regular Set
	for i := range paths {
		p := &paths[i]
		if !p.Usable {
			continue
		}
		all |= One(i)
		if !p.Backup {
			regular |= One(i)
		}
	}
	if regular != 0 {
		return regular
	}
	return all
}
