package simrun

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tabane/tabane/internal/analysis/traffic"
	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/epe/edge"
	"github.com/tabane/tabane/internal/experiment/cell"
	"github.com/tabane/tabane/internal/experiment/linkmodel"
	"github.com/tabane/tabane/internal/experiment/result"
	"github.com/tabane/tabane/internal/experiment/scenario"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/mptcp/cc"
	"github.com/tabane/tabane/internal/sim"
)

const (
	// interval is the sampling interval, the same as in a lab.
	interval = 100 * time.Millisecond
	// A delivery times out after patience times its duration at the available capacity, plus
	// slack, or after unlimited if the available capacity is unknown.
	patience  = 4
	slack     = 30 * time.Second
	unlimited = time.Hour
	// quickACKs is TCP_MAX_QUICKACKS.
	quickACKs = 16
	// The defaults of Linux.
	defaultCongestion = "cubic"
	// The receive buffer is initially 128 KiB and at most 32 MiB (net.ipv4.tcp_rmem since Linux
	// 6.16). Half of it is receive window.
	initialReceive, mostReceive = 64 * unit.KiB, 16 * unit.MiB
	congestionSysctl            = "net.ipv4.tcp_congestion_control"
)

// Check returns a fault for each part of a scenario that the simulator does not support, with the
// paths of scenario.Spec.Check. The scenario must have passed that check.
func Check(spec *scenario.Spec) fault.List {
	var faults fault.List
	e := spec.Experiment
	if e == nil {
		faults.Add("", "the scenario has no experiment")
		return faults
	}
	if !e.Delivers() {
		lacks := map[string]string{scenario.KindRoutes: "BGP", scenario.KindWeb: "web pages"}[e.Kind]
		faults.Add("experiment.kind", "the simulator has no %s: an experiment of kind %s needs a lab", lacks, e.Kind)
		return faults
	}
	if len(e.Transports) == 0 {
		faults.Add("experiment.transports", "the simulator has none of those that are selected: they need a lab")
		return faults
	}
	p := newPlan(spec, false)
	faults.Merge("", p.checkTransports())
	faults.Merge("", checkNodes(spec))
	faults.Merge("", spec.Crossing())
	faults.Merge("", p.unusedAddresses())
	faults.Merge("", p.newConnections())
	faults.Merge("", p.competitors())
	faults.Merge("", spec.CheckEvents(func(x scenario.Event) string {
		effect, known := effects[x.Kind()]
		if !known {
			return "the simulator cannot apply events of this kind"
		}
		return effect.refuse(spec, x)
	}))
	for _, node := range []string{e.Server, e.Client} {
		if _, where, err := p.congestion(node); err != nil && (node == e.Server || p.uploads()) {
			faults.Add(where, "%v", err)
		}
	}
	faults.Merge("", marks(spec))
	if len(faults) > 0 {
		return faults
	}
	for _, k := range e.Cells() {
		config, err := p.config(k, 1)
		if err == nil {
			err = config.Check().Err()
		}
		if err != nil {
			faults.Add("experiment", "%s cannot be simulated: %v", k, err)
		}
	}
	return faults
}

// checkTransports returns the faults of the experiment's transports, and of traffic with them.
func (p *plan) checkTransports() fault.List {
	var faults fault.List
	e := p.spec.Experiment
	for _, name := range e.TransportNames() {
		for i, path := range p.cells.Paths(name) {
			if path.Err != nil {
				faults.Add(fmt.Sprintf("experiment.transports.%s.links[%d]", name, i), "%v", path.Err)
			}
		}
		if e.Transports[name].HTTP3 {
			faults.Add("experiment.transports."+name+".http3", "the simulator has no QUIC: this needs a lab")
			continue
		}
		if !e.Transports[name].Delivery.IsZero() {
			faults.Add("experiment.transports."+name+".delivery", "the simulator has no border routers: this needs a lab")
			continue
		}
		if t := e.Transports[name]; !t.Multipath() && t.Gateway == nil && len(t.Links) > 1 {
			faults.Add("experiment.transports."+name+".links", "the simulator takes one path without mptcp, proxies or gateway, got %d links", len(t.Links))
		}
	}
	for _, k := range e.Cells() {
		if e.Traffic[k.Traffic].Datagram > 0 && e.Transports[k.Transport].Multipath() {
			faults.Add("experiment.traffic."+k.Traffic+".datagram", "cannot be carried by MPTCP, which transport %s has", k.Transport)
			break
		}
	}
	return faults
}

