package sim

import (
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/pacer"
	"github.com/tabane/tabane/internal/gateway/pathset"
	"github.com/tabane/tabane/internal/gateway/quality"
	"github.com/tabane/tabane/internal/gateway/repair"
	"github.com/tabane/tabane/internal/gateway/reseq"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/gateway/tunnel"
)

// Gateway has a pair of gateways carry the packets of a connection or of a source of datagrams over
// all of its paths, below TCP: the sender's gateway chooses the paths of each packet, that of the
// receiver restores their order. The packets of the other direction are carried likewise.
// Connections and sources with the same Gateway and the same paths share its tunnels. The gateways
// are at the hosts, and measure the paths from the start of the simulation on.
type Gateway struct {
	// Discipline is a name of sched.Disciplines. Path.Ratio is for ratio, Path.Rate is the rate
	// that the disciplines assume.
	Discipline string
	// Hold is how long a packet may be held to restore the order.
	Hold reseq.Hold
	// Overhead is what a tunnel adds to each packet, in bytes.
	Overhead int
	// Replies is the path of the other direction plus 1; 0: the discipline chooses there too.
	Replies int
	// Probes measures delay and jitter as paper D does, section 3.2: by a probe each second.
	// Otherwise they are measured by all packets, and reported by probes each 50 ms to 1 s, so that
	// they take at most 2 % of the slowest path; and the gateways keep the queue of each path
	// themselves (package shape), and repair losses (package repair).
	Probes bool
	// Open has packets pass the gateways without being queued, measured or repaired there: delay
	// and jitter are measured by the reporting probes alone.
	Open bool
	// Estimated: no rate is configured, as with rate: auto. The gateways begin with what trains of
	// packets have shown, which here is exact, and pace packets from when a path is full.
	Estimated bool
}

const (
	// The probes of gateways: of paper D (60 and 64 bytes), and with reports.
	reportInterval = 50 * time.Millisecond
	reportShare    = 50
	openShare      = 100 // with Gateway.Open, as of package sealed
	// inners is the number of packets of a tunnel that can be in flight or held; older ones are too
	// late for reseq.Receiver.
	inners = 1 << 15
)

// GatewayResult has the counters of the tunnel of one direction.
type GatewayResult struct {
	// Sent counts the packets sent on each path, SentBytes their bytes on the links.
	Sent, SentBytes []uint64
	// Unsent were dropped because no path could be used.
	Unsent uint64
	// Refused counts the packets that a path's queue did not take or dropped later, Repaired those
	// sent again because they were lost.
	Refused, Repaired uint64
	// Receiver is the receiving end, Held the packets it held and Latest how long Auto held them at
	// the end.
	Receiver reseq.ReceiverStats
	// Series has the bytes sent on each path in each interval of Config.Series, Estimates what was
	// known of the path at its end.
	Series    [][]unit.Size
	Estimates [][]Estimate `json:"-"`
	// Decisions are those of package pathset.
	Decisions []pathset.Decision `json:"-"`
}

// Estimate is what the sending end of a tunnel knows of a path. Of delays only the differences
// between paths matter.
type Estimate struct {
	Rate            unit.Bandwidth
	Delay, Jitter   time.Duration
	Loss            int // in parts per million
	Usable, Resting bool
}

// carrier is a tunnel in one direction.
type carrier struct {
	*Gateway
	id            int32
	source        int32 // of events
	routes        []uint32
	back          []uint32
	replies       bool
	schedule      sched.Scheduler
	queues        sched.Queues
	signals       pacer.Signals
	paths         []sched.Path
	version       uint64 // of paths, as of sched.Segment
	lines         []sending
	number        tunnel.Numbering
	passengers    []passenger
	inner         [lanes]*[inners]packet // of each lane by number, nil if it is not in use
	result        GatewayResult
	sampled       []uint64
	pathSelection pathSelection
	proven        bool // a path has answered
	// roundTrip is how long the answer to a request takes at most.
	roundTrip time.Duration

	// The receiving end.
	receiver *reseq.Receiver[laned]
	out      []laned
	counters []uint64 // of a request
	clock    quality.Clock
	measured []measured
	latest   time.Duration // sched.Latest of the paths, in the time of clock
	probeAt  time.Duration
	interval time.Duration // of probes
}

// sending is what a sending end keeps for a path.
type sending struct {
	queue *pacer.Queue[queued] // nil: packets are sent at once
	paced bool                 // packets wait in queue for the path's rate
	kept  repair.Kept[sent]
	// rtt is the round-trip time between the gateways.
	rtt quality.RTT
	// alive is judged from probes, of which those were sent at the times of awaited that have no
	// reply yet, in ascending order. progress is when a reply last showed that more packets arrive.
	// With Gateway.Open packets queue on the path, and one probe is awaited at a time.
	alive    quality.Liveness
	awaited  []time.Duration
	progress time.Duration
	capacity quality.CapacityMeter
	// congested: the path has a queue though its rate is the least, so that senders have to notice
	// losses.
	congested bool
	// number is that of the last packet, reported the highest one that arrived.
	number, reported uint32
	// probes is the number of probes that were sent, passed what the last ones say.
	probes uint32
	passed [probesKept]passed
}

