package capture

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/analysis/pcap"
	"github.com/tabane/tabane/internal/gateway/reseq"
)

// Report is the result of an analysis. Times count from Start.
type Report struct {
	Start    time.Time     `json:"start"`
	Duration time.Duration `json:"duration_ns"`
	Segments uint64        `json:"tcp_segments"`
	// Connections are sorted by number, which is the order of their start.
	Connections []Connection `json:"connections"`
	// Files are the files that were read by Read.
	Files []File `json:"files,omitempty"`
	// Missed lists, as text, what could not be used.
	Missed []string `json:"missed,omitempty"`
}

// Connection is an MPTCP or TCP connection.
type Connection struct {
	Number int `json:"number"`
	// Protocol is "mptcp" or "tcp"; Version is that of MPTCP, -1 if it is not known.
	Protocol string `json:"protocol"`
	Version  int    `json:"version"`
	// Tokens are the tokens of the client and the server, in hexadecimal; empty if the key was
	// not captured.
	Tokens   [2]string      `json:"tokens"`
	Client   netip.AddrPort `json:"client"`
	Server   netip.AddrPort `json:"server"`
	Fallback string         `json:"fallback,omitempty"`
	// Checksums means that one side requested checksums, so that both must send them (RFC 8684,
	// section 3.1).
	Checksums bool `json:"checksums"`
	// FromStart means that the handshake of the first subflow was captured.
	FromStart bool      `json:"from_start"`
	Subflows  []Subflow `json:"subflows"`
	// ToClient is the data that the server sent, ToServer that of the client.
	ToClient   Direction `json:"to_client"`
	ToServer   Direction `json:"to_server"`
	Events     []Event   `json:"events,omitempty"`
	MoreEvents int       `json:"more_events,omitempty"`
	Missed     []string  `json:"missed,omitempty"`
}

// Bytes returns the data of both directions in bytes.
func (c *Connection) Bytes() uint64 { return c.ToClient.Bytes + c.ToServer.Bytes }

// Subflow is one TCP connection. Its client is the client of the connection.
type Subflow struct {
	Number int            `json:"number"`
	Client netip.AddrPort `json:"client"`
	Server netip.AddrPort `json:"server"`
	// Start is how it was established: "initial", "join", or "unknown" if that was not
	// captured. FromServer means that the server opened it.
	Start      string        `json:"start"`
	FromServer bool          `json:"from_server,omitempty"`
	Backup     bool          `json:"backup,omitempty"`
	Reset      bool          `json:"reset,omitempty"`
	Began      time.Duration `json:"began_ns"`
	// RTT is the round-trip time of the handshake, 0 if it was not captured.
	RTT      time.Duration    `json:"rtt_ns"`
	ToClient SubflowDirection `json:"to_client"`
	ToServer SubflowDirection `json:"to_server"`
}

