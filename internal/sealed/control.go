package sealed

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/contain"
	"github.com/tabane/tabane/internal/plane"
	"github.com/tabane/tabane/internal/quality"
	"github.com/tabane/tabane/internal/tunnel"
	"github.com/tabane/tabane/internal/unit"
)

const (
	// Probes are sent each probeBusy while there is traffic, each probeIdle otherwise (paper D has
	// 1 s), unless configured, and each probeDead on a path without answers. On a slow path they are
	// sent so often that they take 1/probeShare of the rate, but each probeIdle at least.
	probeBusy  = 50 * time.Millisecond
	probeIdle  = time.Second
	probeDead  = 250 * time.Millisecond
	probeShare = 100
	// busyFor is how long after a packet there is traffic.
	busyFor = time.Second
	// leastRTO is the variation that a timeout of a probe allows for at least.
	leastRTO = 50 * time.Millisecond
	// checkSockets is how often interfaces are looked at.
	checkSockets = time.Second
	// granularity is the shortest sleep of the control loop.
	granularity = 5 * time.Millisecond
)

// prober probes the links of a peer.
type prober struct {
	peer      *peer
	intervals plane.Probes
}

// control sends what is due: handshakes, probes, records.
func (p *Plane) control(ctx context.Context) {
	b := newBatch(p, 1<<18)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var checked time.Duration
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-p.wake:
		}
		now := p.now()
		var peers []*peer
		_ = contain.Do(contain.GatewayTimer, p.log, nil, func() { // it is logged
			peers = p.check(now-checked >= checkSockets)
		})
		if now-checked >= checkSockets {
			checked = now
		}
		due := now + checkSockets
		for _, r := range peers {
			r.contain(contain.GatewayTimer, nil, func() { due = min(due, r.tick(now, b)) })
		}
		b.flush()
		timer.Reset(max(due-p.now(), granularity))
	}
}

// check opens sockets that are not open, and returns the peers.
func (p *Plane) check(sockets bool) []*peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if sockets {
		for _, l := range p.lines {
			l.openLocked()
		}
	}
	return slices.Collect(maps.Values(p.peers))
}

// tick sends what is due to the peer, and returns the time of its next call.
func (r *peer) tick(now time.Duration, b *batch) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.removed:
		return now + time.Hour
	case r.restingLocked() > 0:
		return now + r.restingLocked()
	case !r.relaysChanged.Swap(false) && now < r.due:
		return r.due
	}
	r.due = r.advanceLocked(now, b)
	return r.due
}

// advanceLocked does what tick is for.
func (r *peer) advanceLocked(now time.Duration, b *batch) time.Duration {
	r.registering.applyGrants(now)
	reachable := r.initiating.stale.from.line != nil
	for i := range r.links {
		l := &r.links[i]
		reachable = reachable || l.line != nil && len(l.addresses()) > 0
	}
	switch {
	case !reachable:
	case r.session.sending == nil && r.numbering.owner, !r.links.anyAlive() && (r.session.sending == nil || r.session.proven || now-r.session.keysSince > firstAnswerWait):
		r.session.assoc.Want(now)
	}
	if reachable {
		message, err := r.session.assoc.Advance(now, r.plane.wall())
		if err != nil {
			r.log.Error("begin handshake", "peer", r.conf.Name, "error", err)
		} else if message != nil {
			r.initiating.send(message, now)
		}
	}
	if r.session.sending != nil && r.session.assoc.Current() == nil {
		r.log.Warn("session has ended", "peer", r.conf.Name)
		r.session.sending = nil
		r.scheduling.refresh()
	}
	relayDue := r.relaying.check(now)
	due := now + time.Hour
	if reachable {
		due = r.session.assoc.Deadline()
	}
	due = min(due, relayDue)
	k := r.session.sending
	if k == nil {
		return due
	}
	for i := range r.links {
		due = min(due, r.prober.probe(b, k, i, now), r.proving.probe(b, k, i, now))
	}
	due = min(due, r.registering.refresh(k, now))
	if r.conf.Alliance.Role == plane.Member {
		due = min(due, r.memberRequest.refresh(k, now))
	}
	r.proving.reportSeen(k, now)
	if r.scheduling.outdated {
		r.scheduling.refresh()
	}
	r.selection.update(now)
	due = min(due, r.messages.repeat(b, k, now))
	b.flush()
	return due
}

// firstAnswerWait is how long a new session waits for the first answer before another handshake begins.
const firstAnswerWait = time.Second

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
	x.peer.rx.waitFor(i, silence*interval)
	l.probing.due = now + interval
	x.probeAddresses(b, k, i, now)
	if l.probing.alive.Alive() {
		x.probeMTU(b, k, i, now, interval)
	}
	return min(next, l.probing.due)
}

// expire counts the probes of a path that have had no answer for too long, and returns when there
// are more.
func (x *prober) expire(b *batch, i int, now time.Duration) time.Duration {
	l := &x.peer.links[i]
	for timeout := l.probing.rtt.RTO(leastRTO); ; {
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
			x.peer.log.Warn("path is dead", "peer", x.peer.conf.Name, "path", l.line.name)
			x.died(b, i, now)
		}
	}
}

