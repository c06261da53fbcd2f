package capture

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/gateway/reseq"
)

// connection is a TCP connection or the subflows of an MPTCP connection.
type connection struct {
	id           int
	mptcp        bool
	version      int
	versionKnown bool
	confirmed    bool // both sides support MPTCP
	signals      bool // a data sequence signal was seen
	merged       bool // its subflows belong to another connection
	fallback     string
	fastclosed   bool
	checksums    bool // one side requested them, so both must send them
	initial      *subflow
	subflows     []*subflow
	dirs         [2]*direction // 0: from the client
	events       []Event
	moreEvents   int
	// contradictions counts joins by subflows that had already carried data of another
	// connection.
	contradictions uint64
}

const maxEvents = 1000

func (c *connection) event(e Event) {
	if len(c.events) < maxEvents {
		c.events = append(c.events, e)
	} else {
		c.moreEvents++
	}
}

// take appends a subflow to the connection. turned means that the subflow's client is the
// connection's server.
func (c *connection) take(s *subflow, turned bool) {
	s.conn, s.index, s.turned = c, len(c.subflows), turned
	c.subflows = append(c.subflows, s)
}

// movable reports whether the connection can still be merged into another: none of its data has
// been resequenced, so that no buffer refers to its subflows by index.
func (c *connection) movable() bool {
	for _, d := range c.dirs {
		if d.buffer != nil || len(d.queue) > 0 {
			return false
		}
	}
	return c.initial == nil && !c.merged
}

// merge moves all subflows of old, which must be movable, to c. turned means that the client of one
// is the server of the other. Subflows are always moved together: otherwise old would keep data of
// subflows that it no longer has.
func (c *connection) merge(a *Analysis, old *connection, turned bool) {
	first := len(c.subflows)
	for _, s := range old.subflows {
		for _, h := range s.halves {
			h.dir().uncount(h.held)
		}
		s.hasUnknownToken = false
		c.take(s, s.turned != turned)
		for _, h := range s.halves {
			h.dir().count(h.held)
		}
	}
	for _, e := range old.events {
		e.Subflow += first
		e.FromClient = e.FromClient != turned
		c.event(e)
	}
	c.moreEvents += old.moreEvents
	for _, d := range c.dirs {
		if d.total != d.held.now {
			d.account(a, nil)
		}
	}
	old.merged, old.subflows, old.events = true, nil, nil
}

// digest returns the token and the initial data sequence number of a key: the first 32 and the last
// 64 bits of its SHA-1 in version 0 (RFC 6824 section 3.1), of its SHA-256 in version 1 (RFC 8684
// section 3.1).
func digest(version int, key uint64) (token uint32, idsn uint64) {
	var k [8]byte
	binary.BigEndian.PutUint64(k[:], key)
	if version == 0 {
		h := sha1.Sum(k[:])
		return binary.BigEndian.Uint32(h[:]), binary.BigEndian.Uint64(h[12:])
	}
	h := sha256.Sum256(k[:])
	return binary.BigEndian.Uint32(h[:]), binary.BigEndian.Uint64(h[24:])
}

// key records the key of one side; side 0 is the client.
func (a *Analysis) key(c *connection, side int, key uint64) {
	d := c.dirs[side]
	if d.keyKnown && d.peerKey == key {
		return
	}
	d.peerKey, d.keyKnown = key, true
	d.token, d.idsn = digest(c.version, key)
	if old := a.tokens[d.token]; old != nil && old != c && old.movable() {
		// Its subflows joined before the key was seen, since files are merged by timestamps
		// of different clocks.
		c.merge(a, old, side == 0)
	}
	a.tokens[d.token] = c
	a.noteDSN(d, d.idsn+1, true)
	if d.buffer == nil && len(d.queue) > 0 {
		d.start(a, d.idsn+1)
	}
}

