package sched

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/unit"
)

// MaxPaths is the number of paths that a Set can hold.
const MaxPaths = 64

// Path is the state of a path at the time of scheduling.
type Path struct {
	// Usable: the path is up and may be used. Backup: it is used only while no other path is
	// usable.
	Usable, Backup bool
	// Room is how many bytes the path accepts now, limited by its congestion window or, with
	// Needs.Ahead, by its send buffer. A datagram path has no window and a large Room.
	Room int
	// Cwnd and InFlight are the congestion window and the data in flight, in bytes. MSS is the
	// payload of a full segment.
	Cwnd, InFlight, MSS int
	// Queued is the data assigned to the path that is neither acknowledged nor in flight, in
	// bytes. It is set with Needs.Ahead only.
	Queued int
	// SRTT and RTTVAR are the smoothed round-trip time and its variation (RFC 6298), 0 before
	// the first sample.
	SRTT, RTTVAR time.Duration
	// Resting: auto sends only prompt packets and copies on the path while another one is usable.
	// Other schedulers use it.
	Resting bool
	// Delay and Jitter are one-way, Rate is the path's rate. They are set with Needs.Delay
	// only. Of Delay only the differences between paths matter, so it need not be positive. A
	// path with Rate 0 carries nothing in this direction.
	Delay, Jitter time.Duration
	Rate          unit.Bandwidth
	// Buffer bounds the virtual queue to what the path's real one holds: beyond it packets are
	// dropped, and do not delay the following ones. 0: it is not bounded.
	Buffer time.Duration
	// Loss is the share of packets that the path loses, in parts per million.
	Loss int
	// Cost is the price of using the path; lower is cheaper.
	Cost int
	// Ratio is how many consecutive packets the scheduler ratio assigns to the path.
	Ratio int
}

// open reports whether the path can take a packet of size bytes now.
func (p *Path) open(size int) bool { return p.Usable && p.Room >= size }

// Segment is the packet or segment to be scheduled.
type Segment struct {
	// Now is the time on the caller's monotonic clock.
	Now time.Duration
	// Size is the size of the segment in bytes, which is subtracted from a path's Room.
	Size int
	// Window is the rest of the shared window, in bytes, before this segment. The caller
	// enforces it.
	Window int
	// Unacked is the number of bytes sent and not acknowledged at the data level. Window and
	// Unacked together are the whole send window.
	Unacked int
	// Queued is the number of bytes to be scheduled, this segment included.
	Queued int
	// Flow is a hash of the packet's addresses, protocol and ports, for flow.
	Flow uint32
	// Kind is what matters to the packet. Only auto uses it.
	Kind Kind
	// Version, if not 0, changes with everything in paths but Room, Cwnd, InFlight and Queued. The
	// scheduler keeps what it derived from paths while the Version is the same.
	Version uint64
}

// Kind is what matters to a packet.
type Kind uint8

const (
	// Prompt: the packet's own arrival matters.
	Prompt Kind = iota
	// Bulk: the packet is of a flow that may have much to send, for which the completion of a
	// transfer matters and not the delay of its first packet.
	Bulk
	// Acks: the packet only acknowledges what a flow has received. How fast its sender sends
	// depends on how its round trips change.
	Acks
)

// version is the Segment.Version for which something was derived.
type version uint64

// same reports whether it is the Version of the segment, which it then becomes.
func (v *version) same(s *Segment) bool {
	before := *v
	*v = version(s.Version)
	return before == *v && before != 0
}

// Set is a set of paths: bit i is path i. The empty set means that the caller waits until the state
// of a path changes.
type Set uint64

// One returns the set of path i alone.
func One(i int) Set { return 1 << i }

// Has reports whether path i is in the set.
func (s Set) Has(i int) bool { return s>>i&1 != 0 }

// First returns the path with the lowest number, or -1 for the empty set.
func (s Set) First() int {
	if s == 0 {
		return -1
	}
	return bits.TrailingZeros64(uint64(s))
}