// died has packets avoid a path that is dead.
func (x *prober) died(b *batch, i int, now time.Duration) {
	l := &x.peer.links[i]
	l.probing.sent.discardSized()
	l.search.discard()
	x.peer.scheduling.refresh()
	x.peer.rescueLocked(b, i, now)
}

// probeMTU sends probes of the path's MTU, if some are due.
func (x *prober) probeMTU(b *batch, k *keys, i int, now, interval time.Duration) {
	l := &x.peer.links[i]
	confirm := searchConfirm
	if interval <= x.intervals.Busy {
		confirm = searchConfirmBusy
	}
	searching := !l.search.settled
	size, paired := l.search.next(now, confirm, int(l.line.mtu.Load()), l.address.remote.Addr().Is4())
	if searching && l.search.settled {
		l.reports.loss.Restart(k.counters[i]) // the probes that were too long say nothing
	}
	pair := uint64(0)
	if paired {
		pair = x.send(b, k, i, now, sentProbe{at: now, size: baseMTU})
	}
	if size > 0 {
		if l.search.tooLarge(size) {
			l.reports.oversized++
		}
		x.send(b, k, i, now, sentProbe{at: now, size: size, pair: pair})
	}
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
	switch {
	case !l.probing.alive.Alive():
		interval = min(interval, probeDead)
	case now-time.Duration(x.peer.active.Load()) < busyFor:
		interval = x.intervals.Busy
		l.line.active.Store(int64(now))
	case x.peer.conf.Alliance.Role == plane.Member && now-time.Duration(l.line.active.Load()) < busyFor:
		// What the member relays is traffic too: its short link must be known as soon as the other.
		interval = x.intervals.Busy
	}
	if l.search.onTrial() {
		interval = min(interval, max(searchPause, l.probing.rtt.SRTT/searchTrial))
	}
	if rate := l.slowest(); rate > 0 {
		interval = max(interval, min(rate.TimeFor(unit.Size(probeShare*l.probing.controlLen)), probeIdle))
	}
	return interval
}

// slowest returns the lower rate of the path's two directions, 0 if none is known.
func (l *link) slowest() unit.Bandwidth {
	up, down := l.upRate(), l.line.conf.Load().Down
	if !down.Estimated && down.Bandwidth > 0 && (up == 0 || down.Bandwidth < up) {
		return down.Bandwidth
	}
	return up
}

// waitFor sets how long after its last message a path is waited for.
func (x *receiving) waitFor(path int, silence time.Duration) {
	x.Lock()
	defer x.Unlock()
	x.links[path].silence = silence
}

// lastHeard returns when a message last arrived over a path.
func (x *receiving) lastHeard(path int) time.Duration {
	x.Lock()
	defer x.Unlock()
	return x.links[path].heard
}

// lastMessage returns when a message of the peer last arrived.
func (x *receiving) lastMessage() (last time.Duration) {
	for i := range x.links {
		last = max(last, x.lastHeard(i))
	}
	return last
}

// repeat sends the reliable records that are due over the best path.
func (x *messages) repeat(b *batch, k *keys, now time.Duration) time.Duration {
	best := -1
	for i := range x.peer.links {
		l := &x.peer.links[i]
		if l.ready() && l.probing.alive.Alive() && (best < 0 || l.probing.rtt.SRTT < x.peer.links[best].probing.rtt.SRTT) {
			best = i
		}
	}
	if best < 0 {
		return now + time.Hour
	}
	if at, any := k.out.Due(); any && now >= at || k.ack {
		x.send(b, k, best, now, 0, nil)
	}
	if at, any := k.out.Due(); any {
		return at
	}
	return now + time.Hour
}

// controlRoom is the room for records in a control message.
const controlRoom = baseMTU

// send sends a control message over a path: a record, or none, the reports of what arrives, and the
// reliable records that are due. It is padded to size, if that is not 0.
func (x *messages) send(b *batch, k *keys, i int, now time.Duration, size int, record tunnel.Record) {
	if !x.peer.links[i].ready() {
		return
	}
	body := x.body[:0]
	if record != nil {
		body = tunnel.AppendRecord(body, record)
	}
	if size == 0 {
		if all := x.lanesFor(k, i, now); len(all) > 0 && x.peer.scheduling.paths[:tunnel.MaxPaths][i].Usable {
			body = tunnel.AppendRecord(body, all)
		}
		if k.ack {
			if a, ok := k.in.Ack(); ok {
				body = tunnel.AppendRecord(body, a)
			}
			k.ack = false
		}
		body = x.peer.rx.reports(body, k, now)
		body = x.appendArrived(body)
		body = x.appendSent(body, i)
		body = k.out.Append(body, controlRoom, now, x.peer.links[i].probing.rtt.RTO(quality.MinRTO))
	}
	x.body = body
	if size == 0 {
		x.peer.links[i].probing.controlLen = len(body) + tunnel.Overhead + ipUDP4
	}
	x.sendRecords(b, k, i, body, size, now)
}

