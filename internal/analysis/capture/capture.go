package capture

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/analysis/pcap"
)

// Options configure an analysis.
type Options struct {
	// Record keeps every segment with its times, every burst and the buffer occupancy over
	// time, for figures and tables. It takes about 100 bytes for each segment.
	Record bool
	// MaxRecords bounds the segments that Record keeps in all; further ones are counted as
	// missed. 0 means DefaultMaxRecords.
	MaxRecords int
	// SortMemory bounds, in bytes, the segments that Read holds to sort files whose times run
	// backwards; 0 means DefaultSortMemory. What needs more is refused with ErrDisorder.
	SortMemory int
	// Idle is the shortest time without new data that counts as a gap; 0 means DefaultIdle.
	Idle time.Duration

	// excluded has, for each flow captured at several points, those whose segments are also
	// captured at a better one. It is complete if surveyed is set.
	excluded map[pcap.Flow][]point
	surveyed bool
	names    []string // of the files
}

// The defaults of Options.
const (
	DefaultMaxRecords = 4_000_000
	DefaultIdle       = time.Second
)

// Analysis reconstructs connections from TCP segments, which are added in the order of their times.
// It is not safe for concurrent use.
type Analysis struct {
	o Options
	// origin is the time of the first segment, now that of the latest, as the time since then.
	origin  int64
	started bool
	now     time.Duration

	halves      map[pcap.Flow]*half
	connections []*connection
	tokens      map[uint32]*connection
	// near finds the connection of a data sequence number, for subflows whose start was not
	// captured.
	near map[nearKey]*connection

	records, subflows int
	early             int    // bytes of buffered payload
	packet            uint64 // number of the current packet
	summed            bool   // a checksum was seen

	m       missed
	several bool // some flow was captured at more than one point
	copies  *copies
	joins   joins

	// Buffers reused for each segment.
	opt    options
	pieces []piece
}

// piece is a range of bytes that are in order at the subflow level.
type piece struct {
	arrived  time.Duration
	seq      uint64
	length   int
	released time.Duration
}

// maxSubflows bounds the number of TCP connections, and with it the memory that a port scan or a
// SYN flood takes: about 1.5 GB.
const maxSubflows = 1 << 18

// missed counts segments that could not be used or look inconsistent.
type missed struct {
	Segments   uint64
	OptionsCut uint64
	Broken     uint64 // segments with options that are malformed
	Stray      uint64 // segments far outside their window
	Disorder   uint64
	MaxBack    time.Duration
	Elsewhere  uint64 // segments also seen at another capture point
	Copies     uint64 // segments seen again at the same capture point
	MaxCopy    time.Duration
	Unrecorded uint64
	Unfollowed uint64 // segments of flows beyond maxSubflows
}

// New returns an empty analysis.
func New(o Options) *Analysis {
	if o.MaxRecords == 0 {
		o.MaxRecords = DefaultMaxRecords
	}
	if o.Idle == 0 {
		o.Idle = DefaultIdle
	}
	return &Analysis{o: o, halves: map[pcap.Flow]*half{}, tokens: map[uint32]*connection{}, near: map[nearKey]*connection{}, copies: newCopies()}
}

// Add adds a segment. Times should not run backwards: an earlier time counts as the latest one, and
// the number of such segments is reported. A segment captured at two points should be added only
// once; Read ensures that.
func (a *Analysis) Add(s *pcap.Segment) { a.add(s, pointOf(s, place{iface: s.Interface})) }

func (a *Analysis) add(s *pcap.Segment, at point) {
	if !a.started {
		a.started, a.origin = true, s.At
	}
	if now := time.Duration(s.At - a.origin); now >= a.now {
		a.now = now
	} else {
		a.m.Disorder++
		a.m.MaxBack = max(a.m.MaxBack, a.now-now)
	}
	a.m.Segments++
	a.packet = s.Number

	h := a.halves[s.Flow]
	if a.subflows == maxSubflows && (h == nil || s.Flags&pcap.SYN != 0 && h.renewedBy(s)) {
		a.m.Unfollowed++
		return
	}
	switch {
	case s.Flags&pcap.SYN != 0 && (h == nil || h.renewedBy(s)):
		a.subflow(s, s.Flags&pcap.ACK != 0)
		h = a.halves[s.Flow]
		h.at = at.place
	case h == nil:
		// Its start was not captured. The side with the lower port is assumed to be the
		// server.
		a.subflow(s, s.Flow.SourcePort < s.Flow.DestinationPort)
		h = a.halves[s.Flow]
		h.at = at.place
	case !h.seen:
		h.at = at.place
	}
	if a.o.surveyed && slices.Contains(a.o.excluded[s.Flow], at) {
		h.tunnel(s) // it may be encapsulated at this point only
		a.m.Elsewhere++
		return
	}
	if h.at != at.place {
		a.several = true
	}
	if a.copied(h, s, at) {
		return
	}

	o := &a.opt
	if len(s.Options) > 0 {
		o.parse(s.Options)
	} else {
		*o = options{}
	}
	if s.OptionsCut {
		a.m.OptionsCut++
		h.optionsCut++
	} else if o.broken {
		a.m.Broken++
	}
	h.segment(a, s, o)
}

