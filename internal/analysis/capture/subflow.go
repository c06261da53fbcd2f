package capture

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/analysis/pcap"
	"github.com/tabane/tabane/internal/gateway/reseq"
)

// subflow is one TCP connection.
type subflow struct {
	flow   pcap.Flow // from its client, the sender of the SYN
	conn   *connection
	index  int  // in the connection
	turned bool // its client is the connection's server
	halves [2]*half

	began time.Duration
	// Times of the three packets of the handshake; 0 if they were not captured.
	syn, synAck, ack time.Duration
	hasSyn, hasAck   bool
	hasSynAck        bool
	joined, capable  bool
	loose            bool // its connection can only be found by its data sequence numbers
	backup           bool
	addressID        uint8
	signaled         bool // some segment had an MPTCP option
	reset            bool
	unknownToken     uint32
	hasUnknownToken  bool
}

// rtt returns the round-trip time of the handshake at the capture point; 0 if it was not captured.
func (s *subflow) rtt() time.Duration {
	if s.hasSyn && s.hasAck {
		return s.ack - s.syn
	}
	return 0
}

// half is one direction of a subflow.
type half struct {
	sub   *subflow
	other *half
	index int // 0: from the subflow's client

	seen   bool
	at     place
	copies uint64 // of its segments

	// Sequence numbers are extended to 64 bits and relative to isn. If no SYN was captured, isn
	// is the first captured number, and positions start at unplaced, so that lower numbers can
	// follow.
	syn, placed bool
	isn         uint32
	top         uint64 // the end of the highest segment
	topAt       time.Duration
	// lag is the offset to add to the subflow sequence numbers of mappings.
	lag      uint32
	lagKnown bool
	early    []dss // mappings received before lag was known
	lastMap  dss
	lastEnd  uint64

	buffer  *reseq.Buffer
	maps    mappings
	waiting []piece // in order at the subflow level, but without a mapping yet
	held    reseq.Count
	ack     uint32 // the last acknowledgment number of this half
	hasAck  bool
	window  uint16 // the last window of this half
	// probe is the position of the byte of a window probe that is not acknowledged.
	probe    uint64
	hasProbe bool
	fin      uint64
	hasFin   bool
	topDSN   uint64
	anyData  bool

	// Counters and histograms.
	packets, segments, optionsCut uint64
	resets                        uint64
	wire                          uint64 // bytes of payload, including retransmissions
	retransmitted, reordered      reseq.Count
	reinjected, duplicateData     uint64
	unmapped, conflicts           uint64
	skipped                       uint64
	first, last                   time.Duration // of payload
	largest                       int           // payload of one segment
	probes                        uint64        // of the window, and that the connection is alive
	hops                          uint8
	tunnels                       [][16]byte
	outbound, inbound             uint64
	delay, wait                   reseq.Histogram // of its data: in total, and at the connection level

	verifier *verifier
}

func (h *half) dir() *direction {
	i := h.index
	if h.sub.turned {
		i ^= 1
	}
	return h.sub.conn.dirs[i]
}

// renewedBy reports whether a SYN opens a new connection with the same addresses and ports.
func (h *half) renewedBy(s *pcap.Segment) bool {
	if s.Flags&pcap.ACK != 0 && !h.syn {
		return h.anyData || h.sub.ended()
	}
	if h.syn {
		return h.isn != s.Seq
	}
	return h.seen || h.sub.ended()
}

// fromStart reports whether the subflow's start was captured.
func (h *half) fromStart() bool { return h.sub.hasSyn || h.sub.hasSynAck }

func (s *subflow) ended() bool { return s.reset || s.halves[0].hasFin && s.halves[1].hasFin }

const unplaced = 1 << 32

// place extends a sequence number to 64 bits, relative to isn.
func (h *half) place(seq uint32) uint64 {
	if !h.placed {
		h.placed, h.isn, h.top = true, seq, unplaced
		return h.top
	}
	return h.top + uint64(int64(int32(seq-h.isn-uint32(h.top))))
}

// begin sets the initial sequence number.
func (h *half) begin(isn uint32) {
	if h.placed {
		return
	}
	h.placed, h.isn, h.top, h.lagKnown = true, isn, 1, true
}

