package route

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/tabane/tabane/internal/base/hashtable"
)

// A Kernel is the interface through which a Reconciler configures the kernel; Conn implements it.
// Apply returns an error for each op. DumpEach calls each for parts of the owner's objects, whose
// memory it may use again; unless consistent, objects may have been left out or returned twice.
type Kernel interface {
	Apply(ops []Op) []error
	DumpEach(p Protocol, each func([]Object)) (consistent bool, err error)
}

// A Reconciler compares the desired objects of an owner with those in the kernel, and applies the
// difference. The cost of a change does not depend on the number of objects; a route takes about 40
// bytes. It is not safe for concurrent use.
//
// After a restart a daemon takes over the objects of its previous instance: it calls Resync, Set
// for the desired objects, and Flush. Once all desired objects are known, for example after the
// End-of-RIB of all sessions, it calls Sweep and Flush again.
type Reconciler struct {
	kernel   Kernel
	protocol Protocol
	log      *slog.Logger

	store   store
	errs    map[hashtable.Ref]error // of the last attempts that failed
	queues  [lanes]queue            // all dirty entries, and some that are clean again
	pending int                     // the number of dirty entries
	counts  [classes]Count
	swept   bool
	// generation is that of the last resync. It wraps around from 255 to 1.
	generation uint8
	// comparing: entries without objects remain, because they say when they changed.
	comparing bool
	applied   uint64 // operations
	more      bool   // as the last FlushPart reported
	version   uint64
	ops       []Op // space for apply, used again
	// down are the links that are not up, and waiting the entries that cannot be added yet, with
	// some that no longer wait.
	down    map[string]Link
	waiting map[dependency][]hashtable.Ref
	// suspended are the IDs of nexthop objects that Suspend deleted.
	suspended map[uint32]bool
}