// checkNodes returns the faults of the scenario's nodes.
func checkNodes(spec *scenario.Spec) fault.List {
	var faults fault.List
	for _, name := range slices.Sorted(maps.Keys(spec.Nodes)) {
		if n := spec.Nodes[name]; n != nil && n.Gateway != nil && n.Gateway.Role != "" {
			faults.Add("nodes."+name+".gateway.role", "the simulator has no registrations and relays: role %s needs a lab", n.Gateway.Role)
		} else if n != nil && n.MPTCP != nil && n.MPTCP.Fullmesh {
			faults.Add("nodes."+name+".mptcp.fullmesh", "the simulator has one subflow for each path: this needs a lab")
		} else if n != nil && n.Masquerade != "" {
			faults.Add("nodes."+name+".masquerade", "the simulator translates no addresses: this needs a lab")
		}
	}
	return faults
}

// unusedAddresses returns a fault for each additional MPTCP address of the server or client on a
// link that no simulated subflow of a transport passes. A lab would establish a subflow with that
// address, so the simulation would have one subflow less.
func (p *plan) unusedAddresses() fault.List {
	var faults fault.List
	e := p.spec.Experiment
	for _, node := range []string{e.Server, e.Client} {
		n := p.spec.Nodes[node]
		if n == nil || n.MPTCP == nil {
			continue
		}
		for _, list := range []struct {
			name      string
			addresses []netip.Addr
		}{{"announce", n.MPTCP.Announce}, {"from", n.MPTCP.From}} {
			for i, a := range list.addresses {
				link := p.linkOf(node, a)
				if link == "" {
					continue
				}
				for _, name := range e.TransportNames() {
					passes := func(path cell.Path) bool {
						return path.Err != nil || slices.ContainsFunc(path.Hops, func(h cell.Hop) bool { return h.Link == link })
					}
					if !e.Transports[name].Multipath() || slices.ContainsFunc(p.cells.Paths(name), passes) {
						continue
					}
					faults.Add(fmt.Sprintf("nodes.%s.mptcp.%s[%d]", node, list.name, i),
						"none of the simulated subflows of transport %s passes link %s, where %s is: name a link on that way in its links, or use a lab", name, link, a)
				}
			}
		}
	}
	return faults
}

// linkOf returns the link on which a node has the address, or "".
func (p *plan) linkOf(node string, a netip.Addr) string {
	for _, name := range sortedLinks(p.spec) {
		for _, end := range p.spec.Links[name].Ends {
			if end.Node == node && slices.ContainsFunc(end.Addresses, func(prefix netip.Prefix) bool { return prefix.Addr() == a }) {
				return name
			}
		}
	}
	return ""
}

// wire returns the point-to-point link of a port and the hops out of and into the port. For a port
// of a switch, link is empty.
func wire(spec *scenario.Spec, p scenario.Port) (link string, out, in cell.Hop) {
	for name, l := range spec.Links {
		for i, end := range l.Ends {
			if end.Node == p.Node && end.Interface == p.Interface && len(l.Ends) == 2 {
				out = cell.Hop{Link: name, From: end.Node, To: l.Ends[1-i].Node}
				return name, out, out.Back()
			}
		}
	}
	return "", cell.Hop{}, cell.Hop{}
}

// plan translates a scenario's cells into configurations of the simulator.
type plan struct {
	spec  *scenario.Spec
	cells *cell.Cells
	quick bool
	// lateness is Options.Lateness.
	lateness time.Duration
}

func newPlan(spec *scenario.Spec, quick bool) *plan {
	return &plan{spec: spec, cells: cell.New(spec, quick), quick: quick}
}

