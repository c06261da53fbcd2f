package edge

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gaissmai/bart"

	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/daemon"
	"github.com/tabane/tabane/internal/epe/belief"
	"github.com/tabane/tabane/internal/epe/pathmanager"
	"github.com/tabane/tabane/internal/kernel/route"
)

// The delivery of packets from the default addresses: a route of the main table for each client
// prefix whose mode is not the best path, to the SID of an egress peer or to a group of SIDs. A
// peer is in it only while it has a route that covers the prefix, so that no packet leaves to one
// that announced none. Where no peer of the mode has one, there is no such route, and packets
// follow the best path.

const (
	// overBestPath is the metric of a delivery, the next better than that of a best path (4096):
	// what has precedence over best paths has it over deliveries.
	overBestPath = 4095
	// overOthers is the metric where other programs install the best paths: better than that of
	// routing daemons (20 in FRR, 32 in BIRD).
	overOthers = 10
)

// delivery is the state of all deliveries.
type delivery struct {
	rules *deliveryRules
	// networks has the prefixes that a mode other than the best path applies to: those of rules,
	// and those that egress peers announce. That of a prefix which no peer of the mode covers has no
	// group.
	networks bart.Table[*delivered]
	groups   map[string]*group
	// modes counts the networks in each mode.
	modes map[string]int
	// borrowed are the client addresses of measurements, which have rules of their own.
	borrowed map[netip.Prefix]*borrowed
	// due are networks to be brought up to date in steps, after a change of a route that covers
	// many.
	due       []netip.Prefix
	suspended suspension
}

// suspension is what must be in the kernel before members that were taken out of groups return to
// them.
type suspension struct {
	active bool
	// peers is the number of peers that withdraw in a burst: the members stay out until it is 0.
	peers int
	// moved are the networks whose delivery has changed since. The routes of some may not be in the
	// kernel yet, which has their previous ones, to the groups that members were taken out of.
	moved []netip.Prefix
	// ids are those of groups that have ended since. A group with the ID of one would change the
	// members that these routes lead to.
	ids []uint32
	// bypasses are the peers that the packets of others are sent through, outside the networks that
	// left these because the former have no route to them.
	bypasses map[*peer]*peer
	outside  map[netip.Prefix]struct{}
}

// delivered is a client prefix and how its packets are delivered.
type delivered struct {
	rule  *deliveryRule
	group *group // nil: by the best path
	// lacking: not all of the peers of the mode cover the prefix.
	lacking bool
	// due: it is in delivery.due.
	due   bool
	since time.Duration // by egress.uptime: a third of the memory of a time.Time
	// begins is where connections begin with multipath by mode auto; nil: nothing was measured.
	begins *beginning
	// apart is what short connections achieve, with mode auto; nil: nothing was measured.
	apart *apart
	// unfit is when it last had connections of QUIC that began unseen; nil: never.
	unfit *unfit
}

// uptime is a time since the start, whatever the wall clock has done.
func (e *egress) uptime(now time.Time) time.Duration { return now.Sub(e.start) }

// lasts is the time since the last change of the delivery of a network.
func (e *egress) lasts(n *delivered, now time.Time) time.Duration { return e.uptime(now) - n.since }

// member is a peer of a group.
type member struct {
	peer   *peer
	sid    netip.Addr
	weight uint16
	path   int // position in the rule
}

// group is a set of members, one for all prefixes that have the same. With one member it is the
// nexthop object of a SID.
type group struct {
	key     string
	members []member
	leads   []lead // of the members
	id      uint32 // of the nexthop object
	uses    int
	// sprayed is set if packets of a connection are sent through all members, of which all but one
	// may have no route at present.
	sprayed *sprayed
	// unsprayed is why they are not, or not through those that are present; nil: they are.
	unsprayed error
	// left are the members without those that are suspended; nil: none is.
	left []member
}

// ownsNexthop reports whether a group has a nexthop object of its own.
func (e *egress) ownsNexthop(g *group) bool {
	return g.sprayed == nil && g.id != e.delivering[g.leads[0]].ID
}

// deliveryRules are the rules of a configuration.
type deliveryRules struct {
	prefixes bart.Table[*deliveryRule]
	asns     map[uint32]*deliveryRule
	fallback *deliveryRule
	dry      bool
	// none: all modes are the best path.
	none bool
	// learns: a mode is auto. explore is the share of the bytes to compare modes.
	learns  bool
	explore float64
}

