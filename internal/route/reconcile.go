package route

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
)

// A Kernel is the interface through which a Reconciler configures the kernel; Conn implements it.
// Apply returns an error for each op.
type Kernel interface {
	Apply(ops []Op) []error
	Dump(p Protocol) ([]Object, error)
}

// A Reconciler compares the desired objects of an owner with those in the kernel, and applies the
// difference. The cost of a change does not depend on the number of objects. It is not safe for
// concurrent use.
//
// After a restart a daemon takes over the objects of its previous instance: it calls Resync, Set
// for the desired objects, and Flush. Once all desired objects are known, for example after the
// End-of-RIB of all sessions, it calls Sweep and Flush again.
type Reconciler struct {
	kernel   Kernel
	protocol Protocol
	log      *slog.Logger

	entries    map[Key]*entry
	queue      []*entry // all dirty entries, and some that are clean again
	pending    int      // the number of dirty entries
	counts     [classes]Count
	swept      bool
	prefSrcs   bool   // a route has or had a preferred source
	generation uint32 // of the last resync
	// down are the links that are not up, and waiting the entries that cannot be added yet.
	down    map[string]Link
	waiting map[dependency]*waitlist
	onLink  map[string]int // objects of the kernel by link
}

// A dependency is a precondition for adding an object: a link that is up, or a nexthop object.
type dependency struct {
	link    string
	nexthop uint32
}

// A waitlist has the entries that wait for a dependency, and some that no longer do.
type waitlist struct{ entries []*entry }

type entry struct {
	key        Key
	want, have Object // in normal form; nil: no object
	err        error  // of the last attempt
	kept       bool   // found in the kernel, not desired and not yet stale
	double     bool   // the kernel has several objects with the key
	queued     bool
	waiting    *waitlist // set while queued and not in the queue
	generation uint32    // generation of the resync that last found it
	changed    uint32    // the generation in which have was last changed other than by a resync
}

func (e *entry) dirty() bool { return e.want != e.have && !e.kept }

// blocks reports whether routes through a nexthop object have to wait for it: it is to be added. If
// another program has its ID, they are tried with that.
func (e *entry) blocks() bool {
	return e.key.class == ClassNexthop && e.want != nil && e.have == nil && !errors.Is(e.err, ErrForeign)
}

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

// NewReconciler returns a Reconciler without desired or known kernel objects; call Resync to read
// the kernel's.
func NewReconciler(k Kernel, p Protocol, log *slog.Logger) *Reconciler {
	return &Reconciler{kernel: k, protocol: p, log: log, entries: map[Key]*entry{},
		down: map[string]Link{}, waiting: map[dependency]*waitlist{}, onLink: map[string]int{}}
}

// change applies f to an entry and updates the counts, the queue and the map. Entries are not
// changed in any other way.
func (r *Reconciler) change(e *entry, f func()) {
	count, dirty, blocked := &r.counts[e.key.class], e.dirty(), e.blocks()
	count.add(e, -1)
	if l := linkOf(e.have); l != "" {
		r.onLink[l]--
	}
	f()
	if l := linkOf(e.have); l != "" {
		r.onLink[l]++
	}
	if blocked && !e.blocks() {
		r.release(dependency{nexthop: e.key.a})
	}
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
	if e.dirty() && (!e.queued || e.waiting != nil) {
		e.queued, e.waiting = true, nil
		r.queue = append(r.queue, e)
	}
	if e.want == nil && e.have == nil {
		delete(r.entries, e.key)
	}
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
	case Route:
		n := r.entries[Nexthop{ID: o.NexthopID}.Key()]
		if o.NexthopID != 0 && n != nil && n.blocks() {
			return dependency{nexthop: o.NexthopID}, true
		}
		link = o.Link
	}
	if l, down := r.down[link]; down && !l.Admin {
		return dependency{link: link}, true
	}
	return dependency{}, false
}

// errWaits is the error of an entry that waits for a dependency.
var errWaits = errors.New("waits for its link or nexthop object")

// wait removes an entry from the queue until its dependency is released.
func (r *Reconciler) wait(e *entry, on dependency) {
	l := r.waiting[on]
	if l == nil {
		l = &waitlist{}
		r.waiting[on] = l
	}
	e.queued, e.waiting = true, nil
	r.change(e, func() { e.err = errWaits })
	l.entries = append(l.entries, e)
	e.waiting = l
}