// farthest is the maximum distance of a sequence number from the expected one: the largest window
// of TCP (RFC 7323).
const farthest = 1 << 30

// segment processes a segment of this half.
func (h *half) segment(a *Analysis, s *pcap.Segment, o *options) {
	h.seen = true
	h.packets++
	h.hops = s.HopLimit
	switch s.Direction {
	case pcap.Inbound:
		h.inbound++
	case pcap.Outbound:
		h.outbound++
	case pcap.DirectionUnknown:
	}
	h.tunnel(s)
	if s.Flags&pcap.SYN != 0 {
		h.begin(s.Seq)
		h.syn = true
	}
	h.handshake(a, s, o)
	if o.seen != 0 {
		h.signals(a, s, o)
	}
	if s.Flags&pcap.ACK != 0 {
		h.ack, h.hasAck, h.window = s.Ack, true, s.Window
		h.other.acknowledged(a, s.Ack)
	}
	var at uint64
	if s.Payload > 0 || s.Flags&(pcap.FIN|pcap.SYN) != 0 {
		at = h.place(s.Seq)
		if s.Flags&pcap.SYN != 0 {
			at++ // data in a SYN follows it
		}
	}
	if o.has(subDSS) {
		h.signal(a, &o.dss, at, s.Payload)
	} else if o.has(subCapable) && o.capable.length > 0 && h.lagKnown && h.sub.capable {
		if d := h.dir(); d.keyKnown {
			h.sub.conn.signals = true
			k := &o.capable
			m := mapping{start: 1, end: 1 + uint64(k.length), dsn: d.idsn + 1}
			if k.hasSum {
				m.signed = sign(m.dsn, 1, k.length, k.sum, false)
			}
			h.mapped(a, m)
		}
	}
	switch {
	case h.probing(s):
		h.probes++
		if s.Seq == h.other.ack {
			h.probe, h.hasProbe = at, true
		}
	case s.Payload > 0:
		h.payload(a, at, s.Payload, s.Data)
	}
	if s.Flags&pcap.FIN != 0 && !h.hasFin {
		h.hasFin, h.fin = true, at+uint64(s.Payload)
	}
	if s.Flags&pcap.RST != 0 {
		h.sub.reset = true
		h.resets++
	}
}

// probing reports whether a segment is a probe and no data: one byte beyond a window of zero (RFC
// 9293, section 3.8.6.1), or the last acknowledged byte again to ask whether the peer is alive
// (section 3.8.4).
func (h *half) probing(s *pcap.Segment) bool {
	o := h.other
	if s.Payload != 1 || s.Flags&(pcap.SYN|pcap.FIN|pcap.RST) != 0 || !o.hasAck {
		return false
	}
	return s.Seq == o.ack && o.window == 0 || s.Seq+1 == o.ack && h.buffer != nil && h.place(s.Seq)+1 >= h.top
}

// probed adds the byte of a window probe when it is acknowledged, without having come as data.
func (h *half) probed(a *Analysis, ack uint32) {
	if h.hasProbe && h.place(ack) > h.probe {
		h.hasProbe = false
		h.payload(a, h.probe, 1, nil)
	}
}

// tunnel records the tunnel of a segment.
func (h *half) tunnel(s *pcap.Segment) {
	if s.Tunneled && !slices.Contains(h.tunnels, s.Tunnel) && len(h.tunnels) < 8 {
		h.tunnels = append(h.tunnels, s.Tunnel)
	}
}

func (h *half) handshake(a *Analysis, s *pcap.Segment, o *options) {
	sub := h.sub
	switch s.Flags & (pcap.SYN | pcap.ACK) {
	case pcap.SYN:
		sub.syn, sub.hasSyn = a.now, true
	case pcap.SYN | pcap.ACK:
		if !sub.hasSynAck {
			sub.synAck, sub.hasSynAck = a.now, true
		}
		h.other.begin(s.Ack - 1)
		if c := sub.conn; sub.capable && c.mptcp && !o.has(subCapable) && !s.OptionsCut {
			c.fallBack(a, "the server did not answer MP_CAPABLE")
		}
	case pcap.ACK:
		if h.index == 0 && sub.hasSynAck && !sub.hasAck {
			sub.ack, sub.hasAck = a.now, true
		}
	}
}