// deliveryRule is a rule for client networks.
type deliveryRule struct {
	name string // what it is for: a prefix, an AS, or default
	mode Mode
	// believed is the mode as belief has it.
	believed belief.Mode
	// peers are those of the mode by name, with their weights.
	peers []weighted
	// auto: the mode is what measured best. A configured rule has none yet; chosen returns the rule
	// with it.
	auto bool
	// spray: packets of a connection are sent through several of them, the first one before others.
	spray bool
}

type weighted struct {
	peer   string
	weight uint16
}

// compileDelivery returns the rules of a configuration, which was checked.
func compileDelivery(d *Delivery) *deliveryRules {
	r := &deliveryRules{asns: map[uint32]*deliveryRule{}, fallback: newDeliveryRule("default", d.Default), dry: d.DryRun, learns: d.learns()}
	r.explore, _ = parseShare(d.Explore) // which was checked
	r.none = len(r.fallback.peers) == 0 && !r.learns
	for _, n := range d.Networks {
		var rule *deliveryRule
		if n.Prefix.IsValid() {
			rule = newDeliveryRule(n.Prefix.String(), n.Mode)
			r.prefixes.Insert(n.Prefix, rule)
		} else {
			rule = newDeliveryRule(fmt.Sprintf("AS %d", n.ASN), n.Mode)
			r.asns[n.ASN] = rule
		}
		r.none = r.none && len(rule.peers) == 0 && !rule.auto
	}
	return r
}

func newDeliveryRule(name string, m Mode) *deliveryRule {
	r := &deliveryRule{name: name, mode: m, believed: belief.Mode(m.name()), auto: m.named == modeAuto}
	if m.Single != "" {
		r.peers, r.believed = []weighted{{m.Single, 1}}, singlePrefix+belief.Mode(m.Single)
	}
	var most uint32
	for _, w := range m.Spread {
		most = max(most, w)
	}
	sum := 0
	for _, name := range slices.Sorted(maps.Keys(m.Spread)) {
		// Weights that are larger than the kernel's are scaled down; a peer that has one keeps
		// some.
		w := m.Spread[name]
		if most > route.MaxWeight {
			w = uint32(max(min(uint64(w), 1), (uint64(w)*route.MaxWeight+uint64(most)/2)/uint64(most)))
		}
		if w > 0 {
			r.peers = append(r.peers, weighted{name, uint16(w)})
			sum += int(w)
		}
	}
	r.raise(sum)
	for _, name := range m.Spray {
		r.peers, r.spray = append(r.peers, weighted{name, 1}), true
	}
	return r
}

// raise raises weights with this sum that are so small that their peers may get no bucket of a
// group.
func (r *deliveryRule) raise(sum int) {
	for raised := true; raised; { // each raises the sum, by less than a bucket for each peer
		raised = false
		for i := range r.peers {
			w := &r.peers[i].weight
			if least := (sum + route.GroupBuckets - 1) / route.GroupBuckets; int(*w) < least {
				sum += least - int(*w)
				*w, raised = uint16(least), true
			}
		}
	}
}

// same reports whether another rule has the same effect.
func (r *deliveryRule) same(other *deliveryRule) bool {
	return other != nil && r.name == other.name && r.auto == other.auto && r.mode.named == other.mode.named && slices.Equal(r.peers, other.peers) && r.spray == other.spray
}

// origins are the ASes that a rule is for, in order.
func (d *Delivery) origins() (all []uint32) {
	for _, n := range d.Networks {
		if n.ASN != 0 {
			all = append(all, n.ASN)
		}
	}
	slices.Sort(all)
	return all
}

// setDelivery replaces the rules: at once for their prefixes, in a walk for those inside and all
// others.
func (e *egress) setDelivery(d *Delivery) {
	old, now := e.delivery.rules, compileDelivery(d)
	e.delivery.rules = now
	clear(e.auto.rules)
	clear(e.auto.trials)
	e.auto.aparts = 0
	clear(e.auto.suspects)
	clear(e.auto.vanished)
	clear(e.stalled)
	e.auto.table.SetExplore(now.explore)
	if old.none && now.none {
		return
	}
	if old.dry != now.dry {
		for _, g := range e.delivery.groups {
			e.setGroup(g)
		}
	}
	for _, r := range []*deliveryRules{old, now} {
		for prefix := range r.prefixes.All() {
			e.deliver(prefix)
		}
	}
	if old.dry != now.dry {
		for prefix, n := range e.delivery.networks.All() {
			e.setDelivered(prefix, n)
			if n.rests() || n.beginsAt() != nil {
				e.offer(prefix) // nothing is so in a dry run
			}
		}
	}
	e.startWalk(false)
}