// SubflowDirection is the data that one side sent on a subflow.
type SubflowDirection struct {
	Packets uint64 `json:"packets"`
	// Segments counts segments with payload. Bytes is their payload without retransmissions,
	// Share its share of all subflows.
	Segments uint64  `json:"segments"`
	Bytes    uint64  `json:"bytes"`
	Share    float64 `json:"share"`
	// Retransmitted counts segments that arrived twice, or late enough to be retransmissions;
	// Reordered those that arrived out of order with a smaller delay. Both are at the subflow
	// level.
	Retransmitted SegmentCount `json:"retransmitted"`
	Reordered     SegmentCount `json:"reordered"`
	// Probes counts probes of a closed window and of an idle connection; their byte is no data.
	Probes uint64 `json:"probes,omitempty"`
	// Reinjected is the number of bytes below the highest data sequence number of the subflow:
	// they were sent on another subflow before. DuplicateData is the number of bytes that had
	// already arrived on any subflow.
	Reinjected    uint64 `json:"reinjected_bytes"`
	DuplicateData uint64 `json:"duplicate_data_bytes"`
	// Unmapped is the number of bytes without a data sequence signal; Uncaptured the number of
	// bytes acknowledged but not captured.
	Unmapped   uint64  `json:"unmapped_bytes"`
	Uncaptured uint64  `json:"uncaptured_bytes"`
	RateBps    float64 `json:"rate_bps"`
	// Checksums counts mappings by their checksums; Wrong lists the first wrong ones.
	Checksums Checksums       `json:"checksums"`
	Wrong     []WrongChecksum `json:"wrong_checksums,omitempty"`
	// Delay is the resequencing delay of the data; SubflowLevel the part until the data was in
	// order at the subflow level; ConnectionLevel the rest, spent waiting for data of other
	// subflows.
	Delay           Distribution `json:"delay"`
	SubflowLevel    Distribution `json:"subflow_level"`
	ConnectionLevel Distribution `json:"connection_level"`
	// Tunnels are the SIDs or outer destinations of encapsulated packets.
	Tunnels []netip.Addr `json:"tunnels,omitempty"`
	// Vantage is the capture point: "receiver", "sender", "between", or "unknown".
	Vantage string `json:"vantage"`
}

// SegmentCount is a number of segments and their bytes.
type SegmentCount struct {
	Segments uint64 `json:"segments"`
	Bytes    uint64 `json:"bytes"`
}

// Distribution describes times. Quantiles have an error of up to 1 %, the other values are exact.
type Distribution struct {
	Count uint64        `json:"n"`
	Mean  time.Duration `json:"mean_ns"`
	SD    time.Duration `json:"sd_ns"`
	P50   time.Duration `json:"p50_ns"`
	P95   time.Duration `json:"p95_ns"`
	P99   time.Duration `json:"p99_ns"`
	Max   time.Duration `json:"max_ns"`
}

func describe(h *reseq.Histogram) Distribution {
	return Distribution{
		Count: h.Count(), Mean: time.Duration(h.Mean()), SD: time.Duration(h.SD()), P50: time.Duration(h.Quantile(0.5)),
		P95: time.Duration(h.Quantile(0.95)), P99: time.Duration(h.Quantile(0.99)), Max: time.Duration(h.Max()),
	}
}

// Direction is the data of one direction and its resequencing.
type Direction struct {
	// Segments and Bytes were released in order. A segment counts once for each of its
	// mappings.
	Segments uint64 `json:"segments"`
	Bytes    uint64 `json:"bytes"`
	// First and Last are the first and the last arrival of new bytes.
	First time.Duration `json:"first_ns"`
	Last  time.Duration `json:"last_ns"`
	// BeforeBps is the rate at which new bytes arrived on the subflows; GoodputBps the rate at
	// which data was released in order. Both cover the time from First to the last such event,
	// in bit/s.
	BeforeBps  float64 `json:"before_bps"`
	GoodputBps float64 `json:"goodput_bps"`
	// Delay is the resequencing delay, from the arrival of a segment to its release;
	// SubflowLevel the part until it was in order at the subflow level, caused by loss and
	// reordering on the subflow; ConnectionLevel the rest, spent waiting for data of other
	// subflows.
	Delay           Distribution `json:"delay"`
	SubflowLevel    Distribution `json:"subflow_level"`
	ConnectionLevel Distribution `json:"connection_level"`
	Bursts          Bursts       `json:"bursts"`
	// PeakOccupancy is the peak reorder-buffer occupancy of both levels together, MeanOccupancy
	// its mean over time in bytes. Unreleased is the number of bytes in the buffer at the end.
	PeakOccupancy SegmentCount  `json:"peak_occupancy"`
	MeanOccupancy float64       `json:"mean_occupancy_bytes"`
	Unreleased    uint64        `json:"unreleased_bytes"`
	Duplicate     uint64        `json:"duplicate_bytes"`
	Uncaptured    uint64        `json:"uncaptured_bytes"`
	LongestGap    time.Duration `json:"longest_gap_ns"`
	LongestGapAt  time.Duration `json:"longest_gap_at_ns"`
	// Gaps is the number of gaps of at least Options.Idle.
	Gaps int `json:"gaps"`
	// Finished means that a DATA_FIN, or a FIN in TCP, was captured.
	Finished bool `json:"finished"`
	// Checksums counts the mappings of all subflows by the state of their checksum.
	Checksums Checksums `json:"checksums"`
	// With Options.Record: the pieces in the order of their release, the bursts, and the
	// occupancy over time.
	Records   []Record      `json:"-"`
	Series    []reseq.Burst `json:"-"`
	Occupancy []Occupancy   `json:"-"`
	// DelayBins is the histogram of Delay, in nanoseconds.
	DelayBins *reseq.Histogram `json:"-"`
}