// signals processes the MPTCP options that concern the connection.
func (h *half) signals(a *Analysis, s *pcap.Segment, o *options) {
	sub := h.sub
	syn := s.Flags&pcap.SYN != 0
	if o.has(subCapable) {
		h.capable(a, s, &o.capable)
	}
	if o.has(subJoin) && syn {
		switch {
		case s.Flags&pcap.ACK == 0 && o.join.syn && !sub.joined:
			sub.joined, sub.backup, sub.addressID = true, o.join.backup, o.join.id
			a.joinToken(sub, o.join.token)
		case s.Flags&pcap.ACK != 0 && !sub.joined:
			// The token is in the SYN only.
			sub.joined, sub.loose = true, true
		}
	}
	c := sub.conn
	if !sub.signaled {
		sub.signaled, c.mptcp = true, true
	}
	event := func(format string, arguments ...any) {
		from := h.index == 0
		if sub.turned {
			from = !from
		}
		c.event(Event{At: a.now, Subflow: sub.index, FromClient: from, What: fmt.Sprintf(format, arguments...)})
	}
	if o.has(subAddAddr) && !o.addr.echo {
		event("ADD_ADDR %d: %s", o.addr.id, address(o.addr.addr, o.addr.port))
	}
	if o.has(subRemoveAddr) {
		event("REMOVE_ADDR %s", spaced(o.removed))
	}
	if o.has(subPrio) {
		sub.backup = o.backup
		if o.backup {
			event("MP_PRIO: the subflow is a backup")
		} else {
			event("MP_PRIO: the subflow is not a backup")
		}
	}
	if o.has(subFail) {
		event("MP_FAIL: a checksum was wrong at data sequence number %d", o.failedAt)
	}
	if o.has(subFastclose) {
		event("MP_FASTCLOSE: the connection is closed at once")
		c.fastclosed = true
	}
	if o.has(subReset) {
		event("MP_TCPRST: reason %d (%s)", o.resetWhy, resetReason(o.resetWhy))
	}
}

// resetReason returns the text of a reason code of MP_TCPRST (RFC 8684 section 3.6).
func resetReason(code uint8) string {
	reasons := [...]string{
		"unspecified", "MPTCP-specific error", "lack of resources", "administratively prohibited",
		"too much outstanding data", "unacceptable performance", "middlebox interference",
	}
	if int(code) < len(reasons) {
		return reasons[code]
	}
	return "unknown"
}

func spaced(ids []byte) string {
	text := ""
	for i, id := range ids {
		if i > 0 {
			text += " "
		}
		text += fmt.Sprint(id)
	}
	return text
}

// capable processes MP_CAPABLE.
func (h *half) capable(a *Analysis, s *pcap.Segment, o *capable) {
	sub, c := h.sub, h.sub.conn
	if sub.joined {
		return
	}
	sub.capable = true
	c.initial = sub
	c.checksums = c.checksums || o.checksum && !o.hasBoth
	switch {
	case s.Flags&pcap.SYN != 0 && s.Flags&pcap.ACK == 0:
		c.version, c.versionKnown = int(o.version), true
		if o.version == 0 && o.hasSender {
			a.key(c, 0, o.sender)
		}
	case s.Flags&pcap.SYN != 0:
		// The server chooses the version.
		if !c.versionKnown || int(o.version) < c.version {
			c.rehash(int(o.version))
		}
		c.version, c.versionKnown, c.confirmed = int(o.version), true, true
		if o.hasSender {
			a.key(c, 1, o.sender)
		}
	case h.index == 0:
		c.confirmed = true
		if !c.versionKnown {
			c.version, c.versionKnown = int(o.version), true
		}
		if o.hasBoth {
			a.key(c, 0, o.sender)
			a.key(c, 1, o.receiver)
		}
	}
}

