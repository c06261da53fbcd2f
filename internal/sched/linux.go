package sched

import "time"

// linux is the default scheduler of MPTCP in Linux since 5.7 (mptcp_subflow_get_send in net/mptcp/protocol.c, as of 6.18): the path whose
// queue is soonest empty gets a burst. The queue is what is in flight and what waits behind the window, in memory; it empties at the path's
// pacing rate, of which an average is kept, weighted by bytes. When that path's send buffer is full, all wait.
//
// A burst is given in whole pieces of the page that the application's data lies in, and ends with the piece in which it was used up or the
// send buffer became full (__subflow_push_pending). What ends a push otherwise, a window or the end of the data, ends the burst as well: the
// next push chooses anew.
//
// The pacing rate is cwnd / srtt. The kernel's is larger by a factor, which matters only while one path is in slow start and another
// is not.
type linux struct {
	path, burst int  // bytes that the path still gets
	begun       bool // a piece of which some has been given
	left        int  // of it
	now         time.Duration
	pace        [MaxPaths]float64
}

const (
	// burstSize is MPTCP_SEND_BURST_SIZE.
	burstSize = 1<<16 - 108
	// Piece is how many bytes of the application's data Linux keeps together: what a page fragment of 32 KiB holds beside its struct
	// mptcp_data_frag (mptcp_carve_data_frag).
	Piece = 1<<15 - 40
)

func (l *linux) Next(paths []Path, s Segment) Set {
	may := candidates(paths)
	if s.Now == l.now && may.Has(l.path) && (l.begun || 2*l.burst > s.Size && paths[l.path].open(s.Size)) {
		return l.give(s)
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
	l.path, l.burst, l.now = best, burst, s.Now
	return l.give(s)
}

// give notes that the path gets the segment. One that is nearer to the end of the piece than the next would be ends it.
func (l *linux) give(s Segment) Set {
	l.burst -= s.Size
	if !l.begun {
		l.left += Piece
	}
	l.left -= s.Size
	l.begun = 2*l.left > s.Size
	return One(l.path)
}

// pacing is the path's rate, in bytes per nanosecond. A path that was never measured is taken for a fast one, as in the kernel.
func (p *Path) pacing() float64 {
	if p.SRTT <= 0 {
		return 1
	}
	return float64(max(p.Cwnd, p.MSS, 1)) / float64(p.SRTT)
}
