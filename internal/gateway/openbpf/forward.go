// Package openbpf sends packets that interfaces receive over several paths, with an eBPF program,
// each packet on the path that a discipline of internal/gateway/sched chooses.
//
// It decides neither which paths can be used nor how: it puts what it is given (sched.Plan) where
// the program reads it. The program is in bpf/gateway/open.
package openbpf

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/checksum"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/kernel/bpf"
	"github.com/tabane/tabane/internal/kernel/clock"
)

// MaxPeers, MaxRules, MaxTables and MaxPaths bound what the program knows: tables are those of the
// discipline flow, one for each rule and peer that has it.
const MaxPeers, MaxRules, MaxTables, MaxPaths = 256, 64, 32, 16

// NoTable is the table of a plan that needs none.
const NoTable = ^uint32(0)

// Program is the loaded program with its maps. It is not safe for concurrent use.
type Program struct {
	objects programObjects
	raw     rawPrograms // of interfaces without Ethernet headers
	pins    bpf.Pins
	routes  map[netip.Prefix]uint32
	allowed map[programReach]bool
	limited map[int]bool
	table   table
	legacy  bool
	room    programPlan
	// setup is that in the program.
	setup programSetup
}

// Options configure a Program.
type Options struct {
	// Legacy attaches with cls_bpf even where the kernel has tcx.
	Legacy bool
	// Pins is a directory of a BPF file system where maps and tcx links are pinned, so that packets
	// are sent while no process has the program. The next one with the same directory takes over.
	// Empty: none.
	Pins string
}

// Load loads the program; no packet is sent before Attach, but for those that are sent already if
// it takes over the maps of a previous instance. The caller calls Close. It returns a
// *feature.Error when this host cannot load it.
func Load(o Options) (*Program, error) {
	spec, err := loadProgram()
	if err != nil {
		return nil, err
	}
	return loadSpec(spec, o)
}

