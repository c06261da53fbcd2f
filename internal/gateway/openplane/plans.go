package openplane

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/gateway/dataplane"
	program "github.com/tabane/tabane/internal/gateway/openbpf"
	"github.com/tabane/tabane/internal/gateway/sched"
	"github.com/tabane/tabane/internal/gateway/udp"
)

func planner(d dataplane.Discipline) (*sched.Planner, error) {
	return sched.NewPlanner(d.Name, sched.Options{Choice: d.Choice, Tie: sched.Tie, Size: sched.FullSize})
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
