package asbr

import (
	"net/netip"

	"github.com/tabane/tabane/internal/base/hashtable"
	"github.com/tabane/tabane/internal/bgp"
	"github.com/tabane/tabane/internal/daemon"
)

// peerRoute is the state of a route that an egress peer advertised. There may be a million.
type peerRoute struct {
	attributes uint32 // number in attributes
	// installed: the route is in the kernel's desired state. advertised: servers were sent it.
	installed, advertised bool
	// waits: it is to be advertised once the kernel has it.
	waits bool
}

// attributes are the next hops and path attributes of a peer's routes, of which there are fewer
// than routes.
type attributes struct {
	keys    hashtable.Interner[string]
	updates []*bgp.Update // by number, without prefix
	key     []byte        // used again
}

// use returns the number of the attributes of an update and counts a use.
func (a *attributes) use(u bgp.Update) uint32 {
	next := u.NextHop.As16()
	a.key = append(append(append(a.key[:0], next[:]...), u.NextHop.Zone()...), 0)
	a.key = u.AppendKey(a.key)
	if last, n := a.keys.Last(); last == string(a.key) && n != 0 {
		a.keys.UseAgain(n)
		return n
	}
	n := a.keys.Use(string(a.key))
	if a.keys.Uses(n) == 1 {
		for len(a.updates) < a.keys.Len() {
			a.updates = append(a.updates, nil)
		}
		own := u // so that only this one is allocated
		own.Prefix = netip.Prefix{}
		a.updates[n] = &own
	}
	return n
}

func (a *attributes) release(n uint32) {
	if a.keys.Release(n); n != 0 && a.keys.Uses(n) == 0 {
		a.updates[n] = nil
	}
}

// received returns a route as the peer advertised it.
func (p *peer) received(n hashtable.Ref) bgp.Update {
	u := *p.attributes.updates[p.routes.Value(n).attributes]
	u.Prefix = p.routes.Key(n).Netip()
	return u
}

// remove applies the withdrawal of a route.
func (p *peer) remove(prefix netip.Prefix) {
	n, ok := p.routes.Find(prefix)
	if !ok {
		return
	}
	r := p.routes.Value(n)
	if r.installed {
		p.kernel.Delete(p.route(bgp.Update{Prefix: prefix}).Key())
	}
	if r.advertised {
		p.withdrawn = append(p.withdrawn, bgp.VPNKey{RD: p.rd, Prefix: prefix})
	}
	p.attributes.release(r.attributes)
	p.routes.Remove(n)
}

// learn applies a new or changed route.
func (p *peer) learn(u bgp.Update) {
	n, _ := p.routes.Add(u.Prefix)
	r := p.routes.Value(n)
	before := r.attributes
	if r.attributes = p.attributes.use(u); r.attributes != before {
		if r.installed = false; p.up && !p.hidden {
			p.await(n)
		}
	}
	p.attributes.release(before)
	p.apply(n)
}

// apply makes the state of a route follow that of the peer.
func (p *peer) apply(n hashtable.Ref) {
	r := p.routes.Value(n)
	switch {
	case p.up && !r.installed:
		r.installed = true
		p.kernel.SetRoute(p.route(p.received(n)))
	case !p.up && r.installed:
		r.installed = false
		p.kernel.Delete(p.route(p.received(n)).Key())
	}
	switch serve := p.up && !p.hidden; {
	case serve && !r.advertised:
		p.await(n)
	case !serve && r.advertised:
		r.advertised = false
		p.withdrawn = append(p.withdrawn, bgp.VPNKey{RD: p.rd, Prefix: p.routes.Key(n).Netip()})
	}
}

// await has a route advertised once the kernel has it.
func (p *peer) await(n hashtable.Ref) {
	if r := p.routes.Value(n); !r.waits {
		r.waits = true
		p.waiting = append(p.waiting, n)
	}
}

// restart begins to apply the state of the peer to all of its routes.
func (p *peer) restart() {
	p.walking, p.next = true, 0
	p.step()
}

// step continues that with some routes; it reports whether there may be more.
func (p *peer) step() (more bool) {
	if !p.walking {
		return false
	}
	for range daemon.Step {
		n, ok := p.routes.Next(p.next)
		if !ok {
			p.walking = false
			return false
		}
		p.next = n + 1
		p.apply(n)
	}
	return true
}

// installed takes from the routes that wait those that the kernel has by now, and returns them as
// they are advertised, until the next call. It examines some, in turn; more reports whether it
// should be called again.
func (p *peer) installed() (routes []bgp.VPNRoute, more bool) {
	some := min(len(p.waiting), 2*daemon.Step)
	routes = p.batch[:0]
	for _, n := range p.waiting[:some] {
		if !p.routes.Has(n) || !p.routes.Value(n).waits {
			continue // withdrawn
		}
		r := p.routes.Value(n)
		if !p.up || p.hidden {
			r.waits = false
			continue
		}
		u := p.received(n)
		if !p.kernel.Settled(p.route(u).Key()) {
			p.waiting = append(p.waiting, n)
			continue
		}
		r.waits, r.advertised = false, true
		routes = append(routes, p.epeRoute(u))
	}
	p.batch = routes
	if p.waiting = p.waiting[some:]; len(p.waiting) == 0 {
		p.waiting, p.batch = nil, nil
	}
	return routes, len(routes) > 0 && len(p.waiting) > 0
}
