package route

import (
	"iter"
	"net/netip"

	"github.com/tabane/tabane/internal/base/hashtable"
)

// An id is a Key in a compact form.
type id struct {
	prefix hashtable.Prefix
	space  uint32 // number of the key without its prefix
}

// An entry is the state of one object.
type entry struct {
	want, have uint32 // numbers of objects; 0: no object
	flags      flags
	found      uint8 // generation of the comparison that last found it
	changed    uint8 // generation in which have was last changed other than by a comparison
}

type flags uint8

const (
	kept     flags = 1 << iota // found in the kernel, not desired and not yet stale
	double                     // the kernel has several objects with the key
	queued                     // in a queue or a waitlist
	waiting                    // in a waitlist
	refused                    // the last attempt failed
	missed                     // not found by a comparison that may have left it out
	doubtful                   // deleted or replaced according to an event, unless that is a late one of a change of ours
)

func (e *entry) is(f flags) bool { return e.flags&f != 0 }

func (e *entry) set(f flags, on bool) {
	if e.flags &^= f; on {
		e.flags |= f
	}
}

func (e *entry) dirty() bool { return (e.want != e.have || e.is(doubtful)) && !e.is(kept) }

// there reports whether the kernel is known to have the object.
func (e *entry) there() bool { return e.have != 0 && !e.is(doubtful) }

// A store holds entries and finds them by key. A route takes about 42 bytes: the objects of all
// routes with the same next hop are one, and so is what their keys have in common.
type store struct {
	hashtable.Table[id, entry]
	spaces  hashtable.Interner[Key]    // keys without their prefix
	objects hashtable.Interner[Object] // routes without their key
	known   []int                      // by object: entries of which the kernel has it
}

// all iterates over the entries; they may be changed and removed meanwhile.
func (s *store) all() iter.Seq2[hashtable.Ref, *entry] {
	return func(yield func(hashtable.Ref, *entry) bool) {
		for n := range s.All() {
			if !yield(n, s.Value(n)) {
				return
			}
		}
	}
}

// key returns the key of an entry.
func (s *store) key(n hashtable.Ref) Key {
	id := s.Key(n)
	k := s.spaces.Value(id.space)
	k.prefix = id.prefix.Netip()
	return k
}

func (s *store) class(n hashtable.Ref) Class { return s.spaces.Value(s.Key(n).space).class }

// find returns the entry of a key; ok is false if there is none.
func (s *store) find(k Key) (n hashtable.Ref, e *entry, ok bool) {
	id := id{prefix: hashtable.Compact(k.prefix)}
	k.prefix = netip.Prefix{}
	if id.space, ok = s.spaces.Find(k); !ok {
		return 0, nil, false
	}
	if n, ok = s.Find(id); !ok {
		return 0, nil, false
	}
	return n, s.Value(n), true
}

// add returns the entry of a key, and makes it if there is none.
func (s *store) add(k Key) (hashtable.Ref, *entry) {
	id := id{prefix: hashtable.Compact(k.prefix)}
	k.prefix = netip.Prefix{}
	id.space = s.spaces.Use(k)
	n, added := s.Add(id)
	if !added {
		s.spaces.Release(id.space)
	}
	return n, s.Value(n)
}

// remove removes an entry without objects.
func (s *store) remove(n hashtable.Ref) {
	space := s.Key(n).space
	s.Remove(n)
	s.spaces.Release(space)
}

// number returns the number of an object and counts a use.
func (s *store) number(o Object) uint32 {
	if r, ok := o.(Route); ok {
		return s.route(r)
	}
	return s.objects.Use(strip(o))
}

// route is number for a route. It allocates only if the route before had another next hop.
func (s *store) route(r Route) uint32 {
	r.Table, r.Dst, r.Metric = 0, netip.Prefix{}, 0
	last, number := s.objects.Last()
	if last, ok := last.(Route); ok && last == r {
		s.objects.UseAgain(number)
		return number
	}
	return s.objects.Use(r)
}

// replace ends a use of an object and counts one of another.
func (s *store) replace(old, now uint32) {
	if old != now {
		s.objects.UseAgain(now)
		s.objects.Release(old)
	}
}

// know counts that the kernel has an object instead of another.
func (s *store) know(old, now uint32) {
	for len(s.known) < s.objects.Len() {
		s.known = append(s.known, 0)
	}
	if old != 0 {
		s.known[old]--
	}
	if now != 0 {
		s.known[now]++
	}
}

// knows reports whether the kernel has an object like this.
func (s *store) knows(like func(Object) bool) bool {
	for i, n := range s.known {
		if n > 0 && like(s.objects.Value(uint32(i))) {
			return true
		}
	}
	return false
}

// strip returns an object without its key if it is a route, so that routes with the same next hop
// have equal objects.
func strip(o Object) Object {
	switch o := o.(type) {
	case Route:
		o.Table, o.Dst, o.Metric = 0, netip.Prefix{}, 0
		return o
	case Altered:
		return Altered{strip(o.Object)}
	}
	return o
}

// object returns an object of an entry, want or have; nil for 0.
func (s *store) object(n hashtable.Ref, number uint32) Object {
	if number == 0 {
		return nil
	}
	return s.restore(n, s.objects.Value(number))
}

func (s *store) restore(n hashtable.Ref, o Object) Object {
	switch o := o.(type) {
	case Route:
		k := s.key(n)
		o.Table, o.Dst, o.Metric = k.a, k.prefix, k.b
		return o
	case Altered:
		return Altered{s.restore(n, o.Object)}
	}
	return o
}
