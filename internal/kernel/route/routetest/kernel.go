// Package routetest provides an in-memory kernel for tests of packages that use package route. It
// models only what a reconciler depends on: keys, owners, deletion of dependent objects, and
// failures. It forwards no packets, but Lookup returns the route of a packet.
package routetest

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tabane/tabane/internal/kernel/route"
)

// An Owned is an object in the kernel and its owner.
type Owned struct {
	Protocol route.Protocol
	Object   route.Object
}

// Kernel implements route.Kernel. The zero value is an empty kernel in which every link exists.
type Kernel struct {
	// Fault, if not nil, is called before each operation, which fails with the error that Fault
	// returns.
	Fault func(route.Op) error
	// Log contains all operations in order, including failed ones.
	Log []route.Op

	slots map[route.Key]Owned
}

// Apply implements route.Kernel.
func (k *Kernel) Apply(ops []route.Op) []error {
	errs := make([]error, len(ops))
	for i, op := range ops {
		k.Log = append(k.Log, op)
		if err := k.apply(op); err != nil {
			errs[i] = &route.OpError{Op: op, Err: err}
		}
	}
	return errs
}

func (k *Kernel) apply(op route.Op) error {
	if k.Fault != nil {
		if err := k.Fault(op); err != nil {
			return err
		}
	}
	o := op.Object.Normal()
	key := o.Key()
	there, occupied := k.slots[key]
	if op.Delete {
		// As in the kernel, only routes and rules are matched by owner.
		strict := key.Class() == route.ClassRoute || key.Class() == route.ClassRule
		if occupied && (!strict || there.Protocol == op.Protocol) {
			k.Remove(key)
		}
		return nil
	}
	if err := o.Check(); err != nil {
		return err
	}
	switch o := o.(type) {
	case route.Route:
		if err := k.needs(o); err != nil {
			return err
		}
	case route.NexthopGroup:
		for _, m := range o.List() {
			if _, ok := plain(k.slots[route.Nexthop{ID: m.ID}.Key()].Object).(route.Nexthop); !ok {
				return fmt.Errorf("%w (Invalid nexthop id)", unix.EINVAL)
			}
		}
	}
	if occupied && op.Old == nil && there.Protocol != op.Protocol {
		return route.ErrForeign
	}
	k.Put(op.Protocol, o)
	return nil
}

// needs checks that the nexthop object and the preferred source of a route exist.
func (k *Kernel) needs(r route.Route) error {
	if r.NexthopID != 0 {
		if _, ok := k.slots[route.Nexthop{ID: r.NexthopID}.Key()]; !ok {
			return fmt.Errorf("%w (Nexthop id does not exist)", unix.EINVAL)
		}
	}
	if !r.PrefSrc.IsValid() {
		return nil
	}
	for _, o := range k.slots {
		if a, ok := plain(o.Object).(route.Address); ok && a.Prefix.Addr() == r.PrefSrc {
			return nil
		}
	}
	return fmt.Errorf("%w (Invalid source address)", unix.EINVAL)
}

// DumpEach implements route.Kernel.
func (k *Kernel) DumpEach(p route.Protocol, each func([]route.Object)) (consistent bool, err error) {
	each(k.Dump(p))
	return true, nil
}

// Dump returns all objects of the owner, in the order of Class.
func (k *Kernel) Dump(p route.Protocol) (all []route.Object) {
	for _, o := range k.slots {
		if o.Protocol == p {
			all = append(all, o.Object)
		}
	}
	slices.SortFunc(all, func(a, b route.Object) int { return int(a.Key().Class()) - int(b.Key().Class()) })
	return all
}

// Put adds an object as another process would, and replaces the one with its key.
func (k *Kernel) Put(p route.Protocol, o route.Object) {
	if k.slots == nil {
		k.slots = map[route.Key]Owned{}
	}
	o = o.Normal()
	k.slots[o.Key()] = Owned{p, o}
}

// Remove deletes the object with the key, regardless of its owner, as another process would. The
// routes of a nexthop object are deleted with it, and so is its membership in groups, and those of
// which an IPv4 address is the preferred source; an IPv6 address is removed as preferred source.
func (k *Kernel) Remove(key route.Key) {
	gone := plain(k.slots[key].Object)
	delete(k.slots, key)
	for other, o := range k.slots {
		if g, ok := plain(o.Object).(route.NexthopGroup); ok {
			if n, ok := gone.(route.Nexthop); ok {
				k.leave(o, g, n.ID)
			}
			continue
		}
		r, ok := plain(o.Object).(route.Route)
		if !ok {
			continue
		}
		switch gone := gone.(type) {
		case route.Nexthop:
			if r.NexthopID == gone.ID {
				delete(k.slots, other)
			}
		case route.NexthopGroup:
			if r.NexthopID == gone.ID {
				delete(k.slots, other)
			}
		case route.Address:
			switch {
			case r.PrefSrc != gone.Prefix.Addr():
			case r.PrefSrc.Is4():
				delete(k.slots, other)
			default:
				r.PrefSrc = route.Route{}.PrefSrc
				k.slots[other] = Owned{o.Protocol, r}
			}
		}
	}
}

// leave takes a member from a group, and deletes the group with the last one.
func (k *Kernel) leave(owned Owned, g route.NexthopGroup, member uint32) {
	list := slices.DeleteFunc(g.List(), func(m route.GroupMember) bool { return m.ID == member })
	switch {
	case len(list) == 0:
		k.Remove(g.Key())
	case len(list) < len(g.List()):
		g.Members = route.JoinMembers(list)
		k.slots[g.Key()] = Owned{owned.Protocol, g}
	}
}

func plain(o route.Object) route.Object {
	if a, ok := o.(route.Altered); ok {
		return a.Object
	}
	return o
}

// All returns a copy of everything in the kernel.
func (k *Kernel) All() map[route.Key]Owned { return maps.Clone(k.slots) }