// A dependency is a precondition for adding an object: a link that is up, or a nexthop object. The
// zero dependency is that all other entries were tried after one was refused.
type dependency struct {
	link    string
	nexthop uint32
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

// A queue is a list of entries whose head is taken off.
type queue struct {
	list []hashtable.Ref
	head int
}

func (q *queue) len() int { return len(q.list) - q.head }

func (q *queue) push(n hashtable.Ref) {
	if q.head > len(q.list)/2 {
		q.list = q.list[:copy(q.list, q.list[q.head:])]
		q.head = 0
	}
	q.list = append(q.list, n)
}

func (q *queue) pop() hashtable.Ref {
	n := q.list[q.head]
	if q.head++; q.head == len(q.list) {
		*q = queue{} // a full table leaves a long one
	}
	return n
}

// Count is the number of objects of a class that are desired, that the kernel is known to have, and
// that failed in their last attempt.
type Count struct {
	Want, Have, Errors int
}

func (c *Count) add(e *entry, n int) {
	if e.want != 0 {
		c.Want += n
	}
	if e.have != 0 {
		c.Have += n
	}
	if e.is(refused) {
		c.Errors += n
	}
}

// NewReconciler returns a Reconciler without desired or known kernel objects; call Resync to read
// the kernel's.
func NewReconciler(k Kernel, p Protocol, log *slog.Logger) *Reconciler {
	return &Reconciler{kernel: k, protocol: p, log: log, errs: map[hashtable.Ref]error{},
		down: map[string]Link{}, waiting: map[dependency][]hashtable.Ref{}, suspended: map[uint32]bool{}}
}

// change applies f to an entry and updates the counts, the queues and the store. Entries are not
// changed in any other way, except for the flags of queues. It does not count a use of the objects
// for the caller.
func (r *Reconciler) change(n hashtable.Ref, f func(*entry)) {
	e := r.store.Value(n)
	count, dirty, blocked := &r.counts[r.store.class(n)], e.dirty(), r.blocks(n)
	count.add(e, -1)
	want, have := e.want, e.have
	f(e)
	r.version++
	r.store.know(have, e.have)
	r.store.replace(want, e.want)
	r.store.replace(have, e.have)
	if blocked && !r.blocks(n) {
		r.release(dependency{nexthop: r.store.key(n).a})
	}
	if !e.dirty() {
		r.fail(n, nil)
	}
	count.add(e, 1)
	switch now := e.dirty(); {
	case now && !dirty:
		r.pending++
	case !now && dirty:
		r.pending--
	}
	if e.dirty() && (!e.is(queued) || e.is(waiting)) {
		r.enqueue(n)
	}
	r.tidy(n)
}

// tidy removes an entry without objects, unless a comparison is to find it.
func (r *Reconciler) tidy(n hashtable.Ref) {
	if e := r.store.Value(n); e.want == 0 && e.have == 0 && !r.comparing {
		r.store.remove(n)
	}
}

// fail records the error of an entry's last attempt. The caller updates the counts.
func (r *Reconciler) fail(n hashtable.Ref, err error) {
	e := r.store.Value(n)
	if err != nil {
		r.errs[n] = err
	} else if e.is(refused) {
		delete(r.errs, n)
	}
	e.set(refused, err != nil)
}

// blocks reports whether routes through a nexthop object have to wait for it: it is to be added. If
// another program has its ID, they are tried with that.
func (r *Reconciler) blocks(n hashtable.Ref) bool {
	e := r.store.Value(n)
	return e.want != 0 && !e.there() && r.store.class(n) == ClassNexthop && !(e.is(refused) && errors.Is(r.errs[n], ErrForeign))
}

func (r *Reconciler) enqueue(n hashtable.Ref) {
	e := r.store.Value(n)
	e.set(queued, true)
	e.set(waiting, false)
	r.queues[r.lane(n)].push(n)
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

// try is change for an entry that was taken from a queue; it does not queue it.
func (r *Reconciler) try(n hashtable.Ref, f func(*entry)) {
	e := r.store.Value(n)
	e.set(queued, true)
	r.change(n, f)
	e.set(queued, false)
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

const (
	unaffected effect = iota
	isLost
	isAltered
)

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

// setHave records that the kernel's object has changed.
func (r *Reconciler) setHave(n hashtable.Ref, o Object) {
	number := r.store.number(o)
	r.change(n, func(e *entry) {
		e.have, e.changed = number, r.generation
		e.set(doubtful, false)
	})
	r.store.objects.Release(number)
}

// Set adds a desired object and replaces the previous one with its key. An invalid object fails in
// Flush.
func (r *Reconciler) Set(o Object) {
	o = normal(o)
	k := o.Key()
	r.want(k, r.store.number(o))
	r.endSuspension(k)
}

// SetRoute is Set for a route, without an allocation.
func (r *Reconciler) SetRoute(o Route) {
	o = o.normal()
	r.want(o.Key(), r.store.route(o))
}

// want makes an object the desired one of a key, and ends the use of it that the caller counted.
func (r *Reconciler) want(k Key, number uint32) {
	if n, e := r.store.add(k); e.want != number {
		r.change(n, func(e *entry) {
			e.want = number
			e.set(kept, false)
		})
	}
	r.store.objects.Release(number)
}

// Delete removes the object with the key from the desired state.
func (r *Reconciler) Delete(k Key) {
	if n, _, ok := r.store.find(k); ok {
		r.unwant(n)
	}
	r.endSuspension(k)
}

// Suspend deletes a nexthop object from the kernel at once, whatever else is to be flushed. The
// kernel deletes all routes through it in the same operation, much faster than one after the other.
// They are still desired, and added again once the object was Set again. A deletion that fails is
// tried again in Flush.
func (r *Reconciler) Suspend(k Key) {
	n, e, ok := r.store.find(k)
	if !ok {
		return
	}
	r.suspended[k.a] = true
	r.unwant(n)
	if e.have == 0 {
		return
	}
	if failed := r.apply([]hashtable.Ref{n}); len(failed) > 0 {
		r.requeue(n)
		return
	}
	r.lose([]Key{k}, r.lost)
}

// endSuspension has the routes that wait for a suspended nexthop object depend on it as others do.
func (r *Reconciler) endSuspension(k Key) {
	if k.class == ClassNexthop && r.suspended[k.a] {
		delete(r.suspended, k.a)
		r.release(dependency{nexthop: k.a})
	}
}

func (r *Reconciler) unwant(n hashtable.Ref) {
	r.change(n, func(e *entry) {
		e.want = 0
		e.set(kept, false)
	})
}

// Changed applies a change made by another program, as reported by a Watcher. The next Flush
// restores a desired object that was deleted or replaced, and the routes that the kernel deleted
// with a nexthop object. It reports whether the change concerns a known object; if so, other
// objects may have changed too.
func (r *Reconciler) Changed(c ObjectChange) bool {
	o := c.Object.Normal()
	ours := c.Protocol == r.protocol
	n, e, found := r.store.find(o.Key())
	switch {
	case !found || e.have == 0 || e.is(double):
		return ours && !c.Deleted
	case o.Key().class == ClassAddress && !c.Deleted:
		return false // the kernel also reports changes of an address's state
	case c.Deleted && (!ours || r.store.object(n, e.have) != o):
		return ours // the object has been replaced since
	case !c.Deleted && ours:
		if r.store.object(n, e.have) == o {
			return false
		}
		r.doubt(n)
		return true
	}
	gone := r.lost
	if c.Deleted {
		gone = r.doubt
	}
	gone(n)
	r.lose([]Key{o.Key()}, gone)
	return true
}

// Clear removes all desired objects: the next Flush deletes all objects of the owner, including
// those found by Resync.
func (r *Reconciler) Clear() {
	r.swept = true
	for n := range r.store.all() {
		r.unwant(n)
	}
}

// Inherited reports whether a Resync has found objects of a previous instance that are not desired,
// and that no Sweep has marked as stale.
func (r *Reconciler) Inherited() bool {
	for _, e := range r.store.all() {
		if e.is(kept) {
			return true
		}
	}
	return false
}

// Sweep marks owned objects that are not desired as stale, both those found so far and those that a
// later Resync finds; the next Flush deletes them. Before Sweep they are kept, so that a restart
// drops no packets.
func (r *Reconciler) Sweep() {
	if r.swept {
		return // nothing is kept since the first one
	}
	r.swept = true
	stale := 0
	for n, e := range r.store.all() {
		if e.is(kept) {
			stale++
			r.change(n, func(e *entry) { e.set(kept, false) })
		}
	}
	if stale > 0 {
		r.log.Info("sweep stale kernel objects", "protocol", r.protocol, "objects", stale)
	}
}

// Resync dumps the kernel's objects. Those that differ from the desired ones become dirty.
func (r *Reconciler) Resync() error {
	c := r.Compare()
	consistent, err := r.kernel.DumpEach(r.protocol, c.Add)
	if err != nil {
		return fmt.Errorf("resync: %w", err)
	}
	c.End(consistent)
	return nil
}

// A Comparison is a Resync in steps, so that a large dump does not block the caller: Compare before
// the dump, Add for each part of it, then End, or EndPart until there is no more. Objects that
// changed after Compare are ignored. Starting another Comparison cancels it.
//
// The kernel continues a dump of a table that has changed by the number of routes returned so far,
// so that it may leave out others. A route that was not in the dump is therefore recorded as absent
// only if nothing changed meanwhile, or if the previous comparison did not find it either.
type Comparison struct {
	r          *Reconciler
	generation uint8
	before     int
	applied    uint64
	// ending: EndPart was called, complete is what it found, and next is the entry to visit.
	ending, complete bool
	next             hashtable.Ref
}

// Compare starts a Comparison.
func (r *Reconciler) Compare() *Comparison {
	if r.generation++; r.generation == 0 {
		r.generation = 1
		for _, e := range r.store.all() {
			e.found, e.changed = 0, 0
		}
	}
	r.comparing = true
	return &Comparison{r: r, generation: r.generation, before: r.pending, applied: r.applied}
}

// Add compares objects of the dump.
func (c *Comparison) Add(objects []Object) {
	r := c.r
	if c.generation != r.generation {
		return
	}
	for _, o := range objects {
		o = normal(o)
		n, e := r.store.add(o.Key())
		if e.changed == c.generation {
			continue
		}
		number := r.store.number(o)
		second := e.found == c.generation && e.have != number
		if second {
			// Another program can add an object with the same key.
			r.store.objects.Release(number)
			number = r.store.number(Altered{unaltered(r.store.object(n, e.have))})
		}
		r.change(n, func(e *entry) {
			if !second && e.want != number {
				e.set(kept, e.is(kept) || e.want == 0 && e.have == 0 && !r.swept)
			}
			e.set(double, second || e.found == c.generation && e.is(double))
			e.set(missed|doubtful, false)
			e.have, e.found = number, c.generation
		})
		r.store.objects.Release(number)
	}
}

// End completes the comparison: objects that were not in the dump are recorded as absent from the
// kernel. Consistent is what Kernel.DumpEach returned.
func (c *Comparison) End(consistent bool) {
	for c.EndPart(consistent, math.MaxInt) {
	}
}

// EndPart is End for at most so many entries, the first of those that were not visited before. It
// reports whether there are more.
func (c *Comparison) EndPart(consistent bool, most int) (more bool) {
	r := c.r
	if c.generation != r.generation {
		return false
	}
	if !c.ending {
		c.ending, c.complete = true, consistent && r.applied == c.applied
		r.comparing = false // entries need not say any longer when they changed
	}
	for ; most > 0; most-- {
		n, ok := r.store.Next(c.next)
		if !ok {
			if r.pending > c.before {
				r.log.Info("kernel differs from what is wanted", "protocol", r.protocol, "objects", r.pending-c.before)
			}
			return false
		}
		c.next = n + 1
		e := r.store.Value(n)
		switch {
		case e.found == c.generation || e.changed == c.generation || e.have == 0:
			r.tidy(n)
		case r.store.class(n) == ClassRoute && !e.is(missed) && !c.complete:
			e.set(missed, true)
		default:
			r.change(n, func(e *entry) {
				e.have = 0
				e.set(double|kept|missed|doubtful, false)
			})
		}
	}
	return true
}

// Settled reports whether the kernel is known to match the desired state of the key, which may be
// no object.
func (r *Reconciler) Settled(k Key) bool {
	if r.pending == 0 {
		return true
	}
	_, e, ok := r.store.find(k)
	return !ok || !e.dirty()
}

// Outdated reports whether the kernel is known to have an object with the key that is not desired,
// or not any longer as it is.
func (r *Reconciler) Outdated(k Key) bool {
	_, e, ok := r.store.find(k)
	return ok && e.have != 0 && e.dirty()
}

// Version returns a number that changes whenever the result of Settled may.
func (r *Reconciler) Version() uint64 { return r.version }

// Pending returns the number of objects that the next Flush has to change.
func (r *Reconciler) Pending() int { return r.pending }

// Applied returns the number of operations on the kernel so far.
func (r *Reconciler) Applied() uint64 { return r.applied }

// Counts returns the state of each class.
func (r *Reconciler) Counts() map[Class]Count {
	m := make(map[Class]Count, classes)
	for c := range classes {
		m[c] = r.counts[c]
	}
	return m
}

// Want returns all desired objects, ordered by class, table, link and prefix.
func (r *Reconciler) Want() []Object {
	var all []Object
	for n, e := range r.store.all() {
		if e.want != 0 {
			all = append(all, r.store.object(n, e.want))
		}
	}
	slices.SortFunc(all, func(a, b Object) int { return a.Key().compare(b.Key()) })
	return all
}

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
