package sim

import (
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/acks"
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
}

// passenger is a connection's subflow, or a source of datagrams, whose packets a tunnel carries.
type passenger struct {
	datagrams bool
	flow      int32
	// next is the segment after those that were sent.
	next uint32
}

// lanes is the number of sequences of a tunnel: one, and those that a probe has room for.
// Passengers with the same lane are put into order together, and wait in one queue.
const lanes = 1 + maxBlocks

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

// tunneled marks a hop of packets that enter a tunnel: the rest is its number.
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

// unlimited is the rate that the schedulers assume for a path whose links have no rate.
const unlimited = 100 * unit.GbitPerSecond

// slowest returns the minimum of the rates of links.
func (s *Sim) slowest(links []int) unit.Bandwidth {
	least := unlimited
	for _, l := range links {
		if r := s.config.Links[l].Rate; r > 0 && r < least {
			least = r
		}
	}
	return least
}

// send sends a packet through the tunnel.
func (t *carrier) send(s *Sim, p *packet, size int32) {
	size += int32(t.Overhead)
	from, number := t.passengerOf(p)
	lane := uint8(laneOf(number, from.datagrams))
	t.pathSelection.sent(p, from)
	if len(t.passengers) > 1 {
		for i := range t.lines {
			if l := &t.lines[i]; l.paced {
				t.queues.Set(i, s.now, l.queue.WaitOf(s.now, uint32(lane)))
			}
		}
	}
	set := t.schedule.Next(t.paths, sched.Segment{Now: s.now, Size: int(size), Flow: uint32(number), Kind: kindOf(p.kind), Version: t.version})
	if set == 0 {
		t.result.Unsent++
		return
	}
	if p.kind == ack && set.Len() == 1 && t.replace(s, set.First(), p, size, lane) {
		return
	}
	seq := t.number.Peek(lane)
	t.inner[lane][seq%inners] = *p
	taken := false
	for left := set; left != 0; left &= left - 1 {
		i := left.First()
		e := &queued{sent: sent{lane: lane, seq: seq, size: size, copied: set.Len() > 1}}
		taken = t.enqueue(s, i, e, uint32(lane)) || taken
	}
	if taken {
		t.number.Assign(lane)
		t.wake(s)
	}
}

// replace has an acknowledgment take the place of one that it supersedes in the queue of a path. It
// reports false if there is none.
func (t *carrier) replace(s *Sim, i int, p *packet, size int32, lane uint8) bool {
	l := &t.lines[i]
	if l.queue == nil {
		return false
	}
	e, ok := l.queue.Beside(uint32(lane))
	if !ok || e.copied {
		return false
	}
	old := &t.inner[lane][e.seq%inners]
	if old.kind != ack || old.flow != p.flow || old.duplicate || s.senders[p.flow].c.MPTCP {
		return false
	}
	a, b := acknowledgment(p), acknowledgment(old)
	if !a.Supersedes(&b) {
		return false
	}
	*old, e.size = *p, size
	l.queue.Replace(e, int(size), uint32(lane))
	return true
}

// acknowledgment returns an acknowledgment as gateways read it.
func acknowledgment(p *packet) acks.Ack {
	a := acks.Ack{Number: p.seq, Timed: true, Echo: uint32(p.at / time.Millisecond), Count: int(p.blocks)}
	for i, b := range p.sack[:p.blocks] {
		a.Blocks[i] = acks.Block{Start: b.start, End: b.end}
	}
	return a
}

// kindOf returns what matters to a packet of a passenger.
func kindOf(k kind) sched.Kind {
	switch k {
	case data, synACK, established:
		return sched.Bulk
	case ack:
		return sched.Acks
	case syn, probe, reply, cross, tunneled, tunnelProbe, tunnelReply, tunnelRequest:
	}
	return sched.Prompt
}

// target sets the standing queue of each path: so long that the later paths are used too.
func (t *carrier) target() {
	for i := range t.lines {
		if q := t.lines[i].queue; q != nil {
			q.SetLag(sched.Lag(t.paths, i, pacer.MostLag()))
			q.SetRTT(t.lines[i].rtt.SRTT)
		}
	}
}

// drain sends the packets of a path's queue that are due.
func (t *carrier) drain(s *Sim, i int) {
	for q := t.lines[i].queue; q.Next() <= s.now; {
		e, _, ok := q.Pop(s.now)
		if !ok {
			return
		}
		t.transmit(s, i, &e, q.Line(int(e.size)))
	}
}

