package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/tabane/tabane/internal/base/stat"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/epe/arrival"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/gateway/reseq"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/mptcp/cc"
)

// Sim is one simulation. A Sim is not safe for concurrent use; different ones may run concurrently.
type Sim struct {
	config Config
	ran    bool

	now     time.Duration
	events  tournament
	handled uint64
	checked uint64 // handled, when Run checked the context

	traffic     traffic
	hops        []int32
	links       []link
	senders     []sender
	receivers   []receiver
	connections []connection
	sources     []source
	carriers    []*carrier
	tunnels     map[tunnelKey]uint32 // the hops that enter them
	sprayed     map[*Spray]*arrival.Network
	changed     int // number of config.Changes applied

	tap    func(Packet) // none if nil
	tapped []uint32     // of each subflow, the highest segment that the tap saw sent

	spent    int  // total capacity of the rings in segments
	tooLarge bool // the simulation needs too much memory
}

// ErrTooLarge means that too many packets are in flight or too many segments outstanding, which
// happens with unlimited windows over unlimited links.
var ErrTooLarge = errors.New("too many packets in flight or segments outstanding")

// maxTotalSegments limits the outstanding segments of all subflows, which use up to 1.5 GiB.
const maxTotalSegments = 1 << 26

// spend accounts for rings that grew by that many segments.
func (s *Sim) spend(segments int) {
	s.spent += segments
	s.tooLarge = s.tooLarge || s.spent > maxTotalSegments
}

// The sources of events: links come first.
func (s *Sim) senderSource(flow int32) int32   { return int32(len(s.links)) + flow }
func (s *Sim) receiverSource(flow int32) int32 { return s.senderSource(int32(len(s.senders)) + flow) }
func (s *Sim) connectionSource(id int32) int32 { return s.senderSource(2*int32(len(s.senders)) + id) }
func (s *Sim) crossSource(x int32) int32 {
	return s.connectionSource(int32(len(s.connections)) + x)
}
func (s *Sim) carrierSource(t int32) int32 { return s.crossSource(int32(len(s.sources)) + t) }
func (s *Sim) changeSource() int32         { return s.carrierSource(int32(len(s.carriers))) }
func (s *Sim) sampleSource() int32         { return s.changeSource() + 1 }

// Random streams of sources other than links. Links have separate stream numbers, which channel
// shifts by 8 bits.
const (
	streamCross = 1 << 62
	streamProbe = 1 << 61
)

// New returns a simulation. Faults of the config are a fault.List.
func New(c Config) (*Sim, error) {
	if err := c.Check().Err(); err != nil {
		return nil, err
	}
	s := &Sim{config: c, traffic: traffic{most: maxPackets}, tunnels: map[tunnelKey]uint32{}, sprayed: map[*Spray]*arrival.Network{}}
	flows := 0
	for i := range c.Connections {
		flows += c.Connections[i].subflows()
	}
	s.links = make([]link, len(c.Links))
	for i := range c.Links {
		s.links[i].Pipe = *linkmodel.NewPipe(c.Links[i].Profile, frame, c.Seed, uint64(i), &s.traffic)
	}
	s.senders, s.receivers = make([]sender, flows), make([]receiver, flows)
	s.connections, s.sources = make([]connection, len(c.Connections)), make([]source, len(c.Cross))
	for i := range s.sources {
		x := &c.Cross[i]
		out, err := s.enterAt(x.Gateway, x.Paths, x.Out, x.Reverse, passenger{datagrams: true, flow: int32(i)})
		if err != nil {
			return nil, fmt.Errorf("make source %q: %w", x.Name, err)
		}
		s.sources[i].out = out
		if x.Gateway != nil {
			s.sources[i].carrier = s.tunnelAt(out)
		}
	}
	ways := make([][2]uint32, 0, flows) // of each subflow, there and back
	for i := range c.Connections {
		k := &c.Connections[i]
		for j := range k.subflows() {
			from := passenger{flow: int32(len(ways))}
			out, err := s.enterAt(k.Gateway, k.Paths, k.Paths[j].Out, false, from)
			if err != nil {
				return nil, fmt.Errorf("make connection %q: %w", k.Name, err)
			}
			back, err := s.enterAt(k.Gateway, k.Paths, k.Paths[j].Back, true, from)
			if err != nil {
				return nil, fmt.Errorf("make connection %q: %w", k.Name, err)
			}
			ways = append(ways, [2]uint32{out, back})
		}
	}
	s.events = newTournament(int(s.sampleSource())+1, len(s.links))
	s.startCarriers()
	first := int32(0)
	for i := range s.connections {
		if err := s.connect(&s.connections[i], int32(i), first, ways); err != nil {
			return nil, fmt.Errorf("make connection %q: %w", c.Connections[i].Name, err)
		}
		first += int32(c.Connections[i].subflows())
	}
	for i := range s.sources {
		x := &s.sources[i]
		*x = source{
			Cross: &c.Cross[i], flow: int32(i), out: x.out, carrier: x.carrier, interval: c.Cross[i].Rate.TimeFor(unit.Size(c.Cross[i].Size)),
			random: rand.New(rand.NewPCG(c.Seed, streamCross|uint64(i))),
		}
		s.events.set(s.crossSource(x.flow), x.Start)
	}
	s.join()
	if len(c.Changes) > 0 {
		s.events.set(s.changeSource(), c.Changes[0].At)
	}
	if c.Series > 0 {
		s.events.set(s.sampleSource(), c.Series)
	}
	return s, nil
}

