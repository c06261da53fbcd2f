package route

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/base/hashtable"
)

// A FlushError reports the objects that failed in a Flush. It wraps the errors of the first few.
type FlushError struct {
	Failed int // objects that stay dirty
	Errs   []error
}

// flushErrors is the maximum number of errors in a FlushError.
const flushErrors = 3

func (e *FlushError) Error() string {
	if e.Failed == 1 {
		return e.Errs[0].Error()
	}
	s := fmt.Sprintf("%d kernel objects failed: %v", e.Failed, e.Errs[0])
	for _, err := range e.Errs[1:] {
		s += "; " + err.Error()
	}
	if n := e.Failed - len(e.Errs); n > 0 {
		s += fmt.Sprintf("; and %d more", n)
	}
	return s
}

// Unwrap returns the errors of the first few objects.
func (e *FlushError) Unwrap() []error { return e.Errs }

// Flush applies dirty entries to the kernel: it adds and replaces nexthops, routes (unreachable and
// blackhole ones first), rules and addresses, then deletes addresses, rules, routes and nexthops,
// and last the rules that make packets unreachable. Failed entries stay dirty for the next Flush.
// Failed additions are retried once if others succeeded, because an object may depend on another.
// The error is a *FlushError.
func (r *Reconciler) Flush() error {
	_, err := r.FlushPart(math.MaxInt)
	return err
}

// FlushPart is Flush with at most so many unicast routes, the earliest dirty ones. It reports
// whether there are more that were not tried yet; until then no nexthop object and no unreachable
// route or rule is deleted.
func (r *Reconciler) FlushPart(routes int) (more bool, err error) {
	if !r.more || routes == math.MaxInt {
		r.release(dependency{})
	}
	defer func() { r.more = more }()
	var add, del [lanes][]hashtable.Ref
	var failed []hashtable.Ref
	progress := false
	for l := range lanes {
		limit := math.MaxInt
		if l == laneRoute {
			limit = routes
		}
		r.take(l, limit, &add[l], &del[l]) // routes with those whose nexthop object exists now
		more = more || r.queues[l].len() > 0
		// With two objects under one key a replacement could replace either, so one is
		// deleted first.
		for _, n := range add[l] {
			if r.store.Value(n).is(double) {
				r.separate(n)
			}
		}
		list := r.ready(add[l])
		f := r.apply(list)
		progress = progress || len(f) < len(list)
		failed = append(failed, f...)
	}
	if progress {
		failed = r.apply(r.ready(failed))
	}
	guards := r.unreachable(&del[laneRule])
	for _, l := range []lane{laneAddress, laneRule, laneRoute, laneGuard, laneGroup, laneNexthop} {
		// Some may have been deleted with an address.
		list := slices.DeleteFunc(del[l], func(n hashtable.Ref) bool { return r.store.Value(n).have == 0 })
		del[l] = list
		switch {
		case more && (l == laneGuard || l == laneGroup || l == laneNexthop):
			continue
		case !more && l == laneRoute:
			list = r.withoutDying(list, slices.Concat(del[laneGroup], del[laneNexthop]))
		}
		keys := make([]Key, len(list))
		for i, n := range list {
			if takes(l) {
				keys[i] = r.store.key(n)
			}
		}
		f := r.apply(list)
		failed = append(failed, f...)
		if takes(l) {
			r.lose(slices.DeleteFunc(keys, func(k Key) bool { return r.has(k) }), r.lost)
		}
	}
	if more {
		del[laneRule] = guards
	} else {
		failed = append(failed, r.apply(guards)...)
	}
	for _, l := range []lane{laneRoute, laneGuard, laneRule, laneGroup, laneNexthop} {
		for _, n := range del[l] {
			r.requeue(n) // those that were left out, or whose nexthop could not be deleted
		}
	}
	// A deletion that failed may have been done with an address or a nexthop object.
	failed = slices.DeleteFunc(failed, func(n hashtable.Ref) bool { return !r.store.Value(n).is(refused) })
	for _, n := range failed {
		r.postpone(n, dependency{})
	}
	if len(failed) == 0 {
		return more, nil
	}
	fe := &FlushError{Failed: len(failed)}
	for _, n := range failed[:min(len(failed), flushErrors)] {
		fe.Errs = append(fe.Errs, r.errs[n])
	}
	return more, fe
}

