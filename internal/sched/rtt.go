package sched

// lowestRTT gives the segment to the path with the smallest SRTT among those with room: the first default scheduler of MPTCP
// in Linux (Raiciu et al., How Hard Can It Be?, NSDI 2012). A path without an estimate is the slowest; of equals the first is taken.
// Today's is another, see linux.
type lowestRTT struct{}

func (lowestRTT) Next(paths []Path, s Segment) Set {
	if best := fastest(paths, candidates(paths), s.Size); best >= 0 {
		return One(best)
	}
	return 0
}

// fastest returns the path of the smallest SRTT among those that are in the set and have room for size bytes, or -1.
func fastest(paths []Path, among Set, size int) int {
	best := -1
	for i := range paths {
		p := &paths[i]
		if !among.Has(i) || p.Room < size {
			continue
		}
		if best < 0 || p.SRTT != 0 && (paths[best].SRTT == 0 || p.SRTT < paths[best].SRTT) {
			best = i
		}
	}
	return best
}

// pair returns the fastest path whatever its room, and the fastest that has room. They are the same when there is nothing to
// weigh up: blest and ecf decide whether the second is worth it or the first worth waiting for. Both are -1 when none has room.
func pair(paths []Path, size int) (fast, open int) {
	may := candidates(paths)
	if open = fastest(paths, may, size); open < 0 {
		return -1, -1
	}
	fast = fastest(paths, may, noRoom)
	if f, s := &paths[fast], &paths[open]; f.SRTT == 0 || s.SRTT == 0 || f.Cwnd <= 0 || s.Cwnd <= 0 {
		return open, open // nothing is known to weigh up
	}
	return fast, open
}

// noRoom is a size for which every path has room.
const noRoom = -1 << 63

// redundant sends each segment on every path that has room for it: the earliest copy counts. What a full path misses it does not get
// later, so that a slow path never lags behind.
type redundant struct{}

func (redundant) Next(paths []Path, s Segment) Set {
	may := candidates(paths)
	for i := range paths {
		if may.Has(i) && paths[i].Room < s.Size {
			may &^= One(i)
		}
	}
	return may
}
