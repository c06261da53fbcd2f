package sched

import (
	"math"
	"time"

	"github.com/tabane/tabane/internal/base/ablation"
)

// Tie is the difference of arrival times below which changing the path costs more than it
// gains: two equal paths would alternate packet by packet, and nearly every packet would be
// held for its order.
const Tie = 100 * time.Microsecond

// The constants of auto, which only Constants lets an experiment change.
var (
	// copyWait bounds the virtual queue of a path that carries copies: they use what is spare.
	copyWait = 2 * time.Millisecond
	// copyLoss is the share of lost packets, in parts per million, from which on a path's packets
	// are copied: at 0.05 %, loss and not the rate limits a TCP connection with an RTT of 50 ms
	// at 30 Mbit/s (RFC 3649, section 2).
	copyLoss = 500
	// burst is the size of the transfer, in bytes, by which the path of bulk flows is chosen: an
	// eighth of 2.4 MB, a web page, because TCP that starts with 10 packets sends that in eight
	// round trips.
	burst = 300_000
	// A flow is of small objects whose trains have less than 1/smallFraction of burst.
	smallFraction = 4
	// acksFraction is the share of the data that acknowledgments are: one of 130 bytes, with a
	// tunnel, for two full packets.
	acksFraction = 20
	// keepFor is how long running flows keep to a path after a later one has become that of bulk
	// flows: BBR forgets its shortest round trip after 10 s. A flow is running unless it has sent
	// nothing for runningFor.
	keepFor, runningFor = 10 * time.Second, time.Second
)

// Constants returns the constants of auto, each with the value that removes it.
func Constants() []ablation.Constant {
	return []ablation.Constant{
		ablation.Integer("burst", &burst, 0),
		ablation.Integer("smallFraction", &smallFraction, 1e6),
		ablation.Integer("acksFraction", &acksFraction, 1),
		ablation.Duration("keepFor", &keepFor, 0),
		ablation.Duration("runningFor", &runningFor, 0),
		ablation.Duration("copyWait", &copyWait, 0),
		ablation.Integer("copyLoss", &copyLoss, 1e6),
		ablation.Integer("jitterFactor", &jitterFactor, 0),
		ablation.Duration("maxJitterDelay", &maxJitterDelay, 0),
		ablation.Number("maxLagFactor", &maxLagFactor, 1),
	}
}

// auto is delay queueing for paths of any quality. As the delay of a path it takes one that few
// packets exceed (Path.late), so that a second path is used only when the first one is busy for
// longer than the second one is later: while TCP starts and fills one path, packets of a jittery
// one would make its round trips look congested. Where the chosen path loses packets (copyLoss),
// the packet is copied to another one whose queue is empty, also one that rests or is slower, and
// one that costs more only with Options.CopyCostlier.
//
// Bulk flows (Segment.Kind) have a path of their own, bulkPath: the one on which a burst is
// complete first, which may be a later one of a higher rate. Senders keep to the round trips that
// they started with: BBR has two of the shortest ones in flight, and cubic leaves slow start when
// they become longer (HyStart). On the path where the first packet arrives first they would not
// send enough to use a later one. As packets of bulk flows are put into order, those on a shorter
// path wait for those on bulkPath, so the shorter path is given the same delay. A path that costs
// more than the one where packets arrive first is never bulkPath.
//
// Where bulkPath becomes a later one, flows that are running keep to the former path for a while.
// With the window that fills it they would send at a fraction of its rate over the longer path, and
// cubic takes many seconds to grow it. On the former path their queue grows until the later one is
// used, too.
//
// Flows of small objects, such as the parts of a page that a connection fetches one after the
// other, have one, too: where an object is complete first. Such a flow leaves its path idle between
// trains, and one of these was no longer than the one before: TCP that starts doubles its window.
//
// Acknowledgments have one, too: where those of a burst are complete first. On the path where a
// single one arrives first they would fill a slow uplink while TCP starts, and move to a later
// path, which cubic takes for congestion.
//
// Package pathset decides which paths rest, by the rates of sets of paths. So prompt packets use
// them: a short path may rest because bulk flows are faster on others.
type auto struct {
	dq
	costlier bool
	bulkPath int // a path, or -1
	acksPath int // the same for acknowledgments
	// smallPath is that of small objects.
	smallPath int
	// pause is how long a flow leaves its path idle between two trains, perByte what a byte takes
	// on it.
	pause   time.Duration
	perByte uint64

	// former is the bulkPath before the last one, if that is later, or -1; changed is when it
	// became former.
	former  int
	changed time.Duration
	// flows are bulk flows by Segment.Flow.
	flows [256]running
}

