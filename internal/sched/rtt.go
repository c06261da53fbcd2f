package sched

// lowestRTT gives the segment to the path with the smallest SRTT among those with room: the first default scheduler of MPTCP
// in Linux (Raiciu et al., How Hard Can It Be?, NSDI 2012). A path without an estimate is the slowest; of equals the first is taken.
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
		if !among.Has(i) || !p.open(size) {
			continue
		}
		if best < 0 || p.SRTT != 0 && (paths[best].SRTT == 0 || p.SRTT < paths[best].SRTT) {
			best = i
		}
	}
	return best
}
