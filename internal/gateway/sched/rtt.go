package sched

import "math"

// lowestRTT assigns the segment to the path with the smallest SRTT among those with room (Raiciu et
// al., How Hard Can It Be?, NSDI 2012). A path without an SRTT is the slowest; of equal paths the
// first is used.
type lowestRTT struct{}

func (*lowestRTT) Next(paths []Path, s Segment) Set {
	if best := fastest(paths, candidates(paths), s.Size); best >= 0 {
		return One(best)
	}
	return 0
}

// fastest returns the path with the smallest SRTT among those in the set that have room for size
// bytes, or -1.
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

// pair returns the fastest path, and the fastest path with room, for blest and ecf, which choose
// between waiting for the first and using the second. Both are the same path when there is no
// choice, and -1 when no path has room.
func pair(paths []Path, size int) (fast, open int) {
	may := candidates(paths)
	if open = fastest(paths, may, size); open < 0 {
		return -1, -1
	}
	fast = fastest(paths, may, noRoom)
	if f, s := &paths[fast], &paths[open]; f.SRTT == 0 || s.SRTT == 0 || f.Cwnd <= 0 || s.Cwnd <= 0 {
		return open, open // no estimates to compare
	}
	return fast, open
}

// noRoom is a size for which every path has room: it turns the check for room off.
const noRoom = math.MinInt

// redundant sends each segment on every path that has room for it. A full path is not sent the
// segment later, so that a slow path does not fall behind.
type redundant struct{}

func (*redundant) Next(paths []Path, s Segment) Set {
	may := candidates(paths)
	for i := range paths {
		if may.Has(i) && paths[i].Room < s.Size {
			may &^= One(i)
		}
	}
	return may
}
