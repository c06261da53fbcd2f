package sealed

import (
	"time"

	"github.com/tabane/tabane/internal/gateway/inet"
	"github.com/tabane/tabane/internal/gateway/quality"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// messages composes control messages.
type messages struct {
	peer  *peer
	body  []byte
	lanes tunnel.Progress
}

// controlRoom is the room for records in a control message.
const controlRoom = baseMTU

// controlClass is the traffic class of control messages: CS6 (RFC 4594, section 3.1).
const controlClass = 48 << 2

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
	switch l := &x.peer.links[i]; {
	case size > 0:
	case record != nil && l.rests():
		body = k.out.AppendHello(body) // other paths carry the rest
	default:
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
		body = k.out.Append(body, min(controlRoom, max(x.peer.links[i].mtu(), leastMTU)), now, x.peer.links[i].probing.rtt.RTO(quality.MinRTO))
	}
	x.body = body
	if size == 0 {
		x.peer.links[i].probing.controlLen = len(body) + tunnel.Overhead + inet.UDP4Len
	}
	x.sendRecords(b, k, i, body, size, now)
}

// sendRecords sends a control message with these records, padded to size.
func (x *messages) sendRecords(b *batch, k *keys, i int, body []byte, size int, now time.Duration) {
	buf := b.slot(max(len(body), size))
	clear(buf[tunnel.Offset+copy(buf[tunnel.Offset:], body):])
	x.peer.scheduling.queues.Add(i, &x.peer.scheduling.paths[:tunnel.MaxPaths][i], now, len(buf))
	if l := &x.peer.links[i]; l.shaped && l.ceiling() > 0 {
		l.queue.Charge(now, len(buf)+tunnel.TagLen+inet.UDP4Len)
	}
	x.peer.sealLocked(b, k, i, buf, tunnel.Control, tunnel.Stamp{}, controlClass, now)
}

// repeat sends the reliable records that are due over the best path.
func (x *messages) repeat(b *batch, k *keys, now time.Duration) time.Duration {
	best := -1
	for i := range x.peer.links {
		l := &x.peer.links[i]
		if !l.ready() || !l.probing.alive.Alive() {
			continue
		}
		if best < 0 || cheaper(l, &x.peer.links[best]) {
			best = i
		}
	}
	if best < 0 {
		return now + time.Hour
	}
	if at, pending := k.out.Due(); pending && now >= at || k.ack {
		x.send(b, k, best, now, 0, nil)
	}
	if at, pending := k.out.Due(); pending {
		return at
	}
	return now + time.Hour
}

// cheaper reports whether records go over a path rather than over another one: a spare path carries
// them if there is no other.
func cheaper(l, than *link) bool {
	if l.spare != than.spare {
		return than.spare
	}
	return l.probing.rtt.SRTT < than.probing.rtt.SRTT
}

// lanesFor returns the lanes in use and their next numbers, but for those with packets in the queue
// of path i: whatever was sent before on the path has left before the message that carries them.
func (x *messages) lanesFor(k *keys, i int, now time.Duration) tunnel.Progress {
	x.lanes = x.lanes[:0]
	queue := x.peer.links[i].queue
	for lane, used := range k.lanes.used {
		if used != 0 && now-used < busyWindow && len(x.lanes) < maxLanes && (queue == nil || !queue.Waits(uint32(lane))) {
			x.lanes = append(x.lanes, tunnel.Lane{Lane: uint8(lane), Next: k.number.Peek(uint8(lane))})
		}
	}
	return x.lanes
}

// maxLanes bounds the lanes in a message.
const maxLanes = 64

// sendBare sends records to a place that may be somebody else's. Before an address is proved,
// nothing but the Hello goes with it: two gateways with endpoints have to agree on the numbers of
// paths first.
func (x *messages) sendBare(b *batch, k *keys, i int, to place, now time.Duration, records ...tunnel.Record) {
	x.sendPadded(b, k, i, to, 0, now, records...)
}

// sendPadded is sendBare of a message that is padded to size, if that is not 0.
func (x *messages) sendPadded(b *batch, k *keys, i int, to place, size int, now time.Duration, records ...tunnel.Record) {
	if to.line.socket.Load() == nil {
		return
	}
	x.body = x.body[:0]
	for _, r := range records {
		x.body = tunnel.AppendRecord(x.body, r)
	}
	x.body = k.out.AppendHello(x.body)
	buf := b.slot(max(len(x.body), size))
	clear(buf[tunnel.Offset+copy(buf[tunnel.Offset:], x.body):])
	x.peer.sealToLocked(b, k, i, buf, tunnel.Control, tunnel.Stamp{}, controlClass, now, to)
}

// arrivedLen and sentLen are the lengths of an Arrived and a Sent in a message.
const arrivedLen, sentLen = 20, 11

// appendArrived appends what has arrived in open messages.
func (x *messages) appendArrived(b []byte) []byte {
	if x.peer.plane.opened == nil || !x.peer.conf.Mode.Open() {
		return b
	}
	for i, a := range x.peer.plane.opened.Arrived(x.peer.conf.Name) {
		if a.Packets > 0 && len(b)+arrivedLen <= controlRoom {
			b = tunnel.AppendRecord(b, tunnel.Arrived{Path: uint8(i), Packets: a.Packets + a.Lost, Lost: a.Lost})
		}
	}
	return b
}

// appendSent appends how many packets without numbers were sent over a path, which a message over
// it says.
func (x *messages) appendSent(b []byte, path int) []byte {
	if x.peer.plane.opened == nil || !x.peer.conf.Mode.Counted() || len(b)+sentLen > controlRoom {
		return b
	}
	return tunnel.AppendRecord(b, tunnel.Sent{Packets: x.peer.plane.opened.Sent(x.peer.conf.Name, path)})
}