// connect sets up both ends of a connection and of its subflows.
func (s *Sim) connect(c *connection, id, first int32, ways [][2]uint32) (err error) {
	*c = connection{Connection: s.config.Connections[id].withDefaults(), id: id, first: first, limit: math.MaxInt64, requested: 1}
	c.askedAt = c.Start
	if c.Bytes > 0 {
		c.limit = uint64(c.Bytes)
	}
	if c.control, err = cc.New(c.Congestion); err != nil {
		return err
	}
	c.sampler, _ = c.control.(cc.Sampler)
	if c.MPTCP {
		if c.scheduler, err = sched.New(c.Scheduler, c.SchedOptions); err != nil {
			return err
		}
		c.needs = sched.NeedsOf(c.Scheduler)
		c.ahead = c.needs.Ahead || c.Uncounted
	}
	n := c.subflows()
	c.flows, c.probes = make([]cc.Subflow, n), make([]probing, n)
	c.newPaths(s)
	c.buffer = reseq.New(reseq.Options{Bursts: s.config.Bursts, Expected: c.expectedBursts(s)})
	c.sizing = newRightSizing(c)
	c.advertised = uint64(cmp.Or(c.InitialReceive, c.ReceiveBuffer))
	c.edge = c.advertised
	c.result = ConnectionResult{Name: c.Name, FirstByte: Never, Finish: Never}
	samples := 0
	if s.config.Series > 0 {
		samples = int(s.config.Duration / s.config.Series)
		c.result.Series = make([]unit.Size, 0, samples)
	}
	for i := range n {
		p := &c.Paths[i]
		flow := first + int32(i)
		window := c.Window
		if p.Window > 0 {
			window = p.Window
		}
		if window == 0 {
			window = unit.GiB
		}
		s.senders[flow] = sender{
			c: c, index: i, flow: flow, cc: &c.flows[i], path: &c.paths[i], board: newScoreboard(), linux24: linux24{threshold: dupThresh}, out: ways[flow][0],
			window: uint32(min(window/unit.Size(c.Segment), maxSegments)), result: PathResult{Established: Never},
		}
		s.receivers[flow] = receiver{
			c: c, index: i, flow: flow, back: ways[flow][1], next: 1, confirmed: 1, quick: c.QuickACKs, offer: uint64(c.InitialReceive),
			series: make([]unit.Size, 0, samples),
		}
		s.senders[flow].spray = s.newSpraying(c)
		s.events.set(s.senderSource(flow), c.Start+p.Start)
	}
	if c.Stop > 0 {
		s.events.set(s.connectionSource(id), c.Stop)
	}
	return nil
}

// contextInterval is the number of events between two checks of the context.
const contextInterval = 1 << 14

