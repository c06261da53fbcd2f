package route

import (
	"errors"
	"log/slog"
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

// try is change for an entry that was taken from a queue; it does not queue it.
func (r *Reconciler) try(n hashtable.Ref, f func(*entry)) {
	e := r.store.Value(n)
	e.set(queued, true)
	r.change(n, f)
	e.set(queued, false)
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

// Hasten has the next flush apply an object before others of its kind that are not applied yet.
func (r *Reconciler) Hasten(k Key) {
	if n, e, ok := r.store.find(k); ok && e.is(queued) && !e.is(waiting) {
		q := &r.queues[r.lane(n)]
		q.hastened = append(q.hastened, n)
	}
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
