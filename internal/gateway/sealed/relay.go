package sealed

import (
	"errors"
	"io/fs"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/gateway/udp"
	"github.com/tabane/tabane/internal/kernel/contain"
)

// relay is what a member does for a leader.
type relay struct {
	leader    *peer
	path      uint8 // as the leader numbers it
	homeAgent netip.AddrPort
	until     time.Duration
	base      *udp.Socket // of the path that the relay's socket is beside
	overName  string      // name of that path
	out       *line       // the relay's socket
	to        atomic.Pointer[place]
	// answered: the home agent has sent a message.
	answered atomic.Bool
	rate     unit.Bandwidth // from the leader, once the home agent has answered
	up, down policer
	counts   *relayed
	open     openRelay
}

// relayed counts what is relayed for a leader, as long as it is configured.
type relayed struct {
	up, down count
	dropped  atomic.Uint64
}

// policer drops what exceeds a rate.
type policer struct {
	mu     sync.Mutex
	rate   float64 // bytes per second
	tokens float64
	at     time.Duration
}

const (
	// policerBurst is how long a burst at the rate may be, policerMinBurst its smallest length in
	// bytes: that of a message in segments.
	policerBurst, policerMinBurst = 100 * time.Millisecond, 1 << 17
	// unansweredRate is the rate to a home agent that has not answered: enough for handshakes and
	// probes.
	unansweredRate = 64 * unit.KbitPerSecond
	// maxRelayStarts is how many relays a leader may start in relayStartWindow: each opens a
	// socket.
	maxRelayStarts, relayStartWindow = 8, 10 * time.Second
)

// relayLimit limits how often a leader starts relays. It has the times of the last ones.
type relayLimit struct {
	at   [maxRelayStarts]time.Duration
	next int
}

// allow reports whether one more may start now, and counts it.
func (b *relayLimit) allow(now time.Duration) bool {
	at := &b.at[b.next%maxRelayStarts]
	if b.next >= maxRelayStarts && now-*at < relayStartWindow {
		return false
	}
	*at = now
	b.next++
	return true
}

func (p *policer) set(rate unit.Bandwidth) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = float64(rate) / 8
	p.tokens = p.burstLocked()
}

func (p *policer) burstLocked() float64 {
	if p.rate <= float64(unansweredRate)/8 {
		return p.rate // a second
	}
	return max(p.rate*policerBurst.Seconds(), policerMinBurst)
}

// allow reports whether a packet of n bytes is within the rate, and accounts for it.
func (p *policer) allow(now time.Duration, n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now > p.at {
		p.tokens = min(p.burstLocked(), p.tokens+p.rate*(now-p.at).Seconds())
		p.at = now
	}
	if p.tokens < float64(n) {
		return false
	}
	p.tokens -= float64(n)
	return true
}

// relayOf returns what is relayed for the sender of messages, or nil.
func (p *Plane) relayOf(l *line, from netip.AddrPort) *relay {
	if !l.conf.Load().Short {
		return nil
	}
	p.relaysMu.RLock()
	defer p.relaysMu.RUnlock()
	return p.relays[place{l, from}]
}

// relayOrDrop handles a message that is not for this gateway: it is relayed if a leader has sent
// it, else dropped.
func (p *Plane) relayOrDrop(l *line, g *udp.Received, m []byte, b *batch, drop reason) {
	if y := p.relayOf(l, g.From); y != nil {
		y.forward(b, m, g.Class)
	} else {
		p.counts.drop(drop, 1)
	}
}

// forward relays a message of the leader, which is not for this gateway.
func (y *relay) forward(b *batch, m []byte, class uint8) {
	if !sealedOrHandshake(m) || !y.up.allow(y.leader.plane.now(), len(m)+inet.UDP4Len) {
		y.counts.dropped.Add(1)
		return
	}
	y.counts.up.add(1, len(m)+inet.UDP4Len)
	b.add(y.out, udp.Datagram{Data: m, To: y.homeAgent, Class: class})
}

// sealedOrHandshake reports whether a message may be one of a tunnel.
func sealedOrHandshake(m []byte) bool {
	switch tunnel.Type(m[0]) {
	case tunnel.Initiation, tunnel.Response, tunnel.Cookie:
		return len(m) >= shortestHandshake
	case tunnel.Data, tunnel.Control, tunnel.Retransmission, tunnel.Compatible, tunnel.OpenData, tunnel.Join: // ParseHeader refuses the last three
	}
	_, err := tunnel.ParseHeader(m)
	return err == nil
}

// shortestHandshake is the length of a cookie.
const shortestHandshake = 64

// receive relays messages of the home agent until the socket is closed.
func (y *relay) receive(s *udp.Socket) {
	p := y.leader.plane
	buffers := make([][]byte, receiveBuffers)
	for i := range buffers {
		buffers[i] = make([]byte, udp.BufferLen)
	}
	got := make([]udp.Received, receiveBuffers)
	var all []udp.Datagram
	for {
		n, err := s.Receive(buffers, got)
		if errors.Is(err, fs.ErrClosed) {
			return
		}
		if err != nil {
			y.out.fail(err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		_ = contain.Do(contain.GatewayMessage, p.log, got[0].Data, func() { all = y.pass(got[:n], all[:0]) }) // it is logged
	}
}

// pass relays what was received from the home agent to the leader; all is a buffer.
func (y *relay) pass(got []udp.Received, all []udp.Datagram) []udp.Datagram {
	p := y.leader.plane
	at, now := y.to.Load(), p.now()
	for i := range got {
		g := &got[i]
		for data := g.Data; len(data) > 0; {
			m := data[:min(g.Size, len(data))]
			data = data[len(m):]
			if g.From != y.homeAgent || !sealedOrHandshake(m) || !y.down.allow(now, len(m)+inet.UDP4Len) {
				y.counts.dropped.Add(1)
				continue
			}
			y.counts.down.add(1, len(m)+inet.UDP4Len)
			all = append(all, udp.Datagram{Data: m, To: at.from, Class: g.Class})
		}
	}
	if len(all) > 0 {
		if !y.answered.Swap(true) {
			y.up.set(y.rate)
			y.leader.relaysChanged.Store(true) // for open messages
			p.wakeControl()
		}
		at.line.send(all)
	}
	return all
}
