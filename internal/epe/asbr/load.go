package asbr

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tabane/tabane/internal/base/fault"
	"github.com/tabane/tabane/internal/base/unit"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/bgp/message"
	"github.com/tabane/tabane/internal/bgp/vpn"
	"github.com/tabane/tabane/internal/epe/capacity"
	"github.com/tabane/tabane/internal/kernel/contain"
	"github.com/tabane/tabane/internal/kernel/nic"
	"github.com/tabane/tabane/internal/kernel/route"
)

// speedEvery is how often the speed of interfaces is read, which drivers may need a while for.
const speedEvery = 30 * time.Second

// leastCapacity and mostCapacity bound the key.
const leastCapacity, mostCapacity = unit.Bandwidth(8), unit.Bandwidth(8 * capacity.MostCapacity)

// checkCapacity adds the faults of the capacity of a peer's interface.
func (c *Config) checkCapacity(faults *fault.List, at string, peer int) {
	p := &c.Peers[peer]
	if p.Capacity != 0 && (p.Capacity < leastCapacity || p.Capacity > mostCapacity) {
		faults.Add(at+".capacity", "must be from %s to %s, got %s", leastCapacity, mostCapacity, p.Capacity)
	}
	for i := range c.Peers[:peer] {
		if other := &c.Peers[i]; other.Interface == p.Interface && other.Capacity != p.Capacity && p.Interface != "" {
			faults.Add(at+".capacity", "must be that of peers[%d], which has the same interface %s", i, p.Interface)
			return
		}
	}
}

// loads are the loads of the egress links.
type loads struct {
	links map[string]*egressLink // by interface
	// sent are the loads that servers were sent last, by the SID's route.
	sent   map[bgp.VPNKey]sentLoad
	sample uint32
}

// egressLink is an interface with egress peers.
type egressLink struct {
	meter capacity.Meter
	speed int64 // of the driver, in bit/s; 0: not known
	// number identifies it among those of this router.
	number uint16
	used   float64
	known  bool
	// silent: it was logged that it has no capacity.
	silent bool
}

type sentLoad struct {
	capacity.Load
	number uint16
	at     time.Time
}

// reading is what was read of an interface.
type reading struct {
	index int
	bytes uint64
	speed int64 // -1: not read
}

// measureLoads reads what the egress links have sent, and reports it to the servers, until ctx
// ends.
func (a *ASBR) measureLoads(ctx context.Context) {
	var speeds time.Time // when they were read
	contain.Every(ctx, capacity.SampleEvery, contain.Reconcile, a.log, func() {
		now := time.Now()
		speed := now.Sub(speeds) >= speedEvery
		if speed {
			speeds = now
		}
		var names []string
		a.daemon.Do(ctx, func() { names = a.egressInterfaces() })
		readings, err := readLinks(a.nics, names, speed)
		if err != nil {
			a.log.Debug("read loads of egress links", "err", err)
		}
		a.daemon.Do(ctx, func() { a.reportLoads(now, readings) })
	})
}