// rehash recomputes tokens and initial data sequence numbers for the negotiated version.
func (c *connection) rehash(version int) {
	for _, d := range c.dirs {
		if d.keyKnown {
			d.token, d.idsn = digest(version, d.peerKey)
		}
	}
}

// joinToken finds the connection of an MP_JOIN by the token of its receiver.
func (a *Analysis) joinToken(sub *subflow, token uint32) {
	c := a.tokens[token]
	if c == nil || c.merged {
		// Keep subflows with the same token together.
		a.tokens[token] = sub.conn
		sub.unknownToken, sub.hasUnknownToken = token, true
		sub.loose = true
		return
	}
	if c == sub.conn {
		return
	}
	if !sub.conn.movable() {
		// A second SYN on a subflow that has carried data: one of the two is corrupt.
		c.contradictions++
		return
	}
	turned := c.dirs[0].keyKnown && c.dirs[0].token == token
	last := c.subflows[len(c.subflows)-1]
	c.merge(a, sub.conn, turned != sub.turned)
	if last.hasUnknownToken {
		sub.unknownToken, sub.hasUnknownToken, sub.loose = token, true, true
	}
}

// settle assigns a subflow to a connection by a data sequence number.
func (a *Analysis) settle(h *half, o *dss) {
	sub := h.sub
	own := sub.conn
	if !own.movable() {
		sub.loose = false
		return
	}
	try := func(h *half, dsn uint64, long bool) bool {
		c, i := a.neighbor(sub, dsn, long)
		if c == nil {
			return false
		}
		if sub.hasUnknownToken {
			a.tokens[sub.unknownToken] = c
		}
		c.merge(a, own, h.dir().index != i)
		sub.loose = false
		return true
	}
	if o.hasMap && try(h, o.dsn, o.map8) {
		return
	}
	if o.hasAck {
		try(h.other, o.ack, o.ack8)
	}
}

// fallBack marks a connection of one subflow as plain TCP, from its start.
func (c *connection) fallBack(a *Analysis, why string) {
	c.fallback, c.mptcp = why, false
	for _, h := range c.subflows[0].halves {
		d := h.dir()
		for i := range h.waiting {
			p := &h.waiting[i]
			d.record(a, 0, p, p.released, p.released, p.seq)
		}
		h.waiting = nil
	}
}

// direction is the data of one side.
type direction struct {
	conn  *connection
	index int

	// State of the sending side.
	peerKey  uint64
	keyKnown bool
	token    uint32
	idsn     uint64

	anyDSN  bool
	wide    bool // its upper 32 bits are known
	lastDSN uint64
	key     nearKey
	ack     uint64
	hasAck  bool
	fin     uint64
	hasFin  bool

	buffer *reseq.Buffer
	origin uint64 // the sequence number of offset 0 in records
	known  bool   // origin is the start of the data
	// settled is the highest of the first data sequence numbers of the subflows that started
	// before the capture: data below it may have arrived before the capture.
	settled    uint64
	hasSettled bool
	batch      []reseq.Segment
	queue      []reseq.Segment // until the start of the data is known

	wait    reseq.Histogram // delay at the connection level
	own     reseq.Histogram // delay at the subflow level
	missing uint64          // bytes acknowledged but not captured

	maxBurst int // in bytes

	held      occupancy
	heldData  reseq.Count
	total     reseq.Count
	first     time.Duration
	last      time.Duration
	anyNew    bool
	longest   time.Duration
	longestAt time.Duration
	gaps      int

	records []Record
	trace   []Occupancy
}

// Record is one piece of data: the intersection of a mapping and a segment.
type Record struct {
	// Arrived is when it was captured; Ordered when it was in order at the subflow level;
	// Released when it was in order at the data level.
	Arrived, Ordered, Released time.Duration
	Subflow                    int
	// Seq counts from the first byte of the direction.
	Seq    uint64
	Length int
}

// Occupancy is the reorder-buffer occupancy from a time on.
type Occupancy struct {
	At    time.Duration
	Bytes uint64
}