// running is when a flow began, when its last packet was sent, and its trains: what it sends
// without leaving its path idle for a pause.
type running struct {
	began, last time.Duration
	// cleared is when what was sent would have left the path of bulk flows if nothing else were
	// there.
	cleared time.Duration
	// train is the size of the current train in bytes, before that of the one before, and most that
	// of the largest of the last ones. ended: one was no longer than the one before, because there
	// was no more to send.
	train, before, most int
	ended, small        bool
}

// add adds a packet.
func (f *running) add(now time.Duration, size int, pause time.Duration, perByte uint64) {
	if f.last == 0 || now-f.last > runningFor {
		*f = running{began: now}
	}
	f.last = now
	if now-f.cleared > pause && f.train > 0 {
		limit := burst / max(smallFraction, 1)
		f.most = max(f.train, f.most-f.most/4)
		f.ended = f.ended || f.train <= f.before
		f.small = f.ended && f.most < limit
		f.before, f.train = f.train, 0
	}
	f.train = min(f.train+size, math.MaxInt32)
	f.cleared = max(f.cleared, now) + transmissionTime(size, perByte)
}

func newAuto(o Options) Scheduler {
	a := &auto{dq: *makeDQ(o), costlier: o.CopyCostlier, bulkPath: -1, acksPath: -1, smallPath: -1, former: -1}
	a.addJitter = true
	return a
}

func (a *auto) Next(paths []Path, s Segment) Set {
	if !a.version.same(&s) {
		a.use(paths, candidates(paths))
		a.choosePaths(paths, s.Now)
	}
	of, begins := a.class(&s)
	if begins >= 0 && a.queues.queue[begins].empty <= s.Now {
		a.last = begins // and not that of an acknowledgment before, because a short packet is hardly later there
	}
	chosen := a.choose(paths, &s, of)
	if chosen == 0 || paths[a.last].Loss < copyLoss {
		return chosen
	}
	return chosen | a.queues.copyTo(paths, a.last, s, a.costlier)
}

// class returns the class of a packet, and the path that packets of that class begin on, or -1.
func (a *auto) class(s *Segment) (class, int) {
	switch s.Kind {
	case Prompt:
		return prompt, -1
	case Acks:
		return acks, a.acksPath
	case Bulk:
	}
	f := &a.flows[s.Flow%uint32(len(a.flows))]
	f.add(s.Now, s.Size, a.pause, a.perByte)
	if f.small {
		return small, a.smallPath
	}
	if a.former >= 0 && f.began < a.changed && s.Now-a.changed < keepFor {
		return earlier, a.former
	}
	return bulk, a.bulkPath
}