// transmit sends a packet on a path.
func (t *carrier) transmit(s *Sim, i int, e *queued, wait time.Duration) {
	l := &t.lines[i]
	l.number++
	stamp := tunnel.Stamp{Distance: e.distance, Copied: e.copied}
	if e.of.end == 0 {
		stamp = t.number.Stamp(e.lane, e.seq, uint8(i), e.copied)
	}
	q := packet{
		kind: tunneled, flow: t.id, hop: t.routes[i], at: s.now, data: uint64(wait), seq: uint32(e.seq),
		length: stamp.Distance, duplicate: stamp.Copied, blocks: uint8(i), window: l.number, dsack: uint16(e.size),
		sack: [maxBlocks]span{laneSpan: {start: uint32(e.lane)}},
	}
	t.count(i, e.size)
	if e.of.end > 0 {
		q.sack[0] = e.of
	} else if l.queue != nil && t.pathSelection.auto {
		l.kept.Put(s.now, uint64(l.number), sent{e.lane, stamp.Copied, stamp.Distance, e.seq, e.size})
	}
	s.launch(&q, e.size)
}

// count counts a packet that is sent on a path.
func (t *carrier) count(i int, size int32) {
	t.result.Sent[i]++
	t.result.SentBytes[i] += uint64(size)
}

// arrive processes a packet at the other end of the tunnel.
func (t *carrier) arrive(s *Sim, p *packet) {
	path := int(p.blocks)
	m := &t.measured[path]
	if p.window <= m.high {
		m.gaps.Arrived(s.now, uint64(p.window))
	}
	m.got++
	m.bytes += uint64(p.dsack)
	lag, requests, from := time.Duration(0), uint8(0), path
	if origin := p.sack[0]; origin.end > 0 {
		from = int(origin.start)
		requests = t.measured[from].gaps.Retransmitted(uint64(origin.end))
	} else if !t.Open {
		lag = max(0, t.latest-t.measure(s, path, p))
	}
	t.missing(s, path, p.window)
	m.high = max(m.high, p.window)
	t.request(s, path)
	hold, lane := t.Hold, uint8(p.sack[laneSpan].start)
	if hold == reseq.Auto {
		switch t.inner[lane][p.seq%inners].kind {
		case ack:
			hold = reseq.Off // it is cumulative
		case cross:
			hold = reseq.Prompt
		default: // the order of others matters
		}
	}
	out, _ := t.receiver.Push(s.now, reseq.Arrival{
		Path: from, Lane: lane, Seq: p.seq, Distance: p.length, Copied: p.duplicate, Hold: hold, Requests: requests, Lag: lag,
	}, laned{lane, p.seq}, t.out[:0])
	t.deliver(s, out)
}

// missing records that all packets of a path before a number were sent.
func (t *carrier) missing(s *Sim, path int, before uint32) {
	m := &t.measured[path]
	if before > m.high+1 {
		m.gaps.Missed(s.now, uint64(before), uint64(before-m.high-1))
		m.high = before - 1
	}
}

// request asks for what a path has lost. A request is sent over all paths, because it may be lost
// too.
func (t *carrier) request(s *Sim, path int) {
	if t.Probes || t.Open {
		return
	}
	m := &t.measured[path]
	for {
		r, any := m.gaps.Due(s.now, t.roundTrip, t.counters)
		t.counters = r.Counters
		if !any {
			return
		}
		for first := 0; first < len(r.Counters); first += maxBlocks {
			p := packet{kind: tunnelRequest, flow: t.id, length: uint16(r.Attempt), blocks: uint8(path)}
			for i, c := range r.Counters[first:min(first+maxBlocks, len(r.Counters))] {
				p.sack[i] = span{uint32(c), uint32(c) + 1}
			}
			for i := range t.back {
				q := p
				q.hop = t.back[i]
				s.launch(&q, int32(replySize+t.Overhead))
			}
		}
	}
}

// setRoundTrip sets roundTrip by the paths' round trips.
func (t *carrier) setRoundTrip() {
	t.roundTrip = math.MaxInt64
	for i := range t.lines {
		t.roundTrip = min(t.roundTrip, t.lines[i].rtt.RTO(minRTOVariation))
	}
}

// minReplyVariation is the variation that the reply to a probe is allowed at least.
const minReplyVariation = 50 * time.Millisecond

// shortestRTT returns the round-trip time between the gateways over the path where it is shortest.
func (t *carrier) shortestRTT() time.Duration {
	shortest := time.Duration(math.MaxInt64)
	for i := range t.lines {
		shortest = min(shortest, t.lines[i].rtt.SRTT)
	}
	return shortest
}

// minRTOVariation is the variation that a timeout allows for at least.
const minRTOVariation = 10 * time.Millisecond

