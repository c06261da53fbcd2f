package openplane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gaissmai/bart"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	program "github.com/tabane/tabane/internal/gateway/openbpf"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/gateway/udp"
	"github.com/tabane/tabane/internal/kernel/bpf"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/kernel/netns"
	"github.com/tabane/tabane/internal/kernel/offload"
	"github.com/tabane/tabane/internal/kernel/route"
)

// Sealed is the plane that measures the paths to open peers.
type Sealed interface {
	dataplane.Carrier
	// Active reports that packets are sent to an open peer.
	Active(peer string)
	// SendNATSession sends a record to a peer. It reports false if there is no session or no room.
	SendNATSession(peer string, r tunnel.NATSession) bool
}

// Options configure a Plane.
type Options struct {
	// Sealed makes the sealed plane.
	Sealed func(dataplane.Open) (Sealed, error)
	Log    *slog.Logger
	// Legacy attaches with cls_bpf even where the kernel has tcx.
	Legacy bool
	// Pins returns the directory where the program is pinned, so that it goes on when this process
	// is killed, and the next one takes over. Without it, or with an error, the program is not
	// pinned. With Keep, it also goes on after a clean stop.
	Pins func() (string, error)
	Keep bool
}

// Plane is both planes of a gateway. Its methods are safe for concurrent use.
type Plane struct {
	log    *slog.Logger
	sealed Sealed
	keep   bool
	// unpinned is why the program is not pinned, empty if it is.
	unpinned string

	// numbers are those of the open peers in the program.
	numbers atomic.Pointer[map[string]int]

	measuredMu sync.Mutex
	measured   map[string]measured // not yet in plans
	wake       chan struct{}

	tunnels tunnels
	counted counted
	nat     *nat

	mu         sync.Mutex // guards the following
	program    *program.Program
	kernel     *route.Conn
	closed     bool
	state      dataplane.State
	generation uint32
	peers      map[string]*peer
	attached   map[at]*attachment
	// numbers that a previous instance gave peers, by their prefixes.
	inherited map[netip.Prefix]int
	// segmented is the index of the second interface of the pair that segments super-packets, 0
	// without one. whole: that there is none is logged.
	segmented int
	whole     bool
	// bypassed: a program of others before that of the LAN accepts packets to open peers.
	// sealedBefore is from the last examination.
	bypassed     bool
	sealedBefore sealedCount
	swept        bool // what is left of a previous instance is removed
	resumed      bool // its NAT sessions are taken over
}

// measured is what the sealed plane knows of a peer.
type measured struct {
	paths  []dataplane.Measured
	cookie uint64
}

// at is a place of a program on an interface, which may have several.
type at struct {
	link string
	kind kind
}

// kind is which of the programs it is.
type kind uint8

const (
	kindSplit kind = iota
	kindJoin
	kindRestore
	kindCount
)

// attachment is the program on an interface.
type attachment struct {
	index int
	bpf.Attachment
}

// peer is an open peer.
type peer struct {
	conf   dataplane.Peer
	number int
	measured
	ways []program.Way
	// indices are those of the paths' interfaces, 0 if there is none.
	indices [dataplane.MaxPaths]int
	// reasons are why ways are not used.
	reasons []string
	mtu     int
	rules   []rule
	// usable is when there was a path last.
	usable time.Time
	before uint64 // packets, when it was last asked whether there were any
}

// rule is a rule of the policy for a peer.
type rule struct {
	discipline dataplane.Discipline
	planner    *sched.Planner
	table      uint32
	// base is what the rule before at this position has sent.
	base program.RuleTraffic
}

const (
	// holdFor is how long the last plans are kept when no path can be used any more: without them
	// packets are dropped for certain, with them they arrive if it is the peer's daemon that does
	// not answer, while its program goes on. Cookies of a previous instance are accepted as long.
	holdFor = 3 * time.Minute
	// leaveFor is how long a clean stop restores packets of NAT sessions that peers send until they
	// know.
	leaveFor = 200 * time.Millisecond
	// followEvery is the time between two looks at addresses, next hops and interfaces.
	followEvery = time.Second
	// activeEvery is the time between two looks at whether packets are sent.
	activeEvery = 100 * time.Millisecond
)