// Bursts describes how many segments one arrival released.
type Bursts struct {
	Count    uint64  `json:"n"`
	Mean     float64 `json:"mean_segments"`
	P50      int64   `json:"p50_segments"`
	P95      int64   `json:"p95_segments"`
	P99      int64   `json:"p99_segments"`
	Max      int64   `json:"max_segments"`
	MaxBytes int     `json:"max_bytes"`
}

// Report returns the results so far.
func (a *Analysis) Report() Report {
	r := Report{Start: time.Unix(0, a.origin).UTC(), Duration: a.now, Segments: a.m.Segments}
	a.joins = joins{}
	for _, c := range a.connections {
		if c.merged {
			continue
		}
		if c.unanswered() {
			a.joins.add(c)
			continue
		}
		a.finish(c)
		r.Connections = append(r.Connections, a.report(c, len(r.Connections)+1))
	}
	r.Missed = a.missed()
	return r
}

// joins counts joins of connections that were not captured, without an answer, such as those of a
// flood. They are not listed as connections.
type joins struct {
	subflows, tokens uint64
	sources          map[[16]byte]bool
}

func (j *joins) add(c *connection) {
	if j.sources == nil {
		j.sources = map[[16]byte]bool{}
	}
	j.tokens++
	for _, s := range c.subflows {
		j.subflows++
		j.sources[s.flow.Source] = true
	}
}

// unanswered reports whether a connection consists of joins with an unknown token that were not
// answered.
func (c *connection) unanswered() bool {
	return !slices.ContainsFunc(c.subflows, func(s *subflow) bool {
		return !s.joined || s.hasSynAck || s.halves[0].buffer != nil || s.halves[1].buffer != nil || s.halves[1].packets > s.halves[1].resets
	})
}

// finish makes the decisions that need the whole capture.
func (a *Analysis) finish(c *connection) {
	if c.mptcp && c.capableOnly() {
		c.fallBack(a, "there was no data sequence signal")
	}
	for _, d := range c.dirs {
		if d.buffer == nil && len(d.queue) > 0 {
			d.start(a, d.begin())
			d.account(a, nil)
		}
	}
}

// capableOnly reports whether the only subflow carried data without a data sequence signal, which
// after MP_CAPABLE is a fallback.
func (c *connection) capableOnly() bool {
	if c.signals || len(c.subflows) != 1 || !c.subflows[0].capable || c.fallback != "" {
		return false
	}
	for _, h := range c.subflows[0].halves {
		if h.buffer != nil && h.optionsCut == 0 {
			return true
		}
	}
	return false
}

