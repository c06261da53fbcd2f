package sim

import (
	"math"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/gateway/pacer"
	"github.com/tabane/tabane/internal/gateway/quality"
	"github.com/tabane/tabane/internal/gateway/sched"
)

// probe sends a probe on each path. It carries the number of the next packet, so that the receiver
// knows what the path holds, unless packets wait in front of the path.
func (t *carrier) probe(s *Sim) {
	t.probeAt = s.now + t.interval
	if t.replies {
		return
	}
	for i := range t.paths {
		l := &t.lines[i]
		for timeout := l.rtt.RTO(minReplyVariation); len(l.awaited) > 0 && s.now-l.awaited[0] >= timeout; {
			sent := l.awaited[0]
			l.awaited = l.awaited[1:]
			// A full queue delays replies too: a path on which packets arrive is not dead.
			if (t.Open || l.progress < sent) && l.alive.Missed() {
				t.paths[i].Usable = t.Probes
				t.version++
				t.rescue(s, i)
			}
		}
		if l.queue != nil && l.capacity.Expire(s.now) {
			t.pace(i)
		}
		if !t.Open || len(l.awaited) == 0 {
			l.awaited = append(l.awaited, s.now)
		}
		t.queues.Add(i, &t.paths[i], s.now, probeSize+t.Overhead)
		wait := t.queues.Wait(i, s.now)
		if l.queue != nil { // a probe does not wait in it
			wait = l.queue.Line(probeSize + t.Overhead)
		}
		s.launch(&packet{
			kind: tunnelProbe, flow: t.id, hop: t.routes[i], at: s.now, data: uint64(wait), seq: uint32(t.number.Peek(0)), duplicate: t.waits(i, 0), blocks: uint8(i), window: t.lines[i].number,
			sack: [maxBlocks]span{{start: t.report(i)}},
		}, int32(probeSize+t.Overhead))
	}
}

// waits reports whether packets of a lane wait in front of a path.
func (t *carrier) waits(path int, lane uint8) bool {
	return t.lines[path].queue != nil && t.lines[path].queue.Waits(uint32(lane))
}

// report keeps the number of the next packet of each lane but the first that no packets of wait in
// front of a path, and returns the number of the probe that says so.
func (t *carrier) report(path int) (probe uint32) {
	l := &t.lines[path]
	l.probes++
	p := &l.passed[l.probes%probesKept]
	p.probe, p.next = l.probes, p.next[:0]
	for lane := uint8(1); lane < lanes; lane++ {
		if t.inner[lane] != nil && !t.waits(path, lane) {
			p.next = append(p.next, laned{lane, uint32(t.number.Peek(lane))})
		}
	}
	return l.probes
}

// probed replies to a probe with what is measured of its path.
func (t *carrier) probed(s *Sim, p *packet) {
	path := int(p.blocks)
	m := &t.measured[path]
	t.measure(s, path, p)
	m.probing.jitter.Update(p.at, s.now)
	v := quality.OneWay{Jitter: m.probing.jitter.Value}
	if !t.Probes {
		v, _ = m.oneWay.Value()
	}
	s.launch(&packet{
		kind: tunnelReply, flow: t.id, hop: t.back[path], at: p.at, data: uint64(v.Jitter), blocks: p.blocks,
		sack:   [maxBlocks]span{{uint32(uint64(v.Delay) >> 32), uint32(v.Delay)}, {uint32(m.bytes >> 32), uint32(m.bytes)}, {uint32(s.now / time.Microsecond), uint32(v.Standing / time.Microsecond)}},
		window: m.high, seq: m.got,
	}, int32(replySize+t.Overhead))
	if !t.Probes {
		t.compare()
	}
	t.missing(s, path, p.window+1)
	t.request(s, path)
	if !p.duplicate {
		t.deliver(s, t.receiver.Passed(s.now, path, 0, p.seq, t.out[:0]))
	}
	if said := &t.lines[path].passed[p.sack[0].start%probesKept]; said.probe == p.sack[0].start {
		for _, next := range said.next {
			t.deliver(s, t.receiver.Passed(s.now, path, next.lane, next.seq, t.out[:0]))
		}
	}
}

