// Package relay relays the open messages of leaders in an alliance between two interfaces, with an
// eBPF program.
//
// It does not decide whose messages are relayed, nor where to. The program is in bpf/gateway/relay.
package relay

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	"github.com/tabane/tabane/internal/kernel/bpf"
)

// MaxLeaders bounds the leaders.
const MaxLeaders = 128

// name is that of the program's filters, where it is attached with cls_bpf.
const name = "tabane_relay"

// Options configure a Program.
type Options struct {
	// Legacy attaches with cls_bpf even where the kernel has tcx.
	Legacy bool
}

// Program is the loaded program. It implements dataplane.Relays. Nothing is relayed any more when
// its process has ended.
type Program struct {
	legacy bool

	mu       sync.Mutex // guards the following
	objects  programObjects
	leaders  map[string]*leader
	attached map[int]bpf.Attachment // by the index of the interface
}

var _ dataplane.Relays = (*Program)(nil)

// leader is what is relayed for one.
type leader struct {
	slot int // of its states: one for up, the next for down
	// relay is nil after an error: nothing is relayed until the next one, and the counts stay.
	relay *dataplane.OpenRelay
}

// Load loads the program. The caller calls Close. It returns a *feature.Error when this host cannot
// load it.
func Load(o Options) (*Program, error) {
	p := &Program{legacy: o.Legacy, leaders: map[string]*leader{}, attached: map[int]bpf.Attachment{}}
	spec, err := loadProgram()
	if err == nil {
		err = bpf.Load(spec, &p.objects)
	}
	if err != nil {
		return nil, fmt.Errorf("load relay of open messages: %w", err)
	}
	return p, nil
}

// Clear removes the filters that a killed process has left at interfaces of the calling thread's
// network namespace, where tcx is missing.
func Clear() error { return bpf.SweepFilters([]string{name}, nil) }

// Close detaches the program, and releases it and its maps.
func (p *Program) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.leaders)
	errs := slices.Collect(maps.Values(p.attach()))
	return errors.Join(append(errs, p.objects.Close())...)
}

// hop is a direction of a relay.
type hop struct {
	key   programHopKey
	value programHop
}

const (
	// burstTime is how long a burst at the rate may be, burstLen its smallest length in bytes: that
	// of two super-packets.
	burstTime, burstLen = 100 * time.Millisecond, 1 << 17
	// reserve is the part of a burst that open messages leave to sealed ones.
	reserve = 8
)

// hops returns the directions of a relay whose states begin at a slot.
func hops(r *dataplane.OpenRelay, slot int) (up, down hop) {
	up, down = hopOf(&r.Short, &r.Line, r.Up, r.Mark, slot), hopOf(&r.Line, &r.Short, r.Down, r.Mark, slot+1)
	// A leader may reach this host by another address than the one that it is answered from.
	up.value.Local = [16]uint8{}
	return up, down
}

// hopOf returns the direction from one end to the other.
func hopOf(from, to *dataplane.RelayEnd, rate unit.Bandwidth, mark uint32, state int) hop {
	protocol := uint16(unix.ETH_P_IP)
	if from.Remote.Addr().Is6() {
		protocol = unix.ETH_P_IPV6
	}
	burst := burstTime
	perByte := uint64(0)
	if rate > 0 {
		burst = max(burst, rate.TimeFor(burstLen))
		perByte = uint64(float64(8*time.Second) / float64(rate) * (1 << 16))
	}
	return hop{
		key: programHopKey{
			Source: from.Remote.Addr().As16(), Ifindex: uint32(from.Index), SourcePort: swap(from.Remote.Port()), DestinationPort: swap(from.Local.Port()),
			Protocol: uint32(swap(protocol)),
		},
		value: programHop{
			Local: from.Local.Addr().As16(), From: to.Local.Addr().As16(), To: to.Remote.Addr().As16(), FromPort: swap(to.Local.Port()), ToPort: swap(to.Remote.Port()),
			Ifindex: uint32(to.Index), Mark: mark, State: uint32(state), PerByte: perByte, Burst: uint64(burst), BurstOpen: uint64(burst - burst/reserve),
		},
	}
}

// swap converts to network byte order: the program is little-endian.
func swap(v uint16) uint16 { return v<<8 | v>>8 }

// Relay implements dataplane.Relays. It attaches the program again that another one has detached.
func (p *Program) Relay(name string, r dataplane.OpenRelay) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.Short.Local, r.Short.Remote = plain(r.Short.Local), plain(r.Short.Remote)
	r.Line.Local, r.Line.Remote = plain(r.Line.Local), plain(r.Line.Remote)
	l, known := p.leaders[name]
	if known {
		p.remove(l, &r)
	} else {
		slot, err := p.free()
		if err != nil {
			return fmt.Errorf("relay open messages of %q: %w", name, err)
		}
		l = &leader{slot: slot}
		p.leaders[name] = l
	}
	l.relay = &r
	err := p.attachEnds(&r)
	if err == nil {
		err = p.put(l)
	}
	if err != nil {
		p.remove(l, nil)
		if l.relay = nil; !known {
			delete(p.leaders, name)
		}
		return errors.Join(fmt.Errorf("relay open messages of %q: %w", name, err), p.attachEnds(&r))
	}
	return nil
}

