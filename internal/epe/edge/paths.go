package edge

import (
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/base/hashtable"
	"github.com/tabane/tabane/internal/bgp/vpn"
	"github.com/tabane/tabane/internal/daemon"
	"github.com/tabane/tabane/internal/epe/pathmanager"
	"github.com/tabane/tabane/internal/kernel/route"
)

// egressPath is a path to a prefix through a peer and one of its ASBRs, which the route
// distinguisher identifies.
type egressPath struct {
	rd  vpn.ID
	sid netip.Addr
	// originAS is the AS that originated the route if a rule of delivery is for it, or one is
	// auto, else 0.
	originAS uint32
	preference
}

// epeRoute is the state of a peer's route to a prefix. There are as many as EPE Routes, so what
// many have in common are numbers.
type epeRoute struct {
	paths    uint32 // in pathLists
	sid      uint32 // in nexthops.sids, of the route in the kernel's desired state; 0: none
	reported uint32 // in egress.reports, what routed was called with last
}

// pathLists are the lists of paths of all prefixes. Most prefixes of a peer have one of a few
// lists: the paths of its ASBRs with the same attributes. With origin ASes there are many. A list is
// a number; the empty list is 0.
type pathLists struct {
	// cells have the number of their uses. The number of a list is the place of its first cell, plus
	// 1.
	cells hashtable.Table[listCell, int32]
	// choices has what was found out about lists of several paths; it is cleared when reachability
	// changes.
	choices map[uint32]choice
}

// listCell is the first path of a list, and the rest of it. Paths are in the order of their RDs, so
// that equal lists have equal numbers.
type listCell struct {
	egressPath
	rest uint32
}

// choice is what a list of paths results in.
type choice struct {
	sid    netip.Addr // of the best path; invalid: none is reachable
	report pathmanager.Route
	// originAS is that of the best path.
	originAS uint32
}

// cell returns the first cell of a list that is not empty.
func (l *pathLists) cell(list uint32) listCell { return l.cells.Key(hashtable.Ref(list - 1)) }

// use returns the list that begins with a cell, and counts a use; added reports that it is new.
func (l *pathLists) use(c listCell) (list uint32, added bool) {
	n, added := l.cells.Add(c)
	*l.cells.Value(n)++
	return uint32(n) + 1, added
}

// paths returns the paths of a list, in the order of their RDs.
func (l *pathLists) paths(list uint32) (paths []egressPath) {
	for list != 0 {
		c := l.cell(list)
		paths, list = append(paths, c.egressPath), c.rest
	}
	return paths
}

// path returns the path with an RD.
func (l *pathLists) path(list uint32, rd vpn.ID) (h egressPath, ok bool) {
	for list != 0 {
		c := l.cell(list)
		if c.rd == rd {
			return c.egressPath, true
		}
		list = c.rest
	}
	return egressPath{}, false
}

// with returns the list without the path with an RD, and with one instead unless it is nil. The
// caller releases the list.
func (l *pathLists) with(list uint32, rd vpn.ID, path *egressPath) uint32 {
	if list == 0 && path != nil {
		made, _ := l.use(listCell{*path, 0}) // as in a transfer of a table
		return made
	}
	paths := slices.DeleteFunc(l.paths(list), func(h egressPath) bool { return h.rd == rd })
	if path != nil {
		at, _ := slices.BinarySearchFunc(paths, rd, func(h egressPath, rd vpn.ID) int { return h.rd.Compare(rd) })
		paths = slices.Insert(paths, at, *path)
	}
	var made uint32
	for _, h := range slices.Backward(paths) {
		rest, added := made, false
		if made, added = l.use(listCell{h, rest}); !added {
			l.release(rest) // the cell that exists has it already
		}
	}
	return made
}

// release ends the use of a list.
func (l *pathLists) release(list uint32) {
	for list != 0 {
		n := hashtable.Ref(list - 1)
		uses := l.cells.Value(n)
		if *uses--; *uses > 0 {
			return
		}
		delete(l.choices, list)
		list = l.cell(list).rest
		l.cells.Remove(n)
	}
}