// choosePaths chooses the paths of bulk flows and of acknowledgments, and sets the delays of paths
// for them.
func (a *auto) choosePaths(paths []Path, now time.Duration) {
	routes := a.active(notResting(paths))
	var first *candidate
	for k := range routes {
		if r := &routes[k]; first == nil || r.delays[prompt] < first.delays[prompt] {
			first = r
		}
	}
	if first == nil {
		return
	}
	cost := paths[first.path].Cost
	best := completeFirst(paths, routes, burst, cost)
	ofAcks := completeFirst(paths, routes, burst/acksFraction, cost)
	ofSmall := completeFirst(paths, routes, burst/max(smallFraction, 1), cost)
	var former, current *candidate
	for k := range routes {
		switch r := &routes[k]; {
		case paths[r.path].Cost > cost:
		case r.path == a.former:
			former = r
		case r.path == a.bulkPath:
			current = r
		}
	}
	switch {
	case best.path == a.bulkPath:
	case current != nil && current.delays[prompt] < best.delays[prompt]:
		former, a.changed = current, now
	default:
		former = nil
	}
	a.bulkPath, a.acksPath, a.smallPath, a.former = best.path, ofAcks.path, ofSmall.path, -1
	a.pause, a.perByte = shortestRTT(paths)/2, best.perByte
	if former != nil {
		a.former = former.path
	}
	for k := range routes {
		d := &routes[k].delays
		d[bulk] = max(d[prompt], best.delays[prompt])
		d[acks] = max(d[prompt], ofAcks.delays[prompt])
		d[small] = max(d[prompt], ofSmall.delays[prompt])
		if former != nil {
			d[earlier] = max(d[prompt], former.delays[prompt])
		}
	}
}

// active returns the candidates of a set, which it moves to the front. The others are for prompt
// packets only.
func (a *auto) active(of Set) []candidate {
	all, n := a.candidates[:a.count], 0
	for k := range all {
		if of.Has(all[k].path) {
			all[n], all[k] = all[k], all[n]
			n++
		}
	}
	for k := range all[n:] {
		d := &all[n+k].delays
		*d = [classes]time.Duration{prompt: d[prompt], bulk: tooLong, earlier: tooLong, small: tooLong, acks: tooLong}
	}
	return all[:n]
}

// completeFirst returns the candidate on which the last of that many bytes arrives first, among
// those that cost no more than the given cost.
func completeFirst(paths []Path, routes []candidate, size, cost int) (best *candidate) {
	for k := range routes {
		r := &routes[k]
		if paths[r.path].Cost <= cost && (best == nil || r.complete(size) < best.complete(size)) {
			best = r
		}
	}
	return best
}

// complete returns when the last of that many bytes arrives on the path.
func (r *candidate) complete(size int) time.Duration {
	return r.delays[prompt] + transmissionTime(size, r.perByte)
}

// notResting returns the candidates that do not rest, or all candidates if all rest.
func notResting(paths []Path) Set {
	may := candidates(paths)
	active := may
	for i := range paths {
		if paths[i].Resting {
			active &^= One(i)
		}
	}
	if active != 0 {
		return active
	}
	return may
}

// copyTo selects the path on which a copy of the packet on path original arrives first, and adds
// the copy to its queue. It returns the empty set if no path has an empty queue, or if a
// retransmission would arrive sooner: about a round trip of the shortest path after the original.
func (q *Queues) copyTo(paths []Path, original int, s Segment, costlier bool) Set {
	best, earliest := -1, max(0, q.queue[original].empty-s.Now)+paths[original].Delay+shortestRTT(paths)
	var line time.Duration
	for i := range paths {
		p := &paths[i]
		if i == original || !p.Usable || p.Room < s.Size || p.Rate <= 0 || p.Cost > paths[original].Cost && !costlier {
			continue
		}
		v := &q.queue[i]
		if v.empty-s.Now >= copyWait {
			continue
		}
		l := v.transmissionTime(p.Rate, s.Size)
		if arrives := max(0, v.empty-s.Now) + l + p.Delay; arrives < earliest {
			best, earliest, line = i, arrives, l
		}
	}
	if best < 0 {
		return 0
	}
	q.queue[best].add(&paths[best], s.Now, line)
	return One(best)
}

// shortestRTT returns the shortest round-trip time of usable paths, tooLong if none is known.
func shortestRTT(paths []Path) time.Duration {
	shortest := tooLong
	for i := range paths {
		if p := &paths[i]; p.Usable && p.SRTT > 0 {
			shortest = min(shortest, p.SRTT)
		}
	}
	return shortest
}
