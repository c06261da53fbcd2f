package route

import (
	"fmt"
	"math"

	"github.com/tabane/tabane/internal/base/hashtable"
)

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
