package sim

import (
	"time"

	"github.com/tabane/tabane/internal/gateway/reseq"
	"github.com/tabane/tabane/internal/gateway/sched"
)

// arrive processes a packet at the other end of the tunnel.
func (t *carrier) arrive(s *Sim, p *packet) {
	path := int(p.blocks)
	m := &t.measured[path]
	if p.window <= m.high {
		m.gaps.Arrived(s.now, uint64(p.window))
	}
	m.got++
	m.bytes += uint64(p.dsack)
	lag, requests, from := time.Duration(0), uint8(0), path
	if origin := p.sack[0]; origin.end > 0 {
		from = int(origin.start)
		requests = t.measured[from].gaps.Retransmitted(uint64(origin.end))
	} else if !t.Open {
		lag = max(0, t.latest-t.measure(s, path, p))
	}
	t.missing(s, path, p.window)
	m.high = max(m.high, p.window)
	t.request(s, path)
	hold, lane := t.Hold, uint8(p.sack[laneSpan].start)
	if hold == reseq.Auto {
		switch t.inner[lane][p.seq%inners].kind {
		case ack:
			hold = reseq.Off // it is cumulative
		case cross:
			hold = reseq.Prompt
		default: // the order of others matters
		}
	}
	out, _ := t.receiver.Push(s.now, reseq.Arrival{
		Path: from, Lane: lane, Seq: p.seq, Distance: p.length, Copied: p.duplicate, Hold: hold, Requests: requests, Lag: lag,
	}, laned{lane, p.seq}, t.out[:0])
	t.deliver(s, out)
}

// measure takes the delay of a packet with a time stamp, and returns it without the expected wait.
func (t *carrier) measure(s *Sim, path int, p *packet) time.Duration {
	sent, wait := uint32(p.at/time.Microsecond), time.Duration(p.data)
	difference := t.clock.Difference(sent, s.now)
	t.measured[path].oneWay.Update(s.now, difference, wait)
	return difference - wait
}

// compare compares the delays of the paths.
func (t *carrier) compare() {
	var paths [reseq.MaxPaths]sched.Path
	for i := range t.measured {
		v, ok := t.measured[i].oneWay.Value()
		paths[i] = sched.Path{Usable: ok && t.paths[i].Usable, Delay: v.Delay, Jitter: v.Jitter}
	}
	if latest, any := sched.Latest(paths[:len(t.measured)]); any {
		t.latest = latest
	}
}

// missing records that all packets of a path before a number were sent.
func (t *carrier) missing(s *Sim, path int, before uint32) {
	m := &t.measured[path]
	if before > m.high+1 {
		m.gaps.Missed(s.now, uint64(before), uint64(before-m.high-1))
		m.high = before - 1
	}
}

// request asks for what a path has lost. A request is sent over all paths, because it may be lost
// too.
func (t *carrier) request(s *Sim, path int) {
	if t.Probes || t.Open {
		return
	}
	m := &t.measured[path]
	for {
		r, any := m.gaps.Due(s.now, t.roundTrip, t.counters)
		t.counters = r.Counters
		if !any {
			return
		}
		for first := 0; first < len(r.Counters); first += maxBlocks {
			p := packet{kind: tunnelRequest, flow: t.id, length: uint16(r.Attempt), blocks: uint8(path)}
			for i, c := range r.Counters[first:min(first+maxBlocks, len(r.Counters))] {
				p.sack[i] = span{uint32(c), uint32(c) + 1}
			}
			for i := range t.back {
				q := p
				q.hop = t.back[i]
				s.launch(&q, int32(replySize+t.Overhead))
			}
		}
	}
}

// deliver passes packets on, and starts the timer of the receiver.
func (t *carrier) deliver(s *Sim, out []laned) {
	t.out = out
	for _, x := range out {
		inner := t.inner[x.lane][x.seq%inners]
		s.arrive(&inner)
	}
	t.wake(s)
}