// Run runs the simulation, once. When ctx is done it returns its error.
func (s *Sim) Run(ctx context.Context) (Result, error) {
	if s.ran {
		return Result{}, errors.New("run simulation: it ran before")
	}
	s.ran = true
	if s.tap != nil {
		s.tapped = make([]uint32, len(s.senders))
	}
	for {
		at, source, ok := s.events.first()
		if !ok || at > s.config.Duration {
			s.now = s.config.Duration
			break
		}
		if s.handled++; s.handled-s.checked >= contextInterval {
			s.checked = s.handled
			if ctx.Err() != nil {
				return Result{}, fmt.Errorf("run simulation: at %s: %w", s.now, context.Cause(ctx))
			}
			if s.onlyBeside() {
				break
			}
		}
		if source < int32(len(s.links)) {
			s.now = at
			s.deliver(source)
		} else {
			s.handle(at, source)
		}
		if s.tooLarge {
			return Result{}, fmt.Errorf("run simulation: at %s: %w", s.now, ErrTooLarge)
		}
	}
	for i := range s.links {
		if l := &s.links[i]; l.from != nil {
			s.pull(l, s.now)
		}
	}
	s.now = s.config.Duration
	r := s.collect()
	for _, t := range s.carriers {
		t.release()
	}
	return r, nil
}

// late is how late datagrams may arrive after the last was sent, if nothing else keeps the
// simulation running.
const late = 3 * time.Second

// onlyBeside reports whether all has ended that the connections with Beside run beside; false if
// there are none.
func (s *Sim) onlyBeside() bool {
	any := false
	for i := range s.connections {
		c := &s.connections[i]
		if !c.Beside && !c.done {
			return false
		}
		any = any || c.Beside
	}
	for i := range s.sources {
		if x := &s.sources[i]; any && (x.Stop == 0 || s.now < x.Stop+late) {
			return false
		}
	}
	return any
}

// step handles the next event. There must be one.
func (s *Sim) step() {
	at, source, _ := s.events.first()
	s.handle(at, source)
}

// handle handles the event of a source.
func (s *Sim) handle(at time.Duration, source int32) {
	s.now = at
	id := source
	if id < int32(len(s.links)) {
		s.deliver(id)
		return
	}
	id -= int32(len(s.links))
	flows := int32(len(s.senders))
	switch {
	case id < flows:
		s.senders[id].timer(s)
		return
	case id < 2*flows:
		s.receivers[id-flows].timer(s)
		return
	}
	id -= 2 * flows
	if id < int32(len(s.connections)) {
		s.connections[id].timer(s)
		return
	}
	id -= int32(len(s.connections))
	switch {
	case id < int32(len(s.sources)):
		s.sources[id].timer(s)
	case source < s.changeSource():
		s.carriers[source-s.carrierSource(0)].timer(s)
	case source == s.changeSource():
		s.change()
	default:
		s.sample()
	}
}

// sample appends to all series.
func (s *Sim) sample() {
	for i := range s.connections {
		c := &s.connections[i]
		c.result.Series = append(c.result.Series, unit.Size(c.delivered-c.sampled))
		c.sampled = c.delivered
	}
	for i := range s.receivers {
		r := &s.receivers[i]
		r.series = append(r.series, unit.Size(r.arrived-r.sampled))
		r.sampled = r.arrived
	}
	for _, t := range s.carriers {
		t.sample()
	}
	s.events.set(s.sampleSource(), s.now+s.config.Series)
}

// collect returns the result.
func (s *Sim) collect() Result {
	r := Result{Duration: s.config.Duration, Events: s.handled}
	for i := range s.connections {
		r.Connections = append(r.Connections, s.connections[i].collect(s))
	}
	for i := range s.links {
		l := &s.links[i]
		n := l.Counted()
		r.Links = append(r.Links, LinkResult{
			Name: s.config.Links[i].Name, Arrived: n.Arrived + l.lost, ArrivedBytes: n.ArrivedBytes, Sent: l.sent, SentBytes: l.sentBytes,
			Dropped: n.Tail + n.RED + n.CoDel, Lost: n.Lost, Duplicated: n.Duplicated, Down: l.lost,
		})
	}
	for i := range s.sources {
		x := &s.sources[i]
		k := x.result
		k.Duplicates, k.Reordered, k.Behind = x.arrivals.Duplicates, x.arrivals.Reordered, x.arrivals.Behind
		k.Name, k.Sent, k.Received, k.ReceivedBytes = x.Name, x.sent, x.received, unit.Size(x.receivedBytes)
		if p95, err := stat.Quantile(0.95, x.delays); err == nil {
			k.DelayP95 = time.Duration(p95 * float64(time.Second))
		}
		if x.carrier != nil {
			k.Gateway = x.carrier.collect()
		}
		r.Cross = append(r.Cross, k)
	}
	return r
}
