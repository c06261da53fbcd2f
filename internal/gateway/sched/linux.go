package sched

import "time"

// linux is the default scheduler of MPTCP in Linux since 5.7 (mptcp_subflow_get_send in
// net/mptcp/protocol.c, as of 6.18): the path with the shortest linger time is assigned a burst.
// The linger time is the memory of the data in flight or queued behind the window, divided by a
// byte-weighted average of the path's pacing rate. When that path's send buffer is full, nothing is
// sent.
//
// A burst consists of whole page fragments. It ends with the fragment in which the burst is used up
// or the send buffer becomes full (__subflow_push_pending), and when the window is full or no data
// is left; the next push chooses a path again.
//
// The pacing rate is cwnd / srtt. The kernel's is larger by a factor, which makes a difference only
// while one path is in slow start and another is not.
type linux struct {
	path, burst int  // path of the current burst, and the rest of the burst in bytes
	begun       bool // part of a fragment has been assigned
	left        int  // rest of the fragment, in bytes
	now         time.Duration
	pace        [MaxPaths]float64
}

const (
	// burstSize is MPTCP_SEND_BURST_SIZE.
	burstSize = 1<<16 - 108
	// Piece is the payload of a page fragment of 32 KiB, which also has a struct
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

// give assigns the segment to the path of the burst. A fragment ends with the segment whose end is
// nearest to the end of the fragment.
func (l *linux) give(s Segment) Set {
	l.burst -= s.Size
	if !l.begun {
		l.left += Piece
	}
	l.left -= s.Size
	l.begun = 2*l.left > s.Size
	return One(l.path)
}

// pacing returns the path's pacing rate in bytes per nanosecond. A path without an SRTT is assumed
// to be fast, as in the kernel.
func (p *Path) pacing() float64 {
	if p.SRTT <= 0 {
		return 1
	}
	return float64(max(p.Cwnd, p.MSS, 1)) / float64(p.SRTT)
}
