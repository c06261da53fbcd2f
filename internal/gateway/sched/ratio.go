package sched

// ratio assigns Ratio consecutive packets to each path in turn: m packets, n packets, m packets
// (docs/papers.md, paper C, section 3). The proportion is exact: when the current path is full, the
// scheduler waits. A path that is not usable or has no Ratio is skipped.
type ratio struct {
	at   int // current path
	sent int // packets assigned to the current path in this turn
}

func (r *ratio) Next(paths []Path, s Segment) Set {
	may := candidates(paths)
	// One iteration more than paths, because the next turn may be that of the same path.
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

// roundRobin assigns each segment to the next path that has room. Full paths are skipped, so the
// shares of the paths depend on their windows.
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