// choose returns what a list results in.
func (e *egress) choose(list uint32) choice {
	if list == 0 {
		return choice{}
	}
	if first := e.lists.cell(list); first.rest == 0 {
		if !e.locators.reaches(first.sid) {
			return choice{}
		}
		return choice{first.sid, ranked(first.egressPath), first.originAS}
	}
	c, ok := e.lists.choices[list]
	if !ok {
		if paths := e.usable(list); len(paths) > 0 {
			c = choice{paths[0].sid, ranked(paths[0]), paths[0].originAS}
		}
		e.lists.choices[list] = c
	}
	return c
}

// usable returns the reachable paths of a list, best first.
func (e *egress) usable(list uint32) []egressPath {
	paths := slices.DeleteFunc(e.lists.paths(list), func(h egressPath) bool { return !e.locators.reaches(h.sid) })
	rank(paths)
	return paths
}

// ranked returns what the path manager needs of a route with this best path.
func ranked(best egressPath) pathmanager.Route {
	r := pathmanager.Route{State: pathmanager.RoutePresent, LocalPref: best.localPref, PathLength: uint16(best.pathLength), Origin: uint8(best.origin)}
	if best.draining {
		r.State = pathmanager.RouteDraining
	}
	return r
}

// set replaces the paths of a peer's route with an RD, or removes it if path is nil.
func (e *egress) set(p *peer, prefix netip.Prefix, rd vpn.ID, path *egressPath) {
	var n hashtable.Ref
	if path != nil {
		n, _ = p.routes.Add(prefix)
	} else if at, there := p.routes.Find(prefix); there {
		n = at
	} else {
		return
	}
	r := p.routes.Value(n)
	before, had := e.lists.path(r.paths, rd)
	if had && path != nil && before == *path {
		return
	}
	old := r.paths
	r.paths = e.lists.with(old, rd, path)
	e.lists.release(old)
	switch {
	case !had && path != nil:
		e.count(rd, p, 1)
	case had && path == nil:
		e.count(rd, p, -1)
	}
	reachable := p.reachable()
	if !e.apply(p, n) && (len(e.delivery.rules.asns) > 0 || e.delivery.rules.learns) {
		e.deliver(prefix) // whose origin AS may have changed
	}
	if p.reachable() < reachable {
		e.withdrew(p)
	}
}

// count counts the routes of a peer with an RD. An update names the RD, and only a new route its
// peers.
func (e *egress) count(rd vpn.ID, p *peer, n int) {
	if e.byRD[rd] == nil {
		e.byRD[rd] = map[*peer]int{}
	}
	if e.byRD[rd][p] += n; e.byRD[rd][p] == 0 {
		if delete(e.byRD[rd], p); len(e.byRD[rd]) == 0 {
			delete(e.byRD, rd)
		}
	}
}

// apply makes the best path of a route the desired one, and reports the route's state. It reports
// whether anything changed.
func (e *egress) apply(p *peer, n hashtable.Ref) (changed bool) {
	r, prefix := p.routes.Value(n), p.routes.Key(n).Netip()
	c := e.choose(r.paths)
	if was := e.reports.Value(r.reported); was != c.report {
		changed = true
		e.reports.Release(r.reported)
		if r.reported = 0; c.report.State != pathmanager.RouteAbsent {
			r.reported = e.reports.Use(c.report)
		}
		p.count(was.State, c.report.State)
		if e.routeChanged != nil {
			e.routeChanged(p.index, prefix, e.offered(p, prefix, c.report))
		}
	}
	if old := r.sid; e.sids.Value(old) != c.sid {
		changed = true
		if p.sids[old]--; p.sids[old] <= 0 {
			delete(p.sids, old)
		}
		if r.sid = 0; c.sid.IsValid() {
			r.sid = e.useSID(c.sid)
			p.sids[r.sid]++
			e.kernel.SetRoute(e.route(p, prefix, e.objects[r.sid].ID))
		} else {
			e.kernel.Delete(e.route(p, prefix, 0).Key())
		}
		e.releaseSID(old)
	}
	if r.paths == 0 {
		p.routes.Remove(n)
	}
	if changed {
		e.deliverWithin(p, prefix)
	}
	return changed
}

