package sealed

import (
	"errors"
	"io/fs"
	"net/netip"
	"time"

	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/gateway/udp"
	"github.com/tabane/tabane/internal/kernel/contain"
)

// opened is a packet from a peer.
type opened struct {
	keys *keys
	path uint8
	// retransmission of stamp.Origin
	retransmission bool
	class          uint8
	stamp          tunnel.Stamp
	packet         []byte
	wire           int // length of the message
	counter        uint64
	requests       uint8         // how often it was requested
	lag            time.Duration // reseq.Arrival.Lag
	missing        int           // messages before it that have not arrived, -1 if it was one of them
	buffer         *buffer
	merged         int // number of messages in the buffer
}

const receiveBuffers = 8

// receive carries packets from a socket until it is closed.
func (p *Plane) receive(l *line, s *udp.Socket) {
	var own [receiveBuffers]*buffer
	buffers := make([][]byte, receiveBuffers)
	got := make([]udp.Received, receiveBuffers)
	var all []opened
	b := newBatch(p, 1<<16)
	for {
		for i := range own {
			// A buffer whose packets have all been delivered is used again at once.
			if own[i] == nil || own[i].refs.Load() > 1 {
				if own[i] != nil {
					own[i].release()
				}
				own[i] = largeBuffers.Get().(*buffer)
				own[i].refs.Store(1)
				buffers[i] = own[i].data
			}
		}
		n, err := s.Receive(buffers, got)
		if errors.Is(err, fs.ErrClosed) {
			return
		}
		if err != nil {
			// An error of the network, or of a device that is gone: the control loop opens a new
			// socket.
			l.failTransfer(err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		l.heard.Store(int64(p.now()))
		all = all[:0]
		for i := range got[:n] {
			all = p.openSafely(l, &got[i], own[i], all, b)
		}
		now := p.now()
		for rest := all; len(rest) > 0; {
			same := 1
			for same < len(rest) && rest[same].keys.peer == rest[0].keys.peer {
				same++
			}
			rest[0].keys.peer.handleSafely(b, rest[:same], now)
			rest = rest[same:]
		}
		b.flush()
	}
}

// open authenticates the messages of a buffer and appends their packets to all. Messages of other
// types are processed.
func (p *Plane) open(l *line, g *udp.Received, in *buffer, all []opened, b *batch) []opened {
	var k *keys
	merged := (len(g.Data) + g.Size - 1) / max(g.Size, 1)
	for data := g.Data; len(data) > 0; {
		m := data[:min(g.Size, len(data))]
		data = data[len(m):]
		l.received.add(1, len(m))
		l.carry(len(m) + ipUDP(g.From))
		switch tunnel.Type(m[0]) {
		case tunnel.Initiation, tunnel.Response, tunnel.Cookie:
			if addressed, why := p.checkHandshake(l, m, g.From, g.To); !addressed {
				p.relayOrDrop(l, g, m, b, why)
			}
			continue
		case tunnel.Compatible:
			p.takeCompatible(l, m, g.From, b)
			continue
		case tunnel.OpenData:
			p.counts.drop(dropCookie, 1) // the open plane takes all others before
			continue
		case tunnel.Data, tunnel.Control, tunnel.Retransmission, tunnel.Join: // ParseHeader refuses the last one
		}
		h, err := tunnel.ParseHeader(m)
		if err != nil {
			p.counts.drop(dropTruncated, 1)
			continue
		}
		if k == nil || k.Local != h.Receiver {
			if k = p.find(h.Receiver); k == nil || h.Epoch != 0 {
				k = nil
				p.relayOrDrop(l, g, m, b, dropUnknownSession)
				continue
			}
		}
		o := opened{keys: k, path: h.Path, retransmission: h.Type == tunnel.Retransmission, class: g.Class, wire: len(m), counter: h.Counter, missing: -1, buffer: in, merged: merged}
		from := place{l, g.From}
		moved, why, ok := o.authenticate(m, from, g.To)
		if !ok {
			p.counts.drop(why, 1)
			continue
		}
		if moved && o.missing >= 0 { // only the newest message shows where the peer is
			k.peer.learn(k, int(h.Path), l, g.From, g.To)
		}
		if h.Type == tunnel.Control {
			body := o.packet
			o.packet = nil
			k.peer.contain(contain.GatewayMessage, body, func() { k.peer.records(k, &o, from, body, len(m), b) })
			if k.peer.isScout(int(o.path)) {
				continue // it shows nothing of a path
			}
		}
		all = append(all, o)
	}
	return all
}

// authenticate opens a message, and notes its number. moved reports whether the path's last message
// came from another place, or to another address of this gateway; why is the reason of a message
// that is not ok.
func (o *opened) authenticate(m []byte, at place, to netip.Addr) (moved bool, why reason, ok bool) {
	replay := &o.keys.replay[o.path]
	replay.Lock()
	defer replay.Unlock()
	if !replay.Fresh(o.counter) {
		return false, dropReplayed, false
	}
	var err error
	if o.stamp, o.packet, err = o.keys.receive.Open(m); err != nil {
		return false, dropForged, false
	}
	moved = replay.at != at || replay.to != to
	if replay.Behind(o.counter) {
		replay.Accept(o.counter)
		return moved, 0, true
	}
	o.missing = int(min(replay.Accept(o.counter), 1<<20))
	if replay.to = to; replay.at != at {
		replay.at, replay.bytes = at, 0
	}
	replay.bytes += len(m) + inet.UDP4Len
	return moved, 0, true
}

// write writes packets to the device, and returns how many it refused.
func (p *Plane) write(packets [][]byte) (refused int, err error) {
	p.writeMu.Lock()
	defer p.writeMu.Unlock()
	return p.device.Write(packets)
}

// deliver writes packets to the device.
func (p *Plane) deliver(packets [][]byte) {
	if len(packets) == 0 {
		return
	}
	bytes := 0
	for _, b := range packets {
		bytes += len(b)
	}
	refused, err := p.write(packets)
	if err != nil {
		p.counts.drop(dropDevice, uint64(len(packets)))
		return
	}
	p.counts.drop(dropDevice, uint64(refused))
	p.counts.delivered.add(len(packets)-refused, bytes)
}