// subflow creates the subflow of a segment, initially in a separate connection; it is moved when
// its connection is known. It replaces an earlier subflow with the same addresses and ports.
func (a *Analysis) subflow(s *pcap.Segment, fromServer bool) {
	a.subflows++
	flow := s.Flow
	if fromServer {
		flow = flow.Reverse()
	}
	sub := &subflow{flow: flow, began: a.now}
	sub.halves[0] = &half{sub: sub, index: 0}
	sub.halves[1] = &half{sub: sub, index: 1}
	sub.halves[0].other, sub.halves[1].other = sub.halves[1], sub.halves[0]
	a.halves[flow], a.halves[flow.Reverse()] = sub.halves[0], sub.halves[1]
	c := &connection{id: len(a.connections)}
	for i := range c.dirs {
		c.dirs[i] = &direction{conn: c, index: i}
	}
	a.connections = append(a.connections, c)
	c.take(sub, false)
}

// nearKey is the range of a data sequence number: the upper bits of an 8-byte or 4-byte number.
type nearKey struct {
	number uint64
	short  bool
}

const (
	nearBits      = 30
	nearShortBits = 22
)

func keyOf(dsn uint64, long bool) nearKey {
	if long {
		return nearKey{dsn >> nearBits, false}
	}
	return nearKey{uint64(uint32(dsn)) >> nearShortBits, true}
}

// neighbor finds the connection and direction whose data sequence numbers are close to that of a
// subflow of unknown connection. As 4 bytes are ambiguous, both must also have an address in
// common.
func (a *Analysis) neighbor(sub *subflow, dsn uint64, long bool) (*connection, int) {
	k := keyOf(dsn, long)
	for _, shift := range []uint64{0, 1, ^uint64(0)} {
		c := a.near[nearKey{k.number + shift, k.short}]
		if c == nil || c == sub.conn || c.merged {
			continue
		}
		for i := range c.dirs {
			d := c.dirs[i]
			if !d.anyDSN {
				continue
			}
			if long && distance(d.lastDSN, dsn) < 1<<nearBits {
				return c, i
			}
			if !long && distance(uint64(uint32(d.lastDSN))<<32, dsn<<32)>>32 < 1<<nearShortBits && c.shares(sub) {
				return c, i
			}
		}
	}
	return nil, 0
}

func distance(a, b uint64) uint64 { return min(a-b, b-a) }

// noteDSN records the range of the data sequence numbers of a direction.
func (a *Analysis) noteDSN(d *direction, dsn uint64, long bool) {
	k := keyOf(dsn, long)
	if !d.anyDSN || d.key != k {
		d.key = k
		a.near[k] = d.conn
		a.near[keyOf(dsn, false)] = d.conn
	}
	d.anyDSN, d.lastDSN, d.wide = true, dsn, d.wide || long
}

// shares reports whether one of the first subflows of the connection has an address in common with
// this one.
func (c *connection) shares(sub *subflow) bool {
	for _, s := range c.subflows[:min(len(c.subflows), 64)] {
		for _, x := range [...][16]byte{s.flow.Source, s.flow.Destination} {
			if x == sub.flow.Source || x == sub.flow.Destination {
				return true
			}
		}
	}
	return false
}

// Event is a signaling event of a connection, such as ADD_ADDR.
type Event struct {
	At time.Duration `json:"at_ns"`
	// Subflow is the subflow that carried it, FromClient its direction.
	Subflow    int    `json:"subflow"`
	FromClient bool   `json:"from_client"`
	What       string `json:"what"`
}

func address(a netip.Addr, port uint16) string {
	if port == 0 {
		return a.String()
	}
	return netip.AddrPortFrom(a, port).String()
}
