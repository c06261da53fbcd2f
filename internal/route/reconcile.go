package route

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
)

// A Kernel is what a Reconciler configures; a Conn is one. Apply returns an error for each op.
type Kernel interface {
	Apply(ops []Op) []error
	Dump(p Protocol) ([]Object, error)
}

// A Reconciler compares the desired objects of an owner with those in the kernel, and applies the
// difference. The cost of a change does not depend on the number of objects. It is not safe for
// concurrent use.
//
// After a restart a daemon takes over the objects of its previous instance: Resync, Set the desired
// objects, Flush; and once all of them are known, as after the End-of-RIB of all sessions, Sweep
// and Flush again.
type Reconciler struct {
	kernel   Kernel
	protocol Protocol
	log      *slog.Logger

	entries    map[Key]*entry
	queue      []*entry // all dirty entries, and some that are clean again
	pending    int      // the number of dirty entries
	counts     [classes]Count
	swept      bool
	prefSrcs   bool   // some route has or had a preferred source
	generation uint32 // of the last Resync
}

type entry struct {
	key        Key
	want, have Object // normal; nil: nothing
	err        error  // of the last attempt
	kept       bool   // found in the kernel, not desired yet, not stale yet
	double     bool   // the kernel has more than one under the key
	queued     bool
	generation uint32 // of the Resync that last found it
}

func (e *entry) dirty() bool { return e.want != e.have && !e.kept }

// Count is the number of objects of a class that are desired, that the kernel is known to have, and
// that failed in their last attempt.
type Count struct {
	Want, Have, Errors int
}

func (c *Count) add(e *entry, n int) {
	if e.want != nil {
		c.Want += n
	}
	if e.have != nil {
		c.Have += n
	}
	if e.err != nil {
		c.Errors += n
	}
}

// NewReconciler returns a Reconciler without desired objects, which does not know the kernel's yet.
func NewReconciler(k Kernel, p Protocol, log *slog.Logger) *Reconciler {
	return &Reconciler{kernel: k, protocol: p, log: log, entries: map[Key]*entry{}}
}

// change is the only way entries change: it keeps the counts, the queue and the map right.
func (r *Reconciler) change(e *entry, f func()) {
	count, dirty := &r.counts[e.key.class], e.dirty()
	count.add(e, -1)
	f()
	if !e.dirty() {
		e.err = nil
	}
	count.add(e, 1)
	switch now := e.dirty(); {
	case now && !dirty:
		r.pending++
	case !now && dirty:
		r.pending--
	}
	if e.dirty() && !e.queued {
		e.queued = true
		r.queue = append(r.queue, e)
	}
	if e.want == nil && e.have == nil {
		delete(r.entries, e.key)
	}
}

func (r *Reconciler) entry(k Key) *entry {
	e := r.entries[k]
	if e == nil {
		e = &entry{key: k}
		r.entries[k] = e
	}
	return e
}

// Set makes an object desired, in place of the one with its key. An invalid object fails at Flush.
func (r *Reconciler) Set(o Object) {
	o = o.Normal()
	e := r.entry(o.Key())
	if e.want == o {
		return
	}
	r.note(o)
	r.change(e, func() {
		e.want, e.kept = o, false
		if e.have == o {
			e.have = o // one copy instead of two equal ones
		}
	})
}

// Delete makes the object no longer desired.
func (r *Reconciler) Delete(k Key) {
	if e := r.entries[k]; e != nil {
		r.change(e, func() { e.want, e.kept = nil, false })
	}
}

// Deleted notes that the kernel no longer has an object, as a Watcher reports. The next Flush
// restores it if it is desired. An object that another one has replaced since, and the Reconciler's
// own deletions, change nothing.
func (r *Reconciler) Deleted(o Object) {
	o = o.Normal()
	if e := r.entries[o.Key()]; e != nil && e.have == o && !e.double {
		r.change(e, func() { e.have = nil })
	}
}

// Clear makes nothing desired: the next Flush removes everything that the owner has, found objects
// included.
func (r *Reconciler) Clear() {
	r.swept = true
	for _, e := range r.entries {
		r.change(e, func() { e.want, e.kept = nil, false })
	}
}

