package message

import (
	"hash/maphash"
	"maps"
	"sync"
	"weak"
)

// Interner shares equal Attributes. It holds them weakly: the garbage collector frees those that
// nothing refers to, and their entries are removed when the Interner grows. It is safe for
// concurrent use.
type Interner struct {
	seed   maphash.Seed
	shards [internShards]internShard
}

const (
	// internShards is so large that dead entries among a million are removed in less than 1 ms at
	// a time, for which other sessions may wait.
	internShards = 256
	minSweep     = 64
)

type internShard struct {
	mu sync.Mutex
	// sets has the attributes by the hash of their wire form. If two different ones had the same
	// hash, only one of them would be shared.
	sets     map[uint64]weak.Pointer[Attributes]
	sweepAt  int // entries at which dead ones are removed
	services serviceCache
}

// NewInterner returns an empty Interner.
func NewInterner() *Interner {
	in := &Interner{seed: maphash.MakeSeed()}
	for i := range in.shards {
		in.shards[i].sets, in.shards[i].sweepAt = map[uint64]weak.Pointer[Attributes]{}, minSweep
	}
	return in
}

// Intern returns the shared Attributes with these fields.
func (in *Interner) Intern(f Fields) *Attributes {
	return in.intern(f.append(make([]byte, 0, 256))) // seldom more is needed
}

// intern returns the shared Attributes with this wire form, which must be well-formed. The caller
// keeps the slice.
func (in *Interner) intern(wire []byte) *Attributes {
	hash := maphash.Bytes(in.seed, wire)
	s := &in.shards[hash%internShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.sets[hash].Value(); a != nil {
		if a.wire == string(wire) {
			return a
		}
		return newAttributes(string(wire), &s.services)
	}
	a := newAttributes(string(wire), &s.services)
	if len(s.sets) >= s.sweepAt {
		s.sweep()
	}
	s.sets[hash] = weak.Make(a)
	return a
}

// sweep removes the entries of freed attributes. It runs again when the number of entries has
// doubled, so that its cost for each added entry is constant.
func (s *internShard) sweep() {
	before := len(s.sets)
	maps.DeleteFunc(s.sets, func(_ uint64, p weak.Pointer[Attributes]) bool { return p.Value() == nil })
	if len(s.sets) < before/2 {
		live := make(map[uint64]weak.Pointer[Attributes], len(s.sets)) // a map does not shrink
		maps.Copy(live, s.sets)
		s.sets = live
	}
	s.sweepAt = max(2*len(s.sets), minSweep)
}

// Len is the number of different Attributes in use, and of some that are about to be freed.
func (in *Interner) Len() int {
	n := 0
	for i := range in.shards {
		s := &in.shards[i]
		s.mu.Lock()
		s.sweep()
		n += len(s.sets)
		s.mu.Unlock()
	}
	return n
}

// serviceCache shares the services of the last attributes: routes of one neighbor have the same
// SID and route targets, but different AS paths.
type serviceCache struct {
	last [8]*service
	next int
}

func (c *serviceCache) get(extended, prefixSID string) *service {
	for _, s := range c.last {
		if s != nil && len(s.raw) == len(extended)+len(prefixSID) &&
			s.raw[:len(extended)] == extended && s.raw[len(extended):] == prefixSID {
			return s
		}
	}
	s := newService(extended, prefixSID)
	c.last[c.next] = s
	c.next = (c.next + 1) % len(c.last)
	return s
}