// congestion returns the congestion control that a node's sysctls set, and the path of that key
// in the scenario. Without a sysctl it is the default.
func (p *plan) congestion(node string) (name, where string, err error) {
	where = "nodes." + node + ".sysctls." + congestionSysctl
	name, ok := p.spec.Nodes[node].Sysctls[congestionSysctl]
	if !ok {
		where = "sysctls." + congestionSysctl
		name, ok = p.spec.Sysctls[congestionSysctl]
	}
	if !ok {
		return defaultCongestion, "", nil
	}
	own := cc.OfKernel(name)
	if !slices.Contains(cc.Names(), own) {
		return "", where, fmt.Errorf("the simulator knows no congestion control %q; it has %s", name, strings.Join(cc.Names(), ", "))
	}
	return own, where, nil
}

// builder builds the configuration of one simulation and numbers the directions of its links.
type builder struct {
	*plan
	cell   *cell.Cell
	eventy map[string]bool
	always []string
	index  map[cell.Hop]int
	config sim.Config
}

// config returns the configuration of one cell.
func (p *plan) config(k result.CellKey, seed uint64) (sim.Config, error) {
	c, err := p.cells.Cell(k)
	if err != nil {
		return sim.Config{}, err
	}
	return p.configOf(c, seed)
}

// configOf is config of a translated cell.
func (p *plan) configOf(c *cell.Cell, seed uint64) (sim.Config, error) {
	t, own := c.Traffic, c.Own()
	transport := own.Transport
	b := &builder{plan: p, cell: c, index: map[cell.Hop]int{}, eventy: map[string]bool{}}
	b.config = sim.Config{Seed: seed, Series: interval, Bursts: true}
	for _, name := range p.spec.Scheduled() {
		b.eventy[name] = true
	}
	for _, x := range c.Events {
		for _, h := range effects[x.Kind()].touched(b, x.Event) {
			b.eventy[h.Link] = true
		}
	}
	for _, x := range c.Connections {
		b.always = append(b.always, x.Transport.Links...)
	}
	overhead := p.spec.Overhead(transport)
	conn := sim.Connection{Name: c.Key.String(), MPTCP: transport.Multipath(), Bytes: c.Bytes, Rate: t.Rate, Header: p.spec.Headers(transport), Handshake: true}
	if t.Objects > 0 {
		conn.Object = t.Bytes
	}
	if transport.Gateway != nil {
		conn.Header -= overhead.Tunnel
		conn.Gateway = newGateway(transport, overhead.Tunnel)
		conn.Start = transport.Gateway.WarmUp()
	}
	if m := transport.Model; m != nil {
		conn.Handshake, conn.MinRTO, conn.MinThreshold, conn.Uncounted = !m.AtOnce, m.MinRTO, m.MinThreshold, m.Uncounted
	}
	paths, err := b.paths(own)
	if err != nil {
		return sim.Config{}, err
	}
	if conn.Paths = paths; p.spec.Experiment.GatewayOf(c.Key) != nil {
		b.configure(&conn)
	}
	b.delayLinks()
	if err := b.behave(&conn, own); err != nil {
		return sim.Config{}, err
	}
	if policy := p.spec.PolicyOf(transport); policy != nil && !t.Upload {
		p.choose(&conn, policy, own.Paths)
	}
	if err := beginOn(&conn, own.Settings.Begin, transport.Links); err != nil {
		return sim.Config{}, err
	}
	beside := conn
	if t.Beside > 0 {
		conn.Start += scenario.BesideLead
	}
	if t.Datagram > 0 {
		b.config.Cross = []sim.Cross{source(conn, t, c.Limit, overhead)}
	} else {
		b.config.Connections = []sim.Connection{conn}
	}
	beside.Bytes, beside.Rate, beside.Object, beside.Beside = 0, 0, 0, true
	for i := range t.Beside {
		beside.Name = fmt.Sprintf("beside %d", i+1)
		b.config.Connections = append(b.config.Connections, beside)
	}
	if err := b.compete(conn); err != nil {
		return sim.Config{}, err
	}
	b.changes()
	for i := range b.config.Changes {
		b.config.Changes[i].At += conn.Start
	}
	b.config.Duration = conn.Start + lasts(c)
	return b.config, nil
}

