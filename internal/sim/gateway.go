package sim

import (
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/fault"
	"github.com/tabane/tabane/internal/quality"
	"github.com/tabane/tabane/internal/reseq"
	"github.com/tabane/tabane/internal/sched"
	"github.com/tabane/tabane/internal/tunnel"
	"github.com/tabane/tabane/internal/unit"
)

// Gateway has a pair of gateways carry the packets of a connection or of a source of datagrams over
// all of its paths, below TCP: the sender's gateway chooses the paths of each packet, that of the
// receiver restores their order. The packets of the other direction are carried likewise. The
// gateways are at the hosts, and measure the paths from the start of the simulation on.
type Gateway struct {
	// Discipline is a name of sched.Disciplines. Path.Ratio is for ratio, Path.Rate is the rate that
	// the disciplines assume.
	Discipline string
	// Hold is how long a packet may be held to restore the order.
	Hold reseq.Hold
	// Overhead is what a tunnel adds to each packet, in bytes.
	Overhead int
	// Replies is the path of the other direction plus 1; 0: the discipline chooses there too.
	Replies int
	// Probes measures delay and jitter as paper D does, section 3.2: by a probe each second. Otherwise
	// they are measured by all packets, and reported by probes each 200 ms to 1 s, so that they take
	// at most 2 % of the slowest path.
	Probes bool
}

const (
	// The probes of gateways: of paper D (60 and 64 bytes), and with reports.
	reportInterval = 200 * time.Millisecond
	reportShare    = 50
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
	// Receiver is the receiving end, Held the packets it held and Latest how long Auto held them at
	// the end.
	Receiver reseq.ReceiverStats
	// Series has the bytes sent on each path in each interval of Config.Series.
	Series [][]unit.Size
}

// carrier is a tunnel in one direction.
type carrier struct {
	*Gateway
	id       int32
	source   int32 // of events
	routes   []uint32
	back     []uint32
	replies  bool
	schedule sched.Scheduler
	queues   sched.Queues
	paths    []sched.Path
	number   tunnel.Numbering
	inner    []packet // by number
	result   GatewayResult
	sampled  []uint64
	weigh    weighing

	// The receiving end.
	receiver *reseq.Receiver[uint32]
	out      []uint32
	clock    quality.Clock
	measured []measured
	probeAt  time.Duration
	interval time.Duration // of probes
}

// measured is what a receiving end knows of a path.
type measured struct {
	oneWay quality.OneWayEstimator
	probing
	// high is the highest number of a packet that arrived on the path, got how many arrived.
	high, got uint32
}

// tunneled marks a hop of packets that enter a tunnel: the rest is its number.
const tunneledHop = 1 << 31

// enterAt returns the hop of packets that take that way, or the tunnel of a gateway.
func (s *Sim) enterAt(g *Gateway, paths []Path, way []int, reverse bool) (uint32, error) {
	if g == nil {
		return s.way(way), nil
	}
	return s.carry(g, paths, reverse)
}

// carry adds the tunnel of one direction, and returns the hop of packets that enter it.
func (s *Sim) carry(g *Gateway, paths []Path, reverse bool) (uint32, error) {
	t := &carrier{Gateway: g, id: int32(len(s.carriers)), replies: reverse && g.Replies > 0, inner: make([]packet, inners)}
	if t.replies {
		paths = paths[g.Replies-1 : g.Replies]
	}
	s.spend(inners)
	name := g.Discipline
	if t.replies {
		name = "best"
	}
	var err error
	t.weigh.auto = name == "auto"
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
		t.paths = append(t.paths, sched.Path{Usable: true, Room: 1 << 40, Rate: rate, Ratio: max(p.Ratio, 1)})
	}
	t.interval = probeInterval
	if !g.Probes {
		least := unlimited
		for _, p := range paths {
			least = min(least, s.slowest(p.Out), s.slowest(p.Back))
		}
		t.interval = min(max(reportInterval, reportShare*least.TimeFor(unit.Size(replySize+g.Overhead))), probeInterval)
	}
	n := len(paths)
	t.measured, t.result.Sent, t.result.SentBytes = make([]measured, n), make([]uint64, n), make([]uint64, n)
	t.sampled, t.result.Series = make([]uint64, n), make([][]unit.Size, n)
	t.receiver = reseq.NewReceiver[uint32](reseq.ReceiverOptions{Window: inners})
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
	set := t.schedule.Next(t.paths, sched.Segment{Now: s.now, Size: int(size)})
	if set == 0 {
		t.result.Unsent++
		return
	}
	seq := t.number.Assign(0)
	t.inner[seq%inners] = *p
	for left := set; left != 0; left &= left - 1 {
		i := left.First()
		stamp := t.number.Stamp(0, seq, uint8(i), set.Len() > 1)
		q := packet{
			kind: tunneled, flow: t.id, hop: t.routes[i], at: s.now, data: uint64(t.queues.Wait(i, s.now)), seq: uint32(seq),
			length: stamp.Distance, duplicate: stamp.Copied, blocks: uint8(i), window: uint32(t.result.Sent[i]) + 1,
		}
		t.result.Sent[i]++
		t.result.SentBytes[i] += uint64(size)
		s.launch(&q, size)
	}
}