// takes reports whether the kernel deletes other objects with those of a lane.
func takes(l lane) bool { return l == laneAddress || l == laneGroup || l == laneNexthop }

// unreachable takes the rules that make packets unreachable from a list of rules to delete: as long
// as routes are there, no packet may follow one that a rule kept it from.
func (r *Reconciler) unreachable(rules *[]hashtable.Ref) (taken []hashtable.Ref) {
	*rules = slices.DeleteFunc(*rules, func(n hashtable.Ref) bool {
		rule, ok := r.store.object(n, r.store.Value(n).have).(Rule)
		if ok && rule.Unreachable {
			taken = append(taken, n)
			return true
		}
		return false
	})
	return taken
}

// has reports whether the kernel is known to have an object with the key.
func (r *Reconciler) has(k Key) bool {
	_, e, ok := r.store.find(k)
	return ok && e.have != 0
}

// take moves at most limit entries of a queue to add and del.
func (r *Reconciler) take(l lane, limit int, add, del *[]hashtable.Ref) {
	q := &r.queues[l]
	for q.len() > 0 && len(*add)+len(*del) < limit {
		n := q.pop()
		e := r.store.Value(n)
		if !e.is(queued) || e.is(waiting) || r.store.class(n) != l.class() {
			continue // taken already, or the slot of an entry that was removed
		}
		e.set(queued, false)
		switch {
		case !e.dirty():
		case e.want != 0:
			*add = append(*add, n)
		default:
			*del = append(*del, n)
		}
	}
}

// ready returns the entries that can be added now; the others wait for their dependencies.
func (r *Reconciler) ready(list []hashtable.Ref) []hashtable.Ref {
	var (
		last    uint32 // successive routes mostly have the same next hop
		on      dependency
		blocked bool
	)
	rest := list[:0]
	for _, n := range list {
		if want := r.store.Value(n).want; want != last {
			on, blocked = r.blocked(r.store.objects.Value(want))
			last = want
		}
		if blocked {
			r.wait(n, on)
			continue
		}
		rest = append(rest, n)
	}
	return rest
}

// maxApplyBatch is the number of operations that are passed to the kernel together, so that they
// need little memory.
const maxApplyBatch = 2048

// apply applies entries to the kernel and returns those that failed.
func (r *Reconciler) apply(list []hashtable.Ref) (failed []hashtable.Ref) {
	ops := r.ops
	defer func() {
		clear(ops[:cap(ops)])
		r.ops = ops[:0]
	}()
	for part := range slices.Chunk(list, maxApplyBatch) {
		ops = slices.Grow(ops[:0], len(part))
		for _, n := range part {
			e := r.store.Value(n)
			if e.want == 0 {
				ops = append(ops, Op{Protocol: r.protocol, Delete: true, Object: r.store.object(n, e.have)})
			} else {
				op := Op{Protocol: r.protocol, Object: r.store.object(n, e.want), Old: r.store.object(n, e.have)}
				if e.is(doubtful) && r.store.class(n) == ClassRule {
					op.Old = nil // a rule is not replaced in place
				}
				ops = append(ops, op)
			}
		}
		r.applied += uint64(len(ops))
		errs := r.kernel.Apply(ops)
		if len(errs) != len(ops) {
			panic(fmt.Sprintf("BUG: kernel returned %d errors for %d ops", len(errs), len(ops)))
		}
		for i, n := range part {
			r.try(n, func(e *entry) {
				e.changed = r.generation
				if r.fail(n, errs[i]); errs[i] == nil {
					e.have = e.want
					e.set(doubtful, false)
				}
			})
			if errs[i] != nil {
				failed = append(failed, n)
			}
		}
	}
	return failed
}

// separate deletes one of several objects with the same key. An error is ignored here, because the
// replacement of the object fails as well.
func (r *Reconciler) separate(n hashtable.Ref) {
	e := r.store.Value(n)
	op := Op{Protocol: r.protocol, Delete: true, Object: r.store.object(n, e.have)}
	if errs := r.kernel.Apply([]Op{op}); len(errs) == 1 && errs[0] == nil {
		r.try(n, func(e *entry) {
			e.have, e.changed = 0, r.generation
			e.set(double, false)
		})
	}
}