// deliverWithin applies a change of the route of a peer to a prefix: to the prefix itself, and to
// those inside that the route covers. Of those there may be so many that it takes long. They are
// due then, and if the peer has lost its route, all deliveries leave it at once.
func (e *egress) deliverWithin(p *peer, prefix netip.Prefix) {
	if !e.delivers() {
		return
	}
	e.deliver(prefix)
	var inside []netip.Prefix
	for n := range e.delivery.networks.Subnets(prefix) {
		if len(inside) == daemon.Step {
			break
		}
		if n != prefix {
			inside = append(inside, n)
		}
	}
	if len(inside) < daemon.Step {
		for _, n := range inside {
			e.deliver(n)
		}
		return
	}
	if !e.covering(p, prefix).sid.IsValid() {
		e.leavePeer(p)
	}
	for inside, n := range e.delivery.networks.Subnets(prefix) {
		if !n.due && inside != prefix {
			n.due = true
			e.delivery.due = append(e.delivery.due, inside)
		}
	}
}

// deliverDue brings at most so many of the networks that are due up to date.
func (e *egress) deliverDue(most int) {
	d := &e.delivery
	part := d.due[:min(most, len(d.due))]
	if d.due = d.due[len(part):]; len(d.due) == 0 {
		d.due = nil
	}
	for _, prefix := range part {
		if n, ok := d.networks.Get(prefix); ok && n.due {
			n.due = false
			e.deliver(prefix)
		}
	}
}

// suspend takes members out of all groups before the networks with these groups are brought up to
// date, and reports whether there are such groups. Those with no other members keep them. The
// members return by resume.
func (e *egress) suspend(gone func(member) bool) (found bool) {
	for _, g := range e.delivery.groups {
		present := g.present()
		left := slices.DeleteFunc(slices.Clone(present), gone)
		if len(left) > 0 && len(left) < len(present) && (e.ownsNexthop(g) || g.sprayed != nil) {
			g.left, found = left, true
			e.setGroup(g)
		}
	}
	e.delivery.suspended.active = e.delivery.suspended.active || found
	return found
}

// resume returns suspended members to the groups that are still in use, and reports whether it did.
// It does so once all networks are up to date, and the kernel has no other routes: the kernel's
// groups change before its routes, so that a network that a peer has left would have that peer back
// meanwhile.
func (e *egress) resume() bool {
	s := &e.delivery.suspended
	if !s.active || s.peers > 0 || len(e.delivery.due) > 0 || len(e.walk.peers) > 0 {
		return false
	}
	for i := len(s.moved) - 1; i >= 0; i-- {
		if e.kernel.Outdated(e.deliveredRoute(s.moved[i], nil).Key()) {
			s.moved = s.moved[:i+1]
			return false
		}
	}
	for _, id := range s.ids {
		delete(e.ids, id)
	}
	e.endAllBypasses()
	*s = suspension{}
	for _, g := range e.delivery.groups {
		if g.left != nil {
			g.left = nil
			e.setGroup(g)
		}
	}
	return true
}

// present are the members that are not suspended.
func (g *group) present() []member {
	if g.left != nil {
		return g.left
	}
	return g.members
}

// setGroup sets the nexthop object of a group that has one of its own. A dry run has none.
func (e *egress) setGroup(g *group) {
	o := route.NexthopGroup{ID: g.id, Members: e.join(g, g.present())}
	switch {
	case g.sprayed != nil:
		e.setSprayed(g)
	case !e.ownsNexthop(g):
	case e.delivery.rules.dry:
		e.kernel.Delete(o.Key())
	default:
		e.kernel.Set(o)
	}
}

// delivers reports whether there are deliveries, or may be.
func (e *egress) delivers() bool { return !e.delivery.rules.none || e.delivery.networks.Size() > 0 }

// deliver brings the delivery to a prefix up to date.
func (e *egress) deliver(prefix netip.Prefix) {
	d := &e.delivery
	rule := e.deliveryRule(prefix)
	n, there := d.networks.Get(prefix)
	if rule != nil && rule.auto {
		rule = e.chosen(prefix, rule)
	}
	if rule == nil || len(rule.peers) == 0 && !rule.auto {
		if there {
			e.undeliver(prefix, n)
		}
		return
	}
	members, lacking := e.members(rule, prefix)
	if !there {
		n = &delivered{since: e.uptime(e.now())}
		d.networks.Insert(prefix, n)
	}
	rested, began := n.rests(), n.beginsAt()
	changed := !rule.same(n.rule) || n.lacking != lacking
	d.count(n.rule, -1)
	d.count(rule, 1)
	if n.rule, n.lacking = rule, lacking; e.useGroup(prefix, n, members) {
		changed = true
	}
	if changed {
		n.since = e.uptime(e.now())
	}
	if n.rests() != rested || n.beginsAt() != began {
		e.offer(prefix)
	}
}

