package sched

import "time"

const (
	// Tie is the difference of arrival times below which changing the path costs more than it
	// gains: two equal paths would alternate packet by packet, and nearly every packet would be
	// held for its order.
	Tie = 100 * time.Microsecond
	// copyWait bounds the virtual queue of a path that carries copies: they use what is spare.
	copyWait = 2 * time.Millisecond
	// CopyLoss is the share of lost packets, in parts per million, from which on a path's packets
	// are copied: at 0.05 %, loss and not the rate limits a TCP connection with an RTT of 50 ms
	// at 30 Mbit/s (RFC 3649, section 2).
	CopyLoss = 500
	// burst is the size of the transfer, in bytes, by which the path of bulk flows is chosen: an eighth of 2.4 MB,
	// a web page, because TCP that starts with 10 packets sends that in eight round trips.
	burst = 300_000
	// switchOf and switchSize: the path of bulk flows is left for a slower one only if it is later for 5/4 of a burst
	// as well.
	switchOf, switchSize = 4, 5
)

// auto is delay queueing for paths of any quality. As the delay of a path it takes one that few packets exceed
// (Path.late), so that a second path is used only when the first one is busy for longer than the second one is later:
// while TCP starts and fills one path, packets of a jittery one would make its round trips look congested. Where the
// chosen path loses packets (CopyLoss), the packet is copied to another one whose queue is empty, also one that rests
// or is slower, and one that costs more only with Options.CopyCostlier.
//
// Bulk flows (Segment.Bulk) have a path of their own, bulkPath: the one on which a burst is complete first, which may
// be a later one of a higher rate. Senders keep to the round trips that they started with: BBR has two of the shortest
// ones in flight, and cubic leaves slow start when they become longer (HyStart). On the path where the first packet
// arrives first they would not send enough to use a later one. As packets of bulk flows are put into order, those on a
// shorter path wait for those on bulkPath, so the shorter path is given the same delay. A path that costs more than
// the one where packets arrive first is never bulkPath.
//
// Package pathset decides which paths rest, by the rates of sets of paths.
type auto struct {
	dq
	costlier bool
	bulkPath int // a path, or -1
}

func newAuto(o Options) Scheduler {
	a := &auto{dq: *makeDQ(o), costlier: o.CopyCostlier, bulkPath: -1}
	a.addJitter = true
	return a
}

func (a *auto) Next(paths []Path, s Segment) Set {
	if !a.version.same(&s) {
		a.use(paths, notResting(paths))
		a.chooseBulkPath(paths)
	}
	if s.Bulk && a.bulkPath >= 0 && a.queues.queue[a.bulkPath].empty <= s.Now {
		a.last = a.bulkPath // and not that of an acknowledgment before, because a short packet is hardly later there
	}
	chosen := a.choose(paths, &s)
	if chosen == 0 || paths[a.last].Loss < CopyLoss {
		return chosen
	}
	return chosen | a.queues.copyTo(paths, a.last, s, a.costlier)
}

// chooseBulkPath chooses the path of bulk flows, and sets the delays of paths for them.
func (a *auto) chooseBulkPath(paths []Path) {
	routes := a.candidates[:a.count]
	var first, best, current *candidate
	for k := range routes {
		if r := &routes[k]; first == nil || r.delay < first.delay {
			first = r
		}
	}
	for k := range routes {
		r := &routes[k]
		if r.path == a.bulkPath {
			current = r
		}
		if paths[r.path].Cost <= paths[first.path].Cost && (best == nil || r.complete(burst) < best.complete(burst)) {
			best = r
		}
	}
	if best == nil {
		return
	}
	if current != nil && current.perByte < best.perByte && paths[current.path].Cost <= paths[first.path].Cost &&
		current.complete(burst/switchOf*switchSize) <= best.complete(burst/switchOf*switchSize) {
		best = current
	}
	a.bulkPath = best.path
	for k := range routes {
		routes[k].bulkDelay = max(routes[k].delay, best.delay)
	}
}

// complete returns when the last of that many bytes arrives on the path.
func (r *candidate) complete(size int) time.Duration {
	return r.delay + transmissionTime(size, r.perByte)
}

// notResting returns the candidates that do not rest, or all candidates if all rest.
func notResting(paths []Path) Set {
	may := candidates(paths)
	some := may
	for i := range paths {
		if paths[i].Resting {
			some &^= One(i)
		}
	}
	if some != 0 {
		return some
	}
	return may
}

// copyTo selects the path on which a copy of the packet on path original arrives first, and adds the
// copy to its queue. It returns the empty set if no path has an empty queue.
func (q *Queues) copyTo(paths []Path, original int, s Segment, costlier bool) Set {
	best, least := -1, time.Duration(0)
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
		if arrives := max(0, v.empty-s.Now) + l + p.Delay; best < 0 || arrives < least {
			best, least, line = i, arrives, l
		}
	}
	if best < 0 {
		return 0
	}
	q.queue[best].add(&paths[best], s.Now, line)
	return One(best)
}