// release queues the entries that wait for a dependency.
func (r *Reconciler) release(on dependency) {
	l := r.waiting[on]
	if l == nil {
		return
	}
	delete(r.waiting, on)
	for _, e := range l.entries {
		if e.waiting == l {
			e.waiting = nil
			r.queue = append(r.queue, e)
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
	used = r.onLink[l.Name] > 0
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
	var nexthops []*entry
	for _, e := range r.entries {
		switch have := unaltered(e.have).(type) {
		case Nexthop:
			if have.Link == l.Name {
				nexthops = append(nexthops, e)
			}
		case Route:
			if have.Link == l.Name && !l.Admin {
				r.lost(e)
			}
		}
	}
	for _, e := range nexthops {
		r.lost(e)
	}
	r.lose(ClassNexthop, nexthops)
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

// lost records that the kernel has deleted an object.
func (r *Reconciler) lost(e *entry) {
	r.change(e, func() { e.have, e.double, e.kept, e.changed = nil, false, false, r.generation })
}

func (r *Reconciler) entry(k Key) *entry {
	e := r.entries[k]
	if e == nil {
		e = &entry{key: k}
		r.entries[k] = e
	}
	return e
}

// Set adds a desired object and replaces the previous one with its key. An invalid object fails in
// Flush.
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
			e.have = o // share one copy
		}
	})
}

// Delete removes the object with the key from the desired state.
func (r *Reconciler) Delete(k Key) {
	if e := r.entries[k]; e != nil {
		r.change(e, func() { e.want, e.kept = nil, false })
	}
}

// Changed applies a change made by another program, as reported by a Watcher. The next Flush
// restores a desired object that was deleted or replaced, and the routes that the kernel deleted
// with a nexthop object. It reports whether the change concerns a known object; if so, other
// objects may have changed too.
func (r *Reconciler) Changed(c ObjectChange) bool {
	o := c.Object.Normal()
	e, ours := r.entries[o.Key()], c.Protocol == r.protocol
	switch {
	case e == nil || e.have == nil || e.double:
		return ours && !c.Deleted
	case o.Key().class == ClassAddress && !c.Deleted:
		return false // the kernel also reports changes of an address's state
	case c.Deleted && (!ours || e.have != o):
		return ours // the object has been replaced since
	case !c.Deleted && ours:
		if e.have == o {
			return false
		}
		r.change(e, func() { e.have, e.changed = o, r.generation })
		return true
	}
	r.lost(e)
	r.lose(o.Key().class, []*entry{e})
	return true
}

// Clear removes all desired objects: the next Flush deletes all objects of the owner, including
// those found by Resync.
func (r *Reconciler) Clear() {
	r.swept = true
	for _, e := range r.entries {
		r.change(e, func() { e.want, e.kept = nil, false })
	}
}

// Sweep marks owned objects that are not desired as stale, both those found so far and those that a
// later Resync finds; the next Flush deletes them. Before Sweep they are kept, so that a restart
// drops no packets.
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
	c := r.Compare()
	objects, err := r.kernel.Dump(r.protocol)
	if err != nil {
		return fmt.Errorf("resync: %w", err)
	}
	c.Add(objects)
	c.End()
	return nil
}

// A Comparison is a Resync in steps, so that a large dump does not block the caller: Compare before
// the dump, Add for each part of it, then End. Objects that changed after Compare are ignored.
// Starting another Comparison cancels it.
type Comparison struct {
	r          *Reconciler
	generation uint32
	before     int
}

// Compare starts a Comparison.
func (r *Reconciler) Compare() *Comparison {
	r.generation++
	return &Comparison{r: r, generation: r.generation, before: r.pending}
}

// Add compares objects of the dump.
func (c *Comparison) Add(objects []Object) {
	r := c.r
	if c.generation != r.generation {
		return
	}
	for _, o := range objects {
		o = o.Normal()
		e := r.entry(o.Key())
		if e.changed == c.generation {
			continue
		}
		r.change(e, func() {
			switch {
			case e.generation == c.generation:
				// A second object with the same key, which another program can add.
				e.have, e.double = Altered{unaltered(e.have)}, true
			case e.want == o:
				e.have, e.double = e.want, false
			default:
				e.kept = e.kept || e.want == nil && e.have == nil && !r.swept
				e.have, e.double = o, false
			}
			e.generation = c.generation
			r.note(e.have)
		})
	}
}