func loadSpec(spec *ebpf.CollectionSpec, o Options) (*Program, error) {
	p := &Program{routes: map[netip.Prefix]uint32{}, allowed: map[programReach]bool{}, limited: map[int]bool{}, legacy: o.Legacy}
	version := sha256.Sum256(slices.Concat(_ProgramBytes, _RawBytes))
	p.pins = bpf.NewPins(o.Pins, hex.EncodeToString(version[:8]))
	old, err := p.pins.TakeOver(spec)
	if err == nil {
		err = bpf.LoadWith(spec, &p.objects, old)
	}
	for _, m := range old {
		err = errors.Join(err, m.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("load open plane: %w", err)
	}
	if err := p.loadRaw(); err != nil {
		return nil, errors.Join(fmt.Errorf("load open plane: %w", err), p.objects.Close())
	}
	p.table.of, p.table.spec, p.table.pins = p.objects.Sessions, spec.Maps["sessions"].InnerMap, &p.pins
	if old == nil {
		if err = binary.Read(rand.Reader, binary.NativeEndian, &p.setup.Seed); err == nil {
			err = errors.Join(p.set(), p.pins.Keep(p.maps()))
		}
	} else {
		// The previous instance may have ended between a change of the routes and that of the
		// epoch.
		err = errors.Join(p.table.takeOver(), p.readRoutes(), p.readAllowed(), p.objects.Setups.Lookup(uint32(0), &p.setup), p.forgetOwners())
	}
	p.table.seed = p.setup.Seed
	if err != nil {
		return nil, errors.Join(fmt.Errorf("load open plane: %w", err), p.Close())
	}
	return p, nil
}

// loadRaw loads the programs of interfaces without Ethernet headers, with the same maps.
func (p *Program) loadRaw() error {
	spec, err := loadRaw()
	if err != nil {
		return err
	}
	return bpf.LoadWith(spec, &p.raw, p.maps())
}

// maps are those of the program by name.
func (p *Program) maps() map[string]*ebpf.Map {
	m := &p.objects.programMaps
	return map[string]*ebpf.Map{
		"allowed": m.Allowed, "arrivals": m.Arrivals, "flows": m.Flows, "lefts": m.Lefts, "limits": m.Limits, "lines": m.Lines, "origins": m.Origins, "outers": m.Outers, "owners": m.Owners, "peers": m.Peers,
		"plans": m.Plans, "policies": m.Policies, "receivers": m.Receivers, "refusals": m.Refusals, "routes": m.Routes,
		"sessions": m.Sessions, "setups": m.Setups, "wants": m.Wants,
	}
}

// readRoutes reads the routes of a previous instance.
func (p *Program) readRoutes() error {
	var key programRoute
	var owner uint32
	all := p.objects.Routes.Iterate()
	for all.Next(&key, &owner) {
		const familyBits = 32
		a, bits := netip.AddrFrom16(key.Address), int(key.Length)-familyBits
		if key.Family == unix.AF_INET {
			a, bits = a.Unmap(), bits-96
		}
		p.routes[netip.PrefixFrom(a, bits)] = owner
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("read prefixes: %w", err)
	}
	return nil
}

// Inherited is what a previous instance has left.
type Inherited struct {
	// Generation is that of its policy; 0 if there is none.
	Generation uint32
	// Numbers are those of the peers by their prefixes, Cookies those that packets of a peer are
	// accepted with.
	Numbers map[netip.Prefix]int
	Cookies map[int][]uint64
}

// Inherited returns what a previous instance has left. It is called before anything is set.
func (p *Program) Inherited() (Inherited, error) {
	i := Inherited{Generation: p.setup.Generation, Numbers: map[netip.Prefix]int{}, Cookies: map[int][]uint64{}}
	for prefix, owner := range p.routes {
		if owner > 0 && owner <= MaxPeers {
			i.Numbers[prefix] = int(owner) - 1
		}
	}
	var cookie uint64
	var r programReceiver
	all := p.objects.Receivers.Iterate()
	for all.Next(&cookie, &r) {
		i.Cookies[int(r.Peer)] = append(i.Cookies[int(r.Peer)], cookie)
	}
	if err := all.Err(); err != nil {
		return i, fmt.Errorf("read cookies: %w", err)
	}
	return i, nil
}

// The names of the programs' filters, where they are attached with cls_bpf.
const nameSplit, nameJoin, nameRestore, nameCount = "tabane_forward", "tabane_join", "tabane_restore", "tabane_count"

// attach attaches one of the programs to an interface of the calling thread's network namespace, by
// options that lack what is the same for all. pin begins the name of its pin; what is the program
// in errors.
func (p *Program) attach(link, pin, what string, o bpf.AttachOptions) (bpf.Attachment, error) {
	o.Link, o.Untagged, o.Legacy, o.Pin = link, true, p.legacy, p.pins.Link(pin+"-"+link)
	a, err := bpf.Attach(o)
	if err != nil {
		return nil, fmt.Errorf("attach %s to interface %q: %w", what, link, err)
	}
	return a, nil
}

// Sweep detaches the programs of a previous instance from interfaces that Attach, Join, Restore and
// Count were not called for. attached is what they have returned.
func (p *Program) Sweep(attached []bpf.Attachment) error {
	return errors.Join(p.pins.Sweep(), sweepFilters(attached))
}

func sweepFilters(keep []bpf.Attachment) error {
	return bpf.SweepFilters([]string{nameSplit, nameJoin, nameRestore, nameCount}, keep)
}

// Clear detaches what a killed instance has left, which has pinned in a directory what it could,
// and removes the pair of interfaces that segments.
func Clear(pins string) error {
	return errors.Join(bpf.RemovePinned(pins), sweepFilters(nil), bpf.RemovePair(Segmenter))
}

// Unpin has the program go with this process, at a clean stop.
func (p *Program) Unpin() error { return p.pins.Remove() }

// Close releases the program and its maps. Attachments keep what they need, and pins stay if there
// are any.
func (p *Program) Close() error {
	return errors.Join(p.pins.Drop(), p.table.close(), p.raw.Close(), p.objects.Close())
}

// Attach has the program process what an Ethernet interface of the calling thread's network
// namespace receives, after other tcx programs. It returns the errors of bpf.Attach.
func (p *Program) Attach(link string) (bpf.Attachment, error) {
	return p.attach(link, "split", "open plane", bpf.AttachOptions{Name: nameSplit, Last: true, Ethernet: bpf.Programs{Ingress: p.objects.Split}})
}

// mapped returns an address as IPv4 mapped into IPv6, and how much longer that makes a prefix.
func mapped(a netip.Addr) (as16 [16]byte, longer int) {
	if a.Is4() {
		longer = 96
	}
	return a.As16(), longer
}

func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func routeOf(p netip.Prefix) programRoute {
	const familyBits = 32
	address, longer := mapped(p.Addr())
	return programRoute{Length: uint32(familyBits + longer + p.Bits()), Family: uint32(family(p.Addr())), Address: address}
}

// Not numbers of peers: Kernel means packets that are left to the kernel, Own addresses of this
// host, Nobody those that no peer may send from, and that are not the LAN's.
const Kernel, Own, Nobody = -1, -2, -3

// SetRoutes replaces which prefixes are behind which peer, whose number is from 0.
func (p *Program) SetRoutes(routes map[netip.Prefix]int) error {
	var errs []error
	changed := false
	for prefix, peer := range routes {
		owner := uint32(peer + 1) // Own is the largest one, Nobody the next
		if old, ok := p.routes[prefix]; ok && old == owner {
			continue
		}
		key := routeOf(prefix)
		changed = true
		if err := p.objects.Routes.Put(&key, owner); err != nil {
			errs = append(errs, fmt.Errorf("add prefix %v: %w", prefix, err))
			continue
		}
		p.routes[prefix] = owner
	}
	for prefix := range p.routes {
		if _, ok := routes[prefix]; ok {
			continue
		}
		key := routeOf(prefix)
		changed = true
		if err := p.objects.Routes.Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("remove prefix %v: %w", prefix, err))
			continue
		}
		delete(p.routes, prefix)
	}
	if changed {
		errs = append(errs, p.forgetOwners())
	}
	return errors.Join(errs...)
}