// Sweep makes owned objects that are not desired stale, those found so far and those that a Resync
// will find: the next Flush deletes them. Until Sweep they are kept, so that a restart drops no
// packet.
func (r *Reconciler) Sweep() {
	r.swept = true
	n := 0
	for _, e := range r.entries {
		if e.kept {
			n++
			r.change(e, func() { e.kept = false })
		}
	}
	if n > 0 {
		r.log.Info("sweep stale kernel objects", "protocol", r.protocol, "objects", n)
	}
}

// Resync dumps the kernel's objects. Those that differ from the desired ones become dirty.
func (r *Reconciler) Resync() error {
	objects, err := r.kernel.Dump(r.protocol)
	if err != nil {
		return fmt.Errorf("resync: %w", err)
	}
	before := r.pending
	r.generation++
	for _, o := range objects {
		o = o.Normal()
		e := r.entry(o.Key())
		r.change(e, func() {
			switch {
			case e.generation == r.generation:
				// A second object with the same key, as another program can add it.
				e.have, e.double = Altered{unaltered(e.have)}, true
			case e.want == o:
				e.have, e.double = e.want, false
			default:
				e.kept = e.kept || e.want == nil && e.have == nil && !r.swept
				e.have, e.double = o, false
			}
			e.generation = r.generation
			r.note(e.have)
		})
	}
	for _, e := range r.entries {
		if e.generation != r.generation && e.have != nil {
			r.change(e, func() { e.have, e.double, e.kept = nil, false, false })
		}
	}
	if r.pending > before {
		r.log.Info("kernel differs from what is wanted", "protocol", r.protocol, "objects", r.pending-before)
	}
	return nil
}

// Settled reports whether the kernel is known to have what is desired under the key, be it nothing.
func (r *Reconciler) Settled(k Key) bool {
	e := r.entries[k]
	return e == nil || !e.dirty()
}

// Pending returns the number of objects that the next Flush has to change.
func (r *Reconciler) Pending() int { return r.pending }

// Counts returns the state of each class.
func (r *Reconciler) Counts() map[Class]Count {
	m := make(map[Class]Count, classes)
	for c := range classes {
		m[c] = r.counts[c]
	}
	return m
}

// Want returns all wanted objects in the order of their classes, tables, links and prefixes.
func (r *Reconciler) Want() []Object {
	var all []Object
	for _, e := range r.entries {
		if e.want != nil {
			all = append(all, e.want)
		}
	}
	slices.SortFunc(all, func(a, b Object) int { return a.Key().compare(b.Key()) })
	return all
}

// A FlushError is the failure of some objects in a Flush. It wraps the errors of the first few.
type FlushError struct {
	Failed int // objects that stay dirty
	Errs   []error
}

// flushErrors is how many objects a FlushError names.
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

// Flush applies what is dirty to the kernel: it adds and replaces nexthops, routes (unreachable
// defaults before others), rules and addresses, then it deletes addresses, rules, routes and
// nexthops. What failed stays dirty for the next Flush; an addition that failed is tried a second
// time when others succeeded, because one may need another. The error is a *FlushError.
func (r *Reconciler) Flush() error {
	var add, del [classes][]*entry
	queue := r.queue
	r.queue = nil
	for _, e := range queue {
		e.queued = false
		switch {
		case !e.dirty():
		case e.want != nil:
			add[e.key.class] = append(add[e.key.class], e)
		default:
			del[e.key.class] = append(del[e.key.class], e)
		}
	}
	// Of two objects under one key a replacement would replace either; so one goes first.
	for _, e := range slices.Concat(add[:]...) {
		if e.double {
			r.separate(e)
		}
	}
	var failed []*entry
	progress := false
	for class := range classes {
		if class == ClassRoute {
			add[class] = guardsFirst(add[class])
		}
		f := r.apply(add[class])
		progress = progress || len(f) < len(add[class])
		failed = append(failed, f...)
	}
	if progress {
		failed = r.apply(failed)
	}
	for class := classes; class > 0; {
		class--
		list := del[class]
		if class == ClassRoute {
			list = withoutDying(list, del[ClassNexthop])
			list = guardsFirst(list)
			slices.Reverse(list)
		}
		failed = append(failed, r.apply(list)...)
		r.lose(class, list)
	}
	for _, e := range del[ClassRoute] {
		r.requeue(e) // those whose nexthop could not be deleted
	}
	for _, e := range failed {
		r.requeue(e)
	}
	if len(failed) == 0 {
		return nil
	}
	fe := &FlushError{Failed: len(failed)}
	for _, e := range failed[:min(len(failed), flushErrors)] {
		fe.Errs = append(fe.Errs, e.err)
	}
	return fe
}