// A walk is the work of applying a change of reachability to all routes, in steps.
type walk struct {
	peers []*peer // those left, the first one in progress
	next  hashtable.Ref
	// resize: routes in the kernel get the present MTU as well.
	resize bool
}

// startWalk begins a walk over all routes, in place of one that is under way.
func (e *egress) startWalk(resize bool) {
	resize = resize || len(e.walk.peers) > 0 && e.walk.resize
	e.walk = walk{peers: slices.Clone(e.peers), resize: resize}
	e.step(daemon.Step)
	if len(e.walk.peers) > 0 && e.walkStarted != nil {
		e.walkStarted()
	}
}

// fits returns the bytes of an IP packet that fits with the header that has a SID.
func (e *egress) fits() int { return e.mtu - e.config.encap().Overhead() }

// setMTU applies another MTU of the interface to all routes that have it.
func (e *egress) setMTU(mtu int) {
	if mtu == e.mtu {
		return
	}
	// The kernel computes that of other routes with a nexthop object, and not that of those with a
	// program.
	if e.mtu = mtu; e.config.encap() == route.EncapRed || e.marksPackets() {
		for prefix := range e.delivery.rules.prefixes.All() {
			e.resizeDelivered(prefix)
		}
		e.startWalk(true)
	}
}

// visit applies to a route what the walk is for. It reports whether anything changed.
func (e *egress) visit(p *peer, n hashtable.Ref) (changed bool) {
	r, prefix := p.routes.Value(n), p.routes.Key(n).Netip()
	sid := r.sid
	changed = e.apply(p, n)
	if e.walk.resize && sid != 0 && r.sid == sid {
		e.kernel.SetRoute(e.route(p, prefix, e.objects[sid].ID))
		changed = true
	}
	if e.delivers() {
		e.deliver(prefix)
		if e.walk.resize {
			e.resizeDelivered(prefix)
		}
	}
	return changed
}

// visits is the number of routes that a step of the walk visits, a few milliseconds' work. Most of
// them may be unaffected.
const visits = 32768

// step brings so many due networks up to date, or continues the walk until it has changed so many
// routes; with deliveries, which take long to examine, until it has visited so many. It reports
// whether there may be more, or something to apply to the kernel.
func (e *egress) step(most int) (more bool) {
	if len(e.delivery.due) > 0 {
		e.deliverDue(most)
		return true
	}
	w := &e.walk
	walking := len(w.peers) > 0
	left := visits
	if e.delivers() {
		left = most
	}
	for ; len(w.peers) > 0; w.peers, w.next = w.peers[1:], 0 {
		p := w.peers[0]
		for n, ok := p.routes.Next(w.next); ok; n, ok = p.routes.Next(w.next) {
			if most == 0 || left == 0 {
				return true
			}
			left--
			w.next = n + 1
			if e.visit(p, n) {
				most--
			}
		}
	}
	return walking || e.resume()
}

// applyTo applies a change of reachability to the routes to an address at once, before the walk
// arrives there.
func (e *egress) applyTo(dst netip.Addr) {
	for _, p := range e.walk.peers {
		for n := range p.routes.Covering(host(dst)) {
			e.visit(p, n)
		}
	}
}

// count updates the number of the peer's prefixes in each state.
func (p *peer) count(old, now pathmanager.RouteState) {
	p.states[old]--
	p.states[now]++
	switch {
	case p.states[pathmanager.RoutePresent] > 0:
		p.leaving = false
	case p.states[pathmanager.RouteDraining] > 0:
		p.leaving = true
	}
}

// unreachable returns the number of prefixes with paths of which none is reachable.
func (p *peer) unreachable() int { return max(0, p.routes.Len()-p.reachable()) }

// reachable returns the number of prefixes that are reachable through the peer.
func (p *peer) reachable() int {
	return p.states[pathmanager.RoutePresent] + p.states[pathmanager.RouteDraining]
}