func (a *Analysis) report(c *connection, number int) Connection {
	r := Connection{Number: number, Protocol: "tcp", Version: -1, Fallback: c.fallback, Checksums: c.checksums, Events: c.events, MoreEvents: c.moreEvents}
	if c.mptcp || c.fallback != "" {
		r.Protocol = "mptcp"
		if c.versionKnown {
			r.Version = c.version
		}
	}
	for i, d := range c.dirs {
		if d.keyKnown {
			r.Tokens[i] = hex32(d.token)
		}
	}
	first := c.subflows[0]
	if c.initial != nil {
		first = c.initial
	}
	r.Client, r.Server = first.ends()
	r.FromStart = first.hasSyn && first.hasSynAck && (!c.mptcp || first.capable)
	r.ToClient, r.ToServer = a.direction(c, 1), a.direction(c, 0)
	for _, s := range c.subflows {
		r.Subflows = append(r.Subflows, c.subflow(s))
	}
	share(r.Subflows, func(s *Subflow) *SubflowDirection { return &s.ToClient })
	share(r.Subflows, func(s *Subflow) *SubflowDirection { return &s.ToServer })
	r.Missed = c.missed(&r)
	return r
}

func share(all []Subflow, side func(*Subflow) *SubflowDirection) {
	var sum uint64
	for i := range all {
		sum += side(&all[i]).Bytes
	}
	for i := range all {
		if d := side(&all[i]); sum > 0 {
			d.Share = float64(d.Bytes) / float64(sum)
		}
	}
}

// ends returns the subflow's addresses at the connection's client and server.
func (s *subflow) ends() (client, server netip.AddrPort) {
	if s.turned {
		return s.flow.To(), s.flow.From()
	}
	return s.flow.From(), s.flow.To()
}

func (c *connection) subflow(s *subflow) Subflow {
	r := Subflow{Number: s.index + 1, Start: "unknown", FromServer: s.turned, Backup: s.backup, Reset: s.reset, Began: s.began, RTT: s.rtt()}
	r.Client, r.Server = s.ends()
	switch {
	case s.joined:
		r.Start = "join"
	case s.hasSyn || s.hasSynAck:
		r.Start = "initial"
	}
	r.ToServer, r.ToClient = s.halves[0].report(c), s.halves[1].report(c)
	if s.turned {
		r.ToServer, r.ToClient = r.ToClient, r.ToServer
	}
	return r
}

func (h *half) report(c *connection) SubflowDirection {
	r := SubflowDirection{
		Packets: h.packets, Segments: h.segments, Retransmitted: SegmentCount(h.retransmitted), Reordered: SegmentCount(h.reordered),
		Reinjected: h.reinjected, DuplicateData: h.duplicateData, Unmapped: h.unmapped, Uncaptured: h.skipped, Vantage: h.vantage(),
		Probes: h.probes,
	}
	if v := h.verifier; v != nil {
		r.Checksums, r.Wrong = v.count, v.wrong
	}
	for _, p := range h.waiting {
		r.Unmapped += uint64(p.length)
	}
	for _, t := range h.tunnels {
		r.Tunnels = append(r.Tunnels, netip.AddrFrom16(t).Unmap())
	}
	if h.buffer == nil {
		return r
	}
	m := h.buffer.Measures()
	r.Bytes = m.Arrived.Bytes
	r.RateBps = rate(r.Bytes, h.last-h.first)
	r.SubflowLevel = describe(&m.Delay)
	r.Delay, r.ConnectionLevel = describe(&h.delay), describe(&h.wait)
	if !c.mptcp {
		r.Delay = r.SubflowLevel
	}
	return r
}

// rate returns the rate in bit/s.
func rate(bytes uint64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(bytes) * 8 / d.Seconds()
}

// vantage infers the capture point of the half from the two parts of the handshake's round-trip
// time: near the server, the SYN/ACK follows the SYN immediately.
func (h *half) vantage() string {
	s := h.sub
	if !s.hasSyn || !s.hasSynAck || !s.hasAck || s.halves[0].at != s.halves[1].at {
		return h.passed()
	}
	server, client := s.synAck-s.syn, s.ack-s.synAck
	nearServer := h.index == 0
	switch {
	case server > 4*client:
		nearServer = !nearServer
	case client > 4*server:
	case server+client < time.Millisecond:
		return h.passed() // not distinguishable from the processing time of hosts
	default:
		return "between"
	}
	if nearServer {
		return "receiver"
	}
	return "sender"
}