// requested retransmits packets that a path has lost, on the path where they arrive first.
func (t *carrier) requested(s *Sim, p *packet) {
	l := &t.lines[p.blocks]
	if l.congested {
		return
	}
	for _, b := range p.sack {
		if b.end == 0 {
			break
		}
		again, ok := l.kept.Take(s.now, uint64(b.start), uint8(p.length))
		if !ok {
			continue
		}
		i := t.queues.First(t.paths, s.now, int(again.size), -1)
		if i < 0 {
			return
		}
		e := &queued{again, span{uint32(p.blocks), b.start}}
		if t.enqueue(s, i, e, retransmissions) {
			t.result.Repaired++
		}
	}
	t.wake(s)
}

// enqueue sends a packet on a path, through its queue if it has one. It reports false if the queue
// refuses it.
func (t *carrier) enqueue(s *Sim, i int, e *queued, flow uint32) bool {
	l := &t.lines[i]
	if l.queue == nil {
		t.transmit(s, i, e, t.queues.Wait(i, s.now))
		return true
	}
	if !l.queue.Push(s.now, *e, int(e.size), flow) {
		t.result.Refused++
		return false
	}
	t.drain(s, i)
	if l.paced {
		t.queues.Set(i, s.now, l.queue.Wait(s.now))
	}
	return true
}

// rescue sends what is under way on a path that has died, or waits in front of it, over another
// one.
func (t *carrier) rescue(s *Sim, i int) {
	l := &t.lines[i]
	to := t.queues.First(t.paths, s.now, sched.FullSize, i)
	if to < 0 || !t.pathSelection.auto || l.queue == nil || t.lines[to].queue == nil {
		return
	}
	move := func(e queued) {
		if !t.lines[to].queue.Push(s.now, e, int(e.size), uint32(e.lane)) {
			t.result.Refused++
		}
	}
	for c := l.reported + 1; c <= l.number; c++ {
		if m, ok := l.kept.Take(s.now, uint64(c), 1); ok {
			t.result.Repaired++
			move(queued{sent: sent{lane: m.lane, seq: m.seq, size: m.size}})
		}
	}
	l.queue.Clear(move)
	t.drain(s, to)
}

// measure takes the delay of a packet with a time stamp, and returns it without the expected wait.
func (t *carrier) measure(s *Sim, path int, p *packet) time.Duration {
	sent, wait := uint32(p.at/time.Microsecond), time.Duration(p.data)
	difference := t.clock.Difference(sent, s.now)
	t.measured[path].oneWay.Update(s.now, difference, wait)
	return difference - wait
}

// compare compares the delays of the paths.
func (t *carrier) compare() {
	var paths [reseq.MaxPaths]sched.Path
	for i := range t.measured {
		v, ok := t.measured[i].oneWay.Value()
		paths[i] = sched.Path{Usable: ok && t.paths[i].Usable, Delay: v.Delay, Jitter: v.Jitter}
	}
	if latest, any := sched.Latest(paths[:len(t.measured)]); any {
		t.latest = latest
	}
}