// probesKept is the number of probes of a path that can be in flight: those of 6 s at least.
const probesKept = 128

// passed is what a probe says of the lanes but the first one: no packet before these will arrive on
// its path.
type passed struct {
	probe uint32 // its number
	next  []laned
}

// passenger is a connection's subflow, or a source of datagrams, whose packets a tunnel carries.
type passenger struct {
	datagrams bool
	flow      int32
	// next is the segment after those that were sent.
	next uint32
}

// lanes is the number of sequences of a tunnel, of which each that is in use takes memory; a
// gateway has tunnel.Lanes. Passengers with the same lane are put into order together, and wait in
// one queue.
const lanes = 32

// laneOf returns the lane of a passenger by its number. The first one, which is what is measured if
// it is no source of datagrams, and those sources have lanes of their own.
func laneOf(number int, datagrams bool) int {
	switch {
	case datagrams:
		return lanes - 1
	case number == 0:
		return 0
	}
	return 1 + (number-1)%(lanes-2)
}

// retransmissions is the flow of retransmissions in the queues of paths. Those of lanes have lower
// numbers.
const retransmissions = tunnel.Lanes

// laned is a packet by its number in its lane.
type laned struct {
	lane uint8
	seq  uint32
}

// queued is a packet in the queue of a path.
type queued struct {
	sent
	// of is the path and the number of the packet that a retransmission repeats.
	of span
}

// sent is what is kept of a packet that was sent on a path, of which there are thousands: what a
// retransmission needs, whose distance is the packet's.
type sent struct {
	lane     uint8
	copied   bool
	distance uint16
	seq      tunnel.Seq
	size     int32
}

// measured is what a receiving end has measured of a path.
type measured struct {
	oneWay quality.OneWayEstimator
	probing
	// high is the highest number of a packet that arrived on the path, got how many arrived.
	high, got uint32
	bytes     uint64 // that arrived
	gaps      repair.Gaps
}

// tunneledHop marks a hop of packets that enter a tunnel: the rest is its number.
const tunneledHop = 1 << 31

// enterAt returns the hop of packets of a passenger that take that way, or the tunnel of a gateway.
func (s *Sim) enterAt(g *Gateway, paths []Path, way []int, reverse bool, from passenger) (uint32, error) {
	if g == nil {
		return s.way(way), nil
	}
	key := tunnelKey{g, reverse}
	hop, known := s.tunnels[key]
	if !known {
		var err error
		if hop, err = s.carry(g, paths, reverse); err != nil {
			return 0, err
		}
		s.tunnels[key] = hop
	}
	t := s.tunnelAt(hop)
	if lane := laneOf(len(t.passengers), from.datagrams); t.inner[lane] == nil {
		s.spend(inners)
		t.inner[lane] = innerRings.Get().(*[inners]packet)
	}
	t.passengers = append(t.passengers, from)
	return hop, nil
}

// innerRings has rings of simulations that have ended, whose packets are not read: 2 MiB would be
// cleared for each.
var innerRings = sync.Pool{New: func() any { return new([inners]packet) }}

// tunnelKey identifies a tunnel of one direction.
type tunnelKey struct {
	gateway *Gateway
	reverse bool
}

// tunnelAt returns the tunnel that a hop enters.
func (s *Sim) tunnelAt(hop uint32) *carrier { return s.carriers[hop&^tunneledHop] }

// passengerOf returns the passenger of a packet, and its number.
func (t *carrier) passengerOf(p *packet) (*passenger, int) {
	for i := range t.passengers {
		if x := &t.passengers[i]; x.flow == p.flow && x.datagrams == (p.kind == cross) {
			return x, i
		}
	}
	panic("BUG: a packet of no passenger enters a tunnel")
}

