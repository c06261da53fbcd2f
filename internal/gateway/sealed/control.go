package sealed

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/kernel/contain"
)

const (
	// Probes are sent each probeBusy while there is traffic, each probeIdle otherwise (paper D has
	// 1 s), unless configured, and each probeDead on a path without answers. On a slow path they
	// are sent so often that they take 1/probeFraction of the rate, but each probeIdle at least.
	probeBusy     = 50 * time.Millisecond
	probeIdle     = time.Second
	probeDead     = 250 * time.Millisecond
	probeFraction = 100
	// busyWindow is how long after a packet there is traffic.
	busyWindow = time.Second
	// minProbeRTO is the variation that a timeout of a probe allows for at least.
	minProbeRTO = 50 * time.Millisecond
	// checkSockets is how often interfaces are looked at.
	checkSockets = time.Second
	// granularity is the shortest sleep of the control loop.
	granularity = 5 * time.Millisecond
)

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
		r.selection.expire(i, now)
		due = min(due, r.prober.probe(b, k, i, now), r.proving.probe(b, k, i, now))
	}
	due = min(due, r.matching.advance(b, k, now), r.trains.advance(b, k, now), r.registering.refresh(k, now))
	if r.conf.Alliance.Role == dataplane.Member {
		due = min(due, r.memberRequest.refresh(k, now))
	}
	r.proving.reportSeen(k, now)
	r.uses.say(k)
	if r.scheduling.outdated {
		r.scheduling.refresh()
	}
	r.selection.update(now)
	due = min(due, r.messages.repeat(b, k, now))
	b.flush()
	for i := range r.links {
		if l := &r.links[i]; l.line != nil && l.probing.alive.Alive() {
			l.line.alive.Store(int64(min(due, now+time.Second)))
		}
	}
	return due
}

// firstAnswerWait is how long a new session waits for the first answer before another handshake
// begins.
const firstAnswerWait = time.Second

// wakeControlLocked has the control loop send now what is due to the peer.
func (r *peer) wakeControlLocked() {
	r.due = 0
	r.plane.wakeControl()
}