// allowedOf returns the key of a prefix that packets of a peer may be sent to.
func allowedOf(peer int, p netip.Prefix) programReach {
	const peerBits = 32
	address, longer := mapped(p.Addr())
	return programReach{Length: uint32(peerBits + longer + p.Bits()), Peer: uint32(peer), Address: address}
}

// readAllowed reads what packets of peers may be sent to by a previous instance.
func (p *Program) readAllowed() error {
	var key programReach
	var any uint32
	all := p.objects.Allowed.Iterate()
	for all.Next(&key, &any) {
		p.allowed[key] = true
		p.limited[int(key.Peer)] = true
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("read destinations of peers: %w", err)
	}
	return nil
}

// SetAllowed replaces which destinations packets of a peer may have. Those of a peer without any
// may have all.
func (p *Program) SetAllowed(all map[int][]netip.Prefix) error {
	var errs []error
	limit := func(peer int, on uint32) {
		if err := p.objects.Limits.Put(uint32(peer), on); err != nil {
			errs = append(errs, fmt.Errorf("limit destinations of peer %d: %w", peer, err))
		}
	}
	want := map[programReach]bool{}
	for peer, prefixes := range all {
		for _, prefix := range prefixes {
			want[allowedOf(peer, prefix)] = true
		}
	}
	for key := range want {
		if p.allowed[key] {
			continue
		}
		if err := p.objects.Allowed.Put(&key, uint32(1)); err != nil {
			errs = append(errs, fmt.Errorf("allow destinations of peer %d: %w", key.Peer, err))
			continue
		}
		p.allowed[key] = true
	}
	// All that it may reach is there before it is limited, and until it is not any more.
	for peer := range all {
		if len(all[peer]) > 0 && !p.limited[peer] {
			limit(peer, 1)
			p.limited[peer] = true
		}
	}
	for peer := range p.limited {
		if len(all[peer]) == 0 {
			limit(peer, 0)
			delete(p.limited, peer)
		}
	}
	for key := range p.allowed {
		if want[key] {
			continue
		}
		if err := p.objects.Allowed.Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("refuse destinations of peer %d: %w", key.Peer, err))
			continue
		}
		delete(p.allowed, key)
	}
	return errors.Join(errs...)
}

