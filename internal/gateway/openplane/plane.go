package openplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gaissmai/bart"

	"github.com/tabane/tabane/internal/gateway/dataplane"
	program "github.com/tabane/tabane/internal/gateway/openbpf"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/gateway/tunnel"
	"github.com/tabane/tabane/internal/kernel/contain"
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
	// keep is whether the program stays at a clean stop, pinned whether it can.
	keep, pinned bool
	// unpinned is why the program is not pinned, empty if it is, or was not meant to be.
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
	p.pinned = p.unpinned == "" && pins != ""
	p.keep = o.Keep && p.pinned
	left, err := p.program.Inherited()
	if err != nil {
		return errors.Join(err, p.program.Close())
	}
	p.generation, p.inherited, p.tunnels.inherited = left.Generation, left.Numbers, left.Cookies
	return nil
}

// KeepState leaves the program at the end of Run if it is pinned, as Options.Keep does.
func (p *Plane) KeepState() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keep = p.pinned
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

// Accept implements dataplane.Open.
func (p *Plane) Accept(peer string, cookies []uint64) error { return p.tunnels.accept(peer, cookies) }

// NATSession implements dataplane.Open.
func (p *Plane) NATSession(peer string, r tunnel.NATSession) { p.nat.receive(peer, r) }

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
