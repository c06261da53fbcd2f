package edge

import (
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/mptcp"
)

const (
	// stallLeast is the shortest silence of a subflow that is taken for a hole.
	stallLeast = 150 * time.Millisecond
	// stallFew is that of a subflow with fewer segments in flight than fewSegments. A full queue may drop as many in a row, and
	// then the kernel sends again only after its retransmission timeout, which is 200 ms and a round trip.
	stallFew    = 450 * time.Millisecond
	fewSegments = 16
)

// stallWatch finds subflows that swallow what is sent: data is in flight, nothing of it arrives for longer than the path's
// round trips explain, and meanwhile something of the same connection arrives over another path. When nothing arrives
// anywhere it is the client, and nothing to do. It is fed with samples and the time they were taken.
//
// Arrival is any acknowledgement of new data, selective ones included: a path that queues and drops still delivers
// something in every round trip.
type stallWatch struct {
	subflows map[subflowKey]*progress
	round    uint64
	busy     bool
	paths    bool
	conns    map[uint32][]*progress // of this round
	// latest is when something arrived last over each path, computed in a round that needs it.
	latest map[[2]netip.Addr]time.Time
	lively bool
}

type subflowKey struct {
	token uint32
	mptcp.Ends
}

// progress is what is known of one subflow's sending.
type progress struct {
	key       subflowKey
	acked     uint64
	delivered uint32
	inFlight  uint32
	patience  time.Duration
	// arrived is when last something arrived, waits since when something in flight has not.
	arrived, waits time.Time
	alarmed        bool
	round          uint64
}

// stall is what a round found on one connection.
type stall struct {
	token uint32
	// stalled swallow what is sent, moving did and do not any more.
	stalled, moving []mptcp.Ends
	// idle have nothing in flight beside those that stalled.
	idle []mptcp.Ends
	// silence and inFlight are those of the subflow that gave the alarm.
	silence  time.Duration
	inFlight uint32
}

func newStallWatch() *stallWatch {
	return &stallWatch{subflows: map[subflowKey]*progress{}, conns: map[uint32][]*progress{}, latest: map[[2]netip.Addr]time.Time{}}
}

// patience is how long a subflow may be silent. Two round trips after the last arrival the kernel probes what is lost
// (RFC 8985 section 7.2), and the answer takes a third. The queue of a path is part of its round trip.
func patience(s mptcp.Subflow) time.Duration {
	least := stallLeast
	if s.InFlight < fewSegments {
		least = stallFew
	}
	return max(least, 3*s.RTT+4*s.Deviation)
}

// begin starts a round of samples.
func (w *stallWatch) begin() {
	w.round++
	w.busy, w.paths, w.lively = false, false, false
	clear(w.conns)
}

// sample takes the state of one subflow.
func (w *stallWatch) sample(now time.Time, s mptcp.Subflow) {
	key := subflowKey{s.Token, mptcp.Ends{Local: s.Local, Remote: s.Remote}}
	p := w.subflows[key]
	switch {
	case p == nil:
		p = &progress{key: key, arrived: now, waits: now}
		w.subflows[key] = p
	case s.Acked != p.acked || s.Delivered != p.delivered:
		p.arrived, p.waits = now, now
	case p.inFlight == 0:
		p.waits = now
	}
	p.acked, p.delivered, p.inFlight, p.patience, p.round = s.Acked, s.Delivered, s.InFlight, patience(s), w.round
	of := append(w.conns[s.Token], p)
	w.conns[s.Token] = of
	w.paths = w.paths || len(of) > 1
	w.busy = w.busy || s.InFlight > 0
}

// silence is how long something in flight has not arrived.
func (p *progress) silence(now time.Time) time.Duration {
	if p.inFlight == 0 {
		return 0
	}
	return now.Sub(p.waits)
}

// end closes the round and returns what it found.
func (w *stallWatch) end(now time.Time) []stall {
	var found []stall
	for token, of := range w.conns {
		if s := w.judge(now, token, of); len(s.stalled)+len(s.moving) > 0 {
			found = append(found, s)
		}
	}
	for key, p := range w.subflows {
		if p.round != w.round {
			delete(w.subflows, key)
		}
	}
	return found
}

func (w *stallWatch) judge(now time.Time, token uint32, of []*progress) stall {
	s := stall{token: token}
	alarm := false
	for _, p := range of {
		if p.alarmed && p.silence(now) == 0 {
			p.alarmed = false
			s.moving = append(s.moving, p.key.Ends)
		}
		if !p.alarmed && p.silence(now) >= p.patience && goesOn(now, p, of, p.patience) && !w.carries(now, p, p.patience) {
			alarm, s.silence, s.inFlight = true, p.silence(now), p.inFlight
		}
	}
	if !alarm {
		return s
	}
	// Another subflow over the same hole fell silent at about the same time, or was first used then; what is sent again must
	// not go there. Its own patience does not count any more.
	for _, p := range of {
		if !p.alarmed && p.silence(now) >= s.silence/2 && goesOn(now, p, of, s.silence/2) && !w.carries(now, p, s.silence/2) {
			p.alarmed = true
			s.stalled = append(s.stalled, p.key.Ends)
		} else if p.inFlight == 0 {
			s.idle = append(s.idle, p.key.Ends)
		}
	}
	return s
}

// goesOn says whether data arrived over another subflow well after p fell silent for that long, and the other is not silent
// itself.
func goesOn(now time.Time, p *progress, of []*progress, long time.Duration) bool {
	for _, other := range of {
		if other != p && other.arrived.Sub(p.waits) >= long/3 && other.silence(now) < long/2 {
			return true
		}
	}
	return false
}

// carries says whether the path of p, silent for that long, delivered something for another connection of the same client
// lately: then p had bad luck in a queue, and its path is none that swallows everything.
func (w *stallWatch) carries(now time.Time, p *progress, long time.Duration) bool {
	if !w.lively {
		w.lively = true
		clear(w.latest)
		for key, other := range w.subflows {
			path := key.path()
			if other.arrived.After(w.latest[path]) {
				w.latest[path] = other.arrived
			}
		}
	}
	return now.Sub(w.latest[p.key.path()]) < long*2/3
}

// path is what the subflows of a client over the same EPE address, or over the default one, have in common.
func (k subflowKey) path() [2]netip.Addr { return [2]netip.Addr{k.Local.Addr(), k.Remote.Addr()} }
