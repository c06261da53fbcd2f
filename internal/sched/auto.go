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
)

// auto is delay queueing for paths of any quality. The delay is the one that few packets exceed (Path.late), so
// that a second path is used only when the first one is busy for longer than it is later: while TCP starts
// and fills one path, packets of a jittery one would make its round trips look congested. Where the chosen path loses packets (CopyLoss), the packet is copied to
// another one whose queue is empty; a path that rests or is slower carries copies too, one that costs
// more only if Options.CopyCostlier is set.
//
// Which paths rest is decided above, by what all of them together achieve (package judge).
type auto struct {
	dq
	costlier bool
}

func newAuto(o Options) Scheduler {
	a := &auto{dq: *makeDQ(o), costlier: o.CopyCostlier}
	a.cautious = true
	return a
}

func (a *auto) Next(paths []Path, s Segment) Set {
	if !a.version.same(&s) {
		a.use(paths, awake(paths))
	}
	chosen := a.choose(paths, &s)
	if chosen == 0 || paths[a.last].Loss < CopyLoss {
		return chosen
	}
	return chosen | a.queues.copyTo(paths, a.last, s, a.costlier)
}

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