// sendRecords sends a control message with these records, padded to size.
func (x *messages) sendRecords(b *batch, k *keys, i int, body []byte, size int, now time.Duration) {
	buf := b.slot(max(len(body), size))
	clear(buf[tunnel.Offset+copy(buf[tunnel.Offset:], body):])
	x.peer.scheduling.queues.Add(i, &x.peer.scheduling.paths[:tunnel.MaxPaths][i], now, len(buf))
	if l := &x.peer.links[i]; l.shaped && l.ceiling() > 0 {
		l.queue.Charge(now, len(buf)+tunnel.TagLen+ipUDP4)
	}
	x.peer.sealLocked(b, k, i, buf, tunnel.Control, tunnel.Stamp{}, controlClass, now)
}

// controlClass is the traffic class of control messages: CS6 (RFC 4594, section 3.1).
const controlClass = 48 << 2

// lanesFor returns the lanes in use and their next numbers, but for those with packets in the queue
// of path i: whatever was sent before on the path has left before the message that carries them.
func (x *messages) lanesFor(k *keys, i int, now time.Duration) tunnel.Progress {
	x.lanes = x.lanes[:0]
	queue := x.peer.links[i].queue
	for lane, used := range k.lanes.used {
		if used != 0 && now-used < busyFor && len(x.lanes) < maxLanes && (queue == nil || !queue.Waits(uint32(lane))) {
			x.lanes = append(x.lanes, tunnel.Lane{Lane: uint8(lane), Next: k.number.Peek(uint8(lane))})
		}
	}
	return x.lanes
}

// maxLanes bounds the lanes in a message.
const maxLanes = 64

// reports appends a report of each path that something has arrived over, as far as there is room; the
// rest is first the next time.
func (x *receiving) reports(b []byte, k *keys, now time.Duration) []byte {
	x.Lock()
	defer x.Unlock()
	late := uint64(0)
	if x.order.receiver != nil {
		late = x.order.receiver.Stats().Late
	}
	first := x.reportFirst
	for n := range x.links {
		i := (first + n) % len(x.links)
		l := &x.links[i]
		if l.packets == 0 || now-l.heard > reportFor {
			continue
		}
		report := tunnel.Report{Path: uint8(i), Bytes: l.bytes, Late: late}
		if l.keys == k {
			report.Next, report.Lost = l.next, l.lost
		}
		if d, ok := l.delay.Value(); ok {
			report.Base, report.Delay, report.Jitter, report.Spread, report.Standing = d.Base, d.Delay, d.Jitter, d.Spread, d.Standing
		}
		if len(b)+tunnel.ReportLen > controlRoom {
			x.reportFirst = i
			break
		}
		b = tunnel.AppendRecord(b, report)
	}
	return b
}

// reportFor is how long after the last message a path is still reported.
const reportFor = 10 * time.Second

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
		rto, least := x.peer.links.roundTrips()
		x.peer.rx.requests.roundTrip.Store(int64(rto))
		x.peer.rx.requests.minRTT.Store(int64(least))
	}
	if s.size > 0 {
		if l.search.tooLarge(s.size) && l.reports.oversized > 0 {
			l.reports.oversized--
		}
		l.search.carried(s.size)
	}
	l.probing.tries = 0
	if l.line != nil && x.peer.conf.Alliance.Role == plane.HomeAgent {
		l.line.proven.Store(int64(now))
	}
	if l.probing.alive.Answered() {
		x.peer.log.Info("path is up", "peer", x.peer.conf.Name, "path", l.line.name, "address", l.address.remote)
		l.probing.due = 0
		if x.peer.session.sending != nil {
			l.reports.loss.Restart(x.peer.session.sending.counters[path])
		}
		x.peer.wakeControlLocked()
	}
}

// probeNow has all paths probed at once: there is traffic again, and one may have died while idle.
func (x *prober) probeNow(now time.Duration) {
	for i := range x.peer.links {
		x.peer.links[i].probing.due = min(x.peer.links[i].probing.due, now)
	}
	x.peer.wakeControlLocked()
}

// wakeControlLocked has the control loop send now what is due to the peer.
func (r *peer) wakeControlLocked() {
	r.due = 0
	r.plane.wakeControl()
}

// sendBye sends the end of the session.
func (x *sessionState) sendBye() {
	k := x.sending
	if k == nil {
		return
	}
	k.out = tunnel.Outbox{}
	k.out.Put(tunnel.Bye{})
	b := newBatch(x.peer.plane, 1<<16)
	for i := range x.peer.links {
		if x.peer.links[i].ready() {
			buf := b.slot(controlRoom)
			body := tunnel.AppendNumbered(buf[tunnel.Offset:tunnel.Offset], 0, tunnel.Bye{})
			x.peer.sealLocked(b, k, i, buf[:tunnel.Offset+len(body)], tunnel.Control, tunnel.Stamp{}, controlClass, x.peer.plane.now())
		}
	}
	b.flush()
}