// set applies the setup.
func (p *Program) set() error {
	if err := p.objects.Setups.Put(uint32(0), &p.setup); err != nil {
		return fmt.Errorf("apply setup: %w", err)
	}
	return nil
}

// forgetOwners has the program look routes and origins up again.
func (p *Program) forgetOwners() error {
	p.setup.Epoch++
	return p.set()
}

// SetPolicy replaces the rules, with the number of a generation, which is not 0: plans of other
// generations have no effect any more. Of two generations in turn one is odd.
func (p *Program) SetPolicy(generation uint32, policy dataplane.Policy) error {
	if len(policy) > MaxRules {
		return fmt.Errorf("set policy: %d rules, more than %d", len(policy), MaxRules)
	}
	to := programPolicy{Rules: uint32(len(policy))}
	for i := range policy {
		m, r := &policy[i].Match, &to.Rule[i]
		if len(m.Protocols) > len(r.Protocol) {
			return fmt.Errorf("set policy: rule %d: %d protocols, more than %d", i, len(m.Protocols), len(r.Protocol))
		}
		if len(m.Protocols) > 0 {
			r.HasProtocol = 1
			r.Protocol = [2]uint8{m.Protocols[0], m.Protocols[len(m.Protocols)-1]}
		}
		r.Port, r.Dscp = m.Port, m.DSCP
		r.Mark, r.MarkMask = m.Mark, m.MarkMask
		if m.HasDSCP {
			r.HasDscp = 1
		}
		if m.Prefix.IsValid() {
			setPrefix(r, m.Prefix)
		}
	}
	if len(policy) > 0 && policy[0].Match.All() {
		to.Always = 1
	}
	// Not the one in use. Until it is whole it has no generation.
	slot := generation & 1
	to.Generation = 0
	err := p.objects.Policies.Put(slot, &to)
	if err == nil {
		to.Generation = generation
		err = p.objects.Policies.Put(slot, &to)
	}
	if err != nil {
		return fmt.Errorf("set policy: %w", err)
	}
	p.setup.Generation = generation
	return p.set()
}