// lose records the side effects in the kernel of deleting nexthop objects or addresses: a nexthop
// object is deleted with its routes, an IPv6 address is removed as preferred source from routes
// (fib6_nh and rt6_remove_prefsrc in the kernel), an IPv4 address is deleted with these
// (fib_sync_down_addr).
func (r *Reconciler) lose(keys []Key, gone func(hashtable.Ref)) {
	nexthops, addresses := map[uint32]bool{}, map[netip.Addr]bool{}
	for _, k := range keys {
		switch k.class {
		case ClassNexthop:
			nexthops[k.a] = true
		case ClassAddress:
			addresses[k.prefix.Addr()] = true
		default:
		}
	}
	if len(nexthops)+len(addresses) == 0 {
		return
	}
	deleted := maps.Clone(nexthops)
	r.addGroups(nexthops)
	r.affect(gone, func(o Object) effect {
		if g, ok := o.(NexthopGroup); ok && nexthops[g.ID] && !deleted[g.ID] {
			return isLost
		}
		route, ok := o.(Route)
		switch {
		case !ok:
		case nexthops[route.NexthopID], addresses[route.PrefSrc] && route.PrefSrc.Is4():
			return isLost
		case addresses[route.PrefSrc]:
			return isAltered
		}
		return unaffected
	})
}

func (r *Reconciler) requeue(n hashtable.Ref) {
	if e := r.store.Value(n); r.store.Has(n) && !e.is(queued) && e.dirty() {
		r.enqueue(n)
	}
}

// withoutDying returns the routes without those that the kernel deletes with their nexthop object:
// one deletion instead of a hundred thousand.
func (r *Reconciler) withoutDying(routes, nexthops []hashtable.Ref) []hashtable.Ref {
	if len(nexthops) == 0 {
		return routes
	}
	dying := map[uint32]bool{}
	for _, n := range nexthops {
		dying[r.store.key(n).a] = true
	}
	var rest []hashtable.Ref
	for _, n := range routes {
		if have, ok := unaltered(r.store.objects.Value(r.store.Value(n).have)).(Route); !ok || !dying[have.NexthopID] || r.store.Value(n).is(doubtful) {
			rest = append(rest, n)
		}
	}
	return rest
}

func unaltered(o Object) Object {
	if a, ok := o.(Altered); ok {
		return a.Object
	}
	return o
}

// A lane is a queue of entries that are added together; lanes are added in this order.
type lane uint8

const (
	laneNexthop lane = iota
	laneGroup
	// laneGuard has the unreachable and blackhole routes: while a table is in use, a lookup in it
	// must not continue with the next rule.
	laneGuard
	laneRoute
	laneRule
	laneAddress
	lanes
)

func (l lane) class() Class {
	return [lanes]Class{ClassNexthop, ClassNexthop, ClassRoute, ClassRoute, ClassRule, ClassAddress}[l]
}

// A queue is a list of entries whose head is taken off, after those that are hastened.
type queue struct {
	hastened []hashtable.Ref
	list     []hashtable.Ref
	head     int
}

func (q *queue) len() int { return len(q.hastened) + len(q.list) - q.head }

func (q *queue) push(n hashtable.Ref) {
	if q.head > len(q.list)/2 {
		q.list = q.list[:copy(q.list, q.list[q.head:])]
		q.head = 0
	}
	q.list = append(q.list, n)
}

func (q *queue) pop() hashtable.Ref {
	if last := len(q.hastened) - 1; last >= 0 {
		n := q.hastened[last]
		q.hastened = q.hastened[:last]
		return n
	}
	n := q.list[q.head]
	if q.head++; q.head == len(q.list) {
		*q = queue{} // a full table leaves a long one
	}
	return n
}

func (r *Reconciler) lane(n hashtable.Ref) lane {
	e := r.store.Value(n)
	switch o := unaltered(r.store.objects.Value(cmp.Or(e.want, e.have))).(type) {
	case Nexthop:
		return laneNexthop
	case NexthopGroup:
		return laneGroup
	case Rule:
		return laneRule
	case Address:
		return laneAddress
	case Route:
		if o.Kind != Unicast {
			return laneGuard
		}
	}
	return laneRoute
}
