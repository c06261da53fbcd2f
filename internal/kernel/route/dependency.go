package route

import (
	"github.com/tabane/tabane/internal/base/hashtable"
)

// A dependency is a precondition for adding an object: a link that is up, or a nexthop object. The
// zero dependency is that all other entries were tried after one was refused.
type dependency struct {
	link    string
	nexthop uint32
}

// blocked returns the unmet dependency of a desired object, if any.
func (r *Reconciler) blocked(o Object) (dependency, bool) {
	var link string
	switch o := o.(type) {
	case Nexthop:
		// The kernel accepts no nexthop object on a link without carrier.
		if l, down := r.down[o.Link]; down && !l.Up {
			return dependency{link: o.Link}, true
		}
	case NexthopGroup:
		for _, m := range o.List() {
			if on, blocked := r.blockedBy(m.ID); blocked {
				return on, true
			}
		}
	case Route:
		if on, blocked := r.blockedBy(o.NexthopID); blocked {
			return on, true
		}
		link = o.Link
	}
	if l, down := r.down[link]; down && !l.Admin {
		return dependency{link: link}, true
	}
	return dependency{}, false
}

// blockedBy returns the dependency on a nexthop object that is to be added first; 0 is none.
func (r *Reconciler) blockedBy(id uint32) (dependency, bool) {
	if id == 0 {
		return dependency{}, false
	}
	n, _, ok := r.store.find(Nexthop{ID: id}.Key())
	return dependency{nexthop: id}, r.suspended[id] || ok && r.blocks(n)
}

// wait removes an entry from the queue until its dependency is released. It counts as refused, but
// has no error.
func (r *Reconciler) wait(n hashtable.Ref, on dependency) {
	r.try(n, func(e *entry) {
		r.fail(n, nil)
		e.set(refused, true)
	})
	r.postpone(n, on)
}

// postpone queues an entry when its dependency is released.
func (r *Reconciler) postpone(n hashtable.Ref, on dependency) {
	r.store.Value(n).set(queued|waiting, true)
	r.waiting[on] = append(r.waiting[on], n)
}

// release queues the entries that wait for a dependency.
func (r *Reconciler) release(on dependency) {
	list := r.waiting[on]
	delete(r.waiting, on)
	for _, n := range list {
		if r.store.Value(n).is(waiting) {
			r.enqueue(n)
		}
	}
}

// Link applies a link change: objects on a link that is down are added when it comes up. It reports
// whether the link had objects. The kernel deletes nexthop objects on a link without carrier, and
// all routes on a link that is administratively down or deleted, mostly without events.
func (r *Reconciler) Link(c LinkChange) (used bool) {
	l := c.Link
	if c.Deleted {
		l.Admin, l.Up = false, false
	}
	used = r.store.knows(func(o Object) bool { return linkOf(o) == l.Name })
	before, down := r.down[l.Name]
	switch {
	case l.Up:
		delete(r.down, l.Name)
		r.release(dependency{link: l.Name})
		return used
	case c.Deleted && !used && r.waiting[dependency{link: l.Name}] == nil:
		delete(r.down, l.Name)
		return false
	}
	r.down[l.Name] = l
	if l.Admin && down && !before.Admin {
		r.release(dependency{link: l.Name}) // routes need no carrier
	}
	if used && !(down && before.Admin == l.Admin) {
		r.loseLink(l)
	}
	return used
}

// loseLink records as lost the objects that the kernel deletes when a link is not up.
func (r *Reconciler) loseLink(l Link) {
	nexthops := map[uint32]bool{}
	for i, known := range r.store.known {
		if n, ok := unaltered(r.store.objects.Value(uint32(i))).(Nexthop); ok && known > 0 && n.Link == l.Name {
			nexthops[n.ID] = true
		}
	}
	r.addGroups(nexthops)
	r.affect(r.lost, func(o Object) effect {
		switch o := o.(type) {
		case Nexthop:
			if nexthops[o.ID] {
				return isLost
			}
		case NexthopGroup:
			if nexthops[o.ID] {
				return isLost
			}
		case Route:
			if nexthops[o.NexthopID] || o.Link == l.Name && !l.Admin {
				return isLost
			}
		}
		return unaffected
	})
}

// addGroups adds to the IDs of nexthop objects that are lost those of the groups with such a
// member. The kernel deletes a group, with its routes, with the last member; one that has others
// still is not as desired, and is replaced.
func (r *Reconciler) addGroups(ids map[uint32]bool) {
	for i, known := range r.store.known {
		if g, ok := unaltered(r.store.objects.Value(uint32(i))).(NexthopGroup); ok && known > 0 && g.has(ids) {
			ids[g.ID] = true
		}
	}
}

// linkOf returns the link of an object, or an empty string if it has none.
func linkOf(o Object) string {
	switch o := unaltered(o).(type) {
	case Nexthop:
		return o.Link
	case Route:
		return o.Link
	case Address:
		return o.Link
	}
	return ""
}

// An effect is what happens to an object of the kernel because of a change of another one.
type effect uint8

// affect records the effect of a change on the kernel's objects, which it determines once for all
// objects that differ only in their key; gone records that one is deleted. If it affects none, its
// cost does not depend on the number of objects.
func (r *Reconciler) affect(gone func(hashtable.Ref), on func(unaltered Object) effect) {
	effects := make([]effect, len(r.store.known))
	any := false
	for i, known := range r.store.known {
		if known > 0 {
			effects[i] = on(unaltered(r.store.objects.Value(uint32(i))))
			any = any || effects[i] != unaffected
		}
	}
	if !any {
		return
	}
	var nexthops []hashtable.Ref // last, when the routes are known to be lost
	for n, e := range r.store.all() {
		switch {
		case int(e.have) >= len(effects) || effects[e.have] == unaffected:
		case r.store.class(n) == ClassNexthop:
			nexthops = append(nexthops, n)
		case effects[e.have] == isLost:
			gone(n)
		default:
			r.setHave(n, Altered{unaltered(r.store.object(n, e.have))})
		}
	}
	for _, n := range nexthops {
		gone(n)
	}
}

// lost records that the kernel has deleted an object.
func (r *Reconciler) lost(n hashtable.Ref) {
	r.change(n, func(e *entry) {
		e.have, e.changed = 0, r.generation
		e.set(double|kept|doubtful, false)
	})
}

// doubt records that an object was deleted or replaced, unless that was a change of ours of before
// the last one, whose event is late. What is desired is added again then, and what is not is
// deleted again.
func (r *Reconciler) doubt(n hashtable.Ref) {
	if r.store.Value(n).is(kept) {
		r.lost(n)
		return
	}
	r.change(n, func(e *entry) {
		e.changed = r.generation
		e.set(doubtful, true)
	})
}

const (
	unaffected effect = iota
	isLost
	isAltered
)
