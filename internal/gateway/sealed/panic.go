package sealed

import (
	"time"

	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/quality"
	"github.com/tabane/tabane/internal/gateway/tun"
	"github.com/tabane/tabane/internal/gateway/udp"
	"github.com/tabane/tabane/internal/kernel/contain"
)

// firstRest is how long a peer has no session after its first panic: shorter than that of BGP,
// because all packets to the peer are lost meanwhile.
const firstRest = time.Second

// contain runs what is about the peer inside a boundary; the message, which may be nil, is what it
// processes. After a panic the sessions with the peer end, since their state may be inconsistent,
// and begin again after a pause. The peer's mutexes are not locked.
func (r *peer) contain(b contain.Boundary, message []byte, part func()) {
	if err := contain.Do(b, r.log, message, part); err != nil {
		r.restart(b)
	}
}

// restart ends the sessions with the peer after a panic.
func (r *peer) restart(b contain.Boundary) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.panics.Panicked(time.Now())
	_ = contain.Do(b, r.log, nil, r.session.sendBye) // without it, the peer notices by the silence
	r.session.end()
	x := &r.rx
	x.Lock()
	defer x.Unlock()
	x.links, x.order, x.delivery = [len(x.links)]receivedLink{}, order{}, delivery{}
	x.delays.clock, x.delays.latest = quality.Clock{}, 0
	x.timeout.Store(0)
	x.requests.due.Store(0)
	r.wakeControlLocked()
}

// restingLocked returns how long the peer stays without a session after a panic.
func (r *peer) restingLocked() time.Duration { return max(0, time.Until(r.panics.Until())) }

// openSafely is open inside a boundary. What one buffer has came from one place; it is dropped if
// it panics.
func (p *Plane) openSafely(l *line, g *udp.Received, in *buffer, all []opened, b *batch) (appended []opened) {
	defer func() {
		if value := recover(); value != nil {
			_ = contain.Caught(value, contain.GatewayMessage, p.log, g.Data) // it is logged
			appended = all
		}
	}()
	contain.Point(contain.GatewayMessage, g.Data)
	return p.open(l, g, in, all, b)
}

// handleSafely is handlePackets inside a boundary.
func (r *peer) handleSafely(b *batch, all []opened, now time.Duration) {
	defer func() {
		if value := recover(); value != nil {
			_ = contain.Caught(value, contain.GatewayMessage, r.log, all[0].packet) // it is logged
			r.restart(contain.GatewayMessage)
		}
	}()
	contain.Point(contain.GatewayMessage, all[0].packet)
	r.handlePackets(b, all, now)
}

// forwardSafely is forward inside a boundary. After a panic, what is not sent yet is dropped, and
// the session with the peer that the frame is for begins again.
func (p *Plane) forwardSafely(f *tun.Frame, icmp []byte) {
	defer func() {
		if value := recover(); value != nil {
			_ = contain.Caught(value, contain.GatewayPacket, p.log, f.Head()) // it is logged
			p.renewOut()
			var h inet.Header
			if h.Parse(f.Head()) {
				if r, _ := p.routing.Load().table.Lookup(h.Dst); r != nil {
					r.restart(contain.GatewayPacket)
				}
			}
		}
	}()
	contain.Point(contain.GatewayPacket, f.Head())
	p.forward(p.out, f, icmp)
}

// renewOut drops what is sealed and not sent. The batch stays: who seals for a peer compares it
// without this mutex.
func (p *Plane) renewOut() {
	p.outMu.Lock()
	defer p.outMu.Unlock()
	p.out.discard()
	p.unsent.Store(false)
}