// passed infers the capture point of the half from the direction of its packets at the interface.
// Forwarded packets have a decremented hop limit.
func (h *half) passed() string {
	whole := h.hops == 64 || h.hops == 128 || h.hops == 255
	switch {
	case h.inbound > 0 && h.outbound == 0:
		return "receiver"
	case h.outbound > 0 && h.inbound == 0 && whole:
		return "sender"
	}
	return "unknown"
}

func (a *Analysis) direction(c *connection, side int) Direction {
	d := c.dirs[side]
	r := Direction{
		First: d.first, Last: d.last, PeakOccupancy: SegmentCount(d.held.peak), MeanOccupancy: d.held.mean(), Unreleased: d.total.Bytes, Uncaptured: d.missing,
		LongestGap: d.longest, LongestGapAt: d.longestAt, Gaps: d.gaps, Finished: d.hasFin, Records: d.records, Occupancy: d.trace,
	}
	var arrived uint64
	for _, s := range c.subflows {
		h := d.carrierOf(s.index)
		if h.verifier != nil {
			r.Checksums.add(h.verifier.count)
		}
		if h.buffer != nil {
			m := h.buffer.Measures()
			arrived += m.Arrived.Bytes
		}
		if !c.mptcp {
			r.Finished = r.Finished || h.hasFin
		}
	}
	r.BeforeBps = rate(arrived, d.last-d.first)
	b := d.buffer
	if !c.mptcp {
		if b = d.carrierOf(0).buffer; b == nil {
			return r
		}
		r.Uncaptured = d.carrierOf(0).skipped
	}
	if b == nil {
		return r
	}
	m := b.Measures()
	r.Segments, r.Bytes, r.Duplicate = m.Released.Segments, m.Released.Bytes, m.Duplicate.Bytes
	r.Delay = describe(&m.Delay)
	r.DelayBins = &m.Delay
	r.Series = m.Series
	if c.mptcp {
		r.SubflowLevel, r.ConnectionLevel = describe(&d.own), describe(&d.wait)
	} else {
		r.SubflowLevel = r.Delay
	}
	r.Bursts = Bursts{Count: m.Bursts.Count(), Mean: m.Bursts.Mean(), P50: m.Bursts.Quantile(0.5), P95: m.Bursts.Quantile(0.95), P99: m.Bursts.Quantile(0.99), Max: m.Bursts.Max(), MaxBytes: d.maxBurst}
	// Released data may belong to any arrival up to the last.
	r.GoodputBps = rate(r.Bytes, max(d.last, m.LastRelease)-d.first)
	return r
}

// Largest returns the connections sorted by bytes, in descending order.
func (r *Report) Largest() []*Connection {
	all := make([]*Connection, len(r.Connections))
	for i := range r.Connections {
		all[i] = &r.Connections[i]
	}
	slices.SortStableFunc(all, func(x, y *Connection) int { return cmp.Compare(y.Bytes(), x.Bytes()) })
	return all
}

// File is one file that was read.
type File struct {
	Name      string `json:"name"`
	Format    string `json:"format"`
	Packets   uint64 `json:"packets"`
	Dropped   uint64 `json:"dropped_by_capture"`
	Cut       bool   `json:"cut"`
	LostBytes int64  `json:"lost_bytes"`
	// Others counts packets without a TCP segment by kind.
	Others map[string]uint64 `json:"others,omitempty"`
	// UnreadLinks counts packets of link types that are not read, by number and name.
	UnreadLinks map[string]uint64 `json:"unread_link_types,omitempty"`
	// ClockSteps are the steps of its clock, in the order of the file.
	ClockSteps []ClockStep `json:"clock_steps,omitempty"`
	faults     []pcap.Fault
	more       int
}