func setPrefix(r *programRule, prefix netip.Prefix) {
	r.Family = family(prefix.Addr())
	address, longer := mapped(prefix.Addr())
	var mask [16]byte
	for i := range prefix.Bits() + longer {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	for i := range r.Prefix {
		r.Prefix[i], r.Mask[i] = binary.NativeEndian.Uint64(address[8*i:]), binary.NativeEndian.Uint64(mask[8*i:])
	}
}

// Key identifies a plan: what a rule does with packets to a peer.
type Key struct {
	Generation uint32
	Peer, Rule int
}

func (k Key) key() programPlanKey {
	return programPlanKey{Generation: k.Generation, Peer: uint16(k.Peer), Rule: uint16(k.Rule)}
}

// Way is where packets of a path go: to a neighbor on an interface. An invalid address means that
// there is none of that IP version; packets of IPv4 then go to that of IPv6 (RFC 8950).
type Way struct {
	Interface  int
	IPv4, IPv6 netip.Addr
	// Local and Remote are the ends of the tunnel on the path.
	Local, Remote netip.AddrPort
}

// Plan is what a rule does with packets to a peer.
type Plan struct {
	Choice sched.Plan
	// MTU is the largest packet that is sent. Table is that of the discipline flow, or NoTable.
	MTU   int
	Table uint32
	// Ways are those of the paths of Choice.
	Ways []Way
	// NAT: packets of NAT sessions are sent with the address of Local as source, which is of one IP
	// version for all ways; others are left.
	NAT bool
	// Tunnel: packets are sent in a tunnel to the receiver that Accept was called for with Cookie.
	// The ends of all ways are of one IP version. MTU is the largest packet inside.
	Tunnel bool
	Cookie uint64
	// Slow: a path is busy with a super-packet for long.
	Slow bool
}

// OverheadIPv4 and OverheadIPv6 are the bytes that the tunnel adds to a packet over each IP
// version.
const OverheadIPv4, OverheadIPv6 = 20 + 8 + 24, 40 + 8 + 24

// SetPlan replaces a plan as a whole.
func (p *Program) SetPlan(key Key, plan Plan) error {
	to := &p.room
	*to = programPlan{Mtu: uint32(plan.MTU), Table: plan.Table}
	if plan.Slow {
		to.Slow = 1
	}
	setChoice(&to.Choice, &plan.Choice)
	for i := range plan.Ways[:min(len(plan.Ways), MaxPaths)] {
		from := &plan.Ways[i]
		w := &to.Way[i]
		w.Ifindex = uint32(from.Interface)
		setNeighbor(&w.Ipv4, from.IPv4)
		setNeighbor(&w.Ipv6, from.IPv6)
		if plan.NAT && from.Local.IsValid() {
			to.Nat = uint32(family(from.Local.Addr()))
			w.Source = from.Local.Addr().As16()
		}
		if plan.Tunnel && from.Remote.IsValid() {
			to.Tunnel = uint32(family(from.Remote.Addr()))
			setOuter(to.Outer[i][:], i, from, plan.Cookie)
		}
	}
	k := key.key()
	if err := p.objects.Plans.Put(&k, to); err != nil {
		return fmt.Errorf("set plan of rule %d for peer %d: %w", key.Rule, key.Peer, err)
	}
	return nil
}

// Segmenter and Segmented are the interfaces of the pair that has the kernel segment super-packets.
const Segmenter, Segmented = "tabane-seg0", "tabane-seg1"

// Segment has super-packets segmented that a slow path would be busy with for long, and those of
// UDP in a tunnel, by a pair of interfaces without offloads: what is sent on the first arrives at
// the second, which the program is attached to. Without a pair it sends them as they are.
func (p *Program) Segment(first, second int, address net.HardwareAddr) error {
	to := p.setup
	to.Segmenter, to.Segmented, to.Address = uint32(first), uint32(second), [8]uint8{}
	copy(to.Address[:], address)
	if to == p.setup {
		return nil
	}
	p.setup = to
	return p.set()
}

// setOuter sets the headers of the tunnel on a path, without what is not the same for each packet.
func setOuter(to []uint8, path int, w *Way, cookie uint64) {
	const ttl, udp, open, dontFragment = 64, unix.IPPROTO_UDP, 6, 0x4000
	be := binary.BigEndian
	local, remote := w.Local.Addr().AsSlice(), w.Remote.Addr().AsSlice()
	b := to[:0]
	if w.Remote.Addr().Is4() {
		b = append(b, 4<<4|5, 0, 0, 0, 0, 0)
		b = append(be.AppendUint16(b, dontFragment), ttl, udp, 0, 0)
		b = append(append(b, local...), remote...)
		be.PutUint16(b[10:], checksum.Fold(checksum.Sum(b, 0))) // the program completes it
	} else {
		b = append(be.AppendUint32(b, 6<<28), 0, 0, udp, ttl)
		b = append(append(b, local...), remote...)
	}
	b = be.AppendUint16(be.AppendUint16(b, w.Local.Port()), w.Remote.Port())
	b = append(b, 0, 0, 0, 0, open, uint8(path), 0, 0, 0, 0, 0, 0)
	be.AppendUint64(b, cookie)
}

// setChoice converts a plan. Delays are relative to the shortest, because arrival times must not
// overflow.
func setChoice(to *programSchedPlan, plan *sched.Plan) {
	n := min(len(plan.Paths), MaxPaths)
	to.Rule, to.May, to.Paths, to.Tie = uint32(plan.Rule), uint32(plan.May), uint32(n), int64(plan.Tie)
	to.Only = uint32(max(plan.Only, 0))
	shortest, known := time.Duration(0), false
	for i := range plan.Paths[:n] {
		if plan.May.Has(i) && (!known || plan.Paths[i].Delay < shortest) {
			shortest, known = plan.Paths[i].Delay, true
		}
	}
	for i := range plan.Paths[:n] {
		from, w := &plan.Paths[i], &to.Path[i]
		w.PerByte, w.Buffer, w.Until, w.Ratio, w.Next = from.PerByte, uint64(max(from.Buffer, 0)), from.Until, from.Ratio, uint32(from.Next)
		if plan.May.Has(i) {
			w.Delay = int64(from.Delay - shortest)
		}
	}
}

func setNeighbor(to *programBpfRedirNeigh, a netip.Addr) {
	switch {
	case a.Is4():
		b := a.As4()
		to.NhFamily, to.Nh[0] = unix.AF_INET, binary.NativeEndian.Uint32(b[:])
	case a.Is6():
		b := a.As16()
		to.NhFamily = unix.AF_INET6
		for i := range to.Nh {
			to.Nh[i] = binary.NativeEndian.Uint32(b[4*i:])
		}
	}
}

// CopyPlan sets a plan that is the same as another one, if there is that.
func (p *Program) CopyPlan(to, from Key) error {
	k := from.key()
	switch err := p.objects.Plans.Lookup(&k, &p.room); {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("read plan of rule %d for peer %d: %w", from.Rule, from.Peer, err)
	}
	k = to.key()
	if err := p.objects.Plans.Put(&k, &p.room); err != nil {
		return fmt.Errorf("set plan of rule %d for peer %d: %w", to.Rule, to.Peer, err)
	}
	return nil
}

// KeepPlans removes the plans of other generations.
func (p *Program) KeepPlans(generation uint32) error {
	var stale []programPlanKey
	var k programPlanKey
	all := p.objects.Plans.Iterate()
	for all.Next(&k, &p.room) {
		if k.Generation != generation {
			stale = append(stale, k)
		}
	}
	errs := []error{all.Err()}
	for i := range stale {
		if err := p.objects.Plans.Delete(&stale[i]); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("delete plans: %w", err)
	}
	return nil
}

// Traffic is what was sent to a peer since Load or Reset.
type Traffic struct {
	// Paths are packets as on the wire, and their bytes, of each path; Waits the virtual queues
	// now.
	Paths [MaxPaths]dataplane.Count
	Waits [MaxPaths]time.Duration
	Rules [MaxRules]RuleTraffic
}

// RuleTraffic is what a rule has sent to a peer.
type RuleTraffic struct {
	Sent   dataplane.Count
	Copies uint64
	Used   sched.Set
}

// Traffic reads what was sent to a peer.
func (p *Program) Traffic(peer int) (t Traffic, err error) {
	var from programPeer
	if err := p.objects.Peers.Lookup(uint32(peer), &from); err != nil {
		return t, fmt.Errorf("read traffic to peer %d: %w", peer, err)
	}
	now := clock.Monotonic()
	for i := range t.Paths {
		t.Paths[i] = dataplane.Count{Packets: from.Sent[i].Packets, Bytes: from.Sent[i].Bytes}
		t.Waits[i] = max(0, time.Duration(from.Queues.Empty[i])-now)
	}
	for i := range t.Rules {
		r := &from.Rule[i]
		t.Rules[i] = RuleTraffic{Sent: dataplane.Count{Packets: r.Sent.Packets, Bytes: r.Sent.Bytes}, Copies: r.Copies, Used: sched.Set(r.Used)}
	}
	return t, nil
}

// Reset clears a peer's traffic, virtual queues and turns, before its number is that of another
// peer.
func (p *Program) Reset(peer int) error {
	if err := p.objects.Peers.Put(uint32(peer), &programPeer{}); err != nil {
		return fmt.Errorf("reset peer %d: %w", peer, err)
	}
	return p.resetCounted(peer)
}

// Join has the program take packets out of the tunnel that an interface of the calling thread's
// network namespace receives, with Ethernet headers or without, and is otherwise as Attach.
func (p *Program) Join(link string) (bpf.Attachment, error) {
	return p.attach(link, "join", "end of tunnel", bpf.AttachOptions{
		Name: nameJoin, Ethernet: bpf.Programs{Ingress: p.objects.Join}, Raw: bpf.Programs{Ingress: p.raw.Join},
	})
}

// Listen sets the UDP port of the tunnel.
func (p *Program) Listen(port uint16) error {
	p.setup.Port = uint32(port)
	return p.set()
}

// Accept has packets of a peer taken out of the tunnel that have a cookie, until Refuse.
func (p *Program) Accept(cookie uint64, peer int) error {
	if err := p.objects.Receivers.Update(cookie, &programReceiver{Peer: uint32(peer)}, ebpf.UpdateNoExist); err != nil {
		return fmt.Errorf("accept packets of peer %d: %w", peer, err)
	}
	return nil
}

// Refuse ends Accept.
func (p *Program) Refuse(cookie uint64) error {
	if err := p.objects.Receivers.Delete(cookie); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("refuse packets: %w", err)
	}
	return nil
}