// deliver passes packets on, and starts the timer of the receiver.
func (t *carrier) deliver(s *Sim, out []laned) {
	t.out = out
	for _, x := range out {
		inner := t.inner[x.lane][x.seq%inners]
		s.arrive(&inner)
	}
	t.wake(s)
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

// probe sends a probe on each path. It carries the number of the next packet, so that the receiver
// knows what the path holds, unless packets wait in front of the path.
func (t *carrier) probe(s *Sim) {
	t.probeAt = s.now + t.interval
	if t.replies {
		return
	}
	for i := range t.paths {
		l := &t.lines[i]
		for timeout := l.rtt.RTO(minReplyVariation); len(l.awaited) > 0 && s.now-l.awaited[0] >= timeout; {
			sent := l.awaited[0]
			l.awaited = l.awaited[1:]
			// A full queue delays replies too: a path on which packets arrive is not dead.
			if (t.Open || l.progress < sent) && l.alive.Missed() {
				t.paths[i].Usable = t.Probes
				t.version++
				t.rescue(s, i)
			}
		}
		if !t.Open || len(l.awaited) == 0 {
			l.awaited = append(l.awaited, s.now)
		}
		t.queues.Add(i, &t.paths[i], s.now, probeSize+t.Overhead)
		wait := t.queues.Wait(i, s.now)
		if l.queue != nil { // a probe does not wait in it
			wait = l.queue.Line(probeSize + t.Overhead)
		}
		s.launch(&packet{
			kind: tunnelProbe, flow: t.id, hop: t.routes[i], at: s.now, data: uint64(wait), seq: uint32(t.number.Peek(0)), duplicate: t.waits(i, 0), blocks: uint8(i), window: t.lines[i].number,
			sack: t.numbers(i),
		}, int32(probeSize+t.Overhead))
	}
}

// waits reports whether packets of a lane wait in front of a path.
func (t *carrier) waits(path int, lane uint8) bool {
	return t.lines[path].queue != nil && t.lines[path].queue.Waits(uint32(lane))
}

// numbers returns the number of the next packet of each lane but the first that no packets of wait
// in front of a path, as the start of a span that is not empty.
func (t *carrier) numbers(path int) (next [maxBlocks]span) {
	for lane := uint8(1); lane < lanes; lane++ {
		if t.inner[lane] != nil && !t.waits(path, lane) {
			next[lane-1] = span{uint32(t.number.Peek(lane)), 1}
		}
	}
	return next
}

// probed replies to a probe with what is measured of its path.
func (t *carrier) probed(s *Sim, p *packet) {
	path := int(p.blocks)
	m := &t.measured[path]
	t.measure(s, path, p)
	m.probing.jitter.Update(p.at, s.now)
	v := quality.OneWay{Jitter: m.probing.jitter.Value}
	if !t.Probes {
		v, _ = m.oneWay.Value()
	}
	s.launch(&packet{
		kind: tunnelReply, flow: t.id, hop: t.back[path], at: p.at, data: uint64(v.Jitter), blocks: p.blocks,
		sack:   [maxBlocks]span{{uint32(uint64(v.Delay) >> 32), uint32(v.Delay)}, {uint32(m.bytes >> 32), uint32(m.bytes)}, {uint32(s.now / time.Microsecond), uint32(v.Standing / time.Microsecond)}},
		window: m.high, seq: m.got,
	}, int32(replySize+t.Overhead))
	if !t.Probes {
		t.compare()
	}
	t.missing(s, path, p.window+1)
	t.request(s, path)
	if !p.duplicate {
		t.deliver(s, t.receiver.Passed(s.now, path, 0, p.seq, t.out[:0]))
	}
	for i, next := range p.sack {
		if next.end > 0 {
			t.deliver(s, t.receiver.Passed(s.now, path, uint8(i+1), next.start, t.out[:0]))
		}
	}
}

// replied processes the reply at the sending end.
func (t *carrier) replied(s *Sim, p *packet) {
	path := &t.paths[p.blocks]
	t.version++
	path.Jitter = time.Duration(p.data)
	if t.Probes {
		d := &t.measured[p.blocks].probing.delay
		d.Update(s.now-p.at, 0)
		path.Delay = d.Value
		return
	}
	path.Delay = time.Duration(uint64(p.sack[0].start)<<32 | uint64(p.sack[0].end))
	l := &t.lines[p.blocks]
	l.rtt.Update(s.now - p.at)
	t.setRoundTrip()
	path.SRTT = l.rtt.SRTT
	l.awaited = slices.DeleteFunc(l.awaited, func(sent time.Duration) bool { return t.Open || sent == p.at })
	if p.window > l.reported {
		l.reported, l.progress = p.window, s.now
	}
	if l.alive.Answered() {
		t.pathSelection.losses[p.blocks].Restart(uint64(l.number))
		t.prove()
	}
	path.Usable = path.Usable || l.alive.Alive()
	standing := time.Duration(p.sack[2].end) * time.Microsecond
	if l.queue != nil {
		l.capacity.AddReport(s.now, time.Duration(p.sack[2].start)*time.Microsecond, t.result.SentBytes[p.blocks], uint64(p.sack[1].start)<<32|uint64(p.sack[1].end), l.queue.Wait(s.now) > waiting,
			quality.Delays{RTT: l.rtt.SRTT, Standing: standing, Jitter: path.Jitter, Loss: t.pathSelection.losses[p.blocks].Share})
		l.congested = l.capacity.Exhausted() && quality.Congested(standing, path.Jitter)
		t.pace(int(p.blocks))
	}
	t.pathSelection.addReply(t, int(p.blocks), p.window, p.window-min(p.seq, p.window))
	t.pathSelection.selectPaths(s.now, t)
	t.target()
}

// pace paces packets of a path with a queue to its estimated rate.
func (t *carrier) pace(i int) {
	l, p := &t.lines[i], &t.paths[i]
	p.Rate = l.capacity.Value()
	l.queue.Set(l.capacity.Pace())
	l.paced = l.capacity.Pace() <= p.Rate
}

// prove is called when a path has become alive. Before the first one all paths are used; from then
// on those that have not answered yet are not, since nothing is known of them.
func (t *carrier) prove() {
	if t.proven {
		return
	}
	t.proven = true
	for i := range t.paths {
		t.paths[i].Usable = t.lines[i].alive.Alive()
	}
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
