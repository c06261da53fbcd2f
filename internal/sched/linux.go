package sched

// linux is the default scheduler of MPTCP in Linux since 5.7 (mptcp_subflow_get_send in net/mptcp/protocol.c, as of 6.18): the path whose
// queue is soonest empty gets a burst. The queue is what is in flight and what waits behind the window; it empties at the path's pacing
// rate, of which an average is kept, weighted by bytes. When that path's send buffer is full, all wait.
//
// The pacing rate is cwnd / srtt. The kernel's is larger by a factor, which matters only while one path is in slow start and another
// is not.
type linux struct {
	path, burst int // bytes that the path still gets
	pace        [MaxPaths]float64
}

// burstSize is MPTCP_SEND_BURST_SIZE.
const burstSize = 1<<16 - 1

func (l *linux) Next(paths []Path, s Segment) Set {
	may := candidates(paths)
	if l.burst > 0 && may.Has(l.path) && paths[l.path].open(s.Size) {
		l.burst -= s.Size
		return One(l.path)
	}
	best, soonest := -1, 0.0
	for i := range paths {
		if !may.Has(i) {
			continue
		}
		if l.pace[i] == 0 {
			l.pace[i] = paths[i].pacing()
		}
		if linger := float64(paths[i].InFlight+paths[i].Queued) / l.pace[i]; best < 0 || linger < soonest {
			best, soonest = i, linger
		}
	}
	if best < 0 || paths[best].Room < s.Size {
		return 0
	}
	burst := min(burstSize, s.Window)
	if all := float64(burst + paths[best].InFlight + paths[best].Queued); all > 0 {
		l.pace[best] += (paths[best].pacing() - l.pace[best]) * float64(burst) / all
	}
	l.path, l.burst = best, burst-s.Size
	return One(best)
}

// pacing is the path's rate, in bytes per nanosecond. A path that was never measured is taken for a fast one, as in the kernel.
func (p *Path) pacing() float64 {
	if p.SRTT <= 0 {
		return 1
	}
	return float64(max(p.Cwnd, p.MSS, 1)) / float64(p.SRTT)
}