// Len returns the number of paths in the set.
func (s Set) Len() int { return bits.OnesCount64(uint64(s)) }

// Scheduler schedules the segments of one connection, or the packets of one flow of datagrams. It
// may keep state and is not safe for concurrent use.
type Scheduler interface {
	// Next chooses the paths for the segment. Each chosen path is usable and has room for it.
	// The caller must send the segment on at least one of them, because Next updates the
	// scheduler's state. paths has the same paths in the same order at every call, at most
	// MaxPaths. Next does not allocate.
	Next(paths []Path, s Segment) Set
}

// FullSize is the Options.Size of gateways, in bytes: dqj keeps the order of full packets.
const FullSize = 1500

// Options are the parameters of the schedulers. Zero means the default, which is the value in the
// source cited at the scheduler.
type Options struct {
	// Beta is the hysteresis of ecf in leaving the state of waiting for the fastest path (Lim
	// et al.: 0.25).
	Beta float64
	// Overtaken is the reordering in packets that dqj avoids: it tolerates less than this
	// (paper D, section 3.2: 3).
	Overtaken int
	// Own makes dqj also count the packets on the jittery path itself (equation 4 as printed).
	Own bool
	// Size, if not 0, is S of dqj's rule, in bytes, for packets of all sizes: that of the packets
	// whose order matters. Else it is the size of the packet.
	Size int
	// Queues are shared with other schedulers that send over the same paths. Every packet that is
	// scheduled is added to them. nil: the scheduler has its own.
	Queues *Queues
	// Tie is the difference of arrival times up to which dq, dqj and auto regard two paths as
	// equal; see the constant Tie.
	Tie time.Duration
	// Choice is how flow chooses.
	Choice Choice
	// CopyCostlier: auto also copies to paths that cost more than that of the packet.
	CopyCostlier bool
}

// Check returns the faults of the options.
func (o Options) Check() fault.List {
	var faults fault.List
	if !(o.Beta >= 0 && o.Beta <= 1) {
		faults.Add("beta", "must be from 0 to 1, got %g", o.Beta)
	}
	if o.Overtaken < 0 {
		faults.Add("overtaken", "must not be negative, got %d", o.Overtaken)
	}
	if o.Size < 0 {
		faults.Add("size", "must not be negative, got %d", o.Size)
	}
	if o.Tie < 0 {
		faults.Add("tie", "must not be negative, got %v", o.Tie)
	}
	if o.Choice > Fastest {
		faults.Add("choice", "must be pinned, cheapest or fastest, got %v", o.Choice)
	}
	return faults
}

// Default is Linux' default scheduler (net.mptcp.scheduler). It is used for real and simulated
// connections unless another scheduler is configured.
const Default = "default"

// Needs lists what a scheduler requires of its caller beyond the basic state of the paths.
type Needs struct {
	// Delay: Path.Delay, Path.Jitter and Path.Rate are measured.
	Delay bool
	// Blocked: Next is also called for a segment that does not fit the shared window. Nothing
	// is sent then; the call reports to the scheduler that the window was the limit.
	Blocked bool
	// Ahead: the scheduler assigns data to a path before the path's congestion window has room
	// for it. Path.Room is then the room in the path's send buffer, Path.Queued the data queued
	// there, and the rest of a Piece is assigned even beyond Room.
	Ahead bool
}

// Names of parameters in scenarios and sweeps.
const (
	ParameterBeta      = "beta"
	ParameterOvertaken = "overtaken"
	ParameterOwn       = "own"
	ParameterRatio     = "ratio"
)

// use is what a scheduler can be used for.
type use uint8

const (
	// connections: the segments of a connection, whose paths have congestion windows.
	connections use = 1 << iota
	// packets: the packets of a gateway, whose paths always have room.
	packets
)

// descriptor describes a scheduler: its name, use, needs, parameters and constructor.
type descriptor struct {
	name       string
	use        use
	needs      Needs
	parameters []string
	// counts: it adds what it schedules to Options.Queues itself.
	counts bool
	make   func(Options) Scheduler
	// plan completes a Plan whose choices are those of the scheduler; nil if they do not follow
	// from the paths alone. may are the paths with a rate that can carry packets.
	plan func(p *Planner, to *Plan, paths []Path, may Set)
	// sized: plan needs Options.Size.
	sized bool
}