// carry adds the tunnel of one direction, and returns the hop of packets that enter it.
func (s *Sim) carry(g *Gateway, paths []Path, reverse bool) (uint32, error) {
	t := &carrier{Gateway: g, id: int32(len(s.carriers)), version: 1, replies: reverse && g.Replies > 0}
	if t.replies {
		paths = paths[g.Replies-1 : g.Replies]
	}
	name := g.Discipline
	if t.replies {
		name = "best"
	}
	var err error
	t.pathSelection.auto = name == "auto"
	if t.schedule, err = sched.New(name, sched.Options{Queues: &t.queues}); err != nil {
		return 0, err
	}
	for _, p := range paths {
		out, back, rate := p.Out, p.Back, p.Rate
		if reverse {
			out, back, rate = back, out, 0
		}
		if rate == 0 {
			rate = s.slowest(out)
		}
		t.routes, t.back = append(t.routes, s.way(out)), append(t.back, s.way(back))
		t.paths = append(t.paths, sched.Path{Usable: true, Room: math.MaxInt32, Rate: rate, Ratio: max(p.Ratio, 1)})
	}
	t.lines = make([]sending, len(t.paths))
	t.setRoundTrip()
	t.interval = probeInterval
	if !g.Probes && !g.Open {
		for i := range t.lines {
			q, err := pacer.New(pacer.Options[queued]{Signals: &t.signals, Flows: retransmissions + 1, Drop: func(queued) { t.result.Refused++ }})
			if err != nil {
				return 0, err
			}
			if t.paths[i].Rate >= unlimited {
				continue
			}
			t.lines[i].queue = q
			if g.Estimated {
				t.lines[i].capacity.Hint(t.paths[i].Rate)
			} else {
				t.lines[i].capacity.Capacity = quality.LimitCapacity(t.paths[i].Rate)
			}
			t.pace(i)
		}
	}
	if !g.Probes {
		least := unlimited
		for _, p := range paths {
			least = min(least, s.slowest(p.Out), s.slowest(p.Back))
		}
		share := time.Duration(reportShare)
		if g.Open {
			share = openShare
		}
		t.interval = min(max(reportInterval, share*least.TimeFor(unit.Size(replySize+g.Overhead))), probeInterval)
	}
	n := len(paths)
	t.measured, t.result.Sent, t.result.SentBytes = make([]measured, n), make([]uint64, n), make([]uint64, n)
	t.sampled, t.result.Series, t.result.Estimates = make([]uint64, n), make([][]unit.Size, n), make([][]Estimate, n)
	t.receiver = reseq.NewReceiver[laned](reseq.ReceiverOptions{Window: inners})
	t.receiver.SetLive(0, 1<<n-1, nil)
	s.carriers = append(s.carriers, t)
	return tunneledHop | uint32(t.id), nil
}

// wake schedules the next event of the tunnel.
func (t *carrier) wake(s *Sim) {
	at := t.probeAt
	if held, waits := t.receiver.Timeout(); waits {
		at = min(at, held)
	}
	for i := range t.lines {
		if q := t.lines[i].queue; q != nil {
			at = min(at, q.Next())
		}
		if due, any := t.measured[i].gaps.Next(t.roundTrip); any && !t.Probes && !t.Open {
			at = min(at, due)
		}
	}
	s.events.set(t.source, max(at, s.now))
}

// timer handles the tunnel's event: probes are due, packets may leave a queue, or are held or
// missing for too long.
func (t *carrier) timer(s *Sim) {
	if s.over() {
		s.events.remove(t.source)
		return
	}
	if s.now >= t.probeAt {
		t.probe(s)
	}
	for i := range t.lines {
		if t.lines[i].queue != nil {
			t.drain(s, i)
		}
		t.request(s, i)
	}
	t.deliver(s, t.receiver.Expire(s.now, t.out[:0]))
}

// over reports whether all sources have ended, so that paths need not be measured any more.
func (s *Sim) over() bool {
	for i := range s.connections {
		if !s.connections[i].done {
			return false
		}
	}
	for i := range s.sources {
		if x := &s.sources[i]; x.Stop == 0 || x.Stop > s.now {
			return false
		}
	}
	return true
}

// sample appends to the series.
func (t *carrier) sample() {
	for i, n := range t.result.SentBytes {
		t.result.Series[i] = append(t.result.Series[i], unit.Size(n-t.sampled[i]))
		t.sampled[i] = n
		p := &t.paths[i]
		t.result.Estimates[i] = append(t.result.Estimates[i], Estimate{p.Rate, p.Delay, p.Jitter, p.Loss, p.Usable, p.Resting})
	}
}

// collect completes the result at the end.
func (t *carrier) collect() *GatewayResult {
	r := t.result
	r.Receiver = t.receiver.Stats()
	return &r
}

// release ends the use of the tunnel.
func (t *carrier) release() {
	for i, ring := range t.inner {
		if ring != nil {
			innerRings.Put(ring)
			t.inner[i] = nil
		}
	}
}

// check returns the faults of a gateway with that many paths.
func (g *Gateway) check(paths int) fault.List {
	var faults fault.List
	if !slices.Contains(sched.Disciplines(), g.Discipline) {
		faults.Add("discipline", "must be one of %s, got %q", strings.Join(sched.Disciplines(), ", "), g.Discipline)
	}
	if g.Hold < reseq.Auto {
		faults.Add("hold", "must not be negative, got %s", time.Duration(g.Hold))
	}
	if g.Overhead < 0 || g.Overhead > maxSegment {
		faults.Add("overhead", "must be from 0 to %d bytes, got %d", maxSegment, g.Overhead)
	}
	if g.Replies < 0 || g.Replies > paths {
		faults.Add("replies", "must be from 0 to %d, got %d", paths, g.Replies)
	}
	if paths > tunnel.MaxPaths {
		faults.Add("", "must have at most %d paths, got %d", tunnel.MaxPaths, paths)
	}
	return faults
}

// startCarriers schedules the first probes of all tunnels.
func (s *Sim) startCarriers() {
	for i, t := range s.carriers {
		t.source = s.carrierSource(int32(i))
		s.events.set(t.source, 1)
	}
}
