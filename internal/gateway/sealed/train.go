package sealed

import (
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/quality"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// Trains measure rates that are not configured before packets need them: padded scouts that are
// sent at once, of which each answer says when its scout has arrived. Each gateway sends one over
// each path whose rate it does not know, and the one that decides which lines meet, also between
// lines that have no path. It does so while no packets are carried, which would be between those of
// the train, and never on metered lines.

const (
	// firstTrain is the number of scouts of a train, secondTrain that of another one where the
	// first took less than shortTrain. A line that drops what exceeds its rate lets some 32 kB pass
	// at once, as Linux' tbf is usually configured, which are less than half of the second.
	firstTrain, secondTrain = 16, 64
	shortTrain              = 100 * time.Millisecond
	// trainSize is the size of a packet that a scout is as long as.
	trainSize = baseMTU
	// trainWait is for how long after an answer, or its first scout, more are waited for.
	trainWait = 500 * time.Millisecond
	// trainTries is how many trains are sent to a place that show nothing, for example because the
	// peer was not run in time: a faster line never does (quality.TrainRate). trainPause is the
	// time to the second one, which doubles.
	trainTries, trainPause = 5, 500 * time.Millisecond
	// trainJitters is how many times the jitter of its path a train must take.
	trainJitters = 4
)

// trains are what trains have shown, and the one that is under way.
type trains struct {
	peer *peer
	// shown is what trains have shown of places.
	shown map[place]shown
	// hinted is the place whose rate a path has begun with.
	hinted  [tunnel.MaxPaths]place
	current train
}

// shown is what trains to a place have shown.
type shown struct {
	rate  unit.Bandwidth // 0: nothing
	tries int
	due   time.Duration // of the next train
}

// ended reports whether no more trains are sent there.
func (s shown) ended() bool { return s.rate > 0 || s.tries >= trainTries }

// train is padded scouts that were sent at once.
type train struct {
	to    place // none: no train is under way
	first uint64
	count int
	due   time.Duration // when no more answers are waited for
	// arrived is when the scouts arrived that were answered, on the peer's clock.
	arrived []time.Duration
	clock   quality.Clock
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
		rate, again := x.judge(t)
		if again {
			x.send(b, k, t.to, secondTrain, now)
			return t.due
		}
		tries := x.shown[t.to].tries
		x.shown[t.to] = shown{rate, tries + 1, now + trainPause<<tries}
		x.peer.log.Debug("train", "peer", x.peer.conf.Name, "line", t.to.line.name, "address", t.to.from, "rate", rate, "arrived", len(t.arrived), "of", t.count)
		*t = train{}
		x.hint()
		x.peer.matching.decided = 0
	}
	to, due := x.next(now)
	if due <= now {
		x.send(b, k, to, firstTrain, now)
		return t.due
	}
	return due
}

// next returns the place that a train is to be sent to next, and when.
func (x *trains) next(now time.Duration) (to place, due time.Duration) {
	due = now + time.Hour
	add := func(at place) {
		if s := x.shown[at]; !s.ended() && s.due < due {
			to, due = at, s.due
		}
	}
	for i := range x.peer.links {
		l := &x.peer.links[i]
		if at := x.peer.matching.alive(i); at.line != nil && l.configuredRate() == 0 && !l.rates.capacity.Known() && !x.peer.uses.of(i).Metered() {
			add(at)
		}
	}
	for _, at := range x.peer.matching.unmeasured() {
		add(at)
	}
	return to, due
}

// send sends a train.
func (x *trains) send(b *batch, k *keys, to place, count int, now time.Duration) {
	x.current = train{to: to, first: unguessable(), count: count, due: now + trainWait}
	for n := range count {
		x.peer.messages.sendPadded(b, k, tunnel.ScoutPath, to, tunnel.Scout{ID: x.current.first + uint64(n)}, trainSize, now)
		b.flush() // a super-packet may pass a line's queue as a whole
	}
}

// answered takes the answer to a scout, which the peer has sent at a time of its clock in
// microseconds, and reports whether it was one of a train.
func (x *trains) answered(id uint64, sent uint32, now time.Duration) bool {
	t := &x.current
	if t.to.line == nil || id-t.first >= uint64(t.count) {
		return false
	}
	t.arrived = append(t.arrived, now-t.clock.Difference(sent, now))
	if t.due = now + trainWait; len(t.arrived) == t.count {
		x.peer.wakeControlLocked()
	}
	return true
}

// judge returns the rate that a train has shown, and whether a longer one is needed.
func (x *trains) judge(t *train) (rate unit.Bandwidth, again bool) {
	if len(t.arrived) < t.count/4 {
		return 0, false
	}
	took := t.arrived[len(t.arrived)-1] - t.arrived[0]
	if t.count < secondTrain && took < shortTrain {
		return 0, true
	}
	for i := range x.peer.links {
		if l := &x.peer.links[i]; l.line == t.to.line && took < trainJitters*l.reports.last.Jitter {
			return 0, false
		}
	}
	return quality.TrainRate(t.arrived, trainSize+tunnel.Overhead+ipUDP4), false
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