// schedulers is in the order of Names.
var schedulers = []descriptor{
	{name: Default, use: connections, needs: Needs{Ahead: true}, make: func(Options) Scheduler { return new(linux) }},
	{name: "ratio", use: connections | packets, parameters: []string{ParameterRatio}, make: func(Options) Scheduler { return new(ratio) }, plan: planRatio},
	{name: "round-robin", use: connections, make: func(Options) Scheduler { return new(roundRobin) }},
	{name: "lowest-rtt", use: connections, make: func(Options) Scheduler { return new(lowestRTT) }},
	{name: "blest", use: connections, needs: Needs{Blocked: true}, make: func(Options) Scheduler { return &blest{lambda: blestStart} }},
	{name: "ecf", use: connections, parameters: []string{ParameterBeta}, make: newECF},
	{name: "redundant", use: connections | packets, make: func(Options) Scheduler { return new(redundant) }, plan: planRedundant},
	{name: "dq", use: connections | packets, needs: Needs{Delay: true}, counts: true, make: newDQ, plan: planDQ},
	{name: "dqj", use: connections | packets, needs: Needs{Delay: true}, parameters: []string{ParameterOvertaken, ParameterOwn}, counts: true, make: newDQJ, plan: planDQJ, sized: true},
	{name: "auto", use: packets, needs: Needs{Delay: true}, counts: true, make: newAuto},
	{name: "best", use: packets, needs: Needs{Delay: true}, make: newBest, plan: planBest},
	{name: "flow", use: packets, needs: Needs{Delay: true}, make: newFlow, plan: planFlow},
}

// find returns the descriptor of a scheduler, or an error that names those of connections.
func find(name string) (*descriptor, error) {
	for i := range schedulers {
		if schedulers[i].name == name {
			return &schedulers[i], nil
		}
	}
	return nil, fmt.Errorf("unknown scheduler %q: want one of %s", name, strings.Join(Names(), ", "))
}

// Names returns the names of the schedulers of connections.
func Names() []string { return names(connections) }

// Disciplines returns the names of the schedulers of packets.
func Disciplines() []string { return names(packets) }

func names(u use) []string {
	var list []string
	for _, s := range schedulers {
		if s.use&u != 0 {
			list = append(list, s.name)
		}
	}
	return list
}

// NeedsOf returns the needs of the scheduler. An unknown scheduler has none.
func NeedsOf(name string) Needs {
	if d, err := find(name); err == nil {
		return d.needs
	}
	return Needs{}
}

// ParametersOf returns the names of the scheduler's parameters. An unknown scheduler has none.
func ParametersOf(name string) []string {
	if d, err := find(name); err == nil {
		return slices.Clone(d.parameters)
	}
	return nil
}

// New returns a scheduler for one connection or one flow of datagrams. An unknown or empty name and
// options out of range are errors.
func New(name string, o Options) (Scheduler, error) {
	d, err := find(name)
	if err != nil {
		return nil, err
	}
	if err := o.Check().Err(); err != nil {
		return nil, fmt.Errorf("make scheduler %q: %w", name, err)
	}
	s := d.make(o)
	if o.Queues != nil && !d.counts {
		return counted{s, o.Queues}, nil
	}
	return s, nil
}

// counted adds what a scheduler schedules to the queues that it shares with others.
type counted struct {
	Scheduler
	queues *Queues
}

func (c counted) Next(paths []Path, s Segment) Set {
	chosen := c.Scheduler.Next(paths, s)
	for left := chosen; left != 0; left &= left - 1 {
		i := left.First()
		c.queues.Add(i, &paths[i], s.Now, s.Size)
	}
	return chosen
}

// candidates returns the usable paths that are not backups or, if there are none, the usable
// backups. Room is not considered: a backup does not replace a path that is only full.
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