// undeliver ends the delivery to a prefix.
func (e *egress) undeliver(prefix netip.Prefix, n *delivered) {
	rested, began := n.rests(), n.beginsAt()
	e.useGroup(prefix, n, nil)
	e.delivery.networks.Delete(prefix)
	e.delivery.count(n.rule, -1)
	e.auto.remove(prefix)
	if rested || began != nil {
		e.offer(prefix)
	}
}

// setDelivered sets the route of a delivery, or deletes it.
func (e *egress) setDelivered(prefix netip.Prefix, n *delivered) {
	if s := &e.delivery.suspended; s.active {
		s.moved = append(s.moved, prefix)
	}
	if n.group == nil || e.delivery.rules.dry {
		e.kernel.Delete(e.deliveredRoute(prefix, nil).Key())
		return
	}
	e.kernel.SetRoute(e.deliveredRoute(prefix, n.group))
}

// resizeDelivered applies another MTU of the interface to a delivery.
func (e *egress) resizeDelivered(prefix netip.Prefix) {
	if n, ok := e.delivery.networks.Get(prefix); ok {
		e.setDelivered(prefix, n)
	}
}

// deliveredRoute is the route of a delivery; that without a group has its key.
func (e *egress) deliveredRoute(prefix netip.Prefix, g *group) route.Route {
	metric := uint32(overBestPath)
	if e.config.BestPaths == LeaveBestPaths {
		metric = overOthers
	}
	r := route.Route{Table: route.MainTable, Dst: prefix, Metric: metric, Kind: route.Unicast}
	if g != nil && g.sprayed != nil {
		// The kernel knows of no headroom that the header with the SID needs.
		r.Link, r.Program, r.MTU = e.config.Interface, g.sprayed.program, uint32(e.fits())
		return r
	}
	if g != nil {
		r.NexthopID = g.id
	}
	switch {
	case g != nil && g.leads[0].mark != 0:
		r.MTU = uint32(e.fits())
	case e.config.encap() == route.EncapRed:
		r.MTU = uint32(e.mtu) + redHeadroom
	}
	return r
}

// deliveryRule returns the rule for a prefix: that of a measurement, else that of the longest
// prefix that covers it, else that of its origin AS, else the default. It returns nil for a prefix
// that is neither that of a rule nor announced by an egress peer.
func (e *egress) deliveryRule(prefix netip.Prefix) *deliveryRule {
	r := e.delivery.rules
	if b := e.delivery.borrowed[prefix]; b != nil {
		return b.rule
	}
	if bgp.Inside(e.config.Locators, prefix) {
		return nil // packets to SIDs must not be encapsulated again
	}
	rule, found := r.prefixes.LookupPrefix(prefix)
	if _, own := r.prefixes.Get(prefix); own {
		return rule
	}
	announced := false
	var origin uint32
	for _, p := range e.peers {
		n, ok := p.routes.Find(prefix)
		if !ok {
			continue
		}
		if c := e.choose(p.routes.Value(n).paths); c.sid.IsValid() {
			announced = true
			origin = cmp.Or(origin, c.originAS)
		}
	}
	switch {
	case !announced:
		return nil
	case found:
		return rule
	case r.asns[origin] != nil:
		return r.asns[origin]
	}
	return r.fallback
}

// members returns the peers of a rule that have a route to all of a prefix, each with its SID.
// Those that are draining are left out unless all are. lacking reports whether others have none.
func (e *egress) members(rule *deliveryRule, prefix netip.Prefix) (members []member, lacking bool) {
	var draining []member
	for i, w := range rule.peers {
		p := e.deliveryPeer(w.peer, bgp.IPOf(prefix.Addr()))
		if p == nil {
			lacking = true
			continue
		}
		c := e.covering(p, prefix)
		m := member{p, c.sid, w.weight, i}
		switch {
		case !c.sid.IsValid() || e.insideItself(c.sid, prefix), e.outside(p, prefix):
			lacking = true
		case e.avoids(prefix, c.sid), e.left(prefix, c.sid):
		case c.report.State == pathmanager.RouteDraining:
			draining = append(draining, m)
		default:
			members = append(members, m)
		}
	}
	if len(members) == 0 {
		members = draining
	}
	if rule.spray && e.sprayer == nil && !e.delivery.rules.dry {
		members = members[:min(1, len(members))]
	}
	return members, lacking
}

