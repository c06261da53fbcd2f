package sealed

import (
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/quality"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// prober probes the links of a peer.
type prober struct {
	peer      *peer
	intervals dataplane.Probes
}

// probing is what the probes of a path show, and when they are due.
type probing struct {
	alive quality.Liveness
	rtt   quality.RTT
	sent  sentProbes
	tries int           // probes without an answer
	due   time.Duration // of the next one
	// controlLen is the length of the last control message, as an IPv4 packet.
	controlLen int
	answers    answers
	progress   time.Duration // when a report last showed that the peer receives
}

// probe sends the probe of a path if it is due, and counts those without an answer.
func (x *prober) probe(b *batch, k *keys, i int, now time.Duration) time.Duration {
	l := &x.peer.links[i]
	never := now + time.Hour
	if l.line == nil {
		return never
	}
	if l.line.socket.Load() == nil || !l.line.conf.Load().Usable {
		if l.probing.alive.Down() {
			x.died(b, i, now)
		}
		l.probing.tries = 0 // when it is back, its address may come a little later
		return never
	}
	next := x.expire(b, i, now)
	interval := x.interval(l, now)
	if x.intervals.Compatible {
		next = min(next, x.probeCompatible(b, i, now, interval))
		interval = max(interval, x.intervals.Idle)
	}
	if now < l.probing.due {
		return min(next, l.probing.due)
	}
	if l.spare {
		x.peer.rx.waitFor(i, 0)
	} else {
		x.peer.rx.waitFor(i, silenceIntervals*interval)
	}
	l.probing.due = now + interval
	x.probeAddresses(b, k, i, now)
	if l.probing.alive.Alive() && !(l.spare && l.search.settled && l.search.onTrial() == 0 && now-l.search.confirmed < sparePadded) {
		x.probeMTU(b, k, i, now, interval)
	}
	if l.spare {
		next = min(next, now+x.peer.uses.timeout(i)) // nothing else may be due until then
	}
	return min(next, l.probing.due)
}

// expire counts the probes of a path that have had no answer for too long, and returns when there
// are more.
func (x *prober) expire(b *batch, i int, now time.Duration) time.Duration {
	l := &x.peer.links[i]
	for timeout := x.peer.uses.timeout(i); ; {
		s, next := l.probing.sent.expire(now, timeout, now+time.Hour)
		switch {
		case s == nil:
			return next
		case s.quiet:
		case s.size > 0:
			l.search.missed(s.size, l.probing.sent.answered(s.pair))
		case l.probing.progress >= s.at && x.peer.rx.lastHeard(i) >= s.at:
			// A full queue delays answers too. A path on which both directions go on is not dead.
		case l.probing.alive.Missed():
			x.peer.log.Warn("path is dead", "peer", x.peer.conf.Name, "path", l.title())
			x.died(b, i, now)
		case l.rests():
			l.probing.due = now // it is asked again at once
		}
	}
}

// died has packets avoid a path that is dead.
func (x *prober) died(b *batch, i int, now time.Duration) {
	l := &x.peer.links[i]
	l.probing.sent.discardSized()
	l.search.discard()
	x.peer.scheduling.refresh()
	x.peer.uses.probeSpare(now)
	x.peer.rescueLocked(b, i, now)
}

// probeMTU sends probes of the path's MTU, if some are due.
func (x *prober) probeMTU(b *batch, k *keys, i int, now, interval time.Duration) {
	l := &x.peer.links[i]
	if now < l.search.due {
		return
	}
	confirm := searchConfirm
	if interval <= max(x.intervals.Busy, l.keptPause()) {
		confirm = searchConfirmBusy
	}
	searching := !l.search.settled
	size, paired := l.search.next(now, confirm, int(l.line.mtu.Load()), l.address.remote.Addr().Is4())
	if searching && l.search.settled {
		l.reports.loss.Restart(k.counters[i]) // the probes that were too long say nothing
		x.peer.scheduling.outdated = true
		x.logMTU(l)
	}
	pair := uint64(0)
	if paired {
		pair = x.send(b, k, i, now, sentProbe{at: now, size: l.search.least})
	}
	if size > 0 {
		l.search.due = now + l.paddedPause(size, paired)
		if l.search.tooLarge(size) {
			l.reports.oversized++
		}
		x.send(b, k, i, now, sentProbe{at: now, size: size, pair: pair})
	}
}

// logMTU logs the MTU of a path when it has changed, and at first if the interface allows more.
func (x *prober) logMTU(l *link) {
	s := &l.search
	if s.mtu == s.logged || s.logged == 0 && s.mtu == s.maxMTU {
		return
	}
	s.logged = s.mtu
	log := x.peer.log.With("peer", x.peer.conf.Name, "path", l.title(), "mtu", s.mtu, "of", s.maxMTU)
	if s.mtu < s.maxMTU {
		log.Warn("path MTU is less than that of the interface")
		return
	}
	log.Info("path MTU is that of the interface")
}

// send sends a probe that is as long as a message with a packet of its size.
func (x *prober) send(b *batch, k *keys, i int, now time.Duration, s sentProbe) uint64 {
	s.to = x.peer.links[i].place()
	id := x.peer.links[i].probing.sent.add(s)
	x.peer.messages.send(b, k, i, now, s.size, tunnel.Probe{ID: id})
	return id
}

// interval returns the time between probes of a path.
func (x *prober) interval(l *link, now time.Duration) time.Duration {
	interval := x.intervals.Idle
	metered := x.peer.uses.of(l.number).Metered()
	switch {
	case l.spare, metered && !l.probing.alive.Alive():
		interval = x.peer.uses.pause(l.number)
	case !l.probing.alive.Alive():
		interval = min(interval, probeDead)
	case now-time.Duration(x.peer.active.Load()) < busyWindow:
		interval = x.intervals.Busy
		l.line.active.Store(int64(now))
	case x.peer.conf.Alliance.Role == dataplane.Member && now-time.Duration(l.line.active.Load()) < busyWindow:
		// What the member relays is traffic too: its short link must be known as soon as the other.
		interval = x.intervals.Busy
	}
	if size := l.search.onTrial(); size > 0 {
		interval = min(interval, l.paddedPause(size, true))
	}
	if l.probing.alive.Alive() {
		interval = max(interval, min(l.keptPause(), probeIdle))
	}
	return max(interval, l.fractionOf(l.probing.controlLen))
}

// paddedPause returns how long padded probes of the path rest after one of that size, and the
// shorter one of a pair. Other probes go on: they show whether the path is alive.
func (l *link) paddedPause(size int, paired bool) time.Duration {
	header := overhead(l.address.remote.Addr().Is4())
	bytes := size + header
	if paired {
		bytes += l.search.least + header
	}
	pause := l.fractionOf(bytes)
	if paired {
		pause /= trialShare
	}
	if l.spare { // which costs: one after the other
		pause = max(pause, spareTimeout)
	}
	return max(searchPause, l.probing.rtt.SRTT/searchTrial, l.keptPause(), pause)
}

// trialShare is how many times the share of other probes the pairs of a trial take of a path: 10 %.
// Packets that do not fit are lost until the trial ends.
const trialShare = 10

// keptPause returns the shortest time between a pair and the next one, with a probe beside each,
// at which probes are kept until they have timed out. It leaves room for a quarter more.
func (l *link) keptPause() time.Duration {
	timeout := l.probing.rtt.RTO(minProbeRTO)
	if l.spare {
		timeout = max(timeout, spareTimeout)
	}
	return 4 * timeout / probesKept
}

// fractionOf returns the time in which the path carries probeFraction times as many bytes, at most
// probeIdle; 0 if its rate is not known.
func (l *link) fractionOf(bytes int) time.Duration {
	rate := l.slowest()
	if rate <= 0 {
		return 0
	}
	return min(rate.TimeFor(unit.Size(probeFraction*bytes)), probeIdle)
}

// slowest returns the lower rate of the path's two directions, 0 if none is known.
func (l *link) slowest() unit.Bandwidth {
	up, down := l.upRate(), l.line.conf.Load().Down
	if !down.Estimated && down.Bandwidth > 0 && (up == 0 || down.Bandwidth < up) {
		return down.Bandwidth
	}
	return up
}

// probeNow has all paths probed at once: there is traffic again, and one may have died while idle.
func (x *prober) probeNow(now time.Duration) {
	for i := range x.peer.links {
		if l := &x.peer.links[i]; !l.rests() {
			l.probing.due = min(l.probing.due, now)
		}
	}
	x.peer.wakeControlLocked()
}

// probeAddresses sends a probe of a path to its address, or to all those where the peer may be.
func (x *prober) probeAddresses(b *batch, k *keys, i int, now time.Duration) {
	l := &x.peer.links[i]
	to := l.addressesToTry(l.probing.tries)
	l.probing.tries++
	if l.ready() && l.probing.alive.Alive() {
		to = []netip.AddrPort{l.address.remote}
	}
	// One of them counts: those where the peer is not must not count as unanswered.
	for n, a := range to {
		if at := (place{l.line, a}); a != l.address.remote {
			x.sendBare(b, k, i, at, n == 0, now)
		} else {
			id := l.probing.sent.add(sentProbe{at: now, to: at, quiet: n > 0})
			x.peer.messages.send(b, k, i, now, 0, tunnel.Probe{ID: id})
		}
	}
}

const (
	// helloLen is the length of the Hello in a message.
	helloLen      = 3 + 4 + 1
	bareProbeLen  = tunnel.Overhead + 3 + 8 + helloLen + inet.UDP4Len
	bareAnswerLen = tunnel.Overhead + 3 + 18 + helloLen + inet.UDP4Len
)

// sendBare sends a probe without other records to where the peer may be. counted is whether it
// counts for the path if there is no answer.
func (x *prober) sendBare(b *batch, k *keys, i int, to place, counted bool, now time.Duration) {
	id := x.peer.links[i].probing.sent.add(sentProbe{at: now, to: to, quiet: !counted})
	x.peer.messages.sendBare(b, k, i, to, now, tunnel.Probe{ID: id})
}

const (
	// answerPause is that between answers to probes of a path, which are sent no more often than
	// each 10 ms (probes.busy), and answerBurst how long none have to have arrived for more.
	answerPause, answerBurst = 4 * time.Millisecond, 200 * time.Millisecond
)

// answers bounds the answers to probes of a path.
type answers struct{ free time.Duration }

// allow reports whether a probe that arrives now is answered.
func (a *answers) allow(now time.Duration) bool {
	if a.free == 0 {
		a.free = now - answerBurst
	}
	if a.free > now {
		return false
	}
	a.free = max(a.free, now-answerBurst) + answerPause
	return true
}

// answer answers a probe of the peer that came from there.
func (x *prober) answer(b *batch, path int, from place, a tunnel.Answer, now time.Duration) {
	l := &x.peer.links[path]
	// Answers cost more than probes, and may be longer.
	if !l.probing.answers.allow(now) {
		x.peer.plane.counts.drop(dropUnexpected, 1)
		return
	}
	if x.peer.session.sending == nil {
		return
	}
	if from != l.place() && from == l.address.unproved.place && l.address.unproved.allow(path, bareAnswerLen) {
		x.peer.messages.sendBare(b, x.peer.session.sending, path, from, now, a)
	}
	// To the proved one, too: a copy with another source, which comes before the probe, must not
	// take the answer away.
	x.peer.messages.send(b, x.peer.session.sending, path, now, 0, a)
}

// answered applies the answer to a probe.
func (x *prober) answered(k *keys, path int, a tunnel.Answer, now time.Duration) {
	l := &x.peer.links[path]
	s := l.probing.sent.answer(a.ID)
	if s == nil || !x.peer.proving.proved(path, s.to, now) {
		return
	}
	l.probing.sent.discardBeside(s)
	x.peer.session.proven = x.peer.session.proven || k == x.peer.session.sending
	if rtt := now - s.at - a.Held; rtt > 0 {
		l.probing.rtt.Update(rtt)
		longest, _ := x.peer.links.roundTrips()
		x.peer.rx.requests.roundTrip.Store(int64(longest))
	}
	if s.size > 0 {
		if l.search.tooLarge(s.size) && l.reports.oversized > 0 {
			l.reports.oversized--
		}
		l.search.carried(s.size)
	}
	l.probing.tries = 0
	if l.line != nil && x.peer.conf.Alliance.Role == dataplane.HomeAgent {
		l.line.proven.Store(int64(now))
	}
	if l.probing.alive.Answered() {
		x.peer.log.Info("path is up", "peer", x.peer.conf.Name, "path", l.title(), "address", l.address.remote)
		l.probing.due = 0
		if x.peer.session.sending != nil {
			l.reports.loss.Restart(x.peer.session.sending.counters[path])
		}
		x.peer.wakeControlLocked()
	}
}
