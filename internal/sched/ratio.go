package sched

// ratio gives each path as many packets in succession as its Ratio says, in the order of the paths,
// and starts over: m packets, n packets, m packets (docs/papers.md, paper C, section 3). The
// proportion is exact: when it is the turn of a path that is full, it waits. A path that is not
// usable or has no Ratio is skipped.
type ratio struct {
	at   int // the path whose turn it is
	sent int // packets of this turn sent so far
}

func (r *ratio) Next(paths []Path, s Segment) Set {
	may := candidates(paths)
	// One more than all paths: it may be the turn of the same path again.
	for range len(paths) + 1 {
		if r.at < len(paths) && may.Has(r.at) && r.sent < paths[r.at].Ratio {
			if !paths[r.at].open(s.Size) {
				return 0
			}
			r.sent++
			return One(r.at)
		}
		r.sent = 0
		if r.at++; r.at >= len(paths) {
			r.at = 0
		}
	}
	return 0
}

// roundRobin gives each segment to the next path in turn that has room. A path that is full is
// skipped, so the shares follow the windows.
type roundRobin struct {
	next int
}

func (r *roundRobin) Next(paths []Path, s Segment) Set {
	may := candidates(paths)
	i := r.next
	for range paths {
		if i >= len(paths) {
			i = 0
		}
		if may.Has(i) && paths[i].open(s.Size) {
			r.next = i + 1
			return One(i)
		}
		i++
	}
	return 0
}