// insideItself reports whether packets to a SID could follow the delivery to a prefix, and be
// encapsulated again: the prefix has the SID, and BGP has no more specific route to it.
func (e *egress) insideItself(sid netip.Addr, prefix netip.Prefix) bool {
	return prefix.Contains(sid) && longest(e.locators.known, sid) <= prefix.Bits()
}

// deliveryPeer returns the peer of a name for packets of an IP version: itself, or the one of that
// version with the same route target, which is the same neighbor; nil if there is none.
func (e *egress) deliveryPeer(name string, v bgp.IP) *peer {
	i := slices.IndexFunc(e.peers, func(p *peer) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	if p := e.peers[i]; bgp.IPOf(p.Address) != v {
		return e.byRT[target{p.RT, v}]
	}
	return e.peers[i]
}

// covering returns what results from the longest reachable route of a peer that covers a prefix.
func (e *egress) covering(p *peer, prefix netip.Prefix) choice {
	for n := range p.routes.Covering(prefix) {
		if c := e.choose(p.routes.Value(n).paths); c.sid.IsValid() {
			return c
		}
	}
	return choice{}
}

// useGroup gives a network the group of some members, with its route, and reports whether it is
// another one than before.
func (e *egress) useGroup(prefix netip.Prefix, n *delivered, members []member) (changed bool) {
	key := groupKey(members)
	// One peer that is left keeps the program, which counts what it carries.
	spray := len(members) > 0 && n.rule.spray && len(n.rule.peers) > 1 && e.sprayer != nil && !e.delivery.rules.dry
	if spray {
		key += "spray " + n.rule.mode.String()
	}
	old := n.group
	if old == nil && len(members) == 0 || old != nil && old.key == key {
		return false
	}
	n.group = nil
	if len(members) > 0 {
		if n.group = e.delivery.groups[key]; n.group == nil {
			n.group = e.newGroup(key, members)
			if spray {
				e.leaveFirst(old, members)
				e.newSprayed(n.group, n.rule)
			}
			e.setGroup(n.group)
		}
		n.group.uses++
	}
	e.setDelivered(prefix, n)
	if old != nil {
		if old.sprayed != nil && !e.config.Delivery.sprays() {
			e.desprayed = append(e.desprayed, prefix)
		}
		e.releaseGroup(old)
	}
	return true
}

func groupKey(members []member) string {
	var key []byte
	for _, m := range members {
		key = binary.LittleEndian.AppendUint32(key, uint32(m.peer.index))
		key = append(key, m.sid.AsSlice()...)
		key = binary.LittleEndian.AppendUint16(key, m.weight)
	}
	return string(key)
}

func (e *egress) newGroup(key string, members []member) *group {
	g := &group{key: key, members: members}
	for _, m := range members {
		g.leads = append(g.leads, e.useDelivering(m.peer, m.sid))
	}
	g.id = e.delivering[g.leads[0]].ID
	if text := e.join(g, members); strings.Contains(text, "/") {
		g.id = e.newID([]byte(text))
	}
	e.delivery.groups[key] = g
	return g
}

// join returns some members of a group in the form of route.NexthopGroup. Peers may have a SID in
// common.
func (e *egress) join(g *group, members []member) string {
	weights := map[uint32]uint32{}
	for _, m := range members {
		to := g.leads[slices.Index(g.members, m)]
		weights[e.delivering[to].ID] += uint32(m.weight)
	}
	var list []route.GroupMember
	for _, id := range slices.Sorted(maps.Keys(weights)) {
		list = append(list, route.GroupMember{ID: id, Weight: uint16(min(weights[id], route.MaxWeight))})
	}
	return route.JoinMembers(list)
}

// releaseGroup ends the use of a group by a prefix.
func (e *egress) releaseGroup(g *group) {
	if g.uses--; g.uses > 0 {
		return
	}
	delete(e.delivery.groups, g.key)
	e.releaseSprayed(g)
	if e.ownsNexthop(g) {
		e.kernel.Delete(route.NexthopGroup{ID: g.id}.Key())
		if s := &e.delivery.suspended; s.active {
			s.ids = append(s.ids, g.id)
		} else {
			delete(e.ids, g.id)
		}
	}
	for _, to := range g.leads {
		e.releaseDelivering(to)
	}
}