// arrive processes a packet at the other end of the tunnel.
func (t *carrier) arrive(s *Sim, p *packet) {
	path := int(p.blocks)
	t.measure(s, path, p)
	m := &t.measured[path]
	m.high, m.got = max(m.high, p.window), m.got+1
	out, _ := t.receiver.Push(s.now, reseq.Arrival{
		Path: path, Seq: p.seq, Distance: p.length, Copied: p.duplicate, Hold: t.Hold,
	}, p.seq, t.out[:0])
	t.deliver(s, out)
}

// measure takes the delay of a packet with a time stamp.
func (t *carrier) measure(s *Sim, path int, p *packet) {
	sent := uint32(p.at / time.Microsecond)
	t.measured[path].oneWay.Update(s.now, t.clock.Difference(sent, s.now), time.Duration(p.data))
}

// deliver passes packets on, and starts the timer of the receiver.
func (t *carrier) deliver(s *Sim, out []uint32) {
	t.out = out
	for _, seq := range out {
		inner := t.inner[seq%inners]
		s.arrive(&inner)
	}
	t.wake(s)
}

// wake schedules the next event of the tunnel.
func (t *carrier) wake(s *Sim) {
	at, waits := t.receiver.Timeout()
	if !waits || t.probeAt < at {
		at = t.probeAt
	}
	s.events.set(t.source, max(at, s.now))
}

// timer handles the tunnel's event: probes are due, or packets are held for too long.
func (t *carrier) timer(s *Sim) {
	if s.over() {
		s.events.remove(t.source)
		return
	}
	if s.now >= t.probeAt {
		t.probe(s)
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
// knows what the path holds.
func (t *carrier) probe(s *Sim) {
	t.probeAt = s.now + t.interval
	if t.replies {
		return
	}
	for i := range t.paths {
		t.queues.Add(i, &t.paths[i], s.now, probeSize+t.Overhead)
		s.launch(&packet{
			kind: tunnelProbe, flow: t.id, hop: t.routes[i], at: s.now, data: uint64(t.queues.Wait(i, s.now)), seq: uint32(t.number.Peek(0)), blocks: uint8(i),
		}, int32(probeSize+t.Overhead))
	}
}

// probed replies to a probe with what is measured of its path.
func (t *carrier) probed(s *Sim, p *packet) {
	path := int(p.blocks)
	m := &t.measured[path]
	t.measure(s, path, p)
	m.probing.jitter.Update(p.at, s.now)
	jitter, delay := m.probing.jitter.Value, time.Duration(0)
	if !t.Probes {
		v, _ := m.oneWay.Value()
		jitter, delay = v.Jitter, v.Delay
	}
	s.launch(&packet{
		kind: tunnelReply, flow: t.id, hop: t.back[path], at: p.at, data: uint64(jitter), blocks: p.blocks,
		sack: [maxBlocks]span{{uint32(uint64(delay) >> 32), uint32(delay)}}, window: m.high, seq: m.got,
	}, int32(replySize+t.Overhead))
	t.deliver(s, t.receiver.Passed(s.now, path, 0, p.seq, t.out[:0]))
}

// replied processes the reply at the sending end.
func (t *carrier) replied(s *Sim, p *packet) {
	path := &t.paths[p.blocks]
	path.Jitter = time.Duration(p.data)
	if t.Probes {
		d := &t.measured[p.blocks].probing.delay
		d.Update(s.now-p.at, 0)
		path.Delay = d.Value
		return
	}
	path.Delay = time.Duration(uint64(p.sack[0].start)<<32 | uint64(p.sack[0].end))
	t.weigh.path(t, int(p.blocks), p.window, p.window-min(p.seq, p.window))
	t.weigh.look(s.now, t)
}

// sample appends to the series.
func (t *carrier) sample() {
	for i, n := range t.result.SentBytes {
		t.result.Series[i] = append(t.result.Series[i], unit.Size(n-t.sampled[i]))
		t.sampled[i] = n
	}
}

// collect completes the result at the end.
func (t *carrier) collect() *GatewayResult {
	r := t.result
	r.Receiver = t.receiver.Stats()
	return &r
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
