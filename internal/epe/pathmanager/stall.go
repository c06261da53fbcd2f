package pathmanager

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/epe/selection"
	"github.com/tabane/tabane/internal/mptcp"
)

// stallDetector finds subflows whose path drops everything: data is in flight, nothing is
// acknowledged for longer than the path's RTT explains, and meanwhile another subflow of the
// connection progresses. If none progresses, the client is at fault and nothing can be done. It is
// fed with samples and their time.
//
// Progress is any acknowledgment of new data, SACK included: a path that only queues and drops
// still delivers something in every round trip.
type stallDetector struct {
	subflows map[subflowKey]*progress
	round    uint64
	inFlight bool                   // some subflow of this round has data in flight
	multiple bool                   // some connection of this round has more than one subflow
	conns    map[uint32][]*progress // of this round
	// deadline is when the next subflow of this round may count as stalled; zero if none.
	deadline time.Time
	// latest is the time of the last progress over each path; computed in rounds that need it.
	latest      map[[2]netip.Addr]time.Time
	latestValid bool
}

type subflowKey struct {
	token uint32
	mptcp.Ends
}

// progress is what the samples of one subflow say about its sending.
type progress struct {
	key       subflowKey
	acked     uint64
	delivered uint32
	inFlight  uint32
	timeout   time.Duration
	// lastAck is the time of the last progress; waitingSince is since when something in flight is
	// unacknowledged.
	lastAck, waitingSince time.Time
	stalled               bool
	// reported is set while there was no progress since the kernel reported the subflow; sampled is
	// set if it has been sampled since its first report.
	reported, sampled bool
	round             uint64
}

// stall is what a round found on one connection.
type stall struct {
	token uint32
	// stalled make no progress, recovered have resumed it, and idle have nothing in flight besides
	// those that stalled.
	stalled, recovered, idle []mptcp.Ends
	// silence and inFlight (segments) are those of the subflow whose timeout expired.
	silence  time.Duration
	inFlight uint32
}

func newStallDetector() *stallDetector {
	return &stallDetector{subflows: map[subflowKey]*progress{}, conns: map[uint32][]*progress{}, latest: map[[2]netip.Addr]time.Time{}}
}

// stallTimeout is how long a subflow may make no progress.
func stallTimeout(s mptcp.Subflow) time.Duration {
	return selection.StallTimeout(int(s.InFlight), s.RTT, s.Deviation)
}

// begin starts a round of samples.
func (d *stallDetector) begin() {
	d.round++
	d.inFlight, d.multiple, d.latestValid, d.deadline = false, false, false, time.Time{}
	clear(d.conns)
}

// sample applies the sampled state of a subflow.
func (d *stallDetector) sample(now time.Time, s mptcp.Subflow) {
	key := subflowKey{s.Token, mptcp.Ends{Local: s.Local, Remote: s.Remote}}
	p := d.subflows[key]
	switch {
	case p == nil:
		p = &progress{key: key, waitingSince: now}
		d.subflows[key] = p
	case !p.sampled:
	case s.Acked != p.acked || s.Delivered != p.delivered:
		p.lastAck, p.waitingSince, p.reported = now, now, false
	case p.inFlight == 0:
		p.waitingSince, p.reported = now, false
	}
	p.acked, p.delivered, p.inFlight, p.timeout = s.Acked, s.Delivered, s.InFlight, stallTimeout(s)
	p.sampled, p.round = true, d.round
	siblings := append(d.conns[s.Token], p)
	d.conns[s.Token] = siblings
	d.multiple = d.multiple || len(siblings) > 1
	d.inFlight = d.inFlight || s.InFlight > 0
}

// report applies a report of the kernel, before the next round.
func (d *stallDetector) report(now time.Time, key subflowKey, silence time.Duration) {
	p := d.subflows[key]
	if p == nil {
		p = &progress{key: key}
		d.subflows[key] = p
	}
	p.reported, p.waitingSince = true, now.Add(-silence)
}

// silent reports whether a subflow of a connection is silent since it was reported, and not for so
// long that watching it has no effect.
func (d *stallDetector) silent(now time.Time, token uint32) bool {
	for _, p := range d.conns[token] {
		if p.reported && p.silence(now) > 0 && p.silence(now) < p.timeout+watchMore {
			return true
		}
	}
	return false
}

// silence is how long data has been in flight without progress.
func (p *progress) silence(now time.Time) time.Duration {
	if p.inFlight == 0 {
		return 0
	}
	return now.Sub(p.waitingSince)
}

// end closes the round and returns the connections on which subflows stalled or recovered.
func (d *stallDetector) end(now time.Time) []stall {
	var found []stall
	for token, siblings := range d.conns {
		if s := d.evaluate(now, token, siblings); len(s.stalled)+len(s.recovered) > 0 {
			found = append(found, s)
		}
	}
	for key, p := range d.subflows {
		if p.round != d.round {
			delete(d.subflows, key)
		}
	}
	return found
}

func (d *stallDetector) evaluate(now time.Time, token uint32, siblings []*progress) stall {
	s := stall{token: token}
	expired := false
	for _, p := range siblings {
		if p.stalled && p.silence(now) == 0 {
			p.stalled = false
			s.recovered = append(s.recovered, p.key.Ends)
		}
		if !p.stalled && p.silence(now) >= p.timeout && d.isStalled(now, p, siblings, p.timeout) {
			expired, s.silence, s.inFlight = true, p.silence(now), p.inFlight
		}
		if at := p.waitingSince.Add(p.timeout); !p.stalled && p.inFlight > 0 && at.After(now) {
			d.deadline = earliest(d.deadline, at)
		}
	}
	if !expired {
		return s
	}
	// Another subflow over the same failed path stopped at about the same time, or was first used
	// then, and nothing must be reinjected there. Its own timeout does not count.
	for _, p := range siblings {
		if !p.stalled && p.silence(now) >= s.silence/2 && d.isStalled(now, p, siblings, s.silence/2) {
			p.stalled = true
			s.stalled = append(s.stalled, p.key.Ends)
		} else if p.inFlight == 0 {
			s.idle = append(s.idle, p.key.Ends)
		}
	}
	return s
}

// isStalled reports whether a subflow that has been silent for that long is stalled by its path:
// another one progresses meanwhile, and no connection of the same client progresses over the same
// path.
func (d *stallDetector) isStalled(now time.Time, p *progress, siblings []*progress, silence time.Duration) bool {
	return otherProgresses(now, p, siblings, silence) && !d.pathProgresses(now, p, silence)
}

// otherProgresses reports whether another subflow of the connection progressed well after p went
// silent, and is not silent itself.
func otherProgresses(now time.Time, p *progress, siblings []*progress, silence time.Duration) bool {
	return slices.ContainsFunc(siblings, func(other *progress) bool {
		return other != p && selection.ProgressesBeside(other.lastAck.Sub(p.waitingSince), other.silence(now), silence)
	})
}

// pathProgresses reports whether another connection of the same client progressed over the path of
// p recently: then p only lost all of its segments in a queue.
func (d *stallDetector) pathProgresses(now time.Time, p *progress, silence time.Duration) bool {
	if !d.latestValid {
		d.latestValid = true
		clear(d.latest)
		for key, other := range d.subflows {
			path := key.path()
			if other.lastAck.After(d.latest[path]) {
				d.latest[path] = other.lastAck
			}
		}
	}
	return now.Sub(d.latest[p.key.path()]) < silence*2/3
}

// path identifies what the subflows of a client over the same server address share.
func (k subflowKey) path() [2]netip.Addr { return [2]netip.Addr{k.Local.Addr(), k.Remote.Addr()} }