// egressInterfaces are the interfaces with egress peers.
func (a *ASBR) egressInterfaces() []string {
	names := map[string]bool{}
	for _, p := range a.peers {
		names[p.Interface] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// readLinks reads interfaces. What cannot be read is left out.
func readLinks(conn *nic.Conn, names []string, speed bool) (map[string]reading, error) {
	all := map[string]reading{}
	var errs []error
	for _, name := range names {
		r := reading{speed: -1}
		var err error
		if r.index, r.bytes, err = conn.Sent(name); err == nil && speed {
			r.speed, err = conn.Speed(name)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all[name] = r
	}
	return all, errors.Join(errs...)
}

// reportLoads applies readings, and sends the servers what has changed.
func (a *ASBR) reportLoads(now time.Time, readings map[string]reading) {
	l := &a.loads
	l.apply(now, readings)
	for _, p := range a.peers {
		link := l.links[p.Interface]
		if _, _, ok := l.of(&p.Peer); link != nil && link.known && !ok && !link.silent {
			link.silent = true
			a.log.Info("load of egress link is not reported: its driver does not know its speed; set capacity of its peers", "interface", p.Interface)
		}
	}
	routes, withdrawn := l.changes(now, a.config.ASN, a.peers)
	if err := errors.Join(a.daemon.Speaker.OriginateVPN(routes), a.daemon.Speaker.WithdrawVPN(withdrawn)); err != nil {
		clear(l.sent) // all again
		a.log.Error("report loads of egress links", "err", err)
	}
}

// changes returns what servers are to be sent, and which routes are to be withdrawn.
func (l *loads) changes(now time.Time, asn uint32, peers []*peer) (routes []bgp.VPNRoute, withdrawn []bgp.VPNKey) {
	present := map[bgp.VPNKey]bool{}
	for _, p := range peers {
		load, number, ok := l.of(&p.Peer)
		if !ok || !p.serves() {
			continue
		}
		key := bgp.VPNKey{RD: p.rd, Prefix: bgp.LoadPrefix(p.sid)}
		present[key] = true
		if last, sent := l.sent[key]; sent && last.number == number && !capacity.Worth(last.Load, load, now.Sub(last.at)) {
			continue
		}
		l.sample++
		routes = append(routes, p.loadRoute(asn, bgp.Load{Link: number, Sample: l.sample, Capacity: float32(load.Capacity), Used: float32(load.Used)}))
		l.sent[key] = sentLoad{load, number, now}
	}
	for key := range l.sent {
		if !present[key] {
			withdrawn = append(withdrawn, key)
			delete(l.sent, key)
		}
	}
	return routes, withdrawn
}

// apply applies readings. An interface that was not read has no load.
func (l *loads) apply(now time.Time, readings map[string]reading) {
	if l.links == nil {
		l.links, l.sent = map[string]*egressLink{}, map[bgp.VPNKey]sentLoad{}
	}
	maps.DeleteFunc(l.links, func(name string, _ *egressLink) bool { _, read := readings[name]; return !read })
	for name, r := range readings {
		at := l.links[name]
		if number := uint16(r.index); at == nil || at.number != number {
			at = &egressLink{number: number}
			l.links[name] = at
		}
		if r.speed >= 0 {
			at.speed = r.speed
		}
		at.used, at.known = at.meter.Add(now, r.bytes)
	}
}

// of returns the load of the link to a peer; false if it is not known.
func (l *loads) of(p *Peer) (load capacity.Load, number uint16, ok bool) {
	at := l.links[p.Interface]
	if at == nil || !at.known {
		return load, 0, false
	}
	bits := at.speed
	if p.Capacity > 0 {
		bits = int64(p.Capacity)
	}
	load = capacity.Load{Capacity: float64(bits) / 8, Used: at.used}
	return load, at.number, load.Valid()
}

// serves reports whether servers may send packets to the peer's SID.
func (p *peer) serves() bool {
	return p.up && !p.hidden && !slices.ContainsFunc(p.fixed(), func(o route.Object) bool { return !p.kernel.Settled(o.Key()) })
}

// loadRoute is the route with the load of the link to the peer. Its AS path is the peer's AS, by
// which servers recognize what their best paths lead through.
func (p *peer) loadRoute(asn uint32, l bgp.Load) bgp.VPNRoute {
	return bgp.VPNRoute{
		RD: p.rd, Prefix: bgp.LoadPrefix(p.sid), NextHop: p.nextHop, RTs: []vpn.ID{bgp.LoadTarget(asn)}, SID: p.sid,
		Structure: p.structure, Behavior: codes[p.behavior()], Load: l,
		Attributes: bgp.Attributes{ASPath: message.MakeASPath(p.ASN), Communities: []uint32{bgp.NoExport}},
	}
}

// LoadStatus is the load of the link to a peer.
type LoadStatus struct {
	// Capacity and Used are in bit/s; Capacity 0: nothing is reported, because it is not known.
	Capacity int64 `json:"capacity_bps"`
	Used     int64 `json:"used_bps"`
}

func (l *loads) status(p *Peer) LoadStatus {
	load, _, ok := l.of(p)
	if !ok {
		return LoadStatus{}
	}
	return LoadStatus{int64(8 * load.Capacity), int64(8 * load.Used)}
}

// changedCapacities describes the interfaces whose capacity is another one.
func changedCapacities(old, now []Peer) (lines []string) {
	before := map[string]unit.Bandwidth{}
	for _, p := range old {
		before[p.Name] = p.Capacity
	}
	for _, p := range now {
		if was, there := before[p.Name]; there && was != p.Capacity {
			lines = append(lines, fmt.Sprintf("capacity of egress peer %q changed", p.Name))
		}
	}
	return lines
}