// End completes the comparison: objects that were not in the dump are recorded as absent from the
// kernel.
func (c *Comparison) End() {
	r := c.r
	if c.generation != r.generation {
		return
	}
	for _, e := range r.entries {
		if e.generation != c.generation && e.changed != c.generation && e.have != nil {
			r.change(e, func() { e.have, e.double, e.kept = nil, false, false })
		}
	}
	if r.pending > c.before {
		r.log.Info("kernel differs from what is wanted", "protocol", r.protocol, "objects", r.pending-c.before)
	}
}

// Settled reports whether the kernel is known to match the desired state of the key, which may be
// no object.
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

// Want returns all desired objects, ordered by class, table, link and prefix.
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

// Flush applies dirty entries to the kernel: it adds and replaces nexthops, routes (unreachable
// defaults first), rules and addresses, then deletes addresses, rules, routes and nexthops. Failed
// entries stay dirty for the next Flush. Failed additions are retried once if others succeeded,
// because an object may depend on another. The error is a *FlushError.
func (r *Reconciler) Flush() error {
	var add, del [classes][]*entry
	r.take(&add, &del)
	// With two objects under one key a replacement could replace either, so one is deleted
	// first.
	for _, e := range slices.Concat(add[:]...) {
		if e.double {
			r.separate(e)
		}
	}
	var failed []*entry
	progress := false
	for class := range classes {
		if class == ClassRoute {
			r.take(&add, &del) // routes whose nexthop object exists now
			add[class] = guardsFirst(add[class])
		}
		list := r.ready(add[class])
		f := r.apply(list)
		progress = progress || len(f) < len(list)
		failed = append(failed, f...)
	}
	if progress {
		failed = r.apply(r.ready(failed))
	}
	for class := classes; class > 0; {
		class--
		// Some may have been deleted with an address.
		del[class] = slices.DeleteFunc(del[class], func(e *entry) bool { return e.have == nil })
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

// take empties the queue into add and del, by class.
func (r *Reconciler) take(add, del *[classes][]*entry) {
	queue := r.queue
	r.queue = nil
	for _, e := range queue {
		taken := !e.queued
		e.queued, e.waiting = false, nil
		switch {
		case taken || !e.dirty():
		case e.want != nil:
			add[e.key.class] = append(add[e.key.class], e)
		default:
			del[e.key.class] = append(del[e.key.class], e)
		}
	}
}

// ready returns the entries that can be added now; the others wait for their dependencies.
func (r *Reconciler) ready(list []*entry) []*entry {
	kept := list[:0]
	for _, e := range list {
		if on, blocked := r.blocked(e.want); blocked {
			r.wait(e, on)
			continue
		}
		kept = append(kept, e)
	}
	return kept
}

// apply applies entries to the kernel and returns those that failed.
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
			e.changed = r.generation
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

// separate deletes one of several objects with the same key. An error is ignored here, because the
// replacement of the object fails as well.
func (r *Reconciler) separate(e *entry) {
	op := Op{Protocol: r.protocol, Delete: true, Object: e.have}
	if errs := r.kernel.Apply([]Op{op}); len(errs) == 1 && errs[0] == nil {
		r.change(e, func() { e.have, e.double, e.changed = nil, false, r.generation })
	}
}

// lose records the side effects in the kernel of deleting the objects in list: a nexthop object is
// deleted with its routes, an IPv6 address is removed as preferred source from routes (fib6_nh and
// rt6_remove_prefsrc in the kernel), an IPv4 address is deleted with these (fib_sync_down_addr).
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
		case nexthops[have.NexthopID], addresses[have.PrefSrc] && have.PrefSrc.Is4():
			r.lost(e)
		case addresses[have.PrefSrc]:
			r.change(e, func() { e.have, e.changed = Altered{have}, r.generation })
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
		e.queued, e.waiting = true, nil
		r.queue = append(r.queue, e)
	}
}

// withoutDying returns the routes without those that the kernel deletes with their nexthop object:
// one deletion instead of a hundred thousand.
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