// New loads the program and makes the sealed plane. It returns a *feature.Error when this host
// cannot load it.
func New(o Options) (*Plane, error) {
	p := &Plane{
		log: o.Log, measured: map[string]measured{}, wake: make(chan struct{}, 1),
		peers: map[string]*peer{}, attached: map[at]*attachment{},
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	p.numbers.Store(&map[string]int{})
	if err := p.load(&o); err != nil {
		return nil, err
	}
	p.tunnels.program, p.counted.read, p.counted.log = p.program, p.program.Counted, p.log
	p.nat = newNAT(p.program, p.log)
	var err error
	if p.kernel, err = route.Dial(); err != nil {
		return nil, errors.Join(err, p.program.Close())
	}
	if p.sealed, err = o.Sealed(p); err != nil {
		return nil, errors.Join(err, p.kernel.Close(), p.program.Close())
	}
	p.nat.send = p.sealed.SendNATSession
	return p, nil
}

// Clear removes what a killed instance has left, in the directory of pins and at interfaces of the
// calling thread's network namespace, for a gateway without open peers: its programs would go on
// sending packets without encryption.
func Clear(pins string) error {
	if err := program.Clear(pins); err != nil {
		return fmt.Errorf("remove programs of the previous instance: %w", err)
	}
	return nil
}

// load loads the program, without pins if they cannot be used, and takes over what a previous
// instance has left.
func (p *Plane) load(o *Options) (err error) {
	pins := ""
	if o.Pins != nil {
		if pins, err = o.Pins(); err == nil {
			p.program, err = program.Load(program.Options{Legacy: o.Legacy, Pins: pins})
		}
		if err != nil {
			p.unpinned = err.Error()
			p.log.Warn("program is not pinned", "err", err)
		}
	}
	if p.program == nil {
		if p.program, err = program.Load(program.Options{Legacy: o.Legacy}); err != nil {
			return err
		}
	}
	p.keep = o.Keep && p.unpinned == "" && pins != ""
	left, err := p.program.Inherited()
	if err != nil {
		return errors.Join(err, p.program.Close())
	}
	p.generation, p.inherited, p.tunnels.inherited = left.Generation, left.Numbers, left.Cookies
	return nil
}

// Measured implements dataplane.Open.
func (p *Plane) Measured(peer string, paths []dataplane.Measured, cookie uint64) {
	p.measuredMu.Lock()
	p.measured[peer] = measured{paths, cookie}
	p.measuredMu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Wait implements dataplane.Open.
func (p *Plane) Wait(peer string, path int) time.Duration {
	t, ok := p.traffic(peer)
	if !ok || path < 0 || path >= program.MaxPaths {
		return 0
	}
	return t.Waits[path]
}

// traffic returns what was sent to a peer; false if it is none of the program, or the plane has
// stopped.
func (p *Plane) traffic(peer string) (program.Traffic, bool) {
	n, ok := (*p.numbers.Load())[peer]
	if !ok {
		return program.Traffic{}, false
	}
	t, err := p.program.Traffic(n)
	return t, err == nil
}

// Accept implements dataplane.Open.
func (p *Plane) Accept(peer string, cookies []uint64) error { return p.tunnels.accept(peer, cookies) }

// NATSession implements dataplane.Open.
func (p *Plane) NATSession(peer string, r tunnel.NATSession) { p.nat.receive(peer, r) }

// Arrived implements dataplane.Open.
func (p *Plane) Arrived(peer string) [dataplane.MaxPaths]dataplane.Arrived {
	if all, ok := p.counted.arrived(peer); ok {
		return all
	}
	return p.tunnels.arrived(peer)
}

// Sent implements dataplane.Open.
func (p *Plane) Sent(peer string, path int) uint64 {
	t, ok := p.traffic(peer)
	if !ok || path < 0 || path >= program.MaxPaths {
		return 0
	}
	return t.Paths[path].Packets
}

// Marked implements dataplane.Open.
func (p *Plane) Marked(peer string, path int, sent uint64) { p.counted.mark(peer, path, sent) }

// check returns why a state cannot be applied.
func check(s *dataplane.State) error {
	open := 0
	for _, c := range s.Peers {
		if c.Mode.Open() {
			open++
		}
	}
	if open == 0 {
		return nil
	}
	if open > program.MaxPeers {
		return fmt.Errorf("apply state: %d open peers, more than %d", open, program.MaxPeers)
	}
	tables := 0
	for i, r := range s.Policy {
		if _, err := planner(r.Discipline); err != nil {
			return fmt.Errorf("apply state: policy[%d]: %w", i, err)
		}
		if r.Discipline.Name == dataplane.Redundant && slices.ContainsFunc(s.Peers, func(c dataplane.Peer) bool { return c.Mode == dataplane.NAT }) {
			return fmt.Errorf("apply state: policy[%d]: %s cannot send packets with NAT", i, r.Discipline.Name)
		}
		if r.Discipline.Name == dataplane.Flow {
			tables += open
		}
	}
	if tables > program.MaxTables {
		return fmt.Errorf("apply state: %d rules of open peers have the discipline %s, more than %d", tables, dataplane.Flow, program.MaxTables)
	}
	return nil
}

func planner(d dataplane.Discipline) (*sched.Planner, error) {
	return sched.NewPlanner(d.Name, sched.Options{Choice: d.Choice, Tie: sched.Tie, Size: sched.FullSize})
}

// Apply brings both planes to a state. It may be called any number of times. An interface of the
// LAN that this kernel cannot run the program on is an error; one that is missing is tried again.
func (p *Plane) Apply(s dataplane.State) error {
	if err := check(&s); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.attach(&s); err != nil {
		return fmt.Errorf("apply state: %w", err)
	}
	if err := p.sealed.Apply(s); err != nil {
		return err
	}
	if p.closed {
		return nil
	}
	p.state = s
	if err := p.replace(); err != nil {
		return fmt.Errorf("apply state: %w", err)
	}
	return nil
}

// replace brings the program to the state. The mutex is locked.
func (p *Plane) replace() error {
	now, numbers, used := map[string]*peer{}, map[string]int{}, map[int]bool{}
	for name, r := range p.peers {
		if i := slices.IndexFunc(p.state.Peers, func(c dataplane.Peer) bool { return c.Name == name && c.Mode.Open() }); i >= 0 {
			used[r.number] = true
		}
	}
	var errs []error
	tables, number := uint32(0), 0
	for _, c := range p.state.Peers {
		if !c.Mode.Open() {
			continue
		}
		r := p.peers[c.Name]
		if r == nil {
			if old, ok := p.inheritedNumber(&c); ok && !used[old] {
				r = &peer{number: old, usable: time.Now()}
			} else {
				for used[number] || p.reserved(number) {
					number++
				}
				r = &peer{number: number}
				errs = append(errs, p.program.Reset(number))
			}
			used[r.number] = true
		} else if r.conf.Mode != c.Mode {
			r.usable = time.Time{}
		}
		r.conf = c
		errs = append(errs, p.makeRules(r, &tables))
		now[c.Name], numbers[c.Name] = r, r.number
	}
	p.peers, p.inherited = now, nil
	p.generation++
	p.numbers.Store(&numbers)
	errs = append(errs, p.program.Listen(p.state.Port), p.tunnels.number(numbers), p.setNAT())
	p.setCounted()
	devices := devices{}
	for _, r := range p.peers {
		p.find(r, devices)
		errs = append(errs, p.setPlans(r, p.generation-1))
	}
	errs = append(errs, p.setOrigins(), p.setLines())
	// Until here packets find plans of the generation before.
	errs = append(errs, p.program.SetPolicy(p.generation, p.state.Policy), p.setRoutes(), p.program.KeepPlans(p.generation))
	return errors.Join(errs...)
}

// setNAT configures the peers with NAT. The mutex is locked.
func (p *Plane) setNAT() error {
	peers := map[string]natPeer{}
	for name, r := range p.peers {
		if r.conf.Mode == dataplane.NAT {
			peers[name] = natPeer{number: r.number, prefixes: r.conf.Prefixes, allow: r.conf.Allow}
		}
	}
	owners := new(bart.Table[string])
	for prefix, owner := range p.state.Owners() {
		if owner == dataplane.Nobody {
			owners.Insert(prefix, "")
		} else {
			owners.Insert(prefix, p.state.Peers[owner].Name)
		}
	}
	err := p.nat.configure(peers, owners, p.state.LAN.Prefixes)
	if !p.resumed {
		p.resumed = true
		err = errors.Join(err, p.nat.takeOver())
	}
	return err
}

// setCounted has packets of peers counted that have no numbers. The mutex is locked.
func (p *Plane) setCounted() {
	numbers, plain := map[string]int{}, map[string]bool{}
	for name, r := range p.peers {
		if r.conf.Mode.Counted() {
			numbers[name], plain[name] = r.number, r.conf.Mode == dataplane.Plain
		}
	}
	p.counted.number(numbers, plain)
}

// setLines sets where packets of peers with mode plain arrive: on the interface of their path. On
// that of several they are not counted. The mutex is locked.
func (p *Plane) setLines() error {
	lines := map[program.Line]int{}
	for name, r := range p.peers {
		if r.conf.Mode != dataplane.Plain {
			continue
		}
		own := r.indices
		for i, index := range r.indices {
			if index == 0 {
				continue
			}
			if a := p.attached[at{r.paths[i].Interface, kindCount}]; a == nil || a.Attachment == nil || a.index != index {
				own[i] = 0
			}
			for j := range i {
				if r.indices[j] == index {
					own[i], own[j] = 0, 0
				}
			}
		}
		for i, index := range r.indices {
			at := program.Line{Interface: index, Peer: r.number}
			switch {
			case index == 0:
			case own[i] != 0:
				lines[at] = i
			default:
				lines[at] = program.MaxPaths
			}
		}
		p.counted.lines(name, own)
	}
	return p.program.SetLines(lines)
}

// setOrigins sets where packets of NAT sessions come from: where the peers' paths are reached. The
// mutex is locked.
func (p *Plane) setOrigins() error {
	origins, unknown := map[netip.Addr]program.Origin{}, map[int]bool{}
	for _, r := range p.peers {
		if r.conf.Mode != dataplane.NAT {
			continue
		}
		// Those of a previous instance stay until the peer is found.
		unknown[r.number] = true
		for i := range r.paths {
			if remote := r.paths[i].Remote; remote.IsValid() {
				a, o := remote.Addr().Unmap().WithZone(""), program.Origin{Peer: r.number, Path: i}
				if old, ok := origins[a]; ok && old != o {
					o.Path = program.MaxPaths
				}
				origins[a] = o
				unknown[r.number] = false
			}
		}
	}
	return p.program.SetOrigins(origins, func(peer int) bool { return unknown[peer] })
}

// inheritedNumber returns the number that a previous instance gave a peer.
func (p *Plane) inheritedNumber(c *dataplane.Peer) (int, bool) {
	for _, prefix := range c.Prefixes {
		if n, ok := p.inherited[prefix]; ok {
			return n, true
		}
	}
	return 0, false
}

// reserved reports whether a previous instance gave the number to a peer.
func (p *Plane) reserved(number int) bool {
	for _, n := range p.inherited {
		if n == number {
			return true
		}
	}
	return false
}

// makeRules makes the rules of a peer. Those that stay the same keep their planners.
func (p *Plane) makeRules(r *peer, tables *uint32) error {
	traffic, err := p.program.Traffic(r.number)
	if err != nil {
		return err
	}
	rules := make([]rule, len(p.state.Policy))
	for i, c := range p.state.Policy {
		rules[i].table = program.NoTable
		if c.Discipline.Name == dataplane.Flow {
			rules[i].table = *tables
			*tables++
		}
		if i < len(r.rules) && r.rules[i].discipline.String() == c.Discipline.String() {
			rules[i].discipline, rules[i].planner, rules[i].base = r.rules[i].discipline, r.rules[i].planner, r.rules[i].base
			continue
		}
		made, err := planner(c.Discipline)
		if err != nil {
			return err
		}
		rules[i].discipline, rules[i].planner, rules[i].base = c.Discipline, made, traffic.Rules[i]
	}
	r.rules = rules
	return nil
}

// device is an interface of paths; index 0 is none.
type device struct{ index, mtu int }

// devices are the interfaces of paths as they were at the start of an update: most paths to all
// peers share a few.
type devices map[string]device

func (d devices) named(name string) device {
	known, ok := d[name]
	if !ok {
		// One that is gone has index 0.
		known.index, known.mtu, _ = udp.Interface(name)
		d[name] = known
	}
	return known
}

// find finds where packets of the paths go. A path without a way has a reason. The mutex is locked.
func (p *Plane) find(r *peer, devices devices) {
	r.ways, r.reasons, r.mtu = make([]program.Way, len(r.paths)), make([]string, len(r.paths)), 0
	var outside netip.Addr // the peer's, which all paths of a tunnel have the IP version of
	r.indices = [dataplane.MaxPaths]int{}
	for i := range r.paths {
		c := &r.paths[i]
		if c.Interface == "" {
			continue
		}
		at := devices.named(c.Interface)
		r.indices[i] = at.index
		if at.index == 0 || !c.Remote.IsValid() {
			continue
		}
		way, reason := p.wayOf(r, c, at.index, outside)
		if reason != "" {
			r.reasons[i] = reason
			continue
		}
		r.ways[i] = way
		if c.Usable {
			outside = c.Remote.Addr().Unmap()
			if mtu := r.mtuOf(c, at.mtu); r.mtu == 0 || mtu < r.mtu {
				r.mtu = mtu
			}
		}
	}
}

// wayOf returns where packets of a path go, or why they cannot. outside is the address of the peer
// on another path, if any.
func (p *Plane) wayOf(r *peer, c *dataplane.Measured, index int, outside netip.Addr) (way program.Way, reason string) {
	remote := netip.AddrPortFrom(c.Remote.Addr().Unmap(), c.Remote.Port())
	hop, source, err := p.kernel.NeighborOn(remote.Addr().WithZone(""), index, p.state.Mark)
	way = program.Way{Interface: index}
	set := func(a netip.Addr) {
		if a = a.WithZone(""); a.Is4() {
			way.IPv4 = a
		} else if a.Is6() {
			way.IPv6 = a
		}
	}
	for _, path := range p.state.Paths {
		if path.Interface == c.Interface {
			for _, via := range path.Via {
				set(via)
			}
		}
	}
	set(hop) // not valid after an error
	if c.Local.IsValid() {
		source = c.Local
	}
	if r.conf.Mode != dataplane.Unsealed && r.conf.Mode != dataplane.NAT {
		need4 := slices.ContainsFunc(r.conf.Prefixes, func(p netip.Prefix) bool { return p.Addr().Is4() })
		need6 := slices.ContainsFunc(r.conf.Prefixes, func(p netip.Prefix) bool { return p.Addr().Is6() })
		if need4 && !way.IPv4.IsValid() && !way.IPv6.IsValid() || need6 && !way.IPv6.IsValid() {
			return way, "the next hop of packets to the peer is not known on this path in one of their IP versions: give it a via"
		}
		return way, ""
	}
	switch {
	case err != nil || !source.IsValid():
		return way, "the next hop to the peer is not known on this path"
	case outside.IsValid() && outside.Is4() != remote.Addr().Is4():
		return way, fmt.Sprintf("this path has another IP version than that to %v", outside)
	case r.conf.Mode == dataplane.NAT && c.Seen.IsValid() && c.Seen.Addr().Unmap() != source.Unmap():
		return way, fmt.Sprintf("the peer sees %v as %v: another NAT on this path, of whose flows it has no sessions", source, c.Seen.Addr().Unmap())
	}
	way.Local, way.Remote = netip.AddrPortFrom(source.Unmap().WithZone(""), c.Port), remote
	return way, ""
}

// mtuOf returns the MTU of packets to the peer on a path over an interface with the MTU mtu.
func (r *peer) mtuOf(c *dataplane.Measured, mtu int) int {
	switch {
	case r.conf.Mode != dataplane.Unsealed:
		return mtu
	case c.Remote.Addr().Unmap().Is6():
		return min(mtu, c.MTU) - program.OverheadIPv6
	}
	return min(mtu, c.MTU) - program.OverheadIPv4
}

// ready reports whether packets may be sent: in a tunnel, if the peer accepts them.
func (r *peer) ready() bool { return r.conf.Mode != dataplane.Unsealed || r.cookie != 0 }

// setPlans derives the plans of a peer's rules, whose last ones have the generation before. The
// mutex of the plane is locked.
func (p *Plane) setPlans(r *peer, before uint32) error {
	var errs []error
	now := make([]sched.Path, len(r.paths))
	usable, slow := false, false
	for i := range now {
		now[i] = r.paths[i].Path
		now[i].Usable = now[i].Usable && r.ways[i].Interface != 0 && r.ready()
		usable = usable || now[i].Usable
		slow = slow || now[i].Usable && now[i].Rate > 0 && unit.Bandwidth(now[i].Rate).TimeFor(dataplane.SuperPacket) > dataplane.SuperPacketMost
	}
	switch {
	case usable:
		r.usable = time.Now()
	case time.Since(r.usable) < holdFor && before == p.generation:
		return nil // the plans stay
	case time.Since(r.usable) < holdFor:
		for i := range r.rules {
			errs = append(errs, p.program.CopyPlan(
				program.Key{Generation: p.generation, Peer: r.number, Rule: i}, program.Key{Generation: before, Peer: r.number, Rule: i}))
		}
		return errors.Join(errs...)
	}
	for i, rule := range r.rules {
		paths := slices.Clone(now)
		for j := range paths {
			if paths[j].Ratio = 0; j < len(rule.discipline.Ratio) {
				paths[j].Ratio = rule.discipline.Ratio[j]
			}
		}
		errs = append(errs, p.program.SetPlan(
			program.Key{Generation: p.generation, Peer: r.number, Rule: i},
			program.Plan{
				Choice: rule.planner.Plan(paths), MTU: r.mtu, Table: rule.table, Ways: r.ways,
				Tunnel: r.conf.Mode == dataplane.Unsealed, Cookie: r.cookie, NAT: r.conf.Mode == dataplane.NAT, Slow: slow,
			}))
	}
	return errors.Join(errs...)
}

// setRoutes sets what the program takes: the peers' prefixes without this host's addresses and LAN.
func (p *Plane) setRoutes() error {
	routes, allowed := map[netip.Prefix]int{}, map[int][]netip.Prefix{}
	for prefix, owner := range p.state.Owners() {
		if owner == dataplane.Nobody {
			routes[prefix] = program.Nobody
		} else if r := p.peers[p.state.Peers[owner].Name]; r != nil {
			routes[prefix] = r.number
			allowed[r.number] = r.conf.Allow
		}
	}
	for _, prefix := range p.state.LAN.Prefixes {
		routes[prefix] = program.Kernel
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range own {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			host := prefix.Addr().Unmap().WithZone("")
			routes[netip.PrefixFrom(host, host.BitLen())] = program.Own
		}
	}
	// A peer's number may have been another one's.
	return errors.Join(p.program.SetAllowed(allowed), p.program.SetRoutes(routes))
}

// attach attaches the programs to the interfaces of the LAN and of the paths. The
// mutex is locked.
func (p *Plane) attach(s *dataplane.State) error {
	if p.closed {
		return nil
	}
	var places []at
	for _, name := range s.LAN.Interfaces {
		places = append(places, at{link: name})
	}
	for _, m := range []struct {
		mode dataplane.Mode
		kind kind
	}{{dataplane.Unsealed, kindJoin}, {dataplane.NAT, kindRestore}, {dataplane.Plain, kindCount}} {
		if slices.ContainsFunc(s.Peers, func(c dataplane.Peer) bool { return c.Mode == m.mode }) {
			for _, c := range s.Paths {
				places = append(places, at{c.Interface, m.kind})
			}
		}
	}
	if p.segment(s) {
		places = append(places, at{link: program.Segmented})
	}
	for place, a := range p.attached {
		if !slices.Contains(places, place) {
			delete(p.attached, place)
			p.detach(place.link, a)
		}
	}
	// All are detached from interfaces that are gone, or have another name, before one is attached:
	// two may have swapped their names, and a program is on an interface only once.
	now := devices{}
	for _, place := range places {
		a := p.attached[place]
		if a == nil {
			a = &attachment{}
			p.attached[place] = a
		}
		if a.index != now.named(place.link).index {
			p.detach(place.link, a)
			a.Attachment, a.index = nil, 0
		}
	}
	var errs []error
	for _, place := range places {
		name, a := place.link, p.attached[place]
		index := now.named(name).index
		if index == a.index { // 0: it may come later
			continue
		}
		attach := p.program.Attach
		switch place.kind {
		case kindJoin:
			attach = p.program.Join
		case kindRestore:
			attach = p.program.Restore
		case kindCount:
			attach = p.program.Count
		case kindSplit:
		}
		made, err := attach(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil && place.kind == kindCount:
			// Packets are sent over an interface of any type.
			p.log.Warn("losses are not counted", "interface", name, "err", err)
		case err != nil:
			errs = append(errs, err)
			continue
		}
		a.Attachment, a.index = made, index
	}
	if err := errors.Join(errs...); err != nil || p.swept {
		return err
	}
	p.swept = true
	var attached []bpf.Attachment
	for _, a := range p.attached {
		attached = append(attached, a.Attachment)
	}
	return p.program.Sweep(attached)
}

// setPairFilter has the kernel accept segments from any source. The larger one of an interface's
// setting and that of all applies, of which 2 is the loose one.
func setPairFilter() error {
	value := "0"
	if all, err := netns.ReadSysctl("net.ipv4.conf.all.rp_filter"); err == nil && all == "1" {
		value = "2"
	}
	return netns.Sysctl("net.ipv4.conf."+program.Segmented+".rp_filter", value)
}

// segment has the kernel segment super-packets if there are open peers, and reports whether it
// does. Without the pair of interfaces they are sent as they are. The mutex is locked.
func (p *Plane) segment(s *dataplane.State) bool {
	if !slices.ContainsFunc(s.Peers, func(c dataplane.Peer) bool { return c.Mode.Open() }) {
		if p.segmented != 0 {
			p.unsegment()
		}
		return false
	}
	// Another program may have removed it.
	if index, _, err := udp.Interface(program.Segmented); err == nil && index == p.segmented {
		return true
	}
	p.segmented = 0
	pair, err := bpf.MakePair(program.Segmenter, program.Segmented)
	if err == nil {
		err = errors.Join(offload.Prepare(program.Segmenter), offload.Prepare(program.Segmented))
		// What the program leaves of the segments has sources behind other interfaces. A host that
		// drops them drops few.
		if err := setPairFilter(); err != nil {
			p.log.Debug("reverse path filter stays", "err", err)
		}
	}
	if err == nil {
		err = p.program.Segment(pair.First, pair.Second, pair.Address)
	}
	switch {
	case err == nil:
		p.segmented, p.whole = pair.Second, false
	case !p.whole:
		p.whole = true
		p.log.Warn("super-packets are not segmented for slow paths", "err", errors.Join(err, p.program.Segment(0, 0, nil)))
	}
	return err == nil
}

func (p *Plane) unsegment() {
	p.segmented = 0
	if err := errors.Join(p.program.Segment(0, 0, nil), bpf.RemovePair(program.Segmenter)); err != nil {
		p.log.Warn("pair of interfaces is not removed", "err", err)
	}
}

func (p *Plane) detach(name string, a *attachment) {
	if a.Attachment == nil {
		return
	}
	if err := a.Detach(); err != nil {
		p.log.Warn("program is not detached", "interface", name, "error", err)
	}
}

// Run carries packets until the context ends, and detaches the program. It is called once.
func (p *Plane) Run(ctx context.Context) error {
	followCtx, stop := context.WithCancel(ctx)
	var loop sync.WaitGroup
	loop.Go(func() {
		contain.Repeat(followCtx, contain.Reconcile, p.log, func() { p.follow(followCtx) })
	})
	wants, err := p.program.Wants()
	if err == nil {
		loop.Go(func() { p.nat.run(followCtx, wants) })
		// The sealed plane, which reaches the peers, ends after the sessions have.
		sealedCtx, end := context.WithCancel(context.WithoutCancel(ctx))
		loop.Go(func() {
			<-followCtx.Done()
			p.leave()
			end()
		})
		err = p.sealed.Run(sealedCtx)
	}
	stop()
	loop.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if !p.keep {
		for place, a := range p.attached {
			p.detach(place.link, a)
		}
		if p.segmented != 0 {
			p.unsegment()
		}
		err = errors.Join(err, p.program.Unpin())
	}
	p.numbers.Store(&map[string]int{})
	p.tunnels.close()
	return errors.Join(err, p.kernel.Close(), p.program.Close())
}

// leave has peers end NAT sessions before nobody restores their packets. Where the program stays,
// so do the sessions.
func (p *Plane) leave() {
	if p.keep {
		return
	}
	peers, err := p.nat.leave()
	if err != nil {
		p.log.Warn("NAT sessions do not end", "err", err)
	}
	for waited := time.Duration(0); peers && waited < leaveFor; waited += natRetry {
		time.Sleep(natRetry)
		p.nat.mu.Lock()
		p.nat.flush() // what there was no room for
		p.nat.mu.Unlock()
	}
}

// follow keeps the program up to date until the context ends.
func (p *Plane) follow(ctx context.Context) {
	every, active := time.NewTicker(followEvery), time.NewTicker(activeEvery)
	defer every.Stop()
	defer active.Stop()
	failed := ""
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
			err = p.update(false)
		case <-every.C:
			err = p.update(true)
		case <-active.C:
			for _, name := range p.active() {
				p.sealed.Active(name)
			}
			continue
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != "" && text != failed {
			p.log.Error("open plane is not up to date", "err", err)
		}
		failed = text
	}
}

// update applies what was measured, and with all set also what has changed on this host.
func (p *Plane) update(all bool) error {
	p.measuredMu.Lock()
	news := p.measured
	p.measured = map[string]measured{}
	p.measuredMu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	devices := devices{}
	for name, r := range p.peers {
		m, ok := news[name]
		switch {
		case ok:
			moved := !slices.EqualFunc(m.paths, r.paths, samePlace)
			if r.measured = m; moved || all {
				p.find(r, devices)
			}
		case all:
			p.find(r, devices)
		default:
			continue
		}
		errs = append(errs, p.setPlans(r, p.generation))
		if r.conf.Mode == dataplane.NAT && slices.ContainsFunc(r.paths, func(m dataplane.Measured) bool { return m.Usable }) {
			p.nat.up(name)
		}
	}
	errs = append(errs, p.setOrigins(), p.setLines())
	if all {
		errs = append(errs, p.setRoutes(), p.attach(&p.state))
	}
	return errors.Join(errs...)
}

// samePlace reports whether packets of a path go where they went before.
func samePlace(a, b dataplane.Measured) bool {
	return a.Interface == b.Interface && a.Remote == b.Remote && a.Port == b.Port && a.Usable == b.Usable && a.MTU == b.MTU
}

// active returns the peers that packets were sent to, or came from, since the call before.
func (p *Plane) active() (names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, r := range p.peers {
		t, err := p.program.Traffic(r.number)
		if err != nil {
			continue
		}
		sum := uint64(0)
		arrived := p.Arrived(name)
		for i := range t.Paths {
			sum += t.Paths[i].Packets + arrived[i].Packets
		}
		if sum != r.before {
			names = append(names, name)
		}
		r.before = sum
	}
	return names
}

// NATFlows returns the NAT sessions whose last packets are most recent, at most so many, and the
// number of all.
func (p *Plane) NATFlows(most int) ([]dataplane.NATFlow, int) { return p.nat.list(most) }

// Status returns what both planes do now.
func (p *Plane) Status() dataplane.Status {
	s := p.sealed.Status()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return s
	}
	nat := p.nat.count()
	for i := range s.Peers {
		s.Peers[i].NAT = nat[s.Peers[i].Name]
		if r := p.peers[s.Peers[i].Name]; r != nil {
			arrived := p.Arrived(r.conf.Name)
			s.Received = add(s.Received, p.addTraffic(&s.Peers[i], r, &arrived))
			for _, a := range arrived {
				s.Delivered = add(s.Delivered, a.Count)
			}
		}
	}
	s.Unpinned = p.unpinned
	if left, err := p.program.Left(); err == nil && len(left) > 0 {
		s.Left = left
	}
	if refused, err := p.program.Refused(); err == nil {
		for reason, n := range refused {
			s.Dropped[reason] += n
		}
	}
	return s
}

