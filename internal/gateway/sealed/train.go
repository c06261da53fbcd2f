package sealed

import (
	"cmp"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/quality"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// Trains measure rates that are not configured before packets need them: padded scouts that are
// sent at once, of which each answer says when its scout has arrived. Each gateway sends one over
// each path whose rate it does not know. The one that decides which lines meet also sends them
// between lines that have no path, and the other one to where the scouts of these have come from:
// lines may be slow in one direction only. Trains are sent while no packets are carried, which would
// be between those of the train, and never on metered lines. They also show whether a path has
// recovered whose rate has fallen: pages are complete before they would.

// trainCounts are the numbers of scouts of trains: a longer one follows where one took less than
// shortTrain, or at last than wholeTrain and trainJitters times the jitter of its path. A line that
// drops what exceeds its rate lets some 32 kB pass at once, as Linux' tbf is usually configured,
// which are less than half of the second. Packets of the last one arrive in 5 ms at 1 Gbit/s.
var trainCounts = [...]int{16, 64, 512}

const (
	shortTrain, wholeTrain = 100 * time.Millisecond, 5 * time.Millisecond
	trainJitters           = 4
	// trainWait is for how long after an answer, or its first scout, more are waited for.
	trainWait = 500 * time.Millisecond
	// trainTries is how many trains are sent to a place that show nothing, for example because the
	// peer was not run in time. trainPause is the time to the second one, which doubles.
	trainTries, trainPause = 5, 500 * time.Millisecond
	// trainAgain is the time to the next train between lines that may meet otherwise: a line may
	// have got another rate for good.
	trainAgain = time.Hour
	// loweredPause is the time between a train and one over a path whose estimate has fallen. It
	// doubles with each, up to 2^mostRaises times, until none was needed for twice as long.
	loweredPause, mostRaises = 10 * time.Second, 8
	// mostOffered bounds the places that trains may be sent to because scouts came from there: more
	// are of a peer whose addresses have changed.
	mostOffered = 4 * tunnel.MaxPaths
)

// trains are what trains have shown, and the one that is under way.
type trains struct {
	peer *peer
	// shown is what trains have shown of places.
	shown map[place]shown
	// offered are the places that scouts of the peer have come from, which decides which lines
	// meet, and whether it has answered there: one scout is sent before a train.
	offered map[place]bool
	// rated is what trains of the peer have shown from a place.
	rated map[place]unit.Bandwidth
	// hinted is the place whose rate a path has begun with.
	hinted  [tunnel.MaxPaths]place
	current train
}

// shown is what trains to a place have shown.
type shown struct {
	rate  unit.Bandwidth // 0: nothing
	tries int
	due   time.Duration // of the next train
	// at is when the last one ended, and raises the number of those that were sent because an
	// estimate had fallen.
	at     time.Duration
	raises int
}

// ended reports whether trains have shown what they can.
func (s shown) ended() bool { return s.rate > 0 || s.tries >= trainTries }

// train is padded scouts that were sent at once.
type train struct {
	to    place // none: no train is under way
	first uint64
	count int
	size  int           // of a packet that a scout is as long as
	due   time.Duration // when no more answers are waited for
	// arrived is when the scouts arrived that were answered, on the peer's clock.
	arrived []time.Duration
	clock   quality.Clock
}

// forget forgets what was measured, because lines or addresses have changed.
func (x *trains) forget() {
	x.shown, x.offered, x.rated = map[place]shown{}, map[place]bool{}, map[place]unit.Bandwidth{}
}

// active reports whether trains may be sent.
func (x *trains) active(now time.Duration) bool {
	r := x.peer
	return r.scouting.Load() && r.conf.Alliance.Role == dataplane.NoRole && !r.conf.Mode.Open() && !r.prober.intervals.Compatible &&
		r.session.sending.out.Greeted() && now-time.Duration(r.active.Load()) >= busyWindow
}

// advance sends a train if one is due, and returns when it is due again.
func (x *trains) advance(b *batch, k *keys, now time.Duration) time.Duration {
	x.hint()
	t := &x.current
	if !x.active(now) {
		*t = train{}
		return now + time.Hour
	}
	if t.to.line != nil {
		if now < t.due && len(t.arrived) < t.count {
			return t.due
		}
		rate, more := x.judge(t)
		if more > 0 {
			x.send(b, k, t.to, more, now)
			return t.due
		}
		before := x.shown[t.to]
		next := shown{cmp.Or(rate, before.rate), before.tries + 1, now + trainPause<<min(before.tries, trainTries), now, x.raise(t.to, rate, now)}
		if next.ended() {
			next.due = now + trainAgain
			if !x.peer.numbering.owner {
				x.peer.messages.sendBare(b, k, tunnel.ScoutPath, t.to, now, tunnel.Rated{Rate: next.rate})
			}
		}
		x.shown[t.to] = next
		x.peer.log.Debug("train", "peer", x.peer.conf.Name, "line", t.to.line.name, "address", t.to.from, "rate", rate, "arrived", len(t.arrived), "of", t.count)
		*t = train{}
		x.hint()
		x.peer.matching.decided = 0
	}
	to, due := x.next(now)
	if due <= now {
		count := trainCounts[0]
		if proved, offered := x.offered[to]; offered && !proved {
			count = 1
		}
		x.send(b, k, to, count, now)
		return t.due
	}
	return due
}

// raise raises the estimate of the path to a place, if it has fallen and a train has shown more, and
// returns the number of such trains: of a line that only carries bursts at that rate, the estimate
// falls again, and trains have to become seldom, too.
func (x *trains) raise(to place, rate unit.Bandwidth, now time.Duration) int {
	for i := range x.peer.links {
		l := &x.peer.links[i]
		c := &l.rates.capacity
		if l.place() != to || !c.Lowered() {
			continue
		}
		if before := c.Value(); c.Raise(rate) {
			x.hinted[i], x.peer.scheduling.outdated = to, true
			x.peer.log.Info("the path carries more again", "peer", x.peer.conf.Name, "path", l.title(), "before", before, "rate", rate)
		}
		s := x.shown[to]
		if now-s.at > 2*loweredPause<<s.raises {
			return 1
		}
		return min(s.raises+1, mostRaises)
	}
	return 0
}

// next returns the place that a train is to be sent to next, and when.
func (x *trains) next(now time.Duration) (to place, due time.Duration) {
	due = now + time.Hour
	add := func(at place) {
		if s := x.shown[at]; s.due < due {
			to, due = at, s.due
		}
	}
	known := map[place]bool{}
	for i := range x.peer.links {
		l := &x.peer.links[i]
		at := x.peer.matching.alive(i)
		switch {
		case at.line == nil:
		case x.peer.uses.of(i).Metered():
			known[at] = true
		case l.rates.capacity.Lowered():
			s := x.shown[at]
			if again := s.at + loweredPause<<s.raises; again < due {
				to, due = at, again
			}
			known[at] = l.configuredRate() > 0
		case l.configuredRate() > 0:
			known[at] = true
		case !x.shown[at].ended() && !l.rates.capacity.Known():
			add(at)
		}
	}
	for _, at := range x.peer.matching.unmeasured() {
		if x.peer.matching.scouts[at].missed == 0 {
			add(at)
		}
	}
	lines := map[*line]bool{}
	for at := range x.offered {
		lines[at.line] = true
	}
	for at := range x.offered {
		if c := at.line.conf.Load(); len(lines) > 1 && !known[at] && c.Up.Estimated && !c.Use.Metered() {
			add(at)
		}
	}
	return to, due
}

// offer notes where a scout of the peer has come from, and returns the rate there that trains have
// shown, if they have ended.
func (x *trains) offer(at place) (rate unit.Bandwidth, ended bool) {
	if x.peer.numbering.owner {
		return 0, false
	}
	if _, known := x.offered[at]; !known {
		if len(x.offered) >= mostOffered {
			x.forget()
		}
		x.offered[at] = false
		x.peer.wakeControlLocked()
	}
	s := x.shown[at]
	return s.rate, s.ended()
}

// send sends a train.
func (x *trains) send(b *batch, k *keys, to place, count int, now time.Duration) {
	x.current = train{to: to, first: unguessable(), count: count, size: x.size(to), due: now + trainWait}
	for n := range count {
		x.peer.messages.sendPadded(b, k, tunnel.ScoutPath, to, x.current.size, now, tunnel.Scout{ID: x.current.first + uint64(n)})
		b.flush() // a super-packet may pass a line's queue as a whole
	}
}

// size returns the size of a packet that scouts to a place are as long as.
func (x *trains) size(to place) int {
	for i := range x.peer.links {
		if l := &x.peer.links[i]; l.line != nil && l.place() == to {
			return min(baseMTU, l.mtu())
		}
	}
	return baseMTU
}

// answered takes the answer to a scout, which the peer has sent at a time of its clock in
// microseconds, and reports whether it was one of a train.
func (x *trains) answered(v tunnel.Scouted, sent uint32, now time.Duration) bool {
	t := &x.current
	if t.to.line == nil || v.ID-t.first >= uint64(t.count) {
		return false
	}
	if _, offered := x.offered[t.to]; offered {
		if x.offered[t.to] = true; v.Down != tunnel.UnknownRate || x.peer.uses.theirs[v.Line].Metered() {
			delete(x.offered, t.to)
		}
	}
	t.arrived = append(t.arrived, now-t.clock.Difference(sent, now))
	if t.due = now + trainWait; len(t.arrived) == t.count {
		x.peer.wakeControlLocked()
	}
	return true
}

// judge returns the rate that a train has shown, and the number of scouts of another one that is
// needed.
func (x *trains) judge(t *train) (rate unit.Bandwidth, more int) {
	switch {
	case len(t.arrived) == 0 || len(t.arrived) < t.count/4:
		return 0, 0
	case t.count == 1: // it proves the address
		return 0, trainCounts[0]
	}
	jitter := time.Duration(0)
	for i := range x.peer.links {
		if l := &x.peer.links[i]; l.line == t.to.line || l.address.remote == t.to.from {
			jitter = max(jitter, l.reports.last.Jitter)
		}
	}
	took := t.arrived[len(t.arrived)-1] - t.arrived[0]
	if n := slices.Index(trainCounts[:], t.count) + 1; n == 1 && took < shortTrain || n == 2 && took < max(wholeTrain, trainJitters*jitter) {
		return 0, trainCounts[n]
	}
	return quality.TrainRate(t.arrived, t.size+tunnel.Overhead+inet.UDP4Len), 0
}

// hint has paths of which nothing is known begin with what trains have shown. A path that leads
// elsewhere begins again.
func (x *trains) hint() {
	for i := range x.peer.links {
		l := &x.peer.links[i]
		if at := l.place(); x.hinted[i] != at {
			if x.hinted[i].line != nil && l.rates.capacity.Hinted() {
				l.beginRate()
			}
			x.hinted[i] = place{}
			if rate := x.shown[at].rate; rate > 0 && l.configuredRate() == 0 && l.rates.capacity.Begins() {
				l.rates.capacity.Hint(rate)
				x.hinted[i], x.peer.scheduling.outdated = at, true
			}
		}
	}
}