// plain returns an address without zone, and not IPv4 mapped.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

// free returns a slot that no leader has, whose states are cleared.
func (p *Program) free() (int, error) {
	used := map[int]bool{}
	for _, l := range p.leaders {
		used[l.slot] = true
	}
	for slot := 0; slot < 2*MaxLeaders; slot += 2 {
		if !used[slot] {
			return slot, errors.Join(p.objects.States.Put(uint32(slot), programHopState{}), p.objects.States.Put(uint32(slot+1), programHopState{}))
		}
	}
	return 0, fmt.Errorf("more than %d leaders", MaxLeaders)
}

// put has the program relay for a leader. The mutex is locked.
func (p *Program) put(l *leader) error {
	up, down := hops(l.relay, l.slot)
	err := p.objects.Hops.Put(down.key, down.value)
	if l.relay.Up > 0 {
		err = errors.Join(err, p.objects.Hops.Put(up.key, up.value))
	}
	return err
}

// remove has the program not relay any more what is not part of the next relay of a leader, nil for
// none. The mutex is locked.
func (p *Program) remove(l *leader, next *dataplane.OpenRelay) {
	if l.relay == nil {
		return
	}
	up, down := hops(l.relay, l.slot)
	stays := map[programHopKey]bool{}
	if next != nil {
		nextUp, nextDown := hops(next, l.slot)
		stays[nextDown.key], stays[nextUp.key] = true, next.Up > 0
	}
	for _, h := range []hop{up, down} {
		if !stays[h.key] {
			// One that does not exist is not relayed either.
			_ = p.objects.Hops.Delete(h.key)
		}
	}
}

// attachEnds does what attach does, and returns the errors at the interfaces of one relay: those at
// interfaces of others are no reason to end it. The mutex is locked.
func (p *Program) attachEnds(r *dataplane.OpenRelay) error {
	failed := p.attach()
	if r.Short.Index == r.Line.Index {
		return failed[r.Short.Index]
	}
	return errors.Join(failed[r.Short.Index], failed[r.Line.Index])
}

// attach attaches the program to the interfaces of relays, and detaches it from all others. It
// returns the errors by the index of the interface. The mutex is locked.
func (p *Program) attach() map[int]error {
	wanted := map[int]string{}
	for _, l := range p.leaders {
		if l.relay == nil {
			continue
		}
		for _, e := range []*dataplane.RelayEnd{&l.relay.Short, &l.relay.Line} {
			wanted[e.Index] = e.Interface
		}
	}
	failed := map[int]error{}
	for index, a := range p.attached {
		_, ok := wanted[index]
		if ok {
			// Another program may have detached it.
			place, err := bpf.PlaceOf(a)
			ok = err != nil || place != bpf.Detached
		}
		if !ok {
			delete(p.attached, index)
			failed[index] = a.Detach()
		}
	}
	for index, link := range wanted {
		if p.attached[index] != nil {
			continue
		}
		a, err := bpf.Attach(bpf.AttachOptions{Link: link, Untagged: true, Ethernet: bpf.Programs{Ingress: p.objects.Relay}, Name: name, Legacy: p.legacy, Last: true})
		if err != nil {
			failed[index] = errors.Join(failed[index], fmt.Errorf("attach to interface %q: %w", link, err))
			continue
		}
		p.attached[index] = a
	}
	return failed
}

// Relayed implements dataplane.Relays.
func (p *Program) Relayed(name string) dataplane.OpenRelayed {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.relayed(name)
}

func (p *Program) relayed(name string) (r dataplane.OpenRelayed) {
	l := p.leaders[name]
	if l == nil {
		return r
	}
	for i, to := range []*dataplane.Count{&r.Up, &r.Down} {
		var s programHopState
		// An array has all its elements.
		if err := p.objects.States.LookupWithFlags(uint32(l.slot+i), &s, ebpf.LookupLock); err == nil {
			*to = dataplane.Count{Packets: s.Packets, Bytes: s.Bytes}
			r.Dropped += s.Dropped
		}
	}
	return r
}

// End implements dataplane.Relays.
func (p *Program) End(name string) dataplane.OpenRelayed {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.relayed(name)
	if l := p.leaders[name]; l != nil {
		p.remove(l, nil)
		delete(p.leaders, name)
		// An interface where it stays attached relays nothing.
		_ = p.attach()
	}
	return r
}