// apply brings entries to the kernel and returns those that failed.
func (r *Reconciler) apply(list []*entry) (failed []*entry) {
	if len(list) == 0 {
		return nil
	}
	ops := make([]Op, len(list))
	for i, e := range list {
		ops[i] = Op{Protocol: r.protocol, Object: e.want, Old: e.have}
		if e.want == nil {
			ops[i] = Op{Protocol: r.protocol, Delete: true, Object: e.have}
		}
	}
	errs := r.kernel.Apply(ops)
	if len(errs) != len(ops) {
		panic(fmt.Sprintf("BUG: kernel returned %d errors for %d ops", len(errs), len(ops)))
	}
	for i, e := range list {
		r.change(e, func() {
			if e.err = errs[i]; e.err == nil {
				e.have = e.want
			}
		})
		if errs[i] != nil {
			failed = append(failed, e)
		}
	}
	return failed
}

// separate deletes one of several objects under a key. A failure shows again when the key's object
// is replaced.
func (r *Reconciler) separate(e *entry) {
	op := Op{Protocol: r.protocol, Delete: true, Object: e.have}
	if errs := r.kernel.Apply([]Op{op}); len(errs) == 1 && errs[0] == nil {
		r.change(e, func() { e.have, e.double = nil, false })
	}
}

// lose accounts for what the kernel drops by itself when the objects in list are deleted: with a
// nexthop object its routes, with an address its use as preferred source (fib6_nh and
// rt6_remove_prefsrc in the kernel).
func (r *Reconciler) lose(class Class, list []*entry) {
	nexthops, addresses := map[uint32]bool{}, map[netip.Addr]bool{}
	for _, e := range list {
		switch {
		case e.have != nil:
		case class == ClassNexthop:
			nexthops[e.key.a] = true
		case class == ClassAddress && r.prefSrcs:
			addresses[e.key.prefix.Addr()] = true
		}
	}
	if len(nexthops)+len(addresses) == 0 {
		return
	}
	for _, e := range r.entries {
		have, ok := unaltered(e.have).(Route)
		switch {
		case !ok:
		case nexthops[have.NexthopID]:
			r.change(e, func() { e.have, e.kept = nil, false })
		case addresses[have.PrefSrc]:
			r.change(e, func() { e.have = Altered{have} })
		}
	}
}

func (r *Reconciler) note(o Object) {
	if route, ok := unaltered(o).(Route); ok && route.PrefSrc.IsValid() {
		r.prefSrcs = true
	}
}

func (r *Reconciler) requeue(e *entry) {
	if !e.queued && e.dirty() {
		e.queued = true
		r.queue = append(r.queue, e)
	}
}

// withoutDying leaves out the routes that go with their nexthop: one deletion instead of a hundred
// thousand.
func withoutDying(routes, nexthops []*entry) []*entry {
	if len(nexthops) == 0 {
		return routes
	}
	dying := map[uint32]bool{}
	for _, e := range nexthops {
		dying[e.key.a] = true
	}
	var rest []*entry
	for _, e := range routes {
		if have, ok := unaltered(e.have).(Route); !ok || !dying[have.NexthopID] {
			rest = append(rest, e)
		}
	}
	return rest
}

// guardsFirst moves unreachable and blackhole defaults to the front: while a table is in use, a
// lookup in it must not continue with the next rule.
func guardsFirst(list []*entry) []*entry {
	guards, rest := make([]*entry, 0, len(list)), []*entry(nil)
	for _, e := range list {
		o := e.want
		if o == nil {
			o = unaltered(e.have)
		}
		if route, ok := o.(Route); ok && route.Kind != Unicast && route.Dst.Bits() == 0 {
			guards = append(guards, e)
		} else {
			rest = append(rest, e)
		}
	}
	return append(guards, rest...)
}

func unaltered(o Object) Object {
	if a, ok := o.(Altered); ok {
		return a.Object
	}
	return o
}