// occupancy is the mean and the peak of a buffer's occupancy.
type occupancy struct {
	since time.Duration
	begun time.Duration
	any   bool
	now   reseq.Count
	peak  reseq.Count
	area  float64 // bytes times nanoseconds
}

func (o *occupancy) set(now time.Duration, c reseq.Count) {
	if !o.any {
		o.any, o.begun = true, now
	} else {
		o.area += float64(o.now.Bytes) * float64(now-o.since)
	}
	o.since, o.now = now, c
	o.peak.Bytes = max(o.peak.Bytes, c.Bytes)
	o.peak.Segments = max(o.peak.Segments, c.Segments)
}

func (o *occupancy) mean() float64 {
	if d := o.since - o.begun; d > 0 {
		return o.area / float64(d)
	}
	return 0
}

// expand extends a 4-byte data sequence number to the 8-byte one nearest to the last known number.
func (d *direction) expand(n uint64, long bool) uint64 {
	if long {
		return n
	}
	near := d.idsn
	if d.anyDSN {
		near = d.lastDSN
	}
	return near + uint64(int64(int32(uint32(n)-uint32(near))))
}

// farthestData is the maximum distance of a data sequence number from the expected one. It exceeds
// any window, because data missing in the capture advances the expected number only with the next
// acknowledgment.
const farthestData = 1 << 32

// maxQueue limits the segments queued until an acknowledgment reveals the start of the data.
const maxQueue = 256

// push adds the pieces that one arrival on a half released to the buffer.
func (d *direction) push(a *Analysis, h *half) {
	if len(d.batch) == 0 {
		return
	}
	for i := range d.batch {
		s := &d.batch[i]
		d.own.Add(int64(a.now - s.Arrived))
		if !h.anyData && !h.fromStart() && (!d.hasSettled || int64(s.Seq-d.settled) > 0) {
			d.settled, d.hasSettled = s.Seq, true
		}
		if end := s.Seq + uint64(s.Length); !h.anyData || int64(end-h.topDSN) > 0 {
			h.topDSN, h.anyData = end, true
		} else {
			h.reinjected += uint64(s.Length)
		}
	}
	if d.buffer == nil {
		switch {
		case d.keyKnown:
			d.known = true
			d.start(a, d.idsn+1)
		case d.hasAck:
			d.start(a, d.ack)
		default:
			d.queue = append(d.queue, d.batch...)
			d.batch = d.batch[:0]
			if len(d.queue) >= maxQueue {
				d.start(a, d.begin())
			}
			return
		}
	}
	total, kept := 0, d.batch[:0]
	for _, s := range d.batch {
		if distance(s.Seq, d.buffer.Next()) > farthestData {
			a.m.Stray++
			continue
		}
		if d.early(&s) {
			continue
		}
		kept = append(kept, s)
		total += s.Length
	}
	d.batch = kept
	r := d.buffer.PushBatch(a.now, d.batch)
	d.batch = d.batch[:0]
	h.duplicateData += uint64(total - r.New)
	d.maxBurst = max(d.maxBurst, r.Bytes)
}

// begin returns the start of the data in the queue when there is no acknowledgment.
func (d *direction) begin() uint64 {
	if d.hasSettled {
		return d.settled
	}
	return d.lowest()
}

// early reports whether a segment may contain data sent before the capture started.
func (d *direction) early(s *reseq.Segment) bool {
	return !d.known && int64(s.Seq+uint64(s.Length)-d.origin) <= 0
}

func (d *direction) lowest() uint64 {
	low := d.queue[0].Seq
	for _, s := range d.queue {
		if int64(s.Seq-low) < 0 {
			low = s.Seq
		}
	}
	return low
}

