package sealed

import (
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/quality"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/gateway/udp"
)

// compatible measures a link by the probes of paper D, in the clear.
type compatible struct {
	// from is where the peer's probes come from: an address of authentic messages, so that a
	// stranger gets no reply.
	from place
	// due is when the next probe is sent, number its number.
	due    time.Duration
	number uint16
	open   [probesKept]openProbe
	// delay and jitter are what the replies say, once answered.
	delay    quality.OneWayDelay
	jitter   time.Duration
	answered bool

	// clock and received measure the peer's probes.
	clock    quality.Clock
	received quality.Jitter
}

// openProbe is a compatible probe without a reply so far.
type openProbe struct {
	number uint16
	sent   uint32
	at     time.Duration
	open   bool
}

// probed is whose probes they are.
type probed struct {
	peer *peer
	path int
}

// probeCompatible sends a compatible probe if it is due, and returns when the next one is.
func (x *prober) probeCompatible(b *batch, i int, now, interval time.Duration) time.Duration {
	l := &x.peer.links[i]
	if !l.probing.alive.Alive() || !l.ready() {
		return now + time.Hour
	}
	c := &l.compatible
	if now < c.due {
		return c.due
	}
	if from := (place{l.line, l.address.remote}); from != c.from {
		x.peer.plane.probers.Delete(c.from)
		c.from = from
		x.peer.plane.probers.Store(from, probed{x.peer, i})
	}
	c.due = now + interval
	c.number++
	sent := uint32(now / time.Microsecond)
	c.open[c.number%probesKept] = openProbe{c.number, sent, now, true}
	p := tunnel.CompatibleProbe{Path: uint16(i), Number: c.number, Sent: sent, Agent: l.line.address(), Member: l.address.remote.Addr()}
	x.peer.sendClearLocked(b, i, p.Append(b.slot(tunnel.CompatibleProbeLen)[:0]), now)
	return c.due
}

// sendClearLocked sends a message in the clear over a path, before all packets in its queue.
func (r *peer) sendClearLocked(b *batch, i int, message []byte, now time.Duration) {
	l := &r.links[i]
	r.scheduling.queues.Add(i, &r.scheduling.paths[:tunnel.MaxPaths][i], now, len(message)+inet.UDP4Len)
	l.sent.add(1, len(message)+inet.UDP4Len)
	b.add(l.line, udp.Datagram{Data: message, To: l.address.remote, Class: controlClass})
}

// takeCompatible processes a compatible probe, which it answers, or a reply. Those from an address
// that no authentic message came from are dropped, and all are while the plane does not send any
// itself.
func (p *Plane) takeCompatible(at *line, m []byte, from netip.AddrPort, b *batch) {
	key := place{at, from}
	found, known := p.probers.Load(key)
	if !known {
		p.counts.drop(dropStranger, 1)
		return
	}
	probe, err := tunnel.ParseCompatibleProbe(m)
	reply, replyErr := tunnel.ParseCompatibleReply(m)
	if err != nil && replyErr != nil {
		p.counts.drop(dropMalformed, 1)
		return
	}
	w := found.(probed)
	r := w.peer
	r.mu.Lock()
	defer r.mu.Unlock()
	l := &r.links[w.path]
	if r.removed || l.line != at || l.address.remote != from {
		p.counts.drop(dropStranger, 1) // the path has moved
		return
	}
	c, now := &l.compatible, p.now()
	if err == nil {
		if int(probe.Path) != w.path {
			p.counts.drop(dropMalformed, 1)
			return
		}
		c.received.Update(0, c.clock.Difference(probe.Sent, now))
		answer := tunnel.CompatibleReply{
			Path: probe.Path, Number: probe.Number, Sent: probe.Sent, Member: probe.Member, Jitter: uint32(c.received.Value / time.Microsecond),
		}
		r.sendClearLocked(b, w.path, answer.Append(b.slot(tunnel.CompatibleReplyLen)[:0]), now)
		return
	}
	s := &c.open[reply.Number%probesKept]
	if int(reply.Path) != w.path || !s.open || s.number != reply.Number || s.sent != reply.Sent {
		p.counts.drop(dropReplayed, 1)
		return
	}
	s.open = false
	c.delay.Update(now-s.at, time.Duration(reply.Held)*time.Microsecond)
	c.jitter, c.answered = time.Duration(reply.Jitter)*time.Microsecond, true
	r.scheduling.refresh()
}
