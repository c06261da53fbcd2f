package sched

import (
	"time"

	"github.com/tabane/tabane/internal/unit"
)

// dq is delay queueing (docs/papers.md, paper D, section 2.2): each path has a virtual queue that
// is drained at the path's rate, and a packet is sent on the path on which it is expected to arrive
// first.
//
//	Q_i(t) = max(0, Q_i(tau) - B_i (t - tau)) + S    (equation 1)
//	D_i    = Q_i / B_i + d_i                         (equation 2)
//
// B_i is the path's Rate, d_i its Delay, S the packet's Size, and tau the time of the last arrival
// at the queue. A path without a Rate is not used. Of equal paths the first is used.
//
// The queue is stored as the time at which it becomes empty, which saves a division. A change of
// Rate does not change the time of packets already queued.
type dq struct {
	queue [MaxPaths]virtual
}

// virtual is a virtual queue.
type virtual struct {
	empty time.Duration // when it becomes empty
}

// wait returns the queueing delay of a packet added now, Q_i/B_i; line is its transmission time.
func (v *virtual) wait(now, line time.Duration) time.Duration {
	return max(0, v.empty-now) + min(line, tooLong+1)
}

// tooLong bounds the queueing delay, so that arrival times can be compared without overflow.
const tooLong = 24 * time.Hour

func (d *dq) Next(paths []Path, s Segment) Set { return d.choose(paths, candidates(paths), s) }

// choose selects the path of the set on which the packet arrives first, and adds the packet to its
// queue.
func (d *dq) choose(paths []Path, among Set, s Segment) Set {
	best, wait, arrives := -1, time.Duration(0), time.Duration(0)
	for i := range paths {
		p := &paths[i]
		if !among.Has(i) || p.Room < s.Size || p.Rate <= 0 {
			continue
		}
		w := d.queue[i].wait(s.Now, p.Rate.TimeFor(unit.Size(s.Size)))
		if w > tooLong {
			continue
		}
		if best < 0 || w+p.Delay < arrives {
			best, wait, arrives = i, w, w+p.Delay
		}
	}
	if best < 0 {
		return 0
	}
	d.queue[best].empty = s.Now + wait
	return One(best)
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
type dqj struct {
	dq
	overtaken int
	own       bool
}

func newDQJ(o Options) Scheduler {
	if o.Overtaken == 0 {
		o.Overtaken = dqjOvertaken
	}
	return &dqj{overtaken: o.Overtaken, own: o.Own}
}

func (d *dqj) Next(paths []Path, s Segment) Set {
	return d.choose(paths, d.eligible(paths, candidates(paths), s.Size), s)
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

// many is a packet count above any threshold; MaxPaths times many does not overflow.
const many = 1 << 40

// overtake returns how many packets of that size the paths in use send during the jitter of path j.
func (d *dqj) overtake(paths []Path, use Set, j, size int) int {
	n := 0
	for i := range paths {
		if use.Has(i) && (i != j || d.own) {
			n += int(min(paths[i].Rate.SizeIn(paths[j].Jitter)/unit.Size(max(size, 1)), many))
		}
	}
	return n
}
