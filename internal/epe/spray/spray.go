// Package spray sends the packets of each connection of TCP and UDP over several egress paths, with eBPF
// programs for routes.
//
// It installs no routes, rules or tables: the caller has a rule for the mark of each path, whose
// table has the routes of one egress peer alone. The programs are in bpf/epe/spray.
package spray

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/kernel/bpf"
	"github.com/tabane/tabane/internal/kernel/clock"
	"github.com/tabane/tabane/internal/kernel/route"
)

// MaxPaths is the number of paths that a connection is sprayed over at most.
const MaxPaths = 4

// maxPlans is the number of plans.
const maxPlans = 256

// filter is the name of the filter at ingress.
const filter = "tabane_spray"

// Plan is how the packets to some networks are sent.
type Plan struct {
	// Rule identifies what the paths belong to: connections keep what they know of paths while it
	// is the same.
	Rule uint32
	// Marks are those of the paths; 0: the path may not be used. The first one that may is home.
	Marks [MaxPaths]uint32
}

// Sprayer has the programs of one network namespace. Only Unread, Unheard and Read are safe for
// concurrent use with other methods.
type Sprayer struct {
	spec     *ebpf.CollectionSpec // decoded once, copied for each plan
	objects  programObjects
	programs map[uint32]*ebpf.Program // by plan

	mu       sync.Mutex
	attached map[string]bpf.Attachment // by interface; nil where it failed
	closed   bool
}

// New loads the programs, and has acknowledgments read that arrive on the links. The caller calls
// Close. It returns a *feature.Error when this host cannot run them.
func New(links []string) (_ *Sprayer, err error) {
	s := &Sprayer{programs: map[uint32]*ebpf.Program{}, attached: map[string]bpf.Attachment{}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("spray packets: %w", err), s.Close())
		}
	}()
	if err := route.SupportsMark(); err != nil {
		return nil, err
	}
	if s.spec, err = loadProgram(); err != nil {
		return nil, err
	}
	if err := bpf.Load(s.spec.Copy(), &s.objects); err != nil {
		return nil, err
	}
	if err := s.objects.Sender.Put(uint32(0), s.objects.Send); err != nil {
		return nil, fmt.Errorf("have packets sent: %w", err)
	}
	// A killed process has left its own, where tcx is missing.
	if err := bpf.SweepFilters([]string{filter}, nil); err != nil {
		return nil, err
	}
	for _, l := range links {
		if err := s.attach(l); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Sprayer) attach(link string) error {
	a, err := bpf.Attach(bpf.AttachOptions{Link: link, Ethernet: bpf.Programs{Ingress: s.objects.Receive}, Name: filter})
	if err != nil {
		return fmt.Errorf("read acknowledgments on %q: %w", link, err)
	}
	s.attached[link] = a
	return nil
}

// Unread returns the interfaces on which acknowledgments are not read any more, although they are
// there: they have been made again, or another program has removed the filter. Without
// acknowledgments, connections stay on one path.
func (s *Sprayer) Unread() (links []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unread(bpf.Detached)
}

// unread returns the interfaces on which the filter has a place from this one on.
func (s *Sprayer) unread(from bpf.Place) (links []string, err error) {
	for name, a := range s.attached {
		if _, err := net.InterfaceByName(name); err != nil {
			continue
		}
		place := bpf.Detached
		if a != nil {
			if place, err = bpf.PlaceOf(a); err != nil {
				return nil, fmt.Errorf("read acknowledgments on %q: %w", name, err)
			}
		}
		if place >= from {
			links = append(links, name)
		}
	}
	return links, nil
}

// Unheard returns the number of connections that have sent many packets, and of which no
// acknowledgment was read: these arrive on another interface, or another program before the filter
// accepts them.
func (s *Sprayer) Unheard() (n uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, nil
	}
	if err := s.objects.Unheard.Get(&n); err != nil {
		return 0, fmt.Errorf("read number of connections without acknowledgments: %w", err)
	}
	return n, nil
}

// Read has acknowledgments read on the interfaces that Unread returns; with first, also where
// another program is before the filter.
func (s *Sprayer) Read(first bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := bpf.Detached
	if first {
		from = bpf.Behind
	}
	links, err := s.unread(from)
	for _, name := range links {
		if a := s.attached[name]; a != nil {
			s.attached[name] = nil
			err = errors.Join(err, a.Detach())
		}
		err = errors.Join(err, s.attach(name))
	}
	return err
}