// Arrived reads what has arrived with a cookie, by path.
func (p *Program) Arrived(cookie uint64) (all [MaxPaths]dataplane.Arrived, err error) {
	var r programReceiver
	if err := p.objects.Receivers.Lookup(cookie, &r); err != nil {
		return all, fmt.Errorf("read what has arrived: %w", err)
	}
	for i := range all {
		from := &r.Path[i]
		all[i] = dataplane.Arrived{Count: dataplane.Count{Packets: from.Count.Packets, Bytes: from.Count.Bytes}}
		if expected := from.Next - from.First; expected > from.Count.Packets {
			all[i].Lost = expected - from.Count.Packets
		}
	}
	return all, nil
}

// refusalNames are the reasons why a message of the tunnel is dropped; the sealed plane has the
// same.
var refusalNames = []string{
	programRefusalREFUSED_COOKIE: "forged cookie", programRefusalREFUSED_MALFORMED: "malformed", programRefusalREFUSED_SOURCE: "source not of peer",
	programRefusalREFUSED_SESSION: "no NAT session", programRefusalREFUSED_DUPLICATE: "duplicate", programRefusalREFUSED_CONGESTION: "congestion mark not possible",
	programRefusalREFUSED_DESTINATION: "destination not allowed",
}

// Refused returns the messages of the tunnel that were dropped, by reason.
func (p *Program) Refused() (map[string]uint64, error) {
	return reasons(p.objects.Refusals, refusalNames)
}

