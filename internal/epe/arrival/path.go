// Package arrival chooses the egress path of each packet of a connection: the one that it is expected
// to arrive first over, by what is in flight on each path and what acknowledgments say of it.
//
// It is bpf/lib/spray.h and bpf/epe/spray in Go: the same arithmetic, compared by TestVectors, and
// what the simulator sprays with. Times are in microseconds, and wrap
// around as sequence numbers do. It reads no clock and draws nothing.
package arrival

// MaxPaths is the number of paths that a connection has at most.
const MaxPaths = 4

// The constants of bpf/lib/spray.h, where each has its reason.
const (
	firstWindow = 8 * 1024
	mostWindow  = 1 << 30
	stall       = 10_000
	rounds      = 10_000_000
	pause       = 3_000_000
	lossPause   = 15_000_000
	away        = 10_000_000
	careful     = 256 << 10
	maxPause    = 600_000_000
	mayBeLate   = 6
	watchFor    = 400_000
	timesWorse  = 2
	dead        = 300_000
	expired     = 180_000
	train       = 8 << 10
	lossy       = 60_000
	mostTried   = 3000
	delayed     = 1500
	suspect     = 1_000_000
)

// Path is what a connection knows of a path (struct spray_path).
type Path struct {
	Sent, Gone, Window, Rate    uint32
	Shortest, Shortest2, Smooth uint32
	Progress, Until, Paused     uint32
	Packets, Late, Lost, Bare   uint32
	Event, Counted              uint32
}

// loss is how a retransmission was counted: not as a loss, as one while packets waited, or without.
type loss uint8

const (
	none loss = iota
	overflow
	bare
)

func later(a, b uint32) bool { return int32(a-b) > 0 }

func (p *Path) shortest() uint32 {
	if p.Shortest2 != 0 && p.Shortest2 < p.Shortest {
		return p.Shortest2
	}
	return p.Shortest
}

// arrival is when the acknowledgment of a packet that is sent now is expected.
func (p *Path) arrival(size uint32) uint32 {
	shortest := p.shortest()
	if p.Rate == 0 {
		return shortest
	}
	return max(uint32(min((uint64(p.Sent-p.Gone)+uint64(size))*1000/uint64(p.Rate), 0x7fffffff)), shortest)
}

// overdue is after how long without an acknowledgment what the path carries is overdue.
func (p *Path) overdue() uint32 { return p.Smooth + p.Smooth/2 + stall }

// stalled reports whether data in flight is overdue by so many times of what is normal, while what
// home carries arrives.
func (p *Path) stalled(home *Path, times uint32) bool {
	since := home.Progress - p.Progress
	return p.Sent != p.Gone && p.Smooth != 0 && int32(since) > 0 && later(since, times*p.overdue())
}

// dead reports whether the path, as home, is dead, when a segment is sent again: nothing of what it
// has in flight arrived for so long.
func (p *Path) dead(now uint32) bool {
	return p.Sent != p.Gone && later(now-p.Progress, max(p.overdue(), expired))
}

// answered is after how long what is sent again over the path is acknowledged, if that arrives.
func (p *Path) answered() uint32 {
	longest := max(p.Smooth, p.shortest())
	if longest == 0 {
		return suspect
	}
	return max(3*longest, expired)
}

// outage reports whether the others that carry something are as dead as home: what failed is what they
// have in common, such as the uplink or the client's access.
func outage(paths []Path, home int, now uint32) bool {
	dead := false
	for i := range paths {
		p := &paths[i]
		if i == home || p.Sent == p.Gone {
			continue
		}
		if !p.dead(now) {
			return false
		}
		dead = true
	}
	return dead
}

// better reports whether a packet may go over a path other than home. arrival is the earliest
// expected one so far.
func (p *Path) better(home *Path, size uint32, arrival *uint32) bool {
	flight, at := p.Sent-p.Gone, p.arrival(size)
	switch {
	case p.Shortest == 0:
		return flight == 0
	case at >= *arrival, p.stalled(home, 1), flight != 0 && flight+size > p.Window:
		return false
	}
	*arrival = at
	return true
}

// send counts a packet as sent.
func (p *Path) send(now, size uint32) {
	if p.Sent == p.Gone {
		p.Progress = now
	}
	p.Sent += size
	p.Packets++
}