// Set adds a plan with a number that is not in use, or replaces one, at once for all routes that
// have its program.
func (s *Sprayer) Set(number uint32, p Plan) error {
	plan := programPlan{Rule: p.Rule, Home: MaxPaths}
	for i, mark := range p.Marks {
		plan.Mark[i] = mark
		if mark != 0 {
			plan.May |= 1 << i
			plan.Home = min(plan.Home, uint32(i))
		}
	}
	if plan.May == 0 || number >= maxPlans {
		return fmt.Errorf("spray packets: plan %d has no path", number)
	}
	if err := s.objects.Plans.Put(number, plan); err != nil {
		return fmt.Errorf("spray packets: set plan %d: %w", number, err)
	}
	return nil
}

// Program returns the number of the program for routes of a plan, as route.Route has it. It is the
// same for a plan until Remove.
func (s *Sprayer) Program(number uint32) (uint32, error) {
	p := s.programs[number]
	if p == nil {
		var err error
		if p, err = s.load(number); err != nil {
			return 0, fmt.Errorf("spray packets: load program of plan %d: %w", number, err)
		}
		s.programs[number] = p
	}
	info, err := p.Info()
	if err != nil {
		return 0, fmt.Errorf("spray packets: %w", err)
	}
	id, _ := info.ID()
	route.Provide(uint32(id), p.FD())
	return uint32(id), nil
}

// Remove ends the use of a plan. Routes that have its program keep it.
func (s *Sprayer) Remove(number uint32) error {
	p := s.programs[number]
	if p == nil {
		return nil
	}
	delete(s.programs, number)
	var withdrawn error
	if info, err := p.Info(); err != nil {
		withdrawn = err
	} else if id, ok := info.ID(); ok {
		route.Withdraw(uint32(id))
	}
	return errors.Join(withdrawn, p.Close())
}

// Known is what is known of a path to a client network, /48 or /24 of IPv4.
type Known struct {
	Network netip.Prefix
	Mark    uint32
	// TCP and UDP are what connections, without retransmissions, and flows carried over it, in bytes.
	TCP, UDP uint64
	// TCP measured Rate and MinRTT, Age ago; 0: never.
	Rate   unit.Bandwidth
	MinRTT time.Duration
	Age    time.Duration
}

// Known returns what is known of paths: of at most 65,536, those that were used last.
func (s *Sprayer) Known() ([]Known, error) {
	now := clock.Monotonic()
	var list []Known
	var n programNetwork
	var m programMemory
	all := s.objects.Networks.Iterate()
	for all.Next(&n, &m) {
		if n.Mark == 0 {
			continue // no path
		}
		k := Known{Mark: n.Mark, TCP: m.Stream, UDP: m.Datagrams}
		if n.Family == 4 {
			k.Network = netip.PrefixFrom(netip.AddrFrom4([4]byte(n.Prefix[:4])), 24)
		} else {
			k.Network = netip.PrefixFrom(netip.AddrFrom16([16]byte(append(n.Prefix[:], make([]byte, 8)...))), 48)
		}
		if m.Learned != 0 {
			k.Rate, k.MinRTT = unit.Bandwidth(m.Rate)*8000, time.Duration(m.Shortest)*time.Microsecond
			k.Age = now - time.Duration(m.Learned)
		}
		list = append(list, k)
	}
	if err := all.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) { // others may be added meanwhile
		return nil, fmt.Errorf("read what is known of paths: %w", err)
	}
	return list, nil
}

// UDP returns the bytes that flows of UDP carried over the paths with each mark.
func (s *Sprayer) UDP() (map[uint32]uint64, error) {
	volumes := map[uint32]uint64{}
	var mark uint32
	var bytes uint64
	all := s.objects.Volumes.Iterate()
	for all.Next(&mark, &bytes) {
		volumes[mark] = bytes
	}
	if err := all.Err(); err != nil {
		return nil, fmt.Errorf("read volumes of paths: %w", err)
	}
	return volumes, nil
}

// Close stops reading acknowledgments, and closes the programs. Those that routes have go on, over
// home.
func (s *Sprayer) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var errs []error
	for _, a := range s.attached {
		if a != nil {
			errs = append(errs, a.Detach())
		}
	}
	clear(s.attached)
	for number := range maps.Clone(s.programs) {
		errs = append(errs, s.Remove(number))
	}
	return errors.Join(append(errs, s.objects.Close())...)
}

func (s *Sprayer) load(number uint32) (*ebpf.Program, error) {
	spec := s.spec.Copy()
	if err := spec.Variables[programVarPlanIndex].Set(number); err != nil {
		return nil, err
	}
	var loaded struct {
		Enter *ebpf.Program `ebpf:"enter"`
	}
	err := bpf.LoadWith(spec, &loaded, map[string]*ebpf.Map{"plans": s.objects.Plans, "sender": s.objects.Sender})
	return loaded.Enter, err
}