// replied processes the reply at the sending end.
func (t *carrier) replied(s *Sim, p *packet) {
	path := &t.paths[p.blocks]
	t.version++
	path.Jitter = time.Duration(p.data)
	if t.Probes {
		d := &t.measured[p.blocks].probing.delay
		d.Update(s.now-p.at, 0)
		path.Delay = d.Value
		return
	}
	path.Delay = time.Duration(uint64(p.sack[0].start)<<32 | uint64(p.sack[0].end))
	l := &t.lines[p.blocks]
	l.rtt.Update(s.now - p.at)
	t.setRoundTrip()
	path.SRTT = l.rtt.SRTT
	l.awaited = slices.DeleteFunc(l.awaited, func(sent time.Duration) bool { return t.Open || sent == p.at })
	if p.window > l.reported {
		l.reported, l.progress = p.window, s.now
	}
	if l.alive.Answered() {
		t.pathSelection.losses[p.blocks].Restart(uint64(l.number))
		t.prove()
	}
	path.Usable = path.Usable || l.alive.Alive()
	standing := time.Duration(p.sack[2].end) * time.Microsecond
	if l.queue != nil {
		l.capacity.AddReport(s.now, time.Duration(p.sack[2].start)*time.Microsecond, t.result.SentBytes[p.blocks], uint64(p.sack[1].start)<<32|uint64(p.sack[1].end), l.queue.Wait(s.now) > waiting,
			quality.Delays{RTT: l.rtt.SRTT, Standing: standing, Jitter: path.Jitter, Loss: t.pathSelection.losses[p.blocks].Share})
		l.congested = l.capacity.Exhausted() && quality.Congested(standing, path.Jitter)
		t.pace(int(p.blocks))
	}
	t.pathSelection.addReply(t, int(p.blocks), p.window, p.window-min(p.seq, p.window))
	t.pathSelection.selectPaths(s.now, t)
	t.target()
}

// pace paces packets of a path with a queue to its estimated rate.
func (t *carrier) pace(i int) {
	l, p := &t.lines[i], &t.paths[i]
	p.Rate = l.capacity.Value()
	l.queue.Set(l.capacity.Pace())
	l.paced = l.capacity.Pace() <= p.Rate
}

// prove is called when a path has become alive. Before the first one all paths are used; from then
// on those that have not answered yet are not, since nothing is known of them.
func (t *carrier) prove() {
	if t.proven {
		return
	}
	t.proven = true
	for i := range t.paths {
		t.paths[i].Usable = t.lines[i].alive.Alive()
	}
}

// target sets the standing queue of each path: so long that the later paths are used too.
func (t *carrier) target() {
	for i := range t.lines {
		if q := t.lines[i].queue; q != nil {
			q.SetLag(sched.Lag(t.paths, i, pacer.MostLag()))
			q.SetRTT(t.lines[i].rtt.SRTT)
		}
	}
}

// setRoundTrip sets roundTrip by the paths' round trips.
func (t *carrier) setRoundTrip() {
	t.roundTrip = math.MaxInt64
	for i := range t.lines {
		t.roundTrip = min(t.roundTrip, t.lines[i].rtt.RTO(minRTOVariation))
	}
}

// minRTOVariation is the variation that a timeout allows for at least.
const minRTOVariation = 10 * time.Millisecond

// minReplyVariation is the variation that the reply to a probe is allowed at least.
const minReplyVariation = 50 * time.Millisecond

// shortestRTT returns the round-trip time between the gateways over the path where it is shortest.
func (t *carrier) shortestRTT() time.Duration {
	shortest := time.Duration(math.MaxInt64)
	for i := range t.lines {
		shortest = min(shortest, t.lines[i].rtt.SRTT)
	}
	return shortest
}