// leftNames are the reasons why a packet to a peer is left to the kernel.
var leftNames = []string{
	programLeftLEFT_MALFORMED: "malformed", programLeftLEFT_OPTIONS: "options", programLeftLEFT_SOURCE: "source of no host",
	programLeftLEFT_HOPS: "hop limit", programLeftLEFT_SIZE: "too big", programLeftLEFT_PATHS: "no path",
	programLeftLEFT_SYN: "SYN", programLeftLEFT_SUPER: "super-packet", programLeftLEFT_TUNNEL: "tunnel of another program",
	programLeftLEFT_FAMILY: "IP version", programLeftLEFT_PROTOCOL: "protocol", programLeftLEFT_FRAGMENT: "fragment",
	programLeftLEFT_SESSION: "no NAT session", programLeftLEFT_COLLISION: "NAT collision",
}

// Left returns the packets to peers that were left to the kernel, by reason.
func (p *Program) Left() (map[string]uint64, error) {
	return reasons(p.objects.Lefts, leftNames)
}

// reasons reads the counters of a map.
func reasons(m *ebpf.Map, names []string) (map[string]uint64, error) {
	all := map[string]uint64{}
	var counts []uint64
	for i, name := range names {
		if err := m.Lookup(uint32(i), &counts); err != nil {
			return nil, fmt.Errorf("read counter %q: %w", name, err)
		}
		for _, n := range counts {
			if n > 0 {
				all[name] += n
			}
		}
	}
	return all, nil
}
