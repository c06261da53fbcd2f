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
	// burst is what a path of a higher rate has to carry sooner than another one, though it is later by the
	// difference of their delays, to be the home of a flow with much to send: an eighth of 2.4 MB, which is a web
	// page, because TCP that begins with 10 packets sends that in eight round trips.
	burst = 300_000
	// stay, as a fraction: the home is left for a slower path only if it is later for a burst of 5/4 as well.
	stayOf, stay = 4, 5
)

// auto is delay queueing for paths of any quality. The delay is the one that few packets exceed (Path.late), so
// that a second path is used only when the first one is busy for longer than it is later: while TCP starts
// and fills one path, packets of a jittery one would make its round trips look congested. Where the chosen path loses packets (CopyLoss), the packet is copied to
// another one whose queue is empty; a path that rests or is slower carries copies too, one that costs
// more only if Options.CopyCostlier is set.
//
// A flow with much to send (Segment.Bulk) has a home: the path on which a download is complete first, which may be a later one
// of a higher rate. Senders keep to the round trips that they began with: BBR has two of the shortest ones under way, and
// cubic leaves slow start when they become longer (HyStart). On the path where the first packet arrives first they
// would not send enough to use a later one. The packets of such a flow are put into order, and those on a
// shorter path then wait for those on the home, so that the path is taken to be as long.
// No path is the home that costs more than the one where packets arrive first.
//
// Package pathset decides which paths rest, by the rates of sets of paths.
type auto struct {
	dq
	costlier bool
	home     int // a path, or -1
}

func newAuto(o Options) Scheduler {
	a := &auto{dq: *makeDQ(o), costlier: o.CopyCostlier, home: -1}
	a.cautious = true
	return a
}

func (a *auto) Next(paths []Path, s Segment) Set {
	if !a.version.same(&s) {
		a.use(paths, awake(paths))
		a.settle(paths)
	}
	chosen := a.choose(paths, &s)
	if chosen == 0 || paths[a.last].Loss < CopyLoss {
		return chosen
	}
	return chosen | a.queues.copyTo(paths, a.last, s, a.costlier)
}

// settle chooses the home of flows with much to send, and sets the delays of paths for them.
func (a *auto) settle(paths []Path) {
	routes := a.routes[:a.count]
	var first, best, home *route
	for k := range routes {
		if r := &routes[k]; first == nil || r.delay < first.delay {
			first = r
		}
	}
	for k := range routes {
		r := &routes[k]
		if r.path == a.home {
			home = r
		}
		if paths[r.path].Cost <= paths[first.path].Cost && (best == nil || r.complete(burst) < best.complete(burst)) {
			best = r
		}
	}
	if best == nil {
		return
	}
	if home != nil && home.perByte < best.perByte && paths[home.path].Cost <= paths[first.path].Cost &&
		home.complete(burst/stayOf*stay) <= best.complete(burst/stayOf*stay) {
		best = home
	}
	a.home = best.path
	for k := range routes {
		routes[k].bulk = max(routes[k].delay, best.delay)
	}
}

// complete returns when the last of that many bytes arrives on the path.
func (r *route) complete(size int) time.Duration { return r.delay + line(size, r.perByte) }

// awake returns the candidates that do not rest, or all candidates if all rest.
func awake(paths []Path) Set {
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
		l := v.line(p.Rate, s.Size)
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