// start creates the buffer and adds the queued segments to it.
func (d *direction) start(a *Analysis, at uint64) {
	d.origin = at
	d.buffer = reseq.New(reseq.Options{Start: at, Bursts: a.o.Record, Released: func(now time.Duration, s reseq.Segment) {
		wait := now - s.Ready
		d.wait.Add(int64(wait))
		h := d.carrierOf(s.Path)
		h.delay.Add(int64(now - s.Arrived))
		h.wait.Add(int64(wait))
		d.record(a, s.Path, &piece{arrived: s.Arrived, length: s.Length}, s.Ready, now, s.Seq)
	}})
	queue := slices.DeleteFunc(d.queue, func(s reseq.Segment) bool { return d.early(&s) })
	d.queue = nil
	if len(queue) > 0 {
		d.buffer.PushBatch(a.now, queue)
	}
}

// carrierOf returns the half of a subflow that carries this direction.
func (d *direction) carrierOf(subflow int) *half {
	s := d.conn.subflows[subflow]
	if s.turned {
		return s.halves[d.index^1]
	}
	return s.halves[d.index]
}

// acknowledged processes a data acknowledgment: uncaptured data below it is skipped.
func (d *direction) acknowledged(a *Analysis, ack uint64) {
	if d.hasFin && int64(ack-d.fin) > 0 {
		ack = d.fin
	}
	if !d.hasAck || int64(ack-d.ack) > 0 {
		d.ack, d.hasAck = ack, true
	}
	if d.buffer == nil {
		if len(d.queue) > 0 {
			d.start(a, min(ack, d.lowest()))
		}
		return
	}
	next := d.buffer.Next()
	ahead := int64(ack - next)
	if ahead <= 0 || ahead > farthest || ahead == 1 && d.heldData.Segments == 0 {
		return
	}
	if !d.known && d.hasSettled {
		before := d.settled
		if int64(ack-before) < 0 {
			before = ack
		}
		d.buffer.Skip(a.now, before)
	}
	skipped := d.buffer.Measures().Skipped
	d.buffer.Skip(a.now, ack)
	if d.known || d.hasSettled {
		d.missing += d.buffer.Measures().Skipped - skipped
	}
	d.account(a, nil)
}

// arrived records the arrival of new bytes.
func (d *direction) arrived(a *Analysis, n int) {
	if !d.anyNew {
		d.anyNew, d.first = true, a.now
	} else {
		gap := a.now - d.last
		if gap > d.longest {
			d.longest, d.longestAt = gap, d.last
		}
		if gap >= a.o.Idle {
			d.gaps++
		}
	}
	d.last = a.now
}

// count and uncount add to and subtract from the occupancy at both levels.
func (d *direction) count(c reseq.Count) {
	d.total.Bytes += c.Bytes
	d.total.Segments += c.Segments
}

func (d *direction) uncount(c reseq.Count) {
	d.total.Bytes -= c.Bytes
	d.total.Segments -= c.Segments
}

// account updates the occupancy at the level of the changed subflow and at the connection level.
func (d *direction) account(a *Analysis, h *half) {
	change := func(old *reseq.Count, b *reseq.Buffer) {
		if b == nil {
			return
		}
		d.uncount(*old)
		*old = b.Occupancy()
		d.count(*old)
	}
	if h != nil {
		change(&h.held, h.buffer)
	}
	change(&d.heldData, d.buffer)
	if d.total != d.held.now || !d.held.any {
		d.held.set(a.now, d.total)
		if d.trace != nil {
			d.trace = append(d.trace, Occupancy{a.now, d.total.Bytes})
		}
	}
}

// record stores a piece for figures and tables.
func (d *direction) record(a *Analysis, subflow int, p *piece, ordered, released time.Duration, seq uint64) {
	if !a.o.Record {
		return
	}
	if a.records >= a.o.MaxRecords {
		a.m.Unrecorded++
		return
	}
	a.records++
	if d.trace == nil {
		d.trace = []Occupancy{{}}
	}
	if d.buffer == nil && len(d.records) == 0 {
		d.origin = seq
	}
	d.records = append(d.records, Record{Arrived: p.arrived, Ordered: ordered, Released: released, Subflow: subflow, Seq: seq - d.origin, Length: p.length})
}
