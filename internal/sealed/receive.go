package sealed

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"net/netip"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/quality"
	"github.com/tabane/tabane/internal/tunnel"
	"github.com/tabane/tabane/internal/udp"
)

// receiving is the receiving side of a peer.
type receiving struct {
	sync.Mutex
	clock quality.Clock
	links [tunnel.MaxPaths]receivedLink
}

// receivedLink is what was received over a path under the current keys.
type receivedLink struct {
	packets, bytes uint64
	next, lost     uint64 // for the sender: counters under its current keys
	keys           *keys
	heard          time.Duration
	delay          quality.OneWayEstimator
	rate           quality.Rate
}

// opened is a packet from a peer.
type opened struct {
	keys    *keys
	path    uint8
	class   uint8
	stamp   tunnel.Stamp
	packet  []byte
	wire    int // length of the message
	missing int // messages before it that have not arrived, -1 if it was one of them
}

const receiveBuffers = 8

// receive carries packets from a socket until it is closed.
func (p *Plane) receive(l *line, s *udp.Socket) {
	buffers := make([][]byte, receiveBuffers)
	for i := range buffers {
		buffers[i] = make([]byte, udp.BufferLen)
	}
	got := make([]udp.Received, receiveBuffers)
	var all []opened
	var out [][]byte
	b := newBatch(p, 1<<16)
	for {
		n, err := s.Receive(buffers, got)
		if errors.Is(err, fs.ErrClosed) {
			return
		}
		if err != nil {
			// An error of the network, or of a device that is gone: the control loop opens a new socket.
			l.fail(err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		all = all[:0]
		for i := range got[:n] {
			all = p.open(l, &got[i], all, b)
		}
		now := p.now()
		for rest := all; len(rest) > 0; {
			same := 1
			for same < len(rest) && rest[same].keys.peer == rest[0].keys.peer {
				same++
			}
			out = rest[0].keys.peer.take(rest[:same], now, out[:0])
			rest = rest[same:]
		}
		b.flush()
	}
}

// open authenticates the messages of a buffer and appends their packets to all. Messages of other
// types are processed.
func (p *Plane) open(l *line, g *udp.Received, all []opened, b *batch) []opened {
	var k *keys
	for data := g.Data; len(data) > 0; {
		m := data[:min(g.Size, len(data))]
		data = data[len(m):]
		l.received.add(1, len(m))
		switch tunnel.Type(m[0]) {
		case tunnel.Initiation, tunnel.Response, tunnel.Cookie:
			p.knock(l, m, g.From)
			continue
		}
		h, err := tunnel.ParseHeader(m)
		if err != nil {
			p.counts.drop(dropTruncated, 1)
			continue
		}
		if k == nil || k.Local != h.Receiver {
			if k = p.find(h.Receiver); k == nil || h.Epoch != 0 {
				k = nil
				p.counts.drop(dropUnknownSession, 1)
				continue
			}
		}
		replay := &k.replay[h.Path]
		replay.Lock()
		if !replay.Fresh(h.Counter) {
			replay.Unlock()
			p.counts.drop(dropReplayed, 1)
			continue
		}
		stamp, packet, err := k.receive.Open(m)
		if err != nil {
			replay.Unlock()
			p.counts.drop(dropForged, 1)
			continue
		}
		missing, moved := -1, false
		if replay.Behind(h.Counter) {
			replay.Accept(h.Counter)
		} else {
			missing = int(min(replay.Accept(h.Counter), 1<<20))
			// Only the newest message shows where the peer is.
			moved = replay.line != l || replay.from != g.From
			replay.line, replay.from = l, g.From
		}
		replay.Unlock()
		if moved {
			k.peer.learn(k, int(h.Path), l, g.From)
		}
		o := opened{keys: k, path: h.Path, class: g.Class, stamp: stamp, packet: packet, wire: len(m), missing: missing}
		if h.Type == tunnel.Control {
			o.packet = nil
			k.peer.records(k, &o, packet, len(m), b)
		}
		all = append(all, o)
	}
	return all
}

// take measures packets from the peer and delivers them.
func (r *peer) take(all []opened, now time.Duration, out [][]byte) [][]byte {
	p := r.plane
	routes := p.routing.Load()
	r.rx.Lock()
	defer r.rx.Unlock()
	data := false
	for i := range all {
		o := &all[i]
		r.rx.measure(o, now)
		if o.packet == nil {
			continue
		}
		data = true
		b := o.packet
		if !whole(b) {
			p.counts.drop(dropMalformed, 1)
			continue
		}
		// Only packets from the peer's own prefixes: else it could speak for others.
		if owner, ok := routes.table.Lookup(source(b)); !ok || owner != r {
			p.counts.drop(dropSource, 1)
			continue
		}
		if !decapsulate(o.class, b) {
			p.counts.drop(dropCongestion, 1)
			continue
		}
		if isSYN(b) {
			var h parsed
			if h.parse(b) {
				clampMSS(b, &h, int(r.clamp.Load()))
			}
		}
		out = append(out, b)
	}
	if data {
		r.active.Store(int64(now))
	}
	// With the mutex, so that packets that arrive over other paths do not overtake these.
	p.deliver(out)
	clear(out)
	return out
}

// isSYN reports whether an IP packet may begin a TCP connection.
func isSYN(b []byte) bool {
	const flags, syn, tcp = 13, 2, 6
	at := int(b[0]&15) * 4
	protocol := b[9]
	if b[0]>>4 == 6 {
		at, protocol = ipv6Len, b[6]
	}
	return protocol == tcp && len(b) > at+flags && b[at+flags]&syn != 0
}

// measure updates what is known of the path that a message arrived over. The mutex is locked.
func (x *receiving) measure(o *opened, now time.Duration) {
	l := &x.links[o.path]
	l.packets++
	l.bytes += uint64(o.wire)
	l.heard = now
	l.rate.Update(now, o.wire)
	if l.keys != o.keys {
		if l.keys != nil && l.keys.Born > o.keys.Born {
			return // of the session before
		}
		l.keys, l.next, l.lost = o.keys, 0, 0
	}
	l.next++
	switch {
	case o.missing > 0:
		l.next += uint64(o.missing)
		l.lost += uint64(o.missing)
	case o.missing < 0 && l.lost > 0:
		l.next--
		l.lost--
	}
	l.delay.Update(now, x.clock.Difference(o.stamp.Sent, now), o.stamp.Wait)
}

// whole reports whether the length of an IP packet is that of its header.
func whole(b []byte) bool {
	switch {
	case len(b) >= ipv4Len && b[0]>>4 == 4:
		return int(binary.BigEndian.Uint16(b[2:])) == len(b)
	case len(b) >= ipv6Len && b[0]>>4 == 6:
		return int(binary.BigEndian.Uint16(b[4:]))+ipv6Len == len(b)
	}
	return false
}

func source(b []byte) netip.Addr {
	if b[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(b[12:16]))
	}
	return netip.AddrFrom16([16]byte(b[8:24]))
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
	p.writeMu.Lock()
	refused, err := p.device.Write(packets)
	p.writeMu.Unlock()
	if err != nil {
		p.counts.drop(dropDevice, uint64(len(packets)))
		return
	}
	p.counts.drop(dropDevice, uint64(refused))
	p.counts.delivered.add(len(packets)-refused, bytes)
}