// delayLinks adds the plan's lateness to links that have a delay and no jitter.
func (b *builder) delayLinks() {
	for i := range b.config.Links {
		if l := &b.config.Links[i]; b.lateness > 0 && l.Delay > 0 && l.Jitter == (linkmodel.Jitter{}) {
			l.Jitter = linkmodel.Jitter{Kind: linkmodel.Uniform, Amount: min(b.lateness, l.Delay)}
		}
	}
}

// beginOn has a connection begin on a link, if one is named.
func beginOn(conn *sim.Connection, link string, links []string) error {
	if link == "" || link == scenario.BeginBest {
		return nil
	}
	i := slices.Index(links, link)
	if i < 0 || !conn.MPTCP {
		return fmt.Errorf("begin: MPTCP over %s has no link %q", strings.Join(links, ", "), link)
	}
	conn.Begin, conn.Paths[i].Backup = i, true
	return nil
}

// lasts returns how long a cell is simulated at most, from the start of its traffic.
func lasts(c *cell.Cell) time.Duration {
	t := c.Traffic
	switch took, known := c.TransferTime(); {
	case t.Datagram > 0:
		return c.Limit + slack
	case c.Limit > 0 && (t.Bytes > 0 || t.Live):
		return c.Limit
	case known:
		return patience*max(took, c.Limit) + slack
	}
	return unlimited
}

// configure sets what the gateways of the cell are configured with of the paths of a connection.
func (b *builder) configure(conn *sim.Connection) {
	g := b.spec.Experiment.GatewayOf(b.cell.Key)
	ratios := g.Ratios()
	for i := range conn.Paths {
		path := &conn.Paths[i]
		if ratios != nil {
			path.Ratio = ratios[i]
		}
		if len(g.Rates) == 0 {
			continue
		}
		for _, l := range path.Out {
			if rate := b.config.Links[l].Rate; rate > 0 && (path.Rate == 0 || rate < path.Rate) {
				path.Rate = rate
			}
		}
		path.Rate = g.Configured(i, path.Rate)
	}
}