// signal processes the DSS option of a segment, given its sequence number and payload length.
func (h *half) signal(a *Analysis, o *dss, at uint64, payload int) {
	sub := h.sub
	if sub.loose || !sub.capable && !sub.joined {
		a.settle(h, o)
	}
	c := sub.conn
	c.signals = true
	out, back := h.dir(), h.other.dir()
	if o.hasAck {
		ack := back.expand(o.ack, o.ack8)
		a.noteDSN(back, ack, o.ack8)
		back.acknowledged(a, ack)
	}
	if !o.hasMap {
		return
	}
	dsn := out.expand(o.dsn, o.map8)
	a.noteDSN(out, dsn, o.map8)
	length := uint64(o.length)
	if o.fin && length > 0 {
		length--
		if !out.hasFin {
			out.hasFin, out.fin = true, dsn+length
		}
	}
	if o.length == 0 {
		length = math.MaxUint32 // the infinite mapping covers the rest of the subflow
		if c.fallback == "" {
			c.fallback = "infinite mapping"
			c.event(Event{At: a.now, Subflow: sub.index, FromClient: (h.index == 0) != sub.turned, What: "infinite mapping"})
		}
	}
	var s signed
	if o.hasSum && o.length > 0 { // an infinite mapping's is ignored (RFC 8684, section 3.7)
		s = sign(dsn, o.subflow, o.length, o.sum, !out.wide)
	}
	if length == 0 || payload == 0 && o.subflow == 0 {
		if o.fin && length == 0 && h.checks(a, s) && !h.verifier.fin { // a DATA_FIN alone
			h.verifier.fin = true
			h.judge(a, &mapping{dsn: dsn, signed: s}, 0, true)
		}
		return
	}
	if !h.lagKnown {
		h.learnLag(a, o, at, payload)
		if !h.lagKnown {
			return
		}
	}
	base := h.top
	if payload > 0 {
		base = at
	}
	start := base + uint64(int64(int32(o.subflow+h.lag-uint32(base))))
	h.mapped(a, mapping{start: start, end: start + length, dsn: dsn, signed: s})
}

// learnLag determines the offset of subflow sequence numbers when the SYN was not captured. TSO may
// copy a mapping to several segments, so the start of a mapping is certain only if it is as long as
// its segment or continues the previous mapping.
func (h *half) learnLag(a *Analysis, o *dss, at uint64, payload int) {
	if payload == 0 {
		return
	}
	last, end := h.lastMap, h.lastEnd
	h.lastMap, h.lastEnd = *o, at+uint64(payload)
	length := int(o.length)
	if o.fin {
		length--
	}
	follows := last.hasMap && end == at && last.subflow != o.subflow && last.subflow+uint32(last.length) == o.subflow
	if length != payload && !follows {
		if len(h.early) == 0 || h.early[len(h.early)-1].subflow != o.subflow {
			if len(h.early) < maxMappings {
				h.early = append(h.early, *o)
			}
		}
		return
	}
	h.lag, h.lagKnown = uint32(at)-o.subflow, true
	early := h.early
	h.early = nil
	for i := range early {
		h.signal(a, &early[i], at, 0)
	}
}

// mapped adds a mapping to the half.
func (h *half) mapped(a *Analysis, m mapping) {
	switch h.maps.add(m) {
	case repeated:
		return
	case conflicting, refused:
		h.conflicts++
		return
	case added:
	}
	if h.checks(a, m.signed) && h.buffer != nil {
		h.verify(a, h.buffer.Next(), 0, nil)
	}
	if len(h.waiting) > 0 {
		again := h.waiting
		h.waiting = nil
		h.deliver(a, again)
	}
}

// acknowledged processes a cumulative acknowledgment of this half. Missing bytes below it were
// transmitted but not captured.
func (h *half) acknowledged(a *Analysis, ack uint32) {
	h.probed(a, ack)
	if h.buffer == nil {
		return
	}
	at, next := h.place(ack), h.buffer.Next()
	if h.hasFin && at > h.fin {
		at = h.fin
	}
	if at <= next || at-next > farthest {
		return
	}
	if h.buffer.Occupancy().Segments == 0 && at-next == 1 {
		return // a FIN that was not captured
	}
	before := h.buffer.Measures().Skipped
	a.pieces = a.pieces[:0]
	h.buffer.Skip(a.now, at)
	h.skipped += h.buffer.Measures().Skipped - before
	h.top = max(h.top, at)
	if h.verifier != nil {
		h.verify(a, at, 0, nil)
	}
	h.deliver(a, a.pieces)
	h.dir().account(a, h)
}