func add(a, b dataplane.Count) dataplane.Count {
	return dataplane.Count{Packets: a.Packets + b.Packets, Bytes: a.Bytes + b.Bytes}
}

// addTraffic adds what was sent to a peer and what has arrived from it, and returns the sum of what
// was sent. The mutex is locked.
func (p *Plane) addTraffic(s *dataplane.PeerStatus, r *peer, arrived *[dataplane.MaxPaths]dataplane.Arrived) (sum dataplane.Count) {
	t, err := p.program.Traffic(r.number)
	if err != nil {
		return sum
	}
	for i := range r.paths {
		for j := range s.Links {
			if l := &s.Links[j]; l.Path == r.paths[i].Name {
				l.Sent, l.Received = add(l.Sent, t.Paths[i]), add(l.Received, arrived[i].Count)
				l.Missed += arrived[i].Lost
				l.Queue = t.Waits[i]
				switch {
				case l.Reason != "":
				case !r.ready():
					l.Reason = "the peer has not announced that it accepts packets without encryption"
				default:
					l.Reason = r.reasons[i]
				}
			}
		}
	}
	for i := range s.Policies {
		if i >= len(r.rules) {
			break
		}
		from, base, to := t.Rules[i], r.rules[i].base, &s.Policies[i]
		sent := dataplane.Count{Packets: from.Sent.Packets - base.Sent.Packets, Bytes: from.Sent.Bytes - base.Sent.Bytes}
		sum = add(sum, sent)
		to.Sent = add(to.Sent, sent)
		to.Copies += from.Copies - base.Copies
		if from.Sent != base.Sent {
			to.Using = nil
			for j := range r.paths {
				if from.Used.Has(j) {
					to.Using = append(to.Using, r.paths[j].Name)
				}
			}
		}
	}
	return sum
}
