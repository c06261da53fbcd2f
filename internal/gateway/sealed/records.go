package sealed

import (
	"time"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/quality"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// controlMessage is a control message whose records are applied.
type controlMessage struct {
	peer  *peer
	batch *batch
	now   time.Duration

	keys *keys
	path int    // that it was sent over
	from place  // where it came from
	sent uint32 // when it was sent, on the peer's clock in microseconds
	size int    // in bytes

	changed bool // records have changed what schedulers see
	ended   bool // the session is over: nothing that follows is applied
}

// recordHandler applies the records of a type.
type recordHandler struct {
	kind  tunnel.RecordType
	apply func(*controlMessage, tunnel.Record)
}

// on returns the handler of the records of type T.
func on[T tunnel.Record](apply func(*controlMessage, T)) recordHandler {
	var record T
	return recordHandler{record.Type(), func(m *controlMessage, v tunnel.Record) { apply(m, v.(T)) }}
}

// recordHandlers has the handlers by the type of record. Types without one are of later versions
// and have no effect.
var recordHandlers = byType(
	on((*controlMessage).probe),
	on((*controlMessage).answer),
	on((*controlMessage).report),
	on((*controlMessage).progress),
	on((*controlMessage).request),
	on((*controlMessage).ack),
	on((*controlMessage).hello),
	on((*controlMessage).pathAdd),
	on((*controlMessage).pathRemove),
	on((*controlMessage).nat),
	on((*controlMessage).register),
	on((*controlMessage).registered),
	on((*controlMessage).open),
	on((*controlMessage).natSession),
	on((*controlMessage).arrived),
	on((*controlMessage).sentOpen),
	on((*controlMessage).bye),
	on((*controlMessage).scout),
	on((*controlMessage).scouted),
	on((*controlMessage).rated),
	on((*controlMessage).pathUse),
)

func byType(all ...recordHandler) (table [1 << 8]func(*controlMessage, tunnel.Record)) {
	for _, h := range all {
		table[h.kind] = h.apply
	}
	return table
}

// refreshPause is the least time between changes of what schedulers see because of records.
const refreshPause = time.Millisecond

// records applies the records of a control message that came from there.
func (r *peer) records(k *keys, o *opened, from place, body []byte, size int, b *batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.removed {
		return
	}
	defer b.flush() // before others send more
	m := &r.received
	*m = controlMessage{
		peer: r, batch: b, now: r.plane.now(),
		keys: k, path: int(o.path), from: from, sent: o.stamp.Sent, size: size,
	}
	if !m.apply(body) || m.ended || !m.changed {
		return
	}
	if m.now-r.scheduling.refreshed >= refreshPause {
		r.scheduling.refresh()
	} else {
		r.scheduling.outdated = true
		r.wakeControlLocked()
	}
}

// apply applies records until the session ends. It returns false if one is malformed.
func (m *controlMessage) apply(body []byte) bool {
	for !m.ended {
		record, number, rest, err := tunnel.NextRecord(body)
		if err != nil {
			m.drop(dropMalformed)
			return false
		}
		if record == nil {
			return true
		}
		body = rest
		if record.Type().Reliable() {
			m.keys.ack = true
			if _, bye := record.(tunnel.Bye); !bye && !m.keys.in.Take(number) {
				continue
			}
			m.peer.wakeControlLocked()
		}
		if apply := recordHandlers[record.Type()]; apply != nil {
			apply(m, record)
		}
	}
	return true
}

// drop counts a record that is not applied.
func (m *controlMessage) drop(r reason) { m.peer.plane.counts.drop(r, 1) }

// probe answers a probe.
func (m *controlMessage) probe(v tunnel.Probe) {
	m.peer.prober.answer(m.batch, m.path, m.from, tunnel.Answer{ID: v.ID, Sent: m.sent, Size: uint16(m.size)}, m.now)
}

// answer applies the answer to a probe.
func (m *controlMessage) answer(v tunnel.Answer) {
	m.peer.prober.answered(m.keys, m.path, v, m.now)
	m.changed = true
}

// report applies the report of a path.
func (m *controlMessage) report(v tunnel.Report) {
	r, k, now := m.peer, m.keys, m.now
	m.changed = true
	l := &r.links[v.Path]
	if k != r.session.sending {
		// After handshakes that crossed, the gateways may send with different sessions. What was
		// measured is of the path; the counters are not of what this gateway sends.
		v.Next, v.Lost = l.reports.last.Next, l.reports.last.Lost
	}
	// No more than was sent.
	v.Next = min(v.Next, max(k.counters[v.Path], l.reports.last.Next))
	v.Lost = min(v.Lost, v.Next)
	if v.Next < l.reports.last.Next {
		return // older than the last one
	}
	if v.Next > l.reports.last.Next {
		l.probing.progress = now
	}
	// Probes that are known to be too long say nothing about the loss of packets.
	more := l.reports.loss.AddReport(v.Next, v.Lost-min(v.Lost, l.reports.oversized))
	if more > 0 {
		l.search.doubt()
	}
	l.reports.lost += more
	r.selection.lost += more
	r.selection.late = max(r.selection.late, v.Late)
	// A gateway that was restarted begins with 0, and the other one has counted what was sent
	// before.
	grown := uint64(0)
	if l.reports.received && v.Bytes > l.reports.bytes {
		grown = v.Bytes - l.reports.bytes
	}
	l.reports.bytes = v.Bytes
	l.reports.at = now - l.reports.clock.Difference(m.sent, now)
	all := l.sent.value().Bytes
	v.Bytes = l.reports.last.Bytes + min(grown, all-min(l.reports.last.Bytes, all))
	l.reports.last, l.reports.received = v, true
	r.selection.sample(int(v.Path), now)
}

// progress has packets not wait for those that the path holds no more.
func (m *controlMessage) progress(v tunnel.Progress) { m.peer.passed(m.keys, m.path, v, m.now) }

// request sends packets again that a path has lost.
func (m *controlMessage) request(v tunnel.Request) {
	m.peer.retransmitLocked(m.keys, v, m.now, m.batch)
}

// ack removes the reliable records that have arrived.
func (m *controlMessage) ack(v tunnel.Ack) { m.keys.out.Acked(v.Number) }

// hello decides which gateway numbers the paths.
func (m *controlMessage) hello(v tunnel.Hello) {
	r := m.peer
	r.numbering.peerHasEndpoints, r.numbering.peerScouts = v.Endpoints, v.Features&tunnel.Scouts != 0
	r.updateScouting(len(r.plane.routing.Load().lines))
	r.uses.know(v.Features&tunnel.Uses != 0)
	r.numbering.decide(r.own, &r.conf)
	if r.numbering.owner && m.keys == r.session.sending {
		r.session.announce()
		r.session.retractUnused()
	}
}

// pathAdd applies what the peer has configured of a path that it numbers.
func (m *controlMessage) pathAdd(v tunnel.PathAdd) {
	if m.peer.numbering.owner {
		return
	}
	l := &m.peer.links[v.Path]
	if l.removed {
		l.removed = false
		m.peer.session.forgetPlace(int(v.Path)) // its next message shows where the peer is
	}
	l.name = v.Name
	if !m.peer.registering.required() { // else the registration has them
		l.rates.down, l.rates.known, l.rates.strict, l.cost = v.Down, true, v.Strict, int(v.Cost)
	}
	m.changed = true
}

// pathRemove removes a path that the peer numbers.
func (m *controlMessage) pathRemove(v tunnel.PathRemove) {
	if m.peer.numbering.owner {
		return
	}
	l := &m.peer.links[v.Path]
	if l.line != nil {
		m.peer.log.Info("path removed by peer", "peer", m.peer.conf.Name, "path", l.title())
	}
	// What was sent over it before, and arrives later, does not bring it back.
	*l = link{number: int(v.Path), removed: true}
	m.changed = true
}

// nat applies where the peer sees this gateway.
func (m *controlMessage) nat(v tunnel.NAT) {
	if !m.peer.numbering.owner {
		m.drop(dropUnexpected)
		return
	}
	m.peer.links[v.Path].nat.seen = v.Seen
}

// register answers a request to register a path, or to relay.
func (m *controlMessage) register(v tunnel.Register) {
	m.peer.registering.answer(v, m.now)
	m.changed = true
}

// registered applies the answer to such a request.
func (m *controlMessage) registered(v tunnel.Registered) {
	m.changed = true
	switch m.peer.conf.Alliance.Role {
	case dataplane.HomeAgent:
		m.peer.registering.answered(v, m.now)
	case dataplane.Member:
		m.peer.memberRequest.answered(v, m.now)
	default:
		m.drop(dropUnexpected)
	}
}

// open applies the cookie that the peer accepts open messages with.
func (m *controlMessage) open(v tunnel.Open) {
	m.peer.session.openCookie = v.Cookie
	m.changed = true
}

// natSession passes a record about NAT sessions to the open plane.
func (m *controlMessage) natSession(v tunnel.NATSession) {
	r := m.peer
	if r.plane.opened == nil || r.conf.Mode != dataplane.NAT {
		m.drop(dropUnexpected)
		return
	}
	r.plane.opened.NATSession(r.conf.Name, v)
}

// arrived applies how many open messages have arrived over a path.
func (m *controlMessage) arrived(v tunnel.Arrived) {
	l := &m.peer.links[v.Path]
	l.reports.lost += l.reports.openLoss.AddReport(v.Packets, v.Lost)
	m.changed = true
}

// sentOpen passes to the open plane how many packets without numbers were sent over the path of the
// message.
func (m *controlMessage) sentOpen(v tunnel.Sent) {
	r := m.peer
	if r.plane.opened == nil || !r.conf.Mode.Counted() {
		m.drop(dropUnexpected)
		return
	}
	r.plane.opened.Marked(r.conf.Name, m.path, v.Packets)
}

// bye ends the session.
func (m *controlMessage) bye(tunnel.Bye) {
	m.peer.log.Info("peer has ended the session", "peer", m.peer.conf.Name)
	m.peer.session.end()
	m.ended = true
}

// reports are what the peer has reported of a path.
type reports struct {
	last     tunnel.Report // Bytes are those since the first one
	received bool          // last is
	bytes    uint64        // in the last report as they arrived
	at       time.Duration // when the peer sent it, on its clock but for a constant
	clock    quality.Clock

	loss      quality.LossMeter
	openLoss  quality.LossMeter // of the open plane
	lost      uint64            // packets towards the peer, of both planes
	oversized uint64            // probes under the current keys that were known to be too long
}