// payload processes a payload of the given length; data is its captured part.
func (h *half) payload(a *Analysis, at uint64, length int, data []byte) {
	if h.buffer == nil {
		start := at
		if h.lagKnown && h.top == 1 {
			start = 1
		} else if o := h.other; o.hasAck {
			if p := h.place(o.ack); p < at && at-p < farthest {
				start = p // the missing bytes may arrive later
			}
		}
		h.buffer = reseq.New(reseq.Options{Start: start, Bursts: a.o.Record, Released: func(now time.Duration, s reseq.Segment) {
			a.pieces = append(a.pieces, piece{arrived: s.Arrived, seq: s.Seq, length: s.Length, released: now})
		}})
		h.first, h.topAt = a.now, a.now
		h.top = max(h.top, start)
	}
	d := h.dir()
	if h.hasProbe && at+uint64(length) > h.probe {
		h.hasProbe = false
	}
	if next := h.buffer.Next(); at > next+farthest || at+farthest < next {
		a.m.Stray++
		return
	}
	h.segments++
	h.wire += uint64(length)
	h.largest = max(h.largest, length)
	h.last = a.now
	a.pieces = a.pieces[:0]
	r := h.buffer.Push(a.now, 0, at, length)
	if !d.conn.mptcp {
		d.maxBurst = max(d.maxBurst, r.Bytes)
	}
	switch end := at + uint64(length); {
	case r.New == 0:
		h.retransmitted.Segments++
	case at < h.top && h.lateBy(a.now):
		h.retransmitted.Segments++
		h.retransmitted.Bytes += uint64(r.New)
	case at < h.top:
		h.reordered.Segments++
		h.reordered.Bytes += uint64(r.New)
	default:
		h.top, h.topAt = end, a.now
	}
	h.retransmitted.Bytes += uint64(length - r.New)
	h.top = max(h.top, at+uint64(length))
	if r.New > 0 {
		d.arrived(a, r.New)
	}
	if h.verifier != nil {
		h.verify(a, h.buffer.Next(), at, data)
	}
	h.deliver(a, a.pieces)
	d.account(a, h)
}

// lateBy reports whether a late segment is a retransmission rather than reordered by the network.
// The threshold is half the handshake RTT, but 1 to 3 ms, or 3 ms if the RTT is unknown, as in
// Wireshark.
func (h *half) lateBy(now time.Duration) bool {
	late := 3 * time.Millisecond
	if rtt := h.sub.rtt(); rtt > 0 {
		late = min(max(rtt/2, time.Millisecond), late)
	}
	return now-h.topAt > late
}

// maxWaiting limits the pieces that wait for their mapping.
const maxWaiting = 4096

// deliver passes data that is in order at the subflow level to the connection level.
func (h *half) deliver(a *Analysis, pieces []piece) {
	if len(pieces) == 0 {
		return
	}
	d := h.dir()
	c := d.conn
	if !c.mptcp {
		for i := range pieces {
			d.record(a, h.sub.index, &pieces[i], pieces[i].released, pieces[i].released, pieces[i].seq)
		}
		return
	}
	for i := range pieces {
		p := pieces[i]
		for p.length > 0 {
			m, next, ok := h.maps.find(p.seq)
			if !ok {
				k := p.length
				if next-p.seq < uint64(k) {
					k = int(next - p.seq)
				}
				if len(h.waiting) < maxWaiting {
					w := p
					w.length = k
					h.waiting = append(h.waiting, w)
				} else {
					h.unmapped += uint64(k)
				}
				p.seq, p.length = p.seq+uint64(k), p.length-k
				continue
			}
			k := p.length
			if m.end-p.seq < uint64(k) {
				k = int(m.end - p.seq)
			}
			d.batch = append(d.batch, reseq.Segment{Arrived: p.arrived, Path: h.sub.index, Seq: m.dsn + (p.seq - m.start), Length: k})
			p.seq, p.length = p.seq+uint64(k), p.length-k
		}
	}
	d.push(a, h)
	h.maps.prune(h.buffer.Next())
	if len(h.waiting) > 16 && !c.signals && c.fallback == "" && len(c.subflows) == 1 && h.optionsCut == 0 {
		c.fallBack(a, "there was no data sequence signal")
	}
}