// queued reports whether packets wait on the path.
func (p *Path) queued() bool {
	shortest := p.shortest()
	return p.Smooth > shortest+shortest/8+1000
}

// arrived applies the arrival of size bytes that were sent roundTrip ago, when acknowledged bytes had
// been acknowledged. likely is the rate if nothing is known of it.
func (p *Path) arrived(likely, roundTrip, size, acknowledged uint32) {
	roundTrip = max(roundTrip, 1)
	if p.Smooth == 0 {
		p.Smooth = roundTrip
	}
	if p.Rate == 0 {
		p.Rate = likely
	}
	if p.Shortest == 0 || roundTrip < p.Shortest {
		p.Shortest = roundTrip
	}
	p.Smooth = p.Smooth - p.Smooth/8 + roundTrip/8
	queued := p.queued()
	if p.Window < mostWindow {
		if queued {
			size /= 8
		}
		p.Window += size
	}
	sample := uint32(uint64(p.Gone-acknowledged) * 1000 / uint64(roundTrip))
	switch {
	case sample > p.Rate && queued:
		p.Rate += (sample - p.Rate + 7) / 8
	case sample > p.Rate:
		p.Rate += (sample - p.Rate + 7) / 4
	case queued:
		p.Rate -= (p.Rate - sample) / 8
	}
}

// retransmitted counts a retransmission of what the path carried: late if that arrived, or else
// because it was lost. It returns what was counted.
func (p *Path) retransmitted(late bool, now uint32) loss {
	if p.Counted != 0 && !later(now-p.Event, p.Smooth) {
		return none
	}
	p.Counted, p.Event = 1, now
	if late {
		p.Late++
		return none
	}
	p.Lost++
	if p.queued() {
		return overflow
	}
	p.Bare++
	return bare
}

// found applies that what was counted as a loss was late: it has arrived after all.
func (p *Path) found(l loss) {
	if l == none || p.Lost == 0 {
		return // it was left since
	}
	p.Late++
	p.Lost--
	if l == bare {
		p.Bare--
	}
}

// loses reports whether the path loses more than one whose queue overflows.
func (p *Path) loses() bool { return p.losesBare() || p.Lost > 2+p.Packets/256 }

// losesBare reports whether the path loses without a queue.
func (p *Path) losesBare() bool { return p.Bare > 1+p.Packets/1024 }

// lossyRate returns what is remembered of the rate of home, which has lost without a queue since a
// connection began took milliseconds ago, and of which was is remembered.
func (p *Path) lossyRate(took, was uint32) uint32 {
	switch {
	case took > lossy:
		return was
	case took == 0 || p.Gone/took >= p.Rate:
		return p.Rate
	}
	return max(p.Gone/took, 1)
}

// harms reports whether the retransmissions of the path are a reason to leave it.
func (p *Path) harms() bool { return p.loses() || p.Late > mayBeLate+p.Packets/256 }

// watch is what all paths of a connection brought since a time (struct spray_watch).
type watch struct{ Since, All, Others, Worse uint32 }

// isWorse reports whether all paths together have brought less than home alone can, for so long that
// it is no chance.
func (w *watch) isWorse(home *Path, now, all, others uint32) bool {
	time, part, other, limit := now-w.Since, all-w.All, others-w.Others, max(16*home.Smooth, watchFor)
	if time < limit {
		return false
	}
	if time < 2*limit && other > part/16 && uint64(part)*1000/uint64(time)*100 < uint64(home.Rate)*97 {
		w.Worse++
	} else {
		w.Worse = 0
	}
	w.Since, w.All, w.Others = now, all, others
	if w.Worse < timesWorse {
		return false
	}
	w.Worse = 0
	return true
}

// trial is the use of a path as home whose rate is not known, until the first packets of a connection
// have arrived: they were sent at once, so they arrive at its rate (struct spray_trial).
type trial struct{ Need, Since, Gone uint32 }

// arrived concludes from the bytes of the path that have arrived so far.
func (t *trial) arrived(gone, now uint32) verdict {
	if t.Since == 0 {
		t.Since, t.Gone = max(now, 1), gone
		return goesOn
	}
	got := gone - t.Gone
	switch {
	case uint64(now-t.Since)*uint64(t.Need)/1000 > uint64(max(got, train)):
		return leaves
	case got >= train:
		return gains
	}
	return goesOn
}