// paths adds the paths of a connection.
func (b *builder) paths(x *cell.Connection) ([]sim.Path, error) {
	var paths []sim.Path
	for _, way := range x.Paths {
		if way.Err != nil {
			return nil, way.Err
		}
		var path sim.Path
		for _, h := range way.Hops {
			path.Out = b.pass(path.Out, h)
		}
		for _, h := range way.Back() {
			path.Back = b.pass(path.Back, h)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// uploads reports whether data goes from the client to the server in any run.
func (p *plan) uploads() bool {
	for _, t := range p.spec.Experiment.Traffic {
		if t.Upload {
			return true
		}
	}
	return false
}

// behave applies the settings of a connection of the cell, with Linux' behavior as default.
func (b *builder) behave(c *sim.Connection, x *cell.Connection) error {
	s, most := x.Settings, b.cell.MaxSegment(x)
	c.Congestion = s.Congestion
	if c.MPTCP {
		c.Scheduler = cmp.Or(s.Scheduler, sched.Default)
		c.SchedOptions = s.SchedulerOptions.Options()
		c.Lowat = s.Lowat != nil && *s.Lowat
		c.Overflow = !b.cell.Traffic.Upload && b.use(s) == edge.UseOverflow
		for i, n := range s.SchedulerOptions.Ratios() {
			c.Paths[i].Ratio = n
		}
	}
	if c.Congestion == "" {
		var err error
		if c.Congestion, _, err = b.congestion(b.cell.Sender); err != nil {
			return err
		}
	}
	c.Segment = most
	if s.Segment > 0 {
		if s.Segment > most {
			return fmt.Errorf("segments of %d bytes do not pass the links, of which the least MTU leaves %d", s.Segment, most)
		}
		c.Segment = s.Segment
	}
	c.Window, c.ReceiveBuffer, c.InitialWindow = s.Window, s.ReceiveBuffer, s.InitialWindow
	if sched.NeedsOf(c.Scheduler).Ahead && c.ReceiveBuffer == 0 {
		c.InitialReceive, c.ReceiveBuffer = initialReceive, mostReceive
	}
	if c.MPTCP { // a case may set it for all transports
		c.RBuf = s.RBuf
	}
	c.DelayedACK, c.RACK = s.DelayedACK == nil || *s.DelayedACK, s.RACK == nil || *s.RACK
	if s.Era == scenario.Era2006 {
		// The receive buffer holds 64 kB, as much as then, so data out of order takes of the
		// window.
		c.RACK, c.Linux24, c.InitialReceive = false, true, c.ReceiveBuffer
	}
	if c.DelayedACK {
		c.QuickACKs = quickACKs
	}
	c.HyStart = c.RACK
	return nil
}

// use returns which subflows carry what the server sends.
func (p *plan) use(s scenario.Settings) edge.Use {
	if n := p.spec.Nodes[p.spec.Experiment.Server]; s.Use == "" && n.Edge != nil {
		return n.Edge.MPTCP.Use
	}
	return s.Use
}

// pass appends the index of a hop to a path, unless the hop never affects a packet.
func (b *builder) pass(way []int, h cell.Hop) []int {
	shape := b.cell.Shape(h.Link)
	if shape.IsZero() && !b.eventy[h.Link] && !slices.Contains(b.always, h.Link) {
		return way
	}
	profile := cell.Profile(b.spec, shape, h)
	h = b.port(h)
	i, known := b.index[h]
	if !known {
		i = len(b.config.Links)
		b.index[h] = i
		b.config.Links = append(b.config.Links, sim.Link{Name: h.Link + " from " + h.From, Profile: profile})
	}
	return append(way, i)
}

// port returns the hop without its end if it is over a switch, whose ports shape all frames,
// whatever their destination.
func (b *builder) port(h cell.Hop) cell.Hop {
	if len(b.spec.Links[h.Link].Ends) > 2 {
		h.To = ""
	}
	return h
}

// changes adds the changes by schedules and events to the configuration, sorted by time.
func (b *builder) changes() {
	add := func(at time.Duration, h cell.Hop, change sim.Change) {
		if i, passed := b.index[b.port(h)]; passed {
			change.At, change.Link = at, i
			b.config.Changes = append(b.config.Changes, change)
		}
	}
	for _, name := range b.spec.Scheduled() {
		l := b.spec.Links[name]
		forward := cell.Hop{Link: name, From: l.Ends[0].Node, To: l.Ends[1].Node}
		ways := map[linkmodel.Direction]cell.Hop{linkmodel.Forward: forward, linkmodel.Backward: forward.Back()}
		for _, step := range l.Schedule {
			for _, d := range []linkmodel.Direction{linkmodel.Forward, linkmodel.Backward} {
				if step.Direction.Has(d) {
					add(step.At, ways[d], sim.Change{Change: step.Change})
				}
			}
		}
	}
	for _, x := range b.cell.Events {
		effect := effects[x.Kind()]
		for _, h := range effect.touched(b, x.Event) {
			effect.changes(b, x.Event, h, func(after time.Duration, change sim.Change) { add(x.At+after, h, change) })
		}
	}
	slices.SortStableFunc(b.config.Changes, func(x, y sim.Change) int { return int(x.At - y.At) })
}

// measure converts the result of a simulation to a run with the metrics of a receiver in a lab, and
// its time series.
func (p *plan) measure(of *cell.Cell, trial int, config sim.Config, simulated sim.Result) (result.Run, *result.Trace) {
	run := result.Run{CellKey: of.Key, Trial: trial, Metrics: map[string]float64{}, Notes: map[string]string{}}
	if len(simulated.Cross) > 0 {
		return p.measureDatagrams(of, trial, config, simulated)
	}
	c := &simulated.Connections[0]
	began := config.Connections[0].Start
	t, transport := of.Traffic, of.Own().Transport
	limit := time.Duration(0)
	if t.Bytes > 0 || t.Live {
		limit = of.Limit
	}
	done := c.Finish != sim.Never
	report := traffic.Replay(interval, limit, done, func(yield func(time.Duration, int) bool) {
		for _, b := range c.Reseq.Series {
			if !yield(b.At-began, b.Bytes) {
				return
			}
		}
	})
	report.Objects = c.Objects
	of.Phases[0].Put(run.Metrics)
	if fault := failure(&config, unit.Size(report.Bytes), limit == 0 && !done); fault != "" {
		if len(of.Events) > 0 {
			run.Metrics[result.ConnectionsLost] = 1
		}
		run.Notes[result.NoteError] = fault
		return run, nil
	}
	trace := &result.Trace{CellKey: of.Key, Trial: trial, Interval: interval, Samples: report.Series}
	p.mark(trace, of, report.Duration)
	result.PutDelivery(run.Metrics, report)
	result.Mean(of.Phases, report.Duration).Put(run.Metrics)
	trace.Measure(of.Phases, run.Metrics)
	if len(of.Events) > 0 {
		run.Metrics[result.ConnectionsLost] = 0
	}
	if transport.Multipath() {
		result.PutResequencing(run.Metrics, &c.Reseq, p.spec.SumRates(of.Key), report.Duration)
		run.Metrics[result.Reinjections] = float64(c.Reinjected)
		putFirstLink(run.Metrics, c.Paths)
		for _, path := range c.Paths {
			run.Metrics[result.SubflowWindow] += path.MeanCwnd / float64(len(c.Paths))
		}
		trace.Subflows = subflowsOf(transport.Links, c.Paths)
	}
	trace.Decisions = uses(transport.Links, &config.Connections[0], c, began)
	if t.Beside > 0 && t.Objects == 0 {
		measureBeside(&run, simulated, began, report.Duration)
	}
	if len(of.Beside()) > 0 {
		p.measureCompetition(of, &run, simulated)
	}
	if transport.Gateway != nil {
		trace.Subflows = subflows(transport.Links, c.Gateway, began)
		trace.Decisions = decisions(transport.Links, c.Gateway, began)
		if path := c.Paths[0]; path.Acks > 0 {
			run.Metrics[result.TripleDuplicates] = float64(path.Triples) / float64(path.Acks)
		}
	}
	for _, path := range c.Paths {
		run.Metrics[result.Retransmissions] += float64(path.Retransmissions)
		run.Metrics[result.Timeouts] += float64(path.Timeouts)
	}
	if p.spec.Experiment.DrawsBursts(of.Key, trial) {
		trace.Bursts = c.Reseq.Series
	}
	return run, trace
}

// mark adds the events of a cell's traffic, which took so long, to a trace.
func (p *plan) mark(trace *result.Trace, of *cell.Cell, took time.Duration) {
	for _, x := range of.Events {
		if x.At < took {
			trace.Events, trace.Ends = append(trace.Events, x.At), append(trace.Ends, min(x.At+x.Span(p.quick), took))
		}
	}
}

// failure returns why a simulation has no measurements, "" if it has. late: it ended before all data
// had arrived.
func failure(config *sim.Config, arrived unit.Size, late bool) string {
	switch {
	case arrived == 0:
		return "not a byte arrived"
	case late:
		return fmt.Sprintf("took far longer than it should: after %s %s of %s had arrived", config.Duration, arrived, config.Connections[0].Bytes)
	}
	return ""
}

// subflowsOf returns what arrived on each path of a connection, by the names of its links.
func subflowsOf(links []string, paths []sim.PathResult) []result.Subflow {
	var all []result.Subflow
	for i, path := range paths {
		bytes := make([]int64, len(path.Series))
		for j, n := range path.Series {
			bytes[j] = int64(n)
		}
		all = append(all, result.Subflow{Name: links[i], Bytes: bytes})
	}
	slices.SortFunc(all, func(a, b result.Subflow) int { return strings.Compare(a.Name, b.Name) })
	return all
}
